"""What a model thinks before it answers, wherever its server puts that: told to who wants to see it, never part of the answer (R10.14)."""

from __future__ import annotations

from typing import Any, Final

from perdure.values.jsons import Json, JsonObject

KEPT: Final = 16_000
"""Characters that are kept of an answer's."""
_KEYS: Final = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "thinking")
"""Of a delta or a message; a server that says the same under several is heard once."""
_PARTS: Final = ("thinking", "reasoning", "reasoning_text", "summary_text", "reasoning.text", "reasoning.summary")
"""Types of a content's parts that are thoughts."""
_INSIDE: Final = ("text", "thinking", "summary", "reasoning", "content")
_DEEPEST: Final = 5


class Reasoning:
    """Taken in with the answer, piece by piece."""

    def __init__(self) -> None:
        self.characters = 0
        """How many there were."""
        self.kept = ""
        """The first `KEPT` of them."""
        self._key: str | None = None
        self._new: list[str] = []

    def take(self, piece: JsonObject) -> None:
        """What a delta or a message has beside its content."""
        keys = _KEYS if self._key is None else (self._key,)
        for key in keys:
            if piece.get(key) and (text := text_in(piece[key])):
                self._key = key
                self.add(text)
                return

    def add(self, text: str) -> None:
        """A thought that stands in the content."""
        if text:
            self.characters += len(text)
            self.kept += text[: KEPT - len(self.kept)] if len(self.kept) < KEPT else ""
            self._new.append(text)

    def new(self) -> str:
        """What has come since this was asked last."""
        text, self._new = "".join(self._new), []
        return text.encode(errors="replace").decode()


def words(message: JsonObject) -> str:
    """The thought in what a message has beside its content."""
    return next((text for key in _KEYS if message.get(key) and (text := text_in(message[key]))), "")


def is_thought(part: JsonObject) -> bool:
    """Whether a part of a content is one, by its type."""
    return part.get("type") in _PARTS


def text_in(value: Json, depth: int = 0) -> str:
    """The words of a thought, however it is wrapped; what is encrypted, and signatures, are none."""
    if isinstance(value, str) or depth > _DEEPEST:
        return value if isinstance(value, str) else ""
    if isinstance(value, list):
        return "".join(text_in(each, depth + 1) for each in value)
    found: Any = next((value[key] for key in _INSIDE if value.get(key)), "") if isinstance(value, dict) else ""
    return text_in(found, depth + 1)
