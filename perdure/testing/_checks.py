"""Checks of a plan without a run: no server, no model, no tool."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from perdure.activities.registry import Registry, load_tools
from perdure.agents.agent import Agent
from perdure.agents.files import PlanLike, call_problems, output_problems, planned_for, read_plan
from perdure.approvals.policy import Guard, policy_problems
from perdure.approvals.queue import PLAN_SCOPE
from perdure.errors import AgentError, ProtocolError, ToolDefinitionError
from perdure.plan import Call, Plan, Simulation, simulate
from perdure.rules import RuleVerdict
from perdure.runs.diagrams import draw_plan, to_mermaid
from perdure.runs.hosted_tools import file_problems
from perdure.runs.views import plan_ways
from perdure.tools.decorator import ToolFunction, open_tool
from perdure.tools.frameworks import tool_functions
from perdure.values.arguments import check_arguments_of
from perdure.values.json import Json, JsonObject
from perdure.values.messages import ToolMessage
from perdure.values.problems import none_of
from perdure.values.references import MISSING

AgentLike: TypeAlias = "Agent[Any] | Mapping[str, Any] | Sequence[Any] | str | os.PathLike[str]"
"""An agent in Python, an agent file's JSON, a list of messages, or an agent file by path or by name."""
ToolLike: TypeAlias = "Callable[..., Any] | Mapping[str, Any] | str"
"""A function decorated with `@tool`, a module of such functions by name, or the definition of a tool that will be
faked.
"""


def as_agent(agent: AgentLike) -> Agent[Any]:
    """Return the agent of any accepted form. Raises `AgentError`, or `SettingsError` for a file that does not exist."""
    if isinstance(agent, Agent):
        return agent
    if isinstance(agent, str | os.PathLike):
        return Agent.read(Path(agent))
    return Agent.of(dict(agent) if isinstance(agent, Mapping) else list(agent), name="test")


def functions_of(agent: Agent[Any] | None, tools: Iterable[ToolLike]) -> Registry:
    """Return the agent's own functions, and those of `tools`. Raises `ToolDefinitionError`."""
    given = list(tools)
    registry = load_tools(each for each in given if isinstance(each, str))
    found: list[ToolFunction] = [] if agent is None else agent.functions
    for each in given:
        if isinstance(each, str):
            continue
        functions = [_without_code(dict(each))] if isinstance(each, Mapping) else tool_functions(each)
        if not functions:
            raise ToolDefinitionError(f"{each!r} is not a tool: give a function, or give a fake by name")
        found += functions
    for function in found:
        registry.add(function)
    for hook in [] if agent is None else agent.hooks:
        registry.hooks.add(hook)
    return registry


def _without_code(definition: JsonObject) -> ToolFunction:
    async def missing(**params: Any) -> None:
        del params
        raise AssertionError(f"{definition.get('name')!r} has no code in this process: give a fake")

    return open_tool(definition, missing)


def inline_tools(agent: Agent[Any]) -> dict[str, JsonObject]:
    """Return the tool definitions in the agent's own file, by name."""
    messages = (message for message in agent.parsed.messages() if isinstance(message, ToolMessage))
    found = (message.tool for message in messages if isinstance(message.tool, dict))
    return {str(item.get("name")): item for item in found}


@dataclass(frozen=True)
class Checked:
    """The facts about a plan before it runs. The ids of calls, `1.0`, `1.1`, …, follow the written order.

    ```python
    checked = check(shopper, [{"_tool": "order", "fruit": "apple"}], tools=[order])
    assert checked.ok, checked
    print(checked.levels, checked.approvals)
    ```
    """

    problems: list[str]
    """All problems, one line each, violated rules among them; empty for a plan that can run. A rule with
    `otherwise="ask"` is among the approvals."""
    levels: list[list[str]]
    """The calls that would run in parallel, level by level."""
    approvals: dict[str, str]
    """The calls that need approval, with the reasons. The Request's number, such as `1`, is the whole plan."""
    sources: list[tuple[str, str]]  # R15.7
    """Call id and provenance of each parameter that is not a literal in the plan: `("1.1", "pay.iban ← †state.mail.iban
    ← read_mail (written by others)")`."""
    makespan: float
    """Seconds from first start to last end, by the tools' `duration`s (1 s for a tool without one)."""
    calls: list[JsonObject]
    """The calls as they were parsed, the same in every dialect."""
    output: Json
    """The Solution's output, with its references."""
    plan: Plan
    unknown: list[str]
    """Tools whose definitions are unknown: their parameters were not checked."""

    @property
    def ok(self) -> bool:
        """Whether the plan has no problems."""
        return not self.problems

    @property
    def asks(self) -> list[str]:
        """The tools whose calls need a person's approval, in the order of the calls."""
        whole = str(self.plan.request) in self.approvals
        return [call.spec.tool_name for call in self.plan.written() if whole or call.id in self.approvals]

    def mermaid(self) -> str:
        """Return a Mermaid diagram of the plan, for a failure's message or a review.

        ```python
        print(check(shopper, [{"_tool": "order", "fruit": "apple"}], tools=[order]).mermaid())
        ```
        """
        return to_mermaid(draw_plan(self.plan, paths=True))

    def __str__(self) -> str:
        lines = [*self.problems, *(f"level {n}: {', '.join(ids)}" for n, ids in enumerate(self.levels, 1))]
        return "\n".join([*lines, *(f"{call} asks a person: {why}" for call, why in self.approvals.items())])


