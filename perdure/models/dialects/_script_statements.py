"""Statements of a script: lines, conditions, loops, and assignments as calls of a plan."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from perdure.errors import JsonError
from perdure.models.dialects._script_aliases import ANY, SharedValues, ValuePath
from perdure.models.dialects._script_calls import (
    BY_ITSELF,
    NO_BREAK,
    NO_EXIT,
    NO_PRINT,
    NOT_CHANGED,
    STATE,
    TWICE,
    Adding,
    Block,
    Calls,
    CollectedValue,
    join_conditions,
    root_name,
    statement_hint,
)
from perdure.models.dialects._script_rounds import RoundReader
from perdure.models.dialects._script_syntax import (
    BranchAssign,
    as_branches,
    as_loops,
    find_assigned,
    find_changed,
    find_end,
    has_end_in_text,
    parts_of,
    remove_await,
    without_continue,
    written_out,
)
from perdure.models.dialects._script_values import NotAllowedError
from perdure.models.dialects.common import END_OF_THOUGHT, last_marks_removed
from perdure.models.requests import ReaderVocabulary
from perdure.values.formulas import is_method, parse_expression, parse_statements
from perdure.values.json import Json, JsonObject, check
from perdure.values.references import Reference
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
_WORD: Final = re.compile(r"(?:async\s+)?(?:if|elif|else|for|while|def|class|try|except|finally|with)\b")
"""The beginning of a line that may be the head of a block whose colon is missing."""
_PROSE: Final = re.compile(r"(?:with|class)(?: \w+)+[.!]?\s*")
_HEAD: Final = re.compile(r"(?:for|while|if)\b")
_GOES_ON: Final = re.compile(r"(?:elif|else|except|finally)\b")
"""The beginning of a line that belongs to a compound statement without being deeper than its head."""
_BODIES: Final = {"match": "\n case 1: pass", "try": " pass\nfinally: pass"}
_SIGNS: Final = re.compile(r"\"\"\"|'''|[\"'#()\[\]{}]")
_CLOSES: Final = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in ('"""', "'''", '"', "'")}
_END: Final = re.compile(r"</think(?:ing)?>")


@dataclass(frozen=True, slots=True)
class Changes:
    """The values that a statement assigns, or changes in place."""

    paths: dict[str, None]
    """Output paths of its targets."""
    values: list[ValuePath]
    """All names of the values that it changes in place."""
    ends: bool
    """Whether it may end the script, so that Python does not reach the later lines."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The lines of one statement; `first` is the number of the first line, from 1."""

    first: int
    lines: list[str]

    @property
    def is_bare_block(self) -> bool:
        """Whether it is a head without a colon above calls, such as `if input.urgent`. It may be a thought, too."""
        calls = any("(" in line for line in self.lines[1:])
        return _is_bare_head(self.lines[0].lstrip()) and (calls or has_end_in_text(self.lines))

    @property
    def is_words(self) -> bool:
        """Whether it is prose: it begins neither as a call, nor as a loop or a condition. A head without a colon needs a
        call below it."""
        return not self.is_bare_block and not _ATTEMPT.match(self.lines[0].lstrip()) and not self._has_head

    @property
    def _has_head(self) -> bool:
        """Whether it begins with the head of a loop or a condition; `if you like, do this:` is not one."""
        ends = next((at for at, line in enumerate(self.lines, 1) if ":" in line), 1)
        head = "\n".join(self.lines[:ends]).lstrip()
        if not _COMPOUND.match(head):
            return False
        body = _BODIES.get(head.split(":")[0].split()[0], " pass")
        return any(map(_is_read, (f"{head.partition(':')[0]}:{body}", f"{head.rpartition(':')[0]}:{body}")))


def _is_bare_head(text: str) -> bool:
    """Whether the text would be the head of a block with a colon behind it. `for the refund` would not, and `with care` is
    prose: it has no condition for the calls below it."""
    if (word := _WORD.match(text)) is None or _PROSE.fullmatch(text):
        return False
    text = f"{text.rstrip().removesuffix(' then')}:{_BODIES.get(word[0], ' pass')}"
    return any(_is_read(f"{before}{text}") for before in ("", "if 0: pass\n", "try: pass\n"))


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
            # The lines below a head without a colon are refused with it: a call there would be made without its condition.
            if _COMPOUND.match("".join(self._lines)) or _is_bare_head(self._lines[0].lstrip()):
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
            return core if marker and _is_bare_head(core) else line
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


_LONG_CONDITION: Final = 400
"""Characters from which a condition gets a name, because each call below repeats it."""


