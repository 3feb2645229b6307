"""The parts that the dialects share: a reader's result, prompts, scanning of JSON, and wrappers of answers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from perdure.errors import CallError
from perdure.tools.tool import Tool
from perdure.values.json import MAX_DEPTH, Json, JsonObject, dumps
from perdure.values.templates import TextForm


@dataclass(frozen=True, slots=True)
class Solution:
    """The content of one answer. `calls` are unvalidated; `problem` is set if the answer was not a Solution, and is
    reported to the model."""

    calls: list[Json] = field(default_factory=list)
    output: Json = None
    problem: CallError | None = None
    text: str | None = None
    """The answer's text without thoughts, in a dialect in which text is an answer. `None`: the answer as it came."""
    beside: list[JsonObject] = field(default_factory=list)
    """The server's extras of each native call; `{}` for none."""
    anew: bool = False
    """Whether the text during the stream was a thought, so that the answer's text differs."""


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of a native tool call as a server streams it; a key that it left out is `None`."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | None = None
    beside: JsonObject | None = None
    """Its keys outside the protocol."""


class SolutionStreamReader(Protocol):
    """A reader of an answer in pieces. It returns each call as soon as the call closes, and never raises (R6.3).

    The results of `push` and `push_tool` are the beginning of the closed Solution's `calls`, in the same order.
    """

    def push(self, text: str) -> list[Json]:
        """Return the calls that closed with this piece of text."""
        ...

    def push_tool(self, delta: ToolDelta) -> list[Json]:
        """Return the calls that closed with this piece of a native tool call."""
        ...

    def output_text(self) -> str:
        """Return the known text of the output beyond earlier results, for watchers: see
        `perdure.models.dialects.output_text`."""
        ...

    @property
    def text_form(self) -> TextForm:
        """Form of the text that `output_text` has returned."""
        ...

    def thought(self) -> str:
        """Return the thoughts in the text, beyond earlier results."""
        ...

    def close(self, finish_reason: str | None = None) -> Solution:
        """Return the Solution of the whole answer."""
        ...


def syntax_error(message: str, **more: Json) -> Json:
    """Return a call in place of one that cannot be parsed: a structural error with the problem (R6.6)."""
    return {"_syntax": message, **more}


LOOPS: Final = (
    'Another agent. With "_each": "†state.list" it runs once per item and has †input.item and †input.index ("_parallel" at a '
    'time, default 8); the result is the array of its outputs. With "_until": "†output.done" it is repeated until that is true '
    '("_max" times at most, default 20), and has its last output as †state.previous.'
)

CONTROL: Final = """\
- Compute with {"_expr": "…"}, a Python expression, wherever a value stands: {"_expr": "[h.name for h in state.hosts if h.cpu > 90]"}. \
It has operators, comparisons, comprehensions, f-strings and len sum min max sorted any all round str int float.
- "_if": "len(state.hosts) > 3" makes a call only if that holds; what reads it is skipped otherwise.
- "_each": "†state.hosts", or {"_expr": "…"}, makes a call for each item, which is †item in its parameters and item in expressions (its \
place is †index); eight at a time, or "_parallel". Its result is the array of theirs. "_until": "output.done" makes it again until that holds."""
"""The prompt for formulas, conditions and loops in JSON (R16.1 to R16.3)."""


@dataclass(frozen=True)
class DialectRequest:
    """One Request as a dialect needs it: the tools that may be called, and the output's schema."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    taught: Mapping[str, Tool] | None = None
    """The tools that the prompt lists, if they differ from the callable ones: the same for all Requests of a run, for
    prompt caches (R10.19)."""
    output: JsonObject | bool = True
    """JSON Schema."""
    final: bool = False
    """Whether only an output is allowed: no calls."""
    max_calls: int | None = None
    parallel: int | None = None
    """The number of calls that run at once; `None`: no limit."""
    instances: Sequence[str] = ()
    kinds: Sequence[str] = ()
    """The kinds of data that references can name, beside `state`."""
    control: bool = False
    """Whether the prompt teaches formulas and conditions (R16)."""
    names_control: bool = False
    """Whether the prompt only names formulas and conditions."""
    untaught: frozenset[str] = frozenset()
    """Meta-properties for which the run has no use: neither the prompt nor a schema has them."""
    server: str = ""
    """The server that gets the Request; see `perdure.models.provider_extras`."""

    @property
    def known(self) -> Mapping[str, Tool]:
        """The tools that the prompt lists."""
        return self.tools if self.taught is None else self.taught


def taught_lines(text: str, untaught: Collection[str]) -> str:
    """Return a dialect's instructions without the lines about meta-properties for which the run has no use."""
    return "\n".join(line for line in text.split("\n") if not any(name in line for name in untaught))


