"""The composed schema of a Solution, in draft 2020-12 and in OpenAI's strict mode."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, SchemaPart, dumps, json_path
from perdure.values.limits import MAX_PARALLEL, MAX_ROUNDS
from perdure.values.schemas import BY_NAME, LISTS, SINGLE, draft_of, local, subschemas
from perdure.values.state import METHODS

# Values are validated against the original schema. So references and older keywords matter here only as far as a
# server supports them.

_DEFINITION: Final = re.compile(r"#/(?:\$defs|definitions)/[^/]+")
_NAMES: Final = frozenset({"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"})
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


def modern(schema: JsonObject) -> JsonObject:
    """Return the schema in the keywords of 2020-12, with all references into its `$defs`."""
    return _Modern(schema).whole()


class _Modern:
    def __init__(self, schema: JsonObject) -> None:
        self._document = schema
        self._draft = draft_of(schema)
        self._definitions: JsonObject = {}
        self._moved: dict[str, str] = {}
        self._anchors: JsonObject = {}
        for part in subschemas(schema):
            for key in ("$id", "id", "$anchor", "$dynamicAnchor"):
                if isinstance(name := part.get(key), str) and (key.endswith("nchor") or name.startswith("#")):
                    self._anchors[name.removeprefix("#")] = part

    def whole(self) -> JsonObject:
        body: JsonObject = self._converted(self._document)
        for place in ("definitions", "$defs"):
            for name, child in self._document.get(place, {}).items():
                self._definitions[name] = self._converted(child)
        return body | ({"$defs": self._definitions} if self._definitions else {})

    def _converted(self, part: SchemaPart) -> SchemaPart:
        if not isinstance(part, dict):
            return part
        if self._draft.lone_reference and "$ref" in part:
            part = {key: part[key] for key in ("$ref", "description") if key in part}
        plain: JsonObject = {}
        for key, value in part.items():
            if key in ("$defs", "definitions") or (key in _NAMES and isinstance(value, str | bool)):
                continue
            if key in _REFERENCES and isinstance(value, str):
                if (reference := self._reference(value)) is not None:
                    plain["$ref"] = reference
            elif key == "dependencies" and isinstance(value, dict):
                self._dependencies(plain, value)
            elif key in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
                if value and (limit := key.removeprefix("exclusive").lower()) in part:
                    plain[key] = part[limit]
            else:
                self._convert_children(plain, part, key, value)
        return plain

    def _convert_children(self, plain: JsonObject, part: JsonObject, key: str, value: SchemaPart) -> None:
        """Set the keyword in `plain`, with the schemas in its value converted."""
        if key in BY_NAME and isinstance(value, dict):
            plain[key] = {name: self._converted(child) for name, child in value.items()}
        elif key == "items" and isinstance(value, list):
            plain["prefixItems"] = [self._converted(child) for child in value]
            if "additionalItems" in part:
                plain["items"] = self._converted(part["additionalItems"])
        elif key in LISTS and isinstance(value, list):
            plain[key] = [self._converted(child) for child in value]
        elif key not in SINGLE:
            plain[key] = value
        elif key != "additionalItems":
            plain[key] = self._converted(value)

    def _dependencies(self, plain: JsonObject, rules: JsonObject) -> None:
        for name, rule in rules.items():
            keyword = "dependentRequired" if isinstance(rule, list) else "dependentSchemas"
            plain.setdefault(keyword, {})[name] = rule if isinstance(rule, list) else self._converted(rule)

    def _reference(self, reference: str) -> str | None:
        """Return the reference into `$defs`; `None` if it leads outside the document's own definitions."""
        reference = reference.removeprefix(str(self._document.get("$id", "")).rstrip("#")) or "#"
        if _DEFINITION.fullmatch(reference) and local(self._document, reference) is not None:
            return reference.replace("#/definitions/", "#/$defs/")
        if reference not in self._moved:
            target = (
                self._anchors.get(reference[1:])
                if reference[1:2] not in ("", "/")
                else local(self._document, reference)
            )
            if not isinstance(target, dict | bool):
                return None
            taken = {**self._document.get("$defs", {}), **self._document.get("definitions", {}), **self._definitions}
            name = next(name for n in range(len(taken) + 1) if (name := f"part{n or ''}") not in taken)
            self._moved[reference] = name
            self._definitions[name] = {}
            self._definitions[name] = self._converted(target)
        return f"#/$defs/{self._moved[reference]}"


