"""Replies go where people read them, once, and what became of each is kept (R10.16)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.testservice.v1 import LockTimeSkippingRequest, UnlockTimeSkippingRequest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, Reply, hook, refuse, tool
from perdure.activities.registry import Registry
from perdure.client.session import Session
from perdure.errors import MessageRefusedError, NoWorkerError
from perdure.gateway.api.adapter import api
from perdure.hooks.decorator import hook_functions
from perdure.hooks.events import MessageSending, MessageSent
from perdure.runs.routes import RouteFunction
from perdure.sessions.wire import END, SessionDeletion
from perdure.testing.scripted_model import ChatRequest, Turn
from tests.gateway.support import bearer, gateway, write_agents, write_tokens
from tests.support import Harness, harness, impatient, perdure, registry
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO, desk, idles, users

pytestmark = pytest.mark.asyncio(loop_scope="session")
impatient_server = impatient(60)


class Channel:
    """Where replies arrive: under each key once. `answers`: what becomes of the next deliveries, one each, then all are taken."""

    def __init__(self, *answers: Any) -> None:
        self.taken: dict[str, Reply] = {}
        self.tried: list[str] = []
        self._answers = list(answers)
        self._changed = asyncio.Condition()
        self.hold: asyncio.Event | None = None

    async def take(self, reply: Reply) -> Any:
        self.tried.append(reply.key)
        async with self._changed:
            self._changed.notify_all()
        if self.hold is not None:
            await self.hold.wait()
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            self.taken.setdefault(reply.key, reply)
        async with self._changed:
            self._changed.notify_all()
        return answer

    @property
    def texts(self) -> list[str]:
        return [reply.text for reply in self.taken.values()]

    async def until(self, count: int) -> None:
        """Once so many have arrived."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: len(self.taken) >= count), HANG)

    async def until_tried(self, count: int) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: len(self.tried) >= count), HANG)


def having(channel: Channel, *tools: Any) -> Registry:
    found = registry(tools)
    found.routes.add(RouteFunction("chat", channel.take, True))
    return found


@asynccontextmanager
async def chat(
    server: WorkflowEnvironment,
    channel: Channel,
    script: Any = None,
    document: Any = None,
    tools: Any = (),
    **more: Any,
) -> AsyncIterator[tuple[Session, Harness]]:
    options = {"registry": having(channel, *tools), **more}
    if script is not None:
        options["script"] = script
    async with desk(server, document=document, **options) as found:
        yield found


async def entries(session: Session, *types: str) -> list[dict[str, Any]]:
    return [each for each in (await session.show()).entries if each["type"] in types]


async def until_settled(session: Session, count: int) -> list[dict[str, Any]]:
    """What became of so many deliveries; a session can only be looked at."""
    async with asyncio.timeout(HANG):
        while True:
            with contextlib.suppress(NoWorkerError):  # on a busy machine an answer may take longer than a query waits
                if len(found := await entries(session, "delivery")) >= count:
                    return found
            await asyncio.sleep(0.02)


async def test_a_reply_is_delivered_under_its_key_and_kept_as_delivered(dev_server: WorkflowEnvironment) -> None:
    channel = Channel()
    async with chat(dev_server, channel) as (session, _):
        quiet = await session.send("nobody", sender="ann")
        assert await session.reply(quiet, HANG) == "re: ann: nobody"
        receipt = await session.send("hello", sender="ann", id="m1", route="chat:C1")
        assert await session.reply(receipt, HANG) == "re: ann: hello"
        (kept,) = await until_settled(session, 1)
        assert await idles(session) <= 10
        types = [each["type"] for each in (await session.show()).entries]
    (reply,) = channel.taken.values()
    assert reply == Reply(
        key=f"{receipt.run_id}/1",
        text="re: ann: hello",
        kind="answer",
        route="chat:C1",
        address="C1",
        session=session.key,
        tenant="acme",
        agent="echo",
        run_id=str(receipt.run_id),
        message_ids=["m1"],
        sender="ann",
        attempt=1,
    )
    assert types == ["message", "run", "reply"] * 2 + ["delivery"]
    said = {"type": "delivery", "runId": receipt.run_id, "number": 1, "kind": "answer", "route": "chat:C1"}
    assert kept == {**said, "n": 7, "at": kept["at"], "status": "delivered"}