def written_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return tool → its written name, from a map of written name → tool."""
    return {tool: name for name, tool in names.items()}


def plan_text(calls: Sequence[JsonObject]) -> str:
    """Return a plan message's calls as text, one JSON object a line."""
    return "\n".join(dumps(call) for call in calls)


def tools_text(
    tools: Mapping[str, Tool], output_schema: Json, names: Mapping[str, str] = MappingProxyType({}), loops: str = LOOPS
) -> str:
    """Return the prompt's text about each tool: a signature, and notes below it; and the output's schema.

    `names`: the tools' names in the dialect, where they differ. `loops`: how the dialect writes the loop of a delegate.
    """
    lines = ["Tools:"] if tools else ["There are no tools."]
    lines += [
        "\n  ".join(
            [
                f"- {tool_signature(names.get(tool.name, tool.name), tool)}",
                *tool_notes(tool, loops),
                *tool_details(tool),
            ]
        )
        for tool in tools.values()
    ]
    lines.append(f"Output: {schema_text(output_schema)}")
    return "\n".join(lines)


def tool_notes(tool: Tool, loops: str = LOOPS) -> list[str]:
    """Return the notes on a tool beside its parameters."""
    notes = []
    if tool.description and tool.description != tool.name:
        notes.append(tool.description.strip())
    if tool.output_path:
        notes.append(f"Always writes to {tool.output_path}.")
    if tool.exclusive_group is not None:
        notes.append("Its calls run one at a time.")
    if tool.delegate is not None:
        notes.append(loops)
    if tool.scope_choice is not None:
        notes.append(f"_scopes: a list of what of this context it is given, from {', '.join(tool.scope_choice)}.")
    if tool.latent:
        schema = "" if tool.output is None else f", which must fit {dumps(tool.output)}"
        notes.append(f"It has no code: write its result yourself as _output{schema}.")
    elif tool.output is not None:
        notes.append(f"Returns {schema_text(tool.output)}.")
    return notes


def tool_signature(name: str, tool: Tool) -> str:
    """Return a tool's name and the type of each parameter; `?` follows a parameter that may be left out."""
    required = tool.parameters.get("required", [])
    parameters = [
        f"{key}{'' if key in required else '?'}: {_kind(schema)}"
        for key, schema in tool.parameters.get("properties", {}).items()
    ]
    return f"{name}({', '.join(parameters)})"


def _kind(schema: Json) -> str:
    """Return a parameter's type as one or two words, or its schema."""
    if not isinstance(schema, dict):
        return "any"
    keywords = {key: value for key, value in schema.items() if key not in ("description", "title", "default")}
    kind, options = keywords.get("type"), keywords.get("enum")
    if set(keywords) == {"type"} and isinstance(kind, str):
        return kind
    if set(keywords) <= {"type", "enum"} and isinstance(options, list):
        return "|".join(map(dumps, options))
    return dumps(keywords) if keywords else "any"


def schema_text(schema: Json) -> str:
    """Return a schema as the prompt shows it: only the type if the schema has nothing else."""
    if isinstance(schema, dict) and schema.keys() == {"type"} and isinstance(kind := schema["type"], str):
        return kind
    return "any" if schema in (True, {}) else dumps(schema)


def tool_details(tool: Tool) -> list[str]:
    """Return the details that a signature lacks: the parameters' descriptions, and constraints beside their types."""
    properties = tool.parameters.get("properties", {})
    details = [
        f"{name}: {schema['description']}"
        for name, schema in properties.items()
        if isinstance(schema, dict) and schema.get("description")
    ]
    shown = ("type", "properties", "required", "additionalProperties", "title")
    more = {key: value for key, value in tool.parameters.items() if key not in shown and value not in ({}, [])}
    return [*details, *([dumps(more)] if more else [])]


_OUTSIDE: Final = re.compile(r'["{}\[\],]')
_INSIDE: Final = re.compile(r'["\\]')
_LONGEST_KEY: Final = 8
"""Characters of a key that are compared: enough to tell `calls` from others."""
_CALLS_DEPTH: Final = 2
"""The depth between the elements of `calls`: inside the document and the array."""


