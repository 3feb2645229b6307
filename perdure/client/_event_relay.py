"""The event relay: it reads each run and session once, for all watchers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from weakref import WeakValueDictionary

from pydantic import ValidationError
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, HistoryEventFilterType
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client._pending_activities import failure_words, paused, silent, unanswered, unserved
from perdure.client._run_lists import STATUS
from perdure.client.evaluations import scored_event
from perdure.client.run_operations import not_shown
from perdure.errors import CursorError, NoWorkerError, ProtocolError, RunError
from perdure.queries import TIMEOUT, answer_of, execution_before
from perdure.runs.event_stream import NOTHING, EventBuffer, LiveState, RunEventReader, SessionEventReader
from perdure.runs.events import (
    EVENTS_QUERY,
    TOPICS,
    WATCHED,
    Cursor,
    Event,
    EventsPage,
    JournalEntry,
    Topic,
    WrittenText,
    as_topic,
    clip_value,
    last_reset,
    parse_cursor,
)
from perdure.runs.wire import AGENT_WORKFLOW, REQUEST_ACTIVITY, RUN_QUERY
from perdure.sessions.wire import SHOW, TURN_ACTIVITY
from perdure.values.json import JsonObject
from perdure.values.limits import KEPT_EVENTS, MAX_EVENT_DATA

_SHOWN = 500
"""Characters that are shown of a call's progress, or of the reason for its retry."""


class ActivityReader:
    """A reader of one run's pending activities. It decodes heartbeat details only where they have changed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._decoded: dict[str, tuple[bytes, Any]] = {}
        self._words: dict[tuple[str, int], str] = {}

    async def live(self, description: WorkflowExecutionDescription, asked: JsonObject) -> LiveState:
        """Return the live state. `asked` is the data of the last event with which a Request began, empty before it."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        written: WrittenText | None = None
        updates: list[JournalEntry] = []
        pending = description.raw_description.pending_activities
        for each in pending:
            detail = await self._detail(each)
            trouble = await self._trouble(each)
            if each.activity_type.name == REQUEST_ACTIVITY:
                with contextlib.suppress(ValidationError):
                    written = WrittenText.model_validate(detail)
                if trouble:
                    # The event that began this Request may be unread, or no longer kept.
                    data: JsonObject = {"number": int(each.activity_id.split("-")[1]), "reason": trouble}
                    if asked.get("number") == data["number"]:
                        data["model"] = asked["model"]
                    updates.append(JournalEntry(topic="request", phase="update", at=at, data=data))
            elif "." in each.activity_id:
                running = _running_tool(each, detail, trouble)
                updates += [JournalEntry(topic="tool", phase="update", at=at, data=running)] if running else []
        ids = {each.activity_id for each in pending}
        self._decoded = {key: kept for key, kept in self._decoded.items() if key in ids}
        self._words = {key: kept for key, kept in self._words.items() if key[0] in ids}
        return LiveState(at, written, tuple(updates))

    async def _detail(self, pending: PendingActivityInfo) -> Any:
        """Return the details of the last heartbeat. A tool may put anything there; unreadable details count as none."""
        if not pending.HasField("heartbeat_details"):
            return None
        raw = pending.heartbeat_details.SerializeToString(deterministic=True)
        known = self._decoded.get(pending.activity_id)
        if known is None or known[0] != raw:
            detail = None
            with contextlib.suppress(Exception):
                detail = (await self._client.data_converter.decode(pending.heartbeat_details.payloads))[0]
            known = self._decoded[pending.activity_id] = (raw, detail)
        return known[1]

    async def _trouble(self, pending: PendingActivityInfo) -> str:
        """Return the reason why a pending activity is retried; empty if it is not."""
        if pending.attempt <= 1 or not pending.HasField("last_failure"):
            return ""
        key = (pending.activity_id, pending.attempt)
        if key not in self._words:
            words = await failure_words(self._client, pending.last_failure)
            self._words[key] = f"attempt {pending.attempt} after: {words[:_SHOWN]}"
        return self._words[key]


def _running_tool(pending: PendingActivityInfo, detail: Any, trouble: str) -> JsonObject:
    """Return the event data of a pending call; empty if there is nothing to report."""
    report: JsonObject = {}
    if isinstance(detail, dict) and "progress" in detail:
        report["progress"] = str(detail["progress"])[:_SHOWN]
    if words := paused(pending) or silent(pending) or unserved(pending) or trouble:
        report |= {"attempt": pending.attempt, "reason": words}
    return {"call": pending.activity_id, "tool": pending.activity_type.name} | report if report else {}


