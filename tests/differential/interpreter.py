"""Sections 3 to 6 of the protocol as plainly as they can be said, to compare the engine with (see `test_differential.py`).

Written from `docs/protocol.md`, not from the code, and sharing none of it: it is slow, it looks at the whole list again after
every event, and it knows no streaming. `interpret(case)` plays a case as `cases.py` makes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.differential.cases import Case

NOTHING: Any = object()
"""A path that leads nowhere; `None` is a value (R3.4)."""

Steps = tuple[str, ...]
Tree = tuple[Any, ...]
"""`("ref", kind, steps)`, `("or", tree, …)` or `("and", tree, …)`."""
TOKEN = re.compile(
    r'\s*(\|\||&&|\(|\)|†[^\s.\[\](){}|&†"]+(?:\.[^\s.\[\](){}|&†"]+|\[\d+\]|\["(?:[^"\\]|\\.)*"\])*)\s*'
)
STEP = re.compile(r'\.([^\s.\[\](){}|&†"]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]')
OPEN = re.compile(r"††|\{[\s(]*†(?!†)")


class MalformedError(Exception):
    """R3.5."""


@dataclass
class Node:
    """A call of the case while it is followed."""

    raw: dict[str, Any]
    alternatives: list[list[Steps]] = field(default_factory=list)
    method: str = "set"
    refs: list[Tree] = field(default_factory=list)
    """The expressions of its parameters."""
    after: list[Tree] = field(default_factory=list)
    """The paths that it comes after, and in `after_calls` the calls (R5.11)."""
    after_calls: list[int] = field(default_factory=list)
    any_end: list[Tree] = field(default_factory=list)
    """The paths whose writers only have to have ended, however, and in `any_end_calls` the calls."""
    any_end_calls: list[int] = field(default_factory=list)
    status: str = "pending"
    branch: bool = False
    """Skipped for a branch that was not taken."""
    told: bool = False
    """Whether an error of it reaches the model (R6.6)."""
    params: Any = NOTHING
    writes: list[tuple[Steps, Any, int]] = field(default_factory=list)
    """Path, value, and its place in the log."""

    @property
    def ended(self) -> bool:
        return self.status not in ("pending", "ready", "running")

    @property
    def broken(self) -> bool:
        if self.status == "failed":
            return not self.writes
        return self.status in ("invalid", "deferred") or (self.status == "skipped" and not self.branch)

    def paths(self) -> list[Steps]:
        return [path for paths in self.alternatives for path in paths]

    def sets(self, path: Steps) -> bool:
        return self.method == "set" and any(path[: len(own)] == own for own in self.paths())

    def touches(self, path: Steps) -> bool:
        return any(touches(own, path) for own in self.paths())

    def wrote(self, path: Steps) -> list[tuple[Steps, Any, int]]:
        return [write for write in self.writes if touches(write[0], path)]


def touches(first: Steps, second: Steps) -> bool:
    """One is the other, its prefix or its extension (R5.1)."""
    return all(a == b for a, b in zip(first, second, strict=False))


# Section 3: references and expressions.


def parse(text: str) -> Tree:
    tokens, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise MalformedError(text)
        tokens.append(match.group(1))
        at = match.end()

    def joined(word: str, name: str, part: Callable[[], Tree]) -> Tree:
        parts = [part()]
        while tokens and tokens[0] == word:
            tokens.pop(0)
            parts.append(part())
        return parts[0] if len(parts) == 1 else (name, *parts)

    def either() -> Tree:
        return joined("||", "or", lambda: joined("&&", "and", atom))

    def atom() -> Tree:
        token = tokens.pop(0) if tokens else ""
        if token == "(":
            inner = either()
            if not tokens or tokens.pop(0) != ")":
                raise MalformedError(text)
            return inner
        if not token.startswith("†"):
            raise MalformedError(text)
        kind = re.split(r"[.\[]", token[1:], maxsplit=1)[0]
        steps = tuple(
            a or b or json.loads(f'"{c}"') for a, b, c in (m.groups() for m in STEP.finditer(token, 1 + len(kind)))
        )
        return ("ref", kind, steps)

    tree = either()
    if tokens:
        raise MalformedError(text)
    return tree


def leaves(tree: Tree) -> list[Tree]:
    return [tree] if tree[0] == "ref" else [leaf for part in tree[1:] for leaf in leaves(part)]


def evaluate(tree: Tree, look: Callable[[Tree], Any]) -> Any:
    if tree[0] == "ref":
        return look(tree)
    values = [evaluate(part, look) for part in tree[1:]]
    if tree[0] == "or":
        return next((value for value in values if value is not NOTHING), NOTHING)
    return NOTHING if any(value is NOTHING for value in values) else values[-1]


def pieces(text: str) -> list[str | Tree]:
    """A string's parts: text, and the expressions in it; a whole expression is one part alone."""
    start = text.lstrip(" \t\r\n(")
    if start.startswith("†") and not start.startswith("††"):
        return [parse(text)]
    parts: list[str | Tree] = []
    at = 0
    while (match := OPEN.search(text, at)) is not None:
        parts.append(text[at : match.start()])
        if match.group() == "††":
            parts.append("†")
            at = match.end()
        else:
            end = text.find("}", match.end())
            if end < 0:
                raise MalformedError(text)
            parts.append(parse(text[match.start() + 1 : end]))
            at = end + 1
    return [*parts, text[at:]]


