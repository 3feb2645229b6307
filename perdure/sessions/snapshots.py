"""What a session carries on into a new execution (R10.13)."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from perdure.run.events.wire import CarriedEvents
from perdure.sessions.lanes.queued import LaneState
from perdure.sessions.replies.wire import Delivery
from perdure.sessions.transcript import Carried
from perdure.values.jsons import JsonObject
from perdure.values.wire import Wire

SESSION_FORM: Final = 1
"""Of a `SessionSnapshot`. A worker that does not know a snapshot's form fails its tasks until one that does takes over."""


class SessionSnapshot(Wire):
    """A session between two runs."""

    lane: LaneState
    transcript: Carried
    remembered: str = ""
    """`Remembered`: the messages whose entries are in segments."""
    sources: dict[str, list[str]] = Field(default_factory=dict)
    """Where its state and what was said come from, by reference (R15.1)."""
    events: CarriedEvents = Field(default_factory=CarriedEvents)
    """What has happened, as far as it goes along (R10.14)."""
    replies: list[Delivery] = Field(default_factory=list)
    """Those that are not delivered yet (R10.16)."""
    state: JsonObject | None = None
    """What its runs have written; `None`: nothing yet, so that the agent file's counts."""
