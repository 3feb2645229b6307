"""What an activity tells of itself beyond its input and result, where somebody traces it; nothing is worked out for nobody."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final


class Told:
    """By one attempt of an activity. `content`: whether what it was given is wanted, too."""

    def __init__(self, *, content: bool) -> None:
        self.content = content
        self.tool: str | None = None
        """The tool's own name, where the activity has another."""
        self.finish_reason: str | None = None
        self.given: Any = None
        """The messages of a model, or the parameters of a tool."""


TOLD: Final[ContextVar[Told | None]] = ContextVar("told", default=None)
