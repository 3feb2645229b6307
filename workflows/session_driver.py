"""The driver of a session: its queue decides the next step, from message to run to reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as TimedOutError
from temporalio.workflow import (
    ActivityCancellationType,
    ChildWorkflowCancellationType,
    ChildWorkflowHandle,
    ParentClosePolicy,
)

from perdure.workflows.arguments import read_one
from perdure.workflows.audit import send_entries
from perdure.workflows.continue_as_new import go_on_anew, should_continue_as_new
from perdure.workflows.dispatch import WAIT, ask_limited
from perdure.workflows.failures import not_taken_up
from perdure.workflows.internal_activities import UNTIL_READABLE, execute_internal, execute_typed
from perdure.workflows.notifications import NotificationSender, deliver
from perdure.workflows.observability import now
from perdure.workflows.resets import LeftBehind, end_former, ends_former, on_reset
from perdure.workflows.session_hooks import SessionHooks
from perdure.workflows.session_transcript import TranscriptTasks

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import STEER, RunWaits
    from perdure.errors import MessageRefusedError, RunError
    from perdure.runs.audit import AUDIT_PATCH, AuditBatch, entry
    from perdure.runs.claim_check import CHILD, GONE, HOOK, Payload
    from perdure.runs.delegates import input_size, refer_large_values
    from perdure.runs.routes import Delivered
    from perdure.runs.version_switches import ASKS_BY_ACTIVITY, LEFT_CHILDREN_END
    from perdure.runs.wire import (
        AGENT_ATTRIBUTE,
        AGENT_WORKFLOW,
        LONGEST_KEYWORD,
        SENDER_ATTRIBUTE,
        TENANT_ATTRIBUTE,
        RunInput,
        RunResult,
        RunStatus,
    )
    from perdure.sessions.message_queue import ActiveRun, BeginRun, Queued, QueueIdle, RunCommand, WaitUntil
    from perdure.sessions.replies import ATTEMPTS, DELIVER_ACTIVITY, ReplyDelivery
    from perdure.sessions.state import SessionState
    from perdure.sessions.wire import (
        AFTER_ACTIVITY,
        CANCEL_ENDS_PATCH,
        ENDED,
        SESSION_RULES_PATCH,
        TURN_ACTIVITY,
        UNLIMITED_RUNS_PATCH,
        UPDATE_RUN_ACTIVITY,
        RunUpdate,
        RunUpdateResult,
        SessionInput,
    )
    from perdure.tools.invocation import runs_queue
    from perdure.values.json import Sent
    from perdure.values.limits import INLINE_INPUT, MAX_PAYLOAD, bytes_text
    from perdure.values.sizes import Sizes


IDLE_EVENTS: Final = 12
"""Events of a history: an execution that has more continues as new before it idles (R10.13).

No new execution has so many after its first task. A smaller number proves nothing: the history does not hold a task
that only carried a refusal, but its worker counted that task.
"""


LINGER: Final = timedelta(seconds=1)
"""Time after which a session continues as new before it idles.

