"""`perdure codec-server` shows what is encrypted to those who may read it, and to nobody else."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.errors import SettingsError
from perdure.gateway.guards import FREE_GUESSES
from perdure.hosting.connection import data_converter
from perdure.hosting.server import find_program
from perdure.pages._codec import CodecServer
from perdure.values.limits import MAX_BODY
from tests.cli.test_commands import one_line
from tests.forked_cli import ForkedCli
from tests.hosting.test_encryption import NEW, OLD, connect
from tests.support import DONE, ROOT, agent, harness, perdure, serving
from tests.timeouts import HANG

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("encrypted")]
UI = "http://localhost:8233"
TOKEN = "a-token-of-the-codec-server"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"a word"')


@pytest.fixture
def encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_CODEC", "perdure.encryption:aes_gcm")
    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps(NEW | OLD))


def written(*payloads: Payload) -> dict[str, Any]:
    return MessageToDict(Payloads(payloads=payloads))


def read(answer: httpx2.Response) -> list[Payload]:
    assert answer.status_code == 200, answer.text
    return list(ParseDict(answer.json(), Payloads()).payloads)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def sealed(value: Any) -> Payload:
    [payload] = await data_converter().encode([value])
    return payload


async def test_whoever_knows_the_token_reads_and_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path))
    small, large = await sealed("a word"), await sealed("x" * 400_000)
    kept = set(files(tmp_path))
    gone = await sealed("y" * 400_000)
    for file in set(files(tmp_path)) - kept:
        file.unlink()
    async with (
        serving(CodecServer(data_converter(), TOKEN, UI).app) as address,
        httpx2.AsyncClient(timeout=HANG) as asking,
    ):
        for path in ("/decode", "/default/decode", "/download"):
            answer = await asking.post(address + path, json=written(small, PLAIN, large, gone), headers=BEARER)
            first, second, third, fourth = read(answer)
            assert (first.data, second, len(third.data)) == (b'"a word"', PLAIN, 400_002)
            assert fourth == gone
        [back] = read(await asking.post(f"{address}/encode", json=written(PLAIN), headers=BEARER))
        assert back.metadata["encoding"] == b"binary/encrypted"
        assert await data_converter().decode([back]) == ["a word"]


async def test_nobody_else_does() -> None:
    body = written(await sealed("a word"))
    async with (
        serving(CodecServer(data_converter(), TOKEN, UI).app) as address,
        httpx2.AsyncClient(timeout=HANG) as asking,
    ):

        async def status(**options: Any) -> int:
            answer = await asking.post(f"{address}/decode", **{"json": body, **options})
            assert answer.status_code == 200 or "a word" not in answer.text
            return answer.status_code

        assert await status() == 401
        assert await status(headers={"Authorization": "Bearer"}) == 401
        assert await status(headers={"Cookie": "perdure_codec="}) == 401
        assert await status(headers=BEARER | {"Origin": "https://evil.example"}) == 403
        assert await status(headers=BEARER | {"Origin": "null"}) == 403
        assert await status(headers=BEARER | {"Origin": UI}) == 200
        for odd in (
            "[" * 100_000,
            "5",
            "null",
            '{"payloads": 5}',
            "{",
            "\xff",
            '{"x": 1}',
        ):
            assert await status(json=None, content=odd.encode(), headers=BEARER) == 400
        assert await status(json=None, content=b" " * (MAX_BODY + 1), headers=BEARER) == 413
        for origin, allowed in ((UI, UI), ("https://evil.example", None)):
            wanted = {
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "content-type,x-namespace",
            }
            before = await asking.options(f"{address}/decode", headers={"Origin": origin, **wanted})
            assert before.headers.get("access-control-allow-origin") == allowed
        assert (
            "access-control-allow-origin"
            not in (await asking.post(f"{address}/decode", headers={"Origin": "null"})).headers
        )


async def test_a_browser_signs_in_and_guessing_ends_soon() -> None:
    body = written(await sealed("a word"))
    async with (
        serving(CodecServer(data_converter(), TOKEN, UI).app) as address,
        httpx2.AsyncClient(timeout=HANG) as browser,
    ):
        assert (await browser.post(f"{address}/sign-in", data={"token": "no"})).status_code == 401
        signed = await browser.post(f"{address}/sign-in", data={"token": TOKEN})
        cookie = signed.headers["set-cookie"].lower()
        assert (signed.status_code, "httponly" in cookie, "samesite=strict" in cookie) == (303, True, True)
        assert TOKEN not in cookie
        async with httpx2.AsyncClient(timeout=HANG) as stranger:
            guesses = [
                (await stranger.post(f"{address}/sign-in", data={"token": str(guess)})).status_code
                for guess in range(FREE_GUESSES + 3)
            ]
            assert guesses == [401] * FREE_GUESSES + [429] * 3
            # Not even the right one by now; but the session goes on.
            assert (await stranger.post(f"{address}/decode", json=body, headers=BEARER)).status_code == 429
        answer = await browser.post(f"{address}/decode", json=body, headers={"Origin": UI})
        assert read(answer)[0].data == b'"a word"'
        assert (answer.headers["access-control-allow-origin"], answer.headers["access-control-allow-credentials"]) == (
            UI,
            "true",
        )


@pytest.mark.parametrize("origin", ["*", "", "localhost:8233", "http://x/", "http://x/path", "file:///x", "https://"])
async def test_an_origin_is_one(origin: str) -> None:
    with pytest.raises(SettingsError, match="the origin must be the Web UI's"):
        CodecServer(data_converter(), TOKEN, origin)


async def test_the_command_wants_a_token_and_a_codec() -> None:
    env = {name: os.environ[name] for name in ("PERDURE_CODEC", "PERDURE_CODEC_KEYS")}
    refused = await perdure("codec-server", "--port", "0", env=env)
    assert (refused.code, "needs a token" in one_line(refused.err)) == (2, True)
    refused = await perdure("codec-server", "--port", "0", "--token", "", env=env)
    assert refused.code == 2
    refused = await perdure("codec-server", "--port", "0", "--token", TOKEN)
    assert (refused.code, "set PERDURE_CODEC" in one_line(refused.err)) == (2, True)


@tool
def greet(name: str) -> str:
    return f"Hello {name}, dear"


async def test_temporals_own_command_line_shows_a_run_through_it(dev_server: WorkflowEnvironment) -> None:
    temporal = find_program("temporal")
    assert temporal is not None
    client = await connect(dev_server)
    async with harness(client, [greet], [{"calls": [{"_tool": "greet", "name": "Ada"}]}, DONE]) as it:
        handle = await it.start(agent("greet"))
        await handle.result()
    server = await asyncio.create_subprocess_exec(
        *(*await ForkedCli.command(), "codec-server", "--port", "0"),
        cwd=ROOT,
        env={**os.environ, "PERDURE_CODEC_TOKEN": TOKEN},
        stderr=asyncio.subprocess.PIPE,
    )
    assert server.stderr is not None
    try:
        line = (await asyncio.wait_for(server.stderr.readline(), HANG)).decode()
        address = line.removeprefix("codec server  ").partition(";")[0]

        async def show(token: str) -> str:
            showing = await asyncio.create_subprocess_exec(
                *(temporal, "workflow", "show", "--workflow-id", handle.id, "--output", "json"),
                *("--address", client.service_client.config.target_host),
                *("--codec-endpoint", address, "--codec-auth", f"Bearer {token}"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            return (await asyncio.wait_for(showing.communicate(), HANG))[0].decode()

        tokens = (TOKEN, "wrong")
        shown = dict(zip(tokens, await asyncio.gather(*map(show, tokens)), strict=True))
    finally:
        server.terminate()
        assert await asyncio.wait_for(server.wait(), HANG) == 0
    data = {token: b"".join(map(base64.b64decode, re.findall(r'"data": "([^"]+)"', shown[token]))) for token in shown}
    assert b"Hello Ada, dear" in data[TOKEN]
    assert b"Hello Ada" not in data["wrong"] + shown["wrong"].encode()
