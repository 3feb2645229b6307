"""A page with the AI SDK's own `useChat`, in Chromium, and the application of `examples/chat` (R21.5): `make test-clients`."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from temporalio.testing import WorkflowEnvironment

from examples.chat.agent import order
from examples.chat.app import PAGE, app
from perdure import Perdure
from perdure.gateway.http_server import serve_app
from perdure.testing.scripted_model import Turn
from tests.clients.test_clients import HERE, installed
from tests.gateway.support import some_name
from tests.support import CHROMIUM, harness

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.clients,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
    pytest.mark.xdist_group("browser"),
]
ORDERS: list[Any] = [
    {"calls": [{"_tool": "read_cart", "_outputPath": "†state.cart"}]},
    {
        "calls": [
            {
                "_tool": "order",
                "fruit": "†state.cart.fruit",
                "pieces": "†state.cart.pieces",
                "_outputPath": "†state.done",
            }
        ]
    },
]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's page, bundled with the packages of `make clients`."""
    installed("node")
    file = tmp_path_factory.mktemp("page") / "page.js"
    words = ["node_modules/.bin/esbuild", str(PAGE / "page.jsx"), "--bundle", "--jsx=automatic", f"--outfile={file}"]
    environment = {**os.environ, "NODE_PATH": str(HERE / "node_modules")}
    subprocess.run(words, cwd=HERE, env=environment, check=True, capture_output=True)
    return file


@asynccontextmanager
async def opened(
    server: WorkflowEnvironment, browser: Browser, file: Path, script: Any, who: str = "ann"
) -> AsyncIterator[Page]:
    """The page of the example, signed in; its worker plays the script."""
    async with (
        harness(server.client, [order], script) as it,
        serve_app(app, None, "127.0.0.1", 0, stopping=lambda: None, grace=5.0) as address,
    ):
        app.state.perdure = Perdure(server.client, task_queue=it.task_queue)  # in place of its lifespan's
        context = await browser.new_context()
        await context.add_cookies([{"name": "who", "value": f"cookie-of-{who}", "url": address}])
        page = await context.new_page()
        await page.route("**/page.js", lambda route: route.fulfill(path=file))
        await page.goto(f"{address}/#{some_name('chat')}")
        try:
            yield page
        finally:
            await context.close()


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def test_use_chat_with_a_tool_of_the_page_an_approval_and_a_page_that_is_loaded_anew(
    dev_server: WorkflowEnvironment, browser: Browser, page_file: Path
) -> None:
    script = [*ORDERS, {"output": "{†state.done}"}, {"calls": [], "output": "You are welcome."}]
    async with opened(dev_server, browser, page_file, script) as page:
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.method) if "/api/chat" in request.url else None)
        await say(page, "Order what is in my cart.")
        await expect(page.get_by_text("order 3 apple?")).to_be_visible()
        await expect(page.get_by_text('read_cart: {"fruit":"apple","pieces":3}')).to_be_visible()
        await expect(page.get_by_role("status")).to_have_text("ready")
        # The page is loaded anew: the answer so far comes again, and the approval still waits.
        await page.reload()
        await expect(page.get_by_text('read_cart: {"fruit":"apple","pieces":3}')).to_be_visible()
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("ordered 3 apple for C-17", exact=True)).to_be_visible()
        await expect(page.get_by_text('order: "ordered 3 apple for C-17"')).to_be_visible()
        await expect(page.get_by_role("status")).to_have_text("ready")
        assert await page.get_by_label("assistant").count() == 1
        await say(page, "Thanks.")
        await expect(page.get_by_text("You are welcome.")).to_be_visible()
        assert await page.get_by_label("assistant").count() == 2
        assert sent.count("POST") == 4  # two messages, the cart, the approval: nothing is sent again by itself
        await expect(page.get_by_role("alert")).to_have_count(0)


async def test_use_chat_with_a_rejection_and_a_failure(
    dev_server: WorkflowEnvironment, browser: Browser, page_file: Path
) -> None:
    script = [*ORDERS, {"calls": [], "output": "Nothing was ordered."}, Turn(status=400)]
    async with opened(dev_server, browser, page_file, script, "bo") as page:
        await say(page, "Order what is in my cart.")
        await page.get_by_role("button", name="Reject").click()
        await expect(page.get_by_text("Nothing was ordered.")).to_be_visible()
        await expect(page.get_by_text("order: output-denied")).to_be_visible()
        await say(page, "Again.")
        await expect(page.get_by_role("alert")).to_be_visible()
        await expect(page.get_by_role("status")).to_have_text("error")


async def test_use_chat_answers_a_question(dev_server: WorkflowEnvironment, browser: Browser, page_file: Path) -> None:
    ask = {"_tool": "ask_person", "question": "Which size?", "_outputPath": "†state.size"}
    async with opened(dev_server, browser, page_file, [{"calls": [ask], "output": "Size {†state.size}."}]) as page:
        await say(page, "A melon.")
        await page.get_by_label("Which size?").fill("large")
        await page.get_by_role("button", name="Answer").click()
        # What is known of the text comes before the question, the rest after its answer.
        await expect(page.get_by_text("Size", exact=True)).to_be_visible()
        await expect(page.get_by_text("large.", exact=True)).to_be_visible()


async def test_two_customers_have_chats_of_their_own(
    dev_server: WorkflowEnvironment, browser: Browser, page_file: Path
) -> None:
    async with opened(dev_server, browser, page_file, [ORDERS[0], ORDERS[1]]) as page:
        await say(page, "Order what is in my cart.")
        await expect(page.get_by_role("button", name="Approve")).to_be_visible()
        await page.context.add_cookies([{"name": "who", "value": "cookie-of-bo", "url": page.url}])
        async with page.expect_response("**/stream") as resumed:
            await page.reload()
        assert (await resumed.value).status == 204
        await asyncio.gather(*(expect(page.get_by_label(each)).to_have_count(0) for each in ("user", "assistant")))
