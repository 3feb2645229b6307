"""JSON values: bounded parsing and encoding, camelCase models, and packed text."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from perdure.errors import JsonError, ProtocolError, TooLargeError

Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]
PathPart: TypeAlias = str | int

MAX_DIGITS = 4000
"""Of an integer. Python reads no more than 4,300 from text, so a longer one could be written and not read again."""
_MAX_BITS = int(MAX_DIGITS * 3.32)
MAX_DEPTH = 100
"""Nested arrays and objects. Deeper is refused: every walk over a value is recursive, and no real data is that deep."""

MAX_PASSED = 170
"""The same of parameters with the values in them that they refer to. What reads a payload takes 200, of which a view and what a
delegate is started with have some for themselves."""


def loads(text: str | bytes, *, source: str = "the JSON", most: int | None = None) -> Json:
    """Parse a whole document; `most`: values that it may have, each key, item and text counted.

    Raises `TooLargeError` for more values than that, and `JsonError` with line and column for a syntax error, and for what no JSON has (`NaN`) or Perdure cannot carry
    (numbers that overflow to infinity or have more than `MAX_DIGITS` digits, unpaired surrogates, more than `MAX_DEPTH` levels).
    """
    if most is not None and isinstance(text, bytes) and _has_more(text, most):
        raise _too_many(source, most)
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise JsonError(
            f"{source} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except UnicodeDecodeError as error:
        raise JsonError(f"{source} is not UTF-8 text: byte {error.start}") from None
    except RecursionError:
        raise JsonError(f"{source} is nested too deeply; at most {MAX_DEPTH} levels are allowed") from None
    except ValueError as error:
        raise JsonError(f"{source} is not valid JSON: {error}") from None
    check(value, source=source, most=most)
    return value


def loads_commented(text: str | bytes, *, source: str = "the JSON") -> Json:
    """The same for what a person writes: with `//` and `/* */`, and a comma after the last item (R2.9). Raises `JsonError`."""
    try:
        plain = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        return loads(text, source=source)
    try:
        return loads(plain, source=source)
    except JsonError:
        return loads(without_comments(plain), source=source)


def without_comments(text: str) -> str:
    """The text with blanks in the place of what no JSON has, so that line and column stay where they were."""
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(lambda found: found[1] or _NO_LINE_END.sub(" ", found[0]), text)
    return text


_NO_LINE_END = re.compile(r"[^\n]")
# A text or a comment without an end is left as it is, and passed over: what follows in it is not looked at again and again.
_TEXT = r'"(?:[^"\\\n]|\\.)*\\?(?:"|(?=\n|\Z))'
_COMMENT = re.compile(rf"({_TEXT}|/\*(?:(?!\*/).)*\Z)|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"({_TEXT}|[\[{{,]\s*,)|,(?=\s*[\]}}])", re.DOTALL)
"""A comma that follows no item is left where it is: it is a mistake."""


def check(value: Json, *, source: str = "the JSON", most: int | None = None) -> None:
    """Raise `JsonError`, or `TooLargeError`, unless the value can be written as JSON and carried: see `loads`."""
    left = most
    # An explicit stack: the value may be deeper than Python's own.
    stack: list[tuple[Json, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, str):
            _check_text(item, source)
        elif isinstance(item, float) and not math.isfinite(item):
            raise JsonError(f"{source} has a number outside the range of a 64-bit float")
        elif isinstance(item, int):
            if item.bit_length() > _MAX_BITS:
                raise JsonError(f"{source} has an integer of more than {MAX_DIGITS:,} digits")
        elif isinstance(item, dict | list):
            if depth > MAX_DEPTH:
                raise JsonError(f"{source} is nested too deeply; at most {MAX_DEPTH} levels are allowed")
            if left is not None and (left := left - len(item)) < 0:
                raise _too_many(source, most)
            if isinstance(item, dict):
                for key in item:
                    if not isinstance(key, str):
                        raise JsonError(f"{source} has a key that is no text, but {type(key).__name__}")
                    _check_text(key, source)
                stack.extend((child, depth + 1) for child in item.values())
            else:
                stack.extend((child, depth + 1) for child in item)
        elif item is not None and not isinstance(item, float):
            raise JsonError(f"{source} has {type(item).__name__}, which is no JSON")


def _has_more(text: bytes, most: int) -> bool:
    """Whether JSON text surely has more values than `most`, by its commas and brackets outside of texts.

    The parser holds the interpreter's lock until it is done: 4 MB of small lists take it 100 laps of `tests/cpu.py`, this takes 5.
    """
    if len(text) < most:
        return False
    parts = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 4 * most + 3)
    if len(parts) > 4 * most + 3:  # each text has two quotes; each value is a text, or has a key that is one
        return True
    outside = b"".join(parts[::2])
    return outside.count(b",") > most or outside.count(b"[") + outside.count(b"{") > most + 1


def _too_many(source: str, most: int | None) -> TooLargeError:
    return TooLargeError(f"{source} has more than {most:,} values: send less at once, or as one text")


def depth_of(value: Json) -> int:
    """Levels of arrays and objects inside each other, counted to `MAX_PASSED` and one more: `[[]]` has two."""
    depth, level = 0, [value] if isinstance(value, dict | list) else []
    while level and depth <= MAX_PASSED:
        depth += 1
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
    return depth


def _check_text(text: str, source: str) -> None:
    # `isascii` is a flag lookup; only other text can hold a surrogate.
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise JsonError(f"{source} has an unpaired surrogate, which is no character") from None


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def dumps(value: Json, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Compact JSON (or indented), with Unicode as it is."""
    separators = None if indent else (",", ":")
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)


