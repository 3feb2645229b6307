"""Function definitions of other formats, parsed into Perdure's own; and the question that a tool asks a person."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from perdure.errors import ToolDefinitionError
from perdure.values.json import Json, JsonObject, SchemaPart, json_path, shorten
from perdure.values.limits import MAX_QUESTION
from perdure.values.problems import ProblemPath, suggest_name
from perdure.values.schemas import LISTS, SINGLE, pattern_problem

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
"""Names of types that allow every value; an enumeration lists its values in `enum`."""
_OR: Final = re.compile(r"\s*(?:,\s*or\b|\bor\b|[|/,])\s*")
_OPTIONAL: Final = re.compile(r"\s*(?:,\s*optional|\(optional\))$")
_OF: Final = re.compile(r"(\w+)\s+of\s+(.+)")
_BRACKETS: Final = re.compile(r"([\w.]+)\s*[\[<](.*)[\]>]")
_LONGEST: Final = 200
"""Maximum of characters of a type's name: each part is parsed once for each level of nesting."""


def parse_type(text: str) -> JsonObject | None:
    """Return the JSON Schema of a type's name; `None` for an unknown name."""
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
    """Return the schema of an array, or an object, of values of a type; several types are those of a tuple."""
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
    """Return the schema of values that fit any of these; `None` if one is unknown."""
    kinds: list[str] = []
    others: list[JsonObject] = []
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
    every: list[JsonObject] = [*({"type": kind} for kind in kinds), *others]
    return every[0] if len(every) == 1 else {"anyOf": every}


def _split(text: str) -> list[str]:
    """Return the parts of a text between the words for "or" outside of all brackets."""
    parts, deep, start, at = [], 0, 0, 0
    while at < len(text):
        deep += (text[at] in "[<(") - (text[at] in "]>)")
        if deep == 0 and (found := _OR.match(text, at)) and found.end() > at:
            parts.append(text[start : found.start()])
            start = at = found.end()
        else:
            at += 1
    return [part.strip() for part in [*parts, text[start:]]]


_SCHEMAS: Final = ("parameters", "input_schema", "inputSchema")
"""The keys of OpenAI, Anthropic and MCP for the schema of the parameters."""
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
_NUMBERS: Final = frozenset(
    {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    }
)
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose values are schemas by name."""
_OF_TYPE: Final[dict[str, type]] = {
    **dict.fromkeys(_NAMED, dict),
    **dict.fromkeys(("required", "enum"), list),
    **dict.fromkeys(("description", "title", "format", "pattern"), str),
}
"""The type of a keyword's value; a keyword with a value of another type is ignored."""
_LISTED: Final[dict[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}
_TAKE_SCHEMAS: Final = frozenset({"additionalProperties", "unevaluatedProperties", "propertyNames"})
"""Keywords of an object's schema that hold one schema, and are not names of parameters."""
_ABOUT: Final = frozenset({"description", "format", "example", "nullable", "readOnly", "writeOnly"})
"""Keys beside the parameters of a flat map that describe it as a whole."""


_ACCEPTED: Final = (
    'the parameters are an object: a JSON Schema with "properties", or a map such as {"city": {"type": "string"}}'
)


def plain_definition(definition: JsonObject) -> JsonObject:
    """Return the definition in Perdure's form: the parameters' schema beside the name, with JSON Schema's own types.

    A definition in that form is returned unchanged. A foreign schema describes only the tool's parameters: none of its
    keys is a meta-property of Perdure, so that its author cannot change approvals. Keywords that are not JSON Schema's
    are left out; a flat map of parameters is read as `properties`. A parameter whose name begins with `_` is called
    `name_` instead, and its own name is kept in `_names`. Raises `ToolDefinitionError` if a parameter, or a part of its
    schema, would be lost.
    """
    definition = _unwrapped(definition)
    keys = [key for key in _SCHEMAS if isinstance(definition.get(key), dict)]
    if "properties" in definition:
        return definition
    try:
        if not keys:
            if (wrong := next((key for key in _SCHEMAS if key in definition), None)) is not None:
                raise _lost((wrong,), definition[wrong], _ACCEPTED)
            return definition
        schema = _schema_of_parameters(definition, keys)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"tool {definition.get('name')!r}: {error}") from None
    properties = schema["properties"]
    names = own_names(properties)
    if names:
        own = {name: alias for alias, name in names.items()}
        schema["properties"] = {own.get(name, name): child for name, child in properties.items()}
        required = schema.get("required")
        if isinstance(required, list):
            schema["required"] = [own.get(name, name) if isinstance(name, str) else name for name in required]
    about = {name: value for name, value in definition.items() if name in ("name", "description")}
    meta = {name: value for name, value in definition.items() if name.startswith("_") and name != "_meta"}
    return {**schema, "type": "object", **about, **meta, **({"_names": names} if names else {})}


def definition_name(definition: JsonObject) -> Json:
    """Return the name that a definition of any form gives its tool."""
    return _unwrapped(definition).get("name")


