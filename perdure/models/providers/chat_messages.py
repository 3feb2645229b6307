"""Chat messages as the other providers need them: turns that alternate, calls as objects, and parts by their kind.

A Request is made as a body of Chat Completions. Every provider's module reads that body and writes its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from perdure.errors import JsonError
from perdure.models.provider_extras import CONTENT_INDEX
from perdure.values.json import Json, JsonObject, dumps, loads

_DATA: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[^;,]*)*;base64,(.*)", re.DOTALL)
_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_ID: Final = 64


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text."""

    text: str


@dataclass(frozen=True, slots=True)
class FilePart:
    """A picture, a document or a recording, as base64 or by its address."""

    kind: Literal["image", "document", "audio"]
    media_type: str
    data: str = ""
    """Base64; empty if the address holds the file."""
    address: str = ""
    name: str = ""


Part = TextPart | FilePart


@dataclass(frozen=True, slots=True)
class CallPart:
    """A native call of the model."""

    id: str
    name: str
    arguments: JsonObject
    beside: JsonObject
    """The whole call with its extras, as it was sent."""


@dataclass(slots=True)
class ChatTurn:
    """A turn of one side: the model's texts and calls; or the results of calls, then messages of people and the
    engine."""

    role: Literal["user", "assistant"]
    parts: list[Part] = field(default_factory=list)
    calls: list[CallPart] = field(default_factory=list)
    results: list[tuple[CallPart, list[Part]]] = field(default_factory=list)
    extras: JsonObject = field(default_factory=dict)
    """The message of an assistant with its extras: thoughts and signatures."""
    ends: int = 0
    """The number of chat messages up to its end."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt: the system's texts, and turns of both sides that alternate."""

    system: list[str]
    turns: list[ChatTurn]
    """The first is a user's."""

    @property
    def calls(self) -> Iterator[CallPart]:
        """The calls of the model so far."""
        return (call for turn in self.turns for call in turn.calls)

    def stable_turns(self, stable: int) -> list[int]:
        """Return the indexes of turns with a useful cache mark at their end; the first `stable` messages stay the same.

        Up to the last one the prompt is unchanged in the next Request. Up to the one before it is unchanged in this
        Request: it is the end of the prompt of the last answer.
        """
        ends = [index for index, turn in enumerate(self.turns) if 0 < turn.ends <= stable]
        if not ends:
            return []
        before = [index - 1 for index in ends if index and self.turns[index].role == "assistant"]
        return sorted({ends[-1], *before[-1:]})


def read_conversation(messages: Sequence[JsonObject]) -> Conversation:
    """Return the conversation of chat messages.

    Later system texts become a user's, marked as the system's: most servers accept system texts only at the beginning.
    """
    system: list[str] = []
    turns: list[ChatTurn] = []
    known: dict[str, CallPart] = {}
    for number, message in enumerate(messages, 1):
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer") and not turns:
            system += [text for text in (text_of(read_parts(content)),) if text.strip()]
            continue
        side: Literal["user", "assistant"] = "assistant" if role == "assistant" else "user"
        parts = list(read_parts(content))
        calls = list(_calls(message)) if side == "assistant" else []
        if not (parts or calls or role == "tool"):
            continue
        if side == "assistant" and not turns:
            turns.append(ChatTurn("user", [TextPart("Begin.")]))
        if not turns or turns[-1].role != side or (turns[-1].calls and side == "assistant"):
            turns.append(ChatTurn(side))
        turn = turns[-1]
        turn.ends = number
        if role == "tool":
            call = known.get(call_id(message.get("tool_call_id")))
            if call is not None:
                turn.results.append((call, parts))
                continue
        if role in ("system", "developer"):
            parts = [TextPart(f"<system>\n{text_of(parts)}\n</system>")]
        turn.parts += parts
        if calls:
            turn.calls, turn.extras = calls, message
            known |= {call.id: call for call in calls}
    return Conversation(system, turns)


def _calls(message: JsonObject) -> Iterator[CallPart]:
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        yield CallPart(call_id(call.get("id")), str(function.get("name")), _arguments(function.get("arguments")), call)


def _arguments(text: Json) -> JsonObject:
    try:
        found = loads(text, source="the arguments") if isinstance(text, str) else text
    except JsonError:
        return {}
    return found if isinstance(found, dict) else {}


def call_id(id: Json) -> str:
    """Return the id of a call in characters that every server accepts."""
    return _ID.sub("_", str(id))[-_LONGEST_ID:]


def read_parts(content: Json) -> Iterator[Part]:
    """Yield the parts of a content that are not empty."""
    for each in content if isinstance(content, list) else [content]:
        if isinstance(each, str):
            if each.strip():
                yield TextPart(each)
        elif isinstance(each, dict):
            yield from _part(each)


def _part(part: JsonObject) -> Iterator[Part]:
    kind = part.get("type", "text")
    if kind == "text" and str(part.get("text") or "").strip():
        yield TextPart(str(part["text"]))
    elif kind == "image_url":
        yield _file("image", str((part.get("image_url") or {}).get("url")), "image/*")
    elif kind == "file":
        file = part.get("file") or {}
        yield _file("document", str(file.get("file_data")), "application/pdf", str(file.get("filename") or ""))
    elif kind == "input_audio":
        audio = part.get("input_audio") or {}
        yield FilePart("audio", f"audio/{audio.get('format') or 'wav'}", str(audio.get("data")))


