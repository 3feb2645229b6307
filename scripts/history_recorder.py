"""The recorder of histories: it plays runs and sessions on a server, and writes down all their executions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from temporalio.client import Client, WorkflowExecution, WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure
from perdure.client.histories import WORKFLOWS
from perdure.client.run_operations import AgentHandle
from perdure.client.session import Session
from tests.support import Harness, harness
from tests.workflows.test_session import ECHO, echo

Tool: TypeAlias = Callable[..., Any]


class Recorder:
    """A recorder of histories into one folder. `tools` serve each of its runs."""

    def __init__(
        self, folder: Path, tools: Sequence[Tool], server: WorkflowEnvironment, impatient: WorkflowEnvironment
    ) -> None:
        self.folder = folder
        self.tools = tools
        self.server = server
        self.client = server.client
        self.impatient_server = impatient
        self.impatient = impatient.client

    async def play(self, name: str, document: dict[str, Any], script: list[Any], **more: Any) -> None:
        """Run an agent to its end, however it ends, and write down every execution that belongs to it."""
        client = self.impatient if more.get("impatient") else self.client
        child: dict[str, Any] | None = more.get("child")
        with tempfile.TemporaryDirectory() as agents:
            if child is not None:
                (Path(agents) / "child.json").write_text(json.dumps(child), encoding="utf-8")
            options: dict[str, Any] = {"agents": Path(agents)} if child is not None else {}
            options |= more.get("options", {})
            async with harness(client, [*self.tools, *more.get("tools", ())], script, sandboxed=False, **options) as it:
                it.model.dialect = document.get("config", {}).get("dialect", "solution")
                handle = await it.start(document, more.get("input"), run_id=name)
                meanwhile: Callable[[Harness, AgentHandle], Awaitable[None]] | None = more.get("meanwhile")
                if meanwhile is not None:
                    await meanwhile(it, handle)
                try:
                    await handle.result()
                except WorkflowFailureError:
                    if not more.get("fails"):
                        raise
        await self.write(client, name)

    @contextlib.asynccontextmanager
    async def conversation(
        self,
        name: str,
        script: Any = echo,
        document: Any = None,
        tools: Sequence[Any] = (),
        *,
        most: int = 2,
        **options: Any,
    ) -> AsyncIterator[tuple[Session, Harness]]:
        """A session; its executions, runs and segments are written down at its end, at most so many of each."""
        async with harness(self.client, tools, script, sandboxed=False, **options) as it:
            perdure = Perdure(it.client, task_queue=it.task_queue)
            session = perdure.session(name, agent=Agent.of(document or ECHO))
            yield session, it
            await self.write(self.client, name, session.id, most=most)

    async def write(self, client: Client, name: str, id: str | None = None, *, most: int = 2) -> None:
        """The run, or the session of this id, and all below it, every execution in the order in which they began, a few of each."""
        id = id or name
        ended = f"WorkflowId = '{id}' AND ExecutionStatus != 'Running'"
        async with asyncio.timeout(60):
            while not [run async for run in client.list_workflows(ended)]:
                pass
        found = [run async for run in client.list_workflows(f"WorkflowId STARTS_WITH '{id}'")]
        own = [run for run in found if run.id == id or run.id.startswith(f"{id}/")]
        counts: dict[str, int] = {}
        for run in sorted(own, key=lambda run: run.start_time):
            if run.workflow_type not in WORKFLOWS:
                continue
            kind = name if run.id == id else f"{name}.{run.workflow_type.lower()}"
            number = counts[kind] = counts.get(kind, 0) + 1
            if number > most:
                continue
            await self._save(client.get_workflow_handle(run.id, run_id=run.run_id), kind, number)

    async def keep(self, client: Client, kind: str, ids: Sequence[str]) -> None:
        """Write down these runs, which have ended, as histories of one kind."""
        for number, id in enumerate(ids, 1):
            await self._save(client.get_workflow_handle(id), kind, number)

    async def play_test(
        self,
        kind: str,
        test: Callable[..., Awaitable[None]],
        server: WorkflowEnvironment,
        given: dict[str, Any],
        *,
        most: int = 8,
    ) -> None:
        """Run a test that uses this server, and write down the executions that it started, at most so many of each type."""
        before = await self._executions(server.client)
        await test(**given)
        new = [run for key, run in (await self._executions(server.client)).items() if key not in before]
        counts: dict[str, int] = {}
        for run in sorted(new, key=lambda run: run.start_time):
            number = counts[run.workflow_type] = counts.get(run.workflow_type, 0) + 1
            if number <= most:
                handle = server.client.get_workflow_handle(run.id, run_id=run.run_id)
                await self._save(handle, f"{kind}.{run.workflow_type.lower()}", number)

    async def _executions(self, client: Client) -> dict[str, WorkflowExecution]:
        """Return all executions of Perdure's workflows. A server lists executions in the order of their starts."""
        last = await client.start_workflow("last", id=f"last-{uuid.uuid4().hex}", task_queue="nowhere")
        async with asyncio.timeout(60):
            while not [run async for run in client.list_workflows(f"WorkflowId = '{last.id}'")]:
                pass
        await last.terminate()
        return {run.run_id: run async for run in client.list_workflows() if run.workflow_type in WORKFLOWS}

    async def _save(self, handle: WorkflowHandle[Any, Any], kind: str, number: int) -> None:
        history = await handle.fetch_history()
        if not any(each.HasField("workflow_task_completed_event_attributes") for each in history.events):
            return  # it has begun, and no worker has taken it: a replay would wait for ever
        target = self.folder / f"{kind}{'' if number == 1 else f'.{number}'}.json"
        content = {"workflowId": handle.id, **plain(history)}
        target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{target.name}: {len(history.events)} events, {target.stat().st_size:,} bytes", flush=True)


def plain(history: WorkflowHistory) -> Any:
    """Return a history without stack traces, workers' identities and the names of their sticky queues: they name the machine, and no replay reads them."""

    def strip(value: Any) -> Any:
        if isinstance(value, list):
            return [strip(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("kind") == "TASK_QUEUE_KIND_STICKY":
            value = value | {"name": "sticky"}
        return {key: strip(item) for key, item in value.items() if key not in ("stackTrace", "identity")}

    return strip(json.loads(history.to_json()))
