"""What delegates, loops and programs that decide add to a run's sums (section 18)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.approvals.requests import APPROVE_ACTIVITY
from perdure.client.run_operations import read_value
from perdure.runs.delegates import input_size
from perdure.runs.loops import LoopInput
from perdure.runs.wire import RunInput
from perdure.values.json import Json, loads
from perdure.values.limits import INLINE_INPUT
from perdure.values.sizes import Sizes
from tests.support import DONE, agent, answered, harness
from tests.timeouts import HANG
from tests.workflows.test_delegates import parts, save
from tests.workflows.test_size_limits import ended, make, risky, troubles

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool
def rows(count: int) -> list[str]:
    """Make a list."""
    return [f"row {number:06} of a table of many" for number in range(count)]


@tool
def length(text: str) -> int:
    """Count."""
    return len(text)


def below(name: str, plan: list[dict[str, Any]], output: Any) -> dict[str, Any]:
    """A delegate that asks no model."""
    tools = [{"type": "tool", "tool": name} for name in dict.fromkeys(call["_tool"] for call in plan)]
    return {"name": name, "context": [*tools, {"type": "input"}, {"type": "plan", "plan": plan, "output": output}]}


TWO_TEXTS = below(
    "two",
    [{"_tool": "make", "size": "†input.size", "_outputPath": f"†state.{name}"} for name in "ab"],
    {"both": ["†state.a", "†state.b"]},
)
SMALL = [{"_tool": "make", "size": 1}]
HAVE = {"name": "have", "properties": {"size": {}}}


async def test_r6_9_a_delegates_output_that_was_cut_is_an_error_of_its_call(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    calls = [
        {"_tool": "have", "size": 1_200_000, "_outputPath": "†state.large"},
        {"_tool": "have", "size": 850_000, "_outputPath": "†state.whole"},
    ]
    script = parts(PARENT=[{"calls": calls, "output": None}, DONE])
    async with harness(dev_server.client, [make], script, agents=save(tmp_path, TWO_TEXTS)) as it:
        handle = await ended(it, agent(HAVE | {"_delegate": "two"}))
        view = await it.view(handle.id)
        whole: Any = loads(await answered(lambda: read_value(it.client, f"{handle.id}/1.0", "output")))
        kept: Any = loads(await answered(lambda: read_value(it.client, handle.id, "†state.whole")))
        assert await troubles(it.client, handle) == []
    assert [call.status for call in view.calls] == ["failed", "done"]
    error = view.calls[0].error or {}
    assert error["code"] == "result_too_large"
    for words in ("2,400,", "1,900,000", f"perdure show {handle.id}/1.0 --value output", "external storage"):
        assert words in error["message"]
    assert [len(text) for text in whole["both"]] == [1_200_000] * 2
    # It is whole, though all of it stands in the delegate's state too.
    assert [len(text) for text in kept["both"]] == [850_000] * 2


async def test_r6_9_so_is_a_list_of_many_rows_and_an_iterations_output_in_its_loop(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    wide = below(
        "wide",
        [{"_tool": "rows", "count": "†input.item", "_outputPath": f"†state.{name}"} for name in "ab"],
        ["†state.a", "†state.b"],
    )
    call = {"_tool": "have", "_each": [2, 35_000, 3], "_outputPath": "†state.all"}
    script = parts(PARENT=[{"calls": [call], "output": None}, DONE])
    async with harness(dev_server.client, [rows], script, agents=save(tmp_path, wide), sandboxed=False) as it:
        handle = await ended(it, agent(HAVE | {"_delegate": "wide"}))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    every = view.state["all"]
    assert [len(every[0][0]), len(every[2][0])] == [2, 3]
    assert (every[1]["error"]["index"], every[1]["error"]["code"]) == (1, "result_too_large")
    assert f"perdure show {handle.id}/1.0/1 --value output" in every[1]["error"]["message"]


def by_size(offer: dict[str, Any]) -> Any:
    """A program that decides by what it is shown."""
    return {"decision": "approve" if len(offer["params"]["text"]) % 2 == 0 else "reject", "reason": "odd"}


RISKY: dict[str, Any] = {"ask": "dangerous", "approver": "tests.workflows.test_size_limits_of_children:by_size"}


async def test_r18_2_a_program_decides_on_large_parameters(dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "make", "size": 1_200_000, "_outputPath": "†state.even"},
        {"_tool": "make", "size": 1_200_001, "_outputPath": "†state.odd"},
        {"_tool": "make", "size": 1_899_900, "_outputPath": "†state.most"},
        *({"_tool": "risky", "text": f"†state.{name}"} for name in ("even", "odd", "most")),
    ]
    script = [{"calls": calls, "output": None}, DONE]
    async with harness(
        dev_server.client, [make, risky], script, named=["tests.workflows.test_size_limits_of_children"]
    ) as it:
        handle = await it.start(agent("make", "risky", config={"approval": RISKY}))
        async with asyncio.timeout(HANG):
            while True:  # what cannot be shown whole is left to a person, and says so
                view = await it.until_waiting(handle.id, "1.5")
                if view.refusals:
                    break
                await asyncio.sleep(0.02)
        await handle.signal("reject", {"call": "1.5", "reason": "a person"})
        await handle.result()
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    assert [call.status for call in view.calls[3:]] == ["done", "rejected", "rejected"]
    assert [call.approval.by for call in view.calls[3:] if call.approval] == [RISKY["approver"]] * 2 + [""]
    assert "is too large for an approver program" in view.refusals[0]["problem"]


@pytest.mark.parametrize("count", [120, pytest.param(450, marks=pytest.mark.soak)])
async def test_r18_2_a_program_is_asked_about_hundreds_in_turns(dev_server: WorkflowEnvironment, count: int) -> None:
    calls = [{"_tool": "risky", "text": "†state.text", "n": n} for n in range(count)]
    context = [
        {"type": "state", "state": {"text": "x" * 12_000}},
        {"type": "plan", "plan": calls, "output": {"ok": True}},
    ]
    document = agent("risky", config={"approval": RISKY}, context=context)
    options: dict[str, Any] = {"named": ["tests.workflows.test_size_limits_of_children"], "sandboxed": False}
    async with harness(dev_server.client, [risky], [DONE], **options) as it:
        handle = await ended(it, document)
        view = await it.view(handle.id)
        history = await handle.fetch_history()
        assert await troubles(it.client, handle) == []
    assert [call.status for call in view.calls] == ["done"] * count
    asked: dict[int, int] = {}
    for event in history.events:
        sent = event.activity_task_scheduled_event_attributes
        if sent.activity_type.name == APPROVE_ACTIVITY:
            asked[sent.workflow_task_completed_event_id] = asked.get(sent.workflow_task_completed_event_id, 0) + 1
    assert sum(asked.values()) == count
    assert max(asked.values()) <= 100


async def by_and_by(_: dict[str, Any]) -> Any:
    """A program that takes its time."""
    await asyncio.sleep(0.1)
    return "approve"


async def test_r7_9_a_program_that_waits_for_a_busy_worker_still_decides(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time passed in the queue of the worker: on a busy machine some calls of hundreds waited for a person, for ever."""
    monkeypatch.setattr("perdure.workflows.approvals.PROGRAM_TIMEOUT", timedelta(seconds=3))
    module = "tests.workflows.test_size_limits_of_children"
    calls = [{"_tool": "risky", "text": "x", "n": n} for n in range(40)]
    document = agent("risky", config={"approval": {"ask": "dangerous", "approver": f"{module}:by_and_by"}})
    options: dict[str, Any] = {"named": [module], "sandboxed": False, "activities": 1}
    async with harness(dev_server.client, [risky], [{"calls": calls, "output": {"ok": True}}], **options) as it:
        handle = await ended(it, document)
        view = await it.view(handle.id)
    assert ([call.status for call in view.calls], view.refusals) == (["done"] * 40, [])


