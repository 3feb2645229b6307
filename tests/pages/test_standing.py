"""The page of standing approvals, in headless Chromium and without JavaScript (R23.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from temporalio.testing import WorkflowEnvironment

from perdure import Agent
from perdure.runs.ledger import ledger_id
from tests.pages.test_inbox import server
from tests.pages.test_pages import sign, site, violations
from tests.support import CHROMIUM

__all__ = ["server"]
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
    pytest.mark.xdist_group("browser"),
]
MONTHLY: dict[str, Any] = {
    "name": "monthly",
    "metadata": {"procedure": {"version": 1}},
    "config": {"start": "plan"},
    "context": [{"type": "plan", "plan": [], "output": {}}],
}


async def test_r23_3_a_standing_approval_is_read_and_revoked_on_its_page(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    async with site(server, browser, tmp_path) as seen:
        perdure = seen.at.gateway.perdure
        bounds = {"properties": {"euros": {"maximum": 100}}}
        for name in ("one", "two"):
            await perdure.grant_standing_approval(
                Agent.of(MONTHLY),
                uses=12,
                until="2999-12-31",
                by="ann",
                bounds=bounds,
                name=name,
                reason="<b>rent</b>",
                tenant="shop",
            )
        try:
            context = await browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 740})
            reader = await context.new_page()
            await sign(reader, seen.at, seen.tokens[2], "/inbox/")
            await reader.get_by_role("link", name="Standing approvals").click()
            own = reader.get_by_role("region", name="one")
            await expect(own).to_contain_text("0 of 12, until 2999-12-31 23:59 UTC")
            await expect(own).to_contain_text('{"properties": {"euros": {"maximum": 100}}}')
            await expect(own).to_contain_text(": <b>rent</b>")
            await expect(reader.get_by_role("button", name="Revoke one")).to_have_count(0)  # takes the right `grant`
            await context.close()
            small = await (await browser.new_context(viewport={"width": 360, "height": 740})).new_page()
            await sign(small, seen.at, seen.tokens[3], "/standing")
            assert await small.evaluate("document.documentElement.scrollWidth") <= 360
            assert await violations(small) == []
            await small.get_by_role("button", name="Revoke one").click()
            await expect(small.get_by_role("status")).to_have_text(
                "one is revoked. Calls that start in the next 5 seconds may still use it"
            )
            await expect(small.get_by_role("region", name="one")).to_contain_text("revoked by gil")
            await expect(small.get_by_role("button", name="Revoke one")).to_have_count(0)
            await expect(small.get_by_role("button", name="Revoke two")).to_have_count(1)
            await small.context.close()
            found = {each.name: each.status for each in await perdure.standing_approvals(tenant="shop")}
            assert found == {"one": "revoked", "two": "active"}
        finally:
            await server.client.get_workflow_handle(ledger_id("shop")).terminate()
