"""Messages of A2A's clients: a text for the agent, or decisions on a task's approval requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from a2a.types import Message, Part, Role
from a2a.utils.errors import ContentTypeNotSupportedError
from google.protobuf.json_format import MessageToDict

from perdure.agents.media import Media
from perdure.approvals.requests import WaitingView, call_words
from perdure.client.run_tree import join_ids
from perdure.gateway.answers import InterruptAnswer, id_below, interrupt_answer, interrupt_id
from perdure.gateway.errors import HttpError
from perdure.runs.wire import CallView, RunView
from perdure.sessions.wire import digest
from perdure.values.json import Json, JsonObject, dumps, whole_numbers
from perdure.values.limits import MAX_NAME
from perdure.values.messages import visible_lines

MOST: Final = 200
"""The most characters of an id that a client chooses."""
DECIDES: Final = (
    '{"interrupt": ID, "decision": "approve", "reject", "edit" or "answer", "reason"?, "params"?, "answer"?}'
)
"""The form of a data part with a decision, in errors."""
_VIA: Final = "a2a/"
"""The prefix of the message's id in a decision's `via`."""
_ASK_PERSON: Final = "ask_person"
_KEYS: Final = {"interrupt", "decision", "reason", "params", "answer"}
_QUESTION: Final = "question"
_APPROVAL: Final = "approval"
_WORDS: Final = re.compile(
    r"\s*(?:(approved?|yes)|(reject(?:ed)?|no))\b[\s.!]*(?:[:,]\s*(.*))?", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class A2aMessage:
    """A parsed message."""

    id: str
    context: str
    """The session's key; empty: the message begins a session."""
    task: str
    """The run's id; empty: the message begins a run."""
    text: str
    decisions: Sequence[InterruptAnswer]


def files_of(message: Message) -> dict[int, Media]:
    """Return the files that a message holds, by the number of their part. Raises `MediaError` for a file that is too large."""
    parts = enumerate(message.parts)
    return {number: Media(data=part.raw, name=part.filename) for number, part in parts if part.HasField("raw")}


def read(message: Message, files: Mapping[int, Media]) -> A2aMessage:
    """Return a message, with the line of each file in the file's place. `files`: files that can be stored, by their
    part.

    Raises `HttpError` (422), in one line, for an invalid user message, and `ContentTypeNotSupportedError` for
    other files and for URLs of files, which are never fetched.
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
        raise _wrong("taskId", "is missing: a decision needs the id of a waiting task")
    if len({decision.run for decision in decisions}) > 1:
        raise _wrong("parts", "have decisions for two tasks: send decisions for one task")
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
        raise ContentTypeNotSupportedError("the message has a file, but this gateway has no storage for files")
    raise ContentTypeNotSupportedError(f"a message can have text, data or files, not a part of the kind {kind!r}")


def _decision(data: JsonObject) -> InterruptAnswer:
    if unknown := sorted(data.keys() - _KEYS):
        raise _wrong("parts", f"have a decision with the unknown key {unknown[0]!r}: it must be {DECIDES}")
    decision = {key: value for key, value in data.items() if key != "interrupt"}
    interrupt = data.get("interrupt")
    found = interrupt_answer(interrupt, decision) if isinstance(interrupt, str) else None
    if found is None:
        raise _wrong("parts", f"have a decision without the interrupt of a task: it must be {DECIDES}")
    return found


def single_request(run: str, waiting: Sequence[tuple[str, WaitingView]]) -> str:
    """Return the only request that waits, for `decision_of`: its kind and its interrupt's id.

    `run`: the last part of the id of the task's run. `waiting`: each request with the path of its run. Raises `HttpError` (422) if several
    requests wait.
    """
    if len(waiting) > 1:
        raise _wrong("parts", f"must be data parts, because {len(waiting)} requests wait: {DECIDES}")
    ((path, request),) = waiting
    kind = _QUESTION if request.question else _APPROVAL
    return f"{kind} {interrupt_id(id_below(run, path), request.call, request.digest)}"


def decision_of(text: str, request: str) -> InterruptAnswer:
    """Return a text as the decision on a request, as `single_request` returns it. Raises `HttpError` (422) for a text without a decision."""
    kind, _, interrupt = request.partition(" ")
    decision: JsonObject
    if kind == _QUESTION:
        decision = {"decision": "answer", "answer": text}
    else:
        found = _WORDS.fullmatch(text)
        if found is None:
            raise _wrong(
                "parts", f"must be 'approve', 'reject: WHY', or a data part {DECIDES}: the task waits for a decision"
            )
        reason: JsonObject = {"reason": found[3].strip()} if found[3] else {}
        decision = {"decision": "approve" if found[1] else "reject", **reason}
    answer = interrupt_answer(interrupt, decision)
    assert answer is not None
    return answer


def sent_with(answer: InterruptAnswer, message: str) -> InterruptAnswer:
    """Return the answer with the id of its message: the task's history finds it by this id."""
    return replace(answer, decision=answer.decision | {"via": f"{_VIA}{message}"[:MAX_NAME]})


def replied_calls(views: Iterable[tuple[str, RunView]]) -> dict[str, dict[str, CallView]]:
    """Return the calls that messages decided, by the message's id and by the call's id in the task's run.

    Answers to MCP servers are left out: no view has them. `views`: the views of the run and its delegates' runs, with
    their paths.
    """
    found: dict[str, dict[str, CallView]] = {}
    for path, view in views:
        for call in view.calls:
            for approval in [] if call.approval is None else call.approval.channel_decisions:
                if not approval.via.startswith(_VIA) or approval.decision in (None, "dropped"):
                    continue
                if approval.decision != "answer" or call.tool == _ASK_PERSON:
                    calls = found.setdefault(approval.via.removeprefix(_VIA), {})
                    calls[join_ids(path, call.id)] = call.model_copy(update={"approval": approval})
    return found


def is_answer(call: CallView) -> bool:
    """Whether the decision is the call's result, as the answer to a question is."""
    return call.approval is not None and call.approval.decision == "answer"


def exchange_of(
    task: str, context: str, id: str, calls: Mapping[str, CallView], answers: Mapping[str, Json]
) -> tuple[str, list[Message]]:
    """Return the time of a request to a person, and two messages for a task's history: the request, and the message with
    this id, which has the decision.

    `calls`: the decided calls, by their ids. `answers`: the results of calls that are questions.
    """
    about = {"context_id": context, "task_id": task}
    words = "\n".join(
        visible_lines(str(call.params.get("question", "")))
        if call.tool == _ASK_PERSON
        else call_words(call.tool, call.params)
        for call in calls.values()
    )
    texts = [_reply(call, answers.get(name)) for name, call in calls.items()]
    if not any(map(is_answer, calls.values())):
        texts = [*dict.fromkeys(texts)]  # a decision on a plan is repeated for each of its calls
    asked = f"{task}:{digest([*calls], 16)}"
    return min(call.approval.requested_at for call in calls.values() if call.approval), [
        Message(message_id=asked, role=Role.ROLE_AGENT, parts=[Part(text=words)], **about),
        Message(message_id=id, role=Role.ROLE_USER, parts=[Part(text=text) for text in texts], **about),
    ]


def _reply(call: CallView, answer: Json) -> str:
    approval = call.approval
    if approval is None or is_answer(call):
        return answer if isinstance(answer, str) else dumps(answer)
    return f"{approval.decision}: {approval.reason}" if approval.reason else str(approval.decision)


def _wrong(key: str, words: str) -> HttpError:
    return HttpError(422, f"the message's {key} {words}")
