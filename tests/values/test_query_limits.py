"""How long and how often a run is asked."""

from __future__ import annotations

from itertools import count, takewhile

from perdure.values.limits import ATTEMPTS, LONGEST_PAUSE, SHORTEST_PAUSE, after_answer, after_failure


def test_nobody_answers_for_about_two_minutes() -> None:
    pauses = list(takewhile(lambda pause: pause is not None, map(after_failure, count(1))))
    assert len(pauses) == ATTEMPTS - 1
    assert 10 < sum(pause or 0 for pause in pauses) < 30  # and up to ten seconds of each query


def test_asking_in_vain_backs_off_and_an_answer_begins_anew() -> None:
    pause = SHORTEST_PAUSE
    for _ in range(10):
        pause = after_answer(pause, found=False)
    assert pause == LONGEST_PAUSE
    assert after_answer(pause, found=True) == SHORTEST_PAUSE
