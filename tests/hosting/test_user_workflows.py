"""Workflows of a user's own in `perdure worker --workflows MODULE`, and their replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.activities.registry import Registry
from perdure.errors import SettingsError
from perdure.hosting.user_workflows import load_workflows
from perdure.testing.scripted_model import Turn
from tests.hosting.test_plugin import BUY, unique
from tests.support import harness, perdure, registry
from tests.user_workflows import Minding, Order, Shopping, price

OWN = "tests.user_workflows"


@pytest.mark.asyncio(loop_scope="session")
async def test_r19_6_a_worker_serves_workflows_of_a_module_and_replay_knows_them(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    client, run_id = dev_server.client, unique("shopping")
    async with harness(client, [price], [BUY], sandboxed=False, workflows=(OWN,)) as it:
        order = Order(fruit="apple")
        handle = await client.start_workflow(Shopping.run, order, id=run_id, task_queue=it.task_queue)
        assert await handle.result() == "0.5 to Bern"
    env = {"TEMPORAL_ADDRESS": client.service_client.config.target_host}
    replayed = await perdure("replay", run_id, "--workflows", OWN, env=env)
    assert (replayed.code, [line.split(", ")[0] for line in replayed.out.splitlines()]) == (
        0,
        [f"{run_id}: ok", replayed.out.splitlines()[1].split(", ")[0]],
    )
    assert replayed.out.splitlines()[1].startswith(f"{run_id}/shopper-")
    without = await perdure("replay", run_id, env=env)
    assert without.code == 1
    assert "'Shopping', which is not part of Perdure: give its module with --workflows MODULE" in without.out
    history = json.loads((await handle.fetch_history()).to_json())
    for event in history["events"]:
        if scheduled := event.get("activityTaskScheduledEventAttributes"):
            scheduled["activityType"]["name"] = "deliver"
    (tmp_path / "changed.json").write_text(json.dumps(history), encoding="utf-8")
    broken = await perdure("replay", str(tmp_path / "changed.json"), "--workflows", OWN)
    assert (broken.code, "breaks: " in broken.out) == (1, True)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_run_that_fails_fails_the_workflow_and_not_its_task(dev_server: WorkflowEnvironment) -> None:
    broken = [Turn("no", status=401)] * 2
    async with harness(dev_server.client, [price], broken, sandboxed=False, workflows=(OWN,)) as it:
        handle = await it.client.start_workflow(Minding.run, "through", id=unique("mind"), task_queue=it.task_queue)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert "failed" in str(failed.value.cause)


BAD: dict[str, tuple[str, str]] = {
    "missing": ("", "workflows: no module is named 'own_missing'"),
    "empty": ("x = 1", "workflows: the module 'own_empty' has no workflow: decorate a class with @workflow.defn"),
    "broken": ("1 / 0", "workflows: the module 'own_broken' cannot be imported: ZeroDivisionError: division by zero"),
    "taken": (
        "from temporalio import workflow\n@workflow.defn(name='Agent')\nclass Mine:\n @workflow.run\n async def run(self) -> None: ...",
        "workflows: two workflows have the name 'Agent': in own_taken and in Perdure",
    ),
    "dynamic": (
        "from collections.abc import Sequence\nfrom temporalio import common, workflow\n@workflow.defn(dynamic=True)\nclass Mine:\n"
        " @workflow.run\n async def run(self, args: Sequence[common.RawValue]) -> None: ...",
        "workflows: own_dynamic.Mine is dynamic: give it a name",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_module_that_cannot_be_served_is_refused_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, words = BAD[name]
    if text:
        (tmp_path / f"own_{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError) as refused:
        load_workflows([f"own_{name}"])
    assert str(refused.value).startswith(words)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_command_refuses_it_before_a_server_is_needed(tmp_path: Path) -> None:
    (tmp_path / "own_empty.py").write_text("x = 1", encoding="utf-8")
    env: dict[str, Any] = {"TEMPORAL_ADDRESS": "127.0.0.1:1"}
    for command in ("worker", "dev"):
        refused = await perdure(command, "--workflows", "own_empty", env=env, cwd=tmp_path)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert "has no workflow: decorate a class with @workflow.defn" in refused.err


def test_an_activity_with_the_name_of_a_tool_is_refused() -> None:
    @tool
    async def charge(euros: float) -> float:
        """Take it."""
        return euros

    with pytest.raises(SettingsError, match="an activity and a tool have the name 'charge'"):
        load_workflows([OWN]).check_tools(registry([charge]))
    load_workflows([OWN]).check_tools(Registry())
