"""Formulas (`_expr`): read by `ast`, evaluated in counted steps, never executed as Python."""

from __future__ import annotations

import ast
import difflib
import keyword
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NoReturn, TypeAlias, TypeVar

from perdure.errors import FormulaError, JsonError, clip
from perdure.values._formula_functions import (
    CHARACTERS,
    COMPARISONS,
    FUNCTIONS,
    LOOKS,
    MAX_FORMULA_STEPS,
    METHODS,
    OPERATORS,
    EvaluationSteps,
    FormulaUseError,
    OutOfStepsError,
    SortKey,
    as_text,
    at_place,
    call_method,
    format_value,
    is_number,
    kind_of_value,
    text_key,
    to_items,
    to_json_number,
)
from perdure.values.json import Json, check
from perdure.values.references import DAGGER, MAX_STEPS, MISSING, Missing, Path, Reference
from perdure.values.sizes import Sizes

MAX_NESTED: Final = 150
"""Maximum of levels in a formula. Each takes up to four of the 1,000 frames of Python's stack, which must suffice at
any depth of the caller.
"""
CONSTANTS: Final = {"true": True, "false": False, "null": None}
"""Constants as JSON writes them, beside Python's own."""


class MissingValueError(FormulaError):
    """A formula has evaluated one of its optional references, which has no value."""

    def __init__(self, reference: Reference, line: int, column: int) -> None:
        super().__init__(f"{reference} does not exist", line, column)
        self.reference = reference


@dataclass(slots=True)
class Frame:
    """One evaluation: the values of the references, the variables of comprehensions, and the budget."""

    values: Sequence[Json]
    steps: EvaluationSteps
    variables: dict[str, Json] = field(default_factory=dict)


_PARSE_ATTEMPTS: Final = 10
FormulaStep: TypeAlias = Callable[[Frame], Json]
T = TypeVar("T")


def raise_formula_error(node: ast.AST, message: str) -> NoReturn:
    raise FormulaError(message, getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1)


def parse_expression(source: str) -> ast.expr:
    """Return the syntax tree of a Python expression. Raises as `ast.parse`."""
    tree = _parse_python(source, "eval")
    assert isinstance(tree, ast.Expression)
    return tree.body


def parse_statements(source: str) -> list[ast.stmt]:
    """Return the syntax trees of Python statements. Raises as `ast.parse`."""
    tree = _parse_python(source, "exec")
    assert isinstance(tree, ast.Module)
    return tree.body


def _parse_python(source: str, mode: str) -> ast.AST:
    # Python 3.11 and 3.12 count the depth of all threads' trees in one number. If the garbage collector runs during
    # `ast.parse`, another thread can parse meanwhile. The count is wrong then, and `SystemError` is raised (cpython
    # issue 106905).
    for _ in range(_PARSE_ATTEMPTS - 1):
        with suppress(SystemError):
            return ast.parse(source, mode=mode)
    return ast.parse(source, mode=mode)


