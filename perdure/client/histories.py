"""Histories of runs: fetch, replay, and recovery of the messages that each model received."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    StartActivityInput,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from perdure.approvals.requests import MessageFate
from perdure.client.selection import quote_text
from perdure.errors import PerdureError, RunError, SettingsError
from perdure.hosting.sdk_internals import before_eviction
from perdure.hosting.telemetry import silent_runtime
from perdure.models.requests import RequestContext, RequestInput, RequestResult
from perdure.plan import Call
from perdure.queries import replay_problem
from perdure.runs.audit import AUDIT_WORKFLOW
from perdure.runs.evaluation import EVALUATED_RUN_WORKFLOW, EVALUATION_WORKFLOW
from perdure.runs.ledger import LEDGER_WORKFLOW
from perdure.runs.loops import LOOP_WORKFLOW
from perdure.runs.metrics import REPLAYED
from perdure.runs.notifications import NOTIFICATION_WORKFLOW
from perdure.runs.run_log import RunLog
from perdure.runs.wire import AGENT_WORKFLOW, MODEL_REFUSED, REQUEST_ACTIVITY, RunInput, RunStatus, RunView
from perdure.sessions.transcript import SEGMENT_WORKFLOW
from perdure.sessions.wire import KEY_WORKFLOW, SESSION_WORKFLOW, session_id
from perdure.tools.tool import Tool
from perdure.values.json import shorten
from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.audit import AuditWorkflow
from perdure.workflows.evaluations import EvaluatedRunWorkflow, EvaluationWorkflow
from perdure.workflows.internal_activities import CONVERSION_ERRORS
from perdure.workflows.ledger import LedgerWorkflow
from perdure.workflows.loops import LoopWorkflow
from perdure.workflows.notifications import NotificationWorkflow
from perdure.workflows.session import SessionWorkflow
from perdure.workflows.session_transcript import SegmentWorkflow
from perdure.workflows.versioning import KeyWorkflow

_NONE: Final[Mapping[str, type]] = MappingProxyType({})
WORKFLOWS: Final[dict[str, type]] = {
    AGENT_WORKFLOW: AgentWorkflow,
    LOOP_WORKFLOW: LoopWorkflow,
    SESSION_WORKFLOW: SessionWorkflow,
    SEGMENT_WORKFLOW: SegmentWorkflow,
    NOTIFICATION_WORKFLOW: NotificationWorkflow,
    KEY_WORKFLOW: KeyWorkflow,
    LEDGER_WORKFLOW: LedgerWorkflow,
    AUDIT_WORKFLOW: AuditWorkflow,
    EVALUATION_WORKFLOW: EvaluationWorkflow,
    EVALUATED_RUN_WORKFLOW: EvaluatedRunWorkflow,
}
"""All workflow types of Perdure, and the classes that replay them. Hooks and versions change no command of a replay."""


async def execution_histories(client: Client, run_id: str) -> AsyncIterator[WorkflowHistory]:
    """Yield the histories of a run's executions, first to last (R6.8). Raises `RunError` if the run does not exist."""
    try:
        description = await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise RunError(f"there is no run {run_id!r} in namespace {client.namespace!r}") from None
        raise
    following = description.raw_info.first_run_id or description.run_id
    while following:
        try:
            history = await client.get_workflow_handle(run_id, run_id=following).fetch_history()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND or following == description.run_id:
                raise
            following = description.run_id  # the server no longer keeps the first executions
            continue
        yield history
        last = history.events[-1]
        following = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id


def started_below(history: WorkflowHistory) -> list[tuple[str, str]]:
    """Return the workflow id and the type of each child that the history started."""
    found = []
    for event in history.events:
        if event.HasField("child_workflow_execution_started_event_attributes"):
            started = event.child_workflow_execution_started_event_attributes
            found.append((started.workflow_execution.workflow_id, started.workflow_type.name))
    return found


