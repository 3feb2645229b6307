"""References, expressions of references, output paths, and values found by path.

    expression := conjunction ("||" conjunction)*
    conjunction := atom ("&&" atom)*
    atom := reference | "(" expression ")"
    reference := "†" kind step*
    step := "." name | "." digits | "[" digits "]" | "[" JSON string "]"

Values are found by lookup in parsed trees, never by replacing text in strings: a result that happens to contain a
dagger stays unchanged.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from perdure.errors import ReferenceSyntaxError
from perdure.values.json import Json, path_step

Path: TypeAlias = tuple[str | int, ...]

DAGGER: Final = "†"
MAX_EXPRESSION: Final = 10_000
"""Characters. A longer expression is not reasonable, and parsing must stay bounded."""

MAX_STEPS: Final = 64
"""Steps of a path: JSON can still carry a value of the maximum depth at the end of such a path."""

_NAME = re.compile(r'[^\s.\[\](){}|&†"]+')
_NAMES = re.compile(rf"{_NAME.pattern}(?:\.{_NAME.pattern})*")
_PLAIN = re.compile(rf"{DAGGER}({_NAMES.pattern})")
"""A reference of names alone, as most are."""
_INDEX = re.compile(r"\[(\d{1,9})\]")
_QUOTED = re.compile(r'\["((?:[^"\\]|\\.)*)"\]')


class Missing(Enum):
    """The type of `MISSING`: a path that leads nowhere. `None` is a value that exists (R3.4)."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING


class Reference(NamedTuple):  # a tuple, because plans often look up references in dictionaries
    """A reference `†kind` with a path; a name of digits and an index differ only in writing."""

    kind: str
    path: Path = ()

    def __str__(self) -> str:
        return DAGGER + self.kind + "".join(path_step(part) for part in self.path)


@dataclass(frozen=True, slots=True)
class FirstOf:
    """The expression `a || b`: the first value that exists (R3.3)."""

    items: tuple[Expression, ...]

    def __str__(self) -> str:
        return " || ".join(map(str, self.items))


@dataclass(frozen=True, slots=True)
class AllOf:
    """The expression `a && b`: all must exist; the value is the last's (R3.3)."""

    items: tuple[Expression, ...]

    def __str__(self) -> str:
        return " && ".join(f"({item})" if isinstance(item, FirstOf) else str(item) for item in self.items)


Expression: TypeAlias = Reference | FirstOf | AllOf


def references(expression: Expression) -> Sequence[Reference]:
    """Return every reference of the expression, in the order it is written."""
    if isinstance(expression, Reference):
        return (expression,)
    return [each for item in expression.items for each in references(item)]


def evaluate(expression: Expression, lookup: Callable[[Reference], Json | Missing]) -> Json | Missing:
    """Return the expression's value, or `MISSING` (R3.3, R3.4)."""
    if isinstance(expression, Reference):
        return lookup(expression)
    value: Json | Missing = MISSING
    for item in expression.items:
        value = evaluate(item, lookup)
        found = value is not MISSING
        if found == isinstance(expression, FirstOf):
            break
    return value


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Expression:
    """Parse a whole string. Raises `ReferenceSyntaxError` with the position of the mistake (R3.5)."""
    if len(text) > MAX_EXPRESSION:
        raise ReferenceSyntaxError(f"an expression of {len(text)} characters; at most {MAX_EXPRESSION} are read", 0)
    if (plain := _PLAIN.fullmatch(text)) is not None and text.count(".") <= MAX_STEPS:
        kind, *names = plain[1].split(".")
        return Reference(kind, tuple(names))
    parser = _Parser(text)
    parser.skip()
    expression = parser.either()
    if parser.position < len(text):
        raise parser.error(
            "expected '||', '&&' or the end; to put a value inside text write {†state.x}, to write a † write ††"
        )
    return expression


def parse_scope(text: str) -> Reference:
    """Parse a scope of a delegate: `state.user`, `state["a key"]`, `profile`, with or without the dagger.

    Raises `ReferenceSyntaxError`. An item of a list is no scope: the delegate would have a list with that item alone.
    """
    found = parse_expression(text if text.startswith(DAGGER) else DAGGER + text)
    if not isinstance(found, Reference):
        raise ReferenceSyntaxError(f"{text!r} is not one reference")
    if any(isinstance(part, int) for part in found.path):
        raise ReferenceSyntaxError(f"{text!r} names an item of a list: name the list")
    return found


