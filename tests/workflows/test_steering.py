"""A new message for a run that works is a revision of its plan (R10.5 to R10.7)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, RunEndedError, tool
from perdure.activities.queries import GONE, fetch
from perdure.approvals.requests import STEER
from perdure.errors import DecisionRefusedError
from perdure.models.dialects.registry import DIALECTS
from perdure.pages.adapter import pages, sign_in
from perdure.runs.claim_check import CONTEXT
from perdure.runs.wire import RunView
from perdure.testing.scripted_model import ChatRequest, Turn, write_answer
from perdure.values.limits import MAX_COMMANDS
from tests.gateway.support import bearer, gateway, write_agents, write_tokens
from tests.support import DONE, Harness, agent, harness, impatient, perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO = {"id": "m1", "text": "Not to Bob: to Carol!", "sender": "alice"}


class World:
    """Tools with effects, which are noted in their order; `slow` ends when it is let go."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.go = asyncio.Event()
        self._happened = asyncio.Condition()

        @tool(timeout=600)
        async def slow(text: str) -> str:
            """Takes its time."""
            await self._note(f"slow {text}")
            await self.go.wait()
            return text

        @tool
        async def send(to: str, text: Any = "") -> str:
            """Send a text."""
            await self._note(f"send {to} {text}".strip())
            return f"sent to {to}"

        @tool(safe=True)
        async def look(at: Any) -> Any:
            """Look at something."""
            await self._note(f"look {at}")
            return at

        self.tools: list[Callable[..., Any]] = [slow, send, look]

    async def _note(self, effect: str) -> None:
        async with self._happened:
            self.effects.append(effect)
            self._happened.notify_all()

    async def until(self, *effects: str) -> None:
        async with self._happened, asyncio.timeout(HANG):
            await self._happened.wait_for(lambda: set(effects) <= set(self.effects))


def document(dialect: str = "solution", **config: Any) -> dict[str, Any]:
    return agent("slow", "send", "look", config={"dialect": dialect, "approval": {"ask": "never"}, **config})


def length(solution: dict[str, Any], dialect: str) -> int:
    answer = write_answer(solution, dialect)
    return len(answer.text) + sum(len(name) + len(arguments) for name, arguments in answer.tool_calls)


async def steer(handle: Any, **message: str) -> None:
    await handle.signal(STEER, {**HELLO, **message})


