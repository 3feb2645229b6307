"""AWS Bedrock's Converse: a Request as its body, and its events as pieces of Chat Completions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Final

from perdure.models.provider_extras import THINKING_BLOCKS
from perdure.models.providers.chat_messages import (
    CallPart,
    CallPieces,
    ChatTurn,
    FilePart,
    Part,
    TextPart,
    chunk,
    in_order,
    known_tools,
    objects,
    part_of,
    place_of,
    read_conversation,
    token_count,
    usage_chunk,
    written_arguments,
)
from perdure.models.providers.claude import claude_of, signed_thoughts
from perdure.values.json import Json, JsonObject

_MARK: Final[JsonObject] = {"cachePoint": {"type": "default"}}
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9()\[\]-]+")
_LONGEST_NAME: Final = 150
"""Characters of a document's own name: the server accepts 200 in all, and the digest needs 13."""
_SAMPLING: Final = {"max_tokens": "maxTokens", "temperature": "temperature", "top_p": "topP"}


def write_body(model: str, chat: JsonObject, stable: int, *, marked: bool) -> JsonObject:
    """Return the body of a Request to Converse, without `model` and `stream`, which are in its address.

    `stable`: the number of chat messages that later Requests repeat. `marked`: whether the model's cache needs marks.
    """
    claude = claude_of(model)
    conversation = read_conversation(chat["messages"])
    tools, _ = known_tools(chat, conversation)
    thoughts = (
        {}
        if claude is None
        else claude.thoughts(chat.get("reasoning_effort"), conversation.turns, chat.get("max_tokens"))
    )
    contents = [list(_blocks(turn)) for turn in conversation.turns]
    turns = zip(conversation.turns, contents, strict=True)
    system: list[JsonObject] = [{"text": text} for text in conversation.system]
    body: JsonObject = {
        "model": model,
        "stream": bool(chat.get("stream")),
        "messages": [{"role": turn.role, "content": content} for turn, content in turns],
    }
    sampling = chat
    if claude is not None:
        sampling = {"max_tokens": chat.get("max_tokens"), **({} if thoughts else claude.sampling(chat))}
    inference = {name: sampling[key] for key, name in _SAMPLING.items() if sampling.get(key) is not None}
    if "thinking" in thoughts and claude is not None:
        inference.setdefault("maxTokens", claude.tokens(thoughts))
        effort = {"output_config": {"effort": thoughts["effort"]}} if "effort" in thoughts else {}
        body["additionalModelRequestFields"] = {"thinking": thoughts["thinking"], **effort}
    if inference:
        body["inferenceConfig"] = inference
    if system:
        body["system"] = system
    if tools:
        body["toolConfig"] = {"tools": [_tool(tool) for tool in tools]}
    if marked:
        for blocks in [*([system] if system else []), *(contents[each] for each in conversation.stable_turns(stable))]:
            blocks.append(_MARK)
    return body


def _tool(tool: JsonObject) -> JsonObject:
    described = {"description": tool["description"]} if tool["description"] else {}
    return {"toolSpec": {"name": tool["name"], **described, "inputSchema": {"json": tool["parameters"]}}}


def _blocks(turn: ChatTurn) -> Iterator[JsonObject]:
    for call, parts in turn.results:
        content = [_part(part) for part in parts] or [{"text": "(empty)"}]
        yield {"toolResult": {"toolUseId": call.id, "content": content}}
    thoughts = [(token_count(block.get("index")), _thought(block)) for block in signed_thoughts(turn)]
    calls = [(place_of(call.beside), _call(call)) for call in turn.calls]
    yield from in_order(thoughts, map(_part, turn.parts), calls)


def _call(call: CallPart) -> JsonObject:
    return {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}}


def _thought(block: JsonObject) -> JsonObject:
    if "data" in block:
        return {"reasoningContent": {"redactedContent": block["data"]}}
    text = {"text": block.get("thinking") or "", "signature": block["signature"]}
    return {"reasoningContent": {"reasoningText": text}}


