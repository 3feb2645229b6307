"""The gateway under load: event streams open, and messages into sessions, by Locust; nothing that has a receipt is lost."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.beside import Used, command, server_pid, used, worker
from benchmarks.common import bench_server, model_process
from benchmarks.scaling import agent, note, script
from perdure.errors import PerdureError
from perdure.gateway.bounds import VALUES
from perdure.gateway.callers import new_token
from perdure.hosting.server import free_port

READERS, WRITERS, SESSIONS, TOKENS, RATE, IDLE = 500, 100, 100, 10, 50, 6
SECONDS = int(os.environ.get("PERDURE_BENCH_SECONDS", "60"))
QUEUE, TENANT = "load", "acme"
HERE = Path(__file__).parent


def locust() -> str:
    """Locust's command: in an environment of its own (`make bench` makes it), for it brings a plugin of pytest's along."""
    found = HERE.parent / ".venv-load" / "bin" / "locust"
    program = os.environ.get("PERDURE_BENCH_LOCUST") or (str(found) if found.is_file() else shutil.which("locust"))
    if program is None:
        sys.exit("no Locust: `make bench ARGS=gateway` brings it along")
    return program


async def gateway() -> str:
    """Acceptance, and what server, worker and gateway use."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = [new_token(TENANT, f"user-{n}", ("read", "send")) for n in range(TOKENS)]
        entries = [entry.model_dump(mode="json", exclude_none=True) for _, entry in made]
        (folder / "tokens.json").write_text(json.dumps({"tokens": entries}))
        (folder / "agents").mkdir()
        (folder / "agents" / "talk.json").write_text(json.dumps(agent("talk", answer="string").document()))
        async with bench_server() as server:
            address, port = server.client.service_client.config.target_host, free_port()
            words = ["serve", "--tokens", str(folder / "tokens.json"), "--agents", str(folder / "agents")]
            words += ["--task-queue", QUEUE, "--port", str(port)]
            with model_process(script) as url:
                async with worker(address, QUEUE, url) as working, command(*words, TEMPORAL_ADDRESS=address) as serving:
                    pids = {"server": server_pid(), "worker": working, "gateway": serving}
                    return await _played(folder, f"http://127.0.0.1:{port}", [text for text, _ in made], pids)


