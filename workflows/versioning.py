"""Workflows of a worker, with and without a deployment version."""

from __future__ import annotations

import functools
from typing import Any, Final

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import VersioningBehavior

from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.audit import AuditWorkflow
from perdure.workflows.evaluations import EvaluatedRunWorkflow, EvaluationWorkflow
from perdure.workflows.ledger import LedgerWorkflow
from perdure.workflows.loops import LoopWorkflow
from perdure.workflows.notifications import NotificationWorkflow
from perdure.workflows.session import SessionWorkflow
from perdure.workflows.session_transcript import SegmentWorkflow

with workflow.unsafe.imports_passed_through():
    from perdure.errors import PerdureError
    from perdure.runs.audit import AUDIT_WORKFLOW
    from perdure.runs.evaluation import EVALUATED_RUN_WORKFLOW, EVALUATION_WORKFLOW
    from perdure.runs.ledger import LEDGER_WORKFLOW
    from perdure.runs.loops import LOOP_WORKFLOW
    from perdure.runs.notifications import NOTIFICATION_WORKFLOW
    from perdure.runs.wire import AGENT_WORKFLOW
    from perdure.sessions.transcript import SEGMENT_WORKFLOW
    from perdure.sessions.wire import KEY_WORKFLOW, SESSION_WORKFLOW
    from perdure.values.json import Json


@workflow.defn(name=KEY_WORKFLOW)
class KeyWorkflow:
    """A workflow without input or action: its id is made of the key, its memo holds a digest of the request."""

    @workflow.run
    async def run(self, *_: Json) -> None:
        """End."""


def _versioned(name: str, workflow_class: Any, type_name: str, behavior: VersioningBehavior) -> type:
    """Return the workflow with a versioning behavior, as a class of this name in this module, which a sandbox imports.

    The SDK takes the behavior from a class alone, and the class has to have its own `run`. A server refuses the tasks of
    such a class from a worker without a version.
    """

    @functools.wraps(workflow_class.run)
    async def run(self: Any, *arguments: Any) -> Any:
        return await workflow_class.run(self, *arguments)

    run.__module__, run.__qualname__ = __name__, f"{name}.run"
    same = type(name, (workflow_class,), {"__module__": __name__, "__doc__": workflow_class.__doc__, "run": run})
    failures = [PerdureError, ValidationError]
    return workflow.defn(name=type_name, failure_exception_types=failures, versioning_behavior=behavior)(same)


_PINNED: Final = VersioningBehavior.PINNED
_UPGRADE: Final = VersioningBehavior.AUTO_UPGRADE

PinnedAgentWorkflow = _versioned("PinnedAgentWorkflow", AgentWorkflow, AGENT_WORKFLOW, _PINNED)
PinnedLoopWorkflow = _versioned("PinnedLoopWorkflow", LoopWorkflow, LOOP_WORKFLOW, _PINNED)
# A session lives for years, and idles in between: a version that it was pinned to would have to run for as long.
UpgradedSessionWorkflow = _versioned("UpgradedSessionWorkflow", SessionWorkflow, SESSION_WORKFLOW, _UPGRADE)
# A segment outlives all versions, so the current version answers for it.
UpgradedSegmentWorkflow = _versioned("UpgradedSegmentWorkflow", SegmentWorkflow, SEGMENT_WORKFLOW, _UPGRADE)
UpgradedKeyWorkflow = _versioned("UpgradedKeyWorkflow", KeyWorkflow, KEY_WORKFLOW, _UPGRADE)
# A ledger runs for as long as its tenant exists.
UpgradedLedgerWorkflow = _versioned("UpgradedLedgerWorkflow", LedgerWorkflow, LEDGER_WORKFLOW, _UPGRADE)
# So does the audit log, for as long as its task queue.
UpgradedAuditWorkflow = _versioned("UpgradedAuditWorkflow", AuditWorkflow, AUDIT_WORKFLOW, _UPGRADE)
# A notification outlives its run, and a callback is retried for a day.
UpgradedNotificationWorkflow = _versioned(
    "UpgradedNotificationWorkflow", NotificationWorkflow, NOTIFICATION_WORKFLOW, _UPGRADE
)
# An evaluation takes hours, and continues as new on the way; its runs are pinned, as all runs are.
UpgradedEvaluationWorkflow = _versioned("UpgradedEvaluationWorkflow", EvaluationWorkflow, EVALUATION_WORKFLOW, _UPGRADE)
UpgradedEvaluatedRunWorkflow = _versioned(
    "UpgradedEvaluatedRunWorkflow", EvaluatedRunWorkflow, EVALUATED_RUN_WORKFLOW, _UPGRADE
)

VERSIONED: Final[dict[type, type]] = {
    AgentWorkflow: PinnedAgentWorkflow,
    LoopWorkflow: PinnedLoopWorkflow,
    SessionWorkflow: UpgradedSessionWorkflow,
    SegmentWorkflow: UpgradedSegmentWorkflow,
    KeyWorkflow: UpgradedKeyWorkflow,
    LedgerWorkflow: UpgradedLedgerWorkflow,
    AuditWorkflow: UpgradedAuditWorkflow,
    NotificationWorkflow: UpgradedNotificationWorkflow,
    EvaluationWorkflow: UpgradedEvaluationWorkflow,
    EvaluatedRunWorkflow: UpgradedEvaluatedRunWorkflow,
}
"""Each workflow, and what a worker with a deployment version registers in its place."""
WORKFLOWS: Final = tuple(VERSIONED)
