"""Finding a response's run, and waiting for it: all that these doors ask the server for of runs that are there."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
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
from perdure.run.wire import RunView
from perdure.values.jsons import loads

_REMEMBERED: Final = 1_000
"""Records that are kept at hand: they never change."""
_KNOWN_WITHIN: Final = 5.0
"""Seconds that a session has to say whether it knows a run."""
_PAUSES: Final = (0.02, 1.0)
"""Seconds between looks for a run that has not begun: the first, and the longest."""


class Finder:
    """Runs by the ids of their responses, for one tenant each: another's are not found."""

    def __init__(self, perdure: Perdure) -> None:
        self._perdure = perdure
        self._records: OrderedDict[str, Record] = OrderedDict()

    def run(self, tenant: str, id: ResponseId) -> Run[object]:
        """The run, wherever it is at. Asks nobody."""
        return self._perdure.get_run(id.run_id(tenant))

    async def find(self, tenant: str, id: ResponseId) -> Found | None:
        """The run as it stands; `None`: it has not begun. Raises `HttpError` (404) for a response that there is not."""
        run = self.run(tenant, id)
        try:
            found = await self._found(run, await run.view())
        except RunNotFoundError:
            if await self._waits(tenant, id):
                return None
            raise not_found(str(id)) from None
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

    async def follow(self, tenant: str, id: ResponseId) -> AsyncGenerator[Found, None]:
        """The run at every look, from its beginning on, until the response has ended. Raises as `find` does."""
        pause = _PAUSES[0]
        while (found := await self.find(tenant, id)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])
        yield found
        if is_settled(found, id):
            return
        run = self.run(tenant, id)
        async with aclosing(run.views()) as views:
            async for view in views:
                found = await self._found(run, view)
                yield found
                if is_settled(found, id):
                    return

    async def settled(self, tenant: str, id: ResponseId) -> Found:
        """The run once the response has ended: with its answer, or because it waits for its client."""
        async with aclosing(self.follow(tenant, id)) as looks:
            async for found in looks:
                if is_settled(found, id):
                    return found
        raise not_found(str(id))

    async def record(self, run: Run[object]) -> Record:
        """What the run keeps of its request. Raises `RunNotFoundError` for a run that was not asked for here."""
        if (record := self._records.get(run.id)) is None:
            record = record_of(loads(await run.value("metadata")))
            if record is None:
                raise RunNotFoundError(f"{run.id!r} was not asked for by this door")
            self._records[run.id] = record
            while len(self._records) > _REMEMBERED:
                self._records.popitem(last=False)
        return record

    async def _found(self, run: Run[object], view: RunView) -> Found:
        record = await self.record(run)
        output = view.output
        if view.output_size:
            output = loads(await run.value("output"))
        with clear_errors(run.client, run.id):
            described = await run.handle.describe()
        ended = described.close_time.timestamp() if described.close_time and view.status != "running" else None
        return Found(view, record, output, ended)

    async def _waits(self, tenant: str, id: ResponseId) -> bool:
        """Whether it is a run that its session has promised, and not begun."""
        if not id.run:
            return False
        run_id = id.run_id(tenant)
        try:
            view = await self._perdure.session(id.key, tenant=tenant).show()
        except RunNotFoundError:
            return False
        return view.run_id == run_id or any(queued.run_id == run_id for queued in view.queue)


def is_settled(found: Found, id: ResponseId) -> bool:
    """Whether the response has ended."""
    return found.status(id.leg) not in ("queued", "in_progress")
