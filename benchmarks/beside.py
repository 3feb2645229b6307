"""Perdure's own commands as processes beside a benchmark, and what any process has used, as Linux tells it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Used:
    """CPU seconds so far, and resident memory in MB."""

    cpu: float
    memory: float

    def __sub__(self, other: Used) -> Used:
        return Used(self.cpu - other.cpu, self.memory - other.memory)


def used(pid: int) -> Used:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Used((int(fields[11]) + int(fields[12])) / _TICK, int(fields[21]) * _PAGE / 1e6)


def server_pid() -> int:
    """The dev server's, which this process has started."""
    children = [int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()]
    return next(pid for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith("temporal"))


@asynccontextmanager
async def command(*words: str, **environment: str) -> AsyncIterator[int]:
    """`perdure WORDS` as a process, until the context ends; its id."""
    given: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    arguments = ("-m", "perdure", *words, "--log-level", "warning")
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=given)
    try:
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


def worker(address: str, queue: str, model_url: str) -> AbstractAsyncContextManager[int]:
    """A worker with the benchmarks' tools; its process."""
    words = ("worker", "--tools", "benchmarks.tools", "--task-queue", queue, "--grace", "1")
    return command(*words, TEMPORAL_ADDRESS=address, OPENAI_BASE_URL=model_url, OPENAI_API_KEY="scripted")
