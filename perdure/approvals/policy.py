"""Approval policies: which calls need a person, in three layers, and rules about the flow of values.

The worker's floor is a level, and flow rules. The level depends on the declarations of the tool's code, and the rules on
the code's name. So an agent file that declares a dangerous activity safe, or gives it another name, does not evade them.
The agent file's policy, overridden by the run's own changes, can only add approvals to the floor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from perdure.approvals.decisions import approval_digest, digest
from perdure.approvals.requests import condition_words
from perdure.errors import AgentError, DecisionError, Problem
from perdure.plan import Call
from perdure.rules import (
    NamedParameter,
    Rule,
    condition_keys,
    impossible_parameters,
    parameter_problems,
    parse_rules,
    unknown_tools,
)
from perdure.tools.definitions import definition_name
from perdure.tools.quorum import Quorum, merge_quorums, quorum_of
from perdure.tools.tool import READ_SKILL, Tool, check_rule, code_names
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.limits import MAX_FLOWS, CheckBudget, Seconds
from perdure.values.problems import ProblemPath, accepts, first_problem, none_of, problem_at
from perdure.values.provenance import (
    EACH,
    OTHERS,
    UNKNOWN_ORIGINS,
    Origins,
    code_sources,
    in_words,
    rule_name,
    untrusted_sources,
)
from perdure.values.schemas import Schema

UNTRUSTED: Final = "untrusted"
ANY: Final = "*"
_FROM: Final = r"^(user|agent|model|untrusted|\*|(tool|skill|file|client):.{1,200})$"


class Flow(BaseModel):
    """A rule about the flow of values. Of several rules for the same source and parameter, the last one counts."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    source: Annotated[
        str, Field(pattern=_FROM), accepts("user, agent, model, untrusted, * or a name such as tool:NAME")
    ] = Field(alias="from")
    """`tool:NAME`, `skill:NAME`, `file:NAME`, `client:NAME`, `user`, `agent`, `model`; `untrusted` is any value that
    others wrote, `*` any source."""
    to: str = Field(min_length=1, max_length=500)
    """`TOOL.PARAMETER`; `TOOL` stands for each of its parameters and the call itself, `*` for all tools."""
    do: Literal["ask", "refuse", "allow"]
    """`allow`: a value from this source does not count as untrusted here."""

    def meets(self, tool: FlowTool, param: str | None, name: str) -> bool:
        """Whether the rule applies to this source in this parameter of this tool; `param=None` is the call itself."""
        tools, sources = tool.names(self.do), tool.source_names(self.do, name)
        there = self.to in (ANY, *tools) or (param is not None and self.to in [f"{each}.{param}" for each in tools])
        return there and self.source in (ANY, *sources, UNTRUSTED if name.startswith(OTHERS) else None)

    def may_meet(self, tool: FlowTool) -> bool:
        names = tool.names(self.do)
        return self.to in (ANY, *names) or any(self.to.startswith(f"{name}.") for name in names)


@dataclass(frozen=True, slots=True)
class FlowTool:
    """A tool under the names that flow rules may use. `code_names`: those of its code, for a worker's floor.

    A rule to ask or refuse applies to each name of a tool or source. A rule to allow applies to the code's names only:
    an agent file could otherwise use another tool's name, and so its permission.
    """

    name: str
    code_names: tuple[str, ...] = ()

    def names(self, do: str) -> tuple[str, ...]:
        """Return the tool's names for a rule with this `do`."""
        return self.code_names if do == "allow" and self.code_names else (self.name, *self.code_names)

    def source_names(self, do: str, name: str) -> tuple[str, ...]:
        """Return a source's names for a rule with this `do`."""
        code = code_sources(name) if self.code_names else ()
        return code if do == "allow" and code else (rule_name(name), *code)


@dataclass(frozen=True, slots=True)
class FlowVerdict:
    """The verdict of the rules on one call."""

    refuse: str | None = None
    ask: str | None = None
    tainted: list[tuple[str | None, str]] = field(default_factory=list)
    """Parameter (`None`: the call itself) and source of each untrusted value that no rule allows."""

    @property
    def why_tainted(self) -> str:
        """Return the reason: the sources that others may have written."""
        return "; ".join(
            f"{'the call' if param is None else param} comes from {in_words([name])}"
            for param, name in self.tainted[:3]
        )


