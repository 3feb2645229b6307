"""A plan in whichever dialect it was written, with the agent that it is for (R9.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from perdure.authoring.planned import Planned, plan_of
from perdure.errors import AgentError
from perdure.model.dialects import DIALECTS
from perdure.model.dialects.answers import Solution, ToolDelta
from perdure.run.agents import Agent, Context
from perdure.values.jsons import Json, JsonObject, shorten
from perdure.values.references import MISSING
from perdure.values.schemas import Schema

PlanLike: TypeAlias = "str | Mapping[str, Any] | Sequence[Mapping[str, Any]]"
"""A plan as a model writes it, in any dialect: a Solution (`{"calls": […], "output": …}`) or its JSON, a list of calls, native tool
calls as OpenAI has them, or `script`'s text."""


def planned_for(
    agent: Agent,
    definitions: Mapping[str, JsonObject],
    input: Any = MISSING,
    state: Mapping[str, Any] | None = None,
    calls: Sequence[Json] = (),
) -> Planned:
    """The calls with the agent's context and tools. Raises `InputError`."""
    given = input is not MISSING
    context = Context(agent, input if given else None, has_input=given)
    return plan_of(list(calls), context, definitions, parallel=agent.config.parallel, state=dict(state or {}))


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


def output_problems(agent: Agent, solution: Solution) -> list[str]:
    """What is wrong with an answer beside its calls."""
    wanted = agent.output_schema
    told = [] if solution.problem is None else [f"the plan: {solution.problem.message}"]
    if solution.output is None or isinstance(wanted, bool):
        return told
    return told + [f"the output: {problem}" for problem in Schema(wanted).errors(solution.output, references=True)]
