"""The composed schema: what a Solution may look like, given the tools and the schema of the output (R9.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.model.modern import modern
from perdure.tools.tool import Tool
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_PARALLEL, MAX_ROUNDS
from perdure.values.state import METHODS

REFERENCE: Final[JsonObject] = {"$ref": "#/$defs/reference"}
_REFERENCE_SCHEMA: Final[JsonObject] = {
    "type": "string",
    "pattern": "^[( ]*†",
    "description": "an expression: †kind.path, joined by || (first that exists) or && (all, value of the last)",
}


_FORMULA_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {"_expr": {"type": "string", "description": "a Python expression over state.x and input.x"}},
    "required": ["_expr"],
    "additionalProperties": False,
}
_IF_SCHEMA: Final[JsonObject] = {"type": "string", "description": "a Python expression: the call is made if it holds"}

_LOOP_PROPERTIES: Final[JsonObject] = {
    "_each": {"anyOf": [{"type": "array"}, REFERENCE]},
    "_parallel": {"type": "integer", "minimum": 1, "maximum": MAX_PARALLEL},
    "_until": {"type": "string", "pattern": "†output"},
    "_max": {"type": "integer", "minimum": 1, "maximum": MAX_ROUNDS},
}
_CONTROL_PROPERTIES: Final[JsonObject] = _LOOP_PROPERTIES | {
    "_each": REFERENCE,
    "_until": {"type": "string", "description": "a Python expression over output: the call is made until it holds"},
    "_if": _IF_SCHEMA,
}


def compose(
    tools: Mapping[str, Tool],
    output: JsonObject | bool,
    *,
    final: bool = False,
    max_calls: int | None = None,
    instances: Sequence[str] = (),
    control: bool = False,
) -> JsonObject:
    """JSON Schema of a Solution. With `control` formulas and conditions may be written (R16.2, R16.3).

    `calls` stands first, so that calls can start while the rest is still written. With `final` no calls are allowed and the
    output may not be null (R9.5). The output takes references as parameters do (R6.4).
    """
    definitions = _definitions(control)
    output_schema = output if isinstance(output, dict) else {}
    output_schema = _or_reference(_move_definitions(output_schema, "output", definitions, references=True), control)
    properties: JsonObject = {}
    if not final:
        for tool in tools.values():
            definitions[f"call:{tool.name}"] = _call_schema(tool, definitions, instances, control)
        items: Json = {"anyOf": [{"$ref": f"#/$defs/{_pointer(f'call:{name}')}"} for name in tools]} if tools else False
        properties["calls"] = {"type": "array", "items": items}
        if max_calls is not None:
            properties["calls"]["maxItems"] = max_calls
    properties["output"] = output_schema if final or not output_schema else {"anyOf": [output_schema, {"type": "null"}]}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "$defs": definitions,
    }


def function_schema(tool: Tool, instances: Sequence[str] = (), *, control: bool = False) -> JsonObject:
    """JSON Schema of one tool's arguments where the call itself names the tool, as in native function calling."""
    definitions = _definitions(control)
    schema = _call_schema(tool, definitions, instances, control)
    schema.pop("description", None)
    properties = {name: child for name, child in schema["properties"].items() if name != "_tool"}
    required = [name for name in schema["required"] if name != "_tool"]
    return {**schema, "type": "object", "properties": properties, "required": required, "$defs": definitions}


def _definitions(control: bool) -> JsonObject:
    return {"reference": {"anyOf": [_REFERENCE_SCHEMA, _FORMULA_SCHEMA]} if control else _REFERENCE_SCHEMA}


def _call_schema(tool: Tool, definitions: JsonObject, instances: Sequence[str], control: bool) -> JsonObject:
    parameters = _move_definitions(tool.parameters, f"call:{tool.name}", definitions, references=True)
    properties = {name: _or_reference(schema, control) for name, schema in parameters.get("properties", {}).items()}
    meta: JsonObject = {"_tool": {"const": tool.name}}
    required = ["_tool", *parameters.get("required", [])]
    if tool.latent:
        output = {} if tool.output is None else _move_definitions(tool.output, f"output:{tool.name}", definitions)
        properties["_output"] = {"description": "this tool has no code: write its result here"} | output
        required.append("_output")
    if instances:
        properties["_instance"] = {"enum": list(instances), "description": "the context that it reads and writes"}
    if control or tool.delegate is not None:
        properties |= _CONTROL_PROPERTIES if control else _LOOP_PROPERTIES
    if tool.scope_choice is not None:
        properties["_scopes"] = {
            "type": "array",
            "items": {"enum": tool.scope_choice},
            "description": "what of this context it is given",
        }
    if tool.output_path is None:
        properties["_outputPath"] = {
            "type": "string",
            "pattern": "^†state",
            "description": "where the result is written",
        }
    if tool.output_method is None and tool.output_path is None:
        properties["_outputMethod"] = {"enum": list(METHODS)}
    properties["_after"] = {"type": "array", "items": {"type": "string"}, "description": "what ends first"}
    call = {key: value for key, value in parameters.items() if key not in ("properties", "required")}
    call |= {"properties": meta | properties, "required": required}
    if tool.description:
        call["description"] = tool.description
    call.setdefault("additionalProperties", False)
    return call


def _or_reference(schema: Any, control: bool = False) -> Any:
    """A parameter's schema that also takes a reference, itself and at any depth inside (R3.1), or a formula."""
    if not isinstance(schema, dict) or not schema:
        return schema
    inner = _inside(schema)
    if not control and schema.get("type") == "string" and not schema.keys() & _NARROWS_TEXT:
        return inner
    described = {"description": inner.pop("description")} if "description" in inner else {}
    return described | {"anyOf": [inner, REFERENCE]}


_NARROWS_TEXT: Final = frozenset({"enum", "const", "pattern", "format", "minLength", "maxLength"})


def _inside(schema: JsonObject) -> JsonObject:
    """The schema with references allowed for what it holds, but not for itself."""
    inner = dict(schema)
    for key in ("properties", "patternProperties"):
        if isinstance(schema.get(key), dict):
            inner[key] = {name: _or_reference(child) for name, child in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            inner[key] = _or_reference(schema[key])
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(schema.get(key), list):
            # An alternative of a schema that takes a reference already need not take one again.
            each = _or_reference if key == "prefixItems" else _inside_any
            inner[key] = [each(child) for child in schema[key]]
    return inner


def _inside_any(schema: Any) -> Any:
    return _inside(schema) if isinstance(schema, dict) else schema


def _move_definitions(
    schema: JsonObject, owner: str, definitions: JsonObject, *, references: bool = False
) -> JsonObject:
    """The schema with its `$defs` moved to the composed schema's, under names of their own; as parameters have them
    where `references` may stand in them."""
    schema = modern(schema)
    for name, definition in schema.pop("$defs", {}).items():
        moved = _rebase(definition, owner)
        definitions[f"{owner}/{name}"] = _inside_any(moved) if references else moved
    rebased: JsonObject = _rebase(schema, owner)
    return rebased


def _rebase(schema: Any, owner: str) -> Any:
    if isinstance(schema, list):
        return [_rebase(item, owner) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _rebase(value, owner) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        moved["$ref"] = f"#/$defs/{_pointer(owner)}~1{reference.removeprefix('#/$defs/')}"
    return moved


def _pointer(name: str) -> str:
    """A name as one step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
