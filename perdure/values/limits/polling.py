"""How long, and how often, an activity asks its own run by query. Each query is billed, and a run that is busy answers late."""

from __future__ import annotations

from typing import Final

TIMEOUT: Final = 10.0
"""Seconds of one query: a worker that holds the run answers in milliseconds, one that has to replay it in a second."""
ATTEMPTS: Final = 12
"""Two minutes where nobody answers. A server also refuses queries while it holds back one for a run that is busy."""
SHORTEST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.2


def after_failure(attempt: int) -> float | None:
    """Seconds to wait after a query that nobody answered: the worker that held the run is gone, or it is busy. `None`: give up."""
    return None if attempt >= ATTEMPTS else min(2.0, 0.1 * 2**attempt)


def after_answer(pause: float, *, told: bool) -> float:
    """The same after an answer that told something, or nothing: it is not their turn, or their asking was not taken in."""
    return SHORTEST_PAUSE if told else min(2 * pause, LONGEST_PAUSE)
