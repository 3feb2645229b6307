"""What checking against schemas takes is a sum of a workflow task, too (R18.5)."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from tests.support import agent, harness
from tests.test_sums import ended, troubles

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool
def make(size: int) -> list[int]:
    """Make a list."""
    return list(range(size))


@tool
def measure(values: list[int], n: int) -> int:
    """Measure it."""
    return len(values) + n


async def test_r18_5_checks_that_take_long_go_with_several_tasks(dev_server: WorkflowEnvironment) -> None:
    rows: dict[str, Any] = {"type": "array", "items": {"minimum": 0, "maximum": 10**9, "multipleOf": 1}}
    slow = {"name": "slow", "properties": {"values": rows, "n": {}}, "_activity": "measure"}
    paths = [f"†state.v{n}" for n in range(3)]
    calls: list[dict[str, Any]] = [{"_tool": "make", "size": 130_000, "_outputPath": path} for path in paths]
    # All become ready by the same event: `n` is the last that they wait for.
    calls.append({"_tool": "make", "size": 1, "_outputPath": "†state.n", "_after": paths})
    calls += [
        {"_tool": "slow", "values": path, "n": "†state.n[0]", "_outputPath": f"†state.r{n}"}
        for n, path in enumerate(paths)
    ]
    async with harness(
        dev_server.client, [make, measure], [{"calls": calls, "output": {"ok": True}}], sandboxed=False
    ) as it:
        handle = await ended(it, agent("make", slow))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
        events = (await handle.fetch_history()).events
    assert view.status == "completed"
    assert [view.state[f"r{n}"] for n in range(3)] == [130_000] * 3
    assert any(event.event_type == EventType.EVENT_TYPE_TIMER_STARTED for event in events)
