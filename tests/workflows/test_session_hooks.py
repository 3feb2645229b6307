"""Hooks of sessions on a real server: what comes in, commands, compaction, beginning and end; and sessions without any (R10.17)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, hook, refuse
from perdure.activities.transcripts import recall
from perdure.client.session import Session
from perdure.errors import MessageRefusedError
from perdure.hooks import (
    AfterCompaction,
    BeforeAgentStart,
    BeforeCompaction,
    Command,
    HookEvent,
    MessageReceived,
    Refused,
    SessionEnd,
    SessionStart,
    ToolResultPersist,
)
from perdure.hooks.events import HOOKS
from perdure.testing.scripted_model import Turn
from tests.support import Harness, check_replays
from tests.timeouts import HANG
from tests.workflows.test_session import ALL, ECHO, HOLD, Gate, answers, desk, idles, users
from tests.workflows.test_session_replies import Channel, chat, until_settled

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def events(it: Harness, session_id: str) -> Counter[str]:
    """Of all executions of a session together."""
    found: Counter[str] = Counter()
    run_id: str | None = None
    described = await it.client.get_workflow_handle(session_id).describe()
    first = described.raw_description.workflow_execution_info.first_run_id or described.run_id
    run_id = first
    while run_id:
        history = await it.client.get_workflow_handle(session_id, run_id=run_id).fetch_history()
        found.update(EventType.Name(event.event_type) for event in history.events)
        last = history.events[-1]
        run_id = (
            last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
            if last.HasField("workflow_execution_continued_as_new_event_attributes")
            else None
        )
    return found


async def test_a_session_without_hooks_records_and_asks_nothing_more(dev_server: WorkflowEnvironment) -> None:
    async with desk(dev_server) as (session, it):
        await answers(session, await session.send("hello", sender="ann", rights=ALL))
        await idles(session)
        counted = await events(it, session.id)
    assert counted["EVENT_TYPE_MARKER_RECORDED"] == 1  # that its runs are not limited
    assert counted["EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES"] == 1  # the marker's name
    assert not [name for name in counted if "ACTIVITY" in name]


async def test_a_message_is_changed_or_refused_before_it_is_accepted(dev_server: WorkflowEnvironment) -> None:
    seen: list[Any] = []

    @hook("session_start")
    def begins(event: SessionStart) -> None:
        seen.append(("start", event.session, event.tenant, event.agent))

    @hook("message_received")
    async def filters(event: MessageReceived) -> MessageReceived | Refused | None:
        seen.append((event.message_id, event.sender, event.text))
        if "spam" in event.text:
            return refuse("no advertising here")
        return event.changed(text="/stop") if event.text == "please stop" else None

    @hook("command")
    def commands(event: Command) -> None:
        seen.append((event.command, event.sender))

    @hook("before_agent_start")
    def runs(event: BeforeAgentStart) -> None:
        seen.append((event.session, event.tenant, event.sender))

    @hook("session_end")
    def ends(_: SessionEnd) -> None:
        seen.append("end")

    tools = [begins, filters, commands, runs, ends]
    async with desk(dev_server, tools=tools) as (session, _):
        first = await session.send("hello", sender="ann", rights=ALL, id="1")
        assert await answers(session, first) == ["re: ann: hello"]
        assert await session.send("hello", sender="ann", rights=ALL, id="1") == first  # and nobody asks again
        with pytest.raises(MessageRefusedError, match="no advertising here"):
            await session.send("spam spam", sender="bob", rights=ALL, id="2")
        changed = await session.send("please stop", sender="ann", rights=ALL, id="3")
        assert await answers(session, changed) == ["re: ann: /stop"]  # text, which is a command of nobody's
        assert await session.send("please stop", sender="ann", rights=ALL, id="3") == changed
        await session.send("/new", sender="ann", rights=ALL, id="4")
        await idles(session)
        view = await session.show()
        fork = await session.fork("1")
        await idles(fork)
        await fork.delete(sender="ann", rights=ALL)
        await session.delete(sender="ann", rights=ALL)
    assert [entry["text"] for entry in view.entries if entry["type"] == "message"] == ["hello", "/stop"]
    key = view.session
    assert seen == [
        ("start", key, "acme", "echo"),
        ("1", "ann", "hello"),
        (key, "acme", "ann"),
        ("2", "bob", "spam spam"),
        ("3", "ann", "please stop"),
        (key, "acme", "ann"),
        ("/new", "ann"),
        ("start", fork.key, "acme", "echo"),
        "end",
        "end",
    ]


async def test_r10_17_each_event_has_its_run_its_session_and_its_sender(dev_server: WorkflowEnvironment) -> None:
    """Events of a session had neither the active run nor a sender, but for those of a reply."""
    seen: list[HookEvent] = []
    held_back: set[str] = set()
    names = {row.event: name for name, row in HOOKS.items() if row.where != "gateway"}

    def look(event: HookEvent) -> None:
        seen.append(event)

    of_any: Any = hook
    for name in names.values():
        of_any(name)(look)

    @hook("before_compaction")
    def later(event: BeforeCompaction) -> Refused | None:
        if event.reason == "asked" or event.sender == "dora":
            return None
        held_back.add(event.key)
        return refuse("not yet")

    def script(request: Any) -> Any:
        if "You keep the memory" in request.text:
            return Turn("They spoke of many things.", dialect="tools")
        if "at length" in users(request)[-1]:
            return {"calls": [], "output": "and so on, and so on. " * 2_050}
        again = "hold again" in users(request)[-1]
        return {"calls": [{"_tool": "hold"}], "output": None} if again else gate.answer(request)

    channel, gate = Channel(), Gate()
    document = {**HOLD, "config": {"session": {"context_tokens": 20_000}}}
    async with chat(dev_server, channel, script, document, [look, later, gate.tool, recall]) as (session, _):
        ann = await session.send("speak at length", sender="ann", route="chat:C1")
        await answers(session, ann)
        await until_settled(session, 1)
        bob = await session.send("hold", sender="bob")
        await gate.asked.wait()
        assert (await session.compact(sender="carl", rights=ALL)).startswith("compacted from")
        dora = await session.send("speak at length", sender="dora", mode="followup")
        gate.open.set()
        await answers(session, bob, dora)
        await idles(session)
        gate.open.clear()
        gate.asked.clear()
        fred = await session.send("hold again", sender="fred")
        await gate.asked.wait()
        await session.send("/stop", sender="greg", rights=ALL)
        await session.wait(fred, HANG)
        await session.delete(sender="hans", rights=ALL)
        key = session.key

    found: dict[str, list[tuple[str, str]]] = {name: [] for name in names.values()}
    for event in (each for each in seen if each.key not in held_back):
        found[names[type(event)]].append((event.run_id, event.sender))
    own = [(each.run_id, sender) for each, sender in ((ann, "ann"), (bob, "bob"), (dora, "dora"), (fred, "fred"))]
    compactions = [(bob.run_id, "carl"), own[2]]
    assert found == {
        "session_start": [("", "ann")],
        "message_received": [("", "ann"), ("", "bob"), (bob.run_id, "dora"), ("", "fred")],
        "agent_bootstrap": own,
        "before_agent_start": own,
        "before_tool_call": [own[1], own[3]],
        "after_tool_call": [own[1]],
        "tool_result_persist": [own[1]],
        "agent_end": own,
        "message_sending": own[:1],
        "message_sent": own[:1],
        "before_compaction": compactions,
        "after_compaction": compactions,
        "command": [(fred.run_id, "greg")],
        "session_end": [("", "hans")],
    }
    first = next(event for event in seen if event.key in held_back)
    assert (first.run_id, first.sender) == own[0]
    assert {event.session for event in seen} == {key}
    assert len({event.key for event in seen}) == len(seen)


async def test_a_message_that_no_hook_could_look_at_is_not_accepted_and_order_is_kept(
    dev_server: WorkflowEnvironment,
) -> None:
    goes_on = asyncio.Event()

    @hook("message_received", timeout=3)
    async def slow(event: MessageReceived) -> None:
        if event.text == "hang":
            await goes_on.wait()
        if event.text == "raise":
            raise ValueError(event.text)

    async with desk(dev_server, tools=[slow], rules={"mode": "followup"}) as (session, _):
        await answers(session, await session.send("first", sender="ann", rights=ALL))
        sent = [asyncio.create_task(session.send(text, sender="ann", rights=ALL)) for text in ("hang", "raise")]
        sent += [asyncio.create_task(session.send(f"next {n}", sender="ann", rights=ALL)) for n in range(3)]
        found = await asyncio.gather(*sent, return_exceptions=True)
        goes_on.set()
        assert [type(each) for each in found[:2]] == [MessageRefusedError, MessageRefusedError]
        assert "did not answer within 3 s" in str(found[0])
        assert "failed: ValueError" in str(found[1])
        receipts = [each for each in found[2:] if not isinstance(each, BaseException)]
        assert len(receipts) == 3
        await answers(session, *receipts)
        said = [entry["text"] for entry in (await session.show()).entries if entry["type"] == "message"]
    assert said[0] == "first"
    assert sorted(said[1:]) == ["next 0", "next 1", "next 2"]


async def test_a_message_is_accepted_though_another_has_changed_the_agent_while_it_waited_for_a_hook(
    dev_server: WorkflowEnvironment,
) -> None:
    """Its failure was recorded under its update's id, and each attempt with the agent file got that failure."""
    looks, goes_on, gate = asyncio.Event(), asyncio.Event(), Gate()

    @hook("message_received")
    async def slow(event: MessageReceived) -> None:
        if event.text == "new":
            looks.set()
            await goes_on.wait()

    async with desk(dev_server, gate.answer, HOLD, [slow, gate.tool], rules={"mode": "followup"}) as (session, it):
        # Its run goes on: the next execution of the session does not know the updates of this one.
        receipts = [await session.send("hold", sender="ann", rights=ALL)]
        newer = Agent.of({**HOLD, "context": [*HOLD["context"], {"type": "system", "text": "Be short."}]})
        other = Perdure(it.client, task_queue=it.task_queue).session(session.key, agent=newer, tenant="acme")
        sent = [asyncio.create_task(other.send("new", sender="bob", rights=ALL))]
        await asyncio.wait_for(looks.wait(), HANG)
        sent.append(asyncio.create_task(session.send("old", sender="ann", rights=ALL)))
        await until_accepted(session, 2)
        goes_on.set()
        receipts += await asyncio.gather(*sent)
        gate.open.set()
        assert (await answers(session, *receipts))[1:] == ["re: bob: new", "re: ann: old"]


