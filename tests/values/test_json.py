"""How much JSON is read: values are counted before a parser sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, model_serializer

from perdure.errors import JsonError, TooLargeError
from perdure.values.json import Json, WireModel, dumps, loads, shorten, to_json, whole_numbers
from tests.cpu import takes_less

MOST = 20_000
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('",\\[{:}a', max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('",\\[{:}a', max_size=3), inner, max_size=5),
    max_leaves=30,
)


def count(value: Any) -> int:
    """Return the keys and items inside of a value."""
    children = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    return len(children) + sum(map(count, children))


@given(JSON, st.booleans(), st.integers(0, 40))
def test_as_many_values_are_read_as_may_come(value: Any, spaced: bool, most: int) -> None:
    text = json.dumps(value, indent=1 if spaced else None).encode()
    if count(value) <= most:
        assert loads(text, most=most) == value
    else:
        with pytest.raises(TooLargeError):
            loads(text, most=most)


@pytest.mark.parametrize("part", ['{"a":{}}', "[[[[]]]]", "[]", "{}", '""', "1.5", '{"":{"":{}}}', '"a"', "0"])
def test_a_body_of_many_values_is_refused_before_it_is_parsed(part: str) -> None:
    """4 MB of small objects held the interpreter's lock for 100 laps, in the parser and its garbage collections."""
    text = f"[{','.join([part] * (4_000_000 // (len(part) + 1)))}]".encode()

    def refuse() -> None:
        with pytest.raises(TooLargeError):
            loads(text, most=MOST)

    assert takes_less(refuse, 12)


class Holder(WireModel):
    value: Json = None


@pytest.mark.parametrize("value", [["x"] * 1000, {"n": [1, 2.0, True, None]}, "1", 1, True, 1.0])
def test_r18_1_a_models_field_of_json_keeps_the_very_value(value: Any) -> None:
    """A large value is measured once, by its identity; pydantic copies lists and objects that it validates."""
    assert Holder(value=value).value is value
    assert Holder.model_validate({"value": value}).value is value


def test_a_number_of_5_000_digits_is_one_clear_line() -> None:
    for digits in (4_100, 5_000):
        with pytest.raises(JsonError, match=r"^the input has an integer of more than 4,000 digits$"):
            loads(f"[{'1' * digits}]", source="the input")


def test_whole_numbers_are_integers_again() -> None:
    value: Json = {"a": [1.0, 1.5, {"b": -3.0}], "c": 1e300, "d": True, "e": "1.0"}
    whole = whole_numbers(value)
    assert dumps(whole) == dumps({"a": [1, 1.5, {"b": -3}], "c": 1e300, "d": True, "e": "1.0"})


def circular() -> list[Any]:
    whole: list[Any] = []
    whole.append(whole)
    return whole


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


class Unwritable(BaseModel):
    @model_serializer
    def write(self) -> str:
        raise ValueError("two\nlines")


@pytest.mark.parametrize("adapter", [None, TypeAdapter(Any)])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"x": {"\ud800": 1}}, "has an unpaired surrogate, which is not a character"),
        (circular(), "cannot be written as JSON: Circular reference"),
        (b"\xff", "has bytes that are not UTF-8 text: byte 0"),
        ({10**5000: 1}, "has an integer of more than 4,000 digits"),
        (nested(400), "cannot be written as JSON: Maximum serialization depth"),
        (object(), "cannot be written as JSON: Unable to serialize unknown type"),
        (Unwritable(), "cannot be written as JSON: .*two lines"),
    ],
)
def test_a_python_value_that_is_not_json_is_an_error_of_one_line(
    value: Any, words: str, adapter: TypeAdapter[Any] | None
) -> None:
    with pytest.raises(JsonError, match=f"^the input {words}") as caught:
        to_json(value, source="the input", adapter=adapter)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", ["\ud800", "\ud800" * 5000, {"\ud800": 1}, ["\ud800"] * 5000])
def test_a_shortened_value_can_be_printed(value: Any) -> None:
    assert "\\ud800" in shorten(value).encode().decode()
