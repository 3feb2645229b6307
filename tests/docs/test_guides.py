"""The code of guides that needs a server, an application or another process beside it."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import uuid
from pathlib import Path

import httpx2
import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure import Agent, PerdurePlugin
from perdure.activities.deliveries import check_apprise
from perdure.activities.mcp import mcp_tools
from perdure.activities.mcp_connection import McpConfig
from perdure.activities.registry import Registry
from perdure.gateway.http_server import serve_app
from perdure.gateway.triggers import map_delivery, parse_triggers
from perdure.hosting.server import embedded_server, free_port
from perdure.hosting.settings import Settings, load
from perdure.runs.agent import parse_agent
from perdure.runs.wire import RunResult
from perdure.testing import ScriptedModel, run_locally
from perdure.values.json import JsonObject, loads_commented
from tests.docs.test_readme import DOCS, blocks, write
from tests.gateway.support import write_agents
from tests.support import DONE, harness, serving
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_application_of_the_page_on_fastapi_starts_shows_decides_and_streams(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *blocks("python", DOCS["fastapi.md"]))
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("shop_api")
    call = {"_tool": "order", "fruit": "†input.fruit", "_outputPath": "†state.done"}
    async with harness(dev_server.client, [shop.order], [{"calls": [call], "output": "†state.done"}]) as it:
        monkeypatch.setenv("TEMPORAL_ADDRESS", dev_server.client.service_client.config.target_host)
        monkeypatch.setenv("PERDURE_TASK_QUEUE", it.task_queue)
        async with (
            shop.app.router.lifespan_context(shop.app),
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app=shop.app), base_url="http://shop", timeout=HANG
            ) as http,
        ):
            order = {"fruit": "pear", "key": uuid.uuid4().hex}
            started = [await http.post("/orders", params=order) for _ in range(2)]
            (run_id,) = {answer.json()["id"] for answer in started}
            await it.until_waiting(run_id, "1.0")
            assert (await http.get(f"/orders/{run_id}")).json()["calls"] == ["order"]
            assert (await http.post(f"/orders/{run_id}/approval/1.0")).json() == {"decision": "approved"}
            streamed = (await http.get(f"/orders/{run_id}/events")).text
            assert "ordered: pear" in streamed
            assert (await http.get(f"/orders/{run_id}")).json()["output"] == "ordered: pear"
            assert (await http.post(f"/orders/{run_id}/approval/1.0")).status_code == 409
            assert (await http.post("/orders", params=order | {"fruit": "apple"})).status_code == 409
            for unknown in ("/orders/none-such", "/orders/none-such/events"):
                assert (await http.get(unknown)).status_code == 404
            assert (await http.post("/orders/none-such/approval/1.0")).status_code == 404
    port = free_port()
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{port}")
    async with (
        shop.app.router.lifespan_context(shop.app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=shop.app), base_url="http://shop", timeout=HANG) as http,
    ):
        assert {(await http.get("/orders/none-such")).status_code for _ in range(2)} == {503}
        async with embedded_server(port=port, ui=False):
            at_once = await asyncio.gather(*(http.get("/orders/none-such") for _ in range(2)))
            assert [answer.status_code for answer in at_once] == [404, 404]


async def test_the_schedule_of_the_page_starts_the_agent(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *blocks("python", DOCS["schedules.md"]))
    monkeypatch.syspath_prepend(tmp_path)
    nightly, schedules = map(importlib.import_module, ("nightly", "nightly_schedule"))
    call = {"_tool": "open_tickets", "team": "†input.team", "_outputPath": "†state.open"}
    team = uuid.uuid4().hex
    address = dev_server.client.service_client.config.target_host
    async with ScriptedModel([{"calls": [call], "output": "†state.open"}]) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "scripted")
        client = await Client.connect(address, plugins=[PerdurePlugin(agents=[nightly.reporter])])
        async with Worker(client, task_queue=team, workflows=[nightly.NightlyReport]):
            schedule = await schedules.schedule(client, team, team)
            try:
                await schedule.trigger()
                assert await (await _started(client, schedule)).result() == 3
            finally:
                await schedule.delete()


async def _started(client: Client, schedule: object) -> WorkflowHandle[object, object]:
    async with asyncio.timeout(HANG):
        while True:
            described = await schedule.describe()  # type: ignore[attr-defined]
            if actions := described.info.recent_actions:
                return client.get_workflow_handle(actions[0].action.workflow_id)
            await asyncio.sleep(0.1)  # the server lists an action a moment after it took it


async def test_the_receiver_of_the_page_on_notifications_verifies_and_takes_an_end_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *blocks("python", DOCS["notifications.md"]))
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("ended")
    async with serving(shop.app) as url:
        settings = Settings.model_construct(callback_hosts=("127.0.0.1",), callback_secret=shop.SECRET)
        async with run_locally(Agent("refunds", instructions="Refund."), model=[DONE], settings=settings) as local:
            run = await local.start(callback=f"{url}/ended")
            assert (await run.wait()).status == "completed"
            await local.settle()
            (route,) = (await run.view()).notifications[0].routes
    assert (route.status, list(shop.ended.values())) == ("delivered", ["completed"])


async def test_the_settings_of_the_page_on_notifications_are_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "perdure.toml"
    path.write_text("\n".join(reversed(blocks("toml", DOCS["notifications.md"]))), encoding="utf-8")
    monkeypatch.setenv("PERDURE_CONFIG", str(path))
    found = load()
    assert list(found.notification_routes) == ["ops", "boss", "audit"]
    check_apprise(found.notification_routes)
    (document,) = (json.loads(each) for each in blocks("json", DOCS["notifications.md"]))
    assert parse_agent(document).config.notify.run_ended == ["audit"]


async def test_the_server_of_the_page_on_memory_finds_what_it_was_given(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    write(tmp_path, *blocks("python", DOCS["memory.md"]))
    config, helper = blocks("json", DOCS["memory.md"])
    entry = json.loads(config)["mcpServers"]["notes"]
    assert entry["command"] == "python"
    servers = McpConfig.model_validate(
        {"mcpServers": {"notes": {**entry, "command": sys.executable, "cwd": str(tmp_path)}}}
    )
    calls = [
        {"_tool": "notes.remember", "note": "Ann hates plums.", "_outputPath": "†state.count"},
        {
            "_tool": "notes.search",
            "query": "What does Ann hate",
            "limit": 1,
            "_after": ["†state.count"],
            "_outputPath": "†state.found",
        },
    ]
    registry = Registry()
    document = json.loads(helper.partition("\n")[2])
    document["schema"] = {}
    async with (
        mcp_tools(servers, registry, pytest.fail),
        harness(dev_server.client, [], [{"calls": calls, "output": "†state.found"}], registry=registry) as it,
    ):
        view = await it.run(document, {"request": "What does Ann hate?"})
    assert "Ann" in json.dumps(view.output)
    assert [call.status for call in view.calls] == ["done", "done"]


async def test_the_triggers_of_the_page_start_runs(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *blocks("python", DOCS["triggers.md"]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    title = {"type": "input", "schema": {"type": "object", "properties": {"title": {"type": "string"}}}}
    write_agents(tmp_path / "agents", {"name": "triage", "context": [title], "schema": {}})
    secret = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0"
    monkeypatch.setenv("ORDERS_SECRET", secret)
    async with harness(dev_server.client, [], [{"calls": [], "output": "†input.title"}]) as it:
        monkeypatch.setenv("TEMPORAL_ADDRESS", dev_server.client.service_client.config.target_host)
        monkeypatch.setenv("PERDURE_TASK_QUEUE", it.task_queue)
        shop, sender = map(importlib.import_module, ("order_hooks", "webhook_sender"))
        async with serve_app(shop.app, None, "127.0.0.1", 0, stopping=lambda: None, grace=5.0) as address:
            event, id, place = {"title": "A pear"}, uuid.uuid4().hex, f"{address}/hooks/v1/triggers/orders"
            answers = [await asyncio.to_thread(sender.send, place, secret, event, id) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [202, 202], answers[0].text
            (run,) = {answer.json()["runId"] for answer in answers}
        view = await it.client.get_workflow_handle(run, result_type=RunResult).result()
    assert view.output == "A pear"
    issues, payments = (parse_triggers(loads_commented(block)) for block in blocks("json", DOCS["triggers.md"]))
    assert payments
    issue: JsonObject = {"title": "A pear", "body": None}  # as GitHub sends an issue without a description
    mapped = map_delivery(issues["issues"], {"issue": issue}, "issues.opened", "1")
    assert mapped.input == {"title": "A pear", "text": ""}
