"""Runs a command with two busy loops beside it: `python -m scripts.busy_loops COMMAND…` (`make test-loaded`)."""

from __future__ import annotations

import subprocess
import sys

LOOPS = 2
"""As many as the machines of the suite have cores."""

_LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with whoever started it, however that one ends."""


def main(command: list[str]) -> int:
    """Return the command's exit code; the loops have ended by then."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", _LOOP]) for _ in range(LOOPS)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
