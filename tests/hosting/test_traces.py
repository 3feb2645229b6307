"""A run's spans: which there are, whose children they are, each once however often it is replayed, and what they do not tell."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, tool
from perdure.activities.secrets import keep_secret
from perdure.hosting import _traces as tracing
from perdure.hosting._traces import Ids, SpanWriter, TracingInterceptor
from perdure.hosting.telemetry import interceptors
from perdure.testing.scripted_model import server_error
from perdure.values.json import JsonObject
from tests.support import DONE, ROOT, Harness, agent, harness, impatient
from tests.timeouts import HANG
from tests.workflows.test_delegates import TEXT, WRITE, WRITER, parts, save, write

pytestmark = pytest.mark.asyncio(loop_scope="session")
impatient_server = impatient(events=24)


@tool
async def look(path: str) -> str:
    """Look at something."""
    return f"looked at {path}"


def looking(at: Any) -> dict[str, Any]:
    return {"calls": [{"_tool": "look", "path": str(at), "_outputPath": "†state.seen"}], "output": None}


LOOK = looking("saffron")


@dataclass
class Traced:
    """A worker whose client traces, and what has been told."""

    it: Harness
    exporter: InMemorySpanExporter
    provider: TracerProvider

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    @property
    def chats(self) -> list[ReadableSpan]:
        """In the order in which they began."""
        found = [span for span in self.spans if told(span)[tracing.OPERATION] == tracing.CHAT]
        return sorted(found, key=lambda span: span.start_time or 0)

    def tree(self) -> dict[str, list[str]]:
        """The names of each span's children, of those that have any; `""` are the spans without a parent."""
        by_id = {of(span): span.name for span in self.spans}
        found: dict[str, list[str]] = {}
        for span in self.spans:
            above = "" if span.parent is None else by_id.get(span.parent.span_id, "?")
            found.setdefault(above, []).append(span.name)
        return {name: sorted(below) for name, below in found.items()}