class Scanner:
    """A scanner for strings and brackets. `depth` and `quoted` are those after the last mark."""

    __slots__ = ("_escaped", "depth", "quoted")

    def __init__(self) -> None:
        self.depth = 0
        self.quoted = False
        self._escaped = False

    def marks(self, text: str, at: int = 0) -> Iterator[tuple[int, str]]:
        """Yield position and character of each quote, and of each bracket and comma outside of strings, and update the
        state with each."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_INSIDE if self.quoted else _OUTSIDE).search(text, at)
            if found is None:
                return
            mark, at = found[0], found.end()
            if mark == "\\":
                self._escaped = True
                continue
            if mark == '"':
                self.quoted = not self.quoted
            elif mark in "{[":
                self.depth += 1
            elif mark in "}]":
                self.depth -= 1
            yield found.start(), mark


_SIGN: Final = re.compile(r'["/]')
_NEXT: Final = {"/": "//", "*": "/*"}
_END: Final = {"//": "\n", "/*": "*/"}


class CommentFilter:
    """A filter that replaces `//` and `/* */` comments in JSON pieces by blanks; strings stay unchanged.

    `held` is a possible beginning of a comment mark: the next piece decides.
    """

    __slots__ = ("_state", "held")

    def __init__(self) -> None:
        self.held = ""
        self._state = ""  # or `"` in a text, `//` or `/*` in a comment

    def push(self, text: str) -> str:
        """Return the JSON that is known with this piece."""
        text, self.held = self.held + text, ""
        plain: list[str] = []
        at = 0
        while at < len(text):
            if self._state in _END:
                at = self._comment(text, at)
                continue
            found = (_INSIDE if self._state else _SIGN).search(text, at)
            if found is None:
                plain.append(text[at:])
                break
            begin, sign = found.start(), found[0]
            if sign != '"' and begin + 1 == len(text):
                plain.append(text[at:begin])
                self.held = sign
                break
            end = begin + (2 if sign == "\\" else 1)
            if sign == "/" and text[begin + 1] in _NEXT:
                plain.append(text[at:begin] + " ")
                self._state, at = _NEXT[text[begin + 1]], begin + 2
                continue
            if sign == '"':
                self._state = "" if self._state else '"'
            plain.append(text[at:end])
            at = end
        return "".join(plain)

    def _comment(self, text: str, at: int) -> int:
        """Return the end of the comment in the piece; a line's end is not part of it."""
        sign = _END[self._state]
        end = text.find(sign, at)
        if end < 0:
            self.held = "*" if self._state == "/*" and text.endswith("*") else ""
            return len(text)
        self._state = ""
        return end + (len(sign) if sign == "*/" else 0)


