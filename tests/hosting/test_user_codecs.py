"""A codec or a payload converter of the user's own that raises fails no workflow task (R18.6)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, PayloadCodec, WorkflowSerializationContext
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, tool
from perdure.client import histories
from perdure.hosting.codec import WORKFLOW_TYPES, GuardedCodec
from perdure.hosting.connection import data_converter, with_converter
from perdure.hosting.sdk_internals import workflow_name
from perdure.runs.wire import AGENT_WORKFLOW, DECIDE, REFUSED, RUN_QUERY
from perdure.sessions.wire import END, SEND, SESSION_WORKFLOW, SHOW, TURN
from perdure.workflows import versioning
from tests.support import DONE, Harness, agent, failed_tasks, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEALED = b"test/sealed"
BAD = b"not to be read"
TOO_MUCH = "more than it takes"


class Strict(PayloadCodec):
    """A codec that refuses what it has not encoded, and each value with `TOO_MUCH` in it."""

    breaks = b"\0nothing"
    """It does not decode what has this in it."""

    def __init__(self) -> None:
        self.away: Exception | None = None
        """What it raises at all times, as without its key service."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._seal(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._open(payload) for payload in payloads]

    def _seal(self, payload: Payload) -> Payload:
        if self.away is not None:
            raise self.away
        if TOO_MUCH.encode() in payload.data:
            raise OverflowError("no value of this kind is sealed")
        return Payload(metadata={"encoding": SEALED}, data=payload.SerializeToString())

    def _open(self, payload: Payload) -> Payload:
        if self.away is not None:
            raise self.away
        if payload.metadata["encoding"] != SEALED or payload.data == BAD or self.breaks in payload.data:
            raise RuntimeError("the seal is broken")
        return Payload.FromString(payload.data)


def strict() -> Strict:
    return Strict()


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_CODEC", "tests.hosting.test_user_codecs:strict")


def forged() -> list[RawValue]:
    """Values that the codec raises for: a broken one, and one that it has not made."""
    return [
        RawValue(Payload(metadata={"encoding": SEALED}, data=BAD)),
        RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b'{"call": "1.0"}')),
        RawValue(Payload(metadata={"encoding": SEALED}, data=b"\xff\xff")),
    ]


async def connect(server: WorkflowEnvironment, converter: DataConverter | None = None) -> Client:
    address = server.client.service_client.config.target_host
    return await Client.connect(address, data_converter=converter or data_converter())


@tool(dangerous=True)
def erase(path: str) -> str:
    return path


async def send_each(it: Harness, stranger: Client, run_id: str) -> None:
    """The attack: signals, queries and updates with what cannot be decoded."""
    handle = stranger.get_workflow_handle(run_id)
    for value in forged():
        for name in ("approve", "calls", "nothing of ours"):
            await handle.signal(name, value)
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update(DECIDE, value)
        for name in (RUN_QUERY, "nothing of ours"):
            with pytest.raises(WorkflowQueryFailedError):
                await handle.query(name, value)
    await it.client.get_workflow_handle(run_id).execute_update(DECIDE, {"call": "1.0", "decision": "approve"})


async def attacker_starts(
    it: Harness, stranger: Client, value: RawValue, workflow_type: str = AGENT_WORKFLOW
) -> BaseException | None:
    name = f"forged-{uuid.uuid4().hex[:8]}"
    await stranger.start_workflow(workflow_type, value, id=name, task_queue=it.task_queue)
    handle = it.client.get_workflow_handle(name)
    with pytest.raises(WorkflowFailureError) as ended:
        await asyncio.wait_for(handle.result(), HANG)
    assert await failed_tasks(handle) == []
    return ended.value.cause


@pytest.mark.usefixtures("sealed")
async def test_r18_6_what_a_codec_raises_for_is_refused_with_its_reason(dev_server: WorkflowEnvironment) -> None:
    script = [{"calls": [{"_tool": "erase", "path": "/x"}]}, DONE]
    async with harness(await connect(dev_server), [erase], script) as it:
        handle = await it.start(agent("erase"))
        await it.until_waiting(handle.id, "1.0")
        await send_each(it, dev_server.client, handle.id)
        result = await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
        starts = [attacker_starts(it, dev_server.client, value) for value in forged()]
        ends = await asyncio.wait_for(asyncio.gather(*starts), HANG)
        failed = await failed_tasks(handle)
    assert ([call.status for call in result.calls], failed) == (["done"], [])
    refused = [line["problem"] for line in view.refusals if "cannot be read" in line["problem"]]
    assert len(refused) == len(forged())
    assert "RuntimeError: the seal is broken" in str(refused)
    for cause in ends:
        assert isinstance(cause, ApplicationError)
        assert (cause.type, "cannot be read" in cause.message) == (REFUSED, True)


async def test_the_codec_and_the_replayer_know_the_types_of_all_workflows() -> None:
    registered = {workflow_name(each) for each in versioning.WORKFLOWS}
    assert registered == WORKFLOW_TYPES == set(histories.WORKFLOWS)


