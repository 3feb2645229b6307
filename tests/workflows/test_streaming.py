"""Calls start while the model is still writing (R6.3), and what breaks loses nothing and runs nothing twice (R6.7)."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from temporalio.client import Client, Interceptor, OutboundInterceptor, QueryWorkflowInput
from temporalio.testing import WorkflowEnvironment

from perdure import ToolContext, tool
from perdure.hosting.connection import data_converter
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import CallDelivery
from perdure.runs.wire import CALLS_SIGNAL
from perdure.testing.scripted_model import ChatRequest, Fault, Turn, write_answer
from tests.support import DONE, agent, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLS: list[dict[str, Any]] = [
    {"_tool": "note", "text": "first", "_outputPath": "†state.a"},
    {"_tool": "note", "text": "{†state.a}, then second", "_outputPath": "†state.b"},
    {"_tool": "note", "text": "third", "_outputPath": "†state.c"},
]
SOLUTION = {"calls": CALLS, "output": {"ok": True}}
TEXT = json.dumps(SOLUTION, ensure_ascii=False, separators=(",", ":"))


def end_of_call(index: int) -> int:
    """Characters of the answer up to and with the closing brace of a call."""
    position = 0
    for call in CALLS[: index + 1]:
        text = json.dumps(call, ensure_ascii=False, separators=(",", ":"))
        position = TEXT.index(text, position) + len(text)
    return position


class Notebook:
    """A tool that notes each side effect once by its idempotency key, and lets a test wait for one."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.happened = asyncio.Condition()

        @tool(retries=0)
        async def note(text: str, context: ToolContext) -> str:
            """Note a text."""
            async with self.happened:
                self.effects.append(context.idempotency_key.rpartition(":")[0])
                self.happened.notify_all()
            return text

        self.tool = note

    async def wait_for(self, count: int) -> None:
        async with self.happened:
            await self.happened.wait_for(lambda: len(self.effects) >= count)

    def each_once(self, run_id: str, *calls: str) -> bool:
        return sorted(self.effects) == sorted(f"{run_id}/{call}" for call in calls)


async def test_r6_3_a_ready_call_starts_while_the_model_is_writing(dev_server: WorkflowEnvironment) -> None:
    book, gate = Notebook(), asyncio.Event()
    turn = Turn(SOLUTION, gate=gate, gate_after=end_of_call(1))
    async with harness(dev_server.client, [book.tool], [turn]) as it:
        handle = await it.start(agent("note"))
        # Both calls run, the second on the first's result, before the model has written the third.
        await asyncio.wait_for(book.wait_for(2), HANG)
        halfway = await it.view(handle.id)
        gate.set()
        result = await handle.result()
    assert [call.id for call in halfway.calls] == ["1.0", "1.1"]
    assert result.state == {"a": "first", "b": "first, then second", "c": "third"}
    assert book.each_once(handle.id, "1.0", "1.1", "1.2")


@pytest.mark.parametrize("stream", [True, False])
async def test_stream_false_gives_the_same_results(dev_server: WorkflowEnvironment, stream: bool) -> None:
    book = Notebook()
    async with harness(dev_server.client, [book.tool], [SOLUTION]) as it:
        view = await it.run(agent("note", config={"stream": stream}))
        assert bool(it.model.requests[0].body.get("stream")) is stream
    assert view.state == {"a": "first", "b": "first, then second", "c": "third"}
    assert book.each_once(view.run_id, "1.0", "1.1", "1.2")


CUTS = {
    "before the first call": (0, 0),
    "in the first call": (end_of_call(0) - 5, 0),
    "between calls": (end_of_call(0) + 1, 1),
    "in the middle of a call": (end_of_call(1) - 10, 1),
    "after the last call": (end_of_call(2) + 1, 3),
    "in output": (len(TEXT) - 4, 3),
}


