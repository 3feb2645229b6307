"""Intake: each call of one attempt once, in order, whatever way they arrive (R6.7)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.models.requests import CallDelivery, RequestResult
from perdure.models.response_stream import Intake


@st.composite
def deliveries(draw: st.DrawFn) -> list[CallDelivery]:
    """Slices of the answers of two attempts, in any order, some twice."""
    slices = st.tuples(st.sampled_from([1, 2]), st.integers(0, 6), st.integers(0, 4))
    return [
        CallDelivery(
            number=1,
            attempt=attempt,
            first=first,
            calls=[{"n": n, "of": attempt} for n in range(first, min(first + count, 7))],
        )
        for attempt, first, count in draw(st.lists(slices, max_size=12))
    ]


def whole(attempt: int) -> list[Any]:
    return [{"n": n, "of": attempt} for n in range(7)]


@given(deliveries(), st.sampled_from([1, 2]))
def test_each_call_of_one_attempt_is_taken_once_and_in_order(arriving: list[CallDelivery], answers: int) -> None:
    intake = Intake(1)
    taken = [call for delivery in arriving for call in intake.deliver(delivery)]
    owners = [delivery.attempt for delivery in arriving if delivery.calls]
    missing, result = intake.close(RequestResult(calls=whole(answers), attempt=answers))
    taken += missing
    owner = owners[0] if owners else answers
    assert taken == whole(owner)[: len(taken)]
    assert len(taken) == 7 or owner != answers
    assert (result.problem is None) == (owner == answers)


@given(deliveries(), st.sampled_from([1, 2]), deliveries())
def test_what_arrives_after_the_request_was_closed_adds_nothing(
    before: list[CallDelivery], answers: int, after: list[CallDelivery]
) -> None:
    intake = Intake(1)
    for delivery in before:
        intake.deliver(delivery)
    intake.close(RequestResult(calls=whole(answers), attempt=answers))
    received = intake.received
    assert [intake.deliver(delivery) for delivery in after] == [[]] * len(after)
    assert intake.received == received


@given(deliveries(), deliveries())
def test_nor_after_it_was_interrupted(before: list[CallDelivery], after: list[CallDelivery]) -> None:
    intake = Intake(1)
    taken = [call for delivery in before for call in intake.deliver(delivery)]
    intake.interrupted("gone")
    assert [intake.deliver(delivery) for delivery in after] == [[]] * len(after)
    assert intake.received == len(taken)


@given(deliveries())
def test_what_belongs_to_another_request_is_dropped(arriving: list[CallDelivery]) -> None:
    intake = Intake(2)
    assert [intake.deliver(delivery) for delivery in arriving] == [[]] * len(arriving)


def test_an_interruption_tells_how_much_was_released() -> None:
    intake = Intake(1)
    intake.deliver(CallDelivery(number=1, attempt=1, first=0, calls=[1, 2]))
    missing, result = intake.close(intake.interrupted("gone"))
    assert missing == []
    assert result.problem is not None
    assert "after 2 calls (gone)" in result.problem["message"]
