"""Which calls a person is asked about (R7.1): three layers, of which the lowest cannot be loosened.

The worker's floor is a level and nothing else, and it judges by what the tool's code declares: an agent file that calls a
dangerous activity safe does not get below it. Above it stands the agent file's policy with the run's own changes over it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from perdure.errors import DecisionError
from perdure.people.digests import approval_digest, digest
from perdure.people.flows import ANY, UNTRUSTED, Flow, Judgement, judge_flows
from perdure.people.questions import condition_words
from perdure.plan.calls import Call
from perdure.tools.rules import check_rule
from perdure.tools.tool import Tool
from perdure.values.durations import Seconds
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_FLOWS
from perdure.values.limits.steps import Checks
from perdure.values.problems import first_problem
from perdure.values.schemas import Schema
from perdure.values.sources import untrusted
from perdure.values.sources.origins import UNKNOWN_ORIGINS, Origins
from perdure.values.wire import Wire

Ask: TypeAlias = Literal["never", "untrusted", "dangerous", "unsafe", "always"]
"""What a policy asks about, from the loosest to the strictest: `untrusted` is what is dangerous and comes from others, `unsafe` all that is
not declared safe."""

ASKS: Final[tuple[Ask, ...]] = ("never", "untrusted", "dangerous", "unsafe", "always")


class Policy(BaseModel):
    """`config.approval` of an agent file; with only some of its keys, a change to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scope: Literal["calls", "plan"] = "calls"
    """`plan` offers a Request's whole plan once, in place of its calls one by one (R7.6)."""
    ask: Ask = "dangerous"
    """What a person is asked about; `unsafe` is all that is not declared safe."""
    tools: dict[str, Any] = Field(default_factory=dict)
    """Exceptions by tool name, before the tool's own `_approval`: `never`, `always` or `{"when": <JSON Schema>}`."""
    flows: list[Flow] = Field(default_factory=list, max_length=MAX_FLOWS)
    """Rules about where parameters may come from (R15.5)."""
    approver: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """`module:function` of the worker's: the program that decides, or leaves it to a person (R7.9)."""
    timeout: Seconds | None = None
    """Seconds that a decision is waited for; `None` waits for ever (R7.4)."""
    on_timeout: Literal["reject", "approve", "fail"] = "reject"
    """What it means that nobody decided in time."""

    @model_validator(mode="before")
    @classmethod
    def _a_scope_alone(cls, policy: Any) -> Any:
        return {"scope": policy} if isinstance(policy, str) else policy

    @field_validator("tools")
    @classmethod
    def _usable_rules(cls, tools: dict[str, Any]) -> dict[str, Any]:
        for name, rule in tools.items():
            if problem := check_rule(rule):
                raise ValueError(f"{name}: {problem}")
        return tools

    def changed(self, change: Policy) -> Policy:
        """This policy with the keys that the change sets; exceptions per tool, and rules about flows, are added to those that are there."""
        keys = {key: getattr(change, key) for key in change.model_fields_set}
        if "tools" in keys:
            keys["tools"] = self.tools | change.tools
        if "flows" in keys:  # the newest counts, where they are about the same
            added = [flow for flow in change.flows if flow not in self.flows[-len(change.flows) :]]
            keys["flows"] = [*self.flows, *added][-MAX_FLOWS:]
        merged: Policy = self.model_copy(update=keys)
        return merged

    def as_change(self) -> JsonObject:
        """Only the keys that were set."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


def parse_policy(raw: Json) -> Policy:
    """A change to a policy. Raises `DecisionError`."""
    try:
        return Policy.model_validate(raw)
    except ValidationError as error:
        raise DecisionError(f"the policy is none: {first_problem(error, raw, model=Policy)}") from None


def stricter(one: Ask, other: Ask) -> Ask:
    """The floor of a run that stands on two: its worker's and that of the run above, which may be another's."""
    return max(one, other, key=ASKS.index)


class Giver(Wire):
    """A run above that gave its tools to a delegate: there they keep the policy of its agent file (R8.2)."""

    tools: list[str]
    policy: Policy


class Guard:
    """The three layers of one run, and for tools that it was given the giver's agent file beside its own."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        floor: Ask = "never",
        change: Policy | None = None,
        remembered: Mapping[str, Iterable[str]] | Iterable[str] = (),
        givers: Iterable[Giver] = (),
        floor_flows: Iterable[Flow] = (),
    ) -> None:
        self.floor: Ask = floor
        self.floor_flows = list(floor_flows)
        self._givers = list(givers)
        self.change = change or Policy()
        self.remembered: dict[str, frozenset[str]] = {}
        """Tools that a person does not want to be asked about again (R7.7), with digests of what others had written of the calls that were shown."""
        self.by_provenance = True
        """Whether a run goes by that; runs that had remembered before there was this rule do not."""
        self.recall(remembered)
        self.base = policy or Policy()
        """The agent file's."""
        self.policy = self.base.changed(self.change)
        """The agent file's with the run's changes."""

    def recall(self, remembered: Mapping[str, Iterable[str]] | Iterable[str]) -> None:
        """Take up what was remembered, by tool with what was shown; names alone hold for any."""
        named = remembered if isinstance(remembered, Mapping) else dict.fromkeys(remembered, (ANY,))
        self.remembered |= {name: frozenset(sources) for name, sources in named.items()}

    def remember(self, tool: str, params: JsonObject, origins: Origins) -> None:
        """Ask no more about calls of the tool of which others wrote nothing, or just what they wrote of this one, which a person has seen."""
        shown = _shown(params, origins) if self.by_provenance else frozenset({ANY})
        self.remembered[tool] = self.remembered.get(tool, frozenset()) | (shown or frozenset())

    def remembers(self, tool: str, params: JsonObject | None, origins: Origins) -> bool:
        """Whether a person has seen a call of this tool, and what others wrote of this one."""
        known, shown = self.remembered.get(tool), _shown(params, origins)
        return known is not None and (ANY in known or (shown is not None and shown <= known))

    def loosen_or_tighten(self, change: Policy) -> None:
        """Change the run's own layer (R7.7). What a change makes stricter is asked about, whatever was remembered before."""
        stricter_all = "ask" in change.model_fields_set and stricter(self.policy.ask, change.ask) != self.policy.ask
        forgotten = (
            list(self.remembered) if stricter_all else [n for n, rule in change.tools.items() if rule != "never"]
        )
        for name in forgotten:
            self.remembered.pop(name, None)
        self.change = self.change.changed(change)
        self.policy = self.base.changed(self.change)

    def only_tightens(self, change: Policy) -> bool:
        """Whether nothing is asked about less after this change."""
        stricter_all = stricter(self.policy.ask, change.ask) == change.ask or "ask" not in change.model_fields_set
        return (
            change.model_fields_set <= {"ask", "tools"}
            and stricter_all
            and all(rule == "always" for rule in change.tools.values())
        )

    def given(self, names: Collection[str]) -> list[Giver]:
        """What goes along with these tools when they are given on: this run's policy, and that of those who gave them to it."""
        givers = [*self._givers, Giver(tools=list(names), policy=self.base)]
        given = [Giver(tools=[name for name in each.tools if name in names], policy=each.policy) for each in givers]
        return [each for each in given if each.tools]

    def on_timeout(self, tool: Tool | None) -> str:
        """What it means that nobody decided about a call of the tool; no giver's `reject` becomes an `approve`."""
        means = {policy.on_timeout for policy in self._policies(tool)}
        own = self.policy.on_timeout
        return own if own != "approve" or means == {"approve"} else "reject"

    def approver(self, tool: Tool | None) -> str | None:
        """The program that decides about calls of the tool; none where a giver's policy does not name the same one (R7.9)."""
        named = {policy.approver for policy in self._policies(tool)}
        return self.policy.approver if len(named) == 1 else None

    def _policies(self, tool: Tool | None) -> list[Policy]:
        """The run's own, and with its changes those of whoever gave it the tool."""
        given = [giver.policy.changed(self.change) for giver in self._givers if tool and tool.name in giver.tools]
        return [self.policy, *given]

    def floor_asks(self, tool: Tool, origins: Origins = UNKNOWN_ORIGINS) -> bool:
        """Whether the worker's floor asks about a call; where it is not known yet what the call reads, whether it may."""
        return self._why_floor(tool, origins) is not None

    def asks(self, call: Call) -> bool:
        """Whether a person may be asked about a call that was not resolved."""
        return call.tool is not None and self.why(call.tool, None, origins=call.origins) is not None

    def refuses(self, call: Call) -> str | None:
        """Why the call may not run at all: a value would flow where a rule does not let it (R15.5)."""
        assert call.tool is not None
        layers = [self.floor_flows, *(policy.flows for policy in self._policies(call.tool))]
        found = (judge_flows(flows, call.tool.name, call.origins).refuse for flows in layers if flows)
        return next((why for why in found if why is not None), None)

    def why(
        self,
        tool: Tool,
        params: JsonObject | None,
        checks: Checks | None = None,
        origins: Origins = UNKNOWN_ORIGINS,
    ) -> str | None:
        """Why a person is asked before this call, or `None`. Without parameters a condition counts as if it held, and without origins
        whatever it reads as written by others."""
        if (why := self._why_floor(tool, origins)) is not None:
            return why
        if self.remembers(tool.name, params, origins):
            return None
        reasons = (_why(policy, tool, params, origins, checks) for policy in self._policies(tool))
        return next((reason for reason in reasons if reason is not None), None)

    def _why_floor(self, tool: Tool, origins: Origins) -> str | None:
        unknown = "" if tool.code_known else ", and does not know the code of this tool"
        flows = _judged(self.floor, self.floor_flows, tool, origins)
        if _level_asks(self.floor, safe=tool.code_safe, dangerous=tool.code_dangerous, tainted=bool(flows.tainted)):
            others = f": {flows.why_tainted}" if self.floor == UNTRUSTED else ""
            return f"the worker asks about all that is {_LEVELS[self.floor]}{unknown}{others}"
        return flows.ask and f"the worker's rule: {flows.ask}"