def judge_flows(flows: Sequence[Flow], tool: FlowTool, origins: Origins | None) -> FlowVerdict:
    """Apply the rules to a call of the tool. With unknown origins, each parameter may come from anywhere."""
    if origins is None or not origins.read:
        asks = [rule for rule in flows if rule.do == "ask" and rule.may_meet(tool)]
        why = f"the provenance of {tool.name}'s parameters is not known yet"
        return FlowVerdict(ask=why if asks else None, tainted=[(None, f"{OTHERS}not known yet")])
    refuse = ask = None
    tainted: list[tuple[str | None, str]] = []
    for param, name in _flows_of(origins):
        rule = next((rule for rule in reversed(flows) if rule.meets(tool, param, name)), None)
        way = f"{tool.name}{'' if param is None else f'.{param}'} comes from {in_words([name])}"
        if rule is not None and rule.do == "refuse":
            refuse = refuse or f"{way}, which the policy refuses"
        elif rule is not None and rule.do == "ask":
            ask = ask or f"{way}, which the policy asks about"
        if name.startswith(OTHERS) and not (rule is not None and rule.do == "allow"):
            tainted.append((param, name))
    return FlowVerdict(refuse, ask, tainted)


def _flows_of(origins: Origins) -> Iterator[tuple[str | None, str]]:
    """Yield each parameter with each of its sources; then the call itself with its untrusted sources."""
    for param, sources in origins.params.items():
        for name in sorted(sources):
            yield param, name
    for name in sorted(origins.written if not origins.params else untrusted_sources(origins.written)):
        yield None, name


Ask: TypeAlias = Literal["never", "untrusted", "dangerous", "unsafe", "always"]
"""Levels of a policy, from the loosest to the strictest. `untrusted` asks about dangerous calls with untrusted values,
`unsafe` about every call that is not declared safe."""

ASKS: Final[tuple[Ask, ...]] = ("never", "untrusted", "dangerous", "unsafe", "always")


