"""Packages, rules and public names. `make lint` checks the directions of imports (`.importlinter`)."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import perdure
from perdure import errors, testing, workflow

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "perdure"


def rooms() -> list[Path]:
    return [*sorted(path.parent for path in HOUSE.rglob("__init__.py")), ROOT / "workflows", ROOT / "activities"]


def test_whatever_is_public_stands_in_the_reference_and_each_page_in_the_site() -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    shown = {
        name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    public = [f"{module.__name__}.{name}" for module in (perdure, workflow, testing) for name in module.__all__]
    public += [f"perdure.errors.{name}" for name in vars(errors) if name.endswith("Error") and name != "CallError"]
    assert [name for name in public if not {name, name.replace(".errors", "")} & shown] == []
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [str(page) for page in pages if f" {page.relative_to(ROOT / 'docs')}\n" not in site] == []


def test_every_rule_that_the_code_names_is_in_the_protocol() -> None:
    built = set(
        re.findall(r"^- (R\d+\.\d+) ", (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    named = {
        (str(path.relative_to(ROOT)), rule)
        for room in rooms()
        for path in room.glob("*.py")
        for rule in re.findall(r"\bR\d+\.\d+\b", path.read_text(encoding="utf-8"))
    }
    assert len(built) > 80
    assert sorted(each for each in named if each[1] not in built) == []


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


def test_the_linter_of_directions_knows_every_room() -> None:
    layers = (ROOT / ".importlinter").read_text(encoding="utf-8")
    top = {path.name for path in HOUSE.iterdir() if (path / "__init__.py").is_file()}
    assert sorted(name for name in top if f"perdure.{name}" not in layers) == []


def test_there_is_one_place_to_look_for_a_limit() -> None:
    """But for what can be read at all, in the room of values and below it, and for what one tool takes."""
    elsewhere = [
        f"{path.relative_to(ROOT)}: {name}"
        for room in rooms()
        if HOUSE / "values" not in (room, *room.parents) and room != ROOT / "activities" / "tools"
        for path in room.glob("*.py")
        if path != HOUSE / "errors.py"
        for name in re.findall(r"^(MAX_\w+)\b.* = \d", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert elsewhere == []


def test_every_limit_says_its_unit_and_why() -> None:
    text = (HOUSE / "values" / "limits.py").read_text(encoding="utf-8")
    silent = re.findall(r'^(\w+): Final = .*\n(?!""")', text, re.MULTILINE)
    assert silent == []