def _file(kind: Literal["image", "document"], address: str, media_type: str, name: str = "") -> FilePart:
    found = _DATA.fullmatch(address)
    if found is None:
        return FilePart(kind, media_type, address=address, name=name)
    return FilePart(kind, found[1], found[2], name=name)


def text_of(parts: Iterable[Part]) -> str:
    """Return the texts of parts as one text."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def chat_tools(body: JsonObject) -> list[JsonObject]:
    """Return the functions that a body offers: `{"name", "description", "parameters"}`."""
    return [tool["function"] for tool in body.get("tools") or ()]


def known_tools(body: JsonObject, conversation: Conversation) -> tuple[list[JsonObject], bool]:
    """Return the functions to declare to a server, and whether the model may call them.

    Some servers reject a conversation with calls of functions that the Request does not declare. So functions of
    earlier calls are declared by name if a Request offers none.
    """
    if tools := chat_tools(body):
        return tools, True
    names = dict.fromkeys(call.name for call in conversation.calls)
    schema = {"type": "object", "properties": {}}
    return [{"name": name, "description": "", "parameters": schema} for name in names], False


def place_of(call: JsonObject) -> int | None:
    """Return the place of a call among the parts of its answer, if its server has sent it."""
    place = call.get(CONTENT_INDEX)
    return place if isinstance(place, int) else None


def in_order(
    thoughts: Sequence[tuple[int, JsonObject]],
    parts: Iterable[JsonObject],
    calls: Sequence[tuple[int | None, JsonObject]],
) -> list[JsonObject]:
    """Return the blocks of an answer: the thoughts before the first call, the parts, then calls and thoughts by place."""
    places = [place for place, _ in calls if place is not None]
    first = min(places, default=None)
    early = [block for place, block in thoughts if first is None or place < first]
    later: list[tuple[float, JsonObject]] = [*thoughts[len(early) :]]
    later += [(float("inf") if place is None else place, call) for place, call in calls]
    return [*early, *parts, *(block for _, block in sorted(later, key=lambda each: each[0]))]


def chunk(delta: JsonObject | None = None, finish: str | None = None, **more: Json) -> JsonObject:
    """Return a piece of an answer in the form of Chat Completions."""
    choices = [] if delta is None and finish is None else [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    return {"object": "chat.completion.chunk", "choices": choices, **more}


def call_piece(index: int, arguments: str | None = None, **more: Json) -> JsonObject:
    """Return a delta with a piece of a native call; `more`: its id, its name and extras."""
    name = more.pop("name", None)
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    given = {key: value for key, value in more.items() if value is not None}
    return {"tool_calls": [{"index": index, "type": "function", "function": function, **given}]}


class CallPieces:
    """The native calls of one answer, numbered as they open; a server names the block of each piece."""

    def __init__(self) -> None:
        self.placed = False
        """Whether the answer has thoughts, among which each call has a place."""
        self._numbers: dict[int, int] = {}
        """Index of a block → number of its call."""
        self._written: set[int] = set()
        """Blocks whose arguments have begun."""

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def __contains__(self, block: int) -> bool:
        return block in self._numbers

    def open(self, block: int, id: Json, name: Json) -> list[Json]:
        """Return the piece with which a call begins."""
        number = self._numbers[block] = len(self._numbers)
        place = {CONTENT_INDEX: block} if self.placed else {}
        return [chunk(call_piece(number, "", id=id, name=name, **place))]

    def write(self, block: int, arguments: str) -> list[Json]:
        """Return the next piece of a call's arguments; none if the block is not a call."""
        if block not in self._numbers or not arguments:
            return []
        self._written.add(block)
        return [chunk(call_piece(self._numbers[block], arguments))]

    def close(self, block: int, arguments: str = "{}") -> list[Json]:
        """Return the whole arguments of a call without pieces (default: none)."""
        return [] if block in self._written else self.write(block, arguments)


def hosted_piece(tool: str, input: str, result: str, *, failed: bool = False) -> JsonObject:
    """Return a delta with a finished use of a hosted tool."""
    return {"hosted_calls": [{"tool": tool, "input": input, "result": result, "failed": failed}]}


def hosted_tools(body: JsonObject) -> list[str]:
    """Return the hosted tools that a body offers."""
    return body.get("hosted_tools") or []


def usage_chunk(prompt: int, completion: int, cached: int = 0, reasoning: int = 0, written: int = 0) -> JsonObject:
    """Return counts of tokens in the form of Chat Completions; `prompt` includes those from the cache, and those `written` to it."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def token_count(value: Json) -> int:
    """Return a number of tokens; 0 for anything else."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def written_arguments(value: Json) -> str:
    """Return the arguments of a call as JSON text."""
    return value if isinstance(value, str) else dumps(value or {})


def objects(value: Json) -> list[JsonObject]:
    """Return the objects of a list; none if the value is not a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def part_of(value: JsonObject, key: str) -> JsonObject:
    """Return the object under a key; an empty one if there is none."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}
