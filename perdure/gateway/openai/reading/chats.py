"""`POST /v1/chat/completions`: the body, and what becomes of each key of it. A request says the whole history, and its run is one by itself."""

from __future__ import annotations

from typing import Any, Final

from perdure.gateway.openai.errors import invalid, refused
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
from perdure.gateway.openai.reading.items import MOST_ITEMS, of_history, read_content
from perdure.values.jsons import Json, JsonObject

HONOURED: Final = frozenset(
    [
        *(
            "model",
            "messages",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "response_format",
            "temperature",
            "top_p",
        ),
        *(
            "max_completion_tokens",
            "max_tokens",
            "reasoning_effort",
            "seed",
            "stream",
            "stream_options",
            "metadata",
            "store",
        ),
    ]
)
HINTS: Final = frozenset(
    [
        *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *("service_tier", "stop"),
    ]
)
"""What no answer depends on: an agent's answer ends where it ends, so nothing is behind a `stop`."""
NEUTRAL: Final[dict[str, tuple[str, list[Json]]]] = {
    "n": ("an agent answers once", [1]),
    "verbosity": ("say in a message how long the answer is to be", ["medium"]),
    "logprobs": ("an agent's answer has no probabilities", [False]),
    "top_logprobs": ("an agent's answer has no probabilities", [0]),
    "logit_bias": ("it is not the agent's to set", [{}]),
    "presence_penalty": ("it is not the agent's to set", [0]),
    "frequency_penalty": ("it is not the agent's to set", [0]),
    "modalities": ("an agent answers in text", [["text"]]),
    "audio": ("an agent answers in text", []),
    "prediction": ("an agent's answer is its own", []),
    "web_search_options": ("the agent has tools of its own", []),
    "functions": ("they are called 'tools' now", [[]]),
    "function_call": ("it is called 'tool_choice' now", []),
    "moderation": ("it is not done here", []),
}
"""Key → why other values are not supported, and those that ask for nothing else than what is done."""
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def read_chat(json: JsonObject) -> Asked:
    """What a body asks for. Raises `HttpError` (400) naming what cannot be had."""
    body = Body(json)
    body.check(HONOURED, HINTS, NEUTRAL)
    if not (model := body.text("model")):
        raise refused("'model' is missing: the agent's name", "model", "missing_required_parameter")
    written = body.list("messages")
    if not 1 <= len(written) <= MOST_ITEMS:
        raise invalid("messages", f"a list of 1 to {MOST_ITEMS:,} messages")
    options = body.object("stream_options")
    if options.get("include_obfuscation"):
        raise invalid("stream_options.include_obfuscation", "false: deltas are sent as they are")
    declared, approval_tool = without_approval(read_tools(body, "chat"))
    tools, must_call = choose_tools(body, declared)
    seed = body.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise invalid("seed", "a whole number")
    tokens = body.count("max_completion_tokens") or body.count("max_tokens")
    return Asked(
        model=model,
        said=of_history([_message(message, at) for at, message in enumerate(written)], "messages"),
        changes=Changes(
            tools=tools,
            sampling=read_sampling(body, tokens, body.text("reasoning_effort"))
            | ({} if seed is None else {"seed": seed}),
            one_by_one=not body.flag("parallel_tool_calls", True),
            schema=read_schema(body.get("response_format"), "response_format"),
            must_call=must_call,
        ),
        stream=body.flag("stream"),
        store=body.flag("store"),
        echo={"model": model, "metadata": body.metadata()},
        approvals=approval_tool,
        approval_tool=approval_tool,
        chat=True,
        with_usage=options.get("include_usage") is True,
    )


def _message(message: Any, at: int) -> JsonObject:
    where = f"messages[{at}]"
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        raise invalid(f"{where}.role", ", ".join(map(repr, _ROLES)))
    calls = message.get("tool_calls")
    content = message.get("content")
    plain: JsonObject = {"role": role}
    if content is not None or role != "assistant" or not calls:
        plain["content"] = read_content(content, f"{where}.content", pictures=role == "user")
    if role == "tool":
        id = message.get("tool_call_id")
        if not isinstance(id, str) or not 0 < len(id) <= 200:
            raise invalid(f"{where}.tool_call_id", "a text of 1 to 200 characters")
        plain["tool_call_id"] = id
    if calls and role == "assistant":
        plain["tool_calls"] = _calls(calls, where)
        plain.setdefault("content", None)
    if isinstance(message.get("name"), str) and role != "tool":
        plain["name"] = message["name"]
    return plain


def _calls(calls: Any, where: str) -> list[JsonObject]:
    found: list[JsonObject] = []
    for at, call in enumerate(calls if isinstance(calls, list) else [None]):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            raise invalid(f"{where}.tool_calls[{at}]", "a call of a function: 'id', 'type' and 'function'")
        about = {"name": str(function.get("name")), "arguments": str(function.get("arguments") or "{}")}
        found.append({"id": call["id"], "type": "function", "function": about})
    return found
