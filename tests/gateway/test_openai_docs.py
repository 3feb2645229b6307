"""The scripts of docs/gateway/openai.md, run as a user would."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.testing.scripted_model import ChatRequest
from tests.gateway.openai_support import door, says
from tests.support import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="session")
SCRIPTS = re.findall(
    r"^```python\n(.*?)^```",
    (ROOT / "docs" / "gateway" / "openai.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
PRINTED = [
    "Which colour?\nThese are red.\nWhich colour?\n",
    "get_weather {'city': 'Oslo'}\nIt snows: true\n",
    "Both.\n",
]


def answers(request: ChatRequest) -> object:
    shown = request.text
    if "boots in Oslo" in shown:
        call = {"_tool": "get_weather", "city": "Oslo", "_outputPath": "†state.oslo"}
        return {"calls": [call], "output": "It snows: {†state.oslo.snow}"}
    return says(
        "Both." if "Shoes or boots?" in shown else "These are red." if "Red ones." in shown else "Which colour?"
    )


async def test_the_scripts_of_the_docs_run(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    assert len(SCRIPTS) == len(PRINTED)
    async with door(dev_server.client, tmp_path, answers) as it:  # type: ignore[arg-type]
        env = {
            "OPENAI_BASE_URL": f"{it.served.address}/v1",
            "OPENAI_API_KEY": it.tokens[0],
            "PYTHONIOENCODING": "utf-8",
        }
        for script, printed in zip(SCRIPTS, PRINTED, strict=True):
            pipe = asyncio.subprocess.PIPE
            ran = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=env, stdout=pipe, stderr=pipe)
            out, err = await ran.communicate()
            assert (out.decode(), err.decode()) == (printed, "")
