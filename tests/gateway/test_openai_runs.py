"""What runs do behind OpenAI's door: they outlive gateways, wait for their clients in every dialect, and are told more meanwhile (R17.2)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from temporalio.testing import WorkflowEnvironment

from perdure import Agent
from perdure.gateway.openai import openai_door
from perdure.testing.turns import ChatRequest, Turn
from tests.gateway.openai_support import SHOPPER, WEATHER, door, says
from tests.gateway.support import gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")
TOOLS: Any = [WEATHER]


def weather(city: str, path: str | None = None) -> dict[str, Any]:
    return {"_tool": "get_weather", "city": city, "_outputPath": f"†state.{path or city.lower()}"}


def results(response: Any, *outputs: str) -> Any:
    calls = [item for item in response.output if item.type == "function_call"]
    pairs = zip(calls, outputs, strict=True)
    return [{"type": "function_call_output", "call_id": call.call_id, "output": output} for call, output in pairs]


async def test_a_run_that_waits_outlives_its_gateway(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    script = [{"calls": [weather("Rome")]}, says("{†state.rome}")]
    async with door(dev_server.client, tmp_path, script) as it:
        async with (
            gateway(dev_server.client, [openai_door], task_queue=it.it.task_queue, **it.given) as first,
            AsyncOpenAI(base_url=f"{first.address}/v1", api_key=it.tokens[0], max_retries=0) as client,
        ):
            asked = await client.responses.create(model="shopper", input="Weather?", tools=TOOLS)
        answer = await it.ai.responses.create(
            model="shopper", previous_response_id=asked.id, input=results(asked, "mild")
        )
        assert answer.output_text == "mild"


async def test_what_a_run_that_goes_on_is_not_told(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with door(dev_server.client, tmp_path, [{"calls": [weather("Rome")]}]) as it:
        asked = await it.ai.responses.create(model="shopper", input="Weather?", tools=TOOLS)
        told: Any = {"model": "shopper", "previous_response_id": asked.id, "input": results(asked, "x")}
        wrong: list[tuple[Any, str]] = [
            ({"instructions": "Other."}, "began with"),
            ({"model": "other"}, "does not exist"),
            ({"input": "Never mind."}, "No tool output found"),
            ({"input": [*told["input"], {"role": "system", "content": "x"}]}, "takes results"),
            ({"input": [{**told["input"][0], "call_id": "call_x"}]}, "No tool output found"),
        ]
        for more, words in wrong:
            with pytest.raises(openai.APIStatusError, match=words):
                await it.ai.responses.create(**(told | more))


async def test_a_gateway_that_ends_says_where_the_run_goes_on(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    def answer(_: ChatRequest) -> dict[str, Any]:
        asked.set()
        return says("Done.")

    async with door(dev_server.client, tmp_path, [Turn(answer, gate=gate)], model_timeout=60) as it:
        async with (
            gateway(dev_server.client, [openai_door], task_queue=it.it.task_queue, **it.given) as first,
            AsyncOpenAI(base_url=f"{first.address}/v1", api_key=it.tokens[0], max_retries=0) as client,
        ):
            waiting = asyncio.ensure_future(client.responses.create(model="shopper", input="Go."))
            await asked.wait()
            first.gateway.stopping.set()
            begun = await waiting
        assert begun.status == "in_progress"
        gate.set()
        while (found := await it.ai.responses.retrieve(begun.id)).status == "in_progress":
            pass
        assert found.output_text == "Done."


async def test_one_call_at_a_time(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    both = {"calls": [weather("Rome"), weather("Oslo")]}
    script = [both, {"calls": [weather("Oslo")]}, says("{†state.rome} {†state.oslo}")]
    async with door(dev_server.client, tmp_path, script) as it:
        response = await it.ai.responses.create(model="shopper", input="x", tools=TOOLS, parallel_tool_calls=False)
        for leg, output in enumerate(("mild", "cold"), 1):
            assert len(response.output) == 1
            assert response.id.endswith(f"_{leg}") or leg == 1
            response = await it.ai.responses.create(
                model="shopper", previous_response_id=response.id, input=results(response, output)
            )
        assert response.output_text == "mild cold"


@pytest.mark.parametrize("dialect", ["tools", "script"])
async def test_in_every_dialect(dialect: str, dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    first = (
        Turn(tool_calls=[("get_weather", '{"city": "Rome"}')])
        if dialect == "tools"
        else Turn('weather = get_weather(city="Rome")\n')
    )
    second = Turn("It is mild.") if dialect == "tools" else Turn("output(weather)\n")
    agents = [SHOPPER | {"config": {"dialect": dialect}}]
    async with door(dev_server.client, tmp_path, [first, second], agents=agents) as it:
        asked = await it.ai.responses.create(model="shopper", input="Weather?", tools=TOOLS)
        answer = await it.ai.responses.create(
            model="shopper", previous_response_id=asked.id, input=results(asked, "It is mild."), stream=True
        )
        text = "".join([event.delta async for event in answer if event.type == "response.output_text.delta"])
        assert text == "It is mild."


async def test_results_and_more_to_say(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    script = [
        {"calls": [weather("Rome")]},
        *[says("Boots, then.")] * 2,
    ]  # the one that has begun is ended by what is said
    async with door(dev_server.client, tmp_path, script) as it:
        asked = await it.ai.responses.create(model="shopper", input="Weather?", tools=TOOLS)
        more = [*results(asked, "snow"), {"role": "user", "content": "I have no boots."}]
        answer = await it.ai.responses.create(model="shopper", previous_response_id=asked.id, input=more)
        assert answer.output_text == "Boots, then."
        assert [text in it.it.model.requests[-1].text for text in ("snow", "I have no boots.")] == [True, True]
        with pytest.raises(openai.BadRequestError, match="nothing waits"):
            await it.ai.responses.create(
                model="shopper", previous_response_id=answer.id, input=results(asked, "once more")
            )


async def test_rights_in_conversations(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """R10.9: a steer goes with the rights of who has begun the run; another agent takes a right of its own."""
    who = [("acme", "ann", ["*"]), ("acme", "bob", ["read", "send"]), ("acme", "kim", ["read"])]
    agents = [SHOPPER, SHOPPER | {"name": "other"}]
    script = [{"calls": [weather("Rome")]}, *[says("Boots.")] * 2, says("Hi.")]
    async with door(dev_server.client, tmp_path, script, who=who, agents=agents) as it:
        _, bob, kim = it.clients
        asked = await bob.responses.create(model="shopper", input="Weather?", tools=TOOLS)
        more = [*results(asked, "snow"), {"role": "user", "content": "I have no boots."}]
        answer = await bob.responses.create(model="shopper", previous_response_id=asked.id, input=more)
        assert "I have no boots." in it.it.model.requests[-1].text
        with pytest.raises(openai.PermissionDeniedError, match="another agent"):
            await bob.responses.create(model="other", previous_response_id=answer.id, input="Hello?")
        perdure = it.served.gateway.perdure
        elsewhere = perdure.session("desk", tenant="acme", agent=Agent.of(SHOPPER))
        await elsewhere.reply(await elsewhere.send("Hello.", sender="ann", rights=["*"]))
        with pytest.raises(openai.PermissionDeniedError, match="another agent"):
            await bob.responses.create(model="shopper", conversation="conv_desk", input="Hello?")
        with pytest.raises(openai.PermissionDeniedError):
            await kim.responses.create(model="shopper", input="Hello?")
        assert (await kim.responses.retrieve(answer.id)).output_text == "Boots."
        with pytest.raises(openai.PermissionDeniedError):
            await kim.responses.cancel(answer.id)
        with pytest.raises(openai.PermissionDeniedError):
            await bob.responses.delete(answer.id)


async def test_a_question_to_a_person_is_answered_with_a_reason(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    agents = [SHOPPER | {"context": [{"type": "tool", "tool": "ask_person"}]}]
    call = {"_tool": "ask_person", "question": "Which size?", "_outputPath": "†state.size"}
    async with door(dev_server.client, tmp_path, [{"calls": [call]}, says("{†state.size}")], agents=agents) as it:
        asked = await it.ai.responses.create(model="shopper", input="Shoes.")
        (item,) = asked.output
        assert item.type == "mcp_approval_request"
        assert json.loads(item.arguments) == {"question": "Which size?"}
        answer: Any = {
            "type": "mcp_approval_response", "approval_request_id": item.id, "approve": True, "reason": "42"
        }  # fmt: skip
        done = await it.ai.responses.create(model="shopper", previous_response_id=asked.id, input=[answer])
        assert done.output_text == "42"


async def test_a_whole_plan_is_approved(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    agents = [SHOPPER | {"config": {"approval": "plan"}}]
    async with door(
        dev_server.client, tmp_path, [{"calls": [weather("Rome")]}, says("{†state.rome}")], agents=agents
    ) as it:
        asked = await it.ai.responses.create(model="shopper", input="Weather?", tools=TOOLS)
        (item,) = asked.output
        assert item.type == "mcp_approval_request"
        assert item.name == "plan"
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True}
        more = await it.ai.responses.create(model="shopper", previous_response_id=asked.id, input=[answer])
        assert [item.type for item in more.output] == ["function_call"]
        done = await it.ai.responses.create(model="shopper", previous_response_id=more.id, input=results(more, "mild"))
        assert (done.output_text, done.id) == ("mild", f"{asked.id}_3")


async def test_an_agent_with_an_input_of_its_own(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    schema = {"properties": {"request": {"type": "string"}}, "required": ["request"]}
    agents = [SHOPPER | {"context": [{"type": "input", "schema": schema}]}]
    async with door(dev_server.client, tmp_path, [says("{†input.request}")] * 2, agents=agents) as it:
        answer = await it.ai.responses.create(model="shopper", input="Shoes.")
        assert answer.output_text == "ann: Shoes.", "in a session it is said by somebody"
        said: Any = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]
        said += [{"role": "user", "content": "Boots."}]
        completion = await it.ai.chat.completions.create(model="shopper", messages=said)
        assert completion.choices[0].message.content == "Boots."


async def test_a_run_that_fails(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with door(dev_server.client, tmp_path, [Turn("no such model", status=404)] * 2) as it:
        failed = await it.ai.responses.create(model="shopper", input="Go.")
        assert failed.status == "failed"
        assert failed.error is not None
        assert "no such model" in failed.error.message
        said: Any = [{"role": "user", "content": "Go."}]
        with pytest.raises(openai.InternalServerError, match="no such model") as told:
            await it.ai.chat.completions.create(model="shopper", messages=said)
        assert told.value.response.headers["x-should-retry"] == "false"
