"""Calls written as lines of a script."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterable, Mapping, Set
from typing import Final

from perdure.errors import ReferenceSyntaxError
from perdure.plan import IF
from perdure.values.formulas import readable_formula
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.references import AllOf, Expression, FirstOf, Path, Reference, parse_expression, parse_output_path
from perdure.values.templates import EXPR, is_expression, is_formula

CONSTANTS: Final[Mapping[str, Json]] = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}
"""The constants of Python, and those of JSON, which a model may also write."""


def write_calls(
    calls: Iterable[JsonObject], *, names: Mapping[str, str] | None = None, kinds: Iterable[str] = ()
) -> list[str]:
    """Return each call of a list as one or more lines of script.

    `names`: tool → its name in a script; `kinds`: the kinds that references can name. A line that a model wrote itself
    stays unchanged.
    """
    written: list[str] = []
    assigned: set[str] = set()
    for call in calls:
        own = call.get("_source")
        written.append(own if isinstance(own, str) else _write_call(call, assigned, names, kinds))
        assigned |= _assigned_names(call)
    return written


def write_call(call: JsonObject, *, kinds: Iterable[str] = ()) -> str:
    """Return a single call as `write_calls` does."""
    return write_calls([call], kinds=kinds)[0]


def _write_call(call: JsonObject, assigned: Set[str], names: Mapping[str, str] | None, kinds: Iterable[str]) -> str:
    writer = _Writer(kinds)
    tool = str(call.get("_tool", "?"))
    call = _without_versions(call, assigned)
    if (lines := _compound(call, tool, writer, names, kinds)) is not None:
        return lines
    arguments = {key: value for key, value in call.items() if key not in ("_tool", "_outputPath")}
    target = writer.target(call.get("_outputPath"))
    if target is None:
        arguments["_outputPath"] = call["_outputPath"]
    written = [f"{key}={writer.argument(key, value)}" for key, value in arguments.items() if is_plain_name(key)]
    if odd := {key: value for key, value in arguments.items() if not is_plain_name(key)}:
        written.append(f"**{writer.value(odd)}")
    line = f"{(names or {}).get(tool, tool)}({', '.join(written)})"
    if tool == "_let" and target and {"value"} <= arguments.keys() <= {"value", IF} and _is_head(arguments.get(IF)):
        line = writer.value(arguments["value"])
        if isinstance(condition := arguments.get(IF), str):
            return f"if {writer.argument(IF, condition)}:\n    {target} = {line}"
    return f"{target} = {line}" if target else line


def _without_versions(call: JsonObject, assigned: Set[str]) -> JsonObject:
    """Return the call without the `_after` that the order of lines implies, on earlier calls that `assigned` its names
    (R5.14)."""
    after = call.get("_after")
    if not isinstance(after, list):
        return call
    own = {f"ended †state.{name}" for name in _assigned_names(call) & assigned}
    kept: list[Json] = [item for item in after if item not in own]
    rest = {key: value for key, value in call.items() if key != "_after"}
    return rest | ({"_after": kept} if kept else {})


def _assigned_names(call: JsonObject) -> set[str]:
    """Return the names of the state that the call and the calls of its body write."""
    path, body = call.get("_outputPath"), call.get("_body")
    names = set(re.findall(r"†state\.(\w+)", path)) if isinstance(path, str) else set()
    inner = body if isinstance(body, list) else []
    return names.union(*(_assigned_names(each) for each in inner if isinstance(each, dict)))


def _compound(
    call: JsonObject, tool: str, writer: _Writer, names: Mapping[str, str] | None, kinds: Iterable[str]
) -> str | None:
    """Return a loop, with its body below it; `None` for a call that fits on one line."""
    body = call.get("_body")
    each = call.get("_each")
    if not isinstance(body, list) or not all(isinstance(inner, dict) for inner in body) or not _is_head(call.get(IF)):
        return None
    if tool == "_for" and isinstance(each, str | list | dict) and call.keys() <= _FOR_KEYS:
        item, place = str(call.get("_as", "item")), call.get("_at")
        source = writer.value(each)
        head = f"for {place}, {item} in enumerate({source})" if place else f"for {item} in {source}"
    elif tool == "_while" and call.keys() <= _WHILE_KEYS and call.get("_while") and _is_head(call["_while"]):
        head = f"while {writer.argument(IF, call['_while'])}"
    else:
        return None
    lines = [f"{head}:"]
    for written in write_calls(body, names=names, kinds=kinds):
        lines += [f"    {line}" for line in written.split("\n")]
    if isinstance(condition := call.get(IF), str):
        lines = [f"if {writer.argument(IF, condition)}:", *(f"    {line}" for line in lines)]
    return "\n".join(lines)


def _is_head(condition: Json) -> bool:
    """Whether the condition can follow `if` or `while`: it is a formula, or missing."""
    return condition is None or (isinstance(condition, str) and readable_formula(condition) is not None)


_FOR_KEYS: Final = frozenset({"_tool", "_each", "_as", "_at", "_body", IF})
_WHILE_KEYS: Final = frozenset({"_tool", "_while", "_body", IF})


def write_output(output: Json, *, kinds: Iterable[str] = ()) -> str:
    """Return the output as a line of script."""
    writer = _Writer(kinds)
    if isinstance(output, dict) and output and all(map(is_plain_name, output)):
        return f"output({', '.join(f'{key}={writer.value(value)}' for key, value in output.items())})"
    return f"output({writer.value(output)})"


def is_name(text: str) -> bool:
    """Whether Python accepts the text as a name without a change: it reads `ª` as `a`."""
    return text.isidentifier() and not keyword.iskeyword(text) and unicodedata.normalize("NFKC", text) == text


def is_plain_name(key: str) -> bool:
    """Whether a script may use the key as a name: a Python name that is not special in scripts."""
    return is_name(key) and not key.startswith("__")


class _Writer:
    def __init__(self, kinds: Iterable[str]) -> None:
        self._kinds = {"input", "state", "output", *kinds}

    def argument(self, key: str, value: Json) -> str:
        """Return the text after `key=`: a condition is a formula even without a mark."""
        if key != IF or not isinstance(value, str):
            return self.value(value)
        # Joined references are not a formula: they are written as a text.
        return self.value({EXPR: value}) if readable_formula(value) is not None else dumps(value)

    def value(self, value: Json) -> str:
        if isinstance(value, str):
            return self._text(value)
        if is_formula(value) and (source := readable_formula(value[EXPR])) is not None:
            return source
        if isinstance(value, dict):
            return "{" + ", ".join(f"{dumps(name)}: {self.value(child)}" for name, child in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(self.value, value)) + "]"
        return repr(value)

    def _text(self, text: str) -> str:
        if is_expression(text):
            try:
                return self._expression(parse_expression(text.strip()))
            except ReferenceSyntaxError:
                pass
        return dumps(text)

    def _expression(self, expression: Expression) -> str:
        if isinstance(expression, Reference):
            return self.name(expression)
        word = " or " if isinstance(expression, FirstOf) else " and "
        parts = [
            f"({self._expression(item)})"
            if not isinstance(item, Reference) and _looser(item, expression)
            else self._expression(item)
            for item in expression.items
        ]
        return word.join(parts)

    def name(self, reference: Reference) -> str:
        path = reference.path
        if reference.kind != "state":
            return reference.kind + _steps(path) if is_plain_name(reference.kind) else dumps(str(reference))
        first = path[0] if path else None
        bare = isinstance(first, str) and is_plain_name(first) and first not in self._kinds and first not in CONSTANTS
        return f"{first}{_steps(path[1:])}" if bare else f"state{_steps(path)}"

    def target(self, output_path: Json) -> str | None:
        """Return the names before `=`; empty without a path, `None` if only the path itself can express it."""
        if output_path is None:
            return ""
        try:
            alternatives = parse_output_path(output_path) if isinstance(output_path, str) else ()
        except ReferenceSyntaxError:
            return None
        if not alternatives or any(not path for paths in alternatives for path in paths):
            return None
        width = max(map(len, alternatives))
        rows = [
            ", ".join(self.name(Reference("state", paths[min(index, len(paths) - 1)])) for paths in alternatives)
            for index in range(width)
        ]
        return " = ".join(rows)


def _looser(inner: Expression, outer: Expression) -> bool:
    """Whether the inner expression needs parentheses inside the outer one."""
    return isinstance(inner, FirstOf) or isinstance(outer, AllOf)


def _steps(path: Path) -> str:
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" if is_plain_name(part) else f"[{dumps(part)}]"
        for part in path
    )
