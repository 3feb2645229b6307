"""The record of a worker's tools, models and files, made at the start of a run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.api.operatorservice.v1 import ListNexusEndpointsRequest
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.active_executions import leave_or_refuse, leave_to_another
from perdure.activities.deliveries import NotificationRoutes
from perdure.activities.endpoints import Endpoints
from perdure.activities.named_functions import NamedFunctions
from perdure.activities.prices import list_price
from perdure.activities.prompt_files import PromptFolders, reading_tool
from perdure.activities.registry import Registry
from perdure.activities.transcripts import recall
from perdure.agents.folder import AgentFolder
from perdure.approvals.policy import policy_parameter_problems
from perdure.errors import AgentError, ProtocolError
from perdure.models.usage import Price, price_of
from perdure.queries import SearchAttributes
from perdure.rules import parameter_problems
from perdure.runs.agent import POLICIES, Models
from perdure.runs.delegates import merge_upfront
from perdure.runs.schedules import check_agent_name
from perdure.runs.wire import (
    LIMITED_ACTIVITY,
    NEXT_TASK_ACTIVITY,
    PREPARE_ACTIVITY,
    PREPARED_FORM,
    READ_AGENT_ACTIVITY,
    REFUSED,
    WAITING_ATTRIBUTE,
    PreparedWorker,
    PrepareInput,
)
from perdure.tools.invocation import Limited
from perdure.tools.tool import Tool, resolve_tools, undo_tools
from perdure.values.json import JsonObject, Packed, dumps, pack
from perdure.values.limits import bytes_text


class PrepareActivity:
    """The preparation of runs. `worker`: the part of a run's record that is the same for all runs of this worker."""

    def __init__(
        self,
        registry: Registry,
        worker: PreparedWorker,
        *,
        agents: Path | None,
        attribute: SearchAttributes | None,
        functions: NamedFunctions,
        untrusted: Iterable[str],
        folders: PromptFolders,
        endpoints: Endpoints,
        routes: NotificationRoutes,
    ) -> None:
        self._registry = registry
        self._worker = worker
        self._folder = AgentFolder(agents)
        self._attribute = attribute or SearchAttributes()
        self._functions = functions
        self._untrusted = frozenset(untrusted)
        self._prompt_folders = folders
        self._endpoints = endpoints
        self._routes = routes

    @activity.defn(name=LIMITED_ACTIVITY)
    async def limited(self) -> Limited:
        """Return this worker's rate limits as of now."""
        return self._worker.limited

    @activity.defn(name=READ_AGENT_ACTIVITY)
    async def read_agent(self, name: str, tenant: str = "") -> JsonObject:
        """Return the present agent file of this name, for a run that a schedule has started for this tenant (R19.6)."""
        try:
            check_agent_name(name)
            run_id = activity.info().workflow_id or ""
            document = await asyncio.to_thread(self._folder.read_version, name, run_id, tenant)
        except ProtocolError as error:
            raise ApplicationError(str(error), type=REFUSED, non_retryable=True) from None
        if (size := len(dumps(document).encode())) > self._worker.max_payload:
            message = f"the agent {name!r} has {bytes_text(size)}; the limit is {self._worker.max_payload:,}"
            raise ApplicationError(message, type=REFUSED, non_retryable=True)
        return document

    @activity.defn(name=PREPARE_ACTIVITY)
    async def prepare(self, wanted: PrepareInput) -> Packed:
        """Return the run's tools, its models with the worker's defaults (R9.4), and its skills and files (R10.19)."""
        definitions = self._registry.definitions()
        if lacking := [name for name in wanted.tools if isinstance(name, str) and name not in definitions]:
            await leave_to_another(f"the worker has no tool {lacking[0]!r}")
        if problem := self._routes.problem(wanted):
            await leave_or_refuse(problem)
        try:
            tools = resolve_tools(wanted.tools, definitions)
            try:
                parts = await asyncio.to_thread(self._prompt_folders.read, wanted.prompt, tools)
                if parts.skills:
                    tools |= resolve_tools([reading_tool(parts, definitions)], definitions)
            except ProtocolError as error:
                await leave_or_refuse(str(error))
            delegates, problems = self._folder.collect(
                wanted.tools, wanted.delegates, run_id=activity.info().workflow_id or "", tenant=wanted.tenant
            )
            for tool in tools.values():
                if tool.resolution == "upfront" and tool.delegate in problems:
                    await leave_or_refuse(f"tool {tool.name!r}: {problems[tool.delegate]}")
                if tool.resolution == "upfront" and tool.delegate in delegates:
                    tools[tool.name] = merge_upfront(tool, delegates[tool.delegate])
            takes_back = undo_tools(tools, definitions)
        except ProtocolError as error:
            raise ApplicationError(str(error), type=REFUSED, non_retryable=True) from None
        await _check_rules(wanted, tools)
        models = Models.model_validate(self._worker.models.model_dump() | wanted.models)
        for model in (models.fast, models.smart, *models.fallback):
            if (lacking_endpoint := self._endpoints.problem(model)) is not None:
                await leave_or_refuse(lacking_endpoint)
        if models.policy not in POLICIES:
            await self._functions.find(models.policy, "config.models.policy")
        if wanted.approver is not None:
            await self._functions.find(wanted.approver, "config.approval.approver")
        await _check_endpoints(tools)
        await self._attribute.ensure(activity.client())
        prepared = self._worker.model_copy(
            update={
                "tools": [self._declared(tool) for tool in tools.values()],
                "undo_tools": [self._declared(tool) for tool in takes_back.values()],
                "recall": self._recall(definitions),
                "models": models,
                "prices": self._known_prices(models, wanted),
                "delegates": delegates,
                "delegate_problems": problems,
                "searchable": WAITING_ATTRIBUTE in self._attribute.known,
                "attributes": self._attribute.known,
                "hooks": self._registry.hooks.recorded("run"),
                "prompt": parts,
            }
        )
        packed = pack(prepared, PREPARED_FORM)
        if len(packed.data) > self._worker.max_payload:
            message = f"the agent's tools and delegates have {bytes_text(len(packed.data))} packed; the limit is {self._worker.max_payload:,}"
            raise ApplicationError(message, type=REFUSED, non_retryable=True)
        return packed

    def _recall(self, definitions: Mapping[str, JsonObject]) -> Tool | None:
        """Return Perdure's own recall tool; `None` where the worker has another tool of that name."""
        function = self._registry.get(recall.__name__)
        if function is None or inspect.unwrap(function.function) is not recall:
            return None
        return self._declared(resolve_tools([recall.__name__], definitions)[recall.__name__])

    def _declared(self, tool: Tool) -> Tool:
        """Return the tool with the worker's declarations for its name, or for its code's name (R15.2)."""
        if self._untrusted.isdisjoint({tool.name, tool.activity, tool.delegate}):
            return tool
        declared: Tool = tool.model_copy(update={"code_untrusted": True})
        return declared

    def _known_prices(self, models: Models, wanted: PrepareInput) -> dict[str, Price]:
        """Return the prices of the models that the run names: the agent's, the worker's, or list prices. Refuse a budget without prices.

        A worker's own policy may also choose another model of the worker, or any model with a price.
        """
        prices = {**self._worker.prices, **wanted.prices}
        named = [models.fast, models.smart, *models.fallback]
        own = models.policy not in POLICIES
        listed = [*named, self._worker.models.fast, self._worker.models.smart] if own else named
        known = {name: price for name in listed if (price := price_of(name, prices) or list_price(name)) is not None}
        if own:
            return {**prices, **known}
        if wanted.cost_budget and (unknown := [name for name in named if name not in known]):
            message = f"config.cost_budget needs the price of {', '.join(map(repr, unknown))}: give it in config.prices, or in PERDURE_PRICES for the worker"
            raise ApplicationError(message, type=REFUSED, non_retryable=True)
        return {**wanted.prices, **known}  # tools may report the usage of their own models


