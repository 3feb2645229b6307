"""Reading a script while it streams: each statement is parsed by `ast` once its line has closed, and never executed (R9.2)."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable
from typing import Final

from perdure.errors import CallError
from perdure.model.dialects.answers import Solution, ToolDelta, syntax_error
from perdure.model.dialects.saying.documents import OutputText
from perdure.model.dialects.saying.script import output_so_far
from perdure.model.dialects.scripts.blocks import Block
from perdure.model.dialects.scripts.lines import Lines, Statement
from perdure.model.dialects.scripts.plan import ScriptPlan
from perdure.model.dialects.scripts.rewrites import assigned_names
from perdure.model.dialects.scripts.values import NotAllowedError, parse
from perdure.model.dialects.scripts.writer import is_name
from perdure.model.dialects.thoughts import Thoughts
from perdure.model.wire import Vocabulary
from perdure.values.jsons import Json, JsonObject, dumps, shorten

_TARGETS: Final = re.compile(r"(?:[A-Za-z_][\w., \[\]\"']* = )+")
_INDENTED: Final = re.compile(r"\n\s+\S")
_SHOWN: Final = 300


class ScriptReader:
    """Gives each call once its line has closed. A line that is no call is given as a structural error that quotes it.

    Words around the calls are told of once, and not at all before the first of them or outside of code fences. An answer that
    begins with words may be a thought whose beginning was lost, so none of its calls start before it has ended.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lines = Lines()
        self._thoughts = Thoughts()
        self._native = False
        self._told = 0
        self._said = ""
        """What is known of the output's text so far."""
        self._forget()

    def _forget(self) -> None:
        """Begin anew: what came so far was a thought."""
        self._held = False
        self._words: Json = None
        """The structural error that the first words are."""
        self._given: list[Json] = []
        self._plan = ScriptPlan(self._vocabulary)

    def push(self, text: str) -> list[Json]:
        self._thoughts.push(text)
        self._take(self._lines.push(text))
        if self._held:
            return []
        new = self._given[self._told :]
        self._told = len(self._given)
        return new

    def push_tool(self, delta: ToolDelta) -> list[Json]:
        self._native = True
        return []

    def said(self) -> str:
        if self._held or "output" in self._vocabulary.names:
            return ""
        if self._plan.outputs:
            known = OutputText(self._vocabulary.said).push(f":{dumps(self._plan.output)}", closed=True)
        else:
            known = output_so_far(self._lines.under_way, self._vocabulary.said)
        if not known.startswith(self._said):
            return ""
        new, self._said = known[len(self._said) :], known
        return new

    def thought(self) -> str:
        return self._thoughts.new()

    def close(self, finish_reason: str | None = None) -> Solution:
        if finish_reason == "length":
            message = "the answer was cut off at the model's length limit; plan fewer calls at a time"
            return Solution([] if self._held else self._given, problem=CallError("cut_off", message))
        self._take(self._lines.close())
        if self._given or self._plan.outputs:
            return Solution(self._given, self._plan.output)
        if self._words is not None:
            return Solution([self._words])
        if self._native:
            message = "native function calls are not read here: write calls as text, one per line"
            return Solution(problem=CallError("native_call", message))
        message = "the answer was empty: write calls, one per line, or output(…)"
        return Solution(problem=CallError("empty_answer", message))

    def _take(self, statements: Iterable[Statement | None]) -> None:
        for statement in statements:
            if statement is None:
                self._forget()
            else:
                self._statement(statement)
                self._lines.trusted = self._lines.trusted or bool(
                    (self._given or self._plan.outputs) and not self._held
                )

    def _statement(self, statement: Statement) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._take_statement(statement)

    def _take_statement(self, statement: Statement) -> None:
        lines = statement.lines
        try:
            body = parse("\n".join(lines))
        except SyntaxError as error:
            where = (error.lineno or 1, max(1, error.offset or 1))
            wrong = self._wrong(statement, where, f"{error.msg}; a line is a call: name = tool(key=value)")
            if statement.is_words:
                self._take_words(wrong)
            else:
                self._given.append(wrong)
        except NotAllowedError as error:
            self._given.append(self._wrong(statement, (1, 1), error.message))
        except (ValueError, MemoryError, RecursionError) as error:
            message = f"this cannot be read: {str(error) or 'it is nested too deeply'}"
            self._given.append(self._wrong(statement, (1, 1), message))
        else:
            for each in body:
                try:
                    self._given += self._plan.read(each)
                except NotAllowedError as error:
                    self._given.append(self._wrong(statement, error.position(lines), error.message, each))
                except RecursionError:
                    self._given.append(self._wrong(statement, (1, 1), "this is nested too deeply", each))

    def _take_words(self, wrong: Json) -> None:
        """Words, not an attempt at a call: told once, where there was a call before them and no fence tells them apart."""
        first, self._words = self._words is None, self._words or wrong
        if not (self._given or self._plan.outputs):
            self._held = True
        elif first and (self._lines.fenced or not self._lines.fences):
            self._given.append(wrong)

    def _wrong(self, statement: Statement, where: tuple[int, int], message: str, read: ast.stmt | None = None) -> Json:
        """A structural error that quotes the line around the place."""
        lines = statement.lines
        number, column = min(where[0], len(lines)), where[1]
        quoted = lines[number - 1]
        start = max(0, min(column - _SHOWN // 2, len(quoted) - _SHOWN))
        quoted = quoted[start : start + _SHOWN]
        text = f"line {statement.first + number - 1}, column {column}: {message}. The line: {quoted}"
        claimed = self._claimed("\n".join(lines), read)
        return syntax_error(text.encode(errors="replace").decode(), _source=shorten_source(lines), **claimed)

    def _claimed(self, source: str, read: ast.stmt | None) -> JsonObject:
        """Where what is no call would have written: nobody may read there what was there before it (R5.1)."""
        if isinstance(read, ast.For | ast.While | ast.If):
            names = [name for name in assigned_names(read) if is_name(name)]
            return {"_outputPath": " && ".join(f"†state.{name}" for name in names)} if names else {}
        paths: dict[str, None] = {}
        for line in source.split("\n") if _INDENTED.search(source) else [source]:
            if (targets := _TARGETS.match(line.lstrip())) is not None:
                try:
                    statement = ast.parse(f"{targets.group()}0").body[0]
                    assert isinstance(statement, ast.Assign)
                    paths[Block({"input", "state", *self._vocabulary.kinds}).target(statement.targets)] = None
                except (SyntaxError, ValueError, NotAllowedError, AssertionError):
                    continue
        return {"_outputPath": next(iter(paths)) if len(paths) == 1 else _all(paths)} if paths else {}


def _all(paths: Iterable[str]) -> str:
    """What a loop or a condition that cannot be read would have written, at any of its lines."""
    return " && ".join(dict.fromkeys(part for path in paths for part in re.split(r" \|\| | && ", path)))


def shorten_source(lines: list[str]) -> str:
    return shorten("\n".join(lines), _SHOWN)[1:-1] if len(lines) > 1 else lines[0][:_SHOWN]
