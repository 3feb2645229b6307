"""A model whose provider is away: when a failure means that, how long a run waits, and what it says meanwhile (R9.7, R20.5)."""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from perdure.values.wire import Wire

PATIENCE: Final = 3600.0
"""Seconds that a Request waits for a provider that is away: longer than most outages and every rate limit of a minute."""
ATTEMPTS: Final = 4
"""Attempts before the run says that it waits: after 7 seconds."""
FIRST_PAUSE: Final = 1.0
"""Seconds between the first two attempts; each further pause is twice as long."""
WAITING_PAUSE: Final = 15.0
"""The same once the run says that it waits."""
LONGEST_PAUSE: Final = 30.0
"""Seconds between two attempts, where the server asks for nothing else."""
SHORTEST_PAUSE: Final = 0.5
"""Seconds of patience that are worth no further attempt."""
LONGEST_QUIET: Final = 5.0
"""Seconds of a pause that a server asks for, during which the run need not say that it waits."""


class Away(Wire):
    """The details of a failure that means that a provider is away, which waiting may mend."""

    reason: str
    """The status, or what came in its place: `503`, `no connection`."""
    pause: float | None = None
    """Seconds after which the server asks to be asked again."""


class ModelWait(Wire):
    """What a run says while it waits for its model."""

    model: str
    reason: str
    """As that of `Away`."""
    since: str
    """ISO 8601, UTC."""

    def text(self, since: str = "") -> str:
        """`waiting for gpt-4o: 503 since 14:02`; `since`: the time of day for a reader in another zone."""
        return f"waiting for {self.model}: {self.reason} since {since or self.since[11:16]}"


def read_away(details: Any) -> Away | None:
    """The first of a failure's details, if it is an `Away`."""
    try:
        return Away.model_validate(details[0]) if details and isinstance(details[0], dict) else None
    except ValidationError:
        return None


def pause_after(attempt: int, asked: float | None, first: float = FIRST_PAUSE) -> float:
    """Seconds until the next attempt: as the server asks, else twice as long each time, beginning with `first`."""
    return asked if asked is not None else min(LONGEST_PAUSE, first * 2.0 ** min(attempt - 1, 10))
