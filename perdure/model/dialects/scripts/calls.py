"""Calls in a script: their arguments, and calls that stand inside expressions, which are made first, under names of their own (R16.4)."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from typing import Any, Final

from perdure.model.dialects.scripts.blocks import Block, Loop, bind, conjunction
from perdure.model.dialects.scripts.hints import no_such_tool
from perdure.model.dialects.scripts.values import NotAllowedError, Values
from perdure.model.wire import Vocabulary
from perdure.plan.control.conditions import IF
from perdure.plan.loops.reading import OWN_TOOLS
from perdure.values.formulas import is_function, readable
from perdure.values.jsons import Json, JsonObject
from perdure.values.templates import EXPR

_OF_A_LOOP: Final = frozenset({"_each", "_until", "_outputMethod", "_instance", "_after"})


class Calls:
    """Reads calls and what they are given into a block's plan."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    # Which call is a tool's.

    def is_tool(self, node: ast.AST) -> bool:
        """Whether the node calls a tool; other calls are functions and methods of values."""
        if not isinstance(node, ast.Call):
            return False
        names = self._vocabulary.names
        if isinstance(node.func, ast.Name):
            name = node.func.id
            return name in names or not (is_function(name) or (names and hasattr(builtins, name)))
        written = _dotted(node.func)
        return written is not None and (written in names or written.removeprefix("functions.") in names)

    def has_calls(self, node: ast.AST) -> bool:
        return any(map(self.is_tool, ast.walk(node)))

    def raw(self, call: ast.Call, block: Block) -> JsonObject:
        """The call of a tool as the plan has it; calls among its arguments are planned before it."""
        written = block.values.dotted(call.func)
        names = self._vocabulary.names
        written = written if written in names else written.removeprefix("functions.")
        tool = names.get(written, written)
        if call.args and names and written not in names:
            raise NotAllowedError(call, no_such_tool(written, names))
        return {"_tool": tool, **self._arguments(call, tool, block)}

    def _arguments(self, call: ast.Call, tool: str, block: Block) -> JsonObject:
        """Arguments by name; those by position are the tool's parameters in their order."""
        parameters = self._vocabulary.parameters.get(tool, [])
        if len(call.args) > len(parameters):
            raise NotAllowedError(
                call.args[len(parameters)], f"{tool} takes no more arguments by position; name them: key=value"
            )
        values = _with_item(call, block)
        arguments = {
            name: values.value(self.plain(node, block)) for name, node in zip(parameters, call.args, strict=False)
        }
        for name, value in self.keywords(call, block, values).items():
            if name in arguments:
                raise NotAllowedError(call, f"{tool} is given {name!r} twice")
            # `from_` is `from`, which Python does not take as a name.
            wanted = name.removesuffix("_")
            arguments[wanted if name not in parameters and wanted in parameters else name] = value
        return arguments

    def keywords(self, call: ast.Call, block: Block, values: Values | None = None) -> JsonObject:
        values = block.values if values is None else values
        found: JsonObject = {}
        for argument in call.keywords:
            node = self.plain(argument.value, block)
            if argument.arg is None:
                more = values.value(node)
                if not isinstance(node, ast.Dict) or not isinstance(more, dict):
                    raise NotAllowedError(argument.value, '** takes a dict that is written out: **{"odd key": value}')
            elif argument.arg == "_until":
                more = {argument.arg: block.values_with(["output"]).value(node)}
            elif argument.arg == IF:
                more = {argument.arg: _condition(node, block, values)}
            else:
                more = {argument.arg: (block.values if argument.arg == "_each" else values).value(node)}
            for name, value in more.items():
                if name in found:
                    raise NotAllowedError(argument, f"{name!r} is given twice")
                if name == "_tool" or name.startswith("__"):
                    raise NotAllowedError(argument, f"{name!r} cannot be given")
                found[name] = value
        return found

    # Calls inside expressions.

    def plain(self, node: ast.expr, block: Block) -> ast.expr:
        """The expression with a name in the place of each call of a tool in it, in the order in which Python would make them."""
        if not self.has_calls(node):
            return node
        if self.is_tool(node):
            assert isinstance(node, ast.Call)
            return self._kept(node, block)
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.SetComp):
            return _name(self.comprehension(node, block), node)
        if isinstance(node, ast.BoolOp) and any(map(self.has_calls, node.values[1:])):
            return self._in_turn(node, block)
        if isinstance(node, ast.IfExp) and (self.has_calls(node.body) or self.has_calls(node.orelse)):
            return self._either(node, block)
        if isinstance(node, ast.NamedExpr):
            block.write(node.target.id, node.target)
            self.compute(node.target.id, node.value, block)
            return _name(node.target.id, node)
        if isinstance(node, ast.Lambda):
            raise NotAllowedError(node, "a tool cannot be called in a lambda: call it in a list, [tool(x) for x in xs]")
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.plain(value, block))
            elif isinstance(value, list):
                setattr(node, field, [self._part(each, block) for each in value])
        return node

    def _part(self, node: Any, block: Block) -> Any:
        if isinstance(node, ast.keyword):
            node.value = self.plain(node.value, block)
        return self.plain(node, block) if isinstance(node, ast.expr) else node

    def _kept(self, call: ast.Call, block: Block) -> ast.Name:
        raw = self.raw(call, block)
        name = block.counter.name(str(raw["_tool"]))
        block.written.add(name)
        block.emit({**raw, "_outputPath": f"†state.{name}"}, call)
        return _name(name, call)

    def _in_turn(self, node: ast.BoolOp, block: Block) -> ast.Name:
        """`a and f(b).ok`: what follows is only asked where what came before does not settle it."""
        name = block.counter.name("and" if isinstance(node.op, ast.And) else "or")
        first, *rest = node.values
        self.compute(name, first, block)
        for each in rest:
            settled = f"state.{name}" if isinstance(node.op, ast.And) else f"not state.{name}"
            with_it = self.condition(settled, block, node)
            block.guards.append(with_it)
            self.compute(name, each, block)
            block.guards.pop()
        return _name(name, node)

    def _either(self, node: ast.IfExp, block: Block) -> ast.Name:
        name = block.counter.name("if")
        test = self.condition(block.values.formula(self.plain(node.test, block)), block, node)
        for guard, value in ((test, node.body), (f"not ({test})", node.orelse)):
            block.guards.append(guard)
            self.compute(name, value, block)
            block.guards.pop()
        return _name(name, node)

    def condition(self, text: str, block: Block, node: ast.AST) -> str:
        """A condition's value now, under a name: it does not change with what is assigned behind it."""
        name = block.counter.name("is")
        block.let(name, {EXPR: f"bool({text})"}, node)
        return f"state.{name}"

    def compute(self, name: str, node: ast.expr, block: Block) -> None:
        """Keep what the expression gives under the name."""
        if self.is_tool(node):
            assert isinstance(node, ast.Call)
            raw = self.raw(node, block)
            block.written.add(name)
            block.emit({**raw, "_outputPath": f"†state.{name}"}, node)
        else:
            block.let(name, block.values.value(self.plain(node, block)), node)

    # Loops.

    def loop(self, target: ast.expr, source: ast.expr, block: Block) -> Loop:
        """What a `for` goes over, and its names."""
        source = self.plain(source, block)
        if (
            isinstance(source, ast.Call)
            and isinstance(source.func, ast.Name)
            and source.func.id == "enumerate"
            and len(source.args) == 1
            and not source.keywords
            and isinstance(target, ast.Tuple)
            and len(target.elts) == 2
            and isinstance(target.elts[0], ast.Name)
        ):
            place, at = bind(target.elts[0], block.depth)
            item, names = bind(target.elts[1], block.depth)
            return Loop(_listed(source.args[0], block), item, {**names, **at}, place)
        item, names = bind(target, block.depth)
        return Loop(_listed(source, block), item, names)

    def end_loop(self, loop: Loop, inner: Block, block: Block, node: ast.AST) -> None:
        """Plan the loop whose body was read. One plain call is a loop over itself."""
        calls = inner.calls
        if not calls:
            return
        plain = calls[0]["_tool"] not in OWN_TOOLS and not calls[0].keys() & _OF_A_LOOP
        # A condition that reads no item would be the whole loop's.
        asks = IF not in calls[0] or any(_reads(str(calls[0][IF]), name) for name in (loop.item, loop.place))
        if len(calls) == 1 and plain and asks and not block.guards:
            block.emit({**calls[0], **loop.keys()}, node)
        else:
            block.emit({"_tool": "_for", **loop.keys(), "_body": calls}, node, sorted(inner.written))
        for name in sorted(inner.written):
            block.write(name, node)

    def comprehension(self, node: ast.expr, block: Block, name: str | None = None) -> str:
        """`[tool(x) for x in xs if …]` as a loop; the name under which its list is kept."""
        assert isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.SetComp)
        name = name or block.counter.name("list")
        loop, asked = self._over(node.generators, block)
        inner = block.inside("for", loop)
        keep = name
        if asked or not isinstance(node, ast.ListComp | ast.GeneratorExp):
            keep = block.counter.name("each")
        if asked:
            inner.guards.append(conjunction([inner.values.formula(self.plain(test, inner)) for test in asked]))
        element = ast.Tuple([node.key, node.value], ast.Load()) if isinstance(node, ast.DictComp) else node.elt
        self.compute(keep, ast.copy_location(element, node), inner)
        self.end_loop(loop, inner, block, node)
        if isinstance(node, ast.DictComp):
            block.let(name, {EXPR: f"{{pair[0]: pair[1] for pair in state.{keep} if pair and len(pair) == 2}}"}, node)
        elif isinstance(node, ast.SetComp):
            block.let(name, {EXPR: f"{{x for x in state.{keep} if x is not None}}"}, node)
        elif asked:
            block.let(name, {EXPR: f"[x for x in state.{keep} if x is not None]"}, node)
        return name

    def _over(self, generators: Sequence[ast.comprehension], block: Block) -> tuple[Loop, list[ast.expr]]:
        """What a comprehension goes over, and those of its conditions that call tools."""
        first, *rest = generators
        for each in generators:
            if each.is_async:
                raise NotAllowedError(each.iter, "for is enough: what can, runs in parallel by itself")
        if any(self.has_calls(part) for each in rest for part in (each.iter, *each.ifs)):
            raise NotAllowedError(rest[0].iter, "write this as for loops inside each other: their lines may call tools")
        asked = [test for test in first.ifs if self.has_calls(test)]
        first.ifs = [test for test in first.ifs if not self.has_calls(test)]
        if not rest and not first.ifs:
            return self.loop(first.target, first.iter, block), asked
        first.iter = self.plain(first.iter, block)
        if len(generators) == 1:
            target = first.target
        else:
            found = {
                node.id: node for each in generators for node in ast.walk(each.target) if isinstance(node, ast.Name)
            }
            target = ast.copy_location(ast.Tuple(list(found.values()), ast.Store()), first.target)
        element = _loaded(target)
        filtered = ast.copy_location(ast.ListComp(element, list(generators)), first.iter)
        return self.loop(target, filtered, block), asked


