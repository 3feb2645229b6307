"""`make audit` says what is known, and never takes what was not looked up for free of faults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.audit import judge

CLEAN = {"name": "a", "version": "1", "vulns": []}
FAULTY = {
    "name": "b",
    "version": "2",
    "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}, {"id": "CVE-2", "fix_versions": []}],
}
SKIPPED = {"name": "c", "skip_reason": "not found: c (4)"}
LINES = ["b 2: CVE-1, mended in 3", "b 2: CVE-2, mended in no version yet"]


@pytest.mark.parametrize(
    ("rows", "faults", "unknown"),
    [
        ([CLEAN], [], None),
        ([CLEAN, FAULTY], LINES, None),
        ([FAULTY, SKIPPED], LINES, "1 of 2 packages: not found: c (4)"),
        ([SKIPPED, SKIPPED], [], "2 of 2 packages: not found: c (4)"),
        ([], [], "no package was looked up"),
    ],
)
def test_what_was_looked_up(rows: list[Any], faults: list[str], unknown: str | None) -> None:
    found = judge(json.dumps({"dependencies": rows}), "WARNING: x")
    assert (found.faults, found.unknown) == (faults, unknown)


@pytest.mark.parametrize(
    ("complaints", "unknown"),
    [("Traceback\n  x\nConnectionError: no route\n\n", "ConnectionError: no route"), ("", "no answer")],
)
def test_no_answer_is_not_a_clean_one(complaints: str, unknown: str) -> None:
    assert judge("", complaints).unknown == unknown
