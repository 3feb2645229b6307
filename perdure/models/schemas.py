"""The composed schema of a Solution, in draft 2020-12 and in OpenAI's strict mode."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, SchemaPart, dumps, json_path
from perdure.values.limits import MAX_PARALLEL, MAX_ROUNDS
from perdure.values.schemas import BY_NAME, LISTS, SINGLE, draft_of, resolve_local, subschemas
from perdure.values.state import METHODS

# Values are validated against the original schema. So references and older keywords matter here only as far as a
# server supports them.

_DEFINITION: Final = re.compile(r"#/(?:\$defs|definitions)/[^/]+")
_NAMES: Final = frozenset({"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"})
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


def modernize(schema: JsonObject) -> JsonObject:
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
        if _DEFINITION.fullmatch(reference) and resolve_local(self._document, reference) is not None:
            return reference.replace("#/definitions/", "#/$defs/")
        if reference not in self._moved:
            target = (
                self._anchors.get(reference[1:])
                if reference[1:2] not in ("", "/")
                else resolve_local(self._document, reference)
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
_TEXT: Final[JsonObject] = {"type": "string"}
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
    untaught: Collection[str] = (),
) -> JsonObject:
    """Return the JSON Schema of a Solution. With `control`, formulas and conditions are allowed (R16.2, R16.3). It has
    none of the meta-properties in `untaught`.

    `calls` is first, so that calls can start while the rest is still being written. With `final` no calls are
    allowed and the output may not be null (R9.5). The output accepts references as parameters do (R6.4).
    """
    definitions = _definitions(control)
    output_schema = output if isinstance(output, dict) else {}
    output_schema = _move_definitions(output_schema, "output", definitions, REFERENCE)
    output_schema = _or_reference(output_schema, REFERENCE, control)
    properties: JsonObject = {}
    if not final:
        for tool in tools.values():
            definitions[f"call:{tool.name}"] = _call_schema(tool, definitions, instances, control, untaught)
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


def function_schema(
    tool: Tool, instances: Sequence[str] = (), *, control: bool = False, untaught: Collection[str] = ()
) -> JsonObject:
    """Return the JSON Schema of one tool's arguments, for native function calls, in which the call itself names the
    tool. It has none of the meta-properties in `untaught`.

    It only describes, because calls are validated here. So it does not repeat that a tool forbids further arguments, and
    has no patterns of references: llama.cpp refuses all functions if one has a pattern without `$` at its end.
    """
    definitions: JsonObject = {"reference": {"anyOf": [_TEXT, _FORMULA_SCHEMA]} if control else _TEXT}
    schema = _call_schema(tool, definitions, instances, control, untaught, REFERENCE if control else _TEXT)
    schema.pop("description", None)
    if tool.parameters.get("additionalProperties") is False:
        del schema["additionalProperties"]
    properties = {name: child for name, child in schema["properties"].items() if name != "_tool"}
    properties |= {name: _TEXT for name in ("_outputPath", "_until") if name in properties}
    required = [name for name in schema["required"] if name != "_tool"]
    schema |= {"type": "object", "properties": properties, "required": required}
    if not any(part.get("$ref") == REFERENCE["$ref"] for part in subschemas({**schema, "$defs": definitions})):
        del definitions["reference"]
    return schema | ({"$defs": definitions} if definitions else {})


def _definitions(control: bool) -> JsonObject:
    return {"reference": {"anyOf": [_REFERENCE_SCHEMA, _FORMULA_SCHEMA]} if control else _REFERENCE_SCHEMA}


def _call_schema(
    tool: Tool,
    definitions: JsonObject,
    instances: Sequence[str],
    control: bool,
    untaught: Collection[str],
    reference: JsonObject = REFERENCE,
) -> JsonObject:
    parameters = _move_definitions(tool.parameters, f"call:{tool.name}", definitions, reference)
    properties = {
        name: _or_reference(schema, reference, control) for name, schema in parameters.get("properties", {}).items()
    }
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
    for name in untaught:
        properties.pop(name, None)
    call |= {"properties": meta | properties, "required": required}
    if tool.description:
        call["description"] = tool.description
    call.setdefault("additionalProperties", False)
    return call


def _or_reference(schema: SchemaPart, reference: JsonObject, control: bool = False) -> SchemaPart:
    """Return a parameter's schema that also accepts a reference, itself and at any depth inside (R3.1), or a
    formula."""
    if not isinstance(schema, dict) or not schema:
        return schema
    inner = _inside(schema, reference)
    if not control and schema.get("type") == "string" and not schema.keys() & _NARROWS_TEXT:
        return inner
    described = {"description": inner.pop("description")} if "description" in inner else {}
    if reference is _TEXT and inner.keys() == {"type"}:
        kinds = inner["type"] if isinstance(inner["type"], list) else [inner["type"]]
        return described | {"type": list(dict.fromkeys([*kinds, "string"]))}
    return described | {"anyOf": [inner, reference]}


_NARROWS_TEXT: Final = frozenset({"enum", "const", "pattern", "format", "minLength", "maxLength"})


def _inside(schema: JsonObject, reference: JsonObject) -> JsonObject:
    """Return the schema with references allowed inside the value, but not in its place."""
    inner = dict(schema)
    for key in ("properties", "patternProperties"):
        if isinstance(schema.get(key), dict):
            inner[key] = {name: _or_reference(child, reference) for name, child in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            inner[key] = _or_reference(schema[key], reference)
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(schema.get(key), list):
            # An alternative of a schema that already accepts a reference need not accept one again.
            each = _or_reference if key == "prefixItems" else _inside_any
            inner[key] = [each(child, reference) for child in schema[key]]
    return inner


def _inside_any(schema: SchemaPart, reference: JsonObject) -> SchemaPart:
    return _inside(schema, reference) if isinstance(schema, dict) else schema


def _move_definitions(
    schema: JsonObject, owner: str, definitions: JsonObject, reference: JsonObject | None = None
) -> JsonObject:
    """Return the schema with its `$defs` moved to the composed schema's, under new names; with a schema of references,
    they accept references as parameters do."""
    schema = modernize(schema)
    for name, definition in schema.pop("$defs", {}).items():
        moved = _rebase(definition, owner)
        definitions[f"{owner}/{name}"] = moved if reference is None else _inside_any(moved, reference)
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


def _unpointer(reference: str) -> str:
    """Return the name of the definition that a reference leads to."""
    return reference.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")


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
_READ: Final = _ALLOWED | set(_UNSUPPORTED)
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
        maker.problems.append(f"the tools have {maker.properties} parameters in all; the limit is {_MAX_PROPERTIES}")
    return strict, list(dict.fromkeys(maker.problems))


def _convert(composed: JsonObject, shapes: int) -> tuple[JsonObject, _StrictConverter]:
    maker = _StrictConverter()
    calls = composed["properties"].get("calls", {})
    maker.several = bool(calls.get("items")) and len(calls["items"]["anyOf"]) > 1
    for name, definition in composed.get("$defs", {}).items():
        if isinstance(definition, dict) and len(definition) < 3 and _is_short(dumps(definition)):
            maker.short[f"#/$defs/{_pointer(name)}"] = definition
    definitions = {
        name: maker.convert(maker.in_shapes(definition, _owner(name), shapes), _owner(name), (), 0)
        for name, definition in composed.get("$defs", {}).items()
        if f"#/$defs/{_pointer(name)}" not in maker.short
    }
    definitions |= maker.shared
    root = maker.convert({key: value for key, value in composed.items() if key != "$defs"}, "the output", (), 0)
    if isinstance(calls := root["properties"].get("calls"), dict) and "anyOf" in calls["items"]:
        # Nothing else refers to the calls' definitions, so the calls need none.
        named = [definitions.pop(_unpointer(each["$ref"])) for each in calls["items"]["anyOf"]]
        calls["items"]["anyOf"] = [
            shape for each in named for shape in (each["anyOf"] if each.keys() == {"anyOf"} else [each])
        ]
    return {**root, **({"$defs": definitions} if definitions else {})}, maker


def _owner(name: str) -> str:
    """Return the owner of a definition, from the name that `_move_definitions` gave it."""
    kind, _, rest = name.partition(":")
    return f"tool {rest.split('/')[0]!r}" if kind in ("call", "output") and rest else "the output"


_SHORT: Final = 40
"""The most characters of a schema that is repeated wherever it is used, because a reference is as long."""


def _is_short(text: str) -> bool:
    return len(text) <= _SHORT and '"$ref"' not in text


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


def _any_of(options: list[SchemaPart]) -> JsonObject:
    """Return the schema of values that fit one of the options: a list of types, if one is a plain type and one is null."""
    match options:
        case [{"type": str(kind), **more}, {"type": "null", **other}] if not more and not other:
            return {"type": [kind, "null"]}
    return {"anyOf": options}


class _StrictConverter:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.properties = 0
        self.shared: JsonObject = {}
        """Schemas of parameters that several shapes have, by name."""
        self._names: dict[str, str] = {}
        self._found: dict[str, SchemaPart] = {}
        """Results of `_share`, by the schema's `repr`."""
        self.several = False
        """Whether several tools share the schemas of meta-properties."""
        self.short: JsonObject = {}
        """Definitions that stand in place of each reference to them, by the reference."""

    def in_shapes(self, definition: SchemaPart, owner: str, count: int) -> SchemaPart:
        """Return a call as up to `count` shapes: without a meta-property, with the output path alone, and with all of
        them, some of which are `null`."""
        if not isinstance(definition, dict):
            return definition
        properties: JsonObject = definition.get("properties", {})
        optional = {name for name in properties if name.startswith("_")} - set(definition.get("required", ()))
        if "_tool" not in properties or not optional or count == 1:
            return definition
        required = definition.get("required", ())
        properties = {
            name: child if name == "_tool" else self._share(child, owner, name, optional=name not in required)
            for name, child in properties.items()
        }
        fewer = [kept for kept in ({"_outputPath"} & optional, set[str]()) if kept != optional]
        shapes: list[JsonObject] = []
        for kept in dict.fromkeys(map(frozenset, [optional, *fewer[: count - 1]])):
            shape = {name: child for name, child in properties.items() if name not in optional or name in kept}
            if len(kept) == 1:  # it is never `null`: a call without it has another shape
                shape |= {name: definition["properties"][name] for name in kept}
            shapes.insert(0, {**definition, "properties": shape, "required": list(shape)})
        return {"anyOf": shapes}

    def _share(self, schema: SchemaPart, owner: str, name: str, *, optional: bool) -> SchemaPart:
        """Return a reference to a parameter's converted schema, or a schema that is no longer than one."""
        schema = self._maybe_null(schema, optional=optional)
        if name.startswith("_") and not self.several:
            return schema
        if (shared := self._found.get(written := repr(schema))) is not None:
            return shared
        before, problems = self.properties, len(self.problems)
        converted = self.convert(schema, owner, (name,), 1)
        text = dumps(converted)
        if len(text) > _SHORT:
            if text in self._names:
                self.properties = before
            else:
                self._names[text] = f"p{len(self._names)}"
                self.shared[self._names[text]] = converted
            schema = {"$ref": f"#/$defs/{self._names[text]}"}
        if problems == len(self.problems):  # else each owner has its own
            self._found[written] = schema
        return schema

    def convert(self, schema: SchemaPart, owner: str, path: tuple[str | int, ...], depth: int) -> SchemaPart:
        """Return the schema in the subset; note a problem if the subset cannot express it."""
        if schema is False:  # an array without items
            return {"type": "null"}
        if not isinstance(schema, dict) or _READ.isdisjoint(schema):
            self._problem(owner, path, "takes any value")
            return {}
        if used := [keyword for keyword in _UNSUPPORTED if keyword in schema]:
            self._problem(owner, path, f"uses {', '.join(map(repr, used))}")
            return {}
        if "$ref" in schema:
            short = self.short.get(schema["$ref"])
            return {"$ref": schema["$ref"]} if short is None else self.convert(short, owner, path, depth)
        strict = {key: value for key, value in schema.items() if key in _ALLOWED}
        if ("const" in strict or "enum" in strict) and (types := _types_of(strict)):
            # Only listed values are valid, so the type beside the list does not matter.
            strict["type"] = types[0] if len(types) == 1 else types
        if strict.get("format") not in _FORMATS:
            strict.pop("format", None)
        if "anyOf" in schema:
            # Not a step of the path: the parameter's name says more than the number of an alternative.
            del strict["anyOf"]
            strict |= _any_of([self.convert(child, owner, path, depth) for child in schema["anyOf"]])
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
        null: JsonObject = {"type": "null"}
        if isinstance(schema, dict) and isinstance(options := schema.get("anyOf"), list):
            return schema if null in options else {**schema, "anyOf": [*options, null]}
        return _any_of([schema, null])

    def _problem(self, owner: str, path: tuple[str | int, ...], what: str) -> None:
        self.problems.append(f"{owner}: {json_path(path)} {what}")
