"""Runs that a worker cannot put out of its memory: a thread of theirs does not come back, or their eviction fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_under_way: Final[dict[object, str]] = {}
"""By what is carried out of a run its workflow's id."""


@contextmanager
def carried_out(workflow_id: str, *, evicts: bool) -> Iterator[None]:
    """An activation of a run while it lasts; one that `evicts` the run and fails is done again, and counts until it succeeds."""
    key: object = workflow_id if evicts else object()
    _under_way[key] = workflow_id
    try:
        yield
    except BaseException:
        if not evicts:
            del _under_way[key]
        raise
    _under_way.pop(key, None)


def held_runs() -> list[str]:
    """Return the workflow ids of the runs that something is carried out of now, sorted."""
    return sorted(set(_under_way.values()))
