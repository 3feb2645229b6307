"""What a script cannot say, and what to write instead (R16.4)."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable
from typing import Final

from perdure.errors import clip
from perdure.model.dialects.scripts.values import words

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
NOT_CHANGED: Final = "values are not changed in place: name a new one, such as {name}2 = [… for … in …] or {name}2 = {{k: v for k, v in rows}}"
NO_PRINT: Final = "nothing is printed: a call's result without a name is shown to you, and output(…) is the answer"
TWICE: Final = (
    "output(…) stands alone on its line, once; under an if, once in each branch, with what follows under else"
)


def statement_hint(node: ast.stmt) -> str:
    found = _INSTEAD.get(type(node))
    return found or f"{words(node)!r} is no call; only calls can be planned: name = tool(key=value)"


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
