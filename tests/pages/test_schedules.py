"""The page of schedules, in headless Chromium and without JavaScript (R19.6)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from temporalio.testing import WorkflowEnvironment

from tests.gateway.support import some_name
from tests.pages.test_inbox import server
from tests.pages.test_pages import sign, site, violations
from tests.support import CHROMIUM
from tests.timeouts import HANG

__all__ = ["server"]
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
    pytest.mark.xdist_group("browser"),
]


async def test_r19_6_a_schedule_is_paused_resumed_and_started_on_its_page(
    server: WorkflowEnvironment, browser: Browser, tmp_path: Path
) -> None:
    async with site(server, browser, tmp_path) as seen:
        perdure, name = seen.at.gateway.perdure, some_name()
        schedule = perdure.schedule(name, tenant="shop")
        await schedule.create("desk", cron="0 4 1 1 *", timezone="Europe/Berlin", note="<b>each year</b>")
        try:
            await _until_listed(perdure, name)
            context = await browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 740})
            page = await context.new_page()
            await sign(page, seen.at, seen.tokens[0], "/schedules")
            own = page.get_by_role("region", name=name)
            await expect(own).to_contain_text("0 4 1 1 * Europe/Berlin")
            await expect(own).to_contain_text("-01-01 04:00:00 CET")
            await expect(own).to_contain_text("active: <b>each year</b>")
            await page.get_by_role("button", name=f"Pause {name}").click()
            await expect(page.get_by_role("status")).to_have_text(f"{name} is paused")
            await expect(own).to_contain_text("paused: <b>each year</b>")
            await page.get_by_role("button", name=f"Resume {name}").click()
            await expect(own).to_contain_text("active")
            await page.get_by_role("button", name=f"Start {name} now").click()
            await expect(page.get_by_role("status")).to_contain_text("starts a run now")
            async with asyncio.timeout(HANG):
                while not (runs := (await schedule.show()).runs):
                    await page.reload()
            await page.reload()
            await own.get_by_role("link").first.click()
            await expect(page.locator("main")).to_contain_text(f"{name}, for 20")
            assert page.url.endswith(runs[0].run_id.replace(":", "%3A").replace("@", "%40"))
            await context.close()
            small = await (await browser.new_context(viewport={"width": 360, "height": 740})).new_page()
            await sign(small, seen.at, seen.tokens[0], "/schedules")
            assert await small.evaluate("document.documentElement.scrollWidth") <= 360
            assert await violations(small) == []
            await small.context.close()
            # Another tenant sees none; who may only read changes none; a form of another site does nothing.
            other = await (await browser.new_context()).new_page()
            await sign(other, seen.at, seen.tokens[1], "/schedules")
            await expect(other.locator("main")).to_contain_text("There are no schedules yet")
            await other.context.close()
            reader = await (await browser.new_context()).new_page()
            await sign(reader, seen.at, seen.tokens[2], "/schedules")
            await expect(reader.get_by_role("region", name=name)).to_be_visible()
            await expect(reader.get_by_role("button", name=f"Pause {name}")).to_have_count(0)
            await reader.context.close()
            form = {"schedule": name, "do": "pause", "csrf": "made-up"}
            bearer = {"Authorization": f"Bearer {seen.tokens[0]}"}
            foreign = await seen.at.http.post("/schedules", data=form, headers=bearer)
            assert foreign.status_code in (401, 403)
            assert not (await schedule.show()).paused
        finally:
            await schedule.delete()


async def _until_listed(perdure: Any, name: str) -> None:
    """The index is a moment late."""
    async with asyncio.timeout(HANG):
        while name not in [each.name async for each in perdure.list_schedules(tenant="shop")]:
            pass
