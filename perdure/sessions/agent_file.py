"""The agent file of a run that answers a conversation: the agent, the conversation, and a session's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.errors import AgentError, MessageRefusedError, ProtocolError
from perdure.runs.agent import AgentSpec, parse_agent
from perdure.sessions.transcript import EARLIER
from perdure.sessions.wire import SETTINGS
from perdure.values.json import Json, JsonObject, shorten
from perdure.values.media import REST
from perdure.values.messages import InputMessage, StateMessage, is_message, merge_data, parse_messages
from perdure.values.problems import problem_at
from perdure.values.state import MARK

CLIENT_MESSAGES: Final = "perdure.conversation"
"""Key in an agent file's `metadata`: the number of a client's messages at the end of its context, for a run without a
session."""


def document(
    agent: JsonObject, conversation: Sequence[JsonObject], state: JsonObject | None, messages: Sequence[str]
) -> JsonObject:
    """Return the agent file of a run that answers the `messages`. `state`: the session's state; `None` keeps the
    file's.
    """
    context = agent.get("context") or []
    made = [_schema_only(message) if state is not None and _is_state(message) else message for message in context]
    made += conversation
    if _is_cut(conversation) and not any(_is_recall(message) for message in context):
        made.append({"type": "tool", "tool": RECALL})
    name = input_name(agent)
    if name is None:
        made += [{"role": "user", "content": text} for text in messages]
    else:
        made.append({"type": "input", "input": {name: "\n\n".join(messages)}})
    if state is not None:  # after the beginning that the next run's conversation shares, for prompt caches (R10.19)
        made += _state_messages(state)
    return agent | {"context": made}


def with_client_messages(agent: JsonObject, messages: Sequence[JsonObject]) -> JsonObject:
    """Return the agent file of a run without a session that answers a client's messages."""
    metadata = {**(agent.get("metadata") or {}), CLIENT_MESSAGES: len(messages)}
    return agent | {"context": [*(agent.get("context") or []), *messages], "metadata": metadata}


def split_conversation(agent: JsonObject, *, of_session: bool) -> tuple[JsonObject, list[JsonObject]]:
    """Return a run's agent file without its conversation, and the conversation: history, messages to answer, state.

    `of_session`: whether the run belongs to a session. Without one, only messages that `with_client_messages` has added
    are a conversation; the file's other messages are the agent's. A file without messages has an empty conversation.
    """
    context: list[JsonObject] = [*(agent.get("context") or [])]
    if not of_session:
        metadata = {**(agent.get("metadata") or {})}
        count = metadata.pop(CLIENT_MESSAGES, None)
        if not isinstance(count, int) or not 0 < count <= len(context):
            return agent, []
        return agent | {"context": context[:-count], "metadata": metadata}, context[-count:]
    at = len(context)
    while at and _is_state(context[at - 1]) and "state" in context[at - 1]:
        at -= 1
    if at and _is_input(context[at - 1]):
        at -= 1
    while at and (_is_history(context[at - 1]) or _is_recall(context[at - 1])):
        at -= 1
    while at < len(context) and _is_recall(context[at]):  # the agent's own; `document` adds one after the history
        at += 1
    if at == len(context) or _is_state(context[at]):
        return agent, []
    return agent | {"context": context[:at]}, [message for message in context[at:] if not _is_recall(message)]


def with_conversation(agent: JsonObject, conversation: Sequence[JsonObject]) -> JsonObject:
    """Return the agent file with the conversation of another run, as `split_conversation` returns it.

    Messages that the file already has are not added again. Raise `AgentError` for an invalid message, because people
    edit cases. Raise `MessageRefusedError` if the agent's input needs more than one text.
    """
    if not conversation:
        return agent
    parse_messages(conversation, where="messages")
    states = [message for message in conversation if _is_state(message)]
    for at, message in enumerate(conversation):
        if _is_state(message) and not isinstance(message.get("state"), dict):
            words = f"must be an object, not {shorten(message.get('state'), 60)}"
            raise AgentError.of([problem_at(("messages", at, "state"), words)])
    rest = [message for message in conversation if not _is_state(message)]
    own = [message for message in agent.get("context") or [] if _is_history(message)]
    rest = rest[len(own) :] if rest[: len(own)] == own else rest
    texts: list[str] = []
    if rest and _is_input(rest[-1]):
        texts += map(str, rest.pop()["input"].values())
    while rest and _is_text(rest[-1]) and not _is_cut(rest[-1:]):
        texts.insert(0, rest.pop()["content"])
    if not (rest or texts):
        return agent
    return document(agent, rest, _state_of(states) if states else None, texts)


