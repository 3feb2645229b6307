"""The page of a what-if: all that it shows is text, and it loads nothing."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

from perdure import CallNote, RunReport, WhatIfReport
from perdure.pages.what_if import what_if_page
from perdure.runs.diagrams import DRAWN, Drawing, DrawnNode

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = "</code></style><script>document.title = 'taken'</script>"


async def test_what_calls_and_models_wrote_is_text_on_the_page(browser: Browser) -> None:
    drawn = Drawing([DrawnNode("1.0", HOSTILE, "unknown"), DrawnNode("1.1", "mail", "done")], [("1.0", "1.1", HOSTILE)])
    large = Drawing([DrawnNode(f"1.{n}", "look", "done") for n in range(DRAWN + 1)], [])
    note = CallNote(call="1.0", tool=HOSTILE, reason=HOSTILE)
    runs = [
        RunReport(
            run_id=HOSTILE, approvals_added=[note], differences=[f"+ 1.1 {HOSTILE}"], drawings=[Drawing([], []), drawn]
        ),
        RunReport(run_id="large", differences=["+ output 1"], drawings=[large, large]),
        RunReport(run_id="same"),
        RunReport(run_id="gone", problem=HOSTILE),
    ]
    page = await browser.new_page()
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    await page.set_content(what_if_page(WhatIfReport(runs=runs), {"--policy": HOSTILE}))
    assert await page.title() == "What-if · Perdure"
    assert await page.locator("script").count() == 0
    assert await page.locator("figure svg").count() == 1
    assert await page.locator('svg rect[stroke-width="4"]').count() == 2
    assert await page.get_by_text(HOSTILE).count() > 4
    assert await page.get_by_role("heading", level=2).all_inner_texts() == [HOSTILE, "large", "Not played"]
    assert loaded == []
