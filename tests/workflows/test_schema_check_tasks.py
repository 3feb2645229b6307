"""What checking against schemas takes is a sum of a workflow task, too (R18.5)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.errors import NoWorkerError
from perdure.runs.wire import NEXT_TASK_ACTIVITY
from tests.support import agent, harness
from tests.workflows.test_size_limits import ended, troubles

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
    item = {"allOf": [{"minimum": 0}, {"maximum": 10**9}, {"multipleOf": 1}]}
    rows: dict[str, Any] = {"type": "array", "items": item}
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
    assert any(
        event.activity_task_scheduled_event_attributes.activity_type.name == NEXT_TASK_ACTIVITY for event in events
    )


@pytest.mark.parametrize("rounds", [20, *(pytest.param(count, marks=pytest.mark.soak) for count in (40, 100))])
async def test_r16_6_a_loop_in_a_loop_comes_to_its_end_while_somebody_looks_at_it(
    dev_server: WorkflowEnvironment, rounds: int
) -> None:
    """The run was stuck within 32 s: its tasks took more than two seconds of a busy machine, and were done again for ever."""
    let = {"_tool": "_let", "value": "†b", "_outputPath": "†state.v"}
    inner = {"_tool": "_for", "_each": list(range(99)), "_as": "b", "_body": [let]}
    outer = {"_tool": "_for", "_each": list(range(rounds)), "_as": "a", "_body": [inner], "_outputPath": "†state.all"}
    seen: list[int] = []
    script = [{"calls": [outer], "output": {"last": f"†state.all[{rounds - 1}]"}}]
    async with harness(dev_server.client, [], script, sandboxed=False) as it:
        handle = await it.start(agent())
        result = asyncio.create_task(handle.result())
        while not result.done():
            with contextlib.suppress(NoWorkerError):  # a busy machine may not answer in time
                seen.append(len((await it.view(handle.id)).calls))
            await asyncio.wait({result}, timeout=0.3)
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    assert (view.status, view.output) == ("completed", {"last": list(range(99))})
    assert view.state["all"] == [list(range(99))] * rounds
    assert any(0 < count < len(view.calls) for count in seen), "somebody looked while it ran"


async def test_r9_5_a_deadline_ends_a_loop_whose_rounds_go_with_many_tasks(dev_server: WorkflowEnvironment) -> None:
    """Limits were looked at once all rounds had been made."""
    let = {"_tool": "_let", "value": "†b", "_outputPath": "†state.v"}
    inner = {"_tool": "_for", "_each": list(range(100)), "_as": "b", "_body": [let]}
    outer = {"_tool": "_for", "_each": list(range(100)), "_as": "a", "_body": [inner], "_outputPath": "†state.all"}
    script = [{"calls": [outer], "output": None}, {"calls": [], "output": {"ok": True}}]
    async with harness(dev_server.client, [], script, sandboxed=False) as it:
        handle = await ended(it, agent(config={"deadline": 0.5}))
        view = await it.view(handle.id)
    assert (view.status, view.stop_reason) == ("completed", "deadline")
    assert view.calls[0].status == "skipped"
    assert "1.0[99].0[99].0" not in {call.id for call in view.calls}
