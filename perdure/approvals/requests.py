"""Approval requests: what waits for a person, and the sentence in which the person is asked."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import Field

from perdure.approvals.decisions import Decision, Digests
from perdure.errors import clip
from perdure.plan.calls import Approval, Call, Outcome
from perdure.plan.plan import Plan
from perdure.tools.tool import CLIENT
from perdure.values.json import Json, JsonObject, WireModel, shorten
from perdure.values.limits import MAX_NAME
from perdure.values.templates import marked_call

WITH_CLIENT: Final = "the program that started the run carries it out, and says the result"
RESET: Final = "; asked again, for the run was reset"
NAMED: Final = 5
"""Tools of a plan of which the reason says what they run; its offer names all of them."""


@dataclass(slots=True, eq=False)
class ApprovalRequest:
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
class ApprovalVerdict:
    """What becomes of an offer: without an outcome it runs."""

    outcome: Outcome | None = None
    plan: Plan | None = None
    """The plan that takes the place of the one offered."""


@dataclass(frozen=True, slots=True)
class JudgedDecision:
    """A decision that can be followed."""

    offer: ApprovalRequest
    decision: Decision
    call: Call | None = None
    """The revised call."""
    plan: Plan | None = None
    """The revised plan."""
    by_person: bool = True


def what_runs(offer: ApprovalRequest) -> str:
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


# `ask_words("refund", {"euros": 120, "to": "ann@example.com"}, "euros is above 100")` is `refund 120 EUR to ann@example.com: euros is above 100`.

NO_WORDS: Final = "its parameters meet the condition of the policy"
"""The reason, where nothing of a condition has words."""
_CURRENCIES: Final = {
    "eur": "EUR",
    "euro": "EUR",
    "euros": "EUR",
    "usd": "USD",
    "dollars": "USD",
    "gbp": "GBP",
    "chf": "CHF",
}
_PREPOSITIONS: Final = frozenset(
    (
        "about",
        "after",
        "as",
        "at",
        "before",
        "by",
        "for",
        "from",
        "in",
        "into",
        "of",
        "on",
        "since",
        "to",
        "until",
        "via",
        "with",
    )
)
_SHOWN: Final = 50
"""Characters of a value; the form beside the sentence shows all of it."""
_NAMED: Final = 6
"""Parameters in a sentence."""
_PLAIN: Final = re.compile(r"[\w@.+/#%-]+(?::[\w@.+/#%-]+)*")
"""Values that stand without quotes: nothing in them can be taken for words of the sentence."""
_COUNTED: Final = re.compile(r"[^\W_]*[^sui_]s")
"""Names that count something: `replicas`, and neither `status`, `address` nor `older_than_days`."""


def ask_words(tool: str, params: JsonObject | None, reason: str, *, question: bool = False) -> str:
    """Return the sentence: what the call would do and the reason. A question is its own sentence."""
    return reason if question else f"{call_words(tool, params or {})}: {reason}"


def plan_words(calls: int | None, reason: str) -> str:
    """Return the sentence for a whole plan; `None`: how many calls it has is not known here."""
    return f"run a plan{'' if calls is None else f' of {calls} ' + ('call' if calls == 1 else 'calls')}: {reason}"


def call_words(tool: str, params: Mapping[str, Json]) -> str:
    """Return what a call does in words: the tool's name as a verb, then each parameter."""
    text = _words(tool)
    for place, (name, value) in enumerate(params.items()):
        if place == _NAMED:
            return f"{text}, and {len(params) - _NAMED} more parameters"
        if name == "currency" and _is_number(params.get("amount")):
            continue
        piece, joins = _piece(name, value, params)
        if place == 0 and text.endswith(f" {_words(name)}"):  # `deploy_service(service="shop")`
            piece = value_words(value)
        text += f" {piece}" if joins or place == 0 else f", {piece}"
    return text


def _piece(name: str, value: Json, params: Mapping[str, Json]) -> tuple[str, bool]:
    """One parameter, and whether it goes on without a comma."""
    shown, key = value_words(value), name.lower()
    if _is_number(value):
        if key in _CURRENCIES:
            return f"{shown} {_CURRENCIES[key]}", False
        if key == "amount" and isinstance(params.get("currency"), str):
            return f"{shown} {value_words(params['currency'])}", False
        if _COUNTED.fullmatch(key):
            return f"{shown} {_words(name)}", False
    return f"{_words(name)} {shown}", key in _PREPOSITIONS