async def test_what_is_refused_and_what_nobody_takes_is_kept_so(dev_server: WorkflowEnvironment) -> None:
    channel = Channel(refuse("C1 is gone"))
    async with chat(dev_server, channel) as (session, _):
        await session.send("hello", sender="ann", route="chat:C1")
        await session.send("hello", sender="ann", route="mail:ann@x", mode="followup")
        found = await until_settled(session, 2)
    said = [(each["status"], each["why"]) for each in found]
    assert said == [("refused", "C1 is gone"), ("refused", "this worker has no route 'mail'")]
    assert channel.taken == {}


async def test_what_fails_is_tried_again_under_the_same_key(dev_server: WorkflowEnvironment) -> None:
    channel = Channel(ConnectionError("down"))
    async with chat(dev_server, channel) as (session, _):
        receipt = await session.send("hello", sender="ann", route="chat")
        (kept,) = await until_settled(session, 1)
    assert channel.tried == [f"{receipt.run_id}/1"] * 2
    assert (kept["status"], channel.taken[channel.tried[0]].attempt) == ("delivered", 2)


async def test_a_worker_that_is_shut_down_costs_no_reply(dev_server: WorkflowEnvironment) -> None:
    first, second = Channel(), Channel()
    first.hold = asyncio.Event()
    async with chat(dev_server, first, grace=0.1) as (session, it):
        receipt = await session.send("hello", sender="ann", route="chat")
        await first.until_tried(1)
    async with harness(it.client, [], [], task_queue=it.task_queue, registry=having(second)):
        (kept,) = await until_settled(session, 1)
    assert (kept["status"], first.taken) == ("delivered", {})
    (reply,) = second.taken.values()
    assert (reply.key, reply.attempt) == (f"{receipt.run_id}/1", 2)
    # R24.2: attempts are bounded, the time in which no worker is there is not.
    scheduled = [
        event.activity_task_scheduled_event_attributes
        async for event in session.handle.fetch_history_events()
        if event.activity_task_scheduled_event_attributes.activity_type.name == "perdure.reply"
    ]
    assert len(scheduled) == 2
    for each in scheduled:
        bounds = (each.schedule_to_close_timeout, each.schedule_to_start_timeout)
        assert [bound.ToSeconds() for bound in bounds] == [0, 0]
        assert each.retry_policy.maximum_attempts == 6


async def test_r24_2_a_reply_waits_for_a_worker_for_as_long_as_there_is_none(
    time_skipping: WorkflowEnvironment,
) -> None:
    first, second = Channel(), Channel()
    first.hold = asyncio.Event()
    test_service = time_skipping.client.service_client.test_service
    # This server would keep a task for the worker that remembers the session.
    async with chat(time_skipping, first, grace=0.1, cached_workflows=0) as (session, it):
        receipt = await session.send("hello", sender="ann", route="chat")
        await first.until_tried(1)
    began = await time_skipping.get_current_time()
    passing, locks = asyncio.create_task(time_skipping.sleep(600)), 0
    while not (await asyncio.wait({passing}, timeout=0.5))[0]:  # what nobody takes locks the server's time
        await test_service.unlock_time_skipping(UnlockTimeSkippingRequest())
        locks += 1
    for _ in range(locks):
        await test_service.lock_time_skipping(LockTimeSkippingRequest())
    assert (await time_skipping.get_current_time() - began).total_seconds() >= 600
    async with harness(it.client, [], [], task_queue=it.task_queue, registry=having(second)):
        (kept,) = await until_settled(session, 1)
    assert (kept["status"], list(second.taken)) == ("delivered", [f"{receipt.run_id}/1"])


async def test_of_what_fails_for_good_nobody_knows_whether_it_has_arrived(time_skipping: WorkflowEnvironment) -> None:
    channel = Channel(*[ConnectionError("down")] * 10)
    async with chat(time_skipping, channel) as (session, _):
        first = await session.send("hello", sender="ann", route="chat")
        for tried in range(1, 7):
            await channel.until_tried(tried)
            await time_skipping.sleep(130)
        (kept,) = await until_settled(session, 1)
        answered = await session.send("more", sender="ann")
        assert await session.reply(answered, HANG) == "re: ann: more"
        assert (kept["status"], kept["why"], len(channel.tried)) == ("unknown", "down", 6)
        # R24.2: it is delivered once more, under its key.
        for key, sender, rights, why in (
            (channel.tried[0], "eve", [], "the right 'redeliver' is missing"),
            (f"{session.id}/x-1/1", "ann", ["redeliver"], "has no delivery"),
        ):
            with pytest.raises(MessageRefusedError, match=why):
                await session.redeliver(key, sender=sender, rights=rights)
        await session.redeliver(channel.tried[0], sender="ann", rights=["redeliver"])
        for tried in range(7, 12):
            await channel.until_tried(tried)
            await time_skipping.sleep(130)
        assert [each["status"] for each in await until_settled(session, 2)] == ["unknown", "delivered"]
        (reply,) = channel.taken.values()
        assert (reply.key, reply.text, reply.attempt) == (channel.tried[0], "re: ann: hello", 11)
        assert (reply.message_ids, reply.sender) == ([first.message_id], "ann")
        with pytest.raises(MessageRefusedError, match="is delivered; only an unknown delivery can be repeated"):
            await session.redeliver(channel.tried[0], sender="ann")


