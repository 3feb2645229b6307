"""Providers' forms as pure translation: a Request as a body, events as pieces of Chat Completions (R20.1, R20.4)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.models.dialects.registry import DIALECTS
from perdure.models.model_names import ModelName, parse_model
from perdure.models.provider_errors import Reduction, Refusal, refusal_of, step_down
from perdure.models.provider_extras import server_of
from perdure.models.providers.capabilities import capabilities_of
from perdure.models.providers.registry import write_request
from perdure.models.requests import ReaderVocabulary, RequestResult
from perdure.models.response_stream import ResponseStream

SONNET = "anthropic:claude-sonnet-5"


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("gpt-4o", ModelName("openai", "gpt-4o")),
        ("llama3:8b", ModelName("openai", "llama3:8b")),
        ("ft:gpt-4o:org", ModelName("openai", "ft:gpt-4o:org")),
        ("openai:anthropic:x", ModelName("openai", "anthropic:x")),
        (SONNET, ModelName("anthropic", "claude-sonnet-5")),
        ("bedrock:anthropic.claude-v1:0", ModelName("bedrock", "anthropic.claude-v1:0")),
        ("anthropic:", ModelName("openai", "anthropic:")),
    ],
)
def test_only_known_providers_are_read_from_a_name(model: str, found: ModelName) -> None:
    assert parse_model(model) == found


@pytest.mark.parametrize(
    ("model", "server"),
    [
        ("gpt-4o", ""),
        ("openai:gpt-4o", ""),
        ("llama@backup", "backup"),
        ("openai:llama@backup", "backup"),
        (SONNET, SONNET),
    ],
)
def test_extras_go_back_to_the_server_that_made_them(model: str, server: str) -> None:
    assert server_of(model) == server


def test_what_is_not_known_of_a_model_is_not_expected_of_it() -> None:
    assert not capabilities_of("my-own-model").images
    assert capabilities_of(SONNET).caching == "marked"
    assert not capabilities_of("anthropic:claude-3-5-haiku-20241022").strict_schemas
    assert capabilities_of("openai-responses:gpt-5-mini").thinking
    assert not capabilities_of("openai-responses:gpt-4.1").thinking


def answer(model: str, events: list[Any]) -> ResponseStream:
    stream = ResponseStream(model, 1, DIALECTS["tools"].reader(ReaderVocabulary()))
    for event in events:
        for document in stream.documents(event):
            stream.take(document)
    return stream


TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}


def call(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}, **more}


def result(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "2"}


# What Anthropic's documentation shows of a stream with thoughts between calls.
INTERLEAVED = [
    {"type": "message_start", "message": {"model": "claude-sonnet-5", "usage": {"input_tokens": 10, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "first"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "one"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "ping"},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "a", "name": "add", "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "redacted_thinking", "data": "sealed"}},
    {"type": "content_block_stop", "index": 2},
    {"type": "content_block_start", "index": 3, "content_block": {"type": "tool_use", "id": "b", "name": "add", "input": {}}},
    {"type": "content_block_stop", "index": 3},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 40, "output_tokens_details": {"thinking_tokens": 30}}},
    {"type": "message_stop"},
]  # fmt: skip


def test_thoughts_between_calls_go_back_in_their_places() -> None:
    read = answer(SONNET, INTERLEAVED).result()
    assert read.calls == [{"_tool": "add", "a": 1, "_id": "a"}, {"_tool": "add", "_id": "b"}]
    assert (read.usage.prompt_tokens, read.usage.cached_tokens, read.usage.cache_write_tokens) == (100, 70, 20)
    assert (read.usage.completion_tokens, read.usage.reasoning_tokens) == (40, 30)
    assert read.thought == "first"
    assert read.beside is not None
    calls = [call(id) | beside for id, beside in zip("ab", read.beside.calls, strict=True)]
    said = {"role": "assistant", "content": None, "tool_calls": calls, **read.beside.message}
    body = write_request(SONNET, "m", {"messages": [{"role": "user", "content": "go"}, said, result("a"), result("b")]})
    assert [(block["type"], block.get("id")) for block in body["messages"][1]["content"]] == [
        ("thinking", None),
        ("tool_use", "a"),
        ("redacted_thinking", None),
        ("tool_use", "b"),
    ]
    assert body["messages"][1]["content"][0] == {"type": "thinking", "thinking": "first", "signature": "one"}


def test_encrypted_reasoning_between_calls_goes_back_in_its_places() -> None:
    def sealed(index: int) -> dict[str, Any]:
        item = {"type": "reasoning", "id": f"rs_{index}", "summary": [], "encrypted_content": f"sealed {index}"}
        return {"type": "response.output_item.done", "output_index": index, "item": item}

    def made(index: int, id: str) -> dict[str, Any]:
        item = {"type": "function_call", "call_id": id, "name": "add", "arguments": '{"a":1}'}
        return {"type": "response.output_item.done", "output_index": index, "item": item}

    end = {"type": "response.completed", "response": {"status": "completed", "output": []}}
    model = "openai-responses:gpt-5"
    read = answer(model, [sealed(0), made(1, "a"), sealed(2), made(3, "b"), end]).result()
    assert [each["_id"] for each in read.calls if isinstance(each, dict)] == ["a", "b"]
    assert read.beside is not None
    calls = [call(id) | beside for id, beside in zip("ab", read.beside.calls, strict=True)]
    said = {"role": "assistant", "content": None, "tool_calls": calls, **read.beside.message}
    body = write_request(model, "m", {"messages": [{"role": "user", "content": "go"}, said, result("a"), result("b")]})
    assert [(item.get("type"), item.get("id") or item.get("call_id")) for item in body["input"][1:5]] == [
        ("reasoning", "rs_0"),
        ("function_call", "a"),
        ("reasoning", "rs_2"),
        ("function_call", "b"),
    ]
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])


def test_turns_alternate_and_results_follow_their_calls() -> None:
    messages = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "one"},
        {"role": "user", "content": " "},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": None, "tool_calls": [call("functions.add:0")]},
        result("functions.add:0"),
        {"role": "user", "content": "and now?"},
        {"role": "system", "content": "Be brief."},
    ]
    body = write_request(SONNET, "m", {"messages": messages, "tools": [TOOL]}, stable=7)
    assert body["system"][0]["text"] == "Add."
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    (made,) = body["messages"][1]["content"]
    first, *others = body["messages"][2]["content"]
    assert made["id"] == first["tool_use_id"] == "functions_add_0"
    assert [each["text"] for each in others] == ["and now?", "<system>\nBe brief.\n</system>"]


def test_calls_of_earlier_functions_are_declared_where_none_is_offered() -> None:
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "", "tool_calls": [call("a")]},
        result("a"),
    ]
    body = write_request(SONNET, "m", {"messages": messages})
    assert [tool["name"] for tool in body["tools"]] == ["add"]
    assert body["tool_choice"] == {"type": "none"}


def test_a_model_with_a_budget_thinks_only_where_its_last_thoughts_are_there() -> None:
    old = "anthropic:claude-haiku-4-5"
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "", "tool_calls": [call("a")]},
        result("a"),
    ]
    chat = {"messages": messages, "reasoning_effort": "low", "temperature": 0.5}
    without = write_request(old, "claude-haiku-4-5", chat)
    assert ("thinking" in without, without["temperature"]) == (False, 0.5)
    messages[1]["thinking_blocks"] = [{"index": 0, "type": "thinking", "thinking": "x", "signature": "s"}]
    body = write_request(old, "claude-haiku-4-5", chat)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    assert body["max_tokens"] > 2048
    assert "temperature" not in body


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("messages.1.content.0: Invalid `signature` in `thinking` block", "thinking_blocks"),
        ("messages.3.content.0: The block is bound to a different conversation", "thinking_blocks"),
        ("The encrypted content for item rs_1 could not be verified.", "reasoning_items"),
    ],
)
def test_thoughts_that_a_server_does_not_accept_are_left_out(words: str, key: str) -> None:
    sent = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call("a")], key: [{"data": "x"}]}]}
    assert step_down(Refusal(words, status=400), sent) == Reduction(key, always=False)


def test_a_strict_schema_is_sent_without_what_the_server_refuses() -> None:
    schema = {
        "type": "object",
        "properties": {"minimum": {"type": "integer", "minimum": 3}, "kind": {"enum": ["pattern"]}},
        "required": ["minimum", "kind"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    body = write_request(SONNET, "m", {"messages": [], "response_format": form})
    sent = body["output_config"]["format"]["schema"]
    assert sent["properties"] == {"minimum": {"type": "integer"}, "kind": {"enum": ["pattern"]}}
    loose = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert "output_config" not in write_request(SONNET, "m", {"messages": [], "response_format": loose})
    old = "anthropic:claude-3-5-haiku-20241022"
    assert "output_config" not in write_request(old, "m", {"messages": [], "response_format": form})


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}


def test_pictures_and_documents_are_parts_of_the_provider() -> None:
    file = {"type": "file", "file": {"file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"}}
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE, file]}]}
    blocks = write_request(SONNET, "m", chat)["messages"][0]["content"]
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    assert blocks[1] == {"type": "image", "source": source}
    assert (blocks[2]["type"], blocks[2]["title"]) == ("document", "a.pdf")
    items = write_request("openai-responses:gpt-5", "m", chat)["input"][0]["content"]
    assert items[1] == {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,QUJD"}
    assert items[2] == {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}


def test_a_file_that_the_model_cannot_read_is_one_line() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}
    body = write_request(SONNET, "m", {"messages": [{"role": "user", "content": [IMAGE, audio]}]})
    kinds = [(block["type"], block.get("text")) for block in body["messages"][0]["content"]]
    assert kinds == [("image", None), ("text", "[a file is left out: this model reads no audio]")]


@pytest.mark.parametrize(
    ("model", "fetches"),
    [
        (SONNET, True),
        ("openai-responses:gpt-5", True),
        ("google:gemini-2.5-pro", False),
        ("bedrock:amazon.nova-pro-v1:0", False),
        ("bedrock:anthropic.claude-sonnet-4-5-20250929-v1:0", False),
    ],
)
def test_a_picture_at_an_address_goes_to_a_server_that_fetches_it(model: str, *, fetches: bool) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://img.example.com/a.png"}}
    body = str(write_request(model, "m", {"messages": [{"role": "user", "content": [picture, IMAGE]}]}))
    assert ("https://img.example.com/a.png" in body, "reads no images from addresses" in body) == (fetches, not fetches)
    assert "QUJD" in body


@pytest.mark.parametrize("model", ["anthropic:claude-haiku-4-5", "bedrock:anthropic.claude-haiku-4-5-20251001-v1:0"])
@pytest.mark.parametrize(
    ("most", "budget"), [(20_000, 16_384), (16_384, 8192), (4096, 2048), (2047, None), (None, 16_384)]
)
def test_a_budget_of_thoughts_is_below_the_limit_of_the_answer(
    model: str, most: int | None, budget: int | None
) -> None:
    chat = {"messages": [{"role": "user", "content": "one"}], "reasoning_effort": "high", "max_tokens": most}
    body = write_request(model, model.partition(":")[2], chat)
    fields = body.get("additionalModelRequestFields", body)
    assert fields.get("thinking", {}).get("budget_tokens") == budget


GEMINI = "google:gemini-3-pro"
NOVA = "bedrock:amazon.nova-pro-v1:0"
CLAUDE = "bedrock:eu.anthropic.claude-opus-5-v1:0"


def test_geminis_thoughts_signatures_and_calls() -> None:
    def event(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "candidates": [{"content": {"role": "model", "parts": [*parts]}, **more}],
            "modelVersion": "gemini-3-pro",
        }

    usage = {"promptTokenCount": 50, "cachedContentTokenCount": 40, "candidatesTokenCount": 5, "thoughtsTokenCount": 7}
    made = {"functionCall": {"name": "add", "args": {"a": 1}}}
    events = [
        event({"text": "hm", "thought": True}),
        event({**made, "thoughtSignature": "c2lnbmVk"}, made),
        {**event({"text": ""}, finishReason="STOP"), "usageMetadata": usage},
    ]
    stream = answer(GEMINI, events)
    read = stream.result()
    assert [each.get("_tool") for each in read.calls if isinstance(each, dict)] == ["add", "add"]
    assert (read.thought, read.model, stream.whole) == ("hm", "gemini-3-pro", True)
    counted = read.usage
    assert (counted.prompt_tokens, counted.cached_tokens, counted.completion_tokens, counted.reasoning_tokens) == (
        50,
        40,
        12,
        7,
    )
    assert read.beside is not None
    calls = [call(id) | beside for id, beside in zip("ab", read.beside.calls, strict=True)]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    body = write_request(
        GEMINI, "gemini-3-pro", {"messages": [{"role": "user", "content": "go"}, said, result("a"), result("b")]}
    )
    assert [content["role"] for content in body["contents"]] == ["user", "model", "user"]
    assert body["contents"][1]["parts"] == [{**made, "thoughtSignature": "c2lnbmVk"}, made]
    assert body["contents"][2]["parts"][0] == {"functionResponse": {"name": "add", "response": {"result": 2}}}


def test_a_call_of_another_model_has_the_signature_that_gemini_takes_in_its_place() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]}
    chat = {"messages": [{"role": "user", "content": "go"}, said, result("a"), result("b")]}
    first, second = write_request(GEMINI, "gemini-3-pro", chat)["contents"][1]["parts"]
    assert first["thoughtSignature"] == "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
    assert "thoughtSignature" not in second
    old = write_request("google:gemini-2.5-flash", "gemini-2.5-flash", chat)["contents"][1]["parts"]
    assert not any("thoughtSignature" in part for part in old)


@pytest.mark.parametrize(
    ("event", "refused"),
    [
        ({"promptFeedback": {"blockReason": "SAFETY"}}, True),
        ({"candidates": [{"finishReason": "PROHIBITED_CONTENT"}]}, True),
        ({"candidates": [{"content": {"parts": [{"text": "no"}]}, "finishReason": "STOP"}]}, False),
    ],
)
def test_what_gemini_blocks_is_a_refusal(event: dict[str, Any], refused: bool) -> None:
    assert (answer(GEMINI, [event]).result().refusal is not None) == refused


def test_a_malformed_call_of_gemini_is_asked_again() -> None:
    event: Any = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "no such function"}]}
    *_, document = ResponseStream(GEMINI, 1, DIALECTS["tools"].reader(ReaderVocabulary())).documents(event)
    found = refusal_of(None, document)
    assert found is not None
    assert (found.kind, found.words) == ("bad_answer", "no such function")


def test_geminis_settings() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    chat = {"messages": [], "response_format": form, "max_tokens": 9, "reasoning_effort": "low", "seed": 1}
    assert write_request(GEMINI, "gemini-3-pro", chat)["generationConfig"] == {
        "maxOutputTokens": 9,
        "seed": 1,
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object"},
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
    }
    config = write_request("google:gemini-2.5-flash", "gemini-2.5-flash", chat)["generationConfig"]
    assert config["thinkingConfig"] == {"includeThoughts": True, "thinkingBudget": 1024}


def test_marks_of_bedrock_stand_where_the_prompt_is_stable() -> None:
    messages = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": None, "tool_calls": [call("a")]},
        result("a"),
        {"role": "user", "content": "now"},
    ]
    chat = {"messages": messages, "tools": [TOOL]}
    mark = {"cachePoint": {"type": "default"}}
    body = write_request(CLAUDE, "claude-opus-5", chat, stable=3)
    assert body["system"] == [{"text": "Add."}, mark]
    assert [message["content"][-1] == mark for message in body["messages"]] == [True, True, False]
    for model, marks in (
        ("bedrock:meta.llama3-70b-instruct-v1:0", False),
        ("bedrock:anthropic.claude-3-haiku-20240307-v1:0", False),
        ("bedrock:us.anthropic.claude-3-opus-20240229-v1:0", False),
        ("bedrock:anthropic.claude-3-5-sonnet-20240620-v1:0", False),
        ("bedrock:anthropic.claude-v2:1", False),
        ("bedrock:us.anthropic.claude-3-5-haiku-20241022-v1:0", True),
        ("bedrock:anthropic.claude-3-7-sonnet-20250219-v1:0", True),
        ("bedrock:amazon.nova-lite-v1:0", True),
    ):
        body = write_request(model, model.partition(":")[2], chat, stable=3)
        assert ("cachePoint" in str(body)) is marks, model


def test_bedrocks_body() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]},
        {"role": "assistant", "content": "", "tool_calls": [call("a")]},
        result("a"),
    ]
    chat = {"messages": messages, "reasoning_effort": "high", "temperature": 0.3, "max_tokens": 50}
    body = write_request(CLAUDE, "claude-opus-5", chat)
    assert body["messages"][0]["content"][1] == {"image": {"format": "png", "source": {"bytes": "QUJD"}}}
    assert body["toolConfig"]["tools"][0]["toolSpec"]["name"] == "add"
    assert body["inferenceConfig"] == {"maxTokens": 50}
    assert body["additionalModelRequestFields"]["output_config"] == {"effort": "high"}
    plain = write_request(NOVA, "nova", chat)
    assert plain["inferenceConfig"] == {"maxTokens": 50, "temperature": 0.3}
    assert "additionalModelRequestFields" not in plain


# What the providers' documentation shows of tools that they run, in streams.
HOSTED = {
    SONNET: [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "I search."}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"query":'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ' "weather"}'}},
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
            {"type": "web_search_result", "title": "Weather", "url": "https://w.example", "encrypted_content": "Eq"}]}},
        {"type": "content_block_stop", "index": 2},
        {"type": "content_block_start", "index": 3, "content_block": {"type": "server_tool_use", "id": "srvtoolu_2", "name": "bash_code_execution", "input": {"command": "false"}}},
        {"type": "content_block_start", "index": 4, "content_block": {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": {
            "type": "bash_code_execution_result", "stdout": "", "stderr": "no", "return_code": 1}}},
        {"type": "content_block_start", "index": 5, "content_block": {"type": "server_tool_use", "id": "srvtoolu_3", "name": "web_search", "input": {"query": "x"}}},
        {"type": "content_block_start", "index": 6, "content_block": {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_3", "content": {
            "type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    ],
    "openai-responses:gpt-5": [
        {"type": "response.output_item.added", "output_index": 0, "item": {"id": "ws_1", "type": "web_search_call", "status": "in_progress"}},
        {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1"},
        {"type": "response.output_item.done", "output_index": 0, "item": {"id": "ws_1", "type": "web_search_call", "status": "completed",
            "action": {"type": "search", "query": "weather", "sources": [{"type": "url", "url": "https://w.example"}]}}},
        {"type": "response.output_item.done", "output_index": 1, "item": {"id": "ci_1", "type": "code_interpreter_call", "status": "failed",
            "code": "false", "container_id": "c", "outputs": [{"type": "logs", "logs": "no"}]}},
        {"type": "response.output_item.done", "output_index": 2, "item": {"id": "ws_2", "type": "web_search_call", "status": "failed",
            "action": {"type": "open_page", "url": "x"}}},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ],
    GEMINI: [
        {"candidates": [{"content": {"parts": [{"executableCode": {"language": "PYTHON", "code": "false"}}]}}]},
        {"candidates": [{"content": {"parts": [{"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "no"}}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "so"}]}, "groundingMetadata": {"webSearchQueries": ["weather"],
            "groundingChunks": [{"web": {"uri": "https://w.example", "title": "Weather"}}]}}]},
        {"candidates": [{"finishReason": "STOP", "groundingMetadata": {"webSearchQueries": ["weather"]}}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("model", "events"), HOSTED.items())
def test_r20_6_uses_of_hosted_tools_are_read(model: str, events: list[Any]) -> None:
    uses = answer(model, events).result().hosted
    search = next(use for use in uses if use.tool == "web_search" and not use.failed)
    (code,) = [use for use in uses if use.tool == "code_execution"]
    (other,) = [use for use in uses if use not in (search, code)] if model != GEMINI else [None]
    assert (search.tool, search.input, search.failed) == ("web_search", "weather", False)
    assert "https://w.example" in search.result
    assert (code.tool, code.input, code.result, code.failed) == ("code_execution", "false", "no", True)
    assert other is None or (other.tool, other.input, other.failed) == ("web_search", "x", True)


def test_r20_6_a_schema_is_left_out_where_the_server_enforces_none_beside_a_hosted_tool() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "o", "strict": True, "schema": {"type": "object"}}}
    chat = {"messages": [{"role": "user", "content": "go"}], "response_format": form, "hosted_tools": ["web_search"]}
    assert "output_config" not in write_request(SONNET, "claude-sonnet-5", chat)
    assert "generationConfig" not in write_request("google:gemini-2.5-pro", "gemini-2.5-pro", chat)
    assert "responseJsonSchema" in write_request(GEMINI, "gemini-3-pro", chat)["generationConfig"]
    body = write_request("openai-responses:gpt-5", "gpt-5", chat)
    assert body["text"]["format"]["name"] == "o"
    assert body["include"] == ["reasoning.encrypted_content", "web_search_call.action.sources"]
    assert "hosted_tools" not in write_request("gpt-4o", "gpt-4o", chat)


@pytest.mark.parametrize("model", [SONNET, "openai-responses:gpt-5", GEMINI, NOVA])
@pytest.mark.parametrize(
    "event",
    [None, "text", 3, [], {}, {"type": None}, {"type": "content_block_delta"}, {"type": "content_block_start", "index": "x"},
     {"type": "message_delta", "delta": None, "usage": 3}, {"type": "message", "content": [None, {"type": "tool_use"}]},
     {"type": "message_start", "message": "x"}, {"type": "response.output_item.done", "item": {"type": "function_call"}},
     {"type": "response.output_item.added", "item": None}, {"type": "response.completed", "response": None},
     {"type": "response.function_call_arguments.delta", "output_index": 9, "delta": "{}"},
     {"candidates": [None, {"content": {"parts": [None, {"functionCall": {"args": 3}}]}}]}, {"candidates": "x"},
     {"usageMetadata": 3}, [{"candidates": []}], {"promptFeedback": 3}, {"contentBlockStart": {"start": {"toolUse": {}}}},
     {"contentBlockDelta": {"delta": {"toolUse": {"input": "x"}, "text": 3}}}, {"metadata": None}, {"messageStop": {}},
     {"output": {"message": {"content": [{"toolUse": {}}, {"reasoningContent": {"reasoningText": 3}}]}}},
     {"object": "response", "output": [None, {"type": "reasoning", "summary": "x"}, {"type": "message", "content": [1]}]}],
    ids=json.dumps,
)  # fmt: skip
def test_any_event_of_a_server_gives_a_result_that_crosses_the_wire(model: str, event: Any) -> None:
    result = answer(model, [event, event]).result()
    assert RequestResult.model_validate_json(result.model_dump_json(by_alias=True)) == result
