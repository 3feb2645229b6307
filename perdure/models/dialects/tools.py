"""The dialect `tools`: native function calls; text without a call is the output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from perdure.errors import CallError, JsonError
from perdure.models.dialects.common import (
    CONTROL,
    LOOPS,
    CommentFilter,
    DialectRequest,
    Scanner,
    Solution,
    ToolDelta,
    call_as_text,
    plan_text,
    syntax_error,
    tool_notes,
    without_thoughts,
    written_names,
)
from perdure.models.dialects.output_text import ProseText
from perdure.models.requests import OutputForm, ReaderVocabulary
from perdure.models.schemas import compose, function_schema
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, dumps, loads, loads_commented
from perdure.values.templates import TextForm

_AROUND_NAME: Final = re.compile(r"^functions?[.:/]|:\d+$|<[|｜].*$", re.DOTALL)
"""The marks that servers leave around a function's name: a namespace, a number, the mark of a channel."""

_EMPTY_AGAIN: Final = re.compile(r"\A(?:\s*\{\})+(?=\s*\S)")
"""Empty objects before the arguments."""
_OUTPUT_PATH: Final = re.compile(r'"_outputPath"\s*:\s*("(?:[^"\\]|\\.)*")')


@dataclass(slots=True)
class _Piece:
    """The part of one native call that has come so far."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    comments: CommentFilter = field(default_factory=CommentFilter)
    scanner: Scanner = field(default_factory=Scanner)
    closed: bool = False
    """Whether the object of the arguments has closed."""
    empty: bool = False
    """Whether it closed as `{}`: some servers send that first, and the arguments after it."""
    beside: JsonObject = field(default_factory=dict)

    def push(self, text: str) -> None:
        """Add a piece of the arguments. The brace that closes their object closes the call."""
        self._push(self.comments.push(text))

    def _push(self, text: str) -> None:
        while text and not (self.closed and not self.empty):  # nothing counts after the object's end
            if self.empty and text.strip():
                text = _EMPTY_AGAIN.sub("", text)
                self.arguments, self.scanner, self.closed, self.empty = [], Scanner(), False, False
            marks = self.scanner.marks(text)
            end = next((at + 1 for at, mark in marks if mark in "}]" and self.scanner.depth == 0), None)
            self.arguments.append(text[:end])
            if end is None:
                return
            self.closed, self.empty = True, "".join(self.arguments).strip() == "{}"
            text = text[end:]


class ToolsReader:
    """A reader that returns each native call once its arguments have closed."""

    def __init__(self, names: Mapping[str, str], form: OutputForm | None = None) -> None:
        # A tool's own name comes before the name without what some servers write around it.
        self._names = {tool: tool for tool in names.values()} | dict(names)
        self._pieces: list[_Piece] = []
        self._by_index: dict[int, _Piece] = {}
        self._given: list[Json] = []
        self._text: list[str] = []
        self._pieces_read = 0
        """The number of pieces of the text that `output_text` has read."""
        self._prose = ProseText(form)
        self._known = ""
        """The known text that `output_text` has not returned."""

    def push(self, text: str) -> list[Json]:
        self._text.append(text)
        return []

    def output_text(self) -> str:
        new, self._pieces_read = self._text[self._pieces_read :], len(self._text)
        known, self._known = self._known + self._prose.push("".join(new)), ""
        return known

    @property
    def text_form(self) -> TextForm:
        return self._prose.form

    def thought(self) -> str:
        self._known = self.output_text()
        return self._prose.thoughts.new()

    def push_tool(self, delta: ToolDelta) -> list[Json]:
        piece = self._piece(delta)
        piece.id = piece.id or delta.id or ""
        piece.name = piece.name or delta.name or ""
        if delta.beside:
            piece.beside |= delta.beside
        if delta.arguments:
            piece.push(delta.arguments)
        return self._closed()

    def _piece(self, delta: ToolDelta) -> _Piece:
        """Return the call that a piece belongs to. Some servers leave out the index or the id, or give every call index
        0."""
        last = self._pieces[-1] if self._pieces else None
        piece = last if delta.index is None else self._by_index.get(delta.index)
        begins = (
            piece is not None
            and bool(delta.name and piece.name)
            and (
                (piece.closed and not (piece.empty and delta.id and delta.id == piece.id))
                or bool(delta.id and piece.id and delta.id != piece.id)
            )
        )
        if piece is None or begins:
            piece = _Piece()
            self._pieces.append(piece)
        if delta.index is not None:
            self._by_index[delta.index] = piece
        return piece

    def _closed(self, *, all: bool = False) -> list[Json]:
        """Return the closed calls that follow those already returned; with `all` also those that never closed."""
        new: list[Json] = []
        for piece in self._pieces[len(self._given) :]:
            if not (all or (piece.closed and (not piece.empty or piece is not self._pieces[-1]))):
                break
            new.append(self._read(piece))
            self._given.append(new[-1])
        return new

    def _read(self, piece: _Piece) -> Json:
        written = _AROUND_NAME.sub("", piece.name.strip()).strip()
        name = self._names.get(piece.name) or self._names.get(written, written)
        text = ("".join(piece.arguments) + ("" if piece.closed else piece.comments.held)).strip() or "{}"
        if not text.isascii():  # a character beyond the 16-bit plane may be cut between its two escapes
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        try:
            arguments = loads_commented(text, source="the text")
            if isinstance(arguments, str):  # some servers encode them twice
                arguments = loads_commented(arguments.strip() or "{}", source="the text")
        except JsonError as error:
            message = f"the arguments of {name} are not a JSON object: {error}"
            return syntax_error(message, _tool=name, _id=piece.id, **_unwritten_path(text))
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            return syntax_error(f"the arguments of {name} must be a JSON object", _tool=name, _id=piece.id)
        return {"_tool": name, **{key: value for key, value in arguments.items() if key != "_tool"}, "_id": piece.id}

    def close(self, finish_reason: str | None = None) -> Solution:
        cut = finish_reason == "length"
        self._known = self.output_text()
        self._closed(all=not cut)
        text = without_thoughts("".join(self._text))
        problem = None
        if cut:
            message = "the answer was cut off at the model's length limit; make fewer calls at a time"
            problem = CallError("cut_off", message)
        elif not self._given and not text:
            problem = CallError("empty_answer", "the answer was empty; call a function, or answer in text")
        elif not self._given and (mark := call_as_text(text)) is not None:
            message = f"your call arrived as text ({mark} …) and was not run: call functions by the interface for it"
            problem = CallError("call_as_text", message)
        beside = [piece.beside for piece in self._pieces[: len(self._given)]]
        return Solution(self._given, problem=problem, text=text, beside=beside, anew=self._prose.anew)


def _unwritten_path(arguments: str) -> JsonObject:
    """Return the output paths of a call that cannot be parsed: no reader may see an older value there (R5.1)."""
    found = _OUTPUT_PATH.search(arguments)
    try:
        return {} if found is None else {"_outputPath": loads(found.group(1), source="it")}
    except JsonError:
        return {}


HOW_TO_CALL: Final = """\
Make all calls that you can at once: they run in parallel.
- "_outputPath": "†state.x" keeps a result. Never copy it: any argument, also of the same answer, may be "†state.x.field" or \
"†input.y", or text with {†state.x}.
- "a || b": the first that exists; "a && b": waits for both, is b. "_outputPath": "†state.ok || †state.error": failure writes the last.
- "_outputMethod": merge, assign, push or concat adds to a value.
- "_after": ["†state.a", "ended †state.b"]: order without a value, once a has succeeded and b has ended, however.
An answer without calls ends the task; it may hold {†state.x}."""

_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME: Final = 64


class ToolsDialect:
    """The dialect `tools`: see the module."""

    how: Final = HOW_TO_CALL
    control: Final = CONTROL
    control_named: Final = ""  # its schema allows control only if the prompt teaches it
    text_answers: Final = True
    keeps_turns: Final = True

    def only_output(self, ask: DialectRequest) -> str:
        return "Answer in plain text" if ask.output in (True, {}) else 'Answer with one JSON object {"output": …}'

    def tools_text(self, ask: DialectRequest) -> str:
        free = ask.output in (True, {}, {"type": "string"})
        schema = "" if free else f"The answer is to fit this schema: {dumps(ask.output)}"
        return schema if ask.tools else f"There are no functions to call. {schema}".strip()

    def plan(self, calls: list[JsonObject], ask: DialectRequest) -> str:
        return plan_text(calls)

    def results(self, results: JsonObject, ask: DialectRequest) -> str:
        return dumps(results)

    def parameters(self, ask: DialectRequest) -> JsonObject:
        """Return `tools`, or the output's format if only an output is allowed."""
        if ask.final and ask.output not in (True, {}):
            schema = {"name": "answer", "schema": compose({}, ask.output, final=True)}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        names = written_names(function_names(ask.tools))
        functions = [self._function(names[name], tool, ask) for name, tool in ask.tools.items() if not ask.final]
        return {"tools": functions} if functions else {}

    @staticmethod
    def _function(name: str, tool: Tool, ask: DialectRequest) -> JsonObject:
        function = {
            "name": name,
            "description": " ".join(tool_notes(tool, LOOPS))[:1024],
            "parameters": function_schema(tool, ask.instances, control=ask.control, untaught=ask.untaught),
        }
        return {"type": "function", "function": function}

    def vocabulary(self, tools: Mapping[str, Tool], kinds: list[str]) -> ReaderVocabulary:
        return ReaderVocabulary(names={name: tool for name, tool in function_names(tools).items() if name != tool})

    def reader(self, vocabulary: ReaderVocabulary) -> ToolsReader:
        return ToolsReader(vocabulary.names, vocabulary.said)


