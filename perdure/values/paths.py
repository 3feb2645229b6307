"""Walking JSON values by path: what stands there, and what stands near a path that leads nowhere (R3.2, R5.5)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from perdure.values.jsons import Json, path_step
from perdure.values.references import MISSING, Missing, Path


class Unknown:
    """The type of `UNKNOWN`: a value that a dry run has not computed (R5.6). Every path into it exists."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


def step_into(value: Json, part: str | int) -> Json | Missing:
    """One step: `[n]` and `.n` index arrays, names look up keys (R3.2)."""
    if isinstance(value, dict):
        return value.get(str(part), MISSING)
    if isinstance(value, list):
        index = array_index(part)
        return value[index] if index is not None and index < len(value) else MISSING
    return UNKNOWN if value is UNKNOWN else MISSING


def array_index(part: str | int) -> int | None:
    """The array index that a step means, or `None` if it can only be a key."""
    if isinstance(part, int):
        return part
    return int(part) if part.isdigit() and part.isascii() and len(part) <= 9 else None


def get(value: Json, path: Path) -> Json | Missing:
    """The value at the path, or `MISSING`."""
    for part in path:
        value = step_into(value, part)
        if value is MISSING:
            break
    return value


def overlaps(first: Path, second: Path) -> bool:
    """Whether one path is the other, its prefix or its extension (R5.1)."""
    count = min(len(first), len(second))
    first, second = first[:count], second[:count]
    return first == second or list(map(str, first)) == list(map(str, second))


def way_into(value: Json, path: Path) -> tuple[int, Json]:
    """How many steps of the path can be gone, and the value that stands there."""
    for at, part in enumerate(path):
        deeper = step_into(value, part)
        if deeper is MISSING:
            return at, value
        value = deeper
    return len(path), value


def near(value: Json, path: Path, *, root: str, limit: int = 5) -> list[str]:
    """The existing paths nearest to one that leads nowhere, best first, as references (R5.5).

    They are the keys beside the first step that fails, those of a like name first; and a like name one level deeper. The path
    itself is none of them, also where a call will write it. None where it leads into what has no parts: see `way_into`.
    """
    at, value = way_into(value, path[:-1])
    prefix = root + "".join(path_step(part) for part in path[:at])
    wanted = str(path[at]) if path else ""
    beside = [name for name, _ in _children(value) if name.strip('.[]"') != wanted]
    below = {
        name + step: step.strip('.[]"')
        for name, child in _children(value)
        for step, _ in _children(child)
    }  # fmt: skip
    close = difflib.get_close_matches(wanted, [name.strip('.[]"') for name in beside], n=limit, cutoff=0.5)
    ranked = [name for match in close for name in beside if name.strip('.[]"') == match]
    ranked += [name for name, last in below.items() if last == wanted]
    ranked += [name for name in beside if name not in ranked]
    return [prefix + name for name in ranked[:limit]]


def _children(value: Json, limit: int = 50) -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict):
        for key, _ in zip(value, range(limit), strict=False):
            yield path_step(key), value[key]
    elif isinstance(value, list):
        for index, item in enumerate(value[:limit]):
            yield f"[{index}]", item
