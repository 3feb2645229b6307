"""The pages on the gateway: their script runs as a user would run it, and what they name there is."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

import perdure.client.errors
import perdure.errors
from perdure.errors import PerdureError
from perdure.gateway.api.adapter import OPERATIONS
from perdure.gateway.callers import RIGHTS
from perdure.gateway.errors import KINDS
from tests.gateway.test_api import GREETER, pay, served
from tests.support import ROOT, agent
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO, echo

pytestmark = pytest.mark.asyncio(loop_scope="session")
PAGE = (ROOT / "docs" / "gateway" / "http.md").read_text(encoding="utf-8")
OVERVIEW = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")


def script(request: Any) -> Any:
    said = str([each["content"] for each in request.messages])
    if "Greet." in said:
        return {"calls": [], "output": {"greeting": "Hello, you"}}
    if "Answer." in said:
        return echo(request)
    if '"done"' in said:
        return {"calls": [], "output": {"paid": True}}
    return {"calls": [{"_tool": "pay", "euros": 5, "_outputPath": "†state.paid"}], "output": None}


async def test_the_script_runs_as_it_stands(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    found = re.search(r"```python\n# client.py\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    (tmp_path / "client.py").write_text(found[1])
    documents = [GREETER, {**ECHO, "name": "desk"}, agent("pay", name="payer")]
    async with served(dev_server, tmp_path, script, *documents, tools=[pay]) as (front, _, (ann,)):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "client.py",
            cwd=tmp_path,
            env={**os.environ, "GATEWAY": front.address, "TOKEN": ann["Authorization"].split()[1]},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), HANG)
    lines = out.decode().splitlines()
    assert (process.returncode, err.decode()) == (0, "")
    assert lines[0] == "lifecycle start"
    at = lines.index("lifecycle end")
    assert lines[at + 1 :] == [
        "{'greeting': 'Hello, you'}",
        "started 0",
        "re: ann: What did I ask?",
        "may pay run with {'euros': 5} ?",
        "ok",
    ]


async def test_the_pages_name_what_there_is() -> None:
    rows = re.findall(r"^\| (`(?:GET|POST|DELETE|…).*?) \| ", PAGE, re.MULTILINE)
    said = {re.sub(r"[A-Z]{1,}\b", "X", part) for row in rows for part in re.findall(r"`[A-Z]+ ([^`?]+)", row)}
    for each in OPERATIONS:
        path = re.sub(r"\{\w+\}", "X", each.path)
        short = "…" + path.removeprefix("/v1/sessions/X").removeprefix("/v1/runs/X")
        assert path in said or short in said, each.path
    for right in RIGHTS:
        assert f"`{right}`" in OVERVIEW
    kinds = set(re.findall(r"`([a-z-]+)`", PAGE.split("## What goes wrong")[1]))
    named = [*vars(perdure.errors).values(), *vars(perdure.client.errors).values()]
    errors = {kind for kind in named if isinstance(kind, type) and issubclass(kind, PerdureError)}
    slugs = {re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__.removesuffix("Error")).lower() for kind in errors}
    assert kinds - {"type", "detail", "problems"} <= {
        *KINDS.values(),
        *slugs,
        "agent-not-found",
        "another-context",
        "delivery-refused",
        "foreign-origin",
        "idempotency-key-reused",
        "mapping",
        "too-many-streams",
        "too-slow",
    }
