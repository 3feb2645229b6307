"""Reading events through a relay: once for all who watch, and nobody waits for anybody (R10.14, R10.15)."""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from rich.console import Console
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, Interceptor, OutboundInterceptor, QueryWorkflowInput, WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure import Perdure
from perdure.cli._event_commands import EventPrinter
from perdure.errors import CursorError, ProtocolError, RunNotFoundError
from perdure.runs.events import Event
from perdure.runs.wire import AGENT_WORKFLOW
from perdure.sessions.wire import SESSION_PREFIX, SESSION_WORKFLOW
from tests.event_workflows import EventRun, EventSession
from tests.support import perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


class CountingQueries(Interceptor):
    """How often each workflow was asked."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        counting = self

        class Outbound(OutboundInterceptor):
            async def query_workflow(self, input: QueryWorkflowInput) -> Any:
                counting.of[input.id] = counting.of.get(input.id, 0) + 1
                return await super().query_workflow(input)

        return Outbound(next)


class Desk:
    """A worker of noting workflows, and Perdure with a client that counts."""

    def __init__(self, client: Client, queue: str) -> None:
        self.counting = CountingQueries()
        self.client, self._queue = client, queue
        config = client.config()
        config["interceptors"] = [self.counting]
        self.perdure = Perdure(Client(**config), task_queue=queue)

    async def begin(self, kind: str = AGENT_WORKFLOW, id: str = "") -> Noting:
        id = id or f"{SESSION_PREFIX if kind == SESSION_WORKFLOW else 'noting-'}{uuid.uuid4().hex[:8]}"
        return Noting(await self.client.start_workflow(kind, id=id, task_queue=self._queue))


class Noting:
    def __init__(self, handle: WorkflowHandle[Any, Any]) -> None:
        self.handle, self.id = handle, handle.id

    async def note(self, topic: str, phase: str, run_id: str = "", **data: Any) -> None:
        await self.handle.signal("note", args=[topic, phase, run_id, data])

    async def calls(self, first: int, last: int) -> None:
        for number in range(first, last):
            await self.note("tool", "end", call=f"1.{number}", tool="t", status="done")

    async def leave(self, how: str = "end") -> None:
        await self.handle.signal("leave", how)


@asynccontextmanager
async def desk(server: WorkflowEnvironment) -> AsyncIterator[Desk]:
    client = Perdure(server.client).client
    queue = f"noting-{uuid.uuid4().hex[:8]}"
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client, task_queue=queue, workflows=[EventRun, EventSession], workflow_runner=runner):
        yield Desk(client, queue)


async def all_of(perdure: Perdure, id: str, from_: str | None = None, topics: Any = None) -> list[Event]:
    return [event async for event in perdure.events(id, from_, topics)]


def calls_of(events: list[Event]) -> list[str]:
    return [event.data["call"] for event in events if event.topic == "tool"]


def numbered(first: int, last: int) -> list[str]:
    return [f"1.{number}" for number in range(first, last)]


async def until(reading: asyncio.Future[Any], condition: Any) -> None:
    async with asyncio.timeout(HANG):
        while not condition():
            assert not reading.done(), reading.result()
            await asyncio.sleep(0.01)


async def test_r10_14_a_run_is_read_while_it_goes_on_over_continue_as_new_and_after_its_end(
    dev_server: WorkflowEnvironment,
) -> None:
    async with desk(dev_server) as it:
        run = await it.begin()
        seen: list[Event] = []

        async def read() -> None:
            async for event in it.perdure.events(run.id):
                seen.append(event)

        reading = asyncio.create_task(read())
        await run.calls(0, 5)
        await until(reading, lambda: len(seen) == 5)
        await run.calls(5, 10)
        await run.leave("anew")  # carries the last one only
        await run.calls(10, 12)
        await run.leave()
        await asyncio.wait_for(reading, HANG)
        assert calls_of(seen) == numbered(0, 12)
        assert [event.cursor for event in seen] == [str(number) for number in range(1, 13)]
        assert calls_of(await all_of(it.perdure, run.id)) == numbered(0, 12)
        assert calls_of(await all_of(it.perdure, run.id, seen[6].cursor)) == numbered(7, 12)
        assert await all_of(it.perdure, run.id, topics=["approval"]) == []


async def test_r10_15_500_watchers_cost_one_poll_and_one_that_reads_nothing_slows_nobody(
    dev_server: WorkflowEnvironment,
) -> None:
    async with desk(dev_server) as it:
        session = await it.begin(SESSION_WORKFLOW)
        run = await it.begin(id=f"{session.id}/1")
        await session.note("lifecycle", "start", run.id, agent="a", number=1)
        await run.calls(0, 3)
        seen: list[list[Event]] = [[] for _ in range(500)]

        async def read(into: list[Event]) -> None:
            async for event in it.perdure.events(session.id):
                into.append(event)

        idle = it.perdure.events(session.id)
        assert (await anext(idle)).phase == "start"
        reading = asyncio.gather(*(read(each) for each in seen))
        await until(reading, lambda: all(len(each) == 4 for each in seen))
        asked = dict(it.counting.of)
        for number in range(3, 8):
            await run.calls(number, number + 1)
            await until(reading, lambda wanted=number + 2: all(len(each) == wanted for each in seen))
        # Each of the five was read by one query, but for the signal that tells that somebody watches.
        # A query that a slow machine does not answer soon is asked once more; what counts is that it is not asked 500 times.
        assert it.counting.of[run.id] - asked[run.id] <= 15
        assert it.counting.of[session.id] == asked[session.id]
        await run.leave()
        await session.note("lifecycle", "end", run.id, status="completed", number=1)
        await session.leave()
        await asyncio.wait_for(reading, HANG)
        assert all(calls_of(each) == numbered(0, 8) for each in seen)
        assert calls_of([event async for event in idle]) == numbered(0, 8)
        assert await run.handle.query("signals") <= 1


async def test_a_session_is_read_with_its_runs_and_where_it_was_left(dev_server: WorkflowEnvironment) -> None:
    async with desk(dev_server) as it:
        session = await it.begin(SESSION_WORKFLOW)
        for number in (1, 2):
            run = await it.begin(id=f"{session.id}/{number}")
            await session.note("message", "accepted", messageId=f"m{number}", sender="ann", text="hi")
            await session.note("lifecycle", "start", run.id, agent="a", number=number)
            await run.note("lifecycle", "start", agent="a")
            await run.calls(10 * number, 10 * number + 3)
            await run.note("lifecycle", "end", status="completed")
            await run.leave()
            await session.note("lifecycle", "end", run.id, status="completed", number=number)
        await session.leave()
        seen = await all_of(it.perdure, session.id)
        told = [f"{event.topic} {event.phase}" for event in seen]
        one = ["message accepted", "lifecycle start", *["tool end"] * 3, "lifecycle end"]
        assert told == [*one, *one]
        assert calls_of(seen) == [*numbered(10, 13), *numbered(20, 23)]
        for number, event in enumerate(seen):
            after = await all_of(it.perdure, session.id, event.cursor)
            assert [each.as_json() for each in after] == [each.as_json() for each in seen[number + 1 :]]


async def test_only_what_happens_from_now_on(dev_server: WorkflowEnvironment) -> None:
    async with desk(dev_server) as it:
        session = await it.begin(SESSION_WORKFLOW)
        run = await it.begin(id=f"{session.id}/1")
        await session.note("lifecycle", "start", run.id, agent="a", number=1)
        await run.calls(0, 3)
        async with aclosing(it.perdure.events(session.id, "now")) as events:
            first = asyncio.ensure_future(anext(events))
            later = 3
            while not first.done():  # nothing tells when it has begun to read
                await run.calls(later, later + 1)
                later += 1
            assert (await first).data["call"] in numbered(3, later)


async def test_what_was_ended_from_outside_has_an_end(dev_server: WorkflowEnvironment) -> None:
    async with desk(dev_server) as it:
        run = await it.begin()
        await run.calls(0, 1)
        await run.handle.query("signals")  # it has been noted
        await run.handle.terminate()
        last = (await all_of(it.perdure, run.id))[-1]
        assert (last.topic, last.phase, last.cursor, last.data) == ("lifecycle", "error", "2", {"status": "terminated"})
        assert await all_of(it.perdure, run.id, last.cursor) == []


async def test_a_run_that_is_deleted_under_its_readers_ends_for_all_of_them(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for one that has missed something: nobody can tell any more how things stand."""
    kept, more = 300, 100
    monkeypatch.setattr("perdure.runs.event_stream.KEPT", kept)
    async with desk(dev_server) as it:
        run = await it.begin()
        await run.calls(0, 3)
        slow = it.perdure.events(run.id)
        assert (await anext(slow)).data["call"] == "1.0"
        quick: list[Event] = []

        async def read() -> None:
            async for event in it.perdure.events(run.id):
                quick.append(event)

        reading = asyncio.create_task(read())
        for some in range(3, 3 + kept + more, more):
            await asyncio.gather(*(run.calls(number, number + 1) for number in range(some, some + more)))
            await until(reading, lambda upto=some + more: len(quick) == upto)
        await it.client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=it.client.namespace, workflow_execution=WorkflowExecution(workflow_id=run.id)
            )
        )
        await asyncio.wait_for(reading, HANG)
        rest = [event async for event in slow]
        assert (rest[-1].cursor, len(quick)) == (str(kept + more + 3), kept + more + 3)
        missed = [event.data for event in rest if event.phase == "snapshot"]
        assert [each["view"] for each in missed] == [{}]


