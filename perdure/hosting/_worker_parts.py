"""Parts of a worker: the same for Perdure's own and for a user's worker with the plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import networkx  # noqa: F401 imported here, so that no workflow task imports it for a plan with a cycle
from openai import AsyncOpenAI
from temporalio.client import Client
from temporalio.worker import Interceptor, PatchActivationInput, Worker

from perdure.activities import other_runs, transcripts
from perdure.activities.active_executions import ActiveExecutions
from perdure.activities.audit import AuditWriter, audit
from perdure.activities.calls import ToolActivity
from perdure.activities.deliveries import DeliverActivity, NotificationRoutes, NotifyActivity
from perdure.activities.endpoints import Endpoints
from perdure.activities.evaluations import ScoreActivity
from perdure.activities.hooks import HookActivity
from perdure.activities.ledger import find_standing_approvals, reserve, use_standing_approval
from perdure.activities.model_texts import SampleActivity
from perdure.activities.named_functions import ApproveActivity, ChooseActivity, NamedFunctions
from perdure.activities.preparation import PrepareActivity, next_task
from perdure.activities.prompt_files import PromptFolders, skill_tools
from perdure.activities.registry import Registry
from perdure.activities.requests import RequestActivity
from perdure.activities.resets import end_former, end_left_behind, execution, read_former_record
from perdure.activities.secrets import Masking, keep_secret
from perdure.activities.token_rates import QueueRates
from perdure.activities.transcripts import SummaryActivity
from perdure.activities.undo import plan_undo_of
from perdure.errors import SettingsError
from perdure.hooks.events import LOCAL_SESSION_HOOKS_PATCH, SESSION_HOOKS_PATCH
from perdure.hosting.settings import Settings
from perdure.hosting.settings_display import secrets_of
from perdure.hosting.worker_group import limited_workers, model_rates
from perdure.models.requests import Endpoint
from perdure.queries import SearchAttributes
from perdure.runs.audit import AUDIT_PATCH
from perdure.runs.wire import PREPARED_BY_ACTIVITY
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
                raise SettingsError(
                    f"tool_limits: {tool.name} cannot be limited here: its calls go to workers of their own"
                )
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
        prepare = PrepareActivity(
            registry,
            settings.approval_floor,
            settings.agents,
            max_payload,
            settings.prices,
            attribute,
            named,
            models,
            limited(model_rates(settings), settings.tool_limits, runs=settings.session_runs > 0),
            settings.untrusted,
            settings.approval_flows,
            PromptFolders(settings.skills, settings.workspace, settings.untrusted),
            settings.pages_url,
            settings.model_patience,
            routes,
            settings.keep_version,
            settings.rules,
            settings.budgets,
            settings.audit is not None,
        )
        if settings.skills is not None:
            found = [tool_function(function) for function in skill_tools(settings.skills)]
            registry.add_missing([function for function in found if function is not None])
        more = settings.endpoints if endpoints is None else endpoints
        self._tool = ToolActivity(registry, max_payload, settings.approval_floor, underway).run
        endpoints_in_use = more if isinstance(more, Endpoints) else Endpoints(model, more, files=settings.model_files)
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
                other_runs.read_child_input,
                other_runs.read_usage,
                plan_undo_of,
                next_task,
                SummaryActivity(endpoints_in_use, models, underway).summarize,
                SampleActivity(endpoints_in_use, underway).sample,
                transcripts.archive,
                transcripts.find,
                other_runs.read_result,
                other_runs.update_run,
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
            client, self.settings, task_queue, self._request, self._tool, other_runs.hold_turn, options
        )