class Policy(BaseModel):
    """The approval policy of an agent file (`config.approval`); with only some of its keys, a change to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scope: Literal["calls", "plan"] = "calls"
    """`plan` requests one approval for a Request's whole plan, instead of one for each call (R7.6)."""
    ask: Ask = "dangerous"
    """The calls that need approval; `unsafe` is every call that is not declared safe."""
    tools: JsonObject = Field(default_factory=dict)
    """Rules by tool name, in place of `ask` and of the tool's own `_approval`: `never`, `always`, `{"when": <JSON
    Schema>}`, or a quorum: `{"by": 2, "roles": ["finance"], "not": "requester"}`. With `when`, only matching calls are asked
    about."""
    flows: list[Flow] = Field(default_factory=list, max_length=MAX_FLOWS)
    """Rules about the provenance of parameters (R15.5)."""
    approver: Annotated[str, Field(pattern=r"^[\w.]+:\w+$"), accepts("MODULE:FUNCTION")] | None = None
    """The worker's `module:function`: a program that decides, or leaves the decision to a person (R7.9)."""
    timeout: Seconds | None = None
    """Seconds to wait for a decision. `None`: no limit (R7.4)."""
    on_timeout: Literal["reject", "approve", "fail"] = "reject"
    """The result of a call without a decision in time."""

    @model_validator(mode="before")
    @classmethod
    def _a_scope_alone(cls, policy: Json) -> Json:
        if policy in ASKS:
            raise ValueError(f'must be \'calls\', \'plan\' or an object, not "{policy}": give {{"ask": "{policy}"}}')
        return {"scope": policy} if isinstance(policy, str) else policy

    @field_validator("tools")
    @classmethod
    def _usable_rules(cls, tools: JsonObject) -> JsonObject:
        for name, rule in tools.items():
            if problem := check_rule(rule):
                raise ValueError(f"{name}: {problem}")
        return tools

    def changed(self, change: Policy) -> Policy:
        """Return this policy with the keys that the change sets.

        Exceptions per tool and flow rules are added to the present ones. An exception replaces the one for the same
        tool, a flow rule the one for the same source and parameter.
        """
        keys = {key: getattr(change, key) for key in change.model_fields_set}
        if "tools" in keys:
            keys["tools"] = self.tools | change.tools
        if "flows" in keys:
            replaced = {(flow.source, flow.to) for flow in change.flows}
            keys["flows"] = [*(flow for flow in self.flows if (flow.source, flow.to) not in replaced), *change.flows]
        merged: Policy = self.model_copy(update=keys)
        return merged

    def remove_rules(self, names: Collection[str]) -> Policy:
        """Return this change without its rules of these tools."""
        return self.model_copy(update={"tools": {name: rule for name, rule in self.tools.items() if name not in names}})

    def as_change(self) -> JsonObject:
        """Return only the keys that were set."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


def parse_policy(raw: Json, *, source: str = "the policy") -> Policy:
    """Parse a change to a policy. Raises `DecisionError`, which names the `source`."""
    try:
        return Policy.model_validate(raw)
    except ValidationError as error:
        raise DecisionError(f"{source} is not valid: {first_problem(error, raw, model=Policy)}") from None


def stricter_level(one: Ask, other: Ask) -> Ask:
    """Return the stricter level, for a run with two floors: its worker's, and that of the parent run, which may have
    another worker."""
    return max(one, other, key=ASKS.index)


class PlanApproval(WireModel):
    """The approval of a whole plan, for the parts of its loops: they judge their calls as the run does, and show no plan
    (R7.6).
    """

    covers: bool = True
    """Whether the plan was approved, and the policy has not become stricter since. Otherwise parts judge each call."""
    by_person: bool = False
    """Whether a person has approved it, so that the worker's floor allows the parameters that were shown."""
    sources: list[str] | None = None
    """The sources whose values a standing approval allows; `None`: all."""
    ended: bool = False
    """Whether that standing approval decides no more (R23.3)."""

    def limit(self, *, is_tightened: bool, is_changed: bool) -> PlanApproval:
        """Return the approval for later parts. `is_tightened`: whether the policy has become stricter (R7.7).
        `is_changed`: whether a decision has changed a call of an earlier part.
        """
        if self.sources is None:
            return self.model_copy(update={"covers": self.covers and not is_tightened})
        return self.model_copy(update={"ended": self.ended or is_tightened or is_changed})


class ToolOwner(WireModel):
    """An ancestor run that gave its tools to a delegate: the policy of its agent file also applies to them there
    (R8.2).
    """

    tools: list[str]
    policy: Policy


