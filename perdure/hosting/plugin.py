"""The Temporal plugin: Perdure beside a user's own workflows and activities."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    PatchActivationInput,
    ReplayerConfig,
    Worker,
    WorkerConfig,
    WorkflowInstance,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from perdure.activities.endpoints import Endpoints
from perdure.activities.queries import OWN_CLIENT
from perdure.activities.registry import Registry
from perdure.agents.agent import Agent, AgentTool
from perdure.errors import PerdureError, SettingsError, ToolDefinitionError
from perdure.hooks.decorator import found_hooks
from perdure.hosting._worker_parts import INTERCEPTORS, PURE, WorkerParts, deployment
from perdure.hosting.codec import WORKFLOW_TYPES, worker_context
from perdure.hosting.connection import data_converter, with_converter, with_perdure_converter
from perdure.hosting.equipment import check_agents, keep_mcp_tools, registry_of
from perdure.hosting.sdk_internals import Unsandboxed, activity_name
from perdure.hosting.settings import Settings, apply_settings, in_force, replace_settings
from perdure.hosting.worker_group import limited_queues
from perdure.models.requests import Endpoint
from perdure.runs.wire import PREPARED_BY_ACTIVITY
from perdure.sessions.wire import SESSION_WORKFLOW
from perdure.tools.frameworks import tool_functions
from perdure.tools.tool import resolve_tools
from perdure.values.messages import ToolMessage
from perdure.workflows.versioning import WORKFLOWS


class PerdurePlugin(SimplePlugin):
    """A Temporal plugin with everything that a client and a worker need for agents: workflows, activities, an
    interceptor, a data converter, the sandbox's passthrough.

    Give it to `Client.connect(plugins=[…])`, whose workers then have it too; or to `Worker(plugins=[…])` alone, if the
    client is not yours. The client's, the worker's and other plugins' own parts stay in force: codec, storage, failure
    converter, interceptors, runner. PERDURE_CODEC and PERDURE_STORAGE count for a client that has none of its own. Runs
    are started on the worker's task queue.

    `tools`: functions with `@tool`, other tools, or names of modules with such and with hooks. `hooks`: functions with
    `@hook`. `agents`: agents, whose tools the worker then has, or the folder of agent files that others delegate to.
    `model`: the client that calls models; by default one of `OPENAI_BASE_URL` and `OPENAI_API_KEY`. `endpoints`:
    further servers by name. `settings`: by default those in force; `given` are single fields that take precedence over
    them: `approval_floor="dangerous"`. Settings of tuning, queues and connections are the worker's and the client's own
    options.

    Raises `ToolDefinitionError`, `AgentError` or `SettingsError` with one line about the part that cannot be used.

    ```python
    client = await Client.connect("localhost:7233", plugins=[PerdurePlugin([order], agents=[shopper])])
    worker = Worker(client, task_queue="perdure", workflows=[Order])
    ```
    """

    def __init__(
        self,
        tools: Iterable[AgentTool] = (),
        *,
        hooks: Iterable[Callable[[Any], Any]] = (),
        agents: str | os.PathLike[str] | Iterable[Agent[Any]] = (),
        model: AsyncOpenAI | None = None,
        endpoints: Mapping[str, Endpoint] | Endpoints | None = None,
        settings: Settings | None = None,
        **given: Any,
    ) -> None:
        folder = Path(agents) if isinstance(agents, str | os.PathLike) else None
        known = [] if isinstance(agents, str | os.PathLike) else list(agents)
        wanted = list(tools)
        settings = replace_settings(settings or in_force(), given)
        named = [*settings.tools, *(each for each in wanted if isinstance(each, str))]
        self._settings = replace_settings(settings, {"tools": tuple(named), "agents": folder or settings.agents})
        self._registry = _registry(self._settings, wanted, known)
        for hook in found_hooks(hooks):
            self._registry.hooks.add(hook)
        self._model = model
        self._endpoints = endpoints
        self._parts: dict[str, WorkerParts] = {}
        """The parts of each worker with the plugin, by task queue."""
        super().__init__(
            "perdure.PerdurePlugin",
            data_converter=self._converter,
            interceptors=[*INTERCEPTORS],
            workflow_runner=_runner,
            workflow_failure_exception_types=[PerdureError],
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """See `temporalio.worker.Plugin`."""
        queue = config["task_queue"]
        if any(queue in limited_queues(part.settings, name) for name, part in self._parts.items()):
            return config  # one of Perdure's own workers, which is complete
        config = super().configure_worker(config)
        client = with_converter(config["client"])
        if client is not config["client"]:
            config["client"] = client
            config["interceptors"] = [*config.get("interceptors", ()), _OwnClient(client)]
        version = config.get("deployment_config") or deployment(self._settings)
        config["deployment_config"] = version
        stored = client.data_converter.external_storage is not None
        versioned = version is not None and version.use_worker_versioning
        parts = WorkerParts(
            self._registry,
            self._settings,
            stored=stored,
            versioned=versioned,
            cached=config.get("max_cached_workflows"),
            model=self._model,
            endpoints=self._endpoints,
        )
        theirs = list(config.get("activities", ()))
        self._check_names(theirs)
        config["activities"] = [*theirs, *parts.activities]
        config["workflows"] = [*config.get("workflows", ()), *parts.workflows]
        config["patch_activation_callback"] = _activation(parts, config.get("patch_activation_callback"))
        self._parts[queue] = parts
        return config

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """See `temporalio.worker.Plugin`."""
        config = super().configure_replayer(config)
        config["workflows"] = [*config.get("workflows", ()), *WORKFLOWS]
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """See `temporalio.worker.Plugin`. Workers of limited queues, and MCP servers, run beside the worker."""
        parts = self._parts.get(worker.task_queue)
        if parts is None:
            await next(worker)
            return
        async with keep_mcp_tools(self._settings, self._registry), AsyncExitStack() as beside:
            client = with_converter(worker.client)
            version = worker.config(active_config=True).get("deployment_config")
            options = {"interceptors": [*INTERCEPTORS, _OwnClient(client)], "deployment_config": version}
            for each in parts.limited(client, worker.task_queue, options):
                await beside.enter_async_context(each)
            with worker_context():
                await next(worker)

    def _converter(self, theirs: DataConverter | None) -> DataConverter:
        with apply_settings(self._settings):
            return data_converter() if theirs is None else with_perdure_converter(theirs, data_converter())

    def _check_names(self, activities: list[Callable[..., Any]]) -> None:
        """Reject an activity with a tool's name: the tool's calls would go to it."""
        for function in activities:
            name = activity_name(function)
            if name is None:
                raise SettingsError(
                    "the worker already has a dynamic activity, and Perdure's tools need one: use another worker for one of them"
                )
            if name in {tool.name for tool in self._registry if "_calls" not in tool.definition}:
                raise SettingsError(f"the worker has an activity {name!r} and a tool of that name: rename one of them")


class _OwnClient(Interceptor):
    """Gives Perdure's activities the plugin's client: the SDK gives activities the worker's, even if a plugin sets another."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        client = self._client

        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                OWN_CLIENT.set(client)  # each activity has its own context
                return await super().execute_activity(input)

        return Inbound(next)