async def test_r24_2_a_command_and_a_request_deliver_an_unknown_reply_again(
    time_skipping: WorkflowEnvironment, tmp_path: Path
) -> None:
    channel = Channel(*[ConnectionError("down")] * 12)
    who = [("acme", "ann", ["redeliver"]), ("acme", "eve", ["read", "send"]), ("rival", "max", ["*"])]
    tokens = [bearer(token) for token in write_tokens(tmp_path / "tokens.json", *who)]
    given: dict[str, Any] = {"agents": write_agents(tmp_path / "agents")}
    given["gateway_tokens"] = tmp_path / "tokens.json"
    async with chat(time_skipping, channel) as (session, it), gateway(it.client, [api], **given) as at:
        receipts = [await session.send(text, sender="ann", route="chat", mode="followup") for text in ("one", "two")]
        for tried in range(1, 13):
            await channel.until_tried(tried)
            await time_skipping.sleep(130)
        assert [each["status"] for each in await until_settled(session, 2)] == ["unknown"] * 2
        first, second = (f"{receipt.run_id}/1" for receipt in receipts)
        env = {"TEMPORAL_ADDRESS": it.client.service_client.config.target_host}
        command = ("session", "redeliver", session.key, first, "--tenant", "acme")
        done = await perdure(*command, "--json", env=env)
        await channel.until(1)
        await until_settled(session, 3)
        again = await perdure(*command, env=env)

        path = f"/v1/sessions/{session.key}/deliveries"
        refused = [await at.http.post(path, json={"delivery": second}, headers=each) for each in tokens[1:]]
        sent = await at.http.post(path, json={"delivery": second}, headers=tokens[0])
        await channel.until(2)
        await until_settled(session, 4)
        repeated = await at.http.post(path, json={"delivery": second}, headers=tokens[0])
    assert (done.code, json.loads(done.out), done.err) == (0, {"delivery": first}, "")
    why = "is delivered; only an unknown delivery can be repeated"
    assert (again.code, again.out) == (1, "")
    assert f"the delivery {first!r} {why}" in again.err
    assert [each.status_code for each in refused] == [403, 404]
    assert (sent.status_code, sent.json()) == (202, {"delivery": second})
    assert repeated.status_code == 409
    assert why in repeated.text
    assert [(key, reply.text) for key, reply in channel.taken.items()] == [
        (first, "re: ann: one"),
        (second, "re: ann: two"),
    ]


async def test_the_lane_goes_on_while_a_reply_is_on_its_way_and_their_order_stays(
    dev_server: WorkflowEnvironment,
) -> None:
    channel = Channel()
    channel.hold = asyncio.Event()
    async with chat(dev_server, channel) as (session, _):
        await session.send("one", sender="ann", route="chat")
        await channel.until_tried(1)
        second = await session.send("two", sender="ann", route="chat", mode="followup")
        assert await session.reply(second, HANG) == "re: ann: two"
        assert len(channel.tried) == 1
        channel.hold.set()
        found = await until_settled(session, 2)
    assert channel.texts == ["re: ann: one", "re: ann: two"]
    assert [each["status"] for each in found] == ["delivered"] * 2


async def test_no_reply_is_lost_where_the_session_goes_on_as_new(impatient_server: WorkflowEnvironment) -> None:
    channel = Channel()
    channel.hold = asyncio.Event()
    async with chat(impatient_server, channel) as (session, _):
        first = (await session.handle.describe()).run_id if await session.send("0", sender="ann", route="chat") else ""
        for n in range(1, 8):
            await session.send(str(n), sender="ann", route="chat", mode="followup")
        await channel.until_tried(1)
        channel.hold.set()
        await until_settled(session, 8)
        assert await idles(session) <= 10
        assert (await session.handle.describe()).run_id != first
    assert channel.texts == [f"re: ann: {n}" for n in range(8)]
    assert len(channel.tried) == 8


