"""Files as parts of a Request, for file lines in its messages that its model can read."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from perdure.models.providers.capabilities import PARTS, Capabilities, left_out
from perdure.values.json import JsonObject, dumps
from perdure.values.limits import MAX_FILE_TEXT, MAX_FILES_SHOWN, MAX_MEDIA_SHOWN, MAX_TEXT_SHOWN
from perdure.values.media import PICTURES, MediaValue, is_text, media_lines, media_type

_NEEDED: Final = {
    **dict.fromkeys(PICTURES, "images"),
    "application/pdf": "documents",
    **dict.fromkeys(("audio/wav", "audio/mpeg"), "audio"),
}
"""Type of a file → the capability that it needs. No provider accepts other types. Texts need none."""
_ABOVE: Final = "The files that are named above:"


def files_to_show(messages: Iterable[JsonObject], capabilities: Capabilities) -> list[MediaValue]:
    """Return the files that a Request shows: each once, the newest up to `MAX_FILES_SHOWN`, `MAX_MEDIA_SHOWN` bytes,
    `MAX_TEXT_SHOWN` bytes of the texts in them, and the documents that the model accepts."""
    found: dict[str, MediaValue] = {}
    for message in messages:
        for file in _named(message):
            if _readable(file.type, capabilities):
                found.setdefault(file.digest, file)
    shown: list[MediaValue] = []
    room, room_for_text, documents = MAX_MEDIA_SHOWN, MAX_TEXT_SHOWN, capabilities.max_documents
    for file in reversed(list(found.values())[-MAX_FILES_SHOWN:]):
        if _NEEDED.get(file.type) == "documents":
            documents -= 1
            if documents < 0:
                continue
        room -= file.bytes
        room_for_text -= min(file.bytes, MAX_FILE_TEXT) if is_text(file.type) else 0
        if room < 0 or room_for_text < 0:
            break
        shown.append(file)
    return shown[::-1]


def with_files(
    messages: Sequence[JsonObject], stable: int, files: Mapping[str, bytes], capabilities: Capabilities
) -> tuple[list[JsonObject], int]:
    """Return the messages with the files as parts in the form of Chat Completions, and the number of those that stay.

    `files`: the bytes by digest. Each file is at its first line: in a person's message, else in a message
    after the results or the system's texts, where every server accepts it. A file stays one line if the type of its
    bytes differs from its value's. A text is text, its beginning up to `MAX_FILE_TEXT`; a message without other parts
    stays one string, which every server accepts.
    """
    left = dict(files)
    shown: list[JsonObject] = []
    waiting: list[JsonObject] = []
    stays = 0
    for index, message in enumerate([*messages, {"role": ""}]):
        if waiting and message["role"] != "tool":
            shown.append({"role": "user", "content": _content([{"type": "text", "text": _ABOVE}, *waiting])})
            waiting = []
        if index == stable:
            stays = len(shown)
        if index == len(messages):
            break
        parts = [part for file in _named(message) for part in _parts(file, left.pop(file.digest, b""), capabilities)]
        if parts and message["role"] == "user":
            message = {**message, "content": _content([*_as_parts(message), *parts])}
        else:
            waiting += parts
        shown.append(message)
    return shown, stays


def files_of(messages: Sequence[JsonObject], kinds: Collection[str]) -> list[JsonObject]:
    """Return the parts with a file of these kinds, in their order."""
    return [part for message in messages for part in _as_parts(message) if PARTS.get(part.get("type", "")) in kinds]


def with_newest(messages: Sequence[JsonObject], kinds: Collection[str], most: int) -> list[JsonObject]:
    """Return the messages with one line in place of each file of these kinds, except the last `most` of them."""
    places = itertools.count(most - len(files_of(messages, kinds)))
    return _with_line(
        messages,
        lambda part: bool(files_of([{"content": [part]}], kinds)) and next(places) < 0,
        f"the model's server accepts at most {most} such files",
    )


def without_files(messages: Sequence[JsonObject], digests: Collection[str]) -> list[JsonObject]:
    """Return the messages with one line in place of each part whose file has one of these digests."""
    return _with_line(messages, lambda part: part_digest(part) in digests, "the model's server refuses it")


def _with_line(
    messages: Sequence[JsonObject], is_left_out: Callable[[JsonObject], bool], reason: str
) -> list[JsonObject]:
    line = left_out(reason)
    return [
        {**message, "content": [line if is_left_out(part) else part for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def part_digest(part: JsonObject) -> str:
    """Return the digest of a part with a file, as it is sent; empty for a text."""
    kind = part.get("type", "")
    return hashlib.sha256(dumps(part[kind]).encode(errors="replace")).hexdigest() if kind in PARTS else ""


def names_files(message: JsonObject) -> bool:
    """Return whether a message has the line of a file."""
    return bool(_named(message))


def _named(message: JsonObject) -> list[MediaValue]:
    """Return the files whose lines a message has. Texts of the model itself name none."""
    if message.get("role") == "assistant":
        return []
    return [file for part in _as_parts(message) for file in media_lines(str(part.get("text") or ""))]


def _as_parts(message: JsonObject) -> list[JsonObject]:
    content = message.get("content")
    if isinstance(content, list):
        return [part for part in content if isinstance(part, dict)]
    return [{"type": "text", "text": content or ""}]


def _content(parts: list[JsonObject]) -> str | list[JsonObject]:
    if all(part.get("type") == "text" for part in parts):
        return "\n\n".join(str(part.get("text") or "") for part in parts)
    return parts


def _readable(kind: str, capabilities: Capabilities) -> bool:
    return is_text(kind) or (kind in _NEEDED and bool(getattr(capabilities, _NEEDED[kind])))


def _parts(file: MediaValue, data: bytes, capabilities: Capabilities) -> list[JsonObject]:
    kind = media_type(data)
    if not data or not _readable(kind, capabilities) or is_text(kind) != is_text(file.type):  # counted by it
        return []
    if is_text(kind):
        return [{"type": "text", "text": _text(file, data.decode("utf-8-sig"))}]
    return [{"type": "text", "text": file.line}, _part(kind, file.name, base64.b64encode(data).decode())]


def _text(file: MediaValue, text: str) -> str:
    """Return the text between the file's line and an end line with its digest, which the text itself cannot contain."""
    shown = text[:MAX_FILE_TEXT]
    rest = (
        "" if shown == text else f"\n… [the first {MAX_FILE_TEXT:,} of {len(text):,} characters; a tool reads the rest]"
    )
    return f"{file.line}\n{shown}{rest}\n[end of {file.digest[:23]}]"


def _part(kind: str, name: str, encoded: str) -> JsonObject:
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{encoded}"}}
    if kind.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": kind[6:].replace("mpeg", "mp3")}}
    file = {"filename": name or "file.pdf", "file_data": f"data:{kind};base64,{encoded}"}
    return {"type": "file", "file": file}
