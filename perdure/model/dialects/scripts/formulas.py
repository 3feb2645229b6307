"""Formulas in a script: what computes, as the formula that it is everywhere else (R16.3)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from perdure.values.formulas import is_function
from perdure.values.references import Reference

Resolve: TypeAlias = Callable[[ast.Name], Reference]
"""What a name stands for: a result, an item of a loop, a kind of data."""

_COMPUTES: Final = (
    ast.BinOp,
    ast.Compare,
    ast.IfExp,
    ast.JoinedStr,
    ast.ListComp,
    ast.GeneratorExp,
    ast.DictComp,
    ast.SetComp,
    ast.Set,
    ast.UnaryOp,
    ast.Call,
)


def computes(node: ast.expr) -> bool:
    """Whether the node is computed, and is no reference, nor references joined by `or` and `and`, which are looked up (R3.3)."""
    if isinstance(node, ast.BoolOp):
        return any(computes(value) or isinstance(value, ast.Constant | ast.List | ast.Dict) for value in node.values)
    if isinstance(node, ast.Subscript):
        fixed = isinstance(node.slice, ast.Constant) and not isinstance(node.slice.value, float | bool)
        return not fixed or computes(node.value)
    if isinstance(node, ast.Attribute):
        return computes(node.value)
    if isinstance(node, ast.List | ast.Tuple):
        return any(isinstance(item, ast.Starred) for item in node.elts)
    if isinstance(node, ast.Dict):
        return not all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys)
    return isinstance(node, _COMPUTES)


def formula_text(node: ast.expr, resolve: Resolve) -> str:
    """The formula as it is written everywhere: names that a script keeps results under are the state's."""
    named: ast.expr = _Named(resolve).visit(node)
    return ast.unparse(named)


def path_node(reference: Reference, like: ast.AST) -> ast.expr:
    """The reference as a formula writes it: `state.profile`, `_pair[0]`."""
    node: ast.expr = ast.Name(reference.kind, ast.Load())
    for step in reference.path:
        if isinstance(step, str) and step.isidentifier():
            node = ast.Attribute(node, step, ast.Load())
        else:
            node = ast.Subscript(node, ast.Constant(step), ast.Load())
    return ast.fix_missing_locations(ast.copy_location(node, like))


class _Named(ast.NodeTransformer):
    """`profile.age` as `state.profile.age`, where no comprehension gives the name."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._bound: list[str] = []

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._bound or node.id in ("true", "false", "null") or isinstance(node.ctx, ast.Store):
            return node
        return path_node(self._resolve(node), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(each) for each in node.args]
        for keyword in node.keywords:
            # key=len is a function's name.
            named = isinstance(keyword.value, ast.Name) and is_function(keyword.value.id)
            keyword.value = keyword.value if named else self.visit(keyword.value)
        return node

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
