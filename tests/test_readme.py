"""The README's code blocks run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.activities.registry import load_tools
from perdure.run.agents import parse_agent
from perdure.tools.functions import tool
from tests.support import ROOT, harness, perdure

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@tool
def total(prices: list[float]) -> float:
    """Add prices."""
    return sum(prices)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_tool_the_agent_and_the_plan_run_together(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mytools.py").write_text(blocks("python")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    function = load_tools(["mytools"]).get("price")
    assert function is not None
    agent, plan, policy = (json.loads(block) for block in blocks("json"))
    assert parse_agent(agent | {"config": {"approval": policy}}).config.approval.timeout == 86400
    parse_agent(agent)
    agent["context"].append({"type": "tool", "tool": "total"})
    script: list[Any] = [plan, {"calls": [], "output": {"euros": 2.25}}]
    async with harness(dev_server.client, [function.function, total], script) as it:
        view = await it.run(agent, {"request": "Three apples and a pear?"})
    assert (view.status, view.output, view.state["total"]) == ("completed", {"euros": 2.25}, 2.25)


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    commands = [line.split()[:2] for line in blocks("bash")[0].splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    assert shutil.which("make")
    for _, target in commands:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.asyncio(loop_scope="session")
async def test_every_command_named_exists() -> None:
    known = (await perdure("--help")).out
    named = set(re.findall(r"(?:\$ |`)perdure ([a-z]+)", README))
    assert {"run", "wait", "demo"} <= named
    assert [name for name in named if not re.search(rf"\b{name}\b", known)] == []


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert len(links) > 8
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_compose_file_is_accepted() -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose here to check it with")
    checked = subprocess.run(
        [program, "-f", "docker-compose.temporal.yml", "config"], cwd=ROOT, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    for service in ("postgresql", "temporal", "temporal-ui", "worker"):
        assert f"  {service}:" in checked.stdout