async def family_histories(client: Client, run_id: str) -> AsyncIterator[WorkflowHistory]:
    """Yield the histories of a run or session and of all workflows below it, with all executions that the server still
    keeps.
    """
    left = [run_id]
    while left:
        current = left.pop(0)
        try:
            async for history in execution_histories(client, current):
                yield history
                left += [below for below, _ in started_below(history) if below not in left]
        except RunError:
            if current == run_id:
                raise


def read_history(path: Path) -> WorkflowHistory:
    """Return the history in a JSON file: from `temporal workflow show --output json`, the Web UI, or an SDK. Raises
    `SettingsError`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        written: Any = json.loads(text)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read as a history: {error}") from None
    if isinstance(written, dict) and "runs" in written and "events" not in written:
        raise SettingsError(f"{path} is a case, not a history: replay it with perdure.testing.replay (docs/testing.md)")
    if not isinstance(written, dict) or not isinstance(written.get("events"), list) or not written["events"]:
        raise SettingsError(f"{path} is not a history: expected JSON with 'events'")
    try:
        started = written["events"][0].get("workflowExecutionStartedEventAttributes") or {}
        workflow_id = written.pop("workflowId", None) or started.get("workflowId") or path.stem
        return WorkflowHistory.from_json(workflow_id, written)
    except Exception as error:  # the SDK does not wrap the parser's errors
        raise SettingsError(f"{path} is not a history: {str(error).splitlines()[0]}") from None


@cache
def quiet_runtime() -> Runtime:
    """Return a runtime for replays, which logs nothing: the result has the problem of a history that cannot be
    replayed.
    """
    return silent_runtime()


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of the replay of one history."""

    name: str
    """The run's id, or the file."""
    problem: str | None
    """The replay's error, or the reason why the history was skipped; `None`: it was replayed."""
    events: int
    left_out: bool = False
    """Whether it was not replayed, so that it is unknown whether workers can continue it."""

    def line(self) -> str:
        """Return the outcome as a line for people."""
        if self.problem is None:
            return f"{self.name}: ok, {self.events} events"
        return f"{self.name}: {'left out' if self.left_out else 'breaks'}: {self.problem}"