REFERENCE: Final[JsonObject] = {"$ref": "#/$defs/reference"}
_REFERENCE_SCHEMA: Final[JsonObject] = {
    "type": "string",
    "pattern": "^[( ]*†",
}
# The prompt teaches references and meta-properties, so no schema describes them.

_FORMULA_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {"_expr": {"type": "string"}},
    "required": ["_expr"],
    "additionalProperties": False,
}
_LOOP_PROPERTIES: Final[JsonObject] = {
    "_each": {"anyOf": [{"type": "array"}, REFERENCE]},
    "_parallel": {"type": "integer", "minimum": 1, "maximum": MAX_PARALLEL},
    "_until": {"type": "string", "pattern": "†output"},
    "_max": {"type": "integer", "minimum": 1, "maximum": MAX_ROUNDS},
}
_CONTROL_PROPERTIES: Final[JsonObject] = _LOOP_PROPERTIES | {
    "_each": REFERENCE,
    "_until": {"type": "string"},
    "_if": {"type": "string"},
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
    """Return the JSON Schema of a Solution. With `control`, formulas and conditions are allowed (R16.2, R16.3).

    `calls` is first, so that calls can start while the rest is still being written. With `final` no calls are
    allowed and the output may not be null (R9.5). The output accepts references as parameters do (R6.4).
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
    """Return the JSON Schema of one tool's arguments, for native function calls, in which the call itself names the
    tool."""
    definitions = _definitions(control)
    schema = _call_schema(tool, definitions, instances, control)
    schema.pop("description", None)
    properties = {name: child for name, child in schema["properties"].items() if name != "_tool"}
    required = [name for name in schema["required"] if name != "_tool"]
    if not any(part.get("$ref") == REFERENCE["$ref"] for part in subschemas({**schema, "$defs": definitions})):
        del definitions["reference"]
    defined = {"$defs": definitions} if definitions else {}
    return {**schema, "type": "object", "properties": properties, "required": required} | defined


def _definitions(control: bool) -> JsonObject:
    return {"reference": {"anyOf": [_REFERENCE_SCHEMA, _FORMULA_SCHEMA]} if control else _REFERENCE_SCHEMA}


def _call_schema(tool: Tool, definitions: JsonObject, instances: Sequence[str], control: bool) -> JsonObject:
    parameters = _move_definitions(tool.parameters, f"call:{tool.name}", definitions, references=True)
    properties = {name: _or_reference(schema, control) for name, schema in parameters.get("properties", {}).items()}
    meta: JsonObject = {"_tool": {"const": tool.name}}
    required = ["_tool", *parameters.get("required", [])]
    if tool.latent:
        output = {} if tool.output is None else _move_definitions(tool.output, f"output:{tool.name}", definitions)
        properties["_output"] = output
        required.append("_output")
    if instances:
        properties["_instance"] = {"enum": list(instances)}
    if control or tool.delegate is not None:
        properties |= _CONTROL_PROPERTIES if control else _LOOP_PROPERTIES
    if tool.scope_choice is not None:
        properties["_scopes"] = {"type": "array", "items": {"enum": tool.scope_choice}}
    if tool.output_path is None:
        properties["_outputPath"] = {"type": "string", "pattern": "^†state"}
    if tool.output_method is None and tool.output_path is None:
        properties["_outputMethod"] = {"enum": list(METHODS)}
    properties["_after"] = {"type": "array", "items": {"type": "string"}}
    call = {key: value for key, value in parameters.items() if key not in ("properties", "required")}
    call |= {"properties": meta | properties, "required": required}
    if tool.description:
        call["description"] = tool.description
    call.setdefault("additionalProperties", False)
    return call


def _or_reference(schema: SchemaPart, control: bool = False) -> SchemaPart:
    """Return a parameter's schema that also accepts a reference, itself and at any depth inside (R3.1), or a
    formula."""
    if not isinstance(schema, dict) or not schema:
        return schema
    inner = _inside(schema)
    if not control and schema.get("type") == "string" and not schema.keys() & _NARROWS_TEXT:
        return inner
    described = {"description": inner.pop("description")} if "description" in inner else {}
    return described | {"anyOf": [inner, REFERENCE]}


_NARROWS_TEXT: Final = frozenset({"enum", "const", "pattern", "format", "minLength", "maxLength"})


def _inside(schema: JsonObject) -> JsonObject:
    """Return the schema with references allowed inside the value, but not in its place."""
    inner = dict(schema)
    for key in ("properties", "patternProperties"):
        if isinstance(schema.get(key), dict):
            inner[key] = {name: _or_reference(child) for name, child in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            inner[key] = _or_reference(schema[key])
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(schema.get(key), list):
            # An alternative of a schema that already accepts a reference need not accept one again.
            each = _or_reference if key == "prefixItems" else _inside_any
            inner[key] = [each(child) for child in schema[key]]
    return inner


def _inside_any(schema: SchemaPart) -> SchemaPart:
    return _inside(schema) if isinstance(schema, dict) else schema


def _move_definitions(
    schema: JsonObject, owner: str, definitions: JsonObject, *, references: bool = False
) -> JsonObject:
    """Return the schema with its `$defs` moved to the composed schema's, under new names; with `references`,
    they accept references as parameters do."""
    schema = modern(schema)
    for name, definition in schema.pop("$defs", {}).items():
        moved = _rebase(definition, owner)
        definitions[f"{owner}/{name}"] = _inside_any(moved) if references else moved
    rebased: JsonObject = _rebase(schema, owner)
    return rebased


def _rebase(schema: SchemaPart, owner: str) -> SchemaPart:
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
    """Return a name as one step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


# In strict mode every object lists all of its keys as required and allows no other. So an optional key is written as
# a value or `null`; `perdure.plan._validation` removes such nulls again. A call has three shapes, so that unused
# meta-properties cost nothing. The schemas of parameters are in `$defs`, once. Keywords outside the subset are left
# out if that only allows more, because values are validated again here. A schema that the subset cannot express is
# listed, with the place, and is then offered without strictness.

_MAX_DEPTH: Final = 10
_MAX_PROPERTIES: Final = 5000
_UNSUPPORTED: Final = ("allOf", "oneOf", "patternProperties", "prefixItems")
"""Keywords that cannot be left out, because that would forbid values."""
_ALLOWED: Final = frozenset(
    {
        *("type", "enum", "const", "anyOf", "$ref", "properties", "items", "format", "pattern"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"),
    }
)
"""Keywords of the subset; all others are left out, and validated here again. Descriptions are in the prompt."""
_FORMATS: Final = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})


