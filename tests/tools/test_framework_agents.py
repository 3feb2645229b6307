"""Agents of other frameworks as tools, unchanged (R21.2)."""

from __future__ import annotations

import asyncio
from typing import Any

import agents
import pydantic_ai
import pytest
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, agent_tool, tool
from perdure.errors import ToolDefinitionError
from perdure.testing import kill, run_locally
from tests.agents import foreign
from tests.timeouts import HANG

asynchronous = pytest.mark.asyncio(loop_scope="session")


def answer(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
    usage = RequestUsage(input_tokens=70, output_tokens=7, cache_read_tokens=20)
    return ModelResponse(parts=[TextPart("grey")], usage=usage)


def plan(tool: str) -> list[Any]:
    call = {"_tool": tool, "request": "What now?", "_outputPath": "†state.found"}
    return [{"calls": [call], "output": "†state.found"}]


def test_r21_2_its_definition_is_that_of_a_tool() -> None:
    tool = agent_tool(foreign.faq, timeout=90, dangerous=True)
    assert tool.definition == {
        "name": "faq_agent",
        "description": "Answers questions about flights.",
        "properties": {"request": {"type": "string", "description": "What to do, with all that it has to know."}},
        "required": ["request"],
        "_timeout": 90,
        "_retries": 0,
        "_untrusted": True,
        "_dangerous": True,
        "_output": {"type": "string"},
    }
    assert agent_tool(foreign.roulette, name="bet").definition["_output"] == {"type": "boolean"}


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (object(), "is not an agent of the OpenAI Agents SDK or Pydantic AI"),
        (foreign.roulette, "the agent has no name: give agent_tool"),
    ],
)
def test_r21_2_what_is_no_agent_is_one_line(source: object, line: str) -> None:
    with pytest.raises(ToolDefinitionError, match=line):
        agent_tool(source)


def test_r21_2_a_context_that_is_not_json_has_to_be_made() -> None:
    with pytest.raises(ToolDefinitionError, match="SupportDeps cannot be made from JSON: give agent_tool"):
        agent_tool(foreign.support, name="support")
    assert agent_tool(foreign.support, name="support", context=foreign.support_deps).name == "support"


@asynchronous
async def test_r21_2_one_call_runs_an_agent_of_the_openai_agents_sdk(dev_server: WorkflowEnvironment) -> None:
    model = ScriptedModel([[function_call("who", {}, call_id="c1")], [assistant_message("It is Ann.")]])

    @agents.function_tool
    def who(ctx: agents.RunContextWrapper[foreign.Passenger]) -> str:
        """Say who asks."""
        return ctx.context.name

    names = agents.Agent[foreign.Passenger](name="Names", tools=[who], model=model)
    desk = Agent("desk", tools=[agent_tool(names)], output=str)
    async with run_locally(desk, model=plan("names"), server=dev_server) as local:
        view = await local.run({"request": "Who am I?"}, context={"name": "Ann"})
    assert view.output == "It is Ann."
    assert "Ann" in str(model.calls[1])


@asynchronous
async def test_r21_2_its_usage_counts_for_the_run_and_for_the_run_above(dev_server: WorkflowEnvironment) -> None:
    sky: Any = pydantic_ai.Agent(FunctionModel(answer, model_name="sky-1"), name="sky")
    desk = Agent("desk", tools=[agent_tool(sky)], output=str, prices={"sky-1": {"prompt": 1000.0, "completion": 0.0}})
    call = {"_tool": "desk", "request": "?", "_outputPath": "†state.sky"}
    boss = Agent("boss", tools=[desk], output=str, prices={"sky-1": {"prompt": 1000.0, "completion": 0.0}})
    turns = [{"calls": [call], "output": "†state.sky"}, *plan("sky")]
    async with run_locally(boss, model=turns, server=dev_server) as local:
        view = await local.run({"request": "?"})
    assert view.output == "grey"
    assert view.usage is not None
    used = view.usage.by_model["sky-1"]
    assert (used.requests, used.prompt_tokens, used.completion_tokens, used.cached_tokens) == (1, 70, 7, 20)
    assert used.cost == pytest.approx(0.07)