async def replay_history(
    history: WorkflowHistory, converter: DataConverter, name: str | None = None, users: Mapping[str, type] = _NONE
) -> Replayed:
    """Return whether a worker of this version can continue it. Other workflows than Perdure's and the `users`' are
    skipped.
    """
    name, events = name or history.workflow_id, len(history.events)
    if (kind := kind_of(history)) not in {*WORKFLOWS, *users}:
        words = f"a workflow of type {kind!r}, which is not part of Perdure: give its module with --workflows MODULE"
        return Replayed(name, words, events, left_out=True)
    replayer = Replayer(
        workflows=[*WORKFLOWS.values(), *users.values()],
        workflow_failure_exception_types=[PerdureError] if kind in users else [],
        namespace=REPLAYED,
        data_converter=converter,
        workflow_runner=UnsandboxedWorkflowRunner(),
        runtime=quiet_runtime(),
        debug_mode=True,  # no deadlock detection: a busy machine may take two seconds for a task
    )
    failure = (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
    return Replayed(name, None if failure is None else replay_problem(str(failure)), events)


async def replay_each(
    client: Client | None,
    names: Sequence[str],
    files: Collection[str],
    converter: DataConverter,
    users: Mapping[str, type] = _NONE,
    tenant: str = "",
) -> AsyncIterator[Replayed]:
    """Replay runs by their ids, sessions by their keys or ids, each with all workflows below it, and files.

    `users`: a user's own workflows by name. `tenant`: the owner of the sessions that the keys name. A name without a
    readable history is skipped, with the reason; the others are replayed.
    """
    for name in names:
        try:
            if name in files:
                yield await replay_history(read_history(Path(name)), converter, name, users)
                continue
            assert client is not None
            top = await _workflow_named(client, name, tenant)
            async for history in family_histories(client, top):
                named = name if history.workflow_id == top else None
                yield await replay_history(history, converter, named, users)
        except (RunError, SettingsError) as error:
            yield Replayed(name, str(error), 0, left_out=True)


async def _workflow_named(client: Client, name: str, tenant: str) -> str:
    """Return the id of the run, or else of the tenant's session, of this name. Raises `RunError` if neither exists."""
    for workflow_id in (name, session_id(tenant, name)):
        try:
            await client.get_workflow_handle(workflow_id).describe()
            return workflow_id
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
    whose = f"of tenant {tenant!r}" if tenant else "without a tenant"
    raise RunError(f"there is no run {name!r}, and no session {whose}, in namespace {client.namespace!r}")


async def replay_running(
    client: Client, query: str | None = None, users: Mapping[str, type] = _NONE
) -> AsyncIterator[Replayed]:
    """Replay all open runs, loops, sessions and segments of the namespace, and the open workflows of the `users`; `query` narrows them down.

    Raises `RunError` for a query that the server refuses.
    """
    kinds = ", ".join(quote_text(kind) for kind in (*WORKFLOWS, *users))
    wanted = f"WorkflowType IN ({kinds}) AND ExecutionStatus = 'Running'" + (f" AND ({query})" if query else "")
    try:
        found = [(run.id, run.run_id) async for run in client.list_workflows(wanted)]
    except RPCError as error:
        if error.status == RPCStatusCode.INVALID_ARGUMENT:
            raise RunError(f"the query {shorten(query, 80)} is refused: {error.message}") from None
        raise
    for workflow_id, run_id in found:
        try:
            history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        except RPCError as error:
            yield Replayed(workflow_id, f"its history cannot be read: {error.message}", 0, left_out=True)
            continue
        yield await replay_history(history, client.data_converter, users=users)


def kind_of(history: WorkflowHistory) -> str:
    """Return the type of the history's workflow."""
    return history.events[0].workflow_execution_started_event_attributes.workflow_type.name


# No prompt is stored. A replay of the run's history builds each Request's context again, and a recorder keeps it
# (R6.8). Answers are in the history.


@dataclass
class Exchange:
    """One Request: the messages that were sent, and the model's answer.

    ```python
    for exchange in await run.exchanges():
        print(exchange.request, exchange.answer)
    ```
    """

    request: RequestInput
    context: RequestContext
    """The input of the Request's activity."""
    answer: RequestResult | None = None
    """`None`: the Request has no answer."""


@dataclass
class Audit:
    """The data that a run's history reproduces."""

    exchanges: list[Exchange] = field(default_factory=list)
    """All Requests, in their order."""
    view: RunView | None = None
    """The run at the end of its history, which may be open; `None`: another program wrote it."""
    tools: list[Tool] = field(default_factory=list)
    """The run's tools."""
    input: RunInput | None = None
    """The input of its first execution, with its agent; `None`: another program wrote it."""
    calls: list[Call] = field(default_factory=list)
    """The run's calls, with their last status."""
    messages: list[MessageFate] = field(default_factory=list)
    """The messages that came while the run worked."""
    logs: list[RunLog] = field(default_factory=list)
    """The reports of the run's driver, one log for each execution."""


async def exchanges(client: Client, run_id: str) -> list[Exchange]:
    """Return all Requests of the run, in their order. Raises `RunError` if another program wrote its history."""
    return (await audit_run(client, run_id)).exchanges


async def audit_run(client: Client, run_id: str) -> Audit:
    """Replay a run's history and return its data; no worker has to run. Raises `RunError` if another program wrote the
    history.
    """
    return await audit_histories(run_id, execution_histories(client, run_id), client.data_converter)


async def audit_histories(run_id: str, histories: AsyncIterator[WorkflowHistory], converter: DataConverter) -> Audit:
    """Replay a run's histories, first to last, and return their data. Raises `RunError` if another program wrote them."""
    found = Audit()
    async for history in histories:
        recorder = _Recorder(run_id)
        replayer = Replayer(
            workflows=[AgentWorkflow],
            interceptors=[recorder],
            namespace=REPLAYED,
            data_converter=converter,
            workflow_runner=before_eviction(recorder.record_open_run),
            runtime=quiet_runtime(),
            debug_mode=True,  # no deadlock detection: a busy machine may take two seconds for a task
        )
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        if result.replay_failure is not None:
            message = f"the history of {run_id} cannot be replayed by this version of Perdure: {result.replay_failure}"
            raise RunError(message)
        answers = await _answers(converter, history)
        for exchange in recorder.audit.exchanges:
            exchange.answer = answers.get((exchange.request.number, exchange.request.earlier_attempts))
        taken = recorder.audit
        found.input, found.calls = found.input or taken.input, [*found.calls, *taken.calls]
        found.exchanges, found.logs = [*found.exchanges, *taken.exchanges], [*found.logs, *taken.logs]
        found.view, found.tools, found.messages = taken.view, taken.tools, taken.messages
        if found.view is not None and (ended := _ENDED_FROM_OUTSIDE.get(history.events[-1].event_type)):
            found.view.status = ended
    return found


async def _answers(converter: DataConverter, history: WorkflowHistory) -> dict[tuple[int, int], RequestResult]:
    answers: dict[tuple[int, int], RequestResult] = {}
    asked: dict[int, RequestInput] = {}
    for event in history.events:
        scheduled = event.activity_task_scheduled_event_attributes
        completed = event.activity_task_completed_event_attributes
        if scheduled.activity_type.name == REQUEST_ACTIVITY:
            [request] = await converter.decode(scheduled.input.payloads, [RequestInput])
            asked[event.event_id] = request
        elif completed.scheduled_event_id in asked:
            request = asked[completed.scheduled_event_id]
            # Someone may have completed the activity by hand, with a value that is no answer for the run either.
            with suppress(*CONVERSION_ERRORS):
                [answer] = await converter.decode(completed.result.payloads, [RequestResult])
                answers[request.number, request.earlier_attempts] = answer
    return answers


class _Recorder(Interceptor):
    """An interceptor that records each Request's context at the start of its activity, and the run at its end, or where
    the history of an open run ends.
    """

    def __init__(self, run_id: str) -> None:
        self.audit = Audit()
        self._run_id = run_id
        self._run: AgentWorkflow | None = None
        self._is_recorded = False

    def workflow_interceptor_class(self, _: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        recorder = self

        class RecordingOutbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
                if input.activity == REQUEST_ACTIVITY:
                    request: RequestInput = input.args[0]
                    run: AgentWorkflow = workflow.instance()
                    recorder.audit.exchanges.append(Exchange(request, run.context(request.number)))
                return super().start_activity(input)

        class RecordingInbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(RecordingOutbound(outbound))

            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                run: AgentWorkflow = workflow.instance()
                recorder._run, run.collected, run.keeps_log = run, [], True
                try:
                    result = await super().execute_workflow(input)
                except BaseException as error:
                    recorder._record(_status_of(error))
                    raise
                recorder._record("completed")
                return result

        return RecordingInbound

    def record_open_run(self) -> None:
        """Record a run that has not ended, before the replay evicts it from memory."""
        self._record("running")

    def _record(self, status: RunStatus) -> None:
        if self._is_recorded or (run := self._run) is None:
            return
        self._is_recorded, audit = True, self.audit
        audit.input, calls, audit.messages = run.recorded()
        # The eviction of an open run changes its calls and its log.
        audit.calls = [call.copy_state() for call in calls]
        audit.logs = [] if run.log is None else [replace(run.log, steps=[*run.log.steps])]
        audit.tools, audit.view = run.tools, run.view_as(self._run_id)
        audit.view.status = status


def _status_of(error: BaseException) -> RunStatus:
    if isinstance(error, ApplicationError) and error.type == MODEL_REFUSED:
        return "refused"
    return _STATUS.get(type(error), "failed")


_STATUS: Final[dict[type[BaseException], RunStatus]] = {
    asyncio.CancelledError: "cancelled",
    CancelledError: "cancelled",
    workflow.ContinueAsNewError: "running",
}
_ENDED_FROM_OUTSIDE: Final[dict[int, RunStatus]] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed_out",
}
