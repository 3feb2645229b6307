"""`NO_REPLY`: an answer that says that nothing is to be said (R10.16)."""

from __future__ import annotations

from typing import Final

NO_REPLY: Final = "NO_REPLY"
_AROUND: Final = " \t\r\n\"'`*“”‘’«»"
"""What a model may set around it."""


def is_silence(text: str) -> bool:
    """Whether the whole answer is `NO_REPLY`: a text that only speaks of it is told."""
    return text.strip(_AROUND) == NO_REPLY


def may_be_silence(text: str) -> bool:
    """Whether a text that is being written may still turn out to be."""
    core = text.lstrip(_AROUND)
    return NO_REPLY.startswith(core) or (core.startswith(NO_REPLY) and is_silence(core))
