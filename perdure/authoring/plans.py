"""A plan in whichever dialect it was written, with the agent that it is for (R9.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from perdure.authoring.planned import Planned, plan_of
from perdure.errors import AgentError, JsonError
from perdure.model.dialects import DIALECTS
from perdure.model.dialects.answers import Solution, ToolDelta
from perdure.run.agents import Agent, Context
from perdure.values.jsons import Json, JsonObject, loads_commented, shorten, without_comments
from perdure.values.references import MISSING
from perdure.values.schemas import Schema

PlanLike: TypeAlias = "str | Mapping[str, Any] | Sequence[Mapping[str, Any]]"
"""A plan as a model writes it, in any dialect: a Solution (`{"calls": […], "output": …}`) or its JSON, a list of calls, native tool
calls as OpenAI has them (in a list, or as `{"tool_calls": […]}`), or `script`'s text."""


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
    if (native := native_calls(plan)) is not None:
        dialect = DIALECTS["tools"]
        tools = dialect.reader(dialect.vocabulary(planned.tools, kinds))
        for index, call in enumerate(native):
            function = call["function"]
            arguments = function.get("arguments", "{}")
            said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            tools.push_tool(ToolDelta(index, str(call.get("id", index)), function.get("name"), said))
        return tools.close("tool_calls")
    if isinstance(plan, str):
        begin = without_comments(plan).lstrip()[:1]
        dialect = DIALECTS["solution" if begin in ("{", "[") else "script"]
        reader = dialect.reader(dialect.vocabulary(planned.tools, kinds))
        text = f'{{"calls": {plan}}}' if begin == "[" else plan
        calls = reader.push(text)
        closed = reader.close("stop")
        return closed if closed.calls else Solution([*calls], closed.output, closed.problem)
    if isinstance(plan, Mapping):
        if not isinstance(plan.get("calls"), list) or not plan.keys() <= {"calls", "output"}:
            raise AgentError(f'{shorten(dict(plan), 80)} is no plan: expected {{"calls": [...], "output": ...}}')
        return Solution(list(plan["calls"]), plan.get("output"))
    return Solution(list(plan))


def native_calls(plan: PlanLike) -> list[JsonObject] | None:
    """Return the tool calls of a message as OpenAI has it, of their list, or of its JSON; `None` for another plan."""
    document: Json = plan
    if isinstance(plan, str):
        try:
            document = loads_commented(plan)
        except JsonError:
            return None
    calls = document.get("tool_calls") if isinstance(document, Mapping) else document
    if not isinstance(calls, Sequence) or isinstance(calls, str) or not calls or not all(map(_is_native, calls)):
        return None
    return list(calls)


def _is_native(call: Json) -> bool:
    return isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) and "_tool" not in call


def output_problems(agent: Agent, solution: Solution) -> list[str]:
    """What is wrong with an answer beside its calls."""
    wanted = agent.output_schema
    told = [] if solution.problem is None else [f"the plan: {solution.problem.message}"]
    if solution.output is None or isinstance(wanted, bool):
        return told
    return told + [f"the output: {problem}" for problem in Schema(wanted).errors(solution.output, references=True)]
