"""Names of a script that share one value: in Python a change in place through one of them changes the others."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from perdure.errors import clip
from perdure.models.dialects._script_syntax import MUTATING_METHODS, find_changed, loaded
from perdure.models.dialects._script_values import NotAllowedError
from perdure.values.formulas import is_method
from perdure.values.references import DAGGER
from perdure.values.templates import parse_template

ValuePath: TypeAlias = tuple[str, ...]
"""A name, and keys inside its value."""
Parts: TypeAlias = dict[tuple[ValuePath, ValuePath], None]
"""Pairs of keys and a path: the part of a value under the keys may be the object at the path."""

ANY: Final = "*"
"""An unknown key or place of a path."""
_MAX_FOUND: Final = 100
"""Objects that are followed for one value or name, so that a long script is read in linear time."""
_MAX_KEYS: Final = 12
_SAME_ITEMS: Final = frozenset({"sorted", "list", "tuple", "set", "dict", "reversed", "values", "copy"})
_ONE_ITEM: Final = frozenset({"min", "max", "next", "sum"})
_PAIRS: Final = frozenset({"zip", "enumerate", "items"})
_PLAIN: Final = frozenset({"len", "str", "int", "float", "bool", "abs", "round", "any", "all", "range"})
_STALE: Final = (
    "{name} may have another value here: a line above changes it in place, perhaps under another name. Give the changed value "
    "a name of its own, such as rows2 = sorted(rows) or rows2 = [*rows, row], and read that name"
)


class SharedValues:
    """An analysis of a script's statements in their order: names that may share a value, and values that are changed in
    place without the plan."""

    def __init__(self, is_tool: Callable[[ast.AST], bool]) -> None:
        self._is_tool = is_tool
        self._links: dict[str, Parts] = {}
        """By the first name of a path: the path, and one that may lead to the same object."""
        self._stale: dict[str, dict[ValuePath, None]] = {}
        """By name, the keys of the values that the plan does not know."""
        self._plain: set[str] = set()
        """Names of numbers and texts, which cannot be changed in place."""
        self._replaced: list[tuple[str, str]] = []
        """Names that were assigned again, and the names under which their earlier values are followed."""
        self._conditions = 0
        self._loops = 0
        self._problem: NotAllowedError | None = None

    def follow(self, statement: ast.stmt) -> None:
        """Follow the statement's assignments and changes."""
        self._problem = None
        self._statement(statement)

    def check_reads(self) -> None:
        """Raise `NotAllowedError` if the last statement reads a value that the plan does not know."""
        if self._problem is not None:
            raise self._problem

    def find_changed_values(self, statement: ast.stmt) -> list[ValuePath]:
        """Return the paths of the values that the statement would change in place, by all of their names."""
        found: dict[ValuePath, None] = {}
        for target in find_changed(statement, self._is_tool):
            if isinstance(target, ast.Name) and not isinstance(target.ctx, ast.Load):
                continue
            changed, keys = target, list[str]()
            if isinstance(target, ast.Attribute | ast.Subscript) and not isinstance(target.ctx, ast.Load):
                changed, keys = target.value, [_key(target)]
            for path in self._objects(changed):
                found.update(dict.fromkeys((*each, *keys) for each in self._sharing(path)))
        return list(found)

    def mark_stale(self, path: ValuePath) -> None:
        """Refuse later reads of this path, until its name is assigned."""
        self._stale.setdefault(path[0], {})[path[1:]] = None

    # Statements, in their order.

    def _statement(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            self._read(node)
        elif isinstance(node, ast.Assign):
            self._read(node.value)
            self._assign(node.targets, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._read(node.value)
            self._assign([node.target], node.value)
        elif isinstance(node, ast.AugAssign):
            self._augment(node)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._loop(node)
        else:
            for child in ast.iter_child_nodes(node):
                under = not isinstance(child, ast.expr)
                self._conditions += under
                self._statement(child)
                self._conditions -= under

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        replaced = len(self._replaced)
        for _ in range(1 if self._loops else 2):  # the second round sees the names of the first
            self._loops += 1
            if isinstance(node, ast.While):
                self._read(node.test)
            else:
                self._read(node.iter)
                self._bind([node.target], _part(self._parts(node.iter), ANY))
            for each in [*node.body, *node.orelse]:
                self._statement(each)
            self._loops -= 1
        for name, earlier in self._replaced[replaced:]:  # there may be no round
            self._link((name,), (earlier,))

    def _augment(self, node: ast.AugAssign) -> None:
        read = loaded(node.target)
        self._read(read)
        self._read(node.value)
        made = ast.BinOp(read, node.op, node.value)
        if isinstance(node.op, ast.Mult) or self._is_plain(made):
            self._assign([node.target], made)
        else:
            self._change(read, self._parts(made))

    def _change(self, target: ast.expr, added: Parts) -> None:
        """Follow a change of a value in place, which the plan makes under one name only."""
        objects = self._objects(target)
        for path in objects:
            self._change_object(path)
            for keys, other in added:
                self._link((*path, *keys), other)

    def _change_object(self, changed: ValuePath, *keys: str) -> None:
        for path in self._sharing(changed):
            if not _overlap(path, changed):
                self.mark_stale((*path, *keys))

    # Names.

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        is_plain, parts = self._is_plain(value), self._parts(value)
        self._bind(targets, parts)
        names = [name for target in targets for name in _names(target)]
        if not is_plain:
            self._plain.difference_update(names)
        elif not self._conditions:
            self._plain.update(names)
        for target in targets[1:]:  # a = b = []
            if isinstance(target, ast.Name) and isinstance(targets[0], ast.Name):
                self._link((target.id,), (targets[0].id,))

    def _bind(self, targets: Sequence[ast.expr], parts: Parts) -> None:
        """Assign a value with these parts."""
        if not self._conditions:
            renamed = {name: self._replace(name) for target in targets for name in _names(target)}
            parts = {(keys, (renamed.get(path[0], path[0]), *path[1:])): None for keys, path in parts}
        for target in targets:
            for each, its in _unpacked(target, parts):
                places: list[ValuePath]
                if isinstance(each, ast.Name):
                    places = [(each.id,)]
                else:
                    assert isinstance(each, ast.Attribute | ast.Subscript)
                    objects = self._objects(each.value)
                    for path in objects:
                        self._change_object(path, _key(each))
                    places = [(*path, _key(each)) for path in objects]
                for place in places:
                    for keys, path in its:
                        self._link((*place, *keys), path)

    def _replace(self, name: str) -> str:
        """Forget a name that is assigned again, and return the name under which its earlier value is followed."""
        self._stale.pop(name, None)
        links = self._links.pop(name, None)
        if not links:
            return name
        earlier = f"{name} {len(self._replaced)}"
        self._replaced.append((name, earlier))
        for first, second in links:
            self._links.get(second[0], {}).pop((second, first), None)
            self._link((earlier, *first[1:]), (earlier, *second[1:]) if second[0] == name else second)
        return earlier

    def _link(self, first: ValuePath, second: ValuePath) -> None:
        for one, other in ((first, second), (second, first)):
            links = self._links.setdefault(one[0], {})
            if one != other and len(links) < _MAX_FOUND:
                links[one, other] = None

    def _sharing(self, path: ValuePath) -> list[ValuePath]:
        """Return the paths that may lead to the object at this path; it is the first of them."""
        found, left = {path: None}, [path]
        while left and len(found) < _MAX_FOUND:
            each = left.pop()
            for above, other in self._links.get(each[0], ()):
                if len(above) <= len(each) and _overlap(above, each):
                    same = (*other, *each[len(above) :])[:_MAX_KEYS]
                    if same not in found:
                        found[same] = None
                        left.append(same)
        return list(found)

    # Expressions.

    def _read(self, node: ast.expr) -> None:
        """Check the names that an expression reads, then follow its assignments and changes."""
        parts = list(ast.walk(node))
        own = {
            each.arg if isinstance(each, ast.arg) else each.id
            for part in parts
            if isinstance(part, ast.comprehension | ast.arguments)
            for each in ast.walk(part.target if isinstance(part, ast.comprehension) else part)
            if isinstance(each, ast.arg | ast.Name)
        }
        for path, where in self._reads(node) if self._stale else ():
            if path[0] not in own and any(_overlap(keys, path[1:]) for keys in self._stale.get(path[0], ())):
                name = where.value if isinstance(where, ast.Constant) else ast.unparse(where)
                self._problem = self._problem or NotAllowedError(where, _STALE.format(name=clip(str(name), 80)))
        changes = [each for each in parts if self._is_change(each)]
        self._conditions += 1
        for part in parts:
            if isinstance(part, ast.NamedExpr):
                self._assign([part.target], part.value)
            elif isinstance(part, ast.comprehension) and changes:
                self._bind([part.target], _part(self._parts(part.iter), ANY))
        self._conditions -= 1
        for call in changes:
            assert isinstance(call, ast.Call)
            assert isinstance(call.func, ast.Attribute)
            given = [self._parts(each) for each in call.args]
            if call.func.attr in ("extend", "update"):
                given = [_part(each, ANY) for each in given]
            self._change(call.func.value, _below(ANY, *given))

    def _is_change(self, node: ast.AST) -> bool:
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not self._is_tool(node)
        return is_method and node.func.attr in MUTATING_METHODS  # type: ignore[attr-defined]

    def _reads(self, node: ast.AST) -> Iterator[tuple[ValuePath, ast.AST]]:
        if isinstance(node, ast.Constant):
            for path in _references(node):
                yield path, node
        elif isinstance(node, ast.expr) and (chain := _chain(node)) is not None:
            yield chain, node
            while isinstance(node, ast.Attribute | ast.Subscript):
                if isinstance(node, ast.Subscript):
                    yield from self._reads(node.slice)
                node = node.value
        else:
            children: Iterable[ast.AST] = ast.iter_child_nodes(node)
            if isinstance(node, ast.Call):
                method = isinstance(node.func, ast.Attribute) and not self._is_tool(node)
                children = [*([node.func.value] if method else []), *node.args, *node.keywords]  # type: ignore[attr-defined]
            for child in children:
                yield from self._reads(child)

    def _is_plain(self, node: ast.expr) -> bool:
        """Whether the value is a number, a text or a truth value."""
        if isinstance(node, ast.Name):
            return node.id in self._plain
        if isinstance(node, ast.Constant):
            return not _references(node)
        if isinstance(node, ast.BinOp):
            plain = map(self._is_plain, (node.left, node.right))
            return (
                all(plain)
                if isinstance(node.op, ast.Mult)
                else not isinstance(node.op, ast.Add | ast.BitOr) or any(plain)
            )
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                name = node.func.attr
                return is_method(name) and name not in ("get", "keys", "values", "items") and not self._is_tool(node)
            return isinstance(node.func, ast.Name) and node.func.id in _PLAIN
        return isinstance(node, ast.JoinedStr | ast.Compare | ast.UnaryOp)

    def _objects(self, node: ast.expr) -> list[ValuePath]:
        """Return the paths of the objects that the expression may give."""
        return [path for keys, path in self._parts(node) if not keys]

    def _parts(self, node: ast.expr, own: Mapping[str, Parts] | None = None) -> Parts:
        """Return the objects that the expression's value may share. `own`: the names of comprehensions around it."""
        own = own or {}

        def of(child: ast.expr) -> Parts:
            return self._parts(child, own)

        found: Parts = {}
        if self._is_plain(node):
            return found
        if isinstance(node, ast.Name):
            found = own.get(node.id, {((), (node.id,)): None})
        elif isinstance(node, ast.Constant):
            found = {((), path): None for path in _references(node)}
        elif isinstance(node, ast.Attribute | ast.Subscript):
            found = _part(of(node.value), _key(node))
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
                found = _below(ANY, found)
        elif isinstance(node, ast.NamedExpr | ast.Await):
            found = of(node.value)
        elif isinstance(node, ast.IfExp | ast.BoolOp):
            either = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
            found = {pair: None for each in either for pair in of(each)}
        elif isinstance(node, ast.BinOp):
            found = _below(ANY, _part(of(node.left), ANY), _part(of(node.right), ANY))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            found = self._parts_of_comprehension(node, own)
        elif isinstance(node, ast.Call) and not self._is_tool(node):
            found = self._parts_of_call(node, of)
        else:
            found = _parts_of_display(node, of)
        return dict(list(found.items())[:_MAX_FOUND])

    def _parts_of_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, own: Mapping[str, Parts]
    ) -> Parts:
        inner = dict(own)
        for part in node.generators:
            for target, its in _unpacked(part.target, _part(self._parts(part.iter, inner), ANY)):
                if isinstance(target, ast.Name):
                    inner[target.id] = its
        return _below(ANY, self._parts(node.value if isinstance(node, ast.DictComp) else node.elt, inner))

    def _parts_of_call(self, node: ast.Call, of: Callable[[ast.expr], Parts]) -> Parts:
        if isinstance(node.func, ast.Attribute):
            name, given = node.func.attr, [node.func.value]
        elif isinstance(node.func, ast.Name):
            name, given = node.func.id, node.args
        else:
            return {}
        items = [_part(of(each), ANY) for each in given]
        if name in _SAME_ITEMS:
            return _below(ANY, *items)
        if name in _PAIRS:
            return _below(ANY, _below(ANY, *items))
        if name in ("get", "pop", "setdefault"):
            return {pair: None for each in (*items, *map(of, node.args[1:])) for pair in each}
        if name in _ONE_ITEM:
            more = [of(each) for each in [*given, *(keyword.value for keyword in node.keywords)]]
            return {
                pair: None
                for each in (*items, *more, _below(ANY, *(_part(each, ANY) for each in items)))
                for pair in each
            }
        return {}


def _parts_of_display(node: ast.expr, of: Callable[[ast.expr], Parts]) -> Parts:
    """Return the objects in a list, a tuple, a set or a dict that is written out."""
    found: Parts = {}
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        unordered = isinstance(node, ast.Set) or any(isinstance(each, ast.Starred) for each in node.elts)
        for at, each in enumerate(node.elts):
            its = _part(of(each.value), ANY) if isinstance(each, ast.Starred) else of(each)
            found.update(_below(ANY if unordered else f"{at}", its))
    elif isinstance(node, ast.Dict):
        for key, each in zip(node.keys, node.values, strict=True):
            its = _part(of(each), ANY) if key is None else of(each)
            found.update(_below(str(key.value) if isinstance(key, ast.Constant) else ANY, its))
    return found


def _part(parts: Parts, key: str) -> Parts:
    """Return the objects that the part under a key may share."""
    found: Parts = {}
    for keys, path in parts:
        if not keys:
            found[(), _normal((*path, key))] = None
        elif ANY in (key, keys[0]) or key == keys[0]:
            found[keys[1:], path] = None
    return found


def _below(key: str, *parts: Parts) -> Parts:
    """Return the objects of a value that has the other values under a key."""
    return {((key, *keys), path): None for each in parts for keys, path in each if len(keys) < _MAX_KEYS}


def _normal(path: ValuePath) -> ValuePath:
    """Return `state.x` as `x`."""
    return path[1:] if path[0] == "state" and len(path) > 1 else path[:_MAX_KEYS]


def _overlap(first: ValuePath, second: ValuePath) -> bool:
    """Whether one path may be the other, its prefix or its extension."""
    return all(a == b or ANY in (a, b) for a, b in zip(first, second, strict=False))


def _key(node: ast.Attribute | ast.Subscript) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return str(node.slice.value) if isinstance(node.slice, ast.Constant) else ANY


def _chain(node: ast.expr) -> ValuePath | None:
    """Return the path of `rows[0].tags`; `None` for an expression that does not begin with a name."""
    keys: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        keys.append(_key(node))
        node = node.value
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return None
    return _normal((node.id, *reversed(keys)))


def _references(node: ast.Constant) -> list[ValuePath]:
    if not isinstance(node.value, str) or DAGGER not in node.value:
        return []
    return [_normal((each.kind, *map(str, each.path))) for each in parse_template(node.value)[0].references()]


def _unpacked(target: ast.expr, parts: Parts) -> Iterator[tuple[ast.expr, Parts]]:
    """Yield the single targets of an assignment, each with the parts of its value."""
    if isinstance(target, ast.Tuple | ast.List):
        starred = any(isinstance(each, ast.Starred) for each in target.elts)
        for at, each in enumerate(target.elts):
            if isinstance(each, ast.Starred):
                yield from _unpacked(each.value, _below(ANY, _part(parts, ANY)))
            else:
                yield from _unpacked(each, _part(parts, ANY if starred else f"{at}"))
    else:
        yield target, parts


def _names(target: ast.expr) -> list[str]:
    return [each.id for each, _ in _unpacked(target, {}) if isinstance(each, ast.Name)]
