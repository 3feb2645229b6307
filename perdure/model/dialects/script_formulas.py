"""Formulas in a script: an argument that computes, as the formula that it is everywhere else (R16.3)."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any, Final

from perdure.values.formulas import is_function

_COMPUTES: Final = (
    ast.BinOp,
    ast.Compare,
    ast.IfExp,
    ast.JoinedStr,
    ast.ListComp,
    ast.GeneratorExp,
    ast.DictComp,
    ast.UnaryOp,
)


def computes(node: ast.expr) -> bool:
    """Whether the node is computed, and is no reference, nor references joined by `or` and `and`, which are looked up (R3.3)."""
    if isinstance(node, ast.Call):
        # A call of a tool inside another is none: which function a name is, formulas know.
        return isinstance(node.func, ast.Attribute) or (isinstance(node.func, ast.Name) and is_function(node.func.id))
    if isinstance(node, ast.BoolOp):
        return any(map(computes, node.values))
    if isinstance(node, ast.Subscript):
        fixed = isinstance(node.slice, ast.Constant) and not isinstance(node.slice.value, float | bool)
        return not fixed or computes(node.value)
    if isinstance(node, ast.Attribute):
        return computes(node.value)
    return isinstance(node, _COMPUTES)


def formula_text(node: ast.expr, kinds: Collection[str]) -> str:
    """The formula as it is written everywhere: names that a script keeps results under are the state's."""
    named: ast.expr = _Named(kinds).visit(node)
    return ast.unparse(named)


class _Named(ast.NodeTransformer):
    """`profile.age` as `state.profile.age`, where no comprehension gives the name."""

    def __init__(self, kinds: Collection[str]) -> None:
        self._kinds = kinds
        self._bound: list[str] = []

    def visit_Name(self, node: ast.Name) -> ast.expr:
        known = node.id in self._kinds or node.id in self._bound or node.id in ("true", "false", "null")
        if known or is_function(node.id) or isinstance(node.ctx, ast.Store):
            return node
        return ast.copy_location(ast.Attribute(ast.Name("state", ast.Load()), node.id, ast.Load()), node)

    def _scoped(self, node: Any) -> Any:
        before = list(self._bound)
        for generator in node.generators:
            generator.iter = self.visit(generator.iter)
            self._bound += [each.id for each in ast.walk(generator.target) if isinstance(each, ast.Name)]
            generator.ifs = [self.visit(test) for test in generator.ifs]
        for field in ("elt", "key", "value"):
            if hasattr(node, field):
                setattr(node, field, self.visit(getattr(node, field)))
        self._bound = before
        return node

    visit_ListComp = visit_GeneratorExp = visit_DictComp = visit_SetComp = _scoped

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        before = list(self._bound)
        self._bound += [each.arg for each in node.args.args]
        node.body = self.visit(node.body)
        self._bound = before
        return node
