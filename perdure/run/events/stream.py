"""What a relay has of one run's, or session's, events, for all who read them: the newest, and what no journal keeps (R10.15)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from perdure.run.events.cursor import Cursor
from perdure.run.events.wire import EventsPage, Noted, Written
from perdure.values.jsons import JsonObject
from perdure.values.limits import KEPT_EVENTS

KEPT: Final = 2 * KEPT_EVENTS
"""Events that are held for those who read slowly: more than a journal keeps, so that they need not ask for them."""


@dataclass(frozen=True, slots=True)
class Live:
    """How things stand that no journal keeps, at one look."""

    at: str = ""
    """When that was: ISO 8601, UTC."""
    written: Written | None = None
    """What a model is writing."""
    updates: tuple[Noted, ...] = ()
    """What is said of calls and of the Request while they run: of each the last."""


NOTHING: Final = Live()


class Stream:
    """The events of one source, from `first` to `next`, without a gap; and what its last look has found.

    A look comes before the pages that were asked for after it: what they say has ended is live no more.
    """

    def __init__(self) -> None:
        self._events: deque[Noted] = deque()
        self.begun = False
        """Whether any page was taken in."""
        self.next = 0
        self.resets: list[int] = []
        """The numbers of the events that say that the source was reset."""
        self.ended = False
        self.live = NOTHING
        self.asked: JsonObject = {}
        """What was said of the last Request when it began."""

    @property
    def first(self) -> int:
        return self.next - len(self._events)

    def look(self, live: Live) -> None:
        """Take in a look; its pages, if any, follow."""
        self.live = live

    def add(self, page: EventsPage) -> None:
        """Take in the events that follow. Where some are missing between, those before are let go, so that there is no gap."""
        if page.first > self.next:
            self._events.clear()
            self.next = page.first
        for noted in page.events[self.next - page.first :]:
            self._take(noted)
        self.begun = True
        self.ended = self.ended or (page.ended and self.next >= page.count)

    def go_back(self, resets: list[int]) -> bool:
        """Let go of what does not count any more, where the source was reset since; whether there was anything."""
        before = self.next
        self.next = Cursor(before, resets=len(self.resets)).after(resets).events
        self.resets = resets
        for _ in range(min(before - self.next, len(self._events))):
            self._events.pop()
        return self.next < before

    def end(self, noted: Noted | None = None) -> None:
        """Nothing follows. `noted`: what the source could not say itself, for it was ended from outside."""
        if noted is not None and not self.ended:
            self._take(noted)
        self.begun = self.ended = True
        self.live = NOTHING

    def since(self, number: int, limit: int = KEPT) -> EventsPage:
        """The events from a number on, as a source answers it."""
        begin = min(max(number, self.first), self.next)
        skip = begin - self.first
        events = list(islice(self._events, skip, skip + limit))
        return EventsPage.model_construct(
            first=begin,
            next=begin + len(events),
            kept_from=self.first,
            events=events,
            count=self.next,
            resets=self.resets,
            ended=self.ended,
            earlier=False,
        )

    def run_id(self, number: int) -> str | None:
        """Of a session: the id of its run of this number, where its start is held."""
        for noted in reversed(self._events):
            if noted.topic == "lifecycle" and noted.phase == "start" and noted.data.get("number") == number:
                return noted.run_id
        return None

    def now(self) -> Cursor:
        """Of a session: behind all that is held, in the run that is under way, at its beginning."""
        for noted in reversed(self._events):
            if noted.topic == "lifecycle" and noted.run_id:
                number = int(noted.data.get("number", 0)) if noted.phase == "start" else 0
                return Cursor(session=self.next, run=number)
        return Cursor(session=self.next)

    def _take(self, noted: Noted) -> None:
        self._events.append(noted)
        self.next += 1
        if len(self._events) > KEPT:
            self._events.popleft()
        if noted.phase == "end":
            self._close(noted)
        elif (noted.topic, noted.phase) == ("request", "start"):
            self.asked = noted.data

    def _close(self, noted: Noted) -> None:
        live, data = self.live, noted.data
        number = {"request": "number", "assistant": "request"}.get(noted.topic)
        if number and live.written is not None and live.written.request <= data.get(number, 0):
            self.live = live = replace(live, written=None)
        if noted.topic == "tool" and live.updates:
            left = tuple(each for each in live.updates if each.data.get("call") != data.get("call"))
            self.live = replace(live, updates=left)
