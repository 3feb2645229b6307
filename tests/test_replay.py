"""Recorded histories replay: a worker of today can go on with a run of yesterday (R13.7)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from perdure.hosting.connection import data_converter
from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.loops import LoopWorkflow
from perdure.workflows.sessions.session import SessionWorkflow
from scripts.record_histories import is_released
from scripts.release import changed_histories, problems, write_digests
from tests.support import ROOT

HISTORIES = sorted((Path(__file__).parent / "histories").rglob("*.json"))
KINDS = {
    "approval-timeout", "cancelled", "continued", "deadline", "decisions", "delegate", "each", "failed", "fallback", "given-plan",
    "interrupted", "long-each", "plain-script", "plain-solution", "plain-tools", "plan-approval", "refused-output", "session", "sleep", "step",
    "stuck", "unstreamed", "until",
}  # fmt: skip
"""What every version leaves a history of."""


@pytest.mark.parametrize(
    "recorded",
    [pytest.param(path.read_text(encoding="utf-8"), id=f"{path.parent.name}/{path.stem}") for path in HISTORIES],
)
async def test_a_recorded_history_replays(recorded: str) -> None:
    written = json.loads(recorded)
    history = WorkflowHistory.from_json(written.pop("workflowId"), written)
    replayer = Replayer(
        workflows=[AgentWorkflow, LoopWorkflow, SessionWorkflow],
        data_converter=data_converter(),
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    result = await replayer.replay_workflow(history)
    assert result.replay_failure is None
    assert len(history.events) >= 4  # as many as an idle session has


def test_every_version_has_a_history_of_every_kind() -> None:
    versions = {path.parent for path in HISTORIES}
    assert versions
    for folder in versions:
        assert {path.name.split(".")[0] for path in folder.glob("*.json")} == KINDS
        for below in ("delegate.agent", "each.loop", "until.loop", "long-each.loop.2", "continued.2"):
            assert (folder / f"{below}.json").is_file()


def test_r13_7_recorded_histories_are_as_they_were_recorded(tmp_path: Path) -> None:
    for folder in {path.parent for path in HISTORIES}:
        assert changed_histories(folder) == [], "a change of what a workflow does goes behind workflow.patched"
    (tmp_path / "plain.json").write_text("{}")
    write_digests(tmp_path)
    assert changed_histories(tmp_path) == []
    (tmp_path / "plain.json").write_text("{ }")
    (tmp_path / "new.json").write_text("{}")
    assert changed_histories(tmp_path) == ["new.json", "plain.json"]


def test_the_histories_of_a_released_version_are_not_written_again(tmp_path: Path) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## Unreleased\n", encoding="utf-8")
    assert not is_released("0.1.0", changelog)
    changelog.write_text("# Changelog\n\n## [0.1.0] - 2027-01-01\n", encoding="utf-8")
    assert is_released("0.1.0", changelog)
    assert problems("0.1.0", changelog.read_text(), HISTORIES[0].parents[1]) == []
    assert "CHANGELOG.md" in problems("0.1.1", changelog.read_text(), HISTORIES[0].parents[1])[0]
    assert is_released("0.1.0", ROOT / "CHANGELOG.md"), "released: its histories stay"
