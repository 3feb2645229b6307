"""What happened between two looks at a run, as events (R10.14)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from perdure.model.wire import RequestView
from perdure.plan.approval import Approval
from perdure.plan.calls import ENDED
from perdure.run.wire import CallView, RunView, WaitingView


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """The run: `start` once, then `end`, or `error` where it ended without an output."""

    phase: Literal["start", "end", "error"]
    view: RunView
    topic: Literal["lifecycle"] = "lifecycle"


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A Request: `start`; `update` when the model is asked again, with the reason in `request.trouble`; `end` when its answer is whole."""

    phase: Literal["start", "update", "end"]
    request: RequestView
    topic: Literal["request"] = "request"


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """A call: `start` when it runs; `update` when its tool says how far it is, or is tried again; `end` however it ended."""

    phase: Literal["start", "update", "end"]
    call: CallView
    topic: Literal["tool"] = "tool"


@dataclass(frozen=True, slots=True)
class ApprovalEvent:
    """Something waits for a person (`start`), and does not wait any more (`end`)."""

    phase: Literal["start", "end"]
    offer: WaitingView
    """What waits, or waited."""
    approval: Approval | None = None
    """At the `end` of a call's: what was decided, by whom and why."""
    topic: Literal["approval"] = "approval"


Event: TypeAlias = LifecycleEvent | RequestEvent | ToolEvent | ApprovalEvent


def events_between(before: RunView | None, after: RunView) -> Iterator[Event]:
    """What has happened since `before` (`None`: everything), by Requests in their order, in each of them causes before effects.

    Only what both views hold whole can be compared: what a large run's view has cut (R18.3) has no events.
    """
    if before is None:
        yield LifecycleEvent("start", after)
    for number in sorted({request.number for request in after.log} | {_number(call.id) for call in after.calls}):
        yield from _request(number, before, after)
        yield from _settled(number, before, after)
        yield from _calls(number, before, after)
        known = {offer.call for offer in before.waiting} if before else set()
        yield from (
            ApprovalEvent("start", o) for o in after.waiting if _number(o.call) == number and o.call not in known
        )
    if after.status != "running" and (before is None or before.status == "running"):
        yield LifecycleEvent("end" if after.status == "completed" else "error", after)


def _request(number: int, before: RunView | None, after: RunView) -> Iterator[Event]:
    old = next((each for each in before.log if each.number == number), None) if before else None
    for request in after.log:
        if request.number != number:
            continue
        if old is None:
            yield RequestEvent("start", request)
        if request.status != "running":
            if old is None or old.status == "running":
                yield RequestEvent("end", request)
        elif request.trouble and (old is None or old.trouble != request.trouble):
            yield RequestEvent("update", request)


def _calls(number: int, before: RunView | None, after: RunView) -> Iterator[Event]:
    known = {call.id: call for call in before.calls} if before else {}
    for call in after.calls:
        old = known.get(call.id)
        if _number(call.id) != number or (old is not None and old.status in ENDED):
            continue
        started = old is not None and old.started_at is not None
        if call.started_at is not None and not started:
            yield ToolEvent("start", call)
        if call.status in ENDED:
            yield ToolEvent("end", call)
        elif old is not None and started and (call.reason, call.attempts) != (old.reason, old.attempts):
            yield ToolEvent("update", call)


def _settled(number: int, before: RunView | None, after: RunView) -> Iterator[Event]:
    waiting = {offer.call for offer in after.waiting}
    approvals = {call.id: call.approval for call in after.calls}
    for offer in before.waiting if before else ():
        if _number(offer.call) == number and offer.call not in waiting:
            yield ApprovalEvent("end", offer, approvals.get(offer.call))


def _number(call: str) -> int:
    """Of the Request that a call, or a plan that is offered whole, belongs to."""
    return int(call.partition(".")[0])
