"""Agents of other frameworks, read (R21.2), with agents like the examples of their projects."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import agents
import pydantic_ai
import pytest
from agents.realtime import RealtimeAgent
from pydantic_ai import FunctionToolset, WebSearchTool
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.capabilities import NativeTool, ProcessHistory, Thinking
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider
from temporalio.testing import WorkflowEnvironment
from typer.testing import CliRunner

from perdure import Agent, RunFailedError
from perdure.activities.registry import load_tools
from perdure.agents.frameworks import NotCarried
from perdure.cli.app import app
from perdure.errors import AgentError, MessageRefusedError, SettingsError
from perdure.testing import approve, run_locally
from tests.agents import foreign

asynchronous = pytest.mark.asyncio(loop_scope="session")


def of(source: Any, **given: Any) -> Agent[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Agent.of(source, **given)


def parts(agent: Agent[Any]) -> list[str]:
    return [each.part for each in agent.not_carried]


def tools(document: Any) -> dict[str, Any]:
    found = [each["tool"] for each in document["context"] if each["type"] == "tool"]
    return {(each if isinstance(each, str) else each["name"]): each for each in found}


def test_r21_2_handoffs_in_a_circle_are_delegates_with_what_else_the_agents_have() -> None:
    desk = of(foreign.triage)
    assert desk.name == "triage_agent"
    assert set(desk.delegates()) == {"faq_agent", "seat_agent", "triage_agent"}
    document = desk.document()
    assert document["context"][0] == {"type": "system", "text": "Hand over to the agent that fits."}
    given = tools(document)
    assert [(each["name"], each["_delegate"]) for each in given.values()] == [
        ("transfer_to_faq_agent", "faq_agent"),
        ("transfer_to_seat_agent", "seat_agent"),
    ]
    assert set(given["transfer_to_seat_agent"]["properties"]) == {"request", "reason"}
    assert document["config"] == {
        "models": {"fast": "openai-responses:gpt-5.4", "smart": "openai-responses:gpt-5.4"},
        "sampling": {"temperature": 0.2},
        "parallel": 1,
    }
    assert document["schema"] == {"type": "string"}
    assert set(document["caller_context"]["properties"]) == {"name", "flight"}
    seats = desk.delegates()["seat_agent"]
    assert list(tools(seats)) == ["change_seat", "transfer_to_triage_agent"]
    assert {each.name for each in desk.functions} == {"look_up", "change_seat"}
    assert [(each.ref.event, each.ref.name) for each in desk.hooks] == [
        ("before_tool_call", "triage_agent:transfer_to_seat_agent"),
        ("before_agent_start", "triage_agent:guardrail:no_homework"),
        ("message_received", "triage_agent:guardrail:no_homework"),
        ("before_agent_start", "seat_agent:instructions"),
    ]
    left = [each for each in desk.not_carried if "conversation" not in each.part]
    assert left == [
        NotCarried(
            "triage_agent",
            "model_settings.top_logprobs",
            "Perdure does not send it: leave it out, or set it in a proxy of the model's server",
        )
    ]


def test_r21_2_agents_as_tools_are_delegates_and_hosted_tools_stay() -> None:
    found = of(foreign.orchestrator)
    given = tools(found.document())
    assert given["translate_to_spanish"]["_delegate"] == "spanish"
    assert set(given["translate_to_spanish"]["properties"]) == {"input"}
    assert found.document()["config"]["must_call"] == ["translate_to_spanish"]
    assert parts(found) == []
    assert hosted(found) == ["web_search"]


def hosted(agent: Agent[Any]) -> list[str]:
    return [message["tool"] for message in agent.document()["context"] if message["type"] == "hosted"]


@pytest.mark.parametrize(
    ("tool", "model", "kept", "lost"),
    [
        (agents.WebSearchTool(search_context_size="high"), None, ["web_search"], "search_context_size of the tool"),
        (agents.WebSearchTool(), "gpt-3.5-turbo", [], "the tool 'web_search'"),
        (
            agents.CodeInterpreterTool({"type": "code_interpreter", "container": {"type": "auto"}}),
            "gpt-5.2",
            ["code_execution"],
            "",
        ),
        (
            agents.CodeInterpreterTool({"type": "code_interpreter", "container": "c1"}),
            None,
            ["code_execution"],
            "tool_config of",
        ),
        (agents.FileSearchTool(vector_store_ids=["v"]), None, [], "the tool 'file_search'"),
    ],
)
def test_r21_2_hosted_tools_of_the_openai_sdk(tool: Any, model: str | None, kept: list[str], lost: str) -> None:
    found = of(agents.Agent(name="searcher", instructions="Search.", tools=[tool], model=model))
    assert hosted(found) == kept
    assert [each for each in parts(found) if lost and each.startswith(lost)] == [
        each for each in parts(found) if "tool" in each
    ]
    assert bool(lost) is any("tool" in each for each in parts(found))


def test_r21_2_each_part_that_is_lost_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="agent 'assistant': the output guardrail 'no_phone_number' is not supported"):
        found = Agent.of(foreign.assistant)
    assert set(found.document()["schema"]["properties"]) == {"reasoning", "response"}
    assert parts(found) == ["the output guardrail 'no_phone_number'"]


def test_r21_2_agents_of_pydantic_ai() -> None:
    bank = of(foreign.support, name="support", context=foreign.support_deps)
    assert (bank.name, parts(bank)) == ("support", [])
    assert set(bank.document()["schema"]["properties"]) == {"advice", "block_card", "risk"}
    assert bank.document()["config"]["models"]["smart"] == "openai-responses:gpt-5.2"
    assert [each.name for each in bank.functions] == ["customer_balance"]
    assert parts(of(foreign.support)) == ["deps_type SupportDeps"]
    game = of(foreign.roulette, name="roulette")
    assert game.document()["schema"] == {"type": "boolean"}
    assert game.document()["caller_context"]["required"] == ["winning_number"]
    assert parts(game) == ["the model 'groq:llama-3.3-70b-versatile'", "retries of tools"]
    search = of(foreign.flights)
    assert len(search.document()["schema"]["anyOf"]) == 2
    assert search.document()["config"]["sampling"] == {"temperature": 0.0, "max_tokens": 500}
    assert parts(search) == ["the output validator 'is_in_time'", "model_settings.logit_bias"]


def _length(text: str) -> int:
    return len(text)


def _other(_: Any) -> Any:
    return {}


def _late(_: Any, error: Exception) -> str:
    return str(error)


@agents.function_tool(timeout=3, timeout_error_function=_late)
async def _with_options() -> int:
    return 1


class _Hidden(pydantic_ai.Tool[Any]):
    async def prepare_tool_def(self, _: Any) -> None:
        return None


def _same(messages: Any) -> Any:
    return messages


class _Logging(FunctionToolset):
    async def call_tool(self, *given: Any) -> Any:
        return await super().call_tool(*given)


class _Picky(agents.Agent[Any]):
    async def get_all_tools(self, run_context: Any) -> Any:
        return [each for each in await super().get_all_tools(run_context) if each.name != "secret"]


class _Steered(pydantic_ai.Agent[Any, Any]):
    async def run(self, *given: Any, **more: Any) -> Any:
        return await super().run(*given, **more)


class _Lenient(agents.AgentOutputSchema):
    def validate_json(self, json_str: str) -> Any:
        return json_str


def _patched() -> Any:
    agent = agents.Agent[Any](name="a")
    agent.get_all_tools = _length  # type: ignore[method-assign,assignment]
    return agent


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (lambda: _Picky(name="a"), "the method get_all_tools of _Picky"),
        (lambda: _patched(), "the method get_all_tools of Agent"),
        (lambda: _Steered(), "the method run of _Steered"),
        (lambda: agents.Agent(name="a", output_type=_Lenient(int)), "validate_json of _Lenient"),
        (
            lambda: agents.Agent(name="a", tools=[foreign.spanish.as_tool("t", "d", failure_error_function=_late)]),
            "failure_error_function of the tool 't'",
        ),
        (lambda: pydantic_ai.Agent(capabilities=[ProcessHistory(_same)]), "the capability ProcessHistory"),
        (
            lambda: pydantic_ai.Agent(TestModel(settings={"stop_sequences": ["."]})),
            "model_settings.stop_sequences",
        ),
        (lambda: pydantic_ai.Agent(tools=[_Hidden(_length)]), "the tool '_length'"),
        (lambda: agents.Agent(name="a", tool_use_behavior="stop_on_first_tool"), "tool_use_behavior"),
        (lambda: agents.Agent(name="a", hooks=agents.AgentHooks()), "hooks"),
        (lambda: agents.Agent(name="a", prompt={"id": "p"}), "prompt"),
        (lambda: agents.Agent(name="a", reset_tool_choice=False), "reset_tool_choice"),
        (lambda: agents.Agent(name="a", model="litellm/other/m"), "the model 'litellm/other/m'"),
        (
            lambda: agents.Agent(name="a", tools=[foreign.spanish.as_tool("t", "d", max_turns=2)]),
            "max_turns of the tool 't'",
        ),
        (
            lambda: agents.Agent(name="a", handoffs=[agents.handoff(foreign.spanish, is_enabled=False)]),
            "the handoff 'transfer_to_spanish'",
        ),
        (lambda: pydantic_ai.Agent(output_type=pydantic_ai.TextOutput(_length)), "the output function '_length'"),
        (lambda: pydantic_ai.Agent(model_settings=_other), "model_settings as a function"),
        (lambda: pydantic_ai.Agent(end_strategy="early"), "end_strategy"),
        (lambda: pydantic_ai.Agent(max_concurrency=3), "max_concurrency"),
        (lambda: pydantic_ai.Agent(metadata={"a": 1}), "metadata"),
        (lambda: pydantic_ai.Agent(validation_context=1), "validation_context"),
        (lambda: _instrumented(), "instrument"),
        (lambda: pydantic_ai.Agent(toolsets=[lambda _: None]), "the toolset DynamicToolset"),
        (lambda: pydantic_ai.Agent(toolsets=[_Logging([_length])]), "the toolset _Logging"),
        (
            lambda: pydantic_ai.Agent(toolsets=[FunctionToolset([_length], metadata={"a": 1}).prefixed("my")]),
            "metadata of the tool 'my__length'",
        ),
        (
            lambda: pydantic_ai.Agent(tools=[pydantic_ai.Tool(_length, max_retries=3)]),
            "max_retries of the tool '_length'",
        ),
        (lambda: pydantic_ai.Agent(output_type=pydantic_ai.BinaryImage), "an image as the output"),
        (
            lambda: pydantic_ai.Agent(output_type=pydantic_ai.PromptedOutput(int, template="Give {schema}")),
            "template of the output's PromptedOutput",
        ),
        (lambda: WrapperAgent(pydantic_ai.Agent()), "the wrapper WrapperAgent"),
        (lambda: agents.Agent(name="a", tools=[_with_options]), "timeout_error_function of the tool '_with_options'"),
        (
            lambda: agents.Agent(name="a", tools=[foreign.spanish.as_tool("t", "d", run_config=agents.RunConfig())]),
            "run_config of the tool 't'",
        ),
    ],
)
def test_r21_2_nothing_is_dropped_in_silence(source: Any, part: str) -> None:
    found = of(source())
    assert part in parts(found)
    assert all(each.instead for each in found.not_carried)


def test_r21_2_two_handoffs_of_one_name_are_one_line() -> None:
    desk = agents.Agent(name="desk", handoffs=[agents.Agent(name="Seats"), agents.Agent(name="Seats")])
    with pytest.raises(
        AgentError, match=r"^agent 'desk' has two tools called 'transfer_to_seats': rename one of them$"
    ):
        of(desk)


class _Greeter(agents.Agent[Any]):
    async def get_system_prompt(self, run_context: Any) -> str:
        return f"Greet {run_context.context['name']}."


@asynchronous
async def test_r21_2_a_subclasss_own_system_prompt_and_a_models_own_settings_carry_over(
    dev_server: WorkflowEnvironment,
) -> None:
    greeter = of(_Greeter(name="greeter", instructions="unused"))
    assert parts(greeter) == []
    async with run_locally(greeter, model=[{"calls": [], "output": "Hello."}], server=dev_server) as local:
        await local.run({"request": "hi"}, context={"name": "Ann"})
        assert "Greet Ann." in local.model.requests[0].text
    assert "unused" not in local.model.requests[0].text
    model = OpenAIChatModel("gpt-5.2", provider=OpenAIProvider(api_key="x"), settings={"temperature": 0.1, "seed": 1})
    warm = of(pydantic_ai.Agent(model, model_settings={"temperature": 0.2}))
    assert warm.document()["config"]["sampling"] == {"temperature": 0.2, "seed": 1}


def _all(_: Any, __: Any) -> bool:
    return True


def _hello(_: pydantic_ai.RunContext[Any]) -> str:
    return "Hello."


def test_r21_2_a_toolsets_instructions_and_an_agents_native_tools_carry_over() -> None:
    toolset = FunctionToolset([_length], instructions=["Measure every text.", _hello])
    agent = of(
        pydantic_ai.Agent(
            instructions="Be brief.",
            output_type=pydantic_ai.ToolOutput(int, description="The length."),
            toolsets=[toolset.prefixed("text"), FunctionToolset(instructions="Unread.").filtered(_all)],
            capabilities=[NativeTool(WebSearchTool()), Thinking(effort="high")],
        )
    )
    document = agent.document()
    assert document["context"][0] == {"type": "system", "text": "Be brief.\n\nMeasure every text."}
    assert [each.ref.name for each in agent.hooks] == ["agent:instructions"]
    assert list(tools(document)) == ["text__length"]
    assert hosted(agent) == ["web_search"]
    assert document["config"]["sampling"] == {"reasoning_effort": "high"}
    assert document["schema"] == {"type": "integer", "description": "The length."}
    assert parts(agent) == ["the toolset FilteredToolset"]


def test_r21_2_an_object_that_is_no_agent_is_one_line() -> None:
    with pytest.raises(AgentError, match=r"agents\.realtime\.agent\.RealtimeAgent is not a supported kind of agent"):
        Agent.of(RealtimeAgent(name="voice"))


def _instrumented() -> Any:
    agent = pydantic_ai.Agent()
    agent.instrument = True
    return agent


@asynchronous
async def test_r21_2_a_run_hands_over_asks_and_reads_the_context(dev_server: WorkflowEnvironment) -> None:
    foreign.NOTED.clear()
    call = {
        "_tool": "transfer_to_seat_agent",
        "request": "seat 3C",
        "reason": "window",
        "_outputPath": "†state.done",
    }
    seat = {"_tool": "change_seat", "seat": "3C", "_outputPath": "†state.seat"}
    turns = [{"calls": [call]}, {"calls": [seat], "output": "†state.seat"}, {"calls": [], "output": "†state.done"}]
    people = [approve("change_seat")]
    async with run_locally(of(foreign.triage), model=turns, people=people, server=dev_server) as local:
        view = await local.run({"request": "Seat 3C, please."}, context={"name": "Ann"})
        asked = str(local.model.requests[1])
    assert (view.status, view.output) == ("completed", "Ann sits in 3C")
    assert foreign.NOTED == ["Ann: window"]
    assert "You are Seat Agent, for Ann." in asked


@asynchronous
async def test_r21_2_a_guardrail_refuses_a_run_and_a_message_of_a_session(dev_server: WorkflowEnvironment) -> None:
    async with run_locally(of(foreign.triage), model=[{"calls": [], "output": "hello"}], server=dev_server) as local:
        run = await local.start({"request": "Do my homework."}, context={"name": "Ann"})
        with pytest.raises(RunFailedError, match="the guardrail no_homework stopped the run"):
            await run.result()
        session = local.session("ann")
        with pytest.raises(MessageRefusedError, match="the guardrail no_homework stopped the run"):
            await session.ask("My homework again", sender="ann", context={"name": "Ann"})
        assert await session.ask("Hello", sender="ann", context={"name": "Ann"}) == "hello"


@asynchronous
async def test_r21_2_deps_are_made_on_the_worker_from_the_context(dev_server: WorkflowEnvironment) -> None:
    bank = of(foreign.support, name="support", context=foreign.support_deps)
    call = {"_tool": "customer_balance", "_outputPath": "†state.balance"}
    output = {"advice": "†state.balance", "block_card": False, "risk": 1}
    async with run_locally(bank, model=[{"calls": [call], "output": output}], server=dev_server) as local:
        view = await local.run({"request": "My balance?"}, context={"customer_id": 123})
        asked = str(local.model.requests[0])
    assert bank.read_output(view.output) == foreign.SupportOutput(advice="123: 100", block_card=False, risk=1)
    assert "The customer is John." in asked


def test_r21_2_a_worker_has_the_tools_and_hooks_of_a_modules_agents() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry = load_tools(["tests.agents.foreign"])
        again = Agent.read("tests.agents.foreign:support")
    assert {"look_up", "change_seat", "customer_balance", "wheel"} <= {each.name for each in registry}
    assert {"triage_agent:guardrail:no_homework", "support:instructions"} <= {each.ref.name for each in registry.hooks}
    assert again.name == "support"


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("tests.agents.foreign:nobody", "the module 'tests.agents.foreign' has no 'nobody'"),
        ("tests.agents.foreign:NOTED", "tests.agents.foreign:NOTED is not an agent: give an Agent, or an agent of"),
        ("no.such:agent", "no agent 'no.such:agent': no module is named 'no.such'"),
    ],
)
def test_r21_2_a_place_without_an_agent_is_one_line(place: str, line: str) -> None:
    with pytest.raises(SettingsError, match=line):
        Agent.read(place)


def test_r21_2_no_framework_is_imported_before_its_agent_is_given() -> None:
    code = "import sys, perdure.agents.agent; print({'agents', 'pydantic_ai', 'langchain_core'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["agent", "check", "tests.agents.foreign:assistant"],
            "agent 'assistant': the output guardrail 'no_phone_number'",
        ),
        (["agent", "check", "tests.agents.foreign:triage", "--json"], '"tools":["transfer_to_faq_agent"'),
        (
            ["plan", "validate", "{plan}", "--agent", "tests.agents.foreign:seats"],
            "change_seat: $ lacks 'seat'",
        ),
    ],
)
def test_r21_2_commands_take_an_agent_of_a_module(arguments: list[str], line: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"calls": [{"_tool": "change_seat"}]}', encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended = CliRunner().invoke(app, [each.format(plan=plan) for each in arguments])
    assert line in ended.output + str(ended.exception or "")


def test_a_context_that_is_no_function_is_refused() -> None:
    with pytest.raises(AgentError, match="context=5 is not a function: give one that makes the context"):
        of(foreign.support, name="support", context=5)
