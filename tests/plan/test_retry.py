"""What a deploy costs a call: nothing (R6.7, R12.5)."""

from __future__ import annotations

from perdure.plan import INTERRUPTED, LOST, NO_SUCH_TOOL, NOT_BEGUN, RetryState
from perdure.plan._retry import LONGEST_PAUSE, MOST_LOST


def test_being_cut_off_uses_up_no_retry() -> None:
    patience = RetryState(retries=1, seconds=300)
    for times in range(1, 5):
        assert patience.pause(INTERRUPTED, 1, 0) == 0.0
        assert (patience.attempts_left, patience.started) == (2, times)
    assert patience.pause(INTERRUPTED, 2, 0) == 0.0  # the first of the two failed by itself
    assert (patience.attempts_left, patience.started) == (1, 6)
    assert patience.pause("OSError", 1, 0) is None


def test_what_may_not_be_retried_is_never_started_again() -> None:
    patience = RetryState(retries=0, seconds=300)
    assert patience.pause(INTERRUPTED, 1, 0) is None
    assert patience.pause(NO_SUCH_TOOL, 1, 0) is not None  # it has not been started


def test_a_worker_that_has_the_tool_is_waited_for_less_and_less_often() -> None:
    patience = RetryState(retries=2, seconds=300)
    now, pauses = 100.0, []
    while (pause := patience.pause(NO_SUCH_TOOL, 1, now)) is not None:
        pauses.append(pause)
        now += pause
    assert now == 400.0
    assert len(pauses) < 20
    assert max(pauses) == LONGEST_PAUSE
    assert (patience.attempts_left, patience.started) == (3, 0)


def test_a_lost_worker_uses_up_no_retry_but_not_for_ever() -> None:
    """It may be the call that ends its workers."""
    patience = RetryState(retries=1, seconds=300)
    assert [patience.pause(LOST, 1, 0) for _ in range(MOST_LOST)] == [0.0] * MOST_LOST
    assert (patience.attempts_left, patience.started) == (2, MOST_LOST)
    assert patience.pause(LOST, 1, 0) is None


def test_what_had_not_begun_is_begun_elsewhere_whatever_its_retries() -> None:
    patience = RetryState(retries=0, seconds=300)
    assert patience.pause(NOT_BEGUN, 1, 0) == 0.0
    assert (patience.attempts_left, patience.started) == (1, 0)
    assert patience.pause(LOST, 1, 0) is None