async def test_r18_2_what_many_delegates_read_goes_by_reference(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    reader = below("reader", [{"_tool": "length", "text": "†input.text", "_outputPath": "†state.n"}], "†state.n")
    documents = [reader, below("giver", SMALL, "†input.text")]
    tools = [
        {"name": "give", "properties": {"text": {}}, "_delegate": "giver"},
        {"name": "read", "properties": {"text": {}, "n": {}}, "_delegate": "reader"},
    ]
    # In each: `†state.text` is asked for of this run by the delegate, and of the delegate by its tool.
    calls = [
        {"_tool": "make", "size": 1_500_000, "_outputPath": "†state.text"},
        {"_tool": "give", "text": "†state.text", "_outputPath": "†state.given"},
        *({"_tool": "read", "text": "†state.text", "n": n} for n in range(5)),
        {"_tool": "read", "text": "†state.text", "_each": [1, 2, 3]},
    ]
    script = parts(PARENT=[{"calls": calls, "output": None}, DONE])
    options: dict[str, Any] = {"agents": save(tmp_path, *documents), "sandboxed": False}
    async with harness(dev_server.client, [make, length], script, **options) as it:
        handle = await ended(it, agent("make", *tools))
        view = await it.view(handle.id)
        events = (await handle.fetch_history()).events
        given: Any = loads(await answered(lambda: read_value(it.client, handle.id, "†state.given")))
        assert await troubles(it.client, handle) == []
    assert view.status == "completed"
    assert len(given) == 1_500_000
    assert [call.status for call in view.calls] == ["done"] * 8
    children = [event.start_child_workflow_execution_initiated_event_attributes for event in events]
    inputs = [child.input.ByteSize() for child in children if child.workflow_id]
    assert len(inputs) == 7
    assert max(inputs) < INLINE_INPUT


async def test_r18_1_what_many_delegates_read_is_measured_once() -> None:
    sizes = Sizes()
    large: list[Json] = ["x" * 1000]
    sizes.note(large, 1_500_000)  # what measured it anew would find less
    child = RunInput.model_construct(agent={"name": "reader"}, input={"list": large}, has_input=True)
    loop = LoopInput.model_construct(kind="each", agent={"name": "reader"}, params={"list": large}, items=large)
    assert 1_500_000 < input_size(child, sizes) < 1_502_000
    assert 3_000_000 < input_size(loop, sizes) < 3_002_000
    for argument in (child, loop):
        exact = len(argument.model_dump_json(by_alias=True).encode())
        assert exact <= input_size(argument, Sizes()) <= exact + 100