def walk(value: Any, visit: Callable[[str], Any]) -> Any:
    """The value with every string replaced by what `visit` makes of it."""
    if isinstance(value, dict):
        return {key: walk(child, visit) for key, child in value.items()}
    if isinstance(value, list):
        return [walk(child, visit) for child in value]
    return visit(value) if isinstance(value, str) else value


def resolve(text: str, look: Callable[[Tree], Any]) -> Any:
    parts = pieces(text)
    if len(parts) == 1 and not isinstance(parts[0], str):
        return evaluate(parts[0], look)
    written = []
    for part in parts:
        value = part if isinstance(part, str) else evaluate(part, look)
        written.append(
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        )
    return "".join(written)


# Section 4: state.


class UnwritableError(Exception):
    """The value at the path cannot take the write."""


def get(value: Any, path: Steps) -> Any:
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return NOTHING
    return value


def put(root: Any, path: Steps, method: str, value: Any) -> Any:
    """The root after the write (R4.1)."""
    if not path:
        new = combine(root, method, value)
        if not isinstance(new, dict):
            raise UnwritableError
        return new
    return _put(deepcopy(root), path, method, deepcopy(value))


def _put(at: Any, path: Steps, method: str, value: Any) -> Any:
    if not path:
        return combine(at, method, value)
    step, rest = path[0], path[1:]
    if at is NOTHING:
        at = [] if step.isdigit() else {}  # the cases write `[0]`, never `.0`
    if isinstance(at, dict):
        return {**at, step: _put(at.get(step, NOTHING), rest, method, value)}
    if isinstance(at, list) and step.isdigit() and int(step) <= len(at):
        index = int(step)
        return [*at[:index], _put(at[index] if index < len(at) else NOTHING, rest, method, value), *at[index + 1 :]]
    raise UnwritableError


def combine(there: Any, method: str, value: Any) -> Any:
    if method == "set" or (there is NOTHING and method in ("merge", "assign")):
        return value
    if method in ("merge", "assign"):
        if not (isinstance(there, dict) and isinstance(value, dict)):
            return value
        deep = method == "merge"
        return there | {k: combine(there[k], "merge", v) if deep and k in there else v for k, v in value.items()}
    if method == "concat" and isinstance(there, str) and isinstance(value, str):
        return there + value
    there = [] if there is NOTHING else there
    if not isinstance(there, list) or (method == "concat" and not isinstance(value, list)):
        raise UnwritableError
    return there + (value if method == "concat" else [value])


# Section 5: the plan.


