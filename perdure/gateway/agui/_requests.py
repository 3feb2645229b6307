"""Inputs of AG-UI's clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ag_ui.core import ResumeEntry, RunAgentInput, TextPart
from pydantic import ValidationError

from perdure.gateway.answers import ClientResult, InterruptAnswer, client_result, interrupt_answer
from perdure.gateway.client_tools import context_with_tools, parse_result, read_page_tools
from perdure.gateway.errors import HttpError
from perdure.values.json import Json, JsonObject

MOST: Final = 200
"""The most characters of an id that a client chooses."""


@dataclass(frozen=True, slots=True)
class AguiRequest:
    """A parsed input."""

    thread: str
    run: str
    """The client's own id of the run."""
    message: tuple[str, str] | None
    """The id and the text of a user's message. Without a message and answers, the request follows the active run."""
    answers: list[InterruptAnswer]
    messages: list[JsonObject] = field(default_factory=list)
    """All messages of the client."""
    context: list[tuple[str, str]] = field(default_factory=list)
    """Data of its page: description and value."""
    tools: list[JsonObject] = field(default_factory=list)
    """The page's own tools, as an agent file defines them."""
    results: list[ClientResult] = field(default_factory=list)
    """Results of calls since the user's last answered message: the page's own results, and results that it received."""

    @property
    def ends_with_results(self) -> bool:
        """Whether the page sends results only: a run has already taken the user's last message."""
        return bool(self.results) and self.messages[-1].get("role") != "user"

    def settings(self, document: JsonObject, source: str) -> JsonObject:
        """Return the agent file's keys that differ in the message's run: the context has the page's tools and data too.

        `source`: the label of the data and the tools' results (R15.2). Raises `HttpError` (422) for a name of one of
        the agent's tools.
        """
        if not (self.context or self.tools) or self.answers:  # with answers, the message goes to their run
            return {}
        parameters: JsonObject = {"_sources": [source]} if source else {}
        data = [
            {"role": "user", "content": f"# data of the page: {what}\n\n{value}", **parameters}
            for what, value in self.context
        ]
        return {"context": [*context_with_tools(document, self.tools, source), *data]}


def read(body: JsonObject) -> AguiRequest:
    """Read a request. Raise `HttpError` (422), in one line, for an invalid input and for unsupported parts."""
    try:
        run_input = RunAgentInput.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]  # of 20,000, perhaps
        raise _wrong(".".join(map(str, first["loc"])) or "the body", first["msg"]) from None
    for key, text in (("threadId", run_input.thread_id), ("runId", run_input.run_id)):
        if not 0 < len(text) <= MOST:
            raise _wrong(key, f"must have 1 to {MOST} characters")
    answers = [_answer(entry) for entry in run_input.resume or []]
    if len({answer.run for answer in answers}) > 1:
        raise _wrong("resume", "must answer the interrupts of one run")
    message = _message(run_input, follows=bool(answers))
    results = _results(run_input.messages)
    if message is None and not answers and not results and run_input.messages:
        raise _wrong("messages", "must have a user's message")
    raw = body["messages"]
    context = [(each.description, each.value) for each in run_input.context or []]
    return AguiRequest(
        run_input.thread_id,
        run_input.run_id,
        message,
        answers,
        [each for each in raw if isinstance(each, dict)],
        context,
        read_page_tools(body.get("tools"), "parameters"),
        results,
    )


def _message(run_input: RunAgentInput, *, follows: bool) -> tuple[str, str] | None:
    """Return the user's last message; with answers to interrupts, only a message at the end."""
    users = [each for each in run_input.messages if each.role == "user"]
    if not users or (follows and run_input.messages[-1].role != "user"):
        return None
    last: Any = users[-1]
    text = last.content if isinstance(last.content, str) else _text(last.content)
    if not 0 < len(last.id) <= MOST:
        raise _wrong("messages", f"has an id without 1 to {MOST} characters")
    if not text.strip():
        raise _wrong("messages", "has a user's message without text")
    return last.id, text


def _results(messages: Sequence[Any]) -> list[ClientResult]:
    """Return the results since the user's last answered message, in order. A user's message at the end is new."""
    found: list[ClientResult] = []
    for message in reversed(messages[:-1] if messages and messages[-1].role == "user" else messages):
        if message.role == "user":
            break
        if message.role == "tool" and (result := client_result(message.tool_call_id, {})) is not None:
            content = (
                message.content if isinstance(message.content, str) else _text(message.content, "a tool's message")
            )
            decision: JsonObject = {"decision": "answer", "answer": parse_result(content)}
            if message.error is not None:
                decision = {"decision": "reject", "reason": message.error or content}
            found.append(replace(result, decision=decision))
    return found[::-1]


def _text(parts: Sequence[Any], what: str = "a user's message") -> str:
    for part in parts:
        if not isinstance(part, TextPart):
            raise _wrong("messages", f"has {what} with {part.type!r} in it: only text is supported")
    return "\n\n".join(part.text for part in parts)


def _answer(entry: ResumeEntry) -> InterruptAnswer:
    found = interrupt_answer(entry.interrupt_id, {})
    if found is None:
        raise _wrong("resume", f"names no interrupt of this thread: {entry.interrupt_id[:MOST]!r}")
    return replace(found, decision=_decision(entry) | found.decision)


def _decision(entry: ResumeEntry) -> JsonObject:
    payload: Json = entry.payload
    if entry.status == "cancelled":
        return {"decision": "reject", "reason": "cancelled"}
    answer = payload if isinstance(payload, dict) else {"approved": payload}
    if "answer" in answer:
        return {"decision": "answer", "answer": answer["answer"]}
    reason, approved, edited = answer.get("reason"), answer.get("approved"), answer.get("editedArgs")
    if not isinstance(approved, bool) or not isinstance(reason, str | None) or not isinstance(edited, dict | None):
        words = '{"approved": true or false, "reason"?: "…", "editedArgs"?: {…}}, or for a question {"answer": …}'
        raise _wrong("resume", f"has a payload that must be {words}")
    why: JsonObject = {"reason": reason} if reason else {}
    if approved and edited:
        return {"decision": "edit", "params": edited, **why}
    return {"decision": "approve" if approved else "reject", **why}


def _wrong(key: str, words: str) -> HttpError:
    return HttpError(422, f"{key} {words}")
