"""The end of a worker: it takes nothing new, lets what runs end, and hands over the rest."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from perdure.activities.underway.ending import Underway
from perdure.hosting.workers import WorkerGroup

TOLD_EVERY: Final = 15.0
"""Seconds between lines about what is waited for."""
_NAMED: Final = 5
_log: Final = logging.getLogger("perdure.worker")


async def drain(worker: WorkerGroup, underway: Underway, interrupted: asyncio.Queue[int], grace: float) -> None:
    """Shut the worker down, telling in the log what is waited for.

    What still runs after `grace` seconds, which the worker was built with, or at the next interrupt, is cut off: it fails as
    `Interrupted`, and its run has another worker carry it out.
    """
    stopping = asyncio.ensure_future(worker.shutdown())
    again = asyncio.ensure_future(interrupted.get())
    waits = f", and waits up to {grace:g} s for {_listed(underway.titles)}; once more to hand over now"
    _say(f"draining: takes nothing new{waits if underway.titles else ''}")
    try:
        while not stopping.done():
            await asyncio.wait({stopping, again}, timeout=TOLD_EVERY, return_when=asyncio.FIRST_COMPLETED)
            if again.done():
                if underway.titles:
                    _say(f"hands over {_listed(underway.titles)}")
                underway.hand_over()
                again = asyncio.ensure_future(interrupted.get())
            elif not stopping.done() and underway.titles:
                _say(f"still waits for {_listed(underway.titles)}")
    finally:
        again.cancel()
    await stopping


def _listed(titles: list[str]) -> str:
    more = f" and {len(titles) - _NAMED} more" if len(titles) > _NAMED else ""
    return ", ".join(titles[:_NAMED]) + more


def _say(line: str) -> None:
    _log.info("%s", line)
