"""The composition root: tools, model and workflows put together into one Temporal worker.

python worker.py --tools my.module,other.module --agents DIR
python worker.py --tools-only --task-queue laptop --tools my.module
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from perdure.activities.calling import ToolActivity
from perdure.activities.choosing import ChooseActivity
from perdure.activities.endpoints import Endpoint, Endpoints
from perdure.activities.heartbeats import SHORTEST
from perdure.activities.named import ApproveActivity, NamedFunctions
from perdure.activities.prepare import PrepareActivity
from perdure.activities.registry import Registry
from perdure.activities.request import RequestActivity
from perdure.activities.secrets.masking import Masking
from perdure.activities.underway.ending import Underway
from perdure.activities.visibility import WaitingAttribute
from perdure.hosting import settings
from perdure.hosting.connection import connect
from perdure.hosting.draining import drain
from perdure.hosting.equipment import GRACE, Equipment
from perdure.hosting.operating.waiting import tell_waiting
from perdure.hosting.signals import beside, interrupts
from perdure.hosting.telemetry import flush, metrics_runtime
from perdure.model.usage import Price
from perdure.people.policies import Ask
from perdure.run.wire import TASK_QUEUE
from perdure.values.limits import MAX_PAYLOAD, MAX_STORED
from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.loops import LoopWorkflow

_PURE = (
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


def build_worker(
    client: Client,
    registry: Registry,
    *,
    task_queue: str = TASK_QUEUE,
    model: AsyncOpenAI | None = None,
    tools_only: bool = False,
    cached_workflows: int = 1000,
    approval_floor: Ask = "never",
    agents: Path | None = None,
    sandboxed: bool = False,
    endpoints: Mapping[str, Endpoint] | Endpoints | None = None,
    prices: Mapping[str, Price] | None = None,
    attribute: WaitingAttribute | None = None,
    functions: Collection[str] = (),
    grace: float = 5.0,
    underway: Underway | None = None,
) -> Worker:
    """A worker for everything, or with `tools_only` for tool calls alone (R12.5).

    `model`: the client to ask the model with; by default one made from `OPENAI_BASE_URL` and `OPENAI_API_KEY`.
    `approval_floor`: what people are asked about whatever an agent file or a run says (R7.1).
    `agents`: the folder of agent files, where delegates are found by name (R8.1). `sandboxed`: run the workflows in Temporal's
    sandbox, as the tests do; they are Perdure's own, so a user's worker need not pay a third of its time for it.
    `endpoints`: further model servers by name, or what asks them all in place of `model`; `prices`: dollars per million tokens by model, before the built-in list.
    `attribute`: what is known of the search attribute, so that the first run need not ask.
    `functions`: modules whose functions agent files may name, as `config.models.policy` and `config.approval.approver`.
    `grace`: seconds that what runs has to end once the worker is shut down; `underway` tells what that is.
    """
    stored = client.data_converter.external_storage is not None
    max_payload = MAX_STORED if stored else MAX_PAYLOAD
    underway = underway or Underway()
    tools = ToolActivity(registry, max_payload, approval_floor, underway)
    named = NamedFunctions(functions)
    prepare = PrepareActivity(registry, approval_floor, agents, max_payload, prices, attribute, named)
    asked = endpoints if isinstance(endpoints, Endpoints) else Endpoints(model, endpoints)
    request = RequestActivity(asked, underway)
    orchestration: list[Callable[..., Any]] = [
        prepare.prepare,
        request.request,
        ChooseActivity(named).choose,
        ApproveActivity(named).approve,
    ]
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[] if tools_only else [AgentWorkflow, LoopWorkflow],
        activities=[tools.run, *([] if tools_only else orchestration)],
        workflow_runner=_sandbox() if sandboxed else UnsandboxedWorkflowRunner(),
        max_cached_workflows=cached_workflows,
        interceptors=[Masking()],
        # A cancellation reaches an activity with its heartbeat: none is held back for up to a minute, as by default.
        max_heartbeat_throttle_interval=timedelta(seconds=SHORTEST),
        default_heartbeat_throttle_interval=timedelta(seconds=SHORTEST),
        # A workflow whose worker is gone goes to another one after five seconds, not after ten.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=5),
        graceful_shutdown_timeout=timedelta(seconds=grace),
    )


def _sandbox() -> SandboxedWorkflowRunner:
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*_PURE))


async def serve(
    equipment: Equipment,
    *,
    task_queue: str,
    tools_only: bool = False,
    metrics: str | None = None,
    grace: float = GRACE,
) -> None:
    """Connect, and work until interrupted; then drain."""
    registry = equipment.registry()
    if equipment.mcp is None:
        equipment.check_agents(registry)  # what is wrong there needs no server to be known
    runtime = metrics_runtime(metrics) if metrics else None
    client = await connect(runtime)
    attribute, underway = WaitingAttribute(), Underway()
    if not tools_only and (problem := await attribute.ensure(client)):
        print(f"worker: {problem}", file=sys.stderr)
    async with equipment.opened(registry):
        worker = build_worker(
            client,
            registry,
            task_queue=task_queue,
            tools_only=tools_only,
            approval_floor=equipment.approval_floor,
            agents=equipment.agents,
            endpoints=settings.endpoints(),
            prices=settings.prices(),
            attribute=attribute,
            functions=equipment.functions,
            grace=grace,
            underway=underway,
        )
        try:
            with interrupts() as interrupted:
                async with worker, beside(*([] if runtime is None else [tell_waiting(client, runtime.metric_meter)])):
                    where = f"task queue {task_queue!r}, namespace {client.namespace!r}"
                    print(f"worker: {len(registry)} tools, {where}", file=sys.stderr)
                    await interrupted.get()
                    await drain(worker, underway, interrupted, grace)
        finally:
            flush()  # the process is left without the interpreter's own end, which would send the last spans
