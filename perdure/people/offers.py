"""What waits for a person, and what becomes of it (R7.1, R7.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from perdure.errors import clip
from perdure.people.decisions import Decision
from perdure.people.digests import Digests
from perdure.plan.approval import Approval
from perdure.plan.calls import Call
from perdure.plan.outcomes import Outcome
from perdure.plan.plan import Plan
from perdure.tools.tool import CLIENT
from perdure.values.jsons import JsonObject
from perdure.values.marks import marked_call

WITH_CLIENT: Final = "the program that started the run carries it out, and says the result"
RESET: Final = "; asked again, for the run was reset"
NAMED: Final = 5
"""Tools of a plan of which the reason says what they run; its offer names all of them."""


@dataclass(slots=True, eq=False)
class Offer:
    """One call, or a whole plan, that waits. What it shows does not change while it does."""

    id: str
    """The call's id, or the Request's number for its plan."""
    reason: str
    plan: Plan
    approval: Approval
    call: Call | None = None
    """`None`: it is the plan."""
    floor: bool = False
    """The worker's floor asks: nothing but a person can let it pass."""
    question: bool = False
    """It asks something, and the answer is its result."""
    digests: Digests = field(default_factory=Digests)
    """Those of what other offers show too."""
    _digest: str | None = None
    calls: list[Call] = field(init=False)
    """What of the plan was to run when it was offered: of a revised plan not what runs already (R10.5)."""

    def __post_init__(self) -> None:
        self.calls = [call for call in self.plan.calls if not (self.call is not None or self.plan.is_past(call))]

    @property
    def shown(self) -> Any:
        """What the digest names: the resolved parameters, or the calls as written, with their references marked."""
        if self.call is None:
            return [marked_call(call.raw) for call in self.calls]
        return self.call.params if self.call.items is None else {**self.call.params, "_each": self.call.items}

    @property
    def digest(self) -> str:
        """What names exactly what is shown; made once."""
        if self._digest is None:
            self._digest = self.digests.of(self.shown)
        return self._digest

    @property
    def runs(self) -> dict[str, str]:
        """What really runs, by tool, of the tools that are called otherwise."""
        tools = [call.tool for call in (self.plan.written() if self.call is None else [self.call])]
        return {tool.name: tool.runs for tool in tools if tool is not None and tool.runs}

    def renew(self, time: str) -> None:
        """Ask once more: the run was reset."""
        self.approval.requested_at = time
        self.reason = f"{self.reason.removesuffix(RESET)}{RESET}"

    @property
    def title(self) -> str:
        return f"the plan of Request {self.id}" if self.call is None else f"{self.id} {self.call.tool_name}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an offer: without an outcome it runs."""

    outcome: Outcome | None = None
    plan: Plan | None = None
    """The plan that takes the place of the one offered."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A decision that can be followed."""

    offer: Offer
    decision: Decision
    call: Call | None = None
    """The revised call."""
    plan: Plan | None = None
    """The revised plan."""
    by_person: bool = True


def what_runs(offer: Offer) -> str:
    """The end of its reason: what runs, of the tools that are called otherwise."""
    named = [f"{clip(name, 60)} runs {clip(code, 60)}" for name, code in offer.runs.items()]
    return "".join(f"; {each}" for each in named[:NAMED]) + (
        f"; and {len(named) - NAMED} more" if len(named) > NAMED else ""
    )


def is_with_client(call: Call) -> bool:
    """Whether a program outside carries it out, and says its result."""
    return call.tool is not None and call.tool.activity == CLIENT


def asked_words(call: Call) -> str:
    """What is asked of whoever answers a call."""
    return WITH_CLIENT if is_with_client(call) else str(call.params.get("question", ""))


def changed_words(call: Call) -> str:
    """The end of a reason: which parameters are a hook's, and not those that the model wrote (R10.17)."""
    return f"; a hook has changed {clip(', '.join(call.changed), 200)}" if call.changed else ""


def hook_feedback(call: Call, by: str) -> JsonObject:
    """What the model is told of a call that hooks have changed: which parameters, and not how (R10.17)."""
    about: JsonObject = {"type": "feedback", "call": call.as_plan_entry(), "decision": "edit", "by": by}
    return about | {"reason": f"a hook has changed {', '.join(call.changed)}"}