async def _played(folder: Path, url: str, tokens: list[str], pids: dict[str, int]) -> str:
    async with httpx2.AsyncClient(base_url=url, timeout=70) as web:
        await _ready(web)
        await _begun(web, tokens)
        plan = {"tokens": tokens, "sessions": SESSIONS, "readers": READERS, "writers": WRITERS, "rate": RATE}
        plan |= {"seconds": SECONDS, "idle": IDLE, "folder": str(folder)}
        before = _all(pids)
        arguments = (
            "--headless",
            "-f",
            str(HERE / "locustfile.py"),
            "-H",
            url,
            "-u",
            str(READERS + WRITERS),
            "-r",
            "100",
        )
        more = ("--csv", str(folder / "of"), "--only-summary", "--loglevel", "ERROR")
        environment = {**os.environ, "PERDURE_LOAD": json.dumps(plan)}
        process = await asyncio.create_subprocess_exec(
            locust(),
            *arguments,
            *more,
            env=environment,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        moments = {}
        for moment in ("open", "sent", "read"):
            while not (folder / moment).exists() and process.returncode is None:
                await asyncio.sleep(0.1)
            moments[moment] = (time.monotonic(), _all(pids))
            if moment == "open":
                await asyncio.sleep(IDLE - 1)
                silent = (time.monotonic(), _all(pids))
        await process.wait()
        began = time.monotonic()
        receipts = await _lost(web, tokens, folder)
        until = time.monotonic() - began
        beside = await answered_beside(web, tokens)
    return _table(folder, before, moments, silent, pids, receipts, until) + beside


def large_bodies() -> dict[str, bytes]:
    """By path bodies that cost the most to read: of as many values as are accepted, and of many more."""
    thread = {"threadId": "t", "runId": "r", "tools": [], "context": [], "state": {}, "forwardedProps": {}}
    bodies: list[tuple[str, Any]] = []
    for count in (VALUES - 100, 400_000):
        messages = [{"id": "m", "role": "user", "content": "x"}] * (count // 7) + [{}]  # which is none: nothing is said
        bodies += [
            ("/v1/runs", {"agent": "talk", **{f"k{n}": n for n in range(count // 2)}}),
            ("/v1/responses", {"model": "talk", "input": [{}] * count}),
            ("/ag-ui/talk", {**thread, "messages": messages}),
        ]
    return {f"{path}?{n}": json.dumps(body).encode() for n, (path, body) in enumerate(bodies)}


async def answered_beside(web: httpx2.AsyncClient, tokens: list[str], seconds: float = 5.0) -> str:
    """How long `/livez` takes, by itself and while such bodies come, one after another on each path."""
    took: list[float] = []

    async def look() -> list[float]:
        took.clear()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            (await web.get("/livez")).raise_for_status()
            took.append((time.monotonic() - began) * 1e3)
        return sorted(took)

    async def send(path: str, body: bytes, number: int) -> None:
        head = _by(tokens, number) | {"Content-Type": "application/json"}
        while True:
            await web.post(path.partition("?")[0], content=body, headers=head)

    alone = await look()
    sending = [asyncio.create_task(send(path, body, n)) for n, (path, body) in enumerate(large_bodies().items())]
    try:
        beside = await look()
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    row = " | ".join(f"{each[len(each) // 2]:.0f} | {each[-1]:.0f}" for each in (alone, beside))
    head = "| `/livez`, ms alone: p50 | the slowest | while large bodies come (at most 250): p50 | the slowest |"
    return f"\n\n{head}\n|--:|--:|--:|--:|\n| {row} |"


def _all(pids: dict[str, int]) -> dict[str, Used]:
    return {name: used(pid) for name, pid in pids.items()}


async def _ready(web: httpx2.AsyncClient) -> None:
    for _ in range(300):
        try:
            if (await web.get("/readyz")).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        await asyncio.sleep(0.1)
    raise PerdureError("the gateway is not ready")


def _by(tokens: list[str], number: int) -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens[number % len(tokens)]}"}


async def _begun(web: httpx2.AsyncClient, tokens: list[str]) -> None:
    """Every session begins with a message, and is idle."""
    for number in range(SESSIONS):
        path, headers = f"/v1/sessions/load-{number}/messages", _by(tokens, number)
        said = {"text": "hello", "messageId": "first", "agent": "talk"}
        (await web.post(path, json=said, headers=headers)).raise_for_status()
    for number in range(SESSIONS):
        path = f"/v1/sessions/load-{number}/messages/first/reply"
        (await web.get(path, headers=_by(tokens, number))).raise_for_status()


async def _lost(web: httpx2.AsyncClient, tokens: list[str], folder: Path) -> tuple[int, int]:
    """How many messages have a receipt, and how many of those are not in their session's transcript once it rests."""
    wanted: dict[str, set[str]] = {}
    for line in (folder / "receipts.jsonl").read_text().splitlines():
        session, message = json.loads(line)
        wanted.setdefault(session, set()).add(message)
    lost = 0
    for session, messages in wanted.items():
        while True:
            answer = await web.get(f"/v1/sessions/{session}", headers=_by(tokens, int(session.rpartition("-")[2])))
            if answer.status_code != 429:
                shown = answer.raise_for_status().json()
                if shown["status"] == "idle":
                    break
            await asyncio.sleep(1)
        lost += len(messages - _messages(shown["entries"]))
    return sum(map(len, wanted.values())), lost


def _messages(entries: list[dict[str, Any]]) -> set[str]:
    return {str(entry.get("messageId")) for entry in entries}


def _table(
    folder: Path,
    before: dict[str, Used],
    moments: dict[str, tuple[float, dict[str, Used]]],
    silent: tuple[float, dict[str, Used]],
    pids: dict[str, int],
    receipts: tuple[int, int],
    until: float,
) -> str:
    with (folder / "of_stats.csv").open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["Name"] == "messages")
    counted = json.loads((folder / "read").read_text())
    (opened, at_open), (sent, at_sent), _ = moments["open"], moments["sent"], moments["read"]
    started = silent[0]
    memory = (silent[1]["gateway"].memory - before["gateway"].memory) / READERS * 1e3
    note({"watcher": {"count": READERS, "gateway_kb": round(memory, 1)}})
    lines = [
        "| streams | messages | a second | refused | lost | acceptance, ms: p50 | p99 | the slowest | events read | told of messages | broken streams | s until all was answered |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        f"| {READERS} | {receipts[0]} | {int(row['Request Count']) / (sent - started):.0f} | {row['Failure Count']} | {receipts[1]} "
        f"| {row['50%']} | {row['99%']} | {float(row['Max Response Time']):.0f} | {counted['events']} | {counted['told']} "
        f"| {counted['broken']} | {until:.0f} |",
        "",
        "| process | MB before | with all streams open | after the messages | CPU, % of a core, streams silent | under load |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in pids:
        idle = (silent[1][name].cpu - at_open[name].cpu) / (silent[0] - opened)
        load = (at_sent[name].cpu - silent[1][name].cpu) / (sent - silent[0])
        lines.append(
            f"| {name} | {before[name].memory:.0f} | {silent[1][name].memory:.0f} | {at_sent[name].memory:.0f} | {idle:.0%} | {load:.0%} |"
        )
    return "\n".join(lines)
