"""Traces arrive at an OTLP receiver, and metrics are served for Prometheus: real processes, real HTTP."""

from __future__ import annotations

import asyncio
import json
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
from tests.cli.test_commands import one_line, write
from tests.support import DONE, ROOT, agent, perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOLS = '''
from perdure import ToolError, tool

@tool
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"

@tool(retries=0)
def refuse(name: str) -> str:
    """Fail as a tool does."""
    raise ToolError("nobody", f"nobody is called {name}")

@tool(retries=0)
def break_down(name: str) -> str:
    """Fail as a bug does."""
    raise KeyError(name)

@tool(retries=0)
def leak() -> str:
    """Fail with a key of the worker's."""
    import os
    raise RuntimeError(os.environ["BANK_SECRET"]) from ValueError(os.environ["BANK_SECRET"])
'''


SECRET = "saffron"
"""In parameters, prompts, results and errors: it must not be seen anywhere."""


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
async def worker_process(folder: Path, queue: str, *arguments: str, env: dict[str, str]) -> AsyncIterator[list[str]]:
    """Its log, whole once it has ended."""
    (folder / "greetings.py").write_text(TOOLS, encoding="utf-8")
    command = [sys.executable, str(ROOT / "worker.py"), "--tools", "greetings", "--task-queue", queue, *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env={**os.environ, **env}, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    log: list[str] = []
    try:
        log.append((await asyncio.wait_for(process.stderr.readline(), HANG)).decode())
        assert " tools, task queue" in log[0]
        yield log
    finally:
        process.terminate()
        log += (await asyncio.wait_for(process.communicate(), HANG))[1].decode().splitlines()


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
    calls = [{"_tool": "greet", "name": SECRET, "_outputPath": "†state.text"}, {"_tool": "leak"}]
    calls += [
        {"_tool": "break_down", "name": SECRET},
        {"_tool": "refuse", "name": SECRET},
        {"_tool": "greet", "person": SECRET},
    ]
    script = [{"calls": calls, "output": None}, DONE]
    path = write(tmp_path, agent("greet", "leak", "refuse", "break_down", context=[{"type": "text", "text": SECRET}]))
    async with Receiver() as receiver, ScriptedModel(script, api_key="k") as model:
        address = dev_server.client.service_client.config.target_host
        env = {"TEMPORAL_ADDRESS": address, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        env |= {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "k", "BANK_SECRET": "of-the-bank-0001"}
        port, health = free_port(), free_port()
        options = ("--log-format", "json", "--log-level", "debug", "--health-port", str(health))
        async with worker_process(tmp_path, queue, "--metrics", f"127.0.0.1:{port}", *options, env=env) as log:
            ran = await perdure("run", path, "--json", "--task-queue", queue, env=env)
            async with httpx2.AsyncClient(timeout=HANG) as http:
                text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
                ready = await http.get(f"http://127.0.0.1:{health}/readyz")
    assert (ready.status_code, ready.text) == (200, "ready\n")
    assert ran.code == 0, ran.err
    assert check_metrics(text) == []
    assert 'outcome="done"' in next(line for line in text.splitlines() if line.startswith("perdure_calls_total{"))
    assert "temporal_num_pollers" in text or "temporal_worker_start" in text
    names = [span.name for span in receiver.spans]
    assert names.count("invoke_agent test") == 1
    assert len([name for name in names if name.startswith("chat ")]) == 2
    assert names.count("execute_tool greet") == 1
    assert len({span.trace_id for span in receiver.spans}) == 1
    failed = next(span for span in receiver.spans if span.name == "execute_tool leak")
    assert "RuntimeError" in str(failed)
    lines = list(map(json.loads, log))
    said = [line["message"].split(":")[0] for line in lines if line["logger"] == "perdure.worker"]
    assert said == ["started", "connected", "draining", "ended"]
    assert {line["run"] for line in lines if line["message"] == "call ended"} == {json.loads(ran.out)["runId"]}
    assert len([line for line in lines if "traceback" in line]) == 1  # of what a tool did not mean to raise
    for text in (str(receiver.spans), str(log)):
        assert SECRET not in text
        assert "of-the-bank" not in text


async def test_an_address_for_metrics_that_is_none_is_one_line(dev_server: WorkflowEnvironment) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    refused = await perdure("--metrics", "nowhere", env=env, program="worker.py")
    assert refused.code == 2
    assert "'nowhere'" in one_line(refused.err)