def has_null(value: Json) -> bool:
    """Whether there is a `null` anywhere in the value."""
    if isinstance(value, dict):
        return any(map(has_null, value.values()))
    return value is None or (isinstance(value, list) and any(map(has_null, value)))


def shorten(value: Json, limit: int = 120) -> str:
    """The value as one line of at most about `limit` characters, for a person or a model to recognise it by."""
    if isinstance(value, str) and len(value) > 10 * limit:
        return f"{json.dumps(value[:limit], ensure_ascii=False, default=str)[: limit - 1]}… ({len(value)} characters)"
    if isinstance(value, dict | list) and len(value) > 10 * limit:
        kept = dict(islice(value.items(), limit)) if isinstance(value, dict) else value[:limit]
        return f"{json.dumps(kept, ensure_ascii=False, default=str)[: limit - 1]}… ({len(value)} items)"
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1]}… ({len(text)} characters)"


def json_path(parts: Iterable[PathPart]) -> str:
    """`$.items[0]["odd key"]`: where in a document, as JSONPath writes it."""
    return "$" + "".join(path_step(part) for part in parts)


def path_step(part: PathPart) -> str:
    """One step of a path as a reference writes it: `.name`, `[0]` or `["odd key"]` (R3.2)."""
    if isinstance(part, int):
        return f"[{part}]"
    if part and not any(character in RESERVED or character.isspace() for character in part):
        return f".{part}"
    return f"[{dumps(part)}]"


RESERVED = frozenset('.[](){}|&†"')
"""Characters that a plain name in a reference cannot hold; such keys are written `["odd key"]` (R3.2)."""


class UnreadArgument(str):
    """In the place of an argument that could not be read: why not. Whoever takes anything that is sent takes this for text that is wrong."""

    waits = False
    """A worker with other keys may be able to read it."""


class WireModel(BaseModel):
    """What crosses a boundary: camelCase JSON, and no key that is not known."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    def as_json(self) -> JsonObject:
        return self.model_dump(mode="json", by_alias=True)


class ValuePage(WireModel):
    """A part of a value's JSON, as a run answers it."""

    text: str
    next: int | None = None
    """The offset, in characters, of the next page; `None`: this was the last."""
    earlier: bool = False
    """It is not known whole here: the execution is to be asked that this one went on from."""


M = TypeVar("M", bound=BaseModel)


class Packed(WireModel):
    """A model as text. Where it is read by another version, the form says so before anything is misread."""

    form: int
    data: str

    def read(self, kind: type[M], form: int, what: str) -> M:
        """What `pack` was given. Raises `ProtocolError` where the form is another, or the data is none of it."""
        if self.form != form:
            raise ProtocolError(
                f"{what} has form {self.form}, and this worker reads form {form}: deploy the one that wrote it"
            )
        try:
            return kind.model_validate_json(zlib.decompress(base64.b64decode(self.data)))
        except (ValueError, zlib.error, ValidationError) as error:
            raise ProtocolError(f"{what} cannot be read: {str(error)[:200]}") from None


def pack(data: BaseModel, form: int) -> Packed:
    """Ten times shorter than the JSON where much repeats, as in a list of calls or of tools."""
    text = base64.b64encode(zlib.compress(data.model_dump_json(exclude_defaults=True).encode(), 1)).decode()
    return Packed(form=form, data=text)
