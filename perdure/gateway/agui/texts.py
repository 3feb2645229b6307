"""The messages of one kind that a run writes, an answer's or what was thought, piece by piece: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ag_ui.core import (
    BaseEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
)

from perdure.values.jsons import JsonObject


class Texts:
    """One is open at most. `messages`: all that the client has, kept as it is told; `prefix`: of the ids of these."""

    def __init__(self, prefix: str, messages: list[JsonObject], *, reasoning: bool = False) -> None:
        self._prefix = prefix
        self._messages = messages
        self._reasoning = reasoning
        self._known = {str(each.get("id")) for each in messages}
        """Ids that were told of; what a client has in part is told anew, under another."""
        self._name = ""
        """Of the one that is being written: empty, none is."""
        self._message: JsonObject | None = None
        """The one that is open."""

    def is_other(self, name: str) -> bool:
        """Whether another is open than this one."""
        return self._message is not None and self._name != name

    def differs(self, name: str, text: str) -> bool:
        """Whether what is open is no beginning of this text."""
        return self._message is not None and (self._name != name or not text.startswith(self._written))

    def write(self, name: str, start: int, text: str) -> Iterator[BaseEvent]:
        """A piece of it, behind so many characters. Of one whose beginning is not there the rest waits for the end."""
        if self._base(name) in self._known or start > len(self._written):
            return
        yield from self._write(name, text[len(self._written) - start :])

    def whole(self, name: str, text: str) -> Iterator[BaseEvent]:
        """All of it; then it is closed."""
        if self._message is None and any(each["content"] == text for each in self._of(self._base(name), "-")):
            return
        yield from self._write(name, text[len(self._written) :])
        yield from self.close()

    def forget(self, request: object, text: str | None = None) -> bool:
        """Remove each text of the Request from the messages but one that equals `text`. Return whether there was any.

        Texts of another connection count, too.
        """
        wrong = list(self._of(f"{self._prefix}-{request}", "."))
        kept = next((each for each in reversed(wrong) if each["content"] == text), None)
        return self._remove(each for each in wrong if each is not kept)

    def forget_attempts(self, request: object, end: int) -> bool:
        """Remove the texts of the Request's attempts below `end` from the messages. Return whether there was any.

        A client that came back may hold the text of a later attempt: that one stays, in its place.
        """
        of_request = list(self._of(f"{self._prefix}-{request}", "."))
        return self._remove(each for each in of_request if _attempt(str(each["id"])) < end)

    def _remove(self, wrong: Iterable[JsonObject]) -> bool:
        ids = {id(each) for each in wrong}
        self._messages[:] = [each for each in self._messages if id(each) not in ids]
        return bool(ids)

    def close(self) -> Iterator[BaseEvent]:
        """It is whole."""
        if self._message is not None:
            id = str(self._message["id"])
            self._known.add(id)
            self._message = None
            if self._reasoning:
                yield ReasoningMessageEndEvent(message_id=id)
                yield ReasoningEndEvent(message_id=id)
            else:
                yield TextMessageEndEvent(message_id=id)

    @property
    def _written(self) -> str:
        return "" if self._message is None else str(self._message["content"])

    def _base(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _of(self, base: str, separator: str) -> Iterator[JsonObject]:
        for each in self._messages:
            if str(each.get("id")).startswith(base + separator) or each.get("id") == base:
                yield each

    def _begin(self, name: str) -> Iterator[BaseEvent]:
        id, number = self._base(name), 1
        while id in self._known:
            number += 1
            id = f"{self._base(name)}-{number}"
        self._name = name
        self._message = {"id": id, "role": "reasoning" if self._reasoning else "assistant", "content": ""}
        self._messages.append(self._message)
        if self._reasoning:
            yield ReasoningStartEvent(message_id=id)
            yield ReasoningMessageStartEvent(message_id=id, role="reasoning")
        else:
            yield TextMessageStartEvent(message_id=id, role="assistant")

    def _write(self, name: str, text: str) -> Iterator[BaseEvent]:
        if not text:
            return
        if self._message is None:
            yield from self._begin(name)
        assert self._message is not None
        id = str(self._message["id"])
        self._message["content"] = self._written + text
        if self._reasoning:
            yield ReasoningMessageContentEvent(message_id=id, delta=text)
        else:
            yield TextMessageContentEvent(message_id=id, delta=text)


def _attempt(id: str) -> int:
    """Return the attempt in a text's id, such as 2 of `…:msg-1.2-3`; 0 where a client made up the id."""
    number = id.rpartition(".")[2].partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < 10 else 0
