"""Messages of A2A's clients: a text for the agent, or decisions about what waits in a task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from a2a.types import Message, Part, Role
from a2a.utils.errors import ContentTypeNotSupportedError
from google.protobuf.json_format import MessageToDict

from perdure.agents.media import Media
from perdure.approvals.requests import WaitingView
from perdure.gateway.answers import InterruptAnswer, below, interrupt_answer, interrupt_id
from perdure.gateway.errors import HttpError
from perdure.values.json import Json, JsonObject, dumps, whole_numbers

MOST: Final = 200
"""Characters of an id that a client may choose."""
DECIDES: Final = (
    '{"interrupt": ID, "decision": "approve", "reject", "edit" or "answer", "reason"?, "params"?, "answer"?}'
)
"""The data part that decides, as a client reads it."""
_KEYS: Final = {"interrupt", "decision", "reason", "params", "answer"}
_WORDS: Final = re.compile(
    r"\s*(?:(approved?|yes)|(reject(?:ed)?|no))\b[\s.!]*(?:[:,]\s*(.*))?", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class A2aMessage:
    """A message, read."""

    id: str
    context: str
    """The session's key; empty: the message begins one."""
    task: str
    """The run's id; empty: the message begins one."""
    text: str
    decisions: Sequence[InterruptAnswer]


def files_of(message: Message) -> dict[int, Media]:
    """Return the files that a message holds, by the number of their part. Raises `MediaError` for one that is too large."""
    parts = enumerate(message.parts)
    return {number: Media(data=part.raw, name=part.filename) for number, part in parts if part.HasField("raw")}


def read(message: Message, files: Mapping[int, Media]) -> A2aMessage:
    """Return a message, with the line of each file in the file's place. `files`: those that can be stored, by their part.

    Raises `HttpError` (422), in one line, for what is no message of a user, and `ContentTypeNotSupportedError` for
    other files, and for addresses of files: nothing is fetched.
    """
    for key, id, least in (("messageId", message.message_id, 1), ("contextId", message.context_id, 0)):
        if not least <= len(id) <= MOST:
            raise _wrong(key, f"must have {least} to {MOST} characters")
    if message.role != Role.ROLE_USER:
        raise _wrong("role", "must be the user's: ROLE_USER")
    texts, decisions = [], []
    for number, part in enumerate(message.parts):
        content = files[number].value.line if number in files else _content(part)
        if isinstance(content, dict) and "decision" in content:
            decisions.append(_decision(content))
        else:
            texts.append(content if isinstance(content, str) else dumps(content))
    text = "\n\n".join(texts)
    if decisions and not message.task_id:
        raise _wrong("taskId", "is missing: a decision is for a task that waits")
    if len({decision.run for decision in decisions}) > 1:
        raise _wrong("parts", "decide in two tasks: decide in one of them")
    if not decisions and not text.strip():
        raise _wrong("parts", "have no text")
    return A2aMessage(message.message_id, message.context_id, message.task_id, text, decisions)


def _content(part: Part) -> Json:
    kind = part.WhichOneof("content")
    if kind == "text":
        text: str = part.text
        return text
    if kind == "data":
        return whole_numbers(MessageToDict(part.data))
    if kind == "raw":
        raise ContentTypeNotSupportedError("a message has no files here: the gateway has no storage for them")
    raise ContentTypeNotSupportedError(f"a message has text, data and files, and no part of the kind {kind!r}")


def _decision(data: JsonObject) -> InterruptAnswer:
    if unknown := sorted(data.keys() - _KEYS):
        raise _wrong("parts", f"have a decision with the unknown key {unknown[0]!r}: it must be {DECIDES}")
    decision = {key: value for key, value in data.items() if key != "interrupt"}
    interrupt = data.get("interrupt")
    found = interrupt_answer(interrupt, decision) if isinstance(interrupt, str) else None
    if found is None:
        raise _wrong("parts", f"have a decision that names no interrupt of a task: it must be {DECIDES}")
    return found


def decision_of(text: str, run: str, waiting: Sequence[tuple[str, WaitingView]]) -> InterruptAnswer:
    """Return the decision that a text is, about the one request that waits.

    `run`: the last part of the id of the task's run. `waiting`: each request with the path of its run. Raises `HttpError` (422) for a text
    that decides nothing, and where several requests wait.
    """
    if len(waiting) > 1:
        raise _wrong("parts", f"must be data parts, because {len(waiting)} requests wait: {DECIDES}")
    ((path, request),) = waiting
    decision: JsonObject
    if request.question:
        decision = {"decision": "answer", "answer": text}
    else:
        found = _WORDS.fullmatch(text)
        if found is None:
            raise _wrong(
                "parts", f"must be 'approve', 'reject: WHY', or a data part {DECIDES}: the task waits for that"
            )
        reason: JsonObject = {"reason": found[3].strip()} if found[3] else {}
        decision = {"decision": "approve" if found[1] else "reject", **reason}
    answer = interrupt_answer(interrupt_id(below(run, path), request.call, request.digest), decision)
    assert answer is not None
    return answer


def _wrong(key: str, words: str) -> HttpError:
    return HttpError(422, f"the message's {key} {words}")
