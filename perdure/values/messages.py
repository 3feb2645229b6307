"""Messages: the typed items of a context, chat history, and their merged data."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeGuard, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from perdure.errors import AgentError, InputError, Problem, clip
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.problems import accepts, none_of, problem_at, problems_of
from perdure.values.provenance import NAME
from perdure.values.references import MISSING, Missing
from perdure.values.schemas import or_null
from perdure.values.state import ValueTree, Write

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
    """One message as it was exchanged with a model; its other keys are kept."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Json] | None = None
    tool_calls: list[ChatCall] | None = None
    tool_call_id: str | None = None
    sources: list[Annotated[str, Field(pattern=NAME), accepts("a source, such as user or tool:NAME")]] = Field(
        default_factory=list, alias="_sources", exclude=True
    )
    """The provenance, with `!` before a name whose text others wrote (R15.1); no model receives it. Without it, the
    text is the agent file's own."""

    @property
    def text(self) -> str:
        """The content as text: of parts, those that are text."""
        if isinstance(self.content, list):
            parts = [part.get("text") for part in self.content if isinstance(part, dict)]
            return "\n".join(part for part in parts if isinstance(part, str))
        return self.content or ""

    def as_json(self) -> JsonObject:
        """Return the message as a server takes it: `arguments` as text, without empty keys."""
        message = {key: value for key, value in self.model_dump(mode="json").items() if value is not None}
        message.setdefault("content", None)
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            call["function"]["arguments"] = arguments if isinstance(arguments, str) else dumps(arguments)
        return message

    def as_text(self) -> JsonObject:
        """Return the message for a model without native function calls: its calls, and their results, in words."""
        if self.role == "tool":
            return {"role": "user", "content": f"# result of {self.tool_call_id}\n{self.text}"}
        if not self.tool_calls:
            return self.as_json()
        calls = self.as_json()["tool_calls"]
        lines = [
            f"# called {call['function']['name']} as {call['id']}\n{call['function']['arguments']}" for call in calls
        ]
        return {"role": "assistant", "content": "\n".join([*([self.text] if self.text else []), *lines])}


def check_history(messages: Iterable[tuple[int, object]], *, where: str = "context") -> None:
    """Raise `AgentError` with the index of a call without its result, or of a result without its call.

    `messages` are those that the model reads, with their indexes. Results stand directly after the message with the
    calls: no server takes them elsewhere.
    """
    caller, open_calls = 0, dict[str, None]()
    for index, message in messages:
        if isinstance(message, ChatMessage) and message.role == "tool":
            if message.tool_call_id not in open_calls:
                words = f"is the result of {message.tool_call_id!r}, a call that was not made before it"
                raise _wrong(where, index, words)
            del open_calls[message.tool_call_id]
            continue
        _check_open(open_calls, caller, where)
        calls = (message.tool_calls if isinstance(message, ChatMessage) else None) or []
        caller, open_calls = index, dict.fromkeys(call.id for call in calls)
        if len(open_calls) < len(calls):
            raise _wrong(where, index, "has two calls of one id")
    _check_open(open_calls, caller, where)


def _check_open(open_calls: Iterable[str], index: int, where: str) -> None:
    if missing := ", ".join(map(repr, open_calls)):
        words = f"has a call without its result: {missing}; it stands in a 'tool' message after it"
        raise _wrong(where, index, words)


def _wrong(where: str, index: int, words: str) -> AgentError:
    return AgentError.of([problem_at((where, index), words)])


_IGNORED: Final = re.compile(
    "[\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2065\\u2800\\u3164\\ufe00-\\ufe0f\\uffa0\\ufff0-\\ufff8\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff]"
)
"""Unicode's `Default_Ignorable_Code_Point` that Python counts as printable, and the blank of Braille."""

NEWEST: Final = 24_000
"""Characters of a history that stay after it was too long: half of the context of today's smallest models."""
_LEFT_OUT: Final = ChatMessage(role="user", content="[what was said before this is left out: it was too long]")


def keep_newest(items: Sequence[T], *, shown: int) -> list[T | ChatMessage]:
    """Return the items with only the newest of the history among them (R9.7). The history never begins with the result
    of a lost call.

    `shown`: maximum of characters of a result.
    """
    history = [
        (at, item)
        for at, item in enumerate(items)
        if isinstance(item, ChatMessage) and item.role not in ("system", "developer")
    ]
    room, first = NEWEST, len(items)
    for at, item in reversed(history):
        room -= min(len(item.text), shown if item.role == "tool" else NEWEST)
        room -= sum(len(dumps(call.function.arguments)) for call in item.tool_calls or ())
        if room < 0:
            break
        if item.role != "tool":
            first = at
    if not history or first <= (begin := history[0][0]):
        return list(items)
    gone = {at for at, _ in history if at < first}
    kept = [item for at, item in enumerate(items) if at not in gone]
    return [*kept[:begin], _LEFT_OUT, *kept[begin:]]


_RESERVED = frozenset({"type", "kind", "schema", "description", "_instance"})


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def as_json(self) -> JsonObject:
        """Return the message as an agent file writes it."""
        return self.model_dump(by_alias=True, exclude_defaults=True) | {"type": self.type}  # type: ignore[attr-defined]


