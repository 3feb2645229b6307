"""OpenAI's Responses: a Request as its body, without storage, and its events as pieces of Chat Completions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from perdure.models.provider_extras import MESSAGE_PHASE, REASONING_ITEMS
from perdure.models.providers.chat_messages import (
    CallPieces,
    FilePart,
    Part,
    TextPart,
    chat_tools,
    chunk,
    hosted_piece,
    hosted_tools,
    in_order,
    objects,
    part_of,
    place_of,
    read_parts,
    text_of,
    token_count,
    usage_chunk,
    written_arguments,
)
from perdure.values.json import Json, JsonObject

_THOUGHTS: Final = "reasoning.encrypted_content"
_HOSTED: Final[dict[str, JsonObject]] = {
    "web_search": {"type": "web_search"},
    "code_execution": {"type": "code_interpreter", "container": {"type": "auto"}},
}
_RESULTS: Final = {"web_search": "web_search_call.action.sources", "code_execution": "code_interpreter_call.outputs"}
"""The results of each hosted tool that the server includes in an answer."""


def write_body(model: str, chat: JsonObject, *, thinking: bool) -> JsonObject:
    """Return the body of a Request to Responses.

    The server keeps nothing: the whole conversation is sent. A model with `thinking` is asked for its encrypted
    reasoning, which goes back with its calls.
    """
    body: JsonObject = {"model": model, "store": False, "input": list(_input(chat["messages"]))}
    hosted = [_HOSTED[name] for name in hosted_tools(chat)]
    if tools := [*({"type": "function", "strict": False, **tool} for tool in chat_tools(chat)), *hosted]:
        body["tools"] = tools
    if form := part_of(chat, "response_format"):
        schema = part_of(form, "json_schema")
        body["text"] = {"format": {"type": form.get("type"), **schema}}
    for key, name in (("temperature", "temperature"), ("top_p", "top_p"), ("max_tokens", "max_output_tokens")):
        if chat.get(key) is not None:
            body[name] = chat[key]
    if (effort := chat.get("reasoning_effort")) is not None:
        body["reasoning"] = {"effort": effort}
    included = [_THOUGHTS] if thinking or effort is not None else []
    if included := [*included, *(_RESULTS[name] for name in hosted_tools(chat))]:
        body["include"] = included
    if chat.get("stream"):
        body["stream"] = True
    return body


def _input(messages: list[JsonObject]) -> Iterator[JsonObject]:
    for message in messages:
        role, content = message.get("role"), message.get("content")
        parts = list(read_parts(content))
        if role == "tool":
            text = content if isinstance(content, str) else [_part(part) for part in parts]
            yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": text}
            continue
        if role == "assistant":
            yield from _answer(message, parts)
        elif parts:
            only_text = isinstance(content, str)
            yield {"role": role, "content": content if only_text else [_part(part) for part in parts]}


def _answer(message: JsonObject, parts: list[Part]) -> Iterator[JsonObject]:
    """Yield an answer's items in the server's order: reasoning before the items that depend on it."""
    thoughts = [(token_count(item.get("index")), _reasoning(item)) for item in objects(message.get(REASONING_ITEMS))]
    calls = [(place_of(call), _call(call)) for call in objects(message.get("tool_calls"))]
    text = text_of(parts)
    message_item = {"role": "assistant", "content": text, **part_of(message, MESSAGE_PHASE)}
    yield from in_order(thoughts, [message_item] if text else [], calls)


def _reasoning(item: JsonObject) -> JsonObject:
    return {key: value for key, value in item.items() if key != "index"}


def _call(call: JsonObject) -> JsonObject:
    function = part_of(call, "function")
    return {
        "type": "function_call",
        "call_id": call.get("id"),
        "name": function.get("name"),
        "arguments": function.get("arguments"),
    }


def _part(part: Part) -> JsonObject:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if part.kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.media_type.rpartition("/")[2]}}
    address = part.address or f"data:{part.media_type};base64,{part.data}"
    if part.kind == "image":
        return {"type": "input_image", "detail": "auto", "image_url": address}
    return {"type": "input_file", "filename": part.name or "document", **_file(part, address)}


def _file(part: FilePart, address: str) -> JsonObject:
    return {"file_url": address} if part.address else {"file_data": address}


class ResponsesEvents:
    """A reader of the events of Responses, or of a whole response."""

    def __init__(self) -> None:
        self._calls = CallPieces()
        self._begun: set[int] = set()
        """Items that have text, or are finished."""
        self._read: dict[str, Callable[[JsonObject], list[Json]]] = {
            "response.output_text.delta": self._text,
            "response.refusal.delta": lambda event: self._begin(event, {"refusal": event.get("delta")}),
            "response.reasoning_summary_text.delta": self._thought,
            "response.reasoning_text.delta": self._thought,
            "response.output_item.added": self._added,
            "response.function_call_arguments.delta": lambda event: self._calls.write(
                token_count(event.get("output_index")), str(event.get("delta") or "")
            ),
            "response.output_item.done": lambda event: self._done(token_count(event.get("output_index")), _item(event)),
            "response.created": lambda event: [chunk(model=part_of(event, "response").get("model"))],
            "response.completed": lambda event: self._end(part_of(event, "response")),
            "response.incomplete": lambda event: self._end(part_of(event, "response")),
            "response.failed": lambda event: self._end(part_of(event, "response")),
        }

    def take(self, event: Json) -> list[Json]:
        """Return the pieces of an answer in an event; any other value stays unchanged."""
        if not isinstance(event, dict):
            return [event]
        if event.get("object") == "response":
            return self._end(event)
        kind = event.get("type")
        read = self._read.get(kind) if isinstance(kind, str) else None
        if read is not None:
            return read(event)
        return [] if isinstance(kind, str) and kind.startswith("response.") else [event]

    def _begin(self, event: JsonObject, delta: JsonObject) -> list[Json]:
        self._begun.add(token_count(event.get("output_index")))
        return [chunk(delta)]

    def _text(self, event: JsonObject) -> list[Json]:
        return self._begin(event, {"content": event.get("delta")})

    def _thought(self, event: JsonObject) -> list[Json]:
        return self._begin(event, {"content": [{"type": "reasoning_text", "text": event.get("delta")}]})

    def _added(self, event: JsonObject) -> list[Json]:
        item, index = _item(event), token_count(event.get("output_index"))
        return self._opened(index, item) if item.get("type") == "function_call" else []

    def _opened(self, index: int, item: JsonObject) -> list[Json]:
        return self._calls.open(index, item.get("call_id") or item.get("id"), item.get("name"))

    def _done(self, index: int, item: JsonObject) -> list[Json]:
        """Return the rest of a finished item after its pieces: the whole item if there were none."""
        kind = item.get("type")
        pieces: list[Json] = []
        if kind == "function_call":
            if index not in self._calls:
                pieces += self._opened(index, item)
            pieces += self._calls.close(index, written_arguments(item.get("arguments")) or "{}")
        elif kind == "reasoning":
            self._calls.placed = True
            kept = {key: item[key] for key in ("type", "id", "summary", "encrypted_content") if key in item}
            if item.get("encrypted_content"):
                pieces.append(chunk({REASONING_ITEMS: [{**kept, "index": index}]}))
            thoughts = objects(item.get("summary")) + objects(item.get("content"))
            if index not in self._begun:
                pieces += [
                    chunk({"content": [{"type": "reasoning_text", "text": each.get("text")}]}) for each in thoughts
                ]
        elif kind in ("web_search_call", "code_interpreter_call"):
            pieces.append(chunk(_hosted_call(item)))
        elif kind == "message":
            if isinstance(phase := item.get("phase"), str):
                pieces.append(chunk({MESSAGE_PHASE: {"phase": phase}}))
            if index not in self._begun:
                pieces += [chunk(_delta_of(part)) for part in objects(item.get("content"))]
        self._begun.add(index)
        return pieces

    def _end(self, response: JsonObject) -> list[Json]:
        error = response.get("error")
        if response.get("status") == "failed" or error:
            return [{"error": error or {"message": "the server ended the answer with an error"}}]
        pieces = [
            piece
            for index, item in enumerate(objects(response.get("output")))
            if index not in self._begun
            for piece in self._done(index, item)
        ]
        reason = part_of(response, "incomplete_details").get("reason")
        finish = "tool_calls" if self._calls else "stop"
        if response.get("status") == "incomplete":
            finish = "content_filter" if reason == "content_filter" else "length"
        usage = part_of(response, "usage")
        counted = usage_chunk(
            token_count(usage.get("input_tokens")),
            token_count(usage.get("output_tokens")),
            token_count(part_of(usage, "input_tokens_details").get("cached_tokens")),
            token_count(part_of(usage, "output_tokens_details").get("reasoning_tokens")),
        )
        more = {"usage": counted} if usage else {}
        return [*pieces, chunk({}, finish, model=response.get("model"), **more)]


def _item(event: JsonObject) -> JsonObject:
    return part_of(event, "item")


def _hosted_call(item: JsonObject) -> JsonObject:
    failed = item.get("status") == "failed"
    if item.get("type") == "code_interpreter_call":
        logs = (str(each.get("logs") or each.get("url") or "") for each in objects(item.get("outputs")))
        return hosted_piece("code_execution", str(item.get("code") or ""), "\n".join(logs), failed=failed)
    action = part_of(item, "action")
    used = (str(action[key]) for key in ("query", "pattern", "url") if action.get(key))
    queries = action.get("queries") or [" ".join(used)]
    sources = (str(each.get("url") or "") for each in objects(action.get("sources")))
    return hosted_piece("web_search", "\n".join(map(str, queries)), "\n".join(sources), failed=failed)


def _delta_of(part: JsonObject) -> JsonObject:
    return {"refusal": part.get("refusal")} if part.get("type") == "refusal" else {"content": part.get("text")}
