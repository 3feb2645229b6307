"""What is public has types that a user's strict checkers accept (R13.8): the examples are such a user."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

BIN = Path(sys.executable).parent
WRONG = """
from perdure import Agent, Perdure

Agent("a", deadline="soon")
Agent("a", tempo=1)
Agent("a", models={"slow": "x"})
count = Agent("a", output=int)


async def main(perdure: Perdure) -> None:
    number: str = await perdure.run(count)
    await (await perdure.start(count)).policy(ask="sometimes")
"""
"""Lines 4, 5, 6, 11 and 12 are errors: a value, a name, a key, a type, a level."""


def checker(name: str, folder: Path) -> list[str]:
    """A user's own settings: nothing of this repository's."""
    if name == "mypy":
        user = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={ROOT / '.mypy_cache' / 'user'}"]
        return [sys.executable, "-m", "mypy", *user, "examples", str(folder)]
    settings = {
        "typeCheckingMode": "strict",
        "include": [str(ROOT / "examples"), str(folder)],
        "extraPaths": [str(ROOT)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    return [str(BIN / "basedpyright"), "-p", str(folder), "--pythonpath", sys.executable]


@pytest.mark.soak  # each reads the whole project, for more than 20 CPU seconds
@pytest.mark.parametrize("name", ["mypy", "pyright"])
def test_r13_8_strict_checkers_accept_what_is_right_and_find_what_is_wrong(name: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    ran = subprocess.run(checker(name, tmp_path), cwd=ROOT, capture_output=True, text=True)
    found = [line for line in ran.stdout.splitlines() if "error:" in line or " - error" in line]
    wrong = {line.split("wrong.py:")[1].split(":")[0] for line in found if "wrong.py:" in line}
    assert wrong == {"4", "5", "6", "11", "12"}
    assert [line for line in found if "wrong.py" not in line] == []
