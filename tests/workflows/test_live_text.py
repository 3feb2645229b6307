"""What a model is writing can be read while it writes, and no history keeps it (R10.14)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.activities import requests
from perdure.activities.heartbeats import Heartbeat
from perdure.activities.queries import AttemptState
from perdure.activities.requests import WritingReporter
from perdure.client.histories import audit_run
from perdure.hosting.connection import data_converter
from perdure.models.dialects.output_text import text_of
from perdure.queries import answer_of
from perdure.runs.events import EVENTS_QUERY, WATCHED, EventsPage, WrittenText
from perdure.runs.wire import REQUEST_ACTIVITY
from perdure.testing.scripted_model import Fault, Pace, Turn
from tests.support import agent, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

TASKS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
}
WORDS = "It rains in Bergen, as it does. "


async def written(client: Client, run_id: str) -> WrittenText | None:
    """What the run's Request says now that it has written."""
    described = await client.get_workflow_handle(run_id).describe()
    for pending in described.raw_description.pending_activities:
        if pending.activity_type.name == REQUEST_ACTIVITY and pending.heartbeat_details.payloads:
            (found,) = await client.data_converter.decode(pending.heartbeat_details.payloads, [WrittenText])
            assert isinstance(found, WrittenText)
            return found
    return None


async def until(client: Client, run_id: str, holds: Callable[[WrittenText], Any]) -> WrittenText:
    """What is written, once that holds. A run can only be looked at: nothing tells when to look."""
    async with asyncio.timeout(HANG):
        while True:
            found = await written(client, run_id)
            if found is not None and holds(found):
                return found
            await asyncio.sleep(0.02)


