"""What tests of runs share: a worker with a scripted model, small agents, and the command line as a process."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
import pytest_asyncio
import uvicorn
from google.protobuf.duration_pb2 import Duration
from openai import AsyncOpenAI
from starlette.applications import Starlette
from temporalio.api.enums.v1 import EventType, TaskQueueType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    RegisterNamespaceRequest,
)
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from perdure.activities.registry import Registry
from perdure.client.histories import replay_history
from perdure.client.run_operations import AgentHandle, fetch_run, start_run
from perdure.errors import NoWorkerError
from perdure.hooks.decorator import hook_functions
from perdure.hosting import logs
from perdure.hosting.connection import data_converter
from perdure.hosting.server import embedded_server
from perdure.hosting.worker import build_worker
from perdure.queries import UNANSWERED
from perdure.runs.agent import parse_agent
from perdure.runs.wire import RUN_QUERY, RunView
from perdure.testing._local import QuickTasks
from perdure.testing._servers import DEV_SETTINGS
from perdure.testing.scripted_model import Script, ScriptedModel, close_at_once
from perdure.tools.decorator import tool_function
from tests.forked_cli import FORKED, ForkedCli
from tests.timeouts import HANG

ROOT = Path(__file__).parents[1]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None
)
"""The first of these browsers. Debian's headless shell takes less CPU time than the whole Chromium."""
DONE: dict[str, Any] = {"calls": [], "output": {"ok": True}}
T = TypeVar("T")


def agent(*tools: str | dict[str, Any], **more: Any) -> dict[str, Any]:
    """A small agent over the given tools."""
    messages = [{"type": "tool", "tool": tool} for tool in tools]
    return {
        "name": "test",
        "context": [{"type": "system", "text": "Plan."}, *messages, *more.pop("context", [])],
        "schema": True,
    } | more


def registry(functions: Sequence[Callable[..., Any]]) -> Registry:
    """The tools, and the hooks, among these."""
    found = [tool_function(function) for function in functions]
    made = Registry([function for function in found if function is not None])
    for each in functions:
        for hook in hook_functions(each):
            made.hooks.add(hook)
    return made


@dataclass
class Harness:
    """A client, a worker's queue and the model that the worker asks."""

    client: Client
    model: ScriptedModel
    task_queue: str

    async def start(
        self,
        document: dict[str, Any],
        run_input: Any = None,
        *,
        run_id: str | None = None,
        callback: str | None = None,
    ) -> AgentHandle:
        return await start_run(
            self.client,
            parse_agent(document),
            document,
            run_input,
            has_input=run_input is not None,
            run_id=run_id or f"test-{uuid.uuid4().hex[:8]}",
            task_queue=self.task_queue,
            callback=callback,
        )

    async def run(self, document: dict[str, Any], run_input: Any = None) -> RunView:
        """Start the agent and wait for its end."""
        handle = await self.start(document, run_input)
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()
        return await self.view(handle.id)

    async def until_waiting(self, run_id: str, *calls: str, streams: bool = False) -> RunView:
        """The run once exactly these wait for a person and, unless it `streams`, no Request is under way.

        A call waits while the model still writes. What a test does then (a reset, a message, the end of a worker) would break the Request
        off on a slow machine alone. A run can only be looked at: nothing tells when to look.
        """
        handle = self.client.get_workflow_handle(run_id)
        async with asyncio.timeout(HANG):
            while True:
                with contextlib.suppress(WorkflowQueryFailedError, RPCError):  # a delegate may not have begun yet
                    view: RunView = await handle.query(RUN_QUERY, result_type=RunView)
                    writes = any(request.status == "running" for request in view.log)
                    if sorted(offer.call for offer in view.waiting) == sorted(calls) and (streams or not writes):
                        return view
                await asyncio.sleep(0.02)

    async def until_answered(self, run_id: str) -> None:
        """Return once Request 1 has ended. A worker that leaves before, or a message, breaks it off."""
        async with asyncio.timeout(HANG):
            while True:
                view = await self.view(run_id)
                if view.log and view.log[0].status == "done":
                    return
                await asyncio.sleep(0.02)

    async def view(self, run_id: str) -> RunView:
        return await answered(lambda: fetch_run(self.client, run_id))


