"""What a run and a session note, as whoever asks reads it: in order, numbered without a gap, and the same when it is read again (R10.14)."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime
from typing import Any

import pytest
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, ToolError, tool
from perdure.runs.events import EVENTS_QUERY, TOPICS, EventsPage, JournalEntry
from perdure.runs.wire import DECIDE
from perdure.testing.scripted_model import Turn
from tests.support import DONE, agent, harness, impatient
from tests.timeouts import HANG
from tests.workflows.test_approvals import look
from tests.workflows.test_delegates import WRITE, WRITER, parts, save, write
from tests.workflows.test_steering import HELLO, World, document, length, steer
from tests.workflows.test_temporal_limits import echo, steps

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool(retries=0)
async def check(host: str) -> str:
    """Check a host."""
    if host.startswith("bad"):
        raise ToolError("unreachable", f"no route to {host}")
    return f"{host} is up"


@tool(dangerous=True)
def remove(path: str) -> str:
    """Remove a file."""
    return f"removed {path}"


async def page(client: Client, id: str, first: int = 0, execution: str | None = None) -> EventsPage:
    handle = client.get_workflow_handle(id, run_id=execution)
    found: EventsPage = await handle.query(EVENTS_QUERY, args=[first, 1000], result_type=EventsPage)
    for event in found.events:
        said(event)
    return found


def said(event: JournalEntry) -> None:
    """It is one of the table's, and says what the table says."""
    phase = TOPICS[event.topic][event.phase]
    assert phase.noted, event
    needed = {key for key in phase.data if not key.endswith("?")}
    known = {key.rstrip("?") for key in phase.data} | {"cut"}
    assert needed <= event.data.keys() <= known, event


def short(event: JournalEntry) -> str:
    what = event.data.get("call") or event.data.get("number") or event.data.get("request") or ""
    more = event.data.get("status") or event.data.get("decision") or event.data.get("messageId") or ""
    return " ".join(filter(None, [event.topic, event.phase, str(what), str(more)]))


async def shorts(client: Client, id: str, first: int = 0) -> list[str]:
    return [short(event) for event in (await page(client, id, first)).events]


async def test_a_run_notes_its_requests_its_calls_and_its_end(dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "check", "host": "a", "_outputPath": "†state.a"},
        {"_tool": "check", "host": "bad {†state.a}"},
        {"_tool": "nothing"},
    ]
    script = [{"calls": calls, "output": "early"}, {"calls": [], "output": {"n": 1}}]
    async with harness(dev_server.client, [check], script) as it:
        view = await it.run(agent("check"))
        found = await page(it.client, view.run_id)
    rows = [short(event) for event in found.events]
    assert rows[:2] == ["lifecycle start", "request start 1"]
    assert rows[-4:] == ["request start 2", "request end 2", "assistant end 2", "lifecycle end completed"]
    between = rows[2:-4]
    assert [each for each in between if not each.startswith("tool")] == ["request end 1", "assistant end 1"]
    assert between[-1] == "assistant end 1"
    assert [each for each in between if " 1.2" in each] == ["tool end 1.2 invalid"]
    assert [each for each in between if " 1.0" in each or " 1.1" in each] == [
        "tool start 1.0",
        "tool end 1.0 done",
        "tool start 1.1",
        "tool end 1.1 failed",
    ]
    by = {short(event): event.data for event in found.events}
    assert (found.first, found.count, found.ended, found.kept_from) == (0, 13, True, 0)
    assert by["tool start 1.1"]["params"] == {"host": "bad a is up"}
    assert by["tool end 1.0 done"]["result"] == "a is up"
    assert by["tool end 1.1 failed"]["error"] == {"code": "unreachable", "message": "no route to bad a is up"}
    assert by["request end 1"]["says"] is True
    assert by["request end 1"]["usage"]["promptTokens"] > 0
    assert (by["assistant end 1"]["text"], by["assistant end 1"]["accepted"]) == ("early", False)
    assert "did not succeed" in by["assistant end 1"]["reason"]
    assert (by["assistant end 2"]["text"], by["assistant end 2"]["output"]) == ('{"n":1}', True)
    assert by["lifecycle end completed"] == {"status": "completed", "stopReason": "output", "output": {"n": 1}}
    assert [event.at for event in found.events] == sorted(event.at for event in found.events)


async def test_whatever_is_asked_the_run_goes_on(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [check], [DONE]) as it:
        handle = await it.start(agent("check"))
        await handle.result()
        assert (await page(it.client, handle.id, -5)).first == 0
        assert (await page(it.client, handle.id, 10**9)).events == []
        no_arguments: EventsPage = await handle.query(EVENTS_QUERY, result_type=EventsPage)
        assert no_arguments.count == 5
        wrongs: list[list[Any]] = [["x"], [None, 1], [0, 1, 2], [0.5], [{}]]
        for wrong in wrongs:
            with pytest.raises(WorkflowQueryFailedError, match="the query expects first: int"):
                await handle.query(EVENTS_QUERY, args=wrong)


