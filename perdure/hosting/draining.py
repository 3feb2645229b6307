"""The end of a worker: it takes nothing new, lets what runs end, and hands over the rest."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from perdure.activities.underway.ending import Underway
from perdure.hosting.operating.held import held_runs
from perdure.hosting.workers import WorkerGroup

TOLD_EVERY: Final = 15.0
"""Seconds between lines about what is waited for."""
LEAVES_AFTER: Final = 10.0
"""Seconds beyond the grace, or the second interrupt, in which the SDK has to put the worker's runs out of memory."""
_NAMED: Final = 5
_log: Final = logging.getLogger("perdure.worker")


async def drain(worker: WorkerGroup, underway: Underway, interrupted: asyncio.Queue[int], grace: float) -> bool:
    """Shut the worker down, telling in the log what is waited for. Return whether it has ended.

    What still runs after `grace` seconds, which the worker was built with, or at the next interrupt, is cut off: it fails as
    `Interrupted`, and its run has another worker carry it out. A worker that has not ended `LEAVES_AFTER` seconds later is abandoned:
    the SDK waits for ever for a run that it cannot evict, and the process is to be left with `leave_at_once`.
    """
    stopping = asyncio.ensure_future(worker.shutdown())
    again = asyncio.ensure_future(interrupted.get())
    clock = asyncio.get_running_loop().time
    end = clock() + grace + LEAVES_AFTER
    waits = f", and waits up to {grace:g} s for {_listed(underway.titles)}; once more to hand over now"
    _say(f"draining: takes nothing new{waits if underway.titles else ''}")
    try:
        while not stopping.done():
            left = max(0.0, end - clock())
            await asyncio.wait({stopping, again}, timeout=min(TOLD_EVERY, left), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done() and clock() >= end:
                _say_held(held_runs(), underway.titles)
                worker.abandon()
                stopping.cancel()
                return False
            if again.done():
                end = min(end, clock() + LEAVES_AFTER)
                if underway.titles:
                    _say(f"hands over {_listed(underway.titles)}")
                underway.hand_over()
                again = asyncio.ensure_future(interrupted.get())
            elif not stopping.done() and underway.titles:
                _say(f"still waits for {_listed(underway.titles)}")
    finally:
        again.cancel()
    await stopping
    return True


def _say_held(runs: list[str], titles: list[str]) -> None:
    """Other workers go on with these runs: nothing of them is lost."""
    if runs:
        _log.error("leaves without runs that could not be evicted, other workers go on with them: %s", _listed(runs))
    if titles or not runs:
        _log.error("leaves without waiting for %s", _listed(titles) or "its pollers")


def _listed(titles: list[str]) -> str:
    more = f" and {len(titles) - _NAMED} more" if len(titles) > _NAMED else ""
    return ", ".join(titles[:_NAMED]) + more


def _say(line: str) -> None:
    _log.info("%s", line)