SHORTEST: Final = 0.15
"""Seconds until the next look after a change: half of the time that a first word may take to a screen."""
_SHARE: Final = 0.04
"""Share of the time without a change that the next look may wait: two seconds after a minute."""
_WRITING, _WORKING, _WAITING = 0.5, 1.0, 2.0
"""The most seconds between looks: while a Request runs, while other activities run, and while none runs."""
_SHORT: Final = 60
"""The most events of a history that is read again at each wait for its next event."""
_POLL: Final = timedelta(seconds=60)
"""The time after which the request for the next event is repeated."""
WATCHED_EVERY: Final = 60.0
"""Seconds between two signals that somebody watches: each is an Action."""


class EventSource:
    """The relay's state of one run or session, and the loop that updates it while it has watchers.

    The loop describes the execution, which is no Action. It queries the journal only after the history has grown.
    """

    def __init__(self, client: Client, id: str) -> None:
        self.id = id
        self.stream = EventBuffer()
        self.problem: Exception | None = None
        """The error of the last read, which is retried."""
        self.failure: Exception | None = None
        """The error that ended the loop: nothing is retried."""
        self._client = client
        self._handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(id)
        self._looking = ActivityReader(client)
        self._bells: dict[asyncio.Event, bool] = {}
        self._task: asyncio.Task[None] | None = None
        self._seen = ("", -1)
        self._signalled_at = float("-inf")
        self._earlier: dict[int, asyncio.Task[EventsPage | None]] = {}
        self._summary: tuple[int, asyncio.Task[JsonObject]] | None = None

    @property
    def watched(self) -> bool:
        return bool(self._bells)

    @property
    def gone(self) -> bool:
        """Whether nobody can read the source: it does not exist, or it rejects the query."""
        problem = self.problem
        nowhere = isinstance(problem, RPCError) and problem.status == RPCStatusCode.NOT_FOUND
        refused = isinstance(problem, RunError) and not isinstance(problem, NoWorkerError)
        return not self.stream.begun and (nowhere or refused)

    @contextmanager
    def watching(self, bell: asyncio.Event, *, text: bool) -> Iterator[None]:
        """Set the event `bell` at each change. `text`: also while the model writes text."""
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
        """Return the events from a number on that this execution no longer keeps and an earlier one may. Callers share
        one query.
        """
        if number not in self._earlier:
            while len(self._earlier) > 8:
                del self._earlier[next(iter(self._earlier))]
            self._earlier[number] = asyncio.create_task(self._from_before(number))
        return await asyncio.shield(self._earlier[number])

    async def summary(self) -> JsonObject:
        """Return a small summary of the present state, for readers that have missed events. Empty if no worker answers."""
        if self._summary is None or self._summary[0] != self.stream.next:
            self._summary = (self.stream.next, asyncio.create_task(self._summarised()))
        return await asyncio.shield(self._summary[1])

    async def _read(self) -> None:
        """Read the source until it has ended, or has no watchers."""
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
                self.problem = not_shown(error, description.id)
            except RPCError as error:
                await self._note_failure(error, description)
            if self.problem is not None or self.stream.ended:
                changed = problem is None or self.stream.ended
            if changed:
                changed_at = clock()
                self._ring()
            await self._rest(description, clock() - changed_at)

    async def _note_failure(self, error: RPCError, description: WorkflowExecutionDescription | None) -> None:
        """Note that the server was not reached, or that no worker has answered."""
        if error.status == RPCStatusCode.RESOURCE_EXHAUSTED:
            return  # other clients wait for a worker too: the query is retried
        if description is not None and not _runs(description) and not await self._ever_worked():
            self.problem = None
            self.stream.end(_end_of(description))
        elif description is not None:
            self.problem = await unanswered(self._client, description.id, not_shown(error, description.id))
        else:
            self.problem = error
            if error.status == RPCStatusCode.NOT_FOUND and self.stream.begun:
                self.stream.end()  # it was deleted while it was watched

    async def _ever_worked(self) -> bool:
        """Whether a worker has ever completed a workflow task of it. Without one it has no events."""
        with contextlib.suppress(RPCError):
            async for event in self._handle.fetch_history_events():
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                    return True
            return False
        return True

    async def _look(self, description: WorkflowExecutionDescription) -> bool:
        """Read the changes, and return whether there are any."""
        stream, place = self.stream, (description.run_id, description.history_length)
        grown = place != self._seen
        running = _runs(description)
        if running:
            await self._signal_watched(description, grown=grown)
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

    async def _signal_watched(self, description: WorkflowExecutionDescription, *, grown: bool) -> None:
        """Signal a run that it has watchers: its Requests then report text more often. Send nothing while nothing
        changes.
        """
        now = asyncio.get_running_loop().time()
        asks = any(
            each.activity_type.name == REQUEST_ACTIVITY for each in description.raw_description.pending_activities
        )
        if (
            description.workflow_type == AGENT_WORKFLOW
            and (grown or asks)
            and now - self._signalled_at >= WATCHED_EVERY
            and any(self._bells.values())
        ):
            self._signalled_at = now
            with contextlib.suppress(RPCError):
                await self._handle.signal(WATCHED, rpc_timeout=TIMEOUT)

    async def _pages(self) -> list[EventsPage]:
        """Return all pages that follow."""
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
        """Return the events from before a continue-as-new that the new one has not kept. Raises the query's error:
        the caller retries.
        """
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
        with contextlib.suppress(RunError):  # there is no execution before it
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
        small, _, _ = clip_value(view, MAX_EVENT_DATA)
        return small if isinstance(small, dict) else {}

    async def _rest(self, description: WorkflowExecutionDescription | None, quiet: float) -> None:
        """Wait until the next look: a short time while heartbeats may report changes, else until the history grows."""
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
        """Wait until the server returns the next event of its history."""
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