async def test_who_was_asked_and_what_was_decided(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "remove", "path": "/a"}, {"_tool": "remove", "path": "/b"}]
    async with harness(dev_server.client, [remove], [{"calls": calls, "output": None}, DONE]) as it:
        handle = await it.start(agent("remove"))
        await it.until_waiting(handle.id, "1.0", "1.1")
        before = await page(it.client, handle.id)
        offered = [event for event in before.events if event.topic == "approval"]
        assert [short(event) for event in offered] == ["approval start 1.0", "approval start 1.1"]
        assert offered[1].data["params"] == {"path": "/b"}
        await handle.execute_update(DECIDE, {"call": "1.1", "decision": "approve", "by": "ann"})
        await handle.execute_update(DECIDE, {"call": "1.0", "decision": "reject", "by": "bob", "reason": "needed"})
        await handle.result()
        after = await page(it.client, handle.id, before.next)
    rest = [short(event) for event in after.events]
    assert [each for each in rest if " 1.1" in each] == [
        "approval end 1.1 approve",
        "tool start 1.1",
        "tool end 1.1 done",
    ]
    assert [each for each in rest if " 1.0" in each] == ["approval end 1.0 reject", "tool end 1.0 rejected"]
    by = {short(event): event.data for event in after.events}
    assert (by["approval end 1.0 reject"]["by"], by["approval end 1.0 reject"]["reason"]) == ("bob", "needed")


async def test_a_plan_that_waits_shows_its_calls_and_a_question_who_is_to_answer(
    dev_server: WorkflowEnvironment,
) -> None:
    calls = [{"_tool": "echo", "value": 1}, {"_tool": "ask_person", "question": "Which?"}]
    script = [{"calls": calls, "output": None}, DONE]
    async with harness(dev_server.client, [echo], script) as it:
        handle = await it.start(agent("echo", "ask_person", config={"approval": {"scope": "plan"}}))
        await it.until_waiting(handle.id, "1")
        await handle.execute_update(DECIDE, {"call": "1", "decision": "approve", "by": "ann"})
        await it.until_waiting(handle.id, "1.1")
        await handle.execute_update(DECIDE, {"call": "1.1", "decision": "answer", "answer": "both", "by": "bob"})
        await handle.result()
        found = await page(it.client, handle.id)
    by = {short(event): event.data for event in found.events}
    assert (by["approval start 1"]["calls"], by["approval start 1"]["tool"]) == (calls, "")
    assert by["approval end 1 approve"]["by"] == "ann"
    question = by["approval start 1.1"]
    assert (question["question"], question["reason"], question["params"]) == (True, "Which?", {"question": "Which?"})
    assert by["tool end 1.1 done"]["result"] == "both"
    assert "tool start 1.1" not in by


async def test_calls_of_a_loop_are_calls_and_a_delegate_says_where_to_go_on(
    dev_server: WorkflowEnvironment, tmp_path: Any
) -> None:
    loop = {"_tool": "check", "host": "†item", "_each": ["a", "bad"], "_outputPath": "†state.seen"}
    delegated = write()["calls"][0]
    script = parts(
        PARENT=[{"calls": [loop, delegated], "output": None}, DONE], WRITER=[{"calls": [], "output": {"text": "meow"}}]
    )
    registry = agent("check", WRITE)
    async with harness(dev_server.client, [check, look], script, agents=save(tmp_path, WRITER)) as it:
        handle = await it.start(registry)
        await handle.result()
        found = await page(it.client, handle.id)
        below = await page(it.client, f"{handle.id}/1.1")
    rows = [short(event) for event in found.events]
    assert rows.index("tool start 1.0") < rows.index("tool start 1.0[0]") < rows.index("tool end 1.0[0] done")
    assert rows.index("tool end 1.0[1] failed") < rows.index("tool end 1.0 done")
    assert len([each for each in rows if each.startswith("tool ")]) == 8
    by = {short(event): event.data for event in found.events}
    assert by["tool start 1.1"]["runId"] == f"{handle.id}/1.1"
    assert by["tool end 1.1 done"]["result"] == {"text": "meow"}
    assert [short(event) for event in below.events][-1] == "lifecycle end completed"
    assert below.ended


