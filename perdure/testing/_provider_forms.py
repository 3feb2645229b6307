"""The wire forms of a scripted model: one for each provider, with the same script.

A form reads a request as chat messages and writes the answer, whose pieces are deltas of Chat Completions.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from perdure.models.model_names import Provider
from perdure.values.json import JsonObject


class AnswerWriter(Protocol):
    """The writer of one streamed answer: each method returns bytes for the wire."""

    def begin(self) -> bytes:
        """Return the bytes before the first delta."""
        ...

    def delta(self, delta: JsonObject) -> bytes:
        """Return a delta of Chat Completions in the provider's events."""
        ...

    def end(self, finish: str, usage: JsonObject | None) -> bytes:
        """Return the end of the answer; `finish` is that of Chat Completions."""
        ...


class ProviderForm(Protocol):
    """One provider's form."""

    media_type: str

    def messages(self, body: JsonObject) -> list[JsonObject]:
        """Return the messages of a request in the form of Chat Completions."""
        ...

    def model(self, body: JsonObject, path: Mapping[str, str]) -> str:
        """Return the model that a request names; `path` are the parts of its address."""
        ...

    def streamed(self, body: JsonObject, path: Mapping[str, str]) -> bool:
        """Whether the request asks for a stream."""
        ...

    def writer(self, number: int, model: str, usage: JsonObject) -> AnswerWriter:
        """Return the writer of the answer to a request."""
        ...

    def whole(self, number: int, model: str, completion: JsonObject, usage: JsonObject | None) -> JsonObject:
        """Return a completion in the provider's form."""
        ...

    def error(self, status: int, message: str, code: str) -> JsonObject:
        """Return the body of a refusal."""
        ...


def sse(data: JsonObject, event: str = "") -> bytes:
    """Return one event of a stream."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def deltas_of(completion: JsonObject) -> Iterator[JsonObject]:
    """Yield the message of a completion as deltas."""
    message = completion["choices"][0]["message"]
    for key in ("reasoning_content", "hosted_calls", "refusal", "content"):
        if message.get(key):
            yield {key: message[key]}
    for index, call in enumerate(message.get("tool_calls", ())):
        yield {"tool_calls": [{"index": index, **call}]}


def _written(
    writer: _ResponsesWriter | _AnthropicWriter | _BedrockWriter, completion: JsonObject, usage: JsonObject | None
) -> JsonObject:
    """Return a completion as its writer has it after all deltas."""
    for delta in deltas_of(completion):
        writer.delta(delta)
    return writer.answer(completion["choices"][0]["finish_reason"], usage)


class ChatForm:
    """Chat Completions."""

    media_type = "text/event-stream"

    def messages(self, body: JsonObject) -> list[JsonObject]:
        found: list[JsonObject] = body.get("messages", [])
        return found

    def model(self, body: JsonObject, path: Mapping[str, str]) -> str:
        return str(body.get("model", ""))

    def streamed(self, body: JsonObject, path: Mapping[str, str]) -> bool:
        return bool(body.get("stream"))

    def writer(self, number: int, model: str, usage: JsonObject) -> AnswerWriter:
        return _ChatWriter(
            {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 0, "model": model}
        )

    def whole(self, number: int, model: str, completion: JsonObject, usage: JsonObject | None) -> JsonObject:
        return completion | ({} if usage is None else {"usage": usage})

    def error(self, status: int, message: str, code: str) -> JsonObject:
        return {"error": {"message": message, "type": "scripted_error", "param": None, "code": code}}


class _ChatWriter:
    def __init__(self, frame: JsonObject) -> None:
        self._frame = frame

    def _event(self, delta: JsonObject, finish: str | None = None) -> bytes:
        return sse(self._frame | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def begin(self) -> bytes:
        return self._event({"role": "assistant", "content": ""})

    def delta(self, delta: JsonObject) -> bytes:
        return self._event(delta)

    def end(self, finish: str, usage: JsonObject | None) -> bytes:
        counted = b"" if usage is None else sse(self._frame | {"choices": [], "usage": usage})
        return self._event({}, finish) + counted + b"data: [DONE]\n\n"


class ResponsesForm(ChatForm):
    """OpenAI's Responses."""

    def messages(self, body: JsonObject) -> list[JsonObject]:
        return [_responses_message(item) for item in body.get("input", [])]

    def writer(self, number: int, model: str, usage: JsonObject) -> AnswerWriter:
        return _ResponsesWriter(number, model)

    def whole(self, number: int, model: str, completion: JsonObject, usage: JsonObject | None) -> JsonObject:
        return _written(_ResponsesWriter(number, model), completion, usage)