def function_names(tools: Iterable[str]) -> dict[str, str]:
    """Return tools by their function names: letters, digits, `_` and `-`, at most 64 characters."""
    names: dict[str, str] = {}
    for tool in tools:
        plain = base = _NAME.sub("_", tool)[:_LONGEST_NAME]
        number = 2
        while plain in names:
            plain, number = f"{base[: _LONGEST_NAME - 4]}_{number}", number + 1
        names[plain] = tool
    return names


def turn_messages(turn: JsonObject, names: Mapping[str, str], server: str = "") -> list[JsonObject]:
    """Return one answer of the model, and the results of its calls, as chat messages for a `server`.

    `turn` is `{"type": "turn", "text", "calls": [{"id", "tool", "arguments", "result"}]}`; `names` maps tools to their
    written names. The extras `beside` turn and calls go back only to the server that sent them.
    """
    own = turn.get("server") == server
    answer: JsonObject = {"role": "assistant", "content": turn["text"] or None}
    if turn["calls"]:
        answer["tool_calls"] = [_call_as_text(call, names, own=own) for call in turn["calls"]]
        answer |= turn["beside"] if own else {}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": call["result"]} for call in turn["calls"]]
    return [answer, *results]


def _call_as_text(call: JsonObject, names: Mapping[str, str], *, own: bool) -> JsonObject:
    name = names.get(call["tool"], _NAME.sub("_", call["tool"])[:_LONGEST_NAME])
    function = {"name": name, "arguments": dumps(call["arguments"])}
    beside: JsonObject = call.get("beside", {}) if own else {}
    return {**beside, "id": call["id"], "type": "function", "function": {**beside.get("function", {}), **function}}
