"""Making what an event says small, whatever it is of: in time that its size does not matter for."""

from __future__ import annotations

from typing import Final, TypeAlias

from perdure.values.jsons import Json
from perdure.values.media import beginning_without_media, media_kind, without_file

_LEAST: Final = 80
"""Characters that each entry of an object may have as long as there is room, so that names and numbers stand whole beside a long text."""
_LEAST_ITEM: Final = 200
"""The same of a list's: of many the first stand whole, rather than a little of each."""
_MARK: Final = 30
"""Those of what says how much is missing."""
_KEY: Final = 200
"""Those of a key."""

Clipped: TypeAlias = tuple[Json, int, bool]
"""A value, the characters of its JSON more or less, and whether it is whole."""


def clipped(value: Json, most: int, *, media: bool = False) -> Clipped:
    """The value in about `most` characters of JSON. Its form stays: long texts are cut and say how long they were, of long lists and
    objects the end is left out and counted (in an object under the key `…`).

    The result is a copy as far as the value could change, and to make it costs what it holds and not what the value does. With `media`
    words take the place of files, each described whole before anything is cut (R10.18); that costs what these files hold.
    """
    found = _clipped(value, most, fair=False, media=media)
    return found if found[2] else _clipped(value, most, fair=True, media=media)


def _clipped(value: Json, most: int, *, fair: bool, media: bool) -> Clipped:
    """`fair`: each part has its share of the room, so that what is long leaves some for the others."""
    if isinstance(value, str):
        text, whole = beginning_without_media(value, max(most, 0)) if media else (value, True)
        if whole and len(text) + 2 <= most:
            return text, len(text) + 2, True
        kept = max(0, most - _MARK)
        return f"{text[:kept]}… ({len(value):,} characters)", kept + _MARK, False
    if isinstance(value, dict):
        return _clipped_object(value, most, fair, media)
    if isinstance(value, list | tuple):
        return _clipped_list(value, most, fair, media)
    if isinstance(value, int) and value.bit_length() > 100:
        digits = value.bit_length() * 3 // 10 + 1
        return (value, digits, True) if digits <= most else (f"… (about {digits:,} digits)", _MARK, False)
    return value, len(repr(value)), True


def _clipped_object(value: dict[str, Json], most: int, fair: bool, media: bool) -> Clipped:
    found: dict[str, Json] = {}
    kind = media_kind(value) if media else ""
    used, whole, left = 2, True, len(value)
    for key, item in value.items():
        room = most - used - len(key) - 4
        if room < 2 or len(key) > _KEY or (fair and left > 1 and room < _MARK):
            found["…"] = f"{left:,} more"
            return found, used + _MARK, False
        share = _share(room, left, _LEAST) if fair else room
        found[key], size, all_of_it = _clipped(without_file(kind, key, item) or item, share, fair=fair, media=media)
        used, whole, left = used + size + len(key) + 4, whole and all_of_it, left - 1
    return found, used, whole


def _clipped_list(value: list[Json] | tuple[Json, ...], most: int, fair: bool, media: bool) -> Clipped:
    found: list[Json] = []
    used, whole, left = 2, True, len(value)
    for item in value:
        room = most - used - 1
        if room < 2 or (fair and left > 1 and room < _MARK):
            found.append(f"… ({left:,} more)")
            return found, used + _MARK, False
        share = _share(room, left, _LEAST_ITEM) if fair else room
        kept, size, all_of_it = _clipped(item, share, fair=fair, media=media)
        found.append(kept)
        used, whole, left = used + size + 1, whole and all_of_it, left - 1
    return found, used, whole


def _share(room: int, left: int, least: int) -> int:
    """What one of so many may take, so that those behind it have their part."""
    return max(room // left, min(room, least))
