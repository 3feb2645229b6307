"""What the benchmarks share: a worker of ours, a worker of the hand-written loop's, and the model as a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import httpx2
from openai import AsyncOpenAI
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from benchmarks.peer import Gather, ModelActivity, ReActLoop, work
from perdure.activities.registry import Registry
from perdure.client.run_operations import AgentHandle, start_run
from perdure.hosting.server import embedded_server
from perdure.hosting.worker import build_worker
from perdure.queries import SearchAttributes
from perdure.runs.agent import parse_agent
from perdure.testing.scripted_model import Pace, Script, ScriptedModel
from perdure.tools.decorator import tool_function
from perdure.values.json import JsonObject

SETTINGS: dict[str, Any] = {
    "frontend.namespaceRPS": 100_000,
    "frontend.rps": 100_000,
    "frontend.namespaceCount": 100_000,
    "history.rps": 100_000,
    "matching.rps": 100_000,
    "history.transferProcessorMaxPollRPS": 10_000,
    "history.timerProcessorMaxPollRPS": 10_000,
    "history.transferProcessorMaxPollHostRPS": 100_000,
    "history.persistenceMaxQPS": 100_000,
    "matching.persistenceMaxQPS": 100_000,
    "frontend.persistenceMaxQPS": 100_000,
}
"""Limits of the dev server that are raised, by `--dynamic-config-value`: it is the engine that is measured. The rate of
`transferProcessorMaxPollRPS` alone, 20 by default, is a step of 50 ms per task."""


def bench_server(**more: Any) -> AbstractAsyncContextManager[WorkflowEnvironment]:
    """A dev server with its limits raised (`SETTINGS`)."""
    return embedded_server(ui=False, settings=SETTINGS, **more)


@asynccontextmanager
async def perdure_worker(client: Client, functions: Sequence[Callable[..., Any]], model_url: str) -> AsyncIterator[str]:
    """Our worker with these tools; yields its task queue."""
    found = [tool_function(function) for function in functions]
    registry = Registry([function for function in found if function is not None])
    queue, attribute = uuid.uuid4().hex, SearchAttributes()
    await attribute.ensure(client)  # as `worker.py` does at its start
    async with (
        asking(model_url) as model,
        build_worker(client, registry, task_queue=queue, model=model, attribute=attribute),
    ):
        yield queue


@asynccontextmanager
async def loop_worker(
    client: Client, model_url: str, *, stream: bool = True, more: Sequence[Callable[..., Any]] = ()
) -> AsyncIterator[str]:
    """The hand-written loop's worker, with the SDK's defaults and these activities more; yields its task queue."""
    queue = uuid.uuid4().hex
    async with asking(model_url) as model:
        activities: list[Callable[..., Any]] = [ModelActivity(model, stream=stream).ask, work, *more]
        async with Worker(client, task_queue=queue, workflows=[ReActLoop, Gather], activities=activities):
            yield queue


async def start(client: Client, queue: str, *tools: str, **config: Any) -> AgentHandle:
    """An agent over these tools, whose output is any object."""
    context = [{"type": "tool", "tool": name} for name in tools]
    document: JsonObject = {"name": "bench", "config": config, "context": context, "schema": {"type": "object"}}
    return await start_run(client, parse_agent(document), document, task_queue=queue)


def asking(model_url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=model_url, api_key="scripted", max_retries=0)


@contextmanager
def model_process(script: Script, pace: Pace | None = None) -> Iterator[str]:
    """The model in a process of its own, so that what it costs is not counted; yields its URL. The script is pickled."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(script, pace, there), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def _serve(script: Script, pace: Pace | None, parent: multiprocessing.connection.Connection) -> None:
    async def serve() -> None:
        async with ScriptedModel(script, pace=pace) as model:
            parent.send(model.base_url)
            await asyncio.Event().wait()

    asyncio.run(serve())


async def executions(client: Client, run_id: str) -> list[tuple[int, int]]:
    """Events and bytes of history of each execution of a run, over all that it continued as."""
    found: list[tuple[int, int]] = []
    started = (await client.get_workflow_handle(run_id).fetch_history()).events[0]
    execution = started.workflow_execution_started_event_attributes.first_execution_run_id
    while execution:
        handle = client.get_workflow_handle(run_id, run_id=execution)
        info = (await handle.describe()).raw_description.workflow_execution_info
        found.append((info.history_length, info.history_size_bytes))
        last = (await handle.fetch_history()).events[-1]
        execution = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


_ACTION = re.compile(r"^action\{(?P<labels>[^}]*)\} (?P<value>[\d.e+]+)$", re.MULTILINE)
_TYPE = re.compile(r'action_type="([^"]*)"')
_OURS = 'namespace="default"'


async def counted(port: int) -> Counter[str]:
    """Actions by type that the server whose metrics are at this port has counted."""
    await asyncio.sleep(1.5)  # until the server has counted what it has just answered
    async with httpx2.AsyncClient() as web:
        text = (await web.get(f"http://127.0.0.1:{port}/metrics")).text
    found: Counter[str] = Counter()
    for line in _ACTION.finditer(text):
        if _OURS in line["labels"] and (kind := _TYPE.search(line["labels"])):
            found[kind[1]] += int(float(line["value"]))
    return found
