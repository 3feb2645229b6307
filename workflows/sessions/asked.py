"""What a session is asked, which changes nothing: as it stands, what has become of a message, what its run was given."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from perdure.workflows.observing.events import page_of
from perdure.workflows.sessions.keeping import Kept
from perdure.workflows.sessions.runs import ChildRun
from perdure.workflows.sessions.tending import Tending

with workflow.unsafe.imports_passed_through():
    from perdure.errors import MessageRefusedError
    from perdure.run.delegates import GIVEN_QUERY
    from perdure.run.events.journal import Journal
    from perdure.run.events.wire import EVENTS_QUERY, EventsPage
    from perdure.run.wire import RunInput
    from perdure.sessions.entries import Entry
    from perdure.sessions.noting import SessionNoting
    from perdure.sessions.transcript import Transcript
    from perdure.sessions.wire import DESCRIBE, ENDED, FATE, GIVEN_SESSION, SHOW, About, Fate, SessionInput, SessionView


class Asked(Tending):
    """The session's queries, over what it keeps and the run that is under way."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: Kept | None = None
        self._child: ChildRun | None = None
        self._ended = False

    @property
    def _transcript(self) -> Transcript | None:
        return None if self._kept is None else self._kept.transcript

    @property
    def _notes(self) -> SessionNoting:
        return self._open().notes

    def _put_away(self, entries: list[Entry]) -> None:
        if self._kept is not None:
            self._kept.put_away(entries)

    def _gone(self, entries: list[Entry]) -> None:
        if self._kept is not None:
            self._kept.gone(entries)

    @workflow.query(name=GIVEN_SESSION)
    def given_session(self) -> SessionInput:
        """What a fork of this session begins with, beside its transcript (R10.20)."""
        return self._open().given

    @workflow.query(name=DESCRIBE)
    def about(self) -> About:
        """What the session is, without what was said."""
        return self._open().about

    @workflow.query(name=SHOW)
    def view(self) -> SessionView:
        """The session as it stands."""
        return self._open().view()

    @workflow.query(name=EVENTS_QUERY)
    def events(self, *said: Any) -> EventsPage:
        """What has happened: an `EventsPage` from a number on, and with at most so many; also once it was deleted (R10.14)."""
        return page_of(Journal() if self._kept is None else self._kept.notes.journal, said)

    @workflow.query(name=FATE)
    def fate(self, what: str, sender: str = "") -> Fate:
        """What has become of a message, named by its id and its sender, or of a run of this session."""
        return self._open().fate(what, sender)

    @workflow.query(name=GIVEN_QUERY)
    def given_below(self, names: list[str]) -> dict[str, RunInput | None]:
        """What the run under way was given, for it to ask where it is too large to be sent (R18.2)."""
        child = self._child
        mine = None if child is None else child.id.removeprefix(f"{workflow.info().workflow_id}/")
        return {name: child.given if child is not None and name == mine else None for name in names}

    def _open(self) -> Kept:
        if self._kept is None or self._ended:
            raise MessageRefusedError(ENDED)
        return self._kept

    def _show(self) -> None:
        if self._kept is not None:
            workflow.set_current_details(self._kept.details())
