"""`run_locally`: a server, a worker and a model on this machine, for a test (R14.3, R14.5)."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

from openai import AsyncOpenAI
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle
from temporalio.converter import DataConverter

from perdure.activities.endpoints import Endpoints
from perdure.activities.tools import ToolSettings, built_in
from perdure.agents.agent import Agent
from perdure.agents.options import ApprovalOptions
from perdure.approvals.policy import Ask
from perdure.client.perdure import Perdure
from perdure.client.session import Session
from perdure.errors import HookDefinitionError, PerdureError, ProtocolError, ToolDefinitionError, clip
from perdure.hooks.decorator import found_hooks
from perdure.hosting.settings import Settings
from perdure.hosting.worker import build_worker
from perdure.hosting.worker_group import WorkerGroup
from perdure.runs.notifications import notification_routes_of
from perdure.runs.wire import RunView
from perdure.sessions.replies import routes_of
from perdure.testing._checks import AgentLike, ToolLike, as_agent, functions_of, inline_tools
from perdure.testing._clock import Clock
from perdure.testing._people import Duration, Person, seconds
from perdure.testing._servers import Server, serve
from perdure.testing._waits import LocalPerdure, LocalRun, TestRuns
from perdure.testing.scripted_model import Script, ScriptedModel
from perdure.testing.toolbox import FAST_HEARTBEAT, Execution, Kill, Toolbox, Workers, unlike_once
from perdure.tools.tool import task_queue_of
from perdure.values.json import JsonObject, dumps
from perdure.values.problems import none_of
from perdure.values.references import MISSING

Model: TypeAlias = "Script | ScriptedModel | AsyncOpenAI | None"
"""The model: a script, a scripted model, or a real one; `None`: any Request fails the test."""

_BUILT_IN = built_in(ToolSettings(files=Path(), http_hosts=["localhost"], commands=["true"]))
"""All built-in tools: a fake needs the definition of its tool."""
_OFFERED = [tool.name for tool in built_in(ToolSettings.model_construct())]


class Local:
    """A server, a worker and a model, as long as `run_locally` lasts.

    ```python
    async def test_order() -> None:
        async with run_locally(shopper, model=AutoModel()) as local:
            view = await local.run({"request": "Order three apples."})
            local.assert_once("order")
    ```
    """

    def __init__(
        self,
        agent: Agent[Any] | None,
        client: Client,
        model: ScriptedModel,
        toolbox: Toolbox,
        following: TestRuns,
        task_queue: str,
    ) -> None:
        self.agent = agent
        self.client = client
        self.perdure: Perdure = LocalPerdure(client, task_queue, following)
        """The Python API on this server: waits through it skip time, too."""
        self.model = model
        """The scripted model: `model.requests` has its requests."""
        self.task_queue = task_queue
        self._toolbox = toolbox
        self.following = following

    async def start(
        self,
        input: Any = MISSING,
        *,
        agent: AgentLike | None = None,
        id: str | None = None,
        approval: ApprovalOptions | None = None,
        sender: str | None = None,
        tenant: str | None = None,
        context: object = None,
        callback: str | None = None,
    ) -> LocalRun[Any]:
        """Start a run of the agent, or of another one. Time does not pass before the test waits.

        All parameters but `agent`, and the errors, are those of `perdure.Perdure.start`.

        ```python
        run = await local.start({"request": "Order three apples."})
        await run.until_waiting("1.0")
        ```
        """
        known = self.agent if agent is None else self._other(agent)
        assert known is not None, "no agent: give one to run_locally or to start"
        given = {} if input is MISSING else {"input": input}
        sent = known
        if self._toolbox.faults and not self._toolbox.skips:
            sent = Agent.of(_with_heartbeats(known.document(), self._toolbox.faults))
        who: dict[str, Any] = {"sender": sender, "tenant": tenant, "context": context, "callback": callback}
        run = await self.perdure.start(sent, **given, id=id, approval=approval, **who)
        return LocalRun(run.client, run.id, known, self.following)

    def session(self, key: str, *, agent: AgentLike | None = None, **more: Any) -> Session:
        """Return a session of the agent, or of another one, by its key. `more`: as of `perdure.Perdure.session`.

        While `reply` or `wait` waits for an answer, people decide and time passes.

        ```python
        session = local.session("ann")
        print(await session.ask("Order three apples.", sender="ann"))
        ```
        """
        return self.perdure.session(key, agent=self.agent if agent is None else self._other(agent), **more)

    def _other(self, agent: AgentLike) -> Agent[Any]:
        """Return another agent than the test's, whose tools are known from now on."""
        known = as_agent(agent)
        self._toolbox.add_inline(inline_tools(known))
        return known

    async def settle(self) -> None:
        """Wait until nothing happens without a new action: all replies are delivered or given up, and all retries and
        timers are over.

        ```python
        await local.settle()
        ```
        """
        await self.following.settle()

    async def run(self, input: Any = MISSING, **how: Any) -> RunView:
        """Start a run and return its view at its end. `how`: as of `start`. Raises `AssertionError`, with the reason, unless it completed.

        ```python
        view = await local.run({"request": "Order three apples."})
        assert view.output == "ordered"
        ```
        """
        view = await (await self.start(input, **how)).wait()
        if view.status != "completed":
            raise AssertionError(f"the run {view.run_id} is {view.status}: {view.error or view.stop_reason}")
        return view

    async def now(self) -> datetime:
        """Return the server's time.

        ```python
        before = await local.now()
        ```
        """
        return await self.following.clock.now()

    async def skip(self, duration: Duration) -> None:
        """Let time pass, with all events that are due. `duration`: seconds, a `timedelta`, or a text such as `2h`.

        ```python
        await local.skip("2 days")
        ```
        """
        await self.following.skip(timedelta(seconds=seconds(duration)))

    def executions(self, tool: str | None = None) -> list[Execution]:
        """Return the executions of a tool's code, in the order of their beginning; without a name, those of all tools.
        Raises `ProtocolError` for a tool that the test does not have.

        ```python
        assert [each.params["fruit"] for each in local.executions("order")] == ["apple"]
        ```
        """
        if tool is not None:
            self._toolbox.check_names(tool)
        return [each for each in self._toolbox.executions if tool in (None, each.tool)]

    def assert_once(self, tool: str, **params: Any) -> None:
        """Check that the tool's effect happened exactly once: for one idempotency key, in any number of attempts.

        A tool whose code ran in more than one attempt, with a result or an exception, must take a `ToolContext`:
        without its key it cannot know that it ran before. `params`: only calls with these resolved parameters. Raises
        `AssertionError`, and `ProtocolError` for a tool or a parameter that the test does not have.

        ```python
        local.assert_once("order", fruit="apple")
        ```
        """
        self._toolbox.check_names(tool, params)
        if problem := unlike_once(tool, self._toolbox.executions, params):
            raise AssertionError(problem)

    def assert_never(self, tool: str, **params: Any) -> None:
        """Check that the tool's code did not run. `params`: only calls with these resolved parameters. Raises
        `AssertionError`, and `ProtocolError` for a tool or a parameter that the test does not have.

        ```python
        local.assert_never("order", fruit="plum")
        ```
        """
        self._toolbox.check_names(tool, params)
        ran = [each for each in self.executions(tool) if all(each.params.get(key) == params[key] for key in params)]
        if ran:
            raise AssertionError(f"{tool} ran: {'; '.join(map(str, ran))}")

    def check(self) -> None:
        """Raise `AssertionError` for scripted parts that were not used, and for failures that no wait has raised. The
        end of `run_locally` does so too.

        ```python
        local.check()
        ```
        """
        problems = [*self.following.troubles(), *self.following.left_over()]
        problems += [f"{fault} never happened" for fault in self._toolbox.faults if not fault.happened]
        problems += [*self._toolbox.find_mistaken_hooks(), *self._toolbox.find_mistyped_fakes()]
        problems += self.model.left_over() if self.model.strict else []
        if problems:
            raise AssertionError("; ".join(dict.fromkeys(problems)))


