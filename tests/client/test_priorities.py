"""An interactive run does not wait behind a batch (R24.3): priorities of starts, agents and sessions."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure
from perdure.errors import InputError, RunError
from perdure.runs.wire import REQUEST_ACTIVITY
from perdure.testing.scripted_model import ChatRequest, Turn
from tests.support import DONE, harness, until_queue

pytestmark = pytest.mark.asyncio(loop_scope="session")

BATCH = 12
INPUT: Any = {"type": "input", "schema": {"type": "string"}}


def answering(name: str, *context: Any, **config: Any) -> Agent[Any]:
    return Agent.of({"name": name, "context": list(context), "schema": {"type": "string"}, "config": config})


async def until_pending(client: Client, id: str) -> None:
    """Until a Request of the run waits for its answer."""
    while True:
        found = (await client.get_workflow_handle(id).describe()).raw_description.pending_activities
        if any(each.activity_type.name == REQUEST_ACTIVITY for each in found):
            return
        await asyncio.sleep(0.05)


async def test_r24_3_runs_of_a_smaller_number_go_first(dev_server: WorkflowEnvironment) -> None:
    begun: list[str] = []
    gate = asyncio.Event()

    def answer(request: ChatRequest) -> Turn:
        begun.append(str(request.messages[-1]["content"]))
        return Turn({"calls": [], "output": "ok"}, gate=gate if len(begun) == 1 else None)

    async with harness(dev_server.client, [], answer, activities=1, sandboxed=False) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        usual, urgent = answering("usual", INPUT), answering("urgent", INPUT, priority=1)
        first = await perdure.start(usual, "the one that holds the only place")
        await until_pending(it.client, first.id)
        batch = [await perdure.start(usual, f"batch {n}", priority=5) for n in range(BATCH)]
        runs = [
            await perdure.start(usual, "now: a start", priority=1),
            await perdure.start(urgent, "now: an agent"),
        ]
        # in the queue itself: a pending activity of a run may be on its way there
        tasks = len(batch) + len(runs)
        await until_queue(it.client, it.task_queue, lambda queue: queue.stats.approximate_backlog_count >= tasks)
        gate.set()
        for run in [first, *batch, *runs]:
            await run.result()
        assert all("now" in text for text in begun[1:3])


async def test_r24_3_sessions_and_delegates_hand_their_priority_on(dev_server: WorkflowEnvironment) -> None:
    helper = answering("helper", INPUT)
    asks = Agent(
        "asks",
        tools=[helper],
        output=str,
        start="plan",
        messages=[{"type": "plan", "plan": [{"_tool": "helper", "input": "x", "_outputPath": "†state.v"}]}],
    )

    async def priority_of(id: str) -> int:
        described = await dev_server.client.get_workflow_handle(id).describe()
        return described.raw_description.workflow_execution_info.priority.priority_key

    async with harness(dev_server.client, [], lambda _: DONE | {"output": "ok"}, sandboxed=False) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        run = await perdure.start(asks, priority=2)
        await run.result()
        assert [await priority_of(id) for id in (run.id, f"{run.id}/0.0")] == [2, 2]
        for agent, priority in (
            (answering("a", priority=4), None),
            (answering("a", priority=4), 1),
            (answering("b"), 5),
        ):
            session = perdure.session(uuid.uuid4().hex, agent=agent, priority=priority)
            receipt = await session.send("hello", sender="ann")
            ended = await session.wait(receipt.message_id, sender="ann")
            assert ended.status == "ok", ended
            assert receipt.run_id is not None
            assert await priority_of(receipt.run_id) == (priority or 4)


@pytest.mark.parametrize("wrong", [0, 6, "high", True, 1.0])
async def test_r24_3_a_priority_that_is_none_is_one_line(wrong: Any) -> None:
    perdure = Perdure(await Client.connect("127.0.0.1:1", lazy=True))
    with pytest.raises(InputError, match=r"priority: expected 1 \(first\) to 5 \(last\), got"):
        await perdure.start(answering("a", INPUT), "x", priority=wrong)
    with pytest.raises(InputError, match="priority: expected"):
        perdure.session("a", priority=wrong)


async def test_a_start_takes_an_id_or_a_key() -> None:
    """Else the run has another id than its caller names."""
    perdure = Perdure(await Client.connect("127.0.0.1:1", lazy=True))
    with pytest.raises(RunError, match=r"^give id='mine' or key='order-17', not both: a key names the run$"):
        await perdure.start(Agent("shopper"), id="mine", key="order-17")