async def test_each_run_of_a_delegates_loop_is_named(dev_server: WorkflowEnvironment, tmp_path: Any) -> None:
    each = write("†item", _each=["cats", "dogs"])
    script = parts(PARENT=[each, DONE], WRITER=[{"calls": [], "output": {"text": "meow"}}])
    async with harness(dev_server.client, [look], script, agents=save(tmp_path, WRITER)) as it:
        handle = await it.start(agent(WRITE))
        await handle.result()
        starts = [
            event.data for event in (await page(it.client, handle.id)).events if short(event)[:10] == "tool start"
        ]
        assert [each["call"] for each in starts] == ["1.0", "1.0[0]", "1.0[1]"]
        assert "runId" not in starts[0]
        for start in starts[1:]:
            below = await page(it.client, start["runId"])
            assert (short(below.events[-1]), below.ended) == ("lifecycle end completed", True)


async def test_a_message_ends_an_answer_and_is_taken_by_the_next_request(dev_server: WorkflowEnvironment) -> None:
    world, gate = World(), asyncio.Event()
    plan = {"calls": [{"_tool": "slow", "text": "report"}, {"_tool": "send", "to": "bob", "text": "hello to him"}]}
    at = length(plan, "solution") * 6 // 10
    async with harness(dev_server.client, world.tools, [Turn(plan, gate=gate, gate_after=at), DONE]) as it:
        handle = await it.start(document())
        await asyncio.wait_for(it.model.wait_for_characters(1, at), HANG)
        await world.until("slow report")
        await steer(handle)
        await asyncio.wait_for(it.model.wait_for_request(2), HANG)
        world.go.set()
        await handle.result()
        found = await page(it.client, handle.id)
    rows = [short(event) for event in found.events]
    order = ["request start 1", "tool start 1.0", "message accepted m1", "request end 1", "message taken 2 m1"]
    assert [each for each in rows if each in order] == order
    by = {short(event): event.data for event in found.events}
    assert by["request end 1"]["problem"] == "a new message has ended it"
    assert by["message accepted m1"]["text"] == HELLO["text"]


async def test_how_runs_end_without_an_output(dev_server: WorkflowEnvironment) -> None:
    down = Turn(status=401)
    async with harness(dev_server.client, [check], [down]) as it:
        failed = await it.start(agent("check"))
        with pytest.raises(Exception, match="Workflow execution failed"):
            await failed.result()
        rows = await shorts(it.client, failed.id)
        assert rows == ["lifecycle start", "request start 1", "request end 1", "lifecycle error failed"]
        refused = await it.start(agent("check", "unheard_of"))
        with pytest.raises(Exception, match="Workflow execution failed"):
            await refused.result()
        found = await page(it.client, refused.id)
        assert [short(event) for event in found.events] == ["lifecycle error failed"]
        assert "unheard_of" in found.events[0].data["error"]
        assert found.ended
        given = await it.client.start_workflow("Agent", "no input", id=f"{refused.id}-2", task_queue=it.task_queue)
        with pytest.raises(Exception, match="Workflow execution failed"):
            await given.result()
        found = await page(it.client, given.id)
        assert found.ended
        assert "the input of the workflow is not valid" in found.events[0].data["error"]


async def test_a_replay_notes_the_same_whoever_has_read_before(dev_server: WorkflowEnvironment) -> None:
    rows = [{"number": number, "text": "x" * 50} for number in range(100)]
    calls = [{"_tool": "echo", "value": rows, "_outputPath": "†state.a"}, {"_tool": "echo", "value": "†state.a"}]
    queue = f"replay-{uuid.uuid4().hex[:8]}"
    async with harness(dev_server.client, [echo], [{"calls": calls, "output": None}, DONE], task_queue=queue) as it:
        handle = await it.start(agent("echo"))
        await handle.result()
        at_once = await page(it.client, handle.id, 4)
        before = await page(it.client, handle.id)
    async with harness(dev_server.client, [echo], [DONE], task_queue=queue) as it:
        after = await page(it.client, handle.id)
    assert after == before
    assert before.events[4:] == at_once.events
    (start,) = [event.data for event in after.events if short(event) == "tool start 1.1"]
    assert start["cut"] == ["params"]
    assert start["params"]["value"][0] == rows[0]


async def test_nobody_has_decided_in_time(time_skipping: WorkflowEnvironment) -> None:
    asked = agent("remove", config={"approval": {"timeout": 3600}})
    async with harness(time_skipping.client, [remove], [{"calls": [{"_tool": "remove", "path": "/a"}]}, DONE]) as it:
        handle = await it.start(asked)
        await handle.result()
        found = await page(it.client, handle.id)
    by = {short(event): event for event in found.events}
    start, end = by["approval start 1.0"], by["approval end 1.0 timeout"]
    assert (datetime.fromisoformat(end.at) - datetime.fromisoformat(start.at)).total_seconds() >= 3600
    assert end.data["reason"] == "nobody decided within 3600 s"
    assert by["tool end 1.0 rejected"].at == end.at


