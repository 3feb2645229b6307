"""A schema of any draft in the words of 2020-12, as a model and its server are shown it (R9.3).

Values are checked against the schema as it was written; here what a reference means and what older words say has to hold only as
well as a server understands it.
"""

from __future__ import annotations

import re
from typing import Any, Final

from perdure.values.jsons import JsonObject
from perdure.values.schemas import local
from perdure.values.schemas.drafts import BY_NAME, LISTS, SINGLE, draft_of, subschemas

_DEFINITION: Final = re.compile(r"#/(?:\$defs|definitions)/[^/]+")
_NAMES: Final = frozenset({"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"})
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


def modern(schema: JsonObject) -> JsonObject:
    """The schema in 2020-12's words, its references all into its `$defs`."""
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

    def _converted(self, part: Any) -> Any:
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
            elif key in BY_NAME and isinstance(value, dict):
                plain[key] = {name: self._converted(child) for name, child in value.items()}
            elif key == "items" and isinstance(value, list):
                plain["prefixItems"] = [self._converted(child) for child in value]
                if "additionalItems" in part:
                    plain["items"] = self._converted(part["additionalItems"])
            elif key in LISTS and isinstance(value, list):
                plain[key] = [self._converted(child) for child in value]
            elif key in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
                if value and (limit := key.removeprefix("exclusive").lower()) in part:
                    plain[key] = part[limit]
            elif key in SINGLE:
                if key != "additionalItems":
                    plain[key] = self._converted(value)
            else:
                plain[key] = value
        return plain

    def _dependencies(self, plain: JsonObject, rules: JsonObject) -> None:
        for name, rule in rules.items():
            keyword = "dependentRequired" if isinstance(rule, list) else "dependentSchemas"
            plain.setdefault(keyword, {})[name] = rule if isinstance(rule, list) else self._converted(rule)

    def _reference(self, reference: str) -> str | None:
        """The reference into `$defs`; `None` where it leads out of the document's own words."""
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
