"""A script's lines, gathered into statements, without what models leave around them: thoughts, fences, lists, back-ticks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from perdure.model.dialects.thoughts import END_OF_THOUGHT, last_marks_removed

_BEGINS: Final = re.compile(r"(?:[A-Za-z_][\w., \[\]\"']* = )?[A-Za-z_][\w.]*\(")
"""How a statement begins. Inside an open bracket it means that the one before was never closed."""
_ATTEMPT: Final = re.compile(r"[\w., \[\]\"']*=(?!=)|[A-Za-z_][\w.]*\s*\(|[\[{(\"']")
"""How a line begins that may be meant as a statement. Any other that cannot be read is words."""
_MARKER: Final = re.compile(r"(?:[-*+•]|\d{1,3}[.)]|>>>)\s+(?=[A-Za-z_`])")
_SIGNS: Final = re.compile(r"\"\"\"|'''|[\"'#()\[\]{}]")
_CLOSES: Final = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in ('"""', "'''", '"', "'")}
_END: Final = re.compile(r"</think(?:ing)?>")


@dataclass(frozen=True, slots=True)
class Statement:
    """Lines that belong together; `first` is the number of the first of them, from 1."""

    first: int
    lines: list[str]

    @property
    def is_words(self) -> bool:
        """Whether it does not even look like a call: what a person would say."""
        return not _ATTEMPT.match(self.lines[0].lstrip())


class Lines:
    """Gives each statement once its line has closed; `None` where everything before was a thought whose beginning was lost."""

    def __init__(self) -> None:
        self.trusted = False
        """Set once a statement was acted on: no thought is looked for behind it."""
        self.fences = 0
        self._left: list[str] = []
        """Pieces of the line that has not ended."""
        self._number = 0
        self._lines: list[str] = []
        self._first = 1
        self._depth = 0
        self._quote = ""
        self._thinking = False
        self._indents: tuple[int, ...] = ()
        """Where statements may begin: at the least indentation so far, or behind the last marker of a list."""

    @property
    def fenced(self) -> bool:
        """Whether a code fence is open."""
        return self.fences % 2 == 1

    def push(self, text: str) -> Iterator[Statement | None]:
        self._left.append(text)
        if "\n" not in text:
            return
        *lines, rest = "".join(self._left).split("\n")
        self._left = [rest]
        for line in lines:
            yield from self._line(line.removesuffix("\r"))

    def close(self) -> Iterator[Statement | None]:
        rest, self._left = "".join(self._left), []
        if rest:
            yield from self._line(rest)
        yield from self._take()

    def _line(self, line: str) -> Iterator[Statement | None]:
        self._number += 1
        line = line.removeprefix("\ufeff") if self._number == 1 else line
        if self._thinking:
            end = _END.search(line)
            if end is None:
                return
            self._thinking, line = False, line[end.end() :]
        elif not self.trusted and len(self._quote) != 3 and (ends := list(END_OF_THOUGHT.finditer(line))):
            self._lines, self._indents = [], ()
            yield None
            line = line[ends[-1].end() :]
        if self._lines and len(self._quote) != 3 and _BEGINS.match(line):
            yield from self._take()
        if not self._lines:
            bare = self._bare(line)
            if bare is None:
                return
            line = bare
            self._first, self._depth, self._quote = self._number, 0, ""
        self._lines.append(line)
        self._scan(line)
        if self._depth <= 0 and not self._quote and not line.endswith("\\"):
            yield from self._take()

    def _take(self) -> Iterator[Statement]:
        if self._lines:
            lines, self._lines = self._lines, []
            yield Statement(self._first, lines)

    def _bare(self, line: str) -> str | None:
        """The line where a statement may begin, without what stands around it; `None` where it is nothing at all."""
        text = line.strip()
        if text.startswith(("<think>", "<thinking>")):
            end = _END.search(text)
            self._thinking = end is None
            return None if end is None else self._bare(text[end.end() :])
        if text.startswith("```"):
            self.fences += 1
            return None
        if not text or text.startswith(("#", "</think")) or not last_marks_removed(text):
            return None
        marker = _MARKER.match(text)
        core = line.lstrip()[marker.end() if marker else 0 :]
        if core.startswith("`") and core.rstrip().endswith("`"):
            core = core.strip().strip("`").strip()
        if not _BEGINS.match(core):
            return line
        indent = len(line) - len(line.lstrip())
        if not self._indents or indent < self._indents[0]:
            self._indents = (indent,)
        if indent not in self._indents:
            return line  # deeper than what it would belong to: an error, which Python's own parser names
        if marker:
            self._indents = (self._indents[0], indent + marker.end())
        return last_marks_removed(core) if core.rstrip().endswith(">") else core

    def _scan(self, line: str) -> None:
        """Follow quotes and brackets through a line; words open none."""
        if len(self._lines) == 1 and not _ATTEMPT.match(line.lstrip()):
            return
        at = 0
        while found := (_CLOSES[self._quote] if self._quote else _SIGNS).search(line, at):
            at, sign = found.end(), found[0]
            if self._quote:
                self._quote = "" if sign == self._quote else self._quote
            elif sign == "#":
                break
            elif sign in _CLOSES:
                self._quote = sign
            else:
                self._depth += 1 if sign in "([{" else -1
        if len(self._quote) == 1 and not line.endswith("\\"):
            self._quote = ""  # such a string ends with its line, and is an error
