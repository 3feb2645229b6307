"""One run, or session, as it is read: by one loop, for all who watch it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, HistoryEventFilterType
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.asking import TIMEOUT, answer_of, execution_before
from perdure.client.listing import STATUS
from perdure.client.relay.looking import Looking
from perdure.client.runs import not_shown
from perdure.errors import NoWorkerError, RunError
from perdure.run.events.clipping import clipped
from perdure.run.events.stream import Stream
from perdure.run.events.wire import EVENTS_QUERY, WATCHED, EventsPage, Noted
from perdure.run.wire import AGENT_WORKFLOW, REQUEST_ACTIVITY, RUN_QUERY
from perdure.sessions.wire import SHOW, TURN_ACTIVITY
from perdure.values.jsons import JsonObject
from perdure.values.limits import KEPT_EVENTS, MAX_EVENT_DATA

SHORTEST: Final = 0.15
"""Seconds until the next look where something has just happened: half of what a first word may take to a screen."""
_SHARE: Final = 0.04
"""Of the time in which nothing happened: who has waited for a minute for a word may wait two seconds more."""
_WRITING, _WORKING, _WAITING = 0.5, 1.0, 2.0
"""Seconds between looks at most: while a model is asked, while other activities run, and while none does."""
_SHORT: Final = 60
"""Events of a history that is short enough to be read again for being told of its next event at once."""
_POLL: Final = timedelta(seconds=60)
"""After which the server is asked anew for the next event."""
TELLS: Final = 60.0
"""Seconds between two signals that somebody watches: each is an Action."""


class Source:
    """What is known of it, and the loop that keeps it so, while anybody watches.

    A look describes the execution, which is no Action; its journal is asked for only when its history has grown since.
    """

    def __init__(self, client: Client, id: str) -> None:
        self.id = id
        self.stream = Stream()
        self.problem: Exception | None = None
        """Why nothing could be read so far, or not now: it is tried again."""
        self.failure: Exception | None = None
        """Why it is not."""
        self._client = client
        self._handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(id)
        self._looking = Looking(client)
        self._bells: dict[asyncio.Event, bool] = {}
        self._task: asyncio.Task[None] | None = None
        self._seen = ("", -1)
        self._told_at = float("-inf")
        self._earlier: dict[int, asyncio.Task[EventsPage | None]] = {}
        self._summary: tuple[int, asyncio.Task[JsonObject]] | None = None

    @property
    def watched(self) -> bool:
        return bool(self._bells)

    @property
    def gone(self) -> bool:
        """Whether it can be read by nobody: there is none, or it says why not."""
        problem = self.problem
        nowhere = isinstance(problem, RPCError) and problem.status == RPCStatusCode.NOT_FOUND
        refused = isinstance(problem, RunError) and not isinstance(problem, NoWorkerError)
        return not self.stream.begun and (nowhere or refused)

    @contextmanager
    def watching(self, bell: asyncio.Event, *, text: bool) -> Iterator[None]:
        """Have the bell rung whenever there is something new. `text`: what is being written is wanted too."""
        self._bells[bell] = text
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read())
        try:
            yield
        finally:
            del self._bells[bell]
            if not self._bells:
                self._task.cancel()

    async def earlier(self, number: int) -> EventsPage | None:
        """Events from a number on that this execution does not keep any more, and one before it may; asked once for all who ask."""
        if number not in self._earlier:
            while len(self._earlier) > 8:
                del self._earlier[next(iter(self._earlier))]
            self._earlier[number] = asyncio.create_task(self._from_before(number))
        return await asyncio.shield(self._earlier[number])

    async def summary(self) -> JsonObject:
        """How it stands, small: for who has missed something. Empty where nobody can tell."""
        if self._summary is None or self._summary[0] != self.stream.next:
            self._summary = (self.stream.next, asyncio.create_task(self._summarised()))
        return await asyncio.shield(self._summary[1])

    async def _read(self) -> None:
        """Until it has ended, or nobody watches any more."""
        try:
            await self._look_on()
        except Exception as error:
            self.failure = error
            self._ring()

    def _ring(self) -> None:
        for bell in self._bells:
            bell.set()

    async def _look_on(self) -> None:
        clock = asyncio.get_running_loop().time
        changed_at = clock()
        while not self.stream.ended:
            description, problem, changed = None, self.problem, False
            try:
                description = await self._handle.describe()
                changed = await self._look(description)
                self.problem = None
            except WorkflowQueryFailedError as error:
                assert description is not None
                self.problem = not_shown(error, description)
            except RPCError as error:
                await self._note_failure(error, description)
            if self.problem is not None or self.stream.ended:
                changed = problem is None or self.stream.ended
            if changed:
                changed_at = clock()
                self._ring()
            await self._rest(description, clock() - changed_at)

    async def _note_failure(self, error: RPCError, description: WorkflowExecutionDescription | None) -> None:
        """The server was not reached, or nobody has answered."""
        if error.status == RPCStatusCode.RESOURCE_EXHAUSTED:
            return  # others ask it, too, and wait for a worker: it is tried again
        if description is not None and not _runs(description) and not await self._ever_worked():
            self.problem = None
            self.stream.end(_end_of(description))
        elif description is not None:
            self.problem = not_shown(error, description)
        else:
            self.problem = error
            if error.status == RPCStatusCode.NOT_FOUND and self.stream.begun:
                self.stream.end()  # it was deleted while it was watched

    async def _ever_worked(self) -> bool:
        """Whether a worker has ever done anything for it: else it has noted nothing, and no worker could say so."""
        with contextlib.suppress(RPCError):
            async for event in self._handle.fetch_history_events():
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                    return True
            return False
        return True

    async def _look(self, description: WorkflowExecutionDescription) -> bool:
        """Take in what is new; whether anything is."""
        stream, place = self.stream, (description.run_id, description.history_length)
        grown = place != self._seen
        running = _runs(description)
        if running:
            await self._tell(description, grown=grown)
        live = await self._looking.live(description, stream.asked)
        pages = await self._pages() if grown else []
        before = (stream.next, stream.live.written, stream.live.updates, stream.begun)
        stream.look(live)
        for page in pages:
            stream.add(page)
        self._seen = place
        if not running and not stream.ended:
            stream.end(_end_of(description))
        return before != (stream.next, stream.live.written, stream.live.updates, stream.begun) or stream.ended

    async def _tell(self, description: WorkflowExecutionDescription, *, grown: bool) -> None:
        """Say to a run that somebody watches: its Requests tell more often what is written. Not while nothing happens in it."""
        now = asyncio.get_running_loop().time()
        asks = any(
            each.activity_type.name == REQUEST_ACTIVITY for each in description.raw_description.pending_activities
        )
        if (
            description.workflow_type == AGENT_WORKFLOW
            and (grown or asks)
            and now - self._told_at >= TELLS
            and any(self._bells.values())
        ):
            self._told_at = now
            with contextlib.suppress(RPCError):
                await self._handle.signal(WATCHED, rpc_timeout=TIMEOUT)

    async def _pages(self) -> list[EventsPage]:
        """All that follows."""
        found: list[EventsPage] = []
        first = self.stream.next
        while True:
            page = await _ask(self._handle, first)
            if self.stream.go_back(page.resets):
                found, first = [], self.stream.next
                continue
            if page.first > first and page.earlier and self.stream.begun:
                found += await self._between(first, page.first)
            found.append(page)
            first = page.next
            if page.next >= page.count or not page.events:
                return found

    async def _between(self, first: int, until: int) -> list[EventsPage]:
        """What an execution noted before it went on as new, and the new one has not kept. Raises as a query does: it is tried again."""
        found: list[EventsPage] = []
        while first < until and (page := await self._before(first)) is not None:
            found.append(page)
            first = page.next
        return found

    async def _from_before(self, number: int) -> EventsPage | None:
        with contextlib.suppress(RPCError, WorkflowQueryFailedError):
            return await self._before(number)
        return None

    async def _before(self, number: int) -> EventsPage | None:
        handle = self._handle
        with contextlib.suppress(RunError):  # there is none before it
            while True:
                handle = await execution_before(self._client, handle)
                page = await _ask(handle, number)
                if page.first <= number or not page.earlier:
                    return page if page.events else None
        return None

    async def _summarised(self) -> JsonObject:
        view: JsonObject = {}
        with contextlib.suppress(RPCError, WorkflowQueryFailedError):
            is_session = (await self._handle.describe()).workflow_type != AGENT_WORKFLOW
            view = await answer_of(self._handle, SHOW if is_session else RUN_QUERY)
        small, _, _ = clipped(view, MAX_EVENT_DATA)
        return small if isinstance(small, dict) else {}

    async def _rest(self, description: WorkflowExecutionDescription | None, quiet: float) -> None:
        """Until the next look: soon where something may be told without being noted, else when something is noted."""
        most, pause = _WAITING, max(SHORTEST, _SHARE * quiet)
        if description is not None:
            activities = {each.activity_type.name for each in description.raw_description.pending_activities}
            activities.discard(TURN_ACTIVITY)
            if not activities and self.problem is None and description.history_length <= _SHORT:
                await self._until_more(description)
                return
            most = _WRITING if REQUEST_ACTIVITY in activities else _WORKING if activities else _WAITING
        await asyncio.sleep(min(pause, most))

    async def _until_more(self, description: WorkflowExecutionDescription) -> None:
        """Wait for the next event of its history, as the server tells it."""
        token = b""
        with contextlib.suppress(RPCError):
            while not self.stream.ended:
                request = GetWorkflowExecutionHistoryRequest(
                    namespace=self._client.namespace,
                    execution=WorkflowExecution(workflow_id=self.id, run_id=description.run_id),
                    wait_new_event=True,
                    history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT,
                    next_page_token=token,
                )
                response = await self._client.workflow_service.get_workflow_execution_history(request, timeout=_POLL)
                token = response.next_page_token
                if not token or any(each.event_id > description.history_length for each in response.history.events):
                    return
            return
        await asyncio.sleep(SHORTEST)


async def _ask(handle: WorkflowHandle[Any, Any], first: int) -> EventsPage:
    page: EventsPage = await answer_of(handle, EVENTS_QUERY, first, KEPT_EVENTS, result_type=EventsPage)
    return page


def _runs(description: WorkflowExecutionDescription) -> bool:
    return description.status is None or STATUS[description.status] == "running"


def _end_of(description: WorkflowExecutionDescription) -> Noted:
    """The end of what could not say it itself."""
    status = "completed" if description.status is None else STATUS[description.status]
    at = (description.close_time or datetime.now(UTC)).isoformat(timespec="milliseconds")
    return Noted(topic="lifecycle", phase="end" if status == "completed" else "error", at=at, data={"status": status})
