"""Tuning: the SDK's options for a worker's concurrency."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Literal

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import (
    PollerBehavior,
    PollerBehaviorAutoscaling,
    PollerBehaviorSimpleMaximum,
    ResourceBasedSlotConfig,
    WorkerDeploymentConfig,
    WorkerTuner,
)

from perdure.errors import SettingsError
from perdure.hosting.settings import Settings

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


def deployment(settings: Settings) -> WorkerDeploymentConfig | None:
    """Return a worker's version (R13.7); `None` if it has none. Raises `SettingsError` if only half of it is set."""
    name, build = settings.deployment_name, settings.build_id
    if name is None and build is None:
        return None
    if name is None or build is None:
        raise SettingsError("deployment_name and build_id go together: set both, or neither")
    version = WorkerDeploymentVersion(deployment_name=name, build_id=build)
    return WorkerDeploymentConfig(
        version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
    )


def _pollers(number: int | Literal["auto"]) -> PollerBehavior:
    return PollerBehaviorAutoscaling() if number == "auto" else PollerBehaviorSimpleMaximum(number)
