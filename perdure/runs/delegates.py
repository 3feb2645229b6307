"""Delegates: an agent as a tool of another agent, in a context of its own."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from perdure.approvals.policy import Policy, ToolOwner
from perdure.errors import CallError, ProtocolError, ToolDefinitionError
from perdure.models.usage import RunUsage
from perdure.plan import DEFAULT_ITERATIONS, DEFAULT_PARALLEL, Call, LoopForm
from perdure.rules import RuleRecord, names_of
from perdure.runs.agent import Config, parse_agent
from perdure.runs.budget import ExpectedUsage
from perdure.runs.limits import Budget
from perdure.runs.loops import (
    LoopInput,
    LoopState,
    most_items,
    most_items_at_once,
    part_call,
    part_document,
    part_remembered,
    part_sources,
)
from perdure.runs.provenance import references_of, scope_reference
from perdure.runs.run import RunState
from perdure.runs.wire import RunInput
from perdure.tools.definitions import definition_name
from perdure.tools.tool import ANONYMOUS, Tool, gives_tools
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.limits import LIMITS_OF_CHILDREN, LONGEST, MAX_DELEGATES_DEEP
from perdure.values.messages import InputMessage, ToolMessage, merge_data
from perdure.values.problems import close_names
from perdure.values.references import Missing, get, show
from perdure.values.sizes import Sizes

BUDGET: Final = "budget"
"""Signal to a delegate, or a loop: its share of the budget is larger now (R18.7)."""
LATE: Final = "late"
"""Signal to a delegate: the time for which it may work has passed (R9.5)."""
GIVEN_ACTIVITY: Final = "perdure.given"
SPENT_ACTIVITY: Final = "perdure.spent"
END_LEFT_ACTIVITY: Final = "perdure.end_left_behind"
"""Activity: cancel open children of the executions before a reset that this execution does not have."""
FORMER_RECORD_ACTIVITY: Final = "perdure.former_rule_record"
"""Activity: return the record for the run's rules from executions that a reset has ended (R23.1)."""
END_FORMER_ACTIVITY: Final = "perdure.end_former"
"""Activity: end an open child of an execution before a reset (R7.2)."""

_KEPT: Final = {"parallel", "models", "model_patience", "prices", "client_timeout"}
"""Keys of a run's config that apply to the calls in parts of its loops."""
_LARGE: Final = ("agent", "input", "params", "items", "delegates")


def wanted_delegates(tools: Iterable[object]) -> list[str]:
    """Return the names of saved Requests that tool messages name, in their order."""
    names = []
    for tool in tools:
        name = tool.get("_delegate") if isinstance(tool, Mapping) else None
        name = name.get("const") if isinstance(name, Mapping) else name
        if isinstance(name, str) and name != ANONYMOUS:
            names.append(name)
    return list(dict.fromkeys(names))


def tools_of(document: JsonObject) -> list[str | JsonObject]:
    """Return the tools that an agent file names."""
    return [message.tool for message in parse_agent(document).messages() if isinstance(message, ToolMessage)]


def merge_upfront(tool: Tool, document: JsonObject) -> Tool:
    """Return the tool with the delegate's input schema for its parameters, and its output schema for its result (R8.4).

    The tool's own schemas have precedence. Raise `ToolDefinitionError`.
    """
    try:
        agent = parse_agent(document)
        inputs = merge_data([message for message in agent.messages() if isinstance(message, InputMessage)])
    except ProtocolError as error:
        raise ToolDefinitionError(
            f"tool {tool.name!r}: its delegate {tool.delegate!r} cannot be used: {error}"
        ) from None
    schema = next((merged.data_schema for merged in inputs), None) or {}
    parameters = {**schema, **tool.parameters}
    parameters["properties"] = {**schema.get("properties", {}), **tool.parameters.get("properties", {})}
    required = [*schema.get("required", []), *tool.parameters.get("required", [])]
    parameters |= {"required": list(dict.fromkeys(required))} if required else {}
    output = agent.output_schema if isinstance(agent.output_schema, dict) and agent.output_schema else None
    update = {
        "parameters": parameters,
        "output": tool.output or output,
        "description": tool.description or agent.description,
    }
    merged: Tool = Tool.model_validate(tool.model_dump() | update)
    return merged


