"""What connections may do: say nothing, read nothing, come in numbers (R17.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from perdure.gateway import caller_of, streams
from perdure.gateway import http_server as module
from perdure.gateway.adapter import Adapter, AdapterMaker, Gateway
from perdure.gateway.app import create_app
from perdure.gateway.http_server import serve_app
from perdure.gateway.streams import EventStream, encode_event
from perdure.hosting.settings import load
from tests.gateway.support import bearer, gateway, write_tokens
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Flood:
    """A door whose stream never ends, and which counts what it was asked for."""

    def __init__(self) -> None:
        self.made = 0
        self.ended = asyncio.Event()

    def __call__(self, gateway: Gateway) -> Adapter:
        async def frames() -> AsyncGenerator[str, None]:
            try:
                while True:
                    self.made += 1
                    yield encode_event("x" * 10_000)
            finally:
                self.ended.set()

        async def stream(request: Request) -> Response:
            return EventStream(gateway, caller_of(request), frames())

        async def hello(_: Request) -> Response:
            return PlainTextResponse("hello")

        return Adapter("flood", [Route("/flood", stream), Route("/hello", hello)])


async def opened(address: str, limit: int = 65_536) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port), limit=limit)


async def test_who_reads_nothing_is_dropped_and_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "READS_WITHIN", 0.5)
    flood = Flood()
    async with gateway(None, [flood]) as it:
        _, writer = await opened(it.address, limit=1)  # takes in as good as nothing by itself
        writer.write(b"GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.wait_for(flood.ended.wait(), HANG)
        # What was made for it is what lies in buffers: some megabytes of the system's, and nothing that grows here.
        assert flood.made < 3_000
        assert not it.gateway.streams.open
        assert (await it.http.get("/hello")).text == "hello"
        writer.close()


async def test_who_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    async with gateway(None, [Flood()]) as it:
        silent, slow = await opened(it.address), await opened(it.address)
        slow[1].write(b"GET /hello HTTP/1.1\r\nHost: loc")
        for reader, writer in (silent, slow):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), HANG)
            writer.close()
        assert (await it.http.get("/hello")).text == "hello"


async def test_connections_are_counted() -> None:
    app = create_app(None, load(), [Flood()])  # type: ignore[arg-type]  # no route needs it
    async with serve_app(app, "gateway", "127.0.0.1", 0, connections=3) as address:
        held: list[Any] = [await opened(address) for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in await held[0][0].readline()
        reader, writer = await opened(address)
        writer.write(b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"503" in await asyncio.wait_for(reader.readline(), HANG)
        for each in (*held, (reader, writer)):
            each[1].close()


def quiet(gateway: Gateway) -> Adapter:
    """A door whose stream says one thing and then nothing."""

    async def frames() -> AsyncGenerator[str, None]:
        yield encode_event("here")
        await asyncio.Event().wait()

    async def stream(request: Request) -> Response:
        return EventStream(gateway, caller_of(request), frames())

    return Adapter("quiet", [Route("/quiet", stream)])


async def ask_for(address: str, path: str, token: str) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream and read its status alone."""
    reader, writer = await opened(address, limit=4096)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    status = await asyncio.wait_for(reader.readline(), HANG)
    return status.split()[1], reader, writer


async def test_hundreds_of_streams_of_one_token_are_refused_and_take_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, eve = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]), ("other", "eve", ["*"]))
    monkeypatch.setattr(streams, "READS_WITHIN", 0.5)
    doors: list[AdapterMaker] = [quiet, Flood()]
    async with gateway(
        None, doors, gateway_tokens=tmp_path / "tokens.json", gateway_streams=4, gateway_rate=100_000
    ) as it:
        asked = await asyncio.gather(*(ask_for(it.address, "/quiet", ann) for _ in range(200)))
        assert [status for status, _, _ in asked].count(b"200") == 4
        assert [status for status, _, _ in asked].count(b"429") == 196
        refused = await it.http.get("/quiet", headers=bearer(ann))
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:perdure:problem:too-many-streams")
        assert refused.json()["detail"] == "4 event streams of this token are open: close one first"
        assert refused.headers["retry-after"]
        status, reader, writer = await ask_for(it.address, "/quiet", eve)
        assert status == b"200"
        assert b"data: here" in await asyncio.wait_for(reader.readuntil(b"data: here\n"), HANG)
        for _, _, each in (*asked, (status, reader, writer)):
            each.close()
        async with asyncio.timeout(HANG):
            while it.gateway.streams.open:
                assert (await it.http.get("/hello", headers=bearer(eve))).text == "hello"  # meanwhile others are served
        # And those who read nothing of what does come: each is dropped, and gives its place back.
        slow = await asyncio.gather(*(ask_for(it.address, "/flood", ann) for _ in range(8)))
        assert [status for status, _, _ in slow].count(b"200") == 4
        async with asyncio.timeout(HANG):
            while it.gateway.streams.open:
                assert (await it.http.get("/hello", headers=bearer(eve))).text == "hello"  # meanwhile others are served
        assert (await ask_for(it.address, "/quiet", ann))[0] == b"200"
        for _, _, each in slow:
            each.close()
