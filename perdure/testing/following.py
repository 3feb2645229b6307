"""Waiting for a run in a test: people decide when their time has come, and time passes while nothing else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeVar

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.client.approvals import decide
from perdure.client.runs import AgentHandle, fetch_run
from perdure.errors import RunError
from perdure.run.wire import WAITING_QUERY, RunView, WaitingView
from perdure.testing.clock import Clock, Look
from perdure.testing.people import Person
from perdure.values.jsons import JsonObject

T = TypeVar("T")
_STILL: Final = 2
"""Looks that see the same before time passes: what one execution tells another is seen in neither for a moment."""


class LocalRun:
    """A run in a test. While it is waited for, people decide and time passes; else time stands still."""

    def __init__(self, handle: AgentHandle, following: Following) -> None:
        self.id = handle.id
        self.handle = handle
        """Temporal's own, to signal, query or cancel it."""
        self._following = following

    async def result(self) -> RunView:
        """Wait for its end, whatever that is: `view.status`. Raises `AssertionError` where it waits for what never comes."""

        async def ended(look: Look) -> RunView | None:
            return None if self.id in look.open else await self.view()

        return await self._following.until(ended)

    async def until_waiting(self, *calls: str) -> RunView:
        """Wait until exactly these calls wait for a person, by id; without any, until something does."""

        async def waiting(look: Look) -> RunView | None:
            if self.id not in look.open:
                raise AssertionError(f"{self.id} has ended, and {', '.join(calls) or 'nothing'} waited")
            offers = await offers_of(self._following.client, self.id)
            found = [offer.call for offer in offers]
            return await self.view() if (found == list(calls) if calls else found) else None

        return await self._following.until(waiting)

    async def view(self) -> RunView:
        """The run as it stands."""
        return await fetch_run(self._following.client, self.id)

    async def decide(self, decision: JsonObject) -> None:
        """Decide as a person would, now: `{"call": "1.0", "decision": "approve"}`. Raises `RunError` where that is refused."""
        await decide(self._following.client, self.id, decision)


@dataclass
class Following:
    """All runs of one test, and the people in it."""

    client: Client
    clock: Clock
    people: list[Person]
    timeout: float
    troubles: Callable[[], list[str]]
    """What has gone wrong so far, for which no waiting helps."""
    runs: list[LocalRun] = field(default_factory=list)
    _meant: dict[tuple[str, str, str], Person] = field(default_factory=dict)
    """Run, call and digest → who decides about it."""

    def add(self, handle: AgentHandle) -> LocalRun:
        run = LocalRun(handle, self)
        self.runs.append(run)
        return run

    def left_over(self) -> list[str]:
        return [f"nobody asked for {person}" for person in self.people if not person.decided and not person.every]

    async def until(self, done: Callable[[Look], Awaitable[T | None]]) -> T:
        """Go on until there is something. Raises `AssertionError` where nothing can happen any more, or after `timeout` real seconds."""
        before, still = -1, 0
        try:
            async with asyncio.timeout(self.timeout):
                while True:
                    look = await self.clock.look(run.id for run in self.runs)
                    if (found := await done(look)) is not None:
                        self._raise_troubles()
                        return found
                    self._raise_troubles()
                    changed, before = look.events != before, look.events
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
            raise AssertionError(f"no end after {self.timeout:g} s: {await self._running()}") from None

    def _raise_troubles(self) -> None:
        if problems := self.troubles():
            raise AssertionError("; ".join(problems))

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
        for run in self.runs:
            try:
                view = await run.view()
            except RunError as error:
                lines.append(str(error))
                continue
            calls = [f"{call.id} {call.tool} {call.status}" for call in view.calls if call.status not in ("done",)]
            trouble = [each.trouble for each in view.log if each.trouble]
            lines.append(f"{run.id} is {view.status}{': ' if calls or trouble else ''}{', '.join([*calls, *trouble])}")
        return "; ".join(lines)


async def offers_of(client: Client, run_id: str) -> list[WaitingView]:
    """What waits for a person in a run; nothing where it cannot say."""
    try:
        found: list[WaitingView] = await client.get_workflow_handle(run_id).query(
            WAITING_QUERY, None, result_type=list[WaitingView], rpc_timeout=timedelta(seconds=5)
        )
    except (RPCError, WorkflowQueryFailedError):
        return []
    return found