def _responses_message(item: JsonObject) -> JsonObject:
    if item.get("type") == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        return {"role": "assistant", "tool_calls": [{"id": item["call_id"], "function": function}]}
    if item.get("type") == "function_call_output":
        return {"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]}
    if item.get("type") == "reasoning":
        return {"role": "assistant", "content": "", "reasoning": item}
    return item


class _ResponsesWriter:
    def __init__(self, number: int, model: str) -> None:
        self._number, self._model = number, model
        self._items: list[JsonObject] = []
        self._open = ""

    def begin(self) -> bytes:
        return self._event("response.created", response=self._frame("in_progress"))

    def delta(self, delta: JsonObject) -> bytes:
        written = b""
        for call in delta.get("tool_calls", ()):
            written += self._call(call)
        for use in delta.get("hosted_calls", ()):
            written += self._hosted(use)
        for key, kind in (("reasoning_content", "reasoning"), ("refusal", "message"), ("content", "message")):
            if text := delta.get(key):
                written += self._text(key, kind, text)
        return written

    def _hosted(self, use: JsonObject) -> bytes:
        if use["tool"] == "web_search":
            sources = [{"type": "url", "url": use["result"]}]
            item: JsonObject = {
                "type": "web_search_call",
                "action": {"type": "search", "query": use["input"], "sources": sources},
            }
        else:
            outputs = [{"type": "logs", "logs": use["result"]}]
            item = {"type": "code_interpreter_call", "code": use["input"], "container_id": "c", "outputs": outputs}
        written, self._open = self._closed(), ""
        self._items.append({"id": f"hosted_{self._number}_{len(self._items)}", "status": "completed", **item})
        index = len(self._items) - 1
        begun = {**self._items[-1], "status": "in_progress"}
        written += self._event("response.output_item.added", output_index=index, item=begun)
        written += self._event(f"response.{item['type']}.completed", output_index=index)
        return written + self._event("response.output_item.done", output_index=index, item=self._items[-1])

    def _text(self, key: str, kind: str, text: str) -> bytes:
        written = b"" if self._open == key else self._item(key, kind)
        index, item = len(self._items) - 1, self._items[-1]
        if kind == "reasoning":
            item["summary"][0]["text"] += text
            return written + self._event("response.reasoning_summary_text.delta", output_index=index, delta=text)
        part = item["content"][0]
        part[part["type"] if part["type"] == "refusal" else "text"] += text
        name = "response.refusal.delta" if key == "refusal" else "response.output_text.delta"
        return written + self._event(name, output_index=index, delta=text)

    def _call(self, call: JsonObject) -> bytes:
        written = b""
        function = call.get("function", {})
        if "name" in function:
            written = self._item(f"call {call['index']}", "function_call")
            self._items[-1] |= {"call_id": call["id"], "name": function["name"]}
            index = len(self._items) - 1
            written += self._event("response.output_item.added", output_index=index, item=self._items[-1])
        arguments = function.get("arguments", "")
        self._items[-1]["arguments"] += arguments
        if not arguments:
            return written
        index = len(self._items) - 1
        return written + self._event("response.function_call_arguments.delta", output_index=index, delta=arguments)

    def _item(self, key: str, kind: str) -> bytes:
        """Close the open item and begin another one."""
        written = self._closed()
        self._open = key
        number = len(self._items)
        item: JsonObject = {"type": kind, "id": f"{kind}_{self._number}_{number}"}
        if kind == "reasoning":
            sealed = f"sealed-{self._number}-{number}"
            item |= {"summary": [{"type": "summary_text", "text": ""}], "encrypted_content": sealed}
        elif kind == "message":
            part = {"type": "refusal", "refusal": ""} if key == "refusal" else {"type": "output_text", "text": ""}
            item |= {"role": "assistant", "content": [part]}
        else:
            item["arguments"] = ""
        self._items.append(item)
        if kind == "function_call":
            return written
        return written + self._event("response.output_item.added", output_index=number, item=item)

    def _closed(self) -> bytes:
        if not self._open:
            return b""
        return self._event("response.output_item.done", output_index=len(self._items) - 1, item=self._items[-1])

    def end(self, finish: str, usage: JsonObject | None) -> bytes:
        status = "incomplete" if finish in ("length", "content_filter") else "completed"
        return self._closed() + self._event(f"response.{status}", response=self.answer(finish, usage))

    def answer(self, finish: str, usage: JsonObject | None) -> JsonObject:
        """Return the whole response."""
        cut = finish in ("length", "content_filter")
        found = self._frame("incomplete" if cut else "completed") | {"output": self._items}
        if cut:
            found["incomplete_details"] = {"reason": "max_output_tokens" if finish == "length" else finish}
        if usage is not None:
            details = usage.get("prompt_tokens_details", {})
            found["usage"] = {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": details.get("cached_tokens", 0)},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage.get("completion_tokens_details", {}),
            }
        return found

    def _frame(self, status: str) -> JsonObject:
        return {"id": f"resp_{self._number}", "object": "response", "model": self._model, "status": status}

    def _event(self, kind: str, **more: Any) -> bytes:
        return sse({"type": kind, **more}, kind)


_STOP = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_ERRORS = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}


