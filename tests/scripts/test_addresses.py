"""Whoever publishes fills in the project's addresses at one place; every other file has them from there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts.addresses import PLACES, ROOT, addresses, problems, write


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", *(place for place, _, _ in PLACES)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_every_file_has_the_addresses_of_the_project() -> None:
    assert problems() == []


def test_an_address_that_is_filled_in_is_copied_into_every_file(copy: Path) -> None:
    project = copy / "pyproject.toml"
    project.write_text(project.read_text().replace("perdure.example", "perdure.test"))
    assert len(problems(copy)) == len(PLACES)
    assert all("perdure.test" in line for line in problems(copy))
    write(copy)
    assert problems(copy, published=True) == []
    assert all("perdure.example" not in (copy / name).read_text() for name, _, _ in PLACES)


def test_nothing_is_published_with_the_addresses_of_an_example() -> None:
    unfilled = [which for which, value in addresses().items() if ".example" in value]
    assert len(problems(published=True)) == len(unfilled)