class Nodes:
    """A translator of the allowed nodes into steps, which records the references."""

    def __init__(self) -> None:
        self.references: dict[Reference, int] = {}
        self.bound: list[str] = []
        self._depth = 0
        self.needed: set[Reference] = set()
        """The references that every evaluation reads. An evaluation may skip the parts that read the others."""
        self._perhaps = 0
        """Above 0 in a part that is evaluated only under a condition: `rows[0].n if rows else 0`."""
        self._per_item = 0
        """Above 0 in a part that is evaluated for each item of a list, which may be empty."""

    def read(self, node: ast.expr) -> FormulaStep:
        made = getattr(self, f"_node_{type(node).__name__.lower()}", None)
        if made is None:
            raise_formula_error(
                node, f"{_shown(node)} cannot stand in an expression; {_INSTEAD.get(type(node), _ALLOWED)}"
            )
        if self._depth == MAX_NESTED:
            raise_formula_error(node, f"this is nested too deeply; at most {MAX_NESTED} levels are read")
        self._depth += 1
        step: FormulaStep = made(node)
        self._depth -= 1
        if isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in self.bound):
            return step  # it counts itself and cannot fail: most of a large evaluation consists of these

        def counted(frame: Frame) -> Json:
            steps = frame.steps
            steps.left -= 1  # inlined `take`, to avoid a call for each node
            if steps.left < 0:
                raise OutOfStepsError
            try:
                return step(frame)
            except FormulaUseError as error:
                raise_formula_error(node, str(error))
            except RecursionError:
                raise_formula_error(node, "this is nested too deeply")
            except (
                TypeError,
                ValueError,
                ArithmeticError,
                LookupError,
            ) as error:  # Python's own message for an impossible operation
                raise_formula_error(node, clip(str(error), 200))

        return counted

    def _read_perhaps(self, node: ast.expr) -> FormulaStep:
        """Read a part that is evaluated only under a condition."""
        self._perhaps += 1
        step = self.read(node)
        self._perhaps -= 1
        return step

    def _read_per_item(self, node: ast.expr) -> FormulaStep:
        """Read a part that is evaluated for each item of a list, which may be empty."""
        self._per_item += 1
        step = self.read(node)
        self._per_item -= 1
        return step

    def _reference(self, node: ast.expr, kind: str, path: Path) -> FormulaStep:
        reference = Reference(kind, path)
        at = self.references.setdefault(reference, len(self.references))
        if not (self._perhaps or self._per_item):
            self.needed.add(reference)
            return lambda frame: frame.values[at]

        def read(frame: Frame) -> Json:
            value: Json | Missing = frame.values[at]
            if value is MISSING:
                raise MissingValueError(reference, node.lineno, node.col_offset + 1)
            return value

        return read

    # Literals.

    def _node_constant(self, node: ast.Constant) -> FormulaStep:
        value = node.value
        if value is not None and not isinstance(value, bool | int | float | str):
            raise_formula_error(node, f"{_shown(node)} is not JSON")
        try:
            to_json_number(value)
        except FormulaUseError as error:
            raise_formula_error(node, str(error))

        def constant(frame: Frame) -> Json:
            steps = frame.steps
            steps.left -= 1
            if steps.left < 0:
                raise OutOfStepsError
            return value

        return constant

    def _node_list(self, node: ast.List) -> FormulaStep:
        parts = [
            (isinstance(item, ast.Starred), self.read(item.value if isinstance(item, ast.Starred) else item))
            for item in node.elts
        ]

        def make(frame: Frame) -> list[Json]:
            made: list[Json] = []
            for several, step in parts:
                value = step(frame)
                made.extend(to_items(frame.steps, value)) if several else made.append(value)
            return made

        return make

    def _node_tuple(self, node: ast.Tuple) -> FormulaStep:
        return self._node_list(ast.copy_location(ast.List(node.elts, ast.Load()), node))

    def _node_joinedstr(self, node: ast.JoinedStr) -> FormulaStep:
        parts = [self.read(part) for part in node.values]

        def join(frame: Frame) -> str:
            made = [str(part(frame)) for part in parts]
            frame.steps.text(sum(map(len, made)))
            return "".join(made)

        return join

    def _node_formattedvalue(self, node: ast.FormattedValue) -> FormulaStep:
        value, spec = self.read(node.value), ""
        if isinstance(node.format_spec, ast.JoinedStr):
            fixed = [str(part.value) for part in node.format_spec.values if isinstance(part, ast.Constant)]
            if len(fixed) < len(node.format_spec.values):
                raise_formula_error(node, "a format is written out, such as :.2f")
            spec = "".join(fixed)
        if node.conversion in (ord("r"), ord("a")):
            convert = repr if node.conversion == ord("r") else ascii

            def write(frame: Frame) -> str:
                given = value(frame)
                frame.steps.weigh(given)
                return format_value(frame.steps, convert(given), spec)

            return write
        if node.conversion == ord("s"):
            return lambda frame: format_value(frame.steps, as_text(frame.steps, value(frame)), spec)
        return lambda frame: format_value(frame.steps, value(frame), spec)

    # Names, keys and places.

    def _node_name(self, node: ast.Name) -> FormulaStep:
        name = node.id
        if name in self.bound:

            def variable(frame: Frame) -> Json:
                steps = frame.steps
                steps.left -= 1
                if steps.left < 0:
                    raise OutOfStepsError
                return frame.variables[name]

            return variable
        if name in CONSTANTS:
            value = CONSTANTS[name]
            return lambda frame: value
        if name in FUNCTIONS:
            raise_formula_error(node, f"{name!r} is a function: write {name}(…)")
        return self._reference(node, name, ())

    def _node_attribute(self, node: ast.Attribute) -> FormulaStep:
        return self._path(node) or self._key_of(node.value, node.attr)

    def _node_subscript(self, node: ast.Subscript) -> FormulaStep:
        if (step := self._path(node)) is not None:
            return step
        if isinstance(node.slice, ast.Slice):
            return self._slice(node.value, node.slice)
        value, at = self.read(node.value), self.read(node.slice)
        return lambda frame: at_place(frame.steps, value(frame), at(frame))

    def _path(self, node: ast.expr) -> FormulaStep | None:
        """Return a step for a chain of keys and places that is a reference, because it begins with a kind.

        In a conditional part, only the beginning of the chain has to exist: a result, or the whole value of another
        kind.
        """
        steps: list[str | int] = []
        chain = node
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
        return self._reference(chain, node.id, tuple(reversed(steps)))

    def _key_of(self, node: ast.expr, name: str) -> FormulaStep:
        value = self.read(node)
        return lambda frame: at_place(frame.steps, value(frame), name)

    def _slice(self, node: ast.expr, bounds: ast.Slice) -> FormulaStep:
        value = self.read(node)
        parts = [self.read(bound) if bound is not None else None for bound in (bounds.lower, bounds.upper, bounds.step)]

        def cut(frame: Frame) -> Json:
            whole = value(frame)
            if not isinstance(whole, str | list):
                raise FormulaUseError(f"{kind_of_value(whole)} has no slices")
            start, stop, step = (part(frame) if part is not None else None for part in parts)
            if (
                not (start is None or isinstance(start, int))
                or not (stop is None or isinstance(stop, int))
                or not (step is None or isinstance(step, int))
                or step == 0
            ):
                raise FormulaUseError("a slice is written with whole numbers: [1:3]")
            made = whole[start:stop:step]
            frame.steps.text(len(made)) if isinstance(made, str) else frame.steps.take(len(made))
            return made

        return cut

    # Operators.

    def _node_binop(self, node: ast.BinOp) -> FormulaStep:
        do = OPERATORS.get(type(node.op).__name__)
        if do is None:
            raise_formula_error(node, f"{_shown(node)}: of operators there are + - * / // % **")
        left, right = self.read(node.left), self.read(node.right)

        def calculate(frame: Frame) -> Json:
            a, b = left(frame), right(frame)
            try:
                return do(frame.steps, a, b)
            except ZeroDivisionError:
                raise FormulaUseError("division by zero") from None
            except OverflowError:
                raise FormulaUseError("the result is outside the range of a 64-bit float") from None

        return calculate

    def _node_unaryop(self, node: ast.UnaryOp) -> FormulaStep:
        value = self.read(node.operand)
        if isinstance(node.op, ast.Not):
            return lambda frame: not value(frame)
        if isinstance(node.op, ast.Invert):
            raise_formula_error(node, "~ is not known here; write not")
        sign = -1 if isinstance(node.op, ast.USub) else 1

        def signed(frame: Frame) -> Json:
            given = value(frame)
            if not is_number(given):
                raise FormulaUseError(f"{kind_of_value(given)} has no sign")
            return -given if sign < 0 else +given

        return signed

    def _node_boolop(self, node: ast.BoolOp) -> FormulaStep:
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

    def _node_compare(self, node: ast.Compare) -> FormulaStep:
        first = self.read(node.left)
        rest = [
            (COMPARISONS[type(sign).__name__], self.read(value))
            for sign, value in zip(node.ops, node.comparators, strict=True)
        ]
        for sign, value in zip(node.ops, node.comparators, strict=True):
            if isinstance(sign, ast.Is | ast.IsNot) and not (isinstance(value, ast.Constant) and value.value is None):
                raise_formula_error(value, "'is' asks for None; values are compared with ==")

        def compare(frame: Frame) -> bool:
            left = first(frame)
            for do, step in rest:
                right = step(frame)
                if not do(frame.steps, left, right):
                    return False
                left = right
            return True

        return compare

    def _node_ifexp(self, node: ast.IfExp) -> FormulaStep:
        test, body, other = self.read(node.test), self._read_perhaps(node.body), self._read_perhaps(node.orelse)
        return lambda frame: body(frame) if test(frame) else other(frame)


