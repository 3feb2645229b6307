"""The journal of a run or a session: what has happened in it, numbered without a gap over all its executions (R10.14)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

from perdure.run.events.clipping import clipped
from perdure.run.events.kinds import TOPICS, Topic
from perdure.run.events.wire import CarriedEvents, EventsPage, Noted
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import (
    CARRIED_EVENTS,
    CARRIED_EVENTS_SIZE,
    EVENTS_AT_ONCE,
    KEPT_EVENTS,
    KEPT_EVENTS_SIZE,
)
from perdure.values.limits.sizes import Sizes
from perdure.values.media import without_media


class Journal:
    """Bounded, in memory, and the same when a history is replayed, whoever has read it.

    To note something costs some microseconds, however large what it is about, but for what is larger than `_HELD`. What is noted is made
    small when somebody reads it, or then at once.
    """

    def __init__(self, carried: CarriedEvents | None = None) -> None:
        self._kept: deque[_Entry] = deque()
        self._size = 0
        self.count = 0
        """How many events there were so far."""
        self.resets: list[int] = []
        """The numbers of those that say that the run was reset; 0: it was reset to its start, which no event says."""
        self.ended = False
        """No more will be noted."""
        self._begun = 0
        if carried is not None:
            self.take_up(carried)

    def take_up(self, carried: CarriedEvents) -> None:
        """Go on from where an execution before has left off; what was noted since stands behind it."""
        noted = list(self._kept)
        self._kept.clear()
        self._size, self._begun = 0, carried.count
        self.resets = [*carried.resets, *(carried.count + number for number in self.resets)]
        self.count += carried.count
        for each in carried.events:
            size = clipped(each.data, KEPT_EVENTS_SIZE)[1]
            self._keep(_Entry(each.topic, each.phase, each.at, each.run_id, each.data, size))
        for entry in noted:
            self._keep(entry)

    @property
    def kept_from(self) -> int:
        """The number of the oldest that is kept."""
        return self.count - len(self._kept)

    def note(
        self, topic: Topic, phase: str, at: str, run_id: str = "", /, *, of: Sizes | None = None, **data: Json
    ) -> None:
        """Something has happened at a time (ISO 8601, UTC). What `data` says as `None` is not said; what is too long is cut.

        `of`: it holds values of a run, which do not change any more, and these are their sizes.
        """
        data = {key: value for key, value in data.items() if value is not None}
        held = False
        found, size, whole = clipped(data, _SHORT)
        if not whole:
            most = _most(topic, phase)
            size = _HELD + 1 if of is None else sum(map(of.of, data.values()))
            held = size <= _HELD
            found, size = (data, min(size, most)) if held else _small(data, most, values=of is not None)
        self.count += 1
        self._keep(_Entry(topic, phase, at, run_id, found, size, held))

    def reset(self, at: str) -> None:
        """The run goes on from an earlier point: those before this one were noted before it, too, and what followed them does not count."""
        self.resets = [number for number in self.resets if number]
        self.resets.append(self.count)
        if self.count == 0:
            return
        self.note("lifecycle", "reset", at, number=len(self.resets))

    def page(self, first: int = 0, limit: int = KEPT_EVENTS) -> EventsPage:
        """The events from a number on, at most so many, and as many as one answer holds; of earlier ones than are kept, from the oldest
        that is."""
        begin = min(max(first, self.kept_from), self.count)
        skip = begin - self.kept_from
        events: list[Noted] = []
        room = EVENTS_AT_ONCE
        for entry in islice(self._kept, skip, skip + max(0, limit)):
            room -= entry.weight
            if room < 0 and events:
                break
            events.append(entry.noted())
        return EventsPage(
            first=begin,
            next=begin + len(events),
            kept_from=self.kept_from,
            events=events,
            count=self.count,
            resets=list(self.resets),
            ended=self.ended,
            earlier=0 <= first < min(self.kept_from, self._begun),
        )

    def carried(self) -> CarriedEvents:
        """The newest of them, for a new execution to go on with."""
        events: deque[Noted] = deque()
        room = CARRIED_EVENTS_SIZE
        for entry in reversed(self._kept):
            room -= entry.weight
            if len(events) == CARRIED_EVENTS or room < 0:
                break
            events.appendleft(entry.noted())
        return CarriedEvents(count=self.count, resets=list(self.resets), events=list(events))

    def _keep(self, entry: _Entry) -> None:
        self._kept.append(entry)
        self._size += entry.weight
        while len(self._kept) > KEPT_EVENTS or self._size > KEPT_EVENTS_SIZE:
            self._size -= self._kept.popleft().weight


@dataclass(slots=True)
class _Entry:
    topic: Topic
    phase: str
    at: str
    run_id: str
    data: JsonObject
    size: int
    """Characters of `data`, or those that it will have at most; they do not change by its being read."""
    held: bool = False
    """`data` holds values as they are: it is made small for the first who reads it."""

    @property
    def weight(self) -> int:
        return self.size + _BESIDE

    def noted(self) -> Noted:
        if self.held:
            self.data, _ = _small(without_media(self.data), _most(self.topic, self.phase))
            self.held = False
        return Noted(topic=self.topic, phase=self.phase, at=self.at, run_id=self.run_id, data=self.data)


_BESIDE: Final = 100
"""Characters of an event beside its data."""
_SHORT: Final = 250
"""Those of data that is kept as it is: no image is so short."""
_HELD: Final = 16_000
"""Bytes of values that are only named until somebody reads the event: those of all that are kept may have to be held for it."""
_LEAST: Final = 200
"""Characters up to which a part is short: it stands whole beside what is cut."""


def _most(topic: Topic, phase: str) -> int:
    return TOPICS[topic][phase].most - _BESIDE


def _small(data: JsonObject, most: int, *, values: bool = False) -> tuple[JsonObject, int]:
    """What of it an event says, and its characters. Where it is too long, what of it is short stands whole, and the rest shares what is left
    of the room; in `values` there may be images."""
    found, size, whole = clipped(data, most, media=values)
    if whole:
        return found, size
    parts = {key: clipped(value, _LEAST, media=values) for key, value in data.items()}
    long = [key for key, (_, _, whole) in parts.items() if not whole]
    room = most - sum(size + len(key) + 4 for key, (_, size, whole) in parts.items() if whole)
    for number, key in enumerate(long):
        parts[key] = clipped(data[key], room // (len(long) - number) - len(key) - 4, media=values)
        room -= parts[key][1] + len(key) + 4
    said = {key: part for key, (part, _, _) in parts.items()}
    cut = [key for key, (_, _, whole) in parts.items() if not whole]
    return {**said, "cut": cut}, most - room
