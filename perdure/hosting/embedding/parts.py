"""What makes a Temporal worker one of Perdure's: the same for its own worker and for a user's that has the plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from openai import AsyncOpenAI
from temporalio.client import Client
from temporalio.worker import Interceptor, Worker

from perdure.activities import below
from perdure.activities.calling import ToolActivity
from perdure.activities.choosing import ChooseActivity
from perdure.activities.endpoints import Endpoints
from perdure.activities.execution import execution
from perdure.activities.hooks.activity import HookActivity
from perdure.activities.named import ApproveActivity, NamedFunctions
from perdure.activities.next_task import next_task
from perdure.activities.prepare import PrepareActivity
from perdure.activities.prompting.recording import Shelf
from perdure.activities.prompting.skills import skill_tools
from perdure.activities.registry import Registry
from perdure.activities.replies.delivering import DeliverActivity
from perdure.activities.request import RequestActivity
from perdure.activities.secrets import keep_secret
from perdure.activities.secrets.masking import Masking
from perdure.activities.sessions import runs as session_runs
from perdure.activities.transcripts import archiving
from perdure.activities.transcripts.summarizing import SummaryActivity
from perdure.activities.underway.ending import Underway
from perdure.activities.visibility import SearchAttributes
from perdure.errors import SettingsError
from perdure.hosting.settings import Settings
from perdure.hosting.settings.showing import secrets_of
from perdure.hosting.workers import limited_workers
from perdure.model.endpoint import Endpoint
from perdure.tools.functions import tool_function
from perdure.tools.limited import limited
from perdure.values.limits import MAX_PAYLOAD, MAX_STORED
from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.keys import KeyWorkflow
from perdure.workflows.loops import LoopWorkflow
from perdure.workflows.pinned import (
    LastingSegmentWorkflow,
    PinnedAgentWorkflow,
    PinnedLoopWorkflow,
    UpgradedKeyWorkflow,
    session_workflow,
)
from perdure.workflows.queues.elsewhere import Elsewhere
from perdure.workflows.sessions.archive import SegmentWorkflow

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


INTERCEPTORS: Final[tuple[Interceptor, ...]] = (Masking(), Elsewhere())
"""Round all that such a worker carries out."""


class Parts:
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
        underway: Underway | None = None,
    ) -> None:
        for tool in registry:
            if tool.name in settings.tool_limits and "_calls" in tool.definition:
                raise SettingsError(
                    f"tool_limits: {tool.name} is not Perdure's to limit: its calls go to workers of their own"
                )
        self.settings = settings
        keep_secret(*secrets_of(settings))
        max_payload = MAX_STORED if stored else MAX_PAYLOAD
        underway = underway or Underway()
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
            Shelf(settings.skills, settings.workspace, settings.untrusted),
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
        ours += [session_workflow(versioned=versioned, hooked=bool(registry.hooks.recorded("session")))]
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
                below.given,
                below.spent,
                next_task,
                SummaryActivity(asked, models, underway).summarize,
                archiving.archive,
                archiving.find,
                session_runs.after,
                session_runs.say,
                DeliverActivity(registry.routes, underway).deliver,
            ]

    def limited(self, client: Client, task_queue: str, options: Mapping[str, Any]) -> Iterator[Worker]:
        """Workers for what is limited of a worker on this queue."""
        return limited_workers(client, self.settings, task_queue, self._request, self._tool, session_runs.turn, options)