def child_document(
    call: Call,
    delegates: Mapping[str, JsonObject],
    problems: Mapping[str, str],
    *,
    base: Mapping[str, Json],
    tools: Mapping[str, Tool],
    policy: Policy,
) -> JsonObject | CallError:
    """Return the agent that a call of a delegate runs: its own context, after the data of the scopes (R8.2).

    `delegates` were recorded with the run; `problems` are the reasons why others were not. `base` is the parent's data
    by kind. An anonymous delegate has the parent's `policy`, because it has no agent file of its own.
    """
    tool = call.spec.known_tool
    assert tool.delegate is not None
    if tool.delegate == ANONYMOUS:
        document = anonymous_delegate(tool) | {"config": {"approval": policy.as_change()}}
    elif tool.delegate in delegates:
        document = delegates[tool.delegate]
    else:
        known = ", ".join(close_names(tool.delegate, delegates)) or "none"
        reason = problems.get(tool.delegate, f"there is no agent file of this name; there are {known}")
        return CallError("no_such_delegate", f"{tool.name} cannot run its delegate {tool.delegate!r}: {reason}")
    received = scoped_context(call.spec.scopes, base, tools)
    own = list(document.get("context", []))
    # Its instructions come first. Its own data follows the received data, and overrides it (R2.6).
    lead = next((n for n, message in enumerate(own) if message.get("type") != "system"), len(own))
    return {**document, "context": [*own[:lead], *received, *own[lead:]]}


def anonymous_delegate(tool: Tool) -> JsonObject:
    """Return a delegate without an agent file, with the tool's description as its task and the result's schema as its
    output.
    """
    return {
        "name": tool.name,
        "description": tool.description,
        "context": [{"type": "system", "text": tool.description}, {"type": "input", "schema": tool.parameters}],
        "schema": tool.output or {},
    }


def scoped_context(scopes: Sequence[str], base: Mapping[str, Json], tools: Mapping[str, Tool]) -> list[JsonObject]:
    """Return the parent's data and tools that a delegate receives: `profile`, `state.user`, `tools`, `tool:name`
    (R8.2).

    A state is the child's initial state: the child's writes stay in the child. Missing values are left out.
    """
    messages: list[JsonObject] = []
    for scope in scopes:
        if gives_tools(scope):
            inherited = (tools[name] for name in inherited_tools([scope], tools))
            messages += [
                {"type": "tool", "tool": tool.name if tool.registered else tool.definition()} for tool in inherited
            ]
            continue
        reference = scope_reference(scope)
        if reference is None or reference.kind not in base:
            continue
        value = get(base[reference.kind], reference.path)
        if isinstance(value, Missing):
            continue
        for part in reversed(reference.path):
            value = {str(part): value}
        if reference.kind == "state":
            messages.append({"type": "state", "state": value})
        else:
            # The parent's input is data for the child: the child's own input is the call's parameters.
            kind = "parent" if reference.kind == "input" else reference.kind
            messages.append({"type": "data", "kind": kind, "data": value})
    return messages


def inherited_tools(scopes: Iterable[str], tools: Mapping[str, Tool]) -> list[str]:
    """Return the names of the tools that the scopes give."""
    wanted = set(scopes)
    return [name for name in tools if "tools" in wanted or f"tool:{name}" in wanted]


def scoped_data(kinds: Iterable[str], base: Mapping[str, Json]) -> list[JsonObject]:
    """Return the values of these kinds as data messages: the context that a tool's code receives (R12.2)."""
    return [{"type": "data", "kind": kind, "data": base[kind]} for kind in kinds if kind in base]


def tools_of_delegate(tool: Tool, run: RunState) -> frozenset[str] | None:
    """Return the names of the tools that a delegate's run, and the runs below it, may use; `None`: any."""
    return delegate_reach(tool, run.tools, run.prepared.delegates)


def delegate_reach(tool: Tool, tools: Mapping[str, Tool], delegates: Mapping[str, JsonObject]) -> frozenset[str] | None:
    """Return the names of the tools that a delegate's run, and the runs below it, may use; `None`: any.

    Beside the tools of the agent files, `delegates`, these are the run's own `tools`: the model may pass them by scopes.
    """
    found = (
        {name for each in tools.values() for name in names_of(each)} if tool.scopes or tool.scope_choice else set[str]()
    )
    left, seen = [tool.delegate], set[str]()
    while left:
        name = left.pop()
        if name is None or name == ANONYMOUS or name in seen:
            continue
        seen.add(name)
        if (document := delegates.get(name)) is None:
            return None
        for each in tools_of(document):
            named = [each] if isinstance(each, str) else [definition_name(each), each.get("_activity")]
            found.update(name for name in named if isinstance(name, str))
            if isinstance(each, dict):
                below = wanted_delegates([each])
                found.update(below)
                left += below
            elif (known := tools.get(each)) is not None:
                found.update(names_of(known))
                left += [known.delegate]
    return frozenset(found)


def tools_below(call: Call, run: RunState) -> frozenset[str] | None:
    """Return the names of the tools that the runs of a delegate, or of a loop's parts, may use; `None`: any."""
    found: set[str] = set()
    for each in call.written():
        tool = each.spec.tool
        if tool is None:
            continue
        if each.spec.loop is None:
            found.update(names_of(tool))
        if tool.delegate is not None:
            if (below := tools_of_delegate(tool, run)) is None:
                return None
            found |= below
    return frozenset(found)