def make_strict(composed: JsonObject) -> tuple[JsonObject, list[str]]:
    """Return a composed schema in the strict subset, and the parts that it cannot express: one line each, naming the
    tool.

    With problems the schema is not usable.
    """
    for shapes in (3, 2, 1):
        strict, maker = _convert(composed, shapes)
        if maker.properties <= _MAX_PROPERTIES:
            break
    else:
        maker.problems.append(f"the tools have {maker.properties} parameters in all; {_MAX_PROPERTIES} is the most")
    return strict, list(dict.fromkeys(maker.problems))


def _convert(composed: JsonObject, shapes: int) -> tuple[JsonObject, _StrictConverter]:
    maker = _StrictConverter()
    definitions = {
        name: maker.convert(maker.in_shapes(definition, _owner(name), shapes), _owner(name), (), 0)
        for name, definition in composed.get("$defs", {}).items()
    }
    definitions |= maker.shared
    root = maker.convert({key: value for key, value in composed.items() if key != "$defs"}, "the output", (), 0)
    return {**root, "$defs": definitions}, maker


def _owner(name: str) -> str:
    """Return the owner of a definition, from the name that `_move_definitions` gave it."""
    kind, _, rest = name.partition(":")
    return f"tool {rest.split('/')[0]!r}" if kind in ("call", "output") and rest else "the output"


_SHORT: Final = 40
"""The most characters of a schema that is repeated in each shape, because a reference is as long."""


def _types_of(schema: JsonObject) -> list[str]:
    """Return the types of the values of a `const` or an `enum`."""
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return list(dict.fromkeys(_NAMES_STRICTNESS[type(value)] for value in values if type(value) in _NAMES_STRICTNESS))


