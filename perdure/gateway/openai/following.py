"""Finding a response's run, and waiting for it: all that these doors ask the server for of runs that are there."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Final

from perdure.client.errors import clear_errors
from perdure.client.perdure import Perdure
from perdure.client.run import Run
from perdure.errors import RunNotFoundError
from perdure.gateway.openai.answers import Found
from perdure.gateway.openai.documents import Record, record_of
from perdure.gateway.openai.errors import not_found
from perdure.gateway.openai.ids import ResponseId
from perdure.run.events.kinds import Event
from perdure.run.wire import RunView
from perdure.values.jsons import loads

_REMEMBERED: Final = 1_000
"""Records that are kept at hand: they never change."""
_AT_ONCE: Final = 16
"""Delegates' runs that are looked at together."""
_KNOWN_WITHIN: Final = 5.0
"""Seconds that a session has to say whether it knows a run."""
_TOPICS: Final = frozenset({"lifecycle", "request", "tool", "approval"})
"""What may end a response."""
_WAITS: Final = {("approval", "start"): 1, ("approval", "end"): -1}
_SILENT: Final = (2.0, 60.0)
"""Seconds without an event after which a run that waits for somebody is looked at all the same: at first, and, twice as long after each, in the end."""
_SILENT_BELOW: Final = 10.0
"""The most of them while a call runs: a delegate's run that carries it out may have come to wait, and no event of the run says so."""
_PAUSES: Final = (0.02, 1.0)
"""Seconds between looks for a run that has not begun: the first, and the longest."""


