"""The runs that workers of this process could not replay: a worker that is there, and does not go on with them."""

from __future__ import annotations

from typing import Final

MOST: Final = 100
"""Runs that are remembered, the last ones."""
_runs: dict[str, None] = {}


def note(run_id: str) -> None:
    """Remember a run whose history the workflow code here does not fit."""
    _runs.pop(run_id, None)
    _runs[run_id] = None
    if len(_runs) > MOST:
        del _runs[next(iter(_runs))]


def forget(run_id: str) -> None:
    """Forget a run that was replayed since, or has ended."""
    _runs.pop(run_id, None)


def words() -> str | None:
    """Return how many there are, and the last; `None`: none."""
    if not _runs:
        return None
    return f"cannot replay {len(_runs):,} {'run' if len(_runs) == 1 else 'runs'}, the last {next(reversed(_runs))}"
