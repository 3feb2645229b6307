"""Waiting for a run in a test: people decide when their time has come, and time passes while nothing else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError
from typing_extensions import TypeVar

from perdure.authoring.agent import Agent
from perdure.client.approvals import decide
from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.client.runs import fetch_run
from perdure.client.session import Session
from perdure.client.sessions import Address
from perdure.errors import RunError, RunNotFoundError
from perdure.run.wire import WAITING_QUERY, CallView, RunView, WaitingView
from perdure.sessions.wire import Fate, Receipt
from perdure.testing.clock import Clock, Look
from perdure.testing.people import Person

T = TypeVar("T")
OutputT = TypeVar("OutputT", default=Any)
_STILL: Final = 2
"""Looks that see the same before time passes: what one execution tells another is seen in neither for a moment."""


class LocalRun(Run[OutputT]):
    """A run in a test, with all that a run of `perdure.Perdure` has. While it is waited for, people decide and time passes; else time
    stands still. To wait for what never comes is an `AssertionError`."""

    def __init__(self, client: Client, id: str, agent: Agent[OutputT] | None, following: Following) -> None:
        super().__init__(client, id, agent)
        self._following = following

    async def wait(self, timeout: float | None = None) -> RunView:
        """Wait for its end; the whole run, however it ended. `timeout`: real seconds, by default those of `run_locally`."""

        async def ended(look: Look) -> RunView | None:
            if self.id in look.open:
                return None
            try:
                view = await self.view()
            except RunNotFoundError:  # a session's that is about to start
                if look.busy:
                    return None
                raise
            return None if view.status == "running" else view

        return await self._following.until(ended, timeout)

    async def result(self, timeout: float | None = None) -> OutputT:
        """Wait for its end; its output, as the type of its agent's. Raises `RunFailedError` where it ended without one."""
        await self.wait(timeout)
        return await super().result()

    async def until_waiting(self, *calls: str) -> RunView:
        """Wait until exactly these calls wait for a person, by id; without any, until something does."""

        async def waiting(look: Look) -> RunView | None:
            if self.id not in look.open:
                raise AssertionError(f"{self.id} has ended, and {', '.join(calls) or 'nothing'} waited")
            found = [offer.call for offer in await offers_of(self.client, self.id)]
            return await self.view() if (found == list(calls) if calls else found) else None

        return await self._following.until(waiting)


class LocalSession(Session):
    """A session in a test, with all that a session of `perdure.Perdure` has. While an answer is waited for, people decide and time passes."""

    def __init__(self, session: Session, following: Following) -> None:
        super().__init__(session._address, agent=session._agent, rules=session._rules, task_queue=session._task_queue)
        self._following = following

    async def send(self, text: str, *, sender: str, **how: Any) -> Receipt:
        """Say something: as `perdure.client.session.Session.send`."""
        receipt = await super().send(text, sender=sender, **how)
        self._following.follow(self.id)
        return receipt

    async def run(self) -> LocalRun[Any] | None:
        """The run that is under way, if one is; it can be waited for."""
        found = await super().run()
        return None if found is None else LocalRun(found.client, found.id, None, self._following)

    async def _end_of(self, what: str, sender: str = "") -> Fate:
        self._following.follow(self.id)

        async def ended(_: Look) -> Fate | None:
            fate = await self._fate(what, sender)
            if fate is None or fate.state not in ("ended", "withdrawn"):
                return None
            return fate if fate.status is not None else await self._archived(fate)

        return await self._following.until(ended)

    def _sibling(self, address: Address) -> LocalSession:
        self._following.follow(address.id)
        return LocalSession(super()._sibling(address), self._following)


class LocalPerdure(Perdure):
    """The Python API on the server of a test: its runs and sessions are followed."""

    def __init__(self, client: Client, task_queue: str, following: Following) -> None:
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
    """One who waits: until `done` of a look gives something; without it until nothing happens any more."""

    done: Callable[[Look], Awaitable[Any]] | None
    found: asyncio.Future[Any]


