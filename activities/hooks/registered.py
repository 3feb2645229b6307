"""The hooks that a worker has, in the order of their registration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from perdure.hooks.functions import HookFunction
from perdure.hooks.matching import matches
from perdure.hooks.table import HOOKS, Where
from perdure.hooks.wire import HookRef


class HookRegistry:
    """Hooks by event and name. The same function, imported by several modules, is one hook."""

    def __init__(self, functions: Iterable[HookFunction] = ()) -> None:
        self._functions: dict[tuple[str, str], HookFunction] = {}
        for function in functions:
            self.add(function)

    def add(self, function: HookFunction) -> None:
        """One that is there already keeps its place; of two of one name the later counts, as in a module that is loaded anew."""
        self._functions[function.ref.event, function.ref.name] = function

    def __iter__(self) -> Iterator[HookFunction]:
        return iter(self._functions.values())

    def __len__(self) -> int:
        return len(self._functions)

    def recorded(self, where: Where) -> list[HookRef]:
        """What a run, a session or a gateway records of them."""
        return [each.ref for each in self if HOOKS[each.ref.event].where == where]

    def lacking(self, wanted: Sequence[HookRef]) -> list[HookRef]:
        """Those of the recorded ones that this worker does not have."""
        return [each for each in wanted if (each.event, each.name) not in self._functions]

    def get(self, wanted: HookRef) -> HookFunction | None:
        return self._functions.get((wanted.event, wanted.name))

    def own(self, event: str, tools: Collection[str], wanted: Sequence[HookRef]) -> list[HookRef]:
        """Those of an event for a tool that this worker has beside the recorded ones."""
        known = {each.name for each in wanted if each.event == event}
        mine = (each.ref for each in self if each.ref.event == event and each.ref.name not in known)
        return [each for each in mine if matches(each, tools)]
