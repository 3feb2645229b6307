"""Parts of a worker: the same for Perdure's own and for a user's worker with the plugin."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from threading import local
from typing import Any, Final

from openai import AsyncOpenAI
from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import RemoveFromCache
from temporalio.client import Client
from temporalio.worker import (
    Interceptor,
    PatchActivationInput,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkflowInstance,
    WorkflowInstanceDetails,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import Info

from perdure.activities import queries, transcripts
from perdure.activities import queries as session_runs
from perdure.activities.active_executions import ActiveExecutions
from perdure.activities.calls import ToolActivity
from perdure.activities.endpoints import Endpoints
from perdure.activities.hooks import HookActivity
from perdure.activities.named_functions import ApproveActivity, ChooseActivity, NamedFunctions
from perdure.activities.preparation import PrepareActivity, execution, next_task
from perdure.activities.prompt_files import PromptFolders, skill_tools
from perdure.activities.registry import Registry
from perdure.activities.replies import DeliverActivity
from perdure.activities.requests import RequestActivity
from perdure.activities.secrets import Masking, keep_secret
from perdure.activities.transcripts import SummaryActivity
from perdure.errors import SettingsError
from perdure.hooks.events import SESSION_HOOKS_PATCH
from perdure.hosting import health
from perdure.hosting.settings import Settings
from perdure.hosting.settings_display import secrets_of
from perdure.hosting.worker_group import carried_out, limited_workers
from perdure.models.requests import Endpoint
from perdure.queries import SearchAttributes
from perdure.tools.decorator import tool_function
from perdure.tools.invocation import limited
from perdure.values.limits import MAX_PAYLOAD, MAX_STORED
from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.dispatch import EagerStartInterceptor
from perdure.workflows.keys import KeyWorkflow
from perdure.workflows.loops import LoopWorkflow
from perdure.workflows.observability import note_gone, note_refused
from perdure.workflows.session import SessionWorkflow
from perdure.workflows.session_transcript import SegmentWorkflow
from perdure.workflows.versioning import (
    LastingSegmentWorkflow,
    PinnedAgentWorkflow,
    PinnedLoopWorkflow,
    UpgradedKeyWorkflow,
    UpgradedSessionWorkflow,
)

PURE: Final = (
    "perdure",
    "pydantic",
    "pydantic_core",
    "networkx",
    "jsonschema",
    "jsonschema_specifications",
    "re2",
    "referencing",
    "rpds",
    "docstring_parser",
)
"""Loaded once for all workflows: they are deterministic, and loading them anew for each run would cost seconds."""


INTERCEPTORS: Final[tuple[Interceptor, ...]] = (Masking(), EagerStartInterceptor())
"""Round all that such a worker carries out."""


class WorkerParts:
    """Workflows and activities over these tools, for one worker.

    `stored`: whether large values go to external storage; `versioned`: whether the worker has a version. The rest as `perdure.hosting.worker.build_worker` has it.
    """

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        *,
        stored: bool = False,
        versioned: bool = False,
        model: AsyncOpenAI | None = None,
        endpoints: Mapping[str, Endpoint] | Endpoints | None = None,
        attribute: SearchAttributes | None = None,
        underway: ActiveExecutions | None = None,
    ) -> None:
        for tool in registry:
            if tool.name in settings.tool_limits and "_calls" in tool.definition:
                raise SettingsError(
                    f"tool_limits: {tool.name} is not Perdure's to limit: its calls go to workers of their own"
                )
        self.settings = settings
        keep_secret(*secrets_of(settings))
        max_payload = MAX_STORED if stored else MAX_PAYLOAD
        underway = underway or ActiveExecutions()
        models = {"fast": settings.fast_model, "smart": settings.smart_model}
        named = NamedFunctions(settings.functions)
        prepare = PrepareActivity(
            registry,
            settings.approval_floor,
            settings.agents,
            max_payload,
            settings.prices,
            attribute,
            named,
            models,
            limited(settings.model_limits, settings.tool_limits, runs=settings.session_runs > 0),
            settings.untrusted,
            settings.approval_flows,
            PromptFolders(settings.skills, settings.workspace, settings.untrusted),
            settings.pages_url,
            settings.model_patience,
        )
        if settings.skills is not None:
            found = [tool_function(function) for function in skill_tools(settings.skills)]
            registry.add_missing([function for function in found if function is not None])
        more = settings.endpoints if endpoints is None else endpoints
        self._tool = ToolActivity(registry, max_payload, settings.approval_floor, underway).run
        asked = more if isinstance(more, Endpoints) else Endpoints(model, more)
        self._request = RequestActivity(asked, underway).request
        ours: list[type] = [PinnedAgentWorkflow, PinnedLoopWorkflow] if versioned else [AgentWorkflow, LoopWorkflow]
        ours += [LastingSegmentWorkflow, UpgradedKeyWorkflow] if versioned else [SegmentWorkflow, KeyWorkflow]
        ours += [UpgradedSessionWorkflow] if versioned else [SessionWorkflow]
        self._session_hooks = bool(registry.hooks.recorded("session"))
        self.workflows = [] if settings.tools_only else ours
        self.activities: list[Callable[..., Any]] = [self._tool]
        hooks = HookActivity(registry.hooks)
        if not settings.tools_only:
            self.activities += [
                hooks.run,
                hooks.of_sessions,
                prepare.prepare,
                prepare.limited,
                self._request,
                ChooseActivity(named).choose,
                ApproveActivity(named).approve,
                execution,
                queries.given,
                queries.spent,
                next_task,
                SummaryActivity(asked, models, underway).summarize,
                transcripts.archive,
                transcripts.find,
                session_runs.after,
                session_runs.say,
                DeliverActivity(registry.routes, underway).deliver,
            ]

    def activates(self, patch: PatchActivationInput) -> bool:
        """Whether a workflow of this worker records a patch's marker: that of session hooks, where the worker has any (R10.17)."""
        return self._session_hooks or patch.patch_id != SESSION_HOOKS_PATCH

    def limited(self, client: Client, task_queue: str, options: Mapping[str, Any]) -> Iterator[Worker]:
        """Workers for what is limited of a worker on this queue."""
        return limited_workers(client, self.settings, task_queue, self._request, self._tool, session_runs.turn, options)