def with_settings(agent: JsonObject, settings: JsonObject) -> JsonObject:
    """Return the agent file of a run whose first message has these settings (R10.9). Raise `MessageRefusedError` for
    bad ones.
    """
    if unknown := sorted(settings.keys() - set(SETTINGS)):
        raise MessageRefusedError(f"a message can set {', '.join(SETTINGS)} for its run, not {shorten(unknown[0], 60)}")
    changed = agent | settings
    if settings:
        input_name(changed)
    return changed


RECALL: Final = "recall"
"""Name of the tool that reads results and messages that a conversation has cut or summarised (R10.12)."""


def _is_cut(conversation: Sequence[JsonObject]) -> bool:
    return any(
        message["role"] != "assistant"
        and isinstance(text := message.get("content"), str)
        and (text.endswith(REST) or text.startswith(EARLIER))
        for message in conversation
    )


def _is_recall(message: Json) -> bool:
    tool = message.get("tool") if is_message(message) else None
    return (tool.get("name") if isinstance(tool, dict) else tool) == RECALL


def input_name(agent: JsonObject) -> str | None:
    """Return the property of the agent's input that takes a message; `None` if the agent requires no input.

    Raise `MessageRefusedError` if the input needs more than a text, or the agent is not valid.
    """
    try:
        parsed: AgentSpec = parse_agent(agent)
        inputs = [message for message in parsed.messages() if isinstance(message, InputMessage)]
        schema = next((each.data_schema for each in merge_data(inputs) if each.instance is None), None)
    except ProtocolError as error:
        raise MessageRefusedError(f"the agent cannot be used: {error}") from None
    if schema is None:
        return None
    properties: JsonObject = schema.get("properties") or {}
    required: list[str] = schema.get("required") or []
    texts = [name for name, each in properties.items() if isinstance(each, dict) and each.get("type") == "string"]
    if len(texts) == 1 and set(required) <= set(texts):
        return texts[0]
    if required:
        raise MessageRefusedError(
            f"the agent {parsed.name!r} needs the input {', '.join(map(repr, required))}, and a message gives one text: the agent's input schema may require only one property, a string"
        )
    return None


def _is_history(message: Json) -> bool:
    return isinstance(message, dict) and message.get("role") in ("user", "assistant", "tool")


def _is_text(message: JsonObject) -> bool:
    return message.keys() == {"role", "content"} and message["role"] == "user" and isinstance(message["content"], str)


def _is_input(message: Json) -> bool:
    return is_message(message) and message.get("type") == "input" and isinstance(message.get("input"), dict)


def _is_state(message: Json) -> bool:
    return is_message(message) and message.get("type") == "state"


def _schema_only(message: JsonObject) -> JsonObject:
    """Return a state message without its data, which the session's own state replaces."""
    read = StateMessage.model_validate(message)
    return read.model_copy(update={"given": False}).as_json()


def _state_messages(state: JsonObject) -> list[JsonObject]:
    """Return the state as messages, with one for each instance (R8.8)."""
    own = {key: value for key, value in state.items() if not key.startswith(MARK)}
    below = {key[len(MARK) :]: value for key, value in state.items() if key.startswith(MARK)}
    return [
        {"type": "state", "state": own},
        *({"type": "state", "state": value, "_instance": name} for name, value in below.items()),
    ]


def _state_of(messages: Sequence[JsonObject]) -> JsonObject:
    """Return the state of which `_state_messages` has made these messages."""
    below = {MARK + str(each["_instance"]): each["state"] for each in messages if "_instance" in each}
    own = [each["state"] for each in messages if "_instance" not in each]
    return {key: value for state in own for key, value in state.items()} | below
