"""A formula: read once, evaluated with the values of what it names (R16.3)."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from perdure.errors import FormulaError, JsonError
from perdure.values.formulas.nodes import Frame, Step, wrong
from perdure.values.formulas.reading import Reader
from perdure.values.formulas.steps import LOOKS, MAX_FORMULA_STEPS, OutOfStepsError, Steps
from perdure.values.jsons import Json, check
from perdure.values.limits.sizes import Sizes
from perdure.values.references import DAGGER, Reference

MAX_FORMULA: Final = 2_000
"""Characters. What needs more is a tool's work."""
MAX_NODES: Final = 600
"""Parts of a formula: each is read, and kept, in a workflow's task."""

_BEFORE_NAME: Final = re.compile(rf"{DAGGER}(?=[^\W\d])")
_LITERALS: Final = re.compile(r"""[fFrRbBuU]{0,2}("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""")


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula that was read. `references` are what it needs, in the order in which `evaluate` takes their values."""

    text: str
    references: tuple[Reference, ...]
    step: Step = field(repr=False, compare=False)

    def evaluate(self, values: Sequence[Json], steps: Steps | None = None) -> Json:
        """The formula's value, which is JSON: numbers finite, the work bounded by `steps`. Raises `FormulaError`."""
        steps = Steps() if steps is None else steps
        with _in_words():
            return self.step(Frame(values, steps))

    def measured(self, values: Sequence[Json], steps: Steps, sizes: Sizes, most: int) -> tuple[Json, int]:
        """The same, and how many bytes of it are new: measuring, copying and encoding them is paid for in `steps`, too (R18.9).

        Raises `TooManyBytesError` as soon as the value is found to have more than `most` bytes.
        """
        value = self.evaluate(values, steps)
        _, new, looked_at = sizes.of_made(value, frozenset(map(id, values)), most)
        with _in_words():
            steps.take(looked_at // LOOKS)
            steps.text(new)
        return value, new


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except OutOfStepsError:
        raise FormulaError(
            f"the formulas of one call take more than {MAX_FORMULA_STEPS:,} steps; let a tool do what is that much",
            1,
            1,
        ) from None


@lru_cache(maxsize=512)
def parse_formula(text: str) -> Formula:
    """Read a formula. Raises `FormulaError`, with line and column, for what is no formula."""
    if len(text) > MAX_FORMULA:
        raise FormulaError(f"a formula of {len(text):,} characters; at most {MAX_FORMULA:,} are read", 1, 1)
    source = _without_daggers(text).strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, mode="eval")
    except SyntaxError as error:
        column = error.offset or len(source) + 1
        raise FormulaError(f"this is no expression: {error.msg}", error.lineno or 1, column) from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise FormulaError(f"this cannot be read: {str(error) or 'it is nested too deeply'}", 1, 1) from None
    nodes = list(ast.walk(tree))
    if len(nodes) > MAX_NODES:
        raise FormulaError(f"the formula has more than {MAX_NODES} parts; let a tool do what is that much", 1, 1)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            _check_text(node)
    reader = Reader()
    step = reader.read(tree.body)
    return Formula(text, tuple(reader.references), step)


def _check_text(node: ast.Constant) -> None:
    try:
        check(node.value, source="the text")
    except JsonError as error:
        wrong(node, str(error))


def readable(text: str) -> str | None:
    """The formula in Python's own words, without daggers; `None` for what is no formula."""
    try:
        parse_formula(text)
    except FormulaError:
        return None
    return _without_daggers(text).strip()


def _without_daggers(text: str) -> str:
    """`†state.x` is `state.x`; in a text `†` stays what it is, but for the braces of an f-string."""
    if DAGGER not in text:
        return text
    parts: list[str] = []
    at = 0
    for found in _LITERALS.finditer(text):
        parts.append(_BEFORE_NAME.sub("", text[at : found.start()]))
        literal = found.group()
        formats = "f" in literal[: literal.index(found.group(1)[0])].lower()
        parts.append(re.sub(rf"\{{\s*{DAGGER}", "{", literal) if formats else literal)
        at = found.end()
    return "".join([*parts, _BEFORE_NAME.sub("", text[at:])])