@asynchronous
async def test_r21_2_its_result_is_untrusted(dev_server: WorkflowEnvironment) -> None:
    sky: Any = pydantic_ai.Agent(FunctionModel(answer, model_name="sky-1"), name="sky")
    desk = Agent("desk", tools=[agent_tool(sky)], output=str, show="shape")
    turns = [{"calls": [{"_tool": "sky", "request": "?"}]}, {"calls": [], "output": "done"}]
    async with run_locally(desk, model=turns, server=dev_server) as local:
        await local.run({"request": "?"})
        asked = str(local.model.requests[1])
    assert "grey" not in asked


@pytest.mark.parametrize("framework", ["openai", "pydantic_ai"])
@asynchronous
async def test_r21_2_an_approval_inside_is_an_error_that_says_what_to_do(
    framework: str, dev_server: WorkflowEnvironment
) -> None:
    source: Any
    if framework == "openai":
        model = ScriptedModel([[function_call("change_seat", {"seat": "3C"}, call_id="c1")]])
        source = agents.Agent(name="seats", tools=[foreign.change_seat], model=model)
    else:
        source = pydantic_ai.Agent(
            TestModel(), name="seats", output_type=[str, pydantic_ai.DeferredToolRequests], deps_type=dict
        )
        source.tool_plain(requires_approval=True)(change_seat)
    desk = Agent("desk", tools=[agent_tool(source)], output=str)
    turns = [*plan("seats"), {"calls": [], "output": "no"}]
    async with run_locally(desk, model=turns, server=dev_server) as local:
        view = await local.run({"request": "3C"}, context={"name": "Ann"})
    assert view.calls[0].error is not None
    assert view.calls[0].error["code"] == "needs_approval"
    assert "change_seat" in view.calls[0].error["message"]


def change_seat(seat: str) -> str:
    """Change the seat."""
    return seat


@asynchronous
async def test_r21_2_a_cancelled_run_cancels_the_agent(dev_server: WorkflowEnvironment) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    sky: Any = pydantic_ai.Agent(FunctionModel(wait), name="sky")
    desk = Agent("desk", tools=[agent_tool(sky, heartbeat=1)], output=str)
    async with run_locally(desk, model=plan("sky"), server=dev_server) as local:
        run = await local.start({"request": "?"})
        await asyncio.wait_for(began.wait(), HANG)
        await run.cancel()
        assert (await run.wait()).status == "cancelled"
        await asyncio.wait_for(ended.wait(), HANG)


@pytest.mark.parametrize(
    ("retries", "moves", "error", "output"), [(0, 1, "WorkerLost", "unknown"), (1, 2, None, "grey")]
)
@asynchronous
async def test_r21_2_after_the_death_of_a_worker_the_agent_begins_anew_only_if_retries_allow(
    retries: int, moves: int, error: str | None, output: str, dev_server: WorkflowEnvironment
) -> None:
    moved: list[str] = []

    def move(where: str) -> str:
        """Move the telescope."""
        moved.append(where)
        return "moved"

    @tool(safe=True)
    def today() -> str:
        """Return the day."""
        return "Monday"

    sky: Any = pydantic_ai.Agent(TestModel(call_tools=["move"], custom_output_text="grey"), name="sky", tools=[move])
    desk = Agent("desk", tools=[today, agent_tool(sky, retries=retries)], output=str)
    calls = [
        {"_tool": "today", "_outputPath": "†state.day"},
        {"_tool": "sky", "request": "†state.day", "_outputPath": "†state.found"},
    ]
    turns = [{"calls": calls, "output": "†state.found"}, *([{"calls": [], "output": output}] if error else [])]
    async with run_locally(desk, model=turns, faults=[kill("sky", "during")], server=dev_server) as local:
        view = await local.run({"request": "?"})
        assert len(local.executions("today")) == 1
    assert (len(moved), view.output) == (moves, output)
    assert (view.calls[1].error or {}).get("code") == error