async def test_what_was_ended_before_a_worker_took_it_has_an_end(dev_server: WorkflowEnvironment) -> None:
    client = Perdure(dev_server.client).client
    run = Noting(await client.start_workflow(AGENT_WORKFLOW, id=f"noting-{uuid.uuid4().hex[:8]}", task_queue="nobody"))
    await run.handle.terminate()
    [end] = await all_of(Perdure(client), run.id)
    assert (end.phase, end.cursor, end.data) == ("error", "1", {"status": "terminated"})


async def test_who_asks_for_what_is_not_there_is_told(dev_server: WorkflowEnvironment) -> None:
    async with desk(dev_server) as it:
        run, session = await it.begin(), await it.begin(SESSION_WORKFLOW)
        with pytest.raises(RunNotFoundError, match="there is no run 'nobody'"):
            await all_of(it.perdure, "nobody")
        with pytest.raises(
            ProtocolError, match="'texts' is not a known topic; use one of: lifecycle, request, assistant"
        ):
            await all_of(it.perdure, run.id, topics=["texts"])
        with pytest.raises(CursorError, match=r"'1.2.3' is a cursor of a session: a run's are like '12'"):
            await all_of(it.perdure, run.id, "1.2.3")
        with pytest.raises(CursorError, match=r"'7' is a cursor of a run: a session's are like '5.2.12'"):
            await all_of(it.perdure, session.id, "7")
        with pytest.raises(CursorError, match="'later' is not a valid cursor of events"):
            await all_of(it.perdure, session.id, "later")
        await run.calls(0, 2)
        await run.leave()
        assert await all_of(it.perdure, run.id, "2") == []
        for id, behind in ((run.id, "3"), (run.id, "99.1.1.5.0"), (session.id, "1.0.0")):
            with pytest.raises(
                CursorError, match=f"'{behind}' is not a cursor of '{id}', which has [02] events so far"
            ):
                await asyncio.wait_for(all_of(it.perdure, id, behind), HANG)


