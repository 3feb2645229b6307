"""Measures how much of `workflows/` the recorded histories replay, and which lines none of them reaches (R24.1).

python -m scripts.replay_coverage [FOLDER …]   # of tests/histories; by default the newest version, and what is not released
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
HISTORIES: Final = ROOT / "tests" / "histories"
UNRELEASED: Final = "unreleased"
"""The folder of histories of code since the last release."""
_NEVER_REPLAYED: Final = (
    r"@workflow\.query",
    r"@payloads_query",
    r"def call\(self: Any, \*sent: Json\) -> R",
    r"def (_?payload|_effects|at_hand|carried|context|details|fate|recorded|spent_by|view|view_as|view_of)\(",
    r"^def keep_log\(",
    r"@\w+\.validator",
    r"def check(_policy|_withdrawal)?\(self, sent\b",
    r"@property",
    r"^def tell\(",
    r"^def (_bounded|_emit)\(",
    r"^class (\w+Interceptor|_\w+(Inbound|Outbound))\b",
)
"""Functions that answer queries, keep the log of a what-if, count for operators, or wrap activities: no replay runs them, and they emit no commands."""
_OTHERS: Final = ("versioning.py",)
"""The classes of workers with versions or hooks, which have no code of their own."""


def newest() -> list[Path]:
    """Return the folders of the newest version's histories, and of code that is not released."""
    *_, version = sorted(path for path in HISTORIES.iterdir() if path.name != UNRELEASED)
    return [version, *(path for path in (HISTORIES / UNRELEASED,) if path.is_dir())]


async def replay_all(files: Sequence[Path]) -> list[str]:
    """Replay these histories; a line for each that breaks."""
    from temporalio.client import WorkflowHistory

    from perdure.client.histories import replay_history
    from perdure.hosting.connection import data_converter

    broken = []
    for path in files:
        written = json.loads(path.read_text(encoding="utf-8"))
        history = WorkflowHistory.from_json(written.pop("workflowId"), written)
        found = await replay_history(history, data_converter(), path.stem)
        if found.problem is not None:
            broken.append(found.line())
    return broken


def measure(files: Sequence[Path]) -> tuple[list[str], float, dict[str, str]]:
    """What breaks, the percentage of statements of `workflows/` that were run, and by module the lines that were not."""
    coverage: Any = import_module("coverage")  # here: replaying alone does not need it
    measured = coverage.Coverage(data_file=None, include=[f"{ROOT}/workflows/*"], concurrency=["thread"])
    for pattern in _NEVER_REPLAYED:
        measured.exclude(pattern)
    measured.start()
    broken = asyncio.run(replay_all(files))
    measured.stop()
    statements = missed = 0
    lacking: dict[str, str] = {}
    for path in sorted(set((ROOT / "workflows").rglob("*.py")) - {ROOT / "workflows" / name for name in _OTHERS}):
        _, lines, _, missing, words = measured.analysis2(str(path))
        statements, missed = statements + len(lines), missed + len(missing)
        if missing:
            lacking[str(path.relative_to(ROOT))] = words
    return broken, 100 * (statements - missed) / statements, lacking


def main() -> int:
    """Print what was found; ends with 1 where a history breaks."""
    folders = [HISTORIES / name for name in sys.argv[1:]] or newest()
    broken, percent, lacking = measure([path for folder in folders for path in sorted(folder.glob("*.json"))])
    for line in broken:
        print(line)
    for name, lines in lacking.items():
        print(f"{name}: {lines}")
    names = " and ".join(folder.name for folder in folders)
    print(f"{percent:.1f} % of workflows/ are replayed by the histories of {names}")
    return 1 if broken else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # as the command line leaves: the SDK's threads may abort the interpreter while it takes itself down