def too_deep(lineage: Sequence[str], name: str) -> CallError | None:
    """Return an error if one more delegate would be too deep. `lineage`: the agents above, then this run's own agent."""
    if len(lineage) <= MAX_DELEGATES_DEEP:
        return None
    line = " → ".join([*lineage, name])
    return CallError("too_deep", f"delegates may be {MAX_DELEGATES_DEEP} deep, and this would be one more: {line}")


class GivenInput(WireModel):
    """A child run's query for its own input."""

    above: str
    """Workflow id of the parent run."""
    execution: str
    """Execution of the parent run that has started this one."""
    name: str
    """Suffix of this run's id behind its parent's."""


class SpentBudget(WireModel):
    """The usage of a run with its child runs, and its seconds of work."""

    usage: RunUsage
    worked: float = 0.0
    sent: list[str] = Field(default_factory=list)
    """Digests of texts that message tools have sent (R10.16)."""
    rule_record: RuleRecord | None = None
    """Its record, for the rules that the parent run has passed to it (R23.1)."""
    changed: bool = Field(default=False, exclude_if=operator.not_)
    """Whether a decision has changed a call of it (R23.3)."""
    some_done: bool | None = Field(default=False, exclude_if=lambda some_done: some_done is False)
    """Whether it has returned, or an iteration of it if it is a loop; `None`: that is not known."""


@dataclass(slots=True)
class ChildUsage:
    """The usage of a child run, as its parent knows it at the child's end."""

    started: bool = False
    """Whether the child may have started: a child that has not started has used nothing."""
    spent: SpentBudget | None = None
    """`None`: the child has not started, or its usage is unknown."""

    @property
    def used(self) -> RunUsage | None:
        return None if self.spent is None else self.spent.usage

    @property
    def some_done(self) -> bool | None:
        """Whether the child has returned, or an iteration of it; `None`: that is not known."""
        return False if not self.started else None if self.spent is None else self.spent.some_done

    @property
    def rule_record(self) -> RuleRecord | None:
        return None if self.spent is None else self.spent.rule_record


def child_input(
    call: Call, base: Mapping[str, Json], run: RunState, budget: Budget
) -> RunInput | LoopInput | CallError:
    """Return the input of the workflow that runs a call's delegate, or all its iterations; `base` is the data by kind."""
    tool, prepared, guard = call.spec.known_tool, run.prepared, run.approval_queue.guard
    if call.spec.loop is not None:
        return _parts(call, call.spec.loop, base, run, budget)
    document = child_document(
        call, prepared.delegates, prepared.delegate_problems, base=base, tools=run.tools, policy=guard.base
    )
    if isinstance(document, CallError):
        return document
    approval = guard.change.as_change()
    scoped_references = references_of(call.spec.scopes, base.get("state"))
    home = None if run.plan is None else run.plan.home(call)
    sources = run.provenance.input_sources(call, scoped_references, None if home is None else home.provenance.then)
    sources |= {f"†input.{name}": sorted(call.inputs.item_sources) for name in call.inputs.item_values}
    givers = guard.tool_owners(inherited_tools(call.spec.scopes, run.tools))
    below = _below(call, run, budget, approval, givers, sources)
    # The input is neither validated nor copied: it is the run's own data, however large.
    if not call.spec.repeats:
        return RunInput.model_construct(
            agent=document, input={**call.inputs.params, **call.inputs.item_values}, has_input=True, **below
        )
    if (many := _too_many(call, most_items(prepared.max_payload))) is not None:
        return many
    record = below.pop("rule_record")
    # An iteration may not be a delegate of the measured kind.
    expected = ExpectedUsage(tokens=run.progress.expected.tokens, cost=run.progress.expected.cost)
    return LoopInput.model_construct(
        kind="each" if "_each" in call.spec.raw else "until",
        agent=document,
        params=call.inputs.params,
        items=call.inputs.items or [],
        parallel=_most_runs_at_once(call, run.agent.config.parallel),
        until=call.spec.raw.get("_until", ""),
        max=call.spec.raw.get("_max", DEFAULT_ITERATIONS),
        title=tool.name,
        max_payload=prepared.max_payload,
        **below,
        state=LoopState(expected=expected, rule_record=record),
    )


def _most_runs_at_once(call: Call, parallel: int | None) -> int:
    """Return the most runs of a loop's delegate at a time; `parallel` is the most calls of the run (R5.12)."""
    if call.spec.known_tool.exclusive_group is not None:
        return 1
    most: int = call.spec.raw.get("_parallel", DEFAULT_PARALLEL)
    return most if parallel is None else min(most, parallel)