async def test_r10_7_a_message_that_a_hook_looks_at_can_be_withdrawn(dev_server: WorkflowEnvironment) -> None:
    """After a reset both came again in one task: the withdrawal was refused, and the message answered."""
    looks, goes_on, gate = asyncio.Event(), asyncio.Event(), Gate()

    @hook("message_received")
    async def slow(event: MessageReceived) -> None:
        if event.text == "withdrawn":
            looks.set()
            await goes_on.wait()

    async with desk(dev_server, gate.answer, HOLD, [slow, gate.tool], rules={"mode": "followup"}) as (session, _):
        first = await session.send("hold", sender="ann", rights=ALL)
        await session.send("waiting", sender="ann", id="m-1")
        sent = asyncio.create_task(session.send("withdrawn", sender="ann", id="m-2"))
        await asyncio.wait_for(looks.wait(), HANG)
        last = asyncio.create_task(session.send("last", sender="ann"))
        await session.withdraw("m-1", sender="ann")  # the hook that looks at the other message does not delay it
        with pytest.raises(MessageRefusedError, match="no message 'm-9' can be withdrawn"):
            await session.withdraw("m-9", sender="ann")
        withdrawal = asyncio.create_task(session.withdraw("m-2", sender="bob", rights=["withdraw"]))
        await until_accepted(session, 3)
        goes_on.set()
        assert (await sent).message_id == "m-2"
        await withdrawal
        gate.open.set()
        assert (await answers(session, first, await last))[1] == "re: ann: last"
        entries = (await session.show()).entries
    replies = [entry["text"] for entry in entries if entry["type"] == "reply"]
    assert (len(replies), replies[-1]) == (2, "re: ann: last")