def _end_of(description: WorkflowExecutionDescription) -> JournalEntry:
    """Return the end of an execution that could not note its own end."""
    status = "completed" if description.status is None else STATUS[description.status]
    at = (description.close_time or datetime.now(UTC)).isoformat(timespec="milliseconds")
    return JournalEntry(
        topic="lifecycle", phase="end" if status == "completed" else "error", at=at, data={"status": status}
    )


NOW: Final = "now"
"""The value in place of a cursor that selects only new events."""
BATCH: Final = 200
"""Events that are made for a watcher at a time: no other unread events take memory."""
_LIVE: Final[frozenset[Topic]] = frozenset({"assistant", "reasoning"})


class EventRelay:
    """One `EventSource` for each run and session that is watched.

    A watcher has no queue: it takes its source's events when it is ready for them. So a slow watcher keeps nobody waiting. A
    watcher that is slower than its source keeps events receives a notice of the missed events.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._sources: dict[str, EventSource] = {}

    async def run(
        self,
        run_id: str,
        from_: str | None,
        topics: frozenset[Topic],
        *,
        patient: bool = False,
        awaits_score: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a run, until it has ended. The score of the run follows its end, if there is one.

        `patient`: wait at the beginning until a worker answers. `awaits_score`: wait for the score. Raises the
        error that prevents the first read.
        """
        cursor = start_cursor(from_, session=False)
        with self._watching(run_id, bell := asyncio.Event(), topics) as source:
            await _begun(source, bell, patient=patient)
            resets = source.stream.resets
            if cursor is not None:
                events = cursor.after(resets).events - source.stream.ended  # the last one may be the score
                _check_place(from_, events, source, cursor.reset)
            feed = RunEventReader(run_id, cursor or Cursor(source.stream.next, reset=last_reset(resets)))
            while True:
                bell.clear()
                for event in feed.take(*await _page(source, feed.cursor.events)):
                    if is_wanted(event, topics):
                        yield await _whole(event, source)
                if feed.ended:
                    break
                if feed.cursor.events >= source.stream.next and not source.stream.ended:
                    await bell.wait()
            end = source.stream.since(feed.cursor.events)
            is_behind_end = feed.cursor.events > end.count  # the position of the score, if there is one
            if "score" not in topics and not is_behind_end:
                return
            score = await scored_event(self.client, run_id, wait=awaits_score)
            if score is None:
                _check_place(from_, feed.cursor.events, source)
            elif not is_behind_end:
                following = end.model_copy(update={"events": [score], "next": end.next + 1, "count": end.count + 1})
                for event in feed.take(following):
                    yield event

    async def session(self, id: str, from_: str | None, topics: frozenset[Topic]) -> AsyncGenerator[Event, None]:
        """Yield the events of a session and of its runs, until the session has ended."""
        cursor = start_cursor(from_, session=True)
        bell = asyncio.Event()
        with self._watching(id, bell, topics) as own, ExitStack() as stack:
            await _begun(own, bell)
            if cursor is not None:
                following = cursor.after_session(own.stream.resets)
                _check_place(from_, following.session or 0, own, cursor.session_reset)
            feed = SessionEventReader(cursor or own.stream.now())
            feed.skips = cursor is None
            run: EventSource | None = None
            while not feed.ended:
                bell.clear()
                for event in feed.go_back(own.stream):
                    if is_wanted(event, topics):
                        yield event
                if feed.lost:
                    feed.follow(own.stream.run_id(feed.cursor.run))
                if (run and run.id) != feed.run_id:
                    stack.close()
                    run = (feed.run_id and stack.enter_context(self._watching(feed.run_id, bell, topics))) or None
                if run is not None and feed.skips and not run.gone:
                    await _begun(run, bell)
                    feed.skip(run.stream.next, last_reset(run.stream.resets))
                feed.skips = False
                page, live = None, NOTHING
                if run is not None and run.stream.begun:
                    page, live = await _page(run, feed.cursor.events)
                own_page, _ = await _page(own, feed.cursor.session or 0)
                before = feed.cursor
                for event in feed.take(own_page, page, live, gone=run is not None and run.gone):
                    if is_wanted(event, topics):
                        yield await _whole(event, own if not event.run_id or run is None else run)
                if feed.cursor == before and not feed.ended:
                    await bell.wait()

    @contextmanager
    def _watching(self, id: str, bell: asyncio.Event, topics: frozenset[Topic]) -> Iterator[EventSource]:
        source = self._sources.setdefault(id, EventSource(self.client, id))
        try:
            with source.watching(bell, text=bool(topics & _LIVE)):
                yield source
        finally:
            if not source.watched:
                self._sources.pop(id, None)


