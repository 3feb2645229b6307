"""What may stand in a script's call, as JSON: literals, and names that become references (R9.2). Nothing is evaluated."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from typing import Final

from perdure.errors import FormulaError
from perdure.model.dialects.script_formulas import computes, formula_text
from perdure.model.dialects.script_writer import CONSTANTS
from perdure.plan.control.iteration import AS, AT, EACH, INDEX, ITEM, UNTIL
from perdure.values.formulas import parse_formula
from perdure.values.jsons import Json
from perdure.values.references import Reference
from perdure.values.templates import EXPR

_ALLOWED: Final = "arguments are names, text, numbers, True, False, None, lists, dicts and expressions"
_HINTS: Final[dict[type[ast.AST], str]] = {
    ast.Call: "a call cannot stand inside another: give it a line and a name of its own, and use the name here",
    ast.Lambda: "a lambda is not data",
    ast.NamedExpr: "`:=` is not read: name results before `=` at the line's beginning",
}
_LONG: Final = 2000
"""Characters from which on a statement is looked through before it is parsed."""
_F_STRING: Final = re.compile(r"""[rR]?[fF][rR]?["']""")
_LARGEST: Final = 1.7976931348623157e308
"""Beyond it no 64-bit float lies, and other programs that read the JSON would fail."""


class NotAllowedError(Exception):
    """Something that a script cannot say; `node` is where."""

    def __init__(self, node: ast.AST, message: str) -> None:
        super().__init__(message)
        self.node = node
        self.message = message

    def position(self, lines: Sequence[str]) -> tuple[int, int]:
        """Line and column from 1; `ast` counts bytes."""
        number = min(getattr(self.node, "lineno", 1), len(lines))
        before = lines[number - 1].encode(errors="replace")[: getattr(self.node, "col_offset", 0)]
        return number, len(before.decode(errors="replace")) + 1


def parse(source: str) -> list[ast.stmt]:
    """The statements of a script's text. Raises `SyntaxError`, or `NotAllowedError` for what costs too much to be read at all."""
    # Python 3.11 reads an f-string in the square of its length.
    if len(source) > _LONG and _has_f_string(source):
        message = f"a statement with an f-string in it may have {_LONG:,} characters"
        raise NotAllowedError(ast.Pass(lineno=1, col_offset=0), message)
    return ast.parse(source).body


def _has_f_string(source: str) -> bool:
    try:
        return any(_F_STRING.match(token.string) for token in tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return False


class Values:
    """Turns nodes into JSON."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._kinds = {"input", "state", *kinds}

    def value(self, node: ast.expr) -> Json:
        """Raises `NotAllowedError`."""
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            number = self._constant(node.operand)
            if isinstance(number, int | float) and not isinstance(number, bool):
                return -number
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(child) for child in node.elts]
        if isinstance(node, ast.Dict):
            return {self._key(key, node): self.value(child) for key, child in zip(node.keys, node.values, strict=True)}
        if isinstance(node, ast.Name) and node.id in CONSTANTS:
            return CONSTANTS[node.id]
        return {EXPR: self.formula(node)} if computes(node) else self._expression(node)

    def formula(self, node: ast.expr) -> str:
        """What is computed, as a formula's text (R16.3)."""
        text = formula_text(node, self._kinds)
        try:
            parse_formula(text)
        except FormulaError as error:
            raise NotAllowedError(node, error.message) from None
        return text

    def inside(self, call: ast.Call) -> Values:
        """What a call that says itself how often it is made may name: the item and its place too (R16.1)."""
        given = {each.arg: each.value for each in call.keywords}
        if EACH not in given and UNTIL not in given:
            return self
        names = [(given.get(key), default) for key, default in ((AS, ITEM), (AT, INDEX))]
        return Values([*self._kinds, *(_constant_text(node) or default for node, default in names)])

    def until(self, node: ast.expr) -> Json:
        """The condition of a loop, in which `output` is the delegate's."""
        return Values([*self._kinds, "output"]).value(node)

    def _constant(self, node: ast.Constant) -> Json:
        value = node.value
        if isinstance(value, str | bool) or value is None:
            return value
        if isinstance(value, int | float):
            if abs(value) > _LARGEST:
                raise NotAllowedError(node, "the number is outside the range of a 64-bit float")
            return value
        raise NotAllowedError(node, f"{type(value).__name__} is not JSON; {_ALLOWED}")

    def _key(self, key: ast.expr | None, node: ast.Dict) -> str:
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise NotAllowedError(key or node, "the keys of a dict are text")
        return key.value

    def _expression(self, node: ast.expr) -> str:
        """A name, or names joined by `or` and `and`, as an expression (R3.3)."""
        if not isinstance(node, ast.BoolOp):
            return str(self.reference(node))
        word = " || " if isinstance(node.op, ast.Or) else " && "
        parts = [self._expression(child) for child in node.values]
        return word.join(
            f"({part})" if isinstance(child, ast.BoolOp) and isinstance(child.op, ast.Or) else part
            for child, part in zip(node.values, parts, strict=True)
        )

    def reference(self, node: ast.expr) -> Reference:
        """`profile.items[0]["odd key"]` as `†state.profile.items[0]["odd key"]`."""
        path: list[str | int] = []
        start = node
        while not isinstance(node, ast.Name):
            if isinstance(node, ast.Attribute):
                path.append(self._name(node.attr, node))
                node = node.value
            elif isinstance(node, ast.Subscript):
                path.append(self._index(node))
                node = node.value
            else:
                what = _HINTS.get(type(node), f"{words(node)} is not read here; {_ALLOWED}")
                raise NotAllowedError(start if node is start else node, what)
        root = self._name(node.id, node)
        path.reverse()
        return Reference(root, tuple(path)) if root in self._kinds else Reference("state", (root, *path))

    def output_path(self, targets: Sequence[ast.expr]) -> str:
        """`a, error = b, error = f()` as `†state.a && †state.b || †state.error` (R4.3)."""
        rows = [list(each.elts) if isinstance(each, ast.Tuple | ast.List) else [each] for each in targets]
        if len({len(row) for row in rows}) != 1 or not rows[0]:
            raise NotAllowedError(targets[-1], "every name before = needs as many alternatives as the first")
        columns = zip(*rows, strict=True)
        return " || ".join(" && ".join(dict.fromkeys(str(self._target(node)) for node in column)) for column in columns)

    def _target(self, node: ast.expr) -> Reference:
        reference = self.reference(node)
        if reference.kind != "state" or not reference.path or (isinstance(node, ast.Name) and node.id in CONSTANTS):
            raise NotAllowedError(node, f"results are kept in the state; write state.{reference.kind} = …")
        return reference

    def dotted(self, node: ast.expr) -> str:
        """The tool that is called, as written."""
        parts: list[str] = []
        start = node
        while isinstance(node, ast.Attribute):
            parts.append(self._name(node.attr, node))
            node = node.value
        if not isinstance(node, ast.Name):
            raise NotAllowedError(start, "what is called must be a tool's name")
        return ".".join([self._name(node.id, node), *reversed(parts)])

    def _index(self, node: ast.Subscript) -> str | int:
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(index, str) or (isinstance(index, int) and not isinstance(index, bool) and index < 10**9):
            return index
        raise NotAllowedError(node.slice, 'an index is a number from 0 or text: items[0], d["odd key"]')

    @staticmethod
    def _name(name: str, node: ast.expr) -> str:
        if name.startswith("__"):
            raise NotAllowedError(node, f"{name} is no name of this plan")
        return name


def _constant_text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def words(node: ast.AST) -> str:
    """`ListComp` as `list comp`."""
    name = type(node).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
