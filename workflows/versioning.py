"""Workflows for workers with a deployment version: the same ones, with a versioning behavior."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import VersioningBehavior

from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.keys import KeyWorkflow
from perdure.workflows.loops import LoopWorkflow
from perdure.workflows.session import SessionWorkflow
from perdure.workflows.session_transcript import SegmentWorkflow

with workflow.unsafe.imports_passed_through():
    from perdure.errors import PerdureError
    from perdure.runs.loops import LOOP_WORKFLOW, LoopState
    from perdure.runs.wire import AGENT_WORKFLOW, RunResult
    from perdure.sessions.transcript import SEGMENT_WORKFLOW
    from perdure.sessions.wire import KEY_WORKFLOW, SESSION_WORKFLOW


@workflow.defn(
    name=AGENT_WORKFLOW,
    failure_exception_types=[PerdureError, ValidationError],
    versioning_behavior=VersioningBehavior.PINNED,
)
class PinnedAgentWorkflow(AgentWorkflow):
    """See `AgentWorkflow`."""

    @workflow.run
    async def run(self, *given: Any) -> RunResult:
        """See `AgentWorkflow.run`."""
        return await super().run(*given)


@workflow.defn(
    name=LOOP_WORKFLOW,
    failure_exception_types=[PerdureError, ValidationError],
    versioning_behavior=VersioningBehavior.PINNED,
)
class PinnedLoopWorkflow(LoopWorkflow):
    """See `LoopWorkflow`."""

    @workflow.run
    async def run(self, *given: Any) -> LoopState:
        """See `LoopWorkflow.run`."""
        return await super().run(*given)


@workflow.defn(name=KEY_WORKFLOW, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class UpgradedKeyWorkflow(KeyWorkflow):
    """See `KeyWorkflow`."""

    @workflow.run
    async def run(self, *_: Any) -> None:
        """See `KeyWorkflow.run`."""


@workflow.defn(
    name=SEGMENT_WORKFLOW,
    failure_exception_types=[PerdureError, ValidationError],
    versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
)
class LastingSegmentWorkflow(SegmentWorkflow):
    """See `SegmentWorkflow`. It outlives all versions, so whichever is current answers for it."""

    @workflow.run
    async def run(self, *given: Any) -> None:
        """See `SegmentWorkflow.run`."""
        await super().run(*given)


@workflow.defn(
    name=SESSION_WORKFLOW,
    failure_exception_types=[PerdureError, ValidationError],
    # It lives for years, and idles in between: a version it was pinned to would have to be kept for as long.
    versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
)
class UpgradedSessionWorkflow(SessionWorkflow):
    """See `SessionWorkflow`."""

    @workflow.init
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)

    @workflow.run
    async def run(self, *given: Any) -> None:
        """See `SessionWorkflow.run`."""
        await super().run(*given)