def _unwrapped(definition: JsonObject) -> JsonObject:
    """Return the definition without OpenAI's `function` around it, its name and description under these keys."""
    inner = definition.get("function")
    if definition.get("type", "function") == "function" and isinstance(inner, dict):
        beside = ("name", "description", *_SCHEMAS)
        kept = {key: value for key, value in definition.items() if key in beside}
        meta = {key: value for key, value in definition.items() if key.startswith("_")}
        definition = {**kept, **inner, **meta}
    others = {f"api_{key}": key for key in ("name", "description")}
    if not any(key in definition and others[key] not in definition for key in others):
        return definition
    named = {key: value for key, value in definition.items() if key not in others}
    return {own: definition[key] for key, own in others.items() if key in definition} | named


def _schema_of_parameters(definition: JsonObject, keys: Sequence[str]) -> JsonObject:
    """Return the schema of an object with the parameters as its `properties`. Raises `ToolDefinitionError`, without the
    tool's name."""
    if len(keys) > 1:
        raise ToolDefinitionError(f"{keys[0]!r} and {keys[1]!r} both define parameters: use one of them")
    key = keys[0]
    properties = _flat_parameters(definition[key], (key,))
    given = json_types({name: value for name, value in definition[key].items() if name not in properties}, (key,))
    kind = given.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise _lost((key, "type"), kind, "the parameters are those of an object")
    schema = {name: value for name, value in given.items() if name in SCHEMA_KEYS}
    required: list[str] = schema.get("required", [])
    if properties:
        schema["properties"], more = _parameters(properties, (key,))
        required += more
    properties = schema.setdefault("properties", {})
    beside = definition.get("required")
    for name in beside if isinstance(beside, list) else ():
        if name not in properties:
            raise ToolDefinitionError(f"$.required names {shorten(name, 60)}, which is not a parameter")
        required.append(name)
    return {**schema, **({"required": list(dict.fromkeys(required))} if required else {})}


def _flat_parameters(schema: JsonObject, at: ProblemPath) -> JsonObject:
    """Return the parameters that are in the schema itself: many collections have a flat map of names. Empty if
    `properties` has them.
    """
    named = schema.get("properties")
    if isinstance(named, dict) and not isinstance(named.get("type"), str):
        beside = [key for key, value in schema.items() if key not in SCHEMA_KEYS and _is_parameter(key, value)]
        if beside:
            raise ToolDefinitionError(
                f"{json_path(at)}: {beside[0]!r} is beside 'properties', where it is not a parameter"
            )
        return {}
    properties = {key: value for key, value in schema.items() if _is_parameter(key, value)}
    for key, value in schema.items():
        if not (key in properties or key in SCHEMA_KEYS or key in _ABOUT or key.startswith(("_", "x-"))):
            raise _lost((*at, key), value, 'a parameter is a schema such as {"type": "string"}')
    return properties


def _is_parameter(key: str, value: Json) -> bool:
    """Whether an entry of a map is a parameter, not a keyword of the map's own schema."""
    if key.startswith("x-") or key in _TAKE_SCHEMAS or (key in _ABOUT and not isinstance(value, dict)):
        return False
    if key not in SCHEMA_KEYS:
        return isinstance(value, dict) or (isinstance(value, str) and bool(value) and parse_type(value) is not None)
    return isinstance(value, dict) and isinstance(value.get("type", value.get("description")), str | list)


def _lost(at: ProblemPath, value: Json, words: str) -> ToolDefinitionError:
    return ToolDefinitionError(f"{json_path(at)} is {shorten(value, 60)}; {words}")


def own_names(properties: JsonObject) -> dict[str, str]:
    """Return aliases for parameters whose names look like meta-properties, with their own names.

    ```python
    assert own_names({"_from": {}, "to": {}}) == {"from_": "_from"}
    ```
    """
    # R1
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
    """Whether `alias` is an alias of `name`.

    A call cannot have a parameter with an alias as its own name, so no two are ever swapped. An approver of the alias
    sees that it is the other parameter.
    """
    return name.startswith("_") and alias.endswith("_") and alias.rstrip("_") == _stem(name)


def with_own_names(params: JsonObject, code: JsonObject, given: JsonObject | None = None) -> JsonObject:
    """Return the parameters of a call under the names that the tool's code knows.

    `code` is the worker's own definition. `given`, an agent file's definition of the same code, only adds names that
    the code does not define: a person approved the call as it was shown, and no definition changes its meaning.
    """
    named = plain_definition(code).get("_names") or (given or {}).get("_names") or {}
    names = {alias: name for alias, name in named.items() if is_alias(alias, name)}
    return {names.get(name, name): value for name, value in params.items()} if names else params


