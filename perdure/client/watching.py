"""Following a run from outside: as views, as what waits for a person, as what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.activities.asking import answer_of
from perdure.client.approvals import listed_below
from perdure.client.lists import Waiting
from perdure.client.pending import failure_words, task_failure
from perdure.client.relay.relay import relay_of, wanted
from perdure.client.runs import fetch_run
from perdure.errors import RunError
from perdure.run.views.picture import Picture
from perdure.run.wire import REQUEST_ACTIVITY, RUN_QUERY, RunView

SHORTEST_LOOK: Final = 0.1
"""Seconds between two views at least: what happens together is shown together."""
WHOLE: Final = 1.0
"""Seconds between two questions for the whole run at least, but for what a person waits for."""
TROUBLE_INTERVAL: Final = 1.5
"""Seconds between looks for trouble for one who only waits: the first retry comes after one."""


async def watch_run(client: Client, run_id: str) -> AsyncGenerator[RunView, None]:
    """The run, and again whenever something has happened; the last one after its end. Where no worker answers it goes on when one does."""
    picture = Picture(RunView(run_id=run_id))
    picture.lacks = picture.asks = True
    changed, clock = asyncio.Event(), asyncio.get_running_loop().time

    async def follow() -> None:
        async with aclosing(relay_of(client).run(run_id, None, wanted(None), patient=True)) as events:
            async for event in events:
                picture.apply(event)
                changed.set()

    following = asyncio.create_task(follow())
    following.add_done_callback(lambda _: changed.set())
    handle, asked = client.get_workflow_handle(run_id), clock() - WHOLE
    try:
        while not following.done():
            # What waited may have been decided meanwhile: nobody is to be asked about it twice.
            if picture.view.waiting or (picture.lacks and (picture.asks or clock() - asked >= WHOLE)):
                asked = clock()
                with contextlib.suppress(RPCError, WorkflowQueryFailedError):
                    picture.renew(await answer_of(handle, RUN_QUERY, result_type=RunView))
            yield picture.view.model_copy(deep=True)
            await asyncio.sleep(SHORTEST_LOOK)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, asked + WHOLE - clock()) if picture.lacks else None):
                    await changed.wait()
            changed.clear()
        following.result()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    yield await fetch_run(client, run_id)


async def watch_waiting(client: Client, run_id: str) -> AsyncGenerator[Waiting, None]:
    """Until nobody listens any more, once each, what waits for a person in a run and below it, as far as lists name it."""
    known: set[tuple[str, str, str]] = set()
    while True:
        await asyncio.sleep(TROUBLE_INTERVAL)
        with contextlib.suppress(RPCError, RunError):
            for one in await listed_below(client, run_id):
                if (key := (one.run_id, one.entry.call, one.entry.requested_at)) not in known:
                    known.add(key)
                    yield one


async def watch_trouble(client: Client, run_id: str) -> AsyncGenerator[str, None]:
    """Until nobody listens any more, once each, why a Request of a run is asked again, or its tasks fail."""
    handle = client.get_workflow_handle(run_id)
    last = ""
    while True:
        await asyncio.sleep(TROUBLE_INTERVAL)
        with contextlib.suppress(RPCError):
            description = await handle.describe()
            if (failing := await task_failure(client, description)) and failing != last:
                last = failing
                yield failing
            for pending in description.raw_description.pending_activities:
                asks = pending.activity_type.name == REQUEST_ACTIVITY and pending.HasField("last_failure")
                words = await failure_words(client, pending.last_failure) if asks else ""
                if words and words != last:
                    last = words
                    yield f"asking the model again: {words}"
