"""Parts of a worker and its options: the same for Perdure's own and for a user's worker with the plugin."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Literal

import networkx  # noqa: F401 imported here, so that no workflow task imports it for a plan with a cycle
from openai import AsyncOpenAI
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import (
    Interceptor,
    PatchActivationInput,
    PollerBehavior,
    PollerBehaviorAutoscaling,
    PollerBehaviorSimpleMaximum,
    ResourceBasedSlotConfig,
    Worker,
    WorkerDeploymentConfig,
    WorkerTuner,
)

from perdure.activities import other_workflows, transcripts
from perdure.activities.active_executions import ActiveExecutions
from perdure.activities.audit import AuditWriter, audit
from perdure.activities.calls import ToolActivity
from perdure.activities.deliveries import DeliverActivity, NotificationRoutes, NotifyActivity
from perdure.activities.endpoints import Endpoints
from perdure.activities.evaluations import ScoreActivity
from perdure.activities.hooks import HookActivity
from perdure.activities.model_texts import SampleActivity
from perdure.activities.named_functions import ApproveActivity, ChooseActivity, NamedFunctions
from perdure.activities.other_workflows import find_standing_approvals, plan_undo_of, reserve, use_standing_approval
from perdure.activities.preparation import PrepareActivity, next_task
from perdure.activities.prompt_files import PromptFolders, skill_tools
from perdure.activities.queue_rates import QueueRates
from perdure.activities.registry import Registry
from perdure.activities.requests import RequestActivity
from perdure.activities.resets import end_former, end_left_behind, execution, read_former_record
from perdure.activities.secrets import Masking, keep_secret
from perdure.activities.transcripts import SummaryActivity
from perdure.errors import SettingsError
from perdure.hooks.events import LOCAL_SESSION_HOOKS_PATCH, SESSION_HOOKS_PATCH
from perdure.hosting.settings import Settings
from perdure.hosting.settings_display import secrets_of
from perdure.hosting.worker_group import limited_workers, model_rates
from perdure.models.requests import Endpoint
from perdure.queries import SearchAttributes
from perdure.runs.agent import Models
from perdure.runs.audit import AUDIT_PATCH
from perdure.runs.version_switches import NEWEST
from perdure.runs.wire import PREPARED_BY_ACTIVITY, PreparedWorker
from perdure.sessions.wire import UNLIMITED_RUNS_PATCH
from perdure.tools.decorator import tool_function
from perdure.tools.invocation import limited, model_queue
from perdure.values.limits import MAX_PAYLOAD, MAX_STORED
from perdure.workflows.dispatch import EagerStartInterceptor
from perdure.workflows.observability import DetailsInterceptor
from perdure.workflows.versioning import VERSIONED, WORKFLOWS

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
"""Modules that all workflows share: they are deterministic, and an import for each run would take seconds."""


INTERCEPTORS: Final[tuple[Interceptor, ...]] = (Masking(), EagerStartInterceptor(), DetailsInterceptor())
"""Interceptors of each worker with Perdure's workflows."""


