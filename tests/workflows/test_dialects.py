"""Whole runs in each dialect: what holds for one holds for all (R9.2)."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.activities.transcripts import recall
from perdure.client.histories import exchanges
from perdure.models.dialects.registry import DIALECTS
from perdure.runs.events import EVENTS_QUERY, EventsPage
from perdure.runs.wire import RECALL_QUERY
from perdure.testing.scripted_model import ChatRequest, Fault, Turn, write_answer
from tests.support import DONE, agent, harness, impatient, perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


impatient_server = impatient(40)


@tool
def echo(value: Any) -> Any:
    """Give it back."""
    return value


class Bell:
    """A tool that says when it has been called."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()

        @tool(name="ring")
        async def ring(value: Any = None) -> Any:
            self.rung.set()
            return value

        self.tool = ring


def length(solution: dict[str, Any], dialect: str) -> int:
    answer = write_answer(solution, dialect)
    return len(answer.text) + sum(len(name) + len(arguments) for name, arguments in answer.tool_calls)


RING: dict[str, Any] = {"_tool": "ring", "value": 1, "_outputPath": "†state.a"}
THEN: dict[str, Any] = {"_tool": "echo", "value": "†state.a", "_outputPath": "†state.b"}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_r6_3_a_call_starts_while_the_model_is_writing(dialect: str, dev_server: WorkflowEnvironment) -> None:
    bell, gate = Bell(), asyncio.Event()
    solution = {"calls": [RING, THEN]}
    turn = Turn(solution, gate=gate, gate_after=length({"calls": [RING]}, dialect) + 3)
    async with harness(dev_server.client, [bell.tool, echo], [turn, DONE]) as it:
        it.model.dialect = dialect
        handle = await it.start(agent("ring", "echo", config={"dialect": dialect}))
        await asyncio.wait_for(bell.rung.wait(), HANG)
        assert not gate.is_set()
        gate.set()
        await handle.result()
        view = await it.view(handle.id)
    assert (view.status, view.state) == ("completed", {"a": 1, "b": 1})


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_r6_7_what_was_released_stands_when_the_stream_breaks(
    dialect: str, dev_server: WorkflowEnvironment
) -> None:
    bell, gate = Bell(), asyncio.Event()
    at = length({"calls": [RING]}, dialect) + 3
    turn = Turn({"calls": [RING, THEN]}, gate=gate, gate_after=at, fault=Fault("cut", at))
    async with harness(dev_server.client, [bell.tool, echo], [turn, DONE]) as it:
        it.model.dialect = dialect
        handle = await it.start(agent("ring", "echo", config={"dialect": dialect}))
        await asyncio.wait_for(bell.rung.wait(), HANG)
        gate.set()
        await handle.result()
        view = await it.view(handle.id)
        it.model.check()
    assert (view.status, view.state, view.requests) == ("completed", {"a": 1}, 2)
    assert [error["error"]["code"] for error in view.errors] == ["interrupted"]


def six(request: ChatRequest) -> dict[str, Any]:
    """Six Requests with one call each, then an output."""
    n = request.number
    return {"calls": [{"_tool": "echo", "value": f"value {n}"}]} if n <= 6 else DONE


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_r6_8_a_run_that_goes_on_as_new_forgets_nothing(
    dialect: str, impatient_server: WorkflowEnvironment
) -> None:
    env = {"TEMPORAL_ADDRESS": impatient_server.client.service_client.config.target_host}
    async with harness(impatient_server.client, [echo], six) as it:
        it.model.dialect = dialect
        handle = await it.start(agent("echo", config={"dialect": dialect}))
        result = await handle.result()
        described = await it.client.get_workflow_handle(handle.id).describe()
        sent = [request.messages for request in it.model.requests]
        found = await exchanges(it.client, handle.id)
        shown = await perdure("show", handle.id, "--verbose", env=env)
    assert (result.status, result.requests) == ("completed", 7)
    assert described.run_id != handle.first_execution_run_id
    for n in range(1, 7):
        assert f"value {n}" in str(sent[-1])
    if dialect == "tools":
        assert [message["role"] for message in sent[-1]].count("tool") == 6
    # Every word that was sent, reproduced over all executions.
    assert [exchange.context.messages for exchange in found] == sent
    assert all(exchange.answer is not None for exchange in found)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.count("--- answer") == 7
    assert f"[iter=7 model=gpt-4o reason=third Request on msgs={len(sent[-1])}]" in shown.out


async def test_an_output_in_script_reads_what_the_calls_wrote(dev_server: WorkflowEnvironment) -> None:
    script = 'a = echo(value="x")\nb, error = echo(value=a)\noutput(text=b, all=[a, b], plain="†state.a", escaped="††state.a")\n'
    async with harness(dev_server.client, [echo], [Turn(script)]) as it:
        view = await it.run(agent("echo", config={"dialect": "script"}))
    assert (view.status, view.requests) == ("completed", 1)
    assert view.output == {"text": "x", "all": ["x", "x"], "plain": "x", "escaped": "†state.a"}


async def test_an_output_in_script_that_cannot_be_made_is_told(dev_server: WorkflowEnvironment) -> None:
    script = [Turn('a = echo(value="x")\noutput(text=nowhere)\n'), DONE]
    async with harness(dev_server.client, [echo], script) as it:
        it.model.dialect = "script"
        view = await it.run(agent("echo", config={"dialect": "script"}))
        shown = it.model.requests[1].text
    assert (view.status, view.requests, len(view.errors)) == ("completed", 2, 1)
    assert "the output cannot be made: $.text: †state.nowhere does not exist" in shown


