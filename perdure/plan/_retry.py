"""Retries beyond the tool's own: calls that a deploy or a lost worker interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perdure.hooks.events import NO_SUCH_HOOK, REFUSED_BY_HOOK

NO_SUCH_TOOL: Final = "NoSuchTool"
"""Code of a call whose worker does not have the tool: another worker of the queue may have it, or this one after a
deployment. Also the type of an activity's failure whose worker lacks another thing that the run needs.
"""
INTERRUPTED: Final = "Interrupted"
"""Code of a call that was interrupted because its worker was shut down."""
LOST: Final = "WorkerLost"
"""Code of a call whose worker was lost: it was killed, or its server gave the call to a worker that had just ended."""
ID_TAKEN: Final = "id_taken"
"""Code of a call whose workflow could not start, because another one has its id."""
NOT_BEGUN: Final = "NotBegun"
"""Code of a call that was lost or interrupted before the tool's code had begun: see `BEGUN`."""
BEGUN: Final = "begun"
"""Key under which a heartbeat records the attempt.

A call that may not be repeated sends it before its code begins, and begins only when the server has it. So without this
record, the code has not begun.
"""
CARRIED_OUT: Final = "carried_out"
"""Key in the details of a failure whose call took effect: its result cannot be used. `None`: that is not known."""
RESERVED_CODES: Final = frozenset({NO_SUCH_TOOL, NO_SUCH_HOOK, INTERRUPTED, LOST, NOT_BEGUN, REFUSED_BY_HOOK})
"""Codes of the engine itself: it retries them, or a hook has refused. No tool's own failure has one of them."""
MOST_LOST: Final = 3
"""Maximum of retries of a call whose worker was lost: the call itself may crash its workers."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0


@dataclass(slots=True)
class RetryState:
    """The state of one call's retries beyond the tool's own."""

    retries: int
    """The tool's retries: attempts after the first. With 0 the call never begins twice."""
    seconds: float
    """The wait, in seconds, for a worker that has the tool."""
    started: int = 0
    """The number of attempts that began before the ones counted now."""
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
        """Return the seconds until the next attempt, or `None` if the call has ended. `attempts`: their number since
        the last pause.

        The last attempt does not count if it was interrupted, lost with its worker, or found no tool. Earlier attempts
        were the call's own failures.
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
