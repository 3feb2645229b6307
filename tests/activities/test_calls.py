"""The activity of a tool's call."""

from __future__ import annotations

import sys

import pytest

from perdure import Agent, tool
from perdure.testing import run_locally


@tool(retries=0)
def in_a_thread() -> None:
    sys.exit("no such option")


@tool(retries=0)
async def on_the_loop() -> None:
    sys.exit("no such option")


@tool(retries=1)
async def with_retries() -> None:
    sys.exit("no such option")


@pytest.mark.parametrize("program", [in_a_thread, on_the_loop, with_retries])
async def test_a_tool_that_exits_fails_and_its_worker_goes_on(program: object) -> None:
    name = str(getattr(program, "__name__", ""))
    script = [{"calls": [{"_tool": name, "_outputPath": "†state.x"}]}, {"calls": [], "output": "so"}]
    async with run_locally(Agent("a", tools=[program]), model=script, server="dev") as local:
        view = await (await local.start()).wait()
    assert view.output == "so"
    words = "the code tried to end its program: SystemExit(no such option)"
    assert view.calls[0].error == {"code": "SystemExit", "message": words}
