"""What crosses: the events that a run or a session answers, and the text that a Request's activity tells while it is written."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from perdure.run.events.kinds import Topic
from perdure.values.jsons import JsonObject
from perdure.values.wire import Wire

EVENTS_QUERY: Final = "events"
"""Query of a run and of a session, `(first: int, limit: int)`, both may be left out: an `EventsPage`."""

WATCHED: Final = "watched"
"""Signal to a run: somebody watches it now, and for the next `WATCH_LASTS`; whatever comes with it is not looked at. Query of it: until when
(`float`, seconds since 1970), 0 for nobody."""
WATCH_LASTS: Final = 90.0
"""Seconds: who goes on watching says so once a minute."""


class Noted(Wire):
    """An event as a journal keeps it: its number is its place."""

    topic: Topic
    phase: str
    at: str
    """ISO 8601, UTC, to the millisecond."""
    run_id: str = ""
    """In a session: the run that it is about; empty: it is the session's own. In a run always empty."""
    data: JsonObject = Field(default_factory=dict)


class EventsPage(Wire):
    """Events of one source, from a number on."""

    first: int
    """The number of the first of `events`: the one that was asked for, or the oldest that is kept."""
    next: int
    """The number behind the last of `events`: where to go on. Less than `count`: there are more already."""
    kept_from: int
    """The number of the oldest that is kept. Who asks for an earlier one has missed those between."""
    events: list[Noted] = Field(default_factory=list)
    """In their order."""
    count: int
    """How many events there were so far."""
    resets: list[int] = Field(default_factory=list)
    """The numbers of those that say that the run was reset: what was told of it before, from there on, does not count. 0: all of it, and no
    event says so."""
    ended: bool = False
    """No event follows the last of `count`."""
    earlier: bool = False
    """The execution that this one went on from may still have some of what was missed: it answers the same query."""


class CarriedEvents(Wire):
    """What a journal carries on into a new execution."""

    count: int = 0
    resets: list[int] = Field(default_factory=list)
    events: list[Noted] = Field(default_factory=list)
    """The newest."""


class Piece(Wire):
    """The end of a text that is being written."""

    start: int = 0
    """Characters before it."""
    text: str = ""


class Written(Wire):
    """What a Request's model has written so far: the heartbeat details of its activity, which no history keeps."""

    request: int
    attempt: int
    """As `RequestResult.attempt` counts: with those of activities before this one."""
    assistant: Piece = Field(default_factory=Piece)
    reasoning: Piece = Field(default_factory=Piece)