class CallScanner:
    """A scanner of a document `{"calls": [...], "output": …}` in pieces. It returns the text of each element of `calls`
    as soon as it closes, and the text of `output` as it arrives.

    It only looks ahead: if the text is not such a document, or is nested too deeply, it stops.
    """

    def __init__(self) -> None:
        self._scanner = Scanner()
        self._item: list[str] = []
        """The text of the incomplete element, since the last element or comma."""
        self._closed = False
        """Whether an element was returned, so that a comma must follow."""
        self._inside = False
        self._key = ""
        self._outputs = 0
        """The number of members called `output` so far; only the first is read."""
        self._writing = False
        """Whether the current text is the output's."""
        self.output: list[str] = []
        """Pieces of the output, with the colon before it; the reader removes them."""
        self.output_closed = False
        self.stopped = False

    def push(self, text: str) -> list[str]:
        """Return the elements that close with this piece."""
        found: list[str] = []
        start = 0  # start of the element's, or the key's, part of this piece
        if not self.stopped:
            for at, mark in self._scanner.marks(text):
                if self._inside:
                    start = self._element(text, start, at, mark, found)
                else:
                    start = self._outside(text, start, at, mark)
                if self.stopped:
                    break
        if not self.stopped:
            self._keep(text[start:])
        return found

    def _keep(self, text: str) -> None:
        if self._inside:
            self._item.append(text)
        elif self._writing:
            self.output.append(text)
        elif self._scanner.quoted:
            self._key = (self._key + text)[:_LONGEST_KEY]

    def _outside(self, text: str, start: int, at: int, mark: str) -> int:
        scanner = self._scanner
        if self._writing:
            if not (mark == "," and scanner.depth == 1) and scanner.depth > 0:
                self.stopped = scanner.depth > MAX_DEPTH
                return start
            self.output.append(text[start:at])
            self._writing, self.output_closed = False, True
        elif mark == '"' and scanner.depth == 1:
            self._key = "" if scanner.quoted else (self._key + text[start:at])[:_LONGEST_KEY]
            if self._key == "output" and not scanner.quoted:
                self._outputs += 1
                self._writing = self._outputs == 1
        elif mark == "[" and scanner.depth == _CALLS_DEPTH and self._key == "calls":
            self._inside, self._closed, self._item = True, False, []
        self.stopped = scanner.depth <= 0 or scanner.depth > MAX_DEPTH
        return at + 1

    def _element(self, text: str, start: int, at: int, mark: str, found: list[str]) -> int:
        depth = self._scanner.depth
        if depth > MAX_DEPTH + _CALLS_DEPTH or (self._closed and mark in '{["'):
            self.stopped = True
        elif mark in "}]" and depth == _CALLS_DEPTH:
            found.append(self._take(text[start : at + 1]))
            self._closed = True
            return at + 1
        elif (mark == "," and depth == _CALLS_DEPTH) or depth < _CALLS_DEPTH:
            rest = self._take(text[start:at]).strip()
            if rest and not self._closed:
                found.append(rest)
            # Two commas without an element, or text after an element, are not JSON.
            self.stopped = bool(rest) == self._closed and (mark == "," or bool(rest))
            self._inside, self._closed = mark == ",", False
            return at + 1
        return start

    def _take(self, last: str) -> str:
        self._item.append(last)
        whole = "".join(self._item)
        self._item = []
        return whole


_TEXT: Final = r'"(?:[^"\\]|\\.)*\\?(?:"|\Z)'
_BRACKETS: Final = re.compile(rf"{_TEXT}|[{{}}\[\]]", re.DOTALL)
_COMMENTED: Final = re.compile(rf"{_TEXT}|//[^\n]*|/\*.*?(?:\*/|\Z)|[{{}}\[\]]", re.DOTALL)


def end_of_object(text: str, start: int, *, comments: bool = False) -> int | None:
    """Return the end of the object that begins at `start`, by its brackets alone; with `comments`, only brackets
    outside comments count. `None`: it never ends."""
    depth = 0
    for found in (_COMMENTED if comments else _BRACKETS).finditer(text, start):
        if found[0] in ("{", "["):
            depth += 1
        elif found[0] in ("}", "]"):
            depth -= 1
            if depth <= 0:
                return found.end()
    return None


_BLANK: Final = "\ufeff \t\r\n"
_BEGINS: Final = ("<think>", "<thinking>")
_ENDS: Final = re.compile(r"</think(?:ing)?>")
_LONGEST_END: Final = len("</thinking>")
_FENCE: Final = re.compile(r"```\w*\s*")
_LONGEST_FENCE: Final = 32

FINAL_CHANNEL: Final = r"<\|channel\|>\s*final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
END_OF_THOUGHT: Final = re.compile(rf"(?:^|\n)[ \t]*</think(?:ing)?>|</think(?:ing)?>[ \t]*(?=\n|$)|{FINAL_CHANNEL}")
"""The end of a thought whose beginning was in the prompt, or was lost. A tag inside a sentence does not count."""

_LAST_MARK: Final = re.compile(r"(?:<[|｜][\w▁]{1,40}[|｜]>|</s>)$")
_BEGUN_MARK: Final = re.compile(r"<(?:[|｜][\w▁]{0,40}[|｜]?|/\w{0,8})?$")
_LONGEST_MARK: Final = 44

_CALL_AS_TEXT: Final = re.compile(
    r"^[ \t]*(?:<tool_calls?>|<\|?tool_calls?(?:_begin)?\|?>|<function(?:=|_calls?>|>)|<invoke\b|\[TOOL_CALLS\]|<\|python_tag\|>"
    r"|<[|｜]tool▁calls?▁begin[|｜]>|<\|channel\|>\s*(?:commentary|analysis)\s+to=|```tool_(?:code|call)\b)",
    re.MULTILINE,
)


