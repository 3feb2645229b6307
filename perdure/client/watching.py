"""Following a run from outside. A look costs nothing where nothing happened: only a run whose history has grown is asked (R10.1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.activities.asking import answer_of
from perdure.client.approvals import listed_below
from perdure.client.lists import Waiting
from perdure.client.pending import failure_words, note_progress, note_silence, note_trouble, note_unserved
from perdure.client.runs import fetch_run, not_shown
from perdure.errors import RunError
from perdure.run.wire import REQUEST_ACTIVITY, RUN_QUERY, RunView

SHORTEST_LOOK: Final = 0.5
"""Seconds until the next look at a run in which something happens."""
LONGEST_LOOK: Final = 2.0
"""Seconds between looks at a run in which nothing does."""
TROUBLE_INTERVAL: Final = 1.5
"""Seconds between looks for trouble for one who only waits: the first retry comes after one."""


async def watch_run(client: Client, run_id: str, *, answered: bool = False) -> AsyncGenerator[RunView, None]:
    """The run at every look, the last one after its end. Raises `NoWorkerError` where it has to be `answered` at the first, and is not.

    A look describes the execution, which is no Action; a query is one, and goes only to a run whose history has grown since.
    """
    handle = client.get_workflow_handle(run_id)
    ended = asyncio.ensure_future(handle.result())
    pause, seen = SHORTEST_LOOK, ("", -1)
    view: RunView | None = None
    try:
        while not ended.done():
            # Where no worker answers now, the run goes on when one comes back.
            description = None
            try:
                description = await handle.describe()
                found = (description.run_id, description.history_length)
                if view is None or found != seen:
                    view = await answer_of(handle, RUN_QUERY, result_type=RunView)
                    seen, pause = found, SHORTEST_LOOK
                shown = view.model_copy(deep=True)
                note_unserved(shown, description)
                await note_trouble(client, shown, description)
                await note_progress(client, shown, description)
                note_silence(shown, description)
                yield shown
            except (RPCError, WorkflowQueryFailedError) as error:
                if answered and view is None and description and description.status is WorkflowExecutionStatus.RUNNING:
                    raise not_shown(error, description) from None
            await asyncio.wait([ended], timeout=pause)
            pause = min(pause * 1.5, LONGEST_LOOK)
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
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
    """Until nobody listens any more, once each, why a Request of a run is asked again."""
    handle = client.get_workflow_handle(run_id)
    last = ""
    while True:
        await asyncio.sleep(TROUBLE_INTERVAL)
        with contextlib.suppress(RPCError):
            for pending in (await handle.describe()).raw_description.pending_activities:
                asks = pending.activity_type.name == REQUEST_ACTIVITY and pending.HasField("last_failure")
                words = await failure_words(client, pending.last_failure) if asks else ""
                if words and words != last:
                    last = words
                    yield words
