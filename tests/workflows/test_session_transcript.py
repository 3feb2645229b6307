"""A session's transcript over a real server: summaries by a model, however bad, and segments of old entries (R10.11, R10.13)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
import pytest_asyncio
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.activities import transcripts
from perdure.activities.active_executions import ActiveExecutions
from perdure.activities.endpoints import Endpoints
from perdure.activities.transcripts import SummaryActivity
from perdure.runs.claim_check import PAYLOADS_QUERY, read_payloads
from perdure.sessions.compaction import (
    ENTRIES_QUERY,
    HeldEntries,
)
from perdure.sessions.entries import CommandEntry, Entry, MessageEntry
from perdure.sessions.message_queue import QueueState
from perdure.sessions.state import SessionState
from perdure.sessions.transcript import (
    SESSION_FORM,
    Index,
    MessageFilter,
    SessionSnapshot,
    Transcript,
    TranscriptSnapshot,
    is_sent,
    joined_below,
    segment_of,
    segments_to_query,
)
from perdure.sessions.wire import SessionInput
from perdure.testing.scripted_model import ChatRequest, ScriptedModel, Turn, server_error
from perdure.values.json import JsonObject, pack
from perdure.values.messages import parse_messages
from perdure.workflows.session_hooks import SessionHooks
from perdure.workflows.session_transcript import SegmentWorkflow, TranscriptTasks
from tests.sessions.test_compaction import AT, exchange, long_one

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Kept(SessionState):
    def put_away(self, entries: Iterable[Entry]) -> None:
        for entry in filter(is_sent, entries):
            entry.known = {"place": entry.n}


@workflow.defn(name="Tended")
class Tended:
    """Keeps a transcript, and nothing else of a session."""

    @workflow.init
    def __init__(self, carried: TranscriptSnapshot) -> None:
        snapshot = SessionSnapshot(message_queue=QueueState(born="1-"), transcript=carried)
        given = SessionInput(key="tended", snapshot=pack(snapshot, SESSION_FORM))
        self._kept = Kept(given, workflow.info().workflow_id, "1", AT)
        self._kept.models = {"fast": "mini"}
        self._tasks = TranscriptTasks(self._kept, SessionHooks(self._kept, is_new=lambda: False))
        self._over = False

    @workflow.run
    async def run(self, carried: TranscriptSnapshot) -> None:
        del carried
        await workflow.wait_condition(lambda: self._over)

    @workflow.update
    async def look_after(self, why: Any = None) -> str | None:
        return await self._tasks.tend(why)

    @workflow.update
    async def look_for(self, message_id: str) -> int:
        return int((await self._tasks.find(message_id)).get("place", 0))

    @workflow.query(name=PAYLOADS_QUERY)
    def payloads(self, kind: str, names: list[str]) -> JsonObject:
        return read_payloads(lambda name: self._tasks.payload(kind, name), names)

    @workflow.query(name=ENTRIES_QUERY)
    def at_hand(self, after: int) -> HeldEntries:
        return self._tasks.at_hand(after)

    @workflow.query
    def told(self) -> list[Any]:
        return self._kept.transcript.conversation()


class Model:
    """Answers what is written down here, whoever asks."""

    def __init__(self) -> None:
        self.says: list[Any] = []
        self.asked: list[ChatRequest] = []

    def __call__(self, request: ChatRequest) -> Turn:
        self.asked.append(request)
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        return said if isinstance(said, Turn) else Turn(said, dialect="tools", usage=(100, 10))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def model(dev_server: WorkflowEnvironment) -> AsyncIterator[Model]:
    """A worker for such sessions, and the model that it asks."""
    script = Model()
    async with ScriptedModel(script) as server:
        summaries = SummaryActivity(Endpoints(server.client()), {}, ActiveExecutions())
        async with Worker(
            dev_server.client,
            task_queue="tending",
            workflows=[Tended, SegmentWorkflow],
            activities=[summaries.summarize, transcripts.archive, transcripts.find],
            workflow_runner=UnsandboxedWorkflowRunner(),
            patch_activation_callback=lambda _: False,
        ):
            yield script


async def tended(client: Client, transcript: Transcript) -> WorkflowHandle[Any, Any]:
    id = f"session-{uuid.uuid4().hex[:8]}"
    return await client.start_workflow("Tended", transcript.carried(), id=id, task_queue="tending")


async def at_hand(handle: WorkflowHandle[Any, Any]) -> HeldEntries:
    kept: HeldEntries = await handle.query(ENTRIES_QUERY, 0, result_type=HeldEntries)
    return kept


GOOD = "Anna ordered tea, A-1000 first."


async def test_r10_11_a_model_sums_up_what_is_cut(dev_server: WorkflowEnvironment, model: Model) -> None:
    model.says, model.asked = [GOOD], []
    handle = await tended(dev_server.client, long_one(200, 400))
    words = await handle.execute_update("look_after", None, result_type=str)
    assert words is not None
    assert "by summary" in words
    [asked] = model.asked
    assert (asked.model, "A-1000" in asked.shown) == ("mini", True)
    chat = await handle.query("told", result_type=list)
    parse_messages(chat)
    assert GOOD in chat[0]["content"]
    kept = await at_hand(handle)
    assert kept.entries[-1].as_json() | {"kind": "summary", "model": "mini"} == kept.entries[-1].as_json()
    assert await handle.execute_update("look_after", None, result_type=str) is None


@pytest.mark.parametrize(
    ("says", "kind", "asked"),
    [
        ([""], "extract", 2),
        (["word " * 20_000], "extract", 2),
        (["Anna ordered A-31337."], "extract", 2),
        (["Anna ordered A-31337.", GOOD], "summary", 2),
        ([Turn("", refusal="I will not")], "extract", 2),
        ([server_error(500), GOOD], "summary", 2),
        ([Turn("no such model", status=404)], "extract", 1),
        ([Turn("maximum context length is 8192 tokens", status=400), GOOD], "summary", 2),
        ([Turn("maximum context length is 8192 tokens", status=400)], "extract", 3),
    ],
)
async def test_r10_11_a_model_that_sums_up_badly_blocks_no_session(
    dev_server: WorkflowEnvironment, model: Model, says: list[Any], kind: str, asked: int
) -> None:
    model.says, model.asked = says, []
    handle = await tended(dev_server.client, long_one(60, 400))
    words = await handle.execute_update("look_after", "asked", result_type=str)
    assert f"by {kind}" in str(words)
    assert len(model.asked) == asked
    chat = await handle.query("told", result_type=list)
    parse_messages(chat)
    assert "A-1000" in chat[0]["content"]
    assert "31337" not in chat[0]["content"]


async def test_r10_13_old_entries_are_archived_and_found_again(dev_server: WorkflowEnvironment, model: Model) -> None:
    del model
    transcript = Transcript()
    for number in range(900):
        exchange(transcript, number, f"message {number} of a long conversation", "noted " * 20)
    transcript.append(CommandEntry(at=AT, command="new"))
    last = transcript.last
    handle = await tended(dev_server.client, transcript)
    assert await handle.execute_update("look_after", None, result_type=str) is None
    kept = await at_hand(handle)
    [span] = kept.spans
    assert span.segments == 2
    assert kept.last == last
    assert kept.entries[0].n == span.last + 1
    for number in (0, 400, 800):
        assert await handle.execute_update("look_for", f"m{number}", result_type=int) == 3 * number + 1
    assert await handle.execute_update("look_for", "m99999", result_type=int) == 0
    segment = dev_server.client.get_workflow_handle(span.id(1))
    history = await segment.fetch_history()
    assert len(history.events) <= 10
    described = await segment.describe()
    assert described.raw_description.pending_activities == []
    assert described.raw_description.execution_config.workflow_execution_timeout.ToTimedelta().total_seconds() == 0
    size = (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes
    assert size < 700_000  # what it began with: the segments are not in it
    await segment.signal("delete")
    await segment.result()


async def test_r10_1_messages_that_a_session_remembers() -> None:
    remembered = MessageFilter()
    ids = [f"m{number}" for number in range(20_000)]
    for id in ids:
        remembered.add(id)
    again = MessageFilter(remembered.text)
    assert all(id in again for id in ids)
    assert sum(f"x{number}" in again for number in range(20_000)) < 20
    indexes: dict[int, Index] = {}
    for number in range(1, 201):
        entries = [MessageEntry(at=AT, n=number, message_id=f"m{number}", text="")]
        index = Index(segment_of(number, entries).index)
        for below in joined_below(number):
            index = index.joined(indexes[below])
        indexes[number] = index
    for segments in (1, 2, 63, 64, 65, 200):
        questions = list(segments_to_query(segments))
        assert len(questions) <= 6 + segments // 64
        for number in range(1, segments + 1):
            assert [found for each in questions for found in indexes[each].find_all(f"m{number}")] == [number]
        assert not any(indexes[each].find_all("x") for each in questions)