def value_words(value: Json) -> str:
    """Return a value as it stands in a sentence: in quotes where it could be taken for words, and never with invisible characters."""
    if isinstance(value, str) and len(value) <= _SHOWN and _PLAIN.fullmatch(value):
        return value
    if isinstance(value, str) and len(value) > _SHOWN:
        value = f"{value[: _SHOWN - 1]}…"
    return _visible(shorten(value, _SHOWN + 2))


def condition_words(when: Json, params: JsonObject | None, *, decided: bool = True) -> str:
    """Return a policy's condition as a sentence: `{"properties": {"euros": {"exclusiveMinimum": 100}}}` is `euros is above 100`.

    `params`: the parameters, of which only those that are there have words; `None`: they are not known yet. `decided`: whether they meet it
    for certain.
    """
    words = _visible(" and ".join(dict.fromkeys(_conditions(when, params, ""))))
    if params is not None and decided:
        return words or NO_WORDS
    return f"it is not known whether {words or NO_WORDS}"


def _conditions(schema: Json, value: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    for name, inner in properties.items():
        if not isinstance(value, dict) or name in value:
            below = value.get(name) if isinstance(value, dict) else None
            yield from _conditions(inner, below, f"{path}.{name}" if path else name)
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if name not in properties:
            yield f"{path}.{name} is given" if path else f"{name} is given"
    for all_of in _schemas(schema, "allOf"):
        yield from _conditions(all_of, value, path)
    for key in ("anyOf", "oneOf"):
        found = [" and ".join(_conditions(each, value, path)) for each in _schemas(schema, key)]
        if any(found):
            yield " or ".join(dict.fromkeys(filter(None, found)))
    inner = list(_conditions(schema.get("not"), value, path))
    if len(inner) == 1:
        yield inner[0].replace(" is ", " is not ", 1) if " is " in inner[0] else f"not: {inner[0]}"
    if path:
        yield from _bounds(schema, path)


def _schemas(schema: JsonObject, key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _bounds(schema: JsonObject, path: str) -> Iterator[str]:
    """What one value is compared with."""
    for key, words in _COMPARED.items():
        if key in schema:
            yield f"{path} {words.format(value_words(schema[key]))}"
    options = schema.get("enum")
    if isinstance(options, list):
        yield f"{path} is {' or '.join(map(value_words, options[:_NAMED]))}{' or another of the policy' if len(options) > _NAMED else ''}"


_COMPARED: Final = {
    "const": "is {}",
    "exclusiveMinimum": "is above {}",
    "minimum": "is {} or more",
    "exclusiveMaximum": "is below {}",
    "maximum": "is {} or less",
    "minLength": "has {} characters or more",
    "maxLength": "has {} characters or fewer",
    "minItems": "has {} items or more",
    "maxItems": "has {} items or fewer",
    "pattern": "matches {}",
}
"""Words by keyword of JSON Schema."""


def _words(name: str) -> str:
    return _visible(" ".join(re.split(r"[_\-\s]+", name.strip("_-"))) or name)


def _visible(text: str) -> str:
    """The text on one line, with escapes for characters that nobody sees or that turn a line around."""
    return "".join(
        char if char.isprintable() else " " if unicodedata.category(char) == "Zs" else f"\\u{ord(char):04x}"
        for char in text
    )


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class WaitingView(WireModel):
    """What waits for a person: a call, or a whole plan (`calls` and `simulation` are set then)."""

    call: str
    """What a decision names: the call's id, or the Request's number for its plan."""
    agent: str
    """The name of the run's agent."""
    tool: str
    description: str = ""
    """The tool's."""
    params: JsonObject = Field(default_factory=dict)
    """Resolved."""
    parameters: JsonObject = Field(default_factory=dict)
    """JSON Schema of the parameters."""
    items: list[Any] | None = None
    """What `_each` resolved to: the call runs once for each. The digest is of the parameters with these as `_each`."""
    runs: dict[str, str] = Field(default_factory=dict)
    """Tool → the activity, or the agent, that runs, where that is not called like the tool."""
    ways: list[str] = Field(default_factory=list)
    """Where its parameters come from, a line each: `send_money.iban ← †state.mail.iban ← read_mail (written by others)` (R15.6)."""
    reason: str
    """Why it is asked about, or the question."""
    requested_at: str
    """ISO 8601, UTC."""
    digest: str
    """Of exactly what is shown: a decision that carries it counts for nothing else (R7.2)."""
    question: bool = False
    """It is a question (`reason`): an answer is wanted, not a decision."""
    client: bool = False
    """Whether the program that started the run carries the call out: no person is asked (R17.2)."""
    calls: list[Any] | None = None
    """The whole plan, where that is what waits."""
    more: int = 0
    """How many wait behind it that the answer had no room for: they are asked for next."""
    cut: bool = False
    """Whether something of it was too large to be shown whole; the digest is of the whole (R18.3)."""
    simulation: JsonObject | None = None
    """`{"makespan", "levels": [[call ids]], "asks": [call ids]}`."""

    @property
    def sentence(self) -> str:
        """The question as a sentence: `refund 120 EUR to ann@example.com: euros is above 100`."""
        if self.calls is not None:
            return plan_words(len(self.calls), self.reason)
        return ask_words(self.tool, self.params, self.reason, question=self.question)


def asked_of_people(waiting: Iterable[WaitingView]) -> list[WaitingView]:
    """Return what people decide or answer, without the calls that the run's client carries out."""
    return [offer for offer in waiting if not offer.client]


class WaitingEntry(WireModel):
    """One thing that waits, as far as a list shows it: whole it is the run's to tell."""

    call: str
    """What a decision names."""
    tool: str
    params: JsonObject | None = None
    """`None`: a plan, or too long for a list."""
    reason: str
    """Why it is asked about, or the question."""
    requested_at: str
    """ISO 8601, UTC."""
    digest: str
    """As that of a `WaitingView`."""
    question: bool = False
    """An answer is wanted, not a decision."""

    @property
    def sentence(self) -> str:
        """The question as a sentence, as that of a `WaitingView`; without the parameters where they are too long for a list."""
        if "." not in self.call:  # a Request's number is its plan
            return plan_words(None, self.reason)
        return ask_words(self.tool, self.params, self.reason, question=self.question)


class WaitingMemo(WireModel):
    """What visibility tells of a run that waits for a person, so that lists ask no run (R7.8)."""

    agent: str
    calls: list[WaitingEntry]
    """The oldest `WAITING_NAMED`."""


APPROVE_ACTIVITY: Final = "perdure.approve"
EXECUTION_ACTIVITY: Final = "perdure.execution"
STEER: Final = "steer"
"""Signal: a new message for the run while it works, a `Said` (R10.5)."""
WAITS: Final = "waits"
"""Signal, a `RunWaits`: a session's run tells its session that it has come to wait for a person, or does not any more (R10.4)."""
WITHDRAW: Final = "withdraw"
"""Update: a message, by its id, is taken back while no Request holds it (R10.7)."""


class RunWaits(WireModel):
    """Whether a session's run waits for a person."""

    run_id: str
    count: int
    """How often that has changed: signals may overtake each other."""
    waits: bool


class ApproveInput(WireModel):
    """What a program that decides is asked (R7.9)."""

    approver: str
    """`module:function`."""
    call: str
    """The offer's name, as a decision has it."""
    offer: JsonObject | None = None
    """A `WaitingView` as JSON: what a person would be shown. `None`: too large to be sent; the activity asks its run (R18.2)."""


class IncomingMessage(WireModel):
    """A message that came while the run worked."""

    id: str = Field(min_length=1, max_length=MAX_NAME)
    """Its sender's: a second one of the same sender and id is the same message."""
    text: str = Field(min_length=1)
    sender: str = Field(default="", max_length=MAX_NAME)
    at: str = Field(default="", max_length=40)
    """ISO 8601, UTC: when it was accepted."""


class MessageFate(WireModel):
    """What became of such a message."""

    id: str
    sender: str = ""
    request: int | None = None
    """Number of the Request that held it; `None`: none has, or none did before the run ended."""

    def names(self, id: str, sender: str) -> bool:
        """Whether it is that of a message; Perdure 0.1.0 kept no sender."""
        return self.id == id and self.sender in ("", sender)
