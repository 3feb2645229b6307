"""Names of a script that share one value: in Python a change in place through one of them changes the others."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from perdure.errors import clip
from perdure.models.dialects._script_syntax import MUTATING_METHODS, find_changed, loaded
from perdure.models.dialects._script_values import NotAllowedError
from perdure.values.references import DAGGER
from perdure.values.templates import parse_template

ValuePath: TypeAlias = tuple[str, ...]
"""A name, and keys inside its value."""
Links: TypeAlias = dict[tuple[ValuePath, ValuePath], int]
"""Pairs of paths that may lead to the same object, and when each was found."""
Parts: TypeAlias = dict[tuple[ValuePath, ValuePath], None]
"""Pairs of keys and a path: the part of a value under the keys may be the object at the path."""
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp

ANY: Final = "*"
"""An unknown key or place of a path."""
_MAX_FOUND: Final = 100
"""Objects that are followed for one value or name, so that a long script is read in linear time."""
_MAX_KEYS: Final = 12
_SAME_ITEMS: Final = frozenset({"sorted", "list", "tuple", "set", "dict", "reversed", "values", "copy"})
_ONE_ITEM: Final = frozenset({"min", "max", "next", "get", "pop", "setdefault"})
_PAIRS: Final = frozenset({"zip", "enumerate", "items"})
_IS_LIST: Final = dict.fromkeys(("sorted", "list", "set", "dict", "copy", "split", "splitlines"), True) | dict.fromkeys(
    ("len", "str", "int", "float", "bool", "abs", "round", "any", "all"), False
)
_STALE: Final = (
    "{name} may have another value here: a line above changes it in place, perhaps under another name. Give the changed value "
    "a name of its own, such as rows2 = sorted(rows) or rows2 = [*rows, row], and read that name"
)


class SharedValues:
    """An analysis of a script's statements in their order: names that may share a value, and values that are changed in
    place without the plan."""

    def __init__(self, is_tool: Callable[[ast.AST], bool]) -> None:
        self._is_tool = is_tool
        self._links: dict[str, Links] = {}
        """The links of paths, by the first name of their first path."""
        self._stale: dict[str, dict[ValuePath, int]] = {}
        """By name, the keys of the values that the plan does not know, and when each was found."""
        self._is_list: dict[str, bool | None] = {}
        """By name, whether the value is a list, a dict or a set; `False` for a number or a text, `None` if unknown."""
        self._step = 0
        """The number of assignments and bodies so far: when a link or a stale key was found."""
        self._body_start = 0
        """The step at which the innermost branch or loop began; 0 outside of both."""
        self._values_before: list[tuple[str, Links, dict[ValuePath, int], bool | None]] = []
        """The names that this branch or loop assigns, with their links, stale keys and type before it."""
        self._loops = 0
        self._problem: NotAllowedError | None = None

    def follow(self, statement: ast.stmt) -> None:
        """Follow the statement's assignments and changes."""
        self._problem, self._body_start, self._values_before, self._loops = None, 0, [], 0
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
                if isinstance(target.ctx, ast.Del) and keys[0].lstrip("-").isdecimal():
                    keys = [ANY]  # the later items of a list get other places
            for path in self._objects(changed):
                found.update(dict.fromkeys((*each, *keys) for each in self._sharing(path)))
        return list(found)

    def mark_stale(self, path: ValuePath) -> None:
        """Refuse later reads of this path, until its name is assigned."""
        stale = self._stale.setdefault(path[0], {})
        depth = max(1, len(path) - len(stale) // _MAX_FOUND)  # many keys of one object stand for all of them
        stale.setdefault(path[1:depth], self._step)

    def unlink_if_pair(self, path: ValuePath) -> None:
        """Remove the link of a stale name that has only one: the other name is stale too, so nothing more follows from it."""
        if len(path) == 1 and len(self._links.get(path[0], ())) == 1:
            self._unlink(path[0])

    def _statement(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            self._read(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            self._read(node.value)
            self._assign(node.targets if isinstance(node, ast.Assign) else [node.target], node.value)
        elif isinstance(node, ast.AugAssign):
            self._augment(node)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._loop(node)
        else:
            for _, value in ast.iter_fields(node):
                with self._uncertain_body():
                    for child in value if isinstance(value, list) else [value]:
                        if isinstance(child, ast.AST):
                            self._statement(child)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        if not isinstance(node, ast.While):
            self._read(node.iter)
        with self._uncertain_body(stale=False):
            for _ in range(1 if self._loops else 2):  # the second round sees the names of the first
                self._loops += 1
                if isinstance(node, ast.While):
                    self._read(node.test)
                else:
                    self._bind([node.target], _part(self._parts(node.iter), ANY))
                for each in [*node.body, *node.orelse]:
                    self._statement(each)
                self._loops -= 1

    @contextmanager
    def _uncertain_body(self, *, stale: bool = True) -> Iterator[None]:
        """Follow the statements of a branch or loop, which may not run: later its names may have their values from before.

        `stale`: whether the stale keys of these values count again.
        """
        self._step += 1
        outer = self._body_start, self._values_before
        self._body_start, self._values_before = self._step, []
        yield
        before, (self._body_start, self._values_before) = self._values_before, outer
        for name, links, keys, was_list in before:
            for (first, second), time in links.items():
                self._link(first, second, time)
            if keys and stale:
                self._stale.setdefault(name, {}).update(keys)
            if self._is_list.get(name) is not was_list:
                self._is_list.pop(name, None)

    def _augment(self, node: ast.AugAssign) -> None:
        read = loaded(node.target)
        made = ast.BinOp(read, node.op, node.value)
        self._read(made)
        if not isinstance(node.op, ast.Mult) and True in map(self._check_list, (read, node.value)):
            self._change(read, self._parts(made))
        else:
            self._assign([node.target], made)

    def _change(self, target: ast.expr, added: Parts) -> None:
        """Follow a change of a value in place, which the plan makes under one name only."""
        for path in self._objects(target):
            self._change_object(path)
            for keys, other in added:
                self._link((*path, *keys), other)

    def _change_object(self, changed: ValuePath, *keys: str) -> None:
        for path in self._sharing(changed):
            if not _overlap(path, changed):
                self.mark_stale((*path, *keys))

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        is_list = self._check_list(value)
        self._bind(targets, self._parts(value))
        self._is_list.update(dict.fromkeys(names, is_list))
        for name in names[1:]:  # a = b = []
            self._link((name,), (names[0],))

    def _bind(self, targets: Sequence[ast.expr], parts: Parts) -> None:
        """Assign a value with these parts."""
        renamed = {name: self._replace(name) for target in targets for name in _names(target)}
        parts = {(keys, (renamed.get(path[0], path[0]), *path[1:])): None for keys, path in parts}
        for target in targets:
            for each, its in _unpacked(target, parts):
                places: list[ValuePath] = [(each.id,)] if isinstance(each, ast.Name) else []
                if isinstance(each, ast.Attribute | ast.Subscript):
                    for path in self._objects(each.value):
                        self._change_object(path, _key(each))
                        places.append((*path, _key(each)))
                for place in places:
                    for keys, path in its:
                        self._link((*place, *keys), path)

    def _replace(self, name: str) -> str:
        """Forget a name that is assigned again, and return the name under which its earlier value is followed."""
        self._step += 1
        earlier = f"{name} {self._step}"
        was_list, stale, links = self._is_list.pop(name, None), self._stale.pop(name, {}), self._unlink(name)
        for (first, second), time in links.items():
            self._link((earlier, *first[1:]), (earlier, *second[1:]) if second[0] == name else second, time)
        links = {pair: time for pair, time in links.items() if time < self._body_start}
        stale = {keys: time for keys, time in stale.items() if time < self._body_start}
        self._values_before.append((name, links, stale, was_list))
        return earlier

    def _unlink(self, name: str) -> Links:
        links = self._links.pop(name, {})
        for first, second in links:
            self._links.get(second[0], {}).pop((second, first), None)
        return links

    def _link(self, first: ValuePath, second: ValuePath, time: int | None = None) -> None:
        for one, other in ((first, second), (second, first)):
            links = self._links.setdefault(one[0], {})
            if one != other and len(links) < _MAX_FOUND:
                found = self._step if time is None else time
                links[one, other] = min(found, links.get((one, other), found))

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

    def _read(self, node: ast.expr) -> None:
        """Check the names that an expression reads, then follow its assignments and changes."""
        parts = list(ast.walk(node))
        for path, where in self._reads(node) if self._stale else ():
            if any(_overlap(keys, path[1:]) for keys in self._stale.get(path[0], ())):
                name = where.value if isinstance(where, ast.Constant) else ast.unparse(where)
                self._problem = self._problem or NotAllowedError(where, _STALE.format(name=clip(str(name), 80)))
        changes = [
            (part, part.func)
            for part in parts
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and not self._is_tool(part)
            if part.func.attr in MUTATING_METHODS
        ]
        with self._uncertain_body(stale=False):
            for part in parts:
                if isinstance(part, ast.NamedExpr):
                    self._assign([part.target], part.value)
                elif isinstance(part, ast.comprehension) and changes:
                    self._bind([part.target], _part(self._parts(part.iter), ANY))
            for call, func in changes:
                given = [self._parts(each) for each in call.args]
                if func.attr in ("extend", "update"):
                    given = [_part(each, ANY) for each in given]
                self._change(func.value, _below(ANY, *given))

    def _reads(self, node: ast.AST) -> Iterator[tuple[ValuePath, ast.AST]]:
        if isinstance(node, ast.Constant):
            yield from ((path, node) for path in _references(node))
        elif isinstance(node, ast.expr) and (chain := _chain(node)) is not None:
            yield chain, node
            while isinstance(node, ast.Attribute | ast.Subscript):
                if isinstance(node, ast.Subscript):
                    yield from self._reads(node.slice)
                node = node.value
        else:
            own: set[str] = set()
            children: Iterable[ast.AST] = ast.iter_child_nodes(node)
            if isinstance(node, ast.Call):
                method = isinstance(node.func, ast.Attribute) and not self._is_tool(node)
                children = [*([node.func.value] if method else []), *node.args, *node.keywords]  # type: ignore[attr-defined]
            elif isinstance(node, ast.Lambda):
                own = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            elif isinstance(node, Comprehension):
                first = node.generators[0]
                own = {name for each in node.generators for name in _names(each.target)}
                children = [*first.ifs, *(each for each in children if each is not first)]
                yield from self._reads(first.iter)  # outside of the comprehension's own names
            for child in children:
                yield from (each for each in self._reads(child) if each[0][0] not in own)

    def _check_list(self, node: ast.expr) -> bool | None:
        """Return whether the value is a list, a dict or a set; `False` for a number or a text, `None` if this is unknown."""
        if isinstance(node, ast.Name):
            return self._is_list.get(node.id)
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod):
            sides = [self._check_list(node.left), self._check_list(node.right)]
            return True in sides or (None if isinstance(node.op, ast.Mult) or False not in sides else False)
        if isinstance(node, ast.Call):
            return None if self._is_tool(node) else _IS_LIST.get(_function_name(node))
        if isinstance(node, ast.List | ast.Set | ast.Dict | ast.ListComp | ast.SetComp | ast.DictComp):
            return True
        plain = isinstance(node, ast.Constant | ast.JoinedStr | ast.Compare | ast.UnaryOp)
        return False if plain and not _references(node) else None

    def _objects(self, node: ast.expr) -> list[ValuePath]:
        """Return the paths of the objects that the expression may give."""
        return [path for keys, path in self._parts(node) if not keys]

    def _parts(self, node: ast.expr, own: Mapping[str, Parts] | None = None) -> Parts:
        """Return the objects that the expression's value may share. `own`: the names of comprehensions around it."""
        own = own or {}

        def of(child: ast.expr) -> Parts:
            return self._parts(child, own)

        found: Parts = {}
        if isinstance(node, ast.Name):
            found = own.get(node.id, {} if self._is_list.get(node.id) is False else {((), (node.id,)): None})
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
        elif isinstance(node, Comprehension):
            found = self._parts_of_comprehension(node, own)
        elif isinstance(node, ast.Call) and not self._is_tool(node):
            found = self._parts_of_call(node, of)
        else:
            found = _parts_of_display(node, of)
        return dict(list(found.items())[:_MAX_FOUND])

    def _parts_of_comprehension(self, node: Comprehension, own: Mapping[str, Parts]) -> Parts:
        inner = dict(own)
        for part in node.generators:
            for target, its in _unpacked(part.target, _part(self._parts(part.iter, inner), ANY)):
                if isinstance(target, ast.Name):
                    inner[target.id] = its
        return _below(ANY, self._parts(node.value if isinstance(node, ast.DictComp) else node.elt, inner))

    def _parts_of_call(self, node: ast.Call, of: Callable[[ast.expr], Parts]) -> Parts:
        name = _function_name(node)
        given = [node.func.value] if isinstance(node.func, ast.Attribute) else node.args
        items = [_part(of(each), ANY) for each in given]
        if name in _SAME_ITEMS:
            return _below(ANY, *items, *(_part(each, "1") for each in items if name == "dict"))
        if name in _PAIRS:
            return _below(ANY, _below(ANY, *items))
        if name == "sum":
            return _below(ANY, *(_part(each, ANY) for each in items[:1]), *items[1:])
        if name in _ONE_ITEM:
            first = map(of, given) if name in ("min", "max") and len(given) > 1 else items[:1]
            more = map(of, [*node.args[1:], *(keyword.value for keyword in node.keywords)])
            return {pair: None for each in (*first, *more) for pair in each}
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


def _function_name(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def _references(node: ast.expr) -> list[ValuePath]:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or DAGGER not in node.value:
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
