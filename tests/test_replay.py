"""Recorded histories replay: a worker of today can go on with a run of yesterday (R13.7)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.history_tests import TESTS
from scripts.release import changed_histories, is_released, problems, write_digests
from scripts.replay_coverage import UNRELEASED, replay_all
from tests.support import ROOT

HISTORIES = sorted((Path(__file__).parent / "histories").rglob("*.json"))
KINDS = {
    "approval-timeout", "cancelled", "continued", "deadline", "decisions", "delegate", "each", "failed", "fallback", "given-plan",
    "interrupted", "long-each", "plain-script", "plain-solution", "plain-tools", "plan-approval", "refused-output", "session", "sleep", "step",
    "stuck", "unstreamed", "until",
}  # fmt: skip
"""What 0.1.0 left a history of at its release."""
MORE = {
    "away-fallback", "dropped", "each-approved", "hook-deadline", "hooks", "hundreds", "last-request", "literals", "loops", "lost-worker",
    "model-away", "nested", "output-stands", "refine", "remembered", "session-decided", "session-modes", "session-replies", "steered",
    "twice",
}  # fmt: skip
"""What 0.1.0's code was recorded of after its release: paths that the next version changed, of which no history was kept before."""
LATER = KINDS | {
    "abandoned", "session-abandoned",
    "approvals", "approver", "calls", "cancelled-delegate", "delegates", "ends", "evaluated", "evaluated-badly", "evaluated-runs", "existing", "existing-fails", "existing-reset", "forked", "hooked", "hooks", "hundreds", "informed-again", "key", "large", "large-delegate", "limited", "loops", "lost-worker",
    "model-away", "policy", "refused", "reset", "resets", "rounds", "scheduled", "scored", "session-archived", "session-asking", "session-decided", "session-deleted",
    "session-ended", "session-held-back", "session-informs", "session-kept", "session-left", "left-loops", "session-modes", "session-replies", "session-reset", "session-stopped", "session-unknown",
    "session-withdrawn", "shut-down", "standing", "standing-ledger", "steered", "moved", "notified", "notified-later", "quorum", "audit", "audited", "ledger", "rules", "server-input", "budgets", "turns", "uncached", "undone", "undone-below", "unnotified",
}  # fmt: skip
"""What 0.2.0 left a history of, and every later version leaves one of, beside `TESTS`: everything that emits commands (R24.1)."""
LEAST = 90
"""Percent of the statements of `workflows/`, but for queries and validators, that the newest histories replay."""
BELOW = ("delegate.agent", "each.loop", "until.loop", "long-each.loop.2", "continued.2")
LATER_BELOW = (
    "session-archived.sessionsegment",
    "session-replies.agent",
    "session-modes.agent",
    "notified.notification",
)


@pytest.mark.parametrize("path", [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in HISTORIES])
async def test_a_recorded_history_replays(path: Path) -> None:
    assert await replay_all([path]) == []


def test_r24_1_recorded_histories_replay_most_workflow_code() -> None:
    """A process of its own replays them: modules that this one has imported would count as not run.

    Where it fails, code has come that no history reaches: add a test to `scripts/history_tests.py`, then `make histories`.
    """
    found = subprocess.run([sys.executable, "-m", "scripts.replay_coverage"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    percent = float(found.stdout.splitlines()[-1].split(" %")[0])
    assert percent >= LEAST, found.stdout


def test_every_version_has_a_history_of_every_kind() -> None:
    versions = {path.parent for path in HISTORIES}
    assert versions
    tests = set(TESTS)
    for folder in versions:
        found = {path.name.split(".")[0] for path in folder.glob("*.json")}
        if folder.name == UNRELEASED:
            assert found == tests
            continue
        first = folder.name == "0.1.0"
        assert found == (KINDS | MORE if first else LATER if folder.name == "0.2.0" else LATER | tests)
        for below in BELOW + (() if first else LATER_BELOW):
            assert (folder / f"{below}.json").is_file()


def test_r13_7_recorded_histories_are_as_they_were_recorded(tmp_path: Path) -> None:
    for folder in {path.parent for path in HISTORIES}:
        assert changed_histories(folder) == [], (
            "a change of what a workflow does is a rule of perdure/runs/version_switches.py"
        )
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
    (unreleased,) = problems("0.1.0", changelog.read_text(), HISTORIES[0].parents[1])
    assert unreleased.startswith("tests/histories/unreleased is there: delete it after")
    assert "CHANGELOG.md" in problems("0.1.1", changelog.read_text(), HISTORIES[0].parents[1])[0]
    assert is_released("0.1.0", ROOT / "CHANGELOG.md"), "released: its histories stay"
