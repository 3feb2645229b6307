"""Values that match a JSON Schema, from a seed or from hypothesis."""

from __future__ import annotations

import importlib
import math
import random
import string
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from perdure.values.json import Json, JsonObject, shorten
from perdure.values.schemas import Schema

T = TypeVar("T")
_LETTERS: Final = string.ascii_lowercase + "  "
_DEEP: Final = 4
"""The depth from which only required values are made."""
_TRIES: Final = 20
_FORMATS: Final = {
    "date-time": "2026-11-21T12:00:00Z",
    "date": "2026-11-21",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "someone@example.com",
    "uri": "https://example.com/a",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "12345678-1234-4234-8234-123456789abc",
}


class CannotMakeError(ValueError):
    """A schema for which no value was found. The message names the schema, and a remedy.

    ```python
    try:
        await local.run()
    except CannotMakeError as error:
        print(error)
    ```
    """


class Chooser(Protocol):
    """A source of choices between possible values."""

    def integer(self, low: int, high: int) -> int: ...

    def choose(self, options: Sequence[T]) -> T: ...


class Seeded:
    """A source of choices that depend only on the seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - nothing secret is made of it

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def choose(self, options: Sequence[T]) -> T:
        return self._random.choice(options)


def make(schema: Json, chooser: Chooser, *, what: str = "a value") -> Json:
    """Return a value that matches the schema. Raises `CannotMakeError` if it finds none, e.g. for a `not` or for
    dependent parts.
    """
    if not isinstance(schema, dict | bool):
        raise CannotMakeError(f"{what}: {shorten(schema, 80)} is not a JSON Schema")
    wanted = Schema(schema if isinstance(schema, dict) else {} if schema else {"not": {}})
    problems: list[str] = []
    for _ in range(_TRIES):
        value = _ValueMaker(wanted.schema, chooser).make(wanted.schema, 0)
        problems = wanted.errors(value)
        if not problems:
            return value
    raise CannotMakeError(
        f"no value was found for {what} ({problems[0]}): add one to the schema's `examples`, or pass it"
    )


class _ValueMaker:
    def __init__(self, root: JsonObject, chooser: Chooser) -> None:
        self._root, self._chooser = root, chooser

    def make(self, schema: Json, depth: int) -> Json:
        if not isinstance(schema, dict):
            return "value"
        if "$ref" in schema:
            there = self._resolve(str(schema["$ref"]))
            return self.make(_joined(there, {key: value for key, value in schema.items() if key != "$ref"}), depth)
        if "const" in schema:
            return schema["const"]
        for key in ("enum", "examples"):
            if isinstance(values := schema.get(key), list) and values:
                return self._chooser.choose(values)
        for key in ("anyOf", "oneOf"):
            if isinstance(several := schema.get(key), list) and several:
                options = [each for each in several if depth < _DEEP or each != {"type": "null"}]
                if depth >= _DEEP and {"type": "null"} in several:
                    options = [{"type": "null"}]
                chosen = self._chooser.choose(options)
                return self.make(_joined({k: v for k, v in schema.items() if k != key}, chosen), depth)
        if isinstance(parts := schema.get("allOf"), list):
            joined = {key: value for key, value in schema.items() if key != "allOf"}
            for part in parts:
                if isinstance(part, dict) and "$ref" in part:
                    part = self._resolve(str(part["$ref"]))
                joined = _joined(joined, part)
            return self.make(joined, depth)
        return self._of_type(schema, depth)

    def _of_type(self, schema: JsonObject, depth: int) -> Json:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self._chooser.choose(kind)
        if kind is None:
            kind = next((name for name, keys in _IMPLIED.items() if keys & schema.keys()), "string")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind in ("integer", "number"):
            return self._number(schema, whole=kind == "integer")
        if kind == "boolean":
            return self._chooser.choose([True, False])
        return None if kind == "null" else self._text(schema)

    def _object(self, schema: JsonObject, depth: int) -> JsonObject:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        optional = [name for name in properties if name not in required and depth < _DEEP]
        chosen = [*required, *(name for name in optional if self._chooser.choose([True, False]))]
        made = {name: self._property(properties.get(name, {}), name in required, depth + 1) for name in chosen}
        more = schema.get("additionalProperties", True)
        while len(made) < schema.get("minProperties", 0):
            made[f"key{len(made)}"] = self.make({} if more is True else more, depth + 1)
        return made

    def _property(self, schema: Json, required: bool, depth: int) -> Json:
        if not required and isinstance(schema, dict) and "default" in schema:
            return schema["default"]
        return self.make(schema, depth)

    def _array(self, schema: JsonObject, depth: int) -> list[Json]:
        low = schema.get("minItems", 0)
        high = min(schema.get("maxItems", low + 2), low + (2 if depth < _DEEP else 0))
        first = schema.get("prefixItems", [])
        count = self._chooser.integer(low, max(low, high))
        items = [first[n] if n < len(first) else schema.get("items", {}) for n in range(max(count, len(first)))]
        made: list[Json] = []
        for item in items:
            value = self.make(item, depth + 1)
            for _ in range(_TRIES):
                if not (schema.get("uniqueItems") and value in made):
                    break
                value = self.make(item, depth + 1)
            made.append(value)
        return made

    def _number(self, schema: JsonObject, *, whole: bool) -> int | float:
        step = schema.get("multipleOf", 1 if whole else 0.5)
        low = schema.get("minimum", schema.get("exclusiveMinimum", min(0, schema.get("maximum", 0) - 100 * step)))
        high = schema.get("maximum", schema.get("exclusiveMaximum", max(low, 0) + 100 * step))
        least, most = math.ceil(low / step), math.floor(high / step)
        least += least * step == schema.get("exclusiveMinimum")
        most -= most * step == schema.get("exclusiveMaximum")
        if least > most:
            return float(low + high) / 2
        made = self._chooser.integer(least, most) * step
        return int(made) if whole else made

    def _text(self, schema: JsonObject) -> str:
        if isinstance(schema.get("format"), str) and schema["format"] in _FORMATS:
            return _FORMATS[schema["format"]]
        if isinstance(schema.get("pattern"), str):
            return self._matching(schema["pattern"])
        low = schema.get("minLength", 1)
        high = min(schema.get("maxLength", low + 8), low + 8)
        length = self._chooser.integer(min(low, high), high)
        return "".join(self._chooser.choose(_LETTERS) for _ in range(length))

    def _matching(self, pattern: str) -> str:
        parser: Any = importlib.import_module("re._parser")
        try:
            return self._of_pattern(parser.parse(pattern))
        except (ValueError, RecursionError, OverflowError, re_error):
            return ""

    def _of_pattern(self, parts: Any) -> str:
        made = ""
        for operation, argument in parts:
            name = str(operation)
            if name == "LITERAL":
                made += chr(argument)
            elif name in ("MAX_REPEAT", "MIN_REPEAT"):
                low, high, inner = argument
                made += "".join(self._of_pattern(inner) for _ in range(self._chooser.integer(low, min(high, low + 3))))
            elif name == "SUBPATTERN":
                made += self._of_pattern(argument[3])
            elif name == "BRANCH":
                made += self._of_pattern(self._chooser.choose(argument[1]))
            elif name in ("ANY", "NOT_LITERAL"):
                made += "x" if argument != ord("x") else "y"
            elif name == "IN":
                made += self._in(argument)
        return made

    def _in(self, items: Any) -> str:
        if str(items[0][0]) == "NEGATE":
            taken = items[1:]
            free = [c for c in string.ascii_letters + string.digits + "-_ " if not any(_has(i, c) for i in taken)]
            return self._chooser.choose(free or ["x"])
        name, argument = self._chooser.choose(items)
        if str(name) == "RANGE":
            return chr(self._chooser.integer(*argument))
        if str(name) == "CATEGORY":
            return self._chooser.choose(_CATEGORIES.get(str(argument), "x"))
        return chr(argument)

    def _resolve(self, reference: str) -> JsonObject:
        found: Any = self._root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                found = found.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
        return found if isinstance(found, dict) else {}


_IMPLIED: Final = {
    "object": {"properties", "required", "minProperties"},
    "array": {"items", "prefixItems", "minItems"},
    "number": {"minimum", "maximum", "multipleOf"},
}
"""The type that a keyword implies in a schema without `type`."""
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_WORD": string.ascii_letters,
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_NOT_SPACE": string.ascii_letters,
    "CATEGORY_NOT_WORD": "-",
}
re_error: Final = importlib.import_module("re").error


def _has(item: Any, character: str) -> bool:
    name, argument = str(item[0]), item[1]
    if name == "RANGE":
        return bool(argument[0] <= ord(character) <= argument[1])
    if name == "CATEGORY":
        return character in _CATEGORIES.get(str(argument), "")
    return bool(argument == ord(character))


def _joined(one: Json, other: Json) -> JsonObject:
    """Return one schema for both, as far as one schema can express that."""
    first: JsonObject = one if isinstance(one, dict) else {}
    second: JsonObject = other if isinstance(other, dict) else {}
    joined = {**first, **second}
    for key in ("properties", "$defs"):
        if key in first and key in second:
            joined[key] = {**first[key], **second[key]}
    if "required" in first and "required" in second:
        joined["required"] = list(dict.fromkeys([*first["required"], *second["required"]]))
    return joined
