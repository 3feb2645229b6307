"""Two versions of an agent side by side, by every way in which a run starts (R24.10)."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, Selection
from tests.client.test_schedules import NEVER, scheduling, unique, until
from tests.support import agent, harness, perdure
from tests.timeouts import HANG
from tests.user_workflows import Asking

pytestmark = pytest.mark.asyncio(loop_scope="session")


def write(folder: Path, name: str, words: str, *tools: Any, **more: Any) -> None:
    document = agent(*tools, name=name, **more)
    document["context"][0]["text"] = words
    (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")


def answer(request: Any) -> dict[str, Any]:
    """Return the version whose instructions the model reads; the outer agent asks its delegate."""
    text = str(request.messages)
    if "Delegate." in text and "inner" in text:
        return {"calls": [{"_tool": "inner", "request": "go", "_outputPath": "†state.said"}], "output": "†state.said"}
    return {"calls": [], "output": "new" if "I am new." in text else "old"}


async def until_listed(api: Perdure, agent: str, count: int) -> list[Any]:
    """The index is a moment late."""
    async with asyncio.timeout(HANG):
        while True:
            rows = [row async for row in api.list_runs(Selection(agent=agent))]
            if len(rows) == count and all(row.ended_at for row in rows):
                return rows
            await asyncio.sleep(0.05)


async def test_r24_10_every_start_takes_the_version_and_lists_compare_them(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    name, queue = f"shop-{uuid.uuid4().hex[:8]}", ""
    write(tmp_path, name, "I am old.", version="1")
    write(tmp_path, "next", "I am new.", version="2")
    env = {"PERDURE_AGENTS": str(tmp_path), "TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    begun = await perdure("rollout", "start", name, "next", "--tenant", "acme", env=env)
    assert begun.code == 0, begun.err
    assert f"those of acme of {name} use next; the version of {name} is 1" in begun.out
    async with scheduling(dev_server, tmp_path, script=answer) as (api, it):
        queue = it.task_queue
        found = Agent.read_to_run(name, folder=tmp_path)
        # A start by the Python API.
        run = await api.start(found, id=f"{name}-1", tenant="acme")
        assert await run.result(HANG) == "new"
        view = await run.view()
        assert (view.agent, view.version) == (name, "2")
        assert await api.run(found, timeout=HANG) == "old"
        # A session keeps its version over its messages.
        session = api.session(f"{name}-s", tenant="acme", agent=found)
        assert await session.ask("hello", sender="ann", timeout=HANG) == "new"
        assert await session.ask("again", sender="ann", timeout=HANG) == "new"
        # A schedule's run reads its version on the worker.
        schedule = api.schedule(unique(), tenant="acme")
        await schedule.create(name, **NEVER)
        await schedule.trigger()
        [scheduled] = (await until(schedule, lambda view: len(view.runs) == 1)).runs
        assert await api.get_run(scheduled.run_id).result(HANG) == "new"
        await schedule.delete()
        # The command line reads the folder too.
        words = ("run", name, "--input", '{"request": "go"}', "--tenant", "acme", "--task-queue", queue, "--json")
        said = await perdure(*words, env=env)
        assert json.loads(said.out)["output"] == "new", said.err
        rows = await until_listed(api, name, 6)
        assert sorted(row.version for row in rows) == ["1", *["2"] * 5]
        only = [row.id async for row in api.list_runs(Selection(agent=name, version="1"))]
        assert len(only) == 1
        compared = {each.version: each for each in await api.compare_versions(name)}
        assert {version: (each.runs, each.completed) for version, each in compared.items()} == {
            "1": (1, 1),
            "2": (5, 5),
        }
        assert compared["2"].tokens is not None
        shown = await perdure("rollout", "show", name, env=env)
        assert f"those of acme of {name} use next" in shown.out
        assert [line.split()[:2] for line in shown.out.splitlines()[2:]] == [["1", "1"], ["2", "5"]]
        listed = await perdure("list", "--agent", name, "--agent-version", "1", "--json", env=env)
        assert [row["version"] for row in json.loads(listed.out)] == ["1"]
        assert f"version 2 of {name}" in (await perdure("show", run.id, env=env)).out
        # One command rolls back, for the session too.
        assert (await perdure("rollout", "stop", name, env=env)).code == 0
        assert not (tmp_path / "rollouts.toml").exists()
        back = api.session(f"{name}-s", tenant="acme", agent=Agent.read_to_run(name, folder=tmp_path))
        assert await back.ask("and now?", sender="ann", timeout=HANG) == "old"
        again = await perdure("rollout", "stop", name, env=env)
        assert (again.code, "has no candidate" in again.err) == (2, True)
        await back.delete(sender="ann")


async def test_r24_10_an_agent_in_a_users_workflow_takes_its_version(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [], answer, sandboxed=False, workflows=("tests.user_workflows",)) as it:
        for tenant, wanted in (("acme", "new"), ("other", "old")):
            handle = await it.client.start_workflow(Asking.run, tenant, id=unique(), task_queue=it.task_queue)
            assert await handle.result() == wanted


async def test_r24_10_delegates_take_their_version_when_the_outermost_run_begins(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    write(tmp_path, "inner", "I am old.")
    write(tmp_path, "inner-2", "I am new.")
    definition = {"name": "inner", "_delegate": "inner", "properties": {"request": {"type": "string"}}}
    outer = agent(definition, name="outer")
    outer["context"][0]["text"] = "Delegate."
    (tmp_path / "rollouts.toml").write_text('[inner]\ncandidate = "inner-2"\ntenants = ["acme"]\n', encoding="utf-8")
    async with scheduling(dev_server, tmp_path, script=answer) as (api, _):
        found = Agent.of(outer)
        assert await api.run(found, tenant="acme", timeout=HANG) == "new"
        assert await api.run(found, tenant="other", timeout=HANG) == "old"
