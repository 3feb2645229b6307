"""What one workflow task may still send, and what one history may still hold: sums, kept where they arise (R18.2, R18.4)."""

from __future__ import annotations

from perdure.values.limits import (
    COMMAND,
    FREE_RESULT,
    HISTORY_BYTES,
    HISTORY_EVENTS,
    LEAST_RESULT,
    MAX_COMMANDS,
    MAX_SENT,
    NEAR,
    OVER,
    said,
)


class Sending:
    """The commands of the workflow task under way. A task is known by any number of its own: the length of its history."""

    def __init__(self, max_bytes: int = MAX_SENT, max_commands: int = MAX_COMMANDS) -> None:
        self._max_bytes, self._max_commands = max_bytes, max_commands
        self._task = -1
        self.bytes = 0
        self.commands = 0

    def take(self, task: int, size: int) -> bool:
        """Whether a command of `size` bytes may go with this task, which counts it then. The first always may."""
        if task != self._task:
            self._task, self.bytes, self.commands = task, 0, 0
        size += COMMAND
        if self.commands and (self.bytes + size > self._max_bytes or self.commands >= self._max_commands):
            return False
        self.bytes += size
        self.commands += 1
        return True


class HistoryRoom:
    """What the results that are under way may add to a history: each call has a share, and asks before it takes more.

    `used` is the size of the history as it stands, in bytes. Decided from the history alone, so a replay decides the same.
    """

    def __init__(self, room: int = int(HISTORY_BYTES * OVER)) -> None:
        self._room = room
        self._held: dict[str, int] = {}

    def free(self, call: str, used: int) -> int:
        """Bytes that the call's result may have without asking; they are held for it until it is settled."""
        left = self._room - used - sum(self._held.values())
        self._held[call] = max(LEAST_RESULT, min(FREE_RESULT, left // 64))
        return self._held[call]

    def claim(self, call: str, size: int, used: int) -> bool:
        """Whether a result of `size` bytes still has room, which is held then; asking again changes nothing."""
        others = sum(self._held.values()) - self._held.get(call, 0)
        if used + others + size > self._room:
            return False
        self._held[call] = max(size, self._held.get(call, 0))
        return True

    def settle(self, call: str) -> None:
        """The result is in the history, or none will come."""
        self._held.pop(call, None)


def history_full(events: int, size: int, part: float = NEAR) -> str | None:
    """Why a history can take no more than a last Request, in words; `None` while it can."""
    if size >= HISTORY_BYTES * part:
        return f"the run's history has {said(size)}, and {said(HISTORY_BYTES)} is the most"
    if events >= HISTORY_EVENTS * part:
        return f"the run's history has {events:,} events, and {HISTORY_EVENTS:,} is the most"
    return None
