"""The pages' forms: forged, repeated, oversized, with another tenant's runs (R17.5)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.gateway.api.adapter import api
from perdure.pages._site import LARGEST_FORM
from perdure.pages.adapter import pages, sign_in
from tests.gateway.support import bearer, gateway, some_name, write_agents, write_tokens
from tests.gateway.test_api import until
from tests.support import agent, harness
from tests.test_sessions import ECHO, echo

pytestmark = pytest.mark.asyncio(loop_scope="session")

FORMS = ("/conversations", "/conversations/k", "/decide/k", "/cancel/r", "/inbox/decide", "/tenant", "/sign-out")
"""Where every form of the pages goes that acts in its sender's name."""


@tool(dangerous=True)
def pay(euros: int) -> int:
    """Pay."""
    return euros


def csrf_of(page: str) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', page)
    assert found is not None
    return found[1]


async def test_every_form_comes_from_a_page_that_this_browser_was_shown(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    [ann] = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]))
    given: dict[str, Any] = {
        "agents": write_agents(tmp_path / "agents", ECHO),
        "gateway_tokens": tmp_path / "tokens.json",
    }
    async with gateway(dev_server.client, [sign_in, pages], **given) as at:
        routes = [*pages(at.gateway).routes, *sign_in(at.gateway).routes]
        posted = {getattr(route, "path", "") for route in routes if "POST" in (getattr(route, "methods", None) or ())}
        assert {path.replace("{key:path}", "k").replace("{id:path}", "r") for path in posted} == {*FORMS, "/sign-in"}
        async with httpx2.AsyncClient(base_url=at.address, headers=bearer(ann)) as other:
            foreign = csrf_of((await other.get("/conversations")).text)
        await at.http.get("/conversations", headers=bearer(ann))
        for path in FORMS:
            forged: list[dict[str, str]] = [{}, *({"csrf": each} for each in ("", "0" * 64, foreign, "é"))]
            for csrf in forged:
                form = {**csrf, "text": "hello", "agent": "echo", "run": "r", "call": "1.0", "action": "approve"}
                refused = await at.http.post(path, data=form, headers=bearer(ann))
                assert refused.status_code == 403, (path, csrf)
            head = {**bearer(ann), "Content-Type": "application/x-www-form-urlencoded"}
            large = await at.http.post(path, content=b"text=" + b"x" * LARGEST_FORM, headers=head)
            assert large.status_code == 413, path
            crossed = await at.http.post(path, data={}, headers={**bearer(ann), "Origin": "https://evil.example"})
            assert crossed.status_code == 403, path


async def test_a_form_with_another_tenants_run_is_answered_as_one_with_none(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    ann, eve = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]), ("other", "eve", ["*"]))
    given: dict[str, Any] = {
        "agents": write_agents(tmp_path / "agents", agent("pay", name="payer")),
        "gateway_tokens": tmp_path / "tokens.json",
    }
    calls = {"calls": [{"_tool": "pay", "euros": 5, "_outputPath": "†state.paid"}], "output": None}
    async with (
        harness(dev_server.client, [pay], lambda _: calls) as it,
        gateway(dev_server.client, [sign_in, api, pages], task_queue=it.task_queue, **given) as at,
    ):
        run = until(await at.http.post("/v1/runs", json={"agent": "payer"}, headers=bearer(ann)), 201)["runId"]
        await it.until_waiting(run, "1.0")
        missing = some_name("payer")
        csrf = csrf_of((await at.http.get("/conversations", headers=bearer(eve))).text)
        for path in ("/decide/k", "/inbox/decide", "/cancel/{}"):
            told = []
            for name in (run, missing):
                form = {"csrf": csrf, "run": name, "call": "1.0", "action": "approve"}
                head = {**bearer(eve), "HX-Request": "true"}
                answer = await at.http.post(path.format(name), data=form, headers=head)
                told.append((answer.status_code, answer.text.replace(name, "")))
            assert told[0] == told[1], path
        for path in ("/inbox/list?run={}&call=1.0", "/runs/{}", "/live/runs/{}", "/inbox/?run={}&call=1.0"):
            shown = [await at.http.get(path.format(name), headers=bearer(eve)) for name in (run, missing)]
            assert shown[0].status_code == shown[1].status_code, path
            assert "euros" not in shown[0].text
        assert [offer.call for offer in (await it.view(run)).waiting] == ["1.0"]
        await it.client.get_workflow_handle(run).cancel()


async def test_a_form_that_begins_a_conversation_and_is_sent_again_says_nothing_twice(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    [ann] = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]))
    given: dict[str, Any] = {
        "agents": write_agents(tmp_path / "agents", ECHO),
        "gateway_tokens": tmp_path / "tokens.json",
    }
    async with (
        harness(dev_server.client, [], echo) as it,
        gateway(dev_server.client, [sign_in, api, pages], task_queue=it.task_queue, **given) as at,
    ):
        page = (await at.http.get("/conversations", headers=bearer(ann))).text
        named = re.search(r'name="id" value="(\w+)"', page)
        form = {"csrf": csrf_of(page), "agent": "echo", "text": "hello"} | ({"id": named[1]} if named else {})
        sent = [await at.http.post("/conversations", data=form, headers=bearer(ann)) for _ in range(3)]
        [address] = {answer.headers["location"] for answer in sent}
        session = at.gateway.perdure.session(address.rpartition("/")[2], tenant="acme")
        entries = (await session.show()).entries
        assert [entry["text"] for entry in entries if entry["type"] == "message"] == ["hello"]
