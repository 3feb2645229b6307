"""Rewrites of a script's syntax tree, and the names and values that its statements assign or change."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Final

from perdure.models.dialects._script_calls import root_name
from perdure.values.formulas import is_method, parse_statements


class _Awaited(ast.NodeTransformer):
    """A rewrite of `await f()` to `f()`: the plan itself orders calls."""

    def visit_Await(self, node: ast.Await) -> ast.expr:
        value: ast.expr = self.visit(node.value)
        return value if isinstance(value, ast.Call) else ast.copy_location(ast.Await(value), node)


def remove_await(statement: ast.stmt) -> ast.stmt:
    found: ast.stmt = _Awaited().visit(statement)
    return found


def without_continue(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return `if x: continue` as `if x: pass`, with the later statements under `else`."""
    for at, statement in enumerate(body):
        if isinstance(statement, ast.Continue):
            return [*body[:at]] or [ast.copy_location(ast.Pass(), statement)]
        if isinstance(statement, ast.If):
            rest = list(body[at + 1 :])
            for here, there in ((statement.body, statement.orelse), (statement.orelse, statement.body)):
                if here and isinstance(here[-1], ast.Continue):
                    kept = here[:-1] or [ast.copy_location(ast.Pass(), statement)]
                    other = without_continue([*there, *rest])
                    branches = (kept, other) if here is statement.body else (other or kept, kept)
                    return [*body[:at], ast.copy_location(ast.If(statement.test, *map(list, branches)), statement)]
    return list(body)


def as_loops(node: ast.ListComp | ast.GeneratorExp) -> ast.stmt:
    """Return a comprehension that is assigned to no name as a loop."""
    made: ast.stmt = ast.copy_location(ast.Expr(node.elt), node.elt)
    for each in reversed(node.generators):
        for test in reversed(each.ifs):
            made = ast.copy_location(ast.If(test, [made], []), test)
        loop = ast.AsyncFor if each.is_async else ast.For
        made = ast.copy_location(loop(each.target, each.iter, [made], []), each.iter)
    return made


class BranchAssign(ast.Assign):
    """An assignment in a branch of `x = a or b if y else g()`: its `and` and `or` choose by truth, as in any expression."""


def as_branches(targets: list[ast.expr], value: ast.IfExp) -> ast.If:
    """Return `x = f() if y else g()` as a condition with two branches; without targets `f() if y else None` as a call
    in one of them."""

    def branch(each: ast.expr) -> ast.stmt:
        if targets:
            return BranchAssign(copy.deepcopy(targets), each)
        return ast.Pass() if isinstance(each, ast.Constant) else ast.Expr(each)

    first, other = (ast.copy_location(branch(each), value) for each in (value.body, value.orelse))
    return ast.copy_location(ast.If(value.test, [first], [other]), value)


def written_out(node: ast.AugAssign) -> ast.expr:
    """Return the value that `x += 1` assigns: `x + 1`."""
    return ast.copy_location(ast.BinOp(loaded(node.target), node.op, node.value), node)


def loaded(target: ast.expr) -> ast.expr:
    """Return the expression that reads a target."""
    read = copy.deepcopy(target)
    for each in ast.walk(read):
        if hasattr(each, "ctx"):
            each.ctx = ast.Load()
    return read


def parts_of(value: ast.expr, count: int) -> list[ast.expr]:
    """Return the values of `count` names before `=`, one for each."""
    if isinstance(value, ast.Tuple | ast.List):
        return value.elts
    return [
        ast.copy_location(ast.Subscript(copy.deepcopy(value), ast.Constant(at), ast.Load()), value)
        for at in range(min(count, 50))
    ]


