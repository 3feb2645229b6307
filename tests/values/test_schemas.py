"""JSON Schema: what its keywords mean in each draft, which schemas are refused, and what checking may cost (R2.3, R18.5, R18.6)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from perdure.values._schema_keywords import VALIDATORS
from perdure.values._schema_nodes import PatternError, UncoveredError, compile_pattern
from perdure.values.limits import MOST_STEPS, CheckBudget, CheckSteps
from perdure.values.schemas import Schema, draft_of
from tests.cpu import takes_less

CASES = json.loads((Path(__file__).parents[1] / "json_schema" / "cases.json").read_text(encoding="utf-8"))
NAMES = {
    number: validator.META_SCHEMA.get("$id") or validator.META_SCHEMA["id"] for number, validator in VALIDATORS.items()
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["keyword"])
def test_each_keyword_means_what_its_draft_says(case: dict[str, Any]) -> None:
    for number in case["drafts"]:
        schema = Schema({"$schema": NAMES[number], **case["schema"]})
        assert schema.draft.number == number
        assert schema.problem is None
        for value, fits in case["tests"]:
            assert (schema.errors(value) == []) is fits, (number, value)


@pytest.mark.parametrize(
    ("schema", "number"),
    [
        ({"definitions": {"a": {}}, "properties": {"x": {"$ref": "#/definitions/a"}}}, 7),
        ({"properties": {"x": {"items": [{"type": "string"}]}}}, 7),
        ({"dependencies": {"a": ["b"]}}, 7),
        ({"properties": {"dependencies": {"type": "object"}}}, 2020),
        ({"$defs": {"a": {}}, "definitions": {}, "properties": {"x": {"prefixItems": [{}]}}}, 2020),
        ({"$schema": "http://json-schema.org/draft-04/schema"}, 4),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema#", "items": [{}]}, 2019),
        ({"$schema": "https://example.org/mine"}, 2020),
        ({"properties": {"x": {"minimum": 1, "exclusiveMinimum": True}}}, 4),
        ({}, 2020),
    ],
)
def test_a_schema_is_read_in_the_draft_that_it_names_or_whose_words_it_uses(
    schema: dict[str, Any], number: int
) -> None:
    assert draft_of(schema).number == number
    assert Schema(schema).problem is None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "#/nowhere"}, "points at nothing"),
        ({"$id": "http://example.org/a", "$ref": "other.json"}, "points at nothing"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "points at nothing"),
        ({"$dynamicRef": "#nowhere"}, "points at nothing"),
        ({"properties": {"x": {"$ref": "#anchor"}}}, "points at nothing"),
        ({"$ref": "#/required", "required": ["a"]}, "points at no schema"),
        ({"properties": {"x": {"$ref": "#/other"}}, "other": {"$ref": "#/gone"}}, "'#/gone'"),
        ({"$id": "http://[::1", "$ref": "x"}, "Invalid IPv6"),
        ({"pattern": "(?=a)b"}, "ahead or behind"),
        ({"patternProperties": {r"(a)\1": {}}}, "earlier group"),
        ({"properties": {"x": {"pattern": "("}}}, "the pattern"),
        ({"type": "text"}, "must be one of"),
        ({"minLength": -1}, "$.minLength"),
        ({"items": [{}], "prefixItems": [{}]}, "$.items"),
        ({"properties": {str(n): {"enum": [1, 2]} for n in range(20_000)}}, "more than 50,000 parts"),
    ],
)
def test_r18_6_what_cannot_be_used_is_one_line_when_it_is_read_and_never_raises(
    schema: dict[str, Any], says: str
) -> None:
    problem = Schema(schema).problem
    assert problem is not None
    assert says.replace("'", '"') in problem or says in problem
    assert "\n" not in problem
    assert len(problem) < 500
    assert all("\n" not in line for line in Schema(schema).errors({"x": "b", "1": 1}))


def test_r2_3_several_missing_keys_are_one_line() -> None:
    wanted = {"type": "object", "required": ["number", "euros"]}
    assert Schema(wanted).errors({}) == ["$ lacks 'number', 'euros'"]


def test_r18_6_a_schema_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"items": schema}
    assert Schema(schema).problem == "it is nested more than 100 deep"


def _within(laps: float, schema: dict[str, Any], value: Any) -> list[str]:
    checked = Schema(schema)
    assert takes_less(lambda: checked.errors(value), laps)
    return checked.errors(value)


def test_r18_6_patterns_take_linear_time() -> None:
    assert _within(20, {"pattern": "^(a+)+$"}, "a" * 28 + "!")
    assert _within(20, {"patternProperties": {"^(a+)+$": False}}, {"a" * 28 + "!": 1}) == []
    assert _within(20, {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {"a" * 28 + "!": 1})
    assert _within(20, {"patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False}, {"a" * 28 + "!": 1})
    # RE2's own worst case is bounded by the product of the two sizes.
    [line] = _within(40, {"pattern": "(a|b)*a(a|b){900}c"}, "ab" * 900_000)
    assert "too many steps" in line


@pytest.mark.parametrize("references", [False, True])
def test_r18_6_alternatives_inside_each_other_end_in_a_clear_line(references: bool) -> None:
    definitions: dict[str, Any] = {"0": {"type": "integer"}}
    value: Any = "no"
    for level in range(22):
        inner = {"$ref": f"#/$defs/{level}"}
        arms = [{"properties": {"n": inner, key: {"type": "string"}}, "required": ["n", key]} for key in "ab"]
        definitions[str(level + 1)], value = {"anyOf": arms}, {"n": value, "a": "1", "b": "2"}
    schema = {"$ref": "#/$defs/22", "$defs": definitions}
    checked = Schema(schema)
    [line] = checked.errors(value, references=references)
    assert "too many steps" in line
    assert takes_less(lambda: checked.errors(value, references=references), 400)
    assert checked.problem is None


LARGE: list[tuple[Any, Any]] = [
    ({"type": "integer"}, [1] * 900_000),
    ({"type": "integer", "minimum": 0}, [1] * 900_000),
    ({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, [{"x": 1}] * 200_000),
    ({"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]}, ["abc", None] * 160_000),
    ({"type": "array", "items": {"type": "integer"}}, [[1]] * 450_000),
]


@pytest.mark.parametrize(("items", "value"), LARGE, ids=range(len(LARGE)))
def test_r18_5_the_largest_values_are_checked_well_under_half_a_second(items: Any, value: Any) -> None:
    schema = Schema({"type": "object", "properties": {"rows": {"type": "array", "items": items}}})
    assert schema.errors({"rows": value}) == []
    assert takes_less(lambda: schema.errors({"rows": value}), 100)
    # Many calls that read one value pay for it once.
    checks = CheckBudget()
    assert schema.errors({"rows": value}, checks=checks) == []
    taken = checks.taken
    for n in range(450):
        assert schema.errors({"rows": value, "n": n}, checks=checks) == []
    assert checks.taken - taken < 450 * 100
    # What is wrong at its end is found, and told in a line; of a value that does not fit too it is found once.
    wrong = [*value, {"x": True}]
    [line] = _within(400, schema.schema, {"rows": wrong})[:1]
    assert "$.rows[" in line
    told = schema.errors({"rows": wrong}, checks=checks)
    taken = checks.taken
    for n in range(50):
        assert schema.errors({"rows": wrong, "n": n}, checks=checks) == told
    assert checks.taken - taken < 50 * 1000


def test_r18_5_what_is_wrong_is_told_where_it_stands_in_each_call() -> None:
    rows = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"required": ["x"], "type": "object"}]}}
    schema = Schema({"properties": {"a": rows, "b": {"properties": {"c": {"properties": {"a": rows}}}}}})
    value: Any = [1] * 5000 + [{"y": 1}, "x"]
    checks = CheckBudget()
    below: Any = {"c": {"a": value}}
    for call in ({"a": value}, {"b": below}, {"a": value, "b": below}, {"a": value}):
        assert schema.errors(call, checks=checks) == schema.errors(call)
    assert [line.split()[0] for line in schema.errors({"b": {"c": {"a": value}}}, checks=checks)] == [
        "$.b.c.a[5000]",
        "$.b.c.a[5001]",
    ]


def test_r18_5_what_takes_too_many_steps_is_found_out_once() -> None:
    schema: Any = {"type": "array", "items": {"type": "integer"}}
    for _ in range(8):
        schema = {"anyOf": [schema, schema]}
    checked = Schema({"properties": {"rows": schema}})
    value = [*range(200_000), "x"]
    checks = CheckBudget()
    for n in range(20):
        [line] = checked.errors({"rows": value, "n": n}, checks=checks)
        assert "too many steps" in line
    assert MOST_STEPS <= checks.taken < 1.1 * MOST_STEPS


class _Silent:
    """A value whose text nobody may make."""

    def __repr__(self) -> str:
        raise AssertionError("its text takes as long as it is large")


class _SilentList(_Silent, list[Any]): ...


class _SilentText(_Silent, str): ...


class _SilentObject(_Silent, dict[str, Any]): ...


LIST, OBJECT, TEXT = _SilentList([1, 1]), _SilentObject(a=1), _SilentText("ab")
NO = {"$ref": "#/$defs/no", "$defs": {"no": False}}


OF_ANY: list[dict[str, Any]] = [
    *({"not": {}}, {"anyOf": [False]}, {"oneOf": [{}, {}]}, {"allOf": [False]}, {"if": {}, "then": False}),
    *({"type": "null"}, {"const": 1}, {"enum": [1]}, {"const": [1]}, NO),
]
OF_LISTS: list[dict[str, Any]] = [
    *({"maxItems": 0}, {"minItems": 3}, {"uniqueItems": True}, {"contains": False}, {"prefixItems": [False]}),
    *({"maxContains": 0, "contains": {}}, {"minContains": 3, "contains": {}}, {"unevaluatedItems": False}),
]
OF_OBJECTS: list[dict[str, Any]] = [
    *({"maxProperties": 0}, {"minProperties": 2}, {"required": ["b"]}, {"dependentRequired": {"a": ["b"]}}),
    *({"dependentSchemas": {"a": False}}, {"additionalProperties": False}, {"unevaluatedProperties": False}),
    {"propertyNames": False},
]
OF_TEXTS: list[dict[str, Any]] = [{"maxLength": 0}, {"minLength": 3}, {"pattern": "z"}]
SILENT: list[tuple[int, dict[str, Any], Any]] = [
    *((2020, schema, value) for value in (LIST, OBJECT, TEXT) for schema in OF_ANY),
    *((2020, schema, LIST) for schema in OF_LISTS),
    *((2020, schema, OBJECT) for schema in OF_OBJECTS),
    *((2020, schema, TEXT) for schema in OF_TEXTS),
    *((number, {"items": [{}], "additionalItems": False}, LIST) for number in (4, 6, 7, 2019)),
    *((number, {"contains": {"type": "null"}}, LIST) for number in (6, 7, 2019)),
    *((2019, {"unevaluatedItems": False}, LIST), (7, {"dependencies": {"a": False}}, OBJECT)),
]


@pytest.mark.parametrize(("number", "schema", "value"), SILENT, ids=range(len(SILENT)))
def test_r18_5_no_error_holds_the_text_of_the_whole_value(number: int, schema: dict[str, Any], value: Any) -> None:
    """300 alternatives on a list of 250,000 took seven seconds and 600 MB: each error had the list as text."""
    wrong = Schema({"$schema": NAMES[number], **schema}).errors(value)
    assert wrong
    assert "cannot be checked" not in wrong[0]


ITEMS = list(range(100_000))
KEYS = {f"k{n}": n for n in range(100_000)}
NAMED: dict[str, Any] = {"$dynamicRef": "#/$defs/a"}  # what `jsonschema` decides, one keyword after another


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {}, "unevaluatedItems": False}, ITEMS),
        ({"contains": {}, "unevaluatedItems": False}, ITEMS),
        ({"allOf": [{"unevaluatedItems": {}}] * 500}, ITEMS),
        ({"items": {"allOf": [{}] * 10_000}}, ITEMS),
        ({**NAMED, "$defs": {"a": {"allOf": [{"propertyNames": {}}] * 1_000}}}, KEYS),
        ({**NAMED, "$defs": {"a": {"anyOf": [{"additionalProperties": False}] * 1_000}}}, KEYS),
        ({**NAMED, "$defs": {"a": {"allOf": [{"contains": {}}] * 1_000}}}, ITEMS),
        ({"$defs": {"c": {"const": ITEMS[:3_000]}}, "allOf": [{"$ref": "#/$defs/c"}] * 3_000}, ITEMS[:3_000]),
        ({"items": {"enum": [{"a": n} for n in range(1_000)]}}, [{"a": 999} for _ in range(50_000)]),
        ({"uniqueItems": True}, [n * (2**61 - 1) for n in range(90_000)]),
    ],
    ids=range(10),
)
def test_r18_5_each_keyword_counts_what_it_reads(schema: dict[str, Any], value: Any) -> None:
    """Each of these took from five seconds to an hour."""
    assert len(_within(400, schema, value)) < 2


def test_runs_of_0_1_0_count_as_they_did() -> None:
    value: Any = ITEMS[:100]
    schema = Schema({"contains": {}, "unevaluatedItems": False, "allOf": [{}] * 100})
    before, now = CheckBudget(), CheckBudget()
    before.is_patched = lambda _: False
    assert schema.errors(value, checks=before) == schema.errors(value, checks=now) == []
    assert before.taken < now.taken
    listed = Schema({"enum": [[1]]})
    assert listed.fits([1], checks=before) is listed.fits([1.0], checks=now) is True


def test_many_errors_are_told_in_a_few_lines() -> None:
    found = _within(100, {"items": {"type": "string"}}, list(range(200_000)))
    assert 5 <= len(found) <= 20
    assert all(len(line) <= 500 for line in found)


def test_what_a_false_schema_forbids_is_said() -> None:
    assert Schema({"properties": {"a": False}}).errors({"a": 1}) == ["$.a is not allowed"]


def test_a_part_of_a_schema_keeps_its_document() -> None:
    document = {"properties": {"a": {"properties": {"b": {"$ref": "#/properties/n"}}}, "n": {"type": "integer"}}}
    [part] = Schema(document).at(("a",)) or []
    assert part.errors({"b": 1}) == []
    assert part.errors({"b": "x"}) == ['$.b is "x", but must fit {"type": "integer"}']
    tuples = Schema({"properties": {"t": {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}}})
    assert [part.schema for part in tuples.at(("t", 1)) or []] == [{"type": "string"}]


@pytest.mark.parametrize("text", ["a{20000}", "[", "x" * 10_001, "\\", "((a{100}){100}){100}", "\ud800", "(?<!a)b"])
def test_a_pattern_that_cannot_be_used_says_why(text: str) -> None:
    with pytest.raises(PatternError) as caught:
        compile_pattern(text)
    assert str(caught.value)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, -2.0])
    | st.sampled_from(["", "a", "ab"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"]),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "minimum": st.integers(-2, 2),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "maxLength": st.integers(0, 2),
        "pattern": st.sampled_from(["^a", "b$", "."]),
        "minItems": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
        "maxProperties": st.integers(0, 2),
    },
)


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    keywords = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("not", "items", "additionalProperties", "contains", "propertyNames", "if", "then"), inner),
        **dict.fromkeys(("properties", "dependentSchemas"), named),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b|c"]), inner, max_size=2),
        **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), inner),
    }
    return st.fixed_dictionaries({}, optional=keywords)


SCHEMAS = st.recursive(LEAVES | st.booleans(), _combined, max_leaves=6).filter(lambda schema: isinstance(schema, dict))


@given(SCHEMAS, VALUES)
def test_the_fast_way_and_jsonschema_agree(schema: dict[str, Any], value: Any) -> None:
    expected = Draft202012Validator(schema).is_valid(value)
    with contextlib.suppress(UncoveredError):
        assert Schema(schema).verdicts.node(schema).fits(value, CheckSteps()) is expected
    assert (Schema(schema).errors(value) == []) is expected


@pytest.mark.parametrize(
    ("step", "value", "fits"), [(0.01, 19.99, True), (0.1, 0.3, True), (0.01, 0.015, False), (0.5, 1, True)]
)
def test_multiples_of_decimals_are_what_they_look_like(step: float, value: float, fits: bool) -> None:
    assert (Schema({"multipleOf": step}).errors(value) == []) is fits
