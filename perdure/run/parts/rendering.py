"""Single messages of a prompt: what was given and what has happened, as chat messages."""

from __future__ import annotations

from typing import Final

from perdure.model.dialects import Dialect
from perdure.model.dialects.asking import Ask
from perdure.values.jsons import Json, JsonObject, dumps, shorten
from perdure.values.limits.fitting import cut_to
from perdure.values.limits.sizes import Sizes

TIGHT: Final = 500
"""Characters left of a value where the context was too long."""


def user(title: str, value: Json, description: str = "", schema: JsonObject | None = None) -> JsonObject:
    """Data under a title, with what it is and what it has to fit."""
    return described(title, description, schema, *([dumps(value)] if value is not None or schema is None else []))


def described(title: str, description: str, schema: JsonObject | None, *lines: str) -> JsonObject:
    """A title, what it is and what it has to fit, and then these lines."""
    about = [description] if description else []
    fits = [] if schema is None else [f"schema: {dumps(schema)}"]
    return {"role": "user", "content": "\n".join([f"# {title}", *about, *fits, *lines])}


def as_chat(message: JsonObject, dialect: Dialect, ask: Ask) -> JsonObject:
    """A message of the engine's, but for a turn."""
    kind = message["type"]
    if kind == "plan":
        text = f"# plan: the calls so far, with their status\n{dialect.plan(message['plan'], ask)}"
        return {"role": "user", "content": text}
    if kind in ("note", "message"):
        return {"role": "user", "content": message["text"]}
    if kind == "results":
        return user("results", message["results"], "What calls without an _outputPath returned, by call id.")
    body = {key: value for key, value in message.items() if key != "type"}
    return {"role": "user", "content": f"# {kind}\n{dumps(body)}"}


def tightened(message: JsonObject) -> JsonObject:
    """It with its values by their beginnings."""
    if message["type"] == "results":
        results = message["results"].items()
        return {**message, "results": {id: {**one, "result": shorten(one["result"], TIGHT)} for id, one in results}}
    if message["type"] != "turn":
        return message
    return {**message, "calls": [{**call, "result": shorten(call["result"], TIGHT)} for call in message["calls"]]}


def fit_messages(messages: list[JsonObject], room: int, sizes: Sizes) -> list[JsonObject]:
    """Chat messages in so many bytes: long texts cut, more of them the less room there is; and then only the first and the last.

    Total. It is for what no model could read anyway: see `TIGHT` for what comes before.
    """
    for most in (100_000, 20_000, 4_000, TIGHT):
        cut = [
            message
            if sizes.of(message.get("content")) <= most
            else {**message, "content": cut_to(message.get("content"), most, sizes)}
            for message in messages
        ]
        if sum(map(sizes.of, cut)) <= room:
            return cut
    ends = [cut[0], cut[-1]] if "tool_calls" not in cut[-1] and cut[-1]["role"] != "tool" else cut[:1]
    return [{**message, "content": cut_to(message.get("content"), max(room // 3, 200), sizes)} for message in ends]


def tight_result(message: JsonObject, *, tight: bool) -> JsonObject:
    """A message of the history; where the context was too long, the result of a call only by its beginning."""
    if not tight or message["role"] != "tool":
        return message
    return {**message, "content": shorten(message["content"], TIGHT)}
