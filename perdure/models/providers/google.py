"""Google's Gemini: a Request as its body, and its events as pieces of Chat Completions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from perdure.errors import JsonError
from perdure.models.providers.chat_messages import (
    CallPart,
    ChatTurn,
    Part,
    TextPart,
    call_piece,
    chat_tools,
    chunk,
    hosted_piece,
    hosted_tools,
    objects,
    part_of,
    read_conversation,
    text_of,
    token_count,
    usage_chunk,
)
from perdure.values.json import Json, JsonObject, dumps, loads

_UNSIGNED: Final = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""The signature for a call of another model, from Google's documentation: `skip_thought_signature_validator`."""
_HOSTED: Final = {"web_search": "googleSearch", "code_execution": "codeExecution"}
_OLD: Final = re.compile(r"gemini-[12]\.|gemini-pro$|gemma")
"""Models before Gemini 3: they accept a budget of tokens for thinking, later ones a level."""
_NO_THOUGHTS: Final = re.compile(r"gemini-(?:1|2\.0|2\.5-flash-image|pro$)|gemma")
_BUDGET: Final = {"none": 0, "off": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24_576}
_LEAST_OF_PRO: Final = 128
"""Tokens. A Pro model before Gemini 3 always thinks."""
_LEVEL: Final = {"none": "LOW", "off": "LOW", "minimal": "LOW", "low": "LOW", "medium": "MEDIUM"}
"""Effort → level. Any other effort is the highest level. Some models reject the lowest level, `MINIMAL`."""


def is_thinking_model(model: str) -> bool:
    """Return whether a model thinks before it answers."""
    return _NO_THOUGHTS.match(model) is None


def write_body(model: str, chat: JsonObject) -> JsonObject:
    """Return the body of a Request to `generateContent`, without `model` and `stream`, which are in its address."""
    conversation = read_conversation(chat["messages"])
    signs = _OLD.match(model) is None
    body: JsonObject = {
        "model": model,
        "stream": bool(chat.get("stream")),
        "contents": [_content(turn, signs=signs) for turn in conversation.turns],
    }
    if conversation.system:
        body["systemInstruction"] = {"parts": [{"text": text} for text in conversation.system]}
    declared = [
        {"name": tool["name"], "description": tool["description"], "parametersJsonSchema": tool["parameters"]}
        for tool in chat_tools(chat)
    ]
    functions = [{"functionDeclarations": declared}] if declared else []
    if tools := [*functions, *({_HOSTED[name]: {}} for name in hosted_tools(chat))]:
        body["tools"] = tools
    config = _config(model, chat)
    return body | ({"generationConfig": config} if config else {})


_SAMPLING: Final = {"temperature": "temperature", "top_p": "topP", "max_tokens": "maxOutputTokens", "seed": "seed"}


def _config(model: str, chat: JsonObject) -> JsonObject:
    config: JsonObject = {name: chat[key] for key, name in _SAMPLING.items() if chat.get(key) is not None}
    # Models before Gemini 3 do not enforce a schema when they use hosted tools. The prompt has it, too.
    enforced = not hosted_tools(chat) or _OLD.match(model) is None
    if enforced and (form := part_of(chat, "response_format")):
        config["responseMimeType"] = "application/json"
        if schema := part_of(form, "json_schema"):
            config["responseJsonSchema"] = schema["schema"]
    if (effort := chat.get("reasoning_effort")) is not None and is_thinking_model(model):
        config["thinkingConfig"] = _thinking(model, str(effort))
    return config


def _thinking(model: str, effort: str) -> JsonObject:
    shown = {"includeThoughts": effort not in ("none", "off")}
    if _OLD.match(model) is None:
        return {**shown, "thinkingLevel": _LEVEL.get(effort, "HIGH")}
    budget = _BUDGET.get(effort, _BUDGET["high"])
    return {**shown, "thinkingBudget": max(budget, _LEAST_OF_PRO) if "pro" in model else budget}


def _content(turn: ChatTurn, *, signs: bool) -> JsonObject:
    parts = [_result(call, parts) for call, parts in turn.results]
    parts += map(_part, turn.parts)
    parts += _calls(turn.calls, signs=signs)
    return {"role": "model" if turn.role == "assistant" else "user", "parts": parts}


def _calls(calls: list[CallPart], *, signs: bool) -> Iterator[JsonObject]:
    """Yield calls with their signatures. A server that signs calls requires the signature of the first one."""
    for index, call in enumerate(calls):
        signature = part_of(part_of(call.beside, "extra_content"), "google").get("thought_signature")
        if not signature and signs and index == 0:
            signature = _UNSIGNED
        signed = {"thoughtSignature": signature} if signature else {}
        yield {"functionCall": {"name": call.name, "args": call.arguments}, **signed}


