"""An output is read while it is written (R20.7): in Python and over HTTP, of runs and of a session's answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, RunFailedError
from perdure.testing.scripted_model import Turn, cut
from tests.gateway.support import bearer, some_name
from tests.gateway.test_events_api import events as sent_events
from tests.gateway.test_known_text import AGENT, CALLS, GATES, Desk, desk
from tests.support import DONE, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Report(BaseModel):
    title: str
    notes: list[str] = []


ANSWER: dict[str, Any] = {"calls": CALLS, "output": {"title": "On {†state.a}", "notes": ["†state.b", "end"]}}
FIRST: dict[str, Any] = {"title": "On "}
SECOND: dict[str, Any] = {"title": "On Mr. a", "notes": []}
WHOLE: dict[str, Any] = {"title": "On Mr. a", "notes": ["Mr. b", "end"]}


async def by_run(desk: Desk) -> AsyncIterator[Any]:
    handle = await desk.it.start(AGENT)
    async for value in desk.perdure.get_run(handle.id).partial_output():
        yield value


async def by_typed_run(desk: Desk) -> AsyncIterator[Any]:
    agent = Agent("asker", instructions="Ask.", tools=["look_up"], output=Report)
    async for value in (await desk.perdure.start(agent)).partial_output():
        assert isinstance(value, Report)
        yield value.model_dump(exclude_unset=True)


async def by_session(desk: Desk) -> AsyncIterator[Any]:
    session = desk.perdure.session(some_name(), agent=Agent.of(AGENT))
    async for value in session.partial_output(await session.send("Go.", sender="ann")):
        yield value


async def by_http(desk: Desk) -> AsyncIterator[Any]:
    http = desk.served.http
    http.headers.update(bearer(desk.token))
    run = (await http.post("/v1/runs", json={"agent": "asker"})).json()["runId"]
    async with http.stream("GET", f"/v1/runs/{run}/partial-output") as answer:
        found = None
        async for each in sent_events(answer):
            assert each.event == "output"
            found = each.data
            yield found["output"]
        assert found == {"output": WHOLE, "whole": True}


@pytest.mark.parametrize("reader", [by_run, by_typed_run, by_session, by_http], ids=lambda each: each.__name__)
async def test_r20_7_a_value_grows_up_to_a_reference_and_behind_it(
    dev_server: WorkflowEnvironment, tmp_path: Path, reader: Callable[[Desk], AsyncIterator[Any]]
) -> None:
    async with desk(dev_server.client, tmp_path, answer=ANSWER) as it, asyncio.timeout(HANG):
        seen: list[Any] = []
        async for value in reader(it):
            seen += [value] if value not in seen[-1:] else []
            if value == FIRST:
                GATES["a"].set()
            elif value == SECOND:
                GATES["b"].set()
        assert [value for value in seen if value in (FIRST, SECOND, WHOLE)] == [FIRST, SECOND, WHOLE]
        assert seen[-1] == WHOLE
        assert all(FIRST["title"].startswith(value.get("title", "")) for value in seen[: seen.index(FIRST)])


async def test_who_comes_late_gets_the_whole_output_once(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with desk(dev_server.client, tmp_path, answer=ANSWER) as it, asyncio.timeout(HANG):
        GATES["a"].set()
        GATES["b"].set()
        handle = await it.it.start(AGENT)
        run = it.perdure.get_run(handle.id)
        await run.wait()
        assert [value async for value in run.partial_output()] == [WHOLE]


@pytest.mark.parametrize("dialect", ["solution", "tools"])
async def test_another_attempt_and_another_request_begin_anew(dev_server: WorkflowEnvironment, dialect: Any) -> None:
    broken = '{"title": "Lost before the end"' if dialect == "tools" else '{"calls": [], "output": {"title": "Lost'
    held = asyncio.Event()
    script = [
        cut(broken, len(broken)),
        Turn({"output": {"title": 7}}, gate=held, gate_after=10),
        {"output": {"title": "Right"}},
    ]
    agent = Agent("writer", instructions="Write.", output=Report, dialect=dialect)
    async with harness(dev_server.client, [], script) as it, asyncio.timeout(HANG):
        run = await Perdure(it.client, task_queue=it.task_queue).start(agent)
        held.set()
        values = [value async for value in run.partial_output()]
    assert values[-1] == Report(title="Right")
    assert all("Lost before the end".startswith(each.title) or "Right".startswith(each.title) for each in values)
    assert len(it.model.requests) == 3


async def test_an_output_that_is_not_streamed_comes_once_and_a_failed_run_raises(
    dev_server: WorkflowEnvironment,
) -> None:
    async with harness(dev_server.client, [], [DONE, Turn("No.", status=400)]) as it, asyncio.timeout(HANG):
        perdure = Perdure(it.client, task_queue=it.task_queue)
        run = await perdure.start(Agent("writer", instructions="Write.", stream=False))
        assert [value async for value in run.partial_output()] == [await run.result()]
        failed = await perdure.start(Agent("writer", instructions="Write."))
        with pytest.raises(RunFailedError):
            assert [value async for value in failed.partial_output()] == []
