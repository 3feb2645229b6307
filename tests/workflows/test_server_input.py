"""MCP servers that ask while a tool runs (R21.3): a person at the run's inbox answers, or the run's own model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, Run, WaitingView
from perdure.errors import DecisionRefusedError
from perdure.testing.scripted_model import Turn
from perdure.values.json import Json, JsonObject
from perdure.values.limits import MAX_INSIDE
from tests.activities.test_mcp import offered_by, scripted, server
from tests.activities.test_secrets import details_in
from tests.support import DONE, agent, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

BOOK: JsonObject = {"calls": [{"_tool": "x.book", "_outputPath": "†state.booked"}], "output": "†state.booked"}
FORM: JsonObject = {
    "type": "object",
    "properties": {"day": {"type": "string", "enum": ["mon", "tue"]}, "guests": {"type": "integer", "default": 2}},
    "required": ["day"],
}


def elicitation(message: str = "Which day?", **more: Any) -> JsonObject:
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": FORM, **more}}


def tool(name: str, **more: Any) -> JsonObject:
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": False}, **more}


def text(words: str) -> JsonObject:
    return {"content": [{"type": "text", "text": words}]}


def responses(script: Path) -> list[JsonObject]:
    """The responses to what a scripted server has asked."""
    return [json.loads(line) for line in Path(f"{script}.asked").read_text(encoding="utf-8").splitlines()]


async def until_asked(run: Run[Any], words: str) -> WaitingView:
    """The request once this question waits. A run can only be looked at: nothing tells when to look."""
    async with asyncio.timeout(HANG):
        while True:
            for waits in await run.waiting():
                if words in waits.reason:
                    return waits
            await asyncio.sleep(0.02)


DECISIONS: dict[str, tuple[JsonObject, str]] = {
    "1.0": (
        {"decision": "answer", "answer": {"sure": True}},
        "accept [('note', 'none'), ('sure', True)] after a state",
    ),
    "1.1": ({"decision": "answer", "answer": "yes"}, "accept [('note', 'none'), ('sure', True)] after a state"),
    "1.2": (
        {"decision": "answer", "answer": '{"sure": false, "note": "no"}'},
        "accept [('note', 'no'), ('sure', False)] after a state",
    ),
    "1.3": ({"decision": "reject", "reason": "Not now."}, "decline [] after a state"),
    "1.4": ({"decision": "answer", "answer": "done"}, "accept None"),
}
"""What a person decides about each call, and the result that the server makes of that."""
REFUSED: dict[str, Any] = {"perhaps": "perhaps", "no field": {"sure": True, "x": 1}, "sure": {"note": "a"}}


async def test_r21_3_a_servers_questions_are_answered_by_people(dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "notes.pay" if id == "1.4" else "notes.ask", "_outputPath": f"†state.r{id[-1]}"} for id in DECISIONS
    ]
    async with (
        server("stdio") as config,
        offered_by(config) as registry,
        harness(dev_server.client, [], [{"calls": calls, "output": "†state"}], registry=registry) as it,
    ):
        handle = await it.start(agent("notes.ask", "notes.pay"))
        await it.until_waiting(handle.id, *DECISIONS)
        run = Perdure(it.client).get_run(handle.id)
        waiting = {each.call: each for each in await run.waiting()}
        for words, answer in REFUSED.items():
            with pytest.raises(DecisionRefusedError, match=words):
                await run.answer("1.0", answer)
        with pytest.raises(DecisionRefusedError, match="is a question"):
            await run.approve("1.0")
        for id, (decision, _) in DECISIONS.items():
            await run.decide({"call": id, "digest": waiting[id].digest, **decision})
        await handle.result()
        view = await it.view(handle.id)
    first, page = waiting["1.0"], waiting["1.4"]
    assert (first.server, first.question, first.tool) == ("notes", True, "notes.ask")
    assert first.reason == "the MCP server 'notes' asks: Sure? (sure: true or false, note: text)"
    assert first.form is not None
    assert [*first.form["properties"]] == ["sure", "note"]
    assert (page.url, page.form) == ("https://pay.example/17", None)
    assert "to open https://pay.example/17 yourself" in page.reason
    assert view.output == {f"r{id[-1]}": {"result": result} for id, (_, result) in DECISIONS.items()}
    assert {call.status for call in view.calls} == {"done"}
    assert not view.waiting


async def test_r21_3_nobody_answers_in_time_so_the_server_reads_cancel(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    script = tmp_path / "script.json"
    config = scripted(script, tools=[tool("book")], answers={"book": [{"_ask": [elicitation()], **text("none")}]})
    async with offered_by(config) as registry, harness(dev_server.client, [], [BOOK], registry=registry) as it:
        view = await it.run(agent("x.book", config={"approval": {"timeout": 0.1}}))
    assert view.output == "none"
    assert [each.get("result") for each in responses(script)] == [None, {"action": "cancel"}]


async def test_r21_3_a_server_of_2025_is_called_again_with_the_answers(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Its first call is cancelled when it asks; the second one gets the answers that people have given since."""
    script = tmp_path / "script.json"
    steps = [elicitation(), elicitation("And where?")]
    config = scripted(script, tools=[tool("book")], answers={"book": [{"_ask": steps, **text("booked")}]})
    async with offered_by(config) as registry, harness(dev_server.client, [], [BOOK], registry=registry) as it:
        handle = await it.start(agent("x.book"))
        run = Perdure(it.client).get_run(handle.id)
        given: dict[str, Json] = {"Which day?": "mon", "And where?": {"day": "tue", "guests": 4}}
        for words, answer in given.items():
            await until_asked(run, words)
            await run.answer("1.0", answer)
        await handle.result()
        view = await it.view(handle.id)
    assert view.output == "booked"
    first, second = {"day": "mon", "guests": 2}, {"day": "tue", "guests": 4}
    assert [each.get("result", {}).get("content") for each in responses(script)] == [None, first, None, first, second]