_NAMES_STRICTNESS: Final[dict[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


class _StrictConverter:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.properties = 0
        self.shared: JsonObject = {}
        """Schemas of parameters that several shapes have, by name."""
        self._names: dict[str, str] = {}

    def in_shapes(self, definition: SchemaPart, owner: str, count: int) -> SchemaPart:
        """Return a call as up to `count` shapes: without a meta-property, with the output path alone, and with all of
        them, some of which are `null`."""
        properties: JsonObject = definition.get("properties", {}) if isinstance(definition, dict) else {}
        optional = {name for name in properties if name.startswith("_")} - set(definition.get("required", ()))
        if "_tool" not in properties or not optional or count == 1:
            return definition
        properties = {
            name: child if name.startswith("_") else self._share(child, owner, name)
            for name, child in properties.items()
        }
        shapes: list[JsonObject] = [{**definition, "properties": properties}]
        for kept in ({"_outputPath"} & optional, set[str]())[: count - 1]:
            shape = {name: child for name, child in properties.items() if name not in optional or name in kept}
            if shape.keys() != shapes[0]["properties"].keys():
                required = [*definition["required"], *kept]
                shapes.insert(0, {**definition, "properties": shape, "required": required})
        return {"anyOf": shapes}

    def _share(self, schema: SchemaPart, owner: str, name: str) -> SchemaPart:
        """Return a reference to a parameter's converted schema, or a schema that is no longer than one."""
        before = self.properties
        converted = self.convert(schema, owner, (name,), 1)
        text = dumps(converted)
        if len(text) <= _SHORT:
            return schema
        if text in self._names:
            self.properties = before
        else:
            self._names[text] = f"p{len(self._names)}"
            self.shared[self._names[text]] = converted
        return {"$ref": f"#/$defs/{self._names[text]}"}

    def convert(self, schema: SchemaPart, owner: str, path: tuple[str | int, ...], depth: int) -> SchemaPart:
        """Return the schema in the subset; note a problem if the subset cannot express it."""
        if schema is False:  # an array without items
            return {"type": "null"}
        if not isinstance(schema, dict) or not schema.keys() & (_ALLOWED | set(_UNSUPPORTED)):
            self._problem(owner, path, "takes any value")
            return {}
        if used := [keyword for keyword in _UNSUPPORTED if keyword in schema]:
            self._problem(owner, path, f"uses {', '.join(map(repr, used))}")
            return {}
        if "$ref" in schema:
            return {"$ref": schema["$ref"]}
        strict = {key: value for key, value in schema.items() if key in _ALLOWED}
        if types := _types_of(strict):
            # Only listed values are valid, so the type beside the list does not matter.
            strict["type"] = types[0] if len(types) == 1 else types
        if strict.get("format") not in _FORMATS:
            strict.pop("format", None)
        if "anyOf" in schema:
            # Not a step of the path: the parameter's name says more than the number of an alternative.
            strict["anyOf"] = [self.convert(child, owner, path, depth) for child in schema["anyOf"]]
        if depth > _MAX_DEPTH:
            self._problem(owner, path, f"is nested more than {_MAX_DEPTH} deep")
            return strict
        kinds = schema.get("type", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if "object" in kinds or "properties" in schema:
            self._object(strict, schema, owner, path, depth)
        if "array" in kinds:
            if "items" not in schema:
                self._problem(owner, path, "is an array of any values")
            else:
                strict["items"] = self.convert(schema["items"], owner, (*path, "items"), depth + 1)
        if not kinds and not schema.keys() & {"anyOf", "$ref", "enum", "const", "properties"}:
            self._problem(owner, path, "says no type")
        return strict

    def _object(
        self, strict: JsonObject, schema: JsonObject, owner: str, path: tuple[str | int, ...], depth: int
    ) -> None:
        properties = schema.get("properties", {})
        # Strict mode closes a schema that does not mention further keys; one that allows them cannot be
        # expressed.
        if schema.get("additionalProperties", False) is not False or not (
            properties or "additionalProperties" in schema
        ):
            self._problem(owner, path, "takes any further keys")
        required = set(schema.get("required", ()))
        self.properties += len(properties)
        strict["type"] = schema.get("type", "object")
        strict["properties"] = {
            name: self._maybe_null(self.convert(child, owner, (*path, name), depth + 1), optional=name not in required)
            for name, child in properties.items()
        }
        strict["required"] = list(properties)
        strict["additionalProperties"] = False

    @staticmethod
    def _maybe_null(schema: Json, *, optional: bool) -> Json:
        if not optional:
            return schema
        if isinstance(schema, dict) and isinstance(options := schema.get("anyOf"), list):
            null: JsonObject = {"type": "null"}
            return schema if null in options else {**schema, "anyOf": [*options, null]}
        return {"anyOf": [schema, {"type": "null"}]}

    def _problem(self, owner: str, path: tuple[str | int, ...], what: str) -> None:
        self.problems.append(f"{owner}: {json_path(path)} {what}")
