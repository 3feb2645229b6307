"""All that one process reads with one client, for whoever watches: see `Run.events` and `Session.events`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from weakref import WeakValueDictionary

from temporalio.client import Client

from perdure.client.relay.source import Source
from perdure.errors import CursorError, NoWorkerError, ProtocolError
from perdure.run.events.cursor import Cursor, parse_cursor
from perdure.run.events.feed import Feed, SessionFeed
from perdure.run.events.kinds import TOPICS, Event, Topic, as_topic
from perdure.run.events.stream import NOTHING, Live
from perdure.run.events.wire import EventsPage

NOW: Final = "now"
"""In place of a cursor: only what happens from now on."""
BATCH: Final = 200
"""Events that are made for a watcher at a time: what it has not read yet is no memory but this."""
_LIVE: Final[frozenset[Topic]] = frozenset({"assistant", "reasoning"})


class Relay:
    """One `Source` for each run and session that is watched. A watcher has no queue: it takes what its source has when it comes to it, so
    one that is slow keeps nobody waiting, and one that is so slow that the source has let go of what it has not read is told what it missed.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._sources: dict[str, Source] = {}

    async def run(
        self, run_id: str, from_: str | None, topics: frozenset[Topic], *, patient: bool = False
    ) -> AsyncGenerator[Event, None]:
        """A run's, until it has ended. Raises what keeps its first events from being read; `patient`: but for that no worker answers yet."""
        cursor = place(from_, session=False)
        with self._watching(run_id, bell := asyncio.Event(), topics) as source:
            await _begun(source, bell, patient=patient)
            resets = source.stream.resets
            if cursor is not None:
                _check_place(from_, cursor.after(resets).events, source, cursor.resets)
            feed = Feed(run_id, cursor or Cursor(source.stream.next, resets=len(resets)))
            while True:
                bell.clear()
                for event in feed.take(*await _page(source, feed.cursor.events)):
                    if _wanted(event, topics):
                        yield await _whole(event, source)
                if feed.ended:
                    return
                if feed.cursor.events >= source.stream.next and not source.stream.ended:
                    await bell.wait()

    async def session(self, id: str, from_: str | None, topics: frozenset[Topic]) -> AsyncGenerator[Event, None]:
        """A session's, and its runs', until the session has ended."""
        cursor = place(from_, session=True)
        bell = asyncio.Event()
        with self._watching(id, bell, topics) as own, ExitStack() as stack:
            await _begun(own, bell)
            _check_place(from_, 0 if cursor is None else cursor.session or 0, own)
            feed = SessionFeed(cursor or own.stream.now())
            run: Source | None = None
            skips = cursor is None
            while not feed.ended:
                bell.clear()
                if feed.lost:
                    feed.follow(own.stream.run_id(feed.cursor.run))
                if (run and run.id) != feed.run_id:
                    stack.close()
                    run = (feed.run_id and stack.enter_context(self._watching(feed.run_id, bell, topics))) or None
                if run is not None and skips:
                    await _begun(run, bell)
                    feed.skip(run.stream.next, len(run.stream.resets))
                skips = False
                page, live = None, NOTHING
                if run is not None and run.stream.begun:
                    page, live = await _page(run, feed.cursor.events)
                said, _ = await _page(own, feed.cursor.session or 0)
                before = feed.cursor
                for event in feed.take(said, page, live, gone=run is not None and run.gone):
                    if _wanted(event, topics):
                        yield await _whole(event, own if not event.run_id or run is None else run)
                if feed.cursor == before and not feed.ended:
                    await bell.wait()

    @contextmanager
    def _watching(self, id: str, bell: asyncio.Event, topics: frozenset[Topic]) -> Iterator[Source]:
        source = self._sources.setdefault(id, Source(self.client, id))
        try:
            with source.watching(bell, text=bool(topics & _LIVE)):
                yield source
        finally:
            if not source.watched:
                self._sources.pop(id, None)


def relay_of(client: Client) -> Relay:
    """The process's one relay of this client; it lasts as long as anybody watches by it."""
    relay = _RELAYS.get(id(client))
    if relay is None or relay.client is not client:
        relay = _RELAYS[id(client)] = Relay(client)
    return relay


_RELAYS: WeakValueDictionary[int, Relay] = WeakValueDictionary()


def wanted(topics: Iterable[str] | None) -> frozenset[Topic]:
    """The topics of these names; `None`: all. Raises `ProtocolError` for one that there is not."""
    found: set[Topic] = set()
    for name in TOPICS if topics is None else topics:
        if (topic := as_topic(name)) is None:
            raise ProtocolError(f"{name!r} is no topic; there are {', '.join(TOPICS)}")
        found.add(topic)
    return frozenset(found)


def place(from_: str | None, *, session: bool) -> Cursor | None:
    """Where to begin; `None`: at what happens now. Raises `CursorError` for what is no place there."""
    if from_ == NOW:
        return None
    if from_ is None:
        return Cursor(session=0) if session else Cursor()
    cursor = parse_cursor(from_)
    if (cursor.session is not None) != session:
        there, here = ("a run", "a session's are like '5.2.12'") if session else ("a session", "a run's are like '12'")
        raise CursorError(f"{from_!r} is a place among the events of {there}: {here}")
    return cursor


async def _begun(source: Source, bell: asyncio.Event, *, patient: bool = False) -> None:
    """Wait for its first events. Raises what keeps them from being read."""
    while not source.stream.begun:
        bell.clear()
        error = source.failure or source.problem
        if error is not None and not (patient and isinstance(error, NoWorkerError)):
            raise error
        await bell.wait()


def _check_place(from_: str | None, number: int, source: Source, resets: int = 0) -> None:
    """Raises `CursorError` for a place behind all that there is: what follows would be left out there, and nobody told."""
    if number > source.stream.next or resets > len(source.stream.resets):
        raise CursorError(
            f"{from_!r} is no place among the events of {source.id!r}: it has {source.stream.next:,} so far; whose cursor is it?"
        )


async def _page(source: Source, number: int) -> tuple[EventsPage, Live]:
    """Some of the events from a number on, wherever they are kept, and what is live behind them. Raises why it is not read any more."""
    if source.failure is not None:
        raise source.failure
    if number < source.stream.first and (page := await source.earlier(number)) is not None:
        return page, NOTHING
    return source.stream.since(number, BATCH), source.stream.live


async def _whole(event: Event, source: Source) -> Event:
    """With how things stand, for who has missed something."""
    if event.phase == "snapshot":
        event.data["view"] = await source.summary()
    return event


def _wanted(event: Event, topics: frozenset[Topic]) -> bool:
    return event.topic in topics or event.phase in ("snapshot", "reset")
