"""What one reference of one call is wired to, and what it finds there (R5.1, R5.4).

A reader binds backward: to the nearest writer before it that covers its path, and to those in between that add to it. Where
nobody before it writes and no value exists, it binds forward, by the same rule in the mirror. Where a `set` went another
branch the reader passes over it and looks on to the next writers in the same direction: so that two exclusive branches can write one
path and join again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from perdure.errors import StateError
from perdure.plan.calls import Call
from perdure.plan.edges.writers import Writers
from perdure.values.jsons import Json
from perdure.values.paths import get, overlaps
from perdure.values.references import MISSING, Missing, Path, Reference
from perdure.values.sources import Labels, Sources, join_all
from perdure.values.state import Write, is_prefix, replay, sources_of

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
    order: bool = False
    """Only that the writers have ended matters, not what they wrote: what was there before the plan starts nobody (R5.11)."""
    any_end: bool = False
    """Of `order`: it does not matter how the writers have ended either."""
    back: bool = False
    """Only what stands before the reader counts: it writes the path itself."""
    exhausted: bool = False
    """Whether no further writers are left to look for where those took another branch."""
    open: bool = False
    """Still waiting to learn who writes: a later call may yet arrive."""
    first: list[int] = field(default_factory=list)
    """The writers as the list alone gives them, before any was passed over: cycles are those of the list, whatever ended early."""
    passed: int | None = None
    """The last `set` that was passed over because it went another branch. Beyond it somebody has to have written: the reader
    never falls back to a value from before the plan."""

    turned: set[int] = field(default_factory=set)
    """All that were passed over because they went another branch."""
    reach: int = field(init=False)
    """Index up to which writers were looked for: the reader's own, then those of the covering writers found."""

    def __post_init__(self) -> None:
        self.reach = self.reader

    def bind(self, writers: Writers) -> None:
        """Bind to what is known when the reader arrives."""
        if self.reference.kind != "state":
            return
        self.bind_backward(writers)
        if not self.back and not self.writers and (self.order or get(self.base, self.reference.path) is MISSING):
            self.forward = self.open = True

    def bind_anew(self, writers: Writers) -> None:
        """Who writes here has changed, and nothing was found so far: look once more from the reader itself, in both directions."""
        self.reach, self.first, self.passed = self.reader, [], None
        self.forward = self.open = False
        self.bind(writers)
        if self.open:
            self.bind_forward(writers, final=False)

    def lose(self, gone: Set[int], writers: Writers, calls: Sequence[Call]) -> None:
        """Of its writers these will never write: look for others, beside those that have ended.

        Where one of them would have set the path, what was there before it is nobody's to read.
        """
        if self.covered and self.writers[-1 if self.forward else 0] in gone:
            self.base = MISSING
        ended = [index for index in self.writers if index not in gone and calls[index].ended]
        self.writers, self.covered = [], False
        self.bind_anew(writers)
        self.writers = sorted({*ended, *self.writers})

    def bind_forward(self, writers: Writers, *, final: bool) -> None:
        """Look for later writers: settled once one covers the path, or when no call can arrive any more (`final`)."""
        found, covered = writers.after(self.reference.path, self.reach)
        if covered or final:
            self.open = False
            self.writers, self.covered = [*self.writers, *found], covered
            self.reach = max(found, default=self.reach)
            self.first = self.first or found

    def bind_backward(self, writers: Writers) -> None:
        found, self.covered = writers.before(self.reference.path, self.reach)
        self.writers = [*found, *self.writers]
        self.reach = min(found, default=self.reach)
        self.first = self.first or found

    def looks_on(self, calls: Sequence[Call]) -> bool:
        """Whether the covering writer, which has ended like all others, went another branch: what was nearer may need what is beyond."""
        broken = not self.any_end and any(_broken(calls[index]) for index in self.writers)
        if not self.covered or self.exhausted or broken:
            return False
        return not self._reached_by(calls[self.writers[-1 if self.forward else 0]])

    def move_on(self, writers: Writers, calls: Sequence[Call], *, final: bool) -> bool:
        """Past a `set` that went another branch to the next writers in the same direction; whether there are, or may be, any."""
        if not self.covered:
            return False
        for index in self.writers:
            if self._sets(calls[index]) and not self._reached_by(calls[index]):
                self._pass(index)
        # Those that have written nothing here are done with; the one that is to blame is remembered as `passed`.
        self.writers = [index for index in self.writers if self._written_by(calls[index])]
        kept = len(self.writers)
        if self.forward:
            self.open = True
            self.bind_forward(writers, final=final)
        else:
            self.bind_backward(writers)
        return self.open or len(self.writers) > kept

    @property
    def possible(self) -> bool:
        """Whether anything can ever stand at the path, or could have (R5.5)."""
        offered = self.open or bool(self.writers) or self.passed is not None
        return offered or get(self.base, self.reference.path) is not MISSING

    def find(self, calls: Sequence[Call], order: Mapping[int, int]) -> tuple[Found, Json | Missing]:
        """What stands at the path now that every bound writer ended.

        `order` gives each call's place in the order of completion. Raises `StateError` when the bound writes do not fit
        the value that existed when the plan was made.
        """
        if any(_broken(calls[index]) for index in self.writers):
            return "broken", MISSING
        if self._passes_over(calls):
            return "branch", MISSING
        if self.order and self.writers:
            return ("value" if self._writes(calls, order) else "branch"), MISSING
        writes = self._writes(calls, order)
        value = replay(writes, self.reference.path, self.base)
        if value is MISSING:
            return ("branch" if self.writers and not writes else "nowhere"), value
        return "value", value

    def sources(self, calls: Sequence[Call], order: Mapping[int, int], base: Labels) -> Sources:
        """Where what `find` gives comes from; `base` are the sources of the kind's value when the plan was made (R15.1)."""
        return sources_of(self._writes(calls, order), self.reference.path, base)

    def nearest(self, calls: Sequence[Call], order: Mapping[int, int]) -> tuple[Path, Json]:
        """Where the path leads nowhere, the longest beginning of it that has a value, and that value (R5.5)."""
        writes = self._writes(calls, order)
        for length in reversed(range(len(self.reference.path))):
            start = self.reference.path[:length]
            with suppress(StateError):
                value = replay(writes, start, self.base)
                if value is not MISSING:
                    return start, value
        return (), {}

    def _passes_over(self, calls: Sequence[Call]) -> bool:
        """Whether the nearest `set` went another branch, and so did all beyond it, as far as the reader is bound."""
        # A `set` through an index needs the array from before it, so it covers nothing, but it is a `set` all the same.
        setters = [index for index in self.writers if self._sets(calls[index])]
        for index in setters if self.forward else reversed(setters):
            if self._reached_by(calls[index]):
                return False
            self._pass(index)
        if self.passed is None:
            return False
        beyond = [index for index in self.writers if (index > self.passed) == self.forward and index != self.passed]
        return not any(self._written_by(calls[index]) for index in beyond)

    def decided(self, calls: Sequence[Call]) -> Sources:
        """Where the conditions come from by which others have not written here (R15.1)."""
        return join_all(calls[index].decided for index in self.turned)

    def _pass(self, index: int) -> None:
        self.turned.add(index)
        if self.passed is None or (index > self.passed) == self.forward:
            self.passed = index

    def _reached_by(self, call: Call) -> bool:
        """Whether the call wrote the path itself, or what it stands in."""
        return any(is_prefix(write.path, self.reference.path) for write in call.writes)

    def _sets(self, call: Call) -> bool:
        return call.method == "set" and any(
            is_prefix(path, self.reference.path) for paths in call.paths for path in paths
        )

    def _written_by(self, call: Call) -> list[Write]:
        return [write for write in call.writes if overlaps(write.path, self.reference.path)]

    def _writes(self, calls: Sequence[Call], order: Mapping[int, int]) -> list[Write]:
        """What the bound writers wrote here, as they ended."""
        return [
            write for index in sorted(self.writers, key=order.__getitem__) for write in self._written_by(calls[index])
        ]


def _broken(call: Call) -> bool:
    """Ended without what it promised: failed with no branch for it, refused, or never run because of one that was."""
    if call.status == "failed":
        return not call.writes
    return call.status in ("invalid", "rejected", "deferred") or (call.status == "skipped" and not call.branch)
