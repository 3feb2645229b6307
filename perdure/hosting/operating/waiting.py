"""How much waits for people, and for how long: gauges that a worker tells, by visibility, which costs no Action."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Final

from temporalio.client import Client
from temporalio.common import MetricMeter, SearchAttributeKey
from temporalio.service import RPCError

from perdure.run.views.observing import METRICS
from perdure.run.wire import AGENT_WORKFLOW, WAITING_ATTRIBUTE, WAITING_MEMO, WaitingMemo

EVERY: Final = 60.0
"""Seconds between looks."""
MOST: Final = 10_000
"""Runs that are looked at."""
_QUERY: Final = f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus = 'Running' AND {WAITING_ATTRIBUTE} > 0"
_WAITING: Final = SearchAttributeKey.for_int(WAITING_ATTRIBUTE)


async def look(client: Client) -> tuple[int, float]:
    """How much waits in the namespace, and the seconds since the oldest was offered; 0: nothing waits."""
    count, oldest, now = 0, 0.0, datetime.now(UTC)
    async for run in client.list_workflows(_QUERY, limit=MOST):
        memo = await run.memo_value(WAITING_MEMO, WaitingMemo(agent="", calls=[]), type_hint=WaitingMemo)
        count += run.typed_search_attributes.get(_WAITING) or 0
        for entry in memo.calls:
            oldest = max(oldest, (now - datetime.fromisoformat(entry.requested_at)).total_seconds())
    return count, oldest


async def tell_waiting(client: Client, meter: MetricMeter) -> None:
    """Look again and again, until cancelled. Where the namespace cannot list what waits nothing is told."""
    names = ("perdure_approvals_waiting", "perdure_approvals_oldest_seconds")
    waiting, oldest = (meter.create_gauge_float(name, METRICS[name].help) for name in names)
    attributes = {"namespace": client.namespace}
    while True:
        with contextlib.suppress(RPCError):
            count, seconds = await look(client)
            waiting.set(float(count), attributes)
            oldest.set(seconds, attributes)
        await asyncio.sleep(EVERY)
