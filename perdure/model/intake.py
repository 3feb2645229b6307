"""What arrives of a Request while the model is still writing, and what stands of it in the end (R6.3, R6.7).

**The invariant.** Each call of a Request runs at most once, and a call that was released is never taken back.

Its argument. (1) Calls reach the plan in one place, `Intake`, each index once, in the order of the model's list. What is
delivered twice or out of order is kept or dropped by its index. (2) Deliveries and the activity's result name the attempt
that they come from. The first attempt of which a call arrives owns the Request for good; whatever another attempt sends
later, a worker that was thought dead among them, is dropped. So calls of two answers of the model never mix. (3) An attempt
that is not the first asks the run whether calls have arrived before it asks the model (`RequestContext.released`); if so, it
does not ask. What slips between that question and a late delivery is caught by (2). (4) The owner's result is the whole
list, so a delivery that was lost is repaired by it; if the owner died, what arrived of it stands, and the Request is closed as
interrupted. (5) Everything above is decided from the workflow's history alone, so a replay decides the same. What Temporal
itself may run again, an activity whose worker died, carries the same idempotency key on each attempt. (6) A Request is closed
once, by the result that stands; its list is whole then, and what is delivered afterwards, also by its owner, adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.model.wire import Delivery, RequestResult
from perdure.values.jsons import Json, JsonObject

INTERRUPTED: Final = "interrupted"


class Intake:
    """The calls of one Request as they arrive."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.received = 0
        """Calls handed on so far."""
        self.closed = False
        """Whether the Request's result stands: nothing is taken any more."""
        self._owner: int | None = None
        self._early: dict[int, Json] = {}

    def deliver(self, delivery: Delivery) -> list[Json]:
        """The calls that the delivery adds, in the order of the list; none from an attempt that does not own the Request."""
        if self.closed or delivery.number != self.number or not delivery.calls:
            return []
        return self._take(delivery.attempt, delivery.first, delivery.calls)

    def close(self, result: RequestResult) -> tuple[list[Json], RequestResult]:
        """The calls that were still missing, and the result as it stands.

        The owner's result is the truth. Of another attempt's result, which was made without knowing of the owner's
        calls, nothing is taken: the Request was interrupted. What arrives after this adds nothing.
        """
        self.closed = True
        if self._owner is not None and result.attempt != self._owner:
            return [], self.interrupted("the worker was lost")
        return self._take(result.attempt, 0, result.calls), result

    def interrupted(self, reason: str) -> RequestResult:
        """The result of a Request whose answer broke off after calls had been released. Closes the Request."""
        self.closed = True
        return RequestResult(problem=interruption(self.received, reason), attempt=self._owner or 1)

    def _take(self, attempt: int, first: int, calls: Sequence[Json]) -> list[Json]:
        if self._owner is None and calls:
            self._owner = attempt
        if attempt != self._owner:
            return []
        if first <= self.received and not self._early:  # as they come but for a lost or late delivery
            fresh = list(calls[self.received - first :])
            self.received += len(fresh)
            return fresh
        for index, call in enumerate(calls, first):
            if index >= self.received:
                self._early.setdefault(index, call)
        ready: list[Json] = []
        while self.received in self._early:
            ready.append(self._early.pop(self.received))
            self.received += 1
        return ready


def interruption(released: int, reason: str) -> JsonObject:
    """The error that tells the model what has become of an answer that broke off (R6.7)."""
    return {
        "code": INTERRUPTED,
        "message": f"your answer broke off after {released} calls ({reason}); they were run, see the plan. Go on from there",
    }