async def until_accepted(session: Session, count: int) -> None:
    """Wait until `count` updates of this execution are accepted and unanswered."""
    async with asyncio.timeout(HANG):
        while True:
            found = Counter(event.event_type for event in (await session.handle.fetch_history()).events)
            accepted = found[EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED]
            if accepted - found[EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED] >= count:
                return
            await asyncio.sleep(0.02)


async def test_a_session_that_is_deleted_has_ended(dev_server: WorkflowEnvironment) -> None:
    seen: list[str] = []

    @hook("session_end")
    async def ends(_: SessionEnd) -> None:
        await asyncio.sleep(0.5)
        seen.append("end")

    async with desk(dev_server, tools=[ends]) as (session, _):
        await answers(session, await session.send("hello", sender="ann", rights=ALL))
        await session.delete(sender="ann", rights=ALL)
        assert seen == ["end"]


@pytest.mark.parametrize("active", [False, True], ids=["idle", "active"])
async def test_a_cancelled_session_ends_its_run_and_its_hooks_and_stays_readable(
    dev_server: WorkflowEnvironment, *, active: bool
) -> None:
    seen: list[str] = []
    gate = Gate()

    @hook("session_end")
    def ends(_: SessionEnd) -> None:
        seen.append("end")

    async with desk(dev_server, gate.answer, HOLD, [ends, gate.tool]) as (session, _):
        receipt = await session.send("hold", sender="ann")
        await gate.asked.wait()
        if active:
            receipt = await session.send("next", sender="ann", mode="followup")
        else:
            gate.open.set()
            await session.wait(receipt, HANG)
            await idles(session)
        await session.handle.cancel()
        with pytest.raises(WorkflowFailureError) as failed:
            await session.handle.result()
        assert isinstance(failed.value.cause, CancelledError)
        waited = await session.wait(receipt, HANG)
        runs = [entry["status"] for entry in await session.read_entries() if entry["type"] == "run"]
        await check_replays(await session.handle.fetch_history())
    assert seen == ["end"]
    assert runs == ["cancelled" if active else "completed"]
    cancelled = ("error", "the session was cancelled by a Temporal command")
    assert (waited.status, waited.error) == (cancelled if active else ("ok", None))


