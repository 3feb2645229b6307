"""The outer loop: context → Request → its calls → output, or again (R6.1)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from itertools import islice
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from perdure.workflows.approvals import DecisionHandlers
from perdure.workflows.arguments import read_input, read_one
from perdure.workflows.calls import CallLoop
from perdure.workflows.claim_check import RunFamily, whole
from perdure.workflows.dispatch import Dispatcher, Routing, full
from perdure.workflows.failures import message_of
from perdure.workflows.hooks import HookQueries, ended
from perdure.workflows.messages import MessageHandlers
from perdure.workflows.observability import JournalQueries, WatchHandlers, end, list_agent, tell_request
from perdure.workflows.preparation import ContinueAsNew, prepare
from perdure.workflows.requests import ask, choose
from perdure.workflows.timers import watch

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import WAITS, RunWaits, WaitingView
    from perdure.errors import PerdureError
    from perdure.models.requests import CallDelivery, RequestContext, RequestInput, RequestResult
    from perdure.models.usage import RunUsage
    from perdure.runs.agent import ModelChoice
    from perdure.runs.context import heard
    from perdure.runs.delegates import SPENT_QUERY, SpentBudget
    from perdure.runs.limits import Budget, Limit, WorkClock
    from perdure.runs.recall import recall
    from perdure.runs.records import record
    from perdure.runs.rules import LAST_REQUEST_COUNTS, LISTED_AGENT, SESSION_KNOWS_WAITING
    from perdure.runs.run import Run
    from perdure.runs.views import Pages, details, fit, fit_waiting, run_view, told_above, waiting_view, waiting_views
    from perdure.runs.wire import (
        AGENT_WORKFLOW,
        CALLS_SIGNAL,
        CLAIM,
        CONTEXT_QUERY,
        LIMIT_REACHED,
        MODEL_FAILED,
        MODEL_REFUSED,
        PARAMETERS_QUERY,
        RECALL_QUERY,
        RUN_QUERY,
        VALUE_QUERY,
        WAITING_QUERY,
        RunInput,
        RunResult,
        RunView,
    )
    from perdure.tools.invocation import ToolReads
    from perdure.tools.tool import Tool
    from perdure.values.json import ValuePage
    from perdure.values.limits import MAX_MESSAGE, NEAR


# A protocol error would repeat on every replay, and so would what cannot be decoded: it fails the run, not the workflow task.
@workflow.defn(name=AGENT_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class AgentWorkflow(RunFamily, DecisionHandlers, MessageHandlers, JournalQueries, WatchHandlers, HookQueries):
    """One run of an agent.

    Handlers take whatever anybody sends, any number of arguments of any kind, and judge it themselves: the SDK would fail the
    workflow task, again and again, where the arguments do not match (R18.6).
    """

    def __init__(self) -> None:
        super().__init__()
        self._people.notes, self._hooking.note = self._notes, self._notes.hook
        self._given: RunInput | None = None
        self._run: Run | None = None
        self._calls: CallLoop | None = None
        self._clock = WorkClock()
        self._reporting = False
        self._pages = Pages()
        self._waited = 0
        """How often the session was told whether the run waits for a person."""
        self._telling: set[asyncio.Task[None]] = set()

    @workflow.run
    async def run(self, *given: Any) -> RunResult:
        """Run the agent to its output. Takes one `RunInput`.

        Fails with `Refused`, `ModelFailed`, `ModelRefused` or `LimitReached`, the result so far as detail.
        """
        with self._notes.to_end(ApplicationError):
            self._given = run_input = await whole(read_input(RunInput, given))
            return await ended(self._to_result(run_input), self._hooking, lambda: self._run)

    async def _to_result(self, run_input: RunInput) -> RunResult:
        run_input, run = await prepare(run_input, self._people, self._notes, self._hooking)
        self._run, run.whose = run, run_input.whose
        run.records, run.reasons = run_input.records, run_input.reasons
        self._mail.open(run, self._people.refuse, self._steer)
        if self._raised is not None:
            run.shares.raise_to(self._raised)
        self._clock = WorkClock(run.progress.worked)
        run.lineage = [*run_input.lineage, run.agent.name]
        if run.prepared.follows(LISTED_AGENT):
            list_agent(run.agent.name, run.prepared.attributes, below=bool(run_input.lineage))
        self._sender = self._people.sender = Dispatcher(
            run.sizes, run.prepared.max_payload, self._people.children, Routing(run)
        )
        self._hooking.room, self._sender.again = self._sender.room, self._notes.call_again
        self._people.shown = lambda offer: waiting_view(offer, run.agent.name, run.desk.guard, run.dry_plan)
        self._people.report = self._report
        self._people.client_timeout, self._people.gone = run.agent.config.client_timeout, self._client_gone
        self._people.on_waiting = self._tell_session
        self._report()
        watching = watch(run, self._clock, self._waits, self._at_deadline, self._late if run_input.clocked else None)
        try:
            result = await self._to_end(run, run_input)
            if (refusal := await self._upward.refusal(run, result, run_input.free)) is not None:
                raise self._failure(*refusal)
            result.messages = heard(run.progress)  # one may have come since
            return result
        except PerdureError as error:  # it would be the same on every replay; what was used and done is told with it
            raise self._failure(str(error), type(error).__name__) from None
        finally:
            watching.cancel()
            end(run, sys.exception(), below=bool(run_input.lineage))

    async def _to_end(self, run: Run, run_input: RunInput) -> RunResult:
        """Run the Requests. When the run fails or is cancelled, break off its calls, so that their records stay
        (R10.6).
        """
        try:
            return await self._requests(run, run_input)
        except (FailureError, asyncio.CancelledError) as error:
            if run.plan is None or self._calls is None:
                raise
            cancelled = is_cancelled_exception(error)
            await self._calls.break_off("the run was cancelled" if cancelled else "the run failed")
            self._show()
            if isinstance(error, ApplicationError) and not cancelled:
                raise self._failure(error.message, error.type or MODEL_FAILED) from None
            raise

    async def _requests(self, run: Run, run_input: RunInput) -> RunResult:
        starts = run.context.starts_with_plan and run_input.snapshot is None
        if starts and await self._run_calls(0, _given(run.context.plan)):
            return self._result()
        continuing = ContinueAsNew()
        while True:
            await self._mail.lull()
            self._check_limits(run, coming=run.progress.number + 1)
            choice = await self._choose(run)
            self._check_limits(run, coming=run.progress.number)  # choosing takes time too
            last = run.limit is not None
            if run.limit is not None and run.plan is not None and self._calls is not None:
                await self._calls.come_to_end(run.limit)
                run.close_request(run.plan, RequestResult())  # what was left; the last Request is told
            if last and run.end_with_draft():
                return self._result()
            if run.limit is not None and run.asked_all and run.prepared.follows(LAST_REQUEST_COUNTS):
                raise self._failure(f"{run.limit.words}, and none of its answers was its output", LIMIT_REACHED)
            if run.limit is not None and run.shares.used_up(run.progress.usage):
                raise self._failure(
                    f"{run.limit.words}, and nothing of its share is left for a last answer", LIMIT_REACHED
                )
            request = run.begin_request(choice)
            if await self._run_calls(request.number, self._request(run, request)):
                return self._result()
            if last:
                break
            if run.limit is None and run.plan is None and not self._people.resets.pending:
                clocked = run_input.clocked and not self._late.done()
                following = run_input.model_copy(update={"clocked": clocked})
                continuing.go_on(following, run, self._clock.worked(workflow.time()))
            if run.limit is None and (words := full(NEAR)) is not None:
                run.limit = Limit("history", f"{words}, and what the run carries on is too large for a new one")
        assert run.limit is not None
        raise self._failure(f"{run.limit.words}, and the last answer was no output that fits the schema", LIMIT_REACHED)

    def _check_limits(self, run: Run, *, coming: int) -> None:
        last_counts = run.prepared.follows(LAST_REQUEST_COUNTS)
        run.check_limits(self._clock.worked(workflow.time()), coming=coming, last_counts=last_counts)

    def _waits(self) -> bool:
        return self._calls is not None and self._calls.loop.waits

    def _use_raised(self, raised: Budget) -> None:
        if self._run is not None:
            self._run.shares.raise_to(raised)

    def _steer(self) -> None:
        if self._calls is not None and self._run is not None and self._run.plan is not None:
            self._calls.steer()

    def _at_deadline(self, limit: Limit) -> None:
        """Stop at the deadline: running calls are cancelled, and the model gives its best answer (R9.5)."""
        assert self._run is not None
        if self._run.limit is None:
            self._run.limit = limit
            if self._calls is not None:
                self._calls.stop(limit)

    def _client_gone(self, seconds: float) -> None:
        """Note that the program has not come back that carries out what the model calls: the run fails once its calls have ended."""
        assert self._run is not None
        words = f"its client has not sent the results of its functions within {seconds:g} s"
        self._run.limit = self._run.limit or Limit("client_gone", words)

    @workflow.query(name=CONTEXT_QUERY)
    def context(self, number: int) -> RequestContext:
        """Return the context of Request `number`. Its activity queries it, and the history does not record it (R6.8)."""
        if self._run is None:
            raise ValueError("the run has not started yet")
        context = self._run.request_context(number)
        released = (
            self._calls.loop.intake.received
            if self._calls is not None and self._calls.loop.intake.number == number
            else 0
        )
        return context.model_copy(update={"released": released, "watched_until": self._watched_until})

    @workflow.signal(name=CALLS_SIGNAL, description="The engine's own: calls that have closed in the model's stream")
    def deliver(self, *said: Any) -> None:
        """Deliver calls that have closed while the model still writes; see `perdure.models.response_stream`."""
        if self._calls is not None and (delivery := read_one(CallDelivery, said)) is not None:
            self._calls.deliver(delivery)

    @workflow.query(name=PARAMETERS_QUERY)
    def parameters(self, call_ids: list[str]) -> dict[str, ToolReads | None]:
        """Return the inputs of running calls' tools that were too large to be sent, for their activities (R18.2).

        The answer holds as many as fit, and always the first; `None` for a call that does not run.
        """
        return dict.fromkeys(call_ids) if self._calls is None else self._calls.reads(call_ids)

    @workflow.query(name=CLAIM)
    def granted(self, call_ids: list[str]) -> dict[str, bool]:
        """Return whether these calls may return large results. A claim that has not arrived is left out."""
        return {} if self._sender is None else self._sender.granted(call_ids)

    @workflow.query(name=SPENT_QUERY)
    def spent(self) -> SpentBudget:
        """Return the usage of the run and its child runs so far, for a parent whose child was cancelled or failed
        (R9.6).
        """
        if self._run is None:
            return SpentBudget(usage=RunUsage())
        used = self._run.progress
        return SpentBudget(usage=used.usage, worked=self._clock.worked(workflow.time()), sent=used.sent)

    @workflow.query(name=WAITING_QUERY)
    def waiting(self, only: str | None = None, skip: int = 0) -> list[WaitingView]:
        """Return the requests that wait for a person, oldest first; with `only` that call's, or that Request's plan,
        alone.

        Where there is no room for all, the last says how many `more` there are: `skip` goes on behind it.
        """
        return [] if self._run is None else fit_waiting(waiting_views(self._run, only, skip), sizes=self._run.sizes)

    @workflow.query(name=VALUE_QUERY)
    def value(self, what: str, offset: int = 0) -> ValuePage:
        """Return a page of a cut value: `output`, `state`, `calls`, `errors`, a reference or a call's id."""
        return self._pages.page(self._run, what, offset, self._given)

    @workflow.query(name=RECALL_QUERY)
    def recalled(self, what: str, page: int = 1) -> dict[str, Any] | None:
        """Return a page of a value that the model is shown cut; `None`: the execution before this one has it."""
        if self._run is None:
            raise ValueError("the run has not started yet")
        return recall(self._run, what, max(1, page))

    @workflow.query(name=RUN_QUERY)
    def view(self) -> RunView:
        """Return the run as it stands, for `show` and `watch`."""
        run_id = workflow.info().workflow_id
        run = self._run
        return RunView(run_id=run_id) if run is None else fit(self._viewed(run_id), sizes=run.sizes, calls=run.count)

    def _viewed(self, run_id: str) -> RunView:
        run = self._run
        assert run is not None
        view = run_view(run, run_id)
        view.resets = len(self._notes.journal.resets)
        if run.records:  # of the calls that have ended it is said already
            view.calls = [call.model_copy() for call in view.calls]
            newest = () if run.plan is None else [*islice(run.plan.made_last(), len(view.calls))][::-1]
            record(view.calls, newest, run.sizes, run.reading.recorded)
        return view

    @property
    def tools(self) -> list[Tool]:
        """Return the tools that the run recorded at its start, for replays."""
        return [] if self._run is None else list(self._run.prepared.tools)

    async def _choose(self, run: Run) -> ModelChoice:
        try:
            return await choose(run.situation())
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise self._failure(f"no model could be chosen: {message_of(error)}", MODEL_FAILED) from None

    async def _request(self, run: Run, request: RequestInput) -> RequestResult:
        try:
            released = lambda: self._calls is not None and self._calls.loop.intake.received > 0  # noqa: E731
            return await ask(run, request, released, self._rest)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            if run.progress.draft is not None:
                return RequestResult(problem={"code": "not_refined", "message": message_of(error)})
            log = run.past.log[-1]
            raise self._failure(
                f"Request {log.number} to {log.model} failed: {message_of(error)}", MODEL_FAILED
            ) from None

    def _rest(self, rests: bool) -> None:
        """The model's provider is away, or is there again: time in which nothing else is done is not work (R20.5)."""
        if self._calls is not None:
            self._calls.rest(rests)
        self._report()

    async def _run_calls(self, number: int, answer: Coroutine[Any, Any, RequestResult]) -> bool:
        """Run the calls of a Request's answer, as they arrive, and take it in; whether the run is over."""
        assert self._run is not None
        assert self._sender is not None
        goes_on = self._run.plan is not None
        self._run.open_plan(number)
        if goes_on and self._calls is not None:
            self._calls.go_on()
        else:
            self._calls = CallLoop(self._run, self._people, self._clock, self._sender, self._report, self._hooking)
        self._report()
        result = await self._calls.run(answer)
        over = self._run.close_request(
            self._calls.loop.plan, result, cut=self._calls.loop.cut, is_patched=self._run.prepared.follows
        )
        tell_request(self._run, number, result, self._calls.first_call)
        self._show()
        if not over and self._run.limit is not None and self._run.limit.reason == "client_gone":
            raise self._failure(self._run.limit.words, LIMIT_REACHED)
        if result.refusal is not None and not over and self._run.is_refused:
            raise self._failure(result.refusal, MODEL_REFUSED)
        return over

    def _result(self) -> RunResult:
        assert self._run is not None
        self._run.progress.worked = self._clock.worked(workflow.time())
        result = self._viewed(workflow.info().workflow_id).result()
        if workflow.info().parent is not None and not self._run.records:
            result = told_above(result, self._run.sizes)
        count = self._run.count if result.calls else 0
        return fit(result, self._run.prepared.max_payload, self._run.sizes, calls=count)

    def _met(self) -> list[str]:
        return [] if self._run is None else self._run.reading.met(self._run.progress, self._run.table.sets)

    def _failure(self, message: str, kind: str) -> ApplicationError:
        result = self._result()
        if workflow.info().parent is not None:
            result.output = None
            result.sources = self._met()
        message = message[:MAX_MESSAGE]
        refused, limit = kind == MODEL_REFUSED, None if self._run is None else self._run.limit
        result.status, result.error = "refused" if refused else "failed", message
        result.stop_reason = None if limit is None or refused else limit.reason
        details = result.model_dump(mode="json", by_alias=True)
        return ApplicationError(message, details, type=kind, non_retryable=True)

    def _report(self) -> None:
        """Update the run's details in the Web UI (R12.8), once for all simultaneous changes."""
        if not self._reporting:
            self._reporting = True
            asyncio.get_running_loop().call_soon(self._show)

    def _tell_session(self, waits: bool) -> None:
        """A session's next message follows a run that waits for a person, unless its mode says otherwise (R10.4)."""
        parent, run = workflow.info().parent, self._run
        if parent is None or run is None or not run.records or not run.prepared.follows(SESSION_KNOWS_WAITING):
            return
        self._waited += 1
        said = RunWaits(run_id=workflow.info().workflow_id, count=self._waited, waits=waits)
        session = workflow.get_external_workflow_handle(parent.workflow_id)
        self._telling.add(task := asyncio.create_task(session.signal(WAITS, said)))
        task.add_done_callback(self._told)

    def _told(self, task: asyncio.Task[None]) -> None:
        self._telling.discard(task)
        if not task.cancelled():
            task.exception()  # a session that is gone needs not know

    def _show(self) -> None:
        self._reporting = False
        if self._run is not None:
            workflow.set_current_details(details(self._run, workflow.info().workflow_id))
            self._people.show(self._run.agent.name)


async def _given(plan: list[Any]) -> RequestResult:
    """A plan that nobody needs to be asked for (R5.9)."""
    return RequestResult(calls=plan)