class Guard:
    """The three layers of one run's approval policy, and the owner's agent file for each tool that a parent run gave
    it."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        floor: Ask = "never",
        change: Policy | None = None,
        remembered: Mapping[str, Iterable[str]] | Iterable[str] = (),
        givers: Iterable[ToolOwner] = (),
        floor_flows: Iterable[Flow] = (),
        knows_defaults: bool = True,
        adds_to_quorums: bool = True,
        keeps_giver_policy: bool = True,
        code_counts: bool = True,
    ) -> None:
        """`knows_defaults`: whether a condition sees the default of an omitted parameter. In runs of 0.1.0 it does not.
        `adds_to_quorums`: whether a run's rule is added to a quorum. In runs of 0.2.0 it has no effect.
        `keeps_giver_policy`: whether the `timeout` and `scope` of a tool's giver apply to it. In runs of 0.2.0 they do not.
        `code_counts`: whether the floor's flow rules apply to the names of a tool's code. In runs of 0.2.0 they do not.
        """
        self.floor: Ask = floor
        self._knows_defaults = knows_defaults
        self._adds_to_quorums = adds_to_quorums
        self._keeps_giver_policy = keeps_giver_policy
        self._code_counts = code_counts
        self.floor_flows = list(floor_flows)
        self.givers = list(givers)
        """The owners of the tools that ancestor runs gave to this one."""
        self.change = change or Policy()
        self.remembered: dict[str, frozenset[str]] = {}
        """Tools whose approval a person wants remembered (R7.7). Each has the digests of the untrusted values in the
        calls that were shown.
        """
        self.by_provenance = True
        """Whether the remembered approvals depend on provenance. They do not in runs that remembered tools before this
        rule existed.
        """
        self.recall(remembered)
        self.base = policy or Policy()
        """The agent file's policy."""
        self.policy = self.base.changed(self.change)
        """The agent file's policy with the run's changes."""

    def recall(self, remembered: Mapping[str, Iterable[str]] | Iterable[str]) -> None:
        """Restore the remembered tools, each with the digests of its shown values. A name without digests applies to
        any call.
        """
        named = remembered if isinstance(remembered, Mapping) else dict.fromkeys(remembered, (ANY,))
        self.remembered |= {name: frozenset(sources) for name, sources in named.items()}

    def remember(self, tool: str, params: JsonObject, origins: Origins) -> None:
        """Remember the tool: its calls need no approval if their only untrusted values are those that the person has
        seen in this call.
        """
        shown = _shown(params, origins) if self.by_provenance else frozenset({ANY})
        self.remembered[tool] = self.remembered.get(tool, frozenset()) | (shown or frozenset())

    def remembers(self, tool: str, params: JsonObject | None, origins: Origins) -> bool:
        """Whether a person has seen a call of this tool with the same untrusted values."""
        known, shown = self.remembered.get(tool), _shown(params, origins)
        return known is not None and (ANY in known or (shown is not None and shown <= known))

    def loosen_or_tighten(self, change: Policy) -> None:
        """Change the run's own layer (R7.7). A call that the change makes stricter needs approval, even if its tool was
        remembered before."""
        raises_all = _raises_level(change, self.policy.ask)
        for name in list(self.remembered) if raises_all else _tightened_tools(change):
            self.remembered.pop(name, None)
        self.change = self.change.changed(change)
        self.policy = self.base.changed(self.change)

    def count_surplus_flows(self, change: Policy) -> int:
        """Return the number of flow rules above `MAX_FLOWS` that the run's changes would have with this one."""
        return max(0, len(self.change.changed(change).flows) - MAX_FLOWS)

    def only_tightens(self, change: Policy) -> bool:
        """Whether the change removes no approval."""
        stricter_all = stricter_level(self.policy.ask, change.ask) == change.ask or "ask" not in change.model_fields_set
        return (
            change.model_fields_set <= {"ask", "tools"}
            and stricter_all
            and all(rule == "always" for rule in change.tools.values())
        )

    def tool_owners(self, names: Collection[str]) -> list[ToolOwner]:
        """Return the owners of tools that this run gives to a delegate: this run, and the owners that gave the tools to
        it."""
        givers = [*self.givers, ToolOwner(tools=list(names), policy=self.base)]
        owners = [
            ToolOwner(tools=[name for name in each.tools if name in names], policy=each.policy) for each in givers
        ]
        return [each for each in owners if each.tools]

    def on_timeout(self, tool: Tool | None) -> str:
        """Return the verdict for a call of the tool without a decision; an owner's `reject` never becomes an `approve`."""
        verdicts = {policy.on_timeout for policy in self._policies(tool)}
        own = self.policy.on_timeout
        return own if own != "approve" or verdicts == {"approve"} else "reject"

    def timeout(self, tools: Iterable[Tool | None], verdict: str) -> float | None:
        """Return the seconds that a request waits for a decision about calls of these tools (R8.2).

        `verdict`: the one after that time. The longest time of all policies counts for `approve`, the shortest for
        other verdicts. `None`: no limit.
        """
        if not self._keeps_giver_policy:
            return self.policy.timeout
        limits = {policy.timeout for tool in tools for policy in self._policies(tool)} or {self.policy.timeout}
        seconds = [limit for limit in limits if limit is not None]
        if verdict == "approve":
            return max(seconds) if len(seconds) == len(limits) else None
        return min(seconds, default=None)

    @property
    def shows_plans(self) -> bool:
        """Whether a person approves each plan as a whole: the run's policy, or that of an owner of its tools, has the
        scope `plan` (R7.6).
        """
        owners = self.givers if self._keeps_giver_policy else []
        policies = [self.policy, *(owner.policy.changed(self.change) for owner in owners)]
        return any(policy.scope == "plan" for policy in policies)

    def approver(self, tool: Tool | None) -> str | None:
        """Return the program that decides about calls of the tool; `None` if an owner's policy names a different one or
        none (R7.9).
        """
        named = {policy.approver for policy in self._policies(tool)}
        return self.policy.approver if len(named) == 1 else None

    def _policies(self, tool: Tool | None) -> list[Policy]:
        """Return the run's own policy, and the policies of the tool's owners with the run's changes."""
        return [self.policy, *(base.changed(self.change) for base in self._owners(tool))]

    def _owners(self, tool: Tool | None) -> list[Policy]:
        """Return the policies of the tool's owners, without the run's changes."""
        return [giver.policy for giver in self.givers if tool and tool.name in giver.tools]

    def _rules(self, tool: Tool) -> list[tuple[Policy, Json]]:
        """Return the policies that judge the tool, each with its rule about the tool.

        A run's rule is added to a quorum. It never replaces one: one person could otherwise end it (R24.6).
        """
        found: list[tuple[Policy, Json]] = []
        for base, policy in zip([self.base, *self._owners(tool)], self._policies(tool), strict=True):
            own = base.tools.get(tool.name, tool.approval)
            has_quorum = quorum_of(own) is not None
            if has_quorum:
                found.append((policy, own))
            if not has_quorum or (self._adds_to_quorums and tool.name in self.change.tools):
                found.append((policy, policy.tools.get(tool.name, tool.approval)))
        return found

    def quorums(self, tool: Tool, params: JsonObject | None, checks: CheckBudget | None = None) -> list[Quorum]:
        """Return the quorums that a call needs (R24.6); without parameters, a condition counts as met."""
        seen = self._seen(tool, params)
        rules = [rule for _, rule in self._rules(tool) if _rule_reason(rule, tool, seen, checks) is not None]
        found = [quorum for rule in rules if (quorum := quorum_of(rule)) is not None]
        return merge_quorums(found)

    def _seen(self, tool: Tool, params: JsonObject | None) -> JsonObject | None:
        return tool.with_defaults(params) if params is not None and self._knows_defaults else params

    def find_loosened_quorums(self, change: Policy, tools: Mapping[str, Tool]) -> list[str]:
        """Return the tools whose quorum a change would loosen: an agent file's, or the tool's own. `tools`: by name."""
        bases = [self.base, *(giver.policy for giver in self.givers)]
        found = []
        for name, rule in change.tools.items():
            own = tools[name].approval if name in tools and self._adds_to_quorums else None
            kept = [each for base in bases if quorum_of(each := base.tools.get(name, own)) is not None]
            if kept and not (self._adds_to_quorums and all(_adds_approvals(rule, each) for each in kept)):
                found.append(name)
        return found

    @property
    def has_flows(self) -> bool:
        """Whether a rule depends on the tools that a value comes from (R15.5)."""
        policies = [self.policy, *(giver.policy.changed(self.change) for giver in self.givers)]
        return bool(self.floor_flows) or any(policy.flows for policy in policies)

    def floor_asks(self, tool: Tool, origins: Origins = UNKNOWN_ORIGINS) -> bool:
        """Whether the worker's floor requires approval of a call; with unknown origins, whether it may."""
        return self._why_floor(tool, origins) is not None

    def asks(self, call: Call) -> bool:
        """Whether a call with unresolved parameters may need approval."""
        return call.spec.tool is not None and self.why(call.spec.tool, None, origins=call.inputs.origins) is not None

    def refuses(self, call: Call) -> str | None:
        """Return the reason why the call may not run: a flow rule refuses one of its values (R15.5)."""
        tool = call.spec.known_tool
        layers = [(self.floor_flows, self._floor_tool(tool))]
        layers += [(policy.flows, FlowTool(tool.name)) for policy in self._policies(tool)]
        found = (judge_flows(flows, named, call.inputs.origins).refuse for flows, named in layers if flows)
        return next((why for why in found if why is not None), None)

    def why(
        self,
        tool: Tool,
        params: JsonObject | None,
        checks: CheckBudget | None = None,
        origins: Origins = UNKNOWN_ORIGINS,
    ) -> str | None:
        """Return the reason why this call needs approval, or `None`.

        Without parameters, a condition counts as met. With unknown origins, every value counts as written by others.
        """
        if (why := self._why_floor(tool, origins)) is not None:
            return why
        if self.remembers(tool.name, params, origins) and not self.quorums(tool, params, checks):
            return None
        seen = self._seen(tool, params)
        reasons = (_why(policy, rule, tool, seen, origins, checks) for policy, rule in self._rules(tool))
        return next((reason for reason in reasons if reason is not None), None)

    def why_hosted(self, name: str) -> str | None:
        """Return the reason why a use of a hosted tool would need approval, or is refused; `None` if it needs none
        (R20.6).

        The model's provider runs the tool, so no person can be asked before. It counts as a tool without declarations.
        """
        tool = Tool(name=name, parameters={})
        refusing = (flow for policy in self._policies(tool) for flow in policy.flows)
        if any(flow.do == "refuse" and flow.may_meet(FlowTool(name)) for flow in [*self.floor_flows, *refusing]):
            return f"a rule of the policy rejects values in {name}"
        if self.policy.scope == "plan" and self.policy.tools.get(name) != "never":
            return "a person approves each plan first"
        return self.why(tool, None)

    def _why_floor(self, tool: Tool, origins: Origins) -> str | None:
        unknown = "" if tool.code_known else ", and the tool's code is unknown"
        flows = _judged(self.floor, self.floor_flows, self._floor_tool(tool), origins)
        if _level_asks(self.floor, safe=tool.code_safe, dangerous=tool.code_dangerous, tainted=bool(flows.tainted)):
            others = f": {flows.why_tainted}" if self.floor == UNTRUSTED else ""
            return f"the worker's floor asks about every call that is {_LEVELS[self.floor]}{unknown}{others}"
        return flows.ask and f"the worker's rule: {flows.ask}"

    def _floor_tool(self, tool: Tool) -> FlowTool:
        """Return the tool under the names that the floor's rules may use."""
        return FlowTool(tool.name, code_names(tool) if self._code_counts else ())


