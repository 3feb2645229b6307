"""JSON Schema: checking values, with or without references in them, and saying in one line what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, cast

import jsonschema
import referencing
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError

from perdure.values.jsons import Json, JsonObject, json_path, shorten
from perdure.values.references import Path
from perdure.values.templates import has_reference, is_expression

_REGISTRY: Final[Any] = referencing.Registry()  # holds nothing and fetches nothing: no schema reaches the network

_OF_THE_CONTAINER: Final = frozenset(
    {
        "required",
        "additionalProperties",
        "type",
        "minProperties",
        "maxProperties",
        "minItems",
        "maxItems",
        "dependentRequired",
        "propertyNames",
    }
)
"""Keywords whose verdict on an object or array does not depend on the values inside it."""


class Schema:
    """A compiled JSON Schema (draft 2020-12)."""

    def __init__(self, schema: JsonObject) -> None:
        self.schema = schema

    @cached_property
    def _validator(self) -> Any:
        return Draft202012Validator(self.schema, registry=_REGISTRY)

    @cached_property
    def problem(self) -> str | None:
        """Why this is no usable JSON Schema, or `None`."""
        try:
            Draft202012Validator.check_schema(self.schema)
        except SchemaError as error:
            return f"{error.message} at {json_path(error.absolute_path)}"
        except RecursionError:
            return "it is nested too deeply"
        return _unresolvable(self.schema, self.schema)

    def errors(self, value: Json, *, references: bool = False, root: Path = ()) -> list[str]:
        """What is wrong with the value, each as one line with its JSON path; empty when it fits.

        With `references` a string that is or holds a reference passes as whatever the reference will turn out to be
        (R3.1); everything around it is checked.
        """
        try:
            found = [error for error in self._validator.iter_errors(value) if not (references and _undecided(error))]
        except RecursionError:
            return [f"the schema refers to itself without end at {json_path(root)}"]
        except (OverflowError, ValueError) as error:
            # Arithmetic on numbers that no float holds, e.g. `multipleOf` of an integer of 400 digits.
            return [f"{json_path(root)} cannot be checked against its schema: {error}"]
        return [describe(error, root) for error in sorted(found, key=lambda error: list(map(str, error.absolute_path)))]

    def at(self, path: Path) -> list[Schema] | None:
        """The schemas that a value at this path must fit; `None` when the schema forbids the path (R4.5).

        Follows `properties`, `items`, `allOf` and local `$ref`; what it cannot follow forbids nothing.
        """
        schemas: list[Any] = list(self._flat(self.schema))
        for part in path:
            following: list[Any] = []
            for schema in schemas:
                child = _child(schema, part)
                if child is False:
                    return None
                following.extend(self._flat(child))
            schemas = following
        return [Schema(self._with_definitions(schema)) for schema in schemas if schema]

    def _flat(self, schema: Any, depth: int = 0) -> Iterator[Any]:
        if not isinstance(schema, dict) or depth > 20:
            return
        yield schema
        if isinstance(reference := schema.get("$ref"), str) and (target := _local(self.schema, reference)) is not None:
            yield from self._flat(target, depth + 1)
        for part in schema.get("allOf", ()):
            yield from self._flat(part, depth + 1)

    def _with_definitions(self, schema: JsonObject) -> JsonObject:
        return {key: self.schema[key] for key in ("$defs", "definitions") if key in self.schema} | schema


def describe(error: ValidationError, root: Path = ()) -> str:
    """One line: the path, the value and the rule that it breaks."""
    path = json_path((*root, *error.absolute_path))
    keyword, value = error.validator, cast(Any, error.instance)
    rule, schema = cast(Any, error.validator_value), cast(Any, error.schema)
    if keyword in ("anyOf", "oneOf") and error.context:
        best = jsonschema.exceptions.best_match([error])
        if best is not error and best.absolute_path != error.absolute_path:
            return describe(best, root)
    if keyword == "required":
        missing = [name for name in rule if name not in value]
        return f"{path} lacks {', '.join(map(repr, missing))}"
    if keyword == "additionalProperties" and rule is False:
        known = schema.get("properties", {})
        extra = [key for key in value if key not in known]
        allowed = f"allowed are {', '.join(map(repr, known))}" if known else "none are allowed"
        return f"{path} has unknown keys {', '.join(map(repr, extra[:5]))}; {allowed}"
    return f"{path} is {shorten(value, 80)}, but must fit {shorten({keyword: rule}, 160)}"


def _undecided(error: ValidationError) -> bool:
    instance = error.instance
    if isinstance(instance, str):
        return has_reference(instance) and (is_expression(instance) or error.validator != "type")
    return error.validator not in _OF_THE_CONTAINER and has_reference(instance)


def _child(schema: JsonObject, part: str | int) -> Any:
    """The subschema for one step: `False` where the step is forbidden, `{}` where anything goes."""
    key = str(part)
    properties = schema.get("properties", {})
    if key in properties:
        return properties[key]
    kind = schema.get("type")
    is_array = kind == "array" or (kind is None and ("items" in schema or "prefixItems" in schema))
    if is_array and key.isdigit():
        prefix = schema.get("prefixItems", [])
        return prefix[int(key)] if int(key) < len(prefix) else schema.get("items", {})
    if "patternProperties" in schema:
        return {}
    return schema.get("additionalProperties", {})


def _local(document: JsonObject, reference: str) -> Any:
    """What a `#/…` reference points at, or `None`."""
    if not reference.startswith("#"):
        return None
    target: Any = document
    for step in reference.lstrip("#").strip("/").split("/"):
        if step == "":
            continue
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or name not in target:
            return None
        target = target[name]
    return target


def _unresolvable(schema: Any, document: JsonObject) -> str | None:
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            reference = item.get("$ref")
            if isinstance(reference, str) and "$id" not in document and _local(document, reference) is None:
                return f"$ref {reference!r} points at nothing in the schema itself"
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return None
