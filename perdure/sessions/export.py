"""Exported sessions: the data with which a session continues in another namespace (R24.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import Field

from perdure.runs.events import CarriedEvents
from perdure.sessions.entries import Entry
from perdure.sessions.message_queue import MessageQueue
from perdure.sessions.transcript import SESSION_FORM, EntryList, Segment, SessionSnapshot
from perdure.sessions.wire import SessionInput, session_id
from perdure.values.json import WireModel, pack

CARRIED_QUERY: Final = "carried"
"""Query: the `SessionInput` with which the session continues. It fails while a run, message or reply is pending."""


class ExportedSegments(WireModel):
    """The segments of one span."""

    name: str
    """The span's name."""
    segments: list[Segment] = Field(default_factory=list)


class SessionExport(WireModel):
    """A session between two runs, with its segments."""

    id: str
    """Its workflow's id."""
    input: SessionInput
    spans: list[ExportedSegments] = Field(default_factory=list)


def remove_unexported(snapshot: SessionSnapshot) -> None:
    """Remove the data that no export has: events, and status webhooks with the credentials of their clients."""
    snapshot.events, snapshot.webhooks = CarriedEvents(), []


class RestoredSession:
    """An exported session under a key and a tenant. Runs and segments get ids of the new session.

    `born`: the mark in the ids of its further runs.
    """

    def __init__(self, exported: SessionExport, key: str, tenant: str, born: str) -> None:
        self._exported = exported
        self._born = born
        self.id = session_id(tenant, key)
        self._key, self._tenant = key, tenant

    @property
    def input(self) -> SessionInput:
        """The input of the new session. Raise `ProtocolError` if another version has written the export.

        Its events begin anew, and no status webhook reports its earlier runs.
        """
        exported = self._exported.input
        assert exported.snapshot is not None
        snapshot = exported.snapshot.read(SessionSnapshot, SESSION_FORM, "the exported session")
        remove_unexported(snapshot)  # exports of earlier versions have these data
        MessageQueue(self.id, exported.rules, snapshot.message_queue).import_runs(self._born)
        self._rename(snapshot.transcript.entries)
        for span in snapshot.transcript.spans:
            span.name = self._name(span.name)
        update = {"key": self._key, "tenant": self._tenant, "snapshot": pack(snapshot, SESSION_FORM)}
        return exported.model_copy(update=update)

    def segments(self) -> Iterator[tuple[str, Segment]]:
        """Yield the segments, each with the id of its workflow."""
        for span in self._exported.spans:
            for segment in span.segments:
                entries = segment.read
                self._rename(entries)
                packed = pack(EntryList(entries=entries), segment.entries.form)
                yield (f"{self._name(span.name)}{segment.number}", segment.model_copy(update={"entries": packed}))

    def _name(self, span: str) -> str:
        return f"{self.id}/~{span.rpartition('/~')[2]}"

    def _rename(self, entries: list[Entry]) -> None:
        before = f"{self._exported.id}/"
        for entry in entries:
            run_id = getattr(entry, "run_id", None)
            if isinstance(run_id, str) and run_id.startswith(before):
                entry.run_id = f"{self.id}/{run_id.removeprefix(before)}"  # type: ignore[union-attr]