class AnthropicForm(ChatForm):
    """Anthropic's Messages."""

    def messages(self, body: JsonObject) -> list[JsonObject]:
        system = body.get("system", "")
        text = system if isinstance(system, str) else "\n".join(block["text"] for block in system)
        found: list[JsonObject] = [{"role": "system", "content": text}]
        for message in body.get("messages", ()):
            found += _anthropic_messages(message)
        return found

    def writer(self, number: int, model: str, usage: JsonObject) -> AnswerWriter:
        return _AnthropicWriter(number, model, usage)

    def whole(self, number: int, model: str, completion: JsonObject, usage: JsonObject | None) -> JsonObject:
        return _written(_AnthropicWriter(number, model, usage or {}), completion, usage)

    def error(self, status: int, message: str, code: str) -> JsonObject:
        return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": message}}


def _anthropic_messages(message: JsonObject) -> Iterator[JsonObject]:
    content = message["content"]
    blocks: list[JsonObject] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        if block["type"] == "tool_result":
            text = "\n".join(part.get("text", "") for part in block["content"])
            yield {"role": "tool", "content": text, "tool_call_id": block["tool_use_id"]}
        elif block["type"] == "tool_use":
            function = {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)}
            yield {"role": "assistant", "tool_calls": [{"id": block["id"], "function": function}]}
        elif block["type"] == "thinking":
            yield {"role": "assistant", "content": "", "reasoning": block}
        else:
            yield {"role": message["role"], "content": block.get("text", "")}


def anthropic_usage(usage: JsonObject) -> JsonObject:
    """Return counts in the form of Messages: cached tokens are not part of the input's."""
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    written = usage.get("cache_write_tokens", 0)
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached - written,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
        "output_tokens": usage.get("completion_tokens", 0),
    }