async def test_r10_10_a_delivery_that_hangs_holds_neither_the_next_run_nor_a_deletion(
    impatient_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.workflows.session_driver._LONGEST_PAUSE", timedelta(seconds=0.1))
    channel = Channel()
    channel.hold = asyncio.Event()
    async with chat(impatient_server, channel) as (session, _):
        for n in range(8):
            await session.send(str(n), sender="ann", route="chat", mode="followup")
        await channel.until_tried(1)
        execution = await session.handle.describe()
        async with asyncio.timeout(HANG):
            while execution.history_length <= 60:  # now the delivery alone holds back a new execution
                execution = await session.handle.describe()
        assert await session.ask("more", sender="ann", mode="followup") == "re: ann: more"
        await session.handle.execute_update(END, SessionDeletion(sender="ann", rights=["*"]))
        await asyncio.wait_for(session.handle.result(), HANG)
        channel.hold.set()
        # The deleted session has not continued as new.
        assert (await session.handle.describe()).run_id == execution.run_id


@tool
async def price(item: str) -> int:
    """What an item costs."""
    return len(item)


@tool(retries=0)
async def book(seat: int) -> str:
    """Book a seat."""
    raise ValueError(f"seat {seat} is taken")


@tool(message=True)
async def send(text: str, to: str = "") -> str:
    """Send a text."""
    del to
    return f"sent {len(text)}"


VERBOSE = {**ECHO, "config": {"session": {"verbose": ["reasoning", "tools"]}}}
TOOLS: dict[str, Any] = {
    **ECHO,
    "context": [*ECHO["context"], *({"type": "tool", "tool": name} for name in ("price", "book", "send"))],
}


def calls_first(*calls: dict[str, Any], output: Any, reasoning: str = "") -> Any:
    """A model that makes these calls, and then answers."""

    def answer(request: ChatRequest) -> Turn:
        first = request.number == 1
        solution = {"calls": list(calls), "output": None} if first and calls else {"calls": [], "output": output}
        return Turn(solution, reasoning="" if first and calls else reasoning)

    return answer


async def said(
    server: WorkflowEnvironment, script: Any, document: dict[str, Any] = TOOLS, *, none: bool = False, **more: Any
) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """What is delivered of one run, and its reply as the transcript has it."""
    channel = Channel()
    async with chat(server, channel, script, document, (price, book, send), **more) as (session, _):
        receipt = await session.send("go", sender="ann", route="chat")
        await session.wait(receipt, HANG)
        if not none:
            await until_settled(session, 1)
        await idles(session)
        (reply,) = await entries(session, "reply")
        count = len(await entries(session, "delivery"))
    assert count == len(channel.taken)
    return [(reply.kind, reply.text) for reply in channel.taken.values()], reply


async def test_what_goes_before_an_answer_is_what_verbose_allows(dev_server: WorkflowEnvironment) -> None:
    script = calls_first({"_tool": "price", "item": "tea"}, output="three", reasoning="t, e, a")
    document = {**TOOLS, "config": VERBOSE["config"]}
    delivered, reply = await said(dev_server, script, document)
    assert delivered == [("reasoning", "t, e, a"), ("tools", 'price(item="tea") → 3'), ("answer", "three")]
    assert reply["text"] == "three"
    delivered, _ = await said(dev_server, script, TOOLS)
    assert delivered == [("answer", "three")]


@pytest.mark.parametrize("answer", ["NO_REPLY", ' "NO_REPLY"\n', "<think>hm</think>NO_REPLY"])
async def test_an_answer_that_says_nothing_is_told_to_nobody(dev_server: WorkflowEnvironment, answer: str) -> None:
    script = calls_first({"_tool": "price", "item": "tea"}, output=answer.removeprefix("<think>hm</think>"))
    document = {**TOOLS, "config": VERBOSE["config"]}
    if "<think>" in answer:
        document["config"] = {**VERBOSE["config"], "dialect": "tools"}
        script = [Turn(answer)]
    delivered, reply = await said(dev_server, script, document, none=True)
    assert (delivered, reply["text"]) == ([], None)


async def test_what_a_message_tool_has_sent_is_not_sent_again(dev_server: WorkflowEnvironment) -> None:
    call = {"_tool": "send", "text": "Your table is **booked**.", "to": "ann"}
    delivered, reply = await said(dev_server, calls_first(call, output="your table is booked"), none=True)
    assert (delivered, reply["text"], reply["sent"]) == ([], "your table is booked", True)
    delivered, reply = await said(dev_server, calls_first(call, output="And a chair too."))
    assert delivered == [("answer", "And a chair too.")]
    assert "sent" not in reply


async def test_where_nothing_is_left_to_say_a_failed_tool_is_said(dev_server: WorkflowEnvironment) -> None:
    fails = {"_tool": "book", "seat": 7}
    delivered, reply = await said(dev_server, calls_first(fails, output="NO_REPLY"))
    assert delivered == [("failure", "book failed: seat 7 is taken")]
    assert reply["text"] is None
    sends = {"_tool": "send", "text": "All done"}
    delivered, reply = await said(dev_server, calls_first(fails, sends, output="All done."), none=True)
    assert (delivered, reply["sent"]) == ([], True), "people have heard of the run"
    delivered, _ = await said(dev_server, calls_first(fails, output="Seat 7 is taken."))
    assert delivered == [("answer", "Seat 7 is taken.")]


async def test_that_there_is_no_answer_is_said(dev_server: WorkflowEnvironment) -> None:
    delivered, reply = await said(dev_server, lambda _: Turn("no such model", status=400))
    assert [kind for kind, _ in delivered] == ["failure"]
    assert delivered[0][1].startswith("There is no answer: Request 1 to")
    assert reply["text"] is None


async def test_messages_of_several_routes_are_all_answered(dev_server: WorkflowEnvironment) -> None:
    channel, gate = Channel(), asyncio.Event()

    def answer(request: ChatRequest) -> Turn:
        text = f"re: {'; '.join(users(request)[-2:])}" if request.number > 1 else "held"
        return Turn({"calls": [], "output": text}, gate=gate if request.number == 1 else None, gate_after=20)

    async with chat(dev_server, channel, answer) as (session, it):
        first = await session.send("one", sender="ann", route="chat:A")
        await it.model.wait_for_request(1)
        second = await session.send("two", sender="bob", route="chat:B", rights=["*"])
        assert second.done == "steered"
        gate.set()
        await session.wait(first, HANG)
        await until_settled(session, 2)
    assert [(reply.route, reply.sender) for reply in channel.taken.values()] == [("chat:A", "ann"), ("chat:B", "bob")]
    assert [key.rpartition("/")[2] for key in channel.taken] == ["1", "2"]


async def test_a_delegates_message_counts_too(dev_server: WorkflowEnvironment, tmp_path: Any) -> None:
    below = {
        **TOOLS,
        "name": "clerk",
        "context": [{"type": "system", "text": "Clerk."}, {"type": "tool", "tool": "send"}],
    }
    (tmp_path / "clerk.json").write_text(json.dumps(below))
    document = {
        **ECHO,
        "context": [
            *ECHO["context"],
            {"type": "tool", "tool": {"name": "clerk", "_delegate": "clerk", "properties": {}}},
        ],
    }

    def answer(request: ChatRequest) -> dict[str, Any]:
        if "Clerk." in request.text:
            sent = "sent 8" in request.text
            return {"calls": [] if sent else [{"_tool": "send", "text": "All done"}], "output": "ok" if sent else None}
        return (
            {"calls": [], "output": "all done"}
            if '"ok"' in request.text
            else {"calls": [{"_tool": "clerk"}], "output": None}
        )

    delivered, reply = await said(dev_server, answer, document, none=True, agents=tmp_path)
    assert (delivered, reply["sent"]) == ([], True)


async def test_hooks_change_and_refuse_replies_and_hear_what_became_of_them(dev_server: WorkflowEnvironment) -> None:
    channel, heard = Channel(), []

    @hook("message_sending")
    def sending(event: MessageSending) -> Any:
        return refuse("not that") if "secret" in event.text else event.changed(text=event.text.upper())

    @hook("message_sent")
    def sent(event: MessageSent) -> None:
        heard.append((event.reply, event.status))
        points.append((event.run_id, event.sender, event.session != "", event.key))

    points: list[tuple[str, str, bool, str]] = []
    found = having(channel)
    for each in (*hook_functions(sending), *hook_functions(sent)):
        found.hooks.add(each)
    async with desk(dev_server, registry=found) as (session, _):
        first = await session.send("hello", sender="ann", route="chat")
        second = await session.send("a secret", sender="ann", route="chat", mode="followup")
        kept = await until_settled(session, 2)
        assert await idles(session) <= 12
    assert channel.texts == ["RE: ANN: HELLO"]
    assert [(each["status"], each.get("text"), each.get("why")) for each in kept] == [
        ("delivered", "RE: ANN: HELLO", None),
        ("refused", None, "not that"),
    ]
    assert heard == [(f"{first.run_id}/1", "delivered"), (f"{second.run_id}/1", "refused")]
    assert [each[:3] for each in points] == [(first.run_id, "ann", True), (second.run_id, "ann", True)]
    assert len({each[3] for each in points}) == 2


async def test_r24_2_a_redelivery_has_the_text_of_the_first_delivery_and_an_outcome_of_its_own(
    time_skipping: WorkflowEnvironment,
) -> None:
    """The hook changed the changed text again, and both outcomes came under one key."""
    channel = Channel(*[ConnectionError("down")] * 6)
    outcomes: dict[str, str] = {}

    @hook("message_sending")
    def sending(event: MessageSending) -> Any:
        return event.changed(text=f"{event.text} (signed)")

    @hook("message_sent")
    def sent(event: MessageSent) -> None:
        outcomes[event.key] = event.status

    found = having(channel)
    for each in (*hook_functions(sending), *hook_functions(sent)):
        found.hooks.add(each)
    async with desk(time_skipping, registry=found) as (session, _):
        receipt = await session.send("hello", sender="ann", route="chat")
        for tried in range(1, 7):
            await channel.until_tried(tried)
            await time_skipping.sleep(130)
        await until_settled(session, 1)
        await session.redeliver(f"{receipt.run_id}/1", sender="ann")
        assert [each["status"] for each in await until_settled(session, 2)] == ["unknown", "delivered"]
        assert channel.texts == ["re: ann: hello (signed)"]
        async with asyncio.timeout(HANG):
            while len(outcomes) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert list(outcomes.values()) == ["unknown", "delivered"]


async def test_r10_17_a_redelivery_has_a_new_hook_that_has_not_seen_its_text(
    time_skipping: WorkflowEnvironment,
) -> None:
    """A worker with a redaction hook comes after a worker without hooks has given the reply up."""
    channel = Channel(*[ConnectionError("down")] * 6)

    @hook("message_sending")
    def sending(event: MessageSending) -> Any:
        return event.changed(text=event.text.replace("hello", "*****"))

    hooked = having(channel)
    for each in hook_functions(sending):
        hooked.hooks.add(each)
    async with chat(time_skipping, channel, grace=0.1, cached_workflows=0) as (session, it):
        receipt = await session.send("hello", sender="ann", route="chat")
        for tried in range(1, 7):
            await channel.until_tried(tried)
            await time_skipping.sleep(130)
        await until_settled(session, 1)
    async with harness(it.client, [], [], task_queue=it.task_queue, registry=hooked):
        await session.redeliver(f"{receipt.run_id}/1", sender="ann")
        assert [each["status"] for each in await until_settled(session, 2)] == ["unknown", "delivered"]
    assert channel.texts == ["re: ann: *****"]


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_route_that_never_answers_is_given_up_and_holds_nothing(dev_server: WorkflowEnvironment) -> None:
    """Six attempts of a minute: the session answers meanwhile, and each attempt ends in the worker too."""
    channel, begun, gone, left = Channel(), asyncio.Event(), asyncio.Event(), 0

    async def hangs(reply: Reply) -> None:
        nonlocal left
        channel.tried.append(reply.key)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left += 1
            if left == 6:
                gone.set()

    found = having(channel)
    found.routes.add(RouteFunction("pager", hangs, True))
    async with desk(dev_server, registry=found) as (session, it):
        await session.send("hello", sender="ann", route="pager")
        await asyncio.wait_for(begun.wait(), HANG)
        assert await session.ask("and you?", sender="ann") == "re: ann: and you?"
        other = Perdure(it.client, task_queue=it.task_queue).session(f"{session.key}-b", agent=Agent.of(ECHO))
        await other.send("there?", sender="bob", route="chat")
        await channel.until(1)  # another session's replies do not wait for it
        await session.send("more", sender="ann", route="chat")
        await asyncio.wait_for(gone.wait(), 540)
        kept = await until_settled(session, 2)
    assert [(each["route"], each["status"]) for each in kept] == [("pager", "unknown"), ("chat", "delivered")]
    assert (len(channel.tried) - 2, left) == (6, 6)
    assert channel.texts == ["re: bob: there?", "re: ann: more"]
