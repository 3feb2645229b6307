"""Notifications of a run: sent beside it, each by a workflow of its own, which outlives the run (R19.5, R19.8). Replies of sessions are delivered as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from perdure.workflows.arguments import end_if_started_by_hand, read_input
from perdure.workflows.failures import kind_of, message_of
from perdure.workflows.internal_activities import execute_typed
from perdure.workflows.observability import now, owner_attributes
from perdure.workflows.timers import Alarm

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import ApprovalRequest
    from perdure.errors import PerdureError
    from perdure.models.usage import RunUsage
    from perdure.plan import INTERRUPTED
    from perdure.runs.agent import parse_agent
    from perdure.runs.event_journal import RunJournal
    from perdure.runs.notifications import (
        NOTIFICATION_WORKFLOW,
        NOTIFY_ACTIVITY,
        ApprovalRoutes,
        Notification,
        NotificationDelivery,
        NotificationInput,
        NotificationKind,
        NotificationResult,
        NotificationView,
        Notify,
        RouteOutcome,
        approval_link,
        approval_text,
        budget_text,
        decide_command,
        delivery_id,
        end_digest,
        end_text,
        fits_id,
        host_of,
        notification_key,
        output_link,
        run_link,
        show_command,
        used_words,
    )
    from perdure.runs.routes import NO_SUCH_ROUTE, Delivered
    from perdure.runs.run import RunState
    from perdure.runs.version_switches import INFORMED_AGAIN, NOTIFIES
    from perdure.runs.views import summary as line
    from perdure.runs.views import waiting_entry
    from perdure.runs.wire import MODEL_REFUSED, RunInput, RunResult
    from perdure.sessions.replies import ReplyDelivery
    from perdure.values.json import Json
    from perdure.values.limits import (
        CALLBACK_ATTEMPTS,
        MAX_ID,
        MAX_NOTIFICATIONS,
        MAX_NOTIFIED_AT_ONCE,
        MAX_NOTIFIED_OUTPUT,
        NOTIFIED_SLOT,
        NOTIFIED_WITHIN,
        NOTIFY_ATTEMPTS,
    )

_TO_ROUTES: Final = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=5), maximum_attempts=NOTIFY_ATTEMPTS
)
_TO_CALLBACK: Final = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(hours=1), maximum_attempts=CALLBACK_ATTEMPTS
)


@workflow.defn(name=NOTIFICATION_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class NotificationWorkflow:
    """The delivery of one notification to its routes, or to a callback. It continues after the run's end."""

    @workflow.run
    async def run(self, *arguments: Any) -> NotificationResult:
        """Deliver to all routes at once; return the outcomes. The argument is one `NotificationInput`."""
        wanted = read_input(NotificationInput, arguments)
        with end_if_started_by_hand():
            routes = await asyncio.gather(*(_to_route(wanted, each) for each in _targets(wanted)))
        return NotificationResult(routes=routes)


async def _to_route(wanted: NotificationInput, outcome: RouteOutcome) -> RouteOutcome:
    route = "" if wanted.callback else outcome.route
    notification = wanted.notification.model_copy(update={"route": route})
    delivery = NotificationDelivery(notification=notification, callback=wanted.callback, push=wanted.push)
    retry = _TO_CALLBACK if wanted.callback else _TO_ROUTES
    return outcome.ended(await deliver(NOTIFY_ACTIVITY, delivery, retry, f"{notification.kind} → {outcome.route}"))


def _targets(wanted: NotificationInput) -> list[RouteOutcome]:
    names = [host_of(wanted.callback)] if wanted.callback else wanted.routes
    return [RouteOutcome(route=name) for name in names]


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """A slot that a delivery holds, and the time when it took it."""

    since: float


