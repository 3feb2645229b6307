"""Media as values, and long values: their form, and the lines and excerpts that a model reads instead."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, overload

from perdure.errors import RunError
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.limits import MAX_RESULT, bytes_text

MEDIA_KEY: Final = "_media"
"""The key of a value that is a file: `{"_media": "sha256:…", "type": "image/png", "bytes": 33120, "name": "a.png"}`."""
DIGEST: Final = "sha256:[0-9a-f]{64}"
"""The pattern of a file's digest."""
_TYPE: Final = r"[\w.+-]{1,60}/[\w.+-]{1,60}"
_NAME: Final = r'[^\[\]"\\\x00-\x1f\x7f<>{}†]{1,120}'
_IS_DIGEST: Final = re.compile(DIGEST)
_IS_TYPE: Final = re.compile(_TYPE)
_LINE: Final = re.compile(rf"\[({_TYPE}), ([\d,]{{1,20}}) bytes(?:, ({_NAME}))?, ({DIGEST})\]")
_NOT_IN_NAMES: Final = re.compile(r'[\[\]"\\\x00-\x1f\x7f<>{}†/]')
_KEYS: Final = frozenset({MEDIA_KEY, "type", "bytes", "name"})


@dataclass(frozen=True, slots=True)
class MediaValue:
    """A file as a value: its bytes are stored once, by their digest, and not in a history."""

    # R20.3

    digest: str
    """`sha256:` and 64 hexadecimal digits."""
    type: str
    """Media type, found from the bytes."""
    bytes: int
    name: str = ""

    def as_json(self) -> JsonObject:
        """Return the value in its form."""
        named = {"name": self.name} if self.name else {}
        return {MEDIA_KEY: self.digest, "type": self.type, "bytes": self.bytes, **named}

    @property
    def line(self) -> str:
        """The line that represents the file in texts: `[image/png, 33,120 bytes, chart.png, sha256:…]`.

        JSON does not change it, so it can be found in any text.
        """
        named = f", {file_name(self.name)}" if self.name else ""
        return f"[{self.type}, {self.bytes:,} bytes{named}, {self.digest}]"


def file_name(name: str) -> str:
    """Return a file's name without its folders, in characters that a line and a header can hold."""
    return _NOT_IN_NAMES.sub("_", name.replace("\\", "/").rpartition("/")[2]).strip()[-120:]


def is_digest(text: str) -> bool:
    """Return whether a text is the digest of a file."""
    return _IS_DIGEST.fullmatch(text) is not None


def read_media(value: Json) -> MediaValue | None:
    """Return the file of a value; `None` if the value is not a file."""
    if not isinstance(value, dict) or MEDIA_KEY not in value or not value.keys() <= _KEYS:
        return None
    digest, kind, size, name = value[MEDIA_KEY], value.get("type"), value.get("bytes"), value.get("name", "")
    if not (isinstance(digest, str) and is_digest(digest) and isinstance(name, str)):
        return None
    if not (isinstance(kind, str) and _IS_TYPE.fullmatch(kind) and type(size) is int and size >= 0):
        return None
    return MediaValue(digest, kind, size, name)


def media_lines(text: str) -> Iterator[MediaValue]:
    """Yield the files whose lines are in a text."""
    for found in _LINE.finditer(text) if "sha256:" in text else ():
        yield MediaValue(found[4], found[1], int(found[2].replace(",", "") or 0), found[3] or "")


def media_within(value: Json) -> Iterator[MediaValue]:
    """Yield the files of a value: the value itself, its parts, or those of lines in its texts."""
    if isinstance(value, str):
        yield from media_lines(value)
    elif isinstance(value, list):
        for item in value:
            yield from media_within(item)
    elif isinstance(value, dict):
        if (found := read_media(value)) is not None:
            yield found
        else:
            for item in value.values():
                yield from media_within(item)