async def test_a_line_that_is_no_call_is_quoted_to_the_model_and_the_rest_runs(dev_server: WorkflowEnvironment) -> None:
    script = [Turn('a = echo(value="x")\nimport os\nb = echo(value=os.getcwd())\nc = echo(value=a)\n'), DONE]
    async with harness(dev_server.client, [echo], script) as it:
        it.model.dialect = "script"
        view = await it.run(agent("echo", config={"dialect": "script"}))
        shown = it.model.requests[1].text
    assert [call.status for call in view.calls] == ["done", "invalid", "invalid", "done"]
    assert "line 2, column 1: nothing is imported" in shown
    assert "The line: b = echo(value=os.getcwd())" in shown
    assert 'a = echo(value="x")  # 1.0 done' in shown


async def test_the_tools_dialect_shows_errors_where_the_results_would_be(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "echo", "value": "x"}, {"_tool": "ecko", "value": 1}, {"_tool": "echo", "value": "†state.none"}]
    async with harness(dev_server.client, [echo], [{"calls": calls}, Turn("Sorry.")]) as it:
        it.model.dialect = "tools"
        view = await it.run(agent("echo", config={"dialect": "tools"}))
        sent = it.model.requests[1].messages
    results = [message["content"] for message in sent if message["role"] == "tool"]
    assert results[0] == "x"
    assert "there is no tool" in results[1]
    assert "†state.none" in results[2]
    assert [message["role"] for message in sent if "# error" in str(message.get("content"))] == []
    assert (view.stop_reason, len(view.errors)) == ("answer", 2)


@pytest.mark.parametrize(
    ("dialect", "how"),
    [
        ("solution", 'Answer with {"output": …}.'),
        ("tools", "Answer in plain text."),
        ("script", "Answer with one line: output(…)."),
    ],
)
async def test_an_agent_without_tools_is_told_how_to_answer(
    dialect: str, how: str, dev_server: WorkflowEnvironment
) -> None:
    async with harness(dev_server.client, [], [{"output": {"ok": True}}]) as it:
        it.model.dialect = dialect
        view = await it.run(agent(config={"dialect": dialect}))
        sent = it.model.requests[0]
    assert (view.status, view.output) == ("completed", {"ok": True})
    assert how in sent.text
    assert "tools" not in sent.body


async def test_r16_4_a_script_loops_and_decides_and_the_model_is_shown_it_as_it_wrote_it(
    dev_server: WorkflowEnvironment,
) -> None:
    script = (
        'rest = echo(value=["c"])\nfor at, word in enumerate(["a", "b", "stop"] + rest):\n    if word == "stop":\n        continue\n'
        '    said = echo(value=f"{at}{word}")\n    if at > 2:\n        last = echo(value=said)\nn = 0\nwhile n < 2:\n    n = echo(value=n + 1)\n'
        "if n > 5:\n    output(said)\n"
    )
    async with harness(dev_server.client, [echo], [Turn(script), Turn("output([x for x in last if x], )\n")]) as it:
        it.model.dialect = "script"
        view = await it.run(agent("echo", config={"dialect": "script"}))
        shown = it.model.requests[1].text
    assert (view.output, view.requests) == (["3c"], 2)
    assert (view.state["said"], view.state["last"], view.state["n"]) == (
        ["0a", "1b", None, "3c"],
        [None, None, None, "3c"],
        2,
    )
    assert "for at, word in enumerate([" in shown
    assert '    said = echo(value=f"{at}{word}"' in shown or "    said = echo(value=f'{at}{word}'" in shown


PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 129).decode()


@tool
def report(rows: int) -> str:
    """A long text."""
    return "".join(f"row {n:>6}\n" for n in range(rows))[: rows * 10 - 4] + "END."


@tool
def picture() -> dict[str, Any]:
    """A picture of 44,000 characters."""
    return {"shot": PICTURE}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_r10_18_a_model_is_shown_results_cut_and_reads_the_rest_by_recall(
    dialect: str, dev_server: WorkflowEnvironment
) -> None:
    first = [
        {"_tool": "report", "rows": 5000},
        {"_tool": "report", "rows": 6000, "_outputPath": "†state.kept"},
        {"_tool": "picture", "_outputPath": "†state.shot"},
        {"_tool": "picture"},
    ]
    rest = [{"_tool": "recall", "what": "1.0", "page": 5}, {"_tool": "recall", "what": "state.kept", "page": 5}]
    rest.append({"_tool": "echo", "value": "†state.kept", "_outputPath": "†state.copy"})
    turns = [{"calls": first}, {"calls": rest}, DONE]
    async with harness(dev_server.client, [report, picture, echo, recall], turns) as it:
        it.model.dialect = dialect
        handle = await it.start(agent("report", "picture", "echo", config={"dialect": dialect}))
        result = await handle.result()
        before, shown, after = (json.dumps(request.body, ensure_ascii=False) for request in it.model.requests)
        env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
        printed = (await perdure("show", handle.id, env=env)).out
        page: EventsPage = await handle.query(EVENTS_QUERY, args=[0, 1000], result_type=EventsPage)
        whole = await handle.query(RECALL_QUERY, args=["1.0", 1])
    assert (result.status, len(result.state["kept"])) == ("completed", 60_000)
    assert result.state["copy"] == result.state["kept"]
    assert result.state["shot"] == {"shot": PICTURE}
    assert "recall" not in before
    assert "[50,000 characters; the rest: recall 1.0]" in shown
    assert "[60,000 characters; the rest: recall " in shown
    assert "END." not in shown
    assert "Read again, word for word" in shown
    assert [call.status for call in result.calls[4:]] == ["done"] * 3
    assert after.count("END.") == 2
    assert (whole["page"], whole["pages"]) == (1, 5)
    for text in (shown, after, printed, page.model_dump_json()):
        assert PICTURE[:200] not in text
        assert "[image/png, 33,032 bytes" in text
