"""Check the opening of every docstring: `python -m scripts.docstrings [PATH…]`.

A docstring begins with a verb or a noun phrase, never with a bare pronoun or a loose clause such as "What…", "Whoever…" or "Of…".
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("perdure", "workflows", "activities")
LOOSE: Final = re.compile(
    r"(What|Whatever|Whoever|Whom|Who|Whose|Of|That|Those|This|These|All|Everything|It|Its|They|So|Where|How|As|Beside|By|In|Like|The same|Whole)\b"
)
"""Openings without a subject that a reader knows: the sentence would need a second reading."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring of a module, a class or a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            if text := ast.get_docstring(node):
                yield body[0].lineno, text


def problems(paths: list[Path]) -> list[str]:
    """Return one line for each docstring with a loose opening, as `file:line: text`."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0][:100]}"
        for path in paths
        for line, text in docstrings(path)
        if LOOSE.match(text)
    ]


def main(arguments: list[str]) -> int:
    """Print every problem below the given paths; return 1 if there is one."""
    roots = [Path(each).resolve() for each in arguments] or [ROOT / name for name in PACKAGES]
    paths = [path for root in roots for path in (sorted(root.rglob("*.py")) if root.is_dir() else [root])]
    found = problems([path for path in paths if not any(part.is_symlink() for part in (path, *path.parents))])
    print("\n".join(found), end="\n" if found else "")
    if found:
        print(
            f"{len(found)} docstrings begin with a bare pronoun or a loose clause: begin with a verb or a noun phrase."
        )
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
