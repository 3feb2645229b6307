"""Every case of `tests/conformance`, and of `../shared/conformance` where that exists, played for real."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.case_player import Case, compare, play

HERE = Path(__file__).parent / "conformance"
SHARED = Path(__file__).parents[2] / "shared" / "conformance"


def load_cases() -> list[Case]:
    """The cases by name; those here come first, those only elsewhere are added."""
    files = {
        path.name: path
        for folder in (SHARED, SHARED / "context", HERE, HERE / "context", HERE / "loops")
        for path in sorted(folder.glob("*.json"))
    }
    return [json.loads(path.read_text(encoding="utf-8")) for _, path in sorted(files.items())]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("dialect", "cached_workflows"),
    [("solution", 1000), ("solution", 0), ("tools", 1000), ("script", 1000)],
    ids=["solution", "solution-no-cache", "tools", "script"],
)
@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in load_cases()])
async def test_conformance(case: Case, dialect: str, cached_workflows: int, dev_server: WorkflowEnvironment) -> None:
    # The sandbox is a fifth of a run's CPU time, and finds the same in each dialect.
    sandboxed = "SOAK" in os.environ or dialect == "solution"
    played = await play(
        dev_server.client, case, cached_workflows=cached_workflows, dialect=dialect, sandboxed=sandboxed
    )
    assert compare(case, played) == []
