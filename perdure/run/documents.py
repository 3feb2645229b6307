"""Agent files as people write them, and as they travel: with a name, and with a schema of the output alone (R2.9)."""

from __future__ import annotations

from typing import Any, Final

from perdure.values.jsons import Json, JsonObject
from perdure.values.messages import is_message

INSTRUCTS: Final = ("system", "developer")
"""Roles of messages that instruct the model, and that stand before all others."""


def agent_document(document: Json, name: str) -> Json:
    """The document of a file called `name` as a run is given it: a bare list of messages is a context, a name that is
    missing is the file's. What is no agent comes back as it is, for `parse_agent` to refuse."""
    if is_context(document):
        document = {"context": document}
    if not isinstance(document, dict) or "name" in document:
        return document
    return {"name": name, **document}


def is_context(document: Json) -> bool:
    """Whether it is a bare list of messages."""
    return isinstance(document, list) and bool(document) and all(map(is_message, document))


def with_system_text(document: JsonObject, text: str) -> JsonObject:
    """Return the document with this system text in the place of its own: the messages of that kind that stand first."""
    context = document.get("context")
    kept: list[Json] = []
    for message in context if isinstance(context, list) else []:
        known = message if isinstance(message, dict) else {}
        instructs = known.get("type") == "system" or known.get("role") in INSTRUCTS
        if not instructs or any(not _is_tool(each) for each in kept):
            kept.append(message)
    system: list[Json] = [{"type": "system", "text": text}] if text else []
    return {**document, "context": [*system, *kept]}


def _is_tool(message: Json) -> bool:
    return isinstance(message, dict) and message.get("type") == "tool"


def output_schema(schema: Any) -> Any:
    """The schema of the output, where that of a whole Solution was written: an object of `calls` and `output`."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or set(properties) != {"calls", "output"}:
        return schema
    output = properties["output"]
    if not isinstance(output, dict):
        return output
    # Of a Solution "or null" means that it goes on, and says nothing about the output.
    kept: JsonObject = {key: value for key, value in output.items() if key != "nullable"}
    return {key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema} | kept
