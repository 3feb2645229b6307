"""The agent file of a session's run, and the conversation that a case keeps of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from perdure.errors import AgentError, MessageRefusedError
from perdure.sessions.agent_file import (
    CLIENT_MESSAGES,
    RECALL,
    document,
    split_conversation,
    with_client_messages,
    with_conversation,
)
from perdure.sessions.transcript import EARLIER

TEXT: dict[str, Any] = {"type": "system", "text": "You answer."}
STATE: dict[str, Any] = {
    "type": "state",
    "state": {"count": 0},
    "schema": {"properties": {"count": {"type": "integer"}}},
}
ASKS: dict[str, Any] = {"type": "input", "schema": {"properties": {"text": {"type": "string"}}, "required": ["text"]}}
SHOWN = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}]
EARLY = [{"role": "user", "content": EARLIER + "Ann said hello."}]
TALK = [{"role": "user", "content": "ann: Hi"}, {"role": "assistant", "content": "Yes?"}]


def agent(*context: dict[str, Any]) -> dict[str, Any]:
    return {"name": "desk", "context": [TEXT, *context]}


@pytest.mark.parametrize("state", [None, {}, {"order": {"n": 1}, "@clerk": {"seen": True}}])
@pytest.mark.parametrize("talk", [[], TALK, EARLY])
@pytest.mark.parametrize("own", [agent(), agent(ASKS), agent(STATE), agent({"type": "tool", "tool": RECALL})])
def test_a_runs_conversation_is_apart_from_its_agent(
    own: dict[str, Any], talk: list[dict[str, Any]], state: dict[str, Any] | None
) -> None:
    whole = document(own, talk, state, ["ann: Refund A7", "bob: Now"])
    without, conversation = split_conversation(whole, of_session=True)
    assert [message["type"] for message in without["context"]] == [message["type"] for message in own["context"]]
    assert with_conversation(without, conversation) == whole
    assert with_conversation(own, conversation) == whole


def test_another_agent_gets_the_conversation_in_its_own_form() -> None:
    _, conversation = split_conversation(
        document(agent(), TALK, {"n": 1}, ["ann: Refund A7", "bob: Now"]), of_session=True
    )
    asks = with_conversation(agent(ASKS), conversation)["context"]
    assert asks[2:] == [*TALK, {"type": "input", "input": {"text": "ann: Refund A7\n\nbob: Now"}}, conversation[-1]]
    _, asked = split_conversation(with_conversation(agent(ASKS), conversation), of_session=True)
    assert with_conversation(agent(), asked)["context"][3:-1] == [
        {"role": "user", "content": "ann: Refund A7\n\nbob: Now"}
    ]
    two = {"type": "input", "schema": {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}}
    with pytest.raises(MessageRefusedError, match="needs the input 'a', 'b'"):
        with_conversation(agent(two), conversation)


def test_messages_of_the_agents_own_file_are_there_once() -> None:
    own = agent(*SHOWN)
    whole = document(own, TALK, {"n": 1}, ["ann: Refund A7"])
    assert with_conversation(own, split_conversation(whole, of_session=True)[1]) == whole
    assert with_conversation(own, split_conversation(own, of_session=True)[1]) == own


@pytest.mark.parametrize("own", [agent(), agent(*SHOWN), agent(STATE), {"name": "desk"}])
def test_the_messages_of_a_client_without_a_session_are_apart_from_its_agent(own: dict[str, Any]) -> None:
    said = [{"role": "system", "content": "Be brief."}, *TALK, {"role": "user", "content": "Refund A7"}]
    whole = with_client_messages(own, said)
    without, conversation = split_conversation(whole, of_session=False)
    assert (without.get("context"), without["metadata"], conversation) == (own.get("context", []), {}, said)
    assert with_conversation(own, conversation)["context"] == whole["context"]
    for file in (own, *(own | {"metadata": {CLIENT_MESSAGES: wrong}} for wrong in ("4", -1, 99))):
        assert split_conversation(file, of_session=False) == (file, [])


def test_an_agent_without_messages_has_no_conversation() -> None:
    for file in ({"name": "desk"}, agent(), agent(ASKS), agent(STATE)):
        assert split_conversation(file, of_session=True) == (file, [])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"x": 1}, "messages[0]: is not a message"),
        ({"role": "user", "content": 5}, "messages[0].content: must be text"),
        ({"type": "state", "state": 3}, "messages[0].state: must be an object, not 3"),
        ({"type": "state", "state": {}, "_instance": 3}, "messages[0]._instance: must be text"),
    ],
)
def test_a_conversation_that_somebody_has_edited_is_refused_with_its_place(message: dict[str, Any], words: str) -> None:
    """An evaluation's workflow reads it too: no other error may leave this function."""
    with pytest.raises(AgentError, match=re.escape(words)):
        with_conversation(agent(), [message, {"role": "user", "content": "Hi"}])
