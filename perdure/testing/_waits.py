"""Waits for runs in a test: people decide, and time passes when nothing else happens."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError
from typing_extensions import TypeVar

from perdure.agents.agent import Agent
from perdure.approvals.requests import WaitingView
from perdure.client import approvals
from perdure.client.approvals import decide
from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.client.run_operations import fetch_run
from perdure.client.selection import WaitingRequest
from perdure.client.session import Session
from perdure.client.session_operations import Address
from perdure.errors import RunError, RunNotFoundError
from perdure.queries import cancel_all
from perdure.runs.events import Event
from perdure.runs.wire import WAITING_QUERY, CallView, RunView
from perdure.sessions.wire import SESSION_PREFIX, WAIT, Fate, Receipt, WaitResult
from perdure.testing._clock import LOOK, Clock, WaitingState
from perdure.testing._people import Person
from perdure.values.json import JsonObject

T = TypeVar("T")
OutputT = TypeVar("OutputT", default=Any)
_STILL: Final = 2
"""Equal looks before time passes: for a moment a message between two executions is in neither history."""
_STUCK: Final = 20
"""Equal looks before a wait fails: on a busy machine, that moment is longer."""


_TRIES: Final = 20
"""Failed looks before the wait fails: a look sees an approval request sooner than a reader gets its event."""


class LocalRun(Run[OutputT]):
    """A run in a test, with everything that a `perdure.Run` has. While a test waits for it, people decide and time
    passes; otherwise time stops. A wait for something that never comes raises `AssertionError`.

    ```python
    run = await local.start({"request": "Order three apples."})
    view = await run.wait()
    ```
    """

    def __init__(self, client: Client, id: str, agent: Agent[OutputT] | None, following: TestRuns) -> None:
        super().__init__(client, id, agent)
        self._following = following

    async def wait(self, timeout: float | None = None) -> RunView:
        """Wait for the run's end and return its view, with or without an output. `timeout`: real seconds (default:
        those of `run_locally`)."""
        with suppress(RunNotFoundError):  # from here on the test follows it, also if it did not start it
            await self.started_at()
            self._following.follow(self.id)

        async def ended(look: WaitingState) -> RunView | None:
            if self.id in look.open:
                return None
            try:
                view = await self.view()
            except RunNotFoundError:  # a session is about to start it
                if look.busy:
                    return None
                raise
            return None if view.status == "running" else view

        return await self._following.until(ended, timeout)

    async def result(self, timeout: float | None = None) -> OutputT:
        """Wait for the run's end and return its output, as the type of its agent's output. Raises `RunFailedError` if
        it ended without one."""
        await self.wait(timeout)
        return await super().result()

    async def waited(self, timeout: float = WAIT) -> WaitResult:
        """Wait for the run's end and return only its status, as `perdure.Run.waited`."""
        await self.wait(timeout)
        return await super().waited(timeout)

    async def events(
        self, from_: str | None = None, topics: Iterable[str] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the run's events, as `perdure.Run.events`. Meanwhile people decide and time passes."""
        async with aclosing(_while_waiting(super().events(from_, topics), self.wait)) as events:
            async for event in events:
                yield event

    async def views(self) -> AsyncGenerator[RunView, None]:
        """Yield the run's view after each change, as `perdure.Run.views`. Meanwhile people decide and time passes."""
        async with aclosing(_while_waiting(super().views(), self.wait)) as views:
            async for view in views:
                yield view

    async def waiting_below(self) -> tuple[list[WaitingRequest], list[str]]:
        """Return the approval requests of this run and of the runs below it, as `perdure.Run.waiting_below`, also on a
        server without lists.
        """
        look = await self._following.clock.look([self.id])
        found, problems = await approvals.waiting_in(self.client, list(look.open))
        return found, [str(problem) for problem in problems]

    async def until_waiting(self, *calls: str) -> RunView:
        """Wait until these calls wait for a person, and no others; without `calls`, until anything does. Return the
        view.

        ```python
        run = await local.start({"request": "Order three apples."})
        view = await run.until_waiting("1.0")
        ```
        """

        async def waiting(look: WaitingState) -> RunView | None:
            if self.id not in look.open:
                if look.busy:  # a session's run that has not started yet
                    return None
                raise AssertionError(f"{self.id} has ended, and {', '.join(calls) or 'nothing'} waited")
            found = [request.call for request in await waiting_requests(self.client, self.id)]
            return await self.view() if (found == list(calls) if calls else found) else None

        return await self._following.until(waiting)


async def _while_waiting(
    events: AsyncGenerator[T, None], end: Callable[[], Coroutine[Any, Any, Any]]
) -> AsyncGenerator[T, None]:
    """Yield the events while `end` waits for their end.

    Raises the errors of `end`, e.g. because nobody decides, unless an event comes soon: its reader may decide.
    """
    ending, tries = asyncio.ensure_future(end()), 0
    coming: asyncio.Future[T] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(events))
            await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
            while not coming.done():
                if ending.exception() is None:
                    await asyncio.wait({coming})
                elif tries < _TRIES:
                    ending, tries = asyncio.ensure_future(end()), tries + 1
                    await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
                else:
                    ending.result()
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            tries = 0
            yield event
    finally:
        left = [each for each in (coming, ending) if each is not None]
        await cancel_all(*left)
        await events.aclose()


