"""The dialect `script`: a plan in Python's syntax, read while it streams and never executed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Final

from perdure.errors import CallError
from perdure.models.dialects._script_statements import Changes, Lines, ScriptPlan, Statement
from perdure.models.dialects._script_syntax import find_changes_in_text, has_end_in_text
from perdure.models.dialects._script_values import NotAllowedError, parse
from perdure.models.dialects.common import (
    DialectRequest,
    Solution,
    ThoughtFilter,
    ToolDelta,
    syntax_error,
    tools_text,
    written_names,
)
from perdure.models.dialects.output_text import OutputText, output_so_far
from perdure.models.dialects.script_writer import is_name, write_calls
from perdure.models.requests import ReaderVocabulary
from perdure.tools.tool import Tool
from perdure.values.json import LONG_INTEGER, Json, JsonObject, dumps, is_long_integer, shorten
from perdure.values.templates import PLAIN

_SHOWN: Final = 300


class ScriptReader:
    """A reader that returns each call once its line has closed. A line that is not a call becomes a structural error
    that quotes it.

    Prose around the calls is reported once, and never before the first call or outside of code fences. An answer that
    begins with prose may be a thought whose beginning was lost, so its calls start only after its end.
    """

    def __init__(self, vocabulary: ReaderVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lines = Lines()
        self._thoughts = ThoughtFilter()
        self._native = False
        self._reported = 0
        self._output_so_far = ""
        """The known text of the output so far."""
        self.text_form = PLAIN
        self._forget()

    def _forget(self) -> None:
        """Begin again: the text so far was a thought."""
        self._held = False
        self._words: Json = None
        """The structural error for the first prose."""
        self._given: list[Json] = []
        self._plan = ScriptPlan(self._vocabulary)

    def push(self, text: str) -> list[Json]:
        self._thoughts.push(text)
        self._take(self._lines.push(text))
        if self._held:
            return []
        new = self._given[self._reported :]
        self._reported = len(self._given)
        return new

    def push_tool(self, delta: ToolDelta) -> list[Json]:
        self._native = True
        return []

    def output_text(self) -> str:
        if self._held or "output" in self._vocabulary.names:
            return ""
        if self._plan.outputs:
            output = OutputText(self._vocabulary.said)
            known, form = output.push(f":{dumps(self._plan.output)}", closed=True), output.form
        else:
            known, form = output_so_far(self._lines.under_way, self._vocabulary.said)
        if not known.startswith(self._output_so_far):
            return ""
        new, self._output_so_far = known[len(self._output_so_far) :], known
        self.text_form = form
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
            wrong = self._wrong(
                statement,
                where,
                f"{LONG_INTEGER if is_long_integer(error) else error.msg}; a line is a call: name = tool(key=value)",
            )
            if statement.is_words:
                self._take_words(wrong)
            else:
                self._held = self._held or (statement.is_bare_block and not (self._given or self._plan.outputs))
                self._given.append(wrong)
        except NotAllowedError as error:
            self._given.append(self._wrong(statement, (1, 1), error.message))
        except (ValueError, MemoryError, RecursionError) as error:
            self._given.append(self._wrong(statement, (1, 1), _unreadable(error)))
        else:
            for each in body:
                changed = None
                try:
                    changed = self._plan.changes(each, follow=True)  # before the reader rewrites the tree
                    self._given += self._plan.read(each)
                except NotAllowedError as error:
                    self._given.append(self._wrong(statement, error.position(lines), error.message, changed))
                except (ValueError, RecursionError) as error:
                    self._given.append(self._wrong(statement, (1, 1), _unreadable(error), changed))

    def _take_words(self, wrong: Json) -> None:
        """Record prose, which is reported once, after a call and if no fence separates them."""
        first, self._words = self._words is None, self._words or wrong
        if not (self._given or self._plan.outputs):
            self._held = True
        elif first and (self._lines.fenced or not self._lines.fences):
            self._given.append(wrong)

    def _wrong(
        self, statement: Statement, where: tuple[int, int], message: str, changed: Changes | None = None
    ) -> Json:
        """Return a structural error that quotes the line around the place.

        `changed`: the values that the statement would change; `None` for a statement that cannot be parsed.
        """
        lines = statement.lines
        number, column = min(where[0], len(lines)), where[1]
        quoted = lines[number - 1]
        start = max(0, min(column - _SHOWN // 2, len(quoted) - _SHOWN))
        quoted = quoted[start : start + _SHOWN]
        text = f"line {statement.first + number - 1}, column {column}: {message}. The line: {quoted}"
        changes = (
            [changed] if changed is not None else [self._plan.changes(each) for each in find_changes_in_text(lines)]
        )
        if changed is None and not statement.is_words and has_end_in_text(lines):
            changes.append(Changes({}, [], ends=True))
        # No reader may see an older value there (R5.1).
        paths = dict.fromkeys(path for each in changes for path in self._plan.forget(each))
        unwritten: JsonObject = {"_outputPath": " && ".join(paths)} if paths else {}
        return syntax_error(text.encode(errors="replace").decode(), _source=shorten_source(lines), **unwritten)


def _unreadable(error: Exception) -> str:
    deep = isinstance(error, RecursionError) or not str(error)
    return f"this cannot be read: {'it is nested too deeply' if deep else error}"


def shorten_source(lines: list[str]) -> str:
    return shorten("\n".join(lines), _SHOWN)[1:-1] if len(lines) > 1 else lines[0][:_SHOWN]


HOW_TO_SCRIPT: Final = """\
You plan; an engine acts. Answer only with Python calls, one per line:
user = fetchUser(name=input.name)
receipt, error = pay(amount=user.total)
output(text=receipt.text)
- Lines run in parallel, each once what it reads is there.
- A name keeps a result: pass on user.name, items[0] or d["odd key"], never copy values. Without a name you only see it.
- input.x is input data. In text write "Dear {†state.user.name}".
- a or b: the first that exists; a and b: waits for both, is b. x, error = …: failure goes to error; what reads the other is \
skipped. a = b = f() writes both.
- _outputMethod="push" (merge, assign, concat) adds to a value.
- _after=[user, "ended †state.receipt"]: order without a value, once user has succeeded and receipt has ended, however.
- output(value) or output(key=value) ends the task. Leave it out while you need results to decide.
Correct errors with new lines. Do not repeat calls that are done."""

CONTROL: Final = """\
- Arguments and names may compute: hot = [h for h in hosts if h.cpu > 90], f"{user.name}: {max(loads)} %", total * 2. There are \
operators, comprehensions, f-strings, methods of text, and len sum min max sorted any all round str int float set dict zip enumerate range.
- Calls may stand in calls, and under for, if/elif/else and while (20 rounds at most):
for h in hosts:
    c = check(host=h.name)
    if not c.ok:
        restart(host=h.name)
