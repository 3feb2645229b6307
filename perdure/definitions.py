"""Function definitions as others write them, as Perdure's own: what a user has already need not be written anew (R2.4)."""

from __future__ import annotations

from typing import Any, Final

from perdure.jsons import JsonObject

_SCHEMAS: Final = ("parameters", "input_schema", "inputSchema")
"""Where OpenAI, Anthropic and MCP put the schema of the parameters."""
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
_JSON_TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})


def plain_definition(definition: JsonObject) -> JsonObject:
    """The definition in Perdure's form: the parameters' schema beside the name, its types JSON Schema's own.

    What is in that form already comes back as it is.
    """
    if definition.get("type") == "function" and isinstance(definition.get("function"), dict):
        meta = {key: value for key, value in definition.items() if key.startswith("_")}
        definition = {**definition["function"], **meta}
    key = next((key for key in _SCHEMAS if isinstance(definition.get(key), dict)), None)
    if key is None or "properties" in definition:
        return definition
    schema = json_types(definition[key])
    if not isinstance(schema.get("properties"), dict):
        schema = {**schema, "properties": {}}
    rest = {name: value for name, value in definition.items() if name not in (key, "strict", "response", "required")}
    return {**schema, "type": "object", **rest}


def json_types(schema: Any) -> Any:
    """The schema with its types as JSON Schema names them; `any` says nothing. An `optional` or `required` that is no list of
    names, as some write beside a parameter, is left out."""
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
        elif key == "items" and isinstance(value, list):
            plain["prefixItems"] = json_types(value)
        elif key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            plain[key] = {name: json_types(child) for name, child in value.items()}
        elif (key == "required" and not isinstance(value, list)) or (
            key in ("optional", "format") and not isinstance(value, str)
        ):
            continue
        elif key in ("enum", "const", "default", "examples", "required"):
            plain[key] = value
        else:
            plain[key] = json_types(value)
    return plain