class SystemMessage(_Message):
    type: Literal["system"] = "system"
    text: str

    @property
    def role(self) -> str:
        return "system"


class TextMessage(_Message):
    type: Literal["text"] = "text"
    text: str
    role: Literal["user", "assistant"] = "user"


class _DataMessage(_Message):
    """JSON data under a kind, for references: `†kind.path` (R2.2)."""

    data: Json = None
    data_schema: JsonObject | None = Field(default=None, alias="schema")
    description: str = ""
    instance: str | None = Field(default=None, alias="_instance")
    given: bool = Field(default=False, exclude=True)
    """Whether any data was written at all; without it the message is a schema, or the place of the run's input."""

    @model_validator(mode="before")
    @classmethod
    def _both_spellings(cls, message: object) -> object:
        if not isinstance(message, dict) or "given" in message:
            return message
        nested = message.get("type")
        flat = {key: value for key, value in message.items() if key not in _RESERVED and key != nested}
        if nested in message and flat:
            raise ValueError(
                f"write the data either under {nested!r} or beside 'type', not both: {sorted(flat)} are beside it"
            )
        kept = {key: value for key, value in message.items() if key in _RESERVED}
        if "schema" in kept:
            kept["schema"] = or_null(kept["schema"])
        return kept | {"data": message.get(nested, flat), "given": nested in message or bool(flat)}

    def as_json(self) -> JsonObject:
        plain = self.model_dump(by_alias=True, exclude_defaults=True, exclude={"data"}) | {"type": self.type}  # type: ignore[attr-defined]
        return plain | ({self.type: self.data} if self.given else {})  # type: ignore[attr-defined]


class InputMessage(_DataMessage):
    type: Literal["input"] = "input"
    kind: Literal["input"] = "input"


class StateMessage(_DataMessage):
    type: Literal["state"] = "state"
    kind: Literal["state"] = "state"


class DataMessage(_DataMessage):
    type: Literal["data"] = "data"
    kind: str = Field(default="data", min_length=1)


class ToolMessage(_Message):
    """A tool by name, from the worker's registry, or by definition (R2.4)."""

    type: Literal["tool"] = "tool"
    tool: str | JsonObject


HostedTool: TypeAlias = Literal["web_search", "code_execution"]


class HostedMessage(_Message):
    """A tool that the model's provider runs itself, within its answer (R20.6)."""

    type: Literal["hosted"] = "hosted"
    tool: HostedTool


class PlanMessage(_Message):
    """Calls: those of the last Solution with their status, or a plan given to start from (R2.5, R5.9)."""

    type: Literal["plan"] = "plan"
    plan: list[JsonObject]
    output: Json = None
    """The output, with references to results of the plan: it ends a run in which all goes well, without a model (R5.9,
    R6.4)."""


class ErrorMessage(_Message):
    """A call's error; `call` is null for an error of the Solution itself (R2.5, R6.6)."""

    type: Literal["error"] = "error"
    call: Json = None
    error: Json

    @model_validator(mode="before")
    @classmethod
    def _nested(cls, message: object) -> object:
        """Accept the message flat, or under `data` as a data message has it."""
        if not isinstance(message, dict) or not isinstance(message.get("data"), dict):
            return message
        return {key: value for key, value in message.items() if key != "data"} | message["data"]

    def as_json(self) -> JsonObject:
        return {"type": self.type, "call": self.call, "error": self.error}


