"""Forms of MCP servers: which are accepted, and which answers fit them (R21.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.tools.server_input import ServerAnswers, ServerInput, ServerQuestion
from perdure.values.json import Json, JsonObject, dumps


def form(required: tuple[str, ...] = (), **properties: Any) -> ServerQuestion:
    schema: JsonObject = {"type": "object", "properties": properties, "required": [*required]}
    return ServerQuestion(server="x", key="k", message="Which?", form=schema)


DAY: JsonObject = {"type": "string", "oneOf": [{"const": "m", "title": "Monday"}, {"const": "t", "title": "Tuesday"}]}
DAYS: JsonObject = {"type": "array", "items": {"anyOf": DAY["oneOf"]}}


@pytest.mark.parametrize(
    ("question", "answer", "content"),
    [
        (form(sure={"type": "boolean"}), "yes", {"sure": True}),
        (form(sure={"type": "boolean"}), {"sure": "no"}, {"sure": False}),
        (form(n={"type": "integer"}), "17", {"n": 17}),
        (form(n={"type": "number"}), 1.5, {"n": 1.5}),
        (form(name={"type": "string"}), "17", {"name": "17"}),
        (form(day=DAY), "Tuesday", {"day": "t"}),
        (form(day=DAY), "t", {"day": "t"}),
        (form(days=DAYS), "Monday, t", {"days": ["m", "t"]}),
        (form(("a",), a={"type": "string"}, b={"type": "integer", "default": 3}), "one", {"a": "one", "b": 3}),
        (form(a={"type": "string"}, b={"type": "string"}), "", {}),
        (form(a={"type": "string", "enum": ["x"], "enumNames": ["Ex"]}), "Ex", {"a": "x"}),
        (form(), {}, {}),
        (ServerQuestion(server="x", key="k", message="m", url="https://a.example"), "done", {}),
    ],
)
def test_an_answer_becomes_the_content_of_the_form(question: ServerQuestion, answer: Json, content: JsonObject) -> None:
    assert question.problem is None
    assert question.content(answer) == content


@pytest.mark.parametrize(
    ("question", "answer", "words"),
    [
        (form(n={"type": "integer"}), "many", "many"),
        (form(n={"type": "integer", "maximum": 3}), 4, "3"),
        (form(day=DAY), "Sunday", "Sunday"),
        (form(a={"type": "string"}, b={"type": "string"}), "one", "is not an answer"),
        (form(a={"type": "string"}), {"b": "one"}, "no field"),
        (form(("a",), a={"type": "string"}), {}, "a"),
        (form(a={"type": "string"}), None, "needs 'answer'"),
        (form(a={"type": "string"}), "x" * 40_000, "longer"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(question: ServerQuestion, answer: Json, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        question.content(answer)


@pytest.mark.parametrize(
    "question",
    [
        form(a={"type": "object", "properties": {}}),
        form(a={"type": "array", "items": {"type": "string"}}),
        form(a={"$ref": "#/x"}),
        form(a="text"),
        form(("b",), a={"type": "string"}),
        form(a={"type": "string", "pattern": "("}),
        form((), **{f"f{number}": {"type": "string"} for number in range(51)}),
        ServerQuestion(server="x", key="k", message="m", form={"type": "string"}),
        ServerQuestion(server="x", key="k", message="m", url="javascript:alert(1)"),
        ServerQuestion(server="x", key="k", message="m", url="https://a.example/ b"),
        ServerQuestion(server="x", key="k", message="m"),
    ],
)
def test_a_question_that_nobody_could_answer_has_a_problem(question: ServerQuestion) -> None:
    assert question.problem


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from([DAY, DAYS, {"type": "boolean"}, {"type": "integer", "default": 1}, {"type": "string"}])


@given(st.dictionaries(st.sampled_from("abc"), FIELDS), VALUES)
def test_whatever_a_person_writes_fits_the_form_or_is_refused_in_words(fields: dict[str, Any], answer: Json) -> None:
    question = form(**fields)
    try:
        content = question.content(answer)
    except ValueError as error:
        assert str(error)
    else:
        # A field that was left empty is null: where it is not named it has its default.
        assert question.content(dict.fromkeys(fields) | content) == content
        assert len(dumps(content)) < 40_000


def test_answers_are_kept_only_for_a_server_that_asks_again() -> None:
    first = ServerAnswers().after(ServerInput(server="x", state="s1"), {"a": {"action": "accept"}})
    assert first.after(ServerInput(server="x", state="s2"), {"b": {"action": "cancel"}}) == ServerAnswers(
        answers={"b": {"action": "cancel"}}, state="s2"
    )
    again = first.after(ServerInput(server="x", repeats=True), {"b": {"action": "cancel"}})
    assert [*again.answers] == ["a", "b"]
