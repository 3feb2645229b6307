"""The agent file of a request's run: the agent, and what the request adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import Field, ValidationError

from perdure.gateway.openai._errors import refused
from perdure.gateway.openai._requests import Changes, ClientInput, ClientRequest, read_input
from perdure.sessions.agent_file import input_name
from perdure.sessions.wire import SETTINGS, digest
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.messages import is_message

METADATA: Final = "openai"
"""The key of an agent file's `metadata` under which the record stands."""


class Record(WireModel):
    """A request as its run records it, so that any gateway can return it again."""

    echo: JsonObject
    """What the response object repeats."""
    items: list[JsonObject] = Field(default_factory=list)
    """Its input."""
    before: list[JsonObject] = Field(default_factory=list)
    """Messages that stand before the conversation, those of the requests before it too."""
    tools: list[JsonObject] = Field(default_factory=list)
    """Those that the client runs, as the agent file defines them."""
    changes: str = ""
    """The digest of how it differs from the agent's file."""
    agent: str = ""
    """That file's name."""
    sender: str = ""
    """Who asked."""
    source: str = ""
    """The source of messages that this client sends in the agent's or a tool's name; empty: its user's own (R15.2)."""
    approves: bool = False
    """Whether who asked may decide: then what waits for a person ends a response."""
    must_call: list[str] = Field(default_factory=list)
    """Tools of which the agent's own file wants one called, where a request does not choose (R6.5)."""
    formatted: bool = False
    """Whether it asked for a format of its own: then the answer is JSON."""
    approval_tool: bool = False
    """Whether it is asked for approvals by calls of a function of its own."""
    chat: bool = False
    """Whether it was asked for as a chat completion."""
    stored: bool = True
    history: str = ""
    """Of a run by itself: the digest of the messages that it began with."""
    length: int = 0
    """How many they were."""
    created: int = 0
    """Seconds since 1970, when it was asked for."""

    @property
    def names(self) -> set[str]:
        """Return the names of the tools that the client runs."""
        return {str(tool["name"]) for tool in self.tools}


def record_of(metadata: Any) -> Record | None:
    """Return the record of a run, by its metadata; `None`: it was not asked for here."""
    found = metadata.get(METADATA) if isinstance(metadata, dict) else None
    try:
        return None if found is None else Record.model_validate(found)
    except ValidationError:
        return None


def new_record(
    request: ClientRequest,
    *,
    created: int,
    sender: str,
    approves: bool,
    source: str = "",
    before: Sequence[JsonObject] = (),
    must_call: Sequence[str] = (),
) -> Record:
    """Return the record of a request; `before`: what stood before the conversation already, `source`: see `written_by`,
    `must_call`: see `Record`."""
    history = history_of(request.client_input)
    return Record(
        echo=request.echo,
        items=request.items,
        before=[*before, *written_by(source, request.client_input.before)],
        source=source,
        tools=request.changes.tools,
        changes=request.changes.digest,
        agent=request.model,
        sender=sender,
        approves=approves,
        approval_tool=request.approval_tool,
        chat=request.chat,
        must_call=[*must_call],
        formatted=request.changes.schema is not None,
        stored=request.store,
        history=digest(history),
        length=len(history),
        created=created,
    )


def history_of(client_input: ClientInput) -> list[JsonObject]:
    """Return all messages of a request that holds the whole history."""
    return [*client_input.before, *({"role": "user", "content": text} for text in client_input.texts)]


