"""The frame round all doors: who is let in, how much, how refusals read, and how it ends (R17.1)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from perdure import errors
from perdure.errors import PerdureError
from perdure.gateway import caller_of
from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.app import health_adapter
from perdure.gateway.bounds import Rates, read_json
from perdure.gateway.callers import TokenFile, new_token
from perdure.gateway.errors import STATUS, HttpError, problem_of
from perdure.gateway.streams import EventStream, encode_event
from tests.gateway.support import bearer, gateway, secret_of, write_tokens
from tests.support import logged, perdure

ONE = f'{{"id": "a", "sha256": "{0:064d}", "sender": "s"}}'
pytestmark = pytest.mark.asyncio(loop_scope="session")


def echo(gateway: Gateway) -> Adapter:
    """A door for these tests."""

    async def who(request: Request) -> Response:
        caller = caller_of(request)
        return JSONResponse({"tenant": caller.tenant, "sender": caller.sender, "rights": sorted(caller.rights)})

    async def say(request: Request) -> Response:
        caller_of(request).check("send", "say this")
        return JSONResponse(await read_json(request))

    async def breaks(_: Request) -> Response:
        raise ValueError(" ".join(["a", "secret"]))

    async def missing(_: Request) -> Response:
        raise errors.RunNotFoundError("there is no run 'x'")

    async def stream(request: Request) -> Response:
        async def frames() -> AsyncGenerator[str, None]:
            for n in range(int(request.query_params.get("n", 3))):
                yield encode_event(f"line\nof {n}", event="e", id=str(n))
            if "fails" in request.query_params:
                raise errors.RunEndedError("it has ended")
            if "hangs" in request.query_params:
                await asyncio.Event().wait()

        return EventStream(gateway, caller_of(request), frames())

    return Adapter(
        "echo",
        [
            Route("/who", who),
            Route("/say", say, methods=["POST"]),
            Route("/breaks", breaks),
            Route("/missing", missing),
            Route("/stream", stream),
        ],
    )


async def test_without_tokens_it_trusts_the_loopback_alone() -> None:
    async with gateway(None, [health_adapter, echo]) as it:
        answer = await it.http.get("/who")
        assert (answer.status_code, answer.json()["tenant"], answer.json()["rights"]) == (200, "", ["*"])
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        elsewhere = await it.http.get("/who", headers={"Host": "evil.example"})
        assert (elsewhere.status_code, elsewhere.headers["content-type"]) == (421, "application/problem+json")
        # What a page of another site could send without being asked first.
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            refused = await it.http.post("/say", content="{}", headers=headers)
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:perdure:problem:foreign-origin")
        own = await it.http.post("/say", json={"a": 1}, headers={"Origin": it.address})
        assert own.json() == {"a": 1}


async def test_a_token_says_tenant_sender_and_rights(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    reader, writer = write_tokens(file, ("acme", "ann", ["read"]), ("acme", "bob", ["read", "send"]))
    assert reader not in file.read_text()
    async with gateway(None, [echo], gateway_tokens=file) as it:
        nobody = await it.http.get("/who")
        assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, 'Bearer realm="perdure"')
        assert nobody.json() == {
            "type": "urn:perdure:problem:unauthorized",
            "title": "Unauthorized",
            "status": 401,
            "detail": "a token is needed: Authorization: Bearer …",
        }
        assert (await it.http.get("/who", headers=bearer(reader[:-1] + "x"))).status_code == 401
        found = (await it.http.get("/who", headers=bearer(reader))).json()
        assert found == {"tenant": "acme", "sender": "ann", "rights": ["read"]}
        refused = await it.http.post("/say", json={}, headers=bearer(reader))
        assert refused.status_code == 403
        assert refused.json()["detail"] == "'ann' may not say this: the right 'send' is missing"
        assert (await it.http.post("/say", json={}, headers=bearer(writer))).status_code == 200
        in_url = await it.http.get("/who", params={"access_token": writer}, headers=bearer(writer))
        assert in_url.status_code == 400


async def test_a_change_of_the_tokens_is_seen_without_a_restart(tmp_path: Path) -> None:
    file, now = tmp_path / "tokens.json", 1_000_000.0
    told: list[str] = []
    (old,) = write_tokens(file, ("acme", "ann", ["read"]))
    tokens = TokenFile(file, clock=lambda: now, report=told.append)
    written = json.loads(file.read_text())
    new, entry = new_token("acme", "ann", ["read"])
    written["tokens"].append(entry.model_dump(mode="json", exclude_none=True))
    file.write_text(json.dumps(written))
    assert tokens.find(new) is None
    now += 1
    assert tokens.find(new) == tokens.find(new)
    assert [each.sender for each in (tokens.find(old), tokens.find(new)) if each] == ["ann", "ann"]
    file.write_text("{")
    now += 1
    assert tokens.find(old) is not None
    assert "do not change" in told[-1]
    written["tokens"] = written["tokens"][1:]
    written["tokens"][0]["expires"] = "1970-01-12T13:47:00Z"
    file.write_text(json.dumps(written))
    now += 1
    assert (tokens.find(old), tokens.named(entry.id) is not None) == (None, True)
    now += 100
    assert (tokens.find(new), tokens.named(entry.id)) == (None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "$.tokens: must be a list"),
        ('{"tokens": [{"id": "a", "sha256": "x", "sender": "s"}]}', "$.tokens"),
        (
            f'{{"tokens": [{{"id": "a", "sha256": "{0:064d}", "sender": "s", "rights": ["fly"]}}]}}',
            "`fly` is not a valid right",
        ),
        (
            '{"tokens": [%s, %s]}' % ((f'{{"id": "a", "sha256": "{0:064d}", "sender": "s"}}',) * 2),
            "two tokens have the id",
        ),
    ],
)
async def test_what_is_wrong_with_the_file_of_tokens_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(text)
    with pytest.raises(errors.SettingsError, match=said.replace("$", r"\$").replace("[", r"\[")):
        TokenFile(file)


async def test_what_goes_wrong_is_a_problem() -> None:
    async with gateway(None, [echo]) as it:
        with logged("json") as log:
            broken = await it.http.get("/breaks")
        assert broken.status_code == 500
        assert "a secret" not in broken.text + log.getvalue()
        assert broken.headers["x-request-id"] in broken.json()["detail"]
        assert broken.headers["x-request-id"] in log.getvalue()
        missing = await it.http.get("/missing")
        assert (missing.status_code, missing.json()["type"]) == (404, "urn:perdure:problem:run-not-found")
        nothing = await it.http.get("/nothing")
        assert (nothing.status_code, nothing.headers["content-type"]) == (404, "application/problem+json")
        method = await it.http.delete("/who")
        assert (method.status_code, "allow" in method.headers) == (405, True)
        for body, headers, status in (
            ("{", {"content-type": "application/json"}, 400),
            ("[]", {"content-type": "application/json"}, 422),
            ("{}", {"content-type": "text/plain"}, 415),
        ):
            assert (await it.http.post("/say", content=body, headers=headers)).status_code == status


async def test_every_error_has_a_status() -> None:
    def below(kind: type[PerdureError]) -> list[type[PerdureError]]:
        return [kind, *(each for one in kind.__subclasses__() for each in below(one))]

    kinds = below(PerdureError)
    assert len(kinds) > 20
    for kind in kinds:
        assert any(each in STATUS and each is not PerdureError for each in kind.__mro__) or kind is PerdureError, kind
    found = problem_of(errors.NoWorkerError("no\nworker"))
    assert found is not None
    assert (found.status, found.detail, found.headers, found.kind) == (
        503,
        "no worker",
        {"Retry-After": "2"},
        "no-worker",
    )


async def test_a_body_is_bounded_however_it_is_sent() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 10_000

    async with gateway(None, [echo], gateway_body=50_000) as it:
        headers = {"content-type": "application/json"}
        large = await it.http.post("/say", content=b" " * 60_000, headers=headers)
        assert (large.status_code, large.json()["type"]) == (413, "urn:perdure:problem:too-large")
        with contextlib.suppress(httpx2.ReadError, httpx2.WriteError):  # it may be cut off before it has read why
            assert (await it.http.post("/say", content=endless(), headers=headers)).status_code == 413
        long = await it.http.get("/who", headers={"x": "y" * 40_000})
        assert long.status_code in (400, 431)


async def test_each_token_has_its_rate(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    one, other = write_tokens(file, ("a", "ann", ["read"]), ("b", "bob", ["read"]))
    async with gateway(None, [echo], gateway_tokens=file, gateway_rate=8.0) as it:
        assert [(await it.http.get("/who", headers=bearer(one))).status_code for _ in range(3)] == [200, 200, 429]
        refused = await it.http.get("/who", headers=bearer(one))
        assert 1 <= int(refused.headers["retry-after"]) <= 8
        assert (await it.http.get("/who", headers=bearer(other))).status_code == 200


async def test_a_rate_fills_evenly() -> None:
    now = 0.0
    rates = Rates(60, clock=lambda: now)

    def taken() -> int:
        for count in range(100):
            try:
                rates.take("x")
            except HttpError:
                return count
        return 100

    assert taken() == 15
    now += 2.5
    assert taken() == 2
    now += 1000
    assert taken() == 15


async def test_pages_of_named_sites_may_ask_with_a_token(tmp_path: Path) -> None:
    file, site = tmp_path / "tokens.json", "https://app.example"
    (token,) = write_tokens(file, ("acme", "ann", ["read"]))
    asks = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}
    async with gateway(None, [echo], gateway_tokens=file, gateway_origins=(site,)) as it:
        allowed = await it.http.options("/who", headers={"Origin": site, **asks})
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, site)
        for names in ("idempotency-key", "a2a-version,a2a-extensions", "x-stainless-os,x-stainless-lang"):
            more = {"Access-Control-Request-Headers": f"authorization,content-type,{names}"}
            assert (await it.http.options("/who", headers={"Origin": site, **asks, **more})).status_code == 200
        assert (await it.http.options("/who", headers={"Origin": "https://evil.example", **asks})).status_code == 400
        answer = await it.http.get("/who", headers={"Origin": site, **bearer(token)})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, site)
        assert "access-control-allow-credentials" not in answer.headers
        assert "X-Should-Retry" in answer.headers["access-control-expose-headers"]
        other = await it.http.get("/who", headers={"Origin": "https://evil.example", **bearer(token)})
        assert (other.status_code, "access-control-allow-origin" in other.headers) == (403, False)


async def lines(answer: Any) -> list[str]:
    return [line async for line in answer.aiter_lines()]


async def test_a_stream_of_events() -> None:
    async with gateway(None, [echo], gateway_streams=2) as it:
        answer = await it.http.get("/stream", params={"n": 1})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text == "retry: 2000\n\nid: 0\nevent: e\ndata: line\ndata: of 0\n\n"
        at_once = await it.http.get("/stream", params={"n": 0, "fails": 1})
        assert (at_once.status_code, at_once.headers["content-type"]) == (409, "application/problem+json")
        later = (await it.http.get("/stream", params={"n": 1, "fails": 1})).text
        assert later.startswith("retry: 2000\n\nid: 0\n")
        assert '\n\nevent: error\ndata: {"type":"urn:perdure:problem:run-ended"' in later
        async with (
            it.http.stream("GET", "/stream", params={"hangs": 1}) as first,
            it.http.stream("GET", "/stream", params={"hangs": 1}),
        ):
            assert first.status_code == 200
            third = await it.http.get("/stream")
            assert (third.status_code, third.json()["type"]) == (429, "urn:perdure:problem:too-many-streams")


async def test_its_end_ends_streams_and_answers_what_is_under_way() -> None:
    async with gateway(None, [echo]) as it, it.http.stream("GET", "/stream", params={"hangs": 1}) as answer:
        ending = asyncio.create_task(lines(answer))
        it.gateway.stopping.set()
        assert "data: of 2" in await ending


async def test_a_request_is_a_line_in_the_log_that_names_no_token_and_no_address(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    (token,) = write_tokens(file, ("acme", "ann", ["read"]))
    with logged("json") as log:
        async with gateway(None, [echo], gateway_tokens=file) as it:
            await it.http.get("/who", params={"q": "private"}, headers=bearer(token))
            await it.http.get("/who", headers=bearer(token + "x"))
    told = log.getvalue()
    assert token.split("_")[1] in told
    assert secret_of(token) not in told
    assert "private" not in told


async def test_the_gateway_serves_without_the_libraries_of_extras() -> None:
    """`pip install 'perdure[embedded]'` alone: `perdure dev` starts, and a protocol without its library has no routes."""
    code = """
from importlib.machinery import PathFinder

EXTRAS = {"a2a", "ag_ui", "anthropic", "apprise", "aioboto3", "botocore", "cryptography", "mcp", "opentelemetry"}
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in EXTRAS else find(name, *rest)

import perdure.hosting.worker
from perdure.cli._gateway import a2a_adapter, agui_adapter, mcp_adapter

assert [adapter(None).routes for adapter in (a2a_adapter, agui_adapter, mcp_adapter)] == [[], [], []]
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0


@pytest.mark.parametrize(("folder", "words"), [("none", "No such file"), ("file", "Not a directory")])
async def test_a_gateway_whose_agents_folder_cannot_be_read_says_so_and_ends(
    tmp_path: Path, folder: str, words: str
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    ended = await perdure("serve", "--agents", str(tmp_path / folder))
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert f"--agents: the folder {tmp_path / folder} cannot be read: {words}" in ended.err
