"""A long session stays as quick as a short one, and idle ones cost nothing (item 5 of sessions).

400 messages in one session, and 200 idle ones, times `SOAK`.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure
from tests.soak import times
from tests.support import harness
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO, desk, echo, idles

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.soak]


async def test_r10_13_a_long_session_is_as_quick_as_a_short_one(dev_server: WorkflowEnvironment) -> None:
    count = times(400)
    async with desk(dev_server) as (session, _):
        seconds: list[float] = []
        events: list[int] = []
        for number in range(count):
            began = time.perf_counter()
            await session.reply(await session.send(f"message {number}", sender="ann"), HANG)
            seconds.append(time.perf_counter() - began)
            if number % 20 == 0:
                events.append((await session.handle.describe()).history_length)
        await idles(session)
        began = time.perf_counter()
        receipt = await session.send("awake?", sender="ann")
        woke = time.perf_counter() - began
        await session.reply(receipt, HANG)
    part = max(1, count // 4)
    first, last = median(seconds[:part]), median(seconds[-part:])
    print(
        f"{count} messages: {first * 1000:.0f} ms each at first, {last * 1000:.0f} ms at last; woke in {woke * 1000:.0f} ms"
    )
    assert max(events) < 5_000  # where Temporal suggests to go on as new, and some
    assert last < 3 * first + 0.05


async def test_r10_13_idle_sessions_hold_nothing(dev_server: WorkflowEnvironment) -> None:
    count = times(200)
    async with harness(dev_server.client, [], echo) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        sessions = [perdure.session(f"{it.task_queue}-{n}", agent=Agent.of(ECHO)) for n in range(count)]
        for begin in range(0, count, 20):
            some = sessions[begin : begin + 20]
            receipts = await asyncio.gather(*(session.send("hello", sender="ann") for session in some))
            await asyncio.gather(*(session.reply(each, HANG) for session, each in zip(some, receipts, strict=True)))
        found = await asyncio.gather(*map(idles, sessions))
    print(f"{count} idle sessions: {max(found)} events at most")
    assert max(found) <= 10
    for session in sessions:  # with no worker at all nothing of them waits to be done
        described = (await session.handle.describe()).raw_description
        assert not described.pending_activities
        assert not described.pending_children
        assert not described.HasField("pending_workflow_task")
