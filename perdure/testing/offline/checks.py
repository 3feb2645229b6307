"""A plan judged before anything runs: no server, no model, no tool, in milliseconds (R14.1)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from perdure.authoring.agent import Agent
from perdure.authoring.planned import Planned, plan_of
from perdure.errors import AgentError
from perdure.model.dialects import DIALECTS
from perdure.model.dialects.answers import Solution, ToolDelta
from perdure.people.policies import Guard
from perdure.plan.calls import Call
from perdure.plan.plan import Plan
from perdure.plan.simulation import Simulation, simulate
from perdure.run.agents import Context
from perdure.run.views.drawing import draw_plan, to_mermaid
from perdure.testing.agents import AgentLike, ToolLike, as_agent, functions_of
from perdure.values.jsons import Json, JsonObject, shorten
from perdure.values.references import MISSING
from perdure.values.schemas import Schema

PlanLike: TypeAlias = "str | Mapping[str, Any] | Sequence[Mapping[str, Any]]"
"""A plan as a model writes it, in any dialect: a Solution (`{"calls": […], "output": …}`) or its JSON, a list of calls, native tool
calls as OpenAI has them, or `script`'s text."""


@dataclass(frozen=True)
class Checked:
    """What is known of a plan before it runs. Calls go by their ids, `1.0`, `1.1`, … in the order in which they are written."""

    problems: list[str]
    """Everything that is wrong, one line each; empty for a plan that can run."""
    levels: list[list[str]]
    """What would run in parallel, in the order of the levels."""
    approvals: dict[str, str]
    """The calls that a person would be asked about, and why."""
    makespan: float
    """Seconds from first start to last end, by the tools' `duration`s (1 s where none is known)."""
    calls: list[JsonObject]
    """As they were read, whatever the dialect."""
    output: Json
    """What the Solution gives beside its calls, references and all."""
    plan: Plan
    unknown: list[str]
    """Tools of which only the name is known: their parameters were not checked."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong with it."""
        return not self.problems

    @property
    def asks(self) -> list[str]:
        """The tools that a person would be asked about, in the order of the calls."""
        return [call.tool_name for call in self.plan.calls if call.id in self.approvals]

    def mermaid(self) -> str:
        """The plan as a drawing, for a failure's message or a review."""
        return to_mermaid(draw_plan(self.plan, paths=True))

    def __str__(self) -> str:
        lines = [*self.problems, *(f"level {n}: {', '.join(ids)}" for n, ids in enumerate(self.levels, 1))]
        return "\n".join([*lines, *(f"{call} asks a person: {why}" for call, why in self.approvals.items())])


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
    """Validate a plan of this agent, play it dry, and tell what a person would be asked about (R5.6).

    `tools`: functions and modules that the agent names, beside those that it was given as functions; of others only the name is known.
    `input`, `state`: the run's input, and what the state holds before. `durations`: seconds by tool. `assume`: call id → `failed`, or the
    alternative of its output path that it takes. Raises `AgentError` or `InputError` for an agent or an input that no run would start with,
    and `AgentError` for what is no plan in any dialect; what is wrong in a plan is in `problems`.
    """
    known = as_agent(agent)
    named = functions_of(known, tools).definitions()
    solution = read_plan(plan, planned_for(known, named, input, state))
    planned = planned_for(known, named, input, state, solution.calls)
    guard = Guard(known.parsed.config.approval)
    played = planned.new_plan()
    simulation = simulate(played, planned.calls, durations=durations, assume=assume, asks=guard.asks)
    return Checked(
        problems=[*_solution_problems(solution), *_problems(played), *_output_problems(known, solution)],
        levels=[[step.call.id for step in steps] for steps in simulation.levels().values()],
        approvals=_approvals(simulation, guard),
        makespan=simulation.makespan,
        calls=[call for call in solution.calls if isinstance(call, dict)],
        output=solution.output,
        plan=played,
        unknown=planned.unknown,
    )


def planned_for(
    agent: Agent[Any],
    definitions: Mapping[str, JsonObject],
    input: Any = MISSING,
    state: Mapping[str, Any] | None = None,
    calls: Sequence[Json] = (),
) -> Planned:
    """The calls with the agent's context and tools. Raises `InputError`."""
    given = input is not MISSING
    context = Context(agent.parsed, input if given else None, has_input=given)
    return plan_of(list(calls), context, definitions, parallel=agent.parsed.config.parallel, state=dict(state or {}))


def read_plan(plan: PlanLike, planned: Planned) -> Solution:
    """The plan as its dialect's reader reads it. Raises `AgentError` for what is none."""
    kinds = [merged.kind for merged in planned.context.data]
    if isinstance(plan, str):
        dialect = DIALECTS["solution" if plan.lstrip().startswith(("{", "[")) else "script"]
        reader = dialect.reader(dialect.vocabulary(planned.tools, kinds))
        text = f'{{"calls": {plan}}}' if plan.lstrip().startswith("[") else plan
        calls = reader.push(text)
        closed = reader.close("stop")
        return closed if closed.calls else Solution([*calls], closed.output, closed.problem)
    if isinstance(plan, Mapping):
        if not isinstance(plan.get("calls"), list) or not plan.keys() <= {"calls", "output"}:
            raise AgentError(f'{shorten(dict(plan), 80)} is no plan: expected {{"calls": [...], "output": ...}}')
        return Solution(list(plan["calls"]), plan.get("output"))
    calls = list(plan)
    if calls and all(isinstance(call, Mapping) and "function" in call for call in calls):
        native = DIALECTS["tools"]
        reader = native.reader(native.vocabulary(planned.tools, kinds))
        for index, call in enumerate(calls):
            function = call["function"]
            arguments = function.get("arguments", "{}")
            said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            reader.push_tool(ToolDelta(index, str(call.get("id", index)), function.get("name"), said))
        return reader.close("tool_calls")
    return Solution(calls)


def _solution_problems(solution: Solution) -> list[str]:
    return [] if solution.problem is None else [f"the plan: {solution.problem.message}"]


def _problems(plan: Plan) -> list[str]:
    return [
        f"{call.id} {call.tool_name}: {message}"
        for call in plan.calls
        if call.error is not None and call.error.code != "assumed"
        for message in call.error.problems or (call.error.message,)
    ]


def _output_problems(agent: Agent[Any], solution: Solution) -> list[str]:
    wanted = agent.parsed.output_schema
    if solution.output is None or isinstance(wanted, bool):
        return []
    return [f"the output: {problem}" for problem in Schema(wanted).errors(solution.output, references=True)]


def _approvals(simulation: Simulation, guard: Guard) -> dict[str, str]:
    """Conditions on parameters are judged where the parameters are known; else they count as if they held."""
    found: dict[str, str] = {}
    for step in simulation.steps:
        why = _why(step.call, guard) if step.asks else None
        if why is not None:
            found[step.call.id] = why
    return found


def _why(call: Call, guard: Guard) -> str | None:
    assert call.tool is not None
    return guard.why(call.tool, call.params if call.template.literal else None, origins=call.origins)
