"""References, expressions and templates (section 3), by example and by property."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import ReferenceSyntaxError
from perdure.values.references import (
    MAX_STEPS,
    MISSING,
    AllOf,
    FirstOf,
    Reference,
    evaluate,
    get,
    nearest_paths,
    parse_expression,
)
from perdure.values.templates import has_reference, parse_template
from tests.strategies import json_values, keys, references

DATA: dict[str, Any] = {
    "state": {"user": {"name": "Ann", "tags": ["a", "b"], "none": None}, "odd key": {"x.y": 1}, "имя": "Ада"},
    "input": {"items": [{"id": 7}]},
}


def lookup(reference: Reference) -> Any:
    return get(DATA.get(reference.kind, MISSING), reference.path) if reference.kind in DATA else MISSING


def resolve(value: Any) -> Any:
    template, problems = parse_template(value)
    assert not problems, problems
    return template.resolve(lookup)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("†state.user.name", "Ann"),
        (" †state.user.name ", "Ann"),
        ("†state.user.tags[1]", "b"),
        ("†state.user.tags.1", "b"),
        ('†state["odd key"]["x.y"]', 1),
        ("†state.имя", "Ада"),
        ("†input.items[0].id", 7),
        ("†input", {"items": [{"id": 7}]}),
        ("†state.user.none", None),
    ],
)
def test_r3_1_a_whole_string_keeps_the_values_own_type(text: str, expected: Any) -> None:
    assert resolve({"deep": [{"x": text}]}) == {"deep": [{"x": expected}]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello {†state.user.name}!", "Hello Ann!"),
        ("{†state.user.tags} and {†input.items[0].id}", '["a","b"] and 7'),
        ("††state.x", "†state.x"),
        ("a †† b {†state.имя}", "a † b Ада"),
        ("{††state.x}", "{†state.x}"),
        ('{†state["odd key"]["x.y"]}{†nothing || †state.user.none}', "1null"),
        ("a footnote † here", "a footnote † here"),
    ],
)
def test_r3_1_text_and_escapes(text: str, expected: str) -> None:
    assert resolve(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("†state.no || †state.user.name", "Ann"),
        ("†state.user.none || †state.user.name", None),
        ("†state.user.name && †input.items", [{"id": 7}]),
        ("†state.no && †state.user.name", MISSING),
        ("†state.no || †state.user && †state.user.name", "Ann"),
        ("(†state.no || †state.user) && †state.no", MISSING),
        ("†state.no", MISSING),
        ("†state.user.tags[2]", MISSING),
        ("†unknown.kind", MISSING),
    ],
)
def test_r3_3_and_r3_4_expressions(text: str, expected: Any) -> None:
    assert evaluate(parse_expression(text), lookup) == expected


def test_r3_3_and_binds_tighter_than_or() -> None:
    assert parse_expression("†a || †b && †c") == FirstOf((Reference("a"), AllOf((Reference("b"), Reference("c")))))
    assert parse_expression("(†a || †b) && †c") == AllOf((FirstOf((Reference("a"), Reference("b"))), Reference("c")))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("†state..x", 7),
        (r'†state["\ud800"]', 6),
        ("†", 1),
        ("†state.items[", 12),
        ("†state.items[x]", 12),
        ("†a ||", 5),
        ("(†a", 3),
        ("†state.x is great", 9),
        ("text {†state.a", 6),
        ("text {†state..a} more", 13),
        ("†" + "a" * 20_000, 0),
        ("(" * 60 + "†a" + ")" * 60, 51),
    ],
)
def test_r3_5_a_malformed_reference_tells_its_position(text: str, position: int) -> None:
    _, problems = parse_template({"a": [text]})
    assert [problem.path for problem in problems] == [("a", 0)]
    error = problems[0].error
    assert isinstance(error, ReferenceSyntaxError)
    assert error.position == position


@given(references())
def test_a_reference_reads_back_as_it_is_written(reference: Reference) -> None:
    parsed = parse_expression(str(reference))
    assert isinstance(parsed, Reference)
    assert (parsed.kind, [str(part) for part in parsed.path]) == (
        reference.kind,
        [str(part) for part in reference.path],
    )


@given(json_values())
def test_resolving_never_changes_a_values_type_nor_expands_its_text(value: Any) -> None:
    template, _ = parse_template({"whole": "†data.value", "list": ["†data.value"]})
    found = template.resolve(lambda _: value)
    assert json.dumps(found) == json.dumps({"whole": value, "list": [value]})


@given(st.text())
def test_text_inside_text_is_not_expanded_again(text: str) -> None:
    template, _ = parse_template("<{†data.value}>")
    assert template.resolve(lambda _: text) == f"<{text}>"


@given(json_values())
def test_a_value_without_daggers_is_its_own_template(value: Any) -> None:
    if "†" not in json.dumps(value, ensure_ascii=False):
        template, problems = parse_template(value)
        assert (template.sites, problems) == ((), [])
        assert template.resolve(lookup) == value
        assert not has_reference(value)


@given(st.text(alphabet='†.[]()|&{}"ab0 ', max_size=40))
def test_any_text_parses_or_is_a_syntax_error(text: str) -> None:
    _, problems = parse_template({"x": text})
    positions = [each.error.position for each in problems if isinstance(each.error, ReferenceSyntaxError)]
    assert len(positions) == len(problems)
    assert all(0 <= position <= len(text) for position in positions)
    with contextlib.suppress(ReferenceSyntaxError):
        assert parse_expression(text)


@given(st.dictionaries(keys(), json_values(), min_size=1, max_size=5), keys())
def test_near_paths_exist(value: dict[str, Any], wanted: str) -> None:
    for text in nearest_paths(value, (wanted,), root="†state"):
        reference = parse_expression(text)
        assert isinstance(reference, Reference)
        assert get(value, reference.path) is not MISSING


def test_r18_1_a_path_has_no_more_steps_than_can_be_carried() -> None:
    found = parse_expression("†state" + ".a" * MAX_STEPS)
    assert isinstance(found, Reference)
    assert len(found.path) == MAX_STEPS
    with pytest.raises(ReferenceSyntaxError, match=f"at most {MAX_STEPS} steps"):
        parse_expression("†state" + ".a" * 10_0)
