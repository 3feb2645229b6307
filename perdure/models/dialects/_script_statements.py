"""Statements of a script: lines, conditions, loops, and assignments as calls of a plan."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from perdure.errors import JsonError
from perdure.models.dialects._script_calls import (
    BY_ITSELF,
    NO_BREAK,
    NO_PRINT,
    NOT_CHANGED,
    TWICE,
    WRITTEN,
    Adding,
    Block,
    Calls,
    CollectedValue,
    join_conditions,
    root_name,
    statement_hint,
)
from perdure.models.dialects._script_values import NotAllowedError
from perdure.models.dialects.common import END_OF_THOUGHT, last_marks_removed
from perdure.models.requests import ReaderVocabulary
from perdure.plan import IF
from perdure.values.formulas import is_method, parse_expression, parse_statements
from perdure.values.json import Json, JsonObject, check
from perdure.values.templates import EXPR

_BEGINS: Final = re.compile(r"(?:[A-Za-z_][\w., \[\]\"']* = )?[A-Za-z_][\w.]*\(")
"""The beginning of a statement. Inside an open bracket it means that the earlier statement was never closed."""
_ATTEMPT: Final = re.compile(r"[\w., \[\]\"']*=(?!=)|[A-Za-z_][\w.]*\s*\(|[\[{(\"']")
"""The beginning of a line that may be a statement. Any other line that cannot be parsed is prose."""
_MARKER: Final = re.compile(r"(?:[-*+•]|\d{1,3}[.)]|>>>)\s+(?=[A-Za-z_`])")
_COMPOUND: Final = re.compile(
    r"(?:async\s+)?(?:for|while|if|def|class|try|with)\b.*:|match\s[^#=]*:\s*(?:#|$)", re.DOTALL
)
"""The beginning of a line to which the following deeper lines belong."""
_HEAD: Final = re.compile(r"(?:for|while|if)\b")
_GOES_ON: Final = re.compile(r"(?:elif|else|except|finally)\b")
"""The beginning of a line that belongs to a compound statement without being deeper than its head."""
_BODIES: Final = {"match": "\n case 1: pass", "try": " pass\nfinally: pass"}
_SIGNS: Final = re.compile(r"\"\"\"|'''|[\"'#()\[\]{}]")
_CLOSES: Final = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in ('"""', "'''", '"', "'")}
_END: Final = re.compile(r"</think(?:ing)?>")


@dataclass(frozen=True, slots=True)
class Statement:
    """The lines of one statement; `first` is the number of the first line, from 1."""

    first: int
    lines: list[str]

    @property
    def is_words(self) -> bool:
        """Whether it is prose: it begins neither as a call, nor as a loop or a condition."""
        return not _ATTEMPT.match(self.lines[0].lstrip()) and not self._has_head

    @property
    def _has_head(self) -> bool:
        """Whether it begins with the head of a loop or a condition; `if you like, do this:` is not one."""
        ends = next((at for at, line in enumerate(self.lines, 1) if ":" in line), 1)
        head = "\n".join(self.lines[:ends]).lstrip()
        if not _COMPOUND.match(head):
            return False
        body = _BODIES.get(head.split(":")[0].split()[0], " pass")
        return any(map(_is_read, (f"{head.partition(':')[0]}:{body}", f"{head.rpartition(':')[0]}:{body}")))