def _result(call: CallPart, parts: list[Part]) -> JsonObject:
    text = text_of(parts)
    try:
        value = loads(text, source="the result")
    except JsonError:
        value = text
    return {
        "functionResponse": {"name": call.name, "response": value if isinstance(value, dict) else {"result": value}}
    }


def _part(part: Part) -> JsonObject:
    if isinstance(part, TextPart):
        return {"text": part.text}
    if part.address:
        return {"fileData": {"fileUri": part.address, "mimeType": part.media_type}}
    return {"inlineData": {"mimeType": part.media_type, "data": part.data}}


_FILTERED: Final = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "IMAGE_SAFETY", "MODEL_ARMOR"}
)
_MALFORMED: Final = frozenset(
    {
        *("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
        *("MALFORMED_RESPONSE", "MISSING_THOUGHT_SIGNATURE"),
    }
)
"""Finish reasons for which a retry may succeed."""


class GoogleEvents:
    """A reader of the events of `streamGenerateContent`, or of a whole answer."""

    def __init__(self) -> None:
        self._calls = 0
        self._code = ""
        """The code that runs."""
        self._searched = False

    def take(self, event: Json) -> list[Json]:
        """Return the pieces of an answer in an event; any other value stays unchanged."""
        if isinstance(event, list):  # without server-sent events the stream is one list
            return [piece for each in event for piece in self.take(each)]
        if not isinstance(event, dict) or not event.keys() & {"candidates", "usageMetadata", "promptFeedback"}:
            return [event]
        pieces: list[Json] = [chunk(model=event.get("modelVersion"))]
        if reason := part_of(event, "promptFeedback").get("blockReason"):
            pieces.append(chunk({}, f"content_filter: {reason}"))
        for candidate in objects(event.get("candidates"))[:1]:
            for part in objects(part_of(candidate, "content").get("parts")):
                pieces += self._part(part)
            pieces += self._searches(part_of(candidate, "groundingMetadata")) + self._end(candidate)
        if usage := part_of(event, "usageMetadata"):
            thoughts = token_count(usage.get("thoughtsTokenCount"))
            prompt = token_count(usage.get("promptTokenCount")) + token_count(usage.get("toolUsePromptTokenCount"))
            completion = token_count(usage.get("candidatesTokenCount")) + thoughts
            pieces.append(
                chunk(
                    usage=usage_chunk(prompt, completion, token_count(usage.get("cachedContentTokenCount")), thoughts)
                )
            )
        return pieces

    def _searches(self, grounding: JsonObject) -> list[Json]:
        """Return the searches of an answer, once: a stream may repeat them."""
        queries = grounding.get("webSearchQueries")
        if self._searched or not isinstance(queries, list) or not queries:
            return []
        self._searched = True
        pages = (part_of(each, "web") for each in objects(grounding.get("groundingChunks")))
        found = "\n".join(f"{page.get('title') or ''} {page.get('uri') or ''}".strip() for page in pages)
        return [chunk(hosted_piece("web_search", "\n".join(map(str, queries)), found))]

    def _part(self, part: JsonObject) -> list[Json]:
        if isinstance(code := part.get("executableCode"), dict):
            self._code = str(code.get("code") or "")
            return []
        if isinstance(ran := part.get("codeExecutionResult"), dict):
            failed = ran.get("outcome") != "OUTCOME_OK"
            return [chunk(hosted_piece("code_execution", self._code, str(ran.get("output") or ""), failed=failed))]
        if isinstance(call := part.get("functionCall"), dict):
            index, self._calls = self._calls, self._calls + 1
            signature = part.get("thoughtSignature")
            extra: Json = {"google": {"thought_signature": signature}} if signature else None
            arguments = dumps(part_of(call, "args"))
            return [chunk(call_piece(index, arguments, id=call.get("id"), name=call.get("name"), extra_content=extra))]
        text = part.get("text")
        if not isinstance(text, str) or not text:
            return []
        if part.get("thought") is True:
            return [chunk({"content": [{"type": "reasoning_text", "text": text}]})]
        return [chunk({"content": text})]

    def _end(self, candidate: JsonObject) -> list[Json]:
        reason = candidate.get("finishReason")
        if not isinstance(reason, str) or reason == "FINISH_REASON_UNSPECIFIED":
            return []
        if reason in _MALFORMED:
            words = candidate.get("finishMessage") or f"the answer ended with {reason}"
            return [{"error": {"message": words, "code": "tool_use_failed", "type": reason}}]
        if reason in _FILTERED:
            return [chunk({}, f"content_filter: {reason}")]
        return [chunk({}, "length" if reason == "MAX_TOKENS" else "tool_calls" if self._calls else "stop")]
