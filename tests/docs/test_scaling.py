"""`docs/scaling.py`: what so many runs a second need, from somebody's own figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "scaling.py"
MINE = {
    "mine": {
        "worker_cpu_ms": 60,
        "server_cpu_ms": 30,
        "actions": 10,
        "bytes": 10_000,
        "transitions": 20,
        "activities": 5,
        "workflow_tasks": 5,
    },
    "waiting": {"server_kb": 100},
    "assume": {"retention_days": 1, "seconds_in_calls": 1, "partition_tasks": 50},
}


def told(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_what_ones_own_figures_need_and_what_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text(json.dumps(MINE))
    lines = told(str(file), "--rates", "1,100").stdout.splitlines()
    assert lines[2:4] == [
        "| mine | 1 | 1 | 1 | 1 | 4 | 2 | 1 | 1 | 43 |",
        "| mine | 100 | 10 | 10 | 5 | 10 | 256 | 86 | 10 | 4,320 |",
    ]
    limits = [line for line in lines if "reached" not in line and line.startswith("| mine")][2:]
    assert limits[0] == "| mine | one worker process, by its core | 10.0 |"
    assert "| mine | 500 Actions a second (Cloud, a namespace) | 50.0 |" in limits
    reached = [float(line.rsplit("|", 2)[1].replace(",", "")) for line in limits]
    assert reached == sorted(reached)


def test_what_is_no_figure_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({**MINE, "assume": {"retention": 1}}))
    for wrong in (str(file), str(tmp_path / "none.json")):
        found = told(wrong)
        assert found.returncode == 2
        assert "Traceback" not in found.stderr
        assert wrong in found.stderr.splitlines()[-1] or "figures.json" in found.stderr


def test_the_measured_figures_are_its_default() -> None:
    found = told()
    assert found.returncode == 0, found.stderr
    page = SCRIPT.with_suffix(".md").read_text(encoding="utf-8")
    assert [table in page for table in found.stdout.strip().split("\n\n")] == [True, True]
