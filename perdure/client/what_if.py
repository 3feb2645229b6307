"""Reports on recorded runs that are played again under a change (R22.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from temporalio.client import Client

from perdure.client._run_lists import walk_runs
from perdure.client.histories import audit_run
from perdure.client.selection import Selection
from perdure.errors import RunError
from perdure.hosting.model_client import ModelClient
from perdure.runs.run_player import RecordedRun
from perdure.runs.what_if import Change, RunReport, WhatIfReport, ask_what_if

AT_ONCE: Final = 8
"""The number of runs that are read at once."""
LIMIT: Final = 500
"""The most runs that are played by default."""


async def read_run(client: Client, run_id: str) -> RecordedRun:
    """Return a run from a replay of its history; no worker has to run. Raises `RunError`."""
    audit = await audit_run(client, run_id)
    if not audit.logs:
        raise RunError(f"{run_id} has not started")
    return RecordedRun(run_id, audit.logs, audit.view)


async def what_if(
    client: Client,
    change: Change,
    selection: Selection | None = None,
    *,
    ids: Sequence[str] = (),
    limit: int = LIMIT,
    models: ModelClient | None = None,
    on_run: Callable[[RunReport], None] = lambda _: None,
) -> WhatIfReport:
    """Play recorded runs under the change, and report on each.

    `selection`: the runs, the newest `limit` of them; without the runs of delegates. `ids`: runs by id, in its place.
    `models`: the models to call, if the change needs any. `on_run` receives each report as it is ready. Raises
    `RunError` for a selection that cannot be listed.
    """
    models = models or ModelClient()
    change = replace(change, prices=models.prices(change.models))
    places, reports = asyncio.Semaphore(AT_ONCE), dict[int, RunReport]()

    async def play(place: int, run_id: str) -> None:
        async with places:
            reports[place] = await _play(client, run_id, change, models)
            on_run(reports[place])

    async with asyncio.TaskGroup() as group:
        place = 0
        async for run_id in _chosen(client, selection or Selection(outermost=True), ids, limit):
            group.create_task(play(place, run_id))
            place += 1
    return WhatIfReport(runs=[reports[place] for place in sorted(reports)])


async def _chosen(client: Client, selection: Selection, ids: Sequence[str], limit: int) -> AsyncIterator[str]:
    if ids:
        for run_id in ids:
            yield run_id
        return
    async with aclosing(walk_runs(client, selection, limit)) as runs:
        async for run in runs:
            yield run.id


async def _play(client: Client, run_id: str, change: Change, models: ModelClient) -> RunReport:
    try:
        recorded = await read_run(client, run_id)
    except RunError as error:
        return RunReport(run_id=run_id, problem=str(error))
    playing, answer = ask_what_if(recorded, change), None
    while True:
        try:
            question = playing.send(answer)
        except StopIteration as ended:
            report: RunReport = ended.value
            return report
        try:
            answer = await models.ask(question.model, question.context)
        except RunError as error:
            playing.close()
            return RunReport(run_id=run_id, problem=str(error))