class LocalSession(Session):
    """A session in a test, with everything that a session of `perdure.Perdure` has. During its waits people decide and
    time passes.
    """

    def __init__(self, session: Session, following: TestRuns) -> None:
        super().__init__(session._address, agent=session._agent, rules=session._rules, task_queue=session._task_queue)
        self._following = following

    async def send(self, text: str, *, sender: str, **how: Any) -> Receipt:
        """Send a message, as `perdure.client.session.Session.send`."""
        receipt = await super().send(text, sender=sender, **how)
        self._following.follow(self.id)
        return receipt

    async def run(self) -> LocalRun[Any] | None:
        """Return the running run, as a `LocalRun`; `None` if there is none."""
        found = await super().run()
        return None if found is None else LocalRun(found.client, found.id, None, self._following)

    async def stream(self, receipt: Receipt, topics: Iterable[str] | None = None) -> AsyncGenerator[Event, None]:
        """Yield the events of an answer, as `perdure.client.session.Session.stream`. Meanwhile people decide and time passes."""
        end = functools.partial(self._end_of, receipt.message_id, receipt.sender)
        async with aclosing(_while_waiting(super().stream(receipt, topics), end)) as events:
            async for event in events:
                yield event

    async def events(
        self, from_: str | None = None, topics: Iterable[str] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of the session, as `perdure.client.session.Session.events`. Meanwhile people decide and time passes."""
        async with aclosing(_while_waiting(super().events(from_, topics), self._until_over)) as events:
            async for event in events:
                yield event

    async def watch(self) -> AsyncGenerator[JsonObject, None]:
        """Yield the entries of the session, as `perdure.client.session.Session.watch`. Meanwhile people decide and time passes."""
        async with aclosing(_while_waiting(super().watch(), self._until_over)) as entries:
            async for entry in entries:
                yield entry

    async def _until_over(self) -> None:
        """Wait until the session has ended, also while nothing happens: the test may still send a message."""

        async def ended(look: WaitingState) -> bool | None:
            return self.id not in look.open or None

        if await self.exists():
            self._following.follow(self.id)
        await self._following.until(ended, patient=True)

    async def _until(self, what: str, sender: str, is_settled: Callable[[Fate], bool]) -> Fate:
        self._following.follow(self.id)

        async def reached(_: WaitingState) -> Fate | None:
            fate = await self._fate(what, sender)
            return fate if fate is not None and is_settled(fate) else None

        return await self._following.until(reached)

    async def _forget(self) -> None:
        """Delete the session from the server. A server that skips time cannot: there the session has only ended."""
        if not self._following.clock.skips:
            await super()._forget()

    def _sibling(self, address: Address) -> LocalSession:
        self._following.follow(address.id)
        return LocalSession(super()._sibling(address), self._following)


class LocalPerdure(Perdure):
    """The Python API on the server of a test, which follows its runs and sessions."""

    def __init__(self, client: Client, task_queue: str, following: TestRuns) -> None:
        super().__init__(client, task_queue=task_queue)
        self._following = following

    async def start(self, agent: Agent[OutputT], *args: Any, **more: Any) -> LocalRun[OutputT]:
        """Start a run: as `perdure.Perdure.start`."""
        run = await super().start(agent, *args, **more)
        self._following.follow(run.id)
        return LocalRun(run.client, run.id, agent, self._following)

    def _run(self, id: str, agent: Agent[Any] | None = None) -> LocalRun[Any]:
        return LocalRun(self.client, id, agent, self._following)

    def _session(self, *given: Any, **more: Any) -> LocalSession:
        return LocalSession(super()._session(*given, **more), self._following)


@dataclass(eq=False)
class _Waiter:
    """A wait until `done` returns a value for a look; without `done`, until nothing more happens."""

    done: Callable[[WaitingState], Awaitable[Any]] | None
    found: asyncio.Future[Any]
    patient: bool
    """Whether the wait continues when nothing more happens."""
    due: datetime | None = None
    """The time at which the wait ends; `None`: no time."""


@dataclass
class TestRuns:
    """The runs and sessions of one test, and the people in it.

    One task serves all waits of the test: it reads the state, has people decide, and lets time pass. So nobody decides
    twice, and time passes only after all waiters have seen the present state.
    """

    client: Client
    clock: Clock
    people: list[Person]
    timeout: float
    troubles: Callable[[], list[str]]
    """A function that returns the problems so far that no wait can solve."""
    runs: list[str] = field(default_factory=list)
    """Workflow ids of followed runs and sessions; executions below them are included."""
    meanwhile: Callable[[WaitingState], Awaitable[None]] | None = None
    """A function to call at each look with a change."""
    _meant: dict[tuple[str, str, str, str, int], Person] = field(default_factory=dict)
    """Run, call, digest and time of a request, and the number of its approvals → the person who decides. A repeated
    request has a new key.
    """
    _open: list[str] = field(default_factory=list)
    """The open executions at the last look, with those below the `runs`."""
    _waiting_views: dict[str, tuple[int, list[WaitingView]]] = field(default_factory=dict)
    """By run, a number of events of its history, and its approval requests then."""
    _waiters: list[_Waiter] = field(default_factory=list)
    _looking: asyncio.Task[None] | None = None
    _deaths: int = 0
    """The number of killed workers when the last look began."""

    def follow(self, workflow_id: str) -> None:
        """Follow a run or a session that was started."""
        self.clock.expect(workflow_id)
        if workflow_id not in self.runs:
            self.runs.append(workflow_id)

    def left_over(self) -> list[str]:
        return [
            f"no request for {person} was made" for person in self.people if not person.decided and not person.every
        ]

    async def until(
        self,
        done: Callable[[WaitingState], Awaitable[T | None]],
        timeout: float | None = None,
        *,
        patient: bool = False,
    ) -> T:
        """Wait until `done` returns a value, and return it. Raises `AssertionError` after `timeout` real seconds and,
        unless `patient`, when nothing more can happen.
        """
        found: T = await self._wait(done, timeout, patient)
        return found

    async def settle(self, timeout: float | None = None) -> None:
        """Wait until nothing more happens by itself. Raises `AssertionError` after `timeout` real seconds."""
        await self._wait(None, timeout)

    async def skip(self, length: timedelta) -> None:
        """Let time pass, once nothing happens without it. Meanwhile people decide. Raises as `settle` does."""
        until = await self.clock.now() + length

        async def reached(_: WaitingState) -> bool | None:
            return await self.clock.now() >= until or None

        real = 0.0 if self.clock.skips else length.total_seconds()
        await self._wait(reached, self.timeout + real, due=until)

    async def _wait(
        self,
        done: Callable[[WaitingState], Awaitable[Any]] | None,
        timeout: float | None,
        patient: bool = False,
        due: datetime | None = None,
    ) -> Any:
        timeout = self.timeout if timeout is None else timeout
        waiter = _Waiter(done, asyncio.get_running_loop().create_future(), patient, due)
        self._waiters.append(waiter)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(timeout):
                return await waiter.found
        except TimeoutError:
            raise AssertionError(f"the run did not end within {timeout:g} s: {await self._running()}") from None
        finally:
            self._leave(waiter)
            if not self._waiters and (looking := self._looking) is not None:
                self._looking = None
                await cancel_all(looking)

    async def _look(self) -> None:
        """Serve the waits until there are none. An error is raised in all of them."""
        try:
            await self._go_on()
        except Exception as error:
            for waiter in list(self._waiters):
                if not waiter.found.done():
                    waiter.found.set_exception(error)

    async def _go_on(self) -> None:
        before: dict[str, int] | None = None
        still = 0
        while self._waiters:
            self._deaths = self.clock.deaths
            look = await self.clock.look(self.runs)
            self._open = list(look.open)
            if look.lost:  # those runs answer no query
                await self._raise_troubles()
                await self.clock.pass_lost(look)
                before, still = None, 0
                continue
            met = [await self._meet(waiter, look) for waiter in list(self._waiters)]
            await self._raise_troubles()
            changed, before = look.open != before, look.open
            if self.meanwhile is not None and changed:
                await self.meanwhile(look)
            due = None if look.busy and not changed else await self._people_decide(look)
            dues = [due, *(waiter.due for waiter in self._waiters)]
            still = 0 if look.busy or changed or any(met) else still + 1
            if still < _STILL:
                await self.clock.tick()
            elif next_ := min([*look.wakes, *filter(None, dues)], default=None):
                await self.clock.pass_time(next_)
                before, still = None, 0
            elif all(waiter.patient for waiter in self._waiters):
                await self.clock.tick()
            else:
                settled = [waiter for waiter in self._waiters if waiter.done is None]
                if not settled:
                    if still >= _STUCK:
                        raise AssertionError(await self._stuck(look))
                    await self.clock.tick()
                    continue
                for waiter in settled:
                    self._leave(waiter)
                    waiter.found.set_result(None)
                before, still = None, 0

    async def _meet(self, waiter: _Waiter, look: WaitingState) -> bool:
        """Whether the wait is over."""
        if waiter.done is None:
            return False
        try:
            found = await self._unless_dying(waiter.done(look))
        except Exception as error:
            if not waiter.found.done():
                waiter.found.set_exception(error)
        else:
            if found is None:
                return False
            # A problem that nothing has raised yet comes before the result.
            await self._raise_troubles()
            if not waiter.found.done():
                waiter.found.set_result(found)
        self._leave(waiter)
        return True

    async def _unless_dying(self, awaited: Awaitable[T]) -> T | None:
        """Return the workers' answer; `None` if a worker dies meanwhile, because the query may be lost with it."""
        asking = asyncio.ensure_future(awaited)
        try:
            while not asking.done() and self.clock.deaths == self._deaths:
                await asyncio.wait({asking}, timeout=LOOK)
            return await asking if asking.done() else None
        finally:
            asking.cancel()

    def _leave(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    async def _raise_troubles(self) -> None:
        if problems := self.troubles():
            # The state of the runs has the reasons, e.g. of a repeated Request.
            raise AssertionError("; ".join([*problems, await self._running()]))

    async def end_sessions(self) -> None:
        """Terminate the test's sessions: an idle session stays open, and would wait for a worker that is gone."""
        for session_id in filter(_is_session, self.runs):
            with contextlib.suppress(RPCError):  # it has ended, or has never begun
                await self.client.get_workflow_handle(session_id).terminate("its test is over")

    async def _people_decide(self, look: WaitingState) -> datetime | None:
        """Send the decisions that are due, and return the time of the next one."""
        if not self.people:
            return None
        now, dues = await self.clock.now(), []
        for run_id, events in look.open.items():
            if _is_session(run_id) or run_id in look.deciding:  # approval requests are in a session's runs
                continue
            if (requests := await self._waiting_of(run_id, events)) is None:
                continue
            self._free_people(run_id, requests)
            for waiting in requests:
                person = self._person(run_id, waiting)
                if person is None:
                    continue
                due = datetime.fromisoformat(waiting.requested_at) + timedelta(seconds=person.after)
                if due > now:
                    dues.append(due)
                    continue
                try:
                    await decide(self.client, run_id, person.decision(waiting))
                except RunError as error:
                    still = await waiting_requests(self.client, run_id)
                    if any(_key(run_id, each) == _key(run_id, waiting) for each in still):
                        raise AssertionError(f"{person} was refused: {error}") from None
                    continue  # the request was decided elsewhere
                person.decided += 1
        return min(dues, default=None)

    async def _waiting_of(self, run_id: str, events: int) -> list[WaitingView] | None:
        """Return the approval requests of a run, queried once for each state of its history; `None` if the run cannot
        answer now."""
        known = self._waiting_views.get(run_id)
        if known is None or known[0] != events:
            try:
                found = await self._unless_dying(_read_waiting(self.client, run_id))
                if found is None:
                    return None
                known = self._waiting_views[run_id] = (events, found)
            except (RPCError, WorkflowQueryFailedError):
                return None
        return known[1]

    def _free_people(self, run_id: str, requests: list[WaitingView]) -> None:
        """Free the people of requests that no longer wait, because a program decided them or a message dropped them."""
        waiting = {_key(run_id, each) for each in requests}
        for key in [key for key, person in self._meant.items() if key[0] == run_id and not person.decided]:
            if key not in waiting:
                del self._meant[key]

    def _person(self, run_id: str, waiting: WaitingView) -> Person | None:
        key = _key(run_id, waiting)
        if key not in self._meant:
            taken = [id(person) for person in self._meant.values()]
            free = (each for each in self.people if each.every or (id(each) not in taken and not each.decided))
            found = next((each for each in free if each.means(waiting)), None)
            if found is None:
                return None
            self._meant[key] = found
        return self._meant[key]

    async def _stuck(self, look: WaitingState) -> str:
        waits = [
            f"{request.call} {request.tool or 'the plan'} of {run_id} waits for a person ({request.reason}), and no person of `people` {'answers' if request.question else 'decides'}"
            for run_id in look.open
            for request in await waiting_requests(self.client, run_id)
        ]
        unreported = [
            f"{each} was terminated, and the time-skipping server does not report that to the parent: use server='dev'"
            for each in look.unreported
        ]
        if waits:
            return "; ".join([*waits, *self.left_over()])
        return "; ".join(unreported) or f"no run makes progress: {await self._running()}"

    async def _running(self) -> str:
        lines: list[str] = []
        for run_id in dict.fromkeys([*self.runs, *self._open]):
            if _is_session(run_id):  # its runs say more
                continue
            try:
                view = await fetch_run(self.client, run_id)
            except RunError as error:
                lines.append(str(error))
                continue
            calls = [_unlike_done(call) for call in view.calls if call.status != "done"]
            trouble = [each.trouble for each in view.log if each.trouble]
            lines.append(f"{run_id} is {view.status}{': ' if calls or trouble else ''}{', '.join([*calls, *trouble])}")
        return "; ".join(lines) or "no run is active"


def _key(run_id: str, waiting: WaitingView) -> tuple[str, str, str, str, int]:
    return run_id, waiting.call, waiting.digest, waiting.requested_at, len(waiting.approvers)


def _is_session(workflow_id: str) -> bool:
    return workflow_id.startswith(SESSION_PREFIX) and "/" not in workflow_id


def _unlike_done(call: CallView) -> str:
    """Return a line about a call that is not done, with the reason."""
    why = (call.error or {}).get("message") or call.reason
    return f"{call.id} {call.tool} {call.status}{f' ({why})' if why else ''}"


async def waiting_requests(client: Client, run_id: str) -> list[WaitingView]:
    """Return the approval requests of a run; none if the run cannot answer."""
    try:
        return await _read_waiting(client, run_id)
    except (RPCError, WorkflowQueryFailedError):
        return []


async def _read_waiting(client: Client, run_id: str) -> list[WaitingView]:
    found: list[WaitingView] = await client.get_workflow_handle(run_id).query(
        WAITING_QUERY, None, result_type=list[WaitingView], rpc_timeout=timedelta(seconds=5)
    )
    return found
