"""Images, sounds and other base64 in a value: they say nothing to a plan and fill state and prompt, so words take their place (R10.18)."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from perdure.values.jsons import Json

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
"""How the base64 of a file of each kind begins."""
_LEAST: Final = 256
"""Characters. What is shorter costs little, and may be a text that only looks like a file."""
_CHARACTERS: Final = r"[A-Za-z0-9+/]"
_EMBEDDED: Final = re.compile(
    rf"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[\w.+-]+)*;base64,({_CHARACTERS}{{32,}}={{0,2}})"
    rf"|(?<!{_CHARACTERS})((?:{'|'.join(map(re.escape, _BEGINNINGS))}){_CHARACTERS}{{{_LEAST},}}={{0,2}})"
)
_KINDS: Final = ("mimeType", "mime_type", "media_type", "contentType", "content_type")
_BINARY: Final = re.compile(r"(image|audio|video|font)/|application/(pdf|zip|gzip|octet-stream|ogg)")
_BASE64: Final = re.compile(rf"{_CHARACTERS}{{32,}}={{0,2}}")


def without_media(value: Json) -> Json:
    """The value with `[image/png, 12,345 bytes, 0123456789ab, left out]` wherever it held a file as base64.

    A file is known by a `data:` address, by how it begins, or by a `mimeType` beside it.
    """
    if isinstance(value, str):
        return _EMBEDDED.sub(_words, value)
    if isinstance(value, list):
        return [without_media(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = next((str(value[key]) for key in _KINDS if isinstance(value.get(key), str)), "")
    if not _BINARY.match(kind):
        return {key: without_media(item) for key, item in value.items()}
    return {
        key: describe(kind, item)
        if isinstance(item, str) and _BASE64.fullmatch(item) and key not in _KINDS
        else without_media(item)
        for key, item in value.items()
    }


def describe(kind: str, encoded: str) -> str:
    """What stands in place of a file: its kind, its size, and a digest that tells two of them apart."""
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    digest = hashlib.sha256(encoded.encode()).hexdigest()[:12]
    return f"[{kind}, {size:,} bytes, {digest}, left out]"


def _words(found: re.Match[str]) -> str:
    if found[1]:
        return describe(found[1], found[2])
    kind = next(kind for beginning, kind in _BEGINNINGS.items() if found[3].startswith(beginning))
    return describe(kind, found[3])
