"""Which draft of JSON Schema a schema is written in, and whether it can be used at all (R18.6)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import referencing.exceptions
from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema_specifications import REGISTRY
from referencing import jsonschema as specifications

from perdure.values.jsons import JsonObject, shorten
from perdure.values.schemas.nodes import Draft
from perdure.values.schemas.patterns import pattern_problem

VALIDATORS: Final[dict[int, Any]] = {
    4: Draft4Validator,
    6: Draft6Validator,
    7: Draft7Validator,
    2019: Draft201909Validator,
    2020: Draft202012Validator,
}
_SPECIFICATIONS: Final[dict[int, Any]] = {
    4: specifications.DRAFT4,
    6: specifications.DRAFT6,
    7: specifications.DRAFT7,
    2019: specifications.DRAFT201909,
    2020: specifications.DRAFT202012,
}
_NAMES: Final = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
}
_NEWER: Final = frozenset(
    {
        *("prefixItems", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"),
        *("minContains", "maxContains", "$dynamicRef", "$dynamicAnchor", "$anchor"),
    }
)
_OLDER: Final = frozenset({"dependencies", "additionalItems", "definitions"})
MOST_PARTS: Final = 50_000
"""Of one schema: values of any kind in it. Far above every public schema, and read in half a second."""
_DEEPEST: Final = 100


def draft_of(schema: Any) -> Draft:
    """The draft that a schema names with `$schema`; else draft 7 where it uses words that only older drafts have (draft 4: an
    `exclusiveMinimum` that is true or false), or 2020-12."""
    if isinstance(schema, dict):
        name = str(schema.get("$schema", "")).partition("://")[2].rstrip("#")
        if name in _NAMES:
            return Draft(_NAMES[name])
        older = oldest = False
        for part in subschemas(schema):
            if _NEWER & part.keys():
                return Draft(2020)
            tuples = isinstance(part.get("items"), list)
            anchor = isinstance(part.get("$id"), str) and part["$id"].startswith("#")
            oldest = oldest or any(isinstance(part.get(key), bool) for key in ("exclusiveMinimum", "exclusiveMaximum"))
            older = older or tuples or anchor or bool(_OLDER & part.keys())
        if older or oldest:
            return Draft(4 if oldest else 7)
    return Draft(2020)


BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SINGLE: Final = frozenset(
    {
        *("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"),
        *("contains", "propertyNames", "not", "if", "then", "else"),
    }
)


def subschemas(schema: Any) -> Iterator[JsonObject]:
    """The schema and all schemas in it, in any draft's places; each once, also where they share parts."""
    stack, seen = [schema], set[int]()
    while stack:
        part = stack.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for key, value in part.items():
            if key in BY_NAME and isinstance(value, dict):
                stack.extend(value.values())
            elif key in LISTS and isinstance(value, list):
                stack.extend(value)
            elif key in SINGLE:
                stack.append(value)


def resource(schema: Any, draft: Draft) -> Any:
    return _SPECIFICATIONS[draft.number].create_resource(schema)


def size_problem(schema: Any) -> str | None:
    """Why the schema is too large to be looked at further, or `None`."""
    stack, parts = [(schema, 1)], 0
    while stack:
        item, depth = stack.pop()
        parts += 1
        if depth > _DEEPEST:
            return f"it is nested more than {_DEEPEST} deep"
        if parts > MOST_PARTS:
            return f"it has more than {MOST_PARTS:,} parts"
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        stack.extend((child, depth + 1) for child in children)
    return None


def reference_problem(schema: Any, draft: Draft) -> str | None:
    """Which reference in the schema leads nowhere, or `None`. Nothing is fetched (R18.6)."""
    try:
        root = resource(schema, draft)
        resolver = REGISTRY.with_resource(root.id() or "", root).resolver(root.id() or "")
        stack, seen = [(schema, resolver)], set[int]()
        while stack:
            part, within = stack.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
                if not isinstance(reference := part.get(keyword), str):
                    continue
                try:
                    found = within.lookup(reference)
                except (referencing.exceptions.Unresolvable, LookupError):
                    return f"{keyword} {shorten(reference, 120)} points at nothing in the schema itself"
                if not isinstance(found.contents, dict | bool):
                    return f"{keyword} {shorten(reference, 120)} points at no schema"
                if "json-schema.org" not in reference:
                    stack.append((found.contents, found.resolver))
            for child in resource(part, draft).subresources():
                stack.append((child.contents, within.in_subresource(child)))
    except Exception as error:  # whatever a name or an address of a schema may be, it is told and not raised
        return f"its names cannot be read: {type(error).__name__}: {' '.join(str(error)[:200].split())}"
    return None


def patterns_problem(schema: Any) -> str | None:
    """Which pattern cannot be checked in linear time, or `None`."""
    for part in subschemas(schema):
        named = part.get("patternProperties")
        for text in [part.get("pattern"), *(named if isinstance(named, dict) else ())]:
            if isinstance(text, str) and (problem := pattern_problem(text)):
                return f"the pattern {shorten(text, 120)} cannot be used: {problem}"
    return None


@cache
def metaschema(number: int) -> JsonObject:
    """The schema of schemas, in one document.

    From 2019-09 on it is spread over vocabularies that find each other dynamically; put together they say the same of a schema.
    """
    whole: JsonObject = VALIDATORS[number].META_SCHEMA
    if number <= 7:
        return whole
    properties: JsonObject = {}
    definitions: JsonObject = {}
    for vocabulary in whole["allOf"]:
        part = REGISTRY.contents(f"{whole['$id'].rpartition('/')[0]}/{vocabulary['$ref']}")
        properties |= part["properties"]
        definitions |= part.get("$defs", {})
    inner = _statically({"properties": whole["properties"] | properties, "$defs": definitions})
    return {"$schema": whole["$schema"], "type": ["object", "boolean"], **inner}


def _statically(part: Any) -> Any:
    """With each dynamic reference to the whole as a plain one."""
    if isinstance(part, list):
        return [_statically(item) for item in part]
    if not isinstance(part, dict):
        return part
    plain: JsonObject = {}
    for key, value in part.items():
        if key in ("$dynamicRef", "$recursiveRef") and isinstance(value, str):
            plain["$ref"] = "#"
        elif key == "$ref" and isinstance(value, str):
            plain["$ref"] = value[value.index("#") :]
        elif key not in ("$dynamicAnchor", "$recursiveAnchor", "$id") or isinstance(value, dict):
            plain[key] = _statically(value)
    return plain
