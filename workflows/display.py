"""Displays of a run while it works: its details, the list of calls that wait, and the session above."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import islice
from typing import Any, Final, Protocol, runtime_checkable

from temporalio import worker, workflow
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.common import SearchAttributeKey

from perdure.workflows.children import ChildRuns

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.queue import ApprovalQueue
    from perdure.approvals.requests import WAITS, ApprovalRequest, RunWaits, WaitingEntry, WaitingMemo
    from perdure.runs.run import RunState
    from perdure.runs.version_switches import CLIENT_CALLS_UNLISTED, SESSION_KNOWS_DELEGATES, SESSION_KNOWS_WAITING
    from perdure.runs.views import details, waiting_entry
    from perdure.runs.wire import WAITING_ATTRIBUTE, WAITING_MEMO, WAITING_NAMED


_WAITING: Final = SearchAttributeKey.for_int(WAITING_ATTRIBUTE)


class SessionReports:
    """The reports of one execution to the session at the beginning of its id."""

    def __init__(self) -> None:
        self._count = 0
        """Number of the last report."""
        self._signals: set[asyncio.Task[None]] = set()

    def send(self, run_id: str, *, waits: bool, closed: bool = False, left: Collection[str] | None = None) -> None:
        """Send a `RunWaits` of this run, or of one below it that can send none."""
        # The time also counts up where this run goes on as new, or is reset.
        self._count = max(self._count + 1, int(workflow.time() * 1000))
        report = RunWaits(
            run_id=run_id, count=self._count, waits=waits, closed=closed, left=None if left is None else sorted(left)
        )
        session = workflow.get_external_workflow_handle(workflow.info().workflow_id.partition("/")[0])
        self._signals.add(task := asyncio.create_task(session.signal(WAITS, report)))
        task.add_done_callback(self._forget)

    async def until_sent(self) -> None:
        """Wait until the session has all reports. A server sends no signal of an execution that ends in the same task."""
        if self._signals:
            await workflow.wait([*self._signals])

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._signals.discard(task)
        if not task.cancelled():
            task.exception()  # the session may be gone


@runtime_checkable
class HasDetails(Protocol):
    """A workflow whose details are made when they are read."""

    def details(self) -> str:
        """Return the details as Markdown."""


class RunDisplay:
    """The details in the Web UI (R12.8), the search attribute and memo of waiting requests (R7.8), and the session's
    knowledge of them (R10.4).
    """

    def __init__(self, approval_queue: ApprovalQueue, children: ChildRuns) -> None:
        self._approval_queue = approval_queue
        self._run: RunState | None = None
        self._reporting = False
        self._with_program: set[str] = set()
        """Requests on which a program decides: nobody needs to look at them yet."""
        self._listed: tuple[int, list[WaitingEntry]] = (0, [])
        """The number of listed requests, and the oldest of them."""
        self._reports = SessionReports()
        self._waits = False
        """Whether the run waits for a person, by its last report to the session."""
        self._children = children
        self._was_reset = False
        """Whether a reset came before the run was there to show."""

    def begin(self, run: RunState) -> None:
        """Show this run from now on."""
        self._run = run
        if self._was_reset:
            self.report_reset()

    def report(self) -> None:
        """Show a change, once for all simultaneous changes."""
        if self._run is not None and not self._reporting:
            self._reporting = True
            asyncio.get_running_loop().call_soon(self.show)

    def show(self) -> None:
        """Keep lists up to date with the run as it stands. Its details are made when they are read."""
        self._reporting = False
        if self._run is not None:
            self._list(self._run)

    def details(self) -> str:
        """Return the run's progress as Markdown, or nothing before the run is prepared."""
        return "" if self._run is None else details(self._run, workflow.info().workflow_id)

    def hide(self, approval_request: ApprovalRequest) -> None:
        """List the request no more: a program decides on it."""
        self._with_program.add(approval_request.id)

    def unhide(self, approval_request: ApprovalRequest) -> None:
        """List the request again, from the next change on."""
        self._with_program.discard(approval_request.id)

    def renew(self) -> None:
        """List what waits anew: its requests have changed."""
        self._listed = (self._listed[0], [])
        self.report()

    def _list(self, run: RunState) -> None:
        """Keep the run's search attribute and memo up to date, so that lists query no run.

        The memo is kept also where no list reads it. Where a task had no commands, the SDK's core replays it together with the
        next one, and delivers an update before the events of that task (sdk-rust #1606). A decision would then be
        refused, because no request waits yet.
        """
        known = {entry.call: entry for entry in self._listed[1]}
        waiting = [each for each in self._approval_queue.waiting.values() if each.id not in self._with_program]
        if any(each.is_with_client for each in waiting) and run.prepared.follows(CLIENT_CALLS_UNLISTED):
            waiting = [each for each in waiting if not each.is_with_client]  # no person is asked
        oldest = islice(waiting, WAITING_NAMED)
        listed = (len(waiting), [known.get(each.id) or waiting_entry(each) for each in oldest])
        if listed == self._listed:
            return
        before, self._listed = self._listed[0], listed
        count, calls = listed
        if bool(before) != bool(count):
            self._report_waiting(run, waits=bool(count))
        if run.prepared.searchable:
            workflow.upsert_search_attributes([_WAITING.value_set(count)])
        memo = WaitingMemo(agent=run.agent.name, calls=calls).as_json() if calls else None
        workflow.upsert_memo({WAITING_MEMO: memo})

    def report_closed(self, run_id: str) -> None:
        """Report to the session that a run below this one has ended, and could not report it itself."""
        if self._run is not None and self._run.prepared.follows(SESSION_KNOWS_DELEGATES):
            self._signal_session(self._run, run_id, waits=False, closed=True)

    def report_reset(self) -> None:
        """Report to the session what still waits after a reset: this run or not, and below it only the runs that it has."""
        self._was_reset = self._run is None
        if self._run is not None and self._run.prepared.follows(SESSION_KNOWS_DELEGATES):
            self._waits = bool(self._listed[0])
            self._signal_session(self._run, workflow.info().workflow_id, waits=self._waits, left=self._children.names)

    async def settle(self) -> None:
        """Report to the session above that this run, which ends now, waits no more.

        A server sends no signal of a workflow that ends in the same task.
        """
        run = self._run
        if run is None or run.identity.in_session or not run.prepared.follows(SESSION_KNOWS_DELEGATES):
            return  # a session knows itself when its own run has ended
        if self._waits:
            self._report_waiting(run, waits=False)
        await self.until_sent()

    async def until_sent(self) -> None:
        """Wait until the session has the reports of this execution, which ends now or goes on as new."""
        if self._run is not None and self._run.prepared.follows(SESSION_KNOWS_DELEGATES):
            await self._reports.until_sent()

    def _report_waiting(self, run: RunState, *, waits: bool) -> None:
        """Report whether this run waits: a session's next message follows a run that waits for a person, unless its mode is another."""
        rule = SESSION_KNOWS_WAITING if run.identity.in_session else SESSION_KNOWS_DELEGATES
        if run.prepared.follows(rule):
            self._waits = waits
            self._signal_session(run, workflow.info().workflow_id, waits=waits)

    def _signal_session(
        self, run: RunState, run_id: str, *, waits: bool, closed: bool = False, left: Collection[str] | None = None
    ) -> None:
        """Signal the session that this run, or its outermost parent, belongs to. Where there is none, do nothing."""
        if workflow.info().parent is not None and (run.identity.in_session or run.identity.owner.session):
            self._reports.send(run_id, waits=waits, closed=closed, left=left)


class DetailsInterceptor(worker.Interceptor):
    """An interceptor that makes a run's details when the Web UI asks for them: most runs are never looked at."""

    def workflow_interceptor_class(self, _: worker.WorkflowInterceptorClassInput) -> type[_DisplayInbound]:
        return _DisplayInbound


class _DisplayInbound(worker.WorkflowInboundInterceptor):
    async def handle_query(self, input: worker.HandleQueryInput) -> Any:
        answer = await super().handle_query(input)
        if isinstance(answer, WorkflowMetadata) and isinstance(of := workflow.instance(), HasDetails):
            answer.MergeFrom(WorkflowMetadata(current_details=of.details()))
        return answer
