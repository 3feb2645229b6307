"""Token rates of the queues of limited models: the server enforces the rates that the workers measure (R20.8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import RateLimit
from temporalio.api.workflowservice.v1 import UpdateTaskQueueConfigRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.models.token_rates import TokenRate, prompt_size
from perdure.models.usage import Usage
from perdure.values.json import JsonObject

_log: Final = logging.getLogger("perdure.worker")


class QueueRates:
    """The rates of this worker's queues of limited models. `limits`: Requests and tokens a minute, by the end of a
    queue's name.
    """

    def __init__(self, limits: Mapping[str, tuple[float | None, float | None]] | None = None) -> None:
        self._rates = {end: TokenRate(*limit) for end, limit in (limits or {}).items()}
        self._lock = asyncio.Lock()

    def _rate(self) -> TokenRate | None:
        """Return the rate of the queue that the activity came from; `None` for one without a limit."""
        queue = activity.info().task_queue
        return next((rate for end, rate in self._rates.items() if queue.endswith(end)), None)

    async def begin(self, body: JsonObject) -> int:
        """Count a Request by its estimated size, before it is sent. Return its number."""
        rate = self._rate()
        if rate is None:
            return 0
        number = rate.begin(prompt_size(body))
        await self._publish(rate)
        return number

    async def settle(self, number: int, usage: Usage) -> None:
        """Count a Request by the tokens that its server has counted."""
        rate = self._rate()
        if rate is not None:
            rate.settle(number, usage)
            await self._publish(rate)

    async def _publish(self, rate: TokenRate) -> None:
        async with self._lock:
            if (value := rate.take_change()) is not None:
                await set_queue_rate(activity.client(), activity.info().task_queue, value)


async def set_queue_rate(client: Client, queue: str, rate: float | None) -> None:
    """Set the server's rate of a queue, in Requests a second; `None`: the rate that its workers set.

    No history holds it.
    """
    change = UpdateTaskQueueConfigRequest.RateLimitUpdate(reason="limits of the model, by the size of its Requests")
    if rate is not None:
        change.rate_limit.CopyFrom(RateLimit(requests_per_second=rate))
    request = UpdateTaskQueueConfigRequest(
        namespace=client.namespace,
        identity=client.identity,
        task_queue=queue,
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        update_queue_rate_limit=change,
    )
    try:
        await client.workflow_service.update_task_queue_config(request)
    except RPCError as error:
        _log.warning(
            "the server does not set the rate of the queue %s (%s): the workers' own rate applies", queue, error
        )
