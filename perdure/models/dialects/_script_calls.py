"""Calls of a script: arguments, names, and calls inside expressions."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypeGuard

from perdure.errors import JsonError, clip
from perdure.models.dialects._script_values import NotAllowedError, ScriptValues, kind_name
from perdure.models.requests import ReaderVocabulary
from perdure.plan import IF, OWN_TOOLS
from perdure.values.formulas import is_function, is_name, parse_expression, readable_formula
from perdure.values.json import Json, JsonObject, check
from perdure.values.references import Reference
from perdure.values.templates import EXPR

BlockKind: TypeAlias = Literal["plan", "for", "while"]
Adding: TypeAlias = Literal["item", "list", "pair"]
"""The ways to add to a list or an object: `xs.append(v)`, `xs.extend(vs)`, `d[k] = v`."""
_ITEM: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAKEN: Final = frozenset({"state", "input", "output"})
WRITTEN: Final = re.compile(r"†state\.(\w+)")
_PART_WRITTEN: Final = re.compile(r"†state\.(\w+)([.\[])?")
STATE: Final = re.compile(r"\bstate\.(\w+)")
_WHOLE: Final = re.compile(r"\bstate\.(\w+)(?![\w.\[])")
_MAX_SEARCHED: Final = 100
"""Versions that `_derives_from` visits at most, so that a long script is read in linear time. Beyond it a call gets an
`_after` that it may not need."""
_NOT_IN_A_NAME: Final = re.compile(r"\W", re.ASCII)


@dataclass
class Counter:
    """A counter for generated names."""

    last: int = 0

    def name(self, stem: str) -> str:
        self.last += 1
        return f"_{_NOT_IN_A_NAME.sub('_', stem)}_{self.last}"


@dataclass(frozen=True)
class ScriptLoop:
    """The values of a loop, and the references of its names in the body."""

    each: Json
    item: str
    names: Mapping[str, Reference]
    place: str | None = None

    def keys(self) -> JsonObject:
        place: JsonObject = {} if self.place is None else {"_at": self.place}
        return {"_each": self.each, "_as": self.item, **place}


@dataclass
class CollectedValue:
    """A value that a `for` adds to a list in each iteration. Until the loop's end it has a name of its own."""

    kept: str
    how: Adding
    guards: list[list[str]] = field(default_factory=list)
    """The conditions of each statement that adds to it."""

    def excludes(self, guards: Sequence[str]) -> bool:
        """Whether no earlier statement has added to it if these conditions hold."""
        return all(
            any(f"not ({each})" in guards for each in earlier) or any(f"not ({each})" in earlier for each in guards)
            for earlier in self.guards
        )