async def _check_rules(wanted: PrepareInput, tools: Mapping[str, Tool]) -> None:
    """Refuse a rule about a parameter that its tool cannot have: it would protect nothing."""
    of_policy = [] if wanted.policy is None else policy_parameter_problems(wanted.policy, tools.values())
    if wrong := of_policy + parameter_problems(enumerate(wanted.rules), tools.values()):
        await leave_or_refuse(str(AgentError.of(wrong)))


async def _check_endpoints(tools: Mapping[str, Tool]) -> None:
    """Check that the server knows the endpoints of calls: otherwise the run's task would fail repeatedly."""
    for tool in tools.values():
        if tool.calls is None or tool.calls.kind != "operation":
            continue
        try:
            wanted = ListNexusEndpointsRequest(name=tool.calls.endpoint, page_size=1)
            known = (await activity.client().operator_service.list_nexus_endpoints(wanted)).endpoints
        except RPCError:
            return  # the worker may lack the permission
        if not known:
            message = f"tool {tool.name!r}: the server has no Nexus endpoint {tool.calls.endpoint!r}"
            raise ApplicationError(message, type=REFUSED, non_retryable=True)


@activity.defn(name=NEXT_TASK_ACTIVITY)
async def next_task(*_: Any) -> None:
    """Return at once."""