async def test_a_cancelled_session_records_a_run_that_had_not_begun(dev_server: WorkflowEnvironment) -> None:
    gate = Gate()
    async with desk(dev_server, gate.answer, HOLD, [gate.tool], session_runs=1) as (session, it):
        await session.send("hold", sender="ann")
        await gate.asked.wait()
        other = Perdure(it.client, task_queue=it.task_queue).session(f"{session.key}-2", agent=Agent.of(HOLD))
        await other.send("second", sender="bob")  # the worker has room for one run
        await other.handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await other.handle.result()
        message, run, reply = await other.read_entries()
        await check_replays(await other.handle.fetch_history())
        gate.open.set()
    why = "the session's workflow was cancelled"
    assert (message["text"], message["why"], message["runId"]) == ("second", why, run["runId"])
    assert (run["status"], run["error"], reply["why"]) == ("cancelled", why, why)


async def test_each_execution_knows_its_hooks_and_a_replay_asks_none(dev_server: WorkflowEnvironment) -> None:
    seen: list[str] = []

    @hook("message_received")
    def look(event: MessageReceived) -> None:
        seen.append(event.text)

    async with desk(dev_server, tools=[look], cached_workflows=0) as (session, it):
        await answers(session, await session.send("one", sender="ann", rights=ALL))
        length = await idles(session)  # R10.13 holds with hooks, too
        assert length <= 10
        await answers(session, await session.send("two", sender="ann", rights=ALL))
        history = await session.handle.fetch_history()
        queue = it.task_queue
    assert seen == ["one", "two"]
    await check_replays(history)
    async with desk(dev_server, task_queue=queue, cached_workflows=0) as (_, other):  # a deploy without the hook
        with pytest.raises(MessageRefusedError, match="is missing: no worker had it in time"):
            await session.send("three", sender="ann", rights=ALL)
        await idles(session)  # and the next execution begins with what there is
        assert await answers(session, await session.send("four", sender="ann", rights=ALL)) == ["re: ann: four"]
        assert other.task_queue == queue


