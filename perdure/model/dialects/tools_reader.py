"""Reading native function calls while they stream, however a server cuts, encodes or names them (R9.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from perdure.errors import CallError, JsonError
from perdure.model.dialects.answers import Solution, ToolDelta, syntax_error
from perdure.model.dialects.saying.prose import ProseText
from perdure.model.dialects.scanning import CommentFilter, Scanner
from perdure.model.dialects.thoughts import call_as_text, without_thoughts
from perdure.values.jsons import Json, JsonObject, loads, loads_commented

_AROUND_NAME: Final = re.compile(r"^\s*(?:functions?[.:/])?|:\d+\s*$|\s*<[|｜].*$|\s+$", re.DOTALL)
"""What servers leave around a function's name: a namespace, a number, the mark of a channel."""

_OUTPUT_PATH: Final = re.compile(r'"_outputPath"\s*:\s*("(?:[^"\\]|\\.)*")')


@dataclass(slots=True)
class _Piece:
    """One native call as far as it has come."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    comments: CommentFilter = field(default_factory=CommentFilter)
    scanner: Scanner = field(default_factory=Scanner)
    closed: bool = False
    """Whether the object of the arguments has closed."""
    empty: bool = False
    """Whether it closed as `{}`: some servers begin with that and send the arguments behind it."""
    beside: JsonObject = field(default_factory=dict)

    def push(self, text: str) -> None:
        """Take in a piece of the arguments; they are closed with the brace that closes their object."""
        self._push(self.comments.push(text))

    def _push(self, text: str) -> None:
        if self.empty and text.strip():
            self.arguments, self.scanner, self.closed, self.empty = [], Scanner(), False, False
        self.arguments.append(text)
        for at, mark in self.scanner.marks(text):
            if mark in "}]" and self.scanner.depth == 0 and not self.closed:
                self.closed = True
                self.empty = ("".join(self.arguments[:-1]) + text[: at + 1]).strip() == "{}"
                if self.empty and (rest := text[at + 1 :].strip()):
                    self._push(rest)
                    return


class ToolsReader:
    """Gives each native call once its arguments have closed."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._pieces: list[_Piece] = []
        self._by_index: dict[int, _Piece] = {}
        self._given: list[Json] = []
        self._text: list[str] = []
        self._said = 0
        """Pieces of the text that were looked at for `said`."""
        self._prose = ProseText()
        self._known = ""
        """What is known of the text and was not asked for."""

    def push(self, text: str) -> list[Json]:
        self._text.append(text)
        return []

    def said(self) -> str:
        new, self._said = self._text[self._said :], len(self._text)
        known, self._known = self._known + self._prose.push("".join(new)), ""
        return known

    def thought(self) -> str:
        self._known = self.said()
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
        """The call that a piece belongs to. Some servers leave out the index or the id, or give every call index 0."""
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
        """The calls that follow those already given and are closed; with `all` also what never closed."""
        new: list[Json] = []
        for piece in self._pieces[len(self._given) :]:
            if not (all or (piece.closed and (not piece.empty or piece is not self._pieces[-1]))):
                break
            new.append(self._read(piece))
            self._given.append(new[-1])
        return new

    def _read(self, piece: _Piece) -> Json:
        written = _AROUND_NAME.sub("", piece.name)
        name = self._names.get(piece.name) or self._names.get(written, written)
        text = ("".join(piece.arguments) + piece.comments.held).strip() or "{}"
        try:
            arguments = loads_commented(text, source="they")
            if isinstance(arguments, str):  # some servers encode them twice
                arguments = loads_commented(arguments.strip() or "{}", source="they")
        except JsonError as error:
            message = f"the arguments of {name} are no JSON object: {error}"
            return syntax_error(message, _tool=name, _id=piece.id, **_claimed(text))
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            return syntax_error(f"the arguments of {name} must be a JSON object", _tool=name, _id=piece.id)
        return {"_tool": name, **{key: value for key, value in arguments.items() if key != "_tool"}, "_id": piece.id}

    def close(self, finish_reason: str | None = None) -> Solution:
        cut = finish_reason == "length"
        self._known = self.said()
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


def _claimed(arguments: str) -> JsonObject:
    """Where a call that cannot be read would have written: nobody may read there what was there before it (R5.1)."""
    found = _OUTPUT_PATH.search(arguments)
    try:
        return {} if found is None else {"_outputPath": loads(found.group(1), source="it")}
    except JsonError:
        return {}
