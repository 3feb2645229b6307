"""Names that the rounds of a script's `while` pass on."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from perdure.models.dialects._script_calls import WRITTEN, root_name
from perdure.models.dialects._script_syntax import as_branches, find_assigned, without_continue
from perdure.plan import IF


@dataclass(frozen=True, slots=True)
class _Branch:
    """A condition under which statements of a round run."""

    number: int
    parts: frozenset[Hashable] = frozenset()
    """What is known to hold in it: each part as text, with the versions of its names."""
    whole: bool = False
    """Whether `parts` is the full condition: the branch runs exactly where they hold."""


class RoundReader(ast.NodeVisitor):
    """An analysis of one round of a `while`: which names it may read before it assigns them."""

    def __init__(self, has_calls: Callable[[ast.AST], bool]) -> None:
        self.kept_where_left_out: dict[str, None] = {}
        """Names that are read where a call of the round that assigns them may have been left out."""
        self._has_calls = has_calls
        self._optional: dict[str, None] = {}
        """Names that Python may not read in the first round, by a condition, or because it assigns them before."""
        self._needed: set[str] = set()
        self._branches: list[_Branch] = []
        self._count = 0
        self._writes: dict[str, list[list[_Branch]]] = {}
        """Name → the conditions of each assignment so far."""
        self._left_out: set[str] = set()
        """Names that a call, or an inner loop, may leave out."""
        self._versions: dict[str, int] = {}
        self._bound: list[str] = []
        self._loops = 0

    @property
    def optional(self) -> list[str]:
        """The names that the rounds pass on, and that need no value before the first round."""
        return [name for name in self._optional if name in self._writes and name not in self._needed]

    # Reads and writes.

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._write(node)
        else:
            self._read(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == "state":
            self._read(node.attr)
        else:
            self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            for name in WRITTEN.findall(node.value):
                self._read(name)

    def _read(self, name: str) -> None:
        if name in self._bound or self._is_assigned(name):
            return
        if name in self._left_out:
            self.kept_where_left_out[name] = None
        if self._branches or name in self._writes:
            self._optional[name] = None
        else:
            self._needed.add(name)

    def _is_assigned(self, name: str) -> bool:
        """Whether an assignment was made wherever this place is reached."""
        numbers = {each.number for each in self._branches}
        parts = {part for each in self._branches for part in each.parts}
        return any(
            all(each.number in numbers or (each.whole and each.parts <= parts) for each in branches)
            for branches in self._writes.get(name, ())
        )

    def _write(self, target: ast.expr, *, reads: bool = False) -> None:
        for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            name = root_name(each)
            if reads or not isinstance(each, ast.Name):
                self._read(name)
            if isinstance(each, ast.Subscript):
                self.visit(each.slice)
            self._record(name)

    def _record(self, name: str) -> None:
        self._writes.setdefault(name, []).append(list(self._branches))
        self._versions[name] = self._versions.get(name, 0) + 1
        if self._branches and not self._loops:
            self._left_out.add(name)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assign(node.targets, node.value)

    visit_BranchAssign = visit_Assign

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign([node.target], node.value)

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        if isinstance(value, ast.IfExp) and self._has_calls(value):
            self.visit_If(as_branches(targets, value))
            return
        self.visit(value)
        has_condition = isinstance(value, ast.Call) and any(keyword.arg == IF for keyword in value.keywords)
        with self._under() if has_condition else nullcontext():
            for target in targets:
                self._write(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self._write(node.target, reads=True)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._write(node.target)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend"):
            self._write(node.func.value)

    # Conditions.

    @contextmanager
    def _under(self, parts: Sequence[ast.expr] = (), *, negated: bool = False) -> Iterator[None]:
        """Read statements that run only where all parts hold, or where not all of them hold."""
        known = [part for part in parts if not self._has_calls(part)]
        whole = bool(parts) and len(known) == len(parts)
        if negated:
            test = known[0] if len(known) == 1 else ast.BoolOp(ast.And(), known)
            known = [ast.UnaryOp(ast.Not(), test)] if whole else []
        self._count += 1
        self._branches.append(_Branch(self._count, frozenset(map(self._as_part, known)), whole))
        yield
        self._branches.pop()

    def _as_part(self, node: ast.expr) -> Hashable:
        names = sorted({each.id for each in ast.walk(node) if isinstance(each, ast.Name)})
        return ast.unparse(node), tuple(self._versions.get(name, 0) for name in names)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        self.visit(node.test)
        parts, before, sure = _conjunction(node.test), dict(self._versions), []
        for part, negated in ((node.body, False), (node.orelse, True)):
            with self._under(parts, negated=negated):
                for each in part if isinstance(part, list) else [part]:
                    self.visit(each)
                sure.append({name for name in self._writes if self._is_assigned(name)})
        for name in sure[0] & sure[1]:
            if self._versions.get(name) != before.get(name):
                self._writes[name].append(list(self._branches))

    visit_IfExp = visit_If

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        first, *rest = node.values
        self.visit(first)
        for at, each in enumerate(rest, 1):
            with self._under(node.values[:at] if isinstance(node.op, ast.And) else ()):
                self.visit(each)

    # Loops.

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        with self._binding(node.target):
            self._rounds(node.body, ())
        for name in find_assigned(node.body):
            self._record(name)  # a list, perhaps an empty one

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._rounds(node.body, _conjunction(node.test))
        with self._under():  # there may be no round
            for name in find_assigned(node.body):
                self._record(name)

    def _rounds(self, body: list[ast.stmt], parts: Sequence[ast.expr]) -> None:
        self._loops += 1
        with self._under(parts):
            for each in without_continue(body):
                self.visit(each)
        self._loops -= 1

    @contextmanager
    def _binding(self, *targets: ast.AST) -> Iterator[None]:
        before = list(self._bound)
        self._bound += [
            each.id if isinstance(each, ast.Name) else each.arg
            for target in targets
            for each in ast.walk(target)
            if isinstance(each, ast.Name | ast.arg)
        ]
        yield
        self._bound = before

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        with self._binding(*(each.target for each in node.generators)), self._under():
            for each in node.generators:
                for part in ([] if each is node.generators[0] else [each.iter]) + each.ifs:
                    self.visit(part)
            for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                self.visit(part)

    visit_GeneratorExp = visit_SetComp = visit_DictComp = visit_ListComp

    def visit_Lambda(self, node: ast.Lambda) -> None:
        with self._binding(node.args):
            self.visit(node.body)


def _conjunction(test: ast.expr) -> list[ast.expr]:
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
