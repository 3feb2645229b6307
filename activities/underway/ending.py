"""What a worker is carrying out: told while it drains, and handed over where it does not end in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.plan.patience import INTERRUPTED, NOT_BEGUN


@dataclass
class Work:
    """An activity that is carried out."""

    begun: bool = True
    """Whether what may not be done twice may have been done."""


class Underway:
    """The activities of one worker."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[object], str] = {}
        self._handing_over = False

    @property
    def titles(self) -> list[str]:
        """What runs, oldest first."""
        return list(self._tasks.values())

    def hand_over(self) -> None:
        """Wait for nothing more: what runs is cut off, and run again by another worker."""
        self._handing_over = True
        for task in self._tasks:
            task.cancel()

    @property
    def interrupted(self) -> bool:
        """Whether the activity that asks is cut off because its worker ends, and not because anybody gave it up."""
        details = activity.cancellation_details()
        return self._handing_over or (details is not None and details.worker_shutdown)

    @asynccontextmanager
    async def working(self, title: str) -> AsyncIterator[Work]:
        """Carry out an activity. Cut off by its worker's end, it fails as `INTERRUPTED`, or as `NOT_BEGUN` where the work says so: no
        failure of its own, and no attempt used."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = title
        work = Work()
        try:
            yield work
        except asyncio.CancelledError:
            if not self.interrupted:
                raise
            kind = INTERRUPTED if work.begun else NOT_BEGUN
            words = f"{title} was cut off: its worker was shut down"
            raise ApplicationError(words, activity.info().attempt, type=kind, non_retryable=True) from None
        finally:
            del self._tasks[task]