def last_marks_removed(text: str) -> str:
    """Return the text without end marks, such as `<|im_end|>`, that a server should have removed."""
    end = whole = _end(text, len(text))
    while found := _LAST_MARK.search(text[max(0, end - _LONGEST_MARK) : end]):
        end = _end(text, end - len(found[0]))
    return text[:end] if end < whole else text


def _end(text: str, end: int) -> int:
    """Return the end of the text before `end`, without its last blanks."""
    while end and text[end - 1].isspace():
        end -= 1
    return end


def settled_length(text: str) -> int:
    """Return the number of characters of a streamed text that are final: trailing blanks and marks may be its end, or
    begin one."""
    end = _end(text, len(text))
    begun = _BEGUN_MARK.search(text[max(0, end - _LONGEST_MARK) : end])
    end -= len(begun[0]) if begun else 0
    while found := _LAST_MARK.search(text[max(0, end - _LONGEST_MARK) : (end := _end(text, end))]):
        end -= len(found[0])
    return end


def without_thoughts(text: str) -> str:
    """Return a finished answer without the thoughts before it and the marks around it."""
    text = text.lstrip(_BLANK)
    while text.startswith(_BEGINS):
        end = _ENDS.search(text)
        text = "" if end is None else text[end.end() :].lstrip(_BLANK)
    if not text.startswith("{"):
        ends = [found.end() for found in END_OF_THOUGHT.finditer(text)]
        text = text[ends[-1] :] if ends else text
    return last_marks_removed(text).strip()


def lost_thought(text: str) -> str:
    """Return the text before the end of a thought whose beginning was in the prompt, or was lost; `""`: there is no
    such thought."""
    text = text.lstrip(_BLANK)
    if text.startswith(("{", *_BEGINS)) or not any(sign in text for sign in ("</think", "<|channel|>")):
        return ""
    starts = [found.start() for found in END_OF_THOUGHT.finditer(text)]
    return text[: starts[-1]].rstrip() if starts else ""


def fence_removed(text: str) -> str:
    """Return the text without a code fence at its beginning."""
    fence = _FENCE.match(text)
    return text if fence is None else text[fence.end() :]


def call_as_text(text: str) -> str | None:
    """Return the mark of a function call that a server let through as text; `None` if there is none."""
    found = _CALL_AS_TEXT.search(text)
    return None if found is None else found[0].strip()


class ThoughtFilter:
    """A filter that removes the thoughts in `<think>` before an answer, with the blanks around them."""

    def __init__(self) -> None:
        self._thought: list[str] = []
        self._state = "begin"  # or "thought", then "answer"
        self._head = ""

    def new(self) -> str:
        """Return the thoughts since the last call of this method."""
        text, self._thought = "".join(self._thought), []
        return text

    def push(self, text: str) -> str:
        if self._state == "answer":
            return text
        head, self._head = self._head + text, ""
        while True:
            if self._state == "thought":
                end = _ENDS.search(head)
                if end is None:
                    kept = max(0, len(head) - _LONGEST_END + 1)
                    self._thought.append(head[:kept])
                    self._head = head[kept:]
                    return ""
                self._thought.append(head[: end.start()])
                self._state, head = "begin", head[end.end() :]
            head = head.lstrip(_BLANK)
            begins = next((mark for mark in _BEGINS if head.startswith(mark)), None)
            if begins is not None:
                self._state, head = "thought", head[len(begins) :]
            elif any(mark.startswith(head) for mark in _BEGINS):
                self._head = head
                return ""
            else:
                self._state = "answer"
                return head


class DocumentFilter:
    """A filter that returns the JSON document of an answer in pieces, from its `{` on, if the answer is one.

    Thoughts in `<think>`, a code fence and a byte order mark before it are removed. An answer that begins with other
    text may be a thought whose beginning was lost: none of it is returned, and its end decides.
    """

    def __init__(self) -> None:
        self.thoughts = ThoughtFilter()
        self._state = "begin"  # then "document" or "prose"
        self._head = ""

    def push(self, text: str) -> str:
        text = self.thoughts.push(text)
        if self._state == "document":
            return text
        if self._state == "prose" or not text:
            return ""
        head = self._head + text
        if fence := _FENCE.match(head):
            rest = head[fence.end() :]
            if not rest and len(head) < _LONGEST_FENCE:
                self._head = head
                return ""
            head = rest
        elif "```".startswith(head):
            self._head = head
            return ""
        self._state, self._head = "document" if head.startswith("{") else "prose", ""
        return head if self._state == "document" else ""
