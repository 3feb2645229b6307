"""The approvals page, in headless Chromium, over a real server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, tool
from perdure.gateway.guards import Guards
from perdure.hosting.server import embedded_server, free_port
from perdure.pages._inbox import inbox_app
from tests.cli.test_commands import one_line
from tests.forked_cli import ForkedCli
from tests.support import CHROMIUM, DONE, ROOT, Harness, agent, harness, perdure, serving
from tests.timeouts import HANG
from tests.workflows.test_approvals import TOOLS, asking, decide, plan

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
    pytest.mark.xdist_group("browser"),
]


@tool(dangerous=True)
def deploy(
    service: str, replicas: int, region: str = "eu", labels: dict[str, str] | None = None, force: bool = False
) -> str:
    """Deploy a service."""
    return f"{service} {replicas} {region} {labels} {force}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    """A namespace of its own: what other tests leave waiting is not listed here."""
    async with embedded_server(ui=False) as started:
        yield started


@asynccontextmanager
async def with_web_ui() -> AsyncIterator[tuple[WorkflowEnvironment, str]]:
    """Another server, and the address of Temporal's own page."""
    port = free_port()
    async with embedded_server(ui_port=port) as started:
        yield started, f"http://localhost:{port}"


@asynccontextmanager
async def inbox(server: WorkflowEnvironment, *options: str) -> AsyncIterator[str]:
    """The page's address."""
    env = {**os.environ, "TEMPORAL_ADDRESS": server.client.service_client.config.target_host}
    process = await asyncio.create_subprocess_exec(
        *(*await ForkedCli.command(), "inbox", "--port", "0", *options),
        cwd=ROOT,
        env=env,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stderr.readline(), HANG)).decode()
        assert line.startswith("inbox"), line
        yield line.split()[1].rstrip(";")
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), HANG) == 0


@asynccontextmanager
async def waiting(
    server: WorkflowEnvironment, script: Any, document: Any, *calls: str
) -> AsyncIterator[tuple[Harness, str]]:
    """A run that waits, and which the server's index lists; nothing is left waiting afterwards."""
    async with harness(server.client, [*TOOLS, deploy], script) as it:
        handle = await it.start(document)
        await it.until_waiting(handle.id, *calls)
        async with asyncio.timeout(HANG):
            while not [
                run async for run in server.client.list_workflows(f"WorkflowId = '{handle.id}' AND PerdureWaiting > 0")
            ]:
                pass
        yield it, handle.id
        await asyncio.wait_for(handle.result(), HANG)


async def result(it: Harness, run_id: str) -> Any:
    await asyncio.wait_for(it.client.get_workflow_handle(run_id).result(), HANG)
    return await it.view(run_id)


async def test_a_call_is_changed_in_the_form_and_approved(server: WorkflowEnvironment, browser: Browser) -> None:
    call = {"_tool": "deploy", "service": "shop", "replicas": 3, "labels": {"team": "a"}, "_outputPath": "†state.d"}
    look = {"_tool": "look", "path": "†state.d"}
    script = [{"calls": [call, look], "output": None}, DONE]
    async with inbox(server) as address, waiting(server, script, agent("deploy", "look"), "1.0") as (it, run_id):
        page = await browser.new_page()
        await page.goto(address)
        await expect(page.get_by_role("heading", name="deploy service shop, 3 replicas")).to_be_visible()
        await expect(page.locator("figure svg text").filter(has_text="1.1 look")).to_be_visible()
        await expect(page.locator("figure rect[stroke-width='4']")).to_have_count(1)
        await page.set_viewport_size({"width": 500, "height": 900})
        sizes = "e => { const b = e.getBoundingClientRect(); return [b.top, b.bottom] }"
        nav, main = await page.locator("nav").evaluate(sizes), await page.locator("main").evaluate(sizes)
        assert nav[0] - main[1] < 2  # the decision before the list, with no hole between them
        assert nav[1] - nav[0] < 200
        colour = "e => getComputedStyle(e).backgroundColor"
        field, ground = page.get_by_label("replicas"), page.locator("body")
        assert await field.evaluate(colour) != await ground.evaluate(colour)
        await page.set_viewport_size({"width": 1280, "height": 900})
        await page.get_by_label("replicas").fill("many")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("alert").first).to_contain_text("replicas is not valid JSON")
        await page.get_by_label("replicas").fill("-1.5")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("alert").first).to_contain_text("1.0 would not be valid: $.replicas")
        assert await page.get_by_label("replicas").input_value() == "-1.5"
        await page.get_by_label("replicas").fill("5")
        await page.get_by_label("force").select_option("true")
        await page.get_by_label("Your name").fill("Ann")
        if os.environ.get("SHOTS"):
            await page.screenshot(path=f"{os.environ['SHOTS']}/inbox.png", full_page=True)
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("status")).to_have_text(f"{run_id} 1.0: approved with changes")
        view = await result(it, run_id)
        await page.close()
    assert view.state["d"] == "shop 5 eu {'team': 'a'} True"
    approval = view.calls[0].approval
    assert (approval.decision, approval.by) == ("edit", "Ann")


