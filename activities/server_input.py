"""Answers and questions between the activity of a call and a tool whose server asks (R21.3)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from perdure.tools.server_input import ServerAnswers, ServerInput

ANSWERS: Final[ContextVar[ServerAnswers]] = ContextVar("answers")
"""The answers so far, in the activity of a run's call; without a value nobody can be asked."""


class ServerInputError(Exception):
    """A server asks for something before it returns a result."""

    def __init__(self, asked: ServerInput) -> None:
        super().__init__(asked.server)
        self.asked = asked
