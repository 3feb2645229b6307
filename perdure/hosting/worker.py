"""The composition root: tools, model and workflows put together into one Temporal worker.

python worker.py --tools my.module,other.module --agents DIR
python worker.py --tools-only --task-queue laptop --tools my.module
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from openai import AsyncOpenAI
from temporalio.client import Client
from temporalio.runtime import Runtime
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from perdure.activities.active_executions import ActiveExecutions
from perdure.activities.endpoints import Endpoints
from perdure.activities.registry import Registry
from perdure.errors import PerdureError, SettingsError
from perdure.hosting import logs
from perdure.hosting._health import Health, export_waiting
from perdure.hosting._worker_parts import INTERCEPTORS, PURE, WorkerParts, tuning
from perdure.hosting.connection import connect, connect_with_retry
from perdure.hosting.equipment import check_agents, keep_mcp_tools, registry_of
from perdure.hosting.process import leave_at_once, queue_interrupts, run_beside
from perdure.hosting.sdk_internals import Sandboxed, Unsandboxed
from perdure.hosting.settings import Settings, in_force, replace_settings
from perdure.hosting.telemetry import flush, worker_runtime
from perdure.hosting.user_workflows import MixedRunner, load_workflows
from perdure.hosting.worker_group import WorkerGroup, drain
from perdure.models.requests import Endpoint
from perdure.queries import SearchAttributes

STICKY = timedelta(seconds=5)
"""Time after which a workflow whose worker is gone goes to another one. The SDK's default is twice as long."""
_log: Final = logging.getLogger("perdure.worker")
_COLLECTS: Final = (20_000, 20, 20)
"""Thresholds of the garbage collector. Python's default of 700 objects took a fifth of the time of a plan of 5,000 calls."""


def build_worker(
    client: Client,
    registry: Registry,
    *,
    settings: Settings | None = None,
    model: AsyncOpenAI | None = None,
    endpoints: Mapping[str, Endpoint] | Endpoints | None = None,
    sandboxed: bool = False,
    attribute: SearchAttributes | None = None,
    underway: ActiveExecutions | None = None,
    **given: Any,
) -> WorkerGroup:
    """Return a worker for everything, or with `tools_only` only for tool calls, and the workers of limited tools and
    models.

    `settings`: by default those in force; `given` are single fields that take precedence over them:
    `task_queue="mine"`. `model`: the client that calls models; by default one of `OPENAI_BASE_URL` and
    `OPENAI_API_KEY`. `endpoints`: further model servers by name, in place of the settings', or an object that calls all
    of them, in place of `model`. `sandboxed`: run the workflows in Temporal's sandbox, as the tests of conformance do. They are
    Perdure's own, and the sandbox costs a third of a worker's time. `attribute`: the known search
    attributes, so that the first run need not query them. `underway`: the record of the calls that are running.

    ```python
    async with build_worker(perdure.client, registry, task_queue="mine"):
        print(await perdure.run(shopper))
    ```
    """
    # R12.5
    settings = replace_settings(settings or in_force(), given)
    users = load_workflows(() if settings.tools_only else settings.workflows)
    users.check_tools(registry)
    stored = client.data_converter.external_storage is not None
    options = tuning(settings) | {"interceptors": [*INTERCEPTORS]}
    parts = WorkerParts(
        registry,
        settings,
        stored=stored,
        versioned=options["deployment_config"] is not None,
        model=model,
        endpoints=endpoints,
        attribute=attribute,
        underway=underway,
    )
    mixed = MixedRunner(users.workflows) if users.workflows else Unsandboxed()
    own: dict[str, Any] = {"workflow_failure_exception_types": [PerdureError]} if users.workflows else {}
    try:
        worker = Worker(
            client,
            task_queue=settings.task_queue,
            workflows=[*parts.workflows, *users.workflows.values()],
            activities=[*parts.activities, *users.activities.values()],
            workflow_runner=_sandbox() if sandboxed else mixed,
            patch_activation_callback=parts.activates,
            sticky_queue_schedule_to_start_timeout=STICKY,
            **own,
            **options,
        )
    except (ValueError, RuntimeError) as error:
        if not users.workflows:
            raise
        raise SettingsError(f"workflows: {' '.join(str(error).split())}") from error
    return WorkerGroup(worker, *parts.limited(client, settings.task_queue, options))


def _sandbox() -> Sandboxed:
    return Sandboxed(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PURE))


async def serve(settings: Settings) -> None:
    """Connect, and work until interrupted; then drain."""
    registry = registry_of(settings)
    load_workflows(settings.workflows).check_tools(registry)
    if settings.mcp is None:
        check_agents(settings.agents, registry)  # before a server is needed
    logs.configure(settings.log_format, settings.log_level, payloads=settings.log_payloads)
    runtime = worker_runtime(settings.metrics)
    client = await connect_with_retry(lambda: connect(runtime), settings.wait)
    async with keep_mcp_tools(settings, registry):
        ended = await work(client, runtime, registry, settings)
    leave(ended)


def leave(ended: bool) -> None:
    """Log that the worker has ended. If it has not ended, end the process at once."""
    if ended:
        _log.info("ended")
    else:
        flush()
        leave_at_once(1)


async def work(
    client: Client, runtime: Runtime, registry: Registry, settings: Settings, *, adopted: Iterable[str] = ()
) -> bool:
    """Work until interrupted, with health checks and gauges, then drain. `runtime` is the client's. `adopted`: build ids of
    versions without a worker, whose runs continue here. Return whether the worker has ended. If not, the caller closes its resources and
    calls `leave`."""
    attribute, underway = SearchAttributes(), ActiveExecutions()
    if not settings.tools_only and (problem := await attribute.ensure(client)):
        _log.warning("%s", problem)
    versions = [settings, *(replace_settings(settings, {"build_id": build}) for build in adopted)]
    built = [build_worker(client, registry, settings=each, attribute=attribute, underway=underway) for each in versions]
    worker = WorkerGroup(*(each for group in built for each in group.all))
    health = Health(client, worker, tools_only=settings.tools_only, on_return=attribute.forget)
    beside_it = [health.watch(), *([export_waiting(client, runtime.metric_meter)] if settings.metrics else [])]
    with queue_interrupts() as interrupted:
        async with health.served(settings.health_port), worker, run_beside(*beside_it):
            hooks = f", {len(registry.hooks)} hooks" if registry.hooks else ""
            _log.info(
                "started: %d tools%s, task queue %r, namespace %r",
                len(registry),
                hooks,
                worker.task_queue,
                client.namespace,
            )
            gc.collect()
            gc.freeze()  # otherwise each full collection scans all modules, and blocks a workflow task for 0.2 s
            gc.set_threshold(*_COLLECTS)
            await interrupted.get()
            health.draining = True
            return await drain(worker, underway, interrupted, settings.grace)