def _with_item(call: ast.Call, block: Block) -> Values:
    """How values are read beside `_each`: it gives an item and its place."""
    given = {each.arg: each.value for each in call.keywords}
    if "_each" not in given and "_until" not in given:
        return block.values
    named = [
        str(node.value) if isinstance(node := given.get(key), ast.Constant) else usual
        for key, usual in (("_as", "item"), ("_at", "index"))
    ]
    return block.values_with(named)


def _condition(node: ast.expr, block: Block, values: Values) -> str:
    """A call's own `_if`: a formula, also where it is written as the other dialects do, in a text or as `{"_expr": …}`."""
    if isinstance(node, ast.Dict) and [getattr(key, "value", None) for key in node.keys] == [EXPR]:
        node = node.values[0]
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return values.formula(node)
    if (source := readable(node.value)) is not None:
        return values.formula(ast.parse(source, mode="eval").body)
    if block.kind != "plan" or block.guards:
        raise NotAllowedError(node, "a condition in a loop, or under an if, is an expression: _if=a.ok or b.ok")
    return node.value


def _reads(formula: str, name: str | None) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(ast.parse(formula, mode="eval")))


def _listed(node: ast.expr, block: Block) -> Json:
    """What a loop goes over: a reference, a list, or a formula that gives one."""
    value = block.values.value(node)
    plain = isinstance(value, list) or (isinstance(value, dict) and value.keys() == {EXPR})
    if plain or (isinstance(value, str) and not isinstance(node, ast.Constant)):
        return value
    return {EXPR: block.values.formula(node)}


def _loaded(target: ast.expr) -> ast.expr:
    """What gives a loop's item again, of its names."""
    if isinstance(target, ast.Tuple | ast.List):
        return ast.copy_location(ast.Tuple([_loaded(each) for each in target.elts], ast.Load()), target)
    if isinstance(target, ast.Name):
        return _name(target.id, target)
    raise NotAllowedError(target, "a loop gives its items names: for host in hosts, for name, cpu in pairs")


def _name(name: str, like: ast.AST) -> ast.Name:
    return ast.copy_location(ast.Name(name, ast.Load()), like)


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None
