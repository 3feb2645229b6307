"""The pages as people use them: in headless Chromium, by keyboard, on a small screen, without JavaScript, over a real server (R17.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser, Error, Page, Route, expect
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, tool
from perdure.pages.adapter import pages, sign_in
from perdure.queries import SearchAttributes
from perdure.testing import ScriptedModel
from perdure.testing.scripted_model import ChatRequest, Pace
from tests.gateway.support import Served, gateway, some_name, write_agents, write_tokens
from tests.pages.test_inbox import server
from tests.support import CHROMIUM, harness
from tests.timeouts import HANG

__all__ = ["server"]
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
    pytest.mark.xdist_group("browser"),
]


@tool
def look(order: str) -> dict[str, Any]:
    """Look an order up."""
    return {"order": order, "state": "lost", "note": "<script>alert(1)</script>"}


@tool(dangerous=True)
def refund(order: str, amount: float) -> str:
    """Pay back."""
    return f"{amount} paid back for {order}"


DESK = {
    "name": "desk",
    "context": [
        {"type": "system", "text": "You answer at a desk."},
        {"type": "tool", "tool": "look"},
        {"type": "tool", "tool": "refund"},
    ],
}
LOOKS = {"calls": [{"_tool": "look", "order": "A-17", "_outputPath": "†state.found"}], "output": None}
REFUNDS = {
    "calls": [{"_tool": "refund", "order": "†state.found.order", "amount": 20, "_outputPath": "†state.paid"}],
    "output": None,
}
DONE = {"calls": [], "output": "Your <b>20</b> are on their way, and we are sorry for the lamp."}


def desk(request: ChatRequest) -> Any:
    """Looks, pays back when asked to, and answers."""
    text = request.text
    if "pay" in text:
        return DONE if "paid back" in text else REFUNDS if '"lost"' in text else LOOKS
    return DONE


@dataclass
class Seen:
    page: Page
    at: Served
    tokens: list[str]


@asynccontextmanager
async def site(server: WorkflowEnvironment, browser: Browser, tmp_path: Path, **options: Any) -> AsyncIterator[Seen]:
    """Somebody of the shop who has signed in, before a gateway with a worker behind it."""
    rights = ["read", "send", "approve", "stop", "new"]
    tokens = write_tokens(
        tmp_path / "tokens.json",
        ("shop", "ann", rights),
        ("other", "eve", rights),
        ("shop", "ron", ["read"]),
        ("shop", "gil", ["read", "grant"]),
    )
    agents = write_agents(tmp_path / "agents", DESK)
    async with (
        harness(server.client, [look, refund], desk, **options) as it,
        gateway(
            server.client,
            [sign_in, pages],
            task_queue=it.task_queue,
            agents=agents,
            gateway_tokens=tmp_path / "tokens.json",
            web_ui="http://localhost:8233",
        ) as at,
    ):
        context = await browser.new_context()
        page = await context.new_page()
        await sign(page, at, tokens[0])
        yield Seen(page, at, tokens)
        await context.close()


async def sign(page: Page, at: Served, token: str, path: str = "/conversations") -> None:
    await page.goto(at.address + path)
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(f"**{path}")


async def begin(page: Page, at: Served, text: str) -> str:
    key = some_name("talk")
    await page.goto(f"{at.address}/conversations")
    await page.get_by_label("Name").fill(key)
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Begin").click()
    await page.wait_for_url(f"**/conversations/{key}")
    return key


async def violations(page: Page) -> list[str]:
    """What axe finds. A page that loads itself anew meanwhile, because its run has ended, is looked at again."""
    while True:
        try:
            found = await Axe().run(page, options={"resultTypes": ["violations"]})
            break
        except Error as error:
            if "Execution context was destroyed" not in error.message:
                raise
            await page.wait_for_load_state()
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found.response["violations"]]


async def test_r17_5_a_conversation_is_had_and_an_approval_given_in_it(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    async with site(server, browser, tmp_path) as seen:
        page = seen.page
        key = await begin(page, seen.at, "Please pay me back for A-17.")
        await expect(page.locator(".entry.message .text")).to_have_text("Please pay me back for A-17.")
        sentence = "refund order A-17, amount 20: refund is dangerous"
        await expect(page.get_by_role("heading", name=sentence)).to_be_visible()
        assert await violations(page) == []
        await page.get_by_label("Reason").fill("she is right")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.locator(".entry.reply .text")).to_have_text(DONE["output"])
        await expect(page.locator(".entry")).to_have_count(3)  # the message, the run with its calls, the reply
        assert await violations(page) == []
        await page.get_by_label("Message").fill("Thank you")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("and goodbye")
        await page.keyboard.press("Enter")  # which sends: no mouse is needed
        await expect(page.locator(".entry.reply")).to_have_count(2)
        await expect(page.locator(".entry.message.mine .text").last).to_have_text("Thank you\nand goodbye")
        view = await seen.at.gateway.perdure.session(key, tenant="shop").show()
        assert [entry["sender"] for entry in view.entries if entry["type"] == "message"] == ["ann", "ann"]
        # Once more from its beginning: what was told live stands there too.
        await page.reload()
        await expect(page.locator(".entry.reply")).to_have_count(2)
        assert await page.locator("script:not([src])").count() == 0


async def test_r17_5_the_answer_is_seen_while_it_is_written_and_stopped(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    long = {"calls": [], "output": "word " * 200 + "end"}
    async with (
        ScriptedModel(lambda _: long, strict=False, pace=Pace(per_token=0.05)) as slow,
        site(server, browser, tmp_path, model=slow.client()) as seen,
    ):
        page = seen.page
        await begin(page, seen.at, "Tell me.")
        await expect(page.locator(".writing .text")).to_contain_text("word word")
        await page.get_by_role("button", name="Stop the run").click()
        await expect(page.locator(".entry.run")).to_contain_text("cancelled")
        await expect(page.locator(".writing .text")).to_be_empty()


async def test_r17_5_a_run_shows_its_graph_its_calls_and_their_cost_and_is_found(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    async with site(server, browser, tmp_path) as seen:
        page = seen.page
        key = await begin(page, seen.at, "Please pay me back for A-17.")
        await page.get_by_role("link", name="the run", exact=True).click()
        await expect(page.locator("figure svg text").filter(has_text="refund")).to_be_visible()
        await page.get_by_role("link", name="refund").first.click()  # what waits, in the inbox
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("status")).to_contain_text("approved")
        await page.go_back()
        await page.go_back()
        await expect(page.locator(".facts .is-completed")).to_be_visible()
        await page.reload()
        assert await violations(page) == []
        call = page.locator("details.call").filter(has=page.locator("summary", has_text="look"))
        await call.locator("summary").focus()
        await page.keyboard.press("Enter")
        await expect(call).to_contain_text("<script>alert(1)</script>")  # as text
        await expect(page.get_by_role("img", name="When the calls ran")).to_be_visible()
        link = await page.get_by_role("link", name="in Temporal's Web UI").get_attribute("href")
        assert link is not None
        assert link.startswith("http://localhost:8233/namespaces/default/workflows/session-")
        run_id = await page.locator("code.id").first.inner_text()
        origin = page.locator(".origin")
        for fact in ("ann", "shop", key):
            await expect(origin).to_contain_text(fact)
        await expect(page.locator("main")).to_contain_text("Please pay me back for A-17.")
        async with asyncio.timeout(HANG):
            while not [
                run
                async for run in server.client.list_workflows(
                    f"WorkflowId = '{run_id}' AND ExecutionStatus = 'Completed'"
                )
            ]:
                pass
        await page.goto(f"{seen.at.address}/runs")
        await page.get_by_label("Agent").fill("desk")
        await page.get_by_label("Sender").fill("ann")
        await page.get_by_label("Status").select_option("completed")
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Search").click()
        await expect(page.locator("tbody")).to_contain_text(run_id)
        assert await violations(page) == []
        await page.get_by_label("Since").fill("yesterday")
        await page.get_by_role("button", name="Search").click()
        await expect(page.get_by_role("alert")).to_contain_text("is not a time: use 90min")


@pytest.mark.soak
async def test_r17_5_all_pages_are_read_without_javascript_and_on_a_small_screen(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    async with site(server, browser, tmp_path) as seen:
        key = await begin(seen.page, seen.at, "Where is my lamp?\nIt is late.")
        await expect(seen.page.locator(".entry.reply")).to_be_visible()
        await seen.page.goto(f"{seen.at.address}/conversations")
        await expect(seen.page.get_by_role("link", name="Where is my lamp?", exact=True)).to_be_visible()
        run_id = (await seen.at.gateway.perdure.session(key, tenant="shop").show()).entries[-1]["runId"]
        context = await browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 740})
        page = await context.new_page()
        await sign(page, seen.at, seen.tokens[0])
        for path in ("/conversations", f"/conversations/{key}", "/runs", f"/runs/{run_id}", "/inbox/", "/costs"):
            await page.goto(seen.at.address + path)
            await expect(page.locator("main")).to_be_visible()
            await page.screenshot(path=tmp_path / f"{path.strip('/').replace('/', '-')}.png", full_page=True)
        await page.goto(f"{seen.at.address}/conversations/{key}")
        await page.get_by_label("Message").fill("And the chair?")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".notice")).to_contain_text("Sent: the agent works on")
        await context.close()
        small = await (await browser.new_context(viewport={"width": 360, "height": 740})).new_page()
        await sign(small, seen.at, seen.tokens[0])
        for path in ("/conversations", f"/conversations/{key}", "/runs", f"/runs/{run_id}", "/inbox/", "/costs"):
            await small.goto(seen.at.address + path)
            wide = await small.evaluate("document.documentElement.scrollWidth")
            assert wide <= 360, f"{path} is {wide} px wide"
            assert await violations(small) == [], path
        await small.context.close()


async def test_r17_1_pages_show_nobody_what_is_another_tenants(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    async with site(server, browser, tmp_path) as seen:
        key = await begin(seen.page, seen.at, "Please pay me back for A-17.")
        await expect(seen.page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        view = await seen.at.gateway.perdure.session(key, tenant="shop").show()
        other = await (await browser.new_context()).new_page()
        await sign(other, seen.at, seen.tokens[1])
        await expect(other.locator("main")).not_to_contain_text(key)
        for path in (f"/conversations/{key}", f"/runs/{view.run_id}", f"/live/runs/{view.run_id}"):
            answer = await other.goto(seen.at.address + path)
            assert answer is not None
            assert answer.status == 404, path
        await other.goto(f"{seen.at.address}/inbox/")
        await expect(other.locator("main")).not_to_contain_text("refund")
        await other.goto(f"{seen.at.address}/inbox/?run={view.run_id}&call=2.0")
        await expect(other.locator("main")).not_to_contain_text("A-17")
        await other.context.close()
        # Who may only read sees it, and decides nothing.
        reader = await (await browser.new_context()).new_page()
        await sign(reader, seen.at, seen.tokens[2], f"/conversations/{key}")
        await reader.get_by_role("button", name="Approve", exact=True).click()
        await expect(reader.get_by_role("alert")).to_contain_text("may not decide approval requests")
        await reader.context.close()
        await seen.at.gateway.perdure.get_run(str(view.run_id)).cancel()


async def test_r17_5_without_tokens_a_page_says_which_tenant_it_shows_and_offers_the_others(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    agents = write_agents(tmp_path / "agents", DESK)
    async with (
        harness(server.client, [look, refund], desk) as it,
        gateway(server.client, [sign_in, pages], task_queue=it.task_queue, agents=agents) as at,
    ):
        perdure, tenant = at.gateway.perdure, some_name("shop")
        session = perdure.session(some_name(), tenant=tenant, agent=at.gateway.agents.get("desk"))
        await session.send("Please pay me back.", sender="ann", rights=["*"])
        async with asyncio.timeout(HANG):
            while not [one for one in (await perdure.approvals(tenant=tenant)).waiting if one.sender == "ann"]:
                pass
        page = await (await browser.new_context()).new_page()
        await page.goto(f"{at.address}/inbox/")
        await expect(page.locator("main")).to_contain_text("No call waits for a person in runs of no tenant")
        await page.get_by_role("button", name=f"{tenant} (1 waits)").click()
        await expect(page.locator(".who")).to_contain_text(f"tenant {tenant}")
        await expect(page.get_by_role("heading", name="refund is dangerous")).to_be_visible()
        await expect(page.locator("article")).to_contain_text("asked by ann")
        await expect(page.locator("article .last")).to_contain_text("Please pay me back.")
        await page.get_by_role("button", name="Reject", exact=True).click()
        await expect(page.get_by_role("status")).to_contain_text("rejected")
        await page.context.close()


async def test_an_inbox_whose_form_is_submitted_does_not_load_itself_anew(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    agents = write_agents(tmp_path / "agents", DESK)
    async with gateway(server.client, [sign_in, pages], task_queue=some_name(), agents=agents) as at:
        page = await (await browser.new_context()).new_page()
        loads: list[str] = []
        page.on("request", lambda request: loads.append(request.method) if request.is_navigation_request() else None)
        submitted, checked = asyncio.Event(), asyncio.Event()

        async def list_of_one(route: Route) -> None:
            await submitted.wait()
            await route.fulfill(body="<ul><li>One waits.</li></ul>", content_type="text/html")

        async def slow_answer(route: Route) -> None:
            submitted.set()
            await checked.wait()
            await route.fulfill(body="Changed.", content_type="text/html")

        await page.route("**/inbox/list*", list_of_one)
        await page.route("**/inbox/slow", slow_answer)
        async with page.expect_request("**/inbox/list*"):
            await page.goto(f"{at.address}/inbox/")
        async with page.expect_event("requestfinished", lambda request: "/inbox/list" in request.url):
            await page.evaluate("""() => {
                const form = Object.assign(document.createElement("form"), {method: "post", action: "/inbox/slow"});
                document.body.append(form);
                setTimeout(() => form.requestSubmit());
            }""")
        await at.http.get("/inbox/")  # the page has read its list meanwhile
        checked.set()
        await expect(page.locator("body")).to_contain_text("Changed.")
        assert loads == ["GET", "POST"]
        await page.context.close()


async def test_an_inbox_that_loads_itself_for_the_next_question_keeps_what_was_decided_before(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    agents = write_agents(tmp_path / "agents", DESK)
    async with gateway(server.client, [sign_in, pages], task_queue=some_name(), agents=agents) as at:
        page = await (await browser.new_context()).new_page()
        lists = ["<ul><li>One waits.</li></ul>"]

        async def list_of_one_once(route: Route) -> None:
            await route.fulfill(body=lists.pop() if lists else "", content_type="text/html")

        await page.route("**/inbox/list*", list_of_one_once)
        async with page.expect_request(
            lambda request: "run=" not in request.url and request.is_navigation_request()
        ) as loaded:
            await page.goto(f"{at.address}/inbox/?run=gone&call=1.0&notice=rejected&by=signature")
        assert (await loaded.value).url == f"{at.address}/inbox/?notice=rejected&by=signature"
        await page.context.close()


async def test_a_list_of_runs_without_a_match_says_so(server: WorkflowEnvironment, tmp_path: Path) -> None:
    agents = write_agents(tmp_path / "agents", DESK)
    assert await SearchAttributes().ensure(server.client) is None  # as a worker does at its start
    async with gateway(server.client, [sign_in, pages], task_queue=some_name(), agents=agents) as at:
        answer = await at.http.get("/runs", params={"agent": some_name()}, follow_redirects=True)
    assert answer.status_code == 200
    assert "No run matches." in answer.text
    assert "There is no such run" not in answer.text


async def test_r22_1_a_run_is_forked_by_a_button_and_seen_beside_its_fork(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    async with site(server, browser, tmp_path) as seen:
        page, perdure = seen.page, seen.at.gateway.perdure
        run = await perdure.start(Agent.of(DESK), {"request": "Please pay me back."}, tenant="shop")
        async for event in run.events():
            if event.topic == "approval":
                break
        await run.approve("2.0", by="ann")
        await run.wait()
        await page.goto(f"{seen.at.address}/runs/{run.id}")
        await page.get_by_role("link", name="Fork the run…").click()
        await expect(page.get_by_label("Point").locator("option")).to_have_text(
            [
                "before Request 1",
                "before call 1.0 look",
                "before Request 2",
                "before call 2.0 refund",
                "before Request 3",
            ]
        )
        assert await violations(page) == []
        await page.get_by_label("Point").select_option("2.0")
        await page.get_by_role("button", name="Fork the run").click()
        await expect(page.locator(".notice")).to_contain_text("1 call waits for a person")
        await page.get_by_role("link", name="side by side").click()
        await expect(page.locator(".beside section")).to_have_count(2)
        await expect(page.locator(".beside svg")).to_have_count(2)
        await expect(page.locator("code.removed").first).to_contain_text("2.0 refund")
        await expect(page.locator("code.added").first).to_contain_text("waiting")
        assert await violations(page) == []
        await page.screenshot(path=tmp_path / "beside.png", full_page=True)
        other = await perdure.start(Agent.of(DESK), {"request": "Where is it?"}, tenant="shop", sender="bob")
        await other.wait()
        assert (await page.goto(f"{seen.at.address}/fork/{other.id}")).status == 403  # type: ignore[union-attr]
        await page.goto(f"{seen.at.address}/compare/{run.id}")
        await expect(page.locator("main")).to_contain_text("is not a fork of another run")
        reader = await (await browser.new_context()).new_page()
        await sign(reader, seen.at, seen.tokens[2], f"/runs/{run.id}")
        await expect(reader.get_by_role("link", name="Fork the run…")).to_have_count(0)
        assert (await reader.goto(f"{seen.at.address}/fork/{run.id}")).status == 403  # type: ignore[union-attr]
        await reader.context.close()
