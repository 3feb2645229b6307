"""A run's start records which rules it follows until its end (R13.7)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from perdure.runs.agent import Models
from perdure.runs.version_switches import NEWEST, SINCE, follows
from perdure.runs.wire import PreparedWorker
from tests.support import ROOT

MARKED = {
    "audit.py": ["workflow.patched(BOUNDED_AUDIT_PATCH)"] * 2,
    "ledger.py": ["workflow.patched(ALL_CHANGES_AUDITED_PATCH)", "workflow.patched(AUDIT_PATCH)"],
    "loops.py": [
        "workflow.patched(LEFT_CHILDREN_END)",
        "workflow.patched(UNUSED_SHARES_RETURN)",
        "workflow.patched(SESSION_KNOWS_DELEGATES)",
        "workflow.patched(UNTIL_ERRORS_PATCH)",
    ],
    "preparation.py": ["workflow.patched(PREPARED_BY_ACTIVITY)"],
    "resets.py": ["workflow.patched(FORMER_CHILDREN_END)"],
    "session_driver.py": [
        *[
            "workflow.patched(LEFT_CHILDREN_END)",
            "workflow.patched(CANCEL_ENDS_PATCH)",
            "workflow.patched(AUDIT_PATCH)",
        ],
        *[
            "workflow.patched(SESSION_RULES_PATCH)",
            "workflow.patched(UNLIMITED_RUNS_PATCH)",
            "workflow.patched(ASKS_BY_ACTIVITY)",
        ],
    ],
    "session_hooks.py": [
        *["workflow.patched(SESSION_HOOKS_PATCH)", "workflow.patched(LOCAL_SESSION_HOOKS_PATCH)"] * 2,
    ],
}
"""Loops and sessions record no rules: a reset loop, one that lost an iteration or could not start it, a failed start after a reset, a session's reset, cancellation, first task, and first run of an execution have markers.
A run's preparation comes before its rules are known; a session's deletion is the last that it does. A ledger audits in its own loop, and has no local activity.
A run's batches are small, so the marker of large ones is a ledger's or an audit log's."""


def test_r13_7_what_0_1_0_recorded_follows_no_newer_rule() -> None:
    recorded: dict[str, Any] = PreparedWorker(tools=[], models=Models()).model_dump()
    del recorded["rules"]
    old = PreparedWorker.model_validate(recorded)
    new = PreparedWorker.model_validate(recorded | {"rules": NEWEST})
    assert [rule for rule in SINCE if old.follows(rule)] == []
    assert [rule for rule in SINCE if not new.follows(rule)] == []
    with pytest.raises(KeyError):
        follows(NEWEST, "unknown")


def test_r13_7_no_rule_of_a_run_is_a_marker() -> None:
    """A replay may do in an earlier task what followed a local activity, and finds no marker there."""
    found: dict[str, list[str]] = {}
    for path in sorted([*(ROOT / "workflows").glob("*.py"), *(ROOT / "perdure").rglob("*.py")]):
        for use in re.findall(r"workflow\.patched(?:\(f\"|\(\w+\)|\b)", path.read_text(encoding="utf-8")):
            if use != "workflow.patched":
                found.setdefault(path.name, []).append(use)
    assert found == MARKED