def _part(part: Part) -> JsonObject:
    if isinstance(part, TextPart):
        return {"text": part.text}
    source = {"bytes": part.data}
    form = part.media_type.rpartition("/")[2]
    if part.kind == "document":
        return {"document": {"format": form, "name": _document_name(part), "source": source}}
    return {part.kind: {"format": form, "source": source}}


def _document_name(part: FilePart) -> str:
    """Return a name that no other document has, in characters that the server accepts. It stays the same in later
    Requests, so that the cache holds.
    """
    words = _NOT_IN_NAMES.sub(" ", part.name.rpartition(".")[0] or part.name).strip() or "document"
    return f"{words[:_LONGEST_NAME]} {hashlib.sha256(part.data.encode()).hexdigest()[:12]}"


_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
_KINDS: Final = frozenset(
    {"messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)


class BedrockEvents:
    """A reader of the events of ConverseStream, each as `{"name": {…}}`, or of a whole answer."""

    def __init__(self) -> None:
        self._calls = CallPieces()

    def take(self, event: Json) -> list[Json]:
        """Return the pieces of an answer in an event; any other value stays unchanged."""
        if not isinstance(event, dict):
            return [event]
        if isinstance(event.get("output"), dict):
            return self._whole(event)
        kind = next((key for key in event if key in _KINDS), None)
        if kind is None:
            return [event]
        data = part_of(event, kind)
        index = token_count(data.get("contentBlockIndex"))
        if kind == "contentBlockStart":
            return self._opened(index, part_of(data, "start"))
        if kind == "contentBlockDelta":
            return self._delta(index, part_of(data, "delta"))
        if kind == "contentBlockStop":
            return self._calls.close(index)
        if kind == "messageStop":
            return self._end(data)
        return [_counted(data)] if kind == "metadata" else []

    def _whole(self, answer: JsonObject) -> list[Json]:
        pieces: list[Json] = []
        for index, block in enumerate(objects(part_of(part_of(answer, "output"), "message").get("content"))):
            pieces += self._opened(index, block)
            if "toolUse" not in block:
                thought = part_of(block, "reasoningContent")
                flat = {"reasoningContent": {**thought, **part_of(thought, "reasoningText")}} if thought else block
                pieces += self._delta(index, flat)
            else:
                pieces += self._calls.write(index, written_arguments(part_of(block, "toolUse").get("input")))
        return [*pieces, *self._end(answer), _counted(answer)]

    def _opened(self, index: int, start: JsonObject) -> list[Json]:
        call = start.get("toolUse")
        if not isinstance(call, dict):
            return []
        return self._calls.open(index, call.get("toolUseId"), call.get("name"))

    def _delta(self, index: int, delta: JsonObject) -> list[Json]:
        if isinstance(text := delta.get("text"), str):
            return [chunk({"content": text})]
        if isinstance(call := delta.get("toolUse"), dict) and call.get("input"):
            return self._calls.write(index, str(call["input"]))
        if not isinstance(thought := delta.get("reasoningContent"), dict):
            return []
        self._calls.placed = True
        if thought.get("redactedContent"):
            block = {"type": "redacted_thinking", "data": thought["redactedContent"]}
        else:
            pieces = {"thinking": thought.get("text"), "signature": thought.get("signature")}
            block = {"type": "thinking", **{key: value for key, value in pieces.items() if value is not None}}
        return [chunk({THINKING_BLOCKS: [{"index": index, **block}]})]

    def _end(self, ended: JsonObject) -> list[Json]:
        reason = ended.get("stopReason")
        if isinstance(reason, str) and reason.startswith("malformed"):
            words = f"the answer ended with {reason}"
            return [{"error": {"message": words, "code": "tool_use_failed", "type": reason}}]
        return [chunk({}, _FINISH.get(reason, reason))] if isinstance(reason, str) else []


def _counted(holder: JsonObject) -> JsonObject:
    usage = part_of(holder, "usage")
    read, written = (token_count(usage.get(f"cache{each}InputTokens")) for each in ("Read", "Write"))
    prompt = token_count(usage.get("inputTokens")) + read + written
    return chunk(usage=usage_chunk(prompt, token_count(usage.get("outputTokens")), read, written=written))
