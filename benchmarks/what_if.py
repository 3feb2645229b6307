"""What-if: the CPU time of 1,000 recorded runs under a change of policy, which asks no model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from temporalio.client import WorkflowHistory

from perdure.client.histories import audit_histories, kind_of, read_history
from perdure.hosting.connection import data_converter
from perdure.runs.run_player import RecordedRun
from perdure.runs.what_if import Change, RunReport, what_if
from perdure.runs.wire import AGENT_WORKFLOW

RUNS: Final = 1_000
_HISTORIES: Final = Path(__file__).parents[1] / "tests" / "histories" / "0.2.0"
_POLICY: Final = Change(policy={"ask": "unsafe"})


def table() -> str:
    """Return a table of the CPU time of a run: to read it from its history, and to play it as it was and under the change."""
    return asyncio.run(_table())


async def _table() -> str:
    histories = [read_history(path) for path in sorted(_HISTORIES.glob("*.json"))]
    runs = [each for each in histories if kind_of(each) == AGENT_WORKFLOW]
    read = played = 0.0
    longest, events, calls, reports = 0.0, 0, 0, list[RunReport]()
    for number in range(RUNS):
        history = runs[number % len(runs)]
        began = time.process_time()
        recorded = await _recorded(history)
        between = time.process_time()
        if not recorded.logs:
            continue
        reports.append(report := what_if(recorded, _POLICY))
        ended = time.process_time()
        read, played, longest = read + between - began, played + ended - between, max(longest, ended - began)
        events, calls = events + len(history.events), calls + report.calls
    count = len(reports)
    rows = [
        "| part | CPU ms of a run |",
        "|---|--:|",
        f"| its history is replayed | {1000 * read / count:.1f} |",
        f"| it is played as it was, and under the policy | {1000 * played / count:.1f} |",
        f"| both; the run that takes longest | {1000 * longest:.0f} |",
    ]
    about = f"{count:,} runs with {events / count:.0f} events and {calls / count:.1f} calls on average: {read + played:.1f} s of CPU."
    return "\n".join(rows) + f"\n\n{about}"


async def _recorded(history: WorkflowHistory) -> RecordedRun:
    async def histories() -> AsyncIterator[WorkflowHistory]:
        yield history

    audit = await audit_histories(history.workflow_id, histories(), data_converter())
    return RecordedRun(history.workflow_id, audit.logs, audit.view)