class Beats(list[str]):
    """Heartbeats that went out: each is an Action. `alive`: one did to keep the activity's place."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = asyncio.Event()


def beats(monkeypatch: pytest.MonkeyPatch) -> Beats:
    sent = Beats()
    send, beat = Heartbeat.send, Heartbeat._beat

    async def counted(self: Heartbeat, *details: Any) -> None:
        sent.append("told")
        await send(self, *details)

    def counted_beat(self: Heartbeat) -> None:
        sent.append("beat")
        beat(self)
        sent.alive.set()

    monkeypatch.setattr(Heartbeat, "send", counted)
    monkeypatch.setattr(Heartbeat, "_beat", counted_beat)
    return sent


@pytest.mark.parametrize(
    ("dialect", "answer", "text"),
    [
        ("solution", '{"calls":[],"output":"Dear Ann,\\nit \\u00e9', "Dear Ann,\nit é"),
        ("solution", '{"calls":[],"output":{"a": 1,"b": "Dear', '{"a":1,"b":"Dear'),
        ("solution", '{"calls":[],"output":{"text": "Dear', "Dear"),
        ("tools", "Dear Ann", "Dear Ann"),
        ("script", 'output("Dear\\nAnn', "Dear\nAnn"),
    ],
)
async def test_the_output_is_read_while_it_is_written(
    dev_server: WorkflowEnvironment, dialect: str, answer: str, text: str
) -> None:
    gate = asyncio.Event()
    ends = {"solution": '"}}' if "{" in answer[1:] else '"}', "tools": ".", "script": '")\n'}
    turn = Turn(answer + ends[dialect], gate=gate, gate_after=len(answer))
    async with harness(dev_server.client, [], [turn], chunk=3) as it:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}} if '"text"' in answer else True
        handle = await it.start(agent(config={"dialect": dialect}, schema=schema))
        told = await until(dev_server.client, handle.id, lambda it: it.assistant.text == text)
        gate.set()
        result = await handle.result()
    assert (told.request, told.attempt, told.assistant.start) == (1, 1, 0)
    assert text_of(result.output).startswith(text)


async def test_reasoning_is_told_beside_the_answer_and_is_no_part_of_it(dev_server: WorkflowEnvironment) -> None:
    gate = asyncio.Event()
    turn = Turn({"calls": [], "output": "Dear Ann"}, reasoning="She is called Ann.", gate=gate, gate_after=18 + 25)
    async with harness(dev_server.client, [], [turn]) as it:
        handle = await it.start(agent())
        told = await until(dev_server.client, handle.id, lambda it: "Ann." in it.reasoning.text)
        gate.set()
        result = await handle.result()
        shown = (await audit_run(dev_server.client, handle.id)).exchanges[0].answer
        page: EventsPage = await handle.query(EVENTS_QUERY, result_type=EventsPage)
    assert told.reasoning.text == "She is called Ann."
    assert "Ann." not in told.assistant.text
    assert (result.output, shown and shown.thought) == ("Dear Ann", "She is called Ann.")
    ends = [each.data for each in page.events if (each.topic, each.phase) == ("reasoning", "end")]
    assert ends == [{"request": 1, "attempt": 1, "characters": 18}]


async def test_ten_thousand_tokens_add_the_events_of_one_request_and_few_actions(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = WORDS * (40_000 // len(WORDS))
    gate = asyncio.Event()
    script = [{"calls": [], "output": "short"}, Turn({"calls": [], "output": long}, gate=gate, gate_after=39_000)]
    sent = beats(monkeypatch)
    lengths: list[int] = []
    async with harness(dev_server.client, [], script, chunk=4) as it:
        for _ in script:
            sent.clear()
            it.model.pace = Pace(per_token=0.0003 * len(lengths))
            begun = asyncio.get_running_loop().time()
            handle = await it.start(agent())
            if lengths:
                await handle.signal(WATCHED)
                await until(dev_server.client, handle.id, lambda it: it.assistant.start > 0)
                gate.set()
            result = await handle.result()
            took = asyncio.get_running_loop().time() - begun
            history = await handle.fetch_history()
            lengths.append(sum(each.event_type not in TASKS for each in history.events))
    assert result.output == long
    assert lengths[1] == lengths[0] + 1  # the signal
    assert 2 <= len(sent) <= 4 * took + 2


async def test_nobody_is_told_of_an_answer_that_is_whole_at_once(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = beats(monkeypatch)
    async with harness(dev_server.client, [], [{"calls": [], "output": WORDS}], chunk=4000) as it:
        await it.run(agent())
    assert "told" not in sent


async def test_who_comes_while_it_is_written_is_noticed(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_near", lambda _: None)  # as on another worker than the run's
    gate = asyncio.Event()
    answer = f'{{"calls":[],"output":"{WORDS}{WORDS}"}}'
    turn = Turn(answer, gate=gate, gate_after=len(answer) - 50)
    async with harness(dev_server.client, [], [turn]) as it:
        handle = await it.start(agent())
        first = await until(dev_server.client, handle.id, lambda it: it.assistant.text)
        assert await handle.query(WATCHED) == 0
        await handle.signal(WATCHED, args=["whatever", 1])
        async with _noticed() as noticed:
            await asyncio.wait_for(noticed.wait(), HANG)
        gate.set()
        await handle.result()
    assert WORDS.startswith(first.assistant.text[:10])


async def test_a_run_in_the_same_process_is_not_asked_who_watches(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, looked, noticed, asked = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[str]()
    answer = f'{{"calls":[],"output":"{WORDS}{WORDS}"}}'
    on_look, ask = WritingReporter._looked, answer_of

    def looked_at(reporter: WritingReporter, state: AttemptState) -> None:
        before = reporter._events or state.events
        on_look(reporter, state)
        if reporter._knows:
            noticed.set()
        elif state.events > before:
            looked.set()

    async def note(run: Any, query: str, **options: Any) -> Any:
        asked.append(query)
        return await ask(run, query, **options)

    monkeypatch.setattr(WritingReporter, "_looked", looked_at)
    monkeypatch.setattr(requests, "answer_of", note)
    turn = Turn(answer, gate=gate, gate_after=len(answer) - 50)
    async with harness(dev_server.client, [], [turn]) as it:
        handle = await it.start(agent())
        await until(dev_server.client, handle.id, lambda it: it.assistant.text)
        await handle.signal("unknown")  # an event of the history that is no watcher's
        await asyncio.wait_for(looked.wait(), HANG)
        await handle.signal(WATCHED)
        await asyncio.wait_for(noticed.wait(), HANG)
        gate.set()
        await handle.result()
    assert asked == []


@contextlib.asynccontextmanager
async def _noticed() -> AsyncIterator[asyncio.Event]:
    """Set when an activity has asked who watches, and was told."""
    noticed, ask = asyncio.Event(), answer_of

    async def asked(run: Any, query: str, **options: Any) -> Any:
        answer = await ask(run, query, **options)
        if query == WATCHED and answer > 0:
            noticed.set()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "answer_of", asked)
        yield noticed


async def test_another_attempt_says_that_what_was_told_does_not_count(dev_server: WorkflowEnvironment) -> None:
    answer, breaks, gate = f'{{"calls":[],"output":"{WORDS}"}}', asyncio.Event(), asyncio.Event()
    script = [
        Turn(answer, fault=Fault("cut", 42), gate=breaks, gate_after=40),
        Turn(answer.replace("rains", "snows"), gate=gate, gate_after=40),
    ]
    async with harness(dev_server.client, [], script) as it:
        handle = await it.start(agent())
        first = await until(dev_server.client, handle.id, lambda it: it.assistant.text)
        breaks.set()
        again = await until(dev_server.client, handle.id, lambda it: it.attempt > first.attempt)
        text = await until(dev_server.client, handle.id, lambda it: "snows" in it.assistant.text)
        gate.set()
        await handle.result()
    assert "rains" in first.assistant.text
    assert (again.attempt, again.assistant.text in text.assistant.text) == (2, True)


async def test_a_key_is_told_to_nobody_however_it_is_cut(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret-key")
    gate = asyncio.Event()
    answer = '{"calls":[],"output":"the key is sk-very-secret-key, so"}'
    texts: set[str] = set()

    def read(it: WrittenText) -> bool:
        texts.add(it.assistant.text)
        return ", so" in it.assistant.text

    async with harness(dev_server.client, [], [Turn(answer, gate=gate, gate_after=len(answer) - 2)], chunk=1) as it:
        it.model.pace = Pace(per_token=0.05)
        handle = await it.start(agent())
        await handle.signal(WATCHED)
        await until(dev_server.client, handle.id, read)
        gate.set()
        await handle.result()
    assert "the key is [masked], so" in texts
    assert not any("sk-" in text for text in texts)


async def test_what_may_be_no_reply_is_not_told(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, gate = beats(monkeypatch), asyncio.Event()
    answer = '{"calls":[],"output":" \\"NO_REPLY\\" "}'
    async with harness(dev_server.client, [], [Turn(answer, gate=gate, gate_after=len(answer) - 1)], chunk=1) as it:
        handle = await it.start(agent())
        await it.model.wait_for_characters(1, len(answer) - 1)
        await asyncio.wait_for(sent.alive.wait(), HANG)
        told = await written(dev_server.client, handle.id)
        gate.set()
        await handle.result()
    assert told is None


async def test_what_is_told_is_encrypted_like_every_payload(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CODEC", "perdure.encryption:aes_gcm")
    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps({"k": base64.b64encode(bytes(32)).decode()}))
    host = dev_server.client.service_client.config.target_host
    client = await Client.connect(host, data_converter=data_converter())
    gate = asyncio.Event()
    answer = f'{{"calls":[],"output":"{WORDS}"}}'
    async with harness(client, [], [Turn(answer, gate=gate, gate_after=len(answer) - 2)]) as it:
        handle = await it.start(agent())
        await until(client, handle.id, lambda it: WORDS[:-4] in it.assistant.text)
        described = await handle.describe()
        gate.set()
        await handle.result()
    stored = [each.heartbeat_details.SerializeToString() for each in described.raw_description.pending_activities]
    assert any(stored)
    assert not any(b"Bergen" in each for each in stored)
