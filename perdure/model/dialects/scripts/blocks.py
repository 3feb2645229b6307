"""What a part of a script knows while it is read: what names stand for, which conditions hold, what is planned so far (R16.4)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypeGuard

from perdure.errors import JsonError
from perdure.model.dialects.scripts.values import NotAllowedError, Values
from perdure.plan.control.conditions import IF
from perdure.plan.loops.reading import OWN_TOOLS
from perdure.values.formulas import is_name, readable
from perdure.values.jsons import Json, JsonObject, check
from perdure.values.references import Reference

BlockKind: TypeAlias = Literal["plan", "for", "while"]
Adding: TypeAlias = Literal["item", "list", "pair"]
"""What is added to a list or an object: `xs.append(v)`, `xs.extend(vs)`, `d[k] = v`."""
_ITEM: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAKEN: Final = frozenset({"state", "input", "output"})
_WRITTEN: Final = re.compile(r"†state\.(\w+)")
_STATE: Final = re.compile(r"\bstate\.(\w+)")
_NOT_IN_A_NAME: Final = re.compile(r"\W", re.ASCII)


@dataclass
class Counter:
    """Numbers the names that a script's reader makes up."""

    last: int = 0

    def name(self, stem: str) -> str:
        self.last += 1
        return f"_{_NOT_IN_A_NAME.sub('_', stem)}_{self.last}"


@dataclass(frozen=True)
class Loop:
    """What a loop goes over, and what its names stand for in the body."""

    each: Json
    item: str
    names: Mapping[str, Reference]
    place: str | None = None

    def keys(self) -> JsonObject:
        place: JsonObject = {} if self.place is None else {"_at": self.place}
        return {"_each": self.each, "_as": self.item, **place}


@dataclass
class Collected:
    """What a round of a `for` adds to a list: kept under a name of its own until the loop is over."""

    kept: str
    how: Adding
    guards: list[list[str]] = field(default_factory=list)
    """The conditions of each place where it is added to."""

    def excludes(self, guards: Sequence[str]) -> bool:
        """Whether nothing was added yet where these conditions hold."""
        return all(
            any(f"not ({each})" in guards for each in earlier) or any(f"not ({each})" in earlier for each in guards)
            for earlier in self.guards
        )


class Block:
    """The plan itself, or a loop's body: calls in order. A condition is no block: its calls stand beside the others, under `guards`."""

    def __init__(
        self, kinds: Set[str], kind: BlockKind = "plan", parent: Block | None = None, loop: Loop | None = None
    ) -> None:
        self.kinds = kinds
        self.kind = kind
        self.calls: list[JsonObject] = []
        self.guards: list[str] = []
        """Formulas: what has to hold for what is read now."""
        self.written: set[str] = set()
        self.versions: dict[str, list[set[str]]] = {}
        """Name → the conditions of each call so far that writes it."""
        self.seen: dict[str, dict[str, int]] = {}
        """Name → the versions of others that had ended when it was written, by what it was made of."""
        self.collected: dict[str, Collected] = {}
        """What is appended to in a `for`."""
        self.values = Values(self.resolve)
        self.counter: Counter = Counter() if parent is None else parent.counter
        self.depth: int = 0 if parent is None else parent.depth + 1
        self._effect: int | None = None
        """The last call of a `while` that is made for its effect: what follows waits for it, as one waits between two looks."""
        self._parent = parent
        self._read: set[str] = set()
        self._items: dict[str, Reference] = {} if parent is None else dict(parent._items)
        if loop is not None:
            self._items.update(loop.names)

    def inside(self, kind: BlockKind, loop: Loop | None = None) -> Block:
        return Block(self.kinds, kind, self, loop)

    def resolve(self, node: ast.Name) -> Reference:
        """What the name stands for: a loop's item, a kind of data, or a result."""
        reference = self._named(node)
        if reference.kind == "state" and reference.path:
            self._note(node.id, node)
        return reference

    def _named(self, node: ast.Name) -> Reference:
        if node.id in self._items:
            return self._items[node.id]
        return Reference(node.id, ()) if node.id in self.kinds else Reference("state", (node.id,))

    def values_with(self, kinds: Iterable[str]) -> Values:
        """Values in which these kinds are known, too."""
        known = frozenset(kinds)
        return Values(lambda node: Reference(node.id, ()) if node.id in known else self.resolve(node))

    def knows(self, name: str) -> bool:
        """Whether the name was assigned above, or is a loop's."""
        above = self._parent is not None and self._parent.knows(name)
        return name in self.written or name in self._items or above

    def _note(self, name: str, node: ast.AST) -> None:
        if name in self.collected:
            raise NotAllowedError(node, f"{name} is collected in this loop: read it after the loop")
        if name not in self.written:
            self._read.add(name)
            if self._parent is not None:
                self._parent._note(name, node)

    def target(self, targets: list[ast.expr]) -> str:
        """The output path that the names before `=` are; they are written from here on."""
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                self.write(root(each), each)
        return Values(self._named).output_path(targets)

    def write(self, name: str, node: ast.AST) -> None:
        if name in self._items:
            raise NotAllowedError(node, f"{name} is the loop's item: give the result a name of its own")
        if name not in self.written:
            self.check_unread(name, node)
        if name in self.collected:
            raise NotAllowedError(node, f"{name} is collected in this loop: assign another name")
        self.written.add(name)

    def check_unread(self, name: str, node: ast.AST) -> None:
        """In a `for` nothing is carried from round to round."""
        if self.kind == "for" and name in self._read:
            raise NotAllowedError(
                node,
                f"{name} is read before it is assigned in this loop, whose rounds do not see each other: name what is made for "
                f"each item, which is a list after the loop, and write {name} = sum(…) or the like there, or use while",
            )

    def emit(self, call: JsonObject, node: ast.AST, writes: Iterable[str] = ()) -> None:
        """Plan the call, under the conditions that hold here. `writes`: the names that a loop's body assigns."""
        own = [str(call[IF])] if isinstance(call.get(IF), str) else []
        if self._effect is not None and "_after" not in call:
            call = {**call, "_after": [f".{self._effect}"]}
        if self.guards:
            call = {**call, IF: conjunction([*self.guards, *own])}
        elif self.kind == "while" and "_outputPath" not in call and call["_tool"] not in OWN_TOOLS:
            self._effect = len(self.calls)
        call = self._after_versions(call, [*_names_of(call.get("_outputPath")), *writes])
        try:
            check(call)
        except JsonError as error:
            raise NotAllowedError(node, str(error)) from None
        self.calls.append(call)

    def _after_versions(self, call: JsonObject, names: Iterable[str]) -> JsonObject:
        """Return the call, made to come after those that have assigned its names before, as Python's lines do (R5.14)."""
        read = str({key: value for key, value in call.items() if key != "_outputPath"})
        seen: dict[str, int] = {}
        for name in dict.fromkeys(_STATE.findall(read)):
            for each, version in {**self.seen.get(name, {}), name: len(self.versions.get(name, ()))}.items():
                seen[each] = max(version, seen.get(each, 0))
        again, holds = [], _parts(call.get(IF))
        for name in dict.fromkeys(names):
            versions = self.versions.setdefault(name, [])
            if not _excludes(versions, holds) and seen.get(name, 0) < len(versions):
                again.append(f"ended †state.{name}")
            versions.append(holds)
            self.seen[name] = seen
        if not again:
            return call
        given = call.get("_after", [])
        return {**call, "_after": list(dict.fromkeys([*(given if isinstance(given, list) else [given]), *again]))}

    def let(self, name: str, value: Json, node: ast.AST) -> None:
        """Keep a value under a name, with no tool."""
        self.written.add(name)
        self.emit({"_tool": "_let", "value": value, "_outputPath": f"†state.{name}"}, node)


