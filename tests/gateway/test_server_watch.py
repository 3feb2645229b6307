"""A gateway whose Temporal server is lost after it was connected: whoever asks learns it soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure
from perdure.errors import ServerError
from perdure.gateway.ai_sdk.adapter import ai_sdk_adapter
from perdure.gateway.api.adapter import api
from perdure.gateway.app import health_adapter
from perdure.gateway.openai.adapter import openai_adapter
from perdure.hosting.connection import data_converter
from perdure.testing.scripted_model import ChatRequest, Turn
from tests.gateway.openai_support import says
from tests.gateway.support import bearer, gateway, some_name, write_agents, write_tokens
from tests.support import harness
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Way:
    """The way to a server, which can be cut."""

    def __init__(self, server: str) -> None:
        self._host, _, self._port = server.partition(":")
        self._open: list[asyncio.StreamWriter] = []
        self._listener: asyncio.Server | None = None
        self.address = ""

    async def begin(self) -> None:
        self._listener = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for each in self._open:
            each.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._host, int(self._port))
        except OSError:
            writer.transport.abort()
            return
        self._open += [writer, back]
        await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer), return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def way_to(server: WorkflowEnvironment) -> AsyncIterator[Way]:
    way = Way(server.client.service_client.config.target_host)
    await way.begin()
    try:
        yield way
    finally:
        way.cut()


async def test_a_lost_server_is_told_before_the_client_gives_up(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    agents = write_agents(tmp_path / "agents", ECHO)
    (token,) = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]))
    async with way_to(dev_server) as way, asyncio.timeout(HANG):
        client = await Client.connect(way.address, data_converter=data_converter())
        given: dict[str, Any] = {"agents": agents, "gateway_tokens": tmp_path / "tokens.json"}
        async with gateway(client, [health_adapter, api, ai_sdk_adapter], **given) as at:
            at.http.headers.update(bearer(token))
            assert (await at.http.get("/v1/runs")).status_code == 200
            way.cut()
            session, key = Perdure(client).session(some_name(), agent=Agent.of(ECHO)), some_name()
            direct = asyncio.create_task(session.send("Hello?", sender="ann"))
            message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hello?"}]}
            answers = await asyncio.gather(
                at.http.post(f"/v1/sessions/{key}/messages", json={"text": "Hello?", "agent": "echo"}),
                at.http.delete(f"/v1/sessions/{key}/messages/m1"),
                at.http.post(f"/v1/sessions/{key}/decisions", json={"call": "1.0", "decision": "approve"}),
                at.http.delete(f"/v1/sessions/{key}"),
                at.http.post("/ai-sdk/echo", json={"id": some_name(), "messages": [message]}),
                at.http.get("/v1/runs"),
                at.http.get("/v1/runs/none"),
            )
            assert not direct.done()  # the client itself still tries
            assert [answer.status_code for answer in answers] == [503] * 7, [answer.text for answer in answers]
            assert {answer.json()["type"] for answer in answers} == {"urn:perdure:problem:server"}
            assert {answer.headers["retry-after"] for answer in answers} == {"2"}
            assert (await at.http.get("/readyz")).status_code == 503
            direct.cancel()
            with pytest.raises((asyncio.CancelledError, ServerError)):
                await direct


async def test_no_answer_about_a_begun_run_makes_openais_clients_send_it_again(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    asked, gate = asyncio.Semaphore(0), asyncio.Event()

    def answer(_: ChatRequest) -> dict[str, Any]:
        asked.release()
        return says("Paid.")

    agents = write_agents(tmp_path / "agents", ECHO)
    (token,) = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]))
    given: dict[str, Any] = {"agents": agents, "gateway_tokens": tmp_path / "tokens.json", "gateway_streams": 1}
    async with (
        asyncio.timeout(HANG),
        way_to(dev_server) as way,
        harness(
            dev_server.client, [], [Turn(answer, gate=gate) for _ in range(3)], agents=agents, model_timeout=60
        ) as it,
    ):
        client = await Client.connect(way.address, data_converter=data_converter())
        async with gateway(client, [openai_adapter], task_queue=it.task_queue, **given) as at:
            at.http.headers.update(bearer(token))
            chat = {"model": "echo", "messages": [{"role": "user", "content": "Pay."}]}
            async with at.http.stream("POST", "/v1/chat/completions", json={**chat, "stream": True}) as stream:
                assert stream.status_code == 200
                await asked.acquire()
                for path, body in (("chat/completions", chat), ("responses", {"model": "echo", "input": "Pay."})):
                    refused = await at.http.post(f"/v1/{path}", json={**body, "stream": True})
                    assert (refused.status_code, "x-should-retry" in refused.headers) == (429, False), refused.text
            requests = [
                asyncio.create_task(at.http.post("/v1/chat/completions", json=chat)),
                asyncio.create_task(at.http.post("/v1/responses", json={"model": "echo", "input": "Pay."})),
            ]
            for _ in requests:
                await asked.acquire()
            assert len(it.model.requests) == 3  # the refused streams began no run
            way.cut()
            for answered in await asyncio.gather(*requests):
                assert (answered.status_code, answered.headers["x-should-retry"]) == (422, "false"), answered.text
                assert answered.json()["error"]["code"] == "still_running"
                assert "the run continues as " in answered.json()["error"]["message"]
        gate.set()
