"""The keywords of JSON Schema as parts of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final, TypeAlias

from perdure.values.jsons import JsonObject
from perdure.values.limits.steps import Steps
from perdure.values.schemas.containers import contains, dependent, distinct, property_names, required
from perdure.values.schemas.equality import scalar_key
from perdure.values.schemas.nodes import ALL, Maker, Node, Part, UncoveredError, uncovered
from perdure.values.schemas.patterns import PatternError, compile_pattern

_NUMBERS: Final = (int, float)


# Keywords that combine schemas.


def _reference(maker: Maker, schema: JsonObject) -> Part:
    reference = schema["$ref"]
    found: list[Node] = []

    def part(value: Any, steps: Steps) -> bool:
        if not found:  # at the first use: a schema may refer to itself
            found.append(maker.node(maker.target(reference)))
        return found[0].fits(value, steps)

    return part


def _all_of(maker: Maker, schema: JsonObject) -> Part:
    nodes = [maker.node(each) for each in schema["allOf"]]
    return lambda value, steps: all(node.fits(value, steps) for node in nodes)


def _any_of(maker: Maker, schema: JsonObject) -> Part:
    nodes = [maker.node(each) for each in schema["anyOf"]]

    def part(value: Any, steps: Steps) -> bool:
        for node in nodes:
            if node.fits(value, steps):
                return True
            steps.take(1)
        return False

    return part


def _one_of(maker: Maker, schema: JsonObject) -> Part:
    nodes = [maker.node(each) for each in schema["oneOf"]]

    def part(value: Any, steps: Steps) -> bool:
        steps.take(len(nodes))
        return sum(node.fits(value, steps) for node in nodes) == 1

    return part


def _not(maker: Maker, schema: JsonObject) -> Part:
    node = maker.node(schema["not"])
    return lambda value, steps: not node.fits(value, steps)


def _if(maker: Maker, schema: JsonObject) -> Part | None:
    if maker.draft.number < 7:
        return None
    condition = maker.node(schema["if"])
    then, otherwise = (maker.node(schema.get(key, True)) for key in ("then", "else"))
    return lambda value, steps: (then if condition.fits(value, steps) else otherwise).fits(value, steps)


# Keywords of any value.


def _enum(maker: Maker, schema: JsonObject) -> Part | None:
    if "const" in schema and maker.draft.number < 6 and "enum" not in schema:
        return None
    listed = schema["enum"]
    if any(isinstance(each, dict | list) for each in listed):
        return uncovered(maker, schema)
    allowed = {scalar_key(each) for each in listed}

    def part(value: Any, steps: Steps) -> bool:
        return not isinstance(value, dict | list) and scalar_key(value) in allowed

    return part


def _const(maker: Maker, schema: JsonObject) -> Part | None:
    return None if maker.draft.number < 6 else _enum(maker, {"enum": [schema["const"]]})


# Keywords of a size or a bound.


def _bound(keyword: str, test: Callable[[Any, Any], bool]) -> Callable[[Maker, JsonObject], Part | None]:
    def make(maker: Maker, schema: JsonObject) -> Part | None:
        limit = schema[keyword]
        if isinstance(limit, bool):
            return uncovered(maker, schema)  # draft 4
        if keyword in ("minimum", "maximum") and isinstance(schema.get(f"exclusive{keyword.title()}"), bool):
            return uncovered(maker, schema)
        return lambda value, steps: test(value, limit)

    return make


def _multiple(maker: Maker, schema: JsonObject) -> Part:
    step = schema["multipleOf"]

    def part(value: Any, steps: Steps) -> bool:
        if isinstance(value, int) and isinstance(step, int):
            return value % step == 0
        # 19.99 is a multiple of 0.01 for whoever wrote the two, though no float says so.
        if math.isfinite(value) and Fraction(repr(value)) % Fraction(repr(step)) == 0:
            return True
        raise UncoveredError

    return part


def _pattern(maker: Maker, schema: JsonObject) -> Part:
    try:
        pattern = compile_pattern(schema["pattern"])
    except PatternError:
        return uncovered(maker, schema)

    def part(value: str, steps: Steps) -> bool:
        steps.take(pattern.cost(value) + 2)
        return pattern.found(value)

    return part


_Entry: TypeAlias = tuple[tuple[type, ...], Callable[[Maker, JsonObject], Part | None]]
MAKERS: Final[dict[str, _Entry]] = {
    "$ref": (ALL, _reference),
    "allOf": (ALL, _all_of),
    "anyOf": (ALL, _any_of),
    "oneOf": (ALL, _one_of),
    "not": (ALL, _not),
    "if": (ALL, _if),
    "enum": (ALL, _enum),
    "const": (ALL, _const),
    "required": ((dict,), required),
    "minProperties": ((dict,), _bound("minProperties", lambda value, limit: len(value) >= limit)),
    "maxProperties": ((dict,), _bound("maxProperties", lambda value, limit: len(value) <= limit)),
    "minItems": ((list,), _bound("minItems", lambda value, limit: len(value) >= limit)),
    "maxItems": ((list,), _bound("maxItems", lambda value, limit: len(value) <= limit)),
    "uniqueItems": ((list,), distinct),
    "minLength": ((str,), _bound("minLength", lambda value, limit: len(value) >= limit)),
    "maxLength": ((str,), _bound("maxLength", lambda value, limit: len(value) <= limit)),
    "pattern": ((str,), _pattern),
    "minimum": (_NUMBERS, _bound("minimum", lambda value, limit: value >= limit)),
    "maximum": (_NUMBERS, _bound("maximum", lambda value, limit: value <= limit)),
    "exclusiveMinimum": (_NUMBERS, _bound("exclusiveMinimum", lambda value, limit: value > limit)),
    "exclusiveMaximum": (_NUMBERS, _bound("exclusiveMaximum", lambda value, limit: value < limit)),
    "multipleOf": (_NUMBERS, _multiple),
    "propertyNames": ((dict,), property_names),
    "dependencies": ((dict,), dependent("dependencies", 4, 7)),
    "dependentRequired": ((dict,), dependent("dependentRequired", 2019, 2020)),
    "dependentSchemas": ((dict,), dependent("dependentSchemas", 2019, 2020)),
    "contains": ((list,), contains),
    "unevaluatedItems": ((list,), uncovered),
    "unevaluatedProperties": ((dict,), uncovered),
    "$dynamicRef": (ALL, uncovered),
    "$recursiveRef": (ALL, uncovered),
}