class Block:
    """The calls of the plan, or of a loop's body, in order. A condition is not a block: its calls are in the same list,
    with `guards`."""

    def __init__(
        self, kinds: Set[str], kind: BlockKind = "plan", parent: Block | None = None, loop: ScriptLoop | None = None
    ) -> None:
        self.kinds = kinds
        self.kind = kind
        self.calls: list[JsonObject] = []
        self.guards: list[str] = []
        """The conditions of the current statement, as formulas."""
        self.written: set[str] = set()
        self.versions: dict[str, list[set[str]]] = {}
        """Name → the conditions of each call so far that writes it."""
        self.partial: set[str] = set()
        """Names of which a call writes only a part. A reader of another part does not wait for that call."""
        self.reads_of_version: dict[tuple[str, int], list[tuple[str, int]]] = {}
        """A name's version → the versions of the names that its call reads."""
        self.added_versions: list[str] = []
        """The names whose versions the current statement added, in order."""
        self.collected: dict[str, CollectedValue] = {}
        """The values that a `for` appends."""
        self.past_items: set[str] = set()
        """The names of items of loops that have closed, unless they were assigned since."""
        self.sure: set[str] = set()
        """The names that are assigned here whatever the conditions so far decide."""
        self._own_conditions: list[str] = []
        """The `_if` of the call whose arguments are read: none, or one."""
        self.outermost_if: int | None = None
        """The place of the first call of the outermost `if` here; `None` outside of one."""
        self._ifs: dict[str, set[int]] = {}
        """By name, the outermost `if` of each call that writes it under a condition."""
        self.values = ScriptValues(self.resolve)
        self.paths = ScriptValues(self._named)
        """The translator of output paths, whose names are not read."""
        self.counter: Counter = Counter() if parent is None else parent.counter
        self.depth: int = 0 if parent is None else parent.depth + 1
        self._effect: int | None = None
        """The last call of a `while` without an output path, made for its effect: later calls wait for it, as for a
        pause between two polls."""
        self._parent = parent
        self._read: set[str] = set()
        self._items: dict[str, Reference] = {} if parent is None else dict(parent._items)
        if loop is not None:
            self._items.update(loop.names)

    def inside(self, kind: BlockKind, loop: ScriptLoop | None = None) -> Block:
        return Block(self.kinds, kind, self, loop)

    def resolve(self, node: ast.Name) -> Reference:
        """Return the reference of a name: a loop's item, a kind of data, or a result."""
        reference = self._named(node)
        if reference.kind == "state" and reference.path:
            self._note(node.id, node)
        return reference

    def _named(self, node: ast.Name) -> Reference:
        if node.id in self._items:
            return self._items[node.id]
        return Reference(node.id, ()) if node.id in self.kinds else Reference("state", (node.id,))

    def values_with(self, kinds: Iterable[str]) -> ScriptValues:
        """Return a translator that also resolves these kinds."""
        known = frozenset(kinds)
        return ScriptValues(lambda node: Reference(node.id, ()) if node.id in known else self.resolve(node))

    def knows(self, name: str) -> bool:
        """Whether the name was assigned before, or is a loop's."""
        above = self._parent is not None and self._parent.knows(name)
        return name in self.written or name in self._items or above

    def is_outside_for(self, name: str) -> bool:
        """Whether the name has its value from before the innermost `for`, whose rounds do not see each other."""
        if name in self.written or name in self.kinds or self._parent is None:
            return False
        return self.kind == "for" or self._parent.is_outside_for(name)

    def is_sure(self, name: str) -> bool:
        """Whether the name has a value here whatever conditions decide, as an item or by an assignment."""
        above = self._parent is not None and self._parent.is_sure(name)
        return name in self.sure or name in self._items or above

    def assign_before_loop(self, name: str, node: ast.AST) -> None:
        """Assign the name before a loop whose first round may not read it: the value that it has, or null."""
        if self.is_sure(name):
            return
        if self.kind == "for":  # its rounds do not see the state
            self.check_unread(name, node)
            if self._parent is not None and self._parent.knows(name):
                raise NotAllowedError(node, LEFT_OUT.format(name=name))
            self.let(name, None, node)
            return
        # An alternative waits for the name's own writers. A formula of the whole state waits for all calls before it.
        empty = self.counter.name(name)
        self.let(empty, None, node)
        self.let(name, f"†state.{name} || †state.{empty}", node)

    def _note(self, name: str, node: ast.AST) -> None:
        if name in self.collected:
            raise NotAllowedError(node, f"{name} is collected in this loop: read it after the loop")
        if name in self.past_items:
            raise NotAllowedError(
                node, f"{name} is the item of a loop above: read the last one from its list, such as rows[-1]"
            )
        if name not in self.written:
            self._read.add(name)
            if self._parent is not None:
                self._parent._note(name, node)
        elif self.kind == "for" and self._parent is not None and self._parent.knows(name) and self._is_left_out(name):
            raise NotAllowedError(node, LEFT_OUT.format(name=name))

    def _is_left_out(self, name: str) -> bool:
        """Whether a single `if` assigns the name, not in all of its branches, and not under the conditions here."""
        conditions = [*self.guards, *self._own_conditions]
        held = _parts(join_conditions(conditions)) if conditions else set()
        holds = any(condition <= held for condition in self.versions.get(name, ()))
        return name not in self.sure and len(self._ifs.get(name, ())) == 1 and not holds

    @contextmanager
    def under_conditions(self, conditions: list[str]) -> Iterator[None]:
        """Count these conditions as true inside the `with`: a call's arguments are read only where its own `_if` holds."""
        before, self._own_conditions = self._own_conditions, conditions
        try:
            yield
        finally:
            self._own_conditions = before

    @contextmanager
    def under_guard(self, guard: str) -> Iterator[None]:
        """Emit calls of a part of an expression, which this condition decides."""
        sure = set(self.sure)
        self.guards.append(guard)
        try:
            yield
        finally:
            self.guards.pop()
            self.sure = sure

    def target(self, targets: list[ast.expr]) -> str:
        """Return the output path of the names before `=`, and mark them as written."""
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                self.write(root_name(each), each)
        return self.paths.output_path(targets)

    def write(self, name: str, node: ast.AST) -> None:
        if name in self._items:
            raise NotAllowedError(node, f"{name} is the loop's item: give the result a name of its own")
        if name not in self.written:
            self.check_unread(name, node)
        if name in self.collected:
            raise NotAllowedError(node, f"{name} is collected in this loop: assign another name")
        self.written.add(name)

    def check_unread(self, name: str, node: ast.AST) -> None:
        """Reject a name whose value a `for` would pass from iteration to iteration."""
        if self.kind == "for" and name in self._read:
            raise NotAllowedError(
                node,
                f"{name} is read before it is assigned in this loop, whose rounds do not see each other. Name the value made for "
                f"each item, which is a list after the loop, and write {name} = sum(…) or the like there, or use while",
            )

    def emit(self, call: JsonObject, node: ast.AST, writes: Iterable[str] = ()) -> None:
        """Add the call to the plan, under the conditions that hold here. `writes`: the names that a loop's body
        assigns."""
        own = [str(call[IF])] if isinstance(call.get(IF), str) else []
        if self._effect is not None and "_after" not in call:
            call = {**call, "_after": [f".{self._effect}"]}
        if self.guards:
            call = {**call, IF: join_conditions([*self.guards, *own])}
        elif self.kind == "while" and not own and "_outputPath" not in call and call["_tool"] not in OWN_TOOLS:
            self._effect = len(self.calls)
        names = [*_names_of(call.get("_outputPath")), *writes]
        self.past_items.difference_update(names)
        if not own:
            self.sure.update(names)
        if own or self.outermost_if is not None:
            place = len(self.calls) if self.outermost_if is None else self.outermost_if
            for name in names:
                self._ifs.setdefault(name, set()).add(place)
        call = self._after_versions(call, names)
        try:
            check(call)
        except JsonError as error:
            raise NotAllowedError(node, str(error)) from None
        self.calls.append(call)

    def _after_versions(self, call: JsonObject, names: Iterable[str]) -> JsonObject:
        """Return the call, ordered after the earlier calls that assigned its names, as in Python (R5.14)."""
        read = str({key: value for key, value in call.items() if key != "_outputPath"})
        whole = set(_WHOLE.findall(read))
        reads = [
            (name, len(self.versions.get(name, ())))
            for name in dict.fromkeys(STATE.findall(read))
            if name not in self.partial or name in whole
        ]
        again, holds = [], _parts(call.get(IF))
        for name in dict.fromkeys(names):
            versions = self.versions.setdefault(name, [])
            if not _excludes(versions, holds) and not self._derives_from(reads, name, len(versions)):
                again.append(f"ended †state.{name}")
            versions.append(holds)
            self.added_versions.append(name)
            self.reads_of_version[name, len(versions)] = reads
        self.partial |= {name for name, part in _PART_WRITTEN.findall(str(call.get("_outputPath", ""))) if part}
        if not again:
            return call
        given = call.get("_after", [])
        return {**call, "_after": list(dict.fromkeys([*(given if isinstance(given, list) else [given]), *again]))}

    def _derives_from(self, reads: Sequence[tuple[str, int]], name: str, version: int) -> bool:
        """Whether the values that a call reads derive from this version of the name. Then the call that wrote it has
        ended, and no `_after` is needed. Return false after `_MAX_SEARCHED` versions: a superfluous `_after` changes no
        result."""
        left, seen = list(reads), set[tuple[str, int]]()
        while left and len(seen) < _MAX_SEARCHED:
            each = left.pop()
            if each[0] == name and each[1] >= version:
                return True
            if each not in seen:
                seen.add(each)
                left += self.reads_of_version.get(each, ())
        return False

    def forget_added(self) -> None:
        """Remove the versions that a refused statement has added."""
        for name in reversed(self.added_versions):
            self.reads_of_version.pop((name, len(self.versions[name])), None)
            self.versions[name].pop()

    def let(self, name: str, value: Json, node: ast.AST) -> None:
        """Assign a value to a name, without a tool."""
        self.written.add(name)
        self.emit({"_tool": "_let", "value": value, "_outputPath": f"†state.{name}"}, node)


