"""Signs of life: seldom enough to cost little, often enough to notice a cancellation (R6.10)."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from perdure.activities.heartbeats import next_heartbeat, supervised_heartbeat
from perdure.activities.queries import AttemptState
from perdure.activities.requests import next_telling
from tests.timeouts import HANG


@pytest.mark.parametrize(("seconds", "most"), [(1, 1), (4, 4), (20, 11), (60, 16), (600, 27), (86_400, 50)])
def test_heartbeats_back_off(seconds: float, most: int) -> None:
    at, count = 0.0, 0
    while at + (pause := next_heartbeat(at)) <= seconds:
        assert pause == max(1, at / 4)
        at, count = at + pause, count + 1
    assert count <= most


def test_half_of_a_heartbeat_timeout_is_never_exceeded() -> None:
    assert [next_heartbeat(worked, 5.0) for worked in (0, 4, 8, 1000)] == [1, 1, 2, 2.5]
    assert next_heartbeat(0, 1.0) == 0.5
    assert [next_heartbeat(worked, news=True) for worked in (0, 10, 100)] == [1, 1, 5]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_told_last_is_there_for_the_next_attempt(fails: bool) -> None:
    sent: list[tuple[Any, ...]] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: sent.append(details)

    async def work() -> None:
        async with supervised_heartbeat() as heart:
            heart.tell("first")
            heart.tell("second")
            await asyncio.sleep(0)
            if fails:
                raise ValueError

    try:
        await environment.run(work)
    except ValueError:
        assert fails
    assert sent == ([("second",)] if fails else [])


async def test_who_is_wanted_says_nothing_but_for_its_heartbeat_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks cost no Action: a heartbeat goes out where it is late for one, and where the look says that it is to be given up."""
    looks = iter([True, True, True, False])

    async def look() -> AttemptState:
        return AttemptState(next(looks))

    monkeypatch.setattr("perdure.activities.heartbeats.SHORTEST", 0.01)
    monkeypatch.setattr("perdure.activities.heartbeats.look", look)
    environment = ActivityEnvironment()
    told = asyncio.Event()
    environment.on_heartbeat = lambda *_: told.set()
    environment.info = dataclasses.replace(environment.info, heartbeat_timeout=None)

    async def work() -> None:
        async with supervised_heartbeat():
            await asyncio.wait_for(told.wait(), HANG)

    await environment.run(work)
    assert next(looks, None) is None


def test_who_watches_is_told_four_times_a_second_and_later_once() -> None:
    def count(seconds: float, *, watched: bool) -> int:
        at, told = 0.0, 1
        while (at := at + next_telling(at, watched=watched)) < seconds:
            told += 1
        return told

    assert [count(seconds, watched=True) for seconds in (0.2, 1, 10, 100)] == [1, 4, 35, 129]
    assert [count(seconds, watched=False) for seconds in (0.2, 1, 10, 100, 600)] == [1, 1, 9, 19, 27]
