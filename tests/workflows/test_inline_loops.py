"""Loops that a run's own workflow runs: their calls are calls like all others, and many items go to a loop (R16.1, R16.5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.testing import WorkflowEnvironment

from perdure import ToolContext, ToolError, tool
from perdure.runs.wire import DECIDE
from perdure.testing import kill, run_locally
from tests.support import DONE, agent, harness
from tests.workflows.test_delegates import parts, save

pytestmark = pytest.mark.asyncio(loop_scope="session")

told: Counter[str] = Counter()


@tool(retries=0)
async def check(host: str, n: int = 0) -> str:
    """Check a host."""
    if host.startswith("bad"):
        raise ToolError("unreachable", f"no route to {host}")
    return f"{host} {n}"


@tool(dangerous=True, retries=0)
async def restart(host: str) -> str:
    """Restart a host."""
    told[host] += 1
    return f"{host} is up"


def plan(*calls: dict[str, Any]) -> list[Any]:
    return [{"calls": list(calls), "output": None}, DONE]


EACH = {"_tool": "check", "host": "†item", "n": "†index", "_outputPath": "†state.seen"}


async def children(client: Any, run_id: str) -> int:
    history = await client.get_workflow_handle(run_id).fetch_history()
    return sum(e.event_type == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED for e in history.events)


async def test_r16_1_twenty_items_cost_no_child_and_each_is_a_call(dev_server: WorkflowEnvironment) -> None:
    hosts = [f"h{n}" for n in range(19)] + ["bad"]
    async with harness(dev_server.client, [check], plan(EACH | {"_each": hosts})) as it:
        view = await it.run(agent("check"))
        assert await children(it.client, view.run_id) == 0
    assert [call.id for call in view.calls] == ["1.0", *(f"1.0[{n}]" for n in range(20))]
    assert view.calls[3].params == {"host": "h2", "n": 2}
    assert view.calls[3].attempts == 1
    assert view.state["seen"][:2] == ["h0 0", "h1 1"]
    assert [e["error"]["message"] for e in view.errors] == ["iteration 19 failed: unreachable: no route to bad"]


async def test_r16_5_each_item_is_asked_about_by_itself(dev_server: WorkflowEnvironment) -> None:
    loop = {"_tool": "_for", "_each": ["a", "b", "c"], "_as": "h", "_body": [
        {"_tool": "check", "host": "†h", "_outputPath": "†state.load"},
        {"_tool": "restart", "host": "†state.load", "_outputPath": "†state.up"},
    ]}  # fmt: skip
    script = [{"calls": [loop], "output": {"ok": "before anybody knew of the rejection"}}, DONE]
    async with harness(dev_server.client, [check, restart], script) as it:
        handle = await it.start(agent("check", "restart"))
        ids = ["1.0[0].1", "1.0[1].1", "1.0[2].1"]
        view = await it.until_waiting(handle.id, *ids)
        offered = {offer.call: offer.params for offer in view.waiting}  # in whatever order they became ready
        assert [offered[id] for id in ids] == [{"host": f"{host} 0"} for host in "abc"]
        await handle.signal(DECIDE, {"call": ids[0], "decision": "reject", "reason": "still needed"})
        await handle.signal(
            DECIDE, {"call": ids[1], "decision": "edit", "params": {"host": {"_ref": "{†state.load}!"}}}
        )
        await handle.signal(DECIDE, {"call": ids[2], "decision": "approve", "remember": True})
        await handle.result()
        view = await it.view(handle.id)
    rejected = {"error": {"index": 0, "code": "rejected", "message": "rejected: still needed"}}
    assert view.state["up"] == [rejected, "b 0! is up", "c 0 is up"]
    assert {call.id: call.status for call in view.calls}["1.0[0].1"] == "rejected"
    assert (view.output, view.requests) == (DONE["output"], 2), (
        "what was rejected is told before an output counts (R6.4)"
    )
    assert view.errors == []


async def test_r8_7_more_items_go_to_a_loop_of_parts(dev_server: WorkflowEnvironment) -> None:
    hosts = [f"h{n}" for n in range(155)]
    hosts[5], hosts[150] = "bad1", "bad2"
    loop: dict[str, Any] = {"_tool": "_for", "_each": "†state.hosts", "_as": "h", "_body": [
        {"_tool": "check", "host": "†h", "n": "†index", "_outputPath": "†state.load"},
        {"_tool": "check", "host": "{†state.load}{†input.end}", "_if": "index % 100 == 7", "_outputPath": "†state.again"},
    ]}  # fmt: skip
    calls = [EACH | {"_each": "†state.hosts", "_parallel": 100}, loop, {"_tool": "check", "host": "†state.seen[154]"}]
    document = agent("check", context=[{"type": "state", "state": {"hosts": hosts}}, {"type": "input"}])
    async with harness(dev_server.client, [check], plan(*calls)) as it:
        view = await it.run(document, {"end": "!"})
        assert await children(it.client, view.run_id) == 2
        part = await it.view(f"{view.run_id}/1.0/1")
    assert [call.status for call in view.calls] == ["done", "done", "done"]
    seen, error = view.state["seen"], {"index": 150, "code": "unreachable", "message": "no route to bad2"}
    assert (len(seen), seen[154], seen[150]["error"]["index"]) == (155, "h154 154", 150)
    assert view.state["load"][149:151] == ["h149 149", {"error": error}]
    assert view.state["again"][105:108] == [None, None, "h107 107! 0"]
    assert [e["error"]["message"] for e in view.errors][:2] == [
        "iteration 5 failed: unreachable: no route to bad1",
        "iteration 150 failed: unreachable: no route to bad2",
    ]
    assert part.requests == 0
    assert part.calls[1].id == "0.0[100]"


CHECKER = {
    "name": "checker",
    "context": [
        {"type": "system", "text": "You are CHECKER."},
        {"type": "tool", "tool": "check"},
        {"type": "input"},
        {
            "type": "plan",
            "plan": [{"_tool": "check", "host": "†input.host", "n": "†input.index", "_outputPath": "†state.seen"}],
            "output": {"seen": "†state.seen"},
        },
    ],
    "schema": {"type": "object", "required": ["seen"]},
}


async def test_r16_1_a_delegate_whose_parameters_go_by_the_item(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    call = {"_tool": "check_one", "host": "{†item.name}.local", "_if": "item.on", "_outputPath": "†state.all"}
    each = [{"name": "a", "on": True}, {"name": "b", "on": False}]
    delegate = {"name": "check_one", "properties": {"host": {}}, "_delegate": "checker"}
    script = parts(PARENT=plan(call | {"_each": each}))
    async with harness(dev_server.client, [check], script, agents=save(tmp_path, CHECKER)) as it:
        view = await it.run(agent(delegate))
    assert view.state["all"] == [{"seen": "a.local 0"}, None]


async def test_r16_5_a_worker_that_dies_in_a_loop_runs_nothing_twice() -> None:
    sent: list[tuple[str, str]] = []

    @tool
    async def send(context: ToolContext, to: str) -> str:
        """Send."""
        if (to, context.idempotency_key) not in sent:
            sent.append((to, context.idempotency_key))
        await asyncio.sleep(0)
        return f"sent to {to}"

    loop = {"_tool": "send", "to": "†item", "_each": ["a", "b", "c", "d"], "_parallel": 2, "_outputPath": "†state.sent"}
    async with run_locally(
        agent("send"), model=plan(loop), tools=[send], faults=[kill("send", "during", call=2)]
    ) as local:
        view = await local.run()
        local.assert_once("send", to="c")
    assert view.state["sent"] == [f"sent to {to}" for to in "abcd"]
    assert sorted(to for to, _ in sent) == ["a", "b", "c", "d"]


@tool
async def poll(n: int) -> int:
    """Look again."""
    await asyncio.sleep(0.1)
    return n


async def test_r9_5_the_deadline_ends_a_loop(dev_server: WorkflowEnvironment) -> None:
    call = {"_tool": "poll", "n": "†index", "_until": "output < 0", "_max": 500, "_outputPath": "†state.n"}
    async with harness(dev_server.client, [poll], [{"calls": [call], "output": None}, DONE]) as it:
        view = await it.run(agent("poll", config={"deadline": 3.0}))
    assert (view.status, view.stop_reason) == ("completed", "deadline")
    assert (view.calls[0].status, view.calls[1].status, view.calls[-1].status) == ("skipped", "done", "failed")
    assert view.calls[-1].error == {"code": "deadline", "message": "cancelled, because " + str(view.calls[0].reason)}