def _shown(params: JsonObject | None, origins: Origins) -> frozenset[str] | None:
    """A digest of what others wrote of a call, and of who they are; nothing where they wrote nothing, `None` where it is not known."""
    if not (others := origins.by_others):
        return frozenset()
    names = {name for name, sources in origins.params.items() if untrusted(origins.written) or untrusted(sources)}
    if params is None or not origins.read or not names <= params.keys():
        return None
    return frozenset({digest([sorted(others), {name: params[name] for name in names}])})


def _judged(ask: Ask, flows: Sequence[Flow], tool: Tool, origins: Origins) -> Judgement:
    """Nothing is looked into where neither the level nor a rule asks where values come from."""
    return judge_flows(flows, tool.name, origins) if flows or ask == UNTRUSTED else Judgement()


def _why(policy: Policy, tool: Tool, params: JsonObject | None, origins: Origins, checks: Checks | None) -> str | None:
    judged = _judged(policy.ask, policy.flows, tool, origins)
    if judged.ask is not None:
        return judged.ask
    rule = policy.tools.get(tool.name, tool.approval)
    if isinstance(rule, dict):
        # A condition that cannot be decided holds: what nobody could look into is asked about.
        fits = None if params is None else _condition(rule["when"], checks).fits(params, checks=checks)
        return None if fits is False else condition_words(rule["when"], params, decided=fits is True)
    if rule is not None:
        return f"{tool.name} is always asked about" if rule == "always" else None
    if policy.ask == UNTRUSTED and tool.dangerous and judged.tainted:
        return f"{tool.name} is dangerous, and {judged.why_tainted}"
    if _level_asks(policy.ask, safe=tool.safe, dangerous=tool.dangerous, tainted=False):
        return f"{tool.name} is {_LEVELS[policy.ask]}" if policy.ask != "always" else "every call is asked about"
    return None


