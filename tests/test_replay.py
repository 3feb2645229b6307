"""Recorded histories replay: a worker of today can go on with a run of yesterday."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from perdure.hosting.connection import data_converter
from perdure.workflows.agent import AgentWorkflow

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


@pytest.mark.parametrize(
    "recorded", [pytest.param(path.read_text(encoding="utf-8"), id=path.stem) for path in HISTORIES]
)
async def test_a_recorded_history_replays(recorded: str) -> None:
    history = WorkflowHistory.from_json("replayed", recorded)
    result = await Replayer(workflows=[AgentWorkflow], data_converter=data_converter()).replay_workflow(history)
    assert result.replay_failure is None
    assert len(history.events) > 20


def test_there_is_a_history_to_replay() -> None:
    assert [path.stem for path in HISTORIES] == ["demo"]
