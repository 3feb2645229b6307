"""The agent file of a request's run: the agent with the request's changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import Field, ValidationError

from perdure.gateway.openai._requests import Changes, ClientInput, ClientRequest, read_input, refused
from perdure.sessions.agent_file import input_name, with_client_messages
from perdure.sessions.wire import SETTINGS, digest
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.messages import is_message

METADATA: Final = "openai"
"""The key of the record in an agent file's `metadata`."""


class Record(WireModel):
    """A request as recorded in its run, so that any gateway can return it again."""

    echo: JsonObject
    """The parameters that the response object repeats."""
    items: list[JsonObject] = Field(default_factory=list)
    """The input's items."""
    before: list[JsonObject] = Field(default_factory=list)
    """Messages before the conversation, including those of earlier requests."""
    tools: list[JsonObject] = Field(default_factory=list)
    """The client's own tools, as an agent file defines them."""
    client_tools: bool = False
    """Whether the agent's file, or a delegate's, has a tool that the client executes."""
    changes: str = ""
    """The digest of the differences from the agent's file."""
    agent: str = ""
    """The agent's name."""
    sender: str = ""
    """The sender of the request."""
    source: str = ""
    """The source label of messages that this client sends as the agent or a tool; empty: trusted (R15.2)."""
    approves: bool = False
    """Whether the sender may decide: then an approval request ends a response."""
    must_call: list[str] = Field(default_factory=list)
    """The agent file's `must_call`, for requests without a tool choice (R6.5)."""
    formatted: bool = False
    """Whether the request has its own output format: then the answer is JSON."""
    approval_tool: bool = False
    """Whether approval requests are calls of a function of the client."""
    chat: bool = False
    """Whether the request is a chat completion."""
    stored: bool = True
    history: str = ""
    """For a run without a session: the digest of its first messages."""
    length: int = 0
    """The number of these messages."""
    created: int = 0
    """The time of the request, in seconds since 1970."""

    @property
    def names(self) -> set[str]:
        """Return the names of the client's own tools."""
        return {str(tool["name"]) for tool in self.tools}


def record_of(metadata: Any) -> Record | None:
    """Return the record in a run's metadata; `None`: the run was not started here."""
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
    client_tools: bool = False,
) -> Record:
    """Return the record of a request; `before`: the earlier messages before the conversation. `source`: see
    `written_by`. `must_call`, `client_tools`: see `Record`."""
    history = request.client_input.history or history_of(request.client_input)
    return Record(
        echo=request.echo,
        items=request.items,
        before=[*before, *written_by(source, request.client_input.before)],
        source=source,
        tools=request.changes.tools,
        client_tools=client_tools,
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
    """Return the messages; those of the agent or a tool are labelled with this source, unless it is empty (R15.2)."""
    others = ("assistant", "tool")
    return [each | {"_sources": [source]} if source and each["role"] in others else each for each in messages]


def with_history(document: JsonObject, client_input: ClientInput, source: str = "") -> JsonObject:
    """Return the agent file of a run without a session that answers a whole history; `source`: see `written_by`.

    Raises `HttpError` for a history without a user's message.
    """
    before, texts = written_by(source, client_input.before), list(client_input.texts)
    name = input_name(document)
    if name is not None and not texts:  # the agent's task is a separate input
        users = [at for at, each in enumerate(before) if each["role"] == "user" and isinstance(each["content"], str)]
        if not users:
            raise refused("the agent needs a user's message", "input", "invalid_value")
        texts = [before.pop(users[-1])["content"]]
    now: list[JsonObject] = [{"role": "user", "content": text} for text in texts]
    if name is not None:
        now = [{"type": "input", "input": {name: "\n\n".join(texts)}}]
    return with_client_messages(document, [*before, *now])


def messages_of(record: Record, answer: str, met: Sequence[str]) -> list[JsonObject]:
    """Return all messages of a run without a session, with its answer. `met`: the run's untrusted sources, which label the answer."""
    history = written_by(record.source, history_of(read_input(record.items, follows=False)[0]))
    return [*history, *([{"role": "assistant", "content": answer, "_sources": [*met]}] if answer else [])]


def changed_agent(
    document: JsonObject, changes: Changes, record: Record, *, alone: bool = False, client_wait: float | None = None
) -> JsonObject:
    """Return the agent file with the changes, the messages before the conversation, and the record.

    `alone`: the run has no session, and the caller adds the messages. `client_wait`: seconds that a run waits for a
    client that stores nothing. Raises `HttpError` for a tool with the name of an agent's tool.
    """
    own: list[Json] = list(document.get("context") or [])
    if taken := sorted(changes.names & {_tool_name(message) for message in own}):
        raise refused(f"the agent already has a tool {taken[0]!r}: use another name", "tools", "invalid_value")
    context = _with_instructions(own, changes.instructions)
    context += [{"type": "tool", "tool": tool | {"_untrusted": bool(record.source)}} for tool in changes.tools]
    context += [] if alone else record.before
    config = dict(document.get("config") or {})
    if changes.sampling:
        config["sampling"] = _sampling(config.get("sampling") or {}, changes.sampling)
    if changes.one_by_one:
        config |= {"execution": "step", "parallel": 1}  # the model decides again after each call (R5.12)
    if client_wait is not None and not record.stored:
        config["client_timeout"] = client_wait
    if changes.must_call:
        config["must_call"] = changes.must_call
    metadata = {**(document.get("metadata") or {}), METADATA: record.as_json()}
    changed = document | {"context": context, "metadata": metadata} | ({"config": config} if config else {})
    return changed if changes.schema is None else changed | {"schema": changes.schema}


def settings_of(document: JsonObject, changed: JsonObject) -> JsonObject:
    """Return the keys of the agent file that differ in the run of one request. A session's own agent is unchanged (R10.9)."""
    return {key: changed[key] for key in SETTINGS if key in changed and changed[key] != document.get(key)}


def _tool_name(message: Json) -> str:
    tool = message.get("tool") if isinstance(message, dict) and message.get("type") == "tool" else None
    if isinstance(tool, dict):
        function = tool.get("function")
        tool = tool.get("name") or (function.get("name") if isinstance(function, dict) else None)
    return tool if isinstance(tool, str) else ""


def _with_instructions(context: list[Json], instructions: str | None) -> list[Json]:
    """Add instructions after the agent's own: they extend them, and replace nothing."""
    if not instructions:
        return context
    places = [at for at, message in enumerate(context, 1) if is_message(message) and message.get("type") == "system"]
    at = places[-1] if places else 0
    return [*context[:at], {"type": "system", "text": instructions}, *context[at:]]


def _sampling(own: JsonObject, changes: JsonObject) -> JsonObject:
    """Return the settings with these changes for all models: they also replace values for a single model."""
    kept = {
        key: {name: value for name, value in each.items() if name not in changes} if isinstance(each, dict) else each
        for key, each in own.items()
    }
    return kept | changes