async def test_a_compaction_is_refused_or_told_of(dev_server: WorkflowEnvironment) -> None:
    seen: list[Any] = []

    @hook("before_compaction")
    def may(event: BeforeCompaction) -> BeforeCompaction | Refused:
        seen.append((event.reason, event.tokens > 0 and "say much 0" in event.text))
        return refuse("it is under legal hold") if len(seen) == 1 else event.changed(addition="The case is A-17.")

    @hook("after_compaction")
    def told(event: AfterCompaction) -> None:
        seen.append((event.kind, event.after < event.before, event.text))

    def talkative(request: Any) -> Any:
        if "You keep the memory" in request.text:
            return Turn("They spoke of many things.", dialect="tools")
        return {"calls": [], "output": "and so on, and so on. " * 6_000}

    async with desk(dev_server, talkative, tools=[may, told]) as (session, _):
        for number in range(3):
            await answers(session, await session.send(f"say much {number}", sender="ann", rights=ALL))
        assert await session.compact(sender="ann", rights=ALL) == "not compacted: it is under legal hold"
        assert (await session.compact(sender="ann", rights=ALL)).startswith("compacted from about")
        (compaction,) = [entry for entry in (await session.show()).entries if entry["type"] == "compaction"]
    assert compaction["text"].endswith("\n\nThe case is A-17.")
    assert seen[2][2] == compaction["text"]
    assert seen[:2] == [("asked", True), ("asked", True)]
    assert seen[2][1]


async def test_what_a_transcript_keeps_of_a_result_is_what_the_hook_says(dev_server: WorkflowEnvironment) -> None:
    from perdure import tool

    @tool
    def look_up(name: str) -> str:
        """Look somebody up."""
        return f"{name} has the number 4711"

    @hook("tool_result_persist", tools=["look_up"])
    def forgets(event: ToolResultPersist) -> ToolResultPersist:
        return event.changed(result=str(event.result).replace("4711", "(a number)"))

    told: list[str] = []

    def script(request: Any) -> dict[str, Any]:
        told.append(request.text)
        if len(told) == 1:
            return {"calls": [{"_tool": "look_up", "name": "ann"}], "output": None}
        return {"calls": [], "output": "done"}

    document = {**ECHO, "context": [*ECHO["context"], {"type": "tool", "tool": "look_up"}]}
    async with desk(dev_server, script, document, tools=[look_up, forgets]) as (session, _):
        await answers(session, await session.send("who is it?", sender="ann", rights=ALL))
        await answers(session, await session.send("and now?", sender="ann", rights=ALL))
        kept = str((await session.show()).entries)
        assert "has the number (a number)" in str(await session.recall("c2_1_0"))
    assert "4711" in told[1]  # the running run has it
    assert "4711" not in told[2]
    assert "(a number)" in told[2]
    assert "4711" not in kept
