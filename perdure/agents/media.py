"""Files in Python: parameters and results of tools, inputs of runs, and outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, SchemaSerializer, core_schema

from perdure.errors import MediaError, clip
from perdure.values.json import JsonObject
from perdure.values.limits import MAX_MEDIA, bytes_text
from perdure.values.media import MEDIA_KEY, MediaValue, media_lines, media_of, read_media


class Media:
    """A file as a value: `{"_media": "sha256:…", "type", "bytes", "name"}`, whose bytes no history holds.

    `path`: the file to read. `data`: its bytes, in place of a path. `name`: the name for people (default: the path's).
    The type is found from the bytes. Raises `MediaError` for a file of more than `MAX_MEDIA` bytes, `OSError` for one
    that cannot be read.

    ```python
    @tool
    def shorten(report: Media) -> Media:
        return Media(data=report.read()[:1000], name=f"short {report.name}")
    ```
    """

    # R20.3

    _kind: ClassVar[str] = ""
    """The beginning of its types."""
    __pydantic_serializer__: ClassVar[SchemaSerializer]
    """Serializer of a file without an annotation."""

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, data: bytes | None = None, name: str = ""
    ) -> None:
        if (path is None) == (data is None):
            raise TypeError(f"{type(self).__name__} needs a path, or data=…")
        if path is not None:
            try:
                if (size := Path(path).stat().st_size) > MAX_MEDIA:
                    raise MediaError(f"{path} has {bytes_text(size)}; the limit is {MAX_MEDIA:,}")
                data, name = Path(path).read_bytes(), name or Path(path).name
            except OSError as error:
                raise MediaError(f"{path} cannot be read: {error.strerror}") from None
            except TypeError:
                raise MediaError(f"{type(self).__name__} needs a path, not {clip(repr(path), 60)}") from None
        self._data: bytes | None = bytes(data or b"")
        self._value = media_of(self._data, name)
        self._check()

    @classmethod
    def _of(cls, value: MediaValue, data: bytes | None = None) -> Self:
        file = cls.__new__(cls)
        file._value, file._data = value, data
        file._check()
        return file

    def _check(self) -> None:
        if not self.type.startswith(self._kind):
            raise MediaError(f"{self.name or 'the file'} is {self.type}; expected {self._kind}*")
        if self.size > MAX_MEDIA:
            raise MediaError(f"{self.name or 'the file'} has {bytes_text(self.size)}; the limit is {MAX_MEDIA:,}")

    @property
    def value(self) -> MediaValue:
        """The file as a value."""
        return self._value

    @property
    def digest(self) -> str:
        """`sha256:` and 64 hexadecimal digits: the same for the same bytes."""
        return self._value.digest

    @property
    def type(self) -> str:
        """The media type, such as `image/png`, found from the bytes."""
        return self._value.type

    @property
    def size(self) -> int:
        """The number of its bytes."""
        return self._value.bytes

    @property
    def name(self) -> str:
        """The name for people; empty: it has none."""
        return self._value.name

    @property
    def is_loaded(self) -> bool:
        """Whether its bytes are here."""
        return self._data is not None

    def read(self) -> bytes:
        """Return the bytes. Raises `MediaError` where they were not loaded: see `Perdure.load_media`.

        ```python
        assert Media(data=b"a,b", name="a.csv").read() == b"a,b"
        ```
        """
        if self._data is None:
            raise MediaError(
                f"the bytes of {self._value.line} are not loaded: load them with `await perdure.load_media(…)`"
            )
        return self._data

    def _load(self, data: bytes) -> None:
        self._value, self._data = media_of(data, self.name), data
        self._check()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Media) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._value.line})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._read, serialization=_WRITER)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonObject:
        # A model may write the line of a file that it has read; a reference passes any other value.
        written: JsonObject = {
            "type": "object",
            "properties": {MEDIA_KEY: {"type": "string"}, "type": {"type": "string"}, "bytes": {"type": "integer"}},
            "required": [MEDIA_KEY, "type", "bytes"],
        }
        written["properties"]["name"] = {"type": "string"}
        if handler.mode == "serialization":
            return written
        return {"anyOf": [written, {"type": "string", "description": "the line of a file, as in the text"}]}

    @classmethod
    def _read(cls, value: Any) -> Self:
        if isinstance(value, Media):
            file = value if isinstance(value, cls) else cls._of(value.value, value._data)
        else:
            found = next(media_lines(value), None) if isinstance(value, str) else read_media(value)
            if found is None:
                kind = f"{cls._kind}* " if cls._kind else ""
                raise ValueError(
                    f"expected a {kind}file, {{{MEDIA_KEY!r}: 'sha256:…', 'type', 'bytes'}}, by reference or by its line; "
                    f"got {clip(repr(value), 80)}"
                )
            try:
                file = cls._of(found)
            except MediaError as error:
                raise ValueError(str(error)) from None
        _note(file)
        return file


class Image(Media):
    """A picture as a value: a `Media` whose type is `image/…`.

    ```python
    @tool
    def chart(pixels: list[int]) -> Image:
        return Image(data=b"GIF89a" + bytes(pixels), name="chart.gif")
    ```
    """

    _kind = "image/"


def media_without_bytes(value: MediaValue) -> Media:
    """Return the file of a value, whose bytes have to be loaded. Raises `MediaError` for one that is too large."""
    return Media._of(value)


def fill_media(file: Media, data: bytes) -> None:
    """Give a file the bytes of its digest. They alone decide its type. Raises `MediaError` for another type."""
    file._load(data)


_met: ContextVar[list[Media] | None] = ContextVar("met", default=None)


def _note(file: Media) -> None:
    if (met := _met.get()) is not None:
        met.append(file)


def _write(file: Media) -> JsonObject:
    _note(file)
    return file.value.as_json()


_WRITER: Final = core_schema.plain_serializer_function_ser_schema(_write)
Media.__pydantic_serializer__ = SchemaSerializer(core_schema.any_schema(serialization=_WRITER))


@contextmanager
def media_met() -> Iterator[list[Media]]:
    """Yield a list that collects every file that is written as JSON, or read from it, in the context."""
    met: list[Media] = []
    token = _met.set(met)
    try:
        yield met
    finally:
        _met.reset(token)
