"""Retries beyond the tool's own: calls that a deploy or a lost worker cut off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perdure.hooks.events import NO_SUCH_HOOK

NO_SUCH_TOOL: Final = "NoSuchTool"
"""Code of a call whose worker does not have the tool: another of the queue may, or this one after its deployment."""
INTERRUPTED: Final = "Interrupted"
"""Code of what was cut off because its worker was shut down."""
LOST: Final = "WorkerLost"
"""Code of a call whose worker was not heard of again: it was killed, or its server gave the call to a worker that had just ended."""
NOT_BEGUN: Final = "NotBegun"
"""The same, or cut off, where it is known that the tool's code had not begun: see `BEGUN`."""
BEGUN: Final = "begun"
"""Key under which a heartbeat says the attempt. One that may not be repeated says it before its code begins, and begins only when the server
has it: what was not said has not begun."""
RESERVED_CODES: Final = frozenset({NO_SUCH_TOOL, NO_SUCH_HOOK, INTERRUPTED, LOST, NOT_BEGUN})
"""By which the engine tries again; no tool's own failure has one of them."""
MOST_LOST: Final = 3
"""How often a call is tried again whose worker was lost: it may be the call that ends them."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0


@dataclass(slots=True)
class RetryState:
    """How often, and for how long, one call is tried again beside its own retries."""

    retries: int
    """The tool's: attempts after the first. With none it never begins twice."""
    seconds: float
    """For which a worker that has the tool is waited for."""
    started: int = 0
    """Attempts that began before those that are counted now."""
    _used: int = 0
    _lost: int = 0
    _missing_since: float | None = None
    _pause: float = FIRST_PAUSE

    @property
    def missing(self) -> bool:
        """Whether the last worker did not have the tool."""
        return self._missing_since is not None

    @property
    def attempts_left(self) -> int:
        return max(1, self.retries + 1 - self._used)

    def pause(self, code: str, attempts: int, now: float) -> float | None:
        """Seconds until the call is tried again; `None`: it has ended. `attempts`: how many there were since the last pause.

        The last of them counts as none where it was cut off, lost with its worker, or found no tool; those before it were failures
        of the call's own.
        """
        if code in (LOST, NOT_BEGUN):
            self._lost += 1
            if self._lost > MOST_LOST:
                return None
        if code == NOT_BEGUN or (code in (INTERRUPTED, LOST) and self.retries > 0):
            self._missing_since = None
            self.started += attempts - (code == NOT_BEGUN)
            self._used += attempts - 1
            return 0.0
        if code not in (NO_SUCH_TOOL, NO_SUCH_HOOK):
            return None
        if self._missing_since is None:
            self._missing_since, self._pause = now, FIRST_PAUSE
        left = self._missing_since + self.seconds - now
        if left <= 0:
            return None
        self.started += attempts - 1
        self._used += attempts - 1
        pause, self._pause = min(self._pause, left), min(self._pause * 2, LONGEST_PAUSE)
        return pause
