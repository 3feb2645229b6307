"""Who reads a run's events gets each once, and each word once, while workers and the server are killed and readers come and go (R10.14)."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import NoWorkerError, Perdure
from perdure.hosting.connection import data_converter
from perdure.hosting.server import embedded_server, free_port
from perdure.runs.events import Event
from perdure.testing.scripted_model import ScriptedModel, Turn
from tests.event_reader import Reader
from tests.timeouts import HANG
from tests.workflows.test_durability import CALLS, Bell, Site, answered, finish, site
from tests.workflows.test_session import desk, echo, idles

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORDS = "It rains in Bergen, and the ferry to Askøy leaves at ten past eight. " * 4
FIRST: dict[str, Any] = {"calls": CALLS, "output": None}
LAST: dict[str, Any] = {"calls": [], "output": WORDS}


async def read(address: str, run_id: str, reader: Reader, most: int | None = None) -> None:
    """Read to the end; with `most` by one client and relay after the other, so many events each."""
    ended = False
    while not ended:
        try:
            client = await Client.connect(address, data_converter=data_converter())
        except RuntimeError:  # the server has just ended, and comes again
            await asyncio.sleep(0.05)
            continue
        events, count = Perdure(client).get_run(run_id).events(reader.cursor or None), 0
        with contextlib.suppress(NoWorkerError):  # it has just been killed
            async with contextlib.aclosing(events):
                async for event in events:
                    reader.apply(event)
                    count += 1
                    if count == most:
                        break
            ended = count != most


async def followed(it: Site, address: str, during: Any) -> tuple[Any, list[Reader]]:
    """A run, while this happens; what three readers have had of it, of whom two come and go."""
    handle, readers = await it.start_run(), [Reader(), Reader(), Reader()]
    reading = [
        asyncio.create_task(read(address, handle.id, reader, most))
        for reader, most in zip(readers, (None, 1, 3), strict=True)
    ]
    await during(handle, readers[0])
    result = await finish(handle)
    await asyncio.wait_for(asyncio.gather(*reading), HANG)
    late = Reader()
    await read(address, handle.id, late)
    return result, [*readers, late]


def check(result: Any, readers: list[Reader], texts: dict[int, str]) -> None:
    """Everybody has had everything: the same events, each call's end once, and each word of the texts."""
    assert result.status == "completed"
    assert all(reader.seen == readers[0].seen and not reader.missed for reader in readers)
    assert all(sorted(reader.ended) == [call.id for call in result.calls] for reader in readers)
    assert all({n: text for n, (_, text) in reader.texts.items()} == texts for reader in readers)


async def until(reader: Reader, condition: Any) -> None:
    async with asyncio.timeout(HANG):
        while not condition():
            await reader.applied.wait()
            reader.applied.clear()


@pytest.mark.soak  # the server waits ten seconds for each killed worker
async def test_the_worker_is_killed_while_tools_run_and_while_it_writes(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    gate, point = asyncio.Event(), WORDS.index("Askøy") + 30
    script = [FIRST, Turn(LAST, gate=gate, gate_after=point), LAST]
    address = dev_server.client.service_client.config.target_host

    async with site(dev_server, script, tmp_path) as it:
        it.bell.quiet = True

        async def during(handle: Any, reader: Reader) -> None:
            await it.bell.wait_for(2)
            await answered(it.client, handle.id)
            await it.kill()
            it.bell.answer()
            await it.start_worker()
            await until(reader, lambda: "Bergen" in reader.texts.get(2, (0, ""))[1])
            await it.kill()
            gate.set()
            await it.start_worker()

        result, readers = await followed(it, address, during)
    check(result, readers, {2: WORDS})
    assert readers[0].texts[2][0] == 2, "the second attempt's text"
    assert readers[0].superseded == 1
    assert it.effects() == ["1.0", "1.1", "1.2"]


async def test_the_server_is_restarted_while_it_writes(tmp_path: Path) -> None:
    port, db, gate = free_port(), str(tmp_path / "temporal.db"), asyncio.Event()
    address = f"127.0.0.1:{port}"
    (tmp_path / "effects").mkdir()
    script = [FIRST, Turn(LAST, gate=gate, gate_after=60), LAST]
    async with (
        ScriptedModel(script, strict=False) as model,
        Bell() as bell,
        contextlib.AsyncExitStack() as later,
        contextlib.AsyncExitStack() as first,
    ):
        server = await first.enter_async_context(embedded_server(port=port, db=db, ui=False))
        it = Site(server.client, address, model, bell, tmp_path / "effects")
        await it.start_worker()
        later.push_async_callback(it.kill)

        async def during(_: Any, reader: Reader) -> None:
            await until(reader, lambda: "Bergen" in reader.texts.get(2, (0, ""))[1])
            await first.aclose()
            await later.enter_async_context(embedded_server(port=port, db=db, ui=False))
            gate.set()

        result, readers = await followed(it, address, during)
        check(result, readers, {2: WORDS})


async def test_a_session_is_followed_by_those_who_stay_and_those_who_come_back(dev_server: WorkflowEnvironment) -> None:
    async with desk(dev_server, echo) as (session, it):
        stays: list[Event] = []
        comes: list[Event] = []

        async def stay() -> None:
            async for event in session.events():
                stays.append(event)

        async def come() -> None:
            while not comes or comes[-1].data.get("status") != "deleted":
                perdure = Perdure(Client(it.client.service_client, data_converter=it.client.data_converter))
                again = perdure.session(session.key, tenant="acme")
                async with contextlib.aclosing(again.events(comes[-1].cursor if comes else None)) as events:
                    async for event in events:
                        comes.append(event)
                        if len(comes) % 3 == 0:
                            break
                    else:
                        return

        receipt = await session.send("hello", sender="ann")
        reading = asyncio.gather(stay(), come())
        assert await session.reply(receipt, HANG) == "re: ann: hello"
        await idles(session)
        for text in ("and again", "once more"):
            assert await session.reply(await session.send(text, sender="ann"), HANG) == f"re: ann: {text}"
        await session.handle.cancel()
        await asyncio.wait_for(reading, HANG)

    def told(events: list[Event]) -> list[tuple[str, str, str]]:
        return [(event.topic, event.phase, event.run_id) for event in events if event.phase not in ("delta", "update")]

    assert told(stays) == told(comes)
    runs = [event.run_id for event in stays if (event.topic, event.phase) == ("lifecycle", "start") and event.run_id]
    assert len(runs) == len(set(runs)) == 3
    for run_id in runs:
        of_it = [f"{event.topic} {event.phase}" for event in stays if event.run_id == run_id]
        assert of_it.index("lifecycle start") < of_it.index("request start") < of_it.index("lifecycle end")
    for events in (stays, comes):
        texts = dict.fromkeys(runs, "")
        for event in events:
            if (event.topic, event.phase) == ("assistant", "delta"):
                assert event.data["start"] == len(texts[event.run_id])
                texts[event.run_id] += event.data["text"]
        assert list(texts.values()) == ["re: ann: hello", "re: ann: and again", "re: ann: once more"]