class _Runner(SandboxedWorkflowRunner):
    """Runs the user's workflows in the sandbox, and Perdure's own without it: it would cost them a third of their time."""

    def create_instance(self, det: Any) -> WorkflowInstance:
        if det.defn.name in WORKFLOW_TYPES:
            return Unsandboxed().create_instance(det)
        return super().create_instance(det)


def _runner(theirs: WorkflowRunner | None) -> WorkflowRunner:
    """Return the user's runner, with Perdure's pure modules as passthrough modules."""
    if theirs is None:
        return Unsandboxed()
    if not isinstance(theirs, SandboxedWorkflowRunner):
        return theirs
    restrictions = theirs.restrictions.with_passthrough_modules(*PURE)
    if type(theirs) is SandboxedWorkflowRunner:
        return _Runner(restrictions=restrictions, runner_class=theirs.runner_class)
    return dataclasses.replace(theirs, restrictions=restrictions)


def _registry(settings: Settings, tools: Iterable[AgentTool], agents: list[Agent[Any]]) -> Registry:
    registry = registry_of(settings)
    for tool in tools:
        if isinstance(tool, str):
            continue
        found = tool.functions if isinstance(tool, Agent) else tool_functions(tool)
        if not found and not isinstance(tool, Agent):
            raise ToolDefinitionError(f"{tool!r} is not a tool: give a function, or decorate one with @tool")
        for function in found:
            registry.add(function)
        if isinstance(tool, Agent):
            agents = [*agents, tool]
    registry.agents += agents
    for agent in agents:
        for function in agent.functions:
            registry.add(function)
        for hook in agent.hooks:
            registry.hooks.add(hook)
    if settings.mcp is None:  # otherwise a missing tool may be an MCP server's
        for agent in agents:
            wanted = [message.tool for message in agent.parsed.messages() if isinstance(message, ToolMessage)]
            resolve_tools(wanted, registry.definitions())
        check_agents(settings.agents, registry)
    return registry


def _activation(
    parts: WorkerParts, theirs: Callable[[PatchActivationInput], bool] | None
) -> Callable[[PatchActivationInput], bool]:
    """Return the callback that activates patches: `theirs` for the user's workflows, the parts' for Perdure's own."""

    def activates(patch: PatchActivationInput) -> bool:
        if patch.workflow_info.workflow_type == SESSION_WORKFLOW or patch.patch_id == PREPARED_BY_ACTIVITY:
            return parts.activates(patch)
        return theirs is None or theirs(patch)

    return activates
