"""Tools of other frameworks (R21.1): the OpenAI Agents SDK, Pydantic AI and LangChain, as they are."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import agents
import pydantic_ai
import pytest
from langchain_core import tools as langchain
from langchain_core.messages import ToolMessage
from pydantic_ai.toolsets import CombinedToolset, FunctionToolset
from temporalio.testing import WorkflowEnvironment

from perdure import Agent
from perdure.errors import AgentError, ToolDefinitionError, ToolError
from perdure.testing import approve, run_locally
from perdure.tools.decorator import ToolContext
from perdure.tools.frameworks import framework_tools, lost_options, tool_functions

asynchronous = pytest.mark.asyncio(loop_scope="session")


@dataclass
class Customer:
    id: str


@agents.function_tool(needs_approval=True, timeout=7.0)
async def refund(ctx: agents.RunContextWrapper[Customer], euros: float) -> str:
    """Pay money back.

    Args:
        euros: How much.
    """
    if euros < 0:
        raise ValueError("euros must be positive")
    return f"{ctx.context.id} gets {euros}"


def orders(ctx: pydantic_ai.RunContext[Customer], limit: int = 3) -> list[str]:
    """List the orders of a customer."""
    if limit > 5:
        raise pydantic_ai.ModelRetry("at most 5")
    return [f"{ctx.deps.id}-{n}" for n in range(limit)]


@langchain.tool
def price(fruit: str) -> float:
    """Return the price of a fruit."""
    if fruit == "stone":
        raise langchain.ToolException("no fruit")
    return 1.5


def greet(name: str) -> str:
    """Greet somebody."""
    return f"hello {name}"


ORDERS: Any = pydantic_ai.Tool(orders, requires_approval=True, sequential=True)
CONTEXT = ToolContext[Any](
    tool_name="t", tool={}, call={}, call_id="1.0", idempotency_key="k", run_id="r", context={"id": "ann"}
)


async def call(tool: Any, **params: Any) -> Any:
    [function] = tool_functions(tool)
    return function.dump(await function.function(**function.bind(params, CONTEXT)))


ToolGuard = agents.ToolGuardrailFunctionOutput


@agents.tool_input_guardrail
def no_secrets(data: agents.ToolInputGuardrailData) -> ToolGuard:
    return ToolGuard.reject_content("leave keys out") if "sk-" in data.context.tool_arguments else ToolGuard.allow()


@agents.tool_input_guardrail
async def known_customer(data: agents.ToolInputGuardrailData) -> ToolGuard:
    return ToolGuard.allow() if data.context.context.id == "ann" else ToolGuard.raise_exception()


@agents.tool_output_guardrail
def no_phone_number(data: agents.ToolOutputGuardrailData) -> ToolGuard:
    return ToolGuard.raise_exception() if "555" in data.output else ToolGuard.allow()


SEARCHED: list[str] = []


@agents.function_tool(tool_input_guardrails=[no_secrets, known_customer], tool_output_guardrails=[no_phone_number])
def search(ctx: agents.RunContextWrapper[Customer], words: str) -> str:
    """Search the notes about a customer."""
    SEARCHED.append(words)
    return f"{ctx.context.id}: {words}"


@asynchronous
@pytest.mark.parametrize(
    ("words", "customer", "refusal", "ran"),
    [
        ("shoes", "ann", "", True),
        ("sk-1", "ann", "leave keys out", False),
        ("shoes", "bob", "the guardrail known_customer stopped search", False),
        ("555-1234", "ann", "the guardrail no_phone_number stopped search", True),
    ],
    ids=["allowed", "input-rejected", "input-raised", "output-raised"],
)
async def test_r21_1_guardrails_of_a_tool_run_before_and_after_it(
    words: str, customer: str, refusal: str, ran: bool
) -> None:
    """A call that an input guardrail refuses never reaches the function, and a refused result never leaves the tool."""
    SEARCHED.clear()
    [function] = tool_functions(search)
    context = replace(CONTEXT, context={"id": customer})
    bound = function.bind({"words": words}, context)
    if refusal:
        with pytest.raises(ToolError) as refused:
            await function.function(**bound)
        assert (refused.value.code, refused.value.message) == ("refused_by_guardrail", refusal)
    else:
        assert await function.function(**bound) == "ann: shoes"
    assert bool(SEARCHED) is ran


def test_r21_1_names_schemas_and_approval_marks_carry_over() -> None:
    [[first], [second], [third]] = [framework_tools(each) for each in (refund, ORDERS, price)]
    assert first.definition["properties"] == {"euros": {"description": "How much.", "type": "number"}}
    assert {key: value for key, value in first.definition.items() if key.startswith("_")} == {
        "_retries": 0,
        "_approval": "always",
        "_timeout": 7.0,
    }
    assert (first.definition["description"], first.definition["required"]) == ("Pay money back.", ["euros"])
    assert second.definition["_approval"] == "always"
    assert second.definition["_exclusive"] is True
    assert second.definition["_output"] == {"type": "array", "items": {"type": "string"}}
    assert second.definition["properties"] == {"limit": {"type": "integer", "default": 3}}
    assert "_approval" not in third.definition
    assert third.definition["properties"] == {"fruit": {"type": "string"}}


@asynchronous
async def test_r21_1_their_context_objects_have_the_runs_context() -> None:
    assert await call(refund, euros=2) == "ann gets 2.0"
    assert await call(ORDERS, limit=2) == ["ann-0", "ann-1"]
    assert await call(ORDERS) == ["ann-0", "ann-1", "ann-2"]
    assert await call(price, fruit="fig") == 1.5


@pytest.mark.parametrize(
    ("tool", "params", "words"),
    [(refund, {"euros": -1}, "positive"), (ORDERS, {"limit": 6}, "at most 5"), (price, {"fruit": "stone"}, "no fruit")],
)
@asynchronous
async def test_r21_1_an_error_of_a_tool_is_an_error_of_its_call(tool: Any, params: Any, words: str) -> None:
    with pytest.raises((ValueError, ToolError), match=words):
        await call(tool, **params)


@langchain.tool
def balance(account: str, customer: Annotated[str, langchain.InjectedToolArg]) -> str:
    """Return the balance of an account."""
    return f"{customer}: {account}"


@asynchronous
async def test_r21_1_an_argument_that_langchain_injects_is_read_from_the_runs_context() -> None:
    [found] = framework_tools(balance)
    assert list(found.definition["properties"]) == ["account"]
    known = replace(CONTEXT, context={"customer": "ann"})
    assert await found.function(**found.bind({"account": "A"}, known)) == "ann: A"
    with pytest.raises(ToolError, match="balance needs 'customer' in the run's context"):
        await found.function(**found.bind({"account": "A"}, replace(CONTEXT, context={})))


@langchain.tool
def note(text: str, call: Annotated[str, langchain.InjectedToolCallId]) -> ToolMessage:
    """Write a note."""
    return ToolMessage(f"{text}: {call}", tool_call_id=call, status="error" if text == "bad" else "success")


@asynchronous
async def test_r21_1_langchains_call_id_messages_and_tools_of_one_text() -> None:
    [found] = framework_tools(note)
    assert list(found.definition["properties"]) == ["text"]
    assert await found.function(**found.bind({"text": "A"}, CONTEXT)) == f"A: {CONTEXT.call_id}"
    with pytest.raises(ToolError, match="bad: "):
        await found.function(**found.bind({"text": "bad"}, CONTEXT))
    [single] = framework_tools(langchain.Tool("shout", str.upper, "Shout.", return_direct=True))
    assert (list(single.definition["properties"]), single.definition["required"]) == (["tool_input"], ["tool_input"])
    assert await single.function(**single.bind({"tool_input": "hey"}, CONTEXT)) == "HEY"
    assert [name for name, _ in lost_options(single)] == ["return_direct"]


def test_r21_1_an_agent_names_the_options_of_its_tools_that_have_no_effect() -> None:
    """Once each, also for an agent that delegates to it, and with one that was read by `Agent.of`."""
    single = langchain.Tool("shout", str.upper, "Shout.", return_direct=True)
    part = "return_direct of the tool 'shout'"
    with pytest.warns(UserWarning, match=part) as warned:
        desk = Agent("desk", tools=[single, greet, {"name": "other"}])
    assert [Path(each.filename).name for each in warned] == ["test_frameworks.py"]
    assert [(each.agent, each.part) for each in desk.not_carried] == [("desk", part)]
    assert Agent("front", tools=[desk]).not_carried == desk.not_carried
    with pytest.warns(UserWarning, match="max_retries of the tool 'orders'") as warned:
        read = Agent.of(pydantic_ai.Agent(name="read", tools=[pydantic_ai.Tool(orders, max_retries=3)]))
    assert len(read.not_carried) == len(warned) == 1


def test_r21_1_a_result_schema_of_the_openai_agents_sdk_carries_over() -> None:
    @agents.function_tool(output_type=Customer)
    def find() -> Customer:
        """Find the customer."""
        return Customer("C-1")

    [found] = framework_tools(find)
    assert found.definition["_output"]["properties"] == {"id": {"type": "string"}}


@pytest.mark.parametrize(
    ("toolset", "name", "properties"),
    [
        (FunctionToolset([greet]).prefixed("shop"), "shop_greet", {}),
        (FunctionToolset([greet]).renamed({"hail": "greet"}), "hail", {}),
        (FunctionToolset([greet], timeout=4).approval_required(), "greet", {"_approval": "always", "_timeout": 4}),
        (
            CombinedToolset([FunctionToolset([greet]).prefixed("a").approval_required()]),
            "a_greet",
            {"_approval": "always"},
        ),
    ],
)
def test_r21_1_a_toolset_of_pydantic_ai_is_read_through_its_wrappers(
    toolset: Any, name: str, properties: dict[str, Any]
) -> None:
    [found] = framework_tools(toolset)
    marks = {key: value for key, value in found.definition.items() if key in ("_approval", "_timeout")}
    assert (found.name, marks) == (name, properties)
    assert Agent.of(pydantic_ai.Agent(name="a", toolsets=[toolset])).not_carried == []
    [plain] = framework_tools(FunctionToolset([greet]))
    assert (plain.name, "_approval" in plain.definition) == ("greet", False)


def _prepare(_: Any, definition: Any) -> Any:
    return definition


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        (
            agents.function_tool(greet, is_enabled=False),
            "tool 'greet': is_enabled=False is not supported: leave the tool out",
        ),
        (
            pydantic_ai.Tool(greet, prepare=_prepare),
            "tool 'greet': prepare is not supported: give the tool to the agents",
        ),
        (
            FunctionToolset([greet]).filtered(lambda *_: True),
            "the toolset FilteredToolset finds its tools at run time",
        ),
    ],
)
def test_r21_1_what_cannot_carry_over_is_one_line(tool: Any, line: str) -> None:
    with pytest.raises(ToolDefinitionError, match=line):
        tool_functions(tool)


async def _numbers() -> Any:
    yield 1


def test_what_is_no_tool_is_one_line() -> None:
    with pytest.raises(
        ToolDefinitionError, match="tool '_numbers' is a generator function: return one value, such as a list"
    ):
        Agent("a", tools=[_numbers])
    with pytest.raises(AgentError, match="is not a tool: give a function, or the name of a tool of the worker's"):
        Agent("a", tools=[agents.WebSearchTool()])
    for whole in (agents.Agent(name="b"), pydantic_ai.Agent(name="b")):
        with pytest.raises(AgentError, match=r"is not a tool: give Agent.of\(agent\) for a subagent, or agent_tool"):
            Agent("a", tools=[whole])


@asynchronous
async def test_r21_1_a_run_calls_tools_of_three_frameworks(dev_server: WorkflowEnvironment) -> None:
    toolset = FunctionToolset([pydantic_ai.Tool(orders)])
    shop = Agent("shop", tools=[refund, toolset, price, greet], output=Any, context=Customer)
    plan: list[Any] = [
        {"_tool": "orders", "limit": 1, "_outputPath": "†state.orders"},
        {"_tool": "price", "fruit": "fig", "_outputPath": "†state.price"},
        {"_tool": "refund", "euros": "†state.price", "_outputPath": "†state.refund"},
        {"_tool": "greet", "name": "†state.refund", "_outputPath": "†state.text"},
    ]
    boss = Agent("boss", tools=[shop, refund], output=Any)
    assert {each.name for each in boss.functions} == {"refund", "orders", "price", "greet"}
    turns = [{"calls": plan}, {"calls": [], "output": "done"}]
    async with run_locally(shop, model=turns, people=[approve("refund")], server=dev_server) as local:
        view = await local.run(context={"id": "ann"})
    assert view.state == {
        "orders": ["ann-0"],
        "price": 1.5,
        "refund": "ann gets 1.5",
        "text": "hello ann gets 1.5",
    }


def test_r21_1_no_framework_is_imported_before_its_tool_is_given() -> None:
    code = "import sys, perdure, perdure.tools.frameworks; print({'agents', 'pydantic_ai', 'langchain_core'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
