"""Files on the pages: pictures are shown, other files are saved, and nothing of them runs (R20.3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Image, Media, Perdure, tool
from perdure.pages.adapter import pages, sign_in
from tests.gateway.support import bearer, gateway, some_name, write_agents, write_tokens
from tests.support import harness, storage_fixture
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
        saved = await get(f"/files/{page.digest[7:]}?name=x.png")
        refused = [await get(f"/files/{picture.digest[7:]}", none), await get(f"/files/{'0' * 64}")]
        refused += [await get(f"/files/{picture.digest[7:]}", other)]
        refused += [await get(f"/files/{name}") for name in ("..%2f..%2fetc%2fpasswd", "x")]
    assert shown.text.count(f'<img src="/files/{picture.digest[7:]}?name=a%20_cat_.png"') == 2
    assert f'href="/files/{page.digest[7:]}?name=x.png" download' in shown.text
    assert f'<img src="/files/{picture.digest[7:]}' in talk.text
    assert "b.pdf</a>" in talk.text
    assert (seen.content, seen.headers["content-type"]) == (PNG, "image/png")
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
