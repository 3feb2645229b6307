"""`POST /v1/responses`: the body, and what becomes of each key of it."""

from __future__ import annotations

from typing import Any, Final

from perdure.gateway.openai.errors import invalid, refused, unsupported
from perdure.gateway.openai.reading.asked import (
    Asked,
    Changes,
    choose_tools,
    read_sampling,
    read_schema,
    read_tools,
    without_approval,
)
from perdure.gateway.openai.reading.bodies import Body
from perdure.gateway.openai.reading.items import read_input
from perdure.values.jsons import Json, JsonObject

HONOURED: Final = frozenset(
    [
        *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning"),
        *("temperature", "top_p", "max_output_tokens", "stream", "background", "store", "metadata"),
        *("previous_response_id", "conversation", "include"),
    ]
)
HINTS: Final = frozenset(
    ["user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "service_tier"]
)
"""What no answer depends on: they are repeated, and nothing is done."""
NEUTRAL: Final[dict[str, tuple[str, list[Json]]]] = {
    "truncation": ("a conversation that grows too long is told in short, and nothing is cut", ["auto", "disabled"]),
    "top_logprobs": ("an agent's answer has no probabilities", [0]),
    "presence_penalty": ("it is not the agent's to set", [0]),
    "frequency_penalty": ("it is not the agent's to set", [0]),
    "max_tool_calls": ("the agent's file bounds its calls", []),
    "prompt": ("the agent is the prompt; use 'instructions'", []),
    "moderation": ("it is not done here", []),
    "context_management": ("the agent's file says when a conversation is told in short", [[]]),
    "stream_options": ("deltas are sent as they are", [{}, {"include_obfuscation": False}]),
}
"""Key → why other values are not supported, and those that ask for nothing else than what is done."""
_NO_LOGPROBS: Final = "message.output_text.logprobs"


def read_request(json: JsonObject) -> Asked:
    """What a body asks for. Raises `HttpError` (400) naming what cannot be had."""
    body = Body(json)
    body.check(HONOURED, HINTS, NEUTRAL)
    if not (model := body.text("model")):
        raise refused("'model' is missing: the agent's name", "model", "missing_required_parameter")
    if _NO_LOGPROBS in body.list("include"):
        raise unsupported("include", "an agent's answer has no probabilities")
    previous, conversation = body.text("previous_response_id"), _conversation(body)
    if previous is not None and conversation is not None:
        raise refused("'previous_response_id' and 'conversation': say one of them", "conversation", "invalid_value")
    store, background = body.flag("store", True), body.flag("background")
    if background and not store:
        raise refused("a response in the background is stored: without 'store'", "store", "invalid_value")
    follows = previous is not None or conversation is not None
    if follows and not store:
        raise unsupported("store", "what a conversation has said is kept: send the whole history instead")
    said, items = read_input(body.get("input"), follows=follows)
    declared, approval_tool = without_approval(read_tools(body, "responses"))
    return Asked(
        model=model,
        said=said,
        changes=_changes(body, declared),
        stream=body.flag("stream"),
        store=store,
        echo=_echo(body, model),
        items=items,
        background=background,
        previous=previous,
        conversation=conversation,
        approval_tool=approval_tool,
    )


def _changes(body: Body, declared: list[JsonObject]) -> Changes:
    text = body.object("text")
    if text.get("verbosity") not in (None, "medium"):
        raise unsupported("text.verbosity", "say in 'instructions' how long the answer is to be")
    reasoning = body.object("reasoning")
    for key, value in reasoning.items():
        if key not in ("effort", "summary", "generate_summary") and value is not None:
            raise unsupported(f"reasoning.{key}", "an agent's thoughts are not told; 'effort' is honoured")
    effort = reasoning.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise invalid("reasoning.effort", "a string")
    tools, must_call = choose_tools(body, declared)
    return Changes(
        instructions=body.text("instructions"),
        tools=tools,
        must_call=must_call,
        sampling=read_sampling(body, body.count("max_output_tokens"), effort),
        one_by_one=not body.flag("parallel_tool_calls", True),
        schema=read_schema(text.get("format"), "text.format"),
    )


def _conversation(body: Body) -> str | None:
    value: Any = body.get("conversation")
    id = value.get("id") if isinstance(value, dict) else value
    if value is not None and not isinstance(id, str):
        raise invalid("conversation", "a conversation's id")
    return id


def _echo(body: Body, model: str) -> JsonObject:
    """What of a request its response repeats, also what was left out."""
    text = body.object("text")
    named = ("instructions", "max_output_tokens", "previous_response_id", "safety_identifier", "prompt_cache_key")
    tools = [{"description": None, "parameters": None, "strict": None, **tool} for tool in body.list("tools")]
    echo: JsonObject = {
        "model": model,
        **{name: body.get(name) for name in named},
        "tools": tools,
        "tool_choice": body.get("tool_choice") or "auto",
        "parallel_tool_calls": body.flag("parallel_tool_calls", True),
        "text": {"format": {"type": "text"}, **{key: value for key, value in text.items() if value is not None}},
        "reasoning": {"effort": body.object("reasoning").get("effort"), "summary": None},
        "temperature": _or(body.number("temperature", 0, 2), 1.0),
        "top_p": _or(body.number("top_p", 0, 1), 1.0),
        "background": body.flag("background"),
        "store": body.flag("store", True),
        "metadata": body.metadata(),
        "truncation": body.get("truncation") or "auto",
        "service_tier": "default",
        "top_logprobs": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tool_calls": None,
        "conversation": None if (id := _conversation(body)) is None else {"id": id},
    }
    return echo | ({"user": user} if (user := body.text("user")) else {})


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