async def test_what_comes_appears_by_itself_and_the_keyboard_is_enough(
    server: WorkflowEnvironment, browser: Browser
) -> None:
    async with inbox(server) as address:
        page = await browser.new_page()
        await page.goto(address)
        await expect(page.get_by_text("No call waits for a person.").first).to_be_visible()
        async with waiting(server, plan("/keys", "/elsewhere"), asking(), "1.0", "1.1") as (it, run_id):
            await expect(page.get_by_role("heading", name="remove path /keys")).to_be_visible()
            await expect(page).to_have_title("(2) Perdure inbox")
            await _tab_to(page, "reason")
            await page.keyboard.type("not today")
            await _tab_to(page, "", "Reject")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("status")).to_have_text(f"{run_id} 1.0: rejected")
            await expect(page.get_by_role("heading", name="remove path /elsewhere")).to_be_visible()
            await it.client.get_workflow_handle(run_id).signal("approve", {"call": "1.1"})
            await expect(page.get_by_text("This request no longer waits")).to_be_visible()
            await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_disabled()
            view = await result(it, run_id)
        await page.close()
    assert [call.status for call in view.calls] == ["rejected", "done"]
    assert view.calls[0].reason == "rejected: not today"


async def _tab_to(page: Page, element_id: str, text: str = "") -> None:
    """Press Tab until the element has the focus."""
    for _ in range(40):
        await page.keyboard.press("Tab")
        focused = await page.evaluate("[document.activeElement.id, document.activeElement.textContent]")
        if (element_id and focused[0] == element_id) or (text and focused[1] == text):
            return
    raise AssertionError(f"{element_id or text} cannot be reached by Tab")


async def test_it_works_without_javascript(server: WorkflowEnvironment, browser: Browser) -> None:
    async with inbox(server) as address, waiting(server, plan("/no-js"), asking(scope="plan"), "1") as (it, run_id):
        context = await browser.new_context(java_script_enabled=False)
        page = await context.new_page()
        await page.goto(address)
        await page.get_by_role("link", name="run a plan").click()
        await expect(page.get_by_text("1 call in 1 level")).to_be_visible()
        await page.get_by_label("The whole plan").fill('[{"_tool": "look", "path": "/instead"}]')
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_role("status")).to_have_text(f"{run_id} 1: approved with changes")
        view = await result(it, run_id)
        await context.close()
    assert [(call.tool, call.status) for call in view.calls] == [("look", "done")]


async def test_who_may_decide(server: WorkflowEnvironment, browser: Browser) -> None:
    refused = await perdure(
        *("inbox", "--host", "0.0.0.0", "--port", "0"),
        env={"TEMPORAL_ADDRESS": server.client.service_client.config.target_host},
    )
    assert (refused.code, "require a token" in one_line(refused.err)) == (2, True)
    async with waiting(server, plan("/guarded"), asking(), "1.0") as (it, run_id):
        form = {"run": run_id, "call": "1.0", "action": "approve"}
        async with inbox(server) as address, httpx2.AsyncClient(timeout=HANG) as http:
            forged = await http.post(f"{address}/decide", data=form | {"csrf": "0" * 64})
            rebound = await http.get(address, headers={"Host": "evil.example"})
        async with inbox(server, "--token", "s3cret") as address, httpx2.AsyncClient(timeout=HANG) as http:
            pages = [await http.get(f"{address}{path}") for path in ("/", "/list", "/events")]
            strange = await http.post(f"{address}/decide", data=form)
            bearer = await http.get(address, headers={"Authorization": "Bearer s3cret"})
            page = await browser.new_page()
            await page.goto(address)
            await page.get_by_label("Token").fill("wrong")
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert")).to_have_text("The token is wrong.")
            await page.get_by_label("Token").fill("s3cret")
            await page.get_by_role("button", name="Sign in").click()
            await page.get_by_role("button", name="Approve", exact=True).click()
            await expect(page.get_by_role("status")).to_have_text(f"{run_id} 1.0: approved")
            await page.close()
        view = await result(it, run_id)
    assert (forged.status_code, rebound.status_code, strange.status_code, bearer.status_code) == (403, 400, 401, 200)
    assert [page.status_code for page in pages] == [401] * 3
    assert "default-src 'self'" in bearer.headers["content-security-policy"]
    assert view.calls[0].approval.decision == "approve"


