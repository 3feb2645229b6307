"""The dialects by name, and the choice of one for a Request.

A dialect teaches itself (`how`, `tools_text`), adds parameters to a Request (`parameters`), and reads the answer while
it streams (`reader`). Every dialect returns calls as an agent file would write them, and all later steps are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from perdure.models.dialects._solution import SolutionDialect
from perdure.models.dialects.common import DialectRequest, SolutionStreamReader
from perdure.models.dialects.script import ScriptDialect
from perdure.models.dialects.tools import ToolsDialect
from perdure.models.requests import ReaderVocabulary
from perdure.tools.tool import Tool
from perdure.values.json import JsonObject


class Dialect(Protocol):
    @property
    def how(self) -> str:
        """The prompt that teaches the model to plan."""
        ...

    @property
    def control(self) -> str:
        """The prompt that teaches formulas and conditions of calls (R16)."""
        ...

    @property
    def control_named(self) -> str:
        """The prompt that only names the features of `control`."""
        ...

    def only_output(self, ask: DialectRequest) -> str:
        """Return the prompt for an answer without calls."""
        ...

    @property
    def text_answers(self) -> bool:
        """Whether text is an answer (R9.5)."""
        ...

    @property
    def keeps_turns(self) -> bool:
        """Whether the model sees its own answers and their results turn by turn, not as plan and state."""
        ...

    def tools_text(self, ask: DialectRequest) -> str:
        """Return the part of the prompt that lists the tools and the output's schema."""
        ...

    def plan(self, calls: list[JsonObject], ask: DialectRequest) -> str:
        """Return the calls of a plan message with their status, as text."""
        ...

    def results(self, results: JsonObject, ask: DialectRequest) -> str:
        """Return results that were written to no path, by call id, as text; each has its tool, parameters and result."""
        ...

    def parameters(self, ask: DialectRequest) -> JsonObject:
        """Return the parameters that are sent beside model and messages."""
        ...

    def vocabulary(self, tools: Mapping[str, Tool], kinds: list[str]) -> ReaderVocabulary:
        """Return the vocabulary of the reader."""
        ...

    def reader(self, vocabulary: ReaderVocabulary) -> SolutionStreamReader:
        """Return a reader for one answer."""
        ...


DIALECTS: Final[Mapping[str, Dialect]] = {
    "solution": SolutionDialect(),
    "tools": ToolsDialect(),
    "script": ScriptDialect(),
}
