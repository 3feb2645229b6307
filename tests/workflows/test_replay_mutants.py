"""One line of workflow code changed is a history that does not replay (R13.7, R24.1): the recorded ones catch what emits commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.replay_coverage import newest
from tests.support import ROOT

CHANGES = [
    # A pause between retries of a call.
    ("executions", "if pause:\n", "if False:\n", "moved"),
    # The timer before large results.
    ("dispatch", 'await workflow.sleep(_COMES_WITHIN, summary="large results come one after the other")', "await workflow.wait_condition(lambda: not self._history.turns)", "turns"),
    # The pause that a model's server asks for.
    ("requests", 'await workflow.sleep(pause, summary=line(f"{model} asks to wait: {away.reason}"))', "pass", "model-away"),
    # A pause before a delivery.
    ("session_driver", "        answer = None if keeps_text else await self._hooks.sending(delivery)\n", "        await workflow.sleep(1)\n        answer = None if keeps_text else await self._hooks.sending(delivery)\n", "session-replies"),
    # A command before a session's decision.
    ("session", "        answered = await update_run(RunUpdate(run_id=run_id, update=DECIDE,", "        workflow.upsert_memo({'decided': 1})\n        answered = await update_run(RunUpdate(run_id=run_id, update=DECIDE,", "session-decided"),
    # A lost call is not tried again.
    ("executions", "pause = patience.pause(outcome.error.code, attempts, workflow.time())", "pause = None", "lost-worker"),
    # Requests that wait are not in the memo.
    ("approvals", "workflow.upsert_memo({WAITING_MEMO: memo})", "{WAITING_MEMO: memo}", "decisions"),
    # A large input is not queried.
    ("parent_run", "if not argument.asks:", "if argument is not None:", "large-delegate.agent"),
    # The deadline has no timer.
    ("timers", 'await workflow.sleep(max(deadline - clock.worked(workflow.time()), SHORTEST), summary="deadline")', "await workflow.wait_condition(lambda: False)", "deadline"),
    # Hooks of a run's start are not asked.
    ("hooks", "if not (wanted := self.hooks.of(name, tools)):", "if True or not (wanted := self.hooks.of(name, tools)):", "hooks"),
    # An undo run has another id.
    ("undo", "id=start.id,", "id=start.id + 'x',", "undone-below"),
    # An address is not informed of a run's status.
    ("session_driver", 'self._pushes.send(wanted, "")', "pass", "session-informs"),
    # Held calls that are kept together have room in the task in which a message held them.
    ("calls", "if task_number() != task and self._follows(STEERED_RUNS_GO_ON):", "if False:", "held-calls.agent"),
    # A change of policy does not reach an undo run.
    ("undo", "with children.running(handle, changes) if follows else nullcontext():", "with nullcontext():", "undo-policy.agent.3"),
    # A program that a change of policy names is not asked.
    ("approvals", "if new_approver != approver and self._agent_run.prepared.follows(JUDGED_ANEW):", "if False:", "other-program.agent"),
    # A call that never begins keeps what it has reserved.
    ("reservations", "self._unused += [Settlement", "_ = [Settlement", "unused-sums.agent"),
    # A cancelled session does not wait for its run.
    ("session_driver", "if not is_cancelled_exception(error) or not workflow.patched(CANCEL_ENDS_PATCH):", "if True:", "session-cancelled.session"),
    # A ledger continues as new before the audit log has its changes.
    ("ledger", "while self._has_unsent_changes() or not self._is_due():", "while not self._is_due():", "audited-ledger.ledger"),
    # An attempt of a delivery whose worker is shut down counts as the last.
    ("notifications", "if kind == INTERRUPTED:", "if False:", "session-shut-down.session"),
]  # fmt: skip
"""Module of `workflows/`, its text, the text in its place, and the history that breaks."""
REPLAY = """
import asyncio, os, sys
from pathlib import Path
from scripts.replay_coverage import replay_all
broken = asyncio.run(replay_all([Path(each) for each in sys.argv[1:]]))
print("\\n".join(broken), flush=True)
os._exit(len(broken))
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code, which may be changed."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("perdure", "workflows", "activities", "scripts"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "pyproject.toml", "CHANGELOG.md"):
        (tree / name).symlink_to(ROOT / name)
    return tree


def replay(tree: Path, history: str) -> subprocess.CompletedProcess[str]:
    (path,) = [path for folder in newest() if (path := folder / f"{history}.json").is_file()]
    return subprocess.run(
        [sys.executable, "-c", REPLAY, str(path)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(("module", "text"), [each[:2] for each in CHANGES])
def test_the_line_that_is_changed_is_there(module: str, text: str) -> None:
    whole = (ROOT / "workflows" / f"{module}.py").read_text(encoding="utf-8")
    assert whole.count(text) == 1, f"{module}.py has no such line any more: name another one here"


@pytest.mark.parametrize(("module", "text", "other", "history"), CHANGES)
def test_r24_1_a_changed_line_does_not_replay(copied: Path, module: str, text: str, other: str, history: str) -> None:
    """Without the change it replays, as `tests/test_replay.py` sees."""
    path = copied / "workflows" / f"{module}.py"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(text, other), encoding="utf-8")
    try:
        changed = replay(copied, history)
    finally:
        path.write_text(before, encoding="utf-8")
    assert changed.returncode == 1, changed.stdout + changed.stderr
    assert history in changed.stdout, changed.stderr
