"""What Temporal stores cannot be read there (docs/encryption.md)."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from openai import AsyncOpenAI
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.converter import PayloadCodec
from temporalio.testing import WorkflowEnvironment

from perdure import Media, Perdure, tool
from perdure.activities.registry import load_tools
from perdure.activities.secrets import mask_text
from perdure.client.approvals import list_waiting
from perdure.client.histories import exchanges
from perdure.client.key_use import KeyUse
from perdure.client.run import watch_run
from perdure.client.run_operations import fetch_run
from perdure.demo.scenario import SCRIPT, write_files
from perdure.encryption import ENCODING, PLACE, AesGcm
from perdure.errors import SettingsError
from perdure.hosting.codec import payload_codec
from perdure.hosting.connection import data_converter
from perdure.queries import read_segment, record_entries, start_segment
from perdure.queries.media_store import MediaStore, encode_again, walk_files
from perdure.runs.audit import AuditBatch, audit_id, entry, verify_chain
from perdure.runs.ledger import LEDGER_WORKFLOW, ledger_id
from perdure.runs.wire import DECIDE
from perdure.sessions.transcript import SEGMENT_WORKFLOW
from tests.support import DONE, Harness, agent, harness, new_namespace, perdure, task_failures
from tests.timeouts import HANG
from tests.workflows.test_session import desk, idles

pytestmark = pytest.mark.asyncio(loop_scope="session")

OLD, NEW = ({name: base64.b64encode(bytes([n]) * 32).decode()} for n, name in enumerate(("old", "new")))
TASK = "The disk is filling up. Sort it out."


@pytest.fixture
def encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_CODEC", "perdure.encryption:aes_gcm")
    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(NEW | OLD))


PATCH = {"id", "deprecated"}
"""Keys of the SDK's note of a patch: names in the code."""
NOTE = {
    "seq",
    "attempt",
    "activity_id",
    "activity_type",
    "complete_time",
    "backoff",
    "original_schedule_time",
    "activation_index",
}
TEMPORALS = {"failure", "result", "completed"}
"""`Encoded failure`, a marker's key for a result, the id that the server gives some requests."""


async def connect(server: WorkflowEnvironment) -> Client:
    return await Client.connect(server.client.service_client.config.target_host, data_converter=data_converter())


def payloads(message: Message, path: str = "") -> Iterator[tuple[str, Payload]]:
    """Every payload in a message, by where it stands; search attributes are numbers that the server itself must read."""
    for field, value in message.ListFields():
        here = f"{path}.{field.name}"
        if isinstance(value, Message):
            children = [value]
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            children = [one for one in value.values() if isinstance(one, Message)]
        else:
            children = [one for one in value if isinstance(one, Message)] if field.message_type is not None else []
        for child in children:
            if isinstance(child, Payload):
                yield here, child
            elif field.name != "search_attributes":
                yield from payloads(child, here)


def clear_search_attributes(message: Message) -> None:
    """They cannot be encrypted, and docs/encryption.md says what is in them."""
    for field, value in message.ListFields():
        if field.name == "search_attributes":
            message.ClearField("search_attributes")
        elif isinstance(value, Message):
            clear_search_attributes(value)


def words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Za-z]{6,}", text)}


def names(history: WorkflowHistory) -> set[str]:
    """What the server must be able to read: the names by which it hands out work."""
    found = {history.workflow_id}
    for event in history.events:
        started, scheduled = (
            event.workflow_execution_started_event_attributes,
            event.activity_task_scheduled_event_attributes,
        )
        found |= {started.workflow_type.name, started.task_queue.name, started.identity, scheduled.activity_type.name}
        found |= {event.workflow_execution_signaled_event_attributes.signal_name}
        found |= {event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name}
        found |= {event.marker_recorded_event_attributes.marker_name}
    return words(" ".join(found))