class FeedbackMessage(_Message):
    """A person's change or rejection, and the reason (R2.5)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["feedback"] = "feedback"


_Typed: TypeAlias = Annotated[
    SystemMessage
    | TextMessage
    | InputMessage
    | StateMessage
    | DataMessage
    | ToolMessage
    | HostedMessage
    | PlanMessage
    | ErrorMessage
    | FeedbackMessage,
    Field(discriminator="type"),
]
ContextMessage: TypeAlias = _Typed | ChatMessage
AnyData: TypeAlias = InputMessage | StateMessage | DataMessage

_ADAPTER: TypeAdapter[_Typed] = TypeAdapter(_Typed)
CLASSES: Final[dict[str, type[BaseModel]]] = {
    each.model_fields["type"].default: each for each in get_args(get_args(_Typed)[0])
}
TYPES: Final = tuple(CLASSES)


def parse_messages(items: Sequence[Json], *, where: str = "context") -> list[ContextMessage]:
    """Parse a context. Raises `AgentError` with all problems, each with the index of the message and the accepted form
    (R2.1, R2.8)."""
    messages: list[ContextMessage] = []
    problems: list[Problem] = []
    for index, item in enumerate(items):
        try:
            messages.append(_parse(item))
        except ValidationError as error:
            kind = item.get("type") if isinstance(item, dict) else None
            tag = 0 if kind is None else 1
            problems += problems_of(error, item, model=CLASSES.get(str(kind)), at=(where, index), skip=tag)
        except AgentError as error:
            problems += [problem_at((where, index, *each.place), each.words) for each in error.problems]
    if problems:
        raise AgentError.of(problems)
    check_history(
        ((index, each) for index, each in enumerate(messages) if not isinstance(each, ToolMessage)), where=where
    )
    return messages


def _parse(item: Json) -> ContextMessage:
    """Parse one message. Raises `ValidationError`, or `AgentError` for an item that is not meant as a message."""
    if not is_message(item):
        words = f"is not a message: expected an object with a 'type', one of {', '.join(TYPES)}, or a 'role'"
        raise AgentError.of([problem_at((), words)])
    if "type" not in item:
        return ChatMessage.model_validate(item)
    if item["type"] not in TYPES:
        raise AgentError.of([problem_at(("type",), none_of(item["type"], "type of message", TYPES))])
    return _ADAPTER.validate_python(item)


def is_message(item: Json) -> TypeGuard[JsonObject]:
    """Whether the item is meant as a message: it has a type, or the role of a message in a chat history."""
    return isinstance(item, dict) and isinstance(item.get("type", item.get("role")), str)


class MergedMessages(BaseModel):
    """The messages of one kind and one instance, merged as the model sees them: one object, with its schema (R2.6)."""

    kind: str
    instance: str | None
    value: Json = None
    exists: bool = False
    data_schema: JsonObject | None = None
    description: str = ""
    place: int = 0
    """Index of the last of them, the place at which the model sees them (R2.7)."""


def merge_data(messages: Iterable[ContextMessage]) -> list[MergedMessages]:
    """Merge by kind and instance, in the order of first appearance; later data wins, objects merge deeply (R2.6)."""
    merged: dict[tuple[str, str | None], MergedMessages] = {}
    for place, message in enumerate(messages):
        if not isinstance(message, AnyData):
            continue
        into = merged.setdefault(
            (message.kind, message.instance), MergedMessages(kind=message.kind, instance=message.instance)
        )
        into.place = place
        if message.given:
            into.value = deep_merge(into.value if into.exists else MISSING, message.data)
            into.exists = True
        if message.data_schema is not None and message.data_schema != into.data_schema:
            into.data_schema = (
                {"allOf": [into.data_schema, message.data_schema]} if into.data_schema else message.data_schema
            )
        into.description = "\n".join(filter(None, (into.description, message.description)))
    return list(merged.values())


def deep_merge(first: Json | Missing, second: Json) -> Any:  # of two objects an object
    """Merge two JSON values: two objects merge deeply into one; any other value is replaced."""
    if first is MISSING:
        return second
    tree = ValueTree({"value": first})
    tree.apply(Write(path=("value",), value=second, method="merge"))
    return tree.value["value"]


Priority: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=5)]
"""1 to 5: tasks of a smaller number go to workers first. Temporal takes 3 where none is given."""
_PRIORITY: Final = TypeAdapter(Priority)


def check_priority(priority: object) -> int | None:
    """Return the priority unchanged. Raise `InputError` for a value other than `None` and 1 to 5."""
    try:
        return None if priority is None else _PRIORITY.validate_python(priority)
    except ValidationError:
        raise InputError(f"priority: expected 1 (first) to 5 (last), got {clip(repr(priority), 80)}") from None


Mode: TypeAlias = Literal["steer", "followup", "collect", "interrupt", "reject"]
VerbosePart: TypeAlias = Literal["reasoning", "tools"]
"""The parts that are delivered before an answer: the model's reasoning, a line for each call."""
MODES: Final[tuple[Mode, ...]] = ("steer", "followup", "collect", "interrupt", "reject")


class SessionRules(BaseModel):
    """The rules of a session. A rule that is left out comes from the level above, or is the default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Mode | None = None
    """The mode of a message without one; `steer`, and `followup` while the run waits for a person."""
    cap: int | None = Field(default=None, ge=1, le=1_000)
    """Messages that may wait; 20."""
    quiet: float | None = Field(default=None, ge=0, le=3_600)
    """Seconds without another message after which collected messages begin a run; 0.5."""
    context_tokens: int | None = Field(default=None, ge=1_000)
    """Tokens of a context from which the conversation is compacted; 100,000, or less after a model has refused that
    (R10.11)."""
    priority: Priority | None = None
    """Priority of its runs; that of its agent."""
    verbose: tuple[VerbosePart, ...] | None = None
    """The parts that are delivered before an answer, to people whose messages name a route; none (R10.16)."""

    def over(self, below: SessionRules) -> SessionRules:
        """Return these rules, completed by those of the other level."""
        return below.model_copy(update=self.model_dump(exclude_none=True))


def is_visible(char: str) -> bool:
    """Whether a person sees a character, or the blank."""
    return char.isprintable() and not _IGNORED.match(char)


def one_visible_line(text: str) -> str:
    """Return the text on one line, with escapes for characters that are invisible or that reverse the direction of the
    text."""
    return "".join(
        char if is_visible(char) else " " if unicodedata.category(char) == "Zs" else f"\\u{ord(char):04x}"
        for char in text
    )


def visible_lines(text: str) -> str:
    """Return the text without invisible characters. Lines stay lines."""
    blanks = (" " if unicodedata.category(char) == "Zs" else char for char in text)
    return "".join(char for char in blanks if char in "\n\t" or is_visible(char))