class NotificationSender:
    """The notifications of one execution: those under way, and their outcomes.

    `views` is the run's own list, which keeps the newest.
    """

    def __init__(self, views: list[NotificationView], journal: RunJournal | None, alarm: Alarm | None = None) -> None:
        self._views = views
        self._journal = journal
        self._alarm = alarm
        self._slots = asyncio.Semaphore(MAX_NOTIFIED_AT_ONCE)
        self._held: list[_Slot] = []
        """The slots that are taken, the first one first."""
        self._queued: set[asyncio.Task[None]] = set()
        """Deliveries that wait for room."""
        self._starting: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None]] = set()

    def send(self, wanted: NotificationInput, queue: str, after_reset: str = "") -> None:
        """Send a notification by workers of this queue. Nothing waits for it.

        `after_reset`: the key of a second notification, which a reset run sends if the first was sent before.
        """
        self._start(self._send(wanted, queue, after_reset))

    def send_while(self, is_wanted: Callable[[], bool], make: Callable[[], NotificationInput], queue: str) -> None:
        """Send a notification when there is room, if it is still wanted then: many requests may begin to wait at once."""

        async def in_turn() -> None:
            await self._take_slot()
            self._held.append(slot := _Slot(workflow.time()))
            try:
                self._queued.discard(task)
                if is_wanted():
                    await self._send(make(), queue)
            finally:
                self._free(slot)

        self._queued.add(task := self._start(in_turn()))

    async def _take_slot(self) -> None:
        """Wait for a slot. A slot that a delivery has held for long counts as free: the delivery may retry for 20
        minutes more.
        """
        if self._alarm is None or not self._slots.locked():
            await self._slots.acquire()
            return
        taken = asyncio.create_task(self._slots.acquire())
        ring: asyncio.Future[None] | None = None
        try:
            while not taken.done():
                first = self._held[0].since if self._held else workflow.time()
                ring = self._alarm.at(first + NOTIFIED_SLOT, "a delivery makes room for others")
                either: list[asyncio.Future[Any]] = [taken, ring]
                await workflow.wait(either, return_when=asyncio.FIRST_COMPLETED)
                ring.cancel()
                for slot in [each for each in self._held if each.since + NOTIFIED_SLOT <= workflow.time()]:
                    self._free(slot)
        except asyncio.CancelledError:
            if taken.done() and not taken.cancelled():
                self._slots.release()
            taken.cancel()
            raise
        finally:
            if ring is not None:
                ring.cancel()

    def _free(self, slot: _Slot) -> None:
        """Free a slot, unless it is free."""
        if slot in self._held:
            self._held.remove(slot)
            self._slots.release()

    @property
    def starting(self) -> bool:
        """Whether the server does not have all notifications yet."""
        return bool(self._starting)

    async def settle(self, *, ends: bool = True) -> None:
        """Wait until the server has all notifications, and for a moment for their outcomes: they are delivered without
        this execution. Where the run `ends`, nothing interrupts that.
        """
        for task in self._queued:
            task.cancel()  # the waiting deliveries are dropped
        self._queued.clear()
        while self._starting:
            try:  # a task leaves this set when the server has its notification, long before it ends
                await workflow.wait_condition(lambda: not self._starting)
            except asyncio.CancelledError:
                if not ends:
                    raise
        if self._sending:
            try:
                await workflow.wait([*self._sending], timeout=NOTIFIED_WITHIN)
            except asyncio.CancelledError:
                if not ends:
                    raise

    def _start(self, sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._starting.add(task := asyncio.create_task(sending))
        task.add_done_callback(self._starting.discard)
        task.add_done_callback(self._sending.discard)
        return task

    def _started(self) -> None:
        """Note that the server has the current task's notification."""
        if (task := asyncio.current_task()) in self._starting:
            self._starting.discard(task)
            self._sending.add(task)

    async def _send(self, wanted: NotificationInput, queue: str, after_reset: str = "") -> None:
        """Send a notification to each of its routes by a workflow of its own, so that a route that hangs delays no other."""
        known = wanted.notification
        view = NotificationView(
            key=known.key,
            kind="callback" if wanted.callback else known.kind,
            at=known.at,
            call=known.call,
            routes=_targets(wanted),
        )
        self._views.append(view)
        del self._views[:-MAX_NOTIFICATIONS]
        for outcome in view.routes:
            self._note(view, outcome)
        first, *others = wanted.deliveries()
        beside = [self._start(self._deliver(view, id, each, queue, after_reset)) for id, each in others]
        await self._deliver(view, *first, queue, after_reset)
        if beside:
            await workflow.wait(beside)

    async def _deliver(
        self, view: NotificationView, id: str, wanted: NotificationInput, queue: str, after_reset: str
    ) -> None:
        """Deliver a notification to its one route by a workflow of this id, and note the outcome."""
        (target,) = _targets(wanted)
        if not fits_id(id):
            why = f"its key would have more than {MAX_ID:,} bytes: give the run a shorter id"
            self._note(view, RouteOutcome(route=target.route, status="refused", why=why))
            return
        try:
            handle = await workflow.start_child_workflow(
                NOTIFICATION_WORKFLOW,
                wanted,
                id=id,
                result_type=NotificationResult,
                task_queue=queue or None,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=ParentClosePolicy.ABANDON,
                cancellation_type=ChildWorkflowCancellationType.ABANDON,
                static_summary=line(f"{wanted.notification.kind} → {target.route}"),
                search_attributes=owner_attributes(),
            )
        except WorkflowAlreadyStartedError:
            # The run was reset. That workflow has the outcome of the first notification.
            if after_reset:
                key = delivery_id(after_reset, target.route, alone=id == wanted.notification.key)
                again = wanted.notification.model_copy(update={"key": key})
                await self._send(wanted.model_copy(update={"notification": again}), queue)
            return
        self._started()
        try:
            (outcome,) = (await handle).routes
            self._note(view, outcome)
        except ChildWorkflowError as error:
            self._note(view, RouteOutcome(route=target.route, status="unknown", why=str(error.cause or error)))

    def _note(self, view: NotificationView, outcome: RouteOutcome) -> None:
        view.routes = [outcome if each.route == outcome.route else each for each in view.routes]
        if self._journal is not None:
            self._journal.notified(view, outcome)


class RunNotifications:
    """The notifications of one run, by the routes of its agent file, and the callback of its end."""

    def __init__(self, run: RunState, alarm: Alarm, callback: str) -> None:
        follows = run.prepared.follows(NOTIFIES)
        self._agent_run = run
        self._rules = run.agent.config.notify if follows else Notify()
        self._routes = run.approval_routes if follows else None
        self._callback = callback if follows else ""
        self._alarm = alarm
        self._sender = NotificationSender(run.notifications, run.journal, alarm)
        self._run_id = workflow.info().workflow_id

    def watch(self, approval_request: ApprovalRequest, program: asyncio.Task[None]) -> asyncio.Task[None] | None:
        """Notify people of a request once no program decides it, and again while it waits. Cancel the task when the
        wait ends.
        """
        if self._routes is None or approval_request.is_client_call:
            return None
        return asyncio.create_task(self._watch(approval_request, program, self._routes, workflow.time()))

    async def _watch(
        self, approval_request: ApprovalRequest, program: asyncio.Task[None], to: ApprovalRoutes, since: float
    ) -> None:
        await workflow.wait([program])
        self._inform(approval_request, "approval_requested", to.approval_requested, to.queue)
        for number, step in enumerate(to.approval_waiting, 1):
            ring = self._alarm.at(since + step.after, "people are informed again")
            try:
                await ring
            finally:
                ring.cancel()
            self._inform(approval_request, "approval_waiting", step.routes, to.queue, number, step.after)

    def _inform(
        self,
        approval_request: ApprovalRequest,
        kind: NotificationKind,
        routes: list[str],
        queue: str,
        number: int = 1,
        waited: float | None = None,
    ) -> None:
        waiting = self._agent_run.approval_queue.waiting
        if routes:
            self._sender.send_while(
                lambda: waiting.get(approval_request.id) is approval_request,
                lambda: self._about(approval_request, kind, routes, number, waited),
                queue,
            )

    def _about(
        self,
        approval_request: ApprovalRequest,
        kind: NotificationKind,
        routes: list[str],
        number: int,
        waited: float | None,
    ) -> NotificationInput:
        run, entry = self._agent_run, waiting_entry(approval_request)
        sender = run.identity.owner.sender
        text = approval_text(
            run.agent.name, sender, routes, entry.sentence, question=approval_request.question, waited=waited
        )
        notification = Notification(
            **_frame(run, self._run_id),
            key=notification_key(
                self._run_id,
                kind,
                number,
                about=approval_request.id,
                digest=approval_request.digest,
                asked_at=approval_request.approval.requested_at if run.prepared.follows(INFORMED_AGAIN) else "",
            ),
            kind=kind,
            text=text,
            link=approval_link(run.prepared.pages, self._run_id, approval_request.id),
            command=decide_command(
                self._run_id, approval_request.id, question=approval_request.question, roles=approval_request.roles
            ),
            call=approval_request.id,
            tool=entry.tool,
            question=approval_request.question,
            reason=approval_request.full_reason,
            number=number,
        )
        return NotificationInput(notification=notification, routes=routes)

    def check_budget(self) -> None:
        """Notify people once that the budget of a run and its child runs is nearly used."""
        run, routes = self._agent_run, self._rules.budget_nearly_used
        if not routes or run.progress.budget_noted or run.identity.parents:
            return
        budget = run.limits.pool.budget
        used = used_words(self._rules, budget.tokens, budget.cost, run.progress.usage)
        if used is None:
            return
        run.progress.budget_noted = True
        text = budget_text(run.agent.name, run.identity.owner.sender, self._run_id, used)
        notification = Notification(
            **_frame(run, self._run_id),
            key=notification_key(self._run_id, "budget_nearly_used"),
            kind="budget_nearly_used",
            text=text,
            link=run_link(run.prepared.pages, self._run_id),
            command=show_command(self._run_id),
            usage=run.progress.usage.model_copy(deep=True),
        )
        self._sender.send(NotificationInput(notification=notification, routes=routes), run.identity.queue)

    async def settle(self) -> None:
        """Wait for the notifications that are under way, before the run continues as new."""
        await self._sender.settle(ends=False)

    async def end(self, result: RunResult | None = None, error: BaseException | None = None) -> None:
        """Send the notifications of the run's end, and its callback."""
        run = self._agent_run
        if not run.identity.parents:
            reached = run.limits.reached
            output = None if result is None else result.output
            ending = Notification(
                **_frame(run, self._run_id),
                **_ending(error, run.agent.name, run.identity.owner.sender, self._run_id, run.progress.usage),
                link=run_link(run.prepared.pages, self._run_id),
                output=output,
                stop_reason=run.output.stop_reason if reached is None else reached.reason,
            )
            if (size := run.sizes.of(ending.output)) > MAX_NOTIFIED_OUTPUT:
                whole = output_link(run.prepared.pages, self._run_id)
                ending = ending.model_copy(update={"output": None, "output_size": size, "output_link": whole})
            _send_ending(self._sender, ending, self._rules, self._callback, run.identity.queue, output)
        await self._sender.settle()


async def notify_refused(run_input: RunInput, error: ApplicationError) -> None:
    """Send the notifications and the callback of a run that could not start, of which no state was recorded."""
    try:
        agent = parse_agent(run_input.agent)
        name, rules = agent.name, agent.config.notify
    except PerdureError:
        name, rules = run_input.agent_name or str(run_input.agent.get("name", "")), Notify()
    if run_input.lineage or run_input.snapshot is not None:
        return
    sender, run_id, owner = NotificationSender([], None), workflow.info().workflow_id, run_input.whose
    ending = Notification(
        run_id=run_id,
        agent=name,
        at=now(),
        session=owner.session,
        sender=owner.sender,
        tenant=owner.tenant,
        **_ending(error, name, owner.sender, run_id, RunUsage()),
    )
    _send_ending(sender, ending, rules, run_input.callback, "")
    await sender.settle()


def _frame(run: RunState, run_id: str) -> dict[str, Any]:
    owner = run.identity.owner
    return {
        "at": now(),
        "run_id": run_id,
        "agent": run.agent.name,
        "above": list(run.identity.parents),
        "session": owner.session,
        "sender": owner.sender,
        "tenant": owner.tenant,
    }


def _ending(error: BaseException | None, agent: str, sender: str, run_id: str, usage: RunUsage) -> dict[str, Any]:
    """Return a notification's text for a run's end."""
    status, why = "completed", None
    if error is not None and is_cancelled_exception(error):
        status = "cancelled"
    elif error is not None:
        why = error.message if isinstance(error, ApplicationError) else str(error)
        status = "refused" if isinstance(error, ApplicationError) and error.type == MODEL_REFUSED else "failed"
    kind: NotificationKind = "run_failed" if status in ("failed", "refused") else "run_ended"
    return {
        "key": notification_key(run_id, kind),
        "kind": kind,
        "text": end_text(agent, sender, run_id, status, why, usage),
        "command": show_command(run_id),
        "status": status,
        "error": why,
        "usage": usage,
    }


def _send_ending(
    sender: NotificationSender, ending: Notification, rules: Notify, callback: str, queue: str, output: Json = None
) -> None:
    """Send the end of a run to its routes, once to each, and to its callback. `output`: the run's whole output."""
    failed = rules.run_failed if ending.kind == "run_failed" else []
    digest = end_digest(ending.status, ending.error, output)

    def inform(kind: NotificationKind, routes: list[str]) -> None:
        of_kind = ending.model_copy(update={"kind": kind, "key": notification_key(ending.run_id, kind)})
        again = notification_key(ending.run_id, kind, about="end", digest=digest, asked_at=ending.at)
        sender.send(NotificationInput(notification=of_kind, routes=routes), queue, after_reset=again)

    if failed:
        inform("run_failed", failed)
    if ended := [route for route in rules.run_ended if route not in failed]:
        inform("run_ended", ended)
    if callback:
        key = notification_key(ending.run_id, "callback", about="end", digest=digest)
        reported = {"kind": "run_ended", "key": key}
        sender.send(NotificationInput(notification=ending.model_copy(update=reported), callback=callback), queue)


D = TypeVar("D", ReplyDelivery, NotificationDelivery)

_ATTEMPT: Final = timedelta(seconds=60)
"""Time of one attempt. The whole delivery has no timeout: without a worker it waits for one (R24.2)."""
_ALIVE: Final = timedelta(seconds=20)


async def deliver(activity: str, delivery: D, retry: RetryPolicy, title: str) -> Delivered:
    """Deliver by this activity and return the outcome. An attempt whose worker is shut down does not count."""
    while True:
        try:
            became: Delivered = await execute_typed(
                activity,
                [delivery],
                Delivered,
                start_to_close_timeout=_ATTEMPT,
                heartbeat_timeout=_ALIVE,
                retry_policy=retry,
                summary=line(title),
            )
            return became
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            kind = kind_of(error)
            if kind == INTERRUPTED:
                delivery = delivery.model_copy(update={"earlier": delivery.earlier + _attempts(error)})
                continue
            return Delivered(status="refused" if kind == NO_SUCH_ROUTE else "unknown", why=message_of(error))


def _attempts(error: ActivityError) -> int:
    """Return the number of attempts, as reported by the worker that was shut down."""
    details = error.cause.details[:1] if isinstance(error.cause, ApplicationError) else ()
    return details[0] if details and isinstance(details[0], int) else 1
