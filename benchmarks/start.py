"""The start of a process: what the command line and a worker cost before they do anything, beside an empty program."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Final

_ROUNDS: Final = 5
_PROGRAMS: Final = {
    "python -c pass": ("-c", "pass"),
    "perdure --version": ("-m", "perdure", "--version"),
    "perdure run --help": ("-m", "perdure", "run", "--help"),
    "perdure approve --help": ("-m", "perdure", "approve", "--help"),
    "import of the Python API": ("-c", "import perdure.client.perdure"),
    "import of a worker": ("-c", "import perdure.hosting.worker"),
}


def table() -> str:
    """Return a table of the CPU time of each program, and of its ratio to that of an empty one."""
    with tempfile.TemporaryDirectory() as compiled:
        return _table({**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": compiled})


def _table(environment: dict[str, str]) -> str:
    """Return the table. The environment has compiled modules, as an installed package has."""
    rows = ["| program | CPU ms | of an empty program |", "|---|--:|--:|"]
    empty = _seconds(environment, *_PROGRAMS["python -c pass"])
    for name, words in _PROGRAMS.items():
        seconds = _seconds(environment, *words)
        rows.append(f"| `{name}` | {1000 * seconds:.0f} | {seconds / empty:.0f} |")
    return "\n".join(rows)


def _seconds(environment: dict[str, str], *words: str) -> float:
    """Return the CPU seconds of a Python process, the least of some."""
    return min(_once(environment, words) for _ in range(_ROUNDS))


def _once(environment: dict[str, str], words: tuple[str, ...]) -> float:
    before = os.times()
    subprocess.run([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, check=True)  # noqa: S603
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system
