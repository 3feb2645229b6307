"""Where a reader of events is: what it goes on with after a pause, a reconnect, or on another relay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.errors import CursorError


@dataclass(frozen=True, slots=True)
class Cursor:
    """As text four kinds of dotted numbers, so that one can write the short ones by hand:

    `12` the run's events before number 12 were seen; `12.3.1.400.0` and of the text of Request 3, attempt 1, so many characters;
    `5.2.12` the session's before number 5, and of its run 2 those before 12; `5.2.12.3.1.400.0` all of it. Of a run that was reset
    twice it is `12r2`.
    """

    events: int = 0
    """How many of the run's events were seen."""
    request: int = 0
    """The Request of whose text some was seen; 0: of none."""
    attempt: int = 0
    """The attempt that has written it."""
    assistant: int = 0
    """Characters of its answer that were seen."""
    reasoning: int = 0
    """The same of its reasoning."""
    session: int | None = None
    """How many of the session's events were seen; `None`: it is a run that is read."""
    run: int = 0
    """The number of the session's run that `events` counts; 0: none yet."""
    resets: int = 0
    """How often the run had been reset."""

    def __str__(self) -> str:
        events = f"{self.events}r{self.resets}" if self.resets else str(self.events)
        parts = [events] if self.session is None else [str(self.session), str(self.run), events]
        text = [self.request, self.attempt, self.assistant, self.reasoning]
        return ".".join(parts + list(map(str, text)) if any(text) else parts)

    def after(self, resets: Sequence[int]) -> Cursor:
        """Where to go on once the run was reset: behind what was seen and still counts. `resets`: the numbers of the events that say it."""
        if len(resets) <= self.resets:
            return self
        events = min(self.events, *resets[self.resets :])
        return Cursor(events, session=self.session, run=self.run, resets=len(resets))


def parse_cursor(text: str) -> Cursor:
    """Read what `str` of a cursor has written. Raises `CursorError` with one line for anything else."""
    parts = text.split(".")
    place = {1: 0, 3: 2, 5: 0, 7: 2}.get(len(parts))
    resets = "0"
    if place is not None and "r" in parts[place]:
        parts[place], _, resets = parts[place].partition("r")
    if place is None or not all(0 < len(p) <= _DIGITS and p.isascii() and p.isdigit() for p in (*parts, resets)):
        raise CursorError(
            f"{text[:100]!r} is no place among events: it is the cursor of one, like '12' in a run or '5.2.12' in a session"
        )
    numbers = list(map(int, parts))
    written = numbers[-4:] if len(numbers) > 4 else [0, 0, 0, 0]
    session, run = (numbers[0], numbers[1]) if place == 2 else (None, 0)
    request, attempt, assistant, reasoning = written
    return Cursor(numbers[place], request, attempt, assistant, reasoning, session, run, int(resets))


_DIGITS = 15