async def test_the_oldest_request_whose_run_answers_is_shown(
    server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness(server.client, TOOLS, plan("/away")) as away:
        left = await away.start(asking())
        await away.until_waiting(left.id, "1.0")
    try:  # no worker answers for it now
        async with waiting(server, plan("/here"), asking(), "1.0") as (it, run_id):
            monkeypatch.setattr("perdure.queries._answers.TIMEOUT", timedelta(seconds=2))
            app = inbox_app(Perdure(server.client), Guards(None))
            async with serving(app) as address, httpx2.AsyncClient(timeout=HANG) as http:
                page = await http.get(address)
                alone = await http.get(address, params={"run": left.id, "call": "1.0"})
            await decide(it, run_id, call="1.0", decision="approve")
    finally:
        await left.terminate()
    assert (page.status_code, f'name="run" value="{run_id}"' in page.text) == (200, True)
    assert "no worker answers" in alone.text


@pytest.mark.soak  # Temporal's own page takes four CPU seconds to load
async def test_the_web_ui_approves_by_clicking(browser: Browser) -> None:
    """In Temporal's own page: the signal's dialog, and the JSON that a person types there."""
    async with with_web_ui() as (server, web_ui), waiting(server, plan("/web-ui"), asking(), "1.0") as (it, run_id):
        page = await browser.new_page(viewport={"width": 1400, "height": 1000})
        execution = (await it.client.get_workflow_handle(run_id).describe()).run_id
        await page.goto(f"{web_ui}/namespaces/default/workflows/{run_id}/{execution}/user-metadata")
        details = page.locator("iframe").last.content_frame
        await expect(details.get_by_text("Waiting for a person")).to_be_visible()
        await page.get_by_role("button", name="More Actions").click()
        await page.get_by_role("menuitem", name="Send a Signal").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_test_id("signal-select-button").click()
        await dialog.get_by_text("approve", exact=True).click()
        await dialog.locator(".cm-content").first.click()
        await page.keyboard.insert_text('{"call": "1.0"}')
        if os.environ.get("SHOTS"):
            await page.screenshot(path=f"{os.environ['SHOTS']}/signal.png")
        await dialog.get_by_role("button", name="Submit").click()
        view = await result(it, run_id)
        await page.close()
    assert (view.calls[0].status, view.refusals) == ("done", [])


async def test_a_question_is_answered_on_the_page(server: WorkflowEnvironment, browser: Browser) -> None:
    calls = [
        {
            "_tool": "ask_person",
            "question": "Which colour?",
            "choices": ["red", "blue"],
            "_outputPath": "†state.colour",
        },
        {"_tool": "ask_person", "question": "And why?", "_outputPath": "†state.why"},
    ]
    async with inbox(server) as address, harness(server.client, TOOLS, [{"calls": calls}, DONE]) as it:
        handle = await it.start(agent("ask_person"))
        await it.until_waiting(handle.id, "1.0", "1.1")
        page = await browser.new_page()
        await page.goto(f"{address}?run={handle.id}&call=1.0")
        await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        await page.get_by_label("Which colour?").select_option("blue")
        await page.get_by_label("Your name").fill("ann")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.get_by_role("status")).to_contain_text("answered")
        await page.goto(f"{address}?run={handle.id}&call=1.1")
        await page.get_by_label("And why?").fill("It is calm.")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.get_by_role("status")).to_contain_text("answered")
        view = await result(it, handle.id)
        await page.close()
    assert view.state == {"colour": "blue", "why": "It is calm."}
    assert [call.approval.by for call in view.calls] == ["ann", "ann"]
