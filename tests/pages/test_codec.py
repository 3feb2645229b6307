"""Temporal's Web UI shows what is encrypted to a browser that has signed in at the codec server, and to no other."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, expect

from perdure.hosting.connection import data_converter
from perdure.hosting.server import embedded_server, free_port
from perdure.pages._codec import CodecServer
from tests.hosting.test_codec_server import TOKEN, greet
from tests.hosting.test_encryption import connect
from tests.hosting.test_encryption import encrypted as encrypted
from tests.support import CHROMIUM, DONE, agent, harness, serving

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
    pytest.mark.xdist_group("browser"),
    pytest.mark.soak,  # Temporal's own page takes nine CPU seconds here
    pytest.mark.usefixtures("encrypted"),
]
SETTINGS = """codec => {
    localStorage.setItem("endpoint", JSON.stringify(codec));
    localStorage.setItem("includeCredentials", "true");
    localStorage.setItem("overrideRemoteCodecConfiguration", "true");
}"""


async def asks(browser: Browser, ui: str, codec: str, run_id: str, token: str | None) -> tuple[Page, int]:
    """The run's page in a browser of its own that names the codec server, and the status of what it asks there."""
    page = await (await browser.new_context()).new_page()
    if token is not None:
        await page.goto(codec)
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("body")).to_contain_text("Signed in")
    await page.goto(f"{ui}/robots.txt")  # any page of that origin, to write its settings
    await page.evaluate(SETTINGS, codec)
    async with page.expect_response(lambda answer: "/decode" in answer.url) as answer:
        await page.goto(f"{ui}/namespaces/default/workflows/{run_id}")
    return page, (await answer.value).status


async def test_the_web_ui_shows_it_to_who_has_signed_in(browser: Browser) -> None:
    ui = f"http://localhost:{(port := free_port())}"
    async with embedded_server(ui_port=port) as server:
        async with harness(await connect(server), [greet], [{"calls": []}, DONE]) as it:
            handle = await it.start(agent("greet"))
            await handle.result()
        async with serving(CodecServer(data_converter(), TOKEN, ui).app) as address:
            codec = address.replace("127.0.0.1", "localhost")
            stranger, refused = await asks(browser, ui, codec, handle.id, None)
            page, status = await asks(browser, ui, codec, handle.id, TOKEN)
            await expect(page.locator("body")).to_contain_text('"tool": "greet"')
            assert (refused, status) == (401, 200)
            await expect(stranger.locator("body")).not_to_contain_text('"tool": "greet"')
