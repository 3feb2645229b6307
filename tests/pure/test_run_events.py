"""What happened between two looks at a run (R10.14's topics, as far as a view has them)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.model.wire import RequestView
from perdure.plan.approval import Approval
from perdure.plan.calls import ENDED
from perdure.run.views.events import ApprovalEvent, Event, LifecycleEvent, RequestEvent, ToolEvent, events_between
from perdure.run.wire import CallView, RunView, WaitingView


def call(id: str, status: str, *, started: bool = True, **more: Any) -> CallView:
    return CallView(id=id, tool="t", params={}, status=status, started_at="2026-01-01" if started else None, **more)


def offer(id: str) -> WaitingView:
    return WaitingView(call=id, agent="a", tool="t", reason="dangerous", requested_at="2026-01-01", digest="d")


def request(number: int, **more: Any) -> RequestView:
    return RequestView(number=number, model="m", reason="r", **more)


def view(status: Any = "running", **more: Any) -> RunView:
    return RunView(run_id="r", status=status, **more)


def short(event: Event) -> str:
    match event:
        case LifecycleEvent():
            return f"run {event.phase}"
        case RequestEvent():
            return f"request {event.request.number} {event.phase}"
        case ToolEvent():
            return f"{event.call.id} {event.phase}"
        case ApprovalEvent():
            return f"approval {event.offer.call} {event.phase}"


def between(before: RunView | None, after: RunView) -> list[str]:
    return [short(event) for event in events_between(before, after)]


def test_each_thing_is_told_once_and_causes_before_effects() -> None:
    first = view(log=[request(1)], calls=[call("1.0", "running"), call("1.1", "pending", started=False)])
    assert between(None, first) == ["run start", "request 1 start", "1.0 start"]
    assert between(first, first) == []
    second = view(
        log=[request(1, status="done")],
        calls=[call("1.0", "done"), call("1.1", "waiting", started=False)],
        waiting=[offer("1.1")],
    )
    assert between(first, second) == ["request 1 end", "1.0 end", "approval 1.1 start"]
    approval = Approval(requested_at="2026-01-01", decision="approve", by="ann")
    third = view(
        "completed",
        log=[request(1, status="done"), request(2, status="done")],
        calls=[call("1.0", "done"), call("1.1", "done", approval=approval), call("2.0", "skipped", started=False)],
    )
    told = list(events_between(second, third))
    assert [short(event) for event in told] == [
        *("approval 1.1 end", "1.1 start", "1.1 end"),
        *("request 2 start", "request 2 end", "2.0 end", "run end"),
    ]
    assert isinstance(told[0], ApprovalEvent)
    assert told[0].approval == approval
    assert between(third, third) == []
    assert between(second, second.model_copy(update={"status": "failed"})) == ["run error"]


def test_progress_another_attempt_and_trouble_are_updates() -> None:
    before = view(log=[request(1)], calls=[call("0.0", "running", attempts=1)])
    told = view(log=[request(1, trouble="503")], calls=[call("0.0", "running", attempts=1, reason="half way")])
    again = view(log=[request(1, trouble="503")], calls=[call("0.0", "running", attempts=2, reason="half way")])
    assert between(before, told) == ["0.0 update", "request 1 update"]
    assert between(told, again) == ["0.0 update"]


@given(st.lists(st.lists(st.sampled_from(["pending", "running", "done", "failed", "skipped"]), min_size=3, max_size=3)))
def test_however_often_one_looks_each_call_starts_and_ends_once(looks: list[list[str]]) -> None:
    """Statuses only go forward: a call that has ended stays so."""
    order = ["pending", "running", "done"]
    now, before, told = ["pending"] * 3, None, list[str]()
    for statuses in looks:
        for n, status in enumerate(statuses):
            if now[n] not in ENDED and order.index(now[n]) <= order.index(status if status in order else "done"):
                now[n] = status
        after = view(calls=[call(f"1.{n}", s, started=s in ("running", "done", "failed")) for n, s in enumerate(now)])
        told += between(before, after)
        before = after
    for n in range(3):
        assert told.count(f"1.{n} end") == (now[n] in ENDED)
        assert told.count(f"1.{n} start") <= 1