# The collector runs in any thread that allocates, so also in one that carries out a workflow's task. A finalizer there may find the workflow's event loop and start a task in it: an `AsyncOpenAI` that nobody has closed does so. No replay would start that task again.


class _Hidden(local):
    """The workflow's event loop that this thread hides while the collector runs."""

    loop: asyncio.AbstractEventLoop | None = None


_hidden: Final = _Hidden()


def keep_out() -> None:
    """Hide the event loops of workflows from what the collector finalizes, in this process and from now on."""
    if _collecting not in gc.callbacks:
        gc.callbacks.append(_collecting)


def _collecting(phase: str, _: dict[str, Any]) -> None:
    loop, _hidden.loop = _hidden.loop, None
    if phase == "start" and workflow.in_workflow():
        _hidden.loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
    elif phase == "stop" and loop is not None:
        asyncio._set_running_loop(loop)


_REFUSED: Final = "Error reporting WFT to server"
"""Why the SDK puts a run out of memory whose task the server did not take."""
_log: Final = logging.getLogger("perdure.run")


class ReportingInstance(WorkflowInstance):
    """A run in a worker's memory."""

    def __init__(self, inner: WorkflowInstance) -> None:
        self._inner = inner
        keep_out()

    def activate(self, act: Any) -> Any:
        evicts = False
        for job in act.jobs:
            if job.HasField("remove_from_cache"):
                evicts = True
                self._note(job.remove_from_cache)
        with carried_out(self._inner.get_info().workflow_id, evicts=evicts):
            return self._inner.activate(act)

    def _note(self, removed: RemoveFromCache) -> None:
        info = self._inner.get_info()
        if removed.reason == RemoveFromCache.EvictionReason.NONDETERMINISM:
            health.note(info.workflow_id)
            fields = {"run": info.workflow_id, "workflow": info.workflow_type, "why": removed.message[:2_000]}
            _log.error("a run cannot be replayed by this worker", extra={"perdure": fields})
        else:
            health.forget(info.workflow_id)
        if removed.message != _REFUSED:
            note_gone(info.run_id)
            return
        note_refused(info.run_id)
        _log.warning("the server refused a task, which is done again", extra={"perdure": {"run": info.workflow_id}})

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()


class Unsandboxed(UnsandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return ReportingInstance(super().create_instance(det))


class Sandboxed(SandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return ReportingInstance(super().create_instance(det))
