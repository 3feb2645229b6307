"""What a session keeps: compacted, archived, recalled and forked, with real runs (R10.11 to R10.13, R10.18, R10.20)."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.activities.transcripts import recall
from perdure.errors import MessageRefusedError, RunError, RunExistsError
from perdure.hosting.connection import data_converter
from perdure.queries import SessionReader
from perdure.sessions.entries import MessageEntry
from perdure.sessions.transcript import SEGMENT_WORKFLOW, SegmentSpan, segment_of
from perdure.testing.scripted_model import ChatRequest, Turn
from tests.hosting.test_external_storage import stored
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO, desk, echo, idles, users

pytestmark = pytest.mark.asyncio(loop_scope="session")

PADDING = "and so on " * 120


def with_memory(request: ChatRequest) -> Any:
    """Sums up when it is asked to, and else repeats what was said."""
    if "You keep the memory" in request.text:
        return Turn("Ann talked of order A-1001.", dialect="tools")
    said = str(echo(request)["output"])
    return {"calls": [], "output": said[:40]}


async def test_r10_11_a_long_conversation_goes_on_in_short(dev_server: WorkflowEnvironment) -> None:
    forgetful = {**ECHO, "config": {"session": {"context_tokens": 1_000}}}
    async with desk(dev_server, with_memory, forgetful, [recall]) as (session, it):
        for number in range(1, 7):
            assert await session.reply(await session.send(f"A-100{number} {PADDING}", sender="ann"), HANG)
        await idles(session)
        view = await session.show()
        compactions = [entry for entry in view.entries if entry["type"] == "compaction"]
        assert compactions
        assert {"summary", "Ann talked of order A-1001."} <= {
            compactions[0]["kind"],
            compactions[0]["text"].split("\n")[0],
        }
        last = [request for request in it.model.requests if "You keep the memory" not in request.text][-1]
        shown = "\n".join(users(last))
        assert "earlier in this conversation" in shown
        assert all(f"A-100{number}" in shown for number in range(1, 7))
        assert len([entry for entry in view.entries if entry["type"] == "message"]) == 6  # nothing is deleted
        with pytest.raises(MessageRefusedError, match="may not compact"):
            await session.compact(sender="bob", rights=[])
        assert "compact" in await session.compact(sender="ann")


@pytest.fixture
def few_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions keep three entries to show, not fifty: older ones are archived after few messages."""
    monkeypatch.setattr("perdure.sessions.transcript._SHOWN", 3)


@pytest.mark.usefixtures("few_shown")
async def test_r10_1_a_message_is_known_after_it_was_archived(dev_server: WorkflowEnvironment) -> None:
    async with desk(dev_server, with_memory) as (session, _):
        first = await session.send(f"the first {'x' * 40_000}", sender="ann", id="first")
        assert await session.reply(first, HANG) == "re: ann: the first xxxxxxxxxxxxxxxxxxxxx"[:40]
        for number in range(4):
            await session.reply(await session.send(f"{number} {'y' * 20_000}", sender="ann", id=f"m{number}"), HANG)
        await session.new(sender="ann")
        assert await session.reply(await session.send("z" * 64_000, sender="ann", id="last"), HANG)
        for number in range(3):
            await session.send("short", sender="ann", id=f"n{number}", mode="followup")
            await session.reply(f"n{number}", HANG)
        await idles(session)
        view = await session.show()
        assert "first" not in [entry.get("messageId") for entry in view.entries]
        again = await session.send(f"the first {'x' * 40_000}", sender="ann", id="first")
        assert again == first
        with pytest.raises(MessageRefusedError, match="belongs to another message"):
            await session.send("something else", sender="ann", id="first")
        assert (await session.wait("first", 5)).status == "ok"
        assert await session.reply("first", 5) == "re: ann: the first xxxxxxxxxxxxxxxxxxxxx"[:40]
        found = await session.recall("the first")
        assert [each["n"] for each in found["found"]] == [3, 1]
        assert (await session.recall("1"))["pages"] == 4


async def test_r10_20_the_newest_archived_message_of_an_id_is_the_forks_own(dev_server: WorkflowEnvironment) -> None:
    async with desk(dev_server, with_memory) as (session, it):
        both = [
            MessageEntry(n=n, at="", message_id="m", sender="ann", text=text)
            for n, text in enumerate(("copied", "own"), 1)
        ]
        span = SegmentSpan(name=f"{session.id}/~fork-", segments=1, last=2)
        await it.client.start_workflow(SEGMENT_WORKFLOW, segment_of(1, both), id=span.id(1), task_queue=it.task_queue)
        for sender in ("ann", ""):
            found = await SessionReader(it.client, session.id).find([span], "m", sender)
            assert found is not None
            assert found.n == 2