class Finder:
    """Runs by the ids of their responses, for one tenant each: another's are not found."""

    def __init__(self, perdure: Perdure) -> None:
        self._perdure = perdure
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._ended_below: OrderedDict[str, RunView] = OrderedDict()
        """Runs of delegates that have ended: they do not change any more."""

    def run(self, tenant: str, id: ResponseId, path: str = "") -> Run[object]:
        """The run, wherever it is at, or with a `path` that of one of its delegates. Asks nobody."""
        return self._perdure.get_run("/".join(filter(None, (id.run_id(tenant), path))))

    async def find(self, tenant: str, id: ResponseId) -> Found | None:
        """The run as it stands; `None`: it has not begun. Raises `HttpError` (404) for a response that there is not."""
        run = self.run(tenant, id)
        try:
            view = await self._view(tenant, id, run)
            record = None if view is None else await self.record(run)
        except RunNotFoundError:
            raise not_found(str(id)) from None
        if view is None or (record is None and not view.agent and view.status == "running"):
            return None
        if record is None:  # it was not asked for here
            raise not_found(str(id))
        found = await self._found(run, view, record)
        if id.leg > found.leg:
            raise not_found(str(id))
        return found

    async def stored(self, tenant: str, id: ResponseId) -> Found | None:
        """The same of one that may be asked for later; of a session that was deleted it is not, though the server still has the run."""
        found = await self.find(tenant, id)
        if found is None:
            return None
        if not found.record.stored or found.record.chat:
            raise not_found(str(id))
        if id.run and found.view.status != "running":
            try:
                await self._perdure.session(id.key, tenant=tenant).wait(found.view.run_id, _KNOWN_WITHIN)
            except RunNotFoundError:
                raise not_found(str(id)) from None
        return found

    async def begun(self, tenant: str, id: ResponseId) -> Found:
        """The run, once it has begun. Raises as `find` does."""
        pause = _PAUSES[0]
        while (found := await self.find(tenant, id)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])
        return found

    async def settled(self, tenant: str, id: ResponseId) -> Found:
        """The run once the response has ended: with its answer, or because it waits for its client."""
        found = await self.begun(tenant, id)
        if not is_settled(found, id):
            async with aclosing(self.watch(tenant, id, found, text=False)) as events:
                async for _ in events:
                    pass
            found = await self.ended(tenant, id)
        return found

    async def watch(self, tenant: str, id: ResponseId, found: Found, *, text: bool) -> AsyncGenerator[Event, None]:
        """What happens in the run, and what had happened before, until the response has ended. `text`: also what is being written.

        Only what may have ended it has the run looked at.
        """
        last = found.last_request(id.leg) if is_settled(found, id) else None
        topics = _TOPICS | ({"assistant"} if text else set())
        waits = 0
        working = {call.id for call in found.view.calls if call.status == "running"}
        events_of_run = self._perdure.events(id.run_id(tenant), topics=topics)
        async with aclosing(_or_silence(events_of_run, working)) as events:
            async for event in events:
                if event is not None:
                    yield event
                    if event.topic == "tool" and event.phase != "update":
                        change = working.add if event.phase == "start" else working.discard
                        change(str(event.data.get("call")))
                    waits += _WAITS.get((event.topic, event.phase), 0)
                if last is not None:
                    if event is None or (
                        event.topic == "request" and event.data.get("number") == last and event.phase == "end"
                    ):
                        return
                elif (waits and (event is None or event.phase in ("start", "end"))) or (working and event is None):
                    seen = await self.find(tenant, id)
                    if seen is not None and is_settled(seen, id):
                        return

    async def ended(self, tenant: str, id: ResponseId) -> Found:
        """The run as it has ended: its last event comes a moment before that."""
        pause = _PAUSES[0]
        while not is_settled(found := await self.begun(tenant, id), id):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])
        return found

    async def record(self, run: Run[object]) -> Record | None:
        """Return what the run keeps of its request; `None`: the run was not asked for here, or does not know its agent file yet."""
        if (record := self._records.get(run.id)) is None:
            record = record_of(loads(await run.value("metadata")))
            if record is None:
                return None
            self._records[run.id] = record
            while len(self._records) > _REMEMBERED:
                self._records.popitem(last=False)
        return record

    async def _found(self, run: Run[object], view: RunView, record: Record) -> Found:
        output = view.output
        if view.output_size:
            output = loads(await run.value("output"))
        with clear_errors(run.client, run.id):
            described = await run.handle.describe()
        ended = described.close_time.timestamp() if described.close_time and view.status != "running" else None
        return Found(view, record, output, ended, await self._below(run, view, record))

    async def _below(self, run: Run[object], view: RunView, record: Record) -> dict[str, RunView]:
        """The runs of its delegates, where they may have asked its client for something."""
        begun = any(call.started_at is not None and call.tool not in record.names for call in view.calls)
        if not begun or not (record.approves or record.tools):
            return {}
        ids = await run.delegates(asked=not record.tools)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def look(id: str) -> RunView | None:
            if (known := self._ended_below.get(id)) is not None:
                return known
            async with limit:
                try:
                    found = await self._perdure.get_run(id).view()
                except RunNotFoundError:
                    return None
            if found.status != "running":
                self._ended_below[id] = found
                while len(self._ended_below) > _REMEMBERED:
                    self._ended_below.popitem(last=False)
            return found

        views = zip(ids, await asyncio.gather(*map(look, ids)), strict=True)
        return {id.removeprefix(f"{run.id}/"): found for id, found in views if found is not None}

    async def _view(self, tenant: str, id: ResponseId, run: Run[object]) -> RunView | None:
        if not id.run:
            return await run.view()
        return await self._perdure.session(id.key, tenant=tenant).view_run(run.id)


async def _or_silence(
    events: AsyncGenerator[Event, None], working: Collection[str]
) -> AsyncGenerator[Event | None, None]:
    """The events, and `None` whenever none came for a while; `working`: the calls that run."""
    coming: asyncio.Future[Event] | None = None
    pause = _SILENT[0]
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            await asyncio.wait([coming], timeout=pause)
            if not coming.done():
                pause = min(2 * pause, _SILENT_BELOW if working else _SILENT[1])
                yield None
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            coming, pause = None, _SILENT[0]
            yield event
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await events.aclose()


def is_settled(found: Found, id: ResponseId) -> bool:
    """Whether the response has ended."""
    return found.status(id.leg) not in ("queued", "in_progress")
