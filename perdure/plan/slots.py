"""Who may run beside whom, and who goes first (R5.12)."""

from __future__ import annotations

from perdure.plan.calls import Call


class Slots:
    """`parallel` calls at once, `None` being no limit, and never two of one exclusive tool or group.

    With `step` so many calls are started at all: what is left is for the next Request to decide.
    """

    def __init__(self, parallel: int | None = None, *, step: bool = False) -> None:
        self._parallel = parallel
        self._step = step
        self.renew()
        self._taken: dict[str, str | None] = {}
        """By the call's id the exclusive group of what runs."""

    def renew(self) -> None:
        """Another Request's calls follow."""
        self._to_start = self._parallel if self._step else None

    @property
    def by_list(self) -> bool:
        """Whether only the first calls of the list are started, so that those behind wait until it is known who they are."""
        return self._to_start is not None

    def take_from(self, ready: list[Call], *, inside: bool = False) -> list[Call]:
        """The calls that may start now, taken out of `ready`; where not all may, the first of the model's list go first.

        `inside`: they are a loop's, which has been started as a whole.
        """
        if self._parallel is not None or any(map(_group, ready)):
            ready.sort(key=lambda call: call.index)
        taken = []
        # With `step` the first of the list are those that are started: nobody behind takes the place of one that has no room yet.
        for call in ready[: None if inside else self._to_start]:
            if self.free(call):
                self.take(call)
                self._to_start = None if self._to_start is None else self._to_start - (not inside)
                ready.remove(call)
                taken.append(call)
        return taken

    def surplus(self, ready: list[Call]) -> list[Call]:
        """The calls that will not be started in this Request."""
        if self._to_start is None:
            return []
        return sorted(ready, key=lambda call: call.index)[self._to_start :]

    def drain(self) -> None:
        """Everything is run, a step after the other."""
        self._to_start = None

    def free(self, call: Call) -> bool:
        """Whether the call may run now, or runs already."""
        if call.id in self._taken:
            return True
        group = _group(call)
        full = self._parallel is not None and len(self._taken) >= self._parallel
        return not full and (group is None or group not in self._taken.values())

    def take(self, call: Call) -> None:
        self._taken[call.id] = _group(call)

    def give_back(self, call: Call) -> None:
        """It has ended, or waits for a person. What holds no slot gives none back."""
        self._taken.pop(call.id, None)


def _group(call: Call) -> str | None:
    return None if call.tool is None else call.tool.exclusive_group
