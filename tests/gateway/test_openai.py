"""The door for OpenAI's clients, asked by the official one over real HTTP (R17.2)."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.errors import MessageRefusedError
from perdure.gateway.openai.adapter import openai_adapter
from perdure.testing.scripted_model import Turn, cut
from tests.gateway.openai_support import EVERYTHING, SHOPPER, WEATHER, door, says
from tests.gateway.support import gateway


@tool(dangerous=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_response_is_a_run_of_the_agent(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with door(dev_server.client, tmp_path, [says("Hello you there."), says("As I said.")]) as it:
        first = await it.ai.responses.create(model="shopper", input="Say hello.", metadata={"for": "ann"})
        assert (first.output_text, first.status, first.model) == ("Hello you there.", "completed", "shopper")
        assert first.usage is not None
        assert first.usage.total_tokens > 0
        again = await it.ai.responses.retrieve(first.id)
        assert again == first
        second = await it.ai.responses.create(model="shopper", input="Again?", previous_response_id=first.id)
        assert second.output_text == "As I said."
        asked = it.it.model.requests[1].text
        assert [text in asked for text in ("You help people shop.", "Say hello.", "Hello you there.", "Again?")] == [
            True
        ] * 4
        listed = await it.ai.responses.input_items.list(first.id)
        assert listed.data[0].to_dict()["content"] == [{"type": "input_text", "text": "Say hello."}]
        models = await it.ai.models.list()
        assert [model.id for model in models.data] == ["shopper"]


async def test_a_stream_adds_up_to_the_response(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with door(dev_server.client, tmp_path, [says("One two three four five.")]) as it:
        async with it.ai.responses.stream(model="shopper", input="Count.") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        kinds = [event.type for event in events]
        assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert kinds[-1] == "response.completed"
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == final.output_text == "One two three four five."
        kept = await it.ai.responses.retrieve(final.id)
        plain = [event async for event in await it.ai.responses.retrieve(final.id, stream=True)]
        assert plain[-1].response == kept  # type: ignore[union-attr]
        assert [event.sequence_number for event in plain][-4:] == numbers[-4:]
        # Who comes back in the middle is given the rest, whoever reads it.
        seen = next(event.sequence_number for event in events if event.type == "response.output_text.delta") - 10
        rest = [event async for event in await it.ai.responses.retrieve(final.id, stream=True, starting_after=seen)]
        more = "".join(event.delta for event in rest if event.type == "response.output_text.delta")
        assert text.endswith(more)
        assert len(more) == 10


async def test_a_function_that_the_client_runs(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    calls = [
        {"_tool": "get_weather", "city": "Rome", "_outputPath": "†state.rome"},
        {"_tool": "get_weather", "city": "Oslo", "_outputPath": "†state.oslo"},
    ]
    script = [{"calls": calls}, says("Rome: {†state.rome.degrees}, Oslo: {†state.oslo}")]
    async with door(dev_server.client, tmp_path, script) as it:
        first = await it.ai.responses.create(model="shopper", input="Weather?", tools=[WEATHER])  # type: ignore[list-item]
        asked = [item for item in first.output if item.type == "function_call"]
        assert [(item.name, json.loads(item.arguments)) for item in asked] == [
            ("get_weather", {"city": "Rome"}),
            ("get_weather", {"city": "Oslo"}),
        ]
        assert first.status == "completed"
        outputs: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": output}
            for item, output in zip(asked, ['{"degrees": 21}', "cold"], strict=True)
        ]
        with pytest.raises(openai.BadRequestError, match="No tool output found for function call"):
            await it.ai.responses.create(model="shopper", previous_response_id=first.id, input=outputs[:1])
        stop: Any = [*outputs, {"role": "user", "content": "/stop"}]
        with pytest.raises(openai.BadRequestError, match="is a command of sessions"):
            await it.ai.responses.create(model="shopper", previous_response_id=first.id, input=stop)
        second = await it.ai.responses.create(model="shopper", previous_response_id=first.id, input=outputs)
        assert second.output_text == "Rome: 21, Oslo: cold"
        assert second.id == f"{first.id}_2"
        kept = await it.ai.responses.retrieve(first.id)
        assert kept == first
        told = await it.ai.responses.input_items.list(second.id, order="asc")
        assert [item.to_dict()["output"] for item in told.data] == ['{"degrees":21}', "cold"]


async def test_the_history_as_openais_guide_sends_it(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """Without `previous_response_id`: the client sends all that was said, and the result, each time."""
    call = {"_tool": "get_weather", "city": "Rome", "_outputPath": "†state.rome"}
    async with door(dev_server.client, tmp_path, [{"calls": [call]}, says("{†state.rome}"), says("Fine.")]) as it:
        said: list[Any] = [{"role": "user", "content": "Weather in Rome?"}]
        tools: Any = [WEATHER]
        first = await it.ai.responses.create(model="shopper", input=said, tools=tools)
        said += [item.to_dict() for item in first.output]
        said.append({"type": "function_call_output", "call_id": first.output[0].call_id, "output": "mild"})  # type: ignore[union-attr]
        second = await it.ai.responses.create(model="shopper", input=said, tools=tools)
        assert (second.output_text, second.id) == ("mild", f"{first.id}_2")
        said += [item.to_dict() for item in second.output]
        said.append({"role": "user", "content": "And now?"})
        third = await it.ai.responses.create(model="shopper", input=said, tools=tools, store=False)
        assert third.output_text == "Fine."
        asked = it.it.model.requests[-1].messages
        assert [text in str(asked) for text in ("Weather in Rome?", "get_weather", "mild", "And now?")] == [True] * 4
        with pytest.raises(openai.NotFoundError):
            await it.ai.responses.retrieve(third.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            await it.ai.responses.create(model="shopper", input="x", previous_response_id=third.id)


async def test_two_follow_one_response(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """R10.20: from a response that another follows already a conversation forks."""
    async with door(dev_server.client, tmp_path, [says(text) for text in ("One.", "Two.", "Other.", "Last.")]) as it:
        first = await it.ai.responses.create(model="shopper", input="1")
        second = await it.ai.responses.create(model="shopper", input="2", previous_response_id=first.id)
        other = await it.ai.responses.create(model="shopper", input="3", previous_response_id=first.id)
        assert [each.output_text for each in (second, other)] == ["Two.", "Other."]
        shown = it.it.model.requests[2].text
        assert ("One." in shown, "Two." in shown) == (True, False)
        await it.ai.responses.create(model="shopper", input="4", previous_response_id=other.id)
        assert ("Other." in (shown := it.it.model.requests[3].text), "Two." in shown) == (True, False)


async def test_in_the_background_cancelled_and_found_by_another(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    who = [EVERYTHING, ("acme", "bob", ["read", "send"]), ("other", "eve", ["*"])]
    slow = [{"calls": [{"_tool": "sleep_until", "seconds": 3600}]}]
    agents = [SHOPPER | {"context": [*SHOPPER["context"], {"type": "tool", "tool": "sleep_until"}]}]
    async with door(dev_server.client, tmp_path, slow, who=who, agents=agents) as it:
        ann, bob, eve = it.clients
        begun = await ann.responses.create(model="shopper", input="Wait.", background=True)
        assert begun.status == "queued"
        while (await bob.responses.retrieve(begun.id)).status != "in_progress":
            pass
        for other in ("responses.retrieve", "responses.cancel", "responses.delete", "responses.input_items.list"):
            found: Any = eve
            for name in other.split("."):
                found = getattr(found, name)
            with pytest.raises(openai.NotFoundError) as told:
                await found(begun.id)
            assert begun.id in str(told.value)
            with pytest.raises(openai.NotFoundError) as unknown:
                await found("resp_nothing_0a0b0c-1")
            assert str(unknown.value).replace("resp_nothing_0a0b0c-1", begun.id) == str(told.value)
        with pytest.raises(openai.BadRequestError, match="not found"):
            await eve.responses.create(model="shopper", input="x", previous_response_id=begun.id)
        with pytest.raises(openai.BadRequestError, match="still running"):
            await ann.responses.create(model="shopper", input="x", previous_response_id=begun.id)
        with pytest.raises(openai.PermissionDeniedError):
            await bob.responses.cancel(begun.id)
        assert (await ann.responses.cancel(begun.id)).status == "cancelled"
        assert (await ann.responses.cancel(begun.id)).status == "cancelled"
        await ann.responses.delete(begun.id)
        with pytest.raises(openai.NotFoundError):
            await ann.responses.retrieve(begun.id)


async def test_a_person_approves(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    agents = [SHOPPER | {"context": [*SHOPPER["context"], {"type": "tool", "tool": "pay"}]}]
    calls = [{"_tool": "pay", "amount": 5, "_outputPath": "†state.receipt"}]
    who = [EVERYTHING, ("acme", "bob", ["read", "send"])]
    script = [{"calls": calls}, says("{†state.receipt}")] * 2
    async with door(dev_server.client, tmp_path, script, who=who, agents=agents, functions=[pay]) as it:
        first = await it.ai.responses.create(model="shopper", input="Pay.")
        (asked,) = first.output
        assert asked.type == "mcp_approval_request"
        assert (asked.name, json.loads(asked.arguments), asked.server_label) == ("pay", {"amount": 5}, "shopper")
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
        bob = it.clients[1]
        with pytest.raises(openai.PermissionDeniedError):
            await bob.responses.create(model="shopper", previous_response_id=first.id, input=[answer])
        second = await it.ai.responses.create(model="shopper", previous_response_id=first.id, input=[answer])
        assert second.output_text == "paid 5"
        # Who may not decide is not asked: their response goes on once somebody else has decided.
        begun = await bob.responses.create(model="shopper", input="Pay.", background=True)
        run = it.served.gateway.perdure.get_run(begun.to_dict()["perdure"]["run_id"])  # type: ignore[index]
        await it.it.until_waiting(run.id, "1.0")
        assert (await bob.responses.retrieve(begun.id)).status == "in_progress"
        await run.approve("1.0")
        while (done := await bob.responses.retrieve(begun.id)).status == "in_progress":
            pass
        assert done.output_text == "paid 5"


QUORUM: Any = SHOPPER | {
    "context": [*SHOPPER["context"], {"type": "tool", "tool": "pay"}],
    "config": {"approval": {"tools": {"pay": {"by": 2}}}},
}


@pytest.mark.parametrize("by_call", [False, True])
async def test_an_approval_is_of_what_the_response_has_shown(
    dev_server: WorkflowEnvironment, tmp_path: Path, by_call: bool
) -> None:
    """`by_call`: the client declares the function for approvals, so its answer is a call's output."""
    calls = [{"_tool": "pay", "amount": 5, "_outputPath": "†state.receipt"}]
    tools: Any = [{"type": "function", "name": "perdure_approval", "parameters": None, "strict": False}]
    more: Any = {"tools": tools} if by_call else {}
    async with door(dev_server.client, tmp_path, [{"calls": calls}], agents=[QUORUM], functions=[pay]) as it:
        first = await it.ai.responses.create(model="shopper", input="Pay.", **more)
        asked: Any = first.output[0]
        run = it.served.gateway.perdure.get_run(first.to_dict()["perdure"]["run_id"])
        await run.edit("1.0", {"amount": 5000}, by="cleo")
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
        if by_call:
            answer = {"type": "function_call_output", "call_id": asked.call_id, "output": "approve"}
        with pytest.raises(openai.BadRequestError, match="has changed since it was shown"):
            await it.ai.responses.create(model="shopper", previous_response_id=first.id, input=[answer])
        (waits,) = await run.waiting()
        assert [each.by for each in waits.approvers] == ["cleo"]
        assert (await it.ai.responses.retrieve(first.id)).output != first.output, (
            "the changed call has an item of its own"
        )
        await run.cancel()


