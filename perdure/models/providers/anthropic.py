"""Anthropic's Messages: a Request as its body, and its events as pieces of Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure.errors import JsonError
from perdure.models.provider_extras import THINKING_BLOCKS
from perdure.models.providers.chat_messages import (
    CallPart,
    CallPieces,
    ChatTurn,
    Part,
    TextPart,
    chunk,
    hosted_piece,
    hosted_tools,
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
from perdure.models.providers.claude import Claude, claude_of, signed_thoughts
from perdure.values.json import Json, JsonObject, SchemaPart, dumps, loads

_HOSTED: Final[dict[str, JsonObject]] = {
    "web_search": {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},  # the server pauses after 10
    "code_execution": {"type": "code_execution_20250825", "name": "code_execution"},
}
_MARK: Final[JsonObject] = {"cache_control": {"type": "ephemeral"}}
_UNENFORCED: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "maxItems", "pattern"}
)
"""Keywords that the server rejects, or does not enforce as written; values are validated here anyway."""


def write_body(model: str, chat: JsonObject, stable: int) -> JsonObject:
    """Return the body of a Request to Messages.

    `chat`: the body of Chat Completions. `stable`: the number of its messages that later Requests repeat. The cache
    keeps tools and system texts, and the prompt up to where it is stable.
    """
    claude = claude_of(model) or Claude(model)
    conversation = read_conversation(chat["messages"])
    tools, callable_ = known_tools(chat, conversation)
    thoughts = claude.thoughts(chat.get("reasoning_effort"), conversation.turns, chat.get("max_tokens"))
    contents = [list(_blocks(turn)) for turn in conversation.turns]
    turns = zip(conversation.turns, contents, strict=True)
    body: JsonObject = {
        "model": model,
        "max_tokens": chat.get("max_tokens") or claude.tokens(thoughts),
        "messages": [{"role": turn.role, "content": content} for turn, content in turns],
    }
    if conversation.system:
        body["system"] = [{"type": "text", "text": text} for text in conversation.system]
    functions = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in tools
    ]
    if offered := [*functions, *(dict(_HOSTED[name]) for name in hosted_tools(chat))]:
        body["tools"] = offered
    if tools and not callable_:
        body["tool_choice"] = {"type": "none"}
    if "thinking" in thoughts:
        body["thinking"] = thoughts["thinking"]
    else:
        body |= claude.sampling(chat)
    # With the citations of search results the server does not enforce a schema. The prompt has it, too.
    form = {} if "web_search" in hosted_tools(chat) else _format(chat)
    config = form | ({"effort": thoughts["effort"]} if "effort" in thoughts else {})
    if config:
        body["output_config"] = config
    if chat.get("stream"):
        body["stream"] = True
    marked = [body.get("system") or body.get("tools") or []]
    marked += [contents[index] for index in conversation.stable_turns(stable)]
    for blocks in marked:
        if blocks and blocks[-1].get("type") not in ("thinking", "redacted_thinking"):
            blocks[-1] |= _MARK
    return body


def _blocks(turn: ChatTurn) -> Iterator[JsonObject]:
    for call, parts in turn.results:
        content = [_part(part) for part in parts]
        yield {"type": "tool_result", "tool_use_id": call.id, "content": content}
    thoughts = [(token_count(block.get("index")), _thought(block)) for block in signed_thoughts(turn)]
    calls = [(place_of(call.beside), _call(call)) for call in turn.calls]
    yield from in_order(thoughts, map(_part, turn.parts), calls)


def _call(call: CallPart) -> JsonObject:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def _thought(block: JsonObject) -> JsonObject:
    return {key: value for key, value in block.items() if key != "index"}


def _part(part: Part) -> JsonObject:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    source: JsonObject = {"type": "base64", "media_type": part.media_type, "data": part.data}
    if part.address:
        source = {"type": "url", "url": part.address}
    title = {"title": part.name} if part.kind == "document" and part.name else {}
    return {"type": part.kind, "source": source, **title}


def _format(chat: JsonObject) -> JsonObject:
    """Return the format of a strict schema; any other schema is in the prompt alone."""
    schema = part_of(part_of(chat, "response_format"), "json_schema")
    if not schema.get("strict"):
        return {}
    return {"format": {"type": "json_schema", "schema": _enforced(schema["schema"])}}


def _enforced(schema: SchemaPart) -> SchemaPart:
    if isinstance(schema, list):
        return [_enforced(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept: JsonObject = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: _enforced(each) for name, each in value.items()}
        elif key in ("enum", "const") or not (key in _UNENFORCED or (key == "minItems" and value not in (0, 1))):
            kept[key] = value if key in ("enum", "const") else _enforced(value)
    return kept


_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "length",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class AnthropicEvents:
    """A reader of the events of Messages, or of a whole message."""

    def __init__(self) -> None:
        self._calls = CallPieces()
        self._hosted: dict[int, JsonObject] = {}
        """Uses of hosted tools by the index of their block, with the input as far as it is written."""
        self._usage: JsonObject = {}

    def take(self, event: Json) -> list[Json]:
        """Return the pieces of an answer in an event; any other value stays unchanged."""
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(event, dict) or kind not in _KINDS:
            return [event]
        if kind == "message_start":
            message = part_of(event, "message")
            return [chunk(model=message.get("model"), usage=self._counted(message))]
        if kind == "message":
            return self._whole(event)
        index = token_count(event.get("index"))
        if kind == "content_block_start":
            return self._block(index, part_of(event, "content_block"))
        if kind == "content_block_delta":
            return self._delta(index, part_of(event, "delta"))
        if kind == "content_block_stop":
            return self._calls.close(index)
        if kind == "message_delta":
            return [self._end(part_of(event, "delta"), event)]
        return []

    def _whole(self, message: JsonObject) -> list[Json]:
        pieces: list[Json] = [chunk(model=message.get("model"))]
        for index, block in enumerate(objects(message.get("content"))):
            pieces += self._block(index, block) + self._calls.close(index)
        return [*pieces, self._end(message, message)]

    def _block(self, index: int, block: JsonObject) -> list[Json]:
        kind = block.get("type")
        if kind == "text" and block.get("text"):
            return [chunk({"content": block["text"]})]
        if kind in ("thinking", "redacted_thinking"):
            self._calls.placed = True
            return [chunk({THINKING_BLOCKS: [{**block, "index": index}]})]
        if kind == "server_tool_use":
            given = dumps(block["input"]) if block.get("input") else ""
            self._hosted[index] = {"id": block.get("id"), "name": block.get("name"), "input": given}
        elif isinstance(kind, str) and kind.endswith("_tool_result"):
            return self._hosted_result(block)
        if kind != "tool_use":
            return []
        opened = self._calls.open(index, block.get("id"), block.get("name"))
        return opened + (self._calls.write(index, written_arguments(block["input"])) if block.get("input") else [])

    def _hosted_result(self, block: JsonObject) -> list[Json]:
        used = next((each for each in self._hosted.values() if each["id"] == block.get("tool_use_id")), {})
        tool = "web_search" if used.get("name") == "web_search" else "code_execution"
        content = block.get("content")
        pages = (f"{each.get('title') or ''} {each.get('url') or ''}".strip() for each in objects(content))
        whole = content if isinstance(content, dict) else {}
        printed = (str(whole[key]) for key in ("stdout", "stderr", "content", "error_code") if whole.get(key))
        failed = "error_code" in whole or bool(whole.get("return_code"))
        result = "\n".join([*pages, *printed])
        return [chunk(hosted_piece(tool, _hosted_input(used.get("input")), result, failed=failed))]

    def _delta(self, index: int, delta: JsonObject) -> list[Json]:
        kind = delta.get("type")
        if kind == "text_delta":
            return [chunk({"content": delta.get("text")})]
        if kind == "input_json_delta" and index in self._hosted:
            self._hosted[index]["input"] += str(delta.get("partial_json") or "")
            return []
        if kind == "input_json_delta":
            return self._calls.write(index, str(delta.get("partial_json") or ""))
        if kind == "thinking_delta":
            return [chunk({THINKING_BLOCKS: [{"index": index, "type": "thinking", "thinking": delta.get("thinking")}]})]
        if kind == "signature_delta":
            signed = {"index": index, "type": "thinking", "signature": delta.get("signature")}
            return [chunk({THINKING_BLOCKS: [signed]})]
        return []

    def _end(self, ended: JsonObject, event: JsonObject) -> JsonObject:
        reason = ended.get("stop_reason")
        finish = _FINISH.get(reason, reason) if isinstance(reason, str) else None
        words = part_of(ended, "stop_details").get("explanation")
        refused = {"refusal": words} if reason == "refusal" and isinstance(words, str) and words else {}
        return chunk(refused, finish, usage=self._counted(event))

    def _counted(self, holder: JsonObject) -> JsonObject:
        """Return the usage with the counts of earlier events: later ones may leave them out."""
        new = {key: value for key, value in part_of(holder, "usage").items() if value is not None}
        self._usage = {**self._usage, **new}
        read, written = (token_count(self._usage.get(f"cache_{each}_input_tokens")) for each in ("read", "creation"))
        details = part_of(self._usage, "output_tokens_details")
        return usage_chunk(
            token_count(self._usage.get("input_tokens")) + read + written,
            token_count(self._usage.get("output_tokens")),
            read,
            token_count(details.get("thinking_tokens")),
            written,
        )


def _hosted_input(text: Json) -> str:
    """Return the query or the code in a use's input; the unchanged input if it has neither."""
    try:
        given = loads(str(text or "{}"), source="the input")
    except JsonError:
        return str(text)
    found = given if isinstance(given, dict) else {}
    return next((str(found[key]) for key in ("query", "command", "code") if found.get(key)), dumps(given))


_KINDS: Final = frozenset(
    {
        *("message", "message_start", "message_delta", "message_stop", "ping"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
    }
)
