"""The histories of runs: a run's own, those of all below it, and whether this version of Perdure replays them (R13.7)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from perdure.errors import RunError, SettingsError
from perdure.hosting.telemetry import silent_runtime
from perdure.run.loops import LOOP_WORKFLOW
from perdure.run.wire import AGENT_WORKFLOW
from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.loops import LoopWorkflow

_OURS: Final = (AGENT_WORKFLOW, LOOP_WORKFLOW)


async def executions(client: Client, run_id: str) -> AsyncIterator[WorkflowHistory]:
    """The histories of a run that may have gone on as new, first to last (R6.8). Raises `RunError` when there is no such run."""
    try:
        description = await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise RunError(f"there is no run {run_id!r} in namespace {client.namespace!r}") from None
        raise
    following = description.raw_info.first_run_id or description.run_id
    while following:
        history = await client.get_workflow_handle(run_id, run_id=following).fetch_history()
        yield history
        last = history.events[-1]
        following = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id


def started_below(history: WorkflowHistory) -> list[tuple[str, str]]:
    """The workflow id and the type of each child that it started."""
    found = []
    for event in history.events:
        if event.HasField("child_workflow_execution_started_event_attributes"):
            started = event.child_workflow_execution_started_event_attributes
            found.append((started.workflow_execution.workflow_id, started.workflow_type.name))
    return found


async def family(client: Client, run_id: str) -> AsyncIterator[WorkflowHistory]:
    """The histories of a run and of all below it: delegates and loops, each with what it went on as."""
    left = [run_id]
    while left:
        async for history in executions(client, left.pop(0)):
            yield history
            left += [below for below, _ in started_below(history)]


def read_history(path: Path) -> WorkflowHistory:
    """A history as JSON: `temporal workflow show --output json`, a download of the Web UI, or an SDK's. Raises `SettingsError`."""
    try:
        text = path.read_text(encoding="utf-8")
        written: Any = json.loads(text)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read as a history: {error}") from None
    if isinstance(written, dict) and "runs" in written and "events" not in written:
        raise SettingsError(f"{path} is a case, not a history: play it with perdure.testing.replay (docs/testing.md)")
    if not isinstance(written, dict) or not isinstance(written.get("events"), list) or not written["events"]:
        raise SettingsError(f"{path} is no history: expected JSON with 'events'")
    started = written["events"][0].get("workflowExecutionStartedEventAttributes") or {}
    workflow_id = written.pop("workflowId", None) or started.get("workflowId") or path.stem
    try:
        return WorkflowHistory.from_json(workflow_id, written)
    except Exception as error:  # the SDK raises whatever reading it raises
        raise SettingsError(f"{path} is no history: {str(error).splitlines()[0]}") from None


@cache
def quiet_runtime() -> Runtime:
    """For replaying: what the SDK has to say of a history that breaks, the result says too."""
    return silent_runtime()


async def replay_problem(history: WorkflowHistory, converter: DataConverter) -> str | None:
    """What would break if a worker of this version went on with it, in one line; `None`: nothing."""
    replayer = Replayer(
        workflows=[AgentWorkflow, LoopWorkflow],
        data_converter=converter,
        workflow_runner=UnsandboxedWorkflowRunner(),
        runtime=quiet_runtime(),
    )
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return None if result.replay_failure is None else " ".join(str(result.replay_failure).split())


async def replay_each(
    client: Client | None, names: Sequence[str], files: Collection[str], converter: DataConverter
) -> AsyncIterator[tuple[str, str | None, int]]:
    """By name of a run, or of a file: what would break, and how many events there are. A run comes with all below it; workflows of
    others in between are passed over. Raises `RunError` or `SettingsError` for what is not there."""
    for name in names:
        if name in files:
            history = read_history(Path(name))
            yield name, await replay_problem(history, converter), len(history.events)
            continue
        assert client is not None
        async for history in family(client, name):
            if kind_of(history) in _OURS:
                yield history.workflow_id, await replay_problem(history, converter), len(history.events)


def kind_of(history: WorkflowHistory) -> str:
    """The type of its workflow."""
    return history.events[0].workflow_execution_started_event_attributes.workflow_type.name
