"""Writes: the entries of the log, and which of them still show (R4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from perdure.values.jsons import Json
from perdure.values.paths import array_index, overlaps
from perdure.values.references import Path
from perdure.values.sources import NOWHERE, Sources
from perdure.values.wire import Wire

OutputMethod: TypeAlias = Literal["set", "merge", "assign", "push", "concat"]
METHODS: Final[tuple[OutputMethod, ...]] = get_args(OutputMethod)


class Write(BaseModel):
    """One entry of the log: what was written where, how, by which call and when (R4.1)."""

    model_config = ConfigDict(frozen=True)

    path: tuple[str | int, ...]
    value: Json
    method: OutputMethod = "set"
    call: str = ""
    """The call's id; empty for what the run started with."""
    time: str = ""
    """ISO 8601, from the workflow's clock."""
    sources: SkipValidation[Sources] = Field(default=NOWHERE, exclude=True, repr=False)
    """Where the value comes from (R15.1). Not part of the write's JSON: a snapshot has a table of them."""


class Wrote(Wire):
    """Where a call's result was written, or its error, and how, without the value."""

    path: list[str | int]
    method: OutputMethod = "set"


def covers(write: Write, path: Path) -> bool:
    """Whether the write alone decides the value at the path: a `set` of it or of its prefix."""
    return stands_alone(write.method, write.path) and is_prefix(write.path, path)


def stands_alone(method: OutputMethod, path: Path) -> bool:
    """Whether a write needs nothing of what was there before: it sets, and not through the index of an array."""
    return method == "set" and not [part for part in path if array_index(part) is not None]


def is_prefix(prefix: Path, path: Path) -> bool:
    return len(prefix) <= len(path) and overlaps(prefix, path)


@dataclass(slots=True, eq=False)
class _Place:
    """A path that writes were made to."""

    below: dict[str, _Place] = field(default_factory=dict)
    here: list[int] = field(default_factory=list)


class Showing:
    """The writes of a log that no later `set` of the same path, or of a prefix of it, has hidden.

    Costs what is added, however long the log is (R18.5).
    """

    def __init__(self) -> None:
        self._writes: dict[int, Write] = {}
        self._root = _Place()
        self._count = 0

    def add(self, write: Write) -> None:
        """The next write of the log."""
        place = self._root
        for part in write.path:
            place = place.below.setdefault(str(part), _Place())
        if stands_alone(write.method, write.path):
            hidden = [place]
            while hidden:
                each = hidden.pop()
                for number in each.here:
                    del self._writes[number]
                hidden.extend(each.below.values())
            place.below, place.here = {}, []
        place.here.append(self._count)
        self._writes[self._count] = write
        self._count += 1

    def all(self) -> list[Write]:
        """In their order."""
        return list(self._writes.values())
