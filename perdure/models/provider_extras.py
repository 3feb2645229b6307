"""Provider extras: thoughts and signatures that a server sends beside calls, and may expect back.

An extra goes back with its call, to the server that sent it. A key that the server rejects is not sent there again.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from pydantic import Field

from perdure.errors import JsonError
from perdure.models.model_names import parse_model, split_endpoint
from perdure.values.json import Json, JsonObject, WireModel, check, dumps

LONGEST_EXTRA: Final = 16_000
"""Characters that are kept of one key of one answer. The beginning of a longer thought goes back; a longer value of
another key does not."""
LONGEST_SIGNED: Final = 100_000
"""Characters that are kept of thoughts with their signatures: a server rejects them if they are cut."""
THINKING_BLOCKS: Final = "thinking_blocks"
"""Anthropic's thoughts, each with its signature."""
REASONING_ITEMS: Final = "reasoning_items"
"""Encrypted reasoning of OpenAI's Responses."""
MESSAGE_PHASE: Final = "message_phase"
"""The phase of an answer's text in OpenAI's Responses, a comment or the final answer: `{"phase": "commentary"}`."""
SIGNED: Final = frozenset({THINKING_BLOCKS, REASONING_ITEMS})
"""Thoughts that a server checks when they come back."""
CONTENT_INDEX: Final = "content_index"
"""The place of a call among the parts of an answer with thoughts."""
_OF_MESSAGE: Final = (
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    THINKING_BLOCKS,
    REASONING_ITEMS,
    MESSAGE_PHASE,
    "reasoning_opaque",
    "extra_content",
)
_OF_CALL: Final = frozenset({"index", "id", "type", "function", "name", "arguments"})
_OF_FUNCTION: Final = frozenset({"name", "arguments"})


class ProviderExtras(WireModel):
    """The extras of one answer, beside its message and its calls."""

    message: JsonObject = Field(default_factory=dict)
    calls: list[JsonObject] = Field(default_factory=list)
    """In the order of the calls; `{}` for none."""

    def add(self, piece: JsonObject) -> int:
        """Add the extras of a delta or a message; return how many characters of thoughts it had."""
        size = 0
        for key in _OF_MESSAGE:
            value = piece.get(key)
            if value:
                size += len(value) if isinstance(value, str) else 100
                self.message[key] = _joined(self.message.get(key), value)
        return size

    def kept(self) -> ProviderExtras | None:
        """Return the extras that go back: none without a call, and none that is too large."""
        calls = [call if _is_kept(call) else {} for call in self.calls]
        cut = {key: value[:LONGEST_EXTRA] if isinstance(value, str) else value for key, value in self.message.items()}
        message = {
            key: value
            for key, value in cut.items()
            if _is_kept(value, LONGEST_SIGNED if key in SIGNED else LONGEST_EXTRA)
        }
        return ProviderExtras(message=message, calls=calls) if calls and (message or any(calls)) else None


def _is_kept(value: Json, most: int = LONGEST_EXTRA) -> bool:
    try:
        check(value)
    except JsonError:
        return False
    return len(dumps(value)) <= most + 2  # a text's quotes


def _joined(before: Json, value: Json) -> Json:
    """Return a value that comes in pieces, joined: texts are appended, and so are the blocks of a list that name the
    same index."""
    if isinstance(before, str) and isinstance(value, str):
        return before + value if len(before) < LONGEST_EXTRA else before
    if isinstance(before, dict) and isinstance(value, dict):
        return before | value
    if isinstance(before, list) and isinstance(value, list) and len(before) < LONGEST_EXTRA:
        joined = list(before)
        for block in value:
            last = joined[-1] if joined else None
            if isinstance(block, dict) and isinstance(last, dict) and _same(last, block):
                joined[-1] = last | {key: _grown(last.get(key), each, key) for key, each in block.items()}
            else:
                joined.append(block)
        return joined
    return value


def _same(last: JsonObject, block: JsonObject) -> bool:
    return block.get("index") is not None and all(last.get(key) == block.get(key) for key in ("index", "type"))


def _grown(before: Json, value: Json, key: str) -> Json:
    if key in ("text", "summary", "data", "thinking") and isinstance(before, str) and isinstance(value, str):
        return before if len(before) > LONGEST_SIGNED else before + value  # a longer value is not kept
    return before if value is None else value