A server delays continue-as-new within a second of an execution's start. The sender of the next message would wait.
"""


_CANCELLED: Final = "the session's workflow was cancelled"


class SessionDriver:
    """One execution of a session: its state, its parts, and its active run."""

    def __init__(self, argument: SessionInput) -> None:
        info = workflow.info()
        # Not the first task's time: a query may be answered by a task that is then tried again, later.
        began = info.workflow_start_time.isoformat(timespec="milliseconds")
        self._has_snapshot = argument.snapshot is not None
        self._is_first = info.continued_run_id is None
        if self._is_first and not argument.created_at:
            argument = argument.model_copy(update={"created_at": began})
        self.kept = SessionState(
            argument, info.workflow_id, info.original_execution_run_id[-6:], began, self.is_patched
        )
        self.hooks = SessionHooks(self.kept, self._begins)
        self.transcripts = TranscriptTasks(self.kept, self.hooks)
        self.replies = SessionReplies(self.kept.to_deliver, self.hooks, self._delivered, self.is_patched)
        self._pushes = NotificationSender([], None)
        self.turns = RunTurns()
        self.child: ChildRun | None = None
        """The active run."""
        self.ended = False
        self._deleted_by = ""
        self._auditing: asyncio.Task[None] | None = None
        self._cancellation: BaseException | None = None
        """Cancellation of the session's workflow by a Temporal command."""
        self._arrivals = 0
        """Number of arrivals, for tasks that wait for the next one."""
        self._unused = 0
        """Number of arrivals that do not use the session, such as a `REWRITE`."""
        self._stepped = False
        """Whether this execution has done anything, so that it must not idle with its history."""
        on_reset(self._note_reset)
        self._left = LeftBehind(lambda: workflow.patched(LEFT_CHILDREN_END))

    def _begins(self) -> bool:
        """Whether the session begins with this execution. A fork, or an imported session, begins with a snapshot."""
        return not self._has_snapshot or (self._is_first and self.is_patched())

    def _note_reset(self) -> None:
        running = self.kept.message_queue.state.running
        run_id = None if running is None else self.kept.message_queue.run_id(running.number)
        self.kept.notes.was_reset(run_id, now())
        self.kept.lose_rule_record()

    def arrived(self) -> None:
        """Record an arrival that may change the next step."""
        self._arrivals += 1

    def note_unused(self) -> None:
        """Record an arrival that does not use the session: a signal that is ignored, such as a `REWRITE`."""
        self.arrived()
        self._unused += 1

    def take_turn(self, run_id: Sent[str]) -> None:
        """Give the run that a signal names its turn."""
        self.arrived()
        if len(run_id) == 1 and isinstance(run_id[0], str):
            self.turns.give(run_id[0])

    def note_waits(self, waits: Sent[RunWaits]) -> None:
        """Record a `RunWaits`: whether the active run, or a run below it, waits for a person."""
        self.arrived()
        if (found := read_one(RunWaits, waits)) is not None:
            self.kept.message_queue.waits(found)
            if (running := self.kept.message_queue.state.running) is not None:
                self.report_status(self.kept.message_queue.run_id(running.number))

    def report_status(self, run_id: str) -> None:
        """Send a run's status to its addresses that do not have it."""
        kept = self.kept
        if not kept.webhooks.kept:
            return
        status, error = kept.status_of(run_id)
        if status == "cancelled" and kept.never_began(run_id) and not self.is_patched():
            return
        about = {"session": kept.key, "tenant": kept.tenant, "agent": kept.agent}
        for wanted in kept.webhooks.report(run_id, status, now(), error=error, **about):
            self._pushes.send(wanted, "")

    def end(self, by: str) -> None:
        """Cancel the active run, and end the session. `by`: the name of the person who deletes it.

        The audit log has the deletion at once: a client terminates a session that takes long to end.
        """
        self._deleted_by = by
        if self.is_patched():
            self._auditing = asyncio.create_task(self._audit())
        self._end("the session is deleted")

    def _end(self, why: str) -> None:
        if (running := self.kept.message_queue.state.running) is not None:
            running.ending = why
        if self.child is not None:
            self.child.end()
        self.ended = True
        self.arrived()

    def check_open(self) -> None:
        """Raise `MessageRefusedError` where the session has ended."""
        if self.ended:
            raise MessageRefusedError(ENDED)

    def check_readable(self) -> None:
        """Raise `MessageRefusedError` where the session is deleted. A cancelled session stays readable."""
        if self._cancellation is None:
            self.check_open()

    def show(self) -> None:
        """Show the session's present state in the Web UI."""
        workflow.set_current_details(self.kept.details())

    def payload(self, kind: str, name: str) -> Payload:
        """Return a value of the session that was too large to be sent."""
        if kind == HOOK.name:
            return self.hooks.payload(name)
        if kind == CHILD.name:
            child = self.child
            mine = None if child is None else child.id.removeprefix(f"{workflow.info().workflow_id}/")
            return Payload(child.run_input) if child is not None and name == mine else GONE
        return self.transcripts.payload(kind, name)

    async def run(self) -> None:
        """Keep the queue until the session is ended, or its workflow is cancelled."""
        self.replies.start()
        self.show()
        try:
            await self.hooks.begin()
            await self._keep_queue()
        except (asyncio.CancelledError, FailureError) as error:
            self._note_cancellation(error)
        self.replies.cancel()
        await workflow.wait_condition(lambda: not self._pushes.starting)
        await workflow.wait_condition(workflow.all_handlers_finished)
        await self.hooks.end(self._deleted_by)
        if self._cancellation is not None:
            self.kept.notes.ended(now(), "cancelled")
            raise self._cancellation
        await (self._auditing or self._audit())
        self.kept.notes.ended(now(), "deleted")

    def _note_cancellation(self, error: BaseException) -> None:
        """End the session after a cancellation: its run is cancelled and recorded first.

        Raise any other error. Executions without the marker raise a cancellation, too.
        """
        if not is_cancelled_exception(error) or not workflow.patched(CANCEL_ENDS_PATCH):
            raise error
        self._cancellation = error
        self._end(_CANCELLED)

    async def _keep_queue(self) -> None:
        kept = self.kept
        while not self.ended:
            await self.transcripts.tend()
            if self.ended:
                break
            seen = self._arrivals
            step = kept.message_queue.next(workflow.time())
            self._stepped |= not isinstance(step, QueueIdle)
            if isinstance(step, BeginRun):
                await self._run(step.run)
            elif isinstance(step, RunCommand):
                kept.carry_out(step.command, now())
            elif isinstance(step, WaitUntil):
                await self._until(seen, step.at)
            elif isinstance(step, QueueIdle):
                await self._idle(seen)
            if not isinstance(step, RunCommand) and workflow.all_handlers_finished() and should_continue_as_new():
                if self.replies.busy:
                    if self.is_patched():
                        await self.replies.pause(_LONGEST_PAUSE, lambda: self.ended)
                    else:
                        await self.replies.pause()
                if workflow.all_handlers_finished():
                    self._go_on()
                self.replies.start()

    async def _audit(self) -> None:
        """Record the deletion in the audit log, where the worker has a sink."""
        if workflow.patched(AUDIT_PATCH):
            info, kept = workflow.info(), self.kept
            found = entry("session_deletion", now(), f"{info.workflow_id}/{info.run_id}/end", {"by": self._deleted_by})
            owned = found.model_copy(update={"tenant": kept.tenant, "session": kept.key, "run": info.workflow_id})
            await send_entries(AuditBatch(entries=[owned]))

    async def _until(self, seen: int, at: float) -> None:
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._arrivals > seen,
                timeout=max(0.001, at - workflow.time()),
                timeout_summary="until no more messages arrive to collect",
            )

    async def _idle(self, seen: int) -> None:
        """Wait for the next arrival, with a history as short as possible."""
        await workflow.wait_condition(
            lambda: (workflow.all_handlers_finished() and not self._busy) or self._arrivals > seen
        )
        used = self._arrivals > 0 or self._stepped or workflow.info().get_current_history_length() > IDLE_EVENTS
        if self._arrivals == seen and used:
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: self._arrivals > seen, timeout=LINGER, timeout_summary="until no more messages arrive"
                )
                return
            self._go_on()
        await workflow.wait_condition(lambda: self._arrivals > seen)

    def carried(self) -> SessionInput:
        """Return the input with which the session continues elsewhere. Raise `RunError` while anything is active."""
        messages = self.kept.message_queue
        if self.ended:
            raise RunError(ENDED)
        if (running := messages.state.running) is not None:
            raise RunError(f"the run {messages.run_id(running.number)} is active")
        if messages.state.queue:
            raise RunError("messages wait for a run")
        if self.kept.to_deliver:
            raise RunError("a reply is being delivered")
        return self.kept.carried()

    @property
    def _busy(self) -> bool:
        return self.replies.busy or self._left.busy or self._pushes.starting

    def _go_on(self) -> None:
        """Continue as new, unless a run or a reply is active, or the session has ended: that would be lost."""
        if self._busy or self.ended:
            return
        if self.kept.message_queue.state.running is not None and self.kept.message_queue.state.running.begun:
            return
        carried = self.kept.carried()
        if len(carried.model_dump_json().encode()) <= MAX_PAYLOAD:
            go_on_anew(carried, unused=self._arrivals == self._unused and not self._stepped)

    async def _run(self, running: ActiveRun) -> None:
        """Run one run, from its start to its records in the transcript."""
        kept = self.kept
        run_id = kept.message_queue.run_id(running.number)
        local = self.hooks.records_locally  # a marker behind a local activity may be missing in a replay
        try:
            await self.turns.take(
                run_id, lambda: running.ending is None and kept.message_queue.state.running is running, local=local
            )
        except (asyncio.CancelledError, FailureError) as error:
            self._note_cancellation(error)  # the run is recorded as one that never ran
        if kept.message_queue.state.running is not running:  # all messages for this run were withdrawn
            self.turns.leave()
            return
        if running.ending is not None:
            self.turns.leave()
            kept.never_ran(running, now())
            self._separate(running)
            self.report_status(run_id)
            return
        first, run_input = running.messages[0], kept.run_input(running)
        kept.begun(running, now())
        self.child = ChildRun(
            run_id,
            run_input,
            sender=first.sender,
            tenant=kept.tenant,
            searchable=kept.searchable,
            priority=kept.priority,
            on_cancel=self._note_cancellation,
        )
        self.show()
        started = now()
        try:
            result = await self.child.result(f"{kept.agent}: {first.text}")
        finally:
            self.child = None
            self.turns.leave()
        self.replies.add(kept.ended(running, result, started, now()))
        self._separate(running)
        self.report_status(run_id)
        self.show()

    def _separate(self, ended: ActiveRun) -> None:
        """Give waiting messages of a run that begins, or has ended, without them a run of their own."""
        if (messages := self.kept.message_queue.find_left_messages(ended.number)) and self.is_patched():
            self.kept.separate(messages)

    def is_patched(self) -> bool:
        """Whether changes after 0.2.0 apply to this execution. Call it only where they change the result: it records a
        marker.

        Return True in a validator: a validator cannot record a marker, and a replay does not run it.
        """
        if workflow.unsafe.is_read_only():
            return True
        return not self.hooks.records_locally and workflow.patched(SESSION_RULES_PATCH)

    def _delivered(self, delivery: ReplyDelivery, became: Delivered, text: str) -> None:
        self.arrived()
        self.kept.delivered(delivery, became, text, now())
        self.show()