async def answered(question: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of a worker that is there: a busy machine may take longer than a query waits."""
    async with asyncio.timeout(HANG):
        while True:
            with contextlib.suppress(NoWorkerError):
                return await question()


async def check_replays(history: WorkflowHistory) -> None:
    """Check that a worker goes on with it: outside the sandbox, which would load the workflows anew for each history."""
    assert (await replay_history(history, data_converter())).problem is None


def impatient(events: int, size: int = 4_194_304) -> Callable[..., Awaitable[WorkflowEnvironment]]:
    """A fixture: a server that suggests to continue as new after so many events, or bytes."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def impatient_server(impatient_servers: ImpatientServers) -> WorkflowEnvironment:
        return await impatient_servers.get(events, size)

    return impatient_server


class ImpatientServers:
    """Servers that suggest to continue as new early. Only the last two run on, because an idle one takes processor time, too."""

    def __init__(self) -> None:
        self._started: dict[tuple[int, int], tuple[WorkflowEnvironment, AsyncExitStack]] = {}

    async def get(self, events: int, size: int) -> WorkflowEnvironment:
        """Return the server that suggests it after so many events, or bytes."""
        if (found := self._started.pop((events, size), None)) is None:
            await self.stop_all_but(1)
            settings = {
                "limit.historyCount.suggestContinueAsNew": events,
                "limit.historySize.suggestContinueAsNew": size,
            }
            stack = AsyncExitStack()
            server = embedded_server(ui=False, settings=DEV_SETTINGS | settings)
            found = (await stack.enter_async_context(server), stack)
        self._started[events, size] = found
        return found[0]

    async def stop_all_but(self, count: int) -> None:
        """Stop all servers but the last `count` that tests have used."""
        while len(self._started) > count:
            _, stack = self._started.pop(next(iter(self._started)))
            await stack.aclose()


def storage_fixture() -> Callable[..., Path]:
    """A fixture: a folder that the settings name as the storage of values and files."""

    @pytest.fixture
    def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path / "values"))
        (tmp_path / "values").mkdir()
        return tmp_path / "values"

    return storage


@asynccontextmanager
async def harness(
    client: Client,
    functions: Sequence[Callable[..., Any]],
    script: Script,
    model_timeout: float = HANG,
    chunk: int | None = None,
    task_queue: str | None = None,
    named: Sequence[str] = (),
    **options: Any,
) -> AsyncIterator[Harness]:
    """A worker with these tools, whose model answers from the script; agent files may name functions of the `named`
    modules; `options` go to `build_worker`."""
    task_queue = task_queue or f"test-{uuid.uuid4().hex[:8]}"
    # WORKFLOW_CACHE=0 replays every workflow from its history at each of its tasks: what is not deterministic shows.
    options.setdefault("cached_workflows", int(os.environ.get("WORKFLOW_CACHE", "1000")))
    if not options["cached_workflows"]:
        # Without a cache the SDK loses a task that meets a query ("leftover buffered tasks when evicting run"); the server sends it again
        # when its time is over, which has to be before a decision gives up waiting for an answer.
        client = Client(**client.config() | {"interceptors": [*client.config()["interceptors"], QuickTasks()]})
    # The sandbox passes `perdure` through, so it finds an import inside a workflow and little else, for a fifth of a run's CPU time here.
    # The cases of `tests/conformance` run in it in one dialect. In `make soak` all runs do.
    options.setdefault("sandboxed", "SOAK" in os.environ)
    options.setdefault("grace", 0.5)  # what a test leaves hanging is not waited for as in production
    options = {"workflow_pollers": 2, "activity_pollers": 2, **options}  # each costs a run CPU time, also on the server
    async with ScriptedModel(script, chunk=chunk, strict=False) as model:
        asking = options.pop("model", None) or AsyncOpenAI(
            base_url=model.base_url, api_key="scripted", max_retries=0, timeout=model_timeout
        )
        tools = options.pop("registry", registry(functions))
        async with build_worker(client, tools, task_queue=task_queue, model=asking, functions=named, **options):
            yield Harness(client, model, task_queue)


