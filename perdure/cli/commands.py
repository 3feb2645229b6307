"""What the commands that talk to a server do. Loaded only by them: a plan is validated without Temporal's client."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.authoring.files import json_option, read_agent
from perdure.cli.errors import INTERRUPTED, TIMEOUT, USAGE, CommandError
from perdure.cli.exchanges import print_exchanges
from perdure.cli.render import run_table
from perdure.client import approvals, listing
from perdure.client.approvals import Offered, WaitingPage
from perdure.client.audit import exchanges
from perdure.client.listing import RunPage, Selection
from perdure.client.runs import fetch_run, has_worker, start_run, wait_run
from perdure.client.runs import read_value as read_value_of
from perdure.client.watching import tell_trouble, watch_run
from perdure.errors import RunError
from perdure.hosting.connection import connect
from perdure.hosting.settings import in_force
from perdure.hosting.telemetry import flush, silent_runtime
from perdure.people.policies import parse_policy
from perdure.run.agents import Context
from perdure.run.wire import RunView
from perdure.values.jsons import JsonObject

__all__ = [
    "RPCError",
    "cancel",
    "cancel_many",
    "change_policies",
    "change_policy",
    "decide",
    "flush",
    "list_page",
    "list_waiting",
    "next_offer",
    "offers",
    "pause",
    "run",
    "show",
    "wait",
    "watch",
]


async def _connect() -> Client:
    return await connect(silent_runtime())


async def run(
    agent: str,
    run_input: str | None,
    run_id: str | None,
    *,
    no_wait: bool,
    live: bool,
    task_queue: str,
    approval: JsonObject,
    sender: str | None = None,
    tenant: str | None = None,
) -> RunView | str:
    """Start an agent; its run, or with `no_wait` its id."""
    if run_id is not None and not run_id.strip():
        raise CommandError("--id is empty: give the run a name, or leave it out for one of its own", USAGE)
    found, document = read_agent(agent, in_force().agents_folder)
    value = None if run_input is None else json_option(run_input, "--input")
    parse_policy(approval)
    Context(found, value, has_input=run_input is not None)  # what the run would refuse needs no server to be refused
    client = await _connect()
    handle = await start_run(
        client,
        found,
        document,
        value,
        has_input=run_input is not None,
        run_id=run_id,
        task_queue=task_queue,
        approval=approval,
        sender=sender,
        tenant=tenant,
    )
    if no_wait:
        return handle.id
    print(f"run {handle.id}", file=sys.stderr)
    if not await has_worker(client, task_queue):
        print(f"perdure: no worker listens on task queue {task_queue!r} yet; the run waits for one", file=sys.stderr)
    try:
        if live:
            return await _watch(client, handle.id)
        telling = asyncio.create_task(tell_trouble(client, handle.id, _tell))
        try:
            view = await wait_run(client, handle.id)
        finally:
            telling.cancel()
        assert view is not None
        return view
    except asyncio.CancelledError:
        raise CommandError(f"interrupted; the run goes on: perdure wait {handle.id}", INTERRUPTED) from None


def _tell(trouble: str) -> None:
    print(f"perdure: asking the model again: {trouble}", file=sys.stderr)


async def wait(run_id: str, timeout: float) -> RunView:
    """Raises `CommandError` with the exit code for a timeout."""
    view = await wait_run(await _connect(), run_id, timeout)
    if view is None:
        raise CommandError(f"{run_id} has not ended after {timeout:g} s; it goes on", TIMEOUT)
    return view


async def show(run_id: str, *, verbose: bool = False, aside: bool = False) -> RunView:
    """The run; with `verbose` all that was sent and answered is printed first, `aside` on stderr."""
    client = await _connect()
    view = await fetch_run(client, run_id)
    if verbose:
        print_exchanges(Console(stderr=aside), await exchanges(client, run_id))
    return view


async def read_value(run_id: str, what: str) -> str:
    """One thing of a run, whole, as JSON."""
    return await read_value_of(await connect(), run_id, what)


async def watch(run_id: str, *, verbose: bool = False) -> RunView:
    """Follow a run to its end; with `verbose` print then all that was sent and answered."""
    client = await _connect()
    await fetch_run(client, run_id)
    view = await _watch(client, run_id)
    if verbose:
        print_exchanges(Console(), await exchanges(client, run_id))
    return view


async def cancel(run_id: str) -> str:
    """Ask for the cancellation; what to print. Raises `CommandError` for a run that has ended."""
    client = await _connect()
    view = await fetch_run(client, run_id)
    if view.status != "running":
        raise CommandError(f"{run_id} has already ended: {view.status}")
    await client.get_workflow_handle(run_id).cancel()
    return f"{run_id}: cancellation requested"


async def list_waiting(size: int, page: str | None) -> WaitingPage:
    return await approvals.list_waiting(await _connect(), size=size, page=page)


async def offers(run_id: str) -> tuple[list[Offered], list[str]]:
    """What waits in the run and its delegates', whole."""
    return await approvals.offers_below(await _connect(), run_id)


async def next_offer(run_id: str | None, skipped: set[tuple[str, str]]) -> Offered | None:
    """The oldest that waits, of this run or of all, but for those skipped."""
    client = await _connect()
    if run_id is not None:
        found, _ = await approvals.offers_below(client, run_id)
        return next((one for one in found if (one.run_id, one.offer.call) not in skipped), None)
    for listed in (await approvals.list_waiting(client)).waiting:
        if (listed.run_id, listed.entry.call) not in skipped:
            # The index is a moment late: what has been decided already is passed over.
            with contextlib.suppress(RunError):
                for one in await approvals.run_offers(client, listed.run_id, listed.entry.call):
                    return one
    return None


async def decide(run_id: str, decision: JsonObject) -> JsonObject:
    return await approvals.decide(await _connect(), run_id, decision)


async def change_policy(run_id: str, change: JsonObject) -> JsonObject:
    return await approvals.change_policy(await _connect(), run_id, change)


async def pause() -> None:
    """Until it is worth looking again."""
    await asyncio.sleep(1)


async def list_page(chosen: Selection, size: int, page: str | None) -> RunPage:
    return await listing.list_runs(await _connect(), chosen, size=size, page=page)


async def cancel_many(chosen: Selection, confirm: Callable[[int], bool]) -> int:
    """Cancel them, if that is confirmed of so many; how many it was asked of."""
    client = await _connect()
    return await listing.cancel_runs(client, chosen) if confirm(await listing.count_runs(client, chosen)) else 0


async def change_policies(chosen: Selection, change: JsonObject, confirm: Callable[[int], bool]) -> int:
    """Change their policies, if that is confirmed of so many; how many were told."""
    parse_policy(change)  # a signal that is wrong would change nothing, and say so to nobody
    client = await _connect()
    go_on = confirm(await listing.count_runs(client, chosen))
    return await listing.change_policies(client, chosen, change) if go_on else 0


async def _watch(client: Client, run_id: str) -> RunView:
    view = RunView(run_id=run_id)
    with Live(console=Console(), refresh_per_second=8, transient=False) as live:
        async for view in watch_run(client, run_id):
            live.update(run_table(view))
    print()
    return view