def find_assigned(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that the statements assign, or append to."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from (root_name(each) for each in getattr(target, "elts", [target]))
            elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
                yield root_name(node.target)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield from [root_name(node.func.value)] if node.func.attr in ("append", "extend") else []


MUTATING_METHODS: Final = frozenset(
    {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update"}
    | {"add", "difference_update", "discard", "intersection_update", "symmetric_difference_update"}
)
"""The methods of Python's lists, dicts and sets that change their object."""
_SEARCH_LIMIT: Final = 400
"""Characters of a line that are searched for targets."""
# The beginnings of unreadable lines: a block's word, `if ok: ` before a statement, `x += `, and `xs.sort(`. Each pattern
# takes linear time: no two of its repetitions can share a character.
_BLOCK: Final = re.compile(r"\s*(?:async\s+)?(?:if|elif|else|for|while|with|try|except|finally|match|case|def|class)\b")
_ASSIGNS: Final = re.compile(r"(?:\*\*|//|<<|>>|[-+*/%@&|^])=(?!=)|(?<![=!<>])=(?!=)")
_TARGET: Final = re.compile(r"\(?([A-Za-z_*][\w., \[\]\"'*-]*)\)?")
_TYPE: Final = re.compile(r"[\w., \[\]\"'|]*")
_METHOD: Final = re.compile(rf"(?:{_BLOCK.pattern}.*?:)?\s*([A-Za-z_][\w.\[\]\"'-]*\.\w+\()")


def find_changed(statement: ast.stmt, is_tool: Callable[[ast.AST], bool]) -> Iterator[ast.expr]:
    """Yield the targets that the statement would assign or delete, and the values that it would change in place."""
    # A comprehension's own names are not assigned outside of it.
    own = {
        id(each)
        for node in ast.walk(statement)
        if isinstance(node, ast.comprehension)
        for each in ast.walk(node.target)
    }
    alone = statement.value if isinstance(statement, ast.Expr) else None
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            if isinstance(node.ctx, ast.Store | ast.Del) and id(node) not in own:
                yield node
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and not is_tool(node):
                name = node.func.attr
                if name in MUTATING_METHODS or (node is alone and not is_method(name)):
                    yield node.func.value
        else:
            # Imports, `except … as`, `def`, `class` and the patterns of `match` name their targets by text.
            names = (getattr(node, field, None) for field in ("asname", "name", "rest"))
            if name := next((each for each in names if isinstance(each, str)), ""):
                yield ast.Name(name.partition(".")[0], ast.Store())


_EXITS: Final = frozenset({"exit", "quit", "sys.exit", "os._exit"})
_END_IN_TEXT: Final = re.compile(r"(?:return|raise|assert|(?:sys\.|os\._)?exit|quit)\b")


def find_end(statement: ast.stmt, is_tool: Callable[[ast.AST], bool]) -> ast.AST | None:
    """Return the part of the statement that may end the script in Python, so that no later line is reached."""
    left: list[ast.AST] = [statement]
    while left:
        node = left.pop()
        if isinstance(node, ast.Return | ast.Raise | ast.Assert):
            return node
        if isinstance(node, ast.Call) and not is_tool(node):
            func, name = node.func, getattr(node.func, "id", "")
            if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
                name = f"{func.value.id}.{func.attr}"
            if name in _EXITS:
                return node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            left += ast.iter_child_nodes(node)
    return None


def has_end_in_text(lines: Sequence[str]) -> bool:
    """Whether a line of an unreadable statement may end the script."""
    shown = lines if _BLOCK.match(lines[0]) else lines[:1]
    return any(_END_IN_TEXT.match(_body(line[:_SEARCH_LIMIT]).lstrip()) for line in shown)


def find_changes_in_text(lines: Sequence[str]) -> Iterator[ast.stmt]:
    """Yield the assignments and method calls at the beginnings of an unreadable statement's lines."""
    shown = lines if _BLOCK.match(lines[0]) else lines[:1]
    for part in (part[:_SEARCH_LIMIT] for line in shown for part in line.split(";")):
        *before, _ = _ASSIGNS.split(_body(part))
        found = [f"{target} = 0" for target in takewhile(bool, map(_target, before))]
        if (method := _METHOD.match(part)) is not None:
            found.append(f"{method[1]})")
        for text in found:
            try:
                yield from parse_statements(text)
            except (SyntaxError, ValueError):
                continue


def _body(line: str) -> str:
    """Return the part of a line behind the head of a block, such as `if f(x=1): `; a line without such a head whole."""
    if not _BLOCK.match(line):
        return line
    depth, quote = 0, ""
    for at, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign == ":" and depth == 0:
            return line[at + 1 :].lstrip()
        else:
            depth += (sign in "([{") - (sign in ")]}")
    return line


def _target(text: str) -> str:
    """Return the target in the text before `=`, without `if ok:` before it and a type after it; `""` for none."""
    head, *rest = text.split(":")
    parts = rest if rest and _BLOCK.match(head) else [head, *rest]
    if len(parts) > 1 and _TYPE.fullmatch(parts[-1]) and (found := _TARGET.fullmatch(parts[-2].strip())):
        return found[1]
    found = _TARGET.fullmatch(parts[-1].strip()) if parts is rest or not rest else None
    return "" if found is None else found[1]