bad = [x.host for x in c if not x.ok]
- What a for assigns is a list afterwards, with None where nothing was made; so is [check(host=h.name) for h in hosts]. Its rounds \
run in parallel and do not see each other: no break, no n = n + 1. A while's rounds follow each other.
- There is no def, import, try or return."""

CONTROL_NAMED: Final = (
    "Expressions, comprehensions, f-strings, if, for and while work as in Python; def, import and try do not."
)

LOOPS: Final = (
    "Another agent. With _each=list it runs once per item and has †input.item and †input.index (_parallel=8 at a time); the result "
    "is the list of its outputs. With _until=output.done it is repeated until that is true (_max=20 times at most)."
)

_NOT_IN_A_NAME: Final = re.compile(r"\W")


class ScriptDialect:
    """The dialect `script`: see the module."""

    how: Final = HOW_TO_SCRIPT
    control: Final = CONTROL
    control_named: Final = CONTROL_NAMED
    text_answers: Final = False
    keeps_turns: Final = False

    def only_output(self, ask: DialectRequest) -> str:
        return "Answer with one line: output(…)"

    def tools_text(self, ask: DialectRequest) -> str:
        return tools_text(ask.tools, ask.output, written_names(script_names(ask.tools)), LOOPS)

    def plan(self, calls: list[JsonObject], ask: DialectRequest) -> str:
        """Return the calls as lines of script, with their status as comments."""
        names = written_names(script_names(ask.tools))
        bare = [{key: value for key, value in call.items() if key not in _NOTES} for call in calls]
        return "\n".join(map(_noted, calls, write_calls(bare, names=names, kinds=ask.kinds)))

    def results(self, results: JsonObject, ask: DialectRequest) -> str:
        """Return the calls as lines of script, each with its id and its result as a comment."""
        calls = [{"_tool": each["tool"], **each["params"]} for each in results.values()]
        lines = write_calls(calls, names=written_names(script_names(ask.known)), kinds=ask.kinds)
        shown = zip(lines, results.items(), strict=True)
        return "\n".join(f"{line}  # {id}: {dumps(each['result'])}" for line, (id, each) in shown)

    def parameters(self, ask: DialectRequest) -> JsonObject:
        return {}

    def vocabulary(self, tools: Mapping[str, Tool], kinds: list[str]) -> ReaderVocabulary:
        return ReaderVocabulary(
            names=script_names(tools),
            parameters={name: list(tool.parameters.get("properties", {})) for name, tool in tools.items()},
            kinds=kinds,
        )

    def reader(self, vocabulary: ReaderVocabulary) -> ScriptReader:
        return ScriptReader(vocabulary)


def script_names(tools: Iterable[str]) -> dict[str, str]:
    """Return tools by their names in a script: their own names, or the nearest ones that Python's syntax allows."""
    names: dict[str, str] = {}
    for tool in tools:
        plain = tool
        if not all(is_name(part) for part in tool.split(".")) or tool == "output":
            plain = _NOT_IN_A_NAME.sub("_", tool)
            if plain[:1].isdigit():
                plain = f"_{plain}"
            elif not is_name(plain) or plain == "output":
                plain = f"{plain}_"
        while plain in names:
            plain += "_"
        names[plain] = tool
    return names


_NOTES: Final = ("_id", "_status", "_reason", "_error")
"""Keys of a call that become its comment, or are not written."""


def _noted(call: JsonObject, line: str) -> str:
    notes = [str(call[key]) for key in ("_id", "_status", "_reason") if call.get(key)]
    first, *more = line.split("\n")
    return "\n".join([f"{first}  # {' '.join(notes)}".replace("\n", "\\n") if notes else first, *more])