@check_arguments_of
def check(
    agent: AgentLike,
    plan: PlanLike,
    *,
    tools: Iterable[ToolLike] = (),
    input: Any = MISSING,
    state: Mapping[str, Any] | None = None,
    durations: Mapping[str, float] | None = None,
    assume: Mapping[str, str] | None = None,
) -> Checked:
    """Validate a plan of this agent, simulate it, and find the calls that need approval.

    `tools`: functions and modules that the agent names, beside those that it has as functions; the definitions of other
    tools are unknown. `input`, `state`: the run's input, and the state before it. `durations`: seconds by tool.
    `assume`: call id → `failed`, or the alternative of its output path that it takes. Raises `AgentError` or
    `InputError` for an invalid agent or input, `ProtocolError` for a duration of no tool, and `AgentError` for a text that is not a plan in any dialect. Faults of
    a plan are in `problems`.

    ```python
    checked = check(shopper, [{"_tool": "order", "fruit": "apple"}], tools=[order])
    assert checked.ok, checked
    ```
    """
    # R5.6
    known = as_agent(agent)
    named = functions_of(known, tools).definitions()
    delegates = known.delegates()
    solution = read_plan(plan, planned_for(known.parsed, named, input, state, delegates=delegates))
    planned = planned_for(known.parsed, named, input, state, solution.calls, delegates=delegates)
    if problems := policy_problems(known.document(), planned.tools.values()):
        raise AgentError.of(problems, f"agent {known.name!r}")
    for name, seconds in (durations or {}).items():
        if name not in planned.tools:
            raise ProtocolError(f"durations: {none_of(name, 'tool', sorted(planned.tools))}")
        if not 0 <= seconds < math.inf:
            raise ProtocolError(f"durations: {name} must have 0 or more seconds, not {seconds}")
    guard = Guard(known.parsed.config.approval)
    played = planned.new_plan()
    simulation = simulate(played, planned.calls, durations=durations, assume=assume, asks=guard.asks)
    verdicts = planned.verdicts(known.parsed.config.rules)
    return Checked(
        problems=[
            *call_problems(played),
            *(verdict.line for verdict in verdicts if verdict.forbids),
            *output_problems(known.parsed, solution, planned.checked()),
            *file_problems(known.parsed),
        ],
        levels=[[step.call.id for step in steps] for steps in simulation.levels().values()],
        approvals=_approvals(simulation, guard, verdicts, str(played.request)),
        sources=list(plan_ways(played)),
        makespan=simulation.makespan,
        calls=[call for call in solution.calls if isinstance(call, dict)],
        output=solution.output,
        plan=played,
        unknown=planned.unknown,
    )


def _approvals(simulation: Simulation, guard: Guard, verdicts: Iterable[RuleVerdict], request: str) -> dict[str, str]:
    """Return the calls, or the whole plan, that need approval, with the reasons."""
    runs = any(step.start is not None for step in simulation.steps)
    whole = {request: PLAN_SCOPE} if runs else {}
    found = whole if guard.shows_plans else _calls_that_ask(simulation, guard)
    for verdict in verdicts:
        for id in verdict.asks:
            found[id] = f"{found[id]}; {verdict.reason}" if id in found else verdict.reason
    return found


def _calls_that_ask(simulation: Simulation, guard: Guard) -> dict[str, str]:
    """Return the calls about which the policy asks. A condition with unknown parameters counts as true."""
    found: dict[str, str] = {}
    for step in simulation.steps:
        found |= {} if step.inside is None else _calls_that_ask(step.inside, guard)
        why = _why(step.call, guard) if step.asks else None
        if why is not None:
            found[step.call.id] = why
    return found


def _why(call: Call, guard: Guard) -> str | None:
    return guard.why(
        call.spec.known_tool, call.inputs.params if call.spec.template.literal else None, origins=call.inputs.origins
    )