class _AnthropicWriter:
    def __init__(self, number: int, model: str, usage: JsonObject) -> None:
        self._number, self._model, self._usage = number, model, usage
        self._blocks: list[JsonObject] = []
        self._open = ""

    def begin(self) -> bytes:
        usage = anthropic_usage(self._usage) | {"output_tokens": 1}
        message = {"type": "message", "id": f"msg_{self._number}", "role": "assistant", "model": self._model}
        return self._event("message_start", message=message | {"content": [], "usage": usage}) + self._event("ping")

    def delta(self, delta: JsonObject) -> bytes:
        written = b""
        for call in delta.get("tool_calls", ()):
            written += self._call(call)
        for use in delta.get("hosted_calls", ()):
            written += self._hosted(use)
        if text := delta.get("reasoning_content"):
            begun = self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._blocks[-1]["thinking"] += text
            written += begun + self._piece({"type": "thinking_delta", "thinking": text})
        if text := delta.get("content") or delta.get("refusal"):
            begun = self._block("text", {"type": "text", "text": ""})
            self._blocks[-1]["text"] += text
            written += begun + self._piece({"type": "text_delta", "text": text})
        return written

    def _hosted(self, use: JsonObject) -> bytes:
        id, searches = f"srvtoolu_{self._number}_{len(self._blocks)}", use["tool"] == "web_search"
        name = "web_search" if searches else "bash_code_execution"
        given = json.dumps({"query" if searches else "command": use["input"]}, ensure_ascii=False)
        written = self._block(id, {"type": "server_tool_use", "id": id, "name": name, "input": {}})
        self._blocks[-1]["written"] = given
        written += self._piece({"type": "input_json_delta", "partial_json": given})
        found: Any = {"type": "bash_code_execution_result", "stdout": use["result"], "stderr": "", "return_code": 0}
        if searches:
            found = [{"type": "web_search_result", "url": use["result"], "title": "", "encrypted_content": "x"}]
        block = {"type": f"{name}_tool_result", "tool_use_id": id, "content": found}
        return written + self._block(f"{id} result", block)

    def _call(self, call: JsonObject) -> bytes:
        function, written = call.get("function", {}), b""
        if "name" in function:
            block = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}}
            written = self._block(f"call {call['index']}", block)
            self._blocks[-1]["written"] = ""
        self._blocks[-1]["written"] += function.get("arguments", "")
        if not function.get("arguments"):
            return written
        return written + self._piece({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _block(self, key: str, block: JsonObject) -> bytes:
        """Close the open block and begin another one, unless it is the same."""
        if self._open == key:
            return b""
        written, self._open = self._closed(), key
        self._blocks.append(dict(block))
        return written + self._event("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _closed(self) -> bytes:
        if not self._open:
            return b""
        block, written, index = self._blocks[-1], b"", len(self._blocks) - 1
        if block["type"] == "thinking":
            block["signature"] = f"signed-{self._number}-{index}"
            written = self._piece({"type": "signature_delta", "signature": block["signature"]})
        return written + self._event("content_block_stop", index=index)

    def _piece(self, delta: JsonObject) -> bytes:
        return self._event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def end(self, finish: str, usage: JsonObject | None) -> bytes:
        ended = {"stop_reason": _STOP.get(finish, finish), "stop_sequence": None}
        counted = {"usage": {"output_tokens": anthropic_usage(usage)["output_tokens"]}} if usage else {}
        return self._closed() + self._event("message_delta", delta=ended, **counted) + self._event("message_stop")

    def answer(self, finish: str, usage: JsonObject | None) -> JsonObject:
        """Return the whole message."""
        self._closed()
        content = [
            {key: value for key, value in block.items() if key != "written"}
            | ({"input": json.loads(block["written"] or "{}")} if "written" in block else {})
            for block in self._blocks
        ]
        counted = {} if usage is None else {"usage": anthropic_usage(usage)}
        ended = {"stop_reason": _STOP.get(finish, finish), "content": content, "model": self._model}
        return {"type": "message", "id": f"msg_{self._number}", "role": "assistant", **ended, **counted}

    def _event(self, kind: str, **more: Any) -> bytes:
        return sse({"type": kind, **more}, kind)


_GOOGLE_STOP = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_GOOGLE_ERRORS = {401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


class GoogleForm(ChatForm):
    """Google's Gemini."""

    def messages(self, body: JsonObject) -> list[JsonObject]:
        system = body.get("systemInstruction", {}).get("parts", ())
        found: list[JsonObject] = [{"role": "system", "content": "\n".join(part["text"] for part in system)}]
        for content in body.get("contents", ()):
            role = "assistant" if content.get("role") == "model" else "user"
            found += [_google_message(role, part) for part in content["parts"]]
        return found

    def model(self, body: JsonObject, path: Mapping[str, str]) -> str:
        return path["model"].partition(":")[0]

    def streamed(self, body: JsonObject, path: Mapping[str, str]) -> bool:
        return path["model"].endswith(":streamGenerateContent")

    def writer(self, number: int, model: str, usage: JsonObject) -> AnswerWriter:
        return _GoogleWriter(number, model)

    def whole(self, number: int, model: str, completion: JsonObject, usage: JsonObject | None) -> JsonObject:
        writer = _GoogleWriter(number, model)
        parts = [part for delta in deltas_of(completion) for part in writer.parts(delta)]
        return writer.answer([*parts, *writer.closed()], completion["choices"][0]["finish_reason"], usage)

    def error(self, status: int, message: str, code: str) -> JsonObject:
        name = _GOOGLE_ERRORS.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
        return {"error": {"code": status, "message": message, "status": name}}


def _google_message(role: str, part: JsonObject) -> JsonObject:
    if call := part.get("functionCall"):
        function = {"name": call["name"], "arguments": json.dumps(call["args"], ensure_ascii=False)}
        found = {"role": role, "tool_calls": [{"id": "", "function": function}]}
        return found | ({"reasoning": part} if part.get("thoughtSignature") else {})
    if result := part.get("functionResponse"):
        return {"role": "tool", "content": json.dumps(result["response"], ensure_ascii=False), "tool_call_id": ""}
    return {"role": role, "content": part.get("text", "")}


class _GoogleWriter:
    """A writer of Google's events: a call is one event, so it is written when it is whole."""

    def __init__(self, number: int, model: str) -> None:
        self._number, self._model = number, model
        self._call: JsonObject | None = None
        self._calls = 0
        self._thought = False
        self._grounding: JsonObject = {}

    def begin(self) -> bytes:
        return b""

    def parts(self, delta: JsonObject) -> list[JsonObject]:
        """Return the parts that end with a delta."""
        found: list[JsonObject] = []
        if text := delta.get("reasoning_content"):
            self._thought = True
            found.append({"text": text, "thought": True})
        for use in delta.get("hosted_calls", ()):
            found += self._hosted(use)
        if text := delta.get("content") or delta.get("refusal"):
            found.append({"text": text})
        for call in delta.get("tool_calls", ()):
            function = call.get("function", {})
            if "name" in function:
                found += self.closed()
                self._call = {"name": function["name"], "arguments": ""}
            assert self._call is not None
            self._call["arguments"] += function.get("arguments", "")
            if _is_object(self._call["arguments"]):
                found += self.closed()
        return found

    def _hosted(self, use: JsonObject) -> list[JsonObject]:
        if use["tool"] == "web_search":
            chunks = [{"web": {"uri": use["result"], "title": ""}}]
            self._grounding = {"webSearchQueries": [use["input"]], "groundingChunks": chunks}
            return []
        return [
            {"executableCode": {"language": "PYTHON", "code": use["input"]}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": use["result"]}},
        ]

    def closed(self) -> list[JsonObject]:
        """Return the call that is open."""
        if self._call is None:
            return []
        call, self._call = self._call, None
        self._calls += 1
        signed = {"thoughtSignature": f"signed-{self._number}"} if self._thought and self._calls == 1 else {}
        return [{"functionCall": {"name": call["name"], "args": json.loads(call["arguments"] or "{}")}, **signed}]

    def delta(self, delta: JsonObject) -> bytes:
        if "tool_calls" in delta and self._call is None and "name" not in delta["tool_calls"][0].get("function", {}):
            return b""  # a late piece of a call's name, after the call was written
        return b"".join(sse(self.answer([part])) for part in self.parts(delta))

    def end(self, finish: str, usage: JsonObject | None) -> bytes:
        return sse(self.answer(self.closed(), finish, usage))

    def answer(self, parts: list[JsonObject], finish: str | None = None, usage: JsonObject | None = None) -> JsonObject:
        """Return an event, or the whole answer."""
        candidate: JsonObject = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = _GOOGLE_STOP.get(finish, finish)
            candidate |= {"groundingMetadata": self._grounding} if self._grounding else {}
        found: JsonObject = {"candidates": [candidate], "modelVersion": self._model}
        if usage is not None:
            found["usageMetadata"] = {
                "promptTokenCount": usage["prompt_tokens"],
                "candidatesTokenCount": usage["completion_tokens"],
                "cachedContentTokenCount": usage.get("prompt_tokens_details", {}).get("cached_tokens", 0),
            }
        return found


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def aws_event(kind: str, data: JsonObject, *, exception: bool = False) -> bytes:
    """Return one event of AWS's event stream."""
    names = {":exception-type" if exception else ":event-type": kind, ":content-type": "application/json"}
    names[":message-type"] = "exception" if exception else "event"
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in names.items()
    )
    payload = json.dumps(data, ensure_ascii=False).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    event = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return event + struct.pack(">I", zlib.crc32(event))


class BedrockForm(ChatForm):
    """AWS Bedrock's Converse."""

    media_type = "application/vnd.amazon.eventstream"

    def messages(self, body: JsonObject) -> list[JsonObject]:
        found: list[JsonObject] = [
            {"role": "system", "content": "\n".join(block.get("text", "") for block in body.get("system", ()))}
        ]
        for message in body.get("messages", ()):
            found += [_bedrock_message(message["role"], block) for block in message["content"]]
        return found

    def model(self, body: JsonObject, path: Mapping[str, str]) -> str:
        return path["model"]

    def streamed(self, body: JsonObject, path: Mapping[str, str]) -> bool:
        return path["how"] == "converse-stream"

    def writer(self, number: int, model: str, usage: JsonObject) -> AnswerWriter:
        return _BedrockWriter(number)

    def whole(self, number: int, model: str, completion: JsonObject, usage: JsonObject | None) -> JsonObject:
        return _written(_BedrockWriter(number), completion, usage)

    def error(self, status: int, message: str, code: str) -> JsonObject:
        return {"message": message}


def _bedrock_message(role: str, block: JsonObject) -> JsonObject:
    if call := block.get("toolUse"):
        function = {"name": call["name"], "arguments": json.dumps(call["input"], ensure_ascii=False)}
        return {"role": role, "tool_calls": [{"id": call["toolUseId"], "function": function}]}
    if result := block.get("toolResult"):
        text = "\n".join(part.get("text", "") for part in result["content"])
        return {"role": "tool", "content": text, "tool_call_id": result["toolUseId"]}
    if thought := block.get("reasoningContent"):
        return {"role": role, "content": "", "reasoning": thought["reasoningText"]}
    return {"role": role, "content": block.get("text", "")}


class _BedrockWriter:
    def __init__(self, number: int) -> None:
        self._number = number
        self._blocks: list[JsonObject] = []
        self._open = ""

    def begin(self) -> bytes:
        return aws_event("messageStart", {"role": "assistant"})

    def delta(self, delta: JsonObject) -> bytes:
        written = b""
        for call in delta.get("tool_calls", ()):
            written += self._call(call)
        if text := delta.get("reasoning_content"):
            begun = self._block("thinking", {"reasoningContent": {"reasoningText": {"text": ""}}})
            self._blocks[-1]["reasoningContent"]["reasoningText"]["text"] += text
            written += begun + self._piece({"reasoningContent": {"text": text}})
        if text := delta.get("content") or delta.get("refusal"):
            begun = self._block("text", {"text": ""})
            self._blocks[-1]["text"] += text
            written += begun + self._piece({"text": text})
        return written

    def _call(self, call: JsonObject) -> bytes:
        function, written = call.get("function", {}), b""
        if "name" in function:
            use = {"toolUseId": call["id"], "name": function["name"]}
            written = self._block(f"call {call['index']}", {"toolUse": {**use, "input": ""}})
            start = {"start": {"toolUse": use}, "contentBlockIndex": len(self._blocks) - 1}
            written += aws_event("contentBlockStart", start)
        self._blocks[-1]["toolUse"]["input"] += function.get("arguments", "")
        if not function.get("arguments"):
            return written
        return written + self._piece({"toolUse": {"input": function["arguments"]}})

    def _block(self, key: str, block: JsonObject) -> bytes:
        """Close the open block and begin another one, unless it is the same."""
        if self._open == key:
            return b""
        written, self._open = self._closed(), key
        self._blocks.append(block)
        return written

    def _closed(self) -> bytes:
        if not self._open:
            return b""
        written = b""
        if thought := self._blocks[-1].get("reasoningContent"):
            signature = f"signed-{self._number}-{len(self._blocks) - 1}"
            thought["reasoningText"]["signature"] = signature
            written = self._piece({"reasoningContent": {"signature": signature}})
        return written + aws_event("contentBlockStop", {"contentBlockIndex": len(self._blocks) - 1})

    def _piece(self, delta: JsonObject) -> bytes:
        return aws_event("contentBlockDelta", {"delta": delta, "contentBlockIndex": len(self._blocks) - 1})

    def end(self, finish: str, usage: JsonObject | None) -> bytes:
        stop = aws_event("messageStop", {"stopReason": _BEDROCK_STOP.get(finish, finish)})
        counted = b"" if usage is None else aws_event("metadata", {"usage": _bedrock_usage(usage)})
        return self._closed() + stop + counted

    def answer(self, finish: str, usage: JsonObject | None) -> JsonObject:
        """Return the whole answer."""
        self._closed()
        for block in self._blocks:
            if "toolUse" in block:
                block["toolUse"]["input"] = json.loads(block["toolUse"]["input"] or "{}")
        message = {"role": "assistant", "content": self._blocks}
        counted = {} if usage is None else {"usage": _bedrock_usage(usage)}
        return {"output": {"message": message}, "stopReason": _BEDROCK_STOP.get(finish, finish), **counted}


_BEDROCK_STOP = {**_STOP, "content_filter": "content_filtered"}


def _bedrock_usage(usage: JsonObject) -> JsonObject:
    counted = anthropic_usage(usage)
    return {
        "inputTokens": counted["input_tokens"],
        "outputTokens": counted["output_tokens"],
        "cacheReadInputTokens": counted["cache_read_input_tokens"],
        "cacheWriteInputTokens": counted["cache_creation_input_tokens"],
    }


FORMS: Mapping[Provider, ProviderForm] = {
    "openai": ChatForm(),
    "openai-responses": ResponsesForm(),
    "anthropic": AnthropicForm(),
    "google": GoogleForm(),
    "bedrock": BedrockForm(),
}
"""By the name of the provider."""
