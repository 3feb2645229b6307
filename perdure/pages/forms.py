"""A call's parameters as a form, made from the tool's schema, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from perdure.errors import JsonError
from perdure.values.jsons import Json, JsonObject, dumps, loads

Kind: TypeAlias = Literal["text", "long", "integer", "number", "boolean", "choice", "json"]
PREFIX: Final = "p:"
"""Before a parameter's name in the form, so that none clashes with the form's own fields."""
_LONG: Final = 80


class FormError(Exception):
    """A field that cannot be read; `str()` is one line."""


@dataclass(frozen=True)
class Field:
    name: str
    kind: Kind
    text: str
    """What stands in the field; of a choice the chosen option."""
    required: bool
    description: str = ""
    options: Sequence[str] = ()
    """Of a choice: JSON, for they need not be text."""
    given: bool = False
    value: Json = None
    """What was shown, if anything was given: a field that is left alone stays exactly that."""


def make_fields(schema: JsonObject, params: Mapping[str, Json]) -> list[Field]:
    """One field for each parameter that the schema knows, and for what else is there."""
    properties: JsonObject = schema.get("properties", {})
    required = schema.get("required", [])
    return [
        _field(name, properties.get(name, {}), name in params, params.get(name), required=name in required)
        for name in [*properties, *(name for name in params if name not in properties)]
    ]


def _field(name: str, schema: Any, given: bool, value: Json, *, required: bool) -> Field:
    schema = schema if isinstance(schema, dict) else {}
    description = str(schema.get("description", ""))
    kind = _kind(schema, given, value)
    if kind == "choice":
        options = [dumps(option) for option in schema["enum"]]
        return Field(name, kind, dumps(value) if given else "", required, description, options, given, value)
    if not given:
        text = ""
    elif kind in ("text", "long"):
        text = value
    else:
        text = dumps(value, indent=2 if kind == "json" and isinstance(value, dict | list) else None)
    return Field(name, kind, text, required, description, given=given, value=value)


def _kind(schema: JsonObject, given: bool, value: Json) -> Kind:
    """JSON where the schema is no simple type, or the value is not of it."""
    if isinstance(schema.get("enum"), list):
        return "choice"
    kind = schema.get("type")
    if kind == "string" and isinstance(value if given else "", str):
        return "long" if given and (len(value) > _LONG or "\n" in value) else "text"
    if kind == "boolean" and isinstance(value if given else True, bool):
        return "boolean"
    if kind in ("integer", "number") and (
        not given or (isinstance(value, int | float) and not isinstance(value, bool))
    ):
        return "integer" if kind == "integer" else "number"
    return "json"


def read_fields(fields: Sequence[Field], form: Mapping[str, str]) -> JsonObject:
    """The parameters as the form has them: an empty field that is not required is no parameter. Raises `FormError`."""
    params: JsonObject = {}
    for field in fields:
        # A browser sends line ends as CR LF whatever was there before.
        text = _plain(form.get(PREFIX + field.name, field.text))
        if text == _plain(field.text):
            if field.given:
                params[field.name] = field.value
        elif text == "" and (not field.required or field.kind not in ("text", "long")):
            continue
        elif field.kind in ("text", "long"):
            params[field.name] = text
        else:
            try:
                params[field.name] = loads(text, source=field.name)
            except JsonError as error:
                raise FormError(f"{error}; write JSON there") from None
    return params


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")
