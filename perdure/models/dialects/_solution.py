"""The dialect `solution`: one JSON document of calls and output under a composed schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from perdure.errors import CallError, JsonError
from perdure.models.dialects.common import (
    CONTROL,
    CallScanner,
    CommentFilter,
    DialectRequest,
    DocumentFilter,
    Solution,
    ToolDelta,
    end_of_object,
    fence_removed,
    plan_text,
    tools_text,
    without_thoughts,
)
from perdure.models.dialects.output_text import OutputText
from perdure.models.requests import OutputForm, ReaderVocabulary
from perdure.models.schemas import compose, make_strict
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, dumps, loads_commented, without_comments
from perdure.values.templates import TextForm

HOW_TO_PLAN: Final = """\
You plan; an engine acts. Answer with one JSON object: {"calls": [{"_tool": name, parameters…, "_outputPath": "†state.name"}], "output": …}.
Calls run in parallel, each once what it reads is there.
- Refer to results, never copy them: a parameter may be "†state.name.items[0]" or "†input[\\"odd key\\"]", or text with {†state.name}. \
Without an _outputPath a result is only shown to you.
- "a || b": the first that exists; "a && b": waits for both, is b. Output paths too: "†state.ok || †state.error": success writes the \
first, failure {code, message} to the last; what reads the other is skipped.
- "_outputMethod": merge, assign, push or concat adds to a value.
- "_after": ["†state.a", "ended †state.b"]: order without a value, once a has succeeded and b has ended, however.
output: null while you need results to decide; else the answer, which may refer to results. It ends the task.
Correct errors with new calls. Do not repeat calls that are done."""


class SolutionDialect:
    """The dialect `solution`: see the module."""

    how: Final = HOW_TO_PLAN
    control: Final = CONTROL
    control_named: Final = ""  # its schema allows control only if the prompt teaches it
    text_answers: Final = False
    keeps_turns: Final = False

    def only_output(self, ask: DialectRequest) -> str:
        return 'Answer with {"output": …}'

    def tools_text(self, ask: DialectRequest) -> str:
        return tools_text(ask.tools, ask.output)

    def plan(self, calls: list[JsonObject], ask: DialectRequest) -> str:
        return plan_text(calls)

    def results(self, results: JsonObject, ask: DialectRequest) -> str:
        return dumps(results)

    def parameters(self, ask: DialectRequest) -> JsonObject:
        plain = compose(
            ask.tools,
            ask.output,
            final=ask.final,
            max_calls=ask.max_calls,
            instances=ask.instances,
            control=ask.control,
            untaught=ask.untaught,
        )
        strict, problems = make_strict(plain)
        schema = (
            {"name": "solution", "schema": plain}
            if problems
            else {"name": "solution", "schema": strict, "strict": True}
        )
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def vocabulary(self, tools: Mapping[str, Tool], kinds: list[str]) -> ReaderVocabulary:
        return ReaderVocabulary()

    def reader(self, vocabulary: ReaderVocabulary) -> SolutionReader:
        return SolutionReader(vocabulary.said)


class SolutionReader:
    """A reader that returns each element of `calls` once it has closed.

    During the stream it only looks ahead: if the text is not JSON, it returns no more calls, and reports nothing.
    The end of the answer decides. An answer that begins with prose may be a thought whose beginning was
    lost, so its calls start only after its end.
    """

    def __init__(self, form: OutputForm | None = None) -> None:
        self._text: list[str] = []
        self._opening = DocumentFilter()
        self._comments = CommentFilter()
        self._calls = CallScanner()
        self._given: list[Json] = []
        self._native = False
        self._output = OutputText(form or OutputForm())

    def push(self, text: str) -> list[Json]:
        self._text.append(text)
        inner = self._comments.push(self._opening.push(text))
        closed: list[Json] = []
        for source in self._calls.push(inner) if inner else ():
            try:
                closed.append(loads_commented(source))
            except JsonError:  # return no calls from the first invalid one on: the order must not have gaps
                self._calls.stopped = True
                break
        self._given += closed
        return closed

    def push_tool(self, delta: ToolDelta) -> list[Json]:
        self._native = True
        return []

    def output_text(self) -> str:
        scanner = self._calls
        raw, scanner.output = "".join(scanner.output), []
        return self._output.push(raw, closed=scanner.output_closed) if raw or scanner.output_closed else ""

    @property
    def text_form(self) -> TextForm:
        return self._output.form

    def thought(self) -> str:
        return self._opening.thoughts.new()

    def close(self, finish_reason: str | None = None) -> Solution:
        text = "".join(self._text)
        if self._native and not text.strip():
            return _no_solution("native_call", "native function calls are not read here: write calls as JSON text")
        solution = parse_solution(text, finish_reason)
        given = self._given
        if solution.calls[: len(given)] == given:
            return solution
        if solution.problem is None:
            message = f"the answer held more than one document; the first {len(given)} calls were run, and nothing else"
            solution = _no_solution("not_a_solution", message)
        return replace(solution, calls=given)


def parse_solution(text: str, finish_reason: str | None = None) -> Solution:
    """Return the Solution of a finished answer. It never raises: any text of a model is a valid input."""
    text = _document(fence_removed(without_thoughts(text)), cut=finish_reason == "length")
    if not text:
        return _no_solution("empty_answer", "the answer was empty")
    try:
        document = loads_commented(text, source="the answer")
    except JsonError as error:
        if finish_reason == "length":
            return _no_solution(
                "cut_off", "the answer was cut off at the model's length limit; plan fewer calls at a time"
            )
        return _no_solution("not_json", f"{error}. It began: {text[:120]!r}")
    if not isinstance(document, dict) or not document.keys() & _KEYS:
        return _no_solution(
            "not_a_solution", f"expected an object with 'calls' and 'output', not {dumps(document)[:120]}"
        )
    unknown = sorted(document.keys() - _KEYS)
    if unknown:
        return _no_solution("not_a_solution", f"unknown keys {', '.join(unknown[:5])} beside 'calls' and 'output'")
    calls = document.get("calls")
    if calls is not None and not isinstance(calls, list):
        return _no_solution("not_a_solution", f"'calls' must be an array, not {dumps(calls)[:120]}")
    return Solution(calls or [], document.get("output"))


_KEYS: Final = frozenset({"calls", "output"})
_MOST_BRACES: Final = 100
"""The most braces in the prose around a document at which the search starts."""


def _document(text: str, *, cut: bool) -> str:
    """Return the JSON document of a finished answer, without the text around it; the text itself if there is none.

    After prose, it is the last document that is a Solution. A document that never closes hides all later text: its
    parts must not be read as the answer.
    """
    at, found, other = text.find("{"), "", ""
    for _ in range(_MOST_BRACES):
        if at < 0:
            break
        document, after = _object(text, at)
        end = after or len(text)
        if document is None:
            other = other or text[at:].rstrip().removesuffix("```").rstrip()
            if after is None or at == 0:
                return found if found and not cut else other
        else:
            other = other or text[at:end]
            if document.keys() & _KEYS:
                found = text[at:end]
            if at == 0:
                break
        at = text.find("{", end)
    return found or other or text


_DECODER: Final = json.JSONDecoder()


def _object(text: str, at: int) -> tuple[JsonObject | None, int | None]:
    """Return the object that begins at a position, and its end; `None` for no object, or one that never ends."""
    with suppress(ValueError, RecursionError):
        return _DECODER.raw_decode(text, at)
    if end := end_of_object(text, at, comments=True):
        with suppress(ValueError, RecursionError):
            return _DECODER.raw_decode(without_comments(text[at:end]))[0], end
    return None, end_of_object(text, at)


def _no_solution(code: str, message: str) -> Solution:
    return Solution(
        problem=CallError(code, f'{message}. Answer with one JSON object {{"calls": [...], "output": ...}}')
    )