_HELD = ("TMPRL1101", "Not in workflow event loop")
"""Words of the SDK's detector, which interrupts a task that took two seconds by the clock."""
_BROKEN_OFF = ("FORCE_CLOSE_COMMAND", "UNHANDLED_COMMAND")
_OFTEN = 3


async def failed_tasks(execution: WorkflowHandle[Any, Any]) -> list[str]:
    """Why workflow tasks of an execution failed: each would be tried again for ever."""
    return task_failures((await execution.fetch_history()).events)


def task_failures(events: Iterable[HistoryEvent]) -> list[str]:
    """Why workflow tasks of a history failed, except for those that the machine or the server broke off.

    A task that took two seconds of a busy machine is tried again, and ends. One that takes so long by itself fails each time, and its run
    does not end. A server breaks off a task beside which anything came in, or more than 100 events: on a slow machine not three times in turn.
    """
    found, broken_off = list[str](), 0
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            broken_off = 0
        if event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            continue
        failed = event.workflow_task_failed_event_attributes
        if any(words in failed.failure.message for words in _HELD):
            continue
        cause = WorkflowTaskFailedCause.Name(failed.cause)
        broken_off += 1
        if not cause.endswith(_BROKEN_OFF) or broken_off >= _OFTEN:
            found.append(f"task {event.event_id}: {cause} {failed.failure.message}")
    return found


async def new_namespace(client: Client) -> str:
    """Register a namespace, for a test that looks at all workflows, and return its name once the server knows it."""
    name, kept = f"test-{uuid.uuid4().hex[:8]}", Duration(seconds=86_400)
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=kept)
    )
    there = await Client.connect(client.service_client.config.target_host, namespace=name)
    async with asyncio.timeout(HANG):
        while True:
            with contextlib.suppress(RPCError):
                async for _ in there.list_workflows("WorkflowType = 'none'"):
                    pass
                return name
            await asyncio.sleep(0.1)


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """A web server on this machine; its address."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        await close_at_once(server)


@dataclass(frozen=True)
class Command:
    code: int
    out: str
    err: str


async def perdure(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path = ROOT, program: str = "client.py"
) -> Command:
    """The command line as a process of its own, with nothing of this process's settings; see `tests.forked_cli`."""
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "OPENAI_", "PERDURE_"))
    }
    whole = clean | {"COLUMNS": "160", "NO_COLOR": "1"} | (env or {})
    if all(key.startswith(FORKED) for key in env or {}):
        words = [*(["worker"] if program == "worker.py" else []), *arguments]
        code, said, erred = await ForkedCli.run(words, whole, cwd, HANG)
        return Command(code, said.decode(), erred.decode())
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / program),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=whole,
        cwd=cwd,
    )
    out, err = await asyncio.wait_for(process.communicate(), HANG)
    assert process.returncode is not None
    return Command(process.returncode, out.decode(), err.decode())


@contextlib.contextmanager
def logged(
    form: Literal["text", "json"], level: str = "info", *, payloads: bool = False, tty: bool = False
) -> Iterator[io.StringIO]:
    """What is logged meanwhile, as a worker writes it."""
    text = io.StringIO()
    text.isatty = lambda: tty  # type: ignore[method-assign]
    known = {name: logging.getLogger(name).level for name in [*logging.root.manager.loggerDict, *logs.QUIET]}
    root, handlers = logging.root.level, logging.root.handlers[:]
    logging.root.handlers[:] = []
    try:
        logs.configure(form, level, payloads=payloads, stream=text)
        yield text
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(root)
        for name, kept in known.items():
            logging.getLogger(name).setLevel(kept)


async def until_queue(client: Client, task_queue: str, is_ready: Callable[[DescribeTaskQueueResponse], bool]) -> None:
    """Wait until the server describes the activities of a task queue so. A busy server cancels a request."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        report_stats=True,
    )
    async with asyncio.timeout(HANG):
        while True:
            try:
                if is_ready(await client.workflow_service.describe_task_queue(request)):
                    break
            except RPCError as error:
                if error.status not in UNANSWERED:
                    raise
            await asyncio.sleep(0.02)
