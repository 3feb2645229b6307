"""Every case of `tests/conformance`, and of `../shared/conformance` where that exists, played for real."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


FORMS = {
    "solution": ("solution", 1000),
    "no-cache": ("solution", 0),
    "tools": ("tools", 1000),
    "script": ("script", 1000),
}
"""The dialect, and the number of workflows that the worker keeps: with none, each task replays the run from its history."""


def plays() -> Iterator[Any]:
    """Each case in the dialect `solution` and in one of the other forms, in turn. `make soak` plays all."""
    for number, case in enumerate(load_cases()):
        for place, name in enumerate(FORMS):
            in_suite = place in (0, 1 + number % (len(FORMS) - 1))
            marks = [] if in_suite else [pytest.mark.soak]
            yield pytest.param(case, *FORMS[name], id=f"{case['name']}-{name}", marks=marks)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(("case", "dialect", "cached_workflows"), plays())
async def test_conformance(case: Case, dialect: str, cached_workflows: int, dev_server: WorkflowEnvironment) -> None:
    # The sandbox is a fifth of a run's CPU time, and finds the same in each dialect.
    sandboxed = "SOAK" in os.environ or dialect == "solution"
    played = await play(
        dev_server.client, case, cached_workflows=cached_workflows, dialect=dialect, sandboxed=sandboxed
    )
    assert compare(case, played) == []
