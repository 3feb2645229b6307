"""What runs do behind OpenAI's door: they outlive gateways, wait for their clients in every dialect, and are told more meanwhile (R17.2)."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from rich.console import Console
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, hook, refuse, tool
from perdure.cli._run_view import run_table
from perdure.errors import RunError
from perdure.gateway.agui.adapter import agui_adapter
from perdure.gateway.ai_sdk.adapter import ai_sdk_adapter
from perdure.gateway.openai.adapter import openai_adapter
from perdure.hooks import BeforeAgentStart
from perdure.pages.adapter import pages, sign_in
from perdure.testing.cases import record, replay
from perdure.testing.scripted_model import ChatRequest, ScriptedModel, Turn, refusal
from tests.gateway.openai_support import SHOPPER, WEATHER, door, says
from tests.gateway.support import bearer, gateway, write_agents
from tests.timeouts import HANG

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
            gateway(dev_server.client, [openai_adapter], task_queue=it.it.task_queue, **it.given) as first,
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
            ({"instructions": "Other."}, "first instructions"),
            ({"model": "other"}, "does not exist"),
            ({"input": "Never mind."}, "No tool output found"),
            ({"input": [*told["input"], {"role": "system", "content": "x"}]}, "accepts results"),
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
            gateway(dev_server.client, [openai_adapter], task_queue=it.it.task_queue, **it.given) as first,
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


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        (
            "/v1/chat/completions",
            {"model": "shopper", "messages": [{"role": "user", "content": "Go."}], "stream": True},
            ["error.code", "still_running"],
        ),
        ("/v1/responses", {"model": "shopper", "input": "Go.", "stream": True}, ["code", "still_running"]),
        (
            "/ag-ui/shopper",
            {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "Go."}]},
            ["type", "RUN_ERROR"],
        ),
        (
            "/ai-sdk/shopper",
            {
                "id": "chat",
                "trigger": "submit-message",
                "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Go."}]}],
            },
            ["type", "error"],
        ),
    ],
)
async def test_a_stream_that_the_gateway_ends_says_that_its_answer_is_not_complete(
    path: str, body: dict[str, Any], last: list[str], dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    adapters = [openai_adapter, agui_adapter, ai_sdk_adapter]
    async with (
        door(dev_server.client, tmp_path, [Turn(says("Done."), gate=gate)], model_timeout=60) as it,
        gateway(dev_server.client, adapters, task_queue=it.it.task_queue, **it.given) as ending,
        httpx2.AsyncClient(base_url=ending.address, headers=bearer(it.tokens[0]), timeout=HANG) as http,
        http.stream("POST", path, json=body) as answer,
    ):
        lines = answer.aiter_lines()
        assert (await anext(lines)).partition(":")[0] in ("data", "event")
        await it.it.model.wait_for_request(1)
        ending.gateway.stopping.set()
        data = [line.removeprefix("data: ") async for line in lines if line.startswith("data: {")]
        gate.set()
    said = json.loads(data[-1])
    for key in last[0].split("."):
        said = said[key]
    assert said == last[1]


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


@pytest.mark.parametrize("client_calls", [True, False], ids=["client", "worker"])
async def test_a_text_beside_calls_is_in_a_stream_before_the_answer(
    client_calls: bool, dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """The text counts: the Request was not retried."""

    @tool
    def get_weather(city: str) -> str:
        return f"mild in {city}"

    remark = Turn("Let me look it up.", tool_calls=[("get_weather", '{"city": "Rome"}')])
    script = [remark, remark] if client_calls else [remark, Turn("It is mild.")] * 2
    own: list[Any] = [] if client_calls else [{"type": "tool", "tool": "get_weather"}]
    agent = SHOPPER | {"config": {"dialect": "tools"}, "context": [*SHOPPER["context"], *own]}
    tools: Any = TOOLS if client_calls else []
    functions = [] if client_calls else [get_weather]
    async with door(dev_server.client, tmp_path, script, agents=[agent], functions=functions) as it:
        said: Any = [{"role": "user", "content": "Weather?"}]
        chat: Any = [{"type": "function", "function": {key: value for key, value in WEATHER.items() if key != "type"}}]
        given: Any = {"tools": chat} if client_calls else {}
        stream = await it.ai.chat.completions.create(model="shopper", messages=said, stream=True, **given)
        choices = [chunk.choices[0] async for chunk in stream]
        text = "".join(choice.delta.content or "" for choice in choices)
        called = [call.function.name for choice in choices for call in choice.delta.tool_calls or ()]
        async with it.ai.responses.stream(model="shopper", input="Weather?", tools=tools) as events:
            numbers = [event.sequence_number async for event in events]
            final = await events.get_final_response()
    if client_calls:
        assert (text, called, choices[-1].finish_reason) == ("", ["get_weather"], "tool_calls")  # its end comes later
        assert [item.type for item in final.output] == ["function_call"]
    else:
        assert (text, called, choices[-1].finish_reason) == ("Let me look it up.\n\nIt is mild.", [], "stop")
        assert final.output_text == "It is mild."
    assert numbers == sorted(set(numbers))


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
        with pytest.raises(openai.BadRequestError, match="no request waits"):
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
        with pytest.raises(openai.PermissionDeniedError, match="the right 'agent' is missing"):
            await bob.responses.create(model="other", previous_response_id=answer.id, input="Hello?")
        perdure = it.served.gateway.perdure
        elsewhere = perdure.session("desk", tenant="acme", agent=Agent.of(SHOPPER))
        await elsewhere.reply(await elsewhere.send("Hello.", sender="ann", rights=["*"]))
        with pytest.raises(openai.PermissionDeniedError, match="the right 'agent' is missing"):
            await bob.responses.create(model="other", conversation="conv_desk", input="Hello?")
        with pytest.raises(openai.PermissionDeniedError):
            await kim.responses.create(model="shopper", input="Hello?")
        assert (await kim.responses.retrieve(answer.id)).output_text == "Boots."
        with pytest.raises(openai.PermissionDeniedError):
            await kim.responses.cancel(answer.id)
        with pytest.raises(openai.PermissionDeniedError):
            await bob.responses.delete(answer.id)


async def test_an_agent_whose_file_has_another_name_goes_on_in_a_conversation(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """The candidate of a rollout has its agent's name."""
    folder = write_agents(tmp_path / "agents", SHOPPER)
    (folder / "shopper-2.json").write_text(json.dumps(SHOPPER), encoding="utf-8")
    who = [("acme", "bob", ["read", "send"])]
    async with door(dev_server.client, tmp_path, [says("One."), says("Two.")], who=who) as it:
        conversation = (await it.ai.conversations.create()).id
        for answer in ("One.", "Two."):
            response = await it.ai.responses.create(model="shopper-2", conversation=conversation, input="Go on.")
            assert response.output_text == answer


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
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True}
        with pytest.raises(openai.BadRequestError, match="is a question: send its answer as the reason"):
            await it.ai.responses.create(model="shopper", previous_response_id=asked.id, input=[answer])
        answer["reason"] = "42"
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
    """Its effects stay: nothing that is told of it has a client send the same again."""
    async with door(dev_server.client, tmp_path, [Turn("no such model", status=404)] * 3) as it:
        failed = await it.ai.responses.create(model="shopper", input="Go.")
        assert failed.status == "failed"
        assert failed.error is not None
        assert "no such model" in failed.error.message
        told = failed.error.to_dict()
        assert (told["code"], told["type"], told["param"]) == ("invalid_prompt", "invalid_request_error", None)
        said: Any = [{"role": "user", "content": "Go."}]
        patient = it.ai.with_options(max_retries=3)
        with pytest.raises(openai.UnprocessableEntityError, match="no such model") as caught:
            await patient.chat.completions.create(model="shopper", messages=said)
        assert (caught.value.type, caught.value.code) == ("invalid_request_error", "run_failed")
        with pytest.raises(openai.APIError, match="no such model") as broken:
            [each async for each in await patient.chat.completions.create(model="shopper", messages=said, stream=True)]
        assert broken.value.type == "invalid_request_error"
        assert len(it.it.model.requests) == 3


