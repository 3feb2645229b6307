"""JSON values: bounded parsing and encoding, camelCase models, and packed text."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeAlias, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import to_jsonable_python

from perdure.errors import JsonError, ProtocolError, TooLargeError, clip

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
    ReadOnlyJson: TypeAlias = "Mapping[str, ReadOnlyJson] | Sequence[ReadOnlyJson] | str | int | float | bool | None"
    """JSON that is only read: it accepts also a `list[str]`, which is not a `list[Json]`."""
else:
    # A model's field of this type keeps its value unchanged. pydantic would validate and copy it, but the identity of a
    # value is its key in `Sizes`.
    Json = ReadOnlyJson = Any
_EXACT: Final = 2.0**53
"""Below it, every whole number has a distinct float."""
SchemaPart: TypeAlias = Any
"""A part of a schema. The meta-schema, which checks it before or later, defines the types of the keywords' values."""
JsonObject: TypeAlias = dict[str, Any]
"""An object whose reader knows its keys: a schema, or the code that wrote it, defines the types of their values."""
PathPart: TypeAlias = str | int
T = TypeVar("T")

MAX_DIGITS = 4000
"""Maximum of digits of an integer. Python parses at most 4,300, so a longer one could be written, but not parsed again.
"""
LONG_INTEGER = f"an integer of more than {MAX_DIGITS:,} digits"
_MAX_BITS = int(MAX_DIGITS * 3.32)
MAX_DEPTH = 100
"""Maximum of levels of nested arrays and objects. Deeper values are refused: functions over values are recursive, and
real data is never that deep.
"""

_SURROGATE: Final = "has an unpaired surrogate, which is not a character"

MAX_PASSED = 170
"""Maximum of levels of parameters with the values of their references. A payload's parser accepts 200, and a view and a
delegate's input need some of them.
"""


