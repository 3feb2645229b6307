"""The inbox on the gateway: each tenant's own, for browsers that have signed in, under the names that tokens say (R17.1)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure
from perdure.gateway.callers import read_tokens, write_tokens
from perdure.pages.adapter import pages, sign_in
from tests.gateway.support import bearer, gateway, some_name
from tests.gateway.support import write_tokens as tokens_of
from tests.gateway.test_api import pay
from tests.support import agent, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")
PAYS: Any = [{"calls": [{"_tool": "pay", "euros": 5, "_outputPath": "†state.x"}], "output": None}]
DONE: Any = [{"calls": [], "output": "†state.x"}]


def hidden(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page))


async def signed_in(address: str, token: str) -> httpx2.AsyncClient:
    browser = httpx2.AsyncClient(base_url=address, follow_redirects=True, timeout=HANG)
    page = await browser.post("/sign-in", data={"token": token, "back": "/inbox/"})
    assert page.status_code == 200
    assert str(page.url) == f"{address}/inbox/"
    return browser


async def shows(browser: httpx2.AsyncClient, what: str) -> str:
    """The page, once it shows it: the server's index is a moment late."""
    async with asyncio.timeout(HANG):
        while True:
            page = (await browser.get("/inbox/")).text
            if what in page:
                return page
            await asyncio.sleep(0.05)


async def test_each_sees_and_decides_what_waits_for_their_tenant(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    a, b = some_name("a"), some_name("b")
    file = tmp_path / "tokens.json"
    boss, looker, other = tokens_of(file, (a, "boss", ["read", "approve"]), (a, "ann", ["read"]), (b, "bob", ["*"]))
    payer = Agent.of(agent("pay", name="payer"))
    async with (
        harness(dev_server.client, [pay], PAYS + DONE) as it,
        gateway(dev_server.client, [sign_in, pages], task_queue=it.task_queue, gateway_tokens=file) as front,
    ):
        nobody = await front.http.get("/inbox/")
        assert (nobody.status_code, "Sign in" in nobody.text) == (401, True)
        run = await Perdure(it.client, task_queue=it.task_queue).start(payer, tenant=a)
        await it.until_waiting(run.id, "1.0")
        mine, looks, foreign = [await signed_in(front.address, each) for each in (boss, looker, other)]
        page = await shows(mine, run.id)
        assert boss not in page + str(mine.cookies)
        assert "Recorded as decided by <strong>boss</strong>" in page
        # Another tenant sees nothing, whatever they ask for; who may only look decides nothing.
        assert run.id not in (await foreign.get("/inbox/")).text
        elsewhere = await foreign.get("/inbox/", params={"run": run.id, "call": "1.0"})
        assert "there is no run" in elsewhere.text
        assert "5" not in re.sub(r"<[^>]*>", "", elsewhere.text.split("<main")[1]).replace(run.id, "")
        form = hidden(page) | {"action": "approve", "by": "someone else"}
        their_form = form | {"csrf": hidden(await shows(looks, run.id))["csrf"]}
        refused = await looks.post("/inbox/decide", data=their_form)
        assert (refused.status_code, "may not decide approval requests" in refused.text) == (403, True)
        forged = await foreign.post("/inbox/decide", data=form)
        assert (forged.status_code, "is not from this page" in forged.text) == (403, True)
        decided = await mine.post("/inbox/decide", data=form)
        assert f"{run.id} 1.0: approved" in decided.text
        assert (await run.wait(HANG)).calls[0].approval.by == "boss"  # type: ignore[union-attr]
        for browser in (mine, looks, foreign):
            await browser.aclose()


async def test_a_revoked_token_ends_the_sessions_of_who_signed_in_with_it(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.json"
    one, _ = tokens_of(file, ("a", "ann", ["read"]), ("a", "ann", ["read"]))
    secret = {"gateway_secret": "s" * 32}
    async with (
        gateway(dev_server.client, [sign_in, pages], gateway_tokens=file, **secret) as front,
        gateway(dev_server.client, [sign_in, pages], gateway_tokens=file, **secret) as beside,
    ):
        browser = await signed_in(front.address, one)
        cookies = [cookie for cookie in browser.cookies.jar if cookie.name == "perdure_signed_in"]
        assert [cookie.has_nonstandard_attr("HttpOnly") for cookie in cookies] == [True]
        # Gateways that share a secret know each other's sessions, and forms.
        other = await beside.http.get("/inbox/", headers={"Cookie": f"perdure_signed_in={cookies[0].value}"})
        assert other.status_code == 200
        assert (await browser.get("/inbox/")).status_code == 200
        write_tokens(file, read_tokens(file)[1:])
        async with asyncio.timeout(HANG):
            while True:
                if (await browser.get("/inbox/")).status_code == 401:
                    break
                await asyncio.sleep(0.1)
        assert (await front.http.get("/inbox/", headers=bearer(one))).status_code == 401
        await browser.aclose()


async def test_open_pages_do_not_hold_up_its_end(dev_server: WorkflowEnvironment) -> None:
    async with (
        gateway(dev_server.client, [sign_in, pages]) as front,
        front.http.stream("GET", "/inbox/events") as events,
    ):
        assert events.status_code == 200
        front.gateway.stopping.set()
        assert "retry: 2000" in [line async for line in events.aiter_lines()]
