"""Signs of life: seldom enough to cost little, often enough to notice a cancellation (R6.10)."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import selectors
import uuid
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueRequest, PollActivityTaskQueueResponse
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from perdure.activities.heartbeats import longest_silence, next_heartbeat, supervised_heartbeat
from perdure.activities.queries import AttemptState
from perdure.activities.requests import next_report
from tests.timeouts import HANG


@pytest.mark.parametrize(("seconds", "most"), [(1, 1), (4, 4), (20, 11), (60, 16), (600, 27), (86_400, 50)])
def test_heartbeats_back_off(seconds: float, most: int) -> None:
    at, count = 0.0, 0
    while at + (pause := next_heartbeat(at)) <= seconds:
        assert pause == max(1, at / 4)
        at, count = at + pause, count + 1
    assert count <= most


def test_what_is_left_of_a_heartbeat_timeout_suffices_for_a_heartbeat() -> None:
    assert [next_heartbeat(worked, 5.0) for worked in (0, 4, 8, 1000)] == [1, 1, 2, 2.5]
    assert [longest_silence(timeout) for timeout in (1, 4, 5, 8, 10, 20, 60)] == [0.5, 2, 2.5, 5.5, 7.5, 15, 45]
    assert next_heartbeat(0, 1.0) == 0.5
    assert [next_heartbeat(worked, news=True) for worked in (0, 10, 100)] == [1, 1, 5]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_told_last_is_there_for_the_next_attempt(fails: bool) -> None:
    sent: list[tuple[Any, ...]] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: sent.append(details)

    async def work() -> None:
        async with supervised_heartbeat() as heart:
            heart.record("first")
            heart.record("second")
            await asyncio.sleep(0)
            if fails:
                raise ValueError

    try:
        await environment.run(work)
    except ValueError:
        assert fails
    assert sent == ([("second",)] if fails else [])


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer, so that no time passes."""

    def __init__(self) -> None:
        self._now = 0.0
        selector = selectors.SelectSelector()
        select = selector.select

        def jump(timeout: float | None = None) -> Any:
            self._now += timeout or 0.0
            return select(0)

        selector.select = jump  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self._now


def begun_before(age: timedelta, timeout: float, **fields: Any) -> activity.Info:
    """The info of an attempt that the server gave out so long ago."""
    info = ActivityEnvironment.default_info()
    started = datetime.now(UTC) - age
    return dataclasses.replace(info, started_time=started, heartbeat_timeout=timedelta(seconds=timeout), **fields)


def heartbeats_in(
    seconds: float, info: activity.Info, monkeypatch: pytest.MonkeyPatch, *, look_takes: float = 0.0
) -> list[float]:
    """Return the times at which an attempt heartbeats that works for so long. `look_takes`: seconds until the server answers a look."""

    async def look() -> AttemptState:
        await asyncio.sleep(look_takes)
        return AttemptState(wanted=True)

    async def work() -> None:
        async with supervised_heartbeat():
            await asyncio.sleep(seconds)

    monkeypatch.setattr("perdure.activities.heartbeats.fetch_attempt_state", look)
    loop = JumpingLoop()
    at: list[float] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *_: at.append(loop.time())
    environment.info = info
    try:
        loop.run_until_complete(environment.run(work))
    finally:
        loop.close()
    return at


@pytest.mark.parametrize(
    ("timeout", "seconds", "sent"),
    [(10, 7.4, 0), (10, 8, 1), (10, 20, 2), (10, 60, 8), (20, 14, 0), (20, 20, 1), (5, 2.4, 0), (5, 20, 8), (1, 5, 10)],
)
def test_a_call_without_progress_heartbeats_as_seldom_as_its_timeout_allows(
    timeout: float, seconds: float, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = heartbeats_in(seconds, begun_before(timedelta(0), timeout), monkeypatch)
    assert all(later - earlier <= longest_silence(timeout) + 1e-6 for earlier, later in pairwise([0, *at, seconds]))
    assert len(at) <= sent


@pytest.mark.parametrize("look_takes", [0.5, 3.0, 30.0])
def test_a_slow_answer_of_the_server_to_a_look_delays_no_heartbeat(
    look_takes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = heartbeats_in(60, begun_before(timedelta(0), 5), monkeypatch, look_takes=look_takes)
    assert all(later - earlier <= longest_silence(5) + 1e-6 for earlier, later in pairwise([0, *at, 60]))


@pytest.mark.parametrize("lag", [0.9, 2.0, 20.0, -3600.0])
def test_the_time_until_an_attempt_is_taken_up_counts(lag: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy event loop takes an attempt up late, and the server has counted since it gave it out."""
    at = heartbeats_in(30, begun_before(timedelta(seconds=lag), 30), monkeypatch)
    counted = lag if lag >= 1 else 0
    assert at[0] == pytest.approx(longest_silence(30) - counted, abs=1)


async def polled(client: Client, queue: str) -> PollActivityTaskQueueResponse:
    """Take an attempt from its queue, as a worker whose event loop is busy does: no heartbeat follows."""
    request = PollActivityTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue))
    return await client.workflow_service.poll_activity_task_queue(request, timeout=timedelta(seconds=HANG))


async def test_an_attempt_that_timed_out_before_it_was_taken_up_does_not_run(dev_server: WorkflowEnvironment) -> None:
    """Else its work is done twice, and paid twice: the server has given it to the next attempt."""
    client, ran = dev_server.client, list[int]()
    queue = f"late-{uuid.uuid4().hex[:8]}"
    minute, second = timedelta(minutes=1), timedelta(seconds=1)
    started = await client.start_activity(
        "pay", id=queue, task_queue=queue, start_to_close_timeout=minute, heartbeat_timeout=second
    )
    late = await polled(client, queue)
    current = await polled(client, queue)  # given out once the first has timed out

    async def work() -> None:
        async with supervised_heartbeat():
            ran.append(activity.info().attempt)

    for task in (late, current):
        environment = ActivityEnvironment(client=client)
        fields = {"task_token": task.task_token, "attempt": task.attempt, "heartbeat_details": ["so far"]}
        environment.info = begun_before(5 * second, 1, **fields)
        # The worker cancels where the server rejects a heartbeat.
        environment.on_heartbeat = functools.partial(lambda here, *_: here.cancel(), environment)
        await asyncio.wait_for(asyncio.gather(environment.run(work), return_exceptions=True), HANG)
    assert ran == [2]
    described = await started.describe(include_heartbeat_details=True)
    assert await described.heartbeat_details() == ["so far"]


async def test_who_is_wanted_says_nothing_but_for_its_heartbeat_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks cost no Action: a heartbeat goes out where it is late for one, and where the look says that it is to be given up."""
    looks = iter([True, True, True, False])

    async def look() -> AttemptState:
        return AttemptState(next(looks))

    monkeypatch.setattr("perdure.activities.heartbeats.SHORTEST", 0.01)
    monkeypatch.setattr("perdure.activities.heartbeats.fetch_attempt_state", look)
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
        while (at := at + next_report(at, watched=watched)) < seconds:
            told += 1
        return told

    assert [count(seconds, watched=True) for seconds in (0.2, 1, 10, 100)] == [1, 4, 35, 129]
    assert [count(seconds, watched=False) for seconds in (0.2, 1, 10, 100, 600)] == [1, 1, 9, 19, 27]
