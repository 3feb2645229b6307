"""The keywords of objects and of arrays as parts of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from perdure.values.jsons import JsonObject
from perdure.values.limits.steps import Steps
from perdure.values.schemas.equality import all_distinct
from perdure.values.schemas.nodes import ANYTHING, Maker, Node, Part, uncovered
from perdure.values.schemas.patterns import PatternError, compile_pattern

OF_OBJECTS: Final = frozenset({"properties", "patternProperties", "additionalProperties"})
"""Keywords that `of_object` decides together."""
OF_ARRAYS: Final = frozenset({"items", "prefixItems", "additionalItems"})
"""Keywords that `of_array` decides together."""


# Keywords of objects.


def of_object(maker: Maker, schema: JsonObject) -> Part:
    """`properties`, `patternProperties` and `additionalProperties`, which decide together."""
    named: dict[str, Node] = {name: maker.node(child) for name, child in schema.get("properties", {}).items()}
    try:
        patterned = [
            (compile_pattern(text), maker.node(child)) for text, child in schema.get("patternProperties", {}).items()
        ]
    except PatternError:
        return uncovered(maker, schema)
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


def required(maker: Maker, schema: JsonObject) -> Part:
    names = frozenset(schema["required"])

    def part(value: Mapping[str, Any], steps: Steps) -> bool:
        steps.take(len(names) // 8)
        return names <= value.keys()

    return part


def property_names(maker: Maker, schema: JsonObject) -> Part | None:
    if maker.draft.number < 6:
        return None
    node = maker.node(schema["propertyNames"])

    def part(value: Mapping[str, Any], steps: Steps) -> bool:
        steps.take(len(value))
        return all(node.fits(key, steps) for key in value)

    return part


def dependent(keyword: str, first: int, last: int) -> Callable[[Maker, JsonObject], Part | None]:
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
        steps.take(len(following) // 4)  # what needs no look inside counts nothing by itself
        for child in following:
            if not fits(child, steps):
                return False
        return True

    return part


def contains(maker: Maker, schema: JsonObject) -> Part | None:
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


def distinct(maker: Maker, schema: JsonObject) -> Part | None:
    if schema["uniqueItems"] is not True:
        return None
    return all_distinct
