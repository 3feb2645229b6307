"""The floor is everywhere: delegates, loops, other queues, and workers that only run tools (R7.1, R8.2)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.runs.wire import POLICY
from tests.support import DONE, agent, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

ran: list[str] = []


@tool(dangerous=True)
def wipe(path: str) -> str:
    ran.append(path)
    return f"wiped {path}"


@tool
def pay(amount: int) -> str:
    ran.append(f"paid {amount}")
    return "paid"


def elsewhere(queue: str) -> dict[str, Any]:
    """As an agent file defines a tool whose code is on another machine: it may say what it likes."""
    return {"name": "wipe", "properties": {"path": {}}, "_taskQueue": queue, "_safe": True, "_approval": "never"}


async def test_a_dangerous_tool_on_a_worker_of_tools_alone_is_asked_about(dev_server: WorkflowEnvironment) -> None:
    script = [{"calls": [{"_tool": "wipe", "path": f"/far/{n}"} for n in range(2)]}, DONE]
    floor: dict[str, Any] = {"approval_floor": "dangerous"}
    async with (
        harness(dev_server.client, [wipe], [], tools_only=True, **floor) as far,
        harness(dev_server.client, [], script, **floor) as it,
    ):
        handle = await it.start(agent(elsewhere(far.task_queue), config={"approval": {"ask": "never"}}))
        view = await it.until_waiting(handle.id, "1.0", "1.1")
        await handle.signal("approve", {"call": "1.0"})
        await handle.signal("edit", {"call": "1.1", "params": {"path": "/far/edited"}})
        result = await handle.result()
    assert "the tool's code is unknown" in view.waiting[0].reason
    assert [call.status for call in result.calls] == ["done", "done"]
    assert sorted(path for path in ran if path.startswith("/far")) == ["/far/0", "/far/edited"]


async def test_a_worker_with_a_floor_runs_nothing_for_a_run_that_has_none(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "wipe", "path": "/unasked"}]
    async with (
        harness(dev_server.client, [wipe], [], tools_only=True, approval_floor="dangerous") as far,
        harness(dev_server.client, [], [{"calls": calls}, DONE]) as it,
    ):
        view = await it.run(agent(elsewhere(far.task_queue), config={"approval": {"ask": "never"}}))
    error = view.errors[0]["error"]
    assert (view.calls[0].status, error["code"]) == ("failed", "approval_required")
    assert "start the workers that run the agents with --approval-floor dangerous too" in error["message"]
    assert "/unasked" not in ran


async def test_a_delegate_on_another_queue_stands_on_the_floor_above_it(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Its worker has no floor of its own, and its agent file asks about nothing."""
    cleaner = {
        "name": "cleaner",
        "config": {"approval": {"ask": "never", "timeout": 1, "on_timeout": "approve"}},
        "context": [{"type": "tool", "tool": "wipe"}],
    }
    (tmp_path / "cleaner.json").write_text(json.dumps(cleaner))
    calls = [{"_tool": "wipe", "path": "/below"}]
    async with harness(dev_server.client, [wipe], [{"calls": calls}, DONE]) as below:
        clean = {"name": "clean", "_delegate": "cleaner", "_taskQueue": below.task_queue}
        script = [{"calls": [{"_tool": "clean"}]}, DONE]
        async with harness(dev_server.client, [wipe], script, agents=tmp_path, approval_floor="dangerous") as it:
            handle = await it.start(agent(clean))
            await asyncio.wait_for(handle.result(), HANG)
            child = await it.view(f"{handle.id}/1.0")
    assert (child.calls[0].status, child.calls[0].reason) == ("rejected", "rejected: nobody decided within 1 s")
    assert "/below" not in ran


PAYS = {"name": "helper", "properties": {"sum": {}}, "_delegate": "anonymous", "_scopes": ["tools"]}
CAREFUL = {"approval": {"tools": {"pay": "always"}, "timeout": 3600, "on_timeout": "reject"}}


async def test_tools_given_to_a_delegate_keep_the_givers_policy_and_a_change_of_it_reaches_them(
    dev_server: WorkflowEnvironment,
) -> None:
    script = [
        {"calls": [{"_tool": "helper", "sum": 7}]},
        {"calls": [{"_tool": "pay", "amount": 7}, {"_tool": "pay", "amount": 8}]},
        DONE,
        DONE,
    ]
    async with harness(dev_server.client, [pay], script) as it:
        handle = await it.start(agent("pay", PAYS, config=CAREFUL))
        child = f"{handle.id}/1.0"
        async with asyncio.timeout(HANG):
            view = await it.until_waiting(child, "1.0", "1.1")
        assert view.waiting[0].reason == "pay is always asked about"
        assert "paid 7" not in ran
        await it.client.get_workflow_handle(child).signal("reject", {"call": "1.1"})
        await handle.execute_update(POLICY, {"tools": {"pay": "never"}})
        await asyncio.wait_for(handle.result(), HANG)
        ended = await it.view(child)
    approvals = [call.approval for call in ended.calls if call.approval]
    assert [(each.decision, each.by) for each in approvals] == [("approve", "policy"), ("reject", "")]
    assert [each for each in ran if each.startswith("paid")] == ["paid 7"]


async def test_a_change_of_policy_reaches_the_iterations_of_a_loop(dev_server: WorkflowEnvironment) -> None:
    def answer(request: Any) -> Any:
        pays = {"calls": [{"_tool": "pay", "amount": 100}]}
        return DONE if "paid" in request.text or "rejected" in request.text else pays

    script = [{"calls": [{"_tool": "helper", "sum": 0, "_each": [1, 2, 3], "_parallel": 2}]}, *[answer] * 6, DONE]
    async with harness(dev_server.client, [pay], script) as it:
        handle = await it.start(agent("pay", PAYS, config=CAREFUL))
        first, second, third = (f"{handle.id}/1.0/{index}" for index in range(3))
        await it.until_waiting(first, "1.0")
        await it.until_waiting(second, "1.0")
        before = ran.count("paid 100")
        await handle.signal(POLICY, {"tools": {"pay": "never"}})
        await asyncio.wait_for(handle.result(), HANG)
        last = await it.view(third)
    assert (before, ran.count("paid 100")) == (0, 3)
    assert last.calls[0].approval is None
