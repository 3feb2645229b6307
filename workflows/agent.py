"""The workflow of a run: context → Request → its calls → output, or again (R6.1)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from perdure.workflows.approvals import LEFT, ApprovalWaits, RunApprovals, WaitingList
from perdure.workflows.arguments import any_arguments, query_arguments, read_input, read_one
from perdure.workflows.audit import AuditSender
from perdure.workflows.calls import CallRunner
from perdure.workflows.children import ChildRuns
from perdure.workflows.continue_as_new import ContinueAsNew, should_continue_as_new
from perdure.workflows.dispatch import Dispatcher, Routing, full_reason
from perdure.workflows.evaluations import start_score
from perdure.workflows.failures import message_of
from perdure.workflows.hooks import ExecutionHooks, call_end_hooks
from perdure.workflows.mailbox import Mailbox
from perdure.workflows.notifications import RunNotifications
from perdure.workflows.observability import Watchers, end, keep_log, list_run, observe_request, run_journal
from perdure.workflows.parent_run import InternalHandlers, ParentRun, fetch_whole_input
from perdure.workflows.preparation import prepare
from perdure.workflows.requests import ask, choose
from perdure.workflows.reservations import CallReservations, RequestShares
from perdure.workflows.resets import FormerRecord, LeftBehind
from perdure.workflows.results import failure_of, result_of, spent_by, view_of
from perdure.workflows.timers import watch
from perdure.workflows.undo import undo_run, undo_words

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.decisions import Decision
    from perdure.approvals.policy import Policy
    from perdure.approvals.queue import ApprovalQueue
    from perdure.approvals.requests import STEER, WITHDRAW, IncomingMessage, MessageFate, WaitingView
    from perdure.errors import PerdureError
    from perdure.models.requests import CallDelivery, RequestContext, RequestInput, RequestResult
    from perdure.models.usage import RunUsage
    from perdure.plan import Call
    from perdure.rules import RuleRecord
    from perdure.runs.agent import ModelChoice
    from perdure.runs.claim_check import (
        APPROVAL,
        CALL,
        CONTEXT,
        EFFECTS,
        GONE,
        GRANT,
        HOOK,
        USAGE,
        Payload,
    )
    from perdure.runs.context import message_fates
    from perdure.runs.delegates import SpentBudget
    from perdure.runs.events import EVENTS_QUERY, WATCHED, EventsPage
    from perdure.runs.limits import Budget, Limit, WorkClock
    from perdure.runs.recall import recall
    from perdure.runs.run import RunState
    from perdure.runs.run_log import RunLog
    from perdure.runs.undo import EffectChunk, UndoBase, undo_outcomes, undo_stop_reason
    from perdure.runs.version_switches import (
        ASKS_BY_ACTIVITY,
        FIRST_CALLS_TIMED_LATER,
        FORMER_CHILDREN_END,
        LAST_REQUEST_COUNTS,
        LEFT_CHILDREN_END,
        LEFT_LOOPS_END,
        LISTED_AGENT,
        OPEN_PLAN_SETTLES_NOTHING,
        OPERATIONS_WAIT,
    )
    from perdure.runs.views import Pages, fit_waiting, progress_markdown, waiting_views
    from perdure.runs.wire import (
        AGENT_WORKFLOW,
        CALLS_SIGNAL,
        DECIDE,
        LEDGER_AWAY,
        LIMIT_REACHED,
        MODEL_FAILED,
        MODEL_REFUSED,
        POLICY,
        RECALL_QUERY,
        RECORD_ENDED,
        REFUSED,
        RUN_QUERY,
        UNDO_STOPPED,
        VALUE_QUERY,
        WAITING_QUERY,
        RunInput,
        RunResult,
        RunView,
    )
    from perdure.tools.tool import Tool
    from perdure.values.json import Json, JsonObject, Sent, ValuePage
    from perdure.values.limits import KEPT_EVENTS, MAX_AT_ONCE, MAX_OPERATIONS, NEAR


class RunDriver:
    """One execution of a prepared run, from Request to Request."""

    def __init__(
        self,
        run: RunState,
        run_input: RunInput,
        approvals: RunApprovals,
        mailbox: Mailbox,
        hooks: ExecutionHooks,
        parent: ParentRun,
        waiting_list: WaitingList,
        sender: Dispatcher,
        watchers: Watchers,
    ) -> None:
        if parent.raised is not None:
            run.limits.pool.raise_to(parent.raised)
        mailbox.open(run)
        waiting_list.begin(run)
        self.run = run
        self.clock = WorkClock(run.progress.worked)
        self.sender = sender
        self.calls: CallRunner | None = None
        """Calls of the current Request, or of the last one."""
        self.run_input = run_input
        self._approvals = approvals
        self.notifications = RunNotifications(run, sender.alarm, run_input.callback)
        self.audit = AuditSender(run, begins=run_input.snapshot is None)
        self._waits = ApprovalWaits(run, approvals, waiting_list, sender, self.notifications)
        self._mailbox = mailbox
        self._hooks = hooks
        self._parent = parent
        self._waiting_list = waiting_list
        self._watchers = watchers
        self._continuing = ContinueAsNew()
        self._left = LeftBehind(self._may_leave)
        self._former = FormerRecord(run.rules)
        self.shares = RequestShares(run)
        self._refusal: str | None = None
        """The words of the model's last answer, if it was a refusal."""
        self._reservations = CallReservations(run)

    async def settle(self) -> None:
        """Settle, at the run's end, the reservations that it made in its tenant's ledger."""
        await self._reservations.settle()
        await self.shares.settle()

    def _may_leave(self) -> bool:
        """Whether the run may have started a child that a reset leaves running: a delegate, a loop or a user's
        workflow.
        """
        prepared = self.run.prepared
        if prepared.follows(LEFT_LOOPS_END):
            return bool(prepared.tools)
        return prepared.follows(LEFT_CHILDREN_END) and any(tool.delegate is not None for tool in prepared.tools)

    async def to_result(self) -> RunResult:
        """Run to the output and return the result. A failure has the result so far as its detail."""
        run, below = self.run, bool(self.run_input.lineage)
        if run.prepared.follows(LISTED_AGENT):
            list_run(run, below=below)
        self._waiting_list.report()
        late = self._parent.late if self.run_input.clocked else None
        watching = watch(run, self.clock, self._rests, self._at_deadline, late)
        try:
            try:
                result = await self._to_end()
                if (refusal := await self._parent.refusal(run, result, self.run_input.free)) is not None:
                    raise self._failure(*refusal)
            except (
                PerdureError
            ) as error:  # it would repeat on every replay; the failure includes the usage and the calls
                raise self._failure(str(error), type(error).__name__) from None
        except ApplicationError as error:
            watching.cancel()
            if run.agent.config.on_failure != "undo" or not run.records.effects.notes:
                raise
            raise await self._undone(error) from None
        else:
            result.messages = message_fates(run.progress)  # a message may have arrived since
            return result
        finally:
            watching.cancel()
            end(run, sys.exception(), below=below)

    async def _undone(self, error: ApplicationError) -> ApplicationError:
        """Undo the run's calls, and return its failure with the outcome of the undo in its message."""
        outcome = await undo_run(workflow.info().workflow_id, None, self.run, self.sender.children)
        self._waiting_list.show()
        return self._failure(f"{error.message}; {undo_words(outcome)}", error.type or MODEL_FAILED)

    async def _to_end(self) -> RunResult:
        """Run the Requests. When the run fails or is cancelled, stop its calls, so that their records stay (R10.6)."""
        try:
            await self._requests()
            await self._left.until_ended()
            await self._former.until_read()
            return result_of(self.run, self.clock)
        except (FailureError, asyncio.CancelledError) as error:
            if self.run.plan is None or self.calls is None:
                raise
            cancelled = is_cancelled_exception(error)
            await self.calls.break_off("the run was cancelled" if cancelled else "the run failed")
            self._waiting_list.show()
            if isinstance(error, ApplicationError) and not cancelled:
                raise self._failure(error.message, error.type or MODEL_FAILED) from None
            raise

    async def _requests(self) -> None:
        """Make Requests until the run is over. Fail at a limit."""
        run = self.run
        starts = run.context.starts_with_plan and self.run_input.snapshot is None
        recorded = None if run.fork is None else run.fork.answer(0)
        plan = run.context.plan if recorded is None else recorded.result.calls
        if starts and await self._run_calls(0, _plan_as_result(plan)):
            return
        if run.undo is not None:
            raise self._failure(undo_stop_reason(run.undo, run.records.past.calls), UNDO_STOPPED)
        while True:
            await self._mailbox.wait_for_messages()
            self._check_limits(coming=run.progress.number + 1)
            choice = await self._choose()
            self._check_limits(coming=run.progress.number)  # choosing the model takes time too
            await self._reserve_share(choice.model)
            limit = run.limits.reached
            if limit is not None and await self._ends_without_request(limit):
                return
            request = run.begin_request(choice)
            if await self._run_calls(request.number, self._request(request)):
                return
            if limit is not None:
                words = f"{limit.words}, and the last answer was not a valid output"
                raise self._failure(words, LIMIT_REACHED)
            if run.limits.reached is None:
                await self._continue_as_new()

    async def _reserve_share(self, model: str) -> None:
        """Reserve the next Request's share of budgets that runs share. Fail where a run cannot make its first Request."""
        await self.shares.reserve(model)
        if self.shares.refused and self.run.limits.reached is None:
            raise self._failure(self.shares.refused, LEDGER_AWAY)
        if (
            self.shares.refused
            and self.run.progress.number == 1
            and self.run.plan is None
            and not self.run.records.past.calls
        ):
            raise self._failure(self.shares.refused, REFUSED)

    def _check_limits(self, *, coming: int) -> None:
        last_counts = self.run.prepared.follows(LAST_REQUEST_COUNTS)
        worked = self.clock.worked(workflow.time())
        self.run.limits.check(self.run.progress, worked, coming=coming, last_counts=last_counts)

    async def _ends_without_request(self, limit: Limit) -> bool:
        """Let the calls end at a limit; return whether the run ends without a last Request. Fail where a last Request
        is impossible.
        """
        run = self.run
        if run.plan is not None and self.calls is not None:
            await self.calls.come_to_end(limit)
            run.close_request(run.plan, RequestResult())  # the calls that did not run; the last Request reports them
        if run.end_with_draft():
            return True
        if self.shares.refused:
            raise self._failure(f"{self.shares.refused}, and no budget is left for a last answer", LIMIT_REACHED)
        if run.limits.exceeded(run.progress) and run.prepared.follows(LAST_REQUEST_COUNTS):
            if self._refusal is not None:  # the only Request of `max_requests: 1`
                raise self._failure(self._refusal, MODEL_REFUSED)
            raise self._failure(f"{limit.words}, and none of its answers was an output", LIMIT_REACHED)
        if run.limits.pool.used_up(run.progress.usage):
            raise self._failure(f"{limit.words}, and its share has no rest for a last answer", LIMIT_REACHED)
        return False

    async def _run_calls(self, number: int, answer: Coroutine[Any, Any, RequestResult]) -> bool:
        """Run the calls of a Request's Solution as they arrive, and process it; return whether the run is over."""
        run, goes_on = self.run, self.run.plan is not None
        run.open_plan(number)
        if goes_on and self.calls is not None:
            self.calls.go_on()
        else:
            self.calls = CallRunner(
                run, self._waits, self.clock, self.sender, self._waiting_list.report, self._hooks, self._reservations
            )
        self._waiting_list.report()
        result = await self.calls.run(answer)
        loop = self.calls.loop
        over = run.close_request(loop.plan, result, cut=loop.cut, is_patched=run.prepared.follows)
        observe_request(run, number, result, self.calls.first_call)
        self._waiting_list.show()
        if not over:
            self.notifications.check_budget()
        if not over and run.limits.reached is not None and run.limits.reached.reason == "client_gone":
            raise self._failure(run.limits.reached.words, LIMIT_REACHED)
        self._refusal = result.refusal
        if result.refusal is not None and not over and run.limits.refused(run.progress):
            raise self._failure(result.refusal, MODEL_REFUSED)
        return over

    async def _choose(self) -> ModelChoice:
        situation = self.run.situation()
        if (fork := self.run.fork) is not None:
            if (recorded := fork.answer(situation.number)) is not None:
                return ModelChoice(recorded.model, f"recorded: {fork.title}")
            if fork.record.end is not None:
                raise self._failure(fork.end_reason, RECORD_ENDED)
        try:
            return await choose(situation, local=not self.run.prepared.follows(ASKS_BY_ACTIVITY))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise self._failure(f"no model could be chosen: {message_of(error)}", MODEL_FAILED) from None

    async def _request(self, request: RequestInput) -> RequestResult:
        run = self.run
        if run.fork is not None and (recorded := run.fork.answer(request.number)) is not None:
            return recorded.result

        def has_released() -> bool:
            return self.calls is not None and self.calls.loop.intake.received > 0

        def lend(number: int) -> None:
            self._watchers.lend(number, run.request_context(number))

        try:
            return await ask(run, request, has_released, self._rest, lend)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            if run.progress.draft is not None:
                return RequestResult(problem={"code": "not_refined", "message": message_of(error)})
            log = run.records.past.log[-1]
            raise self._failure(
                f"Request {log.number} to {log.model} failed: {message_of(error)}", MODEL_FAILED
            ) from None

    async def _continue_as_new(self) -> None:
        """Continue as new where that is due. Limit a run that cannot continue as new and whose history is nearly full."""
        run = self.run
        may_go_on = run.plan is None or not run.prepared.follows(OPEN_PLAN_SETTLES_NOTHING)
        if may_go_on and should_continue_as_new(keeps=run.prepared.keeps_version):
            await self._waiting_list.until_sent()
            await self.notifications.settle()
            await self._left.until_ended()
            await self._former.until_read()
            await self.audit.settle(ends=False)
            await self._reservations.settle()
        if run.plan is None and not self._approvals.resets.pending:
            clocked = self.run_input.clocked and not self._parent.late.done()
            following = self.run_input.model_copy(update={"clocked": clocked})
            self._continuing.go_on(following, run, self.clock.worked(workflow.time()))
        if (words := full_reason(NEAR)) is not None:
            run.limits.reached = Limit("history", f"{words}, and the run's state is too large for a new execution")

    def _rests(self) -> bool:
        return self.calls is not None and self.calls.loop.waits

    def _rest(self, rests: bool) -> None:
        """Record that the model's provider is unavailable, or available again: a wait for it alone is not work time
        (R20.5).
        """
        if self.calls is not None:
            self.calls.rest(rests)
        self._waiting_list.report()

    def _at_deadline(self, limit: Limit) -> None:
        """Stop at the deadline: running calls are cancelled, and the model gives its best answer (R9.5)."""
        if self.run.limits.reached is None:
            self.run.limits.reached = limit
            if self.calls is not None:
                self.calls.stop(limit)

    def _failure(self, message: str, kind: str) -> ApplicationError:
        return failure_of(self.run, self.clock, message, kind)

    def payload(self, kind: str, name: str, watched_until: float) -> Payload | None:
        """Return a value of the run that was too large to send; `None` while its decision is pending."""
        run = self.run
        match kind:
            case CONTEXT.name:
                is_asked = int(name) == run.conversation.number  # else a later Request has begun
                return Payload(self.context(int(name), watched_until)) if is_asked else GONE
            case CALL.name:
                return GONE if self.calls is None else self.calls.payload(name)
            case APPROVAL.name:
                waiting = fit_waiting(waiting_views(run, name), sizes=run.sizes)
                return Payload(waiting[0]) if waiting else GONE
            case EFFECTS.name:
                return Payload(self._effects(int(name)))
            case USAGE.name:
                return Payload(spent_by(run, self.clock))
            case _:
                return self.sender.payload(kind, name)

    def _effects(self, number: int) -> EffectChunk:
        run = self.run
        chunk = run.records.effects.chunk(number, run.plan)
        chunk.earlier = self.run_input.snapshot is not None
        if number == 0:
            record = run.rules.record if run.rules.rules else None
            queue = run.approval_queue
            chunk.base = UndoBase.of(
                self.run_input, run.prepared.undo_tools, record, queue.requesters, queue.guard.change.as_change()
            )
            if run.undo is not None:
                calls = [] if run.plan is None else list(run.plan.every_call())
                chunk.undone = undo_outcomes(run.undo, [*run.records.past.calls, *map(run.records.view, calls)])
        return chunk

    def context(self, number: int, watched_until: float) -> RequestContext:
        """Return the context of Request `number`, with the number of its calls that are released."""
        context = self.run.request_context(number)
        intake = None if self.calls is None else self.calls.loop.intake
        released = intake.received if intake is not None and intake.number == number else 0
        return context.model_copy(update={"released": released, "watched_until": watched_until})


