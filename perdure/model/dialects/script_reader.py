"""Reading a script while it streams: each statement is parsed by `ast` once its line has closed, and never executed (R9.2)."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Final

from perdure.errors import CallError, JsonError
from perdure.model.dialects.answers import Solution, ToolDelta, syntax_error
from perdure.model.dialects.script_values import NotAllowedError, Values, words
from perdure.model.wire import Vocabulary
from perdure.values.jsons import Json, JsonObject, check, shorten

_BEGINS: Final = re.compile(r"(?:[A-Za-z_][\w., \[\]\"']* = )?[A-Za-z_][\w.]*\(")
"""How a statement begins. Inside an open bracket it means that the one before was never closed."""
_QUOTES: Final = ('"""', "'''", '"', "'")
_SHOWN: Final = 300


class ScriptReader:
    """Gives each call once its line has closed. A line that is no call is given as a structural error that quotes it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._values = Values(vocabulary.kinds)
        self._left: list[str] = []
        """Pieces of the line that has not closed."""
        self._number = 0
        self._lines: list[str] = []
        self._first = 1
        self._depth = 0
        self._quote = ""
        self._thinking = False
        self._given: list[Json] = []
        self._outputs = 0
        self._output: Json = None

    def push(self, text: str) -> list[Json]:
        self._left.append(text)
        if "\n" not in text:
            return []
        *lines, rest = "".join(self._left).split("\n")
        self._left = [rest]
        return [call for line in lines for call in self._line(line.removesuffix("\r"))]

    def push_tool(self, delta: ToolDelta) -> list[Json]:
        return []

    def close(self, finish_reason: str | None = None) -> Solution:
        if finish_reason == "length":
            message = "the answer was cut off at the model's length limit; plan fewer calls at a time"
            return Solution(self._given, problem=CallError("cut_off", message))
        if rest := "".join(self._left):
            self._line(rest)
        if self._lines:
            self._statement()
        if not self._given and not self._outputs:
            message = "the answer was empty: write calls, one per line, or output(…)"
            return Solution(problem=CallError("empty_answer", message))
        return Solution(self._given, self._output)

    def _line(self, line: str) -> list[Json]:
        """Take in one line; the calls of the statement that it closes."""
        self._number += 1
        line = line.removeprefix("\ufeff") if self._number == 1 else line
        before = len(self._given)
        if self._lines and len(self._quote) != 3 and _BEGINS.match(line):
            self._statement()
        if not self._lines:
            if self._skipped(line):
                return []
            self._first, self._depth, self._quote = self._number, 0, ""
        self._lines.append(line)
        self._scan(line)
        if self._depth <= 0 and not self._quote and not line.endswith("\\"):
            self._statement()
        return self._given[before:]

    def _skipped(self, line: str) -> bool:
        """Whether it is nothing: empty, a comment, a code fence, a thought."""
        text = line.strip()
        if text.startswith(("<think>", "<thinking>")):
            self._thinking = True
        if self._thinking:
            self._thinking = "</think" not in text
            return True
        return not text or text.startswith(("#", "```"))

    def _scan(self, line: str) -> None:
        """Follow quotes and brackets through a line."""
        at = 0
        while at < len(line):
            character = line[at]
            if self._quote:
                if character == "\\":
                    at += 1
                elif line.startswith(self._quote, at):
                    at += len(self._quote) - 1
                    self._quote = ""
            elif character == "#":
                break
            elif character in "\"'":
                self._quote = next(quote for quote in _QUOTES if line.startswith(quote, at))
                at += len(self._quote) - 1
            elif character in "([{":
                self._depth += 1
            elif character in ")]}":
                self._depth -= 1
            at += 1
        if len(self._quote) == 1 and not line.endswith("\\"):
            self._quote = ""  # such a string ends with its line, and is an error

    def _statement(self) -> None:
        """Read the lines that have been gathered."""
        lines, self._lines = self._lines, []
        source = "\n".join(lines)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                body = ast.parse(source).body
        except SyntaxError as error:
            where = (error.lineno or 1, max(1, error.offset or 1))
            self._refuse(lines, where, f"{error.msg}; a line is a call: name = tool(key=value)")
        except (ValueError, MemoryError, RecursionError) as error:
            self._refuse(lines, (1, 1), f"this cannot be read: {str(error) or 'it is nested too deeply'}")
        else:
            for statement in body:
                try:
                    self._read(statement)
                except NotAllowedError as error:
                    self._refuse(lines, error.position(lines), error.message)
                except RecursionError:
                    self._refuse(lines, (1, 1), "this is nested too deeply")

    def _refuse(self, lines: list[str], where: tuple[int, int], message: str) -> None:
        number, column = min(where[0], len(lines)), where[1]
        quoted = lines[number - 1]
        # A long line is quoted around the place.
        start = max(0, min(column - _SHOWN // 2, len(quoted) - _SHOWN))
        quoted = quoted[start : start + _SHOWN]
        text = f"line {self._first + number - 1}, column {column}: {message}. The line: {quoted}"
        self._given.append(syntax_error(text.encode(errors="replace").decode(), _source=shorten_source(lines)))

    def _read(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Expr):
            call, targets = statement.value, []
        elif isinstance(statement, ast.Assign):
            call, targets = statement.value, statement.targets
        else:
            raise NotAllowedError(
                statement, f"{words(statement)!r} is no call; only calls can be planned: name = tool(key=value)"
            )
        if not isinstance(call, ast.Call):
            raise NotAllowedError(call, "a call is needed here: name = tool(key=value)")
        written = self._values.dotted(call.func)
        if written == "output" and "output" not in self._vocabulary.names:
            self._take_output(call, targets)
            return
        tool = self._vocabulary.names.get(written, written)
        raw: JsonObject = {"_tool": tool, **self._arguments(call, tool)}
        if targets:
            raw["_outputPath"] = self._values.output_path(targets)
        try:
            check(raw)
        except JsonError as error:
            raise NotAllowedError(call, str(error)) from None
        self._given.append(raw)

    def _take_output(self, call: ast.Call, targets: list[ast.expr]) -> None:
        self._outputs += 1
        if targets or self._outputs > 1:
            raise NotAllowedError(call, "output(…) stands alone on its line, once")
        if len(call.args) + bool(call.keywords) != 1:
            raise NotAllowedError(call, "output takes one value, or keywords: output(text=summary)")
        output = self._values.value(call.args[0]) if call.args else self._keywords(call)
        try:
            check(output)
        except JsonError as error:
            raise NotAllowedError(call, str(error)) from None
        self._output = output

    def _arguments(self, call: ast.Call, tool: str) -> JsonObject:
        """Arguments by name; those by position are the tool's parameters in their order."""
        parameters = self._vocabulary.parameters.get(tool, [])
        if len(call.args) > len(parameters):
            raise NotAllowedError(
                call.args[len(parameters)], f"{tool} takes no more arguments by position; name them: key=value"
            )
        arguments = {name: self._values.value(node) for name, node in zip(parameters, call.args, strict=False)}
        for name, value in self._keywords(call).items():
            if name in arguments:
                raise NotAllowedError(call, f"{tool} is given {name!r} twice")
            # `from_` is `from`, which Python does not take as a name.
            wanted = name.removesuffix("_")
            arguments[wanted if name not in parameters and wanted in parameters else name] = value
        return arguments

    def _keywords(self, call: ast.Call) -> JsonObject:
        values = self._values
        found: JsonObject = {}
        for argument in call.keywords:
            if argument.arg is None:
                more = values.value(argument.value)
                if not isinstance(argument.value, ast.Dict):
                    raise NotAllowedError(argument.value, '** takes a dict that is written out: **{"odd key": value}')
            elif argument.arg == "_until":
                more = {argument.arg: values.until(argument.value)}
            else:
                more = {argument.arg: values.value(argument.value)}
            for name, value in more.items():
                if name in found:
                    raise NotAllowedError(argument, f"{name!r} is given twice")
                if name == "_tool" or name.startswith("__"):
                    raise NotAllowedError(argument, f"{name!r} cannot be given")
                found[name] = value
        return found


def shorten_source(lines: list[str]) -> str:
    return shorten("\n".join(lines), _SHOWN)[1:-1] if len(lines) > 1 else lines[0][:_SHOWN]
