"""The text of an output while the model writes it, in every dialect.

The pieces add up to the beginning of the output's final text, and mostly to all of it. The value of a reference is only
known later, so the pieces end before the first one.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Final

from perdure.errors import JsonError
from perdure.models.dialects.common import FINAL_CHANNEL, CommentFilter, ThoughtFilter, settled_length
from perdure.models.requests import OutputForm
from perdure.values.formulas import parse_expression
from perdure.values.json import MAX_DEPTH, Json, JsonObject, dumps, loads
from perdure.values.references import DAGGER
from perdure.values.templates import AS_JSON, EXPR, PLAIN, REMARK, TextForm


def text_of(output: Json) -> str:
    """Return an output as text: a text unchanged, an object with one text as that text, else compact JSON; `None` is
    `""` (R10.16)."""
    if isinstance(output, dict) and len(output) == 1:
        (only,) = output.values()
        output = only if isinstance(only, str) else output
    return "" if output is None else output if isinstance(output, str) else dumps(output)


def output_form(schema: JsonObject | bool) -> OutputForm:
    """Return the form of an output's text, as far as its schema determines it."""
    if not isinstance(schema, dict) or not isinstance(members := schema.get("properties"), dict):
        return OutputForm()
    required = schema.get("required")
    several = isinstance(required, list) and len(set(map(str, required))) > 1
    closed = schema.get("additionalProperties", False) is False
    wraps = "output" not in members and (closed or bool(required))
    if several or len(members) != 1 or not closed:
        return OutputForm(several=several, wraps=wraps)
    ((name, member),) = members.items()
    is_text = isinstance(member, dict) and member.get("type") == "string"
    return OutputForm(member=name if is_text else None, wraps=wraps)


_LOOKED_AT: Final = re.compile(r"†|\{[\s(]*(?:†|\Z)")


class PlainText:
    """The text of a plain answer in pieces, up to its first reference; `††` stands for one dagger."""

    def __init__(self) -> None:
        self.stopped = False
        """Whether a reference was found: the text after it is unknown."""
        self._rest = ""
        """The part that cannot be returned yet: it may open a reference."""
        self._begun = False

    def push(self, text: str, *, closed: bool = False) -> str:
        """Return the text known now; with `closed`, all that is left."""
        if self.stopped:
            return ""
        text, self._rest = self._rest + text, ""
        if not self._begun and not self._begin(text, closed):
            return ""
        known: list[str] = []
        at = 0
        while (found := _LOOKED_AT.search(text, at)) is not None:
            start, end = found.span()
            if end == len(text) and not closed:
                self._rest = text[start:]
                break
            follows = text[end : end + 1] == DAGGER
            if start + 1 == end and text[start] == DAGGER:  # `†` before no name, and `††`, are a dagger
                known.append(text[at:end])
                at = end + follows
            elif text[end - 1] == DAGGER and not follows:
                self.stopped = True
                break
            else:
                known.append(text[at : end - follows])
                at = end - follows
        known.append(text[at : found.start() if found else len(text)])
        return "".join(known)

    def _begin(self, text: str, closed: bool) -> bool:
        """Whether the text has begun, and is not a reference as a whole."""
        lead = text.lstrip(" \t\r\n(")
        if not closed and lead in ("", DAGGER):
            self._rest = text
            return False
        self._begun = True
        self.stopped = lead.startswith(DAGGER) and not lead.startswith(DAGGER * 2)
        return not self.stopped


_CHARACTERS: Final = re.compile(
    r'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    r"|(?![dD][89a-fA-F])[0-9a-fA-F]{4})))*"
)
"""The part of a string with complete characters: one beyond the 16-bit plane may be two escapes."""
_LONGEST_ESCAPE: Final = len(r"\ud83d\ude00")
_TOKEN: Final = re.compile(r"[ \t\r\n]*(?:([\"{}\[\],:])|([-+.\w]+))")


