"""The calls of a Request: each waits for its turn, for people and for hooks, and is executed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import NoneType
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    is_cancelled_exception,
)

from perdure.workflows.approvals import ApprovalWaits
from perdure.workflows.children import BudgetShare
from perdure.workflows.delegates import run_delegate
from perdure.workflows.dispatch import Dispatcher, full_reason, next_task, task_number
from perdure.workflows.executions import run_existing, run_tool, sleep_until, tool_reads
from perdure.workflows.failures import message_of
from perdure.workflows.hooks import CallHooks, ExecutionHooks
from perdure.workflows.observability import now, observe
from perdure.workflows.reservations import CallReservations
from perdure.workflows.server_input import ServerDialog
from perdure.workflows.undo import run_undo

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import ApprovalRequest
    from perdure.errors import CallError
    from perdure.models.requests import CallDelivery, RequestResult
    from perdure.models.usage import Usage
    from perdure.plan import STEERED_RUNS_GO_ON, Call, Failed, Outcome, Plan, RefusedByRule, Returned
    from perdure.rules import RULE_BROKEN
    from perdure.runs import metrics
    from perdure.runs.budget import count_rivals
    from perdure.runs.claim_check import GONE, Payload
    from perdure.runs.delegates import ChildUsage
    from perdure.runs.ledger import reservation_of
    from perdure.runs.limits import Budget, Limit, WorkClock
    from perdure.runs.request_loop import (
        PLAN,
        REQUEST,
        CallEnded,
        LimitReached,
        PlanDecided,
        RequestLoop,
        RequestStage,
        ShowPlan,
        StartCall,
        is_answered,
    )
    from perdure.runs.run import RunState
    from perdure.runs.version_switches import JUDGED_AFTER_HOOKS, UNUSED_SHARES_RETURN
    from perdure.tools.invocation import ReportedUsage
    from perdure.tools.server_input import ServerInput
    from perdure.tools.tool import SLEEP_UNTIL, UNDO, Existing
    from perdure.values.limits import LIMITS_OF_CHILDREN, MAX_AT_ONCE, SHORT_TASKS


T = TypeVar("T")


class RefusedCallError(Exception):
    """A rule forbids a call that was about to be scheduled: other calls have begun or ended meanwhile."""

    def __init__(self, outcome: RefusedByRule) -> None:
        super().__init__(outcome.error.message)
        self.outcome = outcome


class CallRunner:
    """The calls of the Request whose plan `run` has just opened, and of later Requests that continue its plan
    (`go_on`).

    `on_change` is called whenever a call has arrived, started or ended.
    """

    def __init__(
        self,
        run: RunState,
        waits: ApprovalWaits,
        clock: WorkClock,
        sender: Dispatcher,
        on_change: Callable[[], None],
        hooking: ExecutionHooks,
        reservations: CallReservations,
    ) -> None:
        self._follows = run.prepared.follows
        self.loop = RequestLoop(run, self._follows)
        self._agent_run = run
        self._waits = waits
        self._clock = clock
        self._sender = sender
        self._on_change = on_change
        self._reservations = reservations
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._fault: BaseException | None = None
        """Error that is not a call's outcome: a cancellation, a Request that failed, or an error of the engine."""
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._hooks = CallHooks(run, hooking, self.loop, sender, on_change)
        self._began = workflow.time()
        self.first_call: float | None = None
        """Seconds until the first call started; `None` while none has."""
        self._observed: set[str] = set()  # calls whose end was recorded
        self._forsaken: set[str] = set()
        """Cancelled tasks whose end is not an error."""
        self._budget_share = BudgetShare(
            run.limits.pool,
            usage=lambda: run.progress.usage,
            rivals=lambda: count_rivals(self.loop.plan, run.limits.pool.holders) if self.loop.plan.closed else None,
            worked=lambda: clock.worked(workflow.time()),
            frees_unused=lambda: run.prepared.follows(UNUSED_SHARES_RETURN),
        )

    async def run(self, answer: Coroutine[Any, Any, RequestResult]) -> RequestResult:
        """Run the delivered calls and the answer's, until the plan has settled, or continues under the next Request.

        Return the answer at that time. Raise the answer's error, unless calls have been released: then the Request is
        interrupted, and they stay.
        """
        self._start(REQUEST, self._ask(answer))
        await self._run_on()
        return self.loop.result

    def go_on(self) -> None:
        """Continue the plan under another Request: running calls continue, and the caller calls `run` again (R10.5)."""
        self.loop.go_on()
        self._began, self.first_call = workflow.time(), None

    def steer(self) -> None:
        """Accept a new message: only safe calls start from now on, and the Request ends (R10.5)."""
        self.loop.steer()
        self._news.set()

    async def come_to_end(self, limit: Limit) -> None:
        """Let running calls end, unless there is no time; held calls do not run, because no Request follows that could
        keep them.

        See R9.5.
        """
        if limit.reason == "deadline":
            await self._cancel_all()
            self.loop.stop(limit, now())
        else:
            self.loop.hold_to(limit, now())
        self._news.set()
        await self._run_on()

    async def break_off(self, reason: str) -> None:
        """Stop the calls of a run that ends (R10.6)."""
        await self._cancel_all()
        self.loop.break_off(reason, now())

    async def _run_on(self) -> None:
        loop = self.loop
        try:
            while loop.stage not in (RequestStage.SETTLED, RequestStage.REVISED):
                await self._take_in()
                looks = not loop.behind or self._follows(SHORT_TASKS)  # 0.1.0 ran all iterations of its loops first
                if looks and (limit := self._why_stop()) is not None:
                    await self._cancel_all()
                    loop.stop(limit, now())
                await self._give_up_forsaken()
                for start in loop.starts(now()):
                    self._carry_out(start)
                self._on_change()
                self._keep_time()
        except (FailureError, asyncio.CancelledError) as error:
            cancelled = is_cancelled_exception(error)
            await self.break_off("the run was cancelled" if cancelled else "the run failed")
            raise
        finally:
            if not isinstance(sys.exception(), GeneratorExit):  # then the run is only put out of memory
                self._clock.work(workflow.time())
            revised = sys.exception() is None and loop.stage is RequestStage.REVISED
            if not revised and isinstance(sys.exception(), NoneType | FailureError | asyncio.CancelledError):
                self._observe_ends(list(loop.plan.every_call()))  # not after an error of the engine
            if not revised:
                await self._cancel_all()

    def rest(self, rests: bool) -> None:
        """Record that the model's provider is unavailable, or available again (R20.5)."""
        self.loop.model_away = rests
        self._keep_time()

    def deliver(self, delivery: CallDelivery) -> None:
        """Deliver calls that have closed in the model's stream (R6.3)."""
        if self.loop.model_away:
            self.rest(False)
        self.loop.deliver(delivery)
        self._news.set()

    def stop(self, limit: Limit) -> None:
        """Stop at a limit: running calls are cancelled and fail, waiting calls are skipped (R9.5)."""
        self.loop.report(LimitReached(limit))
        self._news.set()

    def payload(self, call_id: str) -> Payload:
        """Return the input of a running call's tool."""
        call = self.loop.running.get(call_id)
        if call is None:
            return GONE
        reads = tool_reads(call, self.loop.plan.home(call).values(call), self._agent_run.identity.owner)
        return Payload(reads, self._sender.size_of(reads))

    async def _take_in(self) -> None:
        """Wait for an event, or for the next task if work is left for it, and process it."""
        if self.loop.behind:
            await next_task(self._agent_run)
        else:
            await self._news.wait()
        self._news.clear()
        if self._fault is not None:
            raise self._fault
        streaming = self.loop.stage is RequestStage.STREAMING
        self.loop.work(task_number(), now())
        if streaming and self.loop.stage is not RequestStage.STREAMING:  # now the number of shares is known
            for name, budget in self._budget_share.level().items():
                self._sender.children.raise_budget(name, budget)
        self._observe_ends(self.loop.ended)
        self.loop.ended = []

    def _why_stop(self) -> Limit | None:
        if self.loop.limit is None and (words := full_reason()) is not None:
            self._agent_run.limits.reached = self._agent_run.limits.reached or Limit("history", words)
            return self._agent_run.limits.reached
        return self.loop.limit

    async def _cancel_all(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if not isinstance(sys.exception(), GeneratorExit):
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._fault = None

    async def _give_up_forsaken(self) -> None:
        """Cancel tasks that nobody waits for: an answer that a message has ended, and approval requests of dropped
        calls.
        """
        names, self.loop.abandoned = self.loop.abandoned, []
        tasks = [self._tasks[name] for name in names if name in self._tasks]
        self._forsaken.update(names)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        self._forsaken.clear()

    def _keep_time(self) -> None:
        """Set the clock where 0.1.0 set it, for its runs. Present runs have `timers.watch`, which misses no change."""
        if self.loop.waits:
            self._clock.pause(workflow.time())
        else:
            self._clock.work(workflow.time())

    def _observe_ends(self, calls: list[Call]) -> None:
        """Record metrics and log lines of ended calls, whether they ran or not."""
        for call in calls:
            if call.id not in self._observed:
                self._observed.add(call.id)
                observe(metrics.call_ended(call))

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a task whose error becomes the Request's, so that nothing waits forever."""

        async def watched() -> None:
            try:
                await work
            except BaseException as error:
                if name not in self._forsaken:
                    self._fault = self._fault or error
                if not isinstance(error, Exception):
                    raise
            finally:
                self._tasks.pop(name, None)
                self._news.set()

        self._tasks[name] = asyncio.create_task(watched())

    def _carry_out(self, start: StartCall | ShowPlan) -> None:
        if isinstance(start, ShowPlan):
            self._start(PLAN, self._decide_plan(start.approval_request))
        else:
            self.first_call = workflow.time() - self._began if self.first_call is None else self.first_call
            self._start(start.call.id, self._run(start.call, start.approval_request))

    async def _ask(self, answer: Coroutine[Any, Any, RequestResult]) -> None:
        try:
            result = await answer
        except ApplicationError as error:
            if not self.loop.intake.received:
                raise
            result = self.loop.intake.interrupted(error.message)
        self.loop.answer(result)

    async def _decide_plan(self, approval_request: ApprovalRequest) -> None:
        self.loop.report(PlanDecided(await self._waits.verdict(approval_request)))

    async def _run(self, call: Call, approval_request: ApprovalRequest | None) -> None:
        outcome, was_requested = await self._hooks.passed(call, approval_request, self._decided)
        try:
            ran = outcome or await self._outcome(call, was_requested)
        except RefusedCallError as error:
            outcome = ran = error.outcome
        finally:
            self._reservations.note_ended(call)
        self.loop.report(
            CallEnded(
                call,
                ran
                if isinstance(ran, RefusedByRule) or isinstance(outcome, Failed)
                else await self._hooks.after(call, ran),
            )
        )

    async def _decided(self, call: Call, approval_request: ApprovalRequest | None) -> Outcome | None:
        """Wait for the request's verdict, if the call has a request; return the outcome, if the verdict has one."""
        verdict = None if approval_request is None else await self._waits.verdict(approval_request)
        if verdict is None or verdict.outcome is not None or not is_answered(call):
            return None if verdict is None else verdict.outcome
        # A question was put in its place.
        if self._hooks.look_before(call) and self._follows(JUDGED_AFTER_HOOKS):
            return None  # its hooks see it first
        if self._follows(LIMITS_OF_CHILDREN):
            call.hold.queued = True
            await self._wait_for_turn(call)
            call.hold.queued = False
        question = self.loop.ask_instead(call, now())
        if isinstance(question, RefusedByRule):
            return question
        self._on_change()
        return (await self._waits.verdict(question)).outcome

    async def _outcome(self, call: Call, was_requested: bool) -> Outcome:
        """Run the call in its present form."""
        plan = self.loop.plan.home(call)
        call.hold.queued = True
        async with AsyncExitStack() as held:
            with self._resting(call):
                await held.enter_async_context(self._slots)
            await self._gate(call)
            if (refused := self.loop.begin(call) or await self._reserve(call)) is not None:
                return refused
            if (known := self._agent_run.recorded(call, decided=True)) is not None:
                self._reservations.note_begun(call)
                return known
            if was_requested:
                self._agent_run.journal.call_began(call)
                self._on_change()
            if call.spec.loop is not None:
                return await self._run_delegate(call)
            if call.spec.known_tool.latent:
                self._reservations.note_begun(call)
                return Returned(call.state.result)
            if call.spec.known_tool.activity == SLEEP_UNTIL:
                await self._begin_without_room(call)
                return await self._rest(call, sleep_until(call.inputs.params, self._sender.alarm))
            if call.spec.known_tool.activity == UNDO:
                await self._begin_without_room(call)
                return await self._rest(call, run_undo(call, self._agent_run, self._sender.children))
            if call.spec.known_tool.delegate is not None:
                return await self._run_delegate(call)
            if self._agent_run.undo is not None:
                call.inputs.undoes = self._agent_run.undo.undoes(call.id)
            if call.spec.known_tool.calls is not None:
                work = self._run_existing(call, call.spec.known_tool.calls)
                return await (self._rest(call, work) if call.spec.known_tool.calls.waits else work)
            return self.loop.recalled(call, await self._run_tool(call, plan))

    async def _run_existing(self, call: Call, existing: Existing) -> Outcome:
        async with AsyncExitStack() as held:
            if existing.kind == "operation":
                await held.enter_async_context(self._sender.operations)
            return await run_existing(call, existing, self._sender, self._begin)

    async def _run_tool(self, call: Call, plan: Plan) -> Outcome:
        """Run the tool, and again each time its server asks for input (R21.3)."""
        hooks = self._hooks.of_results(call.spec.known_tool)
        owner = self._agent_run.identity.owner
        dialog = ServerDialog(self._agent_run, self._waits, self._on_change)
        while True:
            outcome = await run_tool(
                call,
                plan.values(call),
                self._sender,
                self._begin,
                hooks,
                owner,
                self._hooks.unheard,
                self._used,
                dialog.answers,
            )
            if not isinstance(outcome, ServerInput):
                return outcome
            if (failed := await dialog.answer(call, plan, outcome)) is not None:
                return failed

    async def _reserve(self, call: Call) -> RefusedByRule | None:
        """Reserve what the call needs of the sums that all runs of the tenant use; return its end where it is refused."""
        wanted = reservation_of(self._agent_run.rules, call, self.loop.plan.checks)
        if wanted is None or call.spec.loop is not None:
            return None
        try:
            answer = await self._rest(call, self._reservations.reserve(call, wanted))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            why = f"the tenant's ledger does not answer: {message_of(error)}"
            return RefusedByRule(CallError("ledger_away", why))
        return RefusedByRule(CallError(RULE_BROKEN, answer.refused)) if answer.refused else None

    async def _wait_for_turn(self, call: Call) -> None:
        """Wait until the call may be scheduled: another call may run since its approval, or a message may hold it."""
        while not self.loop.may_begin(call):
            with self._resting(call):
                await workflow.wait_condition(lambda: self.loop.may_begin(call))

    async def _gate(self, call: Call) -> None:
        """Wait for the call's turn, and resume it."""
        await self._wait_for_turn(call)
        time = now()
        self._agent_run.note("resumed", time, call=call.id)
        self.loop.plan.home(call).resume(call, time)

    async def _begin(self, call: Call) -> bool:
        """Wait as `_gate` does, then begin the call: nothing holds it after that. Return whether it has begun.

        It has not if the wait ended in a later workflow task: reserve room in that task. It has not, too, if other calls
        have used its child's rules meanwhile: make the child's input again.
        """
        task = task_number()
        await self._wait_for_turn(call)
        if task_number() != task and self._follows(STEERED_RUNS_GO_ON):
            return False
        await self._gate(call)
        rules = self._agent_run.rules
        lent = rules.lent_to(call)
        if (refused := self.loop.begin(call)) is not None:
            raise RefusedCallError(refused)
        if rules.lent_to(call) != lent:
            return False
        self._reservations.note_begun(call)
        self._agent_run.note("begun", call=call.id)
        call.hold.queued = False
        return True

    async def _begin_without_room(self, call: Call) -> None:
        """Begin a call that needs no room in the task."""
        while not await self._begin(call):
            pass

    async def _run_delegate(self, call: Call) -> Outcome:
        """Run a delegate with a reserved share of the budget; at its end count the time that it worked (R18.7)."""
        run = self._agent_run
        # A loop that calls no model needs no share of the budget.
        free = call.spec.loop is not None and not any(
            each.spec.tool and each.spec.tool.delegate for each in call.written()
        )
        share = Budget() if free else await self._rest(call, self._budget_share.take(call.id))
        if isinstance(share, Limit):
            return Failed(CallError(share.reason, f"{call.spec.tool_name} was not run: {share.words}"))
        usage = ChildUsage()
        try:
            if call.spec.loop is not None:
                await self._rest(call, self._waits.standing.claim(call))
            started = self._clock.worked(workflow.time())
            return await self._rest(
                call, run_delegate(call, self.loop.plan.home(call), run, share, self._sender, usage, self._begin)
            )
        finally:
            if (spent := usage.spent) is not None:
                run.note("used", spent.usage, spent.sent, call=call.id)
                run.progress.include(spent.usage, spent.sent)
                run.approval_queue.is_changed |= spent.changed
                self._clock.at_least(started + spent.worked, workflow.time())
            if not free:
                self._budget_share.settle(call.id, usage)
            has_begun = usage.started if run.prepared.follows(UNUSED_SHARES_RETURN) else not call.hold.queued
            lent = run.rules.lent_to(call) if has_begun else []
            run.note_child_calls(call, lent, usage.rule_record)
            if lent:
                run.note("taken_back", usage.rule_record, lent, call=call.id)
                run.rules.take_back(usage.rule_record, lent)

    def _used(self, reported: Sequence[ReportedUsage]) -> None:
        """Count the usage that a tool has reported (R9.6)."""
        for each in reported:
            usage = Usage(**each.model_dump(exclude={"model", "requests"}))
            self._agent_run.count_reported(each.model, usage, requests=each.requests)

    async def _rest(self, call: Call, work: Coroutine[Any, Any, T]) -> T:
        """Await work that is not the run's own."""
        with self._resting(call):
            self._keep_time()
            return await work

    @contextmanager
    def _resting(self, call: Call) -> Iterator[None]:
        """Exclude the call's time from the run's work meanwhile; an outer context may exclude it already."""
        rests = call.id in self.loop.resting
        self.loop.resting.add(call.id)
        try:
            yield
        finally:
            if not rests:
                self.loop.resting.discard(call.id)