@pytest.mark.usefixtures("sealed")
async def test_r18_6_a_session_refuses_what_a_codec_raises_for_with_its_reason(
    dev_server: WorkflowEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness(await connect(dev_server), [], [DONE]) as it:
        session = Perdure(it.client, task_queue=it.task_queue).session(uuid.uuid4().hex[:8], agent=Agent("desk"))
        assert await session.reply(await session.send("hello", sender="ann"), HANG)
        stranger = dev_server.client.get_workflow_handle(session.id)
        problems = []
        for value in forged():
            for name in (TURN, "nothing of ours"):
                await stranger.signal(name, value)
            for name in (SEND, END):
                with pytest.raises(WorkflowUpdateFailedError) as refused:
                    await stranger.execute_update(name, value)
                problems.append(refused.value.cause)
            with pytest.raises(WorkflowQueryFailedError):
                await stranger.query(SHOW, value)
        starts = [attacker_starts(it, dev_server.client, value, SESSION_WORKFLOW) for value in forged()]
        ends = await asyncio.wait_for(asyncio.gather(*starts), HANG)
        failed = await failed_tasks(it.client.get_workflow_handle(session.id))
    assert failed == []
    assert "dropping the signal" not in caplog.text
    for causes, expected in ((problems, "MessageRefusedError"), (ends, REFUSED)):
        for cause in causes:
            assert isinstance(cause, ApplicationError)
            assert cause.type == expected
    for cause in ends:
        assert "[cannot be read: " in str(cause)


class Fussy(PydanticPayloadConverter):
    """A payload converter of the user's own that raises for what has a mark."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        if any("mark" in payload.metadata for payload in payloads):
            raise LookupError("marked values are none")
        return super().from_payloads(payloads, type_hints)


async def test_r18_6_what_a_payload_converter_raises_for_is_refused_with_its_reason(
    dev_server: WorkflowEnvironment,
) -> None:
    client = with_converter(await connect(dev_server, DataConverter(payload_converter_class=Fussy)))
    script = [{"calls": [{"_tool": "erase", "path": "/x"}]}, DONE]
    marked = RawValue(Payload(metadata={"encoding": b"json/plain", "mark": b"1"}, data=b'{"call": "1.0"}'))
    async with harness(client, [erase], script) as it:
        handle = await it.start(agent("erase"))
        await it.until_waiting(handle.id, "1.0")
        stranger = dev_server.client.get_workflow_handle(handle.id)
        await stranger.signal("approve", marked)
        with pytest.raises(WorkflowUpdateFailedError):
            await stranger.execute_update(DECIDE, marked)
        await it.client.get_workflow_handle(handle.id).execute_update(DECIDE, {"call": "1.0", "decision": "approve"})
        result = await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
        cause = await asyncio.wait_for(attacker_starts(it, dev_server.client, marked), HANG)
        failed = await failed_tasks(handle)
    assert ([call.status for call in result.calls], failed) == (["done"], [])
    assert "marked values are none" in str(view.refusals)
    assert isinstance(cause, ApplicationError)
    assert (cause.type, "marked values are none" in cause.message) == (REFUSED, True)


@pytest.mark.usefixtures("sealed")
async def test_r18_6_what_a_codec_does_not_encode_fails_its_call_alone(dev_server: WorkflowEnvironment) -> None:
    @tool(retries=0)
    def note(text: str) -> str:
        return text[:9]

    calls = [
        {"_tool": "note", "text": "more than", "_outputPath": "†state.a"},
        {"_tool": "note", "text": "{†state.a} it takes", "_outputPath": "†state.b"},
    ]
    async with harness(await connect(dev_server), [note], [{"calls": calls}, DONE]) as it:
        handle = await it.start(agent("note"))
        with pytest.raises(ValueError, match="cannot be read: OverflowError: no value of this kind is sealed"):
            await asyncio.wait_for(handle.result(), HANG)  # it tells of the call, with its parameters
        failed = await failed_tasks(handle)
        with pytest.raises(OverflowError):
            await it.start(agent("note"), TOO_MUCH)
    assert failed == []


@pytest.mark.soak  # ten seconds: Temporal's own, before a failed task is tried again
async def test_a_result_that_a_codec_raises_for_is_waited_for(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the engine's own, and its effect is done: a run goes on with it once the codec is mended."""
    monkeypatch.setenv("PERDURE_CODEC", "tests.hosting.test_user_codecs:strict")

    @tool
    def secret() -> str:
        return "a broken seal"

    monkeypatch.setattr(Strict, "breaks", b"a broken seal")
    calls = [{"_tool": "secret", "_outputPath": "†state.a"}]
    async with harness(await connect(dev_server), [secret], [{"calls": calls}, DONE]) as it:
        handle = await it.start(agent("secret"))
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.HasField("workflow_task_failed_event_attributes"):
                break
        monkeypatch.setattr(Strict, "breaks", b"\0nothing")
        result = await asyncio.wait_for(handle.result(), HANG)
    assert [call.status for call in result.calls] == ["done"]


async def test_a_converter_that_does_not_go_by_the_run_is_made_once() -> None:
    """The SDK asks for a run's converter at each payload: made anew, it took 3% of a run's CPU time."""
    converter = data_converter()
    assert converter.with_context(WorkflowSerializationContext(namespace="default", workflow_id="a")) is converter


async def test_a_codec_that_is_away_is_waited_for() -> None:
    inner = Strict()
    codec = GuardedCodec(inner)
    [payload] = await codec.encode([Payload(metadata={"encoding": b"json/plain"}, data=b"1")])
    inner.away = RuntimeError("no key service")
    with pytest.raises(RuntimeError, match="no key service"):
        await codec.decode([payload])
    inner.away = None
    assert (await codec.decode([payload]))[0].data == b"1"


async def test_a_codec_that_hangs_is_given_up_for_this_task() -> None:
    class Hanging(Strict):
        async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
            if any(payload.data.endswith(b"hang") for payload in payloads):
                await asyncio.Event().wait()
            return await super().decode(payloads)

    codec = GuardedCodec(Hanging(), within=0.05)
    good, bad = await codec.encode(
        [Payload(metadata={"encoding": b"json/plain"}, data=data) for data in (b"1", b"hang")]
    )
    with pytest.raises(TimeoutError, match=r"the codec has not answered within 0\.05 s"):
        await asyncio.wait_for(codec.decode([good, bad]), HANG)
    assert (await codec.decode([good]))[0].data == b"1"