class WorkerParts:
    """Workflows and activities over these tools, for one worker.

    `stored`: whether large values go to external storage; `versioned`: whether the worker has a version;
    `cached`: number of workflows that it keeps in memory, by default the setting's.
    Other arguments: see `perdure.hosting.worker.build_worker`.
    """

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        *,
        stored: bool = False,
        versioned: bool = False,
        cached: int | None = None,
        model: AsyncOpenAI | None = None,
        endpoints: Mapping[str, Endpoint] | Endpoints | None = None,
        attribute: SearchAttributes | None = None,
        underway: ActiveExecutions | None = None,
    ) -> None:
        for tool in registry:
            if tool.name in settings.tool_limits and "_calls" in tool.definition:
                raise SettingsError(f"tool_limits: {tool.name} cannot be limited: its calls run on other workers")
        self.settings = settings
        self._cached = settings.cached_workflows if cached is None else cached
        keep_secret(*secrets_of(settings))
        max_payload = MAX_STORED if stored else MAX_PAYLOAD
        underway = underway or ActiveExecutions()
        models = {"fast": settings.fast_model, "smart": settings.smart_model}
        named = NamedFunctions(settings.functions)
        routes = NotificationRoutes(
            settings.notification_routes,
            registry.notification_routes,
            settings.callback_hosts,
            settings.callback_secret,
        )
        worker = PreparedWorker(
            rules=NEWEST,
            tools=[],
            models=Models(**models),
            prices=settings.prices,
            model_patience=settings.model_patience,
            floor=settings.approval_floor,
            floor_flows=settings.approval_flows,
            worker_rules=settings.rules,
            budgets=settings.budgets,
            max_payload=max_payload,
            limited=limited(model_rates(settings), settings.tool_limits, runs=settings.session_runs > 0),
            pages=settings.pages_url,
            audited=settings.audit is not None,
            keeps_version=settings.keep_version,
        )
        more = settings.endpoints if endpoints is None else endpoints
        endpoints_in_use = more if isinstance(more, Endpoints) else Endpoints(model, more, files=settings.model_files)
        prepare = PrepareActivity(
            registry,
            worker,
            agents=settings.agents,
            attribute=attribute,
            functions=named,
            untrusted=settings.untrusted,
            folders=PromptFolders(settings.skills, settings.workspace, settings.untrusted),
            endpoints=endpoints_in_use,
            routes=routes,
        )
        if settings.skills is not None:
            found = [tool_function(function) for function in skill_tools(settings.skills)]
            registry.add_missing([function for function in found if function is not None])
        self._tool = ToolActivity(registry, max_payload, settings.approval_floor, underway).run
        rates = QueueRates({model_queue("", name): limit for name, limit in model_rates(settings).items()})
        self._request = RequestActivity(endpoints_in_use, underway, rates).request
        ours = [VERSIONED[each] if versioned else each for each in WORKFLOWS]
        self._session_hooks = bool(registry.hooks.recorded("session"))
        self.workflows = [] if settings.tools_only else ours
        self.activities: list[Callable[..., Any]] = [self._tool]
        hooks, scoring = HookActivity(registry.hooks), ScoreActivity(registry)
        if not settings.tools_only:
            self.activities += [
                hooks.run,
                hooks.of_sessions,
                prepare.prepare,
                prepare.read_agent,
                prepare.limited,
                self._request,
                ChooseActivity(named).choose,
                ApproveActivity(named).approve,
                execution,
                end_former,
                end_left_behind,
                read_former_record,
                reserve,
                find_standing_approvals,
                use_standing_approval,
                audit,
                AuditWriter(settings.audit, settings.audit_token).write,
                other_workflows.read_child_input,
                other_workflows.read_usage,
                plan_undo_of,
                next_task,
                SummaryActivity(endpoints_in_use, models, underway).summarize,
                SampleActivity(endpoints_in_use, underway).sample,
                transcripts.archive,
                transcripts.find,
                other_workflows.read_result,
                other_workflows.update_run,
                DeliverActivity(registry.routes, underway).deliver,
                NotifyActivity(routes, underway).notify,
                scoring.check,
                scoring.score,
            ]

    def activates(self, patch: PatchActivationInput) -> bool:
        """Whether a workflow of this worker records a patch's marker.

        A session's execution has hooks if the worker has any (R10.17), and a limit of runs if the worker has one
        (R10.3). A local activity prepares a run if the worker keeps workflows in memory (R13.7).
        """
        decided = {
            SESSION_HOOKS_PATCH: self._session_hooks,
            LOCAL_SESSION_HOOKS_PATCH: False,
            UNLIMITED_RUNS_PATCH: not self.settings.session_runs,
            AUDIT_PATCH: self.settings.audit is not None,
            PREPARED_BY_ACTIVITY: not self._cached,
        }
        return decided.get(patch.patch_id, True)

    def limited(self, client: Client, task_queue: str, options: Mapping[str, Any]) -> Iterator[Worker]:
        """Yield a worker for each limited model and tool of this queue, and one that limits runs."""
        return limited_workers(
            client, self.settings, task_queue, self._request, self._tool, other_workflows.hold_turn, options
        )


TARGET_MEMORY = 0.8
"""The memory target, as a share, if only the CPU target is set: a run's memory cannot be known before."""


def tuning(settings: Settings) -> dict[str, Any]:
    """Return the options of `temporalio.worker.Worker`."""
    longest = timedelta(seconds=settings.heartbeat)
    options: dict[str, Any] = {
        "max_cached_workflows": settings.cached_workflows,
        "workflow_task_poller_behavior": _pollers(settings.workflow_pollers),
        "activity_task_poller_behavior": _pollers(settings.activity_pollers),
        # An activity learns of its cancellation by a heartbeat. By default the SDK may delay a heartbeat for a minute.
        "max_heartbeat_throttle_interval": longest,
        "default_heartbeat_throttle_interval": longest,
        "graceful_shutdown_timeout": timedelta(seconds=settings.grace),
        "deployment_config": deployment(settings),
    }
    if options["deployment_config"] is None:
        options["build_id"] = _code_digest()
    if settings.threads is not None:
        options["workflow_task_executor"] = ThreadPoolExecutor(settings.threads, "perdure_workflow_")
    if settings.target_cpu is None and settings.target_memory is None:
        return options | {
            "max_concurrent_activities": settings.activities,
            "max_concurrent_workflow_tasks": settings.workflow_tasks,
        }
    return options | {
        "tuner": WorkerTuner.create_resource_based(
            target_cpu_usage=settings.target_cpu or 1.0,
            target_memory_usage=settings.target_memory or TARGET_MEMORY,
            activity_config=ResourceBasedSlotConfig(maximum_slots=settings.activities),
            workflow_config=ResourceBasedSlotConfig(maximum_slots=settings.workflow_tasks),
        )
    }


@functools.cache
def _code_digest() -> str:
    """Return a digest of the source of all loaded modules: the build id of a worker that has no version.

    The SDK computes one from the bytecode, in 0.4 s of CPU time for each process.
    """
    digest = hashlib.blake2b(digest_size=16)
    for _, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py"):
            with suppress(OSError), open(path, "rb", buffering=0) as file:
                digest.update(file.read())
    return digest.hexdigest()


def deployment(settings: Settings) -> WorkerDeploymentConfig | None:
    """Return a worker's version (R13.7); `None` if it has none. Raises `SettingsError` if only half of it is set."""
    name, build = settings.deployment_name, settings.build_id
    if name is None and build is None:
        return None
    if name is None or build is None:
        raise SettingsError("deployment_name and build_id: set both or leave both out")
    version = WorkerDeploymentVersion(deployment_name=name, build_id=build)
    return WorkerDeploymentConfig(
        version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
    )


def _pollers(number: int | Literal["auto"]) -> PollerBehavior:
    return PollerBehaviorAutoscaling() if number == "auto" else PollerBehaviorSimpleMaximum(number)
