"""Reading a script while it streams: each statement is parsed by `ast` once its line has closed, and never executed (R9.2)."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable
from typing import Final

from perdure.errors import CallError, JsonError
from perdure.model.dialects.answers import Solution, ToolDelta, syntax_error
from perdure.model.dialects.script_lines import Lines, Statement
from perdure.model.dialects.script_values import NotAllowedError, Values, parse, words
from perdure.model.wire import Vocabulary
from perdure.plan.control.conditions import IF
from perdure.values.jsons import Json, JsonObject, check, shorten

_TARGETS: Final = re.compile(r"(?:[A-Za-z_][\w., \[\]\"']* = )+")
_SHOWN: Final = 300


class ScriptReader:
    """Gives each call once its line has closed. A line that is no call is given as a structural error that quotes it.

    Words around the calls are told of once, and not at all before the first of them or outside of code fences. An answer that
    begins with words may be a thought whose beginning was lost, so none of its calls start before it has ended.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._values = Values(vocabulary.kinds)
        self._lines = Lines()
        self._native = False
        self._told = 0
        self._forget()

    def _forget(self) -> None:
        """Begin anew: what came so far was a thought."""
        self._held = False
        self._words: Json = None
        """The structural error that the first words are."""
        self._given: list[Json] = []
        self._outputs = 0
        self._output: Json = None

    def push(self, text: str) -> list[Json]:
        self._take(self._lines.push(text))
        if self._held:
            return []
        new = self._given[self._told :]
        self._told = len(self._given)
        return new

    def push_tool(self, delta: ToolDelta) -> list[Json]:
        self._native = True
        return []

    def close(self, finish_reason: str | None = None) -> Solution:
        if finish_reason == "length":
            message = "the answer was cut off at the model's length limit; plan fewer calls at a time"
            return Solution([] if self._held else self._given, problem=CallError("cut_off", message))
        self._take(self._lines.close())
        if self._given or self._outputs:
            return Solution(self._given, self._output)
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
                self._lines.trusted = self._lines.trusted or bool((self._given or self._outputs) and not self._held)

    def _statement(self, statement: Statement) -> None:
        lines = statement.lines
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
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
                    self._read(each)
                except NotAllowedError as error:
                    self._given.append(self._wrong(statement, error.position(lines), error.message))
                except RecursionError:
                    self._given.append(self._wrong(statement, (1, 1), "this is nested too deeply"))

    def _take_words(self, wrong: Json) -> None:
        """Words, not an attempt at a call: told once, where there was a call before them and no fence tells them apart."""
        first, self._words = self._words is None, self._words or wrong
        if not (self._given or self._outputs):
            self._held = True
        elif first and (self._lines.fenced or not self._lines.fences):
            self._given.append(wrong)

    def _wrong(self, statement: Statement, where: tuple[int, int], message: str) -> Json:
        """A structural error that quotes the line around the place."""
        lines = statement.lines
        number, column = min(where[0], len(lines)), where[1]
        quoted = lines[number - 1]
        start = max(0, min(column - _SHOWN // 2, len(quoted) - _SHOWN))
        quoted = quoted[start : start + _SHOWN]
        text = f"line {statement.first + number - 1}, column {column}: {message}. The line: {quoted}"
        claimed = self._claimed("\n".join(lines))
        return syntax_error(text.encode(errors="replace").decode(), _source=shorten_source(lines), **claimed)

    def _claimed(self, source: str) -> JsonObject:
        """Where a line that is no call would have written: nobody may read there what was there before it (R5.1)."""
        if (targets := _TARGETS.match(source.lstrip())) is None:
            return {}
        try:
            statement = ast.parse(f"{targets.group()}0").body[0]
            assert isinstance(statement, ast.Assign)
            return {"_outputPath": self._values.output_path(statement.targets)}
        except (SyntaxError, ValueError, NotAllowedError, AssertionError):
            return {}

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
        written = written if written in self._vocabulary.names else written.removeprefix("functions.")
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
        values = self._values.inside(call)
        arguments = {name: values.value(node) for name, node in zip(parameters, call.args, strict=False)}
        for name, value in self._keywords(call).items():
            if name in arguments:
                raise NotAllowedError(call, f"{tool} is given {name!r} twice")
            # `from_` is `from`, which Python does not take as a name.
            wanted = name.removesuffix("_")
            arguments[wanted if name not in parameters and wanted in parameters else name] = value
        return arguments

    def _keywords(self, call: ast.Call) -> JsonObject:
        values = self._values.inside(call)
        found: JsonObject = {}
        for argument in call.keywords:
            if argument.arg is None:
                more = values.value(argument.value)
                if not isinstance(argument.value, ast.Dict):
                    raise NotAllowedError(argument.value, '** takes a dict that is written out: **{"odd key": value}')
            elif argument.arg == "_until":
                more = {argument.arg: values.until(argument.value)}
            elif argument.arg == IF:
                more = {argument.arg: values.formula(argument.value)}
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
