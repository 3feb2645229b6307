"""Lists of what waits come from visibility, page by page, and ask no run (R7.8)."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure import Agent, Perdure, Selection, tool
from perdure.client.approvals import list_waiting, requests_of_run, waiting_below
from perdure.client.run_operations import start_run
from perdure.errors import RunError
from perdure.hosting._health import look
from perdure.queries import SearchAttributes
from perdure.runs.agent import parse_agent
from perdure.runs.wire import AGENT_WORKFLOW, WAITING_NAMED, WAITING_QUERY
from tests.support import agent, harness
from tests.timeouts import HANG


@tool(dangerous=True)
def remove(path: str) -> str:
    """Remove a file."""
    return f"removed {path}"


def removing(*paths: str) -> dict[str, Any]:
    """An agent whose plan is given with its output: no model is asked."""
    calls = [{"_tool": "remove", "path": path} for path in paths]
    return agent("remove", context=[{"type": "plan", "plan": calls, "output": "gone"}], config={"start": "plan"})


async def until_listed(client: Client, runs: set[str]) -> Any:
    """The index is a moment late, and tells nobody when it has caught up."""
    await SearchAttributes().ensure(client)  # as a worker does at its start
    async with asyncio.timeout(HANG):
        while True:
            page = await list_waiting(client)
            if runs <= {one.run_id for one in page.waiting}:
                return page


@pytest.mark.asyncio(loop_scope="session")
async def test_r7_8_a_list_needs_no_worker_and_names_the_oldest(dev_server: WorkflowEnvironment) -> None:
    paths = [f"/{n}" for n in range(WAITING_NAMED + 3)]
    long = "x" * 5000
    async with harness(dev_server.client, [remove], []) as it:
        many = await it.start(removing(*paths))
        one = await it.start(removing(long))
        await it.until_waiting(many.id, *(f"0.{n}" for n in range(len(paths))))
        await until_listed(it.client, {many.id, one.id})
    # The worker is gone: what waits is listed all the same.
    page = await until_listed(dev_server.client, {many.id, one.id})
    listed = [entry for entry in page.waiting if entry.run_id == many.id]
    assert [entry.as_json()["params"] for entry in listed] == [{"path": path} for path in paths[:WAITING_NAMED]]
    assert page.unnamed[many.id] == 3
    (short,) = (entry for entry in page.waiting if entry.run_id == one.id)
    assert (short.agent, short.entry.tool, short.entry.params) == ("test", "remove", None)
    count, oldest = await look(dev_server.client)  # what a worker tells Prometheus
    assert count >= len(paths) + 1
    assert oldest > 0
    await many.terminate()
    await one.terminate()


@pytest.mark.asyncio(loop_scope="session")
async def test_r7_8_pages_follow_each_other(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [remove], []) as it:
        handles = [await it.start(removing("/a")) for _ in range(5)]
        await until_listed(it.client, {handle.id for handle in handles})
        seen: list[str] = []
        token = None
        while True:
            page = await list_waiting(it.client, size=2, page=token)
            assert page.runs <= 2
            seen += dict.fromkeys(one.run_id for one in page.waiting)
            if (token := page.following) is None:
                break
        assert {handle.id for handle in handles} <= set(seen)
        assert len(seen) == len(set(seen))
        whole, silent = await waiting_below(it.client, handles[0].id)
        assert ([one.request.call for one in whole], silent) == (["0.0"], [])
        assert await requests_of_run(it.client, handles[0].id, "9.9") == []
        with pytest.raises(RunError, match="there is no run 'nobody'"):
            await requests_of_run(it.client, "nobody")
        with pytest.raises(RunError, match="is not a page"):
            await list_waiting(it.client, page="†")
        for handle in handles:
            await handle.terminate()


@pytest.mark.asyncio(loop_scope="session")
async def test_r10_2_a_tenant_finds_what_waits_in_its_runs_and_below_them_and_nobody_elses(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    child = {**removing("/below"), "name": "cleaner"}
    (tmp_path / "cleaner.json").write_text(json.dumps(child))
    above = agent(
        {"name": "clean", "description": "Clean up.", "_delegate": "cleaner"},
        context=[{"type": "plan", "plan": [{"_tool": "clean"}], "output": "gone"}],
        config={"start": "plan"},
    )
    async with harness(dev_server.client, [remove], [], agents=tmp_path) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        shop = f"shop-{it.task_queue}"
        ours = await perdure.start(Agent.of(above), tenant=shop, sender="ann")
        others = await perdure.start(Agent.of(removing("/a")), tenant=f"other-{shop}")
        nobodys = await perdure.start(Agent.of(removing("/a")))
        await until_listed(it.client, {f"{ours.id}/0.0", others.id, nobodys.id})
        found = {
            tenant: {one.run_id for one in (await perdure.approvals(tenant=tenant)).waiting}
            for tenant in (shop, f"other-{shop}", "")
        }
        listed = {run.id async for run in perdure.list_runs(Selection(tenant=""))}
        for run in (ours, others, nobodys):
            await run.terminate()
    assert found[shop] == {f"{ours.id}/0.0"}
    assert found[f"other-{shop}"] == {others.id}
    assert nobodys.id in found[""]
    assert not found[""] & {f"{ours.id}/0.0", others.id}
    assert nobodys.id in listed
    assert not listed & {ours.id, others.id}


@workflow.defn(name=AGENT_WORKFLOW)
class TooMuchWaits:
    """A run whose answer is more than a server passes on."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query(name=WAITING_QUERY)
    def waiting(self, *_: Any) -> list[str]:
        return ["x" * 3_000_000]


