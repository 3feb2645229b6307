"""Files in the messages of clients, in every protocol's form (R20.3)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Final

from perdure.agents.media import Media
from perdure.client.perdure import Perdure
from perdure.errors import MediaError, clip
from perdure.values.json import Json, JsonObject
from perdure.values.limits import MAX_FILES_SHOWN, MAX_MEDIA_SHOWN
from perdure.values.media import media_within

_DATA: Final = re.compile(r"data:[^,]{0,200};base64,")
_ADDRESS: Final = re.compile(
    r"https?://([A-Za-z0-9.-]{1,253})(?::[0-9]{1,5})?(?:[/?][^\s\\\x00-\x1f]*)?", re.IGNORECASE
)
"""A URL that every parser reads in the same way: no user, no backslash."""
_PARTS: Final = ("content", "parts")
"""The keys of a message's parts in the protocols."""


async def with_stored_files(perdure: Perdure, body: JsonObject, key: str, tenant: str) -> JsonObject:
    """Return the body with a text part, the file's line, in place of each base64 file of its messages.

    `key`: the key of the list of messages. `tenant`: the only tenant that may read the files. Without storage the body
    stays unchanged, and the protocol's parser decides. A file's URL stays too: it is never fetched. Raises `MediaError`
    for invalid base64, and for files that are too large.
    """
    messages = body.get(key)
    if not isinstance(messages, list) or not perdure.stores_media:
        return body
    found = await asyncio.to_thread(lambda: list(_files(messages, key)))
    if not found:
        return body
    await perdure.save_media(*(file for _, _, file in found), tenant=tenant)
    changed = {id(part): {"type": kind, "text": file.value.line} for part, kind, file in found}
    return {**body, key: [_with_texts(message, changed) for message in messages]}


def fetched_problem(messages: Iterable[JsonObject], hosts: Sequence[str]) -> str | None:
    """Return the reason why a model cannot have the messages' pictures; `None` if it can.

    A picture is in the message itself, or has a URL of a host that the agent allows (`config.image_hosts`). The
    provider fetches it and may parse an odd URL differently, so only plain URLs are accepted.
    """
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            about = part.get("image_url") if isinstance(part, dict) else None
            address = about.get("url") if isinstance(about, dict) else None
            if about is None or (isinstance(address, str) and _DATA.match(address)):
                continue
            found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
            if found is None:
                return f"{clip(repr(address), 80)} is not a picture: give base64, data:image/png;base64,…"
            if not any(fnmatchcase(found[1].lower(), host.lower()) for host in hosts):
                return (
                    f"the agent allows no pictures from {clip(found[1], 80)}: give base64, or name the host in the agent's "
                    "config.image_hosts"
                )
    return None


async def load_files(perdure: Perdure, value: Json, tenant: str) -> list[Media]:
    """Return the files of a value with their bytes: the first ones, up to `MAX_FILES_SHOWN` and `MAX_MEDIA_SHOWN`.

    Files that are not stored are left out.
    """
    wanted: dict[str, JsonObject] = {}
    room = MAX_MEDIA_SHOWN
    for file in media_within(value) if perdure.stores_media else ():
        room -= file.bytes if file.digest not in wanted else 0
        if room < 0 or len(wanted) == MAX_FILES_SHOWN:
            break
        wanted[file.digest] = file.as_json()
    found: list[Media] = []
    for each in wanted.values():
        with suppress(MediaError):
            found.append(await perdure.load_media(each, tenant=tenant))
    return found


def _with_texts(message: Json, changed: dict[int, JsonObject]) -> Json:
    if not isinstance(message, dict):
        return message
    return {
        name: [changed.get(id(part), part) for part in parts] if name in _PARTS and isinstance(parts, list) else parts
        for name, parts in message.items()
    }


def _files(messages: list[Json], where: str) -> Iterator[tuple[JsonObject, str, Media]]:
    """Yield each part with a file, the type of the text part that replaces it, and the file."""
    for at, message in enumerate(messages):
        for name in _PARTS:
            parts = message.get(name) if isinstance(message, dict) else None
            for number, part in enumerate(parts if isinstance(parts, list) else []):
                if isinstance(part, dict) and (read := _read(part)) is not None:
                    data, file_name = read
                    kind = "input_text" if str(part["type"]).startswith("input_") else "text"
                    yield part, kind, _file(data, file_name, f"{where}[{at}].{name}[{number}]")


def _file(data: str, name: str, where: str) -> Media:
    try:
        return Media(data=base64.b64decode(_DATA.sub("", data, count=1), validate=True), name=name)
    except (binascii.Error, ValueError):
        raise MediaError(f"{where}: the file is not base64") from None


def _read(part: JsonObject) -> tuple[str, str] | None:
    """Return the data and the name of a part's file; `None` without a file, or with a URL only."""
    kind = part.get("type")
    inner = part.get(kind) if isinstance(kind, str) else None
    about: JsonObject = inner if isinstance(inner, dict) else {}
    if kind == "input_image":  # OpenAI's Responses
        return _inline(part.get("image_url"), "")
    if kind == "image_url":  # Chat Completions
        return _inline(about.get("url"), "")
    if kind == "input_file" or (kind == "file" and about):  # Responses; Chat Completions
        file = part if kind == "input_file" else about
        return _inline(file.get("file_data"), file.get("filename"), plain=True)
    if kind == "input_audio":
        return _inline(about.get("data"), "", plain=True)
    if kind == "file":  # the AI SDK
        return _inline(part.get("url"), part.get("filename"))
    if kind in ("image", "audio", "video", "document") and isinstance(part.get("source"), dict):  # AG-UI
        source, more = part["source"], part.get("metadata")
        named = more.get("filename") or more.get("name") if isinstance(more, dict) else ""
        return _inline(source.get("value"), named, plain=True) if source.get("type") == "data" else None
    return None


def _inline(data: Json, name: Json, *, plain: bool = False) -> tuple[str, str] | None:
    """Return data of the message itself: a `data:` URL, or with `plain` bare base64."""
    if not isinstance(data, str) or not data or not (plain or _DATA.match(data)):
        return None
    return data, name if isinstance(name, str) else ""