async def test_a_servers_question_with_a_key_is_masked(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_API_KEY", key := "sk-live-51H8xYzKEY0000000000")
    script = tmp_path / "script.json"
    asked = elicitation(f"The key {key} has expired. Which day?")
    config = scripted(script, tools=[tool("book")], answers={"book": [{"_ask": [asked], **text("booked")}]})
    async with offered_by(config) as registry, harness(dev_server.client, [], [BOOK], registry=registry) as it:
        handle = await it.start(agent("x.book"))
        run = Perdure(it.client).get_run(handle.id)
        await until_asked(run, "The key [masked] has expired. Which day?")
        await run.answer("1.0", "mon")
        await handle.result()
        history = (await handle.fetch_history()).to_json()
        view = await it.view(handle.id)
    assert view.output == "booked"
    assert key not in history + details_in(history)


async def test_r21_3_sampling_asks_the_runs_model_and_counts(dev_server: WorkflowEnvironment) -> None:
    plan = {
        "calls": [{"_tool": "notes.summarise", "text": "a long tale", "_outputPath": "†state.short"}],
        "output": "†state.short",
    }

    written = {"prompt_tokens": 50, "completion_tokens": 2, "prompt_tokens_details": {"cache_write_tokens": 30}}
    broken = 'data: {"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 1}}\n\n'
    samples = [Turn(raw=[broken]), Turn("A tale.", usage=written)]

    def answer(request: Any) -> Any:
        return samples.pop(0) if "Summarise: a long tale" in request.text else Turn(plan, usage=(100, 10))

    async with (
        server("stdio", sampling=1) as config,
        offered_by(config) as registry,
        harness(dev_server.client, [], answer, registry=registry) as it,
    ):
        handle = await it.start(agent("notes.summarise"))
        await handle.result()
        view = await it.view(handle.id)
    assert str(view.output["result"]).endswith(": A tale.")
    assert view.requests == 1
    assert sum(each.requests for each in view.usage.by_model.values()) == 2
    assert (view.usage.prompt_tokens, view.usage.completion_tokens, view.usage.cache_write_tokens) == (200, 13, 30)


async def test_r21_3_a_server_of_2025_gets_its_sample_beside_a_message_to_the_run(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """The message comes while the model writes the sample. The call goes on, and the sample is written once."""
    script = tmp_path / "script.json"
    asked = {"role": "user", "content": {"type": "text", "text": "SAMPLE"}}
    sampling = {"method": "sampling/createMessage", "params": {"maxTokens": 50, "messages": [asked]}}
    config = scripted(script, tools=[tool("book")], answers={"book": [{"_ask": [sampling], **text("booked")}]})
    config.mcpServers["x"] = config.mcpServers["x"].model_copy(update={"sampling": 1})
    gate, sampled = asyncio.Event(), asyncio.Event()

    def answer(request: Any) -> Any:
        if "SAMPLE" in request.text:
            sampled.set()
            return Turn("A tale.", gate=gate)
        if "Pears" in request.text:
            gate.set()
            return {"calls": [], "output": "pears, {†state.booked}"}
        return BOOK

    async with offered_by(config) as registry, harness(dev_server.client, [], answer, registry=registry) as it:
        run = Perdure(it.client).get_run((await it.start(agent("x.book"))).id)
        async with asyncio.timeout(HANG):
            await sampled.wait()
            await run.steer("Pears, please.", by="ann")
            view = await run.wait()
    assert view.output == "pears, booked"
    assert responses(script)[-1]["result"]["content"]["text"] == "A tale."
    assert (view.requests, sum(each.requests for each in view.usage.by_model.values())) == (2, 3)


async def test_r21_3_a_sample_goes_without_the_parameters_that_its_model_refuses(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    script = tmp_path / "s"
    asked = {"role": "user", "content": {"type": "text", "text": "Summarise: a tale"}}
    params = {"maxTokens": 50, "temperature": 0.2, "messages": [asked]}
    sampling = {"method": "sampling/createMessage", "params": params}
    config = scripted(script, tools=[tool("book")], answers={"book": [{"_ask": [sampling], **text("booked")}]})
    config.mcpServers["x"] = config.mcpServers["x"].model_copy(update={"sampling": 1})

    def answer(request: Any) -> Any:  # as OpenAI's reasoning models do
        if "max_tokens" in request.body:
            words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
            return Turn(words, status=400)
        if "temperature" in request.body:
            words = "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported."
            return Turn(words, status=400)
        return "A tale." if "Summarise" in request.text else BOOK

    async with offered_by(config) as registry, harness(dev_server.client, [], answer, registry=registry) as it:
        handle = await it.start(agent("x.book"))
        await handle.result()
        samples = [each.body for each in it.model.requests if "Summarise" in each.text]
    assert [each.get("max_completion_tokens") for each in samples] == [None, 50, 50]
    assert "temperature" not in samples[-1]
    assert responses(script)[-1]["result"]["content"]["text"] == "A tale."


async def test_r21_3_sampling_is_off_unless_the_servers_entry_permits_it(dev_server: WorkflowEnvironment) -> None:
    plan = {"calls": [{"_tool": "notes.summarise", "text": "a", "_outputPath": "†state.s || †state.error"}]}
    async with (
        server("http") as config,
        offered_by(config) as registry,
        harness(dev_server.client, [], [plan, DONE], registry=registry) as it,
    ):
        handle = await it.start(agent("notes.summarise"))
        await handle.result()
        view = await it.view(handle.id)
    assert [call.status for call in view.calls] == ["failed"]


@pytest.mark.parametrize(
    ("loop", "budget"), [({}, "1,000"), ({"_each": [*range(MAX_INSIDE + 1)]}, "0")], ids=["one", "in-parts"]
)
async def test_r21_3_a_server_gets_no_sample_once_the_runs_budget_is_spent(
    dev_server: WorkflowEnvironment, loop: JsonObject, budget: str
) -> None:
    """The answer whose call asks has spent the budget. No model is asked for the server, and the last Request ends the run."""
    calls = [{"_tool": "notes.summarise", "text": "a", "_outputPath": "†state.s || †state.error", **loop}]
    script = [Turn({"calls": calls}, usage=(900, 100)), DONE]
    async with (
        server("stdio", sampling=1) as config,
        offered_by(config) as registry,
        harness(dev_server.client, [], script, registry=registry) as it,
    ):
        view = await it.run(agent("notes.summarise", config={"token_budget": 1000}))
    (call,) = view.calls
    assert (view.stop_reason, view.requests, len(it.model.requests)) == ("token_budget", 2, 2)
    assert call.error is not None
    assert call.error["code"] == ("iterations_failed" if loop else "token_budget")
    words = f"the MCP server 'notes' may not ask a model: the token budget of {budget} is spent"
    assert words in call.error["message"]