_ANSWERS_WITHIN: Final = timedelta(seconds=20)
"""Time for a run's answer. After a worker's end its next task can wait 5 s for that worker; a client waits 30 s."""


class ChildRun:
    """A run of a session, from its start to its result. `on_cancel` is called where the session is cancelled meanwhile."""

    def __init__(
        self,
        run_id: str,
        run_input: RunInput,
        *,
        sender: str,
        tenant: str,
        searchable: bool,
        priority: int | None,
        on_cancel: Callable[[BaseException], None],
    ) -> None:
        self.id = run_id
        self.run_input = run_input
        self._sender = sender
        self._tenant = tenant
        self._searchable = searchable
        self._on_cancel = on_cancel
        self._priority = Priority(priority_key=priority)
        """The session's value where the run has none."""
        self._handle: ChildWorkflowHandle[Any, RunResult] | None = None
        self._to_send: list[Queued] = []
        self._sending: asyncio.Task[None] | None = None
        self._ends = False

    def steer(self, message: Queued) -> None:
        """Send it a message, in the order of acceptance; a run that has not started receives it afterwards."""
        self._to_send.append(message)
        self._send_waiting()

    def end(self) -> None:
        """Cancel it; finished calls stay finished (R10.6)."""
        self._ends = True
        if self._handle is not None:
            self._handle.cancel()

    async def result(self, title: str) -> RunResult:
        """Run it, and return its result; its failure is a result too."""
        asks = self._size() > INLINE_INPUT
        if (size := self._size()) > MAX_PAYLOAD:
            return self._without("failed", f"its input has {bytes_text(size)}; the limit is {MAX_PAYLOAD:,}")
        try:
            try:
                self._handle = await self._start(title, asks=asks)
            except WorkflowAlreadyStartedError:
                if not (ends_former() and await end_former(self.id)):
                    raise
                self._handle = await self._start(title, asks=asks)
        except WorkflowAlreadyStartedError:
            return self._without(
                "failed",
                f"there is already a workflow {self.id!r}: end it with 'perdure cancel {self.id}', and send the message again",
            )
        except (asyncio.CancelledError, FailureError) as error:
            if not is_cancelled_exception(error):
                return self._without("failed", f"it could not be started: {error}")
            self._on_cancel(error)
            return self._without("cancelled", _CANCELLED)
        if self._ends:
            self._handle.cancel()
        self._send_waiting()
        try:
            await self._wait(self._handle)
            return await self._ended(self._handle)
        finally:
            if self._sending is not None:
                self._sending.cancel()

    async def _wait(self, handle: ChildWorkflowHandle[Any, RunResult]) -> None:
        while True:
            try:
                await workflow.wait([handle])
                return
            except asyncio.CancelledError as error:
                self._on_cancel(error)  # it cancels the run, whose end is awaited

    async def _start(self, title: str, *, asks: bool) -> ChildWorkflowHandle[Any, RunResult]:
        return await workflow.start_child_workflow(
            AGENT_WORKFLOW,
            refer_large_values(self.run_input) if asks else self.run_input,
            id=self.id,
            result_type=RunResult,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            static_summary=title[:200],
            search_attributes=self._attributes() if self._searchable else None,
            priority=self._priority,
        )

    def _size(self) -> int:
        return input_size(self.run_input, Sizes())

    def _attributes(self) -> TypedSearchAttributes:
        named = (
            (AGENT_ATTRIBUTE, str(self.run_input.agent.get("name"))),
            (SENDER_ATTRIBUTE, self._sender),
            (TENANT_ATTRIBUTE, self._tenant),
        )
        return TypedSearchAttributes(
            [
                SearchAttributePair(SearchAttributeKey.for_keyword(name), value[:LONGEST_KEYWORD])
                for name, value in named
                if value
            ]
        )

    def _send_waiting(self) -> None:
        if self._handle is not None and self._to_send and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send_all(self._handle))

    async def _send_all(self, handle: ChildWorkflowHandle[Any, RunResult]) -> None:
        while self._to_send:
            message = self._to_send.pop(0)
            sent = {"id": message.message_id, "text": message.text, "sender": message.sender}
            try:
                await handle.signal(STEER, sent)
            except FailureError:
                return  # the run has just ended: messages that it did not receive begin the next run

    async def _ended(self, handle: ChildWorkflowHandle[Any, RunResult]) -> RunResult:
        failure = handle.exception()
        if failure is None:
            result: RunResult = handle.result()
            return result.model_copy(update={"status": "completed"})
        cause = failure.cause if isinstance(failure, ChildWorkflowError) else failure
        if isinstance(cause, ApplicationError) and cause.details:
            try:
                return RunResult.model_validate(cause.details[0])
            except ValueError:
                pass  # not a failure of the engine's own
        status: RunStatus = (
            "cancelled"
            if isinstance(cause, CancelledError)
            else "terminated"
            if isinstance(cause, TerminatedError)
            else "timed_out"
            if isinstance(cause, TimedOutError)
            else "failed"
        )
        words = cause.message if isinstance(cause, ApplicationError) else f"the run was {status.replace('_', ' ')}"
        left = await self._ask()
        if left is None:
            return self._without(status, words)
        return left.model_copy(update={"status": status, "error": words, "output": None})

    async def _ask(self) -> RunResult | None:
        """Query the run's result, which it returns after its end too."""
        try:
            left: RunResult = await execute_internal(
                AFTER_ACTIVITY,
                [self.id],
                RunResult,
                timeout=timedelta(seconds=30),
                retry_policy=UNTIL_READABLE,
                summary=f"what {self.id} has left",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return None
        return left

    def _without(self, status: RunStatus, error: str) -> RunResult:
        return RunResult(run_id=self.id, status=status, error=error)


async def update_run(update: RunUpdate) -> RunUpdateResult:
    """Send an update to a run and return its answer, through an activity: a workflow cannot send an update itself."""
    if (received := workflow.current_update_info()) is not None:
        # In a run's update id, the part before a "/" names an execution of the run: a session's id must not have one.
        update.id = received.id.replace("/", "-")
    try:
        answered: RunUpdateResult = await execute_typed(
            UPDATE_RUN_ACTIVITY,
            [update],
            RunUpdateResult,
            schedule_to_close_timeout=_ANSWERS_WITHIN,
            retry_policy=RetryPolicy(maximum_attempts=3),
            summary=f"{update.update} → {update.run_id}"[:200],
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return RunUpdateResult(refused=f"the run {update.run_id} does not answer")
    return answered


_RETRY: Final = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=2), maximum_attempts=ATTEMPTS
)


