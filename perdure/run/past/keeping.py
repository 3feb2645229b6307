"""What calls were given and gave, by reference, so that a view that cut it can be read whole once they have ended (R18.3)."""

from __future__ import annotations

from perdure.plan.calls import Call
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_KEPT
from perdure.values.limits.sizes import Sizes


class Kept:
    """Parameters and results of the newest calls that have ended: of as many as have `MAX_KEPT` bytes.

    A value that many calls read counts once: it is known by its identity.
    """

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._calls: dict[str, tuple[JsonObject, Json]] = {}
        self._held: dict[int, tuple[int, int]] = {}
        """By the identity of a value how many calls hold it, and its bytes."""
        self._bytes = 0

    def add(self, call: Call, sizes: Sizes) -> None:
        """Keep those of a call that has ended; the oldest go where there is no room."""
        self._calls[call.id] = call.params, call.result
        for value in (*call.params.values(), call.result):
            count, size = self._held.get(id(value), (0, 0))
            if not count:
                size = sizes.of(value)
                self._bytes += size
            self._held[id(value)] = count + 1, size
        while self._bytes > self._most and len(self._calls) > 1:
            self._let_go(next(iter(self._calls)))

    def whole(self, call_id: str) -> JsonObject | None:
        """`{"params", "result"}`; `None`: they are not here any more, or never were."""
        if call_id not in self._calls:
            return None
        params, result = self._calls[call_id]
        return {"params": params, "result": result}

    def _let_go(self, call_id: str) -> None:
        params, result = self._calls.pop(call_id)
        for value in (*params.values(), result):
            count, size = self._held.pop(id(value))
            if count > 1:
                self._held[id(value)] = count - 1, size
            else:
                self._bytes -= size
