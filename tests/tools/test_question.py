"""The question of a tool to a person: a template of its parameters, which are data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import tool
from perdure.errors import ToolDefinitionError
from perdure.tools.definitions import question_parts, question_problem
from perdure.tools.tool import parse_tool, resolve_tools

PAYS: dict[str, Any] = {"properties": {"euros": {"type": "number"}, "customer": {"type": "string"}}}


def test_a_question_is_text_and_names() -> None:
    assert list(question_parts("refund {euros} EUR to {customer}?")) == [
        ("refund ", "euros"),
        (" EUR to ", "customer"),
        ("?", None),
    ]
    assert list(question_parts("{{a}} {b}")) == [("{a} ", "b"), ("", None)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("refund {eurs}?", "_ask: {eurs} is not a parameter; did you mean 'euros'?"),
        ("refund {euros.real}?", "_ask: {euros.real} is not a parameter; did you mean 'euros'?"),
        ("refund {euros:.2f}?", "_ask: {euros:.2f} is not a parameter; did you mean 'euros'?"),
        ("refund {euros!r}?", "_ask: {euros!r} is not a parameter; did you mean 'euros'?"),
        ("refund {}?", "_ask: {} is not a parameter; it has euros, customer"),
        ("refund {euros?", "_ask: the brace at character 8 does not name a parameter: write {name}, or {{ for a brace"),
        ("refund }?", "_ask: the brace at character 8 does not name a parameter: write {name}, or {{ for a brace"),
        ("", '_ask: "" is not a question: one line of 1 to 300 printable characters'),
        ("a\nb", '_ask: "a\\nb" is not a question: one line of 1 to 300 printable characters'),
        (7, "_ask: 7 is not a question: one line of 1 to 300 printable characters"),
    ],
)
def test_what_is_no_question(text: Any, words: str) -> None:
    assert question_problem(text, PAYS) == words


def test_it_is_checked_where_the_tool_is_declared() -> None:
    with pytest.raises(
        ToolDefinitionError, match=r"tool 'refund': _ask: \{eur\} is not a parameter; did you mean 'euros'"
    ):

        @tool(ask="refund {eur} EUR?")
        def refund(euros: float) -> str:
            """Refund."""
            return str(euros)

    with pytest.raises(ToolDefinitionError, match="_ask: the brace at character 1"):
        parse_tool({"name": "refund", **PAYS, "_ask": "{"})

    @tool(ask="say {anything}?")
    def say(**params: Any) -> None:
        """Say."""


def test_the_code_s_question_goes_before_an_agent_file_s() -> None:
    code = {"name": "refund", **PAYS, "_ask": "refund {euros} EUR?"}
    for definition, ask in (
        ({"name": "refund", **PAYS, "_ask": "say hello to {customer}?"}, "refund {euros} EUR?"),
        ({"name": "greet", **PAYS, "_activity": "refund"}, "refund {euros} EUR?"),
        ({"name": "greet", "properties": {"sum": {}}, "_activity": "refund", "_ask": "pay {sum}?"}, "pay {sum}?"),
    ):
        (found,) = resolve_tools([definition], {"refund": code}).values()
        assert found.ask == ask


@given(st.text(max_size=400))
def test_any_text_is_a_question_or_has_a_problem(text: str) -> None:
    if question_problem(text, PAYS) is None:
        names = {name for _, name in question_parts(text)}
        assert names <= {"euros", "customer", None}