@asynccontextmanager
async def run_locally(
    agent: AgentLike | None = None,
    *,
    model: Model = None,
    tools: Iterable[ToolLike] = (),
    fakes: Mapping[str, Any] | None = None,
    hooks: Iterable[Callable[[Any], Any]] = (),
    routes: Iterable[Callable[..., Any]] = (),
    evaluators: Iterable[type[Any]] = (),
    people: Iterable[Person] = (),
    faults: Iterable[Kill] = (),
    server: Server = "time-skipping",
    agents: str | os.PathLike[str] | None = None,
    functions: Collection[str] = (),
    approval_floor: Ask = "never",
    timeout: float = 120.0,
    task_queue: str | None = None,
    data_converter: DataConverter | None = None,
    **worker: Any,
) -> AsyncIterator[Local]:
    """Run a Temporal server, a worker that has the agent's tools, and a model that answers from a script, as long as
    the context lasts.

    `model`: turns, a function that answers each request, or a `ScriptedModel`; an `AsyncOpenAI` calls a real one.
    `tools`: functions and modules with the tools that the agent names. `fakes`: by name, replacements of tools: a
    function (sync or async; a parameter `context` takes the `ToolContext`), a value to return, or an exception to
    raise; definition and policy stay the real tool's. `hooks`: functions with `@hook`, beside those of the modules.
    `routes`: functions with `@reply_route` or `@notification_route`, likewise. `evaluators`: classes of evaluators of
    `pydantic-evals`, likewise. `people`: the persons who decide (`approve`, …). `faults`: the deaths of the worker
    (`kill`). `server`: `time-skipping` skips waiting times; `dev` keeps real time and lists runs; or a running server:
    its address, a client, or a `WorkflowEnvironment`. `agents`: the folder of delegates. `functions`: modules whose
    functions agent files name. `approval_floor`: as of a worker (`never`). `timeout`: the most real seconds of a wait
    (120; a run that cannot go on fails the test at once). `task_queue`: the queue's name (default: a new one).
    `data_converter`: the client's (default: files stay in memory). `worker`: further options of
    `perdure.hosting.worker.build_worker`. No key, address, codec or storage is taken from the environment.

    At its end it raises `AssertionError` for answers that no Request used, Requests without an answer, people who had
    nothing to decide, and faults that never happened.

    ```python
    async def test_order() -> None:
        async with run_locally(shopper, model=AutoModel(), people=[approve("order")]) as local:
            view = await local.run({"request": "Order three apples."})
            assert view.status == "completed"
    ```
    """
    known = None if agent is None else as_agent(agent)
    lists = {
        "tools": tools,
        "hooks": hooks,
        "routes": routes,
        "evaluators": evaluators,
        "people": people,
        "faults": faults,
    }
    _check_arguments(lists, worker)
    dying, delivering = list(faults), list(routes)
    _check_routes(delivering)
    async with AsyncExitStack() as stack:
        environment = await serve(stack, server, data_converter)
        client = _client(environment.client, dying)
        scripted, asking = await _model(stack, model)
        queue = task_queue or f"test-{uuid.uuid4().hex[:8]}"
        workers = Workers(client, mortal=bool(dying))
        clock = Clock(environment, client, workers.dead)
        toolbox = Toolbox(workers.kill, functools.partial(_settled, client), dying, clock.skips)
        real = functions_of(known, tools)
        real.add_missing(each for each in _BUILT_IN if each.name in _OFFERED or each.name in (fakes or {}))
        registry = toolbox.registry(real, fakes or {}, {} if known is None else inline_tools(known))
        for each in [*real.hooks, *found_hooks(hooks)]:
            registry.hooks.add(each)
        for route in [*real.routes, *(found for function in delivering for found in routes_of(function))]:
            registry.routes.add(route)
        informing = [
            *real.notification_routes,
            *(each for found in delivering for each in notification_routes_of(found)),
        ]
        for route in informing:
            registry.notification_routes.add(route)
        registry.agents += real.agents
        registry.evaluators += [*real.evaluators, *evaluators]
        scripted.bind(known, registry.definitions())
        options: dict[str, Any] = {
            "settings": Settings.model_construct(),
            "grace": 0.0,  # do not wait for work that continues after the test
            "workflow_pollers": 2,  # more cost each test CPU time, also on the server
            "activity_pollers": 2,
            "agents": _folder(agents, known, stack),
            "approval_floor": approval_floor,
        }
        for path in [] if options["agents"] is None else sorted(options["agents"].glob("*.json")):
            with suppress(PerdureError):  # a file that no run of the test may need
                toolbox.add_inline(inline_tools(Agent.read(path)))
        if known is not None and (mistaken := toolbox.find_mistaken_hooks()):
            raise HookDefinitionError(mistaken[0])
        # With faults any living worker may get a workflow, so none caches it.
        options |= {"functions": functions, "model": asking, **({"cached_workflows": 0} if dying else {}), **worker}
        if not isinstance(more := worker.get("endpoints"), Endpoints):
            servers = {} if isinstance(model, AsyncOpenAI) else scripted.servers()
            options["endpoints"] = Endpoints(asking, more, servers, options["settings"].model_files)
        others = {str(found) for each in registry.definitions().values() if (found := task_queue_of(each))} - {queue}

        def build(client: Client) -> list[WorkerGroup]:
            elsewhere = [
                build_worker(client, registry, **{**options, "model": None, "task_queue": each, "tools_only": True})
                for each in sorted(others)
            ]
            return [build_worker(client, registry, task_queue=queue, **options), *elsewhere]

        def troubles() -> list[str]:
            workers.check()
            return [*(scripted.complaints if scripted.strict else ()), *toolbox.complaints]

        await workers.start(build)
        local = Local(known, client, scripted, toolbox, TestRuns(client, clock, list(people), timeout, troubles), queue)
        try:
            yield local
        finally:
            if server not in _OWN:  # on a shared server the next test may have a session of the same key
                await local.following.end_sessions()
            await toolbox.close()
            await workers.close()
        local.check()


