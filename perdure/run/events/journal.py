"""The journal of a run or a session: what has happened in it, numbered without a gap over all its executions (R10.14)."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TypeAlias

from perdure.run.events.clipping import clipped
from perdure.run.events.kinds import TOPICS, Topic
from perdure.run.events.wire import CarriedEvents, EventsPage, Noted
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import CARRIED_EVENTS, CARRIED_EVENTS_SIZE, KEPT_EVENTS, KEPT_EVENTS_SIZE

_Entry: TypeAlias = tuple[Topic, str, str, str, JsonObject, int]
"""Topic, phase, time, run, data, and the characters of the data."""


class Journal:
    """Bounded, in memory, and the same when a history is replayed, whoever has read it.

    To note something costs what is kept of it, some microseconds, and nothing of what is noted can change afterwards.
    """

    def __init__(self, carried: CarriedEvents | None = None) -> None:
        self._kept: deque[_Entry] = deque()
        self._size = 0
        self.count = 0
        """How many events there were so far."""
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
        self.count += carried.count
        for each in carried.events:
            self._keep((each.topic, each.phase, each.at, each.run_id, each.data, clipped(each.data, _WHOLE)[1]))
        for entry in noted:
            self._keep(entry)

    @property
    def kept_from(self) -> int:
        """The number of the oldest that is kept."""
        return self.count - len(self._kept)

    def note(self, topic: Topic, phase: str, at: str, run_id: str = "", /, **data: Json) -> None:
        """Something has happened at a time (ISO 8601, UTC). What `data` says as `None` is not said; what is too long is cut."""
        most = TOPICS[topic][phase].most - _FRAME
        said, used, whole = clipped({key: value for key, value in data.items() if value is not None}, most)
        if not whole:
            said, used = _cut(data, most)
        self.count += 1
        self._keep((topic, phase, at, run_id, said, used))

    def page(self, first: int = 0, limit: int = KEPT_EVENTS) -> EventsPage:
        """The events from a number on, at most so many; of earlier ones than are kept, from the oldest that is."""
        begin = min(max(first, self.kept_from), self.count)
        skip = begin - self.kept_from
        events = [_noted(entry) for entry in islice(self._kept, skip, skip + max(0, limit))]
        return EventsPage(
            first=begin,
            next=begin + len(events),
            kept_from=self.kept_from,
            events=events,
            count=self.count,
            ended=self.ended,
            earlier=0 <= first < min(self.kept_from, self._begun),
        )

    def carried(self) -> CarriedEvents:
        """The newest of them, for a new execution to go on with."""
        events: deque[Noted] = deque()
        size = 0
        for entry in reversed(self._kept):
            size += _weight(entry[5])
            if len(events) == CARRIED_EVENTS or size > CARRIED_EVENTS_SIZE:
                break
            events.appendleft(_noted(entry))
        return CarriedEvents(count=self.count, events=list(events))

    def _keep(self, entry: _Entry) -> None:
        self._kept.append(entry)
        self._size += _weight(entry[5])
        while len(self._kept) > KEPT_EVENTS or self._size > KEPT_EVENTS_SIZE:
            self._size -= _weight(self._kept.popleft()[5])


_BESIDE = 100
"""Characters of an event beside its data."""
_FRAME = 100
"""Those of its braces, and of what says what was cut."""
_LEAST = 200
"""Those up to which what it says is short."""
_WHOLE = 10**9


def _cut(data: JsonObject, most: int) -> tuple[JsonObject, int]:
    """What is too long for an event: what of it is short stands whole, the rest shares what is left of the room."""
    parts = {key: clipped(value, _LEAST) for key, value in data.items() if value is not None}
    long = [key for key, (_, _, whole) in parts.items() if not whole]
    room = most - sum(size + len(key) + 4 for key, (_, size, whole) in parts.items() if whole)
    for number, key in enumerate(long):
        parts[key] = clipped(data[key], room // (len(long) - number) - len(key) - 4)
        room -= parts[key][1] + len(key) + 4
    said = {key: part for key, (part, _, _) in parts.items()}
    cut = [key for key, (_, _, whole) in parts.items() if not whole]
    return said | {"cut": cut}, most - room


def _weight(size: int) -> int:
    return size + _BESIDE


def _noted(entry: _Entry) -> Noted:
    topic, phase, at, run_id, data, _ = entry
    return Noted(topic=topic, phase=phase, at=at, run_id=run_id, data=data)