class ScriptPlan:
    """A reader of statements in their order, each with the names that earlier ones define."""

    def __init__(self, vocabulary: ReaderVocabulary) -> None:
        self.outputs = 0
        self.output: Json = None
        self._names = vocabulary.names
        self._calls = Calls(vocabulary)
        self._values = SharedValues(self._calls.is_tool)
        self._top = Block({"input", "state", *vocabulary.kinds})
        self._in_branches = False
        """Whether the output so far depends on conditions."""
        self._end: str | None = None
        """The path that a statement which may end the script leaves unwritten. Later calls come after it."""

    def read(self, statement: ast.stmt) -> list[JsonObject]:
        """Return all calls of the statement, or none. Raises `NotAllowedError`."""
        top = self._top
        top.calls, top.guards, top.added_versions = [], [], []
        before = self.outputs, self.output, self._in_branches
        end = find_end(statement, self._calls.is_tool)
        try:
            self._statement(remove_await(statement), top)
            self._values.check_reads()
            if isinstance(end, ast.Call):
                raise NotAllowedError(end, NO_EXIT)
        except (NotAllowedError, ValueError, RecursionError):
            top.forget_added()
            if not isinstance(statement, ast.Expr):
                self.outputs, self.output, self._in_branches = before
            raise
        calls = top.calls
        if before[0] and set(top.added_versions) & set(STATE.findall(str(self.output))):
            # The output has the values of its own line, not those that a later line assigns (R5.14).
            calls = [{"_tool": "_let", "value": self.output, "_outputPath": "†state._output"}, *calls]
            self.output = "†state._output"
        return [self._after_end(call) for call in calls]

    def _after_end(self, call: JsonObject) -> JsonObject:
        if self._end is None:
            return call
        after = call.get("_after", [])
        return {**call, "_after": [*(after if isinstance(after, list) else [after]), self._end]}

    def changes(self, statement: ast.stmt, *, follow: bool = False) -> Changes:
        """Return the values that the statement would assign or change. `follow`: whether it is the next one of the script."""
        if follow:
            self._values.follow(statement)
        targets = find_changed(statement, self._calls.is_tool)
        paths = {path: None for target in targets if (path := self._path(target))}
        ends = find_end(statement, self._calls.is_tool) is not None
        return Changes(paths, self._values.find_changed_values(statement), ends)

    def forget(self, changes: Changes) -> dict[str, None]:
        """Record that a statement that would make these changes is not read, and return the output paths that it leaves
        unwritten."""
        paths = dict(changes.paths)
        if changes.ends:
            self._end = self._end or f"†state.{self._top.counter.name('end')}"
            paths[self._end] = None
        for path in changes.values:
            self._values.unlink_if_pair(path)
            if path[0] in self._top.kinds:
                self._values.mark_stale(path)
            elif " " not in path[0]:
                known = takewhile(lambda key: key != ANY, path)
                paths[str(Reference("state", tuple(int(key) if key.isdecimal() else key for key in known)))] = None
        return paths

    def _path(self, target: ast.expr) -> str:
        """Return the output path of a target, or of the value that it is a part of; "" for none."""
        while True:
            try:
                return self._top.paths.output_path([target])
            except NotAllowedError:
                if not isinstance(target, ast.Attribute | ast.Subscript):
                    return ""
                target = target.value

    def _body(self, statements: Sequence[ast.stmt], block: Block) -> None:
        for statement in statements:
            self._statement(statement, block)

    def _statement(self, node: ast.stmt, block: Block) -> None:
        if isinstance(node, ast.Expr):
            self._expression(node.value, block)
        elif isinstance(node, ast.Assign):
            self._assign(node.targets, node.value, block, by_truth=isinstance(node, BranchAssign))
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

    def _assign(self, targets: list[ast.expr], value: ast.expr, block: Block, *, by_truth: bool = False) -> None:
        calls = self._calls
        parts = [each for each in targets if isinstance(each, ast.Attribute | ast.Subscript)]
        # A path that a `for` writes is a list afterwards. A key of an object from before the loop is set once.
        outside = next((each for each in parts if block.is_outside_for(root_name(each))), None)
        if outside is not None and (len(targets) > 1 or not isinstance(outside, ast.Subscript) or block.kind != "for"):
            raise NotAllowedError(outside, NOT_CHANGED.format(name=root_name(outside)))
        if (
            len(targets) == 1
            and isinstance(targets[0], ast.Subscript)
            and (outside is not None or not isinstance(targets[0].slice, ast.Constant))
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
            raw = {"_tool": "_let", "value": block.values.value(calls.plain(value, block), by_truth=by_truth)}
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
        if how == "item" and (block.guards or not self._calls.is_tool(value)):  # an added None is told from none added
            value, how = ast.copy_location(ast.List([value], ast.Load()), value), "list"
        before = block.collected.get(name)
        if before is not None and (before.how != how or not before.excludes(block.guards)):
            raise NotAllowedError(target, f"a round of this loop may add to {name} more than once: use a list for each")
        collected = before or CollectedValue(block.counter.name(name), how)
        self._calls.compute(collected.kept, value, block)
        block.check_unread(name, target)  # the value itself may read the name
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
        test = self._calls.plain(node.test, block)
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
        rounds = RoundReader(self._calls.has_calls)
        for each in [node.test, *body, *([node.test] if asked else [])]:
            rounds.visit(each)
        for name in rounds.optional:
            block.assign_before_loop(name, node)
        first, sure = block.counter.last, set(block.sure)
        test = self._calls.plain(copy.deepcopy(node.test), block)
        condition = block.values.formula(test)
        inner = block.inside("while")
        for name in dict.fromkeys([*rounds.optional, *rounds.kept_where_left_out]):
            inner.let(name, inner.values.value(ast.copy_location(ast.Name(name, ast.Load()), node)), node)
        self._body(body, inner)
        if asked:  # evaluated again at the end of each iteration, under the same names
            last, block.counter.last = block.counter.last, first
            self._calls.plain(copy.deepcopy(node.test), inner)
            block.counter.last = last
        if not inner.calls:
            raise NotAllowedError(node, "the loop calls nothing, so it would never end")
        block.emit({"_tool": "_while", "_while": condition, "_body": inner.calls}, node, sorted(inner.written))
        block.sure = sure | (block.sure - inner.written)  # there may be no round
        for name in sorted(inner.written):
            block.write(name, node)
