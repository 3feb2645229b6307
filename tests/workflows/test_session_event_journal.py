"""What a session notes, over the executions that it idles in and whatever becomes of its runs (R10.14)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.activities.transcripts import recall
from perdure.client.session import Session
from perdure.runs.events import JournalEntry
from perdure.sessions.wire import END, SessionDeletion
from perdure.values.limits import MAX_EVENT_DATA
from tests.timeouts import HANG
from tests.workflows.test_event_journal import page
from tests.workflows.test_session import ECHO, HOLD, Gate, desk, idles
from tests.workflows.test_session_archive import PADDING, with_memory

pytestmark = pytest.mark.asyncio(loop_scope="session")


def row(session: Session, event: JournalEntry) -> str:
    """`topic phase`, what it is about, and how that is."""
    data = event.data
    run = event.run_id.removeprefix(f"{session.id}/").rpartition("-")[2]
    what = data.get("messageId") or (f"run {run}" if run else "")
    how = data.get("done") or data.get("command") or data.get("status") or data.get("text") or ""
    return " ".join(filter(None, [event.topic, event.phase, what, how]))


async def test_a_session_notes_what_was_said_and_what_became_of_its_runs(dev_server: WorkflowEnvironment) -> None:
    gate = Gate()
    async with desk(dev_server, gate.answer, HOLD, [gate.tool]) as (session, it):
        first = await session.send("hold on", sender="ann", id="m1")
        await asyncio.wait_for(gate.asked.wait(), HANG)
        await session.send("and then?", sender="ann", id="m2", mode="followup")
        await session.send("never mind", sender="ann", id="m3", mode="followup")
        await session.withdraw("m3", sender="ann")
        await session.send("quick!", sender="ann", id="m4")
        gate.open.set()
        await session.reply(first, HANG)
        await session.reply("m2", HANG)
        await idles(session)
        found = await page(it.client, session.id)
        said = [row(session, event) for event in found.events]
        below = await page(it.client, first.run_id or "")
    assert said == [
        "lifecycle start",
        "message accepted m1 started",
        "lifecycle start run 1",
        "message taken m1",
        "message accepted m2 queued",
        "message accepted m3 queued",
        "message withdrawn m3",
        "message accepted m4 steered",
        "lifecycle end run 1 completed",
        "reply end run 1 re: quick!",
        "lifecycle start run 2",
        "message taken m2",
        "lifecycle end run 2 completed",
        "reply end run 2 re: ann: and then?",
    ]
    assert (found.first, found.count, found.ended) == (0, len(said), False)
    by = {row(session, event): event for event in found.events}
    assert by["message accepted m2 queued"].data["runId"].endswith("-2")
    assert by["message withdrawn m3"].data["reason"] == "withdrawn by 'ann'"
    taken = [event.data for event in below.events if (event.topic, event.phase) == ("message", "taken")]
    assert taken == [{"messageId": "m4", "request": 2}], "what is said to a run that works it notes itself"


async def test_commands_a_terminated_run_and_the_end(dev_server: WorkflowEnvironment) -> None:
    gate = Gate()
    holds = {"calls": [{"_tool": "hold"}], "output": None}
    async with desk(dev_server, lambda _: holds, HOLD, [gate.tool]) as (session, it):
        first = await session.send("hold on", sender="ann", id="m1", rights=["*"])
        await asyncio.wait_for(gate.asked.wait(), HANG)
        await it.client.get_workflow_handle(first.run_id or "").terminate("by hand")
        assert (await session.wait(first, HANG)).status == "error"
        gate.asked.clear()
        second = await session.send("hold on", sender="ann", id="m2", rights=["*"])
        await asyncio.wait_for(gate.asked.wait(), HANG)
        await session.send("/new", sender="ann", id="c1", rights=["*"])
        await session.send("/stop", sender="ann", id="c2", rights=["*"])
        assert (await session.wait(second, HANG)).status == "error"
        await idles(session)
        await session.send("/reset", sender="ann", id="c3", rights=["*"])
        await idles(session)
        deletion = SessionDeletion(
            sender="ann", rights=["*"]
        )  # `session.delete` removes the history from the server too
        await it.client.get_workflow_handle(session.id).execute_update(END, deletion)
        found = await page(it.client, session.id)
    said = [row(session, event) for event in found.events]
    assert said == [
        "lifecycle start",
        "message accepted m1 started",
        "lifecycle start run 1",
        "message taken m1",
        "lifecycle error run 1 terminated",
        "reply end run 1",
        "message accepted m2 started",
        "lifecycle start run 2",
        "message taken m2",
        "message accepted c1 queued",
        "message accepted c2 stopped",
        "message taken c2 /stop",
        "lifecycle error run 2 cancelled",
        "reply end run 2",
        "message taken c1 /new",
        "message accepted c3 reset",
        "message taken c3 /reset",
        "lifecycle end deleted",
    ]
    assert found.ended
    by = {row(session, event): event.data for event in found.events}
    assert by["reply end run 2"]["reason"] == "stopped by 'ann'"


async def test_over_forced_executions_no_number_is_missing(dev_server: WorkflowEnvironment) -> None:
    """A session that nothing is said to goes on as new a second later: each message here has an execution of its own."""
    seen: list[JournalEntry] = []
    at, executions = 0, set[str]()
    async with desk(dev_server) as (session, it):
        for number in range(4):
            receipt = await session.send(f"{number} {'x' * 3_000}", sender="ann", id=f"m{number}")
            await session.reply(receipt, HANG)
            await idles(session)
            executions.add((await session.handle.describe()).run_id)
            found = await page(it.client, session.id, at)
            assert (found.first, found.next) == (at, found.count)
            seen, at = seen + found.events, found.next
    said = [row(session, event).split()[:3] for event in seen]
    assert len(executions) > 2
    assert len(said) == 1 + 4 * 5
    assert [row[2] for row in said if row[:2] == ["message", "accepted"]] == ["m0", "m1", "m2", "m3"]
    assert all(len(str(event.data)) < 2 * MAX_EVENT_DATA for event in seen if event.topic != "reply")


async def test_a_compaction_says_what_it_saved(dev_server: WorkflowEnvironment) -> None:
    forgetful: dict[str, Any] = {**ECHO, "config": {"session": {"context_tokens": 1_000}}}
    async with desk(dev_server, with_memory, forgetful, [recall]) as (session, it):
        for number in range(1, 7):
            assert await session.reply(await session.send(f"A-100{number} {PADDING}", sender="ann"), HANG)
        await idles(session)
        found = await page(it.client, session.id)
    compactions = [event for event in found.events if event.topic == "compaction"]
    assert [event.phase for event in compactions[:2]] == ["start", "end"]
    start, end = (event.data for event in compactions[:2])
    assert start == {"reason": "tokens", "before": end["before"]}
    assert (end["kind"], end["after"] < end["before"] * 0.9) == ("summary", True)