@pytest.mark.asyncio(loop_scope="session")
async def test_r18_8_a_run_that_cannot_tell_says_why(dev_server: WorkflowEnvironment) -> None:
    client, queue = dev_server.client, "too-much"
    async with Worker(client, task_queue=queue, workflows=[TooMuchWaits], workflow_runner=UnsandboxedWorkflowRunner()):
        handle = await client.start_workflow(AGENT_WORKFLOW, id="too-much", task_queue=queue)
        with pytest.raises(RunError) as met:
            await requests_of_run(client, "too-much")
        found, why = await waiting_below(client, "too-much")
        await handle.terminate()
    assert "no worker answers" not in str(met.value)
    assert "limit" in str(met.value).lower()
    assert (found, why) == ([], [str(met.value)])


@pytest.mark.soak
@pytest.mark.asyncio(loop_scope="session")
async def test_r7_8_a_thousand_waiting_runs_are_listed(dev_server: WorkflowEnvironment) -> None:
    document = removing("/a")
    async with harness(dev_server.client, [remove], []) as it:
        start = asyncio.Semaphore(20)

        async def begin(number: int) -> str:
            async with start:
                parsed = parse_agent(document)
                run_id = f"thousand-{number}"
                await start_run(it.client, parsed, document, run_id=run_id, task_queue=it.task_queue)
                return run_id

        runs = set(await asyncio.gather(*map(begin, range(1000))))
        async with asyncio.timeout(600):
            while (
                await it.client.count_workflows(f"TaskQueue = '{it.task_queue}' AND PerdureWaiting > 0")
            ).count < 1000:
                pass
    started = time.perf_counter()
    page = await list_waiting(dev_server.client)
    at_once = time.perf_counter() - started
    seen = [one.run_id for one in page.waiting]
    while page.following is not None:
        page = await list_waiting(dev_server.client, size=100, page=page.following)
        seen += [one.run_id for one in page.waiting]
    started = time.perf_counter()
    page = await list_waiting(dev_server.client, size=100)
    hundred = time.perf_counter() - started
    assert at_once < 30 * hundred, "the first thousand, with no worker there: none of them is asked"
    assert runs <= set(seen)
    assert len(seen) == len(set(seen))
