"""The script of docs/gateway/ag-ui.md, with the project's own client from npm. It needs the network once."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.gateway.support import some_name
from tests.gateway.test_agui import PAYS, played
from tests.support import ROOT

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
CLIENT = "@ag-ui/client@1.0.0"
PATIENCE = 60
"""Seconds for npm: longer says nothing of Perdure."""
SCRIPTS = re.findall(
    r"^```javascript\n(.*?)^```",
    (ROOT / "docs" / "gateway" / "ag-ui.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where scripts find the client. Skips, with the reason, where it cannot be had."""
    folder = tmp_path_factory.mktemp("agui")
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node is not installed here")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefer-offline", "--prefix", str(folder)]
    try:
        done = subprocess.run([*command, CLIENT], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm took more than {PATIENCE} s")
    if done.returncode:
        pytest.skip(f"npm failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return folder


async def test_the_script_of_the_docs_runs(dev_server: WorkflowEnvironment, tmp_path: Path, modules: Path) -> None:
    (script,) = SCRIPTS
    (modules / "script.mjs").write_text(script, encoding="utf-8")
    async with played(dev_server.client, tmp_path, PAYS) as it:
        env = {"GATEWAY": it.served.address, "TOKEN": it.tokens[0], "THREAD": some_name(), "PATH": os.environ["PATH"]}
        pipe = asyncio.subprocess.PIPE
        ran = await asyncio.create_subprocess_exec("node", "script.mjs", env=env, cwd=modules, stdout=pipe, stderr=pipe)
        out, err = await ran.communicate()
        lines = out.decode().splitlines()
        assert (lines[0], lines[-2:], err.decode()) == ("pay { amount: 5 }", ["paid 5", '{"receipt":"paid 5"}'], "")
        assert len(lines) == 4