async def run_demo(it: Harness, folder: Path) -> tuple[str, list[Message]]:
    """The demo's run to its end; also what visibility held of it while something waited."""
    document = json.loads(files("perdure.demo").joinpath("agents/devops.json").read_bytes())
    handle = await it.start(document, {"request": TASK, "folder": str(folder)})
    view = await it.until_waiting(handle.id, "1.2")
    offers: list[Any] = []
    async with asyncio.timeout(HANG):
        while not offers:  # visibility comes a little later
            offers = [one for one in (await list_waiting(it.client)).waiting if one.run_id == handle.id]
    [offered] = offers
    assert (offered.entry.tool, view.waiting[0].tool) == ("clean_logs", "clean_logs")
    listed = [run.raw_info async for run in it.client.list_workflows(f"WorkflowId = '{handle.id}'")]
    decision = {"call": "1.2", "decision": "approve", "by": "a person", "reason": "nobody reads rotated files"}
    await handle.execute_update(DECIDE, decision)
    assert (await handle.result()).status == "completed"
    return handle.id, [*listed, (await handle.describe()).raw_description]


@pytest.mark.usefixtures("encrypted")
async def test_nothing_of_the_demos_run_can_be_read_in_what_temporal_stores(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    write_files(tmp_path)
    client = await connect(dev_server)
    tools = load_tools(["perdure.demo.tools"])
    async with harness(client, [], SCRIPT, registry=tools) as it:
        run_id, visible = await run_demo(it, tmp_path)
        prompts = [request.shown for request in it.model.requests]
        view, said = await fetch_run(client, run_id), await exchanges(client, run_id)
    handle = client.get_workflow_handle(run_id)
    history = await handle.fetch_history()
    kept = [*visible, *history.events]
    for message in kept:
        clear_search_attributes(message)
    secret = words(" ".join([TASK, view.result().model_dump_json(), *prompts, str(said), "nobody reads rotated files"]))
    secret -= names(history) | TEMPORALS
    assert {"filling", "devops", "measure", "dump"} - secret == {"dump"}
    assert len(secret) > 100

    def seen() -> set[str]:
        raw = b" ".join(message.SerializeToString() for message in kept).decode("latin-1").lower()
        return {word for word in secret if word in raw}

    found = [(path, one) for message in kept for path, one in payloads(message)]
    # The SDK's own note of a local activity: its number, type, attempt and time.
    notes = [one for _, one in found if one.metadata["encoding"] != ENCODING]
    assert {frozenset(json.loads(note.data)) for note in notes} <= {frozenset(NOTE), frozenset(PATCH)}
    for note in notes:
        note.data = b""
    assert seen() == set()
    places = {path.rpartition(".")[2] for path, _ in found}
    assert {"summary", "details", "fields", "encoded_attributes", "payloads"} <= places
    # And that this test would have found them:
    plain = await data_converter().payload_codec.decode([one for _, one in found])  # type: ignore[union-attr]
    for (_, one), decoded in zip(found, plain, strict=True):
        one.CopyFrom(decoded)
    assert len(seen()) > 50  # prompts are not stored at all


def stored(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


@tool(dangerous=True)
def remove(path: str) -> str:
    return "gone: " + path * 100_000


@pytest.mark.usefixtures("encrypted")
async def test_why_a_request_is_asked_again_is_told_to_those_who_may_read_it(dev_server: WorkflowEnvironment) -> None:
    client = await connect(dev_server)
    dead = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)
    async with harness(client, [remove], [], model=dead) as it:
        handle = await it.start(agent("remove"))
        async for view in watch_run(client, handle.id):
            if view.log and view.log[-1].trouble:
                break
        assert "http://127.0.0.1:9/v1" in str(view.log[-1].trouble)
        [pending] = (await handle.describe()).raw_description.pending_activities
        assert pending.last_failure.message == "Encoded failure"
        await handle.cancel()


@pytest.mark.usefixtures("encrypted")
async def test_large_values_are_encrypted_where_they_are_stored_and_what_is_forged_stops_no_run(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path))
    client = await connect(dev_server)
    script = [{"calls": [{"_tool": "remove", "path": "/etc", "_outputPath": "†state.x"}]}, DONE]
    async with harness(client, [remove], script) as it:
        handle = await it.start(agent("remove"))
        await it.until_waiting(handle.id, "1.0")
        stranger = dev_server.client.get_workflow_handle(handle.id)
        for key in (b"new", b"nobody's", b"\xff"):
            forged = RawValue(Payload(metadata={"encoding": ENCODING, "encryption-key-id": key}, data=b"x" * 40))
            await stranger.signal("approve", forged)
            with pytest.raises(WorkflowUpdateFailedError):
                await stranger.execute_update(DECIDE, forged)
        # What was really sent, and encrypted, to another run, by whoever can read histories and write to the namespace.
        other = await it.start(agent("remove", context=[{"type": "plan", "plan": script[0]["calls"], "output": 1}]))
        await it.until_waiting(other.id, "0.0")
        await other.signal("approve", {"call": "1.0"})
        async for event in other.fetch_history_events(wait_new_event=True):
            if event.HasField("workflow_execution_signaled_event_attributes"):
                [moved] = event.workflow_execution_signaled_event_attributes.input.payloads
                break
        await stranger.signal("approve", RawValue(moved))
        await stranger.signal(
            "approve", RawValue(Payload(metadata={**moved.metadata, PLACE: handle.id.encode()}, data=moved.data))
        )
        await other.cancel()
        refused: list[str] = []
        while len(refused) < 5:  # a signal is judged some tasks after it was sent
            refused = [line["problem"] for line in (await it.until_waiting(handle.id, "1.0")).refusals]
        assert len(refused) == 5
        assert all("cannot be read: " in line for line in refused)
        await handle.execute_update(DECIDE, {"call": "1.0", "decision": "approve", "by": "me"})
        result = await handle.result()
        history = await handle.fetch_history()
    assert (result.status, len(result.state["x"])) == ("completed", 400_006)
    assert task_failures(history.events) == []
    found = stored(tmp_path)
    assert max(map(len, found)) > 400_000
    assert not any(b"/etc/etc" in data for data in found)