def loads(text: str | bytes, *, source: str = "the JSON", most: int | None = None) -> Json:
    """Parse a whole document; `most`: the maximum of its values, with each key, item and text counted.

    Raises `TooLargeError` for more values. Raises `JsonError` with line and column for a syntax error, for `NaN`, and
    for values that Perdure cannot carry: numbers that overflow to infinity or have more than `MAX_DIGITS` digits,
    unpaired surrogates, more than `MAX_DEPTH` levels.
    """
    if most is not None and isinstance(text, bytes) and _has_more(text, most):
        raise _too_many(source, most)
    try:
        value: Json = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise JsonError(
            f"{source} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except UnicodeDecodeError as error:
        raise JsonError(f"{source} is not UTF-8 text: byte {error.start}") from None
    except RecursionError:
        raise JsonError(f"{source} is nested too deeply; at most {MAX_DEPTH} levels are allowed") from None
    except ValueError as error:
        if is_long_integer(error):
            raise JsonError(f"{source} has {LONG_INTEGER}") from None
        raise JsonError(f"{source} is not valid JSON: {error}") from None
    check(value, source=source, most=most)
    return value


def is_long_integer(error: Exception) -> bool:
    """Whether Python has refused to parse an integer because of its length. Its message is about a setting of Python."""
    return "integer string conversion" in str(error)


def loads_commented(text: str | bytes, *, source: str = "the JSON") -> Json:
    """Parse a document of a person, which may have `//` and `/* */`, and a comma after the last item (R2.9). Raises
    `JsonError`.
    """
    try:
        plain = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        return loads(text, source=source)
    try:
        return loads(plain, source=source)
    except JsonError:
        return loads(without_comments(plain), source=source)


def without_comments(text: str) -> str:
    """Return the text with blanks in place of comments and last commas, so that lines and columns stay the same."""
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(lambda found: found[1] or _NO_LINE_END.sub(" ", found[0]), text)
    return text


_NO_LINE_END = re.compile(r"[^\n]")
# A text or a comment without an end stays and is skipped as a whole: the search does not begin in it repeatedly.
_TEXT = r'"(?:[^"\\\n]|\\.)*\\?(?:"|(?=\n|\Z))'
_COMMENT = re.compile(rf"({_TEXT}|/\*(?:(?!\*/).)*\Z)|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"({_TEXT}|[\[{{,]\s*,)|,(?=\s*[\]}}])", re.DOTALL)
"""A comma that follows no item stays, because it is a mistake."""


def check(value: Json, *, source: str = "the JSON", most: int | None = None) -> None:
    """Raise `JsonError`, or `TooLargeError`, unless Perdure can carry the value as JSON: see `loads`."""
    left = most
    # An explicit stack: the value may be deeper than Python's own allows.
    stack: list[tuple[Json, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, str):
            _check_text(item, source)
        elif isinstance(item, float) and not math.isfinite(item):
            raise JsonError(f"{source} has a number outside the range of a 64-bit float")
        elif isinstance(item, int):
            if item.bit_length() > _MAX_BITS:
                raise JsonError(f"{source} has {LONG_INTEGER}")
        elif isinstance(item, dict | list):
            if depth > MAX_DEPTH:
                raise JsonError(f"{source} is nested too deeply; at most {MAX_DEPTH} levels are allowed")
            if left is not None and (left := left - len(item)) < 0:
                raise _too_many(source, most)
            if isinstance(item, dict):
                for key in item:
                    if not isinstance(key, str):
                        raise JsonError(f"{source} has a key that is not text, but {type(key).__name__}")
                    _check_text(key, source)
                stack.extend((child, depth + 1) for child in item.values())
            else:
                stack.extend((child, depth + 1) for child in item)
        elif item is not None and not isinstance(item, float):
            raise JsonError(f"{source} has {type(item).__name__}, which is not JSON")


# `Any`: the caller knows the type of what it wrote, and an adapter may be of any type.
def to_json(value: object, *, source: str, adapter: TypeAdapter[Any] | None = None) -> Any:
    """Return a Python value as JSON, as pydantic writes it: by the `adapter`, or else by the value's own type.

    Raises `JsonError`, of one line. `check` finds the values that are JSON, but outside Perdure's limits.
    """
    try:
        if adapter is None:
            return to_jsonable_python(value, by_alias=True)
        return adapter.dump_python(value, mode="json", by_alias=True, warnings="none")
    except UnicodeEncodeError:  # by a key
        raise JsonError(f"{source} {_SURROGATE}") from None
    except UnicodeDecodeError as error:
        raise JsonError(f"{source} has bytes that are not UTF-8 text: byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        if is_long_integer(error):
            raise JsonError(f"{source} has {LONG_INTEGER}") from None
        reason = clip(escape_surrogates(" ".join(str(error).split())))
        raise JsonError(f"{source} cannot be written as JSON: {reason}") from None


def _has_more(text: bytes, most: int) -> bool:
    """Whether JSON text certainly has more values than `most`, by its commas and brackets outside of texts.

    The parser holds the interpreter's lock until it is done: 4 MB of small lists take it 100 laps of `tests/cpu.py`;
    this function takes 5.
    """
    if len(text) < most:
        return False
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = text.split(b'"', 4 * most + 3)
    if len(parts) > 4 * most + 3:  # each text has two quotes; each value is a text, or has a key that is one
        return True
    outside = b"".join(parts[::2])
    return outside.count(b",") > most or outside.count(b"[") + outside.count(b"{") > most + 1


def _too_many(source: str, most: int | None) -> TooLargeError:
    return TooLargeError(f"{source} has more than {most:,} values: send less at once, or as one text")


def depth_of(value: ReadOnlyJson) -> int:
    """Return the levels of nested arrays and objects, counted up to `MAX_PASSED` and one more: `[[]]` has two."""
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
            raise JsonError(f"{source} {_SURROGATE}") from None


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def dumps(value: ReadOnlyJson, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Return compact JSON (or indented), with unescaped Unicode."""
    if indent is None and not sort_keys:
        return _COMPACT.encode(value)
    separators = None if indent else (",", ":")
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)


_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Made once: `json.dumps` makes an encoder for each value."""


def has_null(value: Json) -> bool:
    """Whether the value has a `null` at any depth."""
    left = [value]
    while left:
        part = left.pop()
        if part is None:
            return True
        if isinstance(part, dict):
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)
    return False


def contains_list(value: Json) -> bool:
    """Return whether a value is a list or holds one."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, list):
            return True
        if isinstance(part, dict):
            left.extend(part.values())
    return False


def escape_surrogates(text: str) -> str:
    """Return the text as it can be printed and sent: an unpaired surrogate is written `\\ud800`."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def shorten(value: ReadOnlyJson, limit: int = 120) -> str:
    """Return the value as one line of at most about `limit` characters, by which a person or a model recognises it."""
    if isinstance(value, str) and len(value) > 10 * limit:
        return f"{_quoted(value[:limit])[: limit - 1]}… ({len(value)} characters)"
    if isinstance(value, dict | list) and len(value) > 10 * limit:
        kept = dict(islice(value.items(), limit)) if isinstance(value, dict) else value[:limit]
        return f"{_quoted(kept)[: limit - 1]}… ({len(value)} items)"
    text = _quoted(value)
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1]}… ({len(text)} characters)"


def _quoted(value: ReadOnlyJson) -> str:
    return escape_surrogates(json.dumps(value, ensure_ascii=False, default=str))


def json_path(parts: Iterable[PathPart]) -> str:
    """Return the path in a document in JSONPath's notation: `$.items[0]["odd key"]`."""
    return "$" + "".join(path_step(part) for part in parts)


def path_step(part: PathPart) -> str:
    """Return one step of a path in the notation of references: `.name`, `[0]` or `["odd key"]` (R3.2)."""
    if isinstance(part, int):
        return f"[{part}]"
    if part and not any(character in RESERVED or character.isspace() for character in part):
        return f".{part}"
    return f"[{dumps(part)}]"


RESERVED = frozenset('.[](){}|&†"')
"""Characters that a plain name in a reference cannot hold; such keys are written `["odd key"]` (R3.2)."""


class UnreadArgument(str):
    """The substitute for an argument that could not be decoded: its text is the reason. Handlers that accept any value
    treat it as an invalid text.
    """

    waits = False
    """A worker with other keys may be able to read it."""


class Sent(tuple["Json", ...], Generic[T]):
    """The arguments of a handler that expects one `T`, decoded but not validated."""


def _check_time(text: str) -> str:
    _TIMESTAMP.validate_python(text)
    return text


_TIMESTAMP: Final = TypeAdapter(AwareDatetime)
_TIMESTAMP_FORM: Final = r"^[12][0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{3}([0-9]{3})?)?(Z|[+-][01][0-9]:[0-5][0-9])$"
"""The form that `datetime.fromisoformat` reads in every version of Python 3.11 and later."""
Timestamp: TypeAlias = Annotated[str, Field(pattern=_TIMESTAMP_FORM), AfterValidator(_check_time)]
"""A time in ISO 8601 with its zone, as workflows write it. A memo of another program may have any text in its place."""


class WireModel(BaseModel):
    """A model that crosses a boundary: camelCase JSON, without unknown keys."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    def as_json(self) -> JsonObject:
        return self.model_dump(mode="json", by_alias=True)


def fields_as_json(instance: DataclassInstance, **names: str) -> JsonObject:
    """Return a dataclass's public fields with the keys that a `WireModel` has. `names`: other keys, by field."""
    return {
        names.get(field.name, to_camel(field.name)): _plain_field(getattr(instance, field.name))
        for field in fields(instance)
        if not field.name.startswith("_")
    }


def _plain_field(value: object) -> object:
    if isinstance(value, list):
        return [_plain_field(each) for each in value]
    if hasattr(value, "isoformat"):  # a date or a time
        return value.isoformat()
    return value.as_json() if hasattr(value, "as_json") else value


class ValuePage(WireModel):
    """A page of a value's JSON, as a run returns it."""

    text: str
    next: int | None = None
    """The offset, in characters, of the next page; `None`: this was the last."""
    earlier: bool = False
    """Whether only an earlier execution has the whole value: query the predecessor of this execution."""


M = TypeVar("M", bound=BaseModel)


class Packed(WireModel):
    """A model as packed text, with the version of its form: another version of the code refuses it, and misreads
    nothing.
    """

    form: int
    data: str

    def read(self, kind: type[M], form: int, what: str) -> M:
        """Return the packed model. Raises `ProtocolError` if the form differs, or the data does not fit it."""
        if self.form != form:
            raise ProtocolError(
                f"{what} has form {self.form}, and this worker reads form {form}: deploy the one that wrote it"
            )
        try:
            return kind.model_validate_json(zlib.decompress(base64.b64decode(self.data)))
        except (ValueError, zlib.error, ValidationError) as error:
            raise ProtocolError(f"{what} cannot be read: {str(error)[:200]}") from None


def pack(data: BaseModel, form: int) -> Packed:
    """Return the model as packed text, ten times shorter than JSON with many repetitions, as in a list of calls or of
    tools.
    """
    return pack_json(json_bytes(data), form)


def json_bytes(data: BaseModel) -> bytes:
    """Return the model as JSON without defaults, as `pack` packs it."""
    return data.model_dump_json(exclude_defaults=True).encode()


def pack_json(written: bytes, form: int) -> Packed:
    """Return the JSON of a model as packed text."""
    return Packed(form=form, data=base64.b64encode(zlib.compress(written, 1)).decode())


def map_leaves(value: Json, change: Callable[[Json], Json]) -> Json:
    """Return a copy of the value with `change` applied to everything in it that is not an object or an array."""
    if isinstance(value, dict):
        return {key: map_leaves(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [map_leaves(each, change) for each in value]
    return change(value)


def whole_numbers(value: Json) -> Json:
    """Return the value with integers for numbers without a fraction, because some protocols have only floats."""
    return map_leaves(value, _whole_number)


def _whole_number(value: Json) -> Json:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else value