def reference_at(text: str, position: int) -> Reference | None:
    """Return the reference that begins there, as far as it can be parsed; `None` if there is none."""
    parser = _Parser(text)
    parser.position = position + 1
    try:
        kind = parser.name("a kind")
    except ReferenceSyntaxError:
        return None
    steps: list[str | int] = []
    with suppress(ReferenceSyntaxError):
        steps.extend(parser.steps())
    return Reference(kind, tuple(steps))


class _Parser:
    MAX_PARENTHESES = 50

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0

    def error(self, what: str) -> ReferenceSyntaxError:
        return ReferenceSyntaxError(f"malformed reference {_excerpt(self.text)}: {what}", self.position)

    def skip(self) -> None:
        while self.text[self.position : self.position + 1].isspace():
            self.position += 1

    def take(self, token: str) -> bool:
        if self.text.startswith(token, self.position):
            self.position += len(token)
            self.skip()
            return True
        return False

    def either(self) -> Expression:
        items = [self.both()]
        while self.take("||"):
            items.append(self.both())
        return items[0] if len(items) == 1 else FirstOf(tuple(items))

    def both(self) -> Expression:
        items = [self.atom()]
        while self.take("&&"):
            items.append(self.atom())
        return items[0] if len(items) == 1 else AllOf(tuple(items))

    def atom(self) -> Expression:
        if self.take("("):
            self.depth += 1
            if self.depth > self.MAX_PARENTHESES:
                raise self.error(f"more than {self.MAX_PARENTHESES} parentheses deep")
            expression = self.either()
            if not self.take(")"):
                raise self.error("expected ')'")
            self.depth -= 1
            return expression
        if not self.text.startswith(DAGGER, self.position):
            raise self.error("expected a reference such as †state.name")
        self.position += 1
        match = _NAMES.match(self.text, self.position)
        if match is None:
            raise self.error("expected a kind such as 'state' or 'input'")
        self.position = match.end()
        kind, *names = match.group().split(".")
        steps = (*names, *islice(self.steps(), MAX_STEPS + 1))
        if len(steps) > MAX_STEPS:
            raise self.error(f"a path has at most {MAX_STEPS} steps")
        self.skip()
        return Reference(kind, steps)

    def name(self, what: str) -> str:
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise self.error(f"expected {what}")
        self.position = match.end()
        return match.group()

    def steps(self) -> Iterator[str | int]:
        while self.text.startswith((".", "["), self.position):
            if self.text[self.position] == ".":
                self.position += 1
                yield self.name("a name after '.'")
            elif match := _INDEX.match(self.text, self.position):
                self.position = match.end()
                yield int(match.group(1))
            elif match := _QUOTED.match(self.text, self.position):
                try:
                    key = json.loads(f'"{match.group(1)}"')
                    key.encode()  # an unpaired surrogate is not a character: no name can contain it
                except ValueError:
                    raise self.error("the quoted key is not a JSON string") from None
                self.position = match.end()
                yield key
            else:
                raise self.error('expected [0] or ["key"]')


