"""The JSON of chat completions, whole and in chunks, as an OpenAI-compatible server writes it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from perdure.testing.dialects import Answer
from perdure.testing.turns import TOKEN, ChatRequest, Turn


def frame(asked: ChatRequest) -> dict[str, Any]:
    return {"id": f"chatcmpl-{asked.number}", "object": "chat.completion.chunk", "created": 0, "model": asked.model}


def event(asked: ChatRequest, delta: dict[str, Any], finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return f"data: {json.dumps(frame(asked) | {'choices': [choice]}, ensure_ascii=False)}\n\n"


def segments(asked: ChatRequest, answer: Answer) -> list[tuple[str, Callable[[str], dict[str, Any]]]]:
    """The answer's pieces that are streamed bit by bit, each with how a bit of it is said; a call's name counts too."""
    segments: list[tuple[str, Callable[[str], dict[str, Any]]]] = []
    if answer.reasoning:
        segments.append((answer.reasoning, lambda text: {"reasoning_content": text}))
    if answer.refusal:
        segments.append((answer.refusal, lambda text: {"refusal": text}))
    elif answer.text or not answer.tool_calls:
        segments.append((answer.text, lambda text: {"content": text}))
    for index, (name, arguments) in enumerate(answer.tool_calls):
        segments.append((name, _opening(asked, index, name)))
        segments.append((arguments, _going_on(index)))
    return segments


def _opening(asked: ChatRequest, index: int, name: str) -> Callable[[str], dict[str, Any]]:
    """A call's first bit has its id and its whole name; the time that a longer name takes passes in empty bits."""
    told = False

    def say(_: str) -> dict[str, Any]:
        nonlocal told
        call = {"index": index, "function": {"arguments": ""}}
        if not told:
            told = True
            call |= {"id": _call_id(asked, index), "type": "function", "function": {"name": name, "arguments": ""}}
        return {"tool_calls": [call]}

    return say


def _call_id(asked: ChatRequest, index: int) -> str:
    return f"call_{asked.number}_{index}"


def completion(asked: ChatRequest, answer: Answer, turn: Turn, usage: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.refusal:
        message["refusal"] = answer.refusal
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {"id": _call_id(asked, index), "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(answer.tool_calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": turn.finish_reason}
    return frame(asked) | {"object": "chat.completion", "choices": [choice]} | ({"usage": usage} if turn.usage else {})


def usage_of(asked: ChatRequest, answer: Answer, turn: Turn) -> dict[str, Any]:
    shown = len(json.dumps(asked.messages, ensure_ascii=False)) + sum(
        len(json.dumps(asked.body[key])) for key in ("response_format", "tools") if key in asked.body
    )
    written = len(answer.text) + sum(len(name) + len(arguments) for name, arguments in answer.tool_calls)
    prompt, completion = math.ceil(shown / TOKEN), math.ceil(written / TOKEN)
    if isinstance(turn.usage, tuple):
        prompt, completion = turn.usage
    told: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    return told | dict(turn.usage if isinstance(turn.usage, Mapping) else {})


def _going_on(index: int) -> Callable[[str], dict[str, Any]]:
    return lambda text: {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def error(status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> Response:
    body = {"error": {"message": message, "type": "scripted_error", "param": None, "code": code}}
    return JSONResponse(body, status_code=status, headers=dict(headers or {}))