def written_by(source: str, messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the messages; those in the agent's or a tool's name say that they come from this source, if there is one (R15.2)."""
    others = ("assistant", "tool")
    return [each | {"_sources": [source]} if source and each["role"] in others else each for each in messages]


def with_history(document: JsonObject, client_input: ClientInput, source: str = "") -> JsonObject:
    """Return the agent file of a run by itself that answers a whole history; `source`: see `written_by`.

    Raises `HttpError` for a history without a question.
    """
    before, texts = written_by(source, client_input.before), list(client_input.texts)
    name = input_name(document)
    if name is not None and not texts:  # what it is to do is an input of its own
        users = [at for at, each in enumerate(before) if each["role"] == "user" and isinstance(each["content"], str)]
        if not users:
            raise refused("the agent needs a message of a user", "input", "invalid_value")
        texts = [before.pop(users[-1])["content"]]
    now: list[JsonObject] = [{"role": "user", "content": text} for text in texts]
    if name is not None:
        now = [{"type": "input", "input": {name: "\n\n".join(texts)}}]
    return document | {"context": [*document["context"], *before, *now]}


def messages_of(record: Record, answer: str, met: Sequence[str]) -> list[JsonObject]:
    """Return all messages of a run without a session, with its answer. The answer's sources are those of others that the run has `met`."""
    history = written_by(record.source, history_of(read_input(record.items, follows=False)[0]))
    return [*history, *([{"role": "assistant", "content": answer, "_sources": [*met]}] if answer else [])]


def changed_agent(
    document: JsonObject, changes: Changes, record: Record, *, alone: bool = False, client_wait: float | None = None
) -> JsonObject:
    """Return the agent file with the changes, the messages before the conversation, and the record.

    `alone`: the run belongs to no session, and whoever makes it adds the messages. `client_wait`: seconds that a run waits whose client
    stores nothing. Raises `HttpError` for a tool that has the name of
    one of the agent's own.
    """
    own: list[Json] = list(document.get("context") or [])
    if taken := sorted(changes.names & {_tool_name(message) for message in own}):
        raise refused(
            f"the agent has a tool {taken[0]!r} of its own: call yours another name", "tools", "invalid_value"
        )
    context = _with_instructions(own, changes.instructions)
    context += [{"type": "tool", "tool": tool | {"_untrusted": bool(record.source)}} for tool in changes.tools]
    context += [] if alone else record.before
    config = dict(document.get("config") or {})
    if changes.sampling:
        config["sampling"] = _sampling(config.get("sampling") or {}, changes.sampling)
    if changes.one_by_one:
        config |= {"execution": "step", "parallel": 1}  # one call, and then the model decides again (R5.12)
    if client_wait is not None and not record.stored:
        config["client_timeout"] = client_wait
    if changes.must_call:
        config["must_call"] = changes.must_call
    metadata = {**(document.get("metadata") or {}), METADATA: record.as_json()}
    changed = document | {"context": context, "metadata": metadata} | ({"config": config} if config else {})
    return changed if changes.schema is None else changed | {"schema": changes.schema}


def settings_of(document: JsonObject, changed: JsonObject) -> JsonObject:
    """Return the keys of the agent file that differ in the run of one request. A session's own agent stays as it is (R10.9)."""
    return {key: changed[key] for key in SETTINGS if key in changed and changed[key] != document.get(key)}


def _tool_name(message: Json) -> str:
    tool = message.get("tool") if isinstance(message, dict) and message.get("type") == "tool" else None
    if isinstance(tool, dict):
        function = tool.get("function")
        tool = tool.get("name") or (function.get("name") if isinstance(function, dict) else None)
    return tool if isinstance(tool, str) else ""


def _with_instructions(context: list[Json], instructions: str | None) -> list[Json]:
    """Add instructions behind the agent's own: they add to its instructions, and take nothing back."""
    if not instructions:
        return context
    places = [at for at, message in enumerate(context, 1) if is_message(message) and message.get("type") == "system"]
    at = places[-1] if places else 0
    return [*context[:at], {"type": "system", "text": instructions}, *context[at:]]


def _sampling(own: JsonObject, changes: JsonObject) -> JsonObject:
    """Return the settings with these changes, which hold for all models: they replace what a file sets for one model alone."""
    kept = {
        key: {name: value for name, value in each.items() if name not in changes} if isinstance(each, dict) else each
        for key, each in own.items()
    }
    return kept | changes
