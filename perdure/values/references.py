"""References and expressions: `†state.items[0].name || (†input.a && †input["odd key"])` (R3.1 to R3.5).

    expression := conjunction ("||" conjunction)*
    conjunction := atom ("&&" atom)*
    atom := reference | "(" expression ")"
    reference := "†" kind step*
    step := "." name | "." digits | "[" digits "]" | "[" JSON string "]"

Values are found by lookup in parsed trees, never by replacing text in strings: a result that happens to contain a dagger
stays what it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final, TypeAlias

from perdure.errors import ReferenceSyntaxError
from perdure.values.jsons import Json, path_step

Path: TypeAlias = tuple[str | int, ...]

DAGGER: Final = "†"
MAX_EXPRESSION: Final = 10_000
"""Characters. A longer expression is no plan of a sane mind, and parsing must stay bounded."""

MAX_STEPS: Final = 64
"""Of a path: what stands that deep and is itself as deep as a value may be can still be carried as JSON."""

_NAME = re.compile(r'[^\s.\[\](){}|&†"]+')
_INDEX = re.compile(r"\[(\d{1,9})\]")
_QUOTED = re.compile(r'\["((?:[^"\\]|\\.)*)"\]')
_SPACE = re.compile(r"\s*")


class Missing:
    """The type of `MISSING`: a path that leads nowhere. `None` is a value that exists (R3.4)."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


@dataclass(frozen=True, slots=True)
class Reference:
    """`†kind` followed by a path; a name of digits and an index are told apart only where they are written."""

    kind: str
    path: Path = ()

    def __str__(self) -> str:
        return DAGGER + self.kind + "".join(path_step(part) for part in self.path)


@dataclass(frozen=True, slots=True)
class Either:
    """`a || b`: the first that exists (R3.3)."""

    items: tuple[Expression, ...]

    def __str__(self) -> str:
        return " || ".join(map(str, self.items))


@dataclass(frozen=True, slots=True)
class Both:
    """`a && b`: all must exist; the value is the last's (R3.3)."""

    items: tuple[Expression, ...]

    def __str__(self) -> str:
        return " && ".join(f"({item})" if isinstance(item, Either) else str(item) for item in self.items)


Expression: TypeAlias = Reference | Either | Both


def references(expression: Expression) -> Iterator[Reference]:
    """Every reference of the expression, in the order it is written."""
    if isinstance(expression, Reference):
        yield expression
    else:
        for item in expression.items:
            yield from references(item)


def evaluate(expression: Expression, lookup: Callable[[Reference], Json | Missing]) -> Json | Missing:
    """The expression's value, or `MISSING` (R3.3, R3.4)."""
    if isinstance(expression, Reference):
        return lookup(expression)
    value: Json | Missing = MISSING
    for item in expression.items:
        value = evaluate(item, lookup)
        found = value is not MISSING
        if found == isinstance(expression, Either):
            break
    return value


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Expression:
    """Parse a whole string. Raises `ReferenceSyntaxError` with the position of what is wrong (R3.5)."""
    if len(text) > MAX_EXPRESSION:
        raise ReferenceSyntaxError(f"an expression of {len(text)} characters; at most {MAX_EXPRESSION} are read", 0)
    parser = _Parser(text)
    expression = parser.either()
    if parser.position < len(text):
        raise parser.error(
            "expected '||', '&&' or the end; to put a value inside text write {†state.x}, to write a † write ††"
        )
    return expression


def reference_at(text: str, position: int) -> Reference | None:
    """The reference that begins there, as far as it can be read; `None` where none does."""
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
        match = _SPACE.match(self.text, self.position)
        self.position = match.end() if match else self.position

    def take(self, token: str) -> bool:
        self.skip()
        if self.text.startswith(token, self.position):
            self.position += len(token)
            self.skip()
            return True
        return False

    def either(self) -> Expression:
        items = [self.both()]
        while self.take("||"):
            items.append(self.both())
        return items[0] if len(items) == 1 else Either(tuple(items))

    def both(self) -> Expression:
        items = [self.atom()]
        while self.take("&&"):
            items.append(self.atom())
        return items[0] if len(items) == 1 else Both(tuple(items))

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
        kind = self.name("a kind such as 'state' or 'input'")
        steps = tuple(islice(self.steps(), MAX_STEPS + 1))
        if len(steps) > MAX_STEPS:
            raise self.error(f"a path has at most {MAX_STEPS} steps")
        reference = Reference(kind, steps)
        self.skip()
        return reference

    def name(self, what: str) -> str:
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise self.error(f"expected {what}")
        self.position = match.end()
        return match.group()

    def steps(self) -> Iterator[str | int]:
        while True:
            if self.text.startswith(".", self.position):
                self.position += 1
                yield self.name("a name after '.'")
            elif match := _INDEX.match(self.text, self.position):
                self.position = match.end()
                yield int(match.group(1))
            elif match := _QUOTED.match(self.text, self.position):
                try:
                    key = json.loads(f'"{match.group(1)}"')
                    key.encode()  # an unpaired surrogate is no character: nobody could write what names it
                except ValueError:
                    raise self.error("the quoted key is not a JSON string") from None
                self.position = match.end()
                yield key
            elif self.text.startswith("[", self.position):
                raise self.error('expected [0] or ["key"]')
            else:
                return


def _excerpt(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
