"""Values, names and operators of a formula, each turned into a step that counts what it takes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias

from perdure.errors import FormulaError, clip
from perdure.values.formulas.functions import FUNCTIONS
from perdure.values.formulas.operators import (
    COMPARISONS,
    OPERATORS,
    WrongError,
    as_text,
    at_place,
    formatted,
    is_number,
    items,
    kind,
    number,
)
from perdure.values.formulas.steps import Steps
from perdure.values.jsons import Json
from perdure.values.references import MAX_STEPS, Path, Reference

MAX_NESTED: Final = 150
"""Parts of a formula inside each other: each takes up to four frames of Python's stack, of 1,000, and whether there are so many must not
depend on who asks."""
CONSTANTS: Final = {"true": True, "false": False, "null": None}
"""As JSON writes them, beside Python's own."""


@dataclass(slots=True)
class Frame:
    """One evaluation: the values of the references, the variables of comprehensions, and the budget."""

    values: Sequence[Json]
    steps: Steps
    variables: dict[str, Json] = field(default_factory=dict)


Step: TypeAlias = Callable[[Frame], Any]


def wrong(node: ast.AST, message: str) -> NoReturn:
    raise FormulaError(message, getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1)


class Nodes:
    """Turns the nodes that are allowed into steps, and takes down the references."""

    def __init__(self) -> None:
        self.references: dict[Reference, int] = {}
        self.bound: list[str] = []
        self._depth = 0
        self._perhaps = 0
        """Above 0 in what is only asked where something else holds: `rows[0].n if rows else 0`."""

    def read(self, node: ast.expr) -> Step:
        made = getattr(self, f"_{type(node).__name__.lower()}", None)
        if made is None or isinstance(node, ast.Slice):
            wrong(node, f"{_shown(node)} cannot stand in an expression; {_INSTEAD.get(type(node), _ALLOWED)}")
        if self._depth == MAX_NESTED:
            wrong(node, f"this is nested too deeply; at most {MAX_NESTED} levels are read")
        self._depth += 1
        step: Step = made(node)
        self._depth -= 1

        def counted(frame: Frame) -> Any:
            frame.steps.take()
            try:
                return step(frame)
            except WrongError as error:
                wrong(node, str(error))
            except RecursionError:
                wrong(node, "this is nested too deeply")
            except (
                TypeError,
                ValueError,
                ArithmeticError,
                LookupError,
            ) as error:  # Python's own words for what it cannot do
                wrong(node, clip(str(error), 200))

        return counted

    def _read_perhaps(self, node: ast.expr) -> Step:
        self._perhaps += 1
        step = self.read(node)
        self._perhaps -= 1
        return step

    def _reference(self, kind: str, path: Path) -> Step:
        at = self.references.setdefault(Reference(kind, path), len(self.references))
        return lambda frame: frame.values[at]

    # What stands for itself.

    def _constant(self, node: ast.Constant) -> Step:
        value = node.value
        if value is not None and not isinstance(value, bool | int | float | str):
            wrong(node, f"{_shown(node)} is no JSON")
        try:
            number(value)
        except WrongError as error:
            wrong(node, str(error))
        return lambda frame: value

    def _list(self, node: ast.List) -> Step:
        parts = [
            (isinstance(item, ast.Starred), self.read(item.value if isinstance(item, ast.Starred) else item))
            for item in node.elts
        ]

        def make(frame: Frame) -> list[Any]:
            made: list[Any] = []
            for several, step in parts:
                value = step(frame)
                made.extend(items(frame.steps, value)) if several else made.append(value)
            return made

        return make

    def _tuple(self, node: ast.Tuple) -> Step:
        return self._list(ast.copy_location(ast.List(node.elts, ast.Load()), node))

    def _joinedstr(self, node: ast.JoinedStr) -> Step:
        parts = [self.read(part) for part in node.values]

        def join(frame: Frame) -> str:
            made = [part(frame) for part in parts]
            frame.steps.text(sum(map(len, made)))
            return "".join(made)

        return join

    def _formattedvalue(self, node: ast.FormattedValue) -> Step:
        value, spec = self.read(node.value), ""
        if isinstance(node.format_spec, ast.JoinedStr):
            fixed = [str(part.value) for part in node.format_spec.values if isinstance(part, ast.Constant)]
            if len(fixed) < len(node.format_spec.values):
                wrong(node, "a format is written out, such as :.2f")
            spec = "".join(fixed)
        if node.conversion in (ord("r"), ord("a")):
            convert = repr if node.conversion == ord("r") else ascii

            def write(frame: Frame) -> str:
                given = value(frame)
                frame.steps.weigh(given)
                return formatted(frame.steps, convert(given), spec)

            return write
        if node.conversion == ord("s"):
            return lambda frame: formatted(frame.steps, as_text(frame.steps, value(frame)), spec)
        return lambda frame: formatted(frame.steps, value(frame), spec)

    # Names, and what stands in a value.

    def _name(self, node: ast.Name) -> Step:
        name = node.id
        if name in self.bound:
            return lambda frame: frame.variables[name]
        if name in CONSTANTS:
            value = CONSTANTS[name]
            return lambda frame: value
        if name in FUNCTIONS:
            wrong(node, f"{name!r} is a function: write {name}(…)")
        return self._reference(name, ())

    def _attribute(self, node: ast.Attribute) -> Step:
        return self._path(node) or self._key_of(node.value, node.attr)

    def _subscript(self, node: ast.Subscript) -> Step:
        if (step := self._path(node)) is not None:
            return step
        if isinstance(node.slice, ast.Slice):
            return self._slice(node.value, node.slice)
        value, at = self.read(node.value), self.read(node.slice)
        return lambda frame: at_place(frame.steps, value(frame), at(frame))

    def _path(self, node: ast.expr) -> Step | None:
        """The reference that a chain of keys and places is, if it begins with a kind.

        In what is perhaps not asked, only what the chain begins with has to exist: a result, or all of another kind.
        """
        steps: list[str | int] = []
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute):
                steps.append(node.attr)
            elif isinstance(node.slice, ast.Constant) and (step := _path_step(node.slice.value)) is not None:
                steps.append(step)
            else:
                return None
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self.bound or node.id in CONSTANTS or len(steps) > MAX_STEPS:
            return None
        if self._perhaps and len(steps) > (node.id == "state"):
            return None
        return self._reference(node.id, tuple(reversed(steps)))

    def _key_of(self, node: ast.expr, name: str) -> Step:
        value = self.read(node)
        return lambda frame: at_place(frame.steps, value(frame), name)

    def _slice(self, node: ast.expr, bounds: ast.Slice) -> Step:
        value = self.read(node)
        parts = [self.read(bound) if bound is not None else None for bound in (bounds.lower, bounds.upper, bounds.step)]

        def cut(frame: Frame) -> Json:
            whole = value(frame)
            if not isinstance(whole, str | list):
                raise WrongError(f"{kind(whole)} has no slices")
            given = [part(frame) if part is not None else None for part in parts]
            if not all(bound is None or isinstance(bound, int) for bound in given) or given[2] == 0:
                raise WrongError("a slice is written with whole numbers: [1:3]")
            made: Any = whole[slice(*given)]
            frame.steps.text(len(made)) if isinstance(made, str) else frame.steps.take(len(made))
            return made

        return cut

    # Operators.

    def _binop(self, node: ast.BinOp) -> Step:
        do = OPERATORS.get(type(node.op).__name__)
        if do is None:
            wrong(node, f"{_shown(node)}: of operators there are + - * / // % **")
        left, right = self.read(node.left), self.read(node.right)

        def calculate(frame: Frame) -> Json:
            a, b = left(frame), right(frame)
            try:
                return do(frame.steps, a, b)
            except ZeroDivisionError:
                raise WrongError("division by zero") from None
            except OverflowError:
                raise WrongError("the result is outside the range of a 64-bit float") from None

        return calculate

    def _unaryop(self, node: ast.UnaryOp) -> Step:
        value = self.read(node.operand)
        if isinstance(node.op, ast.Not):
            return lambda frame: not value(frame)
        if isinstance(node.op, ast.Invert):
            wrong(node, "~ is not known here; write not")
        sign = -1 if isinstance(node.op, ast.USub) else 1

        def signed(frame: Frame) -> Json:
            given = value(frame)
            if not is_number(given):
                raise WrongError(f"{kind(given)} has no sign")
            return -given if sign < 0 else +given

        return signed

    def _boolop(self, node: ast.BoolOp) -> Step:
        first, *rest = node.values
        parts = [self.read(first), *map(self._read_perhaps, rest)]
        ends = isinstance(node.op, ast.Or)

        def decide(frame: Frame) -> Json:
            value: Json = None
            for part in parts:
                value = part(frame)
                if bool(value) == ends:
                    break
            return value

        return decide

    def _compare(self, node: ast.Compare) -> Step:
        first = self.read(node.left)
        rest = [
            (COMPARISONS[type(sign).__name__], self.read(value))
            for sign, value in zip(node.ops, node.comparators, strict=True)
        ]
        for sign, value in zip(node.ops, node.comparators, strict=True):
            if isinstance(sign, ast.Is | ast.IsNot) and not (isinstance(value, ast.Constant) and value.value is None):
                wrong(value, "'is' asks for None; values are compared with ==")

        def compare(frame: Frame) -> bool:
            left = first(frame)
            for do, step in rest:
                right = step(frame)
                if not do(frame.steps, left, right):
                    return False
                left = right
            return True

        return compare

    def _ifexp(self, node: ast.IfExp) -> Step:
        test, body, other = self.read(node.test), self._read_perhaps(node.body), self._read_perhaps(node.orelse)
        return lambda frame: body(frame) if test(frame) else other(frame)


def _path_step(value: object) -> str | int | None:
    if isinstance(value, str):
        return value
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _shown(node: ast.AST) -> str:
    try:
        return repr(clip(ast.unparse(node), 60))
    except (ValueError, RecursionError):
        return type(node).__name__


_ALLOWED: Final = (
    "it computes with values: operators, comparisons, comprehensions, f-strings and functions such as len(…)"
)
_INSTEAD: Final[dict[type[ast.AST], str]] = {
    ast.NamedExpr: "nothing is assigned in an expression",
    ast.Await: "nothing is waited for in an expression",
}
