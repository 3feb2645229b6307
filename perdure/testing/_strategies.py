"""Hypothesis strategies of valid plans of an agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from hypothesis import assume
from hypothesis import strategies as st

from perdure.agents.files import Planned, planned_for
from perdure.errors import AgentError
from perdure.rules import Rule
from perdure.testing._checks import AgentLike, ToolLike, as_agent, functions_of
from perdure.testing._schema_values import make
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject
from perdure.values.references import MISSING

T = TypeVar("T")
_PLAIN: Final = {"type", "title", "description", "default"}
"""Keywords of a parameter's schema that exclude no value of its type."""


class _Drawn:
    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def choose(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))


def plans(
    agent: AgentLike, *, tools: Iterable[ToolLike] = (), input: Any = MISSING, most: int = 8
) -> st.SearchStrategy[list[JsonObject]]:
    """Return a hypothesis strategy for lists of one to `most` calls in which `check` finds no problem: chains,
    joins, order without data, and results that other calls read.

    `tools`: functions and modules that the agent names. `input`: the run's input, if it needs one. Values are made from
    the tools' schemas; hypothesis shrinks them like any other. Raises `AgentError` for an agent without tools.

    ```python
    @given(plans(shopper, tools=[order]))
    def test_any_plan(calls: list[Any]) -> None:
        assert check(shopper, calls, tools=[order]).ok
    ```
    """
    known = as_agent(agent)
    planned = planned_for(known.parsed, functions_of(known, tools).definitions(), input, delegates=known.delegates())
    offered = [tool for tool in planned.tools.values() if tool.delegate is None]
    if not offered or not planned.context.tools:
        raise AgentError(f"the agent {known.name!r} has no tools to plan with")

    @st.composite
    def strategy(draw: st.DrawFn) -> list[JsonObject]:
        calls: list[JsonObject] = []
        written: list[tuple[str, JsonObject]] = []
        for index in range(draw(st.integers(1, most))):
            tool = draw(st.sampled_from(offered))
            call = {"_tool": tool.name, **_parameters(draw, tool, written)}
            if tool.latent:
                call["_output"] = make(tool.output or {}, _Drawn(draw), what=tool.name)
            path = tool.output_path or f"†state.s{index}"
            if tool.output_path is None:
                call["_outputPath"] = path
            if "||" not in path and "&&" not in path:
                written.append((path, tool.output or {}))
            ordered = draw(st.booleans())
            if calls and ordered:
                call["_after"] = [f"1.{draw(st.integers(0, index - 1))}"]
            calls.append(call)
        assume(not any(call.state.error for call in replace(planned, calls=[*calls]).checked().calls))
        while _violates(replace(planned, calls=[*calls]), known.parsed.config.rules):
            calls.pop()  # no other call reads the last one
        assume(calls)
        return calls

    return strategy()


def _violates(planned: Planned, rules: Sequence[Rule]) -> bool:
    return any(verdict.status == "violated" for verdict in planned.verdicts(rules))


def _parameters(draw: st.DrawFn, tool: Tool, written: list[tuple[str, JsonObject]]) -> JsonObject:
    made = make(tool.parameters, _Drawn(draw), what=tool.name)
    assert isinstance(made, dict)
    for name in made:
        schema = tool.parameters.get("properties", {}).get(name, {})
        fitting = [path for path, output in written if _fits(output, schema)]
        reads = draw(st.booleans())
        if fitting and reads:
            made[name] = draw(st.sampled_from(fitting))
    return made


def _fits(output: JsonObject, schema: Json) -> bool:
    """Whether every value of the output is valid for the parameter."""
    if schema in ({}, True):
        return True
    if not isinstance(schema, dict) or not schema.keys() <= _PLAIN:
        return False
    kinds = (output.get("type"), schema.get("type"))
    return schema.get("type") is None or kinds[0] == kinds[1] or kinds == ("integer", "number")
