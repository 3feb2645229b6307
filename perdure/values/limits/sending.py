"""What one workflow task may still send, and what one history may still hold: sums, kept where they arise (R18.2, R18.4)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from perdure.values.limits import (
    COMMAND,
    FREE_AT_ONCE,
    FREE_RESULT,
    HELD_BACK,
    HISTORY_BYTES,
    HISTORY_EVENTS,
    INLINE,
    LEAST_RESULT,
    MAX_COMMANDS,
    MAX_INLINE,
    MAX_SENT,
    NEAR,
    OVER,
    QUICK,
    said,
)


class Sending:
    """The commands of the workflow task under way. A task is known by any number of its own: the length of its history."""

    def __init__(self, max_bytes: int = MAX_SENT, max_commands: int = MAX_COMMANDS) -> None:
        self._max_bytes, self._max_commands = max_bytes, max_commands
        self._task = -1
        self.bytes = 0
        self.commands = 0

    def take(self, task: int, size: int, quick: int = 0) -> bool:
        """Whether a command of `size` bytes may go with this task, which counts it then. The first may be of any size.

        `quick` is how many calls may be back in a moment, see `Quick`.
        """
        if task != self._task:
            self._task, self.bytes, self.commands = task, 0, 0
        size += COMMAND
        if max(self.commands, quick) >= self._max_commands or (self.commands and self.bytes + size > self._max_bytes):
            return False
        self.bytes += size
        self.commands += 1
        return True

    def take_call(self, task: int, size: int, quick: int = 0) -> bool | None:
        """The same of a call whose parameters have `size` bytes: whether they go with it; `None`: it does not go with this task.

        Where they do not go with it, its activity asks for them.
        """
        if not self.take(task, 0, quick):
            return None
        inline = size <= INLINE and self.bytes + size <= self.commands * COMMAND + MAX_INLINE
        self.bytes += size if inline else 0
        return inline


class Quick:
    """The calls under way that began less than `QUICK` ago, by a clock in seconds: they may all be back in a moment."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}

    def begin(self, call: str, now: float) -> None:
        """It starts."""
        self._begun.pop(call, None)
        self._begun[call] = now

    def end(self, call: str) -> None:
        """It is back."""
        self._begun.pop(call, None)

    def count(self, now: float) -> int:
        """How many there are."""
        for call in list(takewhile(lambda call: self._begun[call] + QUICK <= now, self._begun)):
            del self._begun[call]
        return len(self._begun)


def first_fitting(sizes: Iterable[int], room: int) -> int:
    """How many of these, from the first on, one answer holds: the first in any case."""
    count = 0
    for size in sizes:
        room -= size
        if count and room < 0:
            break
        count += 1
    return count


class HistoryRoom:
    """What the results that are under way may add to a history: each call has a share, and asks before it takes more.

    Those that may come do so one after the other, in the order of asking, so that the server need not hold back more than it
    can. `used` is the size of the history as it stands, in bytes. Decided from the history alone, so a replay decides the same.
    """

    def __init__(self, room: int = int(HISTORY_BYTES * OVER)) -> None:
        self._room = room
        self._held: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        """Claims that nothing was decided about, in their order."""
        self.coming: dict[str, int] = {}
        """Results that were let in, and are on their way."""
        self._decided: dict[str, bool] = {}

    def free(self, call: str, used: int) -> int:
        """Bytes that the call's result may have without asking; they are held for it until it is settled."""
        held = sum(self._held.values())
        at_once = max(FREE_AT_ONCE, min(FREE_RESULT, (HELD_BACK - held) // 4))
        self._held[call] = max(LEAST_RESULT, min(at_once, (self._room - used - held) // 64))
        return self._held[call]

    def holds(self, size: int, used: int) -> bool:
        """Whether there is room for so many bytes at once, and for some result, beside all that is held."""
        return used + sum(self._held.values()) + size + LEAST_RESULT <= self._room

    def claim(self, call: str, size: int) -> None:
        """A result of `size` bytes wants to come in. Asking again changes nothing, unless it has grown (a retry's)."""
        if call in self._held and (call not in self._decided or size > self._held[call]):
            self._decided.pop(call, None)
            self.coming.pop(call, None)
            self._asked[call] = max(size, self._asked.get(call, 0))

    def decide(self, used: int) -> list[str]:
        """The calls about whose claims is decided now, see `granted`: whether the history has room, and all that has been let in."""
        now: list[str] = []
        for call, size in list(self._asked.items()):
            others = sum(self._held.values()) - self._held.get(call, 0)
            fits = used + others + size <= self._room
            if fits and self.coming and sum(self.coming.values()) + size > HELD_BACK:
                break
            if fits:
                self._held[call] = self.coming[call] = max(size, self._held.get(call, 0))
            del self._asked[call]
            self._decided[call] = fits
            now.append(call)
        return now

    def granted(self, call: str) -> bool | None:
        """Whether the call's result may come in; `None`: it is not decided yet. What has been settled may not."""
        return self._decided.get(call) if call in self._held else False

    @property
    def turns(self) -> bool:
        """Whether a claim waits for others to have come in."""
        return bool(self._asked)

    def settle(self, call: str) -> None:
        """The result is in the history, or none will come."""
        for each in (self._held, self._asked, self.coming, self._decided):
            each.pop(call, None)


def history_full(events: int, size: int, part: float = NEAR) -> str | None:
    """Why a history can take no more than a last Request, in words; `None` while it can."""
    if size >= HISTORY_BYTES * part:
        return f"the run's history has {said(size)}, and {said(HISTORY_BYTES)} is the most"
    if events >= HISTORY_EVENTS * part:
        return f"the run's history has {events:,} events, and {HISTORY_EVENTS:,} is the most"
    return None
