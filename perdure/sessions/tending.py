"""What a session's workflow and its activities say to each other about its transcript: summaries, segments, what is at hand (R10.11 to R10.13)."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from perdure.model.usage import Usage
from perdure.sessions.entries import Entry
from perdure.sessions.segments import Segment, Span
from perdure.values.jsons import JsonObject
from perdure.values.wire import Wire

SUMMARY_ACTIVITY: Final = "perdure.summary"
ARCHIVE_ACTIVITY: Final = "perdure.archive"
FIND_ACTIVITY: Final = "perdure.find"
SUMMARY_QUERY: Final = "summary"
"""What is to be summarised, asked by the activity that does it: a `SummarySource`."""
SEGMENT_QUERY: Final = "segment"
"""What is to be archived: a `Segment`."""
ENTRIES_QUERY: Final = "at_hand"
"""The entries that the session has itself, and where the older ones are: `AtHand`."""


class SummaryInput(Wire):
    """What is given to the activity that has a summary written: all else it asks for."""

    models: JsonObject = Field(default_factory=dict)
    """The agent file's `config.models`."""


class SummarySource(Wire):
    """What is to be summarised."""

    text: str
    most: int
    """Tokens of the summary."""


class Summary(Wire):
    """What came of it."""

    text: str | None = None
    """`None`: nothing that can be used."""
    problem: str | None = None
    """Why not."""
    model: str = ""
    usage: Usage = Field(default_factory=Usage)


class ArchiveInput(Wire):
    """What is given to the activity that archives: where."""

    span: Span


class Archived(Wire):
    """The segment that is there now."""

    last: int
    """The place of its last entry."""


class FindInput(Wire):
    """A message that may stand in a segment."""

    message_id: str
    sender: str = ""
    """Whose it is; empty: of whichever sender has one of this id, if one alone has."""
    spans: list[Span]


class Found(Wire):
    """The message's entry; `None`: there is none."""

    entry: Entry | None = None


class AtHand(Wire):
    """Entries of a session, from the first that it has itself; `more`: there are newer ones than these, for another question."""

    entries: list[Entry] = Field(default_factory=list)
    more: bool = False
    spans: list[Span] = Field(default_factory=list)
    last: int = 0
    branch: int = 0
    limit: int = 0


class SegmentSource(Wire):
    """What is to be archived; `None`: nothing any more."""

    segment: Segment | None = None
