"""Requests and calls of limited models and tools go to queues of their own, for as long as workers limit them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError

from perdure.workflows.failures import not_taken_up

with workflow.unsafe.imports_passed_through():
    from perdure.run.running import Run
    from perdure.run.wire import LIMITED_ACTIVITY
    from perdure.tools.limited import Limited
    from perdure.tools.tool import QUEUE_TIMEOUT, Tool

WAIT: Final = timedelta(seconds=QUEUE_TIMEOUT)
"""For a turn in such a queue; then the workers are asked whether they still have it."""


class Routing:
    """The queues of one run. What the worker recorded at its start holds until nobody takes anything up there."""

    def __init__(self, run: Run) -> None:
        self._agent_run = run

    def model(self, model: str) -> str | None:
        """The queue of a limited model; `None`: the run's own."""
        return self._limited.of_model(workflow.info().task_queue, model)

    def tool(self, tool: Tool) -> str | None:
        """The queue of a limited tool; `None`: where its other calls go."""
        return self._limited.of_tool(tool.task_queue or workflow.info().task_queue, tool.activity or tool.name)

    async def lifted(self, error: ActivityError, tool: Tool | None = None) -> bool:
        """Whether to send it once more, as its turn has not come: to where the workers say by now.

        A tool of another queue has workers of its own, which may be gone: it is sent again only where it is limited no more.
        """
        if not not_taken_up(error):
            return False
        self._agent_run.prepared = self._agent_run.prepared.model_copy(update={"limited": await ask_limited()})
        return tool is None or tool.task_queue is None or self.tool(tool) is None

    @property
    def _limited(self) -> Limited:
        return self._agent_run.prepared.limited


async def ask_limited() -> Limited:
    """What the workers hold to a rate by now."""
    found: Limited = await workflow.execute_local_activity(
        LIMITED_ACTIVITY, result_type=Limited, start_to_close_timeout=timedelta(seconds=30)
    )
    return found
