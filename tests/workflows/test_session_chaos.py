"""Nothing that was accepted is lost: random conversations while workers, and servers, are killed (item 2 of sessions)."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure
from perdure.errors import ServerError
from perdure.hosting.server import embedded_server, free_port
from perdure.hosting.worker import build_worker
from perdure.testing.scripted_model import ChatRequest, ScriptedModel
from tests.random_conversations import AGENT, SENDERS, Talk, answer, work, wrongs
from tests.soak import times
from tests.support import registry
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Mortal:
    """A worker on one queue, which is ended in the middle of its work, and replaced: whenever it has asked the model so often."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.deaths = 0
        self.read: dict[str, str] = {}
        """By run what its model has read."""
        self._asked = 0
        self._enough = asyncio.Event()

    def answer(self, request: ChatRequest) -> dict[str, Any]:
        """What the model answers; it counts."""
        self._asked += 1
        shown = "\n".join(str(each["content"]) for each in request.messages)
        self.read[request.run_id] = self.read.get(request.run_id, "") + shown
        self._enough.set()
        return answer(request)

    async def asks(self, times: int) -> None:
        """Until it has asked the model so many times more."""
        enough = self._asked + times
        while self._asked < enough:
            self._enough.clear()
            await self._enough.wait()

    @asynccontextmanager
    async def alive(self, client: Client, model: ScriptedModel) -> AsyncIterator[None]:
        asking = model.client(timeout=HANG)
        worker = build_worker(client, registry([work]), task_queue=self.queue, model=asking, grace=0.0)
        async with worker:
            yield
        self.deaths += 1


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.soak)])
async def test_r10_3_any_schedules_lose_nothing_while_the_worker_is_replaced(
    dev_server: WorkflowEnvironment, count: int
) -> None:
    first = int(os.environ.get("SEED", secrets.randbelow(10**6)))
    print(f"SEED={first}")
    queue = f"lost-{secrets.token_hex(4)}"
    perdure = Perdure(dev_server.client, task_queue=queue)
    agent = Agent.of(AGENT)
    talks = [
        Talk(perdure.session(f"{queue}-{seed}", agent=agent, cap=4, quiet=0.05), random.Random(seed))
        for seed in range(first, first + count)
    ]
    mortal = Mortal(queue)
    async with ScriptedModel(mortal.answer, strict=False) as model:

        async def serve() -> None:
            while True:
                async with mortal.alive(dev_server.client, model):
                    await mortal.asks(count // 2)

        serving = asyncio.create_task(serve())
        try:
            async with asyncio.TaskGroup() as speaking:
                for talk in talks:
                    for sender in random.Random(talk.session.key).sample(sorted(SENDERS), 3):
                        speaking.create_task(talk.speak(sender, 1))
            entries = await asyncio.gather(*(talk.settled(HANG) for talk in talks))
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
    found = {
        talk.session.key: wrong
        for talk, seen in zip(talks, entries, strict=True)
        if (wrong := wrongs(talk, seen, mortal.read))
    }
    assert found == {}, f"SEED={first}"
    assert mortal.deaths > 1
    assert sum(len(talk.receipts) for talk in talks) > 2 * count


@asynccontextmanager
async def started_server(**how: Any) -> AsyncIterator[WorkflowEnvironment]:
    """A server of its own; on a busy machine it may need more than one attempt."""
    async with AsyncExitStack() as stack:
        for left in reversed(range(5)):
            try:
                server = await stack.enter_async_context(embedded_server(**how))
                break
            except ServerError:
                if not left:
                    raise
        yield server


@pytest.mark.soak
async def test_r10_1_hundreds_of_messages_lose_nothing_while_worker_and_server_are_killed(tmp_path: Path) -> None:
    seed, count = int(os.environ.get("SEED", secrets.randbelow(10**6))), times(300)
    print(f"SEED={seed} MESSAGES={count}")
    chance, port, key = random.Random(seed), free_port(), f"lost-{seed}"
    suggests = {"limit.historyCount.suggestContinueAsNew": 80}
    how: dict[str, Any] = {"port": port, "db": str(tmp_path / "temporal.db"), "ui": False, "settings": suggests}
    executions: set[str] = set()
    mortal, over, servers = Mortal(key), asyncio.Event(), 0
    async with ScriptedModel(mortal.answer, strict=False) as model:
        perdure: Perdure | None = None
        there = asyncio.Event()

        async def serve() -> None:
            """A server, and workers one after the other; both are replaced, the worker more often."""
            nonlocal perdure, servers
            while not over.is_set():
                async with started_server(**how) as server:
                    servers += 1
                    perdure = perdure or await Perdure.connect(f"127.0.0.1:{port}", task_queue=key)
                    there.set()
                    for _ in range(4):
                        async with mortal.alive(server.client, model):
                            asked = asyncio.ensure_future(mortal.asks(chance.randint(count // 30, count // 10)))
                            await asyncio.wait(
                                [asked, asyncio.ensure_future(over.wait())], return_when=asyncio.FIRST_COMPLETED
                            )
                            asked.cancel()
                        if over.is_set():
                            return

        async with asyncio.TaskGroup() as serving:  # a server that cannot start ends the test
            serving.create_task(serve())
            await asyncio.wait_for(there.wait(), HANG)
            assert perdure is not None
            talk = Talk(perdure.session(key, agent=Agent.of(AGENT), quiet=0.1), chance)
            async with asyncio.TaskGroup() as speaking:
                for sender in SENDERS:
                    speaking.create_task(talk.speak(sender, count // len(SENDERS)))
            entries = await talk.settled(max(300, count))
            history = [each async for each in perdure.client.list_workflows(f"WorkflowId = '{talk.session.id}'")]
            executions |= {each.run_id for each in history}
            over.set()
    assert wrongs(talk, entries, mortal.read) == [], f"SEED={seed}"
    assert len(executions) > count // 50  # of 300 messages 6 times as new
    assert servers > 1
    said = f"{len(talk.receipts)} accepted, {len(entries)} entries, {talk.archived} of them archived"
    print(f"{said}, {len(executions)} executions, {servers} servers, {mortal.deaths} workers")
