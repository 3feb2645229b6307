"""Values by their shape: what a model is shown of text that it is not to obey (R15.4). Keys, types, lengths, numbers, and nothing written freely."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from perdure.values.jsons import Json, JsonObject

MAX_ITEMS: Final = 20
"""Items of an array, and keys of an object, that are shown; of the others how many there are."""
_KEY: Final = re.compile(r"[A-Za-z_][\w-]{0,39}", re.ASCII)
"""A key that is a name. Any other may be a sentence."""
_LONGEST_NUMBER: Final = 9
"""Digits. A longer one may be an account's: it is passed on by reference, and not read."""
_DEEP: Final = 30


def shape(value: Json, schema: JsonObject | bool | None = None) -> Json:
    """The shape of a value written by others; what its `schema` enumerates is shown, and the keys that it names."""
    root = schema if isinstance(schema, dict) else {}
    return _shape(value, root, root, 0)


def shown_key(key: str, number: int) -> str:
    """A key that is a name, or how long one is that may be a sentence, the so many-th of its object."""
    return key if _KEY.fullmatch(key) else f"‹key {number}, {len(key):,} characters›"


def _shape(value: Json, schema: JsonObject, root: JsonObject, depth: int) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if len(str(value).lstrip("-").replace(".", "")) <= _LONGEST_NUMBER else "‹number›"
    if isinstance(value, str):
        chosen = any(value in each["enum"] or value == each.get("const") for each in _enumerations(schema, root))
        return value if chosen else f"‹text, {len(value):,} characters›"
    if depth >= _DEEP:
        return f"‹{'object' if isinstance(value, dict) else 'array'} of {len(value):,}›"
    if isinstance(value, dict):
        shown: JsonObject = {}
        for number, (key, item) in enumerate(value.items()):
            if number == MAX_ITEMS:
                shown[f"‹{len(value) - MAX_ITEMS:,} more keys›"] = "…"
                break
            declared = [each["properties"][key] for each in _alternatives(schema, root) if key in each["properties"]]
            shown[key if declared else shown_key(key, number)] = _shape(item, _as_schema(declared), root, depth + 1)
        return shown
    if not isinstance(value, list):
        return "‹unknown›"
    items = _as_schema([each["items"] for each in _alternatives(schema, root) if "items" in each])
    shown_items = [_shape(item, items, root, depth + 1) for item in value[:MAX_ITEMS]]
    more = len(value) - MAX_ITEMS
    return [*shown_items, f"‹{more:,} more items›"] if more > 0 else shown_items


def _as_schema(many: list[Json]) -> JsonObject:
    known = [each for each in many if isinstance(each, dict)]
    return known[0] if len(known) == 1 else {"anyOf": known} if known else {}


def _enumerations(schema: JsonObject, root: JsonObject) -> Iterator[JsonObject]:
    for each in _alternatives(schema, root):
        if isinstance(each.get("enum"), list) or "const" in each:
            yield {**each, "enum": each["enum"] if isinstance(each.get("enum"), list) else []}


def _alternatives(schema: JsonObject, root: JsonObject) -> Iterator[JsonObject]:
    """The schema with what it refers to and what it may be in its place; each with `properties`."""
    left, seen = [schema], 0
    while left and seen < 50:
        each, seen = left.pop(), seen + 1
        name = each.get("$ref")
        if isinstance(name, str):
            found: Json = root
            for part in name.removeprefix("#").strip("/").split("/"):
                found = found.get(part) if isinstance(found, dict) else None
            left.extend([found] if isinstance(found, dict) else [])
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(each.get(key), list):
                left.extend(one for one in each[key] if isinstance(one, dict))
        properties = each.get("properties")
        yield {**each, "properties": properties if isinstance(properties, dict) else {}}
