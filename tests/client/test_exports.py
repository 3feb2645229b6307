"""Sessions and runs are written down and restored in another namespace (R24.5)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import Media, Perdure, ToolError, hook, refuse, tool
from perdure.client.approvals import decide
from perdure.client.histories import execution_histories
from perdure.errors import MediaError, MessageRefusedError, RunError, RunExistsError
from perdure.hooks import BeforeToolCall
from perdure.hosting.connection import data_converter
from perdure.queries import SessionReader
from perdure.sessions.export import SessionExport
from perdure.sessions.status_webhooks import StatusWebhook
from perdure.sessions.transcript import SESSION_FORM, SessionSnapshot
from perdure.testing.scripted_model import ChatRequest
from tests.support import DONE, agent, check_replays, harness, new_namespace
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO, desk, echo, idles, users

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLS: list[str] = []


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def elsewhere(dev_server: WorkflowEnvironment) -> Client:
    """A client of another namespace."""
    target = dev_server.client.service_client.config.target_host
    name = await new_namespace(dev_server.client)
    return await Client.connect(target, namespace=name, data_converter=data_converter())


@asynccontextmanager
async def there(client: Client, script: Any, tools: Any = ()) -> AsyncIterator[tuple[Perdure, Any]]:
    """A worker in the other namespace, and Perdure there."""
    async with harness(client, tools, script) as it:
        yield Perdure(client, task_queue=it.task_queue), it


@tool(safe=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    CALLS.append("add")
    return a + b


@tool(dangerous=True)
def pay(amount: int) -> str:
    """Pay."""
    CALLS.append("pay")
    if amount > 5:
        raise ToolError("too_much", f"{amount} is above 5")
    return f"paid {amount}"


def written(exported: Any) -> Any:
    """Return it as a file gives it back."""
    return json.loads(json.dumps(exported))


async def test_a_session_goes_on_in_another_namespace(dev_server: WorkflowEnvironment, elsewhere: Client) -> None:
    async with desk(dev_server, echo) as (session, _):
        first = await session.send("one", sender="ann", id="1")
        assert await session.reply(first, HANG)
        await idles(session)
        push = {"token": "a-token", "scheme": "Bearer", "credentials": "a-secret"}
        webhook = StatusWebhook(run_id=first.run_id or "", url="https://example.com/ended", **push)
        await session.set_status_webhook(webhook, sender="bob")
        exported = written(await session.export())
        before = await session.read_entries()
        later = await session.send("later", sender="ann")
        assert await session.reply(later, HANG)
    packed = SessionExport.model_validate(exported["restoreSession"]).input.snapshot
    assert packed is not None
    assert packed.read(SessionSnapshot, SESSION_FORM, "the session").webhooks == []
    asked: list[ChatRequest] = []

    def answer(request: ChatRequest) -> Any:
        asked.append(request)
        return echo(request)

    async with there(elsewhere, answer) as (perdure, it):
        restored = await perdure.import_session(exported)
        assert (restored.key, restored.tenant) == (session.key, "acme")
        assert await restored.read_entries() == before
        assert await restored.send("one", sender="ann", id="1") == first  # the same message, which runs nothing
        with pytest.raises(MessageRefusedError, match="another message"):
            await restored.send("other", sender="ann", id="1")
        assert (await restored.wait("1", HANG)).status == "ok"
        assert not asked
        second = await restored.send("two", sender="ann")
        assert await restored.reply(second, HANG)
        assert (await restored.wait(second.run_id or "", HANG)).status == "ok"
        assert (later.run_id or "").endswith("-2")
        assert (second.run_id or "").endswith("-2")
        assert second.run_id != later.run_id
        assert users(asked[0]) == ["ann: one", "ann: two"] or "one" in "".join(users(asked[0]))
        with pytest.raises(RunExistsError, match="use another key"):
            await perdure.import_session(exported)
        listed = [each async for each in perdure.list_sessions(tenant="acme")]
        assert [(each.session, each.title, each.agent) for each in listed] == [(session.key, "one", "echo")]
        async for history in execution_histories(it.client, restored.id):
            await check_replays(history)


async def test_a_session_under_another_key_has_its_archive_and_finds_its_messages(
    dev_server: WorkflowEnvironment,
) -> None:
    async with desk(dev_server, echo) as (session, it):
        first = await session.send(f"the first {'x' * 40_000}", sender="ann", id="first")
        await session.reply(first, HANG)
        for number in range(10):
            await session.reply(await session.send(f"{number} {'y' * 8_000}", sender="ann"), HANG)
        await session.new(sender="ann")
        for _ in range(11):
            await session.reply(await session.send("short", sender="ann", mode="followup"), HANG)
        await idles(session)
        assert (await session.show()).archived_through
        exported = written(await session.export())
        perdure = Perdure(it.client, task_queue=it.task_queue)
        copy = await perdure.import_session(exported, key=f"{session.key}-2", tenant="beta")
        again = await copy.send(f"the first {'x' * 40_000}", sender="ann", id="first")
        assert again.run_id is not None
        assert first.run_id is not None
        assert again.run_id.startswith(f"{copy.id}/")
        assert again.accepted_at == first.accepted_at
        with pytest.raises(RunError, match="is not in this namespace"):
            await SessionReader(it.client, copy.id).whole(again.run_id, "state")
        assert await copy.reply("first", HANG) == await session.reply("first", HANG)
        ours, theirs = await session.read_entries(), await copy.read_entries()
        assert json.dumps(theirs) == json.dumps(ours).replace(session.id, copy.id)
        await copy.delete(sender="ann", rights=["*"])
        assert await session.read_entries() == ours  # its own archive stays


async def test_a_session_has_its_state_and_files(
    dev_server: WorkflowEnvironment, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path))
    client = await Client.connect(dev_server.client.service_client.config.target_host, data_converter=data_converter())
    file = Media(data=b"\x89PNG\r\n\x1a\n" + b"0" * 100, name="a.png")
    keep = {"calls": [{"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.x"}], "output": "kept"}
    document = {**ECHO, "context": [*ECHO["context"], {"type": "tool", "tool": "add"}]}
    async with desk(dev_server, [keep, keep], document, [add], client=client) as (session, it):
        await session.reply(await session.send("look", sender="ann", files=[file]), HANG)
        await idles(session)
        exported = written(await session.export())
        assert [*exported["files"]] == [file.digest]
        perdure = Perdure(it.client, task_queue=it.task_queue)
        copy = await perdure.import_session(exported, tenant="beta")
        value: Any = {"_media": file.digest, "type": file.type, "bytes": file.size, "name": file.name}
        assert (await perdure.load_media(value, tenant="beta")).read() == file.read()
        await copy.ask("again", sender="ann", timeout=HANG)
        assert '"x": 3' in it.model.requests[-1].text or '"x":3' in it.model.requests[-1].text
        exported["files"][file.digest] = "AAAA"
        with pytest.raises(MediaError, match="is damaged"):
            await perdure.import_session(exported, key="other")


async def test_a_busy_session_is_written_down_and_not_restored(dev_server: WorkflowEnvironment) -> None:
    gate = asyncio.Event()

    @tool(safe=True)
    async def wait_for_it() -> str:
        """Wait."""
        await gate.wait()
        return "here"

    document = {**ECHO, "context": [*ECHO["context"], {"type": "tool", "tool": "wait_for_it"}]}
    script = [{"calls": [{"_tool": "wait_for_it"}], "output": None}, {"calls": [], "output": "done"}]
    async with desk(dev_server, script, document, [wait_for_it]) as (session, it):
        receipt = await session.send("go", sender="ann")
        exported = written(await session.export())
        assert [entry["type"] for entry in exported["entries"]] == ["message"]
        assert "is active. Export it again" in exported["problem"]
        with pytest.raises(RunError, match="is active"):
            await Perdure(it.client, task_queue=it.task_queue).import_session(exported)
        gate.set()
        assert await session.reply(receipt, HANG) == "done"


async def test_a_run_is_restored_without_a_model_a_tool_or_a_person(
    dev_server: WorkflowEnvironment, elsewhere: Client
) -> None:
    plan = [
        {"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.x"},
        {"_tool": "pay", "amount": "†state.x", "_outputPath": "†state.paid"},
        {"_tool": "pay", "amount": 9},
    ]
    tools = agent("add", "pay")
    async with harness(dev_server.client, [add, pay], [{"calls": plan, "output": None}, DONE]) as it:
        handle = await it.start(tools)
        run = Perdure(it.client).get_run(handle.id)
        await it.until_waiting(handle.id, "1.1", "1.2")
        waiting = written(await run.export())
        assert "running" in waiting["problem"]
        await run.approve("1.1", by="ann")
        await run.approve("1.2", by="ann")
        await run.result()
        before = await it.view(handle.id)
        exported = written(await run.export())
    CALLS.clear()
    async with there(elsewhere, [DONE], [add, pay]) as (perdure, other):
        restored = await perdure.import_run(exported)
        await restored.result()
        view = await restored.view()
        assert (view.run_id, view.status, view.output, view.state) == (
            handle.id,
            "completed",
            before.output,
            before.state,
        )
        assert [(call.id, call.status, call.result, call.error) for call in view.calls] == [
            (call.id, call.status, call.result, call.error) for call in before.calls
        ]
        assert not CALLS
        assert not other.model.requests
        assert view.usage.tokens == 0
        with pytest.raises(RunExistsError):
            await perdure.import_run(exported)
        fork = await restored.fork("2")
        await fork.result()
        assert not CALLS
        assert len(other.model.requests) == 1
        report = await perdure.what_if(ids=[handle.id], policy={"ask": "always"})
        assert [each.run_id for each in report.runs] == [handle.id]
        exported["restoreRun"].pop("fork")
        with pytest.raises(RunError, match="no record"):
            await perdure.import_run(exported, id="another")


async def test_a_restored_run_has_the_calls_that_hooks_have_changed_and_refused(
    dev_server: WorkflowEnvironment,
) -> None:
    @hook("before_tool_call", tools=["pay"])
    def at_most(event: BeforeToolCall) -> Any:
        CALLS.append("hook")
        amount = event.params["amount"]
        return refuse("too much") if amount > 20 else event.changed(params={"amount": min(5, amount)})

    plan = [
        {"_tool": "pay", "amount": 9, "_outputPath": "†state.x"},
        {"_tool": "pay", "amount": 1, "_outputPath": "†state.y"},
        {"_tool": "pay", "amount": 2, "_outputPath": "†state.z"},
        {"_tool": "pay", "amount": 3, "_outputPath": "†state.z"},
    ]
    async with harness(dev_server.client, [pay, at_most], [{"calls": plan, "output": None}, DONE]) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        handle = await it.start(agent("pay"))
        run = perdure.get_run(handle.id)
        await it.until_waiting(handle.id, "1.0", "1.1", "1.2", "1.3")
        for decision in (
            {"call": "1.0", "decision": "approve"},
            {"call": "1.2", "decision": "edit", "params": {"amount": 30}},
            {"call": "1.3", "decision": "reject"},
            {"call": "1.1", "decision": "edit", "params": {"amount": 8}},
        ):
            await decide(it.client, handle.id, decision)
        await it.until_waiting(handle.id, "1.1")  # a hook has changed it again
        await decide(it.client, handle.id, {"call": "1.1", "decision": "approve"})
        await run.result()
        before = await it.view(handle.id)
        exported = written(await run.export())
        CALLS.clear()
        restored = await perdure.import_run(exported, id=f"{handle.id}-again")
        await restored.result()
        view = await restored.view()
    assert not CALLS
    assert (view.status, view.output, view.state) == (before.status, before.output, before.state)
    kept = [[(call.id, call.params, call.status, call.error) for call in each.calls] for each in (view, before)]
    assert kept[0] == kept[1]
    assert [call.params["amount"] for call in view.calls] == [5, 5, 30, 3]


async def test_a_run_that_did_not_complete_ends_where_its_record_ends(dev_server: WorkflowEnvironment) -> None:
    plan = [{"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.x"}, {"_tool": "pay", "amount": "†state.x"}]
    async with harness(dev_server.client, [add, pay], [{"calls": plan, "output": None}, DONE, DONE]) as it:
        handle = await it.start(agent("add", "pay"))
        await it.until_waiting(handle.id, "1.1")
        perdure = Perdure(it.client, task_queue=it.task_queue)
        run = perdure.get_run(handle.id)
        await run.cancel()
        with pytest.raises(RunError):
            await run.result()
        CALLS.clear()
        exported = written(await run.export())
        odd = json.loads(json.dumps(exported))
        odd["restoreRun"]["agent"]["context"][0]["text"] = "\ud800"
        with pytest.raises(RunError, match="not an exported session or run: the file has an unpaired surrogate"):
            await perdure.import_run(odd, id=f"{handle.id}-odd")
        restored = await perdure.import_run(exported, id=f"{handle.id}-again")
        with pytest.raises(RunError, match="ends here: cancelled"):
            await restored.result()
        view = await restored.view()
        assert [(call.id, call.status) for call in view.calls] == [("1.0", "done"), ("1.1", "failed")]
        assert not CALLS
        assert len(it.model.requests) == 1


async def test_a_run_has_the_files_of_its_agent_and_a_restored_run_is_promoted(
    dev_server: WorkflowEnvironment, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path))
    client = await Client.connect(dev_server.client.service_client.config.target_host, data_converter=data_converter())
    file = Media(data=b"\x89PNG\r\n\x1a\n" + b"0" * 100, name="logo.png")
    value = {"_media": file.digest, "type": file.type, "bytes": file.size, "name": file.name}
    document = agent("add")
    document["context"].append({"type": "data", "kind": "logo", "data": {"picture": value}})
    plan = [{"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.x"}]
    async with harness(client, [add], [{"calls": plan, "output": {"ok": "†state.x"}}]) as it:
        perdure = Perdure(client, task_queue=it.task_queue)
        await perdure.save_media(file)
        handle = await it.start(document)
        await handle.result()
        run = perdure.get_run(handle.id)
        exported = written(await run.export())
        assert [*exported["files"]] == [file.digest]
        restored = await perdure.import_run(exported, id=f"{handle.id}-again")
        await restored.result()
        ours, theirs = await run.promote("sum"), await restored.promote("sum")
        assert ours.agent["context"] == theirs.agent["context"]


@pytest.mark.parametrize("wrong", [[], {}, {"form": 2, "agent": "x"}, {"form": 1, "agent": "x", "entries": []}])
async def test_what_is_no_export_is_one_line(dev_server: WorkflowEnvironment, wrong: Any) -> None:
    with pytest.raises(RunError) as error:
        await Perdure(dev_server.client).import_session(wrong)
    assert "\n" not in str(error.value)
