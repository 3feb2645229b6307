"""The house: directions are `make lint`'s (`.importlinter`); here, that rooms have a face, and stay such that one can see across."""

from __future__ import annotations

import inspect
from pathlib import Path

from perdure import errors

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "perdure"


def rooms() -> list[Path]:
    return [*sorted(path.parent for path in HOUSE.rglob("__init__.py")), ROOT / "workflows", ROOT / "activities"]


def test_the_tree_of_errors_is_complete() -> None:
    drawn = errors.__doc__ or ""
    defined = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.PerdureError)
    ]
    assert defined
    assert [name for name in defined if name not in drawn] == []


def test_every_room_says_in_its_first_line_what_belongs_there() -> None:
    silent = [str(room) for room in rooms() if not (room / "__init__.py").read_text(encoding="utf-8").startswith('"""')]
    assert silent == []


def test_a_room_holds_what_one_can_see_at_once() -> None:
    crowded = {str(room): len(files) for room in rooms() if len(files := list(room.glob("[!_]*.py"))) > 15}
    assert crowded == {}


def test_no_file_has_grown_past_seeing_across() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for room in rooms()
        for path in room.glob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 340
    }
    assert long == {}


def test_the_linter_of_directions_knows_every_room() -> None:
    layers = (ROOT / ".importlinter").read_text(encoding="utf-8")
    top = {path.name for path in HOUSE.iterdir() if (path / "__init__.py").is_file()}
    assert sorted(name for name in top if f"perdure.{name}" not in layers) == []