class OutputText:
    """The text of one member of an object, whose JSON comes in pieces from the colon on.

    It stops if the JSON is invalid, or at a part that is replaced later: a reference, a formula. It returns no part of
    an object that may still have one text as its only member.
    """

    def __init__(self, form: OutputForm) -> None:
        self.stopped = False
        """Whether no more text follows."""
        self._expected = form
        self._rest = ""
        """A token that has not ended."""
        self._begun = False
        """Whether the colon was read."""
        self._out: list[str] = []
        self._shape = "json"
        """`open`: the first member of an object is being read; `text`: that is its only member; else `json`."""
        self._waiting: list[str] = []
        """The object's text as JSON, and as its only text, while both are possible."""
        self._only: list[str] = []
        self._open: list[str] = []
        """Open brackets."""
        self._key_next = False
        self._held = ""
        """A brace that may begin a formula."""
        self._string: str = ""  # "", or the kind of the string that is being read: "text", "value", "key"
        self._plain = PlainText()
        self._key: list[str] = []
        """The newest key, in pieces."""
        self._quoted = False
        """Whether the opening quote of a value was returned."""
        self.form = PLAIN
        """Form of the returned text, once there is any."""

    def push(self, raw: str, *, closed: bool = False) -> str:
        """Return the text known now; `closed`: the value is complete."""
        text, self._rest = self._rest + raw, ""
        at = 0
        while at < len(text) and not self.stopped:
            before = at
            at = self._characters(text, at) if self._string else self._token(text, at, closed)
            if at == before:
                break
        if not self.stopped:
            self._rest = text[at:]
        known, self._out = "".join(self._out), []
        return known

    def _put(self, json: str) -> None:
        if self._shape == "json":
            self._out.append(json)
        elif self._shape == "open":
            self._waiting.append(json)

    def _decide(self, shape: str) -> None:
        """Set the object's shape, and release the waiting text."""
        if self._shape == "open":
            self._out += self._waiting if shape == "json" else self._only
            self._shape = shape
            if shape == "text":
                self.form = TextForm(kind="member", member="".join(self._key))

    def _characters(self, text: str, at: int) -> int:
        """Read a part of a string, and return the position after it."""
        found = _CHARACTERS.match(text, at)
        assert found is not None
        end = found.end()
        closed = text[end : end + 1] == '"'
        piece = json.loads(f'"{found[0]}"') if found[0] else ""
        if self._string == "key":
            self._key.append(piece)
            if closed:
                self._end_key()
        else:
            self._add_piece(self._plain.push(piece, closed=closed), closed)
        if closed:
            self.stopped |= self._string == "text"
            self._string = ""
            return end + 1
        if end < len(text) and (text[end] != "\\" or len(text) - end >= _LONGEST_ESCAPE):
            self.stopped = True  # no JSON
        return end

    def _add_piece(self, piece: str, closed: bool) -> None:
        reference = self._plain.stopped
        if self._string == "text" or self._shape == "text":
            self._out.append(piece)
        else:
            if not self._quoted and (piece or (closed and not reference)):
                self._quoted = True
                self._put('"')
            self._put(dumps(piece)[1:-1])
            self._only.append(piece if self._shape == "open" else "")
            if closed and not reference:
                self._put('"')
        self.stopped |= reference

    def _end_key(self) -> None:
        key = "".join(self._key)
        if self._held and key == EXPR:
            self.stopped = True
            return
        self._put(f"{self._held}{dumps(key)}")
        if self._held and self._shape == "open" and key == self._expected.member:
            self._decide("text")
        self._held = ""

    def _token(self, text: str, at: int, closed: bool) -> int:
        """Read one token, and return the position after it."""
        found = _TOKEN.match(text, at)
        if found is None:
            self.stopped = bool(text[at:].strip())
            return at
        mark, scalar = found[1], found[2]
        if not self._begun:
            self._begun, self.stopped = True, mark != ":"
        elif scalar:
            if found.end() == len(text) and not closed:
                return at
            self._scalar(scalar)
        elif mark == '"':
            self._string = "key" if self._key_next else "value" if self._open else "text"
            self._key = [] if self._key_next else self._key  # the end of the object still needs the key
            self._plain, self._quoted, self._key_next = PlainText(), False, False
        elif mark in "{[":
            self._begin(mark)
        else:
            self._end(mark)
        return found.end()

    def _begin(self, mark: str) -> None:
        self.form = AS_JSON
        if self._open:
            self._decide("json")
        elif mark == "{" and not self._expected.several:
            self._shape = "open"
        self._put(self._held)
        self._open.append(mark)
        self._key_next = mark == "{"
        self._held = mark if mark == "{" else ""
        if mark == "[":
            self._put(mark)
        self.stopped |= len(self._open) > MAX_DEPTH

    def _end(self, mark: str) -> None:
        """Handle a mark that begins no value."""
        last = len(self._open) <= 1
        if mark != ":" and last:
            self._decide("text" if mark == "}" and not self._held else "json")
            self.stopped |= mark == "," and self._shape == "text"  # one member too many
        self._put(self._held + mark)
        self._held = ""
        if mark in "}]":
            self.stopped |= last
            self._open = self._open[:-1]
        self._key_next = mark == "," and self._open[-1:] == ["{"]

    def _scalar(self, scalar: str) -> None:
        try:
            value = loads(scalar)
        except JsonError:
            self.stopped = True
            return
        self._decide("json")
        self.form = AS_JSON
        if self._open or value is not None:
            self._put(dumps(value))
        self.stopped |= not self._open


_END_OF_THOUGHT: Final = re.compile(rf"</think(?:ing)?>|{FINAL_CHANNEL}")


