"""Files on the pages: pictures are shown, other files are saved, and nothing of them runs (R20.3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Image, Media, Perdure, tool
from perdure.pages.adapter import pages, sign_in
from perdure.values.media import media_lines
from tests.gateway.support import bearer, gateway, some_name, write_agents, write_tokens
from tests.pages.test_forms import csrf_of
from tests.pages.test_pages import sign, violations
from tests.support import CHROMIUM, harness, storage_fixture
from tests.timeouts import HANG
from tests.workflows.test_media import PDF, PNG, connect

pytestmark = pytest.mark.asyncio(loop_scope="session")
storage = storage_fixture()


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_page_shows_pictures_and_offers_files(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    client = await connect(dev_server)
    who = (("shop", "ann", ["read", "send"]), ("shop", "eve", ["send"]), ("rival", "max", ["*"]))
    ann, none, other = write_tokens(tmp_path / "tokens.json", *who)
    given: dict[str, Any] = {"agents": write_agents(tmp_path / "agents"), "gateway_tokens": tmp_path / "tokens.json"}
    picture, page = Image(data=PNG, name='a "cat".png'), Media(data=b"<script>alert(1)</script>", name="x.png")
    drawer = Agent("drawer", instructions="Draw.", input=dict[str, Any])
    async with (
        harness(client, [], [{"output": {"again": "\u2020input.file"}}, {"output": "Seen."}]) as it,
        gateway(client, [sign_in, pages], task_queue=it.task_queue, **given) as at,
    ):
        perdure = Perdure(client, task_queue=it.task_queue)
        run = await perdure.start(drawer, {"file": picture, "pages": [page]}, tenant="shop")
        await run.wait(timeout=HANG)
        session = perdure.session(some_name(), tenant="shop", agent=Agent("chat", instructions="Chat."))
        receipt = await session.send("Look.", sender="ann", files=[picture, Media(data=PDF, name="b.pdf")])
        await session.wait(receipt)

        async def get(path: str, token: str = ann) -> Any:
            return await at.http.get(path, headers=bearer(token))

        shown, talk = await get(f"/runs/{run.id}"), await get(f"/conversations/{session.key}")
        seen = await get(f"/files/{picture.digest[7:]}?name=a%0d%0ab.png")
        same = await get(f"/files/{picture.digest}")
        saved = await get(f"/files/{page.digest[7:]}?name=x.png")
        refused = [await get(f"/files/{picture.digest[7:]}", none), await get(f"/files/{'0' * 64}")]
        refused += [await get(f"/files/{picture.digest[7:]}", other)]
        refused += [await get(f"/files/{name}") for name in ("..%2f..%2fetc%2fpasswd", "x")]
    assert shown.text.count(f'<img src="/files/{picture.digest[7:]}?name=a%20_cat_.png"') == 2
    assert f'href="/files/{page.digest[7:]}?name=x.png" download' in shown.text
    assert f'<img src="/files/{picture.digest[7:]}' in talk.text
    assert "b.pdf</a>" in talk.text
    assert (seen.content, seen.headers["content-type"]) == (PNG, "image/png")
    assert (same.content, same.headers["content-type"]) == (PNG, "image/png")
    assert seen.headers["content-disposition"].startswith("inline; filename*=UTF-8''a__b.png")
    assert (saved.headers["content-type"], saved.headers["x-content-type-options"]) == (
        "application/octet-stream",
        "nosniff",
    )
    assert saved.headers["content-disposition"].startswith("attachment; ")
    assert "sandbox" in saved.headers["content-security-policy"]
    assert [each.status_code for each in refused] == [403, 404, 404, 404, 404]


@tool(dangerous=True)
def publish(picture: Image) -> str:
    """Publish a picture."""
    return picture.name


@pytest.mark.usefixtures("storage")
async def test_r20_3_whoever_approves_a_call_sees_its_pictures(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    client = await connect(dev_server)
    tenant = some_name("shop")
    (ann,) = write_tokens(tmp_path / "tokens.json", (tenant, "ann", ["*"]))
    given: dict[str, Any] = {"agents": write_agents(tmp_path / "agents"), "gateway_tokens": tmp_path / "tokens.json"}
    publisher = Agent("publisher", instructions="Publish.", tools=[publish], input=dict[str, Any])
    picture, other = Image(data=PNG, name="front.png"), Image(data=PNG + b"2", name="back.png")
    calls = [{"_tool": "publish", "picture": "†input.file"}]
    async with (
        harness(client, [publish], [{"calls": calls, "output": None}, {"output": "Seen."}]) as it,
        gateway(client, [sign_in, pages], task_queue=it.task_queue, **given) as at,
    ):
        perdure = Perdure(client, task_queue=it.task_queue)
        run = await perdure.start(publisher, {"file": picture, "more": other}, tenant=tenant)
        await it.until_waiting(run.id, "1.0")
        async with asyncio.timeout(HANG):  # the server's index is a moment late
            while not (await perdure.approvals(tenant=tenant)).waiting:
                pass
        page = await at.http.get("/inbox/", headers=bearer(ann))
        await run.approve("1.0")
        await run.wait(timeout=HANG)
        async with asyncio.timeout(HANG):  # other tests look at what waits in the whole namespace
            while (await perdure.approvals(tenant=tenant)).waiting:
                pass
    assert f'<img src="/files/{picture.digest[7:]}?name=front.png"' in page.text
    assert other.digest[7:] not in page.text


CHAT = {"name": "chat", "context": [{"type": "system", "text": "Chat."}]}


def looks(request: Any) -> Any:
    """Answer with the names of the files of the last message that has some."""
    said = [str(each["content"]) for each in request.messages if each["role"] == "user"]
    found = list(dict.fromkeys(file.name for file in media_lines(said[-1]))) if said else []
    return {"calls": [], "output": "I see " + (", ".join(found) or "nothing")}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
@pytest.mark.xdist_group("browser")
@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("script", [True, False])
async def test_r20_3_a_person_attaches_files_on_the_page_of_a_conversation(
    dev_server: WorkflowEnvironment, tmp_path: Path, browser: Browser, *, script: bool
) -> None:
    client = await connect(dev_server)
    (ann,) = write_tokens(tmp_path / "tokens.json", (some_name("shop"), "ann", ["*"]))
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "front.png").write_bytes(PNG)
    (folder / "bill <b>.pdf").write_bytes(PDF)
    (folder / "large.bin").write_bytes(b"x" * 600_000)
    given: dict[str, Any] = {"agents": write_agents(tmp_path / "agents", CHAT), "gateway_body": 500_000}
    given["gateway_tokens"] = tmp_path / "tokens.json"
    async with (
        harness(client, [], looks) as it,
        gateway(client, [sign_in, pages], task_queue=it.task_queue, **given) as at,
    ):
        context = await browser.new_context(java_script_enabled=script)
        page = await context.new_page()
        await sign(page, at, ann)
        await page.get_by_label("Message").fill("What is this?")
        await page.get_by_label("Files").set_input_files(folder / "front.png")
        await page.get_by_role("button", name="Begin").click()
        await page.wait_for_url("**/conversations/chat-*")
        reply = page.locator(".entry.reply .text")

        async def replies(*texts: str) -> None:
            """Wait for the replies; a page without scripts shows them once it is loaded anew."""
            async with asyncio.timeout(HANG):
                while not script and [text.strip() for text in await reply.all_text_contents()] != list(texts):
                    await page.reload()
            await expect(reply).to_have_text(list(texts))

        await replies("I see front.png")
        assert await page.locator(".entry.message img").get_attribute("alt") is not None
        assert await violations(page) == [] if script else True
        field = page.get_by_label("Files")
        await field.set_input_files([folder / "bill <b>.pdf", folder / "front.png"])
        await page.get_by_label("Message").focus()
        await page.keyboard.press("Tab")  # by keyboard alone: the field of files is next, and the button after it
        assert await field.evaluate("each => each === document.activeElement")
        await page.get_by_role("button", name="Send").focus()
        await page.keyboard.press("Enter")  # a message of files alone
        await expect(page.get_by_text("Sent: ").first).to_be_visible(timeout=HANG * 1000)
        await replies("I see front.png", "I see bill b.pdf, front.png")
        assert await field.evaluate("each => each.files.length") == 0  # what was sent is not sent again
        await field.set_input_files(folder / "large.bin")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_text("500,000 bytes")).to_be_visible(timeout=HANG * 1000)
        await context.close()


async def test_without_storage_a_page_offers_no_files(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    (ann,) = write_tokens(tmp_path / "tokens.json", ("shop", "ann", ["*"]))
    given: dict[str, Any] = {"agents": write_agents(tmp_path / "agents", CHAT)}
    given["gateway_tokens"] = tmp_path / "tokens.json"
    async with gateway(dev_server.client, [sign_in, pages], **given) as at:
        page = await at.http.get("/conversations", headers=bearer(ann))
    assert 'name="text"' in page.text
    assert 'type="file"' not in page.text


async def test_a_form_of_another_site_stores_no_file(
    dev_server: WorkflowEnvironment, tmp_path: Path, storage: Path
) -> None:
    client = await connect(dev_server)
    (ann,) = write_tokens(tmp_path / "tokens.json", (some_name("shop"), "ann", ["*"]))
    given: dict[str, Any] = {"agents": write_agents(tmp_path / "agents", CHAT)}
    given["gateway_tokens"] = tmp_path / "tokens.json"
    key, files = some_name("talk"), [("files", ("front.png", PNG))]
    async with (
        harness(client, [], looks) as it,
        gateway(client, [sign_in, pages], task_queue=it.task_queue, **given) as at,
    ):
        csrf = csrf_of((await at.http.get("/conversations", headers=bearer(ann))).text)
        for token, status in (("0" * 64, 403), (csrf, 303)):
            form = {"csrf": token, "agent": "chat", "key": key, "text": "look"}
            answer = await at.http.post("/conversations", data=form, files=files, headers=bearer(ann))
            assert answer.status_code == status, answer.text
            assert (storage / "files").exists() is (status == 303)