def may_tighten(change: Policy, level: Ask = "never") -> bool:
    """Whether calls that needed no approval may need one after a change. `level`: the level before it, if it is known."""
    flows = any(flow.do != "allow" for flow in change.flows)
    return _raises_level(change, level) or bool(_tightened_tools(change)) or flows or change.scope == "plan"


def _raises_level(change: Policy, level: Ask) -> bool:
    return "ask" in change.model_fields_set and stricter_level(level, change.ask) != level


def _tightened_tools(change: Policy) -> list[str]:
    return [name for name, rule in change.tools.items() if rule != "never"]


def keep_remembered(remembered: Iterable[str], change: Policy) -> list[str]:
    """Return the remembered tools that a change does not make stricter. The level before it is unknown: a change of the
    level counts as stricter.
    """
    if _raises_level(change, "never"):
        return []
    return [name for name in remembered if name not in _tightened_tools(change)]


def _adds_approvals(rule: Json, kept: Json) -> bool:
    """Whether a rule may require approvals that the kept rule, which has a quorum, does not require."""
    if rule == "never":
        return False
    asked, quorum = quorum_of(rule), quorum_of(kept)
    if asked is None or quorum is None or (isinstance(kept, dict) and "when" in kept):
        return True
    return asked.by > quorum.by or asked.model_copy(update={"by": quorum.by}) != quorum


