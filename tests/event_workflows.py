"""Workflows that note the events that a signal brings: for readers of events, which need no agent."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.runs.event_journal import EventJournal
    from perdure.runs.events import EVENTS_QUERY, WATCHED, CarriedEvents, EventsPage
    from perdure.runs.wire import AGENT_WORKFLOW
    from perdure.sessions.wire import SESSION_WORKFLOW

AT = "2026-01-01T00:00:00.000Z"


class _EventWorkflow:
    def __init__(self, carried: dict[str, Any] | None = None) -> None:
        self._journal = EventJournal(None if carried is None else CarriedEvents.model_validate(carried))
        self._leaves = ""
        self.watched = 0

    async def _until_told(self) -> None:
        await workflow.wait_condition(lambda: self._leaves != "")
        if self._leaves == "anew":
            left = self._journal.carried()
            left.events = left.events[-1:]
            workflow.continue_as_new(left.as_json())

    @workflow.signal
    def note(self, topic: Any, phase: str, run_id: str, data: dict[str, Any]) -> None:
        self._journal.note(topic, phase, AT, run_id, **data)

    @workflow.signal
    def leave(self, how: str) -> None:
        self._leaves = how
        self._journal.ended = how == "end"

    @workflow.signal(name=WATCHED)
    def somebody_watches(self, *_: Any) -> None:
        self.watched += 1

    @workflow.query
    def signals(self) -> int:
        return self.watched

    @workflow.query(name=EVENTS_QUERY)
    def events(self, first: int = 0, limit: int = 1_000) -> EventsPage:
        return self._journal.page(first, limit)


@workflow.defn(name=AGENT_WORKFLOW)
class EventRun(_EventWorkflow):
    @workflow.init
    def __init__(self, carried: dict[str, Any] | None = None) -> None:
        super().__init__(carried)

    @workflow.run
    async def run(self, _: dict[str, Any] | None = None) -> None:
        await self._until_told()


@workflow.defn(name=SESSION_WORKFLOW)
class EventSession(_EventWorkflow):
    @workflow.init
    def __init__(self, carried: dict[str, Any] | None = None) -> None:
        super().__init__(carried)

    @workflow.run
    async def run(self, _: dict[str, Any] | None = None) -> None:
        await self._until_told()
