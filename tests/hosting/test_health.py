"""Whether a worker is alive and ready, as whoever runs it is told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import uuid
from pathlib import Path

import httpx2
import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from perdure.errors import SettingsError
from perdure.hosting._health import Health
from perdure.hosting.server import embedded_server, free_port
from perdure.hosting.worker import build_worker
from perdure.queries import SearchAttributes
from perdure.runs.wire import ATTRIBUTES
from tests.forked_cli import ForkedCli
from tests.support import registry
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def until(health: Health, problem: str | None) -> None:
    """Nothing tells when the server has seen a poll, or is gone."""
    async with asyncio.timeout(HANG):
        while True:
            await health.look()
            if health.problem == problem:
                return
            await asyncio.sleep(0.05)


async def test_a_worker_is_ready_while_it_polls(dev_server: WorkflowEnvironment) -> None:
    port = free_port()
    worker = build_worker(dev_server.client, registry([]), task_queue=uuid.uuid4().hex)
    health = Health(dev_server.client, worker)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG) as http, health.served(port):

        async def ask(path: str, method: str = "GET") -> tuple[int, str]:
            answer = await http.request(method, path)
            return answer.status_code, answer.text

        assert await ask("/readyz") == (503, "the worker is not running\n")
        assert await ask("/livez") == (200, "ok\n")
        async with worker:
            await until(health, None)
            assert await ask("/readyz?verbose") == (200, "ready\n")
            assert await ask("/readyz", "HEAD") == (200, "")
            assert (await ask("/readyz", "POST"))[0] == 405
            assert (await ask("/"))[0] == 404
            health.draining = True
            assert await ask("/readyz") == (503, "draining\n")
            assert await ask("/livez") == (200, "ok\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 100_000)
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(SettingsError, match=f"health cannot be served on port {port}"):
            async with health.served(port):
                pass


async def test_a_worker_without_its_server_is_not_ready_and_says_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    caplog.set_level(logging.INFO, logger="perdure.worker")
    async with contextlib.AsyncExitStack() as working:
        async with embedded_server(ui=False, port=port):
            client = await Client.connect(f"127.0.0.1:{port}")
            worker = build_worker(client, registry([]), task_queue=uuid.uuid4().hex)
            attributes = SearchAttributes()
            assert await attributes.ensure(client) is None
            health = Health(client, worker, on_return=attributes.forget)
            await working.enter_async_context(worker)
            await until(health, None)
        await until(health, "the server does not answer")
        async with embedded_server(ui=False, port=port):
            await until(health, None)
            # It is another one, that knows nothing of what was registered with the first: a run that sets it would stand still.
            assert await attributes.ensure(client) is None
            there = await client.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace="default")
            )
            assert set(ATTRIBUTES) <= set(there.custom_attributes)
            await working.aclose()
    said = [record.getMessage() for record in caplog.records if record.name == "perdure.worker"]
    assert said == ["connected: polls", "lost the server", "the server answers again: polling"]


async def test_a_rate_limit_of_the_server_does_not_make_a_worker_unready(caplog: pytest.LogCaptureFixture) -> None:
    """All workers were unready at once, and a rollout stopped, when the namespace had many requests."""
    caplog.set_level(logging.INFO, logger="perdure.worker")
    async with embedded_server(ui=False, settings={"frontend.namespaceRPS": 20}) as server:
        health = Health(server.client, worker := build_worker(server.client, registry([]), task_queue=uuid.uuid4().hex))
        async with worker:
            await until(health, None)
            while True:
                try:
                    await server.client.workflow_service.describe_task_queue(health._request, retry=False)
                except RPCError as error:
                    assert error.status is RPCStatusCode.RESOURCE_EXHAUSTED
                    break
            await asyncio.gather(*(health.look() for _ in range(20)))
            assert health.problem is None
    assert "lost the server" not in caplog.text


async def test_dev_serves_health_and_metrics_as_a_worker_does(tmp_path: Path) -> None:
    port, ui_port, health, metrics = (str(free_port()) for _ in range(4))
    words = [
        "dev",
        "--gateway-port",
        "0",
        "--port",
        port,
        "--ui-port",
        ui_port,
        "--health-port",
        health,
        "--metrics",
        f"127.0.0.1:{metrics}",
    ]
    process = await asyncio.create_subprocess_exec(
        *await ForkedCli.command(), *words, cwd=tmp_path, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(HANG), httpx2.AsyncClient(timeout=HANG) as http:
            while b"connected: polls" not in (line := await process.stderr.readline()):
                assert line, "it ended"
            assert (await http.get(f"http://127.0.0.1:{health}/readyz")).text == "ready\n"
            assert "temporal_num_pollers" in (await http.get(f"http://127.0.0.1:{metrics}/metrics")).text
            process.send_signal(signal.SIGTERM)
            _, said = await process.communicate()
        assert process.returncode == 0
        assert b"draining" in said
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
