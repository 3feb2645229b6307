"""The code blocks of the README and of the page on Python run; what they name exists."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure
from perdure.testing import Turn
from tests.support import ROOT, harness, perdure

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def write(folder: Path, *texts: str) -> None:
    """Each block into the file that its first line names."""
    for text in texts:
        name = re.match(r"# (\w+\.py)\n", text)
        assert name is not None, text
        (folder / name[1]).write_text(text, encoding="utf-8")


@pytest.mark.asyncio(loop_scope="session")
async def test_the_tools_the_agent_and_the_plan_run_together(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    write(tmp_path, *blocks("python"))
    document, plan, policy = (json.loads(block) for block in blocks("json"))
    assert Agent.of(document | {"config": {"approval": policy}}).parsed.config.approval.timeout == 86400
    with on_path(tmp_path):
        shopper = importlib.import_module("shopping").shopper
    assert shopper.document() == document
    script: list[Any] = [plan, {"calls": [], "output": {"euros": 2.25}}]
    functions = [function.function for function in shopper.functions]
    async with harness(dev_server.client, functions, script) as it:
        env = {
            "TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host,
            "PERDURE_TASK_QUEUE": it.task_queue,
            "PYTHONPATH": str(ROOT),
        }
        ran = await perdure(env=env, program=str(tmp_path / "shopping.py"))
    assert (ran.code, ran.out, ran.err) == (0, "2.25\n", "")


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_on_python_is_python_that_runs(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    write(tmp_path, *blocks("python", (ROOT / "docs" / "python.md").read_text(encoding="utf-8")))
    with on_path(tmp_path):
        shop, buying, looking = map(importlib.import_module, ("shop", "buying", "looking"))
    calls = [
        {"_tool": "price", "fruit": "†input.fruit", "count": "†input.count", "_outputPath": "†state.euros"},
        {"_tool": "pay", "euros": "†state.euros", "_outputPath": "†state.receipt"},
    ]
    broken = Turn("no", status=401)
    script = [{"calls": calls, "output": "†state.receipt"}, broken]
    number = uuid.uuid4().int
    async with harness(dev_server.client, [shop.price, shop.pay], script) as it:
        python = Perdure(dev_server.client, task_queue=it.task_queue)
        receipt = await buying.buy(python, shop.Order(fruit="pear", count=3), number)
        assert receipt == shop.Receipt(number=receipt.number, euros=1.5)
        assert await buying.buy(python, shop.Order(fruit="pear"), number + 1) is None
        async with asyncio.timeout(20):  # the server's index is a moment late
            while True:
                if f"order-{number} completed {receipt.number}" in await looking.look(python):
                    break
                await asyncio.sleep(0.1)


@contextlib.contextmanager
def on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    commands = [line.split()[:2] for line in blocks("bash")[0].splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    assert shutil.which("make")
    for _, target in commands:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.asyncio(loop_scope="session")
async def test_every_command_named_exists() -> None:
    known = (await perdure("--help")).out
    documented = "".join(
        text for name, text in DOCS.items() if name != "protocol.md"
    )  # which also says what is planned
    named = set(re.findall(r"(?:\$ |`)perdure ([a-z]+)", README + documented))
    assert {"run", "wait", "demo"} <= named
    assert [name for name in named if not re.search(rf"\b{name}\b", known)] == []


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert len(links) > 8
    assert [link for link in links if not (ROOT / link).exists()] == []