def _names_of(output_path: Json) -> list[str]:
    """The names that an output path of a script begins with."""
    return _WRITTEN.findall(output_path) if isinstance(output_path, str) else []


def _parts(condition: Json) -> set[str]:
    """Return what has to hold for the condition to hold, each as a formula."""
    source = readable(condition) if isinstance(condition, str) else None
    if source is None:
        return set()
    node = ast.parse(source, mode="eval").body
    return {ast.unparse(each) for each in (node.values if _is_all(node) else [node])}


def _is_all(node: ast.expr) -> TypeGuard[ast.BoolOp]:
    return isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And)


def _excludes(before: Iterable[Set[str]], holds: Set[str]) -> bool:
    """Whether what holds here held where none of those before were made."""
    return all(
        any(_negated(each) in holds for each in one) or any(_negated(each) in one for each in holds) for one in before
    )


def _negated(formula: str) -> str:
    return ast.unparse(ast.parse(f"not ({formula})", mode="eval"))


def conjunction(conditions: Iterable[str]) -> str:
    """All of them as one formula, with no more brackets than it needs."""
    return ast.unparse(ast.parse(" and ".join(f"({part})" for part in conditions), mode="eval"))


def root(node: ast.expr) -> str:
    """The name that a target or a chain of keys begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def bind(target: ast.expr, depth: int) -> tuple[str, dict[str, Reference]]:
    """The kind under which a loop's item is read, and what the loop's names stand for."""
    if isinstance(target, ast.Name):
        name = target.id
        taken = name in _TAKEN or not is_name(name) or not _ITEM.fullmatch(name)
        kind = f"_{_NOT_IN_A_NAME.sub('_', name)}" if taken else name
        return kind, {name: Reference(kind, ())}
    kind = f"_pair{depth}"
    names: dict[str, Reference] = {}

    def walk(node: ast.expr, path: tuple[int, ...]) -> None:
        if isinstance(node, ast.Name):
            names[node.id] = Reference(kind, path)
        elif isinstance(node, ast.Tuple | ast.List):
            for at, each in enumerate(node.elts):
                walk(each, (*path, at))
        else:
            raise NotAllowedError(node, "a loop gives its items names: for host in hosts, for name, cpu in pairs")

    walk(target, ())
    return kind, names
