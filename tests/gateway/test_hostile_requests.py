"""What an adversary has tried over HTTP, and what it comes to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from perdure.client.errors import no_answer
from perdure.client.perdure import Perdure
from perdure.client.selection import Selection
from perdure.errors import RunError, ServerError
from perdure.gateway import bounds
from perdure.gateway.adapter import Access, Adapter, Gateway
from perdure.gateway.agui.adapter import agui_adapter
from perdure.gateway.api.adapter import api
from perdure.gateway.app import tokens_of
from perdure.gateway.errors import problem_of
from perdure.gateway.guards import Guards
from perdure.gateway.mcp.adapter import mcp_adapter
from perdure.gateway.openai.adapter import openai_adapter
from perdure.gateway.streams import until_disconnected
from perdure.hosting.server import embedded_server
from tests.gateway.support import bearer, gateway, write_agents, write_tokens
from tests.gateway.test_bounds import opened
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Slow:
    """A door that reads what it is sent, and one that keeps whoever asks waiting."""

    def __init__(self) -> None:
        self.came = asyncio.Semaphore(0)
        self.go = asyncio.Event()

    def __call__(self, _: Gateway) -> Adapter:
        async def read(request: Request) -> Response:
            return PlainTextResponse(f"{len(await request.body())}")

        async def wait(_: Request) -> Response:
            self.came.release()
            await self.go.wait()
            return PlainTextResponse("done")

        return Adapter("slow", [Route("/read", read, methods=["POST"]), Route("/wait", wait), Route("/", wait)])


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
        answered = await asyncio.wait_for(reader.read(), HANG)
        assert answered.startswith(b"HTTP/1.1 408 ")
        assert b"urn:perdure:problem:too-slow" in answered
        writer.close()
        assert (await it.http.post("/read", content=b"abc")).text == "3"


async def test_who_goes_away_in_the_middle_of_a_body_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(None, [Slow()]) as it:
        for _ in range(3):
            _, writer = await opened(it.address)
            writer.write(b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx")
            await writer.drain()
            async with asyncio.timeout(HANG):
                while not it.gateway.under_way:
                    await it.http.post("/read")
            writer.close()
            async with asyncio.timeout(HANG):
                while it.gateway.under_way:
                    await it.http.post("/read")
        assert (await it.http.post("/read", content=b"abc")).text == "3"
    assert [each for each in caplog.records if each.levelname in ("ERROR", "CRITICAL")] == []


class Patient:
    """Routes whose handlers wait without an end, and count how they were ended."""

    def __init__(self, access: Access = "bearer") -> None:
        self.access = access
        self.began = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.ended: list[str] = []

    def __call__(self, _: Gateway) -> Adapter:
        async def work(request: Request) -> Response:
            if request.path_params["how"] == "read":
                await request.body()
            if request.path_params["how"] == "listen":  # and end in its own way
                await request.body()
                self.began.release()
                await until_disconnected(request.receive)
                self.ended.append("listened")
                return PlainTextResponse("nobody reads this")
            self.began.release()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            self.ended.append("done")
            return PlainTextResponse("done")

        return Adapter("patient", [Route("/{how}", work, methods=["GET", "POST", "DELETE"])], access=self.access)


@pytest.mark.parametrize(
    ("head", "ended"),
    [
        ("GET /wait HTTP/1.1\r\n", "cancelled"),
        ("DELETE /wait HTTP/1.1\r\nContent-Length: 0\r\n", "cancelled"),
        ("DELETE /read HTTP/1.1\r\n", "cancelled"),
        ("POST /read HTTP/1.1\r\nContent-Length: 3\r\n", "cancelled"),
        ("POST /read HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", "cancelled"),
        ("POST /listen HTTP/1.1\r\nContent-Length: 3\r\n", "listened"),
    ],
)
async def test_r10_1_the_work_of_a_request_ends_with_its_client(
    head: str, ended: str, caplog: pytest.LogCaptureFixture
) -> None:
    patient = Patient()
    async with gateway(None, [patient]) as it, asyncio.timeout(HANG):
        _, writer = await opened(it.address)
        body = "3\r\nabc\r\n0\r\n\r\n" if "chunked" in head else "abc" if "Length: 3" in head else ""
        writer.write(f"{head}Host: localhost\r\n\r\n{body}".encode())
        await patient.began.acquire()
        assert patient.ended == []
        writer.close()
        while it.gateway.under_way:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert patient.ended == [ended]
    assert [each for each in caplog.records if each.levelname in ("ERROR", "CRITICAL")] == []


async def test_what_a_webhook_begins_is_done_without_its_sender() -> None:
    patient = Patient("signed")
    async with gateway(None, [patient]) as it, asyncio.timeout(HANG):
        _, writer = await opened(it.address)
        writer.write(b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc")
        await patient.began.acquire()
        writer.transport.abort()
        await it.http.get("/nothing/there")  # the gateway has seen the connection's end by then
        patient.go.set()
        while it.gateway.under_way:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert patient.ended == ["done"]


HUGE: Any = {
    "unknown keys": ("/v1/runs", {"agent": "echo", **{f"k{n:06}": n for n in range(180_000)}}),
    "empty inputs": ("/v1/responses", {"model": "echo", "input": [{}] * 400_000}),
    "messages": (
        "/ag-ui/echo",
        {"threadId": "t", "runId": "r", "tools": [], "context": [], "state": {}, "messages": [{}] * 400_000},
    ),
    "arguments": ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"arguments": [{}] * 400_000}}),
}


async def test_bodies_of_many_parts_hold_nobody_up(tmp_path: Any) -> None:
    """A body with 400,000 parts is refused before anybody looks at them; what is wrong is told in a few lines (how long others wait is
    measured by `make bench ARGS=gateway`)."""
    [token] = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["send", "read"]))
    agents = write_agents(tmp_path / "agents", ECHO)
    doors = [api, openai_adapter, agui_adapter, mcp_adapter]
    async with gateway(None, doors, gateway_tokens=tmp_path / "tokens.json", agents=agents) as it:
        head = {**bearer(token), "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        for path, body in HUGE.values():
            answer = await it.http.post(path, content=json.dumps(body), headers=head)
            assert answer.status_code == 413, (path, answer.text[:200])
            assert len(answer.text) < 1000
        some = {"agent": "echo", **{f"k{n:06}": n for n in range(2_000)}}
        answer = await it.http.post("/v1/runs", content=json.dumps(some), headers=head)
        assert answer.status_code == 422
        assert len(answer.json()["problems"]) == 21
        assert answer.json()["problems"][-1] == "has more problems than these 20"


async def test_a_request_that_says_its_length_twice_is_refused() -> None:
    async with gateway(None, [Slow()]) as it:
        for path in ("/read", "/nowhere"):
            reader, writer = await opened(it.address)
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head.encode() + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answered = await asyncio.wait_for(reader.read(), HANG)  # to its end: the connection is closed
            assert answered.startswith(b"HTTP/1.1 400 ")
            assert answered.count(b"HTTP/1.1 ") == 1
            writer.close()


async def test_a_503_says_nothing_of_what_stands_behind_the_gateway() -> None:
    told = problem_of(ServerError("the Temporal server at 10.1.2.3:7233 answered: role perdure-prod lacks access"))
    assert told is not None
    assert (told.status, told.detail) == (503, "the gateway's Temporal server does not answer")
    words = "role perdure-prod lacks access to 10.1.2.3"
    codes = (
        (RPCStatusCode.PERMISSION_DENIED, 502),
        (RPCStatusCode.UNAVAILABLE, 503),
        (RPCStatusCode.RESOURCE_EXHAUSTED, 503),
    )
    for status, code in codes:
        told = problem_of(no_answer(RPCError(words, status, b""), "r1"))
        assert told is not None
        assert (told.status, words in told.detail) == (code, False)


async def test_a_page_that_was_made_up_is_refused_at_once(dev_server: WorkflowEnvironment) -> None:
    perdure = Perdure(dev_server.client)
    async with asyncio.timeout(HANG):  # the SDK would ask again for ten seconds, each of 28 times
        for page in ("AAAA", "bm90IGEgdG9rZW4gYXQgYWxs") * 7:
            with pytest.raises(RunError, match="is not a page"):
                await perdure.page_of_runs(Selection(), size=10, page=page)
            with pytest.raises(RunError, match="is not a page"):
                await perdure.approvals(page=page)


async def test_a_page_that_the_server_has_no_time_for_is_read_later() -> None:
    settings = {"frontend.namespaceRPS.visibility": 1}
    async with embedded_server(ui=False, settings=settings) as server, gateway(server.client, [api]) as it:
        answers = await asyncio.gather(*(it.http.get("/v1/runs", params={"page": "AAAA"}) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {422, 503}, [answer.text for answer in answers]
    assert {answer.headers.get("retry-after") for answer in answers if answer.status_code == 503} == {"2"}


async def test_wrong_tokens_keep_no_right_one_out(tmp_path: Any) -> None:
    """They count for the address, which is a proxy's word only where a setting names the proxy, and for the token's id."""
    tokens = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]))
    wrong = tokens[0][:-1] + ("A" if tokens[0][-1] != "A" else "B")
    made = {"gateway_tokens": tmp_path / "tokens.json", "agents": write_agents(tmp_path / "agents", ECHO)}
    async with gateway(None, [api], **made) as it:
        # Its clock stands: a machine that is slow lets the time pass after which the next guess is looked at.
        it.gateway.guards = Guards(tokens_of(it.gateway.settings), clock=lambda: 0.0)
        codes = []
        for _ in range(12):
            codes += [
                (await it.http.get("/v1/agents", headers=bearer(each))).status_code for each in (wrong, tokens[0])
            ]
        assert codes[1::2] == [200] * 12
        assert codes[::2] == [401] * 5 + [429] * 7
        for names in ("X-Forwarded-For", "Forwarded"):  # nobody has named a proxy: it is the client's own word
            head = {names: "for=198.51.100.7" if names == "Forwarded" else "198.51.100.7", **bearer("no")}
            assert (await it.http.get("/v1/agents", headers=head)).status_code == 429
    async with gateway(None, [api], **made, gateway_proxies=("127.0.0.0/8", "10.0.0.1")) as it:
        for says, code in [
            *[({"X-Forwarded-For": "203.0.113.9, 198.51.100.7, 10.0.0.1"}, 401)] * 5,
            ({"X-Forwarded-For": "203.0.113.8, 198.51.100.7, 10.0.0.1"}, 429),
            ({"Forwarded": 'for=192.0.2.1, for="198.51.100.7:4711";proto=https, for=10.0.0.1'}, 429),
            ({"Forwarded": 'for="[2001:db8::1]:4711"'}, 401),
            ({"X-Forwarded-For": "198.51.100.8, 10.0.0.1"}, 401),
        ]:
            answer = await it.http.get("/v1/agents", headers=says | bearer("no"))
            assert answer.status_code == code, says


async def test_one_token_does_not_hold_every_connection(tmp_path: Any) -> None:
    tokens = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]), ("other", "eve", ["*"]))
    slow = Slow()
    async with gateway(
        None, [slow], gateway_tokens=tmp_path / "tokens.json", gateway_connections=8, gateway_streams=2
    ) as it:
        ann, eve = map(bearer, tokens)
        held = [asyncio.create_task(it.http.get("/wait", headers=ann)) for _ in range(4)]
        async with asyncio.timeout(HANG):
            for _ in range(4):
                await slow.came.acquire()
        refused = await it.http.get("/wait", headers=ann)
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:perdure:problem:too-many-requests")
        assert refused.headers["retry-after"]
        other = asyncio.create_task(it.http.get("/wait", headers=eve))
        async with asyncio.timeout(HANG):
            await slow.came.acquire()
        slow.go.set()
        assert {each.status_code for each in await asyncio.gather(*held, other)} == {200}
        assert (await it.http.get("/wait", headers=ann)).status_code == 200


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00+23:00"])
async def test_a_time_beyond_the_calendar_is_none(time: str) -> None:
    with pytest.raises(RunError, match="is not a time"):
        Selection(since=time).text()


@pytest.mark.parametrize("said", [{"agent": "a\0"}, {"sender": "\0"}, {"tenant": "x\0"}, {"reason": "\0"}])
async def test_what_no_index_can_hold_is_not_asked_for(said: Any) -> None:
    with pytest.raises(RunError, match="cannot be printed"):
        Selection(**said).text()
