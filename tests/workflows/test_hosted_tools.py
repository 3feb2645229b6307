"""Hosted tools, which a model's provider runs itself: declared, offered, events, and untrusted (R20.6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment
from typer.testing import CliRunner

from perdure import tool
from perdure.cli.app import app
from perdure.errors import PerdureError
from perdure.testing import ScriptedModel, Turn, approve, check, run_locally
from tests.soak import combined

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODELS = {
    "openai-responses": "openai-responses:gpt-5",
    "anthropic": "anthropic:claude-sonnet-5",
    "google": "google:gemini-3-pro",
}
OFFERED = {
    "openai-responses": [{"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}],
    "anthropic": [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ],
    "google": [{"googleSearch": {}}, {"codeExecution": {}}],
}
USES = [("web_search", "price of tea", "https://tea.example/"), ("code_execution", "print(6 * 7)", "42\n")]
PAY = {"_tool": "pay", "amount": 40, "_outputPath": "†state.paid"}


@tool(dangerous=True, retries=0)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def agent(model: str = MODELS["openai-responses"], *hosted: str, name: str = "buyer", **config: Any) -> dict[str, Any]:
    offered = [{"type": "hosted", "tool": each} for each in hosted or ("web_search", "code_execution")]
    context = [{"type": "system", "text": "Buy tea."}, *offered, {"type": "tool", "tool": "pay"}, {"type": "input"}]
    settings = {"models": {"fast": model, "smart": model}, "approval": {"ask": "untrusted"}, **config}
    return {"name": name, "context": context, "config": settings}


def script() -> list[Any]:
    return [Turn({"calls": [PAY], "output": None}, hosted=USES), {"calls": [], "output": "†state.paid"}]


@pytest.mark.parametrize(("provider", "dialect", "stream"), combined(MODELS, ["solution", "script"], [True, False]))
async def test_a_provider_runs_its_tools_and_what_the_model_writes_is_untrusted(
    provider: str, dialect: str, stream: bool, dev_server: WorkflowEnvironment
) -> None:
    model = ScriptedModel(script(), dialect=dialect)
    made = agent(MODELS[provider], stream=stream, dialect=dialect)
    async with run_locally(made, model=model, tools=[pay], server=dev_server, people=[approve("pay")]) as local:
        run = await local.start({})
        output = await run.result()
        events = [event async for event in run.events(topics=["hosted", "approval"])]
    uses = [event.data for event in events if event.topic == "hosted"]
    (asked,) = [event.data for event in events if (event.topic, event.phase) == ("approval", "start")]
    assert output == "paid 40"
    assert model.requests[0].body["tools"] == OFFERED[provider]
    assert "web_search and code_execution: use these while you write" in str(model.requests[0].body)
    assert sorted((use["tool"], use["input"], use["result"]) for use in uses) == sorted(USES)
    assert [use["status"] for use in uses] == ["done", "done"]
    assert "web_search (written by others)" in asked["reason"]


async def test_without_hosted_tools_the_same_call_is_not_asked_about(dev_server: WorkflowEnvironment) -> None:
    made = agent()
    made["context"] = [each for each in made["context"] if each["type"] != "hosted"]
    script = [{"calls": [PAY], "output": None}, {"calls": [], "output": "†state.paid"}]
    async with run_locally(made, model=script, tools=[pay], server=dev_server) as local:
        view = await local.run({})
    assert (view.output, view.calls[0].approval) == ("paid 40", None)


REFUSED = {
    "model": (agent("gpt-4o", "web_search"), "config.models.fast: the model 'gpt-4o' has no hosted tool 'web_search'; "
              "use a model of openai-responses, anthropic, google"),
    "dialect": (agent(dialect="tools"), "the hosted tool 'web_search' is not supported with the dialect 'tools'"),
    "policy": (agent(approval={"ask": "unsafe"}), "nobody can be asked before the hosted tool 'web_search' acts, and "
               "web_search is not declared safe: set config.approval.tools.web_search to 'never'"),
    "rule": (agent(approval={"flows": [{"from": "*", "to": "web_search", "do": "ask"}]}), "nobody can be asked before"),
    "name": ({**agent(), "context": [*agent()["context"], {"type": "tool", "tool": {"name": "web_search", "_output": {}}}]},
             "a tool of the agent and a hosted tool have the name 'web_search': rename the tool"),
    "plan": (agent(approval="plan"), "a person approves each plan first"),
    "shape": (agent(show="shape"), "config.show: a model reads all that the hosted tool 'web_search' returns"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "line"), REFUSED.values(), ids=REFUSED)
async def test_what_cannot_be_had_is_one_line_at_the_start_and_in_plan_validate(
    made: dict[str, Any], line: str, dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with run_locally(made, model=[], tools=[pay], server=dev_server) as local:
        run = await local.start({})
        with pytest.raises(PerdureError) as raised:
            await run.result()
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
    file = tmp_path / "buyer.json"
    file.write_text(json.dumps({**made, "context": [*made["context"], {"type": "plan", "plan": [PAY]}]}))
    checked = CliRunner().invoke(app, ["plan", "validate", str(file)])
    assert checked.exit_code == 1
    assert line in checked.stdout
    assert any(line in problem for problem in check(made, {"calls": [PAY]}, tools=[pay]).problems)


async def test_a_policy_that_names_the_tool_lets_it_act(dev_server: WorkflowEnvironment) -> None:
    made = agent(MODELS["anthropic"], "web_search", approval={"ask": "unsafe", "tools": {"web_search": "never"}})
    model = ScriptedModel([Turn({"calls": [], "output": "tea"}, hosted=USES[:1])])
    async with run_locally(made, model=model, tools=[pay], server=dev_server) as local:
        view = await local.run({})
    assert (view.status, view.output) == ("completed", "tea")


async def test_a_worker_with_a_floor_refuses_what_it_cannot_ask_about(dev_server: WorkflowEnvironment) -> None:
    made = agent(approval={"tools": {"web_search": "never", "code_execution": "never"}})
    async with run_locally(made, model=[], tools=[pay], server=dev_server, approval_floor="unsafe") as local:
        run = await local.start({})
        with pytest.raises(PerdureError, match="the worker's floor asks about every call that is not declared safe"):
            await run.result()


async def test_a_delegates_hosted_tools_are_its_own_and_its_output_is_untrusted(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    seeker = agent(MODELS["google"], "web_search", name="seeker")
    (tmp_path / "seeker.json").write_text(json.dumps(seeker))
    find = {"name": "find", "properties": {}, "_delegate": "seeker"}
    buyer = agent()
    buyer["context"] = [{"type": "tool", "tool": find}, {"type": "tool", "tool": "pay"}, {"type": "input"}]
    calls = [{"_tool": "find", "_outputPath": "†state.price"}, {**PAY, "amount": "†state.price"}]

    def answer(request: Any) -> Any:
        if request.provider == "google":
            return Turn({"calls": [], "output": 40}, hosted=USES[:1])
        assert "tools" not in request.body
        return {"calls": calls, "output": "†state.paid"}

    people = [approve("pay")]
    options: dict[str, Any] = {"tools": [pay], "server": dev_server, "people": people, "agents": tmp_path}
    async with run_locally(buyer, model=answer, **options) as local:
        run = await local.start({})
        assert await run.result() == "paid 40"
        events = [event async for event in run.events(topics=["approval"])]
    assert "web_search (written by others)" in events[0].data["reason"]


async def test_in_a_session_the_next_run_knows_that_others_wrote(dev_server: WorkflowEnvironment) -> None:
    made = agent(MODELS["anthropic"], "web_search")

    def answer(request: Any) -> Any:
        if "pay" in str(request.messages[-1]["content"]):
            return {"calls": [PAY], "output": "†state.paid"}
        return Turn({"calls": [], "output": "tea costs 40"}, hosted=USES[:1])

    options: dict[str, Any] = {"tools": [pay], "server": dev_server, "people": [approve("pay")]}
    async with run_locally(made, model=answer, **options) as local:
        session = local.session("ann")
        first = await session.send("what does tea cost?", sender="ann", rights=["*"])
        uses = [event.data async for event in session.stream(first, topics=["hosted"])]
        second = await session.send("pay it", sender="ann", rights=["*"])
        asked = [event.data async for event in session.stream(second, topics=["approval"])]
        local.assert_once("pay", amount=40)
    assert [(use["tool"], use["result"]) for use in uses] == [("web_search", "https://tea.example/")]
    assert "web_search (written by others)" in asked[0]["reason"]