def _has_one_argument(arguments: ast.arguments) -> bool:
    return len(arguments.args) == 1 and not (
        arguments.defaults or arguments.vararg or arguments.kwarg or arguments.kwonlyargs
    )


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


_METHODS: Final = frozenset(name for methods in METHODS.values() for name in methods)


class FormulaParser(Nodes):
    """A translator of the allowed nodes into steps, which records the references."""

    def _node_set(self, node: ast.Set) -> FormulaStep:
        make = self._node_list(ast.copy_location(ast.List(node.elts, ast.Load()), node))
        return lambda frame: FUNCTIONS["set"](frame.steps, make(frame))

    def _node_dict(self, node: ast.Dict) -> FormulaStep:
        pairs = [
            (self.read(key) if key is not None else None, self.read(value))
            for key, value in zip(node.keys, node.values, strict=True)
        ]

        def make(frame: Frame) -> dict[str, Json]:
            made: dict[str, Json] = {}
            for key, value in pairs:
                given = value(frame)
                if key is not None:
                    made[text_key(frame.steps, key(frame))] = given
                elif isinstance(given, dict):
                    frame.steps.take(len(given))
                    frame.steps.text(sum(map(len, given)))
                    made.update(given)
                else:
                    raise FormulaUseError(f"** takes an object, not {kind_of_value(given)}")
            return made

        return make

    def _node_listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> FormulaStep:
        return self._loops(node, node.generators, lambda: self._read_per_item(node.elt), list)

    _node_generatorexp = _node_listcomp

    def _node_setcomp(self, node: ast.SetComp) -> FormulaStep:
        collect = self._node_listcomp(ast.copy_location(ast.ListComp(node.elt, node.generators), node))
        return lambda frame: FUNCTIONS["set"](frame.steps, collect(frame))

    def _node_dictcomp(self, node: ast.DictComp) -> FormulaStep:
        def pair() -> Callable[[Frame], tuple[str, Json]]:
            key, value = self._read_per_item(node.key), self._read_per_item(node.value)
            return lambda frame: (text_key(frame.steps, key(frame)), value(frame))

        return self._loops(node, node.generators, pair, dict)

    def _loops(
        self,
        node: ast.expr,
        generators: list[ast.comprehension],
        read_element: Callable[[], Callable[[Frame], T]],
        container: Callable[[list[T]], Json],
    ) -> FormulaStep:
        """Return the step of a comprehension. `read_element` parses the part that is evaluated in its loops, and
        `container` builds the value from its results.
        """
        before = list(self.bound)
        loops: list[tuple[FormulaStep, ast.expr, list[FormulaStep]]] = []
        for generator in generators:
            if generator.is_async:
                raise_formula_error(node, "async has no place in an expression")
            source = (self._read_per_item if loops else self.read)(generator.iter)
            self.bound.extend(_names(generator.target))
            loops.append((source, generator.target, [*map(self._read_per_item, generator.ifs)]))
        element = read_element()
        self.bound = before

        def run(frame: Frame, made: list[T], depth: int = 0) -> None:
            source, target, tests = loops[depth]
            innermost = depth + 1 == len(loops)
            name = target.id if isinstance(target, ast.Name) else None
            steps = frame.steps
            for item in to_items(steps, source(frame)):
                if name is None:
                    _assign(steps, target, item, frame.variables)
                else:  # inlined `_assign`, to avoid a call for each item
                    steps.left -= 1
                    if steps.left < 0:
                        raise OutOfStepsError
                    frame.variables[name] = item
                for test in tests:
                    if not test(frame):
                        break
                else:
                    if innermost:
                        made.append(element(frame))
                    else:
                        run(frame, made, depth + 1)

        def collect(frame: Frame) -> Json:
            kept = _copied(frame)
            made: list[T] = []
            run(frame, made)
            frame.variables = kept
            return container(made)

        return collect

    def _node_lambda(self, node: ast.Lambda) -> FormulaStep:
        raise_formula_error(
            node,
            "a lambda can only be the key of sorted, min or max: key=lambda item: item.size; write [… for item in list if …]",
        )

    def _ranking(self, node: ast.expr) -> Callable[[Frame], SortKey]:
        """Return a step that builds a function from `key=lambda item: …`."""
        if isinstance(node, ast.Constant) and node.value is None:
            return lambda frame: None
        if isinstance(node, ast.Name) and node.id in FUNCTIONS and node.id not in self.bound:
            named = FUNCTIONS[node.id]
            return lambda frame: lambda item: named(frame.steps, item)
        if not isinstance(node, ast.Lambda) or not _has_one_argument(node.args):
            raise_formula_error(node, "a key is written as lambda item: …")
        name = node.args.args[0].arg
        self.bound.append(_allowed(node, name))
        body = self._read_per_item(node.body)
        self.bound.pop()

        def make(frame: Frame) -> Callable[[Json], Json]:
            inner = Frame(frame.values, frame.steps, _copied(frame))

            def rank(item: Json) -> Json:
                inner.variables[name] = item
                return body(inner)

            return rank

        return make

    def _node_call(self, node: ast.Call) -> FormulaStep:
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            raise_formula_error(node, "arguments are written one by one, without *")
        given = [self.read(each) for each in node.args]
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, given)
        if not isinstance(node.func, ast.Name) or node.func.id in self.bound:
            raise_formula_error(node, "only functions can be called")
        name = node.func.id
        function = FUNCTIONS.get(name)
        if function is None:
            near = difflib.get_close_matches(name, FUNCTIONS, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise_formula_error(
                node, f"there is no function {clip(name, 60)!r} for values; {hint}There are: {', '.join(FUNCTIONS)}"
            )
        named = {
            str(each.arg): self._ranking(each.value) if each.arg == "key" else self.read(each.value)
            for each in node.keywords
        }

        def call(frame: Frame) -> Json:
            arguments = [step(frame) for step in given]
            by_name = {key: step(frame) for key, step in named.items()} if named else {}
            try:
                return function(frame.steps, *arguments, **by_name)
            except TypeError:
                raise FormulaUseError(f"{name} does not take these arguments") from None
            except OverflowError:
                raise FormulaUseError("the result is outside the range of a 64-bit float") from None

        return call

    def _method(self, node: ast.Call, func: ast.Attribute, arguments: list[FormulaStep]) -> FormulaStep:
        if node.keywords:
            raise_formula_error(node, "methods take no arguments by name here")
        if func.attr not in _METHODS:
            raise_formula_error(
                node, f"there is no method {clip(func.attr, 60)!r} for values; there are: {', '.join(sorted(_METHODS))}"
            )
        value = self.read(func.value)
        return lambda frame: call_method(frame.steps, value(frame), func.attr, [step(frame) for step in arguments])


def _allowed(node: ast.AST, name: str) -> str:
    if name in ("state", "input", "item", "index") or name in FUNCTIONS or name in CONSTANTS:
        raise_formula_error(node, f"{name!r} has a meaning of its own here; take another name")
    return name


def _names(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Name):
        return [_allowed(target, target.id)]
    if not isinstance(target, ast.Tuple | ast.List):
        raise_formula_error(target, "a comprehension gives its items names: for host in …")
    return [name for each in target.elts for name in _names(each)]


def _copied(frame: Frame) -> dict[str, Json]:
    """Return a copy of the variables, so that their changes can be undone."""
    frame.steps.take(len(frame.variables) // CHARACTERS)
    return dict(frame.variables)


def _assign(steps: EvaluationSteps, target: ast.expr, value: Json, variables: dict[str, Json]) -> None:
    """Assign the values to the names of `target`; each takes a step."""
    steps.left -= 1
    if steps.left < 0:
        raise OutOfStepsError
    if isinstance(target, ast.Name):
        variables[target.id] = value
        return
    assert isinstance(target, ast.Tuple | ast.List)
    if not isinstance(value, list) or len(value) != len(target.elts):
        raise FormulaUseError(f"{len(target.elts)} names take a list of so many items, not {kind_of_value(value)}")
    for each, item in zip(target.elts, value, strict=True):
        _assign(steps, each, item, variables)


MAX_FORMULA: Final = 2_000
"""Characters of a formula. A larger computation is a tool's work."""
MAX_NODES: Final = 600
"""Maximum of parts of a formula: each is parsed, and kept, in a workflow's task."""

_BEFORE_NAME: Final = re.compile(rf"{DAGGER}(?=[^\W\d])")
_LITERALS: Final = re.compile(r"""[fFrRbBuU]{0,2}("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""")


@dataclass(frozen=True, slots=True)
class Formula:
    """A parsed formula. `references` are the values that it reads, in the order of `evaluate`'s arguments.

    Those in `optional` may be `MISSING`: an evaluation that reads such a value raises `MissingValueError`.
    """

    text: str
    references: tuple[Reference, ...]
    optional: frozenset[Reference]
    step: FormulaStep = field(repr=False, compare=False)

    def evaluate(self, values: Sequence[Json], steps: EvaluationSteps | None = None) -> Json:
        """Return the formula's value, which is JSON: numbers finite, the work bounded by `steps`. Raises
        `FormulaError`."""
        steps = EvaluationSteps() if steps is None else steps
        with _in_words():
            return self.step(Frame(values, steps))

    def measured(self, values: Sequence[Json], steps: EvaluationSteps, sizes: Sizes, most: int) -> tuple[Json, int]:
        """Return the formula's value, and the number of its bytes that are new.

        Measuring, copying and encoding them counts in `steps`, too (R18.9). Raises `TooManyBytesError` as soon as the
        value has more than `most` bytes.
        """
        value = self.evaluate(values, steps)
        _, new, looked_at = sizes.of_composed(value, frozenset(map(id, values)), most)
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
            f"the formulas of one call take more than {MAX_FORMULA_STEPS:,} steps; let a tool do so much",
            1,
            1,
        ) from None


@lru_cache(maxsize=512)
def parse_formula(text: str) -> Formula:
    """Parse a formula. Raises `FormulaError`, with line and column, for an invalid formula."""
    if len(text) > MAX_FORMULA:
        raise FormulaError(f"a formula of {len(text):,} characters; at most {MAX_FORMULA:,} are read", 1, 1)
    source = _without_daggers(text).strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = parse_expression(source)
    except SyntaxError as error:
        column = error.offset or len(source) + 1
        raise FormulaError(f"the expression is not valid: {error.msg}", error.lineno or 1, column) from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise FormulaError(f"this cannot be read: {str(error) or 'it is nested too deeply'}", 1, 1) from None
    nodes = list(ast.walk(body))
    if len(nodes) >= MAX_NODES:  # the expression itself counts as one
        raise FormulaError(f"the formula has more than {MAX_NODES} parts; let a tool do so much", 1, 1)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            _check_text(node, node.value)
    reader = FormulaParser()
    step = reader.read(body)
    optional = frozenset(reader.references.keys() - reader.needed)
    return Formula(text, tuple(reader.references), optional, step)


def _check_text(node: ast.Constant, text: str) -> None:
    try:
        check(text, source="the text")
    except JsonError as error:
        raise_formula_error(node, str(error))


def readable_formula(text: str) -> str | None:
    """Return the formula in Python's own notation, without daggers; `None` for an invalid formula."""
    try:
        parse_formula(text)
    except FormulaError:
        return None
    return _without_daggers(text).strip()


def _without_daggers(text: str) -> str:
    """Return `†state.x` as `state.x`; inside a string `†` stays, except in the braces of an f-string."""
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


# An *expression* joins references (R3.3); a *formula* computes with their values: `[h.name for h in state.hosts if
# h.cpu > 90]`. It is parsed by `ast` and never executed: the allowed nodes are translated into small functions that
# count their steps. So a formula is deterministic. Its steps, its memory and the size of its value are bounded.
# `state.l.cpu[0]` and `†state.l.cpu[0]` are the same reference.


def is_function(name: str) -> bool:
    """Whether formulas have a function of that name: `len`, `sum`, …"""
    return name in FUNCTIONS


def is_name(name: str) -> bool:
    """Whether a loop may use that name for its items, because the name has no other meaning in a formula."""
    return name not in FUNCTIONS and name not in CONSTANTS and not keyword.iskeyword(name)


def is_method(name: str) -> bool:
    """Whether a text, a list or an object has a method of that name: `lower`, `get`, …"""
    return any(name in methods for methods in METHODS.values())