_OWN: Final = ("time-skipping", "dev")
"""Servers that a test starts for itself."""


def _check_arguments(lists: Mapping[str, object], options: Iterable[str]) -> None:
    """Raise `ProtocolError` for a list that is no list, and for an option that no worker and no setting has."""
    for name, given in lists.items():
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ProtocolError(f"run_locally: {name} must be a list, not {clip(str(given), 80)}")
    functions: tuple[Callable[..., Any], ...] = (run_locally, build_worker)
    known = [name for function in functions for name in inspect.signature(function).parameters]
    known += Settings.model_fields
    for name in options:
        if name not in known:
            raise ProtocolError(f"run_locally: {none_of(name, 'argument', known)}")


def _check_routes(functions: list[Callable[..., Any]]) -> None:
    for function in functions:
        if not routes_of(function) and not notification_routes_of(function):
            raise ToolDefinitionError(
                f"{function!r} is not a route: decorate the function with @reply_route or @notification_route"
            )


def _client(client: Client, faults: list[Kill]) -> Client:
    """Return a client whose waits for results do not skip time."""
    quick = [QuickTasks()] if faults else []
    return Client(
        client.service_client, namespace=client.namespace, data_converter=client.data_converter, interceptors=quick
    )


class QuickTasks(Interceptor):
    """An interceptor that sets the workflow task timeout to two seconds, not ten, for the tasks of dead workers."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        class Outbound(OutboundInterceptor):
            async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
                input.task_timeout = timedelta(seconds=2)
                return await super().start_workflow(input)

        return Outbound(next)


async def _model(stack: AsyncExitStack, model: Model) -> tuple[ScriptedModel, AsyncOpenAI]:
    scripted = model if isinstance(model, ScriptedModel) else ScriptedModel([])
    if isinstance(model, AsyncOpenAI):
        return scripted, model
    if model is not None and not isinstance(model, ScriptedModel):
        scripted = ScriptedModel(model)
    await stack.enter_async_context(scripted)
    return scripted, scripted.client()


def _folder(agents: str | os.PathLike[str] | None, agent: Agent[Any] | None, stack: AsyncExitStack) -> Path | None:
    """Return the folder of delegates, with those of the agent itself."""
    given = {} if agent is None else agent.delegates()
    if not given:
        return None if agents is None else Path(agents)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    files = (
        {} if agents is None else {path.stem: path.read_text(encoding="utf-8") for path in Path(agents).glob("*.json")}
    )
    for name, text in {**files, **{name: dumps(document) for name, document in given.items()}}.items():
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder


async def _settled(client: Client, run_id: str, call_id: str) -> None:
    """Wait until the call's result is in the history."""
    handle = client.get_workflow_handle(run_id)
    while True:
        pending = (await handle.describe()).raw_description.pending_activities
        if all(each.activity_id != call_id for each in pending):
            return
        await asyncio.sleep(0.002)


def _with_heartbeats(document: JsonObject, faults: list[Kill]) -> JsonObject:
    """Return the agent file with a fast heartbeat for its own tools at which the worker dies."""
    named = {fault.tool for fault in faults}
    for message in document.get("context", []):
        tool = message.get("tool") if isinstance(message, dict) else None
        if isinstance(tool, dict) and tool.get("name") in named:
            tool["_heartbeat"] = FAST_HEARTBEAT
    return document
