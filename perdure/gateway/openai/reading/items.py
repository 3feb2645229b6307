"""Input items: messages, calls and their results, and decisions, as the chat form that a run's context is made of (R2.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.errors import AgentError, JsonError
from perdure.gateway.openai.errors import invalid, refused, unsupported
from perdure.gateway.openai.reading.asked import Said
from perdure.values.jsons import Json, JsonObject, dumps, loads
from perdure.values.messages import parse_messages

_TEXTS: Final = ("input_text", "output_text", "text", "refusal")
MOST_ITEMS: Final = 2_000


def read_input(value: Json, *, follows: bool) -> tuple[Said, list[JsonObject]]:
    """What an `input` says, and its items as they are listed. `follows`: there is a conversation before it."""
    if value is None:
        raise refused("'input' is missing: a text, or a list of items", "input", "missing_required_parameter")
    written = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(written, list) or not written or len(written) > MOST_ITEMS:
        raise invalid("input", f"a text, or a list of 1 to {MOST_ITEMS:,} items")
    items = [_item(item, at) for at, item in enumerate(written)]
    return (_following(items) if follows else _opening(items)), items


def _item(item: Any, at: int) -> JsonObject:
    """With the type that it leaves out."""
    if not isinstance(item, dict):
        raise invalid(f"input[{at}]", "an item: an object with a 'type', or a 'role'")
    return item if "type" in item else {"type": "message", **item}


def _following(items: list[JsonObject]) -> Said:
    """Of a conversation that is there: what is said now, and what calls that waited have come to."""
    said = Said()
    for at, item in enumerate(items):
        where, kind = f"input[{at}]", item["type"]
        if kind == "function_call_output":
            said.outputs[_id(item, "call_id", where)] = _result(item.get("output"), where)
        elif kind == "mcp_approval_response":
            said.verdicts[_id(item, "approval_request_id", where)] = _verdict(item, where)
        elif kind == "message" and item.get("role") == "user":
            _say(said, _message(item, where))
        elif kind == "message" and item.get("role") in ("system", "developer"):
            said.before.append(_message(item, where))
        else:
            raise unsupported(where, f"{_named(item)} is part of the conversation already: send what is new alone")
    return said


def _say(said: Said, message: JsonObject) -> None:
    """Its text is what is said; its pictures stand before that."""
    content = message["content"]
    if isinstance(content, str):
        said.texts.append(content)
        return
    said.texts.extend(part["text"] for part in content if part["type"] == "text")
    if pictures := [part for part in content if part["type"] != "text"]:
        said.before.append({"role": "user", "content": pictures})


def _opening(items: list[JsonObject]) -> Said:
    """A whole history: what is said now are its last messages."""
    messages: list[JsonObject] = []
    for at, item in enumerate(items):
        _add(messages, item, f"input[{at}]")
    return of_history(messages, "input")


def of_history(messages: list[JsonObject], where: str) -> Said:
    """A history in the chat form: the user's messages that it ends with are what is said now, or the results that it ends with."""
    first = len(messages)
    while first and messages[first - 1]["role"] == "user":
        first -= 1
    results = first
    while results and messages[results - 1]["role"] == "tool":
        results -= 1
    _check(messages, where)
    said = Said(before=messages[:first])
    for message in messages[first:]:
        _say(said, message)
    if results < first:
        said.earlier.extend(messages[: max(0, results - 1)])
        results_of = messages[results:first]
        said.outputs.update({str(each["tool_call_id"]): parsed(each["content"]) for each in results_of})
    if not said.texts and not said.outputs:
        raise refused(f"'{where}' ends with nothing to answer: a user's message, or results", where, "invalid_value")
    return said


def _check(messages: Sequence[JsonObject], where: str) -> None:
    try:
        parse_messages(messages, where=where)
    except AgentError as error:
        raise refused(str(error), where, "invalid_value") from None


def _add(messages: list[JsonObject], item: JsonObject, where: str) -> None:
    kind = item["type"]
    if kind == "message":
        messages.append(_message(item, where))
    elif kind == "function_call":
        function = {"name": str(item.get("name")), "arguments": str(item.get("arguments") or "{}")}
        call = {"id": _id(item, "call_id", where), "type": "function", "function": function}
        if messages and messages[-1]["role"] == "assistant" and "tool_calls" in messages[-1]:
            messages[-1]["tool_calls"].append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        content = _text_of(item.get("output"), where)
        messages.append({"role": "tool", "tool_call_id": _id(item, "call_id", where), "content": content})
    elif kind != "reasoning":  # thoughts are their model's own; the answer that follows stands for them
        raise unsupported(where, f"{_named(item)} cannot stand in a history here")


def _message(item: JsonObject, where: str) -> JsonObject:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise invalid(f"{where}.role", "'user', 'assistant', 'system' or 'developer'")
    return {"role": role, "content": read_content(item.get("content"), f"{where}.content", pictures=role == "user")}


def read_content(content: Any, where: str, *, pictures: bool) -> str | list[JsonObject]:
    """A message's content: its text, or with `pictures` its parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(where, "a text, or a list of parts")
    parts = [_part(part, f"{where}[{at}]") for at, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    if not pictures:
        raise unsupported(where, "only a user's message has pictures")
    return parts


def _part(part: Any, where: str) -> JsonObject:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXTS:
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise invalid(where, "a part with a text")
        return {"type": "text", "text": text}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    if kind == "image_url" and isinstance(part.get("image_url"), dict):
        return {"type": "image_url", "image_url": part["image_url"]}
    raise unsupported(where, f"{kind!r} is no part that is taken here: texts, and pictures by their 'image_url'")


def _result(output: Any, where: str) -> Json:
    return parsed(_text_of(output, where))


def parsed(text: Any) -> Json:
    """An object or a list where the text is one, so that a plan can read in it; else the text."""
    if isinstance(text, str) and text.lstrip()[:1] in ("{", "["):
        try:
            return loads(text, source="a result")
        except JsonError:
            return text
    return text


def _text_of(output: Any, where: str) -> str:
    if isinstance(output, str):
        return output
    parts = output if isinstance(output, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") in _TEXTS else None for part in parts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise unsupported(f"{where}.output", "a result is a text, or a list of parts that are texts")
    return "\n".join(map(str, texts))


def _verdict(item: JsonObject, where: str) -> JsonObject:
    approve, reason = item.get("approve"), item.get("reason")
    if not isinstance(approve, bool):
        raise invalid(f"{where}.approve", "true or false")
    return {"decision": "approve" if approve else "reject", "reason": reason if isinstance(reason, str) else ""}


def _id(item: JsonObject, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise invalid(f"{where}.{name}", "a text of 1 to 200 characters")
    return value


def _named(item: JsonObject) -> str:
    kind = item["type"]
    return f"a message of the role {item.get('role')!r}" if kind == "message" else dumps(kind)[:60]
