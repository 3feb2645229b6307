"""Streams of other protocols over a run that Temporal's own program resets (R10.14)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import Event
from pydantic import TypeAdapter
from temporalio.testing import WorkflowEnvironment

from perdure import Run
from perdure.client.run_operations import AgentHandle
from perdure.runs.wire import RunResult
from tests.gateway.openai_support import door
from tests.gateway.support import some_name
from tests.gateway.test_agui import SHOPPER, pay, played, text, user
from tests.gateway.test_agui_events import Client
from tests.support import Harness
from tests.timeouts import HANG
from tests.workflows.test_resets import reset, task_before_decision, until_asked

pytestmark = pytest.mark.asyncio(loop_scope="session")

TWICE = [{"_tool": "pay", "amount": amount, "_outputPath": f"†state.of{amount}"} for amount in (5, 6)]
LAST = {"calls": [], "output": "{†state.of5}, {†state.of6}"}
TENANT = "resets"
WHO = [(TENANT, "ann", ["*"]), (TENANT, "bob", ["read", "send"])]
"""Who may not decide has a stream that goes on while something waits."""


async def reset_after_a_decision(server: WorkflowEnvironment, it: Harness, run_id: str) -> None:
    """Decide one of two calls, have the run reset to before that, and decide both."""
    run: Run[Any] = Run(it.client, run_id)
    handle: AgentHandle = it.client.get_workflow_handle(run_id, result_type=RunResult)
    await until_asked(it, run_id, "1.0", "1.1")
    await run.approve("1.0")
    async for event in run.events(topics=["tool"]):
        if event.phase == "end":
            break
    await reset(server, handle, await task_before_decision(handle))
    await until_asked(it, run_id, "1.0", "1.1")
    await run.approve("1.0")
    await run.approve("1.1")


async def test_an_agui_stream_goes_on_over_a_reset(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    script = [{"calls": TWICE, "output": None}, LAST, LAST]
    async with played(dev_server.client, tmp_path, script, who=WHO) as it, asyncio.timeout(HANG):
        thread = some_name()
        asking = asyncio.create_task(it.ask(1, threadId=thread, messages=[user("Pay.")]))
        session = it.served.gateway.perdure.session(thread, tenant=TENANT)
        while (run := await _running(session)) is None:
            pass
        await reset_after_a_decision(dev_server, it.it, run.id)
        events = await asking
        again = await it.ask(1, threadId=thread, messages=[user("Pay.")])
    assert events[-1]["outcome"] == {"type": "success"}
    assert text(events) == "paid 5, paid 6"
    shown = [event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
    client = Client([])
    assert [call.rpartition(":")[2] for call in shown] == ["1.0", "1.1"]
    for event in events:
        client.take(TypeAdapter(Event).validate_python(event))
    assert text(again) == "paid 5, paid 6"


async def _running(session: Any) -> Run[Any] | None:
    try:
        found: Run[Any] | None = await session.run()
    except Exception:
        return None
    return found


async def test_an_openai_stream_goes_on_over_a_reset(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    script = [{"calls": TWICE, "output": None}, LAST, LAST]
    options: dict[str, Any] = {"agents": [SHOPPER], "functions": [pay], "who": WHO}
    async with door(dev_server.client, tmp_path, script, **options) as it, asyncio.timeout(HANG):
        bob = it.clients[1]
        begun = await bob.responses.create(model="shopper", input="Pay.", background=True)
        events: list[Any] = []
        reads = asyncio.Event()

        async def read() -> None:
            async for event in await bob.responses.retrieve(begun.id, stream=True):
                events.append(event)
                reads.set()

        reading = asyncio.create_task(read())
        while not (waiting := (await it.served.gateway.perdure.approvals(tenant=TENANT)).waiting):
            pass
        await reads.wait()
        await reset_after_a_decision(dev_server, it.it, waiting[0].run_id)
        await reading
    found = events[-1].response
    assert (events[-1].type, found.status, found.output_text) == (
        "response.completed",
        "completed",
        "paid 5, paid 6",
    )
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "paid 5, paid 6"


async def test_a_stream_of_a_chat_completion_goes_on_over_a_reset(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    script = [{"calls": TWICE, "output": None}, LAST, LAST]
    options: dict[str, Any] = {"agents": [SHOPPER], "functions": [pay], "who": WHO}
    async with door(dev_server.client, tmp_path, script, **options) as it, asyncio.timeout(HANG):
        completions = it.clients[1].chat.completions
        parts: list[Any] = []

        async def read() -> None:
            said: Any = [{"role": "user", "content": "Pay."}]
            async for part in await completions.create(model="shopper", messages=said, stream=True):
                parts.append(part)

        reading = asyncio.create_task(read())
        while not (waiting := (await it.served.gateway.perdure.approvals(tenant=TENANT)).waiting):
            pass
        await reset_after_a_decision(dev_server, it.it, waiting[0].run_id)
        await reading
    written = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    ends = [part.choices[0].finish_reason for part in parts if part.choices and part.choices[0].finish_reason]
    assert (written, ends) == ("paid 5, paid 6", ["stop"])
    assert len({part.id for part in parts}) == 1
