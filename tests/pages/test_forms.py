"""The pages' forms: forged, repeated, oversized, with another tenant's runs (R17.5)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.gateway.api.adapter import api
from perdure.pages._site import LARGEST_FORM
from perdure.pages.adapter import pages, sign_in
from tests.gateway.support import Served, bearer, gateway, some_name, write_agents, write_tokens
from tests.gateway.test_api import pay, until
from tests.support import Harness, agent, harness
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO, echo

pytestmark = pytest.mark.asyncio(loop_scope="session")

FORMS = (
    "/conversations",
    "/conversations/k",
    "/decide/k",
    "/cancel/r",
    "/undo/r",
    "/fork/r",
    "/inbox/decide",
    "/standing",
    "/schedules",
    "/tenant",
    "/sign-out",
)
"""Where every form of the pages goes that acts in its sender's name."""


def csrf_of(page: str) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', page)
    assert found is not None
    return found[1]


@asynccontextmanager
async def payment_waits(client: Client, folder: Path, token: str) -> AsyncIterator[tuple[Served, Harness, str]]:
    """Yield a gateway, its harness, and a run of this token's in which a payment waits for a person; the test cancels it."""
    given: dict[str, Any] = {
        "agents": write_agents(folder / "agents", agent("pay", name="payer")),
        "gateway_tokens": folder / "tokens.json",
    }
    calls = {"calls": [{"_tool": "pay", "euros": 5, "_outputPath": "†state.paid"}], "output": None}
    async with (
        harness(client, [pay], lambda _: calls) as it,
        gateway(client, [sign_in, api, pages], task_queue=it.task_queue, **given) as at,
    ):
        run = until(await at.http.post("/v1/runs", json={"agent": "payer"}, headers=bearer(token)), 201)["runId"]
        await it.until_waiting(run, "1.0")
        yield at, it, run
        async with asyncio.timeout(HANG):  # other tests look at what waits in the whole namespace
            while any(one.run_id == run for one in (await at.gateway.perdure.approvals()).waiting):
                pass


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
        async with httpx2.AsyncClient(base_url=at.address, headers=bearer(ann), timeout=HANG) as other:
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
    async with payment_waits(dev_server.client, tmp_path, ann) as (at, it, run):
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


@pytest.mark.parametrize("path", ["/inbox/decide", "/decide/k"])
async def test_a_form_that_says_no_known_action_approves_nothing(
    path: str, dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    [token] = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]))
    async with payment_waits(dev_server.client, tmp_path, token) as (at, _, run):
        http, ann = at.http, bearer(token)
        csrf = csrf_of((await http.get("/conversations", headers=ann)).text)
        form = {"csrf": csrf, "run": run, "call": "1.0", "action": "deny"}
        answer = await http.post(path, data=form, headers={**ann, "HX-Request": "true"})
        assert "approve, remember, endorse, answer, replace or reject" in answer.text
        waiting = until(await http.get(f"/v1/runs/{run}/waiting", headers=ann))["waiting"]
        assert [offer["call"] for offer in waiting] == ["1.0"]
        until(await http.post(f"/v1/runs/{run}/cancel", headers=ann), 202)