def _names_of(output_path: Json) -> list[str]:
    """Return the first names of a script's output path."""
    return WRITTEN.findall(output_path) if isinstance(output_path, str) else []


def _parts(condition: Json) -> set[str]:
    """Return the parts of a condition that must all hold, each as a formula."""
    source = readable_formula(condition) if isinstance(condition, str) else None
    if source is None:
        return set()
    node = parse_expression(source)
    return {ast.unparse(each) for each in (node.values if _is_all(node) else [node])}


def _is_all(node: ast.expr) -> TypeGuard[ast.BoolOp]:
    return isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And)


def _excludes(before: Iterable[Set[str]], holds: Set[str]) -> bool:
    """Whether the conditions here exclude those of all earlier writers."""
    return all(
        any(_negated(each) in holds for each in one) or any(_negated(each) in one for each in holds) for one in before
    )


def _negated(formula: str) -> str:
    return ast.unparse(parse_expression(f"not ({formula})"))


def join_conditions(conditions: Iterable[str]) -> str:
    """Return the conjunction of all conditions as a formula, with only the necessary brackets."""
    return ast.unparse(parse_expression(" and ".join(f"({part})" for part in conditions)))


def root_name(node: ast.expr) -> str:
    """Return the first name of a target or a chain of keys."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def bind(target: ast.expr, depth: int) -> tuple[str, dict[str, Reference]]:
    """Return the kind of references to a loop's item, and the references of the loop's names."""
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


_INSTEAD: Final[dict[type[ast.AST], str]] = {
    ast.FunctionDef: "nothing is defined here: write the calls where they are needed, in a for loop if for many",
    ast.AsyncFunctionDef: "nothing is defined here: write the calls where they are needed, in a for loop if for many",
    ast.ClassDef: "nothing is defined here: write calls, and objects as {'key': value}",
    ast.Import: "nothing is imported: there are the tools, and in expressions len, sum, sorted, f-strings and the like",
    ast.ImportFrom: "nothing is imported: there are the tools, and in expressions len, sum, sorted, f-strings and the like",
    ast.Try: "there is no try: write result, error = tool(…); what reads error runs only where the call fails",
    ast.With: "there is no with: only tools reach files and the like",
    ast.AsyncWith: "there is no with: only tools reach files and the like",
    ast.AsyncFor: "for is enough: what can, runs in parallel by itself",
    ast.Return: "there is no return: output(value) is the answer",
    ast.Raise: "there is no raise: output(…) can say what is wrong, under an if",
    ast.Assert: "there is no assert: put what depends on it under an if",
    ast.Delete: "there is no del: names stay what they are",
    ast.Global: "there is no global: names assigned in a loop are lists after it",
    ast.Nonlocal: "there is no nonlocal: names assigned in a loop are lists after it",
    ast.Continue: "continue is only read as the last line of an if that stands directly in the loop: put the rest under `if not …:`",
}
if hasattr(ast, "Match"):
    _INSTEAD[ast.Match] = "there is no match: write if … elif … else"

NO_BREAK: Final = {
    "for": "there is no break: take what is needed in the for line, such as `for x in [x for x in found if x.ok][:1]:`",
    "while": "there is no break: the while line says how long, such as `while not status.ok:`",
    "plan": "there is no break",
}
BY_ITSELF: Final = (
    "{name} = … of {name} itself is not read: give the new value a name of its own; over a list it is an expression, such as "
    "total = sum(x.n for x in xs)"
)
LEFT_OUT: Final = (
    "{name} is assigned only under a condition in this loop, whose rounds do not see the value from before it. "
    "Assign {name} in the loop before that condition too"
)
NOT_CHANGED: Final = "values are not changed in place: name a new one, such as {name}2 = [… for … in …] or {name}2 = {{k: v for k, v in rows}}"
_LAZY: Final = frozenset({"any", "all", "next", "zip"})
_STOPS_EARLY: Final = (
    "{name} would stop at the item that decides its result, or at the end of the shortest list, but a plan makes the calls of all items. To make all "
    "calls, assign a list first: ys = [tool(x) for x in xs]. To stop early, use while"
)
NO_EXIT: Final = "a script does not end before its last line: put what follows under an if"
NO_PRINT: Final = "nothing is printed: a call's result without a name is shown to you, and output(…) is the answer"
TWICE: Final = (
    "output(…) stands alone on its line, once; under an if, once in each branch, with what follows under else"
)


def statement_hint(node: ast.stmt) -> str:
    found = _INSTEAD.get(type(node))
    return found or f"{kind_name(node)!r} is not a call; only calls can be planned: name = tool(key=value)"


_KNOWN: Final = {
    "asyncio.gather": "what can, runs in parallel by itself: write [tool(x) for x in xs]",
    "asyncio.run": "what can, runs in parallel by itself: write the calls alone",
    "time.sleep": "only a tool can wait, and _after=[name] orders what passes on no value",
    "json.dumps": 'pass the value itself, or f"{value}" in a text',
    "json.loads": "results are values already: read them as data.key",
}


def no_such_tool(name: str, names: Iterable[str]) -> str:
    if name in _KNOWN:
        return f"there is no {name}: {_KNOWN[name]}"
    near = difflib.get_close_matches(name, list(names), 1) or difflib.get_close_matches(
        name.split(".")[-1], list(names), 1
    )
    hint = (
        f"did you mean {near[0]!r}"
        if near
        else "only the tools above can be called, and len, sum, sorted and the like in expressions"
    )
    return f"there is no tool {clip(name, 60)!r}: {hint}"


_OF_A_LOOP: Final = frozenset({"_each", "_until", "_outputMethod", "_instance", "_after"})


class Calls:
    """A reader of calls and their arguments into a block's plan."""

    def __init__(self, vocabulary: ReaderVocabulary) -> None:
        self._vocabulary = vocabulary

    # Tools of calls.

    def is_tool(self, node: ast.AST) -> bool:
        """Whether the node calls a tool, not a function or a method of a value."""
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
        """Return a tool's call for the plan. Add the calls among its arguments to the plan before it."""
        written = block.values.dotted(call.func)
        names = self._vocabulary.names
        written = written if written in names else written.removeprefix("functions.")
        tool = names.get(written, written)
        if call.args and names and written not in names:
            raise NotAllowedError(call, no_such_tool(written, names))
        return {"_tool": tool, **self._arguments(call, tool, block)}

    def _arguments(self, call: ast.Call, tool: str, block: Block) -> JsonObject:
        """Return the arguments by name; positional ones are the tool's parameters in their order."""
        parameters = self._vocabulary.parameters.get(tool, [])
        if len(call.args) > len(parameters):
            raise NotAllowedError(
                call.args[len(parameters)], f"{tool} takes no more arguments by position; name them: key=value"
            )
        values = _with_item(call, block)
        own = [each.value for each in call.keywords if each.arg == IF and not self.has_calls(each.value)]
        with block.under_conditions([_condition(node, block, values) for node in own]):
            arguments = {
                name: values.value(self.plain(node, block)) for name, node in zip(parameters, call.args, strict=False)
            }
            keywords = self.keywords(call, block, values)
        for name, value in keywords.items():
            if name in arguments:
                raise NotAllowedError(call, f"{tool} is given {name!r} twice")
            # `from_` is `from`, which Python does not accept as a name.
            wanted = name.removesuffix("_")
            arguments[wanted if name not in parameters and wanted in parameters else name] = value
        return arguments

    def keywords(self, call: ast.Call, block: Block, values: ScriptValues | None = None) -> JsonObject:
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
                own = {"_each": block.values, "_outputPath": block.paths}
                more = {argument.arg: own.get(argument.arg, values).value(node)}
            for name, value in more.items():
                if name in found:
                    raise NotAllowedError(argument, f"{name!r} is given twice")
                if name == "_tool" or name.startswith("__"):
                    raise NotAllowedError(argument, f"{name!r} cannot be given")
                found[name] = value
        return found

    # Calls inside expressions.

    def plain(self, node: ast.expr, block: Block) -> ast.expr:
        """Return the expression without tool calls, and add these calls to the block in Python's order of evaluation.
        Each call becomes a name."""
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
        if isinstance(node, ast.Compare) and any(map(self.has_calls, node.comparators[1:])):
            raise NotAllowedError(
                node,
                "Python evaluates the last value only if the first comparison holds. Assign the middle value first: b = tool(x), then write a < b and b < c",
            )
        if isinstance(node, ast.NamedExpr):
            block.write(node.target.id, node.target)
            self.compute(node.target.id, node.value, block)
            return _name(node.target.id, node)
        if isinstance(node, ast.Lambda):
            raise NotAllowedError(node, "a tool cannot be called in a lambda: call it in a list, [tool(x) for x in xs]")
        self._check_lazy(node)
        for part, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, part, self.plain(value, block))
            elif isinstance(value, list):
                setattr(node, part, [self._part(each, block) for each in value])
        return node

    def _check_lazy(self, node: ast.expr) -> None:
        """Reject a generator with calls that `any`, `all`, `next`, `in` or `zip` reads: a loop would make calls that Python does
        not reach."""
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            name, sources = "in", node.comparators
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LAZY:
            name, sources = node.func.id, node.args
        else:
            return
        if any(map(self._is_lazy, sources)):
            raise NotAllowedError(node, _STOPS_EARLY.format(name=name))

    def _is_lazy(self, source: ast.expr) -> bool:
        """Whether calls are made only as far as this value is read."""
        if isinstance(source, ast.GeneratorExp):
            first, *rest = source.generators
            return any(map(self.has_calls, (source.elt, *first.ifs, *rest))) or self._is_lazy(first.iter)
        passes_on = isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.func.id == "enumerate"
        return isinstance(source, ast.Call) and passes_on and any(map(self._is_lazy, source.args))

    def _part(self, node: object, block: Block) -> object:
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
        """Plan `a and f(b).ok`: later parts are evaluated only if the earlier ones do not decide the result."""
        name = block.counter.name("and" if isinstance(node.op, ast.And) else "or")
        first, *rest = node.values
        self.compute(name, first, block)
        for each in rest:
            settled = f"state.{name}" if isinstance(node.op, ast.And) else f"not state.{name}"
            with block.under_guard(self.condition(settled, block, node)):
                self.compute(name, each, block)
        return _name(name, node)

    def _either(self, node: ast.IfExp, block: Block) -> ast.Name:
        name = block.counter.name("if")
        test = self.condition(block.values.formula(self.plain(node.test, block)), block, node)
        for guard, value in ((test, node.body), (f"not ({test})", node.orelse)):
            with block.under_guard(guard):
                self.compute(name, value, block)
        block.sure.add(name)
        return _name(name, node)

    def condition(self, text: str, block: Block, node: ast.AST) -> str:
        """Return a name for a condition's present value, which later assignments do not change."""
        name = block.counter.name("is")
        block.let(name, {EXPR: f"bool({text})"}, node)
        return f"state.{name}"

    def compute(self, name: str, node: ast.expr, block: Block) -> None:
        """Assign the value of the expression to the name."""
        if self.is_tool(node):
            assert isinstance(node, ast.Call)
            raw = self.raw(node, block)
            block.written.add(name)
            block.emit({**raw, "_outputPath": f"†state.{name}"}, node)
        else:
            # `a and b` is a reference only as a whole value; as a part of an expression it is Python's.
            block.let(name, block.values.value(self.plain(node, block), by_truth=True), node)

    # Loops.

    def loop(self, target: ast.expr, source: ast.expr, block: Block) -> ScriptLoop:
        """Return the values and the names of a `for`."""
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
            return ScriptLoop(_listed(source.args[0], block), item, {**names, **at}, place)
        item, names = bind(target, block.depth)
        return ScriptLoop(_listed(source, block), item, names)

    def end_loop(self, loop: ScriptLoop, inner: Block, block: Block, node: ast.AST) -> None:
        """Plan the loop after its body. A single plain call becomes a loop over itself."""
        calls = inner.calls
        if not calls:
            return
        plain = calls[0]["_tool"] not in OWN_TOOLS and not calls[0].keys() & _OF_A_LOOP
        # A condition that reads no item would be one of the whole loop.
        asks = IF not in calls[0] or any(_reads(str(calls[0][IF]), name) for name in (loop.item, loop.place))
        if len(calls) == 1 and plain and asks and not block.guards:
            block.emit({**calls[0], **loop.keys()}, node)
        else:
            block.emit({"_tool": "_for", **loop.keys(), "_body": calls}, node, sorted(inner.written))
        for name in sorted(inner.written):
            block.write(name, node)

    def comprehension(self, node: ast.expr, block: Block, name: str | None = None) -> str:
        """Plan `[tool(x) for x in xs if …]` as a loop, and return the name of its list."""
        assert isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp | ast.SetComp)
        name = name or block.counter.name("list")
        loop, asked = self._over(node.generators, block)
        inner = block.inside("for", loop)
        keep = name
        if asked or not isinstance(node, ast.ListComp | ast.GeneratorExp):
            keep = block.counter.name("each")
        made = f"x for x in state.{keep}"
        if asked:
            for test in asked:  # each is evaluated only where those before it hold
                inner.guards.append(self.condition(inner.values.formula(self.plain(test, inner)), inner, node))
            made = f"x for x, holds in zip(state.{keep}, {inner.guards[-1]}) if holds"
        element = ast.Tuple([node.key, node.value], ast.Load()) if isinstance(node, ast.DictComp) else node.elt
        self.compute(keep, ast.copy_location(element, node), inner)
        self.end_loop(loop, inner, block, node)
        if isinstance(node, ast.DictComp):
            block.let(name, {EXPR: f"{{pair[0]: pair[1] for pair in state.{keep} if pair and len(pair) == 2}}"}, node)
        elif isinstance(node, ast.SetComp):
            block.let(name, {EXPR: f"{{{made}}}"}, node)
        elif asked:
            block.let(name, {EXPR: f"[{made}]"}, node)
        return name

    def _over(self, generators: Sequence[ast.comprehension], block: Block) -> tuple[ScriptLoop, list[ast.expr]]:
        """Return the loop of a comprehension, and its conditions that call tools."""
        first, *rest = generators
        for each in generators:
            if each.is_async:
                raise NotAllowedError(each.iter, "for is enough: what can, runs in parallel by itself")
        asks = next((at for at, test in enumerate(first.ifs) if self.has_calls(test)), len(first.ifs))
        first.ifs, asked = first.ifs[:asks], first.ifs[asks:]
        if rest and (asked or any(self.has_calls(part) for each in rest for part in (each.iter, *each.ifs))):
            raise NotAllowedError(rest[0].iter, "write this as for loops inside each other: their lines may call tools")
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


