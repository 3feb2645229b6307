"""The sender, tenant and context of a start or a message stay what they were: over new executions, resets, loops, queues (R19.1)."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, Run, ToolContext, hook, tool
from perdure.hooks import BeforeToolCall
from perdure.runs.wire import RunResult
from perdure.testing.scripted_model import ChatRequest
from perdure.values.json import dumps
from tests.support import Harness, agent, harness, impatient
from tests.timeouts import HANG
from tests.workflows.test_delegates import save
from tests.workflows.test_resets import newest_task, reset, temporal, until_asked

pytestmark = pytest.mark.asyncio(loop_scope="session")

impatient_server = impatient(60)
TOKEN = "user-token-of-ann-0002"
ANN: dict[str, Any] = {"number": "C-17", "session_token": TOKEN}
BOB: dict[str, Any] = {"number": "C-18"}
ANN_SEEN = ("ann", "shop", "C-17", True)
"""What a tool of Ann's run reads."""


def told(by: Any) -> tuple[str, str, str, bool]:
    return by.sender, by.tenant, by.context.get("number", ""), by.context.get("session_token") == TOKEN


seen: list[tuple[str, str, str, bool]] = []


@tool(safe=True)
async def look(ctx: ToolContext, n: int = 0) -> str:
    """Say who asks."""
    seen.append(told(ctx))
    return f"{n} for {ctx.context['number']} {ctx.context.get('session_token', '')}"


@tool(dangerous=True)
async def pay(ctx: ToolContext) -> str:
    """Pay."""
    seen.append(told(ctx))
    return "paid"


def looks(items: int, **more: Any) -> dict[str, Any]:
    return {"_tool": "look", "n": "†item", "_each": [*range(items)], "_outputPath": "†state.w", **more}


def is_below(request: ChatRequest) -> bool:
    """Whether a delegate asks, which has no delegate itself."""
    return "- below(" not in str(request.messages)


async def start(it: Harness, whose: Agent[Any], **more: Any) -> Run[Any]:
    seen.clear()
    return await Perdure(it.client, task_queue=it.task_queue).start(
        whose, sender="ann", tenant="shop", context=ANN, id=f"test-{uuid.uuid4().hex[:8]}", **more
    )


async def continued(it: Harness, workflow_id: str) -> bool:
    """Whether the workflow went on in a new execution."""
    history = await it.client.get_workflow_handle(workflow_id).fetch_history()
    return bool(history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id)


async def test_it_goes_on_over_continue_as_new(impatient_server: WorkflowEnvironment) -> None:
    """Tools, hooks, delegates and prompts of a later execution have it, or do not, as those of the first."""
    hooked: list[tuple[str, str, str, bool]] = []

    @hook("before_tool_call")
    def before(event: BeforeToolCall) -> None:
        hooked.append(told(event))

    below = Agent("below", tools=[look], output=str)
    steps = Agent("steps", tools=[look, below], max_requests=20)

    def answers(request: ChatRequest) -> Any:
        if is_below(request):
            return {"calls": [{"_tool": "look", "_outputPath": "†state.w"}], "output": "†state.w"}
        if request.number <= 5:
            return {"calls": [{"_tool": "look", "n": 8 * request.number + n} for n in range(8)]}
        return {"calls": [{"_tool": "below", "request": "Look.", "_outputPath": "†state.b"}], "output": "†state.b"}

    async with harness(impatient_server.client, [look, before], answers) as it, asyncio.timeout(HANG):
        run = await start(it, steps)
        assert await run.result() == "0 for C-17 [masked]"
        assert await continued(it, run.id)
        owner = (await run.view()).owner.as_json()
    assert Counter(seen) == {ANN_SEEN: 41}
    assert set(hooked) == {ANN_SEEN}
    assert owner["context"] == {"number": "C-17", "session_token": "[masked]"}
    assert not any(TOKEN in dumps(request.body) for request in it.model.requests)


async def test_a_loop_over_more_than_100_items_has_it_in_all_its_executions(
    impatient_server: WorkflowEnvironment,
) -> None:
    script = [{"calls": [looks(120, _parallel=100)], "output": "†state.w"}]
    async with harness(impatient_server.client, [look], script) as it, asyncio.timeout(HANG):
        run = await start(it, Agent("looper", tools=[look]))
        assert await run.result() == [f"{n} for C-17 [masked]" for n in range(120)]
    assert Counter(seen) == {ANN_SEEN: 120}


