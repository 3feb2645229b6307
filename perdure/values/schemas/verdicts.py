"""Whether a value fits a schema: yes or no, fast, in a bounded number of steps.

A schema is turned into nodes of plain functions. That covers what nearly all schemas use; a keyword that it does not cover
raises `UncoveredError` when a value meets it, and `jsonschema` decides, far more slowly. Words for what is wrong are always its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.values.jsons import JsonObject
from perdure.values.limits.steps import Steps
from perdure.values.schemas.containers import OF_ARRAYS, OF_OBJECTS, of_array, of_object
from perdure.values.schemas.nodes import ALL, ANYTHING, NOTHING, Draft, Node, Part, UncoveredError
from perdure.values.schemas.parts import MAKERS
from perdure.values.schemas.pointers import NOWHERE, step_into

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


class Verdicts:
    """The nodes of one document."""

    def __init__(self, document: Any, draft: Draft) -> None:
        self._document = document
        self.draft = draft
        self._nodes: dict[int, Node] = {}

    def node(self, schema: Any) -> Node:
        """The node of a schema that is part of the document."""
        if schema is True:
            return ANYTHING
        if schema is False:
            return NOTHING
        if not isinstance(schema, dict):
            raise UncoveredError
        known = self._nodes.get(id(schema))
        if known is None:
            known = self._nodes[id(schema)] = self._made(schema)
        return known

    def _made(self, schema: JsonObject) -> Node:
        self._refuse_names(schema)
        if self.draft.lone_reference and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        parts: dict[type, list[Part]] = {kind: [] for kind in _types(schema)}
        if float in parts and "integer" in _listed(schema) and "number" not in _listed(schema):
            parts[float].append(_is_whole if self.draft.number > 4 else _never)
        for keyword in schema:
            kinds, make = MAKERS.get(keyword, ((), None))
            part = make(self, schema) if make is not None else None
            if part is not None:
                for kind in kinds:
                    if kind in parts:
                        parts[kind].append(part)
        if dict in parts and schema.keys() & OF_OBJECTS:
            parts[dict].append(of_object(self, schema))
        if list in parts and schema.keys() & OF_ARRAYS:
            parts[list].append(of_array(self, schema))
        return Node({kind: tuple(of_kind) for kind, of_kind in parts.items()})

    def target(self, reference: Any) -> Any:
        """What a pointer into the document points at. Raises `UncoveredError` for any other reference."""
        if reference == "#":
            return self._document
        if not isinstance(reference, str) or not reference.startswith("#/") or "%" in reference:
            raise UncoveredError
        target = self._document
        for step in reference[2:].split("/"):
            target = step_into(target, step)
            if target is NOWHERE:
                raise UncoveredError
            self._refuse_names(target)
        return target

    def _refuse_names(self, schema: Any) -> None:
        """A part that has a name of its own is a document of its own: references in it mean something else."""
        named = isinstance(schema, dict) and isinstance(schema.get("id" if self.draft.number == 4 else "$id"), str)
        if named and schema is not self._document:
            raise UncoveredError


def _listed(schema: JsonObject) -> list[Any]:
    said = schema.get("type", [])
    return said if isinstance(said, list) else [said]


def _types(schema: JsonObject) -> Sequence[type]:
    if "type" not in schema:
        return ALL
    return [kind for name in _listed(schema) for kind in _TYPES.get(name, ()) if isinstance(name, str)]


def _is_whole(value: float, steps: Steps) -> bool:
    return value.is_integer()


def _never(value: Any, steps: Steps) -> bool:
    return False
