"""Who gets into the inbox, and what its forms do with what nobody types (section 7)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.client.perdure import Perdure
from perdure.errors import SettingsError
from perdure.gateway.guards import FREE_GUESSES, LONGEST_WAIT, SESSION_SECONDS, Guards
from perdure.gateway.http_server import serve_app
from perdure.pages._inbox import STREAMS, inbox_app
from tests.cli.test_commands import one_line
from tests.gateway.test_bounds import opened
from tests.support import DONE, agent, harness, perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool(dangerous=True)
def post(body: str, to: str, note: str = "") -> dict[str, Any]:
    return {"to": to, "body": body, "note": note}


@tool(safe=True)
def read() -> str:
    return "{†state.secret} x {† y"


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def pages(
    server: WorkflowEnvironment, token: str | None = None, clock: Clock | None = None
) -> AsyncIterator[Any]:
    """A browser on the inbox, without a browser."""
    guards = Guards(token) if clock is None else Guards(token, clock)
    transport = httpx2.ASGITransport(app=inbox_app(Perdure(server.client), guards))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=HANG) as http:
        yield http


def fields(page: str) -> dict[str, str]:
    """The form as it stands: what a browser would send."""
    hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page)
    shown = re.findall(r'<input id="[^"]+" name="([^"]+)" value="([^"]*)"', page)
    return dict(hidden + shown)


async def test_the_form_as_it_stands_sends_nothing_that_a_page_said_as_code(dev_server: WorkflowEnvironment) -> None:
    """The attack: a page names a secret of the run; a person changes another field, under a name beyond Latin-1."""
    calls = [
        {"_tool": "read", "_outputPath": "†state.page"},
        {"_tool": "post", "body": "†state.page", "to": "all", "note": "n", "_outputPath": "†state.sent"},
    ]
    document = agent("read", "post", context=[{"type": "state", "state": {"secret": "s3cret"}}])
    async with harness(dev_server.client, [read, post], [{"calls": calls}, DONE]) as it, pages(dev_server) as http:
        handle = await it.start(document)
        await it.until_waiting(handle.id, "1.1")
        page = await http.get(f"/?run={handle.id}&call=1.1")
        form = fields(page.text)
        assert form["p:body"] == "{†state.secret} x {† y"
        for lacking in ("run", "call", "action"):
            part = {key: value for key, value in {**form, "action": "approve"}.items() if key != lacking}
            answer = await http.post("/decide", data=part)
            assert (answer.status_code, f"the form lacks {lacking}" in answer.text) == (422, True)
        form |= {"p:to": "†state.secret", "p:note": "", "by": "Zoë 李 🙂", "action": "approve"}
        done = await http.post("/decide", data=form)
        result = await asyncio.wait_for(handle.result(), HANG)
        again = await http.get("/")
        strange = await http.post("/decide", data={**form, "run": "x" * 2000})
    assert (done.status_code, strange.status_code) == (303, 422)
    assert result.state["sent"] == {"to": "†state.secret", "body": "{†state.secret} x {† y", "note": ""}
    assert result.calls[1].approval is not None
    assert (result.calls[1].approval.by, again.status_code) == ("Zoë 李 🙂", 200)


async def test_guesses_are_slowed_and_a_cookie_is_not_the_token(dev_server: WorkflowEnvironment) -> None:
    clock = Clock()
    async with pages(dev_server, "s3cret-token", clock) as http:
        answers = [(await http.post("/sign-in", data={"token": f"guess {n}"})).status_code for n in range(300)]
        waits = await http.post("/sign-in", data={"token": "s3cret-token"})
        by_header = await http.get("/", headers={"Authorization": "Bearer s3cret-token"})
        clock.now += LONGEST_WAIT
        signed_in = await http.post("/sign-in", data={"token": "s3cret-token"})
        cookie = http.cookies["perdure_signed_in"]
        inside = await http.get("/")
        later = cookie.replace(cookie.split(".")[0], "9999999999")
        http.cookies.clear()
        forged = await http.get("/", headers={"Cookie": f"perdure_signed_in={later}"})
        clock.now += SESSION_SECONDS
        expired = await http.get("/", headers={"Cookie": f"perdure_signed_in={cookie}"})
    assert answers.count(401) == FREE_GUESSES
    assert answers.count(429) == 300 - FREE_GUESSES
    assert (waits.status_code, by_header.status_code, signed_in.status_code, inside.status_code) == (429, 429, 303, 200)
    assert "s3cret-token" not in cookie
    assert "HttpOnly" in signed_in.headers["set-cookie"]
    assert (forged.status_code, expired.status_code) == (401, 401)
    assert "Try again in" in waits.text
    assert waits.headers["retry-after"].isdecimal()


async def test_an_empty_token_is_refused_and_bodies_are_bounded(dev_server: WorkflowEnvironment) -> None:
    for empty in ("", "  "):
        with pytest.raises(SettingsError, match="the token is empty"):
            inbox_app(Perdure(dev_server.client), Guards(empty))
    refused = await perdure("inbox", "--port", "0", "--token", "")
    assert (refused.code, "the token is empty" in one_line(refused.err)) == (2, True)
    async with pages(dev_server) as http:
        large = await http.post("/decide", content=b"x", headers={"Content-Length": "90000000"})

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 1000

        unbounded = await http.post("/decide", content=endless())
        rebound = await http.get("/", headers={"Host": "evil.example"})
        no_form = await http.post("/decide", data={"csrf": "é"})
    assert (large.status_code, unbounded.status_code, rebound.status_code, no_form.status_code) == (413, 411, 400, 403)


async def test_streams_that_stand_open_are_counted(dev_server: WorkflowEnvironment) -> None:
    app = inbox_app(Perdure(dev_server.client), Guards(None))
    async with serve_app(app, None, "127.0.0.1", 0) as address:
        asked = [await opened(address) for _ in range(STREAMS + 1)]
        for _, writer in asked:
            writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        statuses = [(await asyncio.wait_for(reader.readline(), HANG)).split()[1] for reader, _ in asked]
        for _, writer in asked:
            writer.close()
    assert (statuses.count(b"200"), statuses.count(b"429")) == (STREAMS, 1)
