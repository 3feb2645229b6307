"""Function definitions as others write them, as Perdure's own: what a user has already need not be written anew (R2.4)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from perdure.values.jsons import JsonObject
from perdure.values.schemas.patterns import pattern_problem

_SCHEMAS: Final = ("parameters", "input_schema", "inputSchema")
"""Where OpenAI, Anthropic and MCP put the schema of the parameters."""
SCHEMA_KEYS: Final = frozenset(
    [
        *("type", "properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *(
            "minProperties",
            "maxProperties",
            "dependencies",
            "dependentRequired",
            "dependentSchemas",
            "unevaluatedProperties",
        ),
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
        *("$defs", "definitions", "$schema", "$id", "id", "$comment"),
        *("title", "examples", "default", "deprecated", "strict"),
    ]
)
"""Keywords of JSON Schema that a definition may have beside its name."""
_TYPES: Final = {
    "dict": "object",
    "hashmap": "object",
    "hashtable": "object",
    "map": "object",
    "queue": "array",
    "stack": "array",
    "list": "array",
    "tuple": "array",
    "arraylist": "array",
    "set": "array",
    "str": "string",
    "char": "string",
    "int": "integer",
    "long": "integer",
    "short": "integer",
    "byte": "integer",
    "bigint": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "none": "null",
}
"""Names of types that collections of functions use for those of JSON Schema."""
_NUMBERS: Final = frozenset(
    {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    }
)
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose values are schemas by name."""
_PLAIN: Final = ("enum", "const", "default", "examples", "required")
"""Keywords whose values are no schemas."""
_OF_TYPE: Final[dict[str, type]] = {
    **dict.fromkeys(_NAMED, dict),
    **dict.fromkeys(("required", "enum"), list),
    **dict.fromkeys(("description", "title", "format", "pattern"), str),
}
"""What a keyword's value has to be; one that is not says nothing that could be checked."""
_LISTED: Final[dict[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}
_JSON_TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})


def plain_definition(definition: JsonObject) -> JsonObject:
    """The definition in Perdure's form: the parameters' schema beside the name, its types JSON Schema's own.

    What is in that form already comes back as it is. A foreign schema says nothing about the tool but its parameters: no key of it
    is one of Perdure's meta-properties, so that whoever wrote it has no say in approvals; keywords that are not JSON Schema's are
    left out. A parameter whose name begins with `_` is called `name_` instead, and its own name is kept in `_names`.
    """
    if definition.get("type", "function") == "function" and isinstance(definition.get("function"), dict):
        meta = {key: value for key, value in definition.items() if key.startswith("_")}
        definition = {**definition["function"], **meta}
    key = next((key for key in _SCHEMAS if isinstance(definition.get(key), dict)), None)
    if key is None or "properties" in definition:
        return definition
    schema = {name: value for name, value in json_types(definition[key]).items() if name in SCHEMA_KEYS}
    properties = schema.get("properties")
    schema["properties"] = properties = properties if isinstance(properties, dict) else {}
    names = _own_names(properties)
    if names:
        own = {name: alias for alias, name in names.items()}
        schema["properties"] = {own.get(name, name): child for name, child in properties.items()}
        required = schema.get("required")
        if isinstance(required, list):
            schema["required"] = [own.get(name, name) if isinstance(name, str) else name for name in required]
    about = {name: value for name, value in definition.items() if name in ("name", "description")}
    meta = {name: value for name, value in definition.items() if name.startswith("_") and name != "_meta"}
    return {**schema, "type": "object", **about, **meta, **({"_names": names} if names else {})}


def _own_names(properties: JsonObject) -> dict[str, str]:
    """What parameters whose names would be taken for meta-properties are called, with the names that they have (R1)."""
    names: dict[str, str] = {}
    for name in properties:
        if name.startswith("_"):
            alias = f"{_stem(name)}_"
            while alias in properties or alias in names:
                alias += "_"
            names[alias] = name
    return names


def _stem(name: str) -> str:
    return name.strip("_") or "underscore"


def is_alias(alias: str, name: str) -> bool:
    """Whether `alias` is what `name` may be called. A call cannot have a parameter of such a name, so that no two are ever swapped,
    and whoever approves the one sees that it is the other."""
    return name.startswith("_") and alias.endswith("_") and alias.rstrip("_") == _stem(name)


def with_own_names(params: JsonObject, code: JsonObject, given: JsonObject | None = None) -> JsonObject:
    """The parameters of a call under the names that the tool's code knows.

    `code` is the worker's own definition. `given`, an agent file's of the same code, has a say only where that has none: a
    person approved what the call shows, and no definition turns it into something else.
    """
    named = plain_definition(code).get("_names") or (given or {}).get("_names") or {}
    names = {alias: name for alias, name in named.items() if is_alias(alias, name)}
    return {names.get(name, name): value for name, value in params.items()} if names else params


def json_types(schema: Any) -> Any:
    """The schema with its types as JSON Schema names them; `any` says nothing.

    Keywords with values that JSON Schema refuses, such as a `required: true` beside a parameter, are left out, and patterns that
    cannot be checked in linear time.
    """
    if isinstance(schema, list):
        return [json_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain: JsonObject = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str | list):
            kinds = [
                _TYPES.get(str(kind).lower(), str(kind).lower())
                for kind in ([value] if isinstance(value, str) else value)
            ]
            if all(kind in _JSON_TYPES for kind in kinds):
                plain["type"] = kinds[0] if isinstance(value, str) else list(dict.fromkeys(kinds))
        elif isinstance(value, bool) and key in ("exclusiveMinimum", "exclusiveMaximum"):
            plain[key] = value  # draft 4
        elif key in _NUMBERS:
            with suppress(TypeError, ValueError):
                plain[key] = value if type(value) in (int, float) else int(value)
        elif key in _OF_TYPE and not isinstance(value, _OF_TYPE[key]):
            continue
        elif key in _NAMED:
            plain[key] = {name: json_types(child) for name, child in value.items() if isinstance(child, dict | bool)}
        elif key == "pattern" and pattern_problem(value):
            continue
        elif key in _PLAIN:
            plain[key] = value
        else:
            plain[key] = json_types(value)
    return _with_listed_types(plain)


def _with_listed_types(schema: JsonObject) -> JsonObject:
    """The schema with its type as its enumeration has it, where nothing that is listed, or not all of it, could be of the type."""
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    listed = [_LISTED[type(value)] for value in schema.get("enum", ()) if type(value) in _LISTED]
    if not kinds or all(kind in kinds or (kind == "integer" and "number" in kinds) for kind in listed):
        return schema
    return {**schema, "type": list(dict.fromkeys(listed))}
