"""The dialects by name, and the choice of one for a Request.

A dialect teaches itself (`how`, `tools_text`), says what is sent beside the messages (`parameters`), and reads the answer
while it streams (`reader`). Whatever the dialect, what it gives are calls as an agent file would write them, and everything
behind it is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from perdure.models.dialects.common import DialectRequest, SolutionStreamReader
from perdure.models.dialects.script import ScriptDialect
from perdure.models.dialects.solution import SolutionDialect
from perdure.models.dialects.tools import ToolsDialect
from perdure.models.requests import ReaderVocabulary
from perdure.tools.tool import Tool
from perdure.values.json import JsonObject


class Dialect(Protocol):
    @property
    def how(self) -> str:
        """What teaches the model to plan."""
        ...

    @property
    def control(self) -> str:
        """What teaches it to compute, and to make a call only if something holds (R16)."""
        ...

    def only_output(self, ask: DialectRequest) -> str:
        """How to answer when no calls are wanted."""
        ...

    @property
    def text_answers(self) -> bool:
        """Whether text is an answer (R9.5)."""
        ...

    @property
    def keeps_turns(self) -> bool:
        """Whether the model is shown its own answers and their results turn by turn, not as plan and state."""
        ...

    def tools_text(self, ask: DialectRequest) -> str:
        """The part of the prompt that lists the tools and the output's schema."""
        ...

    def plan(self, calls: list[JsonObject], ask: DialectRequest) -> str:
        """The calls of a plan message with their status, as text."""
        ...

    def parameters(self, ask: DialectRequest) -> JsonObject:
        """What is sent beside model and messages."""
        ...

    def vocabulary(self, tools: Mapping[str, Tool], kinds: list[str]) -> ReaderVocabulary:
        """What the reader needs to know."""
        ...

    def reader(self, vocabulary: ReaderVocabulary) -> SolutionStreamReader:
        """A reader for one answer."""
        ...


DIALECTS: Final[Mapping[str, Dialect]] = {
    "solution": SolutionDialect(),
    "tools": ToolsDialect(),
    "script": ScriptDialect(),
}
