"""The inner loop: one Request's calls, from the first that is ready to the last that ends (R6.2).

Two events drive it: a call arrived, or a running call ended. On each, everything that became ready starts at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from types import NoneType
from typing import Any, TypeAlias, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from perdure.workflows.delegates import run_delegate
from perdure.workflows.observing import tell
from perdure.workflows.people import People
from perdure.workflows.purse import Purse
from perdure.workflows.sending import NEXT_TASK, Sender, full, task_number, tool_reads
from perdure.workflows.sleeping import sleep_until

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError
    from perdure.model.intake import Intake
    from perdure.model.usage import RunUsage
    from perdure.model.wire import Delivery, RequestResult
    from perdure.people.offers import Offer, Verdict
    from perdure.plan.calls import Call
    from perdure.plan.outcomes import Failed, Outcome, Rejected, Returned
    from perdure.plan.plan import Plan
    from perdure.run.delegates import Spent
    from perdure.run.running import Run
    from perdure.run.shares import rivals
    from perdure.run.stopping import Limit, WorkClock
    from perdure.run.views import observing
    from perdure.tools.tool import ASK_PERSON, SLEEP_UNTIL
    from perdure.tools.wire import ToolReads
    from perdure.values.jsons import Json

T = TypeVar("T")
_Arrived: TypeAlias = list[Json]
_Ended: TypeAlias = tuple[Call, Outcome]
_Event: TypeAlias = _Arrived | _Ended | RequestResult | Verdict | Limit | BaseException

MAX_AT_ONCE = 1000
"""Activities of one Request at a time: the server takes 2,000 in all, and refuses the whole task beyond that."""


class CallLoop:
    """Runs the calls of one Request. `on_change` is told whenever a call has arrived, started or ended."""

    def __init__(
        self, run: Run, plan: Plan, people: People, clock: WorkClock, sender: Sender, on_change: Callable[[], None]
    ) -> None:
        self.intake = Intake(plan.request)
        self._agent_run = run
        self._sender = sender
        self.plan = plan
        """A person who edits it puts another in its place."""
        self._people = people
        self._held = people.desk.guard.policy.scope == "plan"
        """Nothing starts before the whole plan was approved (R7.6)."""
        self._clock = clock
        self._on_change = on_change
        self._limit: Limit | None = None
        self._answered = False
        self._resting: set[str] = set()
        """Calls whose time is not this run's work: delegates, which have clocks of their own, and sleep."""
        self._asking: asyncio.Task[None] | None = None
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._result = RequestResult()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._began = workflow.time()
        self.first_call: float | None = None
        """Seconds until the first call started; `None` while none has."""
        self._told: set[str] = set()
        """Calls of whose end operators know."""
        self._purse = Purse(
            run.shares,
            usage=lambda: run.progress.usage,
            rivals=lambda: rivals(self.plan, run.shares.takers) if self.plan.closed else None,
            worked=lambda: clock.worked(workflow.time()),
        )

    def deliver(self, delivery: Delivery) -> None:
        """Calls have closed in the model's stream (R6.3)."""
        if calls := self.intake.deliver(delivery):
            self._events.put_nowait(calls)

    async def run(self, answer: Coroutine[Any, Any, RequestResult]) -> RequestResult:
        """Run what is delivered and what the answer holds until the plan has settled; the answer as it stands in the end.

        Raises what the answer raises, unless calls have been released: then the Request is interrupted, and they stand.
        """
        self._asking = asyncio.create_task(self._ask(answer))
        try:
            while not self.plan.settled:
                self.plan.checks.begin(task_number())
                events = [] if self.plan.held_back else [await self._events.get()]
                while not self._events.empty():  # what came together is answered together
                    events.append(self._events.get_nowait())
                for event in events:
                    await self._take(event)
                if self.plan.held_back:
                    await self._begin_check()
                    self.plan.go_on()
                if self._limit is None and (words := full()) is not None:
                    self._limit = self._agent_run.limit = self._agent_run.limit or Limit("history", words)
                    await self._break_off()
                if any(isinstance(event, Limit) for event in events):
                    await self._break_off()
                self._start_ready()
                self._keep_time()
            return self._result
        finally:
            if not isinstance(sys.exception(), GeneratorExit):  # then the run is only put out of memory
                self._clock.work(workflow.time())
            if isinstance(sys.exception(), NoneType | FailureError | asyncio.CancelledError):  # and not a fault of ours
                self._tell_rest()
            await self._cancel_all()

    def reads(self, call_ids: list[str]) -> dict[str, ToolReads | None]:
        """What the tools of these calls are given, of the first ones that fit together; `None` for one that does not run."""
        running = {call.id: call for call in self.plan.calls if call.id in self._running}
        found = {
            call_id: tool_reads(running[call_id], self.plan.values(running[call_id])) if call_id in running else None
            for call_id in call_ids
        }
        return self._sender.fitting(found)

    def stop(self, limit: Limit) -> None:
        """Run nothing more: what runs is cancelled and has failed, what waits is skipped (R9.5)."""
        self._events.put_nowait(limit)

    def _tell_rest(self) -> None:
        """Tell operators of the calls that ended without having run, or with the run."""
        for call in self.plan.calls:
            if call.id not in self._told:
                self._tell(call)

    def _tell(self, call: Call) -> None:
        self._told.add(call.id)
        tell(observing.call_ended(call))

    async def _break_off(self) -> None:
        await self._cancel_all()
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, tuple):  # it ended just in time
                await self._take(event)
        assert self._limit is not None
        reason, words = self._limit.reason, self._limit.words
        for call in self.plan.calls:
            if call.id in self._running:
                del self._running[call.id]
                self.plan.end(call, Failed(CallError(reason, f"cancelled, because {words}")), _now())
        self._running.clear()
        if not self._answered:
            self._result = self.intake.interrupted(words)
            self.plan.close()
        self.plan.end_all("skipped", words, _now())

    async def _cancel_all(self) -> None:
        left = [*([self._asking] if self._asking else []), *self._running.values()]
        for task in left:
            task.cancel()
        if not isinstance(sys.exception(), GeneratorExit):
            await asyncio.gather(*left, return_exceptions=True)

    def _keep_time(self) -> None:
        """Time counts as work unless all there is to do is waited for: a person, a delegate, a sleep."""
        waited_for = len(self._people.desk.waiting) + len(self._resting)
        if self._answered and self._running and waited_for >= len(self._running):
            self._clock.pause(workflow.time())
        else:
            self._clock.work(workflow.time())

    async def _take(self, event: _Event) -> None:
        if isinstance(event, BaseException):
            raise event
        if isinstance(event, Limit):
            self._limit = event
        elif isinstance(event, RequestResult):
            self._result, self._answered = event, True
            if self.intake.number:
                self._agent_run.note_answer(event)
            self.plan.close(drain=event.output is not None)
            for name, budget in self._purse.level().items():
                self._people.children.raise_budget(name, budget)
            self._offer_plan(event)
        elif isinstance(event, Verdict):
            self._take_plan(event)
        elif isinstance(event, list):
            room = max(0, self.plan.max_calls + 1 - len(self.plan.calls))
            for raw in event[:room]:
                await self._begin_check()
                self.plan.add(raw)
            self.plan.extend(event[room:])  # which are counted
        else:
            call, outcome = event
            del self._running[call.id]
            await self._begin_check()
            self.plan.end(call, outcome, _now())
            self._tell(call)

    async def _begin_check(self) -> None:
        """Wait, where what was checked against schemas has taken this task's time, for the next one (R18.5)."""
        self.plan.checks.begin(task_number())
        while self.plan.checks.spent:
            await workflow.sleep(NEXT_TASK, summary="what is left to check goes with the next task")
            self.plan.checks.begin(task_number())

    async def _ask(self, answer: Coroutine[Any, Any, RequestResult]) -> None:
        try:
            result = await answer
        except ApplicationError as error:
            if not self.intake.received:
                self._events.put_nowait(error)
                return
            result = self.intake.interrupted(error.message)
        except BaseException as error:
            self._events.put_nowait(error)
            raise
        missing, result = self.intake.close(result)
        self._events.put_nowait(missing)
        self._events.put_nowait(result)

    def _start_ready(self) -> None:
        while not self._held and (ready := self.plan.take_ready(_now())):
            self.first_call = workflow.time() - self._began if self.first_call is None else self.first_call
            for call in ready:
                assert call.tool is not None
                desk = self._people.desk
                offer = (desk.offer_question if _asks_person(call) else desk.offer_call)(self.plan, call, _now())
                if offer is None and call.tool.latent:
                    # The model has written the result itself: nothing runs, so nothing needs to be waited for.
                    self.plan.end(call, Returned(call.result), _now())
                else:
                    self._start(call.id, self._run(call, offer))
        self._on_change()

    def _start(self, name: str, work: Coroutine[Any, Any, _Ended | Verdict]) -> None:
        async def report() -> None:
            try:
                event = await work
            except BaseException as error:
                # No outcome of the tool's: a cancellation, or a fault of the engine's. Nobody may wait for it for ever.
                self._events.put_nowait(error)
                raise
            self._events.put_nowait(event)

        self._running[name] = asyncio.create_task(report())

    async def _run(self, call: Call, offer: Offer | None) -> _Ended:
        """Ask, where somebody is to be asked; then run the call, as it stands by then."""
        if offer is not None:
            verdict = await self._people.verdict(offer)
            if verdict.outcome is None and _asks_person(call):  # somebody put a question in its place
                question = self._people.desk.offer_question(self.plan, call, _now())
                self._on_change()
                verdict = await self._people.verdict(question)
            if verdict.outcome is not None:
                return call, verdict.outcome
        assert call.tool is not None
        async with self._slots:
            while not self.plan.room_for(call):  # it was approved while another one runs
                await workflow.wait_condition(lambda: self.plan.room_for(call))
            self.plan.resume(call, _now())
            if offer is not None:
                self._on_change()
            if call.tool.latent:
                return call, Returned(call.result)
            if call.tool.activity == SLEEP_UNTIL:
                return call, await self._rest(call, sleep_until(call.params, self._sender.alarm))
            if call.tool.delegate is not None:
                return call, await self._run_delegate(call)
            return call, await self._sender.run_tool(call, self.plan.values(call))

    async def _run_delegate(self, call: Call) -> Outcome:
        """Its share of the budget is reserved until it has ended. Its time is counted then: as much as it worked (R18.7)."""
        run = self._agent_run
        share = await self._rest(call, self._purse.take(call.id))
        if isinstance(share, Limit):
            return Failed(CallError(share.reason, f"{call.tool_name} was not run: {share.words}"))
        started = self._clock.worked(workflow.time())
        used: RunUsage | None = None

        def spent(told: Spent) -> None:
            nonlocal used
            used = told.usage
            run.progress.usage.include(told.usage)
            self._clock.at_least(started + told.worked, workflow.time())

        try:
            return await self._rest(call, run_delegate(call, self.plan, run, share, self._sender, spent))
        finally:
            self._purse.settle(call.id, used)

    async def _rest(self, call: Call, work: Coroutine[Any, Any, T]) -> T:
        """Wait for what is not this run's own work."""
        self._resting.add(call.id)
        try:
            self._keep_time()
            return await work
        finally:
            self._resting.discard(call.id)

    def _offer_plan(self, result: RequestResult) -> None:
        """The answer is whole: offer its plan, if anybody wants to see it (R7.6)."""
        if not self._held:
            return
        offer = None if result.problem else self._people.desk.offer_plan(self.plan, _now())
        if result.problem:
            self.plan.end_all("rejected", "the answer was not complete, so nothing of its plan was run", _now())
        if offer is not None:
            self._start("plan", self._people.verdict(offer))
        self._held = offer is not None

    def _take_plan(self, verdict: Verdict) -> None:
        self._held = False
        del self._running["plan"]
        self.plan = verdict.plan or self.plan
        if isinstance(verdict.outcome, Rejected):
            self.plan.end_all("rejected", verdict.outcome.reason, _now())
        elif isinstance(verdict.outcome, Failed):
            self.plan.end_all("rejected", verdict.outcome.error.message, _now())


def _asks_person(call: Call) -> bool:
    return call.tool is not None and call.tool.activity == ASK_PERSON


def _now() -> str:
    return workflow.now().isoformat(timespec="milliseconds")