def relay_of(client: Client) -> EventRelay:
    """Return the process's one relay of this client. It lasts as long as it has watchers."""
    relay = _RELAYS.get(id(client))
    if relay is None or relay.client is not client:
        relay = _RELAYS[id(client)] = EventRelay(client)
    return relay


_RELAYS: WeakValueDictionary[int, EventRelay] = WeakValueDictionary()


def parse_topics(topics: Iterable[str] | None) -> frozenset[Topic]:
    """Return the topics of these names; `None`: all. Raises `ProtocolError` for an unknown name."""
    found: set[Topic] = set()
    for name in TOPICS if topics is None else topics:
        if (topic := as_topic(name)) is None:
            raise ProtocolError(f"{name!r} is not a known topic; use one of: {', '.join(TOPICS)}")
        found.add(topic)
    return frozenset(found)


def start_cursor(from_: str | None, *, session: bool) -> Cursor | None:
    """Return the cursor to begin at; `None`: begin with the present. Raises `CursorError` for an invalid cursor."""
    if from_ == NOW:
        return None
    if from_ is None:
        return Cursor(session=0) if session else Cursor()
    cursor = parse_cursor(from_)
    if (cursor.session is not None) != session:
        there, here = ("a run", "a session's are like '5.2.12'") if session else ("a session", "a run's are like '12'")
        raise CursorError(f"{from_!r} is a cursor of {there}: {here}")
    return cursor


async def _begun(source: EventSource, bell: asyncio.Event, *, patient: bool = False) -> None:
    """Wait for the first events of the source. Raises the error that prevents the read."""
    while not source.stream.begun:
        bell.clear()
        error = source.failure or source.problem
        if error is not None and not (patient and isinstance(error, NoWorkerError)):
            raise error
        await bell.wait()


def _check_place(from_: str | None, number: int, source: EventSource, reset: int = 0) -> None:
    """Raise `CursorError` for a cursor behind the last event: the stream would skip the events up to there without a
    notice.
    """
    if number > source.stream.next or reset > last_reset(source.stream.resets):
        raise CursorError(
            f"{from_!r} is not a cursor of {source.id!r}, which has {source.stream.next:,} events so far: use a cursor that it returned"
        )


async def _page(source: EventSource, number: int) -> tuple[EventsPage, LiveState]:
    """Return some events from a number on, from any execution, and the live state after them. Raises the source's
    failure.
    """
    if source.failure is not None:
        raise source.failure
    if number < source.stream.first and (page := await source.earlier(number)) is not None:
        return page, NOTHING
    return source.stream.since(number, BATCH), source.stream.live


async def _whole(event: Event, source: EventSource) -> Event:
    """Return the event. Add the present state to a snapshot, for a watcher that has missed events."""
    if event.phase == "snapshot":
        event.data["view"] = await source.summary()
    return event


def is_wanted(event: Event, topics: frozenset[Topic]) -> bool:
    """Whether a reader of these topics gets the event. Every reader gets a snapshot, and a reset."""
    return event.topic in topics or event.phase in ("snapshot", "reset")