def _shown(params: JsonObject | None, origins: Origins) -> frozenset[str] | None:
    """Return the digest of the values that others wrote in a call, and of their authors.

    The set is empty without untrusted values. The result is `None` if that is unknown.
    """
    if not (others := origins.by_others):
        return frozenset()
    names = {
        name
        for name, sources in origins.params.items()
        if untrusted_sources(origins.written) or untrusted_sources(sources)
    }
    if params is None or not origins.read or not names <= params.keys():
        return None
    return frozenset({digest([[*sorted(others)], {name: params[name] for name in names}])})


def _judged(ask: Ask, flows: Sequence[Flow], tool: FlowTool, origins: Origins) -> FlowVerdict:
    """Return the verdict of the flow rules; skip the work if neither the level nor a rule depends on provenance."""
    return judge_flows(flows, tool, origins) if flows or ask == UNTRUSTED else FlowVerdict()


def _rule_reason(rule: Json, tool: Tool, params: JsonObject | None, checks: CheckBudget | None) -> str | None:
    """Return the reason why a rule about the tool requires approval of a call, or `None`."""
    if not isinstance(rule, dict) or "when" not in rule:
        return f"{tool.name} is always asked about" if rule not in (None, "never") else None
    # A condition that cannot be decided counts as met: the call needs approval.
    when = cast(JsonObject | bool, rule["when"])
    fits = None if params is None else _condition(when, checks).fits(params, checks=checks)
    return None if fits is False else condition_words(when, params, decided=fits is True)