@dataclass
class Following:
    """All runs and sessions of one test, and the people in it.

    However many wait at once, one task looks, has people decide and lets time pass: nobody decides twice, and no time passes before all who
    wait have seen what there is.
    """

    client: Client
    clock: Clock
    people: list[Person]
    timeout: float
    troubles: Callable[[], list[str]]
    """What has gone wrong so far, for which no waiting helps."""
    runs: list[str] = field(default_factory=list)
    """Workflow ids: those below them are followed with them."""
    meanwhile: Callable[[Look], Awaitable[None]] | None = None
    """Done at each look at which something has changed."""
    _meant: dict[tuple[str, str, str], Person] = field(default_factory=dict)
    """Run, call and digest → who decides about it."""
    _offers: dict[str, tuple[int, list[WaitingView]]] = field(default_factory=dict)
    """By run what waited in it when its history had so many events."""
    _waiters: list[_Waiter] = field(default_factory=list)
    _looking: asyncio.Task[None] | None = None

    def follow(self, workflow_id: str) -> None:
        """Follow a run or a session that was started."""
        self.clock.expect(workflow_id)
        if workflow_id not in self.runs:
            self.runs.append(workflow_id)

    def left_over(self) -> list[str]:
        return [f"nobody asked for {person}" for person in self.people if not person.decided and not person.every]

    async def until(self, done: Callable[[Look], Awaitable[T | None]], timeout: float | None = None) -> T:
        """Go on until there is something. Raises `AssertionError` where nothing can happen any more, or after `timeout` real seconds."""
        found: T = await self._wait(done, timeout)
        return found

    async def settle(self, timeout: float | None = None) -> None:
        """Go on until nothing happens any more by itself. Raises `AssertionError` after `timeout` real seconds."""
        await self._wait(None, timeout)

    async def _wait(self, done: Callable[[Look], Awaitable[Any]] | None, timeout: float | None) -> Any:
        timeout = self.timeout if timeout is None else timeout
        waiter = _Waiter(done, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(timeout):
                return await waiter.found
        except TimeoutError:
            raise AssertionError(f"no end after {timeout:g} s: {await self._running()}") from None
        finally:
            self._leave(waiter)
            if not self._waiters and (looking := self._looking) is not None:
                self._looking = None
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)

    async def _look(self) -> None:
        """Go on for as long as anybody waits; what goes wrong is told to all who do."""
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
            look = await self.clock.look(self.runs)
            met = [await self._meet(waiter, look) for waiter in list(self._waiters)]
            await self._raise_troubles()
            changed, before = look.open != before, look.open
            if self.meanwhile is not None and changed:
                await self.meanwhile(look)
            due = None if look.busy and not changed else await self._people_decide(look)
            still = 0 if look.busy or changed or any(met) else still + 1
            if still < _STILL:
                await self.clock.tick()
            elif next_ := min([*look.wakes, *([due] if due else [])], default=None):
                await self.clock.pass_time(next_)
                before, still = None, 0
            else:
                settled = [waiter for waiter in self._waiters if waiter.done is None]
                if not settled:
                    raise AssertionError(await self._stuck(look))
                for waiter in settled:
                    self._leave(waiter)
                    waiter.found.set_result(None)
                before, still = None, 0

    async def _meet(self, waiter: _Waiter, look: Look) -> bool:
        """Whether it need not wait any longer."""
        if waiter.done is None:
            return False
        try:
            found = await waiter.done(look)
        except Exception as error:
            if not waiter.found.done():
                waiter.found.set_exception(error)
        else:
            if found is None:
                return False
            # What went wrong unseen goes before what was waited for.
            await self._raise_troubles()
            if not waiter.found.done():
                waiter.found.set_result(found)
        self._leave(waiter)
        return True

    def _leave(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    async def _raise_troubles(self) -> None:
        if problems := self.troubles():
            # How the runs stand says why, e.g. why the model was asked once more.
            raise AssertionError("; ".join([*problems, await self._running()]))

    async def _people_decide(self, look: Look) -> datetime | None:
        """Those whose time has come; when that of the next comes."""
        if not self.people:
            return None
        now, dues = await self.clock.now(), []
        for run_id, events in look.open.items():
            for offer in await self._offers_of(run_id, events):
                person = self._person(run_id, offer)
                if person is None:
                    continue
                due = datetime.fromisoformat(offer.requested_at) + timedelta(seconds=person.after)
                if due > now:
                    dues.append(due)
                    continue
                try:
                    await decide(self.client, run_id, person.decision(offer))
                except RunError as error:
                    raise AssertionError(f"{person} was refused: {error}") from None
                person.decided += 1
        return min(dues, default=None)

    async def _offers_of(self, run_id: str, events: int) -> list[WaitingView]:
        """What waits in a run, asked once for each state of its history; nothing where it cannot say now."""
        known = self._offers.get(run_id)
        if known is None or known[0] != events:
            try:
                known = self._offers[run_id] = (events, await _ask_offers(self.client, run_id))
            except (RPCError, WorkflowQueryFailedError):
                return []
        return known[1]

    def _person(self, run_id: str, offer: WaitingView) -> Person | None:
        key = (run_id, offer.call, offer.digest)
        if key not in self._meant:
            taken = [id(person) for person in self._meant.values()]
            free = (each for each in self.people if each.every or (id(each) not in taken and not each.decided))
            found = next((each for each in free if each.means(offer)), None)
            if found is None:
                return None
            self._meant[key] = found
        return self._meant[key]

    async def _stuck(self, look: Look) -> str:
        waits = [
            f"{offer.call} {offer.tool or 'the plan'} of {run_id} waits for a person ({offer.reason}), and nobody of `people` "
            f"{'answers' if offer.question else 'decides'}"
            for run_id in look.open
            for offer in await offers_of(self.client, run_id)
        ]
        return "; ".join(waits) or f"nothing happens any more: {await self._running()}"

    async def _running(self) -> str:
        lines: list[str] = []
        for run_id in self.runs:
            try:
                view = await fetch_run(self.client, run_id)
            except RunError as error:
                lines.append(str(error))
                continue
            calls = [_unlike_done(call) for call in view.calls if call.status != "done"]
            trouble = [each.trouble for each in view.log if each.trouble]
            lines.append(f"{run_id} is {view.status}{': ' if calls or trouble else ''}{', '.join([*calls, *trouble])}")
        return "; ".join(lines)


def _unlike_done(call: CallView) -> str:
    """A call that is not done, and why."""
    why = (call.error or {}).get("message") or call.reason
    return f"{call.id} {call.tool} {call.status}{f' ({why})' if why else ''}"


async def offers_of(client: Client, run_id: str) -> list[WaitingView]:
    """What waits for a person in a run; nothing where it cannot say."""
    try:
        return await _ask_offers(client, run_id)
    except (RPCError, WorkflowQueryFailedError):
        return []


async def _ask_offers(client: Client, run_id: str) -> list[WaitingView]:
    found: list[WaitingView] = await client.get_workflow_handle(run_id).query(
        WAITING_QUERY, None, result_type=list[WaitingView], rpc_timeout=timedelta(seconds=5)
    )
    return found
