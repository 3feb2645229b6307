"""Thirty random runs with everything in them, on a server that suggests to continue as new early: none terminated, none stuck."""

from __future__ import annotations

import asyncio
import random
import secrets
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.runs.wire import RunView
from perdure.testing.scripted_model import ChatRequest
from tests.support import DONE, Harness, agent, harness, impatient
from tests.workflows.test_delegates import save
from tests.workflows.test_size_limits import ended, risky, troubles, troubles_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.soak]

impatient_server = impatient(300, 1_500_000)
SIZES = (1, 100, 5_000, 15_000, 60_000, 300_000, 900_000, 1_800_000, 3_000_000)

MAKER = {
    "name": "maker",
    "context": [
        {"type": "tool", "tool": "noise"},
        {"type": "input"},
        {
            "type": "plan",
            "plan": [{"_tool": "noise", "size": "†input.item || †input.size", "_outputPath": "†state.t"}],
            "output": "†state.t",
        },
    ],
}


@tool
def noise(size: int) -> str:
    """A text that cannot be packed."""
    return secrets.token_hex(size // 2 + 1)


@tool
def measure(text: Any) -> int:
    """Measure it."""
    return len(str(text))


def model(seed: int) -> Any:
    """A model that writes random plans: values of all sizes, many readers, delegates, loops, approvals."""
    dice = random.Random(seed)
    requests = dice.randint(1, 6)

    def answer(asked: ChatRequest) -> dict[str, Any]:
        if asked.number > requests:
            return DONE
        calls: list[dict[str, Any]] = []
        for n in range(dice.randint(1, 4)):
            path = f"†state.r{asked.number}_{n}"
            kind = dice.choice(["noise", "noise", "delegate", "each", "risky"])
            size = dice.choice(SIZES)
            if kind == "each":
                calls.append(
                    {
                        "_tool": "delegate",
                        "_each": [dice.choice(SIZES[:6]) for _ in range(dice.randint(1, 12))],
                        "_outputPath": path,
                    }
                )
            elif kind == "risky":
                calls.append({"_tool": "risky", "text": "x" * dice.choice(SIZES[:4]), "_outputPath": path})
            else:
                calls.append({"_tool": kind, "size": size, "_outputPath": path})
            calls += [
                {"_tool": "measure", "text": path, "_outputPath": f"{path}_{m}"}
                for m in range(dice.choice([0, 1, 5, 40]))
            ]
        return {"calls": calls, "output": None}

    return answer


async def play(it: Harness, document: dict[str, Any]) -> tuple[RunView, list[str]]:
    """The run at its end, and the troubles of its executions and of all below it."""
    handle = await ended(it, document)
    view = await it.view(handle.id)
    found = await troubles(it.client, handle)
    async for below in it.client.list_workflows(f"WorkflowId STARTS_WITH '{handle.id}/'"):
        found += (await troubles_of(it.client.get_workflow_handle(below.id, run_id=below.run_id)))[0]
    return view, found


def wrong_readings(view: RunView) -> list[str]:
    """Calls that measured something else than what stands at the path that they read, as far as the view shows it whole."""
    wrong = []
    for name, value in view.state.items():
        source = view.state.get(name.rsplit("_", 1)[0])
        if name.count("_") == 2 and isinstance(source, str) and "[cut: " not in source and value != len(source):
            wrong.append(f"{name} is {value}, and was read of {len(source)} characters")
    return wrong


@pytest.mark.parametrize("seed", range(16))
async def test_r18_random_runs(impatient_server: WorkflowEnvironment, tmp_path: Path, seed: int) -> None:
    document = agent(
        "noise",
        "measure",
        "risky",
        {"name": "delegate", "_delegate": "maker"},
        config={"approval": {"timeout": 1, "on_timeout": "approve"}, "max_requests": 20},
    )
    options: dict[str, Any] = {
        "agents": save(tmp_path, MAKER),
        "sandboxed": False,
        "chunk": 20_000,
        "model_timeout": 60,
    }
    async with harness(impatient_server.client, [noise, measure, risky], model(seed), **options) as it:
        view, found = await asyncio.wait_for(play(it, document), 300)
    assert (view.status, view.error) == ("completed", None)
    assert found == []
    assert wrong_readings(view) == []
    assert {call.attempts for call in view.calls} <= {0, 1}
    assert {call.error["code"] for call in view.calls if call.error} <= {"result_too_large", "history_full"}
