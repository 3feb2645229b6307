"""An output that is being written, parsed as far as it goes (R20.7)."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict

from perdure.agents.agent import JsonType
from perdure.models.dialects.output_text import output_form, text_of
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import ReaderVocabulary
from perdure.runs.events import Event
from perdure.runs.partial_output import PartialOutputEvents, PartialText
from perdure.testing.scripted_model import write_answer
from perdure.values.json import dumps
from perdure.values.references import MISSING
from perdure.values.templates import AS_JSON, PLAIN, REMARK, TextForm, text_form
from tests.strategies import json_values

LETTERS = st.text(alphabet='ab:,{}[]"\\é😀\n1', max_size=8)


def begins(part: Any, whole: Any) -> bool:
    """Whether a value is the beginning of another: of its parts only one may be shorter."""
    if isinstance(part, str) and isinstance(whole, str):
        return whole.startswith(part)
    if isinstance(part, list) and isinstance(whole, list):
        pairs = list(zip(part, whole, strict=False))
        return (
            len(part) <= len(whole)
            and all(one == other for one, other in pairs[:-1])
            and all(begins(*pair) for pair in pairs[-1:])
        )
    if isinstance(part, dict) and isinstance(whole, dict):
        changed = [key for key in part if part[key] != whole.get(key, MISSING)]
        return (
            part.keys() <= whole.keys() and len(changed) <= 1 and all(begins(part[key], whole[key]) for key in changed)
        )
    return type(part) is type(whole) and part == whole


def ends(text: str) -> list[int]:
    """Where a text is cut: at its first places, and at some of the others up to its end."""
    return sorted({*range(1, min(20, len(text)) + 1), *range(len(text), 0, -max(1, len(text) // 20))})


@example(output={"": ""}, form=False)  # has no text, so no piece is shown
@given(output=json_values() | LETTERS, form=st.booleans())
def test_each_value_is_the_beginning_of_the_final_one(output: Any, form: bool) -> None:
    text, shown = (dumps(output), AS_JSON) if form else (text_of(output), text_form(output))
    before: Any = MISSING
    is_scalar = not isinstance(output, dict | list | str)  # it comes as a whole
    for end in ends(text)[-1 if is_scalar else 0 :]:
        value = PartialText(text[:end], shown).value
        if value is not MISSING:
            assert begins(value, output)
            assert before is MISSING or begins(before, value)
            before = value
    if text and (isinstance(output, dict | list) or not form):
        assert before == output or (output is None and before is MISSING)


class Item(BaseModel):
    name: str
    count: int


class Report(BaseModel):
    kind: Literal["a", "ab"]
    title: str
    items: list[Item]


class Loose(TypedDict, total=False):
    kind: Literal["a", "ab"]
    title: str
    items: list[Item]


TYPES: list[Any] = [Report, Loose, list[Item], dict[str, Item], str]
FIELDS = {"name": LETTERS, "count": st.integers(0, 200)}
ITEMS = st.lists(st.fixed_dictionaries(FIELDS), max_size=3)
REPORTS = st.fixed_dictionaries({"kind": st.sampled_from(["a", "ab"]), "title": LETTERS, "items": ITEMS})


@given(of=st.sampled_from(TYPES), report=REPORTS)
def test_a_typed_value_is_the_beginning_of_the_final_one(of: Any, report: dict[str, Any]) -> None:
    outputs: list[Any] = [
        report,
        report,
        report["items"],
        {each["name"]: each for each in report["items"]},
        report["title"],
    ]
    output = outputs[TYPES.index(of)]
    wanted: JsonType[Any] = JsonType(of, "it")
    text, before = text_of(output), MISSING
    for end in ends(text):
        value = wanted.read_partial(PartialText(text[:end], text_form(output)))
        if value is not MISSING:
            shown = TypeAdapter(of).dump_python(value, mode="json")
            assert begins(shown, output), (value, text[:end])
            assert before is MISSING or begins(before, shown)
            before = shown
    assert before == output or text == ""


@given(output=json_values() | LETTERS, dialect=st.sampled_from(["solution", "script"]))
@example(output={"0": "0"}, dialect="solution")
@example(output={"a": {"b": "x"}}, dialect="solution")
def test_the_text_of_each_dialect_names_its_form(output: Any, dialect: str) -> None:
    if "†" in dumps(output) or '"_' in dumps(output):
        return
    reader = DIALECTS[dialect].reader(ReaderVocabulary())
    for letter in write_answer({"calls": [], "output": output}, dialect).text:
        reader.push(letter)
        text = reader.output_text()
        if text:
            assert reader.text_form == text_form(output)
    reader.close("stop")


OBJECT = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
ONE = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
OWN = {"type": "object", "properties": {"output": {}, "b": {}}, "required": ["output", "b"]}


@pytest.mark.parametrize(
    ("schema", "answer", "value"),
    [
        (OBJECT, '{"a": "x y', {"a": "x y"}),
        (OBJECT, '{"output": {"a": "x", "b', {"a": "x"}),
        (OBJECT, ' { // so\n "a": "x", "b": 1}', {"a": "x", "b": 1}),
        (OBJECT, '<think>{"a": 1}</think>{"a": "†state.x', {}),
        (OBJECT, "I look it up", MISSING),
        (ONE, '{"output":{"a":"x', {"a": "x"}),
        (ONE, "Well", MISSING),
        (OWN, '{"output": {"b": 1', MISSING),
        (True, '{"a": "x', MISSING),
        (True, "Well", "Well"),
        ({"type": "string"}, "Well", "Well"),
    ],
)
def test_a_text_answer_is_read_while_it_is_written(schema: Any, answer: str, value: Any) -> None:
    for size in (1, 3, 1000):
        reader = DIALECTS["tools"].reader(ReaderVocabulary(said=output_form(schema)))
        text = ""
        for at in range(0, len(answer), size):
            reader.push(answer[at : at + size])
            text += reader.output_text()
        assert PartialText(text, reader.text_form).value == value, (text, reader.text_form)


def written(text: str, start: int = 0, request: int = 1, attempt: int = 1, **more: Any) -> Event:
    data = {"request": request, "attempt": attempt, "start": start, "text": text, **more}
    return Event("assistant", "delta", "", "r", data)


def ended(text: str, **more: Any) -> Event:
    return Event("assistant", "end", "", "r", {"request": 1, "attempt": 1, "text": text, "accepted": True, **more})


J: dict[str, Any] = {"form": "json"}
SUPERSEDED = Event("assistant", "superseded", "", "r", {"request": 1, "attempt": 1, "reason": "anew"})


@pytest.mark.parametrize(
    ("events", "values"),
    [
        ([written('{"a":"x', **J), written("y", 7, **J)], [{"a": "x"}, {"a": "xy"}]),
        ([written('{"a":1,', **J), SUPERSEDED, written('{"b":', attempt=2, **J)], [{"a": 1}, {}]),
        ([written('{"a":1,', **J), ended("no", accepted=False), written("[2,", request=2, **J)], [{"a": 1}, [2]]),
        ([written("so", 32_000), ended("all", output=True)], ["all"]),
        ([written("x", form="member", member="a"), ended("xy", output=True, form="member", member="a")],
         [{"a": "x"}, {"a": "xy"}]),
        ([written("I look it up", form="remark")], []),
        ([ended("cut… (70,000 characters)", output=True, cut=["text"])], []),
        ([ended("a remark", accepted=True)], []),
    ],
)  # fmt: skip
def test_the_events_of_a_run_as_values(events: list[Event], values: list[Any]) -> None:
    fold = PartialOutputEvents()
    found = [text.value for event in events for text in fold.fold(event)]
    assert [value for value in found if value is not MISSING] == values


def test_a_form_is_the_same_behind_an_event() -> None:
    for form in (PLAIN, AS_JSON, REMARK, TextForm(kind="member", member="a")):
        assert TextForm.of_event(json.loads(json.dumps(form.event_data()))) == form


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":"x,wor', {"a": "x,wor"}),
        ('{"a":"http://e.org:80', {"a": "http://e.org:80"}),
        ('["[12', ["[12"]),
        ('{"a":"x","b":12', {"a": "x"}),
        ('["x",tr', ["x"]),
        ('["x",-', ["x"]),
        ('["x",1e', ["x"]),
    ],
)
def test_a_word_behind_a_comma_of_a_text_is_part_of_the_text(text: str, value: Any) -> None:
    assert PartialText(text, AS_JSON).value == value