def json_types(schema: SchemaPart, at: ProblemPath = ()) -> SchemaPart:
    """Return the schema with the type names of JSON Schema; `any` is left out.

    A `required: true` beside a parameter makes it required. Values of keywords that JSON Schema refuses are left out,
    and so are patterns that cannot be checked in linear time. `at`: the schema's place in the document. Raises
    `ToolDefinitionError` if a parameter or its type would be lost.
    """
    if isinstance(schema, list):
        return [json_types(item, (*at, index)) for index, item in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    plain: JsonObject = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str | list):
            continue
        if isinstance(value, bool) and key in ("exclusiveMinimum", "exclusiveMaximum"):
            plain[key] = value  # draft 4
        elif key in _NUMBERS:
            with suppress(TypeError, ValueError):
                plain[key] = value if type(value) in (int, float) else int(value)
        elif (key in _OF_TYPE and not isinstance(value, _OF_TYPE[key])) or (key == "optional" and type(value) is bool):
            continue
        elif key == "properties":
            plain[key], required = _parameters(value, (*at, key))
            if required:
                listed = schema.get("required")
                plain["required"] = list(dict.fromkeys([*(listed if isinstance(listed, list) else ()), *required]))
        elif key in _NAMED:
            plain[key] = {name: _schema(child, (*at, key, name)) for name, child in value.items()}
        elif key == "pattern" and pattern_problem(value):
            continue
        elif key == "required":
            plain.setdefault(key, value)
        elif key in SINGLE or key in LISTS:
            plain[key] = json_types(value, (*at, key))
        else:
            plain[key] = value
    return _with_listed_types(_of_type(schema.get("type"), at) | plain)


def _parameters(properties: JsonObject, at: ProblemPath) -> tuple[JsonObject, list[str]]:
    """Return the schemas by name, and the names that are required beside a schema or in a list."""
    misplaced = properties.get("required")
    named = {name: child for name, child in properties.items() if name != "required" or not isinstance(child, list)}
    required = [
        name
        for name, child in named.items()
        if isinstance(child, dict)
        and (child.get("required") in (True, "true", "True") or child.get("optional") is False)
    ]
    if isinstance(misplaced, list):
        required = [*(name for name in misplaced if name in named), *required]
    return {name: _schema(child, (*at, name)) for name, child in named.items()}, required


def _schema(child: SchemaPart, at: ProblemPath) -> SchemaPart:
    if isinstance(child, str) and child and (kind := parse_type(child)) is not None:
        return kind
    if not isinstance(child, dict | bool):
        raise _lost(at, child, 'a parameter is a schema such as {"type": "string"}')
    return json_types(child, at)


def _of_type(named: Json, at: ProblemPath) -> JsonObject:
    """Return the keywords of JSON Schema for a schema's `type`."""
    if isinstance(named, str | list):
        kind = union_of(parse_type(str(each)) for each in (named if isinstance(named, list) else [named]))
        if kind is None:
            raise _lost((*at, "type"), named, f"this is not a type; use one of {', '.join(JSON_TYPES)}")
        return kind
    return {}


def _with_listed_types(schema: JsonObject) -> JsonObject:
    """Return the schema with the types of its enumerated values, if one of them does not fit the type."""
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    listed = [_LISTED[type(value)] for value in schema.get("enum", ()) if type(value) in _LISTED]
    if not kinds or all(kind in kinds or (kind == "integer" and "number" in kinds) for kind in listed):
        return schema
    return {**schema, "type": list(dict.fromkeys(listed))}


_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def question_parts(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the text between the parameters, each with the name of the parameter after it, if there is one. `{{` is a
    brace.

    Raises `ValueError` for a brace that belongs to no parameter.
    """
    words, end = "", 0
    for found in _PART.finditer(text):
        words += text[end : found.start()]
        end = found.end()
        if found[0] in ("{{", "}}"):
            words += found[0][0]
        elif found[1] is None:
            raise ValueError(
                f"the brace at character {found.start() + 1} does not name a parameter: write {{name}}, or {{{{ for a brace"
            )
        else:
            yield words, found[1]
            words = ""
    yield words + text[end:], None


def question_problem(text: Json, parameters: JsonObject) -> str | None:
    """Return the problem of a tool's question, or an empty text. `parameters`: their JSON Schema."""
    if not isinstance(text, str) or not text.strip() or not text.isprintable() or len(text) > MAX_QUESTION:
        return f"_ask: {shorten(text, 60)} is not a question: one line of 1 to {MAX_QUESTION} printable characters"
    try:
        names = [name for _, name in question_parts(text) if name is not None]
    except ValueError as error:
        return f"_ask: {error}"
    known: Collection[str] = parameters.get("properties", {})
    if parameters.get("additionalProperties", False) is not False:  # any name may be a parameter
        return None
    for name in names:
        if name not in known:
            near = suggest_name(name, known)
            there = f"did you mean {near!r}?" if near else f"it has {', '.join(known) or 'none'}"
            return f"_ask: {{{shorten(name, 60)[1:-1]}}} is not a parameter; {there}"
    return None
