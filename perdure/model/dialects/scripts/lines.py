"""A script's lines, gathered into statements (a loop or condition with all that is indented below it), without what models leave around them: thoughts, fences, lists, back-ticks."""

from __future__ import annotations

import ast
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
_COMPOUND: Final = re.compile(
    r"(?:async\s+)?(?:for|while|if|def|class|try|with)\b.*:|match\s[^#=]*:\s*(?:#|$)", re.DOTALL
)
"""How a line begins behind which deeper lines belong to it."""
_HEAD: Final = re.compile(r"(?:for|while|if)\b")
_GOES_ON: Final = re.compile(r"(?:elif|else|except|finally)\b")
"""How a line begins that belongs to a compound statement without being deeper than its head."""
_BODIES: Final = {"match": "\n case 1: pass", "try": " pass\nfinally: pass"}
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
        """Whether it does not even look like a call, or like the head of a loop or a condition: what a person would say."""
        return not _ATTEMPT.match(self.lines[0].lstrip()) and not self._has_head

    @property
    def _has_head(self) -> bool:
        """Whether it begins as a loop or a condition does: `if you like, do this:` does not."""
        ends = next((at for at, line in enumerate(self.lines, 1) if ":" in line), 1)
        head = "\n".join(self.lines[:ends]).lstrip()
        if not _COMPOUND.match(head):
            return False
        body = _BODIES.get(head.split(":")[0].split()[0], " pass")
        return any(map(_is_read, (f"{head.partition(':')[0]}:{body}", f"{head.rpartition(':')[0]}:{body}")))


def _is_read(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


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
        self._open = False
        """Whether the last line goes on in the next."""
        self._indent = 0
        """That of the statement's first line."""
        self._thinking = False
        self._base: int | None = None
        """The indentation of a loop's or a condition's head, while what belongs to it is gathered."""
        self._indents: tuple[int, ...] = ()
        """Where statements may begin: at the least indentation so far, or behind the last marker of a list."""

    @property
    def fenced(self) -> bool:
        """Whether a code fence is open."""
        return self.fences % 2 == 1

    @property
    def under_way(self) -> str:
        """The statement that is being written, as far as it has come; `""` where it belongs to another, or to a thought."""
        return "" if self._thinking or self._base is not None else "\n".join([*self._lines, "".join(self._left)])

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
            self._lines, self._base, self._indents = [], None, ()
            yield None
            line = line[ends[-1].end() :]
        if self._lines and len(self._quote) != 3 and _BEGINS.match(line):
            yield from self._take()
        if self._base is not None and not self._open:
            if not self._belongs(line):
                yield from self._take()
            elif not line.strip() or line.lstrip().startswith("#"):
                self._lines.append("")
                return
            else:
                line = line[self._base :]
                self._depth = 0
        if not self._lines:
            bare = self._bare(line)
            if bare is None:
                return
            line = bare
            self._first, self._depth, self._quote, self._open = self._number, 0, "", False
        self._lines.append(line)
        self._scan(line)
        self._open = self._depth > 0 or bool(self._quote) or line.endswith("\\")
        if not self._open and self._base is None:
            if _COMPOUND.match("".join(self._lines)):
                self._base = self._indent
            else:
                yield from self._take()

    def _belongs(self, line: str) -> bool:
        """Whether the line belongs to the loop or condition that is being gathered."""
        text = line.lstrip()
        indent = len(line) - len(text)
        if not text or text.startswith("#"):
            return True
        if text.startswith("```"):
            return False
        assert self._base is not None
        return indent > self._base or (indent == self._base and bool(_GOES_ON.match(text)))

    def _take(self) -> Iterator[Statement]:
        self._base = None
        if self._lines:
            lines, self._lines = self._lines, []
            while not lines[-1].strip() and len(lines) > 1:
                lines.pop()
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
        indent = self._indent = len(line) - len(line.lstrip())
        if not _BEGINS.match(core) and not _COMPOUND.match(core):
            return line
        if not self._indents or indent < self._indents[0]:
            self._indents = (indent,)
        if indent not in self._indents:
            return line  # deeper than what it would belong to: an error, which Python's own parser names
        if marker:
            self._indents = (self._indents[0], indent + marker.end())
        return last_marks_removed(core) if core.rstrip().endswith(">") else core

    def _scan(self, line: str) -> None:
        """Follow quotes and brackets through a line; words open none."""
        if len(self._lines) == 1 and not _ATTEMPT.match(line.lstrip()) and not _HEAD.match(line):
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
