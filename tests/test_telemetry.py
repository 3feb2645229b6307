"""Traces arrive at an OTLP receiver, and metrics are served for Prometheus: real processes, real HTTP."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from temporalio.testing import WorkflowEnvironment

from perdure.hosting.server import free_port
from perdure.testing.scripted_model import ScriptedModel
from tests.support import DONE, ROOT, agent, perdure
from tests.test_cli import one_line, write

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOLS = '''
from perdure import tool

@tool
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"

@tool(retries=0)
def leak() -> str:
    """Fail with a key of the worker's."""
    import os
    raise RuntimeError(os.environ["BANK_SECRET"]) from ValueError(os.environ["BANK_SECRET"])
'''


class Receiver:
    """Takes spans as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            body = ExportTraceServiceRequest.FromString(await reader.readexactly(length))
            for resource in body.resource_spans:
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            if b"connection: close" in head.lower():
                break


@asynccontextmanager
async def worker_process(folder: Path, queue: str, *arguments: str, env: dict[str, str]) -> AsyncIterator[None]:
    (folder / "greetings.py").write_text(TOOLS, encoding="utf-8")
    command = [sys.executable, str(ROOT / "worker.py"), "--tools", "greetings", "--task-queue", queue, *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env={**os.environ, **env}, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        assert b"4 tools" in await asyncio.wait_for(process.stderr.readline(), 30)
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), 30)


def check_metrics(text: str) -> list[str]:
    """What Prometheus' own tool has against what of a scrape is Perdure's."""
    ours = "".join(line + "\n" for line in text.splitlines() if "perdure_" in line)
    assert "# TYPE perdure_request_cost_dollars histogram" in ours or "# TYPE perdure_calls_total counter" in ours
    promtool = shutil.which("promtool")
    if promtool is None:
        return []
    checked = subprocess.run([promtool, "check", "metrics"], input=ours, capture_output=True, text=True, check=False)
    return [*checked.stdout.splitlines(), *checked.stderr.splitlines()]


async def test_one_trace_per_run_with_a_span_for_each_request_and_call(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    queue = uuid.uuid4().hex
    calls = [{"_tool": "greet", "name": "Ann", "_outputPath": "†state.text"}, {"_tool": "leak"}]
    script = [{"calls": calls, "output": None}, DONE]
    path = write(tmp_path, agent("greet", "leak"))
    async with Receiver() as receiver, ScriptedModel(script, api_key="k") as model:
        address = dev_server.client.service_client.config.target_host
        env = {"TEMPORAL_ADDRESS": address, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        env |= {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "k", "BANK_SECRET": "of-the-bank-0001"}
        port = free_port()
        async with worker_process(tmp_path, queue, "--metrics", f"127.0.0.1:{port}", env=env):
            ran = await perdure("run", path, "--json", "--task-queue", queue, env=env)
            async with httpx2.AsyncClient() as http:
                text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    assert ran.code == 0, ran.err
    assert check_metrics(text) == []
    assert 'outcome="done"' in next(line for line in text.splitlines() if line.startswith("perdure_calls_total{"))
    assert "temporal_num_pollers" in text or "temporal_worker_start" in text
    names = [span.name for span in receiver.spans]
    assert names.count("StartWorkflow:Agent") == 1
    assert names.count("RunActivity:perdure.request") == 2
    assert names.count("RunActivity:greet") == 1
    start = next(span for span in receiver.spans if span.name == "StartWorkflow:Agent")
    run = [span for span in receiver.spans if span.name.split(":")[0] in ("RunWorkflow", "RunActivity")]
    assert {span.trace_id for span in run} == {start.trace_id}
    failed = next(span for span in receiver.spans if span.name == "RunActivity:leak")
    assert "[masked]" in str(failed)
    assert "of-the-bank" not in "".join(map(str, receiver.spans))


async def test_an_address_for_metrics_that_is_none_is_one_line(dev_server: WorkflowEnvironment) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    refused = await perdure("--metrics", "nowhere", env=env, program="worker.py")
    assert refused.code == 2
    assert "'nowhere'" in one_line(refused.err)
