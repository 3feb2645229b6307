"""Commands that need more than one call of the Python API."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from perdure.cli._console import harmless, screen
from perdure.cli._errors import INTERRUPTED, CommandError
from perdure.cli._run_view import LiveRun, print_exchanges, print_waiting, run_table
from perdure.client.selection import WaitingRequest
from perdure.errors import RunError
from perdure.runs.wire import RunView

if TYPE_CHECKING:
    from perdure.agents.agent import Agent
    from perdure.client.perdure import Perdure
    from perdure.client.run import Run


async def run_agent(
    perdure: Perdure, agent: Agent, value: object, *, task_queue: str, no_wait: bool, live: bool, **given: Any
) -> RunView | str:
    """Start a run and follow it to its end. Return its view, or with `no_wait` its id at once."""
    run = await perdure.start(agent, value, task_queue=task_queue, **given)
    if no_wait:
        return run.id
    print(f"run {run.id}", file=sys.stderr)
    if not await perdure.has_worker(task_queue):
        print(f"perdure: no worker listens on task queue {task_queue!r} yet; the run waits for one", file=sys.stderr)
    try:
        return await _follow(run) if live else await _wait(run)
    except asyncio.CancelledError:
        raise CommandError(f"interrupted; the run goes on: perdure wait {run.id}", INTERRUPTED) from None


async def show(run: Run, *, verbose: bool = False, aside: bool = False) -> RunView:
    """Return the run's view. With `verbose`, print all prompts and answers first, with `aside` on stderr."""
    view = await run.view()
    if verbose:
        print_exchanges(screen(stderr=aside), await run.exchanges())
    return view


async def watch(run: Run, *, verbose: bool = False) -> RunView:
    """Follow a run to its end. With `verbose`, print all prompts and answers then."""
    await run.view()
    view = await _follow(run)
    if verbose:
        print_exchanges(screen(), await run.exchanges())
    return view


async def next_pending(perdure: Perdure, run_id: str | None, skipped: set[tuple[str, str]]) -> WaitingRequest | None:
    """Return the oldest waiting request of this run, or of all runs, that is not in `skipped`."""
    if run_id is not None:
        found, _ = await perdure.get_run(run_id).waiting_below()
        return next((one for one in found if (one.run_id, one.request.call) not in skipped), None)
    for listed in (await perdure.approvals()).waiting:
        if (listed.run_id, listed.entry.call) not in skipped:
            # The index lags: requests that are decided already are skipped.
            with contextlib.suppress(RunError):
                for request in await perdure.get_run(listed.run_id).waiting(listed.entry.call):
                    return WaitingRequest(listed.run_id, request)
    return None


async def _follow(run: Run) -> RunView:
    view = RunView(run_id=run.id)
    console = screen()
    with LiveRun(console) as live:
        async for view in run.views():
            live.show(view)
    console.print(run_table(view, console.width))
    return view


async def _wait(run: Run) -> RunView:
    printing = [asyncio.create_task(_print_troubles(run)), asyncio.create_task(print_waiting(run))]
    try:
        return await run.wait()
    finally:
        for each in printing:
            each.cancel()


async def _print_troubles(run: Run) -> None:
    async for trouble in run.troubles():
        print(f"perdure: {harmless(str(trouble))}", file=sys.stderr)
