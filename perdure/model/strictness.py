"""OpenAI's strict mode: the subset of JSON Schema that a server holds a model to while it writes (R9.3).

In strict mode every object lists all of its keys as required and allows no other, so what may be left out is written as a
value or `null`; `perdure.plan.calls` takes such nulls out again. A call has two shapes, so that its meta-properties cost nothing
where they are not used. Keywords that the subset does not have are left out where that only allows more, as values are checked
again here; what it cannot say is listed, with the place, and the schema is then offered without strictness.
"""

from __future__ import annotations

from typing import Any, Final

from perdure.values.jsons import Json, JsonObject, json_path

_MAX_DEPTH: Final = 10
_MAX_PROPERTIES: Final = 5000
_UNSUPPORTED: Final = ("allOf", "oneOf", "patternProperties", "prefixItems")
"""Keywords whose loss would forbid what they allow."""
_ALLOWED: Final = frozenset(
    {
        *("type", "enum", "const", "anyOf", "$ref", "description", "properties", "items", "format", "pattern"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"),
    }
)
"""What the subset has; the rest is left out, and checked here again."""
_FORMATS: Final = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})


def make_strict(composed: JsonObject) -> tuple[JsonObject, list[str]]:
    """A composed schema in the strict subset, and what cannot be said in it: one line each, naming the tool.

    With problems the schema is of no use.
    """
    strict, maker = _made(composed, shapes=True)
    if maker.properties > _MAX_PROPERTIES:
        strict, maker = _made(composed, shapes=False)
    if maker.properties > _MAX_PROPERTIES:
        maker.problems.append(f"the tools have {maker.properties} parameters in all; {_MAX_PROPERTIES} is the most")
    return strict, list(dict.fromkeys(maker.problems))


def _made(composed: JsonObject, *, shapes: bool) -> tuple[JsonObject, _Maker]:
    maker = _Maker()
    definitions = {
        name: maker.convert(_in_shapes(definition) if shapes else definition, _owner(name), (), 0)
        for name, definition in composed.get("$defs", {}).items()
    }
    root = maker.convert({key: value for key, value in composed.items() if key != "$defs"}, "the output", (), 0)
    return {**root, "$defs": definitions}, maker


def _owner(name: str) -> str:
    """Whose definition it is, by the name that `perdure.model.composing` gave it."""
    kind, _, rest = name.partition(":")
    return f"tool {rest.split('/')[0]!r}" if kind in ("call", "output") and rest else "the output"


def _in_shapes(definition: Any) -> Any:
    """A call as one of two shapes: with no meta-property but the output path, and with all of them, of which some are `null`."""
    properties: JsonObject = definition.get("properties", {}) if isinstance(definition, dict) else {}
    optional = {name for name in properties if name.startswith("_")} - set(definition.get("required", ()))
    if "_tool" not in properties or not optional:
        return definition
    plain = {name: child for name, child in properties.items() if name not in optional or name == "_outputPath"}
    required = [*definition["required"], *(["_outputPath"] if "_outputPath" in optional else [])]
    shape = {key: value for key, value in definition.items() if key != "description"}
    shapes = [{**shape, "properties": plain, "required": required}, shape]
    return {key: definition[key] for key in ("description",) if key in definition} | {"anyOf": shapes}


def _types_of(schema: JsonObject) -> list[str]:
    """The types of what a `const` or an `enum` lists."""
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return list(dict.fromkeys(_NAMES[type(value)] for value in values if type(value) in _NAMES))


_NAMES: Final[dict[type, str]] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class _Maker:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.properties = 0

    def convert(self, schema: Any, owner: str, path: tuple[str | int, ...], depth: int) -> Any:
        """The schema in the subset; where it has no place in it a problem is noted."""
        if schema is False:  # an array of nothing
            return {"type": "null"}
        if not isinstance(schema, dict) or not schema.keys() & (_ALLOWED | set(_UNSUPPORTED)) - {"description"}:
            self._problem(owner, path, "takes any value")
            return {}
        if used := [keyword for keyword in _UNSUPPORTED if keyword in schema]:
            self._problem(owner, path, f"uses {', '.join(map(repr, used))}")
            return {}
        if "$ref" in schema:
            return {"$ref": schema["$ref"]}
        strict = {key: value for key, value in schema.items() if key in _ALLOWED}
        if said := _types_of(strict):
            # What is listed is what can be written, whatever type is said beside it.
            strict["type"] = said[0] if len(said) == 1 else said
        if strict.get("format") not in _FORMATS:
            strict.pop("format", None)
        if "anyOf" in schema:
            # No step of the path: which alternative it is says less than the parameter's name.
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
        # Where a schema says nothing of further keys a strict one forbids them; where it asks for them, that cannot be said.
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
        if isinstance(schema, dict) and isinstance(schema.get("anyOf"), list):
            null = {"type": "null"}
            return schema if null in schema["anyOf"] else {**schema, "anyOf": [*schema["anyOf"], null]}
        return {"anyOf": [schema, {"type": "null"}]}

    def _problem(self, owner: str, path: tuple[str | int, ...], what: str) -> None:
        self.problems.append(f"{owner}: {json_path(path)} {what}")
