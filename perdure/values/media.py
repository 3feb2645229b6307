"""Media and long values: the descriptions and excerpts that a model reads in their place."""

from __future__ import annotations

import hashlib
import re
from typing import Final, overload

from perdure.errors import RunError
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.limits import MAX_RESULT, bytes_text
from perdure.values.sizes import preview

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
"""Characters. A shorter text costs little, and may only look like a file."""
_CHARACTERS: Final = r"[A-Za-z0-9+/]"
_EMBEDDED: Final = re.compile(
    rf"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[\w.+-]+)*;base64,({_CHARACTERS}{{32,}}={{0,2}})"
    rf"|(?<!{_CHARACTERS})((?:{'|'.join(map(re.escape, _BEGINNINGS))}){_CHARACTERS}{{{_LEAST},}}={{0,2}})"
)
_KINDS: Final = ("mimeType", "mime_type", "media_type", "contentType", "content_type")
_BINARY: Final = re.compile(r"(image|audio|video|font)/|application/(pdf|zip|gzip|octet-stream|ogg)")
_BASE64: Final = re.compile(rf"{_CHARACTERS}{{32,}}={{0,2}}")


@overload
def without_media(value: str) -> str: ...


@overload
def without_media(value: JsonObject) -> JsonObject: ...


@overload
def without_media(value: Json) -> Json: ...


def without_media(value: Json) -> Json:
    """Return the value with `[image/png, 12,345 bytes, 0123456789ab, left out]` in the place of each file as base64.

    A file is recognised by a `data:` address, by its beginning, or by a `mimeType` beside it.
    """
    if isinstance(value, str):
        return _EMBEDDED.sub(_words, value)
    if isinstance(value, list):
        return [without_media(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = media_kind(value)
    return {key: without_file(kind, key, item) or without_media(item) for key, item in value.items()}


def beginning_without_media(text: str, most: int) -> tuple[str, bool]:
    """Return the first `most` characters or so of a text without its media, and whether that is all of it.

    Each file is described in full, even if it reaches beyond the kept part; text far behind that is not examined.
    """
    found, at = "", 0
    while len(found) <= most:
        until = at + most - len(found) + _LEAST
        match = _EMBEDDED.search(text, at, until + 2 * _LEAST)
        if match is None or match.start() > until:
            rest = text[at : until + 1]
            return found + rest, at + len(rest) == len(text)
        whole = _EMBEDDED.match(text, match.start()) or match
        found, at = found + text[at : whole.start()] + _words(whole), whole.end()
    return found, at == len(text)


def first_without_media(value: Json, most: int) -> tuple[Json, bool]:
    """Return the first parts of a value, of about `most` characters of JSON, without their media, and whether these are
    all.

    The cost is that of the result and the files in it, however large the value is.
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
            for child in item:
                if left < 0:
                    is_whole = False
                    break
                items.append(part(child))
            return items
        if isinstance(item, dict):
            entries: JsonObject = {}
            kind = media_kind(item)
            for key, child in item.items():
                if left < 0:
                    is_whole = False
                    break
                left -= len(key) + 3
                entries[key] = part(without_file(kind, key, child) or child)
            return entries
        left -= item.bit_length() // 4 if isinstance(item, int) else 3
        return item

    return part(value), is_whole


def media_kind(value: JsonObject) -> str:
    """Return the kind of file in an object; empty: none."""
    kind = next((str(value[key]) for key in _KINDS if isinstance(value.get(key), str)), "")
    return kind if _BINARY.match(kind) else ""


def without_file(kind: str, key: str, item: Json) -> str | None:
    """Return the substitute for an entry of an object that holds a file of this kind; `None`: the entry is no file."""
    is_file = bool(kind) and isinstance(item, str) and key not in _KINDS and _BASE64.fullmatch(item)
    return describe(kind, str(item)) if is_file else None


def describe(kind: str, encoded: str) -> str:
    """Return the substitute for a file: its kind, its size, and a digest by which two of them differ."""
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    digest = hashlib.sha256(encoded.encode()).hexdigest()[:12]
    return f"[{kind}, {size:,} bytes, {digest}, left out]"


def _words(found: re.Match[str]) -> str:
    if found[1]:
        return describe(found[1], found[2])
    kind = next(kind for beginning, kind in _BEGINNINGS.items() if found[3].startswith(beginning))
    return describe(kind, found[3])


# Images and other base64 are described. Of more than `MAX_RESULT` characters the beginning is shown, with a line on
# how to read the rest. The value itself stays unchanged: a reference passes on all of it.

REST: Final = "; the rest: recall]"
"""The end of a text that a transcript has cut."""
PAGE: Final = 12_000
"""Characters of a page of `recall`: somewhat less than a result may have."""
_PAGE_AS_JSON: Final = MAX_RESULT - 1_000
"""Characters of a page as JSON: a recalled page is not cut again."""


def cut_text(text: str, most: int, whole: str) -> str:
    """Return the text, if it has at most `most` characters; else its beginning, the size of the `whole`, and how to
    read that."""
    return text if len(text) <= most else f"{text[:most]}… [{whole}{REST}"


def result_text(value: Json, size: int, most: int = MAX_RESULT, *, name: str = "") -> str:
    """Return a result as text: a text as it is, any other value as JSON, without images and other base64.

    `size`: the value's bytes. Of more than `most` characters the beginning is kept, with their number, and the `name`
    under which `recall` reads the rest.
    """
    return _read(value, size, most, name)[0]


def excerpt(value: Json, size: int, name: str) -> tuple[Json, bool]:
    """Return the value as a model sees it, and whether it was cut: the same value without base64, or the text of its
    beginning."""
    if size <= MAX_RESULT:
        return without_media(value), False
    text, is_cut = _read(value, size, MAX_RESULT, name)
    if is_cut or isinstance(value, str):
        return text, is_cut
    return first_without_media(value, 4 * MAX_RESULT)[0], False


def _read(value: Json, size: int, most: int, name: str) -> tuple[str, bool]:
    if isinstance(value, str):
        text, is_whole = beginning_without_media(value, most)
    elif size <= 4 * most:
        text, is_whole = dumps(without_media(value)), True
    else:  # the rest is not shown and not examined (R18.5)
        part, is_whole = first_without_media(value, 4 * most)
        text = dumps(part) if is_whole else preview(part, most + 1)
    if is_whole and len(text) <= most:
        return text, False
    whole = f"{len(value):,} characters" if isinstance(value, str) else _length(text, size, most)
    rest = f"; the rest: recall {name}]" if name else REST
    return f"{text[:most]}… [{whole}{rest}", True


def _length(text: str, size: int, most: int) -> str:
    return f"{len(text):,} characters" if size <= 4 * most else bytes_text(size)


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