def of(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@asynccontextmanager
async def traced(
    server: WorkflowEnvironment, script: Any, tools: Sequence[Any] = (look,), *, content: bool = False, **options: Any
) -> AsyncIterator[Traced]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(id_generator=Ids())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    config: dict[str, Any] = {**server.client.config(active_config=True)}
    client = Client(**(config | {"interceptors": [TracingInterceptor(SpanWriter(provider, content=content))]}))
    async with harness(client, tools, script, **options) as it:
        yield Traced(it, exporter, provider)


@pytest.mark.parametrize("cached", [1000, 0])
async def test_a_run_is_one_trace_and_a_replay_makes_no_span_twice(
    dev_server: WorkflowEnvironment, cached: int
) -> None:
    async with traced(dev_server, [LOOK, LOOK, DONE], cached_workflows=cached) as trace:
        view = await trace.it.run(agent("look"))
    assert view.status == "completed"
    assert trace.tree() == {
        "": ["invoke_agent test"],
        "invoke_agent test": ["execute_tool look"] * 2 + ["plan test"] * 3,
        "plan test": ["chat gpt-4o", "chat gpt-4o-mini", "chat gpt-4o-mini"],
    }
    assert len({of(span) for span in trace.spans}) == len(trace.spans) == 9
    assert len({span.context.trace_id for span in trace.spans if span.context}) == 1
    [run] = trace.named("invoke_agent test")
    assert run.start_time is not None
    assert run.end_time is not None
    assert all(run.start_time <= (each.start_time or 0) for each in trace.spans)
    assert all((each.end_time or 0) <= run.end_time for each in trace.named("plan test"))


async def test_spans_say_what_the_conventions_name_and_nothing_of_what_was_said(
    dev_server: WorkflowEnvironment,
) -> None:
    async with traced(dev_server, [LOOK, DONE]) as trace:
        view = await trace.it.run(agent("look"))
    [run], [call], chats = (
        trace.named("invoke_agent test"),
        trace.named("execute_tool look"),
        trace.chats,
    )
    assert told(run) == {
        tracing.OPERATION: "invoke_agent",
        tracing.AGENT: "test",
        tracing.WORKFLOW_ID: view.run_id,
        tracing.RUN_ID: told(run)[tracing.RUN_ID],
        tracing.INPUT_TOKENS: view.usage.prompt_tokens,
        tracing.OUTPUT_TOKENS: view.usage.completion_tokens,
        tracing.STOP: "output",
    }
    assert told(call) == {
        tracing.OPERATION: "execute_tool",
        tracing.TOOL: "look",
        tracing.TOOL_TYPE: "function",
        tracing.CALL: "1.0",
        tracing.ACTIVITY_ID: "1.0",
        tracing.WORKFLOW_ID: view.run_id,
        tracing.RUN_ID: told(run)[tracing.RUN_ID],
        tracing.ATTEMPT: 1,
    }
    first = told(chats[0])
    assert (first[tracing.REQUEST], first[tracing.ATTEMPT], first[tracing.FINISH_REASONS]) == (1, 1, ("stop",))
    assert (first[tracing.PROVIDER], first[tracing.REQUEST_MODEL], chats[0].kind) == (
        "openai",
        "gpt-4o-mini",
        SpanKind.CLIENT,
    )
    assert first[tracing.INPUT_TOKENS] + told(chats[1])[tracing.INPUT_TOKENS] == view.usage.prompt_tokens
    assert told(trace.named("plan test")[0])[tracing.REQUEST] == 1
    assert "saffron" not in "".join(span.to_json() for span in trace.spans)


async def test_a_retry_is_a_second_chat_that_says_so(dev_server: WorkflowEnvironment) -> None:
    async with traced(dev_server, [server_error(), DONE]) as trace:
        await trace.it.run(agent())
    failed, answered = trace.chats
    assert [told(each)[tracing.ATTEMPT] for each in (failed, answered)] == [1, 2]
    assert (failed.status.status_code, answered.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert tracing.ERROR in told(failed)
    assert failed.status.description is None
    assert failed.parent == answered.parent
    assert trace.tree()["plan test"] == ["chat gpt-4o-mini"] * 2


async def test_a_failed_run_and_a_failed_call_say_their_kind(dev_server: WorkflowEnvironment) -> None:
    @tool(retries=0)
    async def break_down(path: str) -> str:
        """Fail as a bug does."""
        raise KeyError(path)

    breaks = {"calls": [{"_tool": "break_down", "path": "saffron"}], "output": None}
    async with traced(dev_server, [breaks], [break_down]) as trace:
        view = await trace.it.run(agent("break_down", config={"max_requests": 1}))
    assert view.status == "failed"
    [run], [call] = trace.named("invoke_agent test"), trace.named("execute_tool break_down")
    assert (told(run)[tracing.ERROR], told(call)[tracing.ERROR]) == ("LimitReached", "KeyError")
    assert told(run)[tracing.INPUT_TOKENS] == view.usage.prompt_tokens
    assert "saffron" not in "".join(span.to_json() for span in trace.spans)


async def test_a_run_that_goes_on_as_new_is_one_span(impatient_server: WorkflowEnvironment) -> None:
    async with traced(impatient_server, [*map(looking, range(6)), DONE]) as trace:
        handle = await trace.it.start(agent("look", config={"max_requests": 20}))
        await handle.result()
        first = await trace.it.client.get_workflow_handle(
            handle.id, run_id=handle.first_execution_run_id
        ).fetch_history()
    assert first.events[-1].HasField("workflow_execution_continued_as_new_event_attributes")
    [run] = trace.named("invoke_agent test")
    assert {key: len(below) for key, below in trace.tree().items()} == {"": 1, "invoke_agent test": 13, "plan test": 7}
    assert len({told(span)[tracing.RUN_ID] for span in trace.spans}) > 1
    assert run.start_time is not None
    assert all(run.start_time <= (each.start_time or 0) for each in trace.spans)


@pytest.mark.parametrize("cached", [1000, 0])
async def test_a_delegate_stands_below_its_giver_and_that_below_whoever_started_it(
    dev_server: WorkflowEnvironment, tmp_path: Path, cached: int
) -> None:
    script = parts(PARENT=[write(), DONE], WRITER=[LOOK, TEXT])
    folder = save(tmp_path, WRITER)
    async with traced(dev_server, script, agents=folder, cached_workflows=cached) as trace:
        with trace.provider.get_tracer("theirs").start_as_current_span("page"):
            handle = await trace.it.start(agent(WRITE))
        await handle.result()
    tree = trace.tree()
    assert tree[""] == ["page"]
    assert tree["page"] == ["invoke_agent test"]
    assert tree["invoke_agent test"] == ["invoke_agent writer", "plan test", "plan test"]
    assert tree["invoke_agent writer"] == ["execute_tool look", "plan writer", "plan writer"]
    assert len({of(span) for span in trace.spans}) == len(trace.spans)


async def test_each_run_of_a_session_is_a_trace_of_its_conversation(dev_server: WorkflowEnvironment) -> None:
    talks: JsonObject = {
        "name": "echo",
        "context": [{"type": "system", "text": "Answer."}],
        "schema": {"type": "string"},
    }
    async with traced(dev_server, lambda _: {"calls": [], "output": "yes"}) as trace:
        perdure = Perdure(trace.it.client, task_queue=trace.it.task_queue)
        session = perdure.session(f"desk-{uuid.uuid4().hex[:8]}", agent=Agent.of(talks))
        for text in ("one", "two"):
            await session.reply(await session.send(text, sender="ann"), HANG)
    runs = trace.named("invoke_agent echo")
    assert len({run.context.trace_id for run in runs if run.context}) == 2
    assert [told(run)[tracing.CONVERSATION] for run in runs] == [session.id] * 2
    assert [run.parent for run in runs] == [None, None]


async def test_content_is_told_where_that_is_switched_on_and_without_keys(dev_server: WorkflowEnvironment) -> None:
    keep_secret(key := "sk-of-the-traces-0001")
    leaks = {"calls": [{"_tool": "look", "path": key, "_outputPath": "†state.seen"}], "output": None}
    async with traced(dev_server, [leaks, DONE], content=True) as trace:
        await trace.it.run(agent("look", context=[{"type": "text", "text": f"Use {key} for saffron."}]))
    [call], chats = trace.named("execute_tool look"), trace.chats
    assert set(json.loads(told(call)[tracing.ARGUMENTS])) == {"path"}
    assert json.loads(told(call)[tracing.RESULT]).startswith("looked at ")
    assert "saffron" in told(chats[0])[tracing.INPUT]
    assert json.loads(told(chats[0])[tracing.INPUT])[0]["parts"][0]["type"] == "text"
    assert json.loads(told(chats[0])[tracing.OUTPUT])[0]["finish_reason"] == "stop"
    assert key not in "".join(span.to_json() for span in trace.spans)


async def test_without_an_address_for_spans_nothing_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert interceptors() == []


async def test_the_docs_know_every_attribute() -> None:
    text = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    known = {
        value
        for name, value in vars(tracing).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str) and "." in value
    }
    others = {
        tracing.SCHEMA,
        "perdure.summary",
        "perdure.sample",
    }  # no attributes: the schema's address, names of activities
    assert [each for each in known - others if f"`{each}`" not in text] == []
