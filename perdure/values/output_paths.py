"""Output paths: where a call's result is written, as it is said (R4.3)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeAlias

from perdure.errors import ReferenceSyntaxError
from perdure.values.references import DAGGER, Both, Either, Expression, Path, Reference, parse_expression, reference_at

_CLAIMED: Final = 20
"""Paths that are looked for where an output path cannot be read."""


def show(path: Path) -> str:
    """The path as a reference to state."""
    return str(Reference("state", path))


Alternatives: TypeAlias = tuple[tuple[Path, ...], ...]
"""An output path: alternatives, each of one or more paths that are written together (R4.3)."""


def parse_output_path(text: str) -> Alternatives:
    """`†state.a && †state.b` writes both; `†state.a || †state.b` is a branch (R4.3).

    Raises `ReferenceSyntaxError` for anything malformed, and for a path outside the state.
    """
    expression = parse_expression(text)
    items = expression.items if isinstance(expression, Either) else (expression,)
    return tuple(_once(_output_paths(item, text)) for item in items)


def claimed_paths(text: str) -> tuple[Path, ...]:
    """Every path that an output path names, also where it cannot be read as a whole."""
    text = text.replace(",", " ")  # "†state.a, †state.b" is a slip that models make
    places = islice((at for at, character in enumerate(text) if character == DAGGER), _CLAIMED)
    found = (reference_at(text, at) for at in places)
    return _once(reference.path for reference in found if reference is not None and reference.kind == "state")


def _once(paths: Iterable[Path]) -> tuple[Path, ...]:
    """A path that is named twice is one path, however its indexes are written."""
    first: dict[tuple[str, ...], Path] = {}
    for path in paths:
        first.setdefault(tuple(map(str, path)), path)
    return tuple(first.values())


def _output_paths(expression: Expression, text: str) -> list[Path]:
    if isinstance(expression, Either):
        raise ReferenceSyntaxError(f"a branch inside '&&' is no output path: {text!r}")
    if isinstance(expression, Both):
        return [path for item in expression.items for path in _output_paths(item, text)]
    if expression.kind != "state":
        raise ReferenceSyntaxError(f"{expression} cannot be written: an output path starts with †state")
    return [expression.path]
