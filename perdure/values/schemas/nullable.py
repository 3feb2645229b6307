"""`nullable: true`, as OpenAPI 3.0 writes schemas: "or null" (R2.9); and `examples` that are one example, which many schemas have."""

from __future__ import annotations

from typing import Any, Final

_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by name: a property may be called `nullable`."""
_PLAIN: Final = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are no schemas."""


def or_null(schema: Any) -> Any:
    """The schema in JSON Schema's own words."""
    if isinstance(schema, list):
        return [or_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: ([value] if key == "examples" and not isinstance(value, list) else value)
        if key in _PLAIN
        else {name: or_null(child) for name, child in value.items()}
        if key in _NAMED and isinstance(value, dict)
        else or_null(value)
        for key, value in schema.items()
        if key != "nullable" or not isinstance(value, bool)
    }
    return _with_null(plain) if schema.get("nullable") is True else plain


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    if not isinstance(kind, str | list):
        return {"anyOf": [schema, {"type": "null"}]} if schema else schema
    kinds = [kind] if isinstance(kind, str) else kind
    widened = {**schema, "type": list(dict.fromkeys([*kinds, "null"]))}
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        widened["enum"] = [*schema["enum"], None]
    return widened
