"""What an adversary has tried over HTTP, and what it comes to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from perdure.client.selection import Selection
from perdure.errors import RunError
from perdure.gateway import Door, Gateway, bounds
from tests.gateway.support import bearer, gateway, write_tokens
from tests.gateway.test_bounds import opened

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Slow:
    """A door that reads what it is sent, and one that keeps whoever asks waiting."""

    def __init__(self) -> None:
        self.came = asyncio.Semaphore(0)
        self.go = asyncio.Event()

    def __call__(self, _: Gateway) -> Door:
        async def read(request: Request) -> Response:
            return PlainTextResponse(f"{len(await request.body())}")

        async def wait(_: Request) -> Response:
            self.came.release()
            await self.go.wait()
            return PlainTextResponse("done")

        return Door("slow", [Route("/read", read, methods=["POST"]), Route("/wait", wait), Route("/", wait)])


async def test_an_origin_that_is_none_is_refused() -> None:
    async with gateway(None, [Slow()]) as it:
        answer = await it.http.post("/read", headers={"Origin": "http://["})
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:perdure:problem:foreign-origin")


async def test_a_body_that_comes_for_ever_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "SENT_WITHIN", 0.3)
    monkeypatch.setattr(bounds, "_LINGER", 0.1)
    async with gateway(None, [Slow()]) as it:
        reader, writer = await opened(it.address)
        writer.write(b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx")
        answered = await asyncio.wait_for(reader.read(), 10)
        assert answered.startswith(b"HTTP/1.1 408 ")
        assert b"urn:perdure:problem:too-slow" in answered
        writer.close()
        assert (await it.http.post("/read", content=b"abc")).text == "3"


async def test_one_token_does_not_hold_every_connection(tmp_path: Any) -> None:
    tokens = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]), ("other", "eve", ["*"]))
    slow = Slow()
    async with gateway(
        None, [slow], gateway_tokens=tmp_path / "tokens.json", gateway_connections=8, gateway_streams=2
    ) as it:
        ann, eve = map(bearer, tokens)
        held = [asyncio.create_task(it.http.get("/wait", headers=ann)) for _ in range(4)]
        async with asyncio.timeout(10):
            for _ in range(4):
                await slow.came.acquire()
        refused = await it.http.get("/wait", headers=ann)
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:perdure:problem:too-many-requests")
        assert refused.headers["retry-after"]
        other = asyncio.create_task(it.http.get("/wait", headers=eve))
        async with asyncio.timeout(10):
            await slow.came.acquire()
        slow.go.set()
        assert {each.status_code for each in await asyncio.gather(*held, other)} == {200}
        assert (await it.http.get("/wait", headers=ann)).status_code == 200


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00+23:00"])
async def test_a_time_beyond_the_calendar_is_none(time: str) -> None:
    with pytest.raises(RunError, match="is no time"):
        Selection(since=time).text()


@pytest.mark.parametrize("said", [{"agent": "a\0"}, {"sender": "\0"}, {"tenant": "x\0"}, {"reason": "\0"}])
async def test_what_no_index_can_hold_is_not_asked_for(said: Any) -> None:
    with pytest.raises(RunError, match="cannot be printed"):
        Selection(**said).text()