async def test_a_refusal_is_a_part_of_its_own(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """R20.2: what the model said in place of an answer."""
    words = "I will not help with that."
    async with door(dev_server.client, tmp_path, [refusal(words)] * 8) as it:
        found: Any = await it.ai.responses.create(model="shopper", input="Go.")
        assert found.status == "completed"
        assert [(part.type, part.refusal) for part in found.output[0].content] == [("refusal", words)]
        async with it.ai.responses.stream(model="shopper", input="Go.") as stream:
            kinds = [event.type async for event in stream]
            final: Any = await stream.get_final_response()
        assert kinds.count("response.refusal.done") == 1
        assert final.output[0].content[0].refusal == words
        said: Any = [{"role": "user", "content": "Go."}]
        completion = await it.ai.chat.completions.create(model="shopper", messages=said)
        assert (completion.choices[0].message.refusal, completion.choices[0].message.content) == (words, None)
        deltas = [
            each async for each in await it.ai.chat.completions.create(model="shopper", messages=said, stream=True)
        ]
        assert "".join(each.choices[0].delta.refusal or "" for each in deltas) == words


async def test_a_run_that_has_not_begun_is_read_like_any_other(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """Reading an accepted run never fails: neither while a hook decides about its start, nor where its agent file is fetched first."""
    asked, gate, refuses = asyncio.Event(), asyncio.Event(), False

    @hook("before_agent_start")
    async def judges(event: BeforeAgentStart) -> Any:  # noqa: ARG001  # hooks take their event
        asked.set()
        await gate.wait()
        return refuse("Not today.") if refuses else None

    script = [says("Fine."), says("Long.")]
    async with door(dev_server.client, tmp_path, script, functions=[judges]) as it:
        begun = await it.ai.responses.create(model="shopper", input="Go.", background=True)
        await asked.wait()
        seen = await it.ai.responses.retrieve(begun.id)
        assert (seen.status, seen.model, seen.output) == ("in_progress", "shopper", [])
        run = it.served.gateway.perdure.get_run(seen.to_dict()["perdure"]["run_id"])  # type: ignore[index]
        assert [await run.value(what) for what in ("output", "state", "calls")] == ["null", "{}", "[]"]
        with pytest.raises(RunError, match="has not started"):
            await run.value("1.0")
        gate.set()
        answer = await _ended(it.ai, begun.id)
        assert answer.output_text == "Fine."
        long = await it.ai.responses.create(
            model="shopper", input="x" * 100_000, background=True, previous_response_id=begun.id
        )
        assert (await _ended(it.ai, long.id)).output_text == "Long."
        refuses = True
        refused = await it.ai.responses.create(model="shopper", input="Go.")
        assert (refused.status, refused.model) == ("failed", "shopper")
        assert "Not today." in str(refused.error)


async def test_a_new_response_is_found_at_once(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with door(dev_server.client, tmp_path, [says("Fine.")] * 5) as it:

        async def one() -> str:
            begun = await it.ai.responses.create(model="shopper", input="Go.", background=True)
            return str((await _ended(it.ai, begun.id)).output_text)

        assert await asyncio.gather(*(one() for _ in range(5))) == ["Fine."] * 5


async def _ended(client: AsyncOpenAI, id: str) -> Any:
    while (found := await client.responses.retrieve(id)).status in ("queued", "in_progress"):
        pass
    return found


async def test_a_tool_choice_is_validated_like_the_output(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """R6.5, R17.2: an output counts only after the call; a request that goes on says anew what has to be called."""
    named: Any = {"type": "function", "name": "get_weather"}
    script = [
        says("It is mild."),
        Turn("Just text."),
        {"calls": [weather("Rome")], "output": "{†state.rome}"},
        {"calls": [weather("Oslo")], "output": "{†state.rome} {†state.oslo}"},
    ]
    async with door(dev_server.client, tmp_path, script) as it:
        asked: Any = await it.ai.responses.create(model="shopper", input="Weather?", tools=TOOLS, tool_choice=named)
        assert [item.name for item in asked.output] == ["get_weather"]
        assert asked.tool_choice.to_dict() == named
        told = [request.text for request in it.it.model.requests]
        assert "Your answer has to make a call of get_weather" in told[0]
        assert ["no output counts before a call of get_weather" in text for text in told] == [False, True, True]
        again: Any = await it.ai.responses.create(
            model="shopper",
            previous_response_id=asked.id,
            input=results(asked, "mild"),
            tools=TOOLS,
            tool_choice="required",
        )
        assert [json.loads(item.arguments) for item in again.output] == [{"city": "Oslo"}]
        answer = await it.ai.responses.create(
            model="shopper", previous_response_id=again.id, input=results(again, "cold")
        )
        assert answer.output_text == "mild cold"


async def test_a_tool_choice_holds_for_its_own_request(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """R17.2: after a request that names a function the next one chooses anew, also where that function was not called."""
    other: Any = WEATHER | {"name": "get_time"}
    named: Any = {"type": "function", "name": "get_weather"}
    told: Any = {"model": "shopper", "tools": [WEATHER, other]}
    time = {"_tool": "get_time", "city": "Rome", "_outputPath": "†state.time"}
    kept = {"name": "own", "config": {"must_call": ["get_weather"]}, "context": SHOPPER["context"]}
    script = [
        {"calls": [time]},
        {"calls": [time]},
        says("Noon."),
        *({"calls": [time]}, says("Noon."), {"calls": [weather("Rome")]}, says("{†state.rome}")),
    ]
    async with door(dev_server.client, tmp_path, script, agents=[SHOPPER, kept]) as it:
        first = await it.ai.responses.create(input="The time?", **told)
        second = await it.ai.responses.create(
            previous_response_id=first.id, input=results(first, "12"), tool_choice=named, **told
        )
        third = await it.ai.responses.create(previous_response_id=second.id, input=results(second, "12"), **told)
        assert third.output_text == "Noon."
        told |= {"model": "own"}  # what the agent's own file wants stays, until it was called
        first = await it.ai.responses.create(input="The time?", **told)
        second = await it.ai.responses.create(previous_response_id=first.id, input=results(first, "12"), **told)
        assert [item.name for item in second.output if item.type == "function_call"] == ["get_weather"]
        third = await it.ai.responses.create(previous_response_id=second.id, input=results(second, "mild"), **told)
        assert third.output_text == "mild"


async def test_what_a_client_carries_out_is_no_question_to_people(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """R17.2: the session runs, its run's page and `show` name nobody who should decide, and no list has the call."""
    async with door(dev_server.client, tmp_path, [{"calls": [weather("Rome")]}]) as it:
        asked: Any = await it.ai.responses.create(model="shopper", input="Weather?", tools=TOOLS)
        perdure = it.served.gateway.perdure
        session = perdure.session(asked.id.split("_")[1], tenant="acme")
        view = await session.show()
        assert (view.status, await session.waiting(view)) == ("running", [])
        assert (await perdure.get_run(str(view.run_id)).waiting_below())[0] == []
        shown = "".join(printed(await perdure.get_run(str(view.run_id)).view()))
        assert f"waits for the client that runs it: perdure answer {view.run_id} 1.0 RESULT" in shown
        assert "for a person" not in shown
        async with (
            gateway(dev_server.client, [sign_in, pages], task_queue=it.it.task_queue, **it.given) as site,
            httpx2.AsyncClient(base_url=site.address, headers={"Origin": site.address}, timeout=HANG) as browser,
        ):
            await browser.post("/sign-in", data={"token": it.tokens[0]})
            page = await browser.get(f"/runs/{quote(str(view.run_id), safe='')}")
        assert page.status_code == 200
        assert "get_weather" in page.text
        assert "for a person" not in page.text


async def answer_with_serial(ai: Any) -> str:
    """Ask for a serial number, execute the client's tool that the run calls, and return the answer."""
    asked = await ai.responses.create(model="shopper", input="Serial?", timeout=60)
    [item] = asked.output
    assert (item.type, item.name, item.arguments) == ("function_call", "read_serial", '{"device":"lamp"}')
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "SN-9"}
    done = await ai.responses.create(model="shopper", previous_response_id=asked.id, input=[result])
    assert (await ai.responses.retrieve(asked.id)).output == asked.output
    return str(done.output_text)


@pytest.mark.parametrize("rights", [["read", "send"], ["read", "send", "approve"]])
async def test_a_client_carries_out_the_tools_of_the_agents_own_file(
    rights: list[str], dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    own = {"name": "read_serial", "properties": {"device": {"type": "string"}}, "_activity": "perdure.client"}
    agents = [SHOPPER | {"context": [{"type": "tool", "tool": own}]}]
    call = {"_tool": "read_serial", "device": "lamp", "_outputPath": "†state.serial"}
    answers = [{"calls": [call]}, says("It is {†state.serial}.")] * 2
    async with door(dev_server.client, tmp_path, answers, agents=agents, who=[("acme", "ann", rights)]) as it:
        assert await answer_with_serial(it.ai) == "It is SN-9."
        said: Any = [{"role": "user", "content": "Serial?"}]
        chat: Any = await it.ai.chat.completions.create(model="shopper", messages=said)
        [wanted] = chat.choices[0].message.tool_calls
        assert (wanted.function.name, chat.choices[0].finish_reason) == ("read_serial", "tool_calls")
        said += [chat.choices[0].message, {"role": "tool", "tool_call_id": wanted.id, "content": "SN-9"}]
        last = await it.ai.chat.completions.create(model="shopper", messages=said)
        assert last.choices[0].message.content == "It is SN-9."


def serial_of_clerk(request: ChatRequest) -> dict[str, Any]:
    """Answer as the shopper, or as its delegate, whose file has the client's tool."""
    called = "clerk" if "You help people shop." in request.text else "read_serial"
    params = {} if called == "clerk" else {"device": "lamp"}
    call = {"_tool": called, **params, "_outputPath": "†state.serial"}
    return says("†state.serial") if "SN-9" in request.text else {"calls": [call]}


@pytest.mark.parametrize("rights", [["read", "send"], ["read", "send", "approve"]])
async def test_a_client_carries_out_the_tools_of_a_delegates_own_file(
    rights: list[str], dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.gateway.openai._runs._SILENT_BELOW", 1.0)  # it looks below so often
    own = {"name": "read_serial", "properties": {"device": {"type": "string"}}, "_activity": "perdure.client"}
    tool: Any = {"type": "tool", "tool": {"name": "clerk", "_delegate": "clerk", "properties": {}}}
    clerk = {"name": "clerk", "context": [{"type": "tool", "tool": own}]}
    agents = [SHOPPER | {"context": [*SHOPPER["context"], tool]}, clerk]
    who = [("acme", "ann", rights)]
    async with door(dev_server.client, tmp_path, serial_of_clerk, agents=agents, who=who) as it:
        assert await answer_with_serial(it.ai) == "SN-9"


def printed(view: Any) -> str:
    """Return what `show` prints."""
    console = Console(file=io.StringIO(), width=160)
    console.print(run_table(view, 160))
    file: Any = console.file
    return str(file.getvalue())


async def test_a_run_whose_client_has_gone(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """It fails after the time of the setting; nobody else is asked what the client's function comes to."""
    script = [{"calls": [weather("Rome")]}]
    said: Any = [{"role": "user", "content": "Weather?"}]
    tool: Any = {"type": "function", "function": {key: WEATHER[key] for key in ("name", "parameters")}}
    async with door(dev_server.client, tmp_path, script * 2) as it:
        perdure = it.served.gateway.perdure
        kept = await it.ai.chat.completions.create(model="shopper", messages=said, tools=[tool], store=True)
        asked: Any = kept.to_dict()["perdure"]
        waiting = perdure.get_run(asked["run_id"])
        assert [(offer.tool, offer.client) for offer in (await waiting.view()).waiting] == [("get_weather", True)]
        assert await waiting.waiting() == []
        listed = await perdure.approvals(tenant="acme")
        assert asked["run_id"] not in [one.run_id for one in listed.waiting]
        it.served.gateway.settings = it.served.gateway.settings.model_copy(update={"gateway_client_wait": 0.5})
        gone: Any = (await it.ai.chat.completions.create(model="shopper", messages=said, tools=[tool])).to_dict()
        ended = await perdure.get_run(gone["perdure"]["run_id"]).wait()
        assert (ended.status, ended.stop_reason) == ("failed", "client_gone")
        assert "has not sent the results of its functions" in str(ended.error)
        assert len(it.it.model.requests) == 2
        assert (await perdure.get_run(asked["run_id"]).view()).status == "running"


async def test_a_case_of_a_chat_has_its_messages_apart_from_the_agent(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    said: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Shoes?"},
        {"role": "assistant", "content": "Which colour?"},
        {"role": "user", "content": "Red."},
    ]
    async with door(dev_server.client, tmp_path, [says("These.")]) as it:
        chat: Any = (await it.ai.chat.completions.create(model="shopper", messages=said)).to_dict()
        case = await record(it.served.gateway.perdure.get_run(chat["perdure"]["run_id"]))
    assert [(each["role"], each["content"]) for each in case["messages"]] == [(e["role"], e["content"]) for e in said]
    assert case["agent"]["context"] == SHOPPER["context"]
    model = ScriptedModel([says("These.")])
    await replay(case, Agent("shopper", instructions="You sell shoes."), model=model)
    assert all(words in model.requests[0].text for words in ("You sell shoes.", "Be brief.", "Which colour?", "Red."))


@tool(dangerous=True, retries=0)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def parts(request: ChatRequest) -> dict[str, Any]:
    """Answer as the one above, which has a delegate pay, or as that delegate, which pays in two steps."""
    if "You keep the till." not in request.text:
        call = {"_tool": "till", "_outputPath": "†state.till"}
        return says("{†state.till}") if "paid" in request.text else {"calls": [call]}
    step = 2 if "paid 1" in request.text else 1
    paying: dict[str, Any] = {"_tool": "pay", "amount": step, "_outputPath": f"†state.paid{step}"}
    return says("paid both") if "paid 2" in request.text else {"calls": [paying]}


TILL: Any = {"name": "till", "_delegate": "cashier", "properties": {}}
CASHIER: Any = {
    "name": "cashier",
    "context": [{"type": "system", "text": "You keep the till."}, {"type": "tool", "tool": "pay"}],
}


async def test_what_waits_in_a_delegates_run_is_decided(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17.2: it is a required action of the response, and the next request resumes the delegate's run."""
    monkeypatch.setattr("perdure.gateway.openai._runs._SILENT_BELOW", 1.0)  # it looks below so often
    agents = [SHOPPER | {"context": [*SHOPPER["context"], {"type": "tool", "tool": TILL}]}, CASHIER]
    async with door(dev_server.client, tmp_path, parts, agents=agents, functions=[pay]) as it:
        first: Any = await it.ai.responses.create(model="shopper", input="Pay.")
        (asked,) = first.output
        assert (asked.type, asked.name, json.loads(asked.arguments)) == ("mcp_approval_request", "pay", {"amount": 1})
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
        second: Any = await it.ai.responses.create(
            model="shopper", previous_response_id=first.id, input=[answer | {"reason": "Fine."}]
        )
        assert [json.loads(item.arguments) for item in second.output] == [{"amount": 2}]
        with pytest.raises(openai.BadRequestError, match="already continued"):
            await it.ai.responses.create(model="shopper", previous_response_id=first.id, input=[answer])
        (again,) = second.output
        third: Any = await it.ai.responses.create(
            model="shopper", previous_response_id=second.id, input=[answer | {"approval_request_id": again.id}]
        )
        assert third.output_text == "paid both"
        for response in (first, second, third):  # what was told of each stays so
            kept = (await it.ai.responses.retrieve(response.id)).to_dict()
            assert kept["output"] == response.to_dict()["output"]
        items: list[Any] = [each async for each in it.ai.responses.input_items.list(second.id)]
        assert [(each.approval_request_id, each.approve, each.reason) for each in items] == [(asked.id, True, "Fine.")]
        # Chat completions, and whoever declares the function, by its calls.
        approval: Any = {"type": "function", "function": {"name": "perdure_approval", "parameters": {}}}
        told: list[Any] = [{"role": "user", "content": "Pay."}]
        for _ in range(2):
            completion = await it.ai.chat.completions.create(model="shopper", messages=told, tools=[approval])
            message = completion.choices[0].message
            assert message.tool_calls is not None
            told.append(message.to_dict())
            told += [{"role": "tool", "tool_call_id": call.id, "content": "approve"} for call in message.tool_calls]
        completion = await it.ai.chat.completions.create(model="shopper", messages=told, tools=[approval])
        assert completion.choices[0].message.content == "paid both"