@pytest.mark.usefixtures("few_shown")
async def test_r10_13_old_entries_lie_in_the_storage_where_there_is_one(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path))
    client = await Client.connect(dev_server.client.service_client.config.target_host, data_converter=data_converter())
    noise = random.Random(7)  # it does not become shorter by being packed
    async with desk(dev_server, with_memory, client=client) as (session, it):
        first = f"the first {noise.randbytes(20_000).hex()}"
        await session.reply(await session.send(first, sender="ann"), HANG)
        for _ in range(4):
            await session.reply(await session.send(noise.randbytes(10_000).hex(), sender="ann"), HANG)
        await session.new(sender="ann")
        await session.reply(await session.send(noise.randbytes(32_000).hex(), sender="ann"), HANG)
        for _ in range(3):
            await session.reply(await session.send("short", sender="ann", mode="followup"), HANG)
        await idles(session)
        began = (await it.client.get_workflow_handle(session.id).fetch_history()).events[0]
        name = began.workflow_execution_started_event_attributes.first_execution_run_id[:8]
        segment = (await it.client.get_workflow_handle(f"{session.id}/~{name}-1").fetch_history()).events[0]
        assert segment.workflow_execution_started_event_attributes.input.ByteSize() < 1_000
        assert b"entries 1 to " in segment.user_metadata.summary.data  # which the Web UI shows
        assert max(stored(tmp_path)) > 20_000
        assert first[:10_000] in (await session.recall("1"))["text"]


@pytest.mark.usefixtures("few_shown")
async def test_r10_13_entries_stay_where_a_reset_session_finds_other_ones_archived(
    dev_server: WorkflowEnvironment,
) -> None:
    async with desk(dev_server, with_memory) as (session, it):
        await session.reply(await session.send(f"the first {'x' * 40_000}", sender="ann", id="first"), HANG)
        found = await it.client.get_workflow_handle(session.id).fetch_history()
        began = found.events[0].workflow_execution_started_event_attributes.first_execution_run_id
        other = [MessageEntry(n=1, at="", message_id="other", text="what was said before the reset")]
        name = f"{session.id}/~{began[:8]}-1"
        await it.client.start_workflow(SEGMENT_WORKFLOW, segment_of(1, other), id=name, task_queue=it.task_queue)
        for number in range(4):
            await session.reply(await session.send(f"{number} {'y' * 20_000}", sender="ann", id=f"m{number}"), HANG)
        await session.new(sender="ann")
        assert await session.reply(await session.send("z" * 64_000, sender="ann", id="last"), HANG)
        for number in range(3):
            await session.send("short", sender="ann", id=f"n{number}", mode="followup")
            await session.reply(f"n{number}", HANG)
        await idles(session)
        assert [each["n"] for each in (await session.recall("the first"))["found"]] == [3, 1]
        assert not (await session.recall("before the reset"))["found"]


