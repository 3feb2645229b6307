"""Requests of `useChat`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from perdure.gateway.answers import InterruptAnswer, interrupt_answer
from perdure.gateway.client_tools import context_with_tools, read_page_tools
from perdure.gateway.errors import HttpError
from perdure.values.json import Json, JsonObject

MOST: Final = 200
"""The most characters of an id that a client chooses."""
UiMessage: TypeAlias = dict[str, Any]
"""A message as the page keeps it: `{id, role, parts}`. The page writes its parts, so they are untrusted."""
_TRIGGERS: Final = ("submit-message", "regenerate-message")


@dataclass(frozen=True, slots=True)
class PageChatRequest:
    """A parsed request of `useChat`."""

    chat: str
    """The session's key."""
    message: tuple[str, str] | None
    """The id and the text of the user's last message; `None`: the request answers approval requests."""
    answers: list[InterruptAnswer]
    messages: list[UiMessage]
    """All messages of the page."""
    tools: list[JsonObject]
    """The page's own tools, as an agent file defines them."""

    @property
    def continued(self) -> UiMessage | None:
        """The assistant's message that the answer continues."""
        return self.messages[-1] if self.message is None else None

    def settings(self, document: JsonObject, source: str) -> JsonObject:
        """Return the agent file's keys that differ in the message's run: the context has the page's tools too.

        `source`: the label of their results (R15.2). Raises `HttpError` (422) for a tool with the name of an agent's
        tool.
        """
        if not self.tools or self.answers:  # with answers, the message goes to their run
            return {}
        return {"context": context_with_tools(document, self.tools, source)}


def read(body: JsonObject) -> PageChatRequest:
    """Read a request. Raise `HttpError` (422), in one line, for an invalid body and for unsupported parts."""
    chat, messages, trigger = body.get("id"), body.get("messages"), body.get("trigger", _TRIGGERS[0])
    if not isinstance(chat, str) or not 0 < len(chat) <= MOST:
        raise _wrong("id", f"must be the chat's id, of 1 to {MOST} characters")
    if trigger not in _TRIGGERS:
        raise _wrong("trigger", f"must be one of: {', '.join(_TRIGGERS)}")
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "must be a list of UI messages, the newest last")
    read = [_message(each, at) for at, each in enumerate(messages)]
    last = read[-1]
    before = read[-2:-1] if last["role"] == "user" else read[-1:]
    answers = [answer for message in before if message["role"] == "assistant" for answer in _answers(message)]
    if len({answer.run for answer in answers}) > 1:
        raise _wrong("messages", "answers requests of two runs: answer one of them")
    if last["role"] != "user" and not answers:
        raise _wrong("messages", "must end with a user's message, a tool's output, or an approval's answer")
    message = (last["id"], _text(last)) if last["role"] == "user" else None
    return PageChatRequest(chat, message, answers, read, read_page_tools(body.get("tools"), "inputSchema"))


def _message(message: Any, at: int) -> UiMessage:
    role = message.get("role") if isinstance(message, dict) else None
    id, parts = (message.get("id"), message.get("parts")) if isinstance(message, dict) else (None, None)
    if role not in ("user", "assistant", "system"):
        raise _wrong(f"messages[{at}].role", "must be 'user', 'assistant' or 'system'")
    if not isinstance(id, str) or not 0 < len(id) <= MOST:
        raise _wrong(f"messages[{at}].id", f"must have 1 to {MOST} characters")
    if not isinstance(parts, list) or not all(isinstance(each, dict) for each in parts):
        raise _wrong(f"messages[{at}].parts", "must be a list of parts")
    return dict(message)


def _text(message: UiMessage) -> str:
    texts = []
    for part in message["parts"]:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _wrong(
                "messages", f"ends with a user's message that has a part {part.get('type')!r}: only text is supported"
            )
        texts.append(part["text"])
    if not (text := "\n\n".join(texts)).strip():
        raise _wrong("messages", "ends with a user's message without text")
    return text


def is_tool(part: dict[str, Any]) -> bool:
    """Whether a part of a message is a call of a tool."""
    kind = part.get("type")
    return kind == "dynamic-tool" or (isinstance(kind, str) and kind.startswith("tool-"))


def _answers(message: UiMessage) -> Iterator[InterruptAnswer]:
    """Yield the page's answers in the last step of a message; earlier steps are already answered."""
    parts = message["parts"]
    first = max((at for at, part in enumerate(parts) if part.get("type") == "step-start"), default=0)
    for part in filter(is_tool, parts[first:]):
        approval, state = part.get("approval"), part.get("state")
        if state == "approval-responded":
            about = approval if isinstance(approval, dict) else {}
            reason, approved = about.get("reason"), about.get("approved")
            if not isinstance(approved, bool) or not isinstance(reason, str | None):
                raise _wrong("messages", "has an approval's answer that must be {id, approved, reason?}")
            why: JsonObject = {"reason": reason} if reason else {}
            yield _answer(about.get("id"), {"decision": "approve" if approved else "reject", **why})
        elif state in ("output-available", "output-error") and not approval and not part.get("providerExecuted"):
            if state == "output-available":
                yield _answer(_interrupt_of(part), {"decision": "answer", "answer": part.get("output")})
            else:
                yield _answer(_interrupt_of(part), {"decision": "reject", "reason": str(part.get("errorText") or "")})


def _interrupt_of(part: dict[str, Any]) -> Json:
    found: Json = part.get("callProviderMetadata")
    for key in ("perdure", "interrupt"):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _answer(interrupt: Json, decision: JsonObject) -> InterruptAnswer:
    found = interrupt_answer(interrupt, decision) if isinstance(interrupt, str) else None
    if found is None:
        raise _wrong("messages", f"answers a request that did not wait in this chat: {str(interrupt)[:MOST]!r}")
    return found


def _wrong(key: str, words: str) -> HttpError:
    return HttpError(422, f"{key} {words}")