async def test_the_first_of_two_approvals_is_answered(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    calls = [{"_tool": "pay", "amount": 5, "_outputPath": "†state.receipt"}]
    script = [{"calls": calls}, says("{†state.receipt}")]
    async with door(dev_server.client, tmp_path, script, agents=[QUORUM], functions=[pay]) as it:
        first = await it.ai.responses.create(model="shopper", input="Pay.")
        (asked,) = first.output
        run = it.served.gateway.perdure.get_run(first.to_dict()["perdure"]["run_id"])  # type: ignore[index]
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
        second = await it.ai.responses.create(model="shopper", previous_response_id=first.id, input=[answer])
        assert [item.type for item in second.output] == ["mcp_approval_request"]
        await run.edit("1.0", {"amount": 7}, by="cleo")
        await run.approve("1.0", by="dan")
        while (done := await it.ai.responses.retrieve(second.id)).output_text != "paid 7":
            assert done.status == "in_progress"
        (before,) = (await it.ai.responses.retrieve(first.id)).output
        assert before.id == asked.id
        (sent,) = (await it.ai.responses.input_items.list(second.id)).data
        assert sent.to_dict() | answer == sent.to_dict()


async def test_what_a_request_may_say(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """Each key is honoured, or refused in one line with its name."""
    script = [says({"colour": "red"})]
    async with door(dev_server.client, tmp_path, script) as it:
        schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
        given: Any = {
            "instructions": "Answer in colours.",
            "temperature": 0.3,
            "max_output_tokens": 50,
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_schema", "name": "colour", "schema": schema}},
            "metadata": {"a": "b"},
        }
        answer = await it.ai.responses.create(model="shopper", input="Which?", **given)
        assert json.loads(answer.output_text) == {"colour": "red"}
        assert (answer.instructions, answer.temperature, answer.metadata) == ("Answer in colours.", 0.3, {"a": "b"})
        body = it.it.model.requests[0].body
        assert (body["temperature"], body["max_tokens"], body["reasoning_effort"]) == (0.3, 50, "low")
        assert "You help people shop.\n\nAnswer in colours." in it.it.model.requests[0].text
        wrong: list[tuple[dict[str, Any], str | None]] = [
            ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
            ({"max_tool_calls": 3}, "max_tool_calls"),
            ({"prompt": {"id": "p"}}, "prompt"),
            ({"extra_body": {"colour": 1}}, "colour"),
            ({"temperature": 9}, "temperature"),
            ({"metadata": {"a": "b" * 600}}, "metadata"),
            ({"background": True, "store": False}, "store"),
            ({"input": []}, "input"),
            ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
            ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input[0].content[0]"),
            ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 5}}}}, None),
            ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "conversation"),
            ({"input": "/stop"}, "input"),
        ]  # fmt: skip
        for more, param in wrong:
            with pytest.raises(openai.BadRequestError) as told:
                await it.ai.responses.create(**({"model": "shopper", "input": "x"} | more))
            assert told.value.param == param, more
            assert told.value.type == "invalid_request_error"
        with pytest.raises(openai.NotFoundError) as unknown:
            await it.ai.responses.create(model="shoper", input="x")
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        stranger = AsyncOpenAI(base_url=it.ai.base_url, api_key="nobody", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
        await stranger.close()
    assert len(it.it.model.requests) == 1


async def test_chat_completions(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    call = {"_tool": "get_weather", "city": "Rome", "_outputPath": "†state.rome"}
    script = [says("Hello."), {"calls": [call]}, says("It is {†state.rome}."), says("Bye."), says("Streamed text.")]
    async with door(dev_server.client, tmp_path, script) as it:
        chat = it.ai.chat.completions
        said: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
        first = await chat.create(model="shopper", messages=said, store=True)
        assert (first.choices[0].message.content, first.choices[0].finish_reason) == ("Hello.", "stop")
        assert first.usage is not None
        assert first.usage.prompt_tokens_details is not None
        assert await chat.retrieve(first.id) == first
        shown = it.it.model.requests[0].text
        assert ("You help people shop." in shown, "Be brief." in shown) == (True, True)
        tools: Any = [{"type": "function", "function": {key: value for key, value in WEATHER.items() if key != "type"}}]
        said = [*said, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Weather?"}]
        asked = await chat.create(model="shopper", messages=said, tools=tools)
        message = asked.choices[0].message
        assert (asked.choices[0].finish_reason, message.content) == ("tool_calls", None)
        assert message.tool_calls is not None
        function: Any = message.tool_calls[0]
        assert (function.function.name, json.loads(function.function.arguments)) == ("get_weather", {"city": "Rome"})
        said += [message.to_dict(), {"role": "tool", "tool_call_id": function.id, "content": "mild"}]
        answer = await chat.create(model="shopper", messages=said, tools=tools)
        assert answer.choices[0].message.content == "It is mild."
        runs: Any = [each.to_dict()["perdure"] for each in (answer, asked)]
        assert runs[0]["run_id"] == runs[1]["run_id"], "the run that waited goes on"
        with pytest.raises(openai.NotFoundError):
            await chat.retrieve(answer.id)
        # The same results once more, or after another beginning: that is another run, with all of it as its history.
        other = await chat.create(model="shopper", messages=said, tools=tools)
        assert other.choices[0].message.content == "Bye."
        assert [text in str(it.it.model.requests[3].messages) for text in ("get_weather", "mild")] == [True, True]
        options: Any = {"include_usage": True}
        stream = await chat.create(model="shopper", messages=said[:2], stream=True, stream_options=options)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Streamed text."
        assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "stop"]
        assert chunks[-1].usage is not None
        assert chunks[0].choices[0].delta.role == "assistant"


async def test_a_completion_asks_for_approval_where_its_client_knows_how(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    agents = [SHOPPER | {"context": [*SHOPPER["context"], {"type": "tool", "tool": "pay"}]}]
    calls = [{"_tool": "pay", "amount": 5, "_outputPath": "†state.receipt"}]
    script = [{"calls": calls}, says("{†state.receipt}")] * 2
    async with door(dev_server.client, tmp_path, script, agents=agents, functions=[pay]) as it:
        chat = it.ai.chat.completions
        tools: Any = [{"type": "function", "function": {"name": "perdure_approval"}}]
        said: list[Any] = [{"role": "user", "content": "Pay."}]
        first = await chat.create(model="shopper", messages=said, tools=tools)
        (call,) = first.choices[0].message.tool_calls or []
        about: Any = call
        assert json.loads(about.function.arguments) == {"tool": "pay", "arguments": {"amount": 5}}
        said += [first.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "approve"}]
        stream = await chat.create(model="shopper", messages=said, tools=tools, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "paid 5"
        assert "perdure_approval" not in it.it.model.requests[0].shown
        # A client that says nothing of it waits until somebody has decided.
        perdure = it.served.gateway.perdure
        others = {one.run_id for one in (await perdure.approvals()).waiting}
        waiting = asyncio.ensure_future(chat.create(model="shopper", messages=said[:1]))
        while not (found := {one.run_id for one in (await perdure.approvals()).waiting} - others):
            pass
        await perdure.get_run(found.pop()).approve("1.0")
        assert (await waiting).choices[0].message.content == "paid 5"


async def test_conversations(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with door(dev_server.client, tmp_path, [says("One."), says("Two.")]) as it:
        conversation = await it.ai.conversations.create()
        first = await it.ai.responses.create(model="shopper", input="1", conversation=conversation.id)
        assert first.conversation is not None
        assert first.conversation.id == conversation.id
        await it.ai.responses.create(model="shopper", input="2", conversation=conversation.id)
        assert "One." in it.it.model.requests[1].text
        with pytest.raises(openai.BadRequestError, match="part of a conversation"):
            await it.ai.responses.delete(first.id)
        await it.ai.conversations.delete(conversation.id)
        with pytest.raises(openai.NotFoundError):
            await it.ai.responses.retrieve(first.id)


async def test_a_conversation_keeps_developer_messages_behind_runs_of_other_adapters(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with door(dev_server.client, tmp_path, [says(text) for text in ("Un.", "Two.", "Trois.")]) as it:
        conversation = (await it.ai.conversations.create()).id
        french: Any = [{"role": "developer", "content": "Speak French."}, {"role": "user", "content": "1"}]
        await it.ai.responses.create(model="shopper", input=french, conversation=conversation)
        session = it.served.gateway.perdure.session(conversation.removeprefix("conv_"), tenant="acme")
        receipt = await session.send("2", sender="ann")
        assert await session.reply(receipt.message_id, sender="ann") == "Two."
        await it.ai.responses.create(model="shopper", input="3", conversation=conversation)
        assert ["Speak French." in request.text for request in it.it.model.requests] == [True, False, True]


async def test_a_request_may_be_sent_again(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with door(dev_server.client, tmp_path, [says("One."), says("Two."), says("Three.")]) as it:
        for more in ({}, {"store": False}):
            given: Any = {
                "model": "shopper",
                "input": "1",
                "extra_headers": {"Idempotency-Key": f"k{len(more)}"},
                **more,
            }
            first, again = [await it.ai.responses.create(**given) for _ in range(2)]
            assert first == again
            if not more:
                given |= {"previous_response_id": first.id, "extra_headers": {"Idempotency-Key": "next"}}
                after = [await it.ai.responses.create(**given) for _ in range(2)]
                assert after[0] == after[1]
    assert len(it.it.model.requests) == 3


async def test_a_request_without_a_session_may_be_sent_again(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    said: Any = [{"role": "user", "content": "Hello?"}]
    async with door(dev_server.client, tmp_path, [says("Hello."), says("Alone.")]) as it:
        key: Any = {"extra_headers": {"Idempotency-Key": "chat"}}
        chats = [await it.ai.chat.completions.create(model="shopper", messages=said, **key) for _ in range(2)]
        key = {"extra_headers": {"Idempotency-Key": "alone"}}
        alone = [await it.ai.responses.create(model="shopper", input="Hi.", store=False, **key) for _ in range(2)]
    assert [each.choices[0].message.content for each in chats] == ["Hello."] * 2
    assert [each.output_text for each in alone] == ["Alone."] * 2
    assert len(it.it.model.requests) == 2


async def test_text_comes_while_it_is_written(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """R10.14: and who reads on at another gateway, behind the last event, is given the rest, to the character."""
    words = " ".join(f"word{n}" for n in range(60))
    turn = Turn(says(words), gate=(gate := asyncio.Event()), gate_after=200)
    async with (
        door(dev_server.client, tmp_path, [turn], model_timeout=60) as it,
        gateway(dev_server.client, [openai_adapter], task_queue=it.it.task_queue, **it.given) as other,
        AsyncOpenAI(base_url=f"{other.address}/v1", api_key=it.tokens[0], max_retries=0) as elsewhere,
    ):
        told, later, after, id = "", "", -1, ""
        stream = await it.ai.responses.create(model="shopper", input="Talk.", stream=True)
        async for event in stream:
            if event.type == "response.created":
                id = event.response.id
            if event.type == "response.output_text.delta":
                told, after = told + event.delta, event.sequence_number
                break
        await stream.close()
        assert words.startswith(told)
        assert told != words
        rest = await elsewhere.responses.retrieve(id, stream=True, starting_after=after)
        gate.set()
        async for event in rest:
            later += event.delta if event.type == "response.output_text.delta" else ""
        assert told + later == words


async def test_what_was_written_and_does_not_count(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """A model that breaks off is asked anew: what it had written is an item of its own, and no part of the response."""
    script = [cut(says("A beginning that is lost, however long it is."), 10), says("The answer.")]
    async with door(dev_server.client, tmp_path, script) as it:
        async with it.ai.responses.stream(model="shopper", input="Talk.") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == "The answer."
        assert [item.status for item in final.output if item.type == "message"] == ["completed"]
        drafts = [
            event.item.status
            for event in events
            if event.type == "response.output_item.done" and event.item.type == "message"
        ]
        assert drafts in (["completed"], ["incomplete", "completed"]), (
            "the draft is told only where somebody looked in time"
        )
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers))
        assert (await it.ai.responses.retrieve(final.id)).output_text == "The answer."


async def test_what_clients_send_by_default_changes_nothing(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with door(dev_server.client, tmp_path, [says("Hello."), says("Again.")]) as it:
        defaults: Any = {"truncation": "disabled", "service_tier": "flex", "reasoning": {"summary": "auto"}}
        found = await it.ai.responses.create(model="shopper", input="Hi.", **defaults)
        assert (found.output_text, found.truncation) == ("Hello.", "disabled")
        said: Any = [{"role": "user", "content": "Hi."}]
        completion = await it.ai.chat.completions.create(model="shopper", messages=said, stop=["\nObservation:"])
        assert completion.choices[0].message.content == "Again."
        with pytest.raises(openai.NotFoundError) as nothing:
            await it.ai.files.list()
        assert nothing.value.type == "invalid_request_error"


async def test_a_conversation_is_retrieved_and_its_items_are_listed(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with door(dev_server.client, tmp_path, [says("Hello.")]) as it:
        new = await it.ai.conversations.create()
        assert (await it.ai.conversations.retrieve(new.id)).id == new.id
        assert [each async for each in it.ai.conversations.items.list(new.id)] == []
        await it.ai.responses.create(model="shopper", input="Hi.", conversation=new.id)
        items: list[Any] = [each async for each in it.ai.conversations.items.list(new.id, order="asc")]
        assert [(each.role, each.content[0].text) for each in items] == [("user", "Hi."), ("assistant", "Hello.")]
        assert (await it.ai.conversations.retrieve(new.id)).created_at > 0


async def test_a_conversation_keeps_metadata_is_listed_and_is_its_tenants(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """R17.2: what is unknown, deleted or another tenant's is answered alike, whatever is asked of it."""
    tenant = f"t-{uuid.uuid4().hex[:8]}"  # a list is of all that a tenant has
    who = [(tenant, "ann", ["*"]), ("other", "eve", ["*"])]
    async with door(dev_server.client, tmp_path, [says("Hello."), says("Again.")], who=who) as it:
        ann, eve = it.clients
        first = await ann.conversations.create(metadata={"topic": "shoes"})
        second = await ann.conversations.create()
        assert (first.metadata, second.metadata) == ({"topic": "shoes"}, {})
        await ann.responses.create(model="shopper", input="Hi.", conversation=first.id)
        assert (await ann.conversations.retrieve(first.id)).metadata == {"topic": "shoes"}
        changed = await ann.conversations.update(first.id, metadata={"topic": "boots", "size": "39"})
        assert changed.metadata == {"topic": "boots", "size": "39"}
        await ann.responses.create(model="shopper", input="And?", conversation=first.id)
        kept = await ann.conversations.retrieve(first.id)
        assert (kept.metadata, kept.created_at) == (changed.metadata, first.created_at)
        with pytest.raises(openai.BadRequestError, match="at most 16 texts"):
            await ann.conversations.update(first.id, metadata={str(n): "x" for n in range(17)})
        page: Any = await ann.get("/conversations", cast_to=object)
        assert {each["id"]: each["metadata"] for each in page["data"]} == {first.id: changed.metadata, second.id: {}}
        pages: list[Any] = [await ann.get("/conversations?limit=1", cast_to=object)]
        pages.append(await ann.get(f"/conversations?limit=1&after={pages[0]['last_id']}", cast_to=object))
        assert [each["has_more"] for each in pages] == [True, False]
        assert {each["data"][0]["id"] for each in pages} == {first.id, second.id}
        assert (await eve.get("/conversations", cast_to=dict))["data"] == []
        nobody = it.served.gateway.perdure.session(second.id.removeprefix("conv_"), tenant=tenant)
        with pytest.raises(MessageRefusedError, match="no agent yet"):
            await nobody.send("Hello?", sender="ann")
        await ann.conversations.delete(second.id)
        answers = set()
        for client, id in ((eve, first.id), (ann, second.id), (ann, "conv_000000000000000000000000"), (ann, "nothing")):
            for asked in (
                client.conversations.retrieve(id),
                client.conversations.update(id, metadata={"a": "b"}),
                client.conversations.items.list(id),
                client.conversations.delete(id),
                client.responses.create(model="shopper", input="Hi.", conversation=id),
            ):
                with pytest.raises(openai.NotFoundError) as error:
                    await asked
                answers.add(error.value.message.replace(id, "ID"))
        assert answers == {"Error code: 404 - there is no conversation 'ID'"}
        begun = it.served.gateway.perdure.session(f"begun-{tenant}", tenant=tenant)
        assert await begun.begin({"title": "parcels"}) == await begun.about()
