"""`perdure serve` as processes: several side by side, their end, their hooks, and what they log (R17.1)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from temporalio.testing import WorkflowEnvironment

from tests.forked_cli import ForkedCli
from tests.gateway.support import bearer, secret_of, some_name, write_agents, write_tokens
from tests.gateway.test_api import until
from tests.gateway.test_events_api import Sent, events
from tests.support import ROOT, harness
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO, HOLD, Gate

pytestmark = pytest.mark.asyncio(loop_scope="session")
HOOKS = """
from perdure.hooks import hook

@hook("gateway_start")
def started(event) -> None:
    print("started", event.address, flush=True)

@hook("gateway_stop")
def stopped(event) -> None:
    print("stopped", event.address, flush=True)
"""


@dataclass
class Program:
    process: asyncio.subprocess.Process
    address: str
    lines: list[str] = field(default_factory=list)
    out: str = ""


@asynccontextmanager
async def program(server: WorkflowEnvironment, cwd: Path, *words: str) -> AsyncIterator[Program]:
    """`perdure serve`, ended by SIGTERM; what it has written is known then."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "PERDURE_"))}
    env = clean | {"TEMPORAL_ADDRESS": server.client.service_client.config.target_host, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *await ForkedCli.command(),
        *("serve", "--port", "0", *words),
        cwd=cwd,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    found = Program(process, "")
    try:
        async with asyncio.timeout(HANG):
            while not found.address:
                line = (await process.stderr.readline()).decode()
                assert line, found.lines
                found.lines.append(line)
                if address := re.search(r"http://[\d.:]+", line):
                    found.address = address[0]
        yield found
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(process.communicate(), HANG)
        found.out, found.lines = out.decode(), [*found.lines, *err.decode().splitlines()]


async def read(http: httpx2.AsyncClient, address: str, key: str, start: str | None, most: int) -> list[Sent]:
    """Some events of a session, from one gateway."""
    found: list[Sent] = []
    headers = {"Last-Event-ID": start} if start else {}
    async with http.stream("GET", f"{address}/v1/sessions/{key}/events", headers=headers) as answer:
        async for each in events(answer):
            found.append(each)
            if len(found) == most or each.what == "lifecycle end":
                break
    return found


async def test_a_conversation_goes_on_at_another_gateway_when_its_own_ends(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """The gateway that answers is ended in the middle of a run: its client goes on at the other one's, where it was."""
    gate, key = Gate(), some_name()
    folder = write_agents(tmp_path / "agents", HOLD)
    (token,) = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]))
    (tmp_path / "own_hooks.py").write_text(HOOKS)
    async with harness(dev_server.client, [gate.tool], gate.answer) as it:
        words = ["--agents", str(folder), "--tokens", "tokens.json", "--task-queue", it.task_queue]
        async with (
            httpx2.AsyncClient(headers=bearer(token), timeout=HANG) as http,
            program(dev_server, tmp_path, *words) as other,
        ):
            async with program(dev_server, tmp_path, *words, "--tools", "own_hooks") as first:
                at = f"{first.address}/v1/sessions/{key}/messages"
                said = {"text": "hold", "messageId": "m1", "agent": "echo"}
                receipt = until(await http.post(at, json=said), 202)
                await gate.asked.wait()
                seen = await read(http, first.address, key, None, 3)
                waiting = asyncio.create_task(http.get(f"{at}/m1/wait", params={"timeout": 60}))
                reading = asyncio.create_task(read(http, first.address, key, seen[-1].id, 1000))
                async with asyncio.timeout(HANG):
                    while True:  # until it waits there
                        if (await http.get(f"{first.address}/readyz")).status_code == 200 and not reading.done():
                            break
                        await asyncio.sleep(0.05)
                first.process.send_signal(signal.SIGTERM)
                assert until(await waiting)["status"] == "timeout"
                more = await reading
            assert first.process.returncode == 0
            assert re.findall(r"^(\w+) http", first.out, re.MULTILINE) == ["started", "stopped"]
            # Said again at the other one it is the same message.
            again = await http.post(at.replace(first.address, other.address), json=said)
            assert until(again, 202) == receipt
            gate.open.set()
            pieces = [*seen, *more]
            while pieces[-1].what != "lifecycle end":
                pieces += await read(http, other.address, key, pieces[-1].id, 1000)
            whole = await read(http, other.address, key, None, 1000)
            durable = [(each.id, each.what) for each in whole if each.data["phase"] not in ("delta", "update")]
            assert [(each.id, each.what) for each in pieces if each.data["phase"] not in ("delta", "update")] == durable
            reply = until(await http.get(f"{other.address}/v1/sessions/{key}/messages/m1/reply"))
            assert reply["reply"].startswith("re: ")


async def test_no_token_is_in_any_log(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """Whatever is sent, with the log at its loudest: neither a token nor what was said of it stands in what the program writes."""
    folder = write_agents(tmp_path / "agents", ECHO)
    (token,) = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]))
    wrong = "perdure_00000000_" + "w" * 43
    words = ["--agents", str(folder), "--tokens", "tokens.json", "--log-level", "debug", "--log-payloads"]
    async with (
        program(dev_server, tmp_path, *words) as it,
        httpx2.AsyncClient(base_url=it.address, timeout=HANG) as http,
    ):
        for headers in (bearer(token), bearer(wrong), {"Authorization": f"Basic {token}"}, {"X-Api-Key": token}):
            await http.get("/v1/agents", headers=headers)
            await http.get("/v1/runs/none", headers=headers)
            await http.post("/v1/runs", json={"agent": "echo", "input": 1, "token": token}, headers=headers)
            await http.get("/v1/agents", params={"token": token}, headers=headers)
            await http.get(f"/v1/runs/{token}/wait", headers=headers)
            await http.post("/inbox/sign-in", data={"token": token})
            await http.get("/v1/agents", headers={**headers, "Origin": f"https://{token}.example"})
    written = it.out + "\n".join(it.lines)
    assert "GET /v1/agents" in written
    for secret in (token, secret_of(token), secret_of(wrong)):
        assert secret not in written