async def use(codec: PayloadCodec, payload: Payload) -> Payload:
    [decoded] = await codec.decode([payload])
    return decoded


async def test_keys_are_changed_without_a_break(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERDURE_CODEC", "perdure.encryption:aes_gcm")
    codecs = []
    (tmp_path / "keys.json").write_text(json.dumps(NEW | OLD))
    for keys in (json.dumps(OLD), f"@{tmp_path / 'keys.json'}", json.dumps(NEW)):
        monkeypatch.setenv("PERDURE_CODEC_KEYS", keys)
        codec = payload_codec()
        assert isinstance(codec, AesGcm)
        codecs.append(codec)
    before, both, after = codecs
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"a word"')
    [old], [new] = await before.encode([plain]), await both.encode([plain])
    assert (old.metadata["encryption-key-id"], new.metadata["encryption-key-id"]) == (b"old", b"new")
    assert [await use(both, one) for one in (old, new, plain)] == [plain] * 3
    assert (await use(after, new), await use(after, old), await use(before, new)) == (plain, old, new)
    assert mask_text(f"the key {OLD['old']}") == "the key [masked]"
    for spoilt in (new.data[:-1], new.data[:12], b"", new.data[:-1] + bytes([new.data[-1] ^ 1])):
        forged = Payload(metadata=new.metadata, data=spoilt)
        assert await use(both, forged) == forged


@pytest.mark.parametrize(
    ("codec", "keys", "words"),
    [
        ("nocolon", "", "must be module:function, not 'nocolon'"),
        ("nope.nope:f", "", "ModuleNotFoundError"),
        ("perdure.encryption:nope", "", "has no attribute 'nope'"),
        ("builtins:dict", "", "returns a dict, but must return a temporalio.converter.PayloadCodec"),
        ("perdure.encryption:aes_gcm", "", "PERDURE_CODEC_KEYS must name keys"),
        ("perdure.encryption:aes_gcm", "{}", "openssl rand -base64 32"),
        ("perdure.encryption:aes_gcm", "{", "PERDURE_CODEC_KEYS"),
        ("perdure.encryption:aes_gcm", '{"a": "c2hvcnQ="}', "the key 'a' must be 32 bytes in base64"),
        ("perdure.encryption:aes_gcm", '{"a": 5}', "PERDURE_CODEC_KEYS.a: must be a valid string"),
    ],
)
async def test_a_codec_that_cannot_be_used_is_one_line(
    codec: str, keys: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CODEC", codec)
    monkeypatch.setenv("PERDURE_CODEC_KEYS", keys)
    with pytest.raises(SettingsError, match=re.escape(words)) as refused:
        data_converter()
    assert "\n" not in str(refused.value)


@pytest.mark.soak  # ten seconds: Temporal's own, before a failed task is tried again
@pytest.mark.usefixtures("encrypted")
async def test_a_run_waits_for_a_worker_that_has_its_key(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(dev_server)
    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(OLD))
    keyless = await connect(dev_server)
    queue = "a-key-is-missing"
    async with harness(keyless, [remove], [DONE], task_queue=queue) as it:
        it.client = client
        handle = await it.start(agent("remove"), {"a": 1})
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                break
    async with harness(client, [remove], [DONE], task_queue=queue):
        assert (await handle.result()).status == "completed"


async def test_r24_9_the_command_lists_the_keys_that_histories_need(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CODEC", "perdure.encryption:aes_gcm")
    address = dev_server.client.service_client.config.target_host
    queues = []
    for keys in (OLD, NEW | OLD):
        monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(keys))
        client = await Client.connect(address, data_converter=data_converter())
        async with harness(client, [], [DONE]) as it:
            await (await it.start(agent())).result()
            queues.append(it.task_queue)
    query = f"TaskQueue IN ({', '.join(map(repr, queues))})"
    env = {"TEMPORAL_ADDRESS": address, "PERDURE_CODEC_KEYS": json.dumps(NEW | OLD | {"unused": OLD["old"]})}
    async with asyncio.timeout(HANG):
        while True:  # the index is a moment late
            said = json.loads((await perdure("codec", "status", "--query", query, "--json", env=env)).out)
            if [(each["key"], each["closed"]) for each in said["keys"] if each["key"]] == [("new", 1), ("old", 1)]:
                break
            await asyncio.sleep(0.1)
    assert said["newest"] == "new"
    shown = (await perdure("codec", "status", "--query", query, env=env)).out
    rows = {line.split()[0]: line for line in shown.splitlines()[1:]}
    assert "encrypts" in rows["new"]
    assert "decrypts" in rows["old"]
    assert "can be removed" in rows["unused"]


async def test_r24_9_sessions_segments_ledgers_audit_logs_and_files_go_on_under_the_newest_key(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERDURE_CODEC", "perdure.encryption:aes_gcm")
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path))
    monkeypatch.setenv("PERDURE_STORAGE_THRESHOLD", "2000")
    address = dev_server.client.service_client.config.target_host
    file = Media(data=b"\x89PNG\r\n\x1a\n" + b"0" * 100, name="a.png")

    def speak(_: Any) -> Any:
        return {"calls": [], "output": "yes"}

    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(OLD))
    namespace = await new_namespace(dev_server.client)
    old = await Client.connect(address, namespace=namespace, data_converter=data_converter())
    sink = f"file:{tmp_path / 'audit.jsonl'}"

    async def audited(client: Client, queue: str, name: str) -> None:
        found = [entry("erasure", "2026-11-26T12:00:00Z", name, {"by": "ann"})]
        await record_entries(client, queue, AuditBatch(entries=found))

    async def lines(count: int) -> list[str]:
        """Return the lines of the audit log once there are so many."""
        log = tmp_path / "audit.jsonl"
        async with asyncio.timeout(HANG):
            while True:
                if log.exists() and len(found := log.read_text(encoding="utf-8").splitlines()) >= count:
                    return found
                await asyncio.sleep(0.05)

    async with desk(dev_server, speak, client=old, audit=sink) as (session, it):
        queue, tenant = it.task_queue, f"tenant-{session.key}"
        await session.reply(await session.send("x" * 40_000, sender="ann", id="first", files=[file]), HANG)
        for _ in range(10):
            await session.reply(await session.send("y" * 8_000, sender="ann"), HANG)
        await session.new(sender="ann")
        for _ in range(11):
            await session.reply(await session.send("z", sender="ann", mode="followup"), HANG)
        await idles(session)
        entries = await session.read_entries()
        assert (await session.show()).archived_through
        await it.client.start_workflow(LEDGER_WORKFLOW, {"tenant": tenant}, id=ledger_id(tenant), task_queue=queue)
        await audited(it.client, queue, "first")
        await lines(1)
        for name, text in (("small", "tea"), ("large", "tea" * 1_000)):
            schedule = Perdure(it.client, task_queue=queue).schedule(name, tenant="acme")
            await schedule.create("reporter", text, cron="0 0 1 1 *", paused=True)
        monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(NEW | OLD))
        client = await Client.connect(address, namespace=namespace, data_converter=data_converter())
        monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(OLD))
        api = Perdure(client, task_queue=queue)
        early = await api.rewrite_keys()
        assert "a worker or client still encrypts with the key old" in early.remaining[0].why
        assert (early.workflows, early.files, early.schedules) == (0, 0, 0)
        [archived] = [each async for each in client.list_workflows(f"WorkflowType = '{SEGMENT_WORKFLOW}'")][:1]
        segment = await read_segment(it.client, archived.id, 1)
        await start_segment(it.client, f"left-{session.key}-1", segment, "nobody-polls")
    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(NEW | OLD))
    query = f"TaskQueue = '{queue}' AND ExecutionStatus = 'Running'"

    async def until(condition: Callable[[dict[str, KeyUse]], bool], query: str | None = query) -> None:
        """Return once the index, which is a moment late, has these uses of keys."""
        async with asyncio.timeout(HANG):
            while True:
                if condition({each.key: each for each in [KeyUse("old"), *await api.key_uses(query)]}):
                    return
                await asyncio.sleep(0.1)

    async with harness(client, [], speak, task_queue=queue, audit=sink):
        await until(lambda uses: uses["old"].open >= 4)
        mine = [each async for each in client.list_workflows(query)]
        assert audit_id(queue) in {each.id for each in mine}
        await until(lambda uses: uses["old"].schedules == 2, None)
        report = await api.rewrite_keys()
        assert (report.key, report.files, report.schedules) == ("new", 1, 2)
        [left] = report.remaining
        assert (left.what, left.id) == ("workflow", f"left-{session.key}-1")
        assert "nobody-polls" in left.why
        await until(lambda uses: {key for key, use in uses.items() if key and use.open} == {"new"})
        repeated = await api.rewrite_keys()
        assert (repeated.files, repeated.schedules) == (0, 0)
    # What goes on needs the old key no more.
    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(NEW))
    later = await Client.connect(address, namespace=namespace, data_converter=data_converter())
    async with harness(later, [], speak, task_queue=queue, audit=sink):
        await audited(later, queue, "first")  # known: no second line
        await audited(later, queue, "second")
        assert verify_chain(await lines(2)).last == 2
        again = Perdure(later, task_queue=queue)
        for name, text in (("small", "tea"), ("large", "tea" * 1_000)):
            assert (await again.schedule(name, tenant="acme").show()).input == text
        assert [each.name async for each in again.list_schedules(tenant="acme")] == ["large", "small"]
        restored = again.session(session.key, tenant="acme")
        assert await restored.read_entries() == entries
        value: Any = {"_media": file.digest, "type": file.type, "bytes": file.size, "name": file.name}
        assert (await again.load_media(value, tenant="acme")).read() == file.read()
        assert await restored.ask("again", sender="ann", timeout=HANG) == "yes"


async def test_r24_9_a_file_whose_key_is_gone_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERDURE_CODEC", "perdure.encryption:aes_gcm")
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path))
    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(OLD))
    await MediaStore(data_converter()).save([Media(data=b"a,b", name="a.csv")])
    before = [stored async for stored in walk_files(data_converter())]
    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(NEW))
    converter = data_converter()
    found = [await encode_again(converter, name, payload) async for name, payload in walk_files(converter)]
    assert found == [False]
    assert [stored async for stored in walk_files(converter)] == before
