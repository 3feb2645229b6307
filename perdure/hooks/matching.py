"""Which of the recorded hooks are called at a point, in the order in which they were registered."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from perdure.hooks.wire import HookRef

BEFORE: Final = "before_tool_call"
AFTER: Final = "after_tool_call"
PERSIST: Final = "tool_result_persist"
OF_CALLS: Final = (BEFORE, AFTER, PERSIST)
"""The events of a call."""


class Hooks:
    """Those that a run, or an execution of a session, has recorded."""

    def __init__(self, recorded: Iterable[HookRef] = ()) -> None:
        self._by_event: dict[str, list[HookRef]] = {}
        for hook in recorded:
            self._by_event.setdefault(hook.event, []).append(hook)

    def __bool__(self) -> bool:
        return bool(self._by_event)

    def of(self, event: str, tools: Collection[str] = ()) -> list[HookRef]:
        """Those of an event; of a call's those for one of the names that its tool goes by."""
        found = self._by_event.get(event)
        return [] if found is None else [hook for hook in found if matches(hook, tools)]


def matches(hook: HookRef, tools: Collection[str]) -> bool:
    """Whether the hook is for a tool that goes by these names: an agent file that calls the code otherwise does not get past it."""
    return hook.tools is None or any(name in hook.tools for name in tools)
