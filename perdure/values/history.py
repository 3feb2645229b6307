"""History in OpenAI's chat form as messages of a context: each call with its result (R2.8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from perdure.errors import AgentError
from perdure.values.jsons import Json, JsonObject, dumps
from perdure.values.problems import problem_at
from perdure.values.sources import NAME

T = TypeVar("T")


class ChatFunction(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    arguments: str | JsonObject = "{}"


class ChatCall(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    id: str
    type: Literal["function"] = "function"
    function: ChatFunction


class ChatMessage(BaseModel):
    """One message as it was exchanged with a model; what else stood beside these keys stays with it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Any] | None = None
    tool_calls: list[ChatCall] | None = None
    tool_call_id: str | None = None
    sources: list[Annotated[str, Field(pattern=NAME)]] = Field(default_factory=list, alias="_sources", exclude=True)
    """Where it comes from, `!` before what others wrote (R15.1); no model is sent this. Left out it is the agent file's own."""

    @property
    def text(self) -> str:
        """Its content as text; of parts those that are text."""
        if isinstance(self.content, list):
            parts = [part.get("text") for part in self.content if isinstance(part, dict)]
            return "\n".join(part for part in parts if isinstance(part, str))
        return self.content or ""

    def as_json(self) -> JsonObject:
        """As a server takes it: `arguments` as text, without keys that say nothing."""
        message = {key: value for key, value in self.model_dump(mode="json").items() if value is not None}
        message.setdefault("content", None)
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            call["function"]["arguments"] = arguments if isinstance(arguments, str) else dumps(arguments)
        return message

    def as_text(self) -> JsonObject:
        """The same for a model that does not call functions natively: its calls, and their results, in words."""
        if self.role == "tool":
            return {"role": "user", "content": f"# result of {self.tool_call_id}\n{self.text}"}
        if not self.tool_calls:
            return self.as_json()
        calls = self.as_json()["tool_calls"]
        lines = [
            f"# called {call['function']['name']} as {call['id']}\n{call['function']['arguments']}" for call in calls
        ]
        return {"role": "assistant", "content": "\n".join([*([self.text] if self.text else []), *lines])}


def check_history(messages: Iterable[tuple[int, Json]], *, where: str = "context") -> None:
    """Raises `AgentError` with the index of a call without its result, or a result without its call.

    `messages` are those that the model reads, with their indexes. Results stand directly after the message that calls: no
    server takes them elsewhere.
    """
    asked, open_calls = 0, dict[str, None]()
    for index, message in messages:
        is_result = isinstance(message, ChatMessage) and message.role == "tool"
        if is_result and message.tool_call_id not in open_calls:
            raise _wrong(where, index, f"is the result of {message.tool_call_id!r}, a call that was not made before it")
        if is_result:
            del open_calls[message.tool_call_id]
            continue
        _check_open(open_calls, asked, where)
        calls = message.tool_calls or [] if isinstance(message, ChatMessage) else []
        asked, open_calls = index, dict.fromkeys(call.id for call in calls)
        if len(open_calls) < len(calls):
            raise _wrong(where, index, "has two calls of one id")
    _check_open(open_calls, asked, where)


def _check_open(open_calls: Iterable[str], index: int, where: str) -> None:
    if missing := ", ".join(map(repr, open_calls)):
        words = f"has a call without its result: {missing}; it stands in a 'tool' message after it"
        raise _wrong(where, index, words)


def _wrong(where: str, index: int, words: str) -> AgentError:
    return AgentError.of([problem_at((where, index), words)])


NEWEST: Final = 24_000
"""Characters of a history that are left where it was too long: what the smallest models of today take, with as much beside it."""
_LEFT_OUT: Final = ChatMessage(role="user", content="[what was said before this is left out: it was too long]")


def newest(items: Sequence[T], *, shown: int) -> list[T | ChatMessage]:
    """The items with only the newest of the history among them (R9.7). It begins where nothing is the result of a call before it.

    `shown`: characters of a result that are shown.
    """
    history = [
        at
        for at, item in enumerate(items)
        if isinstance(item, ChatMessage) and item.role not in ("system", "developer")
    ]
    room, first = NEWEST, len(items)
    for at in reversed(history):
        item = items[at]
        assert isinstance(item, ChatMessage)
        room -= min(len(item.text), shown if item.role == "tool" else NEWEST)
        room -= sum(len(dumps(call.function.arguments)) for call in item.tool_calls or ())
        if room < 0:
            break
        if item.role != "tool":
            first = at
    if not history or first <= history[0]:
        return list(items)
    gone = {at for at in history if at < first}
    kept = [item for at, item in enumerate(items) if at not in gone]
    return [*kept[: history[0]], _LEFT_OUT, *kept[history[0] :]]
