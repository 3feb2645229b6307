"""Servers of models: libraries that are not installed, and libraries that nobody needs."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys

import httpx2
import pytest
from openai import APIConnectionError, APIStatusError, AsyncOpenAI
from temporalio.exceptions import ApplicationError

from perdure.activities.endpoints import Endpoints
from perdure.activities.failures import model_failure
from perdure.activities.model_servers import ADDRESSES, BedrockServer, connect, load_library
from perdure.activities.requests import read_answer
from perdure.activities.secrets import mask_text
from perdure.models.dialects.registry import DIALECTS
from perdure.models.model_names import Provider
from perdure.models.requests import Endpoint, ReaderVocabulary
from perdure.models.response_stream import ResponseStream
from perdure.runs.caller_context import MASK
from perdure.testing import ScriptedModel

LIBRARIES = ("anthropic", "botocore", "google.auth")


async def test_a_missing_extra_is_one_line() -> None:
    with pytest.raises(ApplicationError) as raised:
        await load_library("no_such_library", extra="anthropic")
    assert raised.value.message == (
        "the provider 'anthropic' needs a library that is not installed (no_such_library): pip install 'perdure[anthropic]'"
    )
    assert raised.value.non_retryable


@pytest.mark.parametrize(
    ("provider", "host"),
    [("openai", "api.openai.com"), ("openai-responses", "api.openai.com"), ("anthropic", "api.anthropic.com")],
)
async def test_an_empty_variable_is_no_address(provider: Provider, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESSES[provider], "")
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    # A proxy that nothing serves: the request fails, and its error has the address.
    for variable in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    with pytest.raises((httpx2.HTTPError, APIConnectionError)) as caught:
        async with connect(provider).send({"model": "m", "messages": [], "stream": True}):
            pass
    assert f"https://{host}/" in model_failure(caught.value).message


@pytest.mark.parametrize("model", ["gpt-4o@proxy", "openai-responses:gpt-5@proxy", "anthropic:claude-sonnet-5@proxy"])
async def test_an_endpoint_gets_nothing_of_the_default_account(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = "X-Gateway-Key: secret-of-the-default\nAuthorization: Bearer secret-of-the-default"
    for variable in ("ANTHROPIC_CUSTOM_HEADERS", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.setenv(variable, secrets)
    for variable in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(variable, "account-of-the-default")
    monkeypatch.setenv("PROXY_KEY", "key-of-the-proxy")
    heads: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 400 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as served:
        url = f"http://127.0.0.1:{served.sockets[0].getsockname()[1]}"
        endpoints = Endpoints(more={"proxy": Endpoint(base_url=url, api_key_env="PROXY_KEY")})
        with pytest.raises((APIStatusError, httpx2.HTTPStatusError)):
            async with endpoints.ask(model, {"messages": [{"role": "user", "content": "hi"}], "stream": True}):
                pass
    (head,) = heads
    assert "of-the-default" not in head
    assert "Bearer key-of-the-proxy" in head
    assert mask_text("secret-of-the-default") == MASK


async def test_a_request_to_bedrock_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("SECRET_ACCESS_KEY", "hidden-enough"),
        ("REGION", "eu-west-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    model = "bedrock:anthropic.claude-opus-5-v1:0"
    async with ScriptedModel(["Hello"], dialect="tools") as scripted:
        address = scripted.base_url.removesuffix("/v1")
        endpoints = Endpoints(servers={"bedrock": BedrockServer(address)})
        async with endpoints.ask(model, {"messages": [{"role": "user", "content": "Hi"}], "stream": True}) as response:
            stream = ResponseStream(model, 1, DIALECTS["tools"].reader(ReaderVocabulary()))
            await read_answer(response, stream)
        headers = scripted.requests[0].headers
    assert stream.result().text == "Hello"
    assert scripted.requests[0].model == "anthropic.claude-opus-5-v1:0"
    assert "/eu-west-1/bedrock/aws4_request" in headers["authorization"]
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")


TOKENS = [b'{"choices":[{"delta":{"content":"%d "}}]}' % number for number in range(9)]
FINISH = b'{"choices":[{"delta":{},"finish_reason":"stop"}]}'


@pytest.mark.parametrize("ends", [True, False])
async def test_a_connection_serves_the_next_request_where_the_answer_ends(ends: bool) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).lower():
                await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
                events = b"".join(b"data: %s\n\n" % data for data in (*TOKENS, FINISH, b"[DONE]"))
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                writer.write(b"%x\r\n%s\r\n" % (len(events), events))
                if ends:
                    writer.write(b"0\r\n\r\n")
        except asyncio.IncompleteReadError:  # the client has closed the connection
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, AsyncOpenAI(base_url=f"http://{host}:{port}", api_key="none", max_retries=0) as client:
        endpoints = Endpoints(client)
        for _ in range(3):
            stream = ResponseStream("m", 1, DIALECTS["tools"].reader(ReaderVocabulary()))
            async with endpoints.ask("m", {"messages": [], "stream": True}) as response:
                await read_answer(response, stream)
            assert stream.result().text == "0 1 2 3 4 5 6 7 8"
    assert connections == (1 if ends else 3)


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_an_answer_is_read_compressed_or_not_and_one_that_breaks_off_names_its_request(encoding: str) -> None:
    events = b"".join(b"data: %s\n\n" % data for data in (*TOKENS, FINISH, b"[DONE]"))
    body = gzip.compress(events) if encoding else events

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
        sent = body[:20] if b"/broken/" in head else body
        coded = f"content-encoding: {encoding}\r\n" if encoding else ""
        writer.write(f"HTTP/1.1 200 OK\r\n{coded}content-type: text/event-stream\r\n".encode())
        writer.write(b"content-length: %d\r\n\r\n%s" % (len(body), sent))
        writer.close()

    async def ask(path: str) -> str | None:
        async with AsyncOpenAI(base_url=f"http://{host}:{port}{path}", api_key="none", max_retries=0) as client:
            stream = ResponseStream("m", 1, DIALECTS["tools"].reader(ReaderVocabulary()))
            async with Endpoints(client).ask("m", {"messages": [], "stream": True}) as response:
                await read_answer(response, stream)
        return stream.result().text

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        assert await ask("/") == "0 1 2 3 4 5 6 7 8"
        with pytest.raises(httpx2.RemoteProtocolError) as raised:
            await ask("/broken/")
    assert raised.value.request.url.path == "/broken/chat/completions"


def test_no_library_of_a_provider_is_loaded_before_it_is_needed() -> None:
    program = f"import sys, perdure.hosting.worker; print([each for each in {LIBRARIES!r} if each in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
