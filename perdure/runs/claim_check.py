"""Claim checks of a run: values that are too large to be sent, which their readers fetch by one query.

Queries are not in the history, so neither are these values (R6.8, R18.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from perdure.approvals.requests import WaitingView
from perdure.models.requests import RequestContext
from perdure.runs.delegates import SpentBudget
from perdure.runs.undo import EffectChunk
from perdure.tools.invocation import ToolReads
from perdure.values.json import JsonObject
from perdure.values.limits import MAX_PAYLOAD
from perdure.values.sizes import first_fitting

PAYLOADS_QUERY: Final = "payloads"
"""Query of a run, loop or session for values by their kind and names: an object of the values by name.

It has as many values as one answer holds, and at least the first. `null` is a value that nobody needs any longer. A
name that is left out has to be queried again.
"""

V = TypeVar("V")


@dataclass(frozen=True)
class PayloadKind(Generic[V]):
    """A kind of value that readers fetch."""

    name: str
    type: Any  # Python cannot say that it is `type[V]` or a union
    """The type of its values, `V`."""


CONTEXT: Final = PayloadKind[RequestContext]("context", RequestContext)
"""The context of a Request, by its number."""
CALL: Final = PayloadKind[ToolReads]("call", ToolReads)
"""The input of a running call's tool, by the call's id."""
CHILD: Final = PayloadKind[Any]("child", Any)
"""The input of a child run, an iteration or a session's run, by its id below the run that starts it."""
HOOK: Final = PayloadKind[JsonObject]("hook", JsonObject)
"""The event that hooks are called with, by the event's key."""
APPROVAL: Final = PayloadKind[WaitingView]("approval", WaitingView)
"""An approval request for a program that decides, by its call."""
GRANT: Final = PayloadKind[bool]("grant", bool)
"""Whether a call may return its large result, by the call's id. Undecided claims are left out (R18.4)."""
EFFECTS: Final = PayloadKind[EffectChunk]("effects", EffectChunk)
"""A part of the run's effects, by its number from 0, for an undo (R23.4)."""
USAGE: Final = PayloadKind[SpentBudget]("usage", SpentBudget)
"""The usage of the run, or loop, so far, for a parent whose child could not report it (R9.6). The name is empty."""


class Payload(NamedTuple):
    """A value that a reader fetches, and its size in bytes; 0 where the size does not count."""

    value: object
    """`None`: nobody needs it any longer."""
    size: int = 0


GONE: Final = Payload(None)


class Neighbours:
    """The contexts of Requests whose runs this process holds in memory: an activity beside its run needs no query.

    A context is here for as long as its run keeps it. An activity queries the run for any other context.
    """

    def __init__(self) -> None:
        self._contexts: WeakValueDictionary[tuple[str, str, int], RequestContext] = WeakValueDictionary()
        self._runs: WeakValueDictionary[tuple[str, str], object] = WeakValueDictionary()

    def keep(self, run_id: str, execution: str, number: int, context: RequestContext, part: object) -> None:
        """Keep the context of Request `number`, of this execution of a run; `part` is an object that lives as long as the run."""
        self._contexts[run_id, execution, number] = context
        self._runs[run_id, execution] = part

    def holds(self, run_id: str, execution: str) -> bool:
        """Whether this process holds the run in memory, so that the kept context is current."""
        return (run_id, execution) in self._runs

    def find(self, run_id: str, execution: str, number: int) -> RequestContext | None:
        """Return the context that `keep` has kept, while the run holds it."""
        return self._contexts.get((run_id, execution, number))


NEIGHBOURS: Final = Neighbours()
"""The contexts of this process."""


def read_payloads(find: Callable[[str], Payload | None], names: Iterable[str], most: int = MAX_PAYLOAD) -> JsonObject:
    """Return the values that `find` returns for these names, as many as fit in `most` bytes, and at least the first.

    A name for which `find` returns `None` is left out: its reader queries again.
    """
    found = {name: payload for name in names if (payload := find(name)) is not None}
    count = first_fitting((200 + payload.size for payload in found.values()), most)
    return {name: payload.value for name, payload in islice(found.items(), count)}
