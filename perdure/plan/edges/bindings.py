"""What one reference of one call is wired to, and what it finds there (R5.1, R5.4).

A reader binds backward: to the nearest writer before it that covers its path, and to those in between that add to it. Where
nobody before it writes and no value exists, it binds forward, by the same rule in the mirror. When every bound writer ended
without writing there because a branch went another way, the reader looks on to the next writers in the same direction: so
that two exclusive branches can write one path and join again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from perdure.plan.calls import Call
from perdure.plan.edges.writers import Writers
from perdure.values.jsons import Json
from perdure.values.paths import get, overlaps
from perdure.values.references import MISSING, Missing, Reference
from perdure.values.state import replay

Found: TypeAlias = Literal["value", "branch", "broken", "nowhere"]


@dataclass(slots=True)
class Binding:
    reference: Reference
    reader: int
    """Index of the reading call in the plan."""
    base: Json | Missing = MISSING
    """The whole value of the reference's kind when the plan was made."""
    writers: list[int] = field(default_factory=list)
    covered: bool = False
    """Whether one of the writers sets the path, so that nobody beyond it was looked for."""
    forward: bool = False
    """Bound to later writers, because nothing before offered a value."""
    open: bool = False
    """Still waiting to learn who writes: a later call may yet arrive."""

    def bind(self, writers: Writers) -> None:
        """Bind to what is known when the reader arrives."""
        if self.reference.kind != "state":
            return
        self.writers, self.covered = writers.before(self.reference.path, self.reader)
        if not self.writers and get(self.base, self.reference.path) is MISSING:
            self.forward = self.open = True

    def bind_forward(self, writers: Writers, *, final: bool) -> None:
        """Look for later writers: settled once one covers the path, or when no call can arrive any more (`final`)."""
        found, covered = writers.after(self.reference.path, max(self.writers, default=self.reader))
        if covered or final:
            self.open = False
            if found:
                self.writers, self.covered = found, covered

    def move_on(self, writers: Writers, *, final: bool) -> bool:
        """From writers that went another branch to the next ones in the same direction; whether there are any to wait for."""
        before = self.writers
        if self.forward:
            self.open = True
            self.bind_forward(writers, final=final)
        elif self.covered:
            earlier, covered = writers.before(self.reference.path, self.writers[0])
            if earlier:
                self.writers, self.covered = earlier, covered
        return self.open or self.writers != before

    @property
    def possible(self) -> bool:
        """Whether anything can ever stand at the path (R5.5)."""
        return self.open or bool(self.writers) or get(self.base, self.reference.path) is not MISSING

    def find(self, calls: Sequence[Call], order: Mapping[int, int]) -> tuple[Found, Json | Missing]:
        """What stands at the path now that every bound writer ended.

        `order` gives each call's place in the order of completion. Raises `StateError` when the bound writes do not fit
        the value that existed when the plan was made.
        """
        path = self.reference.path
        if not self.writers:
            value = get(self.base, path)
            return ("nowhere" if value is MISSING else "value"), value
        if any(_broken(calls[index]) for index in self.writers):
            return "broken", MISSING
        writes = [
            write
            for index in sorted(self.writers, key=order.__getitem__)
            for write in calls[index].writes
            if overlaps(write.path, path)
        ]
        if not writes:
            return "branch", MISSING
        value = replay(writes, path, self.base)
        return ("nowhere" if value is MISSING else "value"), value


def _broken(call: Call) -> bool:
    """Ended without what it promised: failed with no branch for it, refused, or never run because of one that was."""
    if call.status == "failed":
        return not call.writes
    return call.status in ("invalid", "rejected", "deferred") or (call.status == "skipped" and not call.branch)
