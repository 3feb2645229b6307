"""Names of types as collections of functions write them, as JSON Schema: `int or float`, `list of float`, `List[str]` (R2.4)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from perdure.values.jsons import Json, JsonObject

JSON_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
_TYPES: Final[dict[str, str]] = {
    **{name: name for name in JSON_TYPES},
    **dict.fromkeys(("dict", "dictionary", "hashmap", "hashtable", "map", "mapping"), "object"),
    **dict.fromkeys(("queue", "stack", "list", "tuple", "arraylist", "set", "sequence"), "array"),
    **dict.fromkeys(("str", "char", "text", "date", "datetime", "time", "url", "uri", "email", "uuid"), "string"),
    **dict.fromkeys(("int", "long", "short", "byte", "bigint", "int32", "int64"), "integer"),
    **dict.fromkeys(("float", "double", "numeric", "decimal", "float32", "float64"), "number"),
    "bool": "boolean",
    "none": "null",
}
_ANYTHING: Final = frozenset({"", "any", "enum", "json"})
"""Names that say nothing which could be checked; what an enumeration may be stands in its `enum`."""
_OR: Final = re.compile(r"\s*(?:,\s*or\b|\bor\b|[|/,])\s*")
_OPTIONAL: Final = re.compile(r"\s*(?:,\s*optional|\(optional\))$")
_OF: Final = re.compile(r"(\w+)\s+of\s+(.+)")
_BRACKETS: Final = re.compile(r"([\w.]+)\s*[\[<](.*)[\]>]")
_LONGEST: Final = 200
"""Characters of a type's name: it is read by parts, each once for each level of nesting."""


def parse_type(text: str) -> JsonObject | None:
    """Return the JSON Schema of a type's name; `None` for one that is not known."""
    return _parsed(_OPTIONAL.sub("", text.strip().lower())) if len(text) <= _LONGEST else None


def _parsed(text: str) -> JsonObject | None:
    text = text.strip().removeprefix("typing.")
    if text in _ANYTHING:
        return {}
    if known := _TYPES.get(text) or _TYPES.get(text.removesuffix("s")):
        return {"type": known}
    parts = _split(text)
    if len(parts) > 1:
        return union_of(_parsed(part) for part in parts)
    if text.endswith("[]"):
        return _array(_parsed(text[:-2]))
    if of := _OF.fullmatch(text):
        kind = _TYPES.get(of[1]) or _TYPES.get(of[1].removesuffix("s"))
        return _held_by(kind, [of[2]])
    if brackets := _BRACKETS.fullmatch(text):
        outer, inside = brackets[1], _split(brackets[2])
        if outer == "optional":
            return union_of([_parsed(brackets[2]), {"type": "null"}])
        if outer == "union":
            return union_of(_parsed(part) for part in inside)
        kind = _TYPES.get(outer)
        if kind == "object" and len(inside) == 2 and inside[0] in ("str", "string"):
            inside = inside[1:]
        if outer == "tuple" and len(inside) == 2 and inside[1] == "...":
            inside = inside[:1]
        return _held_by(kind, inside)
    return None


def _held_by(kind: str | None, inside: list[str]) -> JsonObject | None:
    """The array, or the object, of values of a type; several types are those of a tuple."""
    parts = [_parsed(part) for part in inside]
    held = [part for part in parts if part is not None]
    if not held or len(held) < len(parts) or kind not in ("array", "object"):
        return None
    if kind == "array":
        if len(held) == 1:
            return _array(held[0])
        return {"type": "array", "prefixItems": list(held), "minItems": len(held), "maxItems": len(held)}
    if len(held) > 1:
        return None
    return {"type": "object", "additionalProperties": held[0]} if held[0] else {"type": "object"}


def _array(items: JsonObject | None) -> JsonObject | None:
    if items is None:
        return None
    return {"type": "array", "items": items} if items else {"type": "array"}


def union_of(schemas: Iterable[JsonObject | None]) -> JsonObject | None:
    """Return the schema of what fits any of them; `None` where one is not known."""
    kinds: list[str] = []
    others: list[Json] = []
    for schema in schemas:
        if schema is None:
            return None
        if not schema:
            return {}
        listed = schema.get("type")
        if set(schema) == {"type"} and isinstance(listed, str | list):
            kinds += [listed] if isinstance(listed, str) else listed
        elif "anyOf" in schema:
            others += schema["anyOf"]
        else:
            others.append(schema)
    kinds = [kind for kind in dict.fromkeys(kinds) if kind != "integer" or "number" not in kinds]
    if not others:
        return {"type": kinds[0] if len(kinds) == 1 else kinds}
    every = [*({"type": kind} for kind in kinds), *others]
    return every[0] if len(every) == 1 else {"anyOf": every}


def _split(text: str) -> list[str]:
    """The parts of a text between the words for "or" that stand outside of all brackets."""
    parts, deep, start, at = [], 0, 0, 0
    while at < len(text):
        deep += (text[at] in "[<(") - (text[at] in "]>)")
        if deep == 0 and (found := _OR.match(text, at)) and found.end() > at:
            parts.append(text[start : found.start()])
            start = at = found.end()
        else:
            at += 1
    return [part.strip() for part in [*parts, text[start:]]]