_LONGEST_PAUSE: Final = timedelta(seconds=2)
"""The longest wait for a delivery before the session continues as new. If a route hangs, the next run begins, and the
session continues as new after a later run.
"""


class SessionReplies:
    """The replies of a session, delivered in their order as `hooks` change them. `on_end` receives each outcome and
    text. `is_patched`: as in `SessionState`.
    """

    def __init__(
        self,
        waiting: list[ReplyDelivery],
        hooks: SessionHooks,
        on_end: Callable[[ReplyDelivery, Delivered, str], None],
        is_patched: Callable[[], bool],
    ) -> None:
        self.waiting = waiting
        """Replies that are not delivered yet, the one under way first; the caller's own list."""
        self._hooks = hooks
        self._on_end = on_end
        self._is_patched = is_patched
        self._task: asyncio.Task[None] | None = None
        self._paused = False

    @property
    def busy(self) -> bool:
        """Whether a delivery is active, which a new execution would lose."""
        return self._task is not None and not self._task.done()

    def add(self, deliveries: Iterable[ReplyDelivery]) -> None:
        """Append deliveries."""
        self.waiting += deliveries
        self.start()

    def start(self) -> None:
        """Start to deliver the waiting replies."""
        self._paused = False
        if self.waiting and not self.busy:
            self._task = asyncio.create_task(self._deliver_all())

    async def pause(self, limit: timedelta | None = None, ended: Callable[[], bool] = lambda: False) -> None:
        """Begin no further delivery, and wait for the one under way, within a limit and until the session has `ended`."""
        self._paused = True
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: not self.busy or ended(),
                timeout=limit,
                timeout_summary="until the reply under way is delivered",
            )

    def cancel(self) -> None:
        """Cancel all deliveries."""
        self.waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _deliver_all(self) -> None:
        while self.waiting and not self._paused:
            delivery = self.waiting[0]
            is_redelivery = delivery.is_redelivery and self._hooks.has_hooks() and self._is_patched()
            became, text = await self._deliver_first(is_redelivery=is_redelivery)
            del self.waiting[:1]
            self._on_end(delivery, became, text)
            await self._hooks.sent(delivery, text, became.status, is_redelivery=is_redelivery)

    async def _deliver_first(self, *, is_redelivery: bool) -> tuple[Delivered, str]:
        """Deliver the first waiting reply, and note in it whether hooks have seen it. Return its outcome and its text.

        Hooks do not change the text of a redelivery again.
        """
        delivery = self.waiting[0]
        text, keeps_text = delivery.text, is_redelivery and delivery.hooked
        answer = None if keeps_text else await self._hooks.sending(delivery)
        if answer is not None:
            delivery.hooked = True
            if answer.refused is not None:
                return Delivered(status="refused", why=answer.refused), text
            text = text if answer.changed is None else str(answer.changed["text"])
        sent = delivery.model_copy(update={"text": text, "hooked": False})
        return await deliver(DELIVER_ACTIVITY, sent, _RETRY, f"{delivery.kind} → {delivery.route}"), text