def with_lines(value: Json) -> Json:
    """Return the value with each file replaced by its line."""
    if isinstance(value, list):
        return [with_lines(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = read_media(value)
    return {key: with_lines(item) for key, item in value.items()} if found is None else found.line


# The few types that models read, and those that people often send. They begin with fixed bytes, so a library for a
# thousand types (puremagic, python-magic) is not needed.
_STARTS: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"PK\x03\x04", "application/zip"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
)
_WORDS: Final = (b"ID3", b"BM")
"""The beginnings that a text may also have. In files, zeros follow them."""
PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The types that browsers and models show. They contain no executable code."""
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
_BRANDS: Final = {
    b"M4A ": "audio/mp4", b"avif": "image/avif", b"heic": "image/heic", b"heix": "image/heic", b"qt  ": "video/quicktime",
}  # fmt: skip
_TEXTS: Final = {"csv": "text/csv", "md": "text/markdown", "json": "application/json"}
"""Suffix → type of a text. A page or a drawing in XML is a plain text: no browser may run it."""


def media_type(data: bytes, name: str = "") -> str:
    """Return the type of a file from its bytes; the `name` only decides the type of a text."""
    for start, kind in _STARTS:
        if data.startswith(start) and (start not in _WORDS or b"\0" in data[:10]):
            return kind
    if data[:4] == b"RIFF" and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "video/mp4")
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2:  # a frame of MPEG audio, layer 3
        return "audio/mpeg"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "application/octet-stream" if "\0" in text else _TEXTS.get(name.rpartition(".")[2].lower(), "text/plain")


def is_text(kind: str) -> bool:
    """Return whether files of a type are texts, which every model reads."""
    return kind.startswith("text/") or kind == "application/json"


def media_of(data: bytes, name: str = "") -> MediaValue:
    """Return the value of a file with these bytes."""
    return MediaValue(f"sha256:{hashlib.sha256(data).hexdigest()}", media_type(data, name), len(data), file_name(name))


_BEGINNINGS: Final = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp or audio/wav",
    "JVBERi0": "application/pdf",
    "SUQz": "audio/mpeg",
    "//u": "audio/mpeg",
    "//v": "audio/mpeg",
    "T2dnUw": "application/ogg",
    "ZkxhQ": "audio/flac",
    "GkXfo": "video/webm",
}
"""The beginning of the base64 of a file, for each kind."""
_LEAST: Final = 256
"""Characters. A shorter text costs little, and may only resemble a file."""
_CHARACTERS: Final = r"[A-Za-z0-9+/]"
_EMBEDDED: Final = re.compile(
    rf"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[\w.+-]+)*;base64,({_CHARACTERS}{{32,}}={{0,2}})"
    rf"|(?<!{_CHARACTERS})((?:{'|'.join(map(re.escape, _BEGINNINGS))}){_CHARACTERS}{{{_LEAST},}}={{0,2}})"
)
_SHORTEST: Final = len("data:a/b;base64,") + 32
"""Characters of the shortest text with a file."""
_RUN_LEAST: Final = 2_000
"""Characters of base64 without another sign of a file: addresses, tokens and cursors, which a model may have to copy,
are shorter.
"""
_STRIDE: Final = _RUN_LEAST // 2
"""Distance, in characters, of the places at which a text is examined for such a run."""
_RUNS: Final = (re.compile(r"[A-Za-z0-9+/]*"), re.compile(r"[A-Za-z0-9_-]*"))
_WRAPPED: Final = re.compile(rf"{_CHARACTERS}{{0,100}}(\r?\n|(?:\\r)?\\n)({_CHARACTERS}{{60,100}})\1")
"""Lines of base64 of equal length; in JSON their ends are escaped."""
_SHARES: Final = ((string.ascii_uppercase, 0.3, 0.8), (string.ascii_lowercase, 0.12, 0.5), (string.digits, 0.03, 0.4))
"""Minimum and maximum share of each kind of character in base64 of compressed bytes, programs, sounds and texts in many
languages. Names without blanks have more small letters.
"""
_DIFFERENT: Final = 30
"""Minimum of the 64 characters that a long run of base64 has. There are 22 hexadecimal digits."""
_SAMPLE: Final = 4_096
"""Characters examined at the beginning, in the middle and at the end of a long run. A workflow task has no time for
millions.
"""
_KINDS: Final = ("mimeType", "mime_type", "media_type", "contentType", "content_type")
_BINARY: Final = re.compile(r"(image|audio|video|font)/|application/(pdf|zip|gzip|octet-stream|ogg)")
_BASE64: Final = re.compile(rf"{_CHARACTERS}{{32,}}={{0,2}}")


_MAY_HOLD_FILES: Final = {str, list, dict}
_CHUNK: Final = 100
"""Numbers of a list that are taken together: one by one takes ten times as long."""


class _Runs:
    """The runs of base64 in a text without another sign of a file, in their order.

    A text is examined at every `_STRIDE`th character: without such runs, the cost is far below that of reading the
    text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = _STRIDE
        self._found: tuple[int, int] | None = None

    def next(self, at: int, until: int) -> tuple[int, int] | None:
        """Return the beginning and the end of the first run between two places, or `None`. The places only grow."""
        while self._found is None or self._found[0] < at:
            self._found = None
            self._at = max(self._at, at + _STRIDE)
            if self._at > min(until + _STRIDE, len(self._text)):
                return None
            start, end = self._run()
            if end - start >= _RUN_LEAST and _is_base64(self._text[start:end]):
                self._found = start, end
            self._at = max(self._at, end) + _STRIDE
        return self._found if self._found[0] <= until else None

    def _run(self) -> tuple[int, int]:
        """Return the run of any characters around the present place; an empty run if it is short."""
        text, at = self._text, self._at
        for pattern in _RUNS:
            if (found := pattern.match(text, at)) is not None and found.end() - at >= _STRIDE:
                before = pattern.match(text[max(0, at - _STRIDE) : at][::-1])
                return at - (before.end() if before else 0), found.end() + text.count("=", found.end(), found.end() + 2)
        if (found := _WRAPPED.match(text, at)) is None or len(found[2]) % 4:
            return at, at
        start, length, ending = found.start(2), len(found[2]), found[1]
        line = re.compile(rf"{_CHARACTERS}{{{length}}}{re.escape(ending)}")
        while start - length - len(ending) >= at - _STRIDE and line.match(
            text, max(0, start - length - len(ending)), start
        ):
            start -= length + len(ending)
        end = start
        while (whole := line.match(text, end)) is not None:
            end = whole.end()
        last = re.compile(rf"{_CHARACTERS}{{0,{length}}}={{0,2}}").match(text, end)
        return start, last.end() if last else end


def _is_base64(run: str) -> bool:
    """Return whether the characters of a run have the proportions of base64. For a long run, samples decide."""
    if len(run) > 3 * _SAMPLE:
        middle = len(run) // 2
        run = run[:_SAMPLE] + run[middle : middle + _SAMPLE] + run[-_SAMPLE:]
    run = _on_one_line(run).rstrip("=")
    if len(set(run)) < _DIFFERENT:
        return False
    data = run.encode()
    return all(
        least <= 1 - len(data.translate(None, characters.encode())) / len(data) <= most
        for characters, least, most in _SHARES
    )


def _on_one_line(encoded: str) -> str:
    """Return base64 without the ends of its lines, also if these are escaped as in JSON."""
    if "\n" not in encoded and "\r" not in encoded and "\\" not in encoded:
        return encoded
    return re.sub(r"\\[rn]|[\r\n]", "", encoded)


def _next_file(text: str, at: int, until: int, runs: _Runs) -> tuple[int, int, str] | None:
    """Return the place of the first file in a part of a text, its end, and its description; `None` if there is none."""
    match = _EMBEDDED.search(text, at, until + 2 * _LEAST)
    run = runs.next(at, until)
    if match is not None and match.start() <= until and (run is None or match.start() <= run[0]):
        whole = _EMBEDDED.match(text, match.start()) or match
        return whole.start(), whole.end(), _words(whole)
    if run is None:
        return None
    encoded = text[slice(*run)]
    return *run, describe(_kind(encoded), _on_one_line(encoded))


@overload
def without_media(value: str, *, bare: bool = True) -> str: ...


@overload
def without_media(value: Json, *, bare: bool = True) -> Json: ...


def without_media(value: Json, *, bare: bool = True) -> Json:
    """Return the value with `[image/png, 12,345 bytes, 0123456789ab, left out]` in place of each file as base64, and
    with the line of each file that is a value.

    A file is recognised by a `data:` address, by its beginning, or by a `mimeType` beside it. With `bare` (default),
    long base64 without any of these is also left out, as `data`. That is a guess, so do not use it for stored values.
    """
    if isinstance(value, str):
        return beginning_without_media(value, len(value))[0] if bare else _EMBEDDED.sub(_words, value)
    if isinstance(value, list):
        return [without_media(item, bare=bare) for item in value]
    if not isinstance(value, dict):
        return value
    file = read_media(value)
    return parts_without_media(value, bare=bare) if file is None else file.line


def parts_without_media(value: JsonObject, *, bare: bool = True) -> JsonObject:
    """Return the object with `without_media` of each of its entries."""
    kind = media_kind(value)
    return {key: without_file(kind, key, item) or without_media(item, bare=bare) for key, item in value.items()}


def beginning_without_media(text: str, most: int) -> tuple[str, bool]:
    """Return about the first `most` characters of a text without its media, and whether that is the whole text.

    Each file is described in full, also if it extends beyond the kept part; text far after that is not examined.
    """
    if len(text) < _SHORTEST:
        return text, True
    parts, length, at, runs = list[str](), 0, 0, _Runs(text)
    while length <= most:
        until = at + most - length + _LEAST
        file = _next_file(text, at, until, runs)
        if file is None:
            rest = text[at : until + 1]
            return "".join([*parts, rest]), at + len(rest) == len(text)
        start, end, words = file
        parts += [text[at:start], words]
        length, at = length + start - at + len(words), end
    return "".join(parts), at == len(text)


def first_without_media(value: Json, most: int) -> tuple[Json, bool]:
    """Return the first parts of a value, about `most` characters of JSON, without their media, and whether these are
    all.

    The cost depends on the result and the files in it, not on the value's size.
    """
    left, is_whole = most, True

    def part(item: Json) -> Json:
        nonlocal left, is_whole
        if isinstance(item, str):
            text, whole = beginning_without_media(item, max(left, 0))
            is_whole = is_whole and whole
            left -= len(text) + 2
            return text
        left -= 2
        if isinstance(item, list):
            items: list[Json] = []
            for start in range(0, len(item), _CHUNK) if len(item) >= _CHUNK else ():
                chunk = item[start : start + _CHUNK]
                if {*map(type, chunk)} & _MAY_HOLD_FILES or (length := len(dumps(chunk)) - 1) > left:
                    break
                left -= length
                items += chunk
            for child in islice(item, len(items), None):
                if left < 0:
                    is_whole = False
                    break
                items.append(part(child))
            return items
        if isinstance(item, dict):
            if (file := read_media(item)) is not None:
                left -= len(file.line)
                return file.line
            entries: JsonObject = {}
            kind = media_kind(item)
            for key, child in item.items():
                if left < 0:
                    is_whole = False
                    break
                left -= len(key) + 3
                entries[key] = part(without_file(kind, key, child) or child)
            return entries
        # With the two above, at least the characters of a number in JSON and its comma.
        if isinstance(item, int):
            left -= item.bit_length() // 4
        else:
            left -= 3 if item is None else 1
        return item

    return part(value), is_whole


def beginning_as_text(value: Json, most: int) -> str:
    """Return the first `most` characters of a value's JSON, without its media."""
    text = dumps(first_without_media(value, most)[0])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def all_without_media(value: JsonObject, most: int) -> JsonObject | None:
    """Return `parts_without_media` of an object; `None` if that has more than about `most` characters of JSON."""
    if read_media(value) is not None:  # an object with such entries, not a file
        return parts_without_media(value)
    part, is_whole = first_without_media(value, most)
    return part if is_whole and isinstance(part, dict) else None


def media_kind(value: JsonObject) -> str:
    """Return the kind of file in an object; empty if there is none."""
    kind = next((str(value[key]) for key in _KINDS if isinstance(value.get(key), str)), "")
    return kind if _BINARY.match(kind) else ""


def without_file(kind: str, key: str, item: Json) -> str | None:
    """Return the substitute for an entry of an object that holds a file of this kind; `None` if the entry is not a
    file.
    """
    is_file = bool(kind) and isinstance(item, str) and key not in _KINDS and _BASE64.fullmatch(item)
    return describe(kind, str(item)) if is_file else None


def describe(kind: str, encoded: str) -> str:
    """Return the substitute for a file: its kind, its size, and a digest that distinguishes files."""
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    digest = hashlib.sha256(encoded.encode()).hexdigest()[:12]
    return f"[{kind}, {size:,} bytes, {digest}, left out]"


def _words(found: re.Match[str]) -> str:
    if found[1]:
        return describe(found[1], found[2])
    return describe(_kind(found[3]), found[3])


def _kind(encoded: str) -> str:
    return next((kind for beginning, kind in _BEGINNINGS.items() if encoded.startswith(beginning)), "data")


# Images and other base64 are described. A value of more than `MAX_RESULT` characters is shown as its beginning, with a
# line on how to read the rest. The value itself does not change: a reference passes all of it.

REST: Final = "; the rest: recall]"
"""The end of a text that a transcript has cut."""
PAGE: Final = 12_000
"""Characters of a page of `recall`: slightly less than the maximum of a result."""
_PAGE_AS_JSON: Final = MAX_RESULT - 1_000
"""Characters of a page as JSON: a recalled page is not cut again."""


def cut_text(text: str, most: int, whole: str) -> str:
    """Return the text, if it has at most `most` characters; else its beginning, the size of the `whole`, and the way to
    read it.
    """
    return text if len(text) <= most else f"{text[:most]}… [{whole}{REST}"


def result_text(value: Json, size: int) -> str:
    """Return a result as text: a text unchanged, any other value as JSON, without images and other base64.

    `size`: the value's bytes. Only the beginning is kept of more than `MAX_RESULT` characters, with their number.
    """
    return _read(value, size, "", MAX_RESULT)[1]


def excerpt(value: Json, size: int, name: str, most: int = MAX_RESULT) -> tuple[Json, bool]:
    """Return the value for a model, and whether it was cut: the same value without base64, or the text of its
    beginning.
    """
    if size <= most:
        return without_media(value), False
    part, text, is_cut = _read(value, size, name, most)
    return text if is_cut else part, is_cut


def _read(value: Json, size: int, name: str, most: int) -> tuple[Json, str, bool]:
    """Return the value without base64, its text, and whether the text was cut. The cost depends on the text, not on the
    value's size (R18.5).
    """
    part, is_whole = first_without_media(value, most)
    text = part if isinstance(part, str) else dumps(part)
    if is_whole and len(text) <= most:
        return part, text, False
    whole = f"{len(value):,} characters" if isinstance(value, str) else bytes_text(size)
    rest = f"; the rest: recall {name}]" if name else REST
    return part, f"{text[:most]}… [{whole}{rest}", True


def page_of(what: str, text: str, page: int) -> JsonObject:
    """Return `{"what", "page", "pages", "text"}`. Raises `RunError` if there is no such page."""
    ends = [0]
    while ends[-1] < len(text) or len(ends) == 1:
        length = PAGE
        while len(as_json := dumps(text[ends[-1] : ends[-1] + length])) > _PAGE_AS_JSON:
            length = length * _PAGE_AS_JSON // len(as_json)
        ends.append(min(len(text), ends[-1] + length))
    if page >= len(ends):
        raise RunError(f"{what} has {len(ends) - 1} pages")
    return {"what": what, "page": page, "pages": len(ends) - 1, "text": text[ends[page - 1] : ends[page]]}