async def test_a_loop_over_a_delegate_has_it_in_all_its_executions(impatient_server: WorkflowEnvironment) -> None:
    below = Agent("below", tools=[look], input={"properties": {"item": {}, "index": {}}}, output=str)

    def answers(request: ChatRequest) -> Any:
        if is_below(request):
            return {"calls": [{"_tool": "look", "n": "†input.item", "_outputPath": "†state.w"}], "output": "†state.w"}
        return {"calls": [{"_tool": "below", "_each": [*range(30)], "_outputPath": "†state.w"}], "output": "†state.w"}

    async with harness(impatient_server.client, [look], answers) as it, asyncio.timeout(HANG):
        run = await start(it, Agent("above", tools=[below]))
        assert await run.result() == [f"{n} for C-17 [masked]" for n in range(30)]
        assert await continued(it, f"{run.id}/1.0")
    assert Counter(seen) == {ANN_SEEN: 30}


@pytest.mark.parametrize("to_start", [False, True])
async def test_a_reset_run_has_it(dev_server: WorkflowEnvironment, to_start: bool) -> None:
    plan = {"calls": [{"_tool": "pay", "_outputPath": "†state.p"}], "output": "†state.p"}
    async with harness(dev_server.client, [pay], [plan, plan]) as it, asyncio.timeout(HANG):
        run = await start(it, Agent("payer", tools=[pay]))
        handle = it.client.get_workflow_handle(run.id, result_type=RunResult)
        await until_asked(it, run.id, "1.0")
        point = await newest_task(handle)
        await run.approve("1.0")
        assert await run.result() == "paid"
        if to_start:
            where = ("--workflow-id", run.id, "--type", "FirstWorkflowTask")
            await temporal(dev_server, "reset", *where, "--reason", "try again")
        else:
            await reset(dev_server, handle, point)
        again = Run[Any](it.client, run.id)
        await until_asked(it, run.id, "1.0")
        await again.approve("1.0")
        assert (await again.wait()).output == "paid"
        assert told((await again.view()).owner) == ("ann", "shop", "C-17", False)  # the token is masked there
    assert seen == [ANN_SEEN, ANN_SEEN]


@pytest.mark.parametrize("loop", [{}, {"_each": [1, 2]}])
async def test_tools_and_delegates_on_another_queue_have_it(
    dev_server: WorkflowEnvironment, tmp_path: Path, loop: dict[str, Any]
) -> None:
    other = f"other-{uuid.uuid4().hex[:8]}"
    document = agent(
        {"name": "look", "properties": {"n": {"type": "integer"}}, "_taskQueue": other},
        {"name": "ask", "_delegate": "below", "_taskQueue": other},
    )
    agents = save(tmp_path, Agent("below", tools=[look], output=str).document())
    calls = [{"_tool": name, "_outputPath": f"†state.{name}", **loop} for name in ("look", "ask")]
    one = {"calls": [{"_tool": "look", "_outputPath": "†state.w"}], "output": "†state.w"}
    async with (
        harness(dev_server.client, [], [{"calls": calls, "output": "†state"}], agents=agents) as it,
        harness(dev_server.client, [look], [one] * 2, task_queue=other),
        asyncio.timeout(HANG),
    ):
        run = await start(it, Agent.of(document))
        said = "0 for C-17 [masked]"
        assert await run.result() == dict.fromkeys(("look", "ask"), [said] * 2 if loop else said)
    assert seen == [ANN_SEEN] * (4 if loop else 2)


async def test_messages_that_wait_have_each_its_own_over_continue_as_new(
    impatient_server: WorkflowEnvironment,
) -> None:
    """A session goes on as new with messages in its queue; later ones, and a forked session's, have their own."""
    script = [{"calls": [{"_tool": "look", "_outputPath": "†state.w"}], "output": "†state.w"}] * 40
    seen.clear()
    async with harness(impatient_server.client, [look], script) as it, asyncio.timeout(HANG):
        client = Perdure(it.client, task_queue=it.task_queue)
        session = client.session("desk", tenant="shop", agent=Agent("anybody", tools=[look], output=str))
        senders = [("ann", ANN), ("bob", BOB)] * 8
        receipts = [
            await session.send(f"Number {n}", sender=sender, context=context, mode="followup")
            for n, (sender, context) in enumerate(senders)
        ]
        replies = [await session.reply(receipt) for receipt in receipts]
        assert await continued(it, session.id)
        forked = await session.fork("3", key="again")
        last = await forked.ask("And now?", sender="bob", context=BOB)
    assert [reply and "C-17" in reply for reply in replies] == [sender == "ann" for sender, _ in senders]
    assert [sender for sender, *_ in seen] == [sender for sender, _ in senders] + ["bob"]
    assert all(each in (ANN_SEEN, ("bob", "shop", "C-18", False)) for each in seen)
    assert last == "0 for C-18 "