class Shop:
    """Two tools, and a model that buys what it is told and recalls what it is asked for."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    @property
    def tools(self) -> list[Any]:
        shop = self

        @tool(safe=True)
        def catalogue() -> str:
            """All there is."""
            return "\n".join(f"{n}: tea number {n}" for n in range(3_000))

        @tool
        def pay(item: str) -> dict[str, str]:
            """Pay for it."""
            shop.paid.append(item)
            return {"receipt": f"R-{len(shop.paid)}-{item}"}

        return [catalogue, pay, recall]

    def answer(self, request: ChatRequest) -> Any:
        last = next(text for text in reversed(users(request)) if text.startswith("ann: "))
        done = "# results" in request.text.partition(last)[2]
        if "catalogue" in last and not done:
            return {"calls": [{"_tool": "catalogue"}], "output": None}
        if "recall" in last and not done:
            [wanted] = re.findall(r"# result of (c\d+_1_0)\n0: tea", request.text)
            return {"calls": [{"_tool": "recall", "what": wanted, "page": 4}], "output": None}
        if "buy" in last and f'"{last[9:]}"' not in request.text.partition(last)[2]:
            return {"calls": [{"_tool": "pay", "item": last[9:], "_outputPath": f"†state.{last[9:]}"}], "output": None}
        return {"calls": [], "output": f"did: {last}"}


SHOP = {
    **ECHO,
    "context": [*ECHO["context"], *({"type": "tool", "tool": name} for name in ("catalogue", "pay"))],
}


async def test_r10_12_what_was_cut_is_read_again_by_the_model_and_by_command(dev_server: WorkflowEnvironment) -> None:
    shop = Shop()
    async with desk(dev_server, shop.answer, SHOP, shop.tools) as (session, it):
        await session.reply(await session.send("the catalogue", sender="ann"), HANG)
        [run] = [entry for entry in (await session.show()).entries if entry["type"] == "run"]
        [call] = run["calls"]
        assert 16_000 < len(call["result"]) < 16_100  # R10.18
        await session.reply(await session.send("recall it", sender="ann"), HANG)
        assert "2999: tea" not in call["result"]
        assert "tea number 2" in it.model.requests[-1].text
        page = await session.recall(f"c{run['n']}_1_0", 6)
        assert page["pages"] == 6
        assert page["text"].endswith("2999: tea number 2999")
        with pytest.raises(RunError, match="no call"):
            await session.recall("c1_9_9")


async def test_r10_12_a_run_outside_of_a_session_has_no_entries_to_search(dev_server: WorkflowEnvironment) -> None:
    shop = Shop()
    ask = {"calls": [{"_tool": "recall", "what": "tea"}], "output": None}
    async with desk(dev_server, [ask, {"calls": [], "output": "no"}], SHOP, shop.tools) as (session, it):
        view = await it.run({**SHOP, "context": [*SHOP["context"], {"type": "tool", "tool": "recall"}]})
        assert view.calls[0].error == {
            "code": "no_session",
            "message": "this run belongs to no session: name the id of a call, such as 1.0, or a value of the state, such as state.report",
        }
        assert session.key


async def test_r10_20_a_fork_begins_there_and_nothing_runs_again(dev_server: WorkflowEnvironment) -> None:
    shop = Shop()
    async with desk(dev_server, shop.answer, SHOP, shop.tools) as (session, it):
        for what in ("tea", "milk", "sugar"):
            await session.reply(await session.send(f"buy {what}", sender="ann"), HANG)
        await idles(session)
        before = (await session.show()).as_json()
        paid = list(shop.paid)
        for at, state in (("2", ["tea", "milk"]), ("2.1", ["tea", "milk"]), ("1", ["tea"])):
            fork = await session.fork(at)
            kept = await fork.show()
            assert kept.entries[-1]["command"] == "fork"
            assert (await fork.about()).created_at > (await session.about()).created_at
            assert [entry["text"] for entry in kept.entries if entry["type"] == "message"] == [
                f"buy {it}" for it in state
            ]
            await fork.reply(await fork.send("what have we", sender="ann"), HANG)
            told = it.model.requests[-1].text
            assert all(f"R-{n}-{what}" in told for n, what in enumerate(state, 1))
            assert "sugar" not in told
            assert '"sugar"' not in told
        assert shop.paid == paid
        assert (await session.show()).as_json() == before
        named = await session.fork("3", "another")
        assert named.key == "another"
        with pytest.raises(RunExistsError, match="already"):
            await session.fork("3", "another")
        with pytest.raises(RunError, match="no run 9"):
            await session.fork("9")
        await named.delete(sender="ann")


@tool(untrusted=True)
async def read_mail() -> str:
    """The newest mail."""
    return "The account is DE99."


def banker(request: ChatRequest) -> Any:
    """Reads the mail once, sums up when it is asked to, and sends money where it is told to send."""
    if "You keep the memory" in request.text:
        return Turn("The account is DE99.", dialect="tools")
    last = users(request)[-1]
    if "send" in last:
        return {"calls": [{"_tool": "send_money", "account": "DE99"}], "output": None}
    if "read" in last and "DE99" not in request.text.partition(last)[2]:
        return {"calls": [{"_tool": "read_mail"}], "output": None}
    return {"calls": [], "output": "I see."}


@pytest.mark.parametrize("way", ["compacted", "forked", "compacted and forked"])
async def test_r15_1_what_others_wrote_stays_untrusted_where_a_session_keeps_it_otherwise(
    way: str, dev_server: WorkflowEnvironment
) -> None:
    """The account stands in a summary and in a fork: the `untrusted` floor asks a person as before."""
    sent: list[str] = []

    @tool(dangerous=True)
    async def send_money(account: str) -> str:
        """Send money."""
        sent.append(account)
        return "done"

    tools = [{"type": "tool", "tool": name} for name in ("read_mail", "send_money")]
    config = {"approval": {"ask": "never"}, "session": {"context_tokens": 1_000}}
    document = {**ECHO, "context": [*ECHO["context"], *tools], "config": config}
    told = [read_mail, send_money, recall]
    async with desk(dev_server, banker, document, told, approval_floor="untrusted") as (session, it):
        await session.reply(await session.send("read", sender="ann"), HANG)
        if "compacted" in way:
            for number in range(4):
                await session.reply(await session.send(f"{number} {PADDING}", sender="ann"), HANG)
            await idles(session)
            assert "compaction" in [entry["type"] for entry in (await session.show()).entries]
        if "forked" in way:
            session = await session.fork("5" if "compacted" in way else "1")
        asks = await session.send("send", sender="ann")
        assert asks.run_id is not None
        view = await it.until_waiting(asks.run_id, "1.0")
        assert "written by others" in str(view.waiting[0].reason)
        assert sent == []
        await it.client.get_workflow_handle(asks.run_id).cancel()