def _is_read(text: str) -> bool:
    try:
        parse_statements(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


class Lines:
    """A reader that yields each statement once its line has closed; `None` if the text so far was a thought whose
    beginning was lost."""

    def __init__(self) -> None:
        self.trusted = False
        """Whether a statement was used: no later end of a thought counts."""
        self.fences = 0
        self._left: list[str] = []
        """Pieces of the line that has not ended."""
        self._number = 0
        self._lines: list[str] = []
        self._first = 1
        self._depth = 0
        self._quote = ""
        self._open = False
        """Whether the last line continues on the next one."""
        self._indent = 0
        """The indentation of the statement's first line."""
        self._thinking = False
        self._base: int | None = None
        """The indentation of a loop's or a condition's head, while its lines are gathered."""
        self._indents: tuple[int, ...] = ()
        """The indentations at which statements may begin: the least so far, or the one after the last list marker."""

    @property
    def fenced(self) -> bool:
        """Whether a code fence is open."""
        return self.fences % 2 == 1

    @property
    def under_way(self) -> str:
        """The unfinished statement so far; `""` if it is part of another statement, or of a thought."""
        return "" if self._thinking or self._base is not None else "\n".join([*self._lines, "".join(self._left)])

    def push(self, text: str) -> Iterator[Statement | None]:
        self._left.append(text)
        if "\n" not in text:
            return
        *lines, rest = "".join(self._left).split("\n")
        self._left = [rest]
        for line in lines:
            yield from self._line(line.removesuffix("\r"))

    def close(self) -> Iterator[Statement | None]:
        rest, self._left = "".join(self._left), []
        if rest:
            yield from self._line(rest)
        yield from self._take()

    def _line(self, line: str) -> Iterator[Statement | None]:
        self._number += 1
        line = line.removeprefix("\ufeff") if self._number == 1 else line
        if self._thinking:
            end = _END.search(line)
            if end is None:
                return
            self._thinking, line = False, line[end.end() :]
        elif not self.trusted and len(self._quote) != 3 and (ends := list(END_OF_THOUGHT.finditer(line))):
            self._lines, self._base, self._indents = [], None, ()
            yield None
            line = line[ends[-1].end() :]
        if self._lines and len(self._quote) != 3 and _BEGINS.match(line):
            yield from self._take()
        if self._base is not None and not self._open:
            if not self._belongs(line):
                yield from self._take()
            elif not line.strip() or line.lstrip().startswith("#"):
                self._lines.append("")
                return
            else:
                line = line[self._base :]
                self._depth = 0
        if not self._lines:
            bare = self._bare(line)
            if bare is None:
                return
            line = bare
            self._first, self._depth, self._quote, self._open = self._number, 0, "", False
        self._lines.append(line)
        self._scan(line)
        self._open = self._depth > 0 or bool(self._quote) or line.endswith("\\")
        if not self._open and self._base is None:
            if _COMPOUND.match("".join(self._lines)):
                self._base = self._indent
            else:
                yield from self._take()

    def _belongs(self, line: str) -> bool:
        """Whether the line belongs to the loop or condition that is being gathered."""
        text = line.lstrip()
        indent = len(line) - len(text)
        if not text or text.startswith("#"):
            return True
        if text.startswith("```"):
            return False
        assert self._base is not None
        return indent > self._base or (indent == self._base and bool(_GOES_ON.match(text)))

    def _take(self) -> Iterator[Statement]:
        self._base = None
        if self._lines:
            lines, self._lines = self._lines, []
            while not lines[-1].strip() and len(lines) > 1:
                lines.pop()
            yield Statement(self._first, lines)

    def _bare(self, line: str) -> str | None:
        """Return the line from a possible statement on, without thoughts, markers and backquotes; `None` if nothing is
        left.
        """
        text = line.strip()
        if text.startswith(("<think>", "<thinking>")):
            end = _END.search(text)
            self._thinking = end is None
            return None if end is None else self._bare(text[end.end() :])
        if text.startswith("```"):
            self.fences += 1
            return None
        if not text or text.startswith(("#", "</think")) or not last_marks_removed(text):
            return None
        marker = _MARKER.match(text)
        core = line.lstrip()[marker.end() if marker else 0 :]
        if core.startswith("`") and core.rstrip().endswith("`"):
            core = core.strip().strip("`").strip()
        indent = self._indent = len(line) - len(line.lstrip())
        if not _BEGINS.match(core) and not _COMPOUND.match(core):
            return line
        if not self._indents or indent < self._indents[0]:
            self._indents = (indent,)
        if indent not in self._indents:
            return line  # deeper than its statement allows: an error, which Python's own parser names
        if marker:
            self._indents = (self._indents[0], indent + marker.end())
        return last_marks_removed(core) if core.rstrip().endswith(">") else core

    def _scan(self, line: str) -> None:
        """Update the state with a line's quotes and brackets; those in prose do not count."""
        if len(self._lines) == 1 and not _ATTEMPT.match(line.lstrip()) and not _HEAD.match(line):
            return
        at = 0
        while found := (_CLOSES[self._quote] if self._quote else _SIGNS).search(line, at):
            at, sign = found.end(), found[0]
            if self._quote:
                self._quote = "" if sign == self._quote else self._quote
            elif sign == "#":
                break
            elif sign in _CLOSES:
                self._quote = sign
            else:
                self._depth += 1 if sign in "([{" else -1
        if len(self._quote) == 1 and not line.endswith("\\"):
            self._quote = ""  # such a string ends with its line, and is an error


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


def as_branches(targets: list[ast.expr], value: ast.IfExp) -> ast.If:
    """Return `x = f() if y else g()` as a condition with two branches; without targets `f() if y else None` as a call
    in one of them."""

    def branch(each: ast.expr) -> ast.stmt:
        if targets:
            return ast.Assign(copy.deepcopy(targets), each)
        return ast.Pass() if isinstance(each, ast.Constant) else ast.Expr(each)

    first, other = (ast.copy_location(branch(each), value) for each in (value.body, value.orelse))
    return ast.copy_location(ast.If(value.test, [first], [other]), value)


def written_out(node: ast.AugAssign) -> ast.expr:
    """Return the value that `x += 1` assigns: `x + 1`."""
    read = copy.deepcopy(node.target)
    for each in ast.walk(read):
        if hasattr(each, "ctx"):
            each.ctx = ast.Load()
    return ast.copy_location(ast.BinOp(read, node.op, node.value), node)


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


@dataclass(frozen=True, slots=True)
class _Branch:
    """A condition under which statements of a round run."""

    number: int
    parts: frozenset[Hashable] = frozenset()
    """What is known to hold in it: each part as text, with the versions of its names."""
    whole: bool = False
    """Whether it runs wherever its parts hold."""


class _RoundReader(ast.NodeVisitor):
    """The names that a round of a `while` may read before it assigns them, by its statements in Python's order."""

    def __init__(self, has_calls: Callable[[ast.AST], bool]) -> None:
        self.kept: dict[str, None] = {}
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

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            for name in WRITTEN.findall(node.value):
                self._read(name)

    def _read(self, name: str) -> None:
        if name in self._bound or self._is_assigned(name):
            return
        if name in self._left_out:
            self.kept[name] = None
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

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign([node.target], node.value)

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        if isinstance(value, ast.IfExp) and self._has_calls(value):
            self.visit_If(as_branches(targets, value))
            return
        self.visit(value)
        with (
            self._under() if isinstance(value, ast.Call) and any(k.arg == IF for k in value.keywords) else nullcontext()
        ):
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


def assigned_names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement assigns."""
    return [name for name in dict.fromkeys(find_assigned([statement])) if name]


_LONG_CONDITION: Final = 400
"""Characters from which a condition gets a name, because each call below repeats it."""


class ScriptPlan:
    """A reader of statements in their order, each with the names that earlier ones define."""

    def __init__(self, vocabulary: ReaderVocabulary) -> None:
        self.outputs = 0
        self.output: Json = None
        self._names = vocabulary.names
        self._calls = Calls(vocabulary)
        self._top = Block({"input", "state", *vocabulary.kinds})
        self._in_branches = False
        """Whether the output so far depends on conditions."""

    def read(self, statement: ast.stmt) -> list[JsonObject]:
        """Return all calls of the statement, or none. Raises `NotAllowedError`."""
        top = self._top
        top.calls, top.guards, top.added = [], [], []
        before = self.outputs, self.output, self._in_branches
        try:
            self._statement(remove_await(statement), top)
        except (NotAllowedError, ValueError, RecursionError):
            top.forget_added()
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
        return not (
            block.knows(root_name(node.func)) or root_name(node.func) in block.kinds or is_method(node.func.attr)
        ) and (node.func.attr not in ("append", "extend"))

    def _change(self, node: ast.Call, func: ast.Attribute, block: Block) -> None:
        """Plan `xs.append(x)`, which assigns a new list to the name."""
        name = root_name(func.value)
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
        """Plan `loads[host.name] = load(host)`."""
        names = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
        if not isinstance(target.value, ast.Name) or target.value.id in names:
            raise NotAllowedError(target, NOT_CHANGED.format(name=root_name(target)))
        pair = ast.copy_location(ast.Tuple([target.slice, value], ast.Load()), value)
        self._add(target.value, pair, "pair", block)

    def _check_itself(self, targets: list[ast.expr], value: ast.expr, block: Block) -> None:
        """Reject `x = x + 1` outside a `while`: only its iterations run one after the other."""
        names = {root_name(target) for target in targets} & {
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
        names = {root_name(each) for each in target.elts} & {
            each.id for each in ast.walk(value) if isinstance(each, ast.Name)
        }
        if names and block.kind != "while":
            raise NotAllowedError(target, BY_ITSELF.format(name=min(names)))
        if names:  # all values are read before a name is assigned, as in Python
            kept = [ast.copy_location(ast.Name(block.counter.name("part"), ast.Store()), part) for part in parts]
            for held, part in zip(kept, parts, strict=True):
                self._assign([held], part, block)
            parts = [ast.copy_location(ast.Name(held.id, ast.Load()), held) for held in kept]
        for name, part in zip(target.elts, parts, strict=True):
            self._assign([name], part, block)

    def _augment(self, node: ast.AugAssign, block: Block) -> None:
        if isinstance(node.op, ast.Add) and isinstance(node.value, ast.List) and isinstance(node.target, ast.Name):
            self._add(node.target, node.value, "list", block)
            return
        self._assign([node.target], written_out(node), block)

    def _add(self, target: ast.expr, value: ast.expr, how: Adding, block: Block) -> None:
        """Plan `xs.append(v)`: a list with one more item; in a `for`, where iterations are independent, a list of all
        after the loop."""
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
        collected = before or CollectedValue(block.counter.name(name), how)
        self._calls.compute(collected.kept, value, block)
        collected.guards.append(list(block.guards))
        block.collected[name] = collected

    def _take_output(self, call: ast.Call, block: Block) -> None:
        if block is not self._top:
            raise NotAllowedError(
                call,
                "write output(…) outside of loops: the results of a loop are a list after it, and can be used there",
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
        ):  # null if no branch with an output is taken: an earlier answer's value must not remain
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
        test = self._calls.plain(node.test, block, test=True)
        text = block.values.formula(test)
        names = {each.id for each in ast.walk(test) if isinstance(each, ast.Name)}
        if len(text) > _LONG_CONDITION or names & set(find_assigned([*node.body, *node.orelse])):
            text = self._calls.condition(text, block, node.test)
        sure, outer, ends = block.sure, block.outermost_if, []
        block.outermost_if = len(block.calls) if outer is None else outer
        for guard, body in ((text, node.body), (f"not ({text})", node.orelse)):
            block.sure = set(sure)
            if body:
                self._under(guard, body, block, node.test)
            ends.append(block.sure)
        block.sure, block.outermost_if = ends[0] & ends[1], outer

    def _under(self, guard: str, body: Sequence[ast.stmt], block: Block, node: ast.expr) -> None:
        before = block.guards
        block.guards = [*before, guard]
        if len(joined := join_conditions(block.guards)) > _LONG_CONDITION:
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
        block.past_items.update(loop.names)
        self._collect(inner, block, node)

    def _collect(self, inner: Block, block: Block, node: ast.AST) -> None:
        """Add the values that a loop appends, as one list after the loop."""
        for name, each in inner.collected.items():
            if each.how == "pair":
                pairs: JsonObject = {
                    EXPR: f"{{**state.{name}, **{{pair[0]: pair[1] for pair in state.{each.kept} if pair and len(pair) == 2}}}}"
                }
                if block.kind == "for" and name not in block.written:
                    raise NotAllowedError(
                        node, f"{name} is filled two loops above: write [[key, value] …] lists inside"
                    )
                block.let(name, pairs, node)
                continue
            whole, part = "[x for xs in {} if xs for x in xs]", "[x for x in {} if x is not None]"
            added = parse_expression((whole if each.how == "list" else part).format(each.kept))
            for child in ast.walk(added):
                ast.copy_location(child, node)
            self._add(ast.copy_location(ast.Name(name, ast.Load()), node), added, "list", block)

    def _while(self, node: ast.While, block: Block) -> None:
        if node.orelse:
            raise NotAllowedError(node.orelse[0], "there is no else of a loop: write it behind the loop")
        if isinstance(node.test, ast.Constant):
            raise NotAllowedError(node.test, NO_BREAK["while"].replace("there is no break", "this would never end"))
        asked = self._calls.has_calls(node.test)
        body = without_continue(node.body)
        rounds = _RoundReader(self._calls.has_calls)
        for each in [node.test, *body, *([node.test] if asked else [])]:
            rounds.visit(each)
        for name in rounds.optional:
            block.begin(name, node)
        first, sure = block.counter.last, set(block.sure)
        test = self._calls.plain(copy.deepcopy(node.test), block, test=True)
        condition = block.values.formula(test)
        inner = block.inside("while")
        for name in rounds.kept:
            inner.let(name, inner.values.value(ast.copy_location(ast.Name(name, ast.Load()), node)), node)
        self._body(body, inner)
        if asked:  # evaluated again at the end of each iteration, under the same names
            last, block.counter.last = block.counter.last, first
            self._calls.plain(copy.deepcopy(node.test), inner, test=True)
            block.counter.last = last
        if not inner.calls:
            raise NotAllowedError(node, "the loop calls nothing, so it would never end")
        block.emit({"_tool": "_while", "_while": condition, "_body": inner.calls}, node, sorted(inner.written))
        block.sure = sure | (block.sure - inner.written)  # there may be no round
        for name in sorted(inner.written):
            block.write(name, node)
