"""The house's directions: what may import what, and that the tree of errors is complete."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from perdure import errors

ROOT = Path(__file__).parents[1]
OWN = {"perdure", "workflows", "activities", "cli", "demo", "client", "worker", "tests"}

# What each room may import beside the standard library: our own rooms, and libraries.
ALLOWED = {
    "perdure": {"perdure", "pydantic", "networkx", "jsonschema", "referencing", "docstring_parser", "igraph", "ijson"},
    "workflows": {"workflows", "perdure", "temporalio"},
    "activities": {"activities", "perdure", "temporalio", "openai", "httpx2", "pydantic", "typing_extensions", "mcp"},
}
NOT_PURE = {
    "asyncio",
    "socket",
    "time",
    "random",
    "os",
    "pathlib",
    "subprocess",
    "threading",
    "urllib",
    "http",
    "datetime",
    "uuid",
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_imports_point_down_only(room: str) -> None:
    import sys

    for path in sources(room):
        beside = {name for name in imports(path) if name not in sys.stdlib_module_names and name != "__future__"}
        assert beside <= ALLOWED[room], f"{path.relative_to(ROOT)} imports {beside - ALLOWED[room]}"


def test_the_protocol_is_pure() -> None:
    for path in sources("perdure"):
        assert not imports(path) & NOT_PURE, f"{path.relative_to(ROOT)} imports {imports(path) & NOT_PURE}"


def test_the_tree_of_errors_is_complete() -> None:
    drawn = errors.__doc__ or ""
    defined = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.PerdureError)
    ]
    assert defined
    assert [name for name in defined if name not in drawn] == []


def test_no_room_has_grown_past_seeing_across() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for room in ("perdure", "workflows", "activities", "cli", "demo")
        for path in sources(room)
        if (count := len(path.read_text().splitlines())) > 340
    }
    assert long == {}