async def test_a_call_whose_worker_is_shut_down_says_that_it_is_tried_again(dev_server: WorkflowEnvironment) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @tool(safe=True)
    async def slow() -> str:
        """Takes its time."""
        began.set()
        await go.wait()
        return "done"

    queue = f"again-{uuid.uuid4().hex[:8]}"
    script = [{"calls": [{"_tool": "slow"}], "output": None}]
    async with harness(dev_server.client, [slow], script, task_queue=queue, grace=0.1) as it:
        handle = await it.start(agent("slow"))
        await asyncio.wait_for(began.wait(), HANG)
        await it.until_answered(handle.id)
    go.set()
    async with harness(dev_server.client, [slow], [DONE], task_queue=queue) as it:
        await asyncio.wait_for(handle.result(), HANG)
        found = await page(it.client, handle.id)
    updates = [event.data for event in found.events if short(event) == "tool update 1.0"]
    assert [each["attempt"] for each in updates] == [2]
    assert "its worker was shut down" in updates[0]["reason"]


async def test_a_cancelled_run_says_what_became_of_its_calls(dev_server: WorkflowEnvironment) -> None:
    world = World()
    async with harness(
        dev_server.client, world.tools, [{"calls": [{"_tool": "slow", "text": "a"}], "output": None}]
    ) as it:
        handle = await it.start(document())
        await world.until("slow a")
        await handle.cancel()
        with pytest.raises(Exception, match="Workflow execution"):
            await handle.result()
        rows = await shorts(it.client, handle.id)
    assert rows[-2:] == ["tool end 1.0 unknown", "lifecycle error cancelled"]


impatient_server = impatient(events=150)


async def test_the_numbers_have_no_gap_over_continue_as_new_and_who_was_away_asks_the_execution_before(
    impatient_server: WorkflowEnvironment,
) -> None:
    async with harness(impatient_server.client, [echo], steps(15)) as it:
        handle = await it.start(agent("echo", config={"max_requests": 40}))
        await handle.result()
        last = await page(it.client, handle.id)
        first = await page(it.client, handle.id, execution=handle.first_execution_run_id)
    assert last.ended
    assert last.count == 2 + 16 * 2 + 150 * 2 + 1
    assert last.kept_from > 0
    assert last.earlier
    assert last.next == last.count
    assert [first.first, first.ended, first.earlier] == [0, False, False]
    assert first.count < last.count
    overlap = min(first.count, last.count) - last.kept_from
    if overlap > 0:
        assert first.events[-overlap:] == last.events[:overlap]


async def test_r19_4_text_goes_on_behind_loops_delegates_and_secrets_after_continue_as_new(
    impatient_server: WorkflowEnvironment, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret-key")
    gates = {name: asyncio.Event() for name in ("key", "cats", "item", "end")}

    @tool(safe=True)
    async def wait_for(name: str, value: Any) -> Any:
        """Wait, and return the value."""
        await gates[name].wait()
        return "sk-very-secret-key" if name == "key" else value

    def wait(name: str, value: Any, **more: Any) -> dict[str, Any]:
        return {"_tool": "wait_for", "name": name, "value": value, "_outputPath": f"†state.{name}", **more}

    calls = [wait("key", 0), write("cats")["calls"][0], wait("item", "†item", _each=[1, 2]), wait("end", {"a": None})]
    output = "Key {†state.key}, {†state.text.text} {†state.item}{†state.end}."
    echoes = [[{"_tool": "echo", "value": f"{n}.{i}"} for i in range(9)] for n in range(8)]
    parent = [*({"calls": each, "output": None} for each in echoes), {"calls": calls, "output": output}]
    below = {"calls": [wait("cats", "meow")], "output": {"text": "{†state.cats}"}}
    writer: dict[str, Any] = {**WRITER, "context": [*WRITER["context"][:2], {"type": "tool", "tool": "wait_for"}]}  # type: ignore[index]
    known = iter(["[masked], ", "meow ", "[1,2]", '{"a":null}.'])
    text, whole, waiting = "", "Key ", iter(gates.values())
    script = parts(PARENT=parent, WRITER=[below])
    async with harness(impatient_server.client, [wait_for, echo], script, agents=save(tmp_path, writer)) as it:
        handle = await it.start(agent(WRITE, "wait_for", "echo"))
        async for event in Perdure(it.client).events(handle.id, topics=["assistant"]):
            if event.phase == "delta":
                text += event.data["text"]
                assert whole.startswith(text)
            if text == whole and (gate := next(waiting, None)) is not None:
                gate.set()
                whole += next(known)
        described = await it.client.get_workflow_handle(handle.id).describe()
    assert text == 'Key [masked], meow [1,2]{"a":null}.'
    assert described.run_id != handle.first_execution_run_id