class Interpreter:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.base = {"state": deepcopy(case.state), "input": case.input}
        self.state: Any = deepcopy(case.state)
        self.log = 0
        self.order: list[int] = []
        """In which the calls that ran have ended."""
        self.nodes = [self.checked(raw, place) for place, raw in enumerate(case.calls)]

    def checked(self, raw: dict[str, Any], place: int) -> Node:
        """Everything that is wrong with a call by itself (R3.5, R4.3, R6.6)."""
        node = Node(raw)
        tool = self.case.tools.get(str(raw.get("_tool")))
        method = raw.get("_outputMethod", "set")
        wrong = tool is None or method not in ("set", "merge", "assign", "push", "concat")
        node.method = "set" if method not in ("merge", "assign", "push", "concat") else method
        path = raw.get("_outputPath")
        if path is not None:
            try:
                tree = parse(path)
                node.alternatives = [
                    list(dict.fromkeys(leaf[2] for leaf in leaves(part)))
                    for part in (tree[1:] if tree[0] == "or" else [tree])
                ]
            except MalformedError:
                wrong = True  # the cases spoil an output path only behind what it names
                named = [
                    leaf for word in re.findall(TOKEN, path) if word.startswith("†") for leaf in leaves(parse(word))
                ]
                node.alternatives = [[leaf[2] for leaf in named]]
        try:
            walk(params(raw), lambda text: node.refs.extend(part for part in pieces(text) if not isinstance(part, str)))
        except MalformedError:
            wrong = True
        if tool is not None and any(key not in tool["takes"] for key in params(raw)):
            wrong = True
        if any(
            not fits(tool, key, value) for key, value in params(raw).items() if not node.refs or "†" not in str(value)
        ):
            wrong = True
        if "_after" in raw:
            try:
                listed = raw["_after"] if isinstance(raw["_after"], list) else [raw["_after"]]
                for item in listed:
                    self.come_after(node, item, own=place)
            except MalformedError:
                wrong = True
        if wrong:
            node.status, node.told = "invalid", True
        return node

    def come_after(self, node: Node, item: Any, own: int) -> None:
        """An output path, or several joined, or the id of another call of this plan, which is that of Request 1 (R5.11)."""
        calls, paths = node.after_calls, node.after
        if isinstance(item, str) and item.startswith("ended "):
            calls, paths, item = node.any_end_calls, node.any_end, item.removeprefix("ended ")
        if isinstance(item, str) and re.fullmatch(r"\d+\.\d+", item):
            request, index = map(int, item.split("."))
            if request != 1 or index == own:
                raise MalformedError(item)
            calls.append(index)
            return
        parts = pieces(item) if isinstance(item, str) else []
        if len(parts) != 1 or isinstance(parts[0], str) or any(leaf[1] != "state" for leaf in leaves(parts[0])):
            raise MalformedError(item)
        paths.append(parts[0])

    def known(self, leaf: Tree) -> Any:
        """The value that exists when the plan is made."""
        return get(self.base.get(leaf[1], NOTHING), leaf[2])

    def bound(self, reader: int, leaf: Tree, *, order: bool = False, however: bool = False) -> list[int]:
        """The writers that the reader is bound to (R5.1), nearest first; where a `set` went another branch also those beyond it.

        What comes after a path is bound to its writers, wherever they stand, whatever was there before the plan (R5.11).
        """
        path = leaf[2]
        if leaf[1] != "state":
            return []
        before = [n for n in reversed(range(reader)) if self.nodes[n].touches(path)]
        after = [n for n in range(reader + 1, len(self.nodes)) if self.nodes[n].touches(path)]
        forward = not before and (order or self.known(leaf) is NOTHING)
        found = []
        for index in after if forward else before:
            node = self.nodes[index]
            found.append(index)
            # What is set through an index of an array needs the array: the reader looks on for that.
            covers = node.method == "set" and any(
                path[: len(own)] == own and not any(step.isdigit() for step in own) for own in node.paths()
            )
            # It looks on once all up to there have ended, where none of them has failed it already.
            well = all(self.nodes[each].ended and (however or not self.nodes[each].broken) for each in found)
            elsewhere = well and not any(path[: len(write[0])] == write[0] for write in node.writes)
            if covers and not elsewhere:
                break
        return found

    def see(self, reader: int, leaf: Tree, *, order: bool = False) -> tuple[str, Any]:
        """What the reader finds there, once those that it is bound to have ended: `value`, `broken`, `branch`, `nowhere`."""
        path = leaf[2]
        writers = self.bound(reader, leaf, order=order)
        nodes = [self.nodes[index] for index in writers]
        if any(node.broken for node in nodes):
            return "broken", NOTHING
        # The nearest `set` that went this way; where all that there are went another, somebody beyond them must have written.
        passed = None
        for place, node in enumerate(nodes):
            if node.sets(path):
                if any(path[: len(write[0])] == write[0] for write in node.writes):
                    passed = None
                    break
                passed = place
        if passed is not None and not any(node.wrote(path) for node in nodes[passed + 1 :]):
            return "branch", NOTHING
        if order and nodes:
            return ("value", True) if any(node.wrote(path) for node in nodes) else ("branch", NOTHING)
        writes: list[Any] = sorted(
            ((write, node.method) for node in nodes for write in node.wrote(path)), key=lambda each: each[0][2]
        )
        # Back to the newest `set` that covers the path, and forward from there (R4.1).
        value: Any = self.base.get(leaf[1], NOTHING)
        for at, (write, method) in enumerate(writes):
            if method == "set" and path[: len(write[0])] == write[0] and not any(step.isdigit() for step in write[0]):
                value, writes[:at] = {}, [None] * at
        for each in filter(None, writes):
            value = put(value, each[0][0], each[1], each[0][1])
        found = get(value, path)
        if found is NOTHING:
            return ("branch" if nodes and not writes else "nowhere"), NOTHING
        return "value", found

    def refuse_impossible(self) -> None:
        """R5.5: nothing can ever satisfy it."""
        for index, node in enumerate(self.nodes):

            def possible(leaf: Tree, index: int = index) -> Any:
                return True if self.bound(index, leaf) or self.known(leaf) is not NOTHING else NOTHING

            def can_end(leaf: Tree, index: int = index) -> Any:
                return True if self.bound(index, leaf, order=True) else self.known(leaf)

            if not node.ended and (
                any(evaluate(tree, possible) is NOTHING for tree in node.refs)
                or any(evaluate(tree, can_end) is NOTHING for tree in [*node.after, *node.any_end])
                or any(other >= len(self.nodes) for other in [*node.after_calls, *node.any_end_calls])
            ):
                node.status, node.told = "invalid", True

    def needs(self, index: int) -> set[int]:
        """Which calls of the plan it reads of, or comes after."""
        node = self.nodes[index]
        read = {writer for tree in node.refs for leaf in leaves(tree) for writer in self.bound(index, leaf)}
        named = {w for tree in node.after for leaf in leaves(tree) for w in self.bound(index, leaf, order=True)}
        ended = {
            writer
            for tree in node.any_end
            for leaf in leaves(tree)
            for writer in self.bound(index, leaf, order=True, however=True)
        }
        return read | named | ended | {*node.after_calls, *node.any_end_calls}

    def waits(self, index: int) -> set[int]:
        """Which of them have not ended."""
        return {other for other in self.needs(index) if not self.nodes[other].ended}

    def refuse_cycles(self) -> bool:
        """R5.2: every call that waits, over others, for itself."""
        waits = {index: self.waits(index) for index, node in enumerate(self.nodes) if node.status == "pending"}
        ringed = []
        for start in waits:
            seen: set[int] = set()
            todo = list(waits[start])
            while todo:
                index = todo.pop()
                if index not in seen:
                    seen.add(index)
                    todo.extend(waits.get(index, ()))
            if start in seen:
                ringed.append(start)
        for index in ringed:
            self.nodes[index].status, self.nodes[index].told = "invalid", True
        return bool(ringed)

    def settle(self) -> None:
        """Start what is ready, and end what never can be (R5.3, R5.4)."""
        again = True
        while again:
            again = False
            for index, node in enumerate(self.nodes):
                if node.status == "pending" and not self.waits(index):
                    again = True
                    self.begin(index, node)

    def is_held_back(self, index: int, node: Node) -> bool:
        """R5.11: skipped where one that it comes after did not complete; as a branch where all that is missing are branches."""
        why = []
        for other in (self.nodes[each] for each in node.after_calls):
            if other.status != "done":
                why.append("branch" if other.status == "skipped" and other.branch else "broken")
        for tree in node.after:
            found = {leaf: self.see(index, leaf, order=True) for leaf in leaves(tree)}
            if evaluate(tree, {leaf: value for leaf, (_, value) in found.items()}.__getitem__) is NOTHING:
                why.append("broken" if "broken" in [each[0] for each in found.values()] else "branch")
        if why:
            node.status, node.branch = "skipped", "broken" not in why
        return bool(why)

    def begin(self, index: int, node: Node) -> None:
        if self.is_held_back(index, node):
            return
        try:
            found = {leaf: self.see(index, leaf) for tree in node.refs for leaf in leaves(tree)}
        except UnwritableError:
            node.status, node.told = "invalid", True
            return
        for tree in node.refs:
            if evaluate(tree, lambda leaf: found[leaf][1]) is NOTHING:
                why = [found[leaf][0] for leaf in leaves(tree)]
                node.status = "skipped" if "broken" in why or "branch" in why else "invalid"
                node.branch = "broken" not in why and "branch" in why
                node.told = node.status == "invalid"
                return
        node.params = walk(params(node.raw), lambda text: resolve(text, lambda leaf: found[leaf][1]))
        tool = self.case.tools[node.raw["_tool"]]
        if not all(fits(tool, key, value) for key, value in node.params.items()):
            node.status, node.told = "invalid", True
            return
        node.status = "ready"

    def start(self, *, limits: bool) -> None:
        """What is ready runs, the first of the list first, where there is room beside what runs (R5.12)."""
        for index, node in enumerate(self.nodes):
            if node.status == "ready" and (not limits or self.has_room(index)):
                node.status = "running"

    def has_room(self, index: int) -> bool:
        beside = [other for other, node in enumerate(self.nodes) if node.status == "running"]
        group = self.case.groups.get(self.case.tool(index))
        full = self.case.parallel is not None and len(beside) >= self.case.parallel
        return not full and (group is None or group not in [self.case.groups.get(self.case.tool(o)) for o in beside])

    def defer(self) -> None:
        """R5.10: what is ready now runs, of that the first so many (R5.12), and the rest is for the next Request to decide."""
        for index, node in enumerate(self.nodes):
            if node.status == "pending" and self.needs(index):
                node.status = "deferred"
        self.settle()
        ready = [node for node in self.nodes if node.status == "ready"]
        for node in ready[self.case.parallel :] if self.case.parallel is not None else []:
            node.status = "deferred"

    def end(self, index: int) -> None:
        """The running call ends as the case says (R4.3, R6.6)."""
        node = self.nodes[index]
        outcome, value = self.case.outcome(index, node.params)
        chosen = node.alternatives[0] if node.alternatives else []
        if outcome == "branch":
            chosen = node.alternatives[-1]
        if outcome == "failed":
            node.status = "failed"
            if len(node.alternatives) < 2:
                node.told = True
                return
            chosen, value = node.alternatives[-1], [value] if node.method == "concat" else value
        new, writes = self.state, []
        try:
            for path in chosen:
                new = put(new, path, node.method, value)
                self.log += 1
                writes.append((path, value, self.log))
        except UnwritableError:
            node.told = True
            node.status = "failed" if outcome == "failed" else "invalid"
            return
        self.state, node.writes = new, writes
        node.status = "failed" if outcome == "failed" else "done"

    def run(self, order: Sequence[int] | None) -> None:
        self.refuse_impossible()
        self.refuse_cycles()
        if self.case.step:
            self.defer()
        left = None if order is None else list(order)
        while True:
            self.settle()
            self.start(limits=order is None)
            running = [index for index, node in enumerate(self.nodes) if node.status == "running"]
            if running:
                ends = min(running, key=self.case.rank) if left is None else left.pop(0)
                assert ends in running, f"call {ends} ran although it waits for {self.waits(ends)}"
                self.order.append(ends)
                self.end(ends)
            elif not self.refuse_cycles():
                break
        assert not left, f"calls {left} ran although they should not have"


def params(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if not key.startswith("_")}


def fits(tool: Any, key: str, value: Any) -> bool:
    return tool is None or tool["takes"].get(key) != "integer" or isinstance(value, int)


def interpret(case: Case, order: Sequence[int] | None = None) -> Interpreter:
    """Play the case; running calls end in the `order` given, whatever ran beside them, or by the case's ranks."""
    interpreter = Interpreter(case)
    interpreter.run(order)
    return interpreter