def _parts(
    call: Call, form: LoopForm, base: Mapping[str, Json], run: RunState, budget: Budget
) -> LoopInput | CallError:
    """Return the input of a loop over a plain tool, or with a body, with more items than run inside the run (R16.1)."""
    prepared, guard = run.prepared, run.approval_queue.guard
    if (many := _too_many(call, most_items(prepared.max_payload) // (1 + len(form.writes)))) is not None:
        return many
    sources = part_sources(call, {} if run.plan is None else run.plan.home(call).provenance.known.base)
    givers = guard.tool_owners([each.spec.tool_name for each in call.written()])
    below = _below(call, run, budget, guard.change.as_change(), givers, sources)
    record = below.pop("rule_record")
    follows = prepared.follows(LIMITS_OF_CHILDREN)
    kept = run.agent.config.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_none=True, include=_KEPT if follows else {"parallel"}
    )
    # A loop without delegates reserves no share, but an MCP server may ask the run's model in its calls.
    unreserved = run.limits.pool.unreserved(run.progress.usage) if follows and not budget.limited else Budget()
    return LoopInput.model_construct(
        kind="each",
        agent=part_document(call, form, run.tools, base, guard, kept),
        params={},
        call=part_call(call, form),
        lists=[show(path) for path in form.writes],
        items=call.inputs.items or [],
        parallel=most_items_at_once(call, form, run.agent.config.parallel),
        until="",
        title=call.spec.tool_name,
        max_payload=prepared.max_payload,
        **below,
        unreserved=unreserved,
        keeps_version=run.prepared.keeps_version,
        remembered=part_remembered(guard, call, sources),
        standing=None if run.approval_queue.standing_approvals_ended else run.standing,
        plan_approval=None if run.plan is None else run.approval_queue.plan_approval(run.plan.home(call)),
        state=LoopState(rule_record=record),
    )


def _too_many(call: Call, most: int) -> CallError | None:
    """Return an error if there are more than `most` items: the results must fit into one list (R18.2)."""
    if (count := len(call.inputs.items or [])) <= most:
        return None
    message = (
        f"{call.spec.tool_name} would go through {count:,} items, and the results of {most:,} at most fit into one"
    )
    return CallError("too_many_items", message)


def _below(
    call: Call,
    run: RunState,
    budget: Budget,
    approval: JsonObject,
    givers: Sequence[ToolOwner],
    sources: Mapping[str, list[str]],
) -> dict[str, Any]:  # the fields of the child's input
    """Return the values that every child workflow receives from its run."""
    guard, lent = run.approval_queue.guard, run.rules.lent_to(call)
    return {
        "approval": approval,
        "floor": guard.floor,
        "floor_flows": guard.floor_flows,
        "rules": run.rules.rules,
        "rule_record": run.rules.record.of(lent) if lent else None,
        "unlent_rules": [rule.key for rule in run.rules.recorded if rule not in lent],
        "budgets": run.shared_budgets,
        "givers": givers,
        "lineage": run.lineage,
        "delegates": run.prepared.delegates,
        "budget": budget,
        "sources": sources,
        "whose": run.identity.owner,
        "routes_above": run.approval_routes,
        "said": run.identity.last_message,
        "requesters": [each for each in run.approval_queue.requesters if each != run.identity.owner.sender],
        "evaluated": run.identity.evaluated,
    }


def deadline_of(child: RunInput) -> float | None:
    """Return the seconds that a child run may work; `None`: its deadline cannot be read here, and the child keeps its
    own.
    """
    config = child.agent.get("config", {})
    own = config.get("deadline", Config.model_fields["deadline"].default) if isinstance(config, dict) else None
    if isinstance(own, bool) or not isinstance(own, int | float) or not 0 < own <= LONGEST:
        return None
    return float(min(own, own if child.budget.deadline is None else child.budget.deadline))


def input_size(argument: RunInput | LoopInput, sizes: Sizes) -> int:
    """Return the bytes of a child's input. A value that many children read is measured once (R18.1)."""
    large = [name for name in _LARGE if name in type(argument).model_fields]
    frame = argument.model_copy(update=dict.fromkeys(large))
    own = len(frame.model_dump_json(by_alias=True, warnings=False).encode())
    return own + sum(sizes.of(getattr(argument, name)) for name in large)


def refer_large_values(argument: RunInput | LoopInput) -> RunInput | LoopInput:
    """Return the input without its large values, which the child queries from its parent."""
    empty: JsonObject = {"input": None} if isinstance(argument, RunInput) else {"params": {}, "items": []}
    named = {"name": argument.agent.get("name")}
    return argument.model_copy(update={**empty, "agent": named, "delegates": {}, "asks": True})
