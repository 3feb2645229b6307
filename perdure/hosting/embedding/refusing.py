"""Tasks of runs that the server refuses: told in the log with the run's id, which the SDK's own line does not have, and noted for the run."""

from __future__ import annotations

import logging
from typing import Any, Final

from temporalio.bridge.proto.workflow_activation import RemoveFromCache
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import Info

from perdure.hosting.embedding.finalizers import keep_out
from perdure.hosting.operating import unreplayable
from perdure.hosting.operating.held import carried_out
from perdure.workflows.observing.listing import note_gone, note_refused

_REFUSED: Final = "Error reporting WFT to server"
"""Why the SDK puts a run out of memory whose task the server did not take."""
_log: Final = logging.getLogger("perdure.run")


class Noting(WorkflowInstance):
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
            unreplayable.note(info.workflow_id)
            fields = {"run": info.workflow_id, "workflow": info.workflow_type, "why": removed.message[:2_000]}
            _log.error("a run cannot be replayed by this worker", extra={"perdure": fields})
        else:
            unreplayable.forget(info.workflow_id)
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
        return Noting(super().create_instance(det))


class Sandboxed(SandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return Noting(super().create_instance(det))