async def _plan_as_result(plan: Sequence[Json]) -> RequestResult:
    """Return the calls of a plan that the start passed: no model is called for it (R5.9)."""
    return RequestResult(calls=[*plan])


# A protocol error and a value that cannot be decoded would repeat on every replay: they fail the run, not the workflow
# task.
@workflow.defn(name=AGENT_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class AgentWorkflow(InternalHandlers):
    """One run of an agent: its parts, its start and end, and its handlers, each of which calls a part. `RunDriver` runs
    it between start and end.

    Handlers show the types that they expect, and accept any arguments: the parts validate them. The SDK would fail the
    workflow task repeatedly where the arguments do not match (R18.6).
    """

    def __init__(self) -> None:
        super().__init__(self._raise_budget)
        approval_queue = ApprovalQueue()
        self._notes = run_journal()
        self._children = ChildRuns()
        self._waiting_list = WaitingList(approval_queue, self._children)
        self._approvals = RunApprovals(approval_queue, self._notes, self._children, self._waiting_list)
        self._mailbox = Mailbox(self._approvals.refuse)
        self._hooks = ExecutionHooks(self._notes.hook)
        self._watchers = Watchers()
        self._pages = Pages()
        self._run_input: RunInput | None = None
        self.collected: list[Call] | None = None
        """The calls that have ended, for a replay that sets a list before the run begins."""
        self.keeps_log = False
        """Whether the run keeps its log, for a replay that sets it before the run begins."""
        self._driver: RunDriver | None = None
        """The driver, once the run is prepared. Handlers may be called before."""

    @workflow.run
    async def run(self, *arguments: Json) -> RunResult:
        """Run the agent to its output. Takes one `RunInput`.

        Fails with an `ApplicationError` whose type is the reason, and whose detail is the result so far.
        """
        with self._notes.to_end(ApplicationError):
            self._run_input = run_input = await fetch_whole_input(read_input(RunInput, arguments))
            run_input, run = await prepare(run_input, self._approvals, self._notes, self._hooks)
            run.records.collected = self.collected
            if self.keeps_log:
                keep_log(run, run_input)
            sender = self._sender = Dispatcher(
                run.sizes,
                run.prepared.max_payload,
                self._children,
                Routing(run),
                self._notes.call_again,
                lambda: run.prepared.follows(FORMER_CHILDREN_END),
                self._waiting_list.report_closed,
                time_is_known=not run.prepared.follows(FIRST_CALLS_TIMED_LATER),
                max_operations=MAX_OPERATIONS if run.prepared.follows(OPERATIONS_WAIT) else MAX_AT_ONCE,
            )
            driver = self._driver = RunDriver(
                run,
                run_input,
                self._approvals,
                self._mailbox,
                self._hooks,
                self._parent,
                self._waiting_list,
                sender,
                self._watchers,
            )
            try:
                result = await driver.to_result()
            except (FailureError, PerdureError, ValidationError, asyncio.CancelledError) as error:
                await driver.settle()
                await call_end_hooks(self._hooks, run, sender, error=error)
                await driver.notifications.end(error=error)
                await driver.audit.settle()
                await start_score(run)
                await self._waiting_list.settle()
                raise
            await driver.settle()
            await call_end_hooks(self._hooks, run, sender, result)
            await driver.notifications.end(result)
            await driver.audit.settle()
            await start_score(run)
            await self._waiting_list.settle()
            return result

    @property
    def tools(self) -> list[Tool]:
        """Return the tools that the run recorded at its start, for replays."""
        return [] if self._driver is None else list(self._driver.run.prepared.tools)

    def recorded(self) -> tuple[RunInput | None, list[Call], list[MessageFate]]:
        """Return the run's input with its agent, its calls so far where they are `collected`, and its messages, for replays."""
        if self._driver is None:
            return self._run_input, [], []
        run, ended = self._driver.run, {id(call): call for call in self.collected or ()}
        running = () if run.plan is None else (call for call in run.plan.every_call() if id(call) not in ended)
        return self._driver.run_input, [*ended.values(), *running], message_fates(run.progress)

    @property
    def log(self) -> RunLog | None:
        """Return the run's log, where it `keeps_log`, for replays."""
        return None if self._driver is None else self._driver.run.log

    def view_as(self, run_id: str) -> RunView:
        """Return the run as it stands, for replays, which also read it between tasks."""
        return view_of(self._run, run_id)

    def details(self) -> str:
        """Return the run's details for the Web UI (R12.8)."""
        return "" if self._run is None else progress_markdown(self._run, workflow.info().workflow_id)

    def context(self, number: int) -> RequestContext:
        """Return the context of Request `number`, for replays."""
        return self._started.context(number, self._watchers.until)

    @property
    def _run(self) -> RunState | None:
        return None if self._driver is None else self._driver.run

    @property
    def _started(self) -> RunDriver:
        if self._driver is None:
            raise ValueError("the run has not started yet")
        return self._driver

    def _raise_budget(self, budget: Budget) -> None:
        if self._driver is not None:
            self._driver.run.limits.pool.raise_to(budget)

    # Decisions and messages of people.

    @workflow.signal(name="approve", unfinished_policy=LEFT, description='Approve a waiting call: {"call": "1.0"}')
    @any_arguments
    async def approve(self, decision: Sent[Decision]) -> None:
        """Approve a call: `{"call": "1.0"}`, and if wanted `by`, `remember`, `digest` (R7.2). What cannot be followed shows in `show`."""
        await self._approvals.note(decision, "approve")

    @workflow.signal(
        name="reject",
        unfinished_policy=LEFT,
        description='Reject a waiting call: {"call": "1.0", "reason": "still needed"}',
    )
    @any_arguments
    async def reject(self, decision: Sent[Decision]) -> None:
        """Reject a call: `{"call": "1.0", "reason": "still needed"}`."""
        await self._approvals.note(decision, "reject")

    @workflow.signal(
        name="edit",
        unfinished_policy=LEFT,
        description='Approve a waiting call with other parameters: {"call": "1.0", "params": {}}',
    )
    @any_arguments
    async def edit(self, decision: Sent[Decision]) -> None:
        """Edit a call: `{"call": "1.0", "params": {…}}`; of a plan `{"call": "1", "calls": […]}`."""
        await self._approvals.note(decision, "edit")

    @workflow.signal(
        name="replace",
        unfinished_policy=LEFT,
        description='Replace a waiting call by another: {"call": "1.0", "with": {"_tool": "name"}}',
    )
    @any_arguments
    async def replace(self, decision: Sent[Decision]) -> None:
        """Replace a call: `{"call": "1.0", "with": {"_tool": …}}`."""
        await self._approvals.note(decision, "replace")

    @workflow.signal(
        name="answer", unfinished_policy=LEFT, description='Answer a question: {"call": "1.0", "answer": "yes"}'
    )
    @any_arguments
    async def answer(self, decision: Sent[Decision]) -> None:
        """Answer a question: `{"call": "1.0", "answer": …}`: the result of a call of `ask_person`."""
        await self._approvals.note(decision, "answer")

    @workflow.signal(
        name=DECIDE, unfinished_policy=LEFT, description='Any decision: {"call": "1.0", "decision": "approve"}'
    )
    @any_arguments
    async def decide(self, decision: Sent[Decision]) -> None:
        """Decide in any of these ways: `{"call": "1.0", "decision": "approve"}`."""
        await self._approvals.note(decision)

    @workflow.update(
        name=DECIDE, unfinished_policy=LEFT, description='Any decision: {"call": "1.0", "decision": "approve"}'
    )
    @any_arguments
    async def decide_now(self, decision: Sent[Decision]) -> JsonObject:
        """Decide by update; return `{"call", "decision"}`, or the reason why nothing changed (R7.3)."""
        return await self._approvals.decide_now(decision)

    @decide_now.validator
    @any_arguments
    def _check_decision(self, decision: Sent[Decision]) -> None:
        self._approvals.check(decision)

    @workflow.signal(name=POLICY, unfinished_policy=LEFT, description='Change the approval policy: {"ask": "unsafe"}')
    @any_arguments
    async def change_policy(self, change: Sent[Policy]) -> None:
        """Change keys of `config.approval` from now on: `{"ask": "unsafe"}` (R7.7)."""
        await self._approvals.note_policy(change)

    @workflow.update(name=POLICY, unfinished_policy=LEFT, description='Change the approval policy: {"ask": "unsafe"}')
    @any_arguments
    async def change_policy_now(self, change: Sent[Policy]) -> JsonObject:
        """Change the policy by update; return the changed policy, or the problem."""
        return await self._approvals.change_policy_now(change)

    @change_policy_now.validator
    @any_arguments
    def _check_policy(self, change: Sent[Policy]) -> None:
        self._approvals.check_policy(change)

    @workflow.signal(name=STEER, description='Send a message to the run: {"id": "m1", "text": "…"}')
    @any_arguments
    def steer(self, message: Sent[IncomingMessage]) -> None:
        """Accept `{"id", "text", "sender"?, "at"?}` (R10.5). `show` prints invalid ones."""
        self._mailbox.take(message, None if self._driver is None else self._driver.calls)

    @workflow.update(name=WITHDRAW, description='Withdraw a message that no Request contains yet: {"id": "m1"}')
    @any_arguments
    async def withdraw(self, message: Sent[str | JsonObject]) -> JsonObject:
        """Withdraw the message of this id; return `{"id", "withdrawn": true}`, or the reason why it cannot be withdrawn
        (R10.7).
        """
        return self._mailbox.withdraw(message)

    @withdraw.validator
    @any_arguments
    def _check_withdrawal(self, message: Sent[str | JsonObject]) -> None:
        self._mailbox.check_withdrawal(message)

    # Signals and queries of the engine's own activities and runs.

    def _payload(self, kind: str, name: str) -> Payload | None:
        if kind == HOOK.name:
            return self._hooks.payload(name)
        if self._driver is not None:
            return self._driver.payload(kind, name, self._watchers.until)
        if kind == USAGE.name:
            return Payload(SpentBudget(usage=RunUsage(), rule_record=RuleRecord()))
        return None if kind == GRANT.name else GONE

    @workflow.signal(name=CALLS_SIGNAL, description="Internal: complete calls of the model's stream")
    @any_arguments
    def deliver(self, delivery: Sent[CallDelivery]) -> None:
        """Deliver calls that have closed while the model still writes; see `perdure.models.response_stream`."""
        calls = None if self._driver is None else self._driver.calls
        if calls is not None and (found := read_one(CallDelivery, delivery)) is not None:
            calls.deliver(found)

    # Views.

    @workflow.query(name=RUN_QUERY, description="The run's status, calls, state and usage")
    @query_arguments
    def view(self) -> RunView:
        """Return the run as it stands, for `show` and `watch`."""
        return self.view_as(workflow.info().workflow_id)

    @workflow.query(
        name=WAITING_QUERY, description="The approval requests; optional arguments: a call's id, and the number to skip"
    )
    @query_arguments
    def waiting(self, only: str | None = None, skip: int = 0) -> list[WaitingView]:
        """Return the requests that wait for a person, oldest first; with `only`, only those of that call, or that
        Request's plan.

        If they do not all fit, the last one has the number of `more` requests: `skip` continues after it.
        """
        run = self._run
        return [] if run is None else fit_waiting(waiting_views(run, only, skip), sizes=run.sizes)

    @workflow.query(
        name=VALUE_QUERY,
        description="A page of a value: output, state, calls, errors, a reference or a call's id; and an offset",
    )
    @query_arguments
    def value(self, what: str, offset: int = 0) -> ValuePage:
        """Return a page of a cut value: `output`, `state`, `calls`, `errors`, a reference or a call's id."""
        return self._pages.page(self._run, what, offset, self._run_input)

    @workflow.query(
        name=RECALL_QUERY,
        description="A page of a value that a prompt has in part: its name, and the page's number",
    )
    @query_arguments
    def recalled(self, what: str, page: int = 1) -> JsonObject | None:
        """Return a page of a value that the model is shown cut; `None`: the execution before this one has it."""
        return recall(self._started.run, what, max(1, page))

    @workflow.query(name=EVENTS_QUERY, description="Events: the number of the first, and the most events")
    @query_arguments
    def events(self, first: int = 0, limit: int = KEPT_EVENTS) -> EventsPage:
        """Return an `EventsPage` from a number on, with at most so many events, also after the run's end."""
        return self._notes.events.page(first, limit)

    @workflow.signal(
        name=WATCHED, description="Internal: a reader watches, so text events are more frequent for a while"
    )
    @any_arguments
    def watched(self, _: Sent[None]) -> None:
        """Record that the run has watchers. They repeat the signal once a minute."""
        self._watchers.note()

    @workflow.query(name=WATCHED, description="The end of the watch in seconds since 1970; 0: no reader watches")
    def watched_until(self) -> float:
        """Return the time until which somebody watches, in seconds since 1970; 0 without watchers."""
        return self._watchers.until