def call_beside(call: JsonObject) -> JsonObject | None:
    """Return the keys of a native call outside the protocol; `None` for none."""
    found = {key: value for key, value in call.items() if key not in _OF_CALL and value is not None}
    function = call.get("function")
    if isinstance(function, dict):
        inner = {key: value for key, value in function.items() if key not in _OF_FUNCTION and value is not None}
        if inner:
            found["function"] = inner
    return found or None


def server_of(model: str) -> str:
    """Return the server in a model's name, as for `llama-3@backup`; `""` is the default one.

    Signed thoughts of another provider belong to their model: then the server is the whole name.
    """
    return split_endpoint(model)[1] if parse_model(model).provider == "openai" else model


def keys_beside(messages: Iterable[JsonObject]) -> set[str]:
    """Return the keys of extras in chat messages that are to be sent."""
    found: set[str] = set()
    for message in messages:
        if message.get("role") == "assistant":
            found |= message.keys() & set(_OF_MESSAGE)
            for call in message.get("tool_calls") or ():
                found |= call.keys() - _OF_CALL
                found |= call.get("function", {}).keys() - _OF_FUNCTION
    return found


def without_beside(messages: list[JsonObject], keys: Set[str]) -> list[JsonObject]:
    """Return the messages without these keys beside calls."""
    return [_without(message, keys) if message.get("role") == "assistant" else message for message in messages]


def _without(message: JsonObject, keys: Set[str]) -> JsonObject:
    message = {key: value for key, value in message.items() if key not in keys or key not in _OF_MESSAGE}
    if message.get("tool_calls"):
        message["tool_calls"] = [
            {
                key: {name: each for name, each in value.items() if name in _OF_FUNCTION or name not in keys}
                if key == "function"
                else value
                for key, value in call.items()
                if key in _OF_CALL or key not in keys
            }
            for call in message["tool_calls"]
        ]
    return message


LONGEST_REASONING: Final = 16_000
"""Characters of an answer's reasoning that are kept."""
_KEYS: Final = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "thinking")
"""Keys of a delta or a message. If a server sends the same text under several keys, one is read."""
_PARTS: Final = ("thinking", "reasoning", "reasoning_text", "summary_text", "reasoning.text", "reasoning.summary")
"""Types of a content's parts that are thoughts."""
_INSIDE: Final = ("text", "thinking", "summary", "reasoning", "content")
_DEEPEST: Final = 5


class Reasoning:
    """The reasoning of an answer, added piece by piece."""

    def __init__(self) -> None:
        self.characters = 0
        """The number of characters so far."""
        self.kept = ""
        """The first `KEPT` of them."""
        self._key: str | None = None
        self._new: list[str] = []

    def take(self, piece: JsonObject) -> None:
        """Add the reasoning of a delta or a message."""
        keys = _KEYS if self._key is None else (self._key,)
        for key in keys:
            if piece.get(key) and (text := text_in(piece[key])):
                self._key = key
                self.add(text)
                return

    def add(self, text: str) -> None:
        """Add a thought in the content."""
        if text:
            self.characters += len(text)
            self.kept += text[: LONGEST_REASONING - len(self.kept)] if len(self.kept) < LONGEST_REASONING else ""
            self._new.append(text)

    def new(self) -> str:
        """Return the reasoning since the last call of this method."""
        text, self._new = "".join(self._new), []
        return text.encode(errors="replace").decode()


def reasoning_text(message: JsonObject) -> str:
    """Return the reasoning that a message has beside its content."""
    return next((text for key in _KEYS if message.get(key) and (text := text_in(message[key]))), "")


def is_thought(part: JsonObject) -> bool:
    """Whether a part of a content is a thought, by its type."""
    return part.get("type") in _PARTS


def text_in(value: Json, depth: int = 0) -> str:
    """Return the text of a thought at any depth; encrypted parts and signatures have none."""
    if isinstance(value, str) or depth > _DEEPEST:
        return value if isinstance(value, str) else ""
    if isinstance(value, list):
        return "".join(text_in(each, depth + 1) for each in value)
    found: Json = next((value[key] for key in _INSIDE if value.get(key)), "") if isinstance(value, dict) else ""
    return text_in(found, depth + 1)
