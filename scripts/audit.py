"""`make audit`: are there known faults in what constraints.txt names? Asks pip-audit, in an environment of its own.

pip-audit asks a service on the network. Where that cannot be reached, or knows none of the packages, nothing is known of them, which is said in one
line; with `AUDIT=required` it is a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
ENVIRONMENT: Final = ROOT / ".venv-audit"
TOOL: Final = "pip-audit>=2.9,<3"
TIMEOUT: Final = 300.0
"""Seconds for each step; a network that answers nothing must not hold up the rest."""


@dataclass(frozen=True)
class Verdict:
    """`faults`: a line for each that is known. `unknown`: why nothing is known of some or all; `None` where all was looked up."""

    faults: list[str]
    unknown: str | None = None


def judge(report: str, complaints: str) -> Verdict:
    """What pip-audit's JSON and its complaints mean. A package that its service does not know is not one without faults."""
    try:
        rows: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Verdict(
            [], next((line[:200] for line in reversed(complaints.splitlines()) if line.strip()), "no answer")
        )
    faults = [
        f"{row['name']} {row['version']}: {fault['id']}, mended in {', '.join(fault['fix_versions']) or 'no version yet'}"
        for row in rows
        for fault in row.get("vulns", [])
    ]
    skipped = [row["skip_reason"] for row in rows if "skip_reason" in row]
    if not rows:
        return Verdict([], "no package was looked up")
    return Verdict(faults, f"{len(skipped)} of {len(rows)} packages: {skipped[0]}" if skipped else None)


def main() -> int:
    found = judge(*_audit())
    for line in found.faults:
        print(f"audit: {line}")
    if found.unknown is not None:
        print(f"audit: skipped, nothing is known of them: {found.unknown}", file=sys.stderr)
    elif not found.faults:
        print("audit: no known fault in what constraints.txt names")
    return 1 if found.faults or (found.unknown is not None and os.environ.get("AUDIT") == "required") else 0


def _audit() -> tuple[str, str]:
    """pip-audit's report and its complaints."""
    program = ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin") / "pip-audit"
    if not program.exists():
        for command in (
            [sys.executable, "-m", "venv", str(ENVIRONMENT)],
            [str(program.with_name("python")), "-m", "pip", "install", "-q", "--disable-pip-version-check", TOOL],
        ):
            done, complaints = _run(command)
            if done is None:
                return "", complaints
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--timeout", "10", "--format", "json"]
    report, complaints = _run([str(program), "-r", str(ROOT / "constraints.txt"), *options], fine=(0, 1))
    return report or "", complaints


def _run(command: list[str], fine: tuple[int, ...] = (0,)) -> tuple[str | None, str]:
    """What a command said and complained of; `None` when it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.stdout if done.returncode in fine else None, done.stderr


if __name__ == "__main__":
    sys.exit(main())