_TURN_BEATS: Final = timedelta(seconds=60)
_LONGEST_TURN: Final = timedelta(days=365)


class RunTurns:
    """The turns of this execution's runs: runs that wait for a turn, or hold one."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._holding: asyncio.Task[None] | None = None

    def give(self, run_id: str) -> None:
        """Give a run its turn: a worker has room for it."""
        self._taken.add(run_id)

    async def take(self, run_id: str, wanted: Callable[[], bool], *, local: bool) -> None:
        """Wait until a worker has room for the run, or the run is no longer `wanted`. Return at once without a limit.
        `local`: ask for the limit as 0.1.0 did.
        """
        while wanted() and await self._are_limited(local=local):
            holding = self._holding = asyncio.create_task(_hold(run_id))
            await self._until_taken(run_id, holding, wanted)
            if run_id in self._taken or not holding.done() or not _not_taken_up(holding):
                return

    async def _are_limited(self, *, local: bool) -> bool:
        """Whether workers limit the number of active runs. Where a worker begins to limit it, the next execution follows."""
        if not local and workflow.patched(UNLIMITED_RUNS_PATCH):
            return False
        return (await ask_limited(local=local or not workflow.patched(ASKS_BY_ACTIVITY))).runs

    async def _until_taken(self, run_id: str, holding: asyncio.Task[None], wanted: Callable[[], bool]) -> None:
        await workflow.wait_condition(lambda: run_id in self._taken or holding.done() or not wanted())

    def leave(self) -> None:
        """Return the turn: the run has ended, or will not begin."""
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None


def _not_taken_up(holding: asyncio.Task[None]) -> bool:
    """Whether workers no longer give turns. The caller then queries whether there is still a limit."""
    error = None if holding.cancelled() else holding.exception()
    return isinstance(error, ActivityError) and not_taken_up(error)


async def _hold(run_id: str) -> None:
    try:
        await workflow.execute_activity(
            TURN_ACTIVITY,
            run_id,
            task_queue=runs_queue(workflow.info().task_queue),
            start_to_close_timeout=_LONGEST_TURN,
            schedule_to_start_timeout=WAIT,
            heartbeat_timeout=_TURN_BEATS,
            cancellation_type=ActivityCancellationType.TRY_CANCEL,
            summary=f"room for {run_id}"[:200],
        )
    except ActivityError as error:
        if not is_cancelled_exception(error):
            raise