async def test_r6_7_a_stream_that_breaks(dev_server: WorkflowEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    """All cuts at once: a run waits three seconds for a server that hangs."""
    async with asyncio.TaskGroup() as group:
        for name, (after, released) in CUTS.items():
            for kind in ("cut", "hang"):
                group.create_task(broken_off(dev_server, after, released, kind), name=f"{kind} {name}")
    lines = [getattr(line, "perdure", {}) for line in caplog.records if line.getMessage() == "request interrupted"]
    assert sorted(line["calls"] for line in lines) == sorted(2 * [calls for _, calls in CUTS.values() if calls])
    assert {line["code"] for line in lines} == {"ReadTimeout", "RemoteProtocolError"}


async def broken_off(server: WorkflowEnvironment, after: int, released: int, kind: Any) -> None:
    book, gate = Notebook(), asyncio.Event()
    broken = Turn(SOLUTION, fault=Fault(kind, after), gate=gate if released else None, gate_after=after)
    # A retry is answered with other calls: they must never mix with those released before.
    other = {"calls": [{"_tool": "note", "text": "other", "_outputPath": "†state.other"}], "output": None}
    script = [broken, DONE] if released else [broken, other, DONE]
    # An answer that a slow machine is late with would be asked for again, too.
    patience = 3 if kind == "hang" else HANG
    async with harness(server.client, [book.tool], script, model_timeout=patience) as it:
        handle = await it.start(agent("note"))
        if released:
            await asyncio.wait_for(book.wait_for(released), HANG)
            gate.set()
        result = await asyncio.wait_for(handle.result(), HANG)
        it.model.check()
        last = it.model.requests[-1].text
    if released:
        assert book.each_once(handle.id, *(f"1.{n}" for n in range(released)))
        assert [error["error"]["code"] for error in result.errors] == ["interrupted"]
        assert f"broke off after {released} calls" in last
        assert result.requests == 2
    else:
        assert book.each_once(handle.id, "1.0")
        assert (result.state, result.errors) == ({"other": "other"}, [])


async def test_r6_7_an_answer_cut_off_by_its_length_keeps_its_calls(dev_server: WorkflowEnvironment) -> None:
    book = Notebook()
    cut = Turn(TEXT[: end_of_call(1) + 8], finish_reason="length")
    async with harness(dev_server.client, [book.tool], [cut, DONE]) as it:
        view = await it.run(agent("note"))
    assert [error["error"]["code"] for error in view.errors] == ["cut_off"]
    assert [call.status for call in view.calls] == ["done", "done"]
    assert book.each_once(view.run_id, "1.0", "1.1")


async def test_r6_7_deliveries_twice_out_of_order_and_from_another_attempt(dev_server: WorkflowEnvironment) -> None:
    book, gate = Notebook(), asyncio.Event()
    turn = Turn(SOLUTION, gate=gate, gate_after=5)
    async with harness(dev_server.client, [book.tool], [turn]) as it:
        handle = await it.start(agent("note"))
        await it.model.wait_for_request(1)
        stray = [{"_tool": "note", "text": "stray"}]
        for delivery in (
            CallDelivery(number=1, attempt=1, first=2, calls=CALLS[2:]),
            CallDelivery(number=1, attempt=1, first=0, calls=CALLS[:2]),
            CallDelivery(number=1, attempt=1, first=0, calls=CALLS[:2]),
            CallDelivery(number=1, attempt=2, first=0, calls=stray),
            CallDelivery(number=7, attempt=1, first=0, calls=stray),
        ):
            await handle.signal(CALLS_SIGNAL, delivery)
        await asyncio.wait_for(book.wait_for(3), HANG)
        gate.set()
        result = await handle.result()
    assert book.each_once(handle.id, "1.0", "1.1", "1.2")
    assert (result.status, result.errors, [call.status for call in result.calls]) == ("completed", [], ["done"] * 3)


async def chaos_round(server: WorkflowEnvironment, chance: random.Random) -> list[str]:
    """One random schedule: Requests whose streams are whole, cut or refused, with stray deliveries thrown in."""
    book, turns = Notebook(), []
    dialect = chance.choice(list(DIALECTS))
    for _ in range(chance.randrange(1, 4)):
        calls = [
            {"_tool": "note", "text": f"{n}", "_outputPath": f"†state.s{n}"} for n in range(chance.randrange(1, 6))
        ]
        solution = {"calls": calls, "output": None}
        answer = write_answer(solution, dialect)
        length = len(answer.text) + sum(len(name) + len(arguments) for name, arguments in answer.tool_calls)
        fault = Fault("cut", chance.randrange(length)) if chance.random() < 0.5 else None
        turns.append(Turn(solution, fault=fault, status=503 if chance.random() < 0.15 else 200))

    def script(asked: ChatRequest) -> Turn | dict[str, Any]:
        return turns[asked.number - 1] if asked.number <= len(turns) else DONE

    async with harness(server.client, [book.tool], script, chunk=chance.randrange(1, 60)) as it:
        it.model.dialect = dialect
        handle = await it.start(agent("note", config={"dialect": dialect}))
        for _ in range(chance.randrange(3)):
            # Of a Request that is not running: it must not count, whenever it arrives.
            stray = CallDelivery(number=chance.randrange(7, 9), attempt=1, first=0, calls=[{"_tool": "nope"}])
            await handle.signal(CALLS_SIGNAL, stray)
        result = await asyncio.wait_for(handle.result(), HANG)
    problems = [] if result.status == "completed" else [f"ended as {result.status}: {result.error}"]
    ran = [f"{handle.id}/{call.id}" for call in result.calls if call.status == "done"]
    if sorted(book.effects) != sorted(ran) or len(set(ran)) != len(ran):
        problems.append(f"effects {book.effects}, calls {ran}")
    return problems


class Queries(Interceptor):
    """A client's interceptor that counts the queries which it sends, by name."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        sent = self.sent

        class Counted(OutboundInterceptor):
            async def query_workflow(self, input: QueryWorkflowInput) -> Any:
                sent.append(input.query)
                return await super().query_workflow(input)

        return Counted(next)


async def test_r6_8_a_request_beside_its_run_asks_for_no_context(dev_server: WorkflowEnvironment) -> None:
    queries, notebook = Queries(), Notebook()
    host = dev_server.client.service_client.config.target_host
    client = await Client.connect(host, data_converter=data_converter(), interceptors=[queries])
    looks = {"calls": [{"_tool": "note", "text": "first"}], "output": None}
    async with harness(client, [notebook.tool], [looks, DONE], cached_workflows=1000) as it:
        await (await it.start(agent("note"))).result()
        assert [len(asked.messages) > 0 for asked in it.model.requests] == [True, True]
    assert queries.sent == []