def _excerpt(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")


_CLAIMED: Final = 20
"""Maximum of paths that are searched in an output path that cannot be parsed."""


def show(path: Path) -> str:
    """Return the path as a reference to state."""
    return str(Reference("state", path))


Alternatives: TypeAlias = tuple[tuple[Path, ...], ...]
"""An output path: alternatives, each of one or more paths that are written together (R4.3)."""


def parse_output_path(text: str) -> Alternatives:
    """Parse an output path: `†state.a && †state.b` writes both; `†state.a || †state.b` is a branch (R4.3).

    Raises `ReferenceSyntaxError` for a malformed path, and for one outside the state.
    """
    expression = parse_expression(text)
    if isinstance(expression, Reference):
        return ((_output_path(expression),),)
    items = expression.items if isinstance(expression, FirstOf) else (expression,)
    return tuple(_once(_output_paths(item, text)) for item in items)


def claimed_paths(text: str) -> tuple[Path, ...]:
    """Return every path that an output path names, even if it cannot be parsed as a whole."""
    text = text.replace(",", " ")  # "†state.a, †state.b" is a slip that models make
    places = islice((at for at, character in enumerate(text) if character == DAGGER), _CLAIMED)
    found = (reference_at(text, at) for at in places)
    return _once(reference.path for reference in found if reference is not None and reference.kind == "state")


def _once(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the paths without repetitions, for any notation of their indexes."""
    first: dict[tuple[str, ...], Path] = {}
    for path in paths:
        first.setdefault(tuple(map(str, path)), path)
    return tuple(first.values())


def _output_paths(expression: Expression, text: str) -> list[Path]:
    if isinstance(expression, FirstOf):
        raise ReferenceSyntaxError(f"a branch inside '&&' is not an output path: {text!r}")
    if isinstance(expression, AllOf):
        return [path for item in expression.items for path in _output_paths(item, text)]
    return [_output_path(expression)]


def _output_path(reference: Reference) -> Path:
    if reference.kind != "state":
        raise ReferenceSyntaxError(f"{reference} cannot be written: an output path starts with †state")
    return reference.path


class UnknownValue:
    """The type of `UNKNOWN`: a value that a dry run has not computed (R5.6). Every path into it exists."""

    def __repr__(self) -> str:
        return "UNKNOWN"


_PLACEHOLDER: Any = UnknownValue()  # Any: it replaces a value of any type
UNKNOWN: Final[Json] = _PLACEHOLDER


def step_into(value: Json | Missing, part: str | int) -> Json | Missing:
    """Return the value after one step: `[n]` and `.n` index arrays, names look up keys (R3.2)."""
    if isinstance(value, dict):
        return value.get(str(part), MISSING)
    if isinstance(value, list):
        index = array_index(part)
        return value[index] if index is not None and index < len(value) else MISSING
    return UNKNOWN if value is UNKNOWN else MISSING


def array_index(part: str | int) -> int | None:
    """Return the array index of a step, or `None` if it can only be a key."""
    if isinstance(part, int):
        return part
    return int(part) if part.isdigit() and len(part) <= 9 and part.isascii() else None


def get(value: Json | Missing, path: Path) -> Json | Missing:
    """Return the value at the path, or `MISSING`."""
    for part in path:
        value = step_into(value, part)
        if value is MISSING:
            break
    return value


def overlaps(first: Path, second: Path) -> bool:
    """Whether one path is the other, its prefix or its extension (R5.1)."""
    count = min(len(first), len(second))
    first, second = first[:count], second[:count]
    return first == second or list(map(str, first)) == list(map(str, second))


def way_into(value: Json, path: Path) -> tuple[int, Json]:
    """Return the number of the path's steps that exist, and the value at the last of them."""
    for at, part in enumerate(path):
        deeper = step_into(value, part)
        if deeper is MISSING:
            return at, value
        value = deeper
    return len(path), value


def nearest_paths(value: Json, path: Path, *, root: str, limit: int = 5) -> list[str]:
    """Return the existing paths nearest to a missing one, best first, as references (R5.5).

    They are the keys beside the first step that fails, similar names first, and a similar name one level deeper. The
    path itself is never included, also if a call will write it. A value without parts has none: see `way_into`.
    """
    at, value = way_into(value, path[:-1])
    prefix = root + "".join(path_step(part) for part in path[:at])
    wanted = str(path[at]) if path else ""
    beside = [name for name, _ in _children(value) if name.strip('.[]"') != wanted]
    below = {
        name + step: step.strip('.[]"')
        for name, child in _children(value)
        for step, _ in _children(child)
    }  # fmt: skip
    close = difflib.get_close_matches(wanted, [name.strip('.[]"') for name in beside], n=limit, cutoff=0.5)
    ranked = [name for match in close for name in beside if name.strip('.[]"') == match]
    ranked += [name for name, last in below.items() if last == wanted]
    ranked += [name for name in beside if name not in ranked]
    return [prefix + name for name in ranked[:limit]]


def _children(value: Json, limit: int = 50) -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict):
        for key, _ in zip(value, range(limit), strict=False):
            yield path_step(key), value[key]
    elif isinstance(value, list):
        for index, item in enumerate(value[:limit]):
            yield f"[{index}]", item
