"""The tables of docs/limits.md: every number in `perdure/values/limits.py`, with its unit and its reason (`make settings`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import perdure.values.limits

SOURCE: Final = Path(str(perdure.values.limits.__file__))
_SECTION: Final = re.compile(r"# ([A-Z].*)\.")


class Number(NamedTuple):
    """One limit: its section, its name, its value and the sentences of its docstring."""

    section: str
    name: str
    value: float
    meaning: str


def numbers() -> Iterator[Number]:
    """Yield each number of the module with the section comment above it and the docstring below it."""
    text = SOURCE.read_text(encoding="utf-8")
    lines = text.splitlines()
    body = ast.parse(text).body
    for node, after in pairwise(body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or not _is_text(after):
            continue
        value = getattr(perdure.values.limits, node.target.id)
        if isinstance(value, int | float):
            above = (found[1] for line in reversed(lines[: node.lineno]) if (found := _SECTION.fullmatch(line)))
            yield Number(next(above), node.target.id, value, _meaning(after))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _meaning(node: ast.stmt) -> str:
    assert isinstance(node, ast.Expr)
    assert isinstance(node.value, ast.Constant)
    return re.sub(r" \(R\d+\.\d+\)", "", " ".join(str(node.value.value).split()))


def limits_table() -> str:
    """Return a table of all limits for each section."""
    rows: list[str] = []
    section = ""
    for number in numbers():
        if number.section != section:
            section = number.section
            rows += ["", f"### {section}", "", "| limit | is | of |", "|---|--:|---|"]
        rows.append(f"| `{number.name}` | {number.value:,} | {number.meaning} |")
    return "\n".join(rows).lstrip("\n") + "\n"