async def until(it: Harness, run_id: str, holds: Callable[[RunView], bool]) -> RunView:
    """A run can only be looked at: nothing tells when to look."""
    async with asyncio.timeout(HANG):
        while not holds(view := await it.view(run_id)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return view


def statuses(view: RunView) -> dict[str, str]:
    return {call.id: call.status for call in view.calls}


PLAN: dict[str, Any] = {
    "calls": [
        {"_tool": "slow", "text": "report", "_outputPath": "†state.report"},
        {"_tool": "send", "to": "bob", "text": "†state.report", "_outputPath": "†state.sent"},
        {"_tool": "send", "to": "dave", "text": "†state.report"},
        {"_tool": "look", "at": "†state.report", "_outputPath": "†state.seen"},
        {
            "_tool": "look",
            "at": "the whole of a rather long text that makes the answer longer still",
            "_outputPath": "†state.x",
        },
    ]
}
REVISION: dict[str, Any] = {
    "calls": [
        {"_tool": "keep", "calls": ["1.2"]},
        {"_tool": "send", "to": "carol", "text": "†state.report", "_outputPath": "†state.sent"},
    ]
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("part", [10, 50, 90])
async def test_r10_5_a_message_while_the_model_writes_revises_the_plan(
    dialect: str, part: int, dev_server: WorkflowEnvironment
) -> None:
    world, gate = World(), asyncio.Event()
    at = length(PLAN, dialect) * part // 100
    first = Turn(PLAN, gate=gate, gate_after=at)

    keep, send = REVISION["calls"]
    second = {"calls": [keep, send] if part == 90 else [send] if part == 50 else [PLAN["calls"][0], send]}
    async with harness(dev_server.client, world.tools, [first, second, DONE]) as it:
        it.model.dialect = dialect
        handle = await it.start(document(dialect))
        await asyncio.wait_for(it.model.wait_for_characters(1, at), HANG)
        await until(it, handle.id, lambda view: len(view.calls) >= (0, 1, 4)[part // 40])
        if part > 10:
            await world.until("slow report")
        await steer(handle)
        await asyncio.wait_for(it.model.wait_for_request(2), HANG)
        world.go.set()
        await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
        revision = it.model.requests[1]
        await asyncio.wait_for(it.model.wait_for_disconnect(1), HANG)
        it.model.check()
    assert (view.status, view.requests, view.output) == ("completed", 3, {"ok": True})
    assert view.state["sent"] == "sent to carol"
    assert [(each.id, each.request) for each in view.messages] == [("m1", 2)]
    assert world.effects.count("slow report") == 1
    assert "send bob report" not in world.effects
    assert world.effects.count("send carol report") == 1
    # The new message is what the model reads last.
    assert revision.messages[-1] == {"role": "user", "content": HELLO["text"]}
    if part == 90:
        assert world.effects.count("send dave report") == 1
        assert statuses(view) | {"1.1": "skipped", "1.2": "done", "2.0": "done", "2.1": "done"} == statuses(view)
        assert next(call.reason for call in view.calls if call.id == "1.1") == "dropped by Request 2"


async def test_r10_5_while_calls_run_nothing_starts_but_what_is_safe(dev_server: WorkflowEnvironment) -> None:
    world, gate = World(), asyncio.Event()
    turns = [PLAN, Turn(REVISION, gate=gate), DONE]
    async with harness(dev_server.client, world.tools, turns) as it:
        handle = await it.start(document())
        await it.until_answered(handle.id)
        await until(it, handle.id, lambda view: statuses(view)["1.4"] == "done")
        await world.until("slow report")
        run = Perdure(it.client).get_run(handle.id)
        message = await run.steer("Not to Bob: to Carol!", by="alice")
        await asyncio.wait_for(it.model.wait_for_request(2), HANG)
        held = await run.view()
        with pytest.raises(ApplicationError) as overtaken:  # as an activity of the first Request does that comes late
            await fetch(CONTEXT, "1", handle)
        world.go.set()  # what reads the report becomes ready: only the safe one may start
        await world.until("look report")
        asked = await it.view(handle.id)
        before = list(world.effects)
        gate.set()
        await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
        shown = it.model.requests[1].text
    assert (overtaken.value.type, overtaken.value.category) == (GONE, ApplicationErrorCategory.BENIGN)
    assert statuses(held) == {"1.0": "running", "1.1": "held", "1.2": "held", "1.3": "held", "1.4": "done"}
    assert statuses(asked)["1.1"] == statuses(asked)["1.2"] == "held"
    assert not [effect for effect in before if effect.startswith("send")]
    assert {"send dave report", "send carol report"} <= set(world.effects)
    assert "send bob report" not in world.effects
    assert view.status == "completed"
    assert view.result().as_json()["messages"] == [{"id": message, "sender": "alice", "request": 2}]
    assert '"_status":"held"' in shown
    assert '"_status":"running"' in shown


async def test_r10_5_an_output_that_a_message_came_before_is_not_the_runs(dev_server: WorkflowEnvironment) -> None:
    world = World()
    drop = {"_tool": "keep", "drop": ["1.1", "1.2", "1.3"]}
    turns = [{**PLAN, "output": {"too": "early"}}, {"calls": [drop], "output": {"for": "carol"}}]
    async with harness(dev_server.client, world.tools, turns) as it:
        handle = await it.start(document())
        await it.until_answered(handle.id)
        await world.until("slow report")
        await steer(handle)
        await asyncio.wait_for(it.model.wait_for_request(2), HANG)
        # What reads the report may start while it is held, being safe; and what has started cannot be dropped.
        await until(it, handle.id, lambda view: statuses(view).get("2.0") == "done")
        world.go.set()
        await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
    assert view.output == {"for": "carol"}
    assert statuses(view)["1.1"] == "skipped"
    assert [effect for effect in world.effects if effect.startswith("send")] == []
    assert view.state["report"] == "report"


async def test_r10_5_a_hundred_messages_in_a_second_are_each_held_by_one_request(
    dev_server: WorkflowEnvironment,
) -> None:
    world, gate = World(), asyncio.Event()

    def answer(request: ChatRequest) -> Any:
        done = "message 99" in request.text
        return DONE if done else Turn(PLAN, gate=gate, gate_after=20)

    async with harness(dev_server.client, world.tools, answer) as it:
        handle = await it.start(document())
        await asyncio.wait_for(it.model.wait_for_request(1), HANG)
        await asyncio.gather(*(steer(handle, id=f"m{n}", text=f"message {n}") for n in range(99)))
        await steer(handle, id="m99", text="message 99")
        await steer(handle, id="m7", text="message 7")  # the same once more
        await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
        last = it.model.requests[-1].text
    assert view.status == "completed"
    assert sorted(each.id for each in view.messages) == sorted(f"m{n}" for n in range(100))
    assert all(each.request for each in view.messages)
    assert view.requests <= 5
    assert all(f"message {n}\n" in f"{last}\n" for n in range(100))


async def test_r10_5_a_loop_whose_next_call_nobody_keeps_ends_and_so_does_the_run(
    dev_server: WorkflowEnvironment,
) -> None:
    world = World()
    loop = {"_tool": "slow", "text": "†item", "_each": ["a", "b", "c"], "_parallel": 1, "_outputPath": "†state.all"}
    silent = {"calls": [], "output": "never mind"}
    async with harness(dev_server.client, world.tools, [{"calls": [loop]}, silent, silent]) as it:
        handle = await it.start(document())
        await it.until_answered(handle.id)
        await world.until("slow a")
        await steer(handle)
        await asyncio.wait_for(it.model.wait_for_request(3), HANG)  # it was asked about the held loop once more
        await until(it, handle.id, lambda view: view.requests == 3)
        world.go.set()
        await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
    assert view.output == "never mind"
    assert world.effects == ["slow a"]
    assert statuses(view) == {"1.0": "skipped", "1.0[0]": "done", "1.0[1]": "skipped"}


async def test_r10_7_a_message_is_taken_back_until_a_request_holds_it(dev_server: WorkflowEnvironment) -> None:
    world = World()
    turns = [PLAN, {"calls": [{"_tool": "keep", "calls": ["1.1", "1.2", "1.3", "1.9", "1.0"]}]}, DONE]
    async with harness(dev_server.client, world.tools, turns) as it:
        handle = await it.start(document())
        await it.until_answered(handle.id)
        await world.until("slow report")
        await steer(handle)
        await asyncio.wait_for(it.model.wait_for_request(2), HANG)
        env = {"TEMPORAL_ADDRESS": it.client.service_client.config.target_host}
        refused = await perdure("withdraw", handle.id, "m1", env=env)
        unknown = await perdure("withdraw", handle.id, "m2", env=env)
        await handle.signal(STEER, "what is this")
        world.go.set()
        await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
    assert (refused.code, unknown.code) == (1, 1)
    assert "Request 2 has the message m1" in refused.err
    assert "no message 'm2'" in unknown.err
    assert "the message is not valid" in view.refusals[0]["problem"]
    assert {"send bob report", "send dave report"} <= set(world.effects)
    assert [error["error"]["code"] for error in view.errors] == ["not_held"]
    assert "there is no call" in view.errors[0]["error"]["message"]


async def test_r10_6_a_cancelled_run_tells_what_nobody_knows(dev_server: WorkflowEnvironment) -> None:
    world = World()
    turns = [{"calls": [{"_tool": "send", "to": "eve"}, *PLAN["calls"]]}]
    async with harness(dev_server.client, world.tools, turns) as it:
        handle = await it.start(document())
        await world.until("slow report", "send eve")
        await it.until_answered(handle.id)
        await until(it, handle.id, lambda view: statuses(view).get("1.0") == "done")
        await handle.cancel()
        view = await until(it, handle.id, lambda view: view.status == "cancelled")
        with pytest.raises(RunEndedError, match="the message was rejected"):
            await Perdure(it.client).get_run(handle.id).steer("too late")
    assert statuses(view) | {"1.0": "done", "1.1": "unknown", "1.2": "skipped", "1.3": "skipped"} == statuses(view)
    unknown = next(call for call in view.calls if call.id == "1.1")
    assert unknown.reason == "the run was cancelled while it ran: whether it took effect is not known"


async def test_r10_5_an_offer_stays_with_its_call_and_counts_once_it_is_kept(dev_server: WorkflowEnvironment) -> None:
    world, gate = World(), asyncio.Event()
    calls = [{"_tool": "send", "to": to} for to in ("bob", "dave", "eve")]
    kept = Turn({"calls": [{"_tool": "keep", "calls": ["1.0", "1.2"], "drop": ["1.1"]}]}, gate=gate)
    async with harness(dev_server.client, world.tools, [{"calls": calls}, kept, DONE]) as it:
        handle = await it.start(document(approval={"ask": "always"}))
        await it.until_waiting(handle.id, "1.0", "1.1", "1.2")
        run = Perdure(it.client).get_run(handle.id)
        await run.steer("not to Dave")
        await asyncio.wait_for(it.model.wait_for_request(2), HANG)
        await run.approve("1.0", by="alice")
        await run.approve("1.1", by="alice")
        held = await run.view()
        effects = list(world.effects)
        gate.set()
        await world.until("send bob")
        await run.approve("1.2", by="alice")
        await asyncio.wait_for(handle.result(), HANG)
        view = await run.view()
    assert (effects, statuses(held)) == ([], {"1.0": "held", "1.1": "held", "1.2": "held"})
    assert sorted(world.effects) == ["send bob", "send eve"]
    assert statuses(view) == {"1.0": "done", "1.1": "skipped", "1.2": "done", "2.0": "done"}


async def test_r10_5_that_an_approval_was_dropped_is_told_to_whoever_was_asked(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    world = World()
    drops = {"_tool": "keep", "drop": ["1.0"]}
    slow = {"calls": [drops, {"_tool": "slow", "text": "x"}], "output": {"ok": True}}
    turns = [{"calls": [{"_tool": "send", "to": "bob"}]}, {"calls": [], "output": {"sunny": True}}, slow]
    async with harness(dev_server.client, world.tools, turns) as it:
        handle = await it.start(document(approval={"ask": "always", "tools": {"slow": "never"}}))
        await it.until_waiting(handle.id, "1.0")
        run = Perdure(it.client).get_run(handle.id)
        await run.steer("How is the weather?")
        await it.until_waiting(handle.id)
        with pytest.raises(DecisionRefusedError, match=r"1\.0 no longer waits: dropped by Request 3"):
            await run.approve("1.0")
        (somebody,) = write_tokens(tmp_path / "tokens.json", ("", "ann", ["*"]))
        given: dict[str, Any] = {"agents": write_agents(tmp_path / "agents")}
        given["gateway_tokens"] = tmp_path / "tokens.json"
        async with gateway(it.client, [sign_in, pages], **given) as at:
            paths = (f"/inbox/?run={handle.id}&call=1.0", f"/runs/{handle.id}")
            inbox, page = [(await at.http.get(path, headers=bearer(somebody))).text for path in paths]
        world.go.set()
        result = await asyncio.wait_for(handle.result(), HANG)
        events = [each.data async for each in run.events() if (each.topic, each.phase) == ("approval", "end")]
        env = {"TEMPORAL_ADDRESS": it.client.service_client.config.target_host}
        shown = await perdure("show", handle.id, env=env)
        asked = it.model.requests[2].text
    assert (result.output, result.requests, world.effects) == ({"ok": True}, 3, ["slow x"])
    assert "did not say what is to become of 1.0" in asked
    reason = "dropped by Request 3"
    assert "This request no longer waits: it has a decision, its call was dropped, or its run has ended." in inbox
    assert reason in page
    assert events == [{"call": "1.0", "tool": "send", "decision": "dropped", "by": "model", "reason": reason}]
    assert f"nobody decided: {reason}" in " ".join(shown.out.split())


async def test_r10_5_an_approval_that_the_model_never_names_waits_for_its_person(
    dev_server: WorkflowEnvironment,
) -> None:
    world = World()
    turns = [{"calls": [{"_tool": "send", "to": "bob"}]}, {"output": {"sunny": True}}, {"output": {"ok": True}}]
    async with harness(dev_server.client, world.tools, turns) as it:
        handle = await it.start(document(approval={"ask": "always"}))
        await it.until_waiting(handle.id, "1.0")
        run = Perdure(it.client).get_run(handle.id)
        await run.steer("How is the weather?")
        held = await until(it, handle.id, lambda view: len(view.log) == 3 and view.log[-1].status == "done")
        await it.until_waiting(handle.id, "1.0")
        await run.approve("1.0", by="alice")
        result = await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
    assert (held.status, statuses(held)) == ("running", {"1.0": "held"})
    assert (result.output, result.requests, world.effects) == ({"ok": True}, 3, ["send bob"])
    assert statuses(view) == {"1.0": "done"}


async def test_r10_5_the_last_request_is_not_ended_and_says_that_it_held_no_message(
    dev_server: WorkflowEnvironment,
) -> None:
    gate = asyncio.Event()
    turns = [{"calls": [{"_tool": "send", "to": "bob"}]}, Turn({"output": {"ok": True}}, gate=gate, gate_after=5)]
    async with harness(dev_server.client, World().tools, turns) as it:
        handle = await it.start(document(max_requests=2))
        await asyncio.wait_for(it.model.wait_for_characters(2, 5), HANG)
        await steer(handle)
        await until(it, handle.id, lambda view: bool(view.messages))
        gate.set()
        result = await asyncio.wait_for(handle.result(), HANG)
    assert (result.status, result.stop_reason, result.requests) == ("completed", "max_requests", 2)
    assert [each.as_json() for each in result.messages] == [{"id": "m1", "sender": "alice", "request": None}]


impatient_server = impatient(40)


async def test_r10_5_messages_outlive_an_execution(impatient_server: WorkflowEnvironment) -> None:
    world, gates = World(), [asyncio.Event() for _ in range(12)]

    def answer(asked: ChatRequest) -> Any:
        """Each answer is ended by a message, every third Request is left to end by itself."""
        n = asked.number
        call = {"_tool": "send", "to": f"n{n}"}
        if n >= len(gates):
            return DONE
        return Turn({"calls": [call, call]}, gate=gates[n], gate_after=10) if n % 3 else {"calls": [call]}

    async with harness(impatient_server.client, world.tools, answer) as it:
        handle = await it.start(document(max_requests=30))
        sent = []
        for n in range(1, len(gates)):
            await asyncio.wait_for(it.model.wait_for_request(n), HANG)
            if n % 3:
                sent.append(f"m{n}")
                await it.client.get_workflow_handle(handle.id).signal(STEER, {"id": f"m{n}", "text": f"message {n}"})
        result = await asyncio.wait_for(handle.result(), HANG)
        described = await it.client.get_workflow_handle(handle.id).describe()
        shown = it.model.requests[-1].text
    assert described.run_id != handle.first_execution_run_id
    assert [(each.id, bool(each.request)) for each in result.messages] == [(id, True) for id in sent]
    assert all(f"message {id[1:]}" in shown for id in sent)


async def test_r18_1_held_calls_that_are_kept_together_begin_in_several_tasks(dev_server: WorkflowEnvironment) -> None:
    """Each of them had room in another task before, in which the message held it."""
    world, gate, number = World(), asyncio.Event(), 150

    def answer(request: ChatRequest) -> Any:
        if request.number == 1:
            return {"calls": [{"_tool": "slow", "text": f"{n}"} for n in range(number)]}
        if request.number == 2:
            return Turn({"calls": [{"_tool": "look", "at": "all"}]}, gate=gate, gate_after=0)
        held = [f"1.{n}" for n in range(number) if f"slow {n}" not in world.effects]
        return {"calls": [{"_tool": "keep", "calls": held}]} if held else DONE

    def count_held(view: RunView) -> int:
        return [*statuses(view).values()].count("held")

    async def history() -> Sequence[HistoryEvent]:
        return (await it.client.get_workflow_handle(handle.id).fetch_history()).events

    async with harness(dev_server.client, world.tools, answer) as it:
        handle = await it.start(document())
        await until(it, handle.id, lambda view: len(view.calls) == number)
        await steer(handle)
        await asyncio.wait_for(it.model.wait_for_request(2), HANG)
        async with asyncio.timeout(HANG):  # after each timer, fifty calls have room in a task
            while sum(each.HasField("timer_fired_event_attributes") for each in await history()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await until(it, handle.id, lambda view: count_held(view) == number - len(world.effects))
        assert len(world.effects) <= number - MAX_COMMANDS
        gate.set()
        world.go.set()
        await asyncio.wait_for(handle.result(), HANG)
        scheduled = Counter(
            each.activity_task_scheduled_event_attributes.workflow_task_completed_event_id
            for each in await history()
            if each.HasField("activity_task_scheduled_event_attributes")
        )
    assert len(world.effects) == number + 1
    assert max(scheduled.values()) <= MAX_COMMANDS + 1


@pytest.mark.parametrize("limit", ["token_budget", pytest.param("deadline", marks=pytest.mark.soak)])
async def test_r10_5_where_the_next_request_is_the_last_what_is_held_is_not_run(
    limit: str, dev_server: WorkflowEnvironment
) -> None:
    world = World()
    config: dict[str, Any] = {"token_budget": 10} if limit == "token_budget" else {"deadline": 5}
    revision = [Turn(REVISION, gate=asyncio.Event())] if limit == "deadline" else []
    async with harness(dev_server.client, world.tools, [PLAN, *revision, {"output": {"ok": True}}]) as it:
        handle = await it.start(document(**config))
        await world.until("slow report")
        await it.until_answered(handle.id)
        await steer(handle)
        if limit == "token_budget":
            await until(it, handle.id, lambda view: statuses(view).get("1.1") == "skipped")
            world.go.set()
        result = await asyncio.wait_for(handle.result(), HANG)
        last = it.model.requests[-1].text
    assert (result.status, result.stop_reason) == ("completed", limit)
    assert [each.request for each in result.messages] == [2]
    assert HELLO["text"] in last
    assert [effect for effect in world.effects if effect.startswith("send")] == []
    assert {call.id: call.status for call in result.calls}["1.0"] == ("done" if limit == "token_budget" else "failed")