class ProseText:
    """The text that `without_thoughts` returns for an answer, in pieces, up to its first reference.

    For a JSON document it returns the output's text if the output is known to be an object, else nothing. It returns no
    more after the end of a thought whose beginning was lost, because the earlier pieces were that thought.
    """

    def __init__(self, form: OutputForm | None = None) -> None:
        self.thoughts = ThoughtFilter()
        self._expected = form or OutputForm()
        self._rest = ""
        """The part that may belong to the end: blanks and marks; the whole answer if it begins with a mark."""
        self._begun = False
        self._plain = PlainText()
        self._document: DocumentText | None = None
        self._stopped = self.anew = False
        """`anew`: the returned text was a thought."""

    @property
    def form(self) -> TextForm:
        """Form of the returned text: prose beside an output that is an object does not count."""
        if self._document is not None:
            return self._document.form
        return REMARK if self._expected.member or self._expected.several else PLAIN

    def push(self, text: str) -> str:
        """Return the text known now."""
        text = self._rest + self.thoughts.push(text)
        if not text or self._stopped:
            return ""
        ends = _END_OF_THOUGHT.search(text)
        if ends is not None and self._begun:
            self._stopped = self.anew = True
            return ""
        if self._document is not None:
            return self._document.push(text)
        text = text if self._begun else text[ends.end() if ends else 0 :].lstrip()
        if not self._begun and text.startswith("{"):
            self._begun, self._document = True, DocumentText(self._expected)
            return self._document.push(text)
        end = settled_length(text) if self._begun or ends is not None or not text.startswith("<|") else 0
        self._rest = text[end:]
        self._begun = self._begun or end > 0
        return self._plain.push(text[:end])


_FIRST_KEY: Final = re.compile(r'\s*\{\s*"((?:[^"\\]|\\.)*)"\s*:')
_OUTPUT: Final = "output"


class DocumentText:
    """The text of an output that is a JSON document, in pieces: an object, or `{"output": …}` around it."""

    def __init__(self, form: OutputForm) -> None:
        self._known = bool(form.member or form.several)
        """Whether the output is an object."""
        self._wraps = form.wraps
        self._comments = CommentFilter()
        self._head = ""
        self._output: OutputText | None = None
        self._form = form

    @property
    def form(self) -> TextForm:
        return AS_JSON if self._output is None else self._output.form

    def push(self, text: str) -> str:
        """Return the text known now."""
        if not self._known:
            return ""
        text = self._comments.push(text)
        if self._output is not None:
            return self._output.push(text)
        self._head += text
        found = _FIRST_KEY.match(self._head)
        if found is None:
            return ""
        self._output = OutputText(self._form)
        wrapped = found[1] == _OUTPUT
        if wrapped and not self._wraps and self._form.member != _OUTPUT:
            self._output.stopped = True
            return ""
        within = wrapped and self._wraps
        head, self._head = self._head, ""
        return self._output.push(head[found.end() - 1 :] if within else f":{head}")


_HEAD: Final = re.compile(r"""\s*output\(\s*(?:([A-Za-z_]\w*)\s*=\s*)?(\"\"\"|'''|"|')""")
_ESCAPE: Final = (
    r"\\(?:[\n\\'\"abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|[0-7]{1,2}(?=[^0-7])|N\{[^}\n]*\})"
)
_BODIES: Final = {
    quote: re.compile(
        rf"(?:[^\\{quote[0]}]+|{_ESCAPE}|{quote[0]}{{1,2}}(?=[^{quote[0]}]))*"
        if len(quote) == 3
        else rf"(?:[^\\\n{quote}]+|{_ESCAPE})*"
    )
    for quote in ('"""', "'''", '"', "'")
}
"""The part of a string with complete characters."""


def output_so_far(source: str, form: OutputForm) -> tuple[str, TextForm]:
    """Return the beginning of the output in an unfinished line, and its form; `""` if it is not known yet."""
    head = _HEAD.match(source)
    if head is None:
        return "", PLAIN
    name, quote = head[1], head[2]
    body = _BODIES[quote].match(source, head.end())
    assert body is not None
    try:
        text = ast.literal_eval(parse_expression(f"{quote}{body[0]}{quote}"))
        text.encode()
    except (SyntaxError, ValueError):
        return "", PLAIN
    closed = source.startswith(quote, body.end())
    plain = PlainText()
    known = plain.push(text, closed=closed)
    if name is None or name == form.member:
        return known, PLAIN if name is None else TextForm(kind="member", member=name)
    if not form.several:
        return "", PLAIN
    opened = '"' if known or (closed and not plain.stopped) else ""
    text = f'{{"{name}":{opened}{dumps(known)[1:-1]}' + ('"' if closed and not plain.stopped else "")
    return text, AS_JSON
