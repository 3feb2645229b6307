"""The keywords of JSON Schema as parts of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from perdure.values.jsons import JsonObject
from perdure.values.schemas.equality import all_distinct, scalar_key
from perdure.values.schemas.nodes import ALL, ANYTHING, Maker, Node, Part, UncoveredError
from perdure.values.schemas.patterns import PatternError, compile_pattern
from perdure.values.schemas.steps import Steps

OF_OBJECTS: Final = frozenset({"properties", "patternProperties", "additionalProperties"})
"""Keywords that `of_object` decides together."""
OF_ARRAYS: Final = frozenset({"items", "prefixItems", "additionalItems"})
"""Keywords that `of_array` decides together."""
_NUMBERS: Final = (int, float)


def _uncovered(maker: Maker, schema: JsonObject) -> Part:
    def part(value: Any, steps: Steps) -> bool:
        raise UncoveredError

    return part


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
        return _uncovered(maker, schema)
    allowed = {scalar_key(each) for each in listed}

    def part(value: Any, steps: Steps) -> bool:
        return not isinstance(value, dict | list) and scalar_key(value) in allowed

    return part


def _const(maker: Maker, schema: JsonObject) -> Part | None:
    return None if maker.draft.number < 6 else _enum(maker, {"enum": [schema["const"]]})


# Keywords of objects.


def of_object(maker: Maker, schema: JsonObject) -> Part:
    """`properties`, `patternProperties` and `additionalProperties`, which decide together."""
    named: dict[str, Node] = {name: maker.node(child) for name, child in schema.get("properties", {}).items()}
    try:
        patterned = [
            (compile_pattern(text), maker.node(child)) for text, child in schema.get("patternProperties", {}).items()
        ]
    except PatternError:
        return _uncovered(maker, schema)
    others = maker.node(schema.get("additionalProperties", True))
    if not patterned and others is ANYTHING:
        return _only_named(named)

    def part(value: Mapping[str, Any], steps: Steps) -> bool:
        steps.take(len(value))
        for key, child in value.items():
            node = named.get(key)
            if patterned:
                known = node is not None
                for pattern, of_pattern in patterned:
                    steps.take(pattern.cost(key) + 2)
                    if pattern.found(key):
                        known = True
                        if not of_pattern.fits(child, steps):
                            return False
                if known and node is None:
                    continue
            if not (node or others).fits(child, steps):
                return False
        return True

    return part


def _only_named(named: dict[str, Node]) -> Part:
    def part(value: Mapping[str, Any], steps: Steps) -> bool:
        steps.take(min(len(named), len(value)))
        if len(named) <= len(value):
            for name, node in named.items():
                if name in value and not node.fits(value[name], steps):
                    return False
            return True
        for name, child in value.items():
            if name in named and not named[name].fits(child, steps):
                return False
        return True

    return part


def _required(maker: Maker, schema: JsonObject) -> Part:
    names = frozenset(schema["required"])

    def part(value: Mapping[str, Any], steps: Steps) -> bool:
        steps.take(len(names) // 8)
        return names <= value.keys()

    return part


def _property_names(maker: Maker, schema: JsonObject) -> Part | None:
    if maker.draft.number < 6:
        return None
    node = maker.node(schema["propertyNames"])

    def part(value: Mapping[str, Any], steps: Steps) -> bool:
        steps.take(len(value))
        return all(node.fits(key, steps) for key in value)

    return part


def _dependent(keyword: str, first: int, last: int) -> Callable[[Maker, JsonObject], Part | None]:
    """What has to hold where a key is there: other keys, or a schema; in the drafts from the first to the last."""

    def make(maker: Maker, schema: JsonObject) -> Part | None:
        if not first <= maker.draft.number <= last:
            return None
        keys = {name: frozenset(rule) for name, rule in schema[keyword].items() if isinstance(rule, list)}
        nodes = {name: maker.node(rule) for name, rule in schema[keyword].items() if not isinstance(rule, list)}

        def part(value: Mapping[str, Any], steps: Steps) -> bool:
            steps.take(len(keys) + len(nodes))
            return all(names <= value.keys() for name, names in keys.items() if name in value) and all(
                node.fits(value, steps) for name, node in nodes.items() if name in value
            )

        return part

    return make


# Keywords of arrays.


def of_array(maker: Maker, schema: JsonObject) -> Part:
    rest: Any = schema.get("items", True)
    first: Any = []
    if maker.draft.number >= 2020:
        first = schema.get("prefixItems", [])
    elif isinstance(rest, list):
        first, rest = rest, schema.get("additionalItems", True)
    prefix, others = [maker.node(each) for each in first], maker.node(rest)

    fits, plain = others.fits, others.plain

    def part(value: list[Any], steps: Steps) -> bool:
        following = value
        if prefix:
            steps.take(min(len(prefix), len(value)))
            for node, child in zip(prefix, value, strict=False):
                if not node.fits(child, steps):
                    return False
            following = value[len(prefix) :]
        if plain and plain.issuperset(map(type, following)):
            steps.take(len(following) // 16)
            return True
        for child in following:
            if not fits(child, steps):
                return False
        return True

    return part


def _contains(maker: Maker, schema: JsonObject) -> Part | None:
    if maker.draft.number < 6:
        return None
    node, counts = maker.node(schema["contains"]), maker.draft.number >= 2019
    least = schema.get("minContains", 1) if counts else 1
    most = schema.get("maxContains") if counts else None

    def part(value: list[Any], steps: Steps) -> bool:
        steps.take(len(value))
        found = sum(node.fits(child, steps) for child in value)
        return bool(least <= found and (most is None or found <= most))

    return part


def _distinct(maker: Maker, schema: JsonObject) -> Part | None:
    if schema["uniqueItems"] is not True:
        return None
    return all_distinct


# Keywords of a size or a bound.


def _bound(keyword: str, test: Callable[[Any, Any], bool]) -> Callable[[Maker, JsonObject], Part | None]:
    def make(maker: Maker, schema: JsonObject) -> Part | None:
        limit = schema[keyword]
        if isinstance(limit, bool):
            return _uncovered(maker, schema)  # draft 4
        if keyword in ("minimum", "maximum") and isinstance(schema.get(f"exclusive{keyword.title()}"), bool):
            return _uncovered(maker, schema)
        return lambda value, steps: test(value, limit)

    return make


def _multiple(maker: Maker, schema: JsonObject) -> Part:
    step = schema["multipleOf"]

    def part(value: Any, steps: Steps) -> bool:
        if isinstance(value, int) and isinstance(step, int):
            return value % step == 0
        raise UncoveredError

    return part


def _pattern(maker: Maker, schema: JsonObject) -> Part:
    try:
        pattern = compile_pattern(schema["pattern"])
    except PatternError:
        return _uncovered(maker, schema)

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
    "required": ((dict,), _required),
    "minProperties": ((dict,), _bound("minProperties", lambda value, limit: len(value) >= limit)),
    "maxProperties": ((dict,), _bound("maxProperties", lambda value, limit: len(value) <= limit)),
    "minItems": ((list,), _bound("minItems", lambda value, limit: len(value) >= limit)),
    "maxItems": ((list,), _bound("maxItems", lambda value, limit: len(value) <= limit)),
    "uniqueItems": ((list,), _distinct),
    "minLength": ((str,), _bound("minLength", lambda value, limit: len(value) >= limit)),
    "maxLength": ((str,), _bound("maxLength", lambda value, limit: len(value) <= limit)),
    "pattern": ((str,), _pattern),
    "minimum": (_NUMBERS, _bound("minimum", lambda value, limit: value >= limit)),
    "maximum": (_NUMBERS, _bound("maximum", lambda value, limit: value <= limit)),
    "exclusiveMinimum": (_NUMBERS, _bound("exclusiveMinimum", lambda value, limit: value > limit)),
    "exclusiveMaximum": (_NUMBERS, _bound("exclusiveMaximum", lambda value, limit: value < limit)),
    "multipleOf": (_NUMBERS, _multiple),
    "propertyNames": ((dict,), _property_names),
    "dependencies": ((dict,), _dependent("dependencies", 4, 7)),
    "dependentRequired": ((dict,), _dependent("dependentRequired", 2019, 2020)),
    "dependentSchemas": ((dict,), _dependent("dependentSchemas", 2019, 2020)),
    "contains": ((list,), _contains),
    "unevaluatedItems": ((list,), _uncovered),
    "unevaluatedProperties": ((dict,), _uncovered),
    "$dynamicRef": (ALL, _uncovered),
    "$recursiveRef": (ALL, _uncovered),
}