def _why(
    policy: Policy,
    rule: Json,
    tool: Tool,
    params: JsonObject | None,
    origins: Origins,
    checks: CheckBudget | None,
) -> str | None:
    judged = _judged(policy.ask, policy.flows, FlowTool(tool.name), origins)
    if judged.ask is not None:
        return judged.ask
    if rule is not None:
        return _rule_reason(rule, tool, params, checks)
    if policy.ask == UNTRUSTED and tool.dangerous and judged.tainted:
        return f"{tool.name} is dangerous, and {judged.why_tainted}"
    if _level_asks(policy.ask, safe=tool.safe, dangerous=tool.dangerous, tainted=False):
        return f"{tool.name} is {_LEVELS[policy.ask]}" if policy.ask != "always" else "every call is asked about"
    return None


def _condition(when: JsonObject | bool, checks: CheckBudget | None) -> Schema:
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
    """Return the reason why a worker with this floor does not run a call of its own code, whose definition is `code`
    (R7.1).

    `approved`: the `approval_digest` that a person approved. It must match exactly these parameters. `clean`: whether
    the run knows that the call has no untrusted values.
    """
    safe, dangerous = bool(code.get("_safe")), bool(code.get("_dangerous"))
    if not _level_asks(floor, safe=safe, dangerous=dangerous, tainted=not clean) or approved == approval_digest(
        activity, params
    ):
        return None
    why = "without a person's approval" if approved is None else "with an approval of other parameters"
    return f"this worker runs no call that is {_LEVELS[floor]} {why}: its floor is {floor!r}; start the workers that run the agents with --approval-floor {floor} too; a run keeps the floor of its start"


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


def policy_problems(document: Json, tools: Iterable[Tool] = (), below: Collection[str] | None = None) -> list[Problem]:
    """Return a problem for each tool that an agent file's own policy, or a rule of it, names and its context does not have.

    Such an entry would never require an approval (R7.1), and such a flow rule (R15.5) or rule of runs (R23.1) would
    never apply. A parameter that a rule names and that its tool cannot have is a problem too. `tools`: the
    agent's tools, as far as their definitions are known. `below`: the names of its delegates' tools; `None`: they are
    not known. Use it for an agent that runs by itself: a delegate may get tools from other agents.
    """
    config = document.get("config", {}) if isinstance(document, dict) else None
    context = document.get("context", []) if isinstance(document, dict) else None
    if not isinstance(config, dict) or not isinstance(context, list):
        return []
    approval, of_runs = config.get("approval"), config.get("rules")
    if not isinstance(approval, dict):
        approval = {}
    rules, flows = approval.get("tools"), approval.get("flows")
    named = [message["tool"] for message in context if isinstance(message, dict) and "tool" in message]
    known = [name for message in context if (name := _tool_name(message)) is not None]
    prompt = config.get("prompt")
    known += [READ_SKILL] if isinstance(prompt, dict) and prompt.get("skills") else []  # skills bring this tool
    delegates = any(isinstance(tool, dict) and "_delegate" in tool for tool in named)
    at = ("config", "approval")
    wrong: list[tuple[tuple[str | int, ...], str]] = [
        ((*at, "tools", name), name) for name in (rules if isinstance(rules, dict) else ()) if name not in known
    ]
    for place, flow in enumerate(flows if isinstance(flows, list) else ()):
        unknown = _unknown_ends(flow, known, delegates=delegates) if isinstance(flow, dict) else {}
        wrong += [((*at, "flows", place, end), name) for end, name in unknown.items()]
    parsed = [*_valid_rules(of_runs)]
    if below is not None or not delegates:  # the rules apply to their tools too
        codes = [str(tool["_activity"]) for tool in named if isinstance(tool, dict) and "_activity" in tool]
        for place, rule in parsed:
            wrong += [
                (("config", "rules", place), name) for name in unknown_tools(rule, [*known, *codes, *(below or ())])
            ]
    found = [problem_at(place, none_of(name, "tool of this agent", known)) for place, name in wrong]
    tools = [*tools]
    with suppress(ValidationError):  # an invalid policy has problems of its own
        found += policy_parameter_problems(Policy.model_validate(approval), tools)
    places = {name: place for place, message in enumerate(context) if (name := _tool_name(message)) is not None}
    found += impossible_parameters(_own_conditions(tools, places), {tool.name: [tool] for tool in tools})
    return found + parameter_problems(parsed, tools)


