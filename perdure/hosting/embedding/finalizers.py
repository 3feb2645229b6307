"""Finalizers stay out of workflows.

The collector runs in any thread that allocates, so also in one that carries out a workflow's task. A finalizer there may find the workflow's
event loop and start a task in it: an `AsyncOpenAI` that nobody has closed does so. No replay would start that task again.
"""

from __future__ import annotations

import asyncio
import gc
from threading import local
from typing import Any, Final

from temporalio import workflow


class _Hidden(local):
    """The workflow's event loop that this thread hides while the collector runs."""

    loop: asyncio.AbstractEventLoop | None = None


_hidden: Final = _Hidden()


def keep_out() -> None:
    """Hide the event loops of workflows from what the collector finalizes, in this process and from now on."""
    if _collecting not in gc.callbacks:
        gc.callbacks.append(_collecting)


def _collecting(phase: str, _: dict[str, Any]) -> None:
    loop, _hidden.loop = _hidden.loop, None
    if phase == "start" and workflow.in_workflow():
        _hidden.loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
    elif phase == "stop" and loop is not None:
        asyncio._set_running_loop(loop)