def _condition(when: JsonObject | bool, checks: Checks | None) -> Schema:
    schema = Schema(cast(JsonObject, when))
    return schema if checks is None else cast(Schema, checks.schemas.setdefault(id(when), schema))


def floor_problem(
    floor: Ask,
    code: Mapping[str, Json],
    activity: str,
    params: JsonObject,
    approved: str | None,
    *,
    clean: bool = False,
) -> str | None:
    """Why a worker with this floor does not run a call of its own code, whose definition is `code` (R7.1).

    `approved`: `approval_digest` of what a person let run. It has to be of exactly these parameters. `clean`: whether its run says that
    nothing of it was written by others.
    """
    safe, dangerous = bool(code.get("_safe")), bool(code.get("_dangerous"))
    if not _level_asks(floor, safe=safe, dangerous=dangerous, tainted=not clean) or approved == approval_digest(
        activity, params
    ):
        return None
    why = "without a person's approval" if approved is None else "with an approval of other parameters"
    return (
        f"this worker runs nothing that is {_LEVELS[floor]} {why}: its floor is {floor!r}; start the workers that run the "
        f"agents with --approval-floor {floor} too, so that they ask; a run keeps the floor that it was started with"
    )


_LEVELS: Final = {
    "never": "",
    "untrusted": "dangerous and comes from others",
    "dangerous": "dangerous",
    "unsafe": "not declared safe",
    "always": "called",
}


def _level_asks(ask: Ask, *, safe: bool, dangerous: bool, tainted: bool) -> bool:
    if ask == UNTRUSTED:
        return dangerous and tainted
    return ask == "always" or (ask == "unsafe" and (dangerous or not safe)) or (ask != "never" and dangerous)
