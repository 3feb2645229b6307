"""What the pages show of a run or session that waits: for its provider, or for a worker with room (R10.3, R20.5)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, Selection
from perdure.gateway.api.adapter import api
from perdure.pages.adapter import pages, sign_in
from perdure.testing.scripted_model import Turn
from tests.gateway.support import bearer, gateway, some_name, write_agents, write_tokens
from tests.support import agent, harness, perdure
from tests.timeouts import HANG
from tests.workflows.test_session import HOLD, Gate

pytestmark = pytest.mark.asyncio(loop_scope="session")


def settings(folder: Path, tenant: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A gateway's settings, and the headers of somebody of the tenant."""
    (ann,) = write_tokens(folder / "tokens.json", (tenant, "ann", ["*"]))
    return {"agents": write_agents(folder / "agents"), "gateway_tokens": folder / "tokens.json"}, bearer(ann)


async def test_r20_5_lists_of_runs_name_the_provider_that_a_run_waits_for(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    tenant, slow = some_name("t"), Turn("slow down", status=503, headers={"retry-after": "1800"})
    given, ann = settings(tmp_path, tenant)
    waiting = re.compile(r"waiting for gpt-4o-mini: 503 since \d\d:\d\d")
    async with (
        harness(dev_server.client, [], [slow]) as it,
        gateway(dev_server.client, [sign_in, pages], task_queue=it.task_queue, **given) as at,
    ):
        mine = Perdure(it.client, task_queue=it.task_queue)
        run = await mine.start(Agent.of(agent()), tenant=tenant)
        async with asyncio.timeout(HANG):
            while not any([row.wait async for row in mine.list_runs(Selection(tenant=tenant))]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        page = await at.http.get("/runs", headers=ann)
        env = {"TEMPORAL_ADDRESS": it.client.service_client.config.target_host}
        listed = await perdure("list", "--tenant", tenant, env=env)
        await run.terminate()
    assert run.id in page.text
    assert waiting.search(page.text), page.text
    assert waiting.search(listed.out), listed


async def test_r10_3_a_session_is_read_before_its_first_run_has_begun(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Both answered 404 between a message's acceptance and the start of its run."""
    tenant, key, gate = some_name("t"), some_name(), Gate()
    given, ann = settings(tmp_path, tenant)
    async with (
        harness(dev_server.client, [gate.tool], gate.answer, session_runs=1) as it,
        gateway(dev_server.client, [api, sign_in, pages], task_queue=it.task_queue, **given) as at,
    ):
        mine = Perdure(it.client, task_queue=it.task_queue)
        busy = mine.session(some_name(), agent=Agent.of(HOLD), tenant=tenant)
        held = await busy.send("hold", sender="ann")
        await gate.asked.wait()
        session = mine.session(key, agent=Agent.of(HOLD), tenant=tenant)
        receipt = await session.send("am I heard?", sender="ann", id="m1")  # the worker has room for one run
        read = await at.http.get(f"/v1/sessions/{key}", headers=ann)
        page = await at.http.get(f"/conversations/{key}", headers=ann)
        gate.open.set()
        await busy.reply(held, HANG)
        assert await session.reply(receipt, HANG) == "re: ann: am I heard?"
        after = await at.http.get(f"/v1/sessions/{key}", headers=ann)
    assert read.status_code == 200, read.text
    found = read.json()
    assert (found["status"], [each["messageId"] for each in found["queue"]]) == ("waiting", ["m1"])
    assert found.get("runId") is None
    assert page.status_code == 200
    assert "am I heard?" in page.text
    assert [each["type"] for each in after.json()["entries"]] == ["message", "run", "reply"]
