"""Literals of another type than their schema's, converted where nothing is lost: `"71"` to 71, `1` to `"1"` (R5.13)."""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal
from typing import Final

from perdure.errors import JsonError
from perdure.values.jsons import Json, dumps, json_path, loads, shorten
from perdure.values.limits.steps import Checks
from perdure.values.references import Path
from perdure.values.schemas import Schema
from perdure.values.templates import EXPR, has_reference

_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?")
"""Numbers whose digits a float keeps, so that the text can be had back."""
_MOST: Final = 1000
"""Literals of one call that are looked at: each is checked by itself, within a task."""


def convert_literals(value: Json, schema: Schema, checks: Checks | None = None) -> tuple[Json, list[str]]:
    """Return the value with the literals that fit their schema once converted, and a note of each conversion."""
    return _Conversion(schema, checks).convert(value, ())


class _Conversion:
    def __init__(self, schema: Schema, checks: Checks | None) -> None:
        self._schema, self._checks, self._left = schema, checks, _MOST

    def convert(self, value: Json, path: Path) -> tuple[Json, list[str]]:
        if isinstance(value, dict):
            if EXPR in value:
                return value, []
            found = {key: self.convert(child, (*path, key)) for key, child in value.items()}
            return {key: child for key, (child, _) in found.items()}, [n for _, notes in found.values() for n in notes]
        if isinstance(value, list):
            items = [self.convert(child, (*path, index)) for index, child in enumerate(value)]
            return [child for child, _ in items], [note for _, notes in items for note in notes]
        return self._literal(value, path)

    def _literal(self, value: Json, path: Path) -> tuple[Json, list[str]]:
        self._left -= 1
        if self._left < 0 or (other := _other(value)) is None:
            return value, []
        schemas = self._schema.at(path) or []
        if not schemas or self._fits(value, schemas) or not self._fits(other, schemas):
            return value, []
        return other, [f"{json_path(path)} was {shorten(value, 60)} and is taken as {shorten(other, 60)}"]

    def _fits(self, value: Json, schemas: list[Schema]) -> bool:
        return all(schema.fits(value, checks=self._checks) for schema in schemas)


def _other(value: Json) -> Json:
    """The one value of another type that says the same; `None` where there is none."""
    if isinstance(value, bool | int | float):
        return dumps(value)
    if not isinstance(value, str) or has_reference(value):
        return None
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if match := _NUMBER.fullmatch(text):
        number = float(text) if match[2] else int(text)
        return number if Decimal(text) == Decimal(dumps(number)) else None
    if text[:1] in ("[", "{"):
        with suppress(JsonError):
            return loads(text)
    return None