def policy_parameter_problems(policy: Policy, tools: Iterable[Tool]) -> list[Problem]:
    """Return a problem for each parameter that a policy's flow rule or condition names, and that its tool cannot have.

    The rule or condition would never require an approval.
    """
    by_name = {tool.name: [tool] for tool in tools}
    return impossible_parameters(_named_parameters(policy, by_name), by_name)


def _tool_name(message: Json) -> str | None:
    tool = message.get("tool") if isinstance(message, dict) else None
    name = definition_name(tool) if isinstance(tool, dict) else tool
    return name if isinstance(name, str) else None


def _own_conditions(
    tools: Iterable[Tool], places: Mapping[str, int]
) -> Iterator[tuple[ProblemPath, list[NamedParameter]]]:
    """Yield the place of each parameter that a tool's own `_approval` names. `places`: of the tools in the context."""
    for tool in tools:
        for keys in condition_keys(tool.approval.get("when")) if isinstance(tool.approval, dict) else ():
            yield ("context", places.get(tool.name, 0), "tool"), [(tool.name, keys)]


def _named_parameters(policy: Policy, tools: Collection[str]) -> Iterator[tuple[ProblemPath, list[NamedParameter]]]:
    """Yield the place of each parameter that the policy names, with all tools and keys that it can mean."""
    at: ProblemPath = ("config", "approval")
    for place, flow in enumerate(policy.flows):
        readings = [(name, flow.to[len(name) + 1 :]) for name in tools if flow.to.startswith(f"{name}.")]
        parameters: list[NamedParameter] = [(name, (param,)) for name, param in readings if param != EACH]
        # A flow to a whole tool, or to the items of its loop (`_each`), names no parameter.
        if flow.to not in tools and len(parameters) == len(readings):
            yield (*at, "flows", place, "to"), parameters
    for name, rule in policy.tools.items():
        for keys in condition_keys(rule.get("when")) if isinstance(rule, dict) else ():
            yield (*at, "tools", name, "when"), [(name, keys)]


def _valid_rules(rules: Json) -> Iterator[tuple[int, Rule]]:
    """Yield the rules of runs with their indexes, without invalid ones, whose own problems are reported."""
    for place, rule in enumerate(rules if isinstance(rules, list) else ()):
        with suppress(AgentError):
            yield place, parse_rules([rule])[0]


def _unknown_ends(flow: JsonObject, known: Sequence[str], *, delegates: bool) -> dict[str, str]:
    """Return the unknown tools that the two ends of a rule name, by end; a delegate's output may come from tools of its
    own."""
    unknown: dict[str, str] = {}
    source, to = flow.get("from"), flow.get("to")
    if isinstance(source, str) and source.startswith("tool:") and not delegates:
        unknown |= {} if (name := source.removeprefix("tool:")) in known else {"from": name}
    if isinstance(to, str) and to != ANY and not any(to == name or to.startswith(f"{name}.") for name in known):
        unknown["to"] = to.rpartition(".")[0] or to
    return unknown