def _with_item(call: ast.Call, block: Block) -> ScriptValues:
    """Return a translator for the values beside `_each`, which defines an item and its place."""
    given = {each.arg: each.value for each in call.keywords}
    if "_each" not in given and "_until" not in given:
        return block.values
    named = [
        str(node.value) if isinstance(node := given.get(key), ast.Constant) else usual
        for key, usual in (("_as", "item"), ("_at", "index"))
    ]
    return block.values_with(named)


def _condition(node: ast.expr, block: Block, values: ScriptValues) -> str:
    """Return a call's own `_if`: a formula, also if it is written as in the other dialects, as a text or as `{"_expr":
    …}`."""
    if isinstance(node, ast.Dict) and [getattr(key, "value", None) for key in node.keys] == [EXPR]:
        node = node.values[0]
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return values.formula(node)
    if (source := readable_formula(node.value)) is not None:
        return values.formula(parse_expression(source))
    if block.kind != "plan" or block.guards:
        raise NotAllowedError(node, "a condition in a loop, or under an if, is an expression: _if=a.ok or b.ok")
    return node.value


def _reads(formula: str, name: str | None) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(parse_expression(formula)))


def _listed(node: ast.expr, block: Block) -> Json:
    """Return the values of a loop: a reference, a list, or a formula for one, in which `and` and `or` choose by truth."""
    value = block.values.value(node, by_truth=True)
    plain = isinstance(value, list) or (isinstance(value, dict) and value.keys() == {EXPR})
    if plain or (isinstance(value, str) and not isinstance(node, ast.Constant)):
        return value
    return {EXPR: block.values.formula(node)}


def _loaded(target: ast.expr) -> ast.expr:
    """Return the expression that reads a loop's item, built from the loop's names."""
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
