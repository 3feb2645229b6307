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
from perdure.client.run import Run
from perdure.client.runs import fetch_run
from perdure.errors import RunError
from perdure.run.wire import WAITING_QUERY, CallView, RunView, WaitingView
from perdure.testing.clock import Clock, Look
from perdure.testing.people import Person

T = TypeVar("T")
OutputT = TypeVar("OutputT", default=Any)
_STILL: Final = 2
"""Looks that see the same before time passes: what one execution tells another is seen in neither for a moment."""


class LocalRun(Run[OutputT]):
    """A run in a test, with all that a run of `perdure.Perdure` has. While it is waited for, people decide and time passes; else time
    stands still. To wait for what never comes is an `AssertionError`."""

    def __init__(self, run: Run[OutputT], agent: Agent[OutputT], following: Following) -> None:
        super().__init__(run.client, run.id, agent)
        self._following = following

    async def wait(self, timeout: float | None = None) -> RunView:
        """Wait for its end; the whole run, however it ended. `timeout`: real seconds, by default those of `run_locally`."""

        async def ended(look: Look) -> RunView | None:
            return None if self.id in look.open else await self.view()

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


@dataclass
class Following:
    """All runs of one test, and the people in it."""

    client: Client
    clock: Clock
    people: list[Person]
    timeout: float
    troubles: Callable[[], list[str]]
    """What has gone wrong so far, for which no waiting helps."""
    runs: list[str] = field(default_factory=list)
    meanwhile: Callable[[Look], Awaitable[None]] | None = None
    """Done at each look at which something has changed."""
    _meant: dict[tuple[str, str, str], Person] = field(default_factory=dict)
    """Run, call and digest → who decides about it."""

    def add(self, run: Run[OutputT], agent: Agent[OutputT]) -> LocalRun[OutputT]:
        self.runs.append(run.id)
        return LocalRun(run, agent, self)

    def left_over(self) -> list[str]:
        return [f"nobody asked for {person}" for person in self.people if not person.decided and not person.every]

    async def until(self, done: Callable[[Look], Awaitable[T | None]], timeout: float | None = None) -> T:
        """Go on until there is something. Raises `AssertionError` where nothing can happen any more, or after `timeout` real seconds."""
        timeout = self.timeout if timeout is None else timeout
        before, still = -1, 0
        try:
            async with asyncio.timeout(timeout):
                while True:
                    look = await self.clock.look(self.runs)
                    if (found := await done(look)) is not None:
                        await self._raise_troubles()
                        return found
                    await self._raise_troubles()
                    changed, before = look.events != before, look.events
                    if self.meanwhile is not None and changed:
                        await self.meanwhile(look)
                    due = None if look.busy and not changed else await self._people_decide(look)
                    still = 0 if look.busy or changed else still + 1
                    if still < _STILL:
                        await self.clock.tick()
                    elif next_ := min([*look.wakes, *([due] if due else [])], default=None):
                        await self.clock.pass_time(next_)
                        before, still = -1, 0
                    else:
                        raise AssertionError(await self._stuck(look))
        except TimeoutError:
            raise AssertionError(f"no end after {timeout:g} s: {await self._running()}") from None

    async def _raise_troubles(self) -> None:
        if problems := self.troubles():
            # How the runs stand says why, e.g. why the model was asked once more.
            raise AssertionError("; ".join([*problems, await self._running()]))

    async def _people_decide(self, look: Look) -> datetime | None:
        """Those whose time has come; when that of the next comes."""
        if not self.people:
            return None
        now, dues = await self.clock.now(), []
        for run_id in look.open:
            for offer in await offers_of(self.client, run_id):
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
        found: list[WaitingView] = await client.get_workflow_handle(run_id).query(
            WAITING_QUERY, None, result_type=list[WaitingView], rpc_timeout=timedelta(seconds=5)
        )
    except (RPCError, WorkflowQueryFailedError):
        return []
    return found