async def test_the_command_prints_a_line_of_json_for_each(dev_server: WorkflowEnvironment) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with desk(dev_server) as it:
        run = await it.begin()
        await run.calls(0, 3)
        await run.leave()
        told = await perdure("events", run.id, "--from", "1", "--topics", "tool,lifecycle", env=env)
        assert (told.code, told.err) == (0, "")
        lines = [json.loads(line) for line in told.out.splitlines()]
        assert [(line["data"]["call"], line["cursor"]) for line in lines] == [("1.1", "2"), ("1.2", "3")]
        wrong = await perdure("events", run.id, "--topics", "words", env=env)
        assert (wrong.code, wrong.out) == (2, "")
        assert wrong.err.startswith("perdure: --topics: 'words' is not one of lifecycle, request,")


async def test_a_reader_is_told_in_lines_and_text_runs_on() -> None:
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=False)
    printer = EventPrinter(console)

    def tell(topic: Any, phase: str, **data: Any) -> None:
        printer.print_event(Event(topic, phase, "2026-01-01T10:00:00.000Z", "r", data))

    tell("lifecycle", "start", agent="a")
    tell("request", "start", number=1, model="m", reason="the first")
    tell("assistant", "delta", text="Hello ", start=0)
    tell("assistant", "delta", text="\x1b[2Jthere", start=6)
    tell("assistant", "superseded", reason="attempt 2 writes anew")
    tell("assistant", "delta", text="Yes.", start=0)
    tell("assistant", "end", text="Yes.", accepted=True)
    tell("tool", "end", call="1.0", tool="pay", status="failed", error={"code": "x", "message": "no money"})
    tell("approval", "start", call="1.1", tool="pay", params={"amount": 5}, reason="it is dangerous")
    tell("approval", "start", call="1.2", tool="ask_person", params={}, reason="Which one?", question=True)
    tell("approval", "start", call="2", tool="", params={}, calls=[{}, {}], reason="ask")
    tell("lifecycle", "error", status="failed", error="it broke")
    at = "10:00:00.000"
    assert console.export_text().splitlines() == [
        f"{at} lifecycle r begins: a",
        f"{at} request   Request 1 is sent to m (the first)",
        f"{at} assistant Hello \N{REPLACEMENT CHARACTER}[2Jthere",
        f"{at} assistant does not count: attempt 2 writes anew",
        f"{at} assistant Yes.",
        f"{at} tool      1.0 pay failed: no money",
        f"{at} approval  1.1 waits for a person: pay amount 5: it is dangerous",
        f"{at} approval  1.2 waits for a person: Which one?",
        f"{at} approval  2 waits for a person: run a plan of 2 calls: ask",
        f"{at} lifecycle r failed: it broke",
    ]
