"""A script's statements as calls of a plan: conditions become `_if`, loops calls with a body, values `_let` (R16.4)."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from typing import Final

from perdure.errors import JsonError
from perdure.model.dialects.scripts.blocks import Adding, Block, Collected, conjunction, root
from perdure.model.dialects.scripts.calls import Calls
from perdure.model.dialects.scripts.hints import BY_ITSELF, NO_BREAK, NO_PRINT, NOT_CHANGED, TWICE, statement_hint
from perdure.model.dialects.scripts.rewrites import (
    as_branches,
    as_loops,
    assigned,
    awaited,
    parts_of,
    without_continue,
    written_out,
)
from perdure.model.dialects.scripts.values import NotAllowedError
from perdure.model.wire import Vocabulary
from perdure.values.formulas import is_method
from perdure.values.jsons import Json, JsonObject, check
from perdure.values.templates import EXPR

_LONG_CONDITION: Final = 400
"""Characters from which on a condition is kept under a name: each call below it carries it."""


class ScriptPlan:
    """Reads statements one after the other, each with what those above it have named."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.outputs = 0
        self.output: Json = None
        self._names = vocabulary.names
        self._calls = Calls(vocabulary)
        self._top = Block({"input", "state", *vocabulary.kinds})
        self._in_branches = False
        """Whether what was given as the output so far stands under conditions."""

    def read(self, statement: ast.stmt) -> list[JsonObject]:
        """The calls that the statement is; all or none of them. Raises `NotAllowedError`."""
        top = self._top
        top.calls, top.guards = [], []
        before = self.outputs, self.output, self._in_branches
        versions = {name: len(each) for name, each in top.versions.items()}
        try:
            self._statement(awaited(statement), top)
        except (NotAllowedError, RecursionError):
            top.versions = {name: top.versions[name][:count] for name, count in versions.items()}
            if not isinstance(statement, ast.Expr):
                self.outputs, self.output, self._in_branches = before
            raise
        return top.calls

    def _body(self, statements: Sequence[ast.stmt], block: Block) -> None:
        for statement in statements:
            self._statement(statement, block)

    def _statement(self, node: ast.stmt, block: Block) -> None:
        if isinstance(node, ast.Expr):
            self._expression(node.value, block)
        elif isinstance(node, ast.Assign):
            self._assign(node.targets, node.value, block)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign([node.target], node.value, block)
        elif isinstance(node, ast.AugAssign):
            self._augment(node, block)
        elif isinstance(node, ast.If):
            self._if(node, block)
        elif isinstance(node, ast.For):
            self._for(node, block)
        elif isinstance(node, ast.While):
            self._while(node, block)
        elif isinstance(node, ast.Break):
            raise NotAllowedError(node, NO_BREAK[block.kind])
        elif not isinstance(node, ast.Pass):
            raise NotAllowedError(node, statement_hint(node))

    # Calls and values.

    def _expression(self, node: ast.expr, block: Block) -> None:
        if not isinstance(node, ast.Call):
            if isinstance(node, ast.ListComp | ast.GeneratorExp) and self._calls.has_calls(node.elt):
                self._statement(as_loops(node), block)
                return
            if isinstance(node, ast.IfExp):
                self._if(as_branches([], node), block)
                return
            raise NotAllowedError(node, "a call is needed here: name = tool(key=value)")
        if isinstance(node.func, ast.Name) and node.func.id not in self._names:
            if node.func.id == "output":
                self._take_output(node, block)
                return
            if node.func.id == "print":
                raise NotAllowedError(node, NO_PRINT)
        if isinstance(node.func, ast.Attribute) and not self._is_call(node, block):
            self._change(node, node.func, block)
            return
        block.emit(self._calls.raw(node, block), node)

    def _is_call(self, node: ast.expr, block: Block) -> bool:
        """Whether a whole statement or assigned value calls a tool, perhaps one that does not exist."""
        if not isinstance(node, ast.Call) or self._calls.is_tool(node):
            return isinstance(node, ast.Call)
        if not isinstance(node.func, ast.Attribute):
            return False
        return not (block.knows(root(node.func)) or root(node.func) in block.kinds or is_method(node.func.attr)) and (
            node.func.attr not in ("append", "extend")
        )

    def _change(self, node: ast.Call, func: ast.Attribute, block: Block) -> None:
        """`xs.append(x)`, which gives the name a new list."""
        name = root(func.value)
        known = isinstance(func.value, ast.Name) and func.attr in ("append", "extend") and len(node.args) == 1
        if not known or node.keywords:
            raise NotAllowedError(node, NOT_CHANGED.format(name=name or "rows"))
        self._add(func.value, node.args[0], "list" if func.attr == "extend" else "item", block)

    def _assign(self, targets: list[ast.expr], value: ast.expr, block: Block) -> None:
        calls = self._calls
        if (
            len(targets) == 1
            and isinstance(targets[0], ast.Subscript)
            and not isinstance(targets[0].slice, ast.Constant)
        ):
            self._fill(targets[0], value, block)
        elif len(targets) == 1 and isinstance(targets[0], ast.Tuple) and not self._is_call(value, block):
            self._unpack(targets[0], value, block)
        elif isinstance(value, ast.IfExp) and (calls.has_calls(value.body) or calls.has_calls(value.orelse)):
            self._if(as_branches(targets, value), block)
        elif self._is_call(value, block):
            assert isinstance(value, ast.Call)
            if isinstance(value.func, ast.Name) and value.func.id == "output" and "output" not in self._names:
                raise NotAllowedError(value, TWICE)
            raw = calls.raw(value, block)
            block.emit({**raw, "_outputPath": block.target(targets)}, value)
        elif (
            isinstance(value, ast.ListComp | ast.DictComp | ast.GeneratorExp)
            and calls.has_calls(value)
            and isinstance(targets[0], ast.Name)
            and len(targets) == 1
        ):
            self._check_itself(targets, value, block)
            block.target(targets)
            calls.comprehension(value, block, targets[0].id)
        else:
            self._check_itself(targets, value, block)
            raw = {"_tool": "_let", "value": block.values.value(calls.plain(value, block))}
            block.emit({**raw, "_outputPath": block.target(targets)}, value)

    def _fill(self, target: ast.Subscript, value: ast.expr, block: Block) -> None:
        """`loads[host.name] = load(host)`."""
        names = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
        if not isinstance(target.value, ast.Name) or target.value.id in names:
            raise NotAllowedError(target, NOT_CHANGED.format(name=root(target)))
        pair = ast.copy_location(ast.Tuple([target.slice, value], ast.Load()), value)
        self._add(target.value, pair, "pair", block)

    def _check_itself(self, targets: list[ast.expr], value: ast.expr, block: Block) -> None:
        """`x = x + 1` is only read in a `while`, whose rounds follow each other."""
        names = {root(target) for target in targets} & {
            each.id for each in ast.walk(value) if isinstance(each, ast.Name)
        }
        names -= block.kinds
        if names and block.kind != "while":
            raise NotAllowedError(targets[0], BY_ITSELF.format(name=min(names)))

    def _unpack(self, target: ast.Tuple, value: ast.expr, block: Block) -> None:
        parts = parts_of(value, len(target.elts))
        if not isinstance(value, ast.Tuple | ast.List) and self._calls.has_calls(value):
            raise NotAllowedError(value, "give the value one name, and take its parts from it: row[0], row[1]")
        if len(parts) != len(target.elts):
            raise NotAllowedError(target, f"{len(target.elts)} names cannot take {len(parts)} values")
        names = {root(each) for each in target.elts} & {
            each.id for each in ast.walk(value) if isinstance(each, ast.Name)
        }
        if names:
            raise NotAllowedError(target, BY_ITSELF.format(name=min(names)))
        for name, part in zip(target.elts, parts, strict=True):
            self._assign([name], part, block)

    def _augment(self, node: ast.AugAssign, block: Block) -> None:
        if isinstance(node.op, ast.Add) and isinstance(node.value, ast.List) and isinstance(node.target, ast.Name):
            self._add(node.target, node.value, "list", block)
            return
        self._assign([node.target], written_out(node), block)

    def _add(self, target: ast.expr, value: ast.expr, how: Adding, block: Block) -> None:
        """`xs.append(v)`: a list with one more; in a `for`, where no round sees another, a list of all after the loop."""
        assert isinstance(target, ast.Name)
        name = target.id
        if block.kind != "for" or name in block.written:
            value = self._calls.plain(value, block)
            old = ast.copy_location(ast.Name(name, ast.Load()), target)
            if how == "pair":
                assert isinstance(value, ast.Tuple)
                both: ast.expr = ast.Dict([None, value.elts[0]], [old, value.elts[1]])
            else:
                more = value if how == "list" else ast.List([value], ast.Load())
                both = ast.BinOp(old, ast.Add(), more)
            block.let(name, block.values.value(ast.fix_missing_locations(ast.copy_location(both, value))), value)
            return
        block.check_unread(name, target)
        before = block.collected.get(name)
        if before is not None and (before.how != how or not before.excludes(block.guards)):
            raise NotAllowedError(target, f"a round of this loop may add to {name} more than once: use a list for each")
        collected = before or Collected(block.counter.name(name), how)
        self._calls.compute(collected.kept, value, block)
        collected.guards.append(list(block.guards))
        block.collected[name] = collected

    def _take_output(self, call: ast.Call, block: Block) -> None:
        if block is not self._top:
            raise NotAllowedError(
                call, "output(…) stands outside of loops: what a loop gives is a list after it, and can be used there"
            )
        under = bool(block.guards)
        again = self.outputs and not (under and self._in_branches)
        self.outputs += 1
        if again:
            raise NotAllowedError(call, TWICE)
        if len(call.args) + bool(call.keywords) != 1:
            raise NotAllowedError(call, "output takes one value, or keywords: output(text=summary)")
        value: Json = (
            block.values.value(self._calls.plain(call.args[0], block))
            if call.args
            else self._calls.keywords(call, block)
        )
        try:
            check(value)
        except JsonError as error:
            raise NotAllowedError(call, str(error)) from None
        if (
            under and not self._in_branches
        ):  # nothing, where no branch with an output is taken; and nothing of an earlier answer
            held, block.guards = block.guards, []
            block.let("_output", None, call)
            block.guards = held
        self._in_branches = under
        if under:
            block.let("_output", value, call)
            value = "†state._output"
        self.output = value

    # Conditions and loops.

    def _if(self, node: ast.If, block: Block) -> None:
        test = self._calls.plain(node.test, block)
        text = block.values.formula(test)
        names = {each.id for each in ast.walk(test) if isinstance(each, ast.Name)}
        if len(text) > _LONG_CONDITION or names & set(assigned([*node.body, *node.orelse])):
            text = self._calls.condition(text, block, node.test)
        for guard, body in ((text, node.body), (f"not ({text})", node.orelse)):
            if body:
                self._under(guard, body, block, node.test)

    def _under(self, guard: str, body: Sequence[ast.stmt], block: Block, node: ast.expr) -> None:
        before = block.guards
        block.guards = [*before, guard]
        if len(joined := conjunction(block.guards)) > _LONG_CONDITION:
            block.guards = []
            block.guards = [self._calls.condition(joined, block, node)]
        self._body(body, block)
        block.guards = before

    def _for(self, node: ast.For, block: Block) -> None:
        if node.orelse:
            raise NotAllowedError(node.orelse[0], "there is no else of a loop: write it behind the loop")
        loop = self._calls.loop(node.target, node.iter, block)
        inner = block.inside("for", loop)
        self._body(without_continue(node.body), inner)
        self._calls.end_loop(loop, inner, block, node)
        self._collect(inner, block, node)

    def _collect(self, inner: Block, block: Block, node: ast.AST) -> None:
        """What was appended to in a loop, as the list that it is after it."""
        for name, each in inner.collected.items():
            if each.how == "pair":
                pairs = {
                    EXPR: f"{{**state.{name}, **{{pair[0]: pair[1] for pair in state.{each.kept} if pair and len(pair) == 2}}}}"
                }
                if block.kind == "for" and name not in block.written:
                    raise NotAllowedError(
                        node, f"{name} is filled two loops above: write [[key, value] …] lists inside"
                    )
                block.let(name, pairs, node)
                continue
            whole, part = "[x for xs in {} if xs for x in xs]", "[x for x in {} if x is not None]"
            added = ast.parse((whole if each.how == "list" else part).format(each.kept), mode="eval").body
            for child in ast.walk(added):
                ast.copy_location(child, node)
            self._add(ast.copy_location(ast.Name(name, ast.Load()), node), added, "list", block)

    def _while(self, node: ast.While, block: Block) -> None:
        if node.orelse:
            raise NotAllowedError(node.orelse[0], "there is no else of a loop: write it behind the loop")
        if isinstance(node.test, ast.Constant):
            raise NotAllowedError(node.test, NO_BREAK["while"].replace("there is no break", "this would never end"))
        asked = self._calls.has_calls(node.test)
        first = block.counter.last
        test = self._calls.plain(copy.deepcopy(node.test), block)
        condition = block.values.formula(test)
        inner = block.inside("while")
        self._body(without_continue(node.body), inner)
        if asked:  # asked again at the end of each round, under the same names
            last, block.counter.last = block.counter.last, first
            self._calls.plain(copy.deepcopy(node.test), inner)
            block.counter.last = last
        if not inner.calls:
            raise NotAllowedError(node, "the loop calls nothing, so it would never end")
        block.emit({"_tool": "_while", "_while": condition, "_body": inner.calls}, node, sorted(inner.written))
        for name in sorted(inner.written):
            block.write(name, node)
