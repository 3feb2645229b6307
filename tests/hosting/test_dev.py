"""`perdure dev` loads tools and agents anew; what runs keeps the code that it began with (R19.9)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Perdure, Run
from perdure.hosting.dev import RESTARTS
from perdure.hosting.server import free_port
from perdure.testing.scripted_model import ChatRequest, ScriptedModel
from tests.forked_cli import ForkedCli
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOLS = '''
from perdure import tool
from words import WORD

@tool(dangerous=True)
def gate() -> bool:
    """Ask."""
    return True

@tool(safe=True)
def word() -> str:
    """The word of this version."""
    return WORD
'''
AGENT: dict[str, Any] = {
    "name": "speaker",
    "context": [{"type": "system", "text": "Speak."}, *({"type": "tool", "tool": name} for name in ("gate", "word"))],
    "schema": {"type": "string"},
}


def script(request: ChatRequest) -> dict[str, Any]:
    """Ask in the first Request, and return the word in the second."""
    if "asked" not in request.text:
        return {"calls": [{"_tool": "gate", "_outputPath": "†state.asked"}], "output": None}
    return {"calls": [{"_tool": "word", "_outputPath": "†state.word"}], "output": "†state.word"}


@dataclass
class Dev:
    """`perdure dev` as a process."""

    process: asyncio.subprocess.Process
    folder: Path
    port: int
    lines: list[str] = field(default_factory=list)

    async def until(self, words: str) -> str:
        """Return the next line that has these words."""
        assert self.process.stderr is not None
        while True:
            line = (await asyncio.wait_for(self.process.stderr.readline(), HANG)).decode()
            self.lines.append(line)
            assert line, f"it has ended without {words!r}: {''.join(self.lines)}"
            if words in line:
                return line.strip()

    async def perdure(self) -> Perdure:
        return await Perdure.connect(f"127.0.0.1:{self.port}", task_queue="perdure")

    def write(self, name: str, text: str) -> None:
        """Write a file in one step: a file that is seen empty first counts as changed twice."""
        new = self.folder / f"{name}.new"
        new.write_text(text, encoding="utf-8")
        new.replace(self.folder / name)


@asynccontextmanager
async def dev(folder: Path, *words: str, code: int = 0, ends: bool = True) -> AsyncIterator[Dev]:
    """Started with the tools above, and ended by SIGTERM."""
    (folder / "agents").mkdir(exist_ok=True)
    made = {"mytools.py": TOOLS, "words.py": "WORD = 'old'\n", "agents/speaker.json": json.dumps(AGENT)}
    for name, text in made.items():
        if not (folder / name).exists():
            (folder / name).write_text(text, encoding="utf-8")
    port = free_port()
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "PERDURE_"))}
    async with ScriptedModel(script, strict=False) as model:
        process = await asyncio.create_subprocess_exec(
            *await ForkedCli.command(),
            *("dev", "--gateway-port", "0", "--port", str(port), "--ui-port", str(free_port())),
            *("--tools", "mytools", "--grace", "60", *words),
            cwd=folder,
            env={**clean, "OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"},
            stderr=asyncio.subprocess.PIPE,
        )
        found = Dev(process, folder, port)
        try:
            yield found
            if ends:
                process.send_signal(signal.SIGTERM)
            _, err = await asyncio.wait_for(process.communicate(), HANG)
            assert process.returncode == code, "".join(found.lines) + err.decode()
            found.lines += err.decode().splitlines()
        except TimeoutError:
            raise AssertionError("it hangs after: " + "".join(found.lines)) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def begun(perdure: Perdure) -> Run[Any]:
    """A run that waits for a person."""
    run = await perdure.start(Agent.of(AGENT), id=f"speaker-{uuid.uuid4().hex[:8]}")
    async with asyncio.timeout(HANG):
        async for view in run.views():
            if view.waiting:
                return run
    raise AssertionError("it ended")


async def ended(run: Run[Any]) -> Any:
    """Its output, once a person has approved."""
    await run.approve("1.0", by="ann")
    return await run.result(HANG)


async def test_a_run_goes_on_with_its_code_and_a_new_one_has_the_new_code(tmp_path: Path) -> None:
    async with dev(tmp_path) as it:
        assert f"; in other terminals: export TEMPORAL_ADDRESS=localhost:{it.port}" in await it.until("Temporal ")
        await it.until("started")
        perdure = await it.perdure()
        before = await begun(perdure)
        it.write("words.py", "WORD = 'new'\n")
        assert await it.until("changed") == "words.py changed: new runs use the new code"
        after = await begun(perdure)
        # The word is a later Request's: the run stays with its code to its end.
        assert [await ended(run) for run in (after, before)] == ["new", "old"]
        it.write("words.py", "WORD = 'newest'\n")
        await it.until("draining: accepts no new work")  # the first worker, whose runs have all ended
        assert (await before.view()).status == "completed"  # the newest one answers


LEAVES_SLOWLY = """
import atexit, pathlib, sys, time
def leave():
    print("leaves", file=sys.stderr, flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
atexit.register(leave)
"""
"""A worker's process that ends when there is a file `go`: its signal handlers are gone by then."""


@pytest.mark.parametrize("interrupts", [pytest.param(1, marks=pytest.mark.soak), 2])
async def test_an_interrupt_that_meets_a_worker_after_its_draining_is_no_failure(
    tmp_path: Path, interrupts: int
) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS + LEAVES_SLOWLY, encoding="utf-8")
    async with dev(tmp_path, ends=False) as it:
        await it.until("started")
        for word in ("new", "newest"):
            it.write("words.py", f"WORD = {word!r}\n")
            await it.until("changed")
        await it.until("leaves")  # the first worker: it has no run
        it.process.send_signal(signal.SIGINT)
        for _ in ("the former one", "the current one"):
            await it.until("leaves")
        if interrupts == 1:
            it.write("go", "")
        else:
            it.process.send_signal(signal.SIGINT)  # it ends both, without the file


async def test_a_fault_is_one_line_and_the_code_before_stays(tmp_path: Path) -> None:
    async with dev(tmp_path) as it:
        await it.until("started")
        perdure = await it.perdure()
        it.write("words.py", "WORD = 'none'\nWORD = (\n")
        assert await it.until("changed") == (
            "words.py changed: the module 'mytools' cannot be imported: SyntaxError: '(' was never closed (words.py, line 2); the previous code stays in use"
        )
        it.write("agents/speaker.json", "{")  # words.py is not right yet: that is said first
        assert "(words.py, line 2); the previous code stays in use" in await it.until("changed")
        assert await ended(await begun(perdure)) == "old"
        it.write("words.py", "WORD = 'new'\n")
        assert "speaker.json is not valid JSON" in await it.until("changed")
        it.write("agents/speaker.json", json.dumps(AGENT))
        assert await it.until("changed") == "speaker.json changed: new runs use the new code"
        assert await ended(await begun(perdure)) == "new"


async def test_a_fault_at_the_start_is_one_line_with_a_gateway_too(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/speaker.json").write_text("{", encoding="utf-8")
    async with dev(tmp_path, "--gateway-port", str(free_port()), code=2, ends=False) as it:
        await it.until("Gateway")
    (line,) = it.lines[it.lines.index(next(each for each in it.lines if "Gateway" in each)) + 1 :]
    assert line.startswith("perdure: agents/speaker.json is not valid JSON")


async def test_runs_of_an_earlier_dev_go_on_with_the_code_of_now(tmp_path: Path) -> None:
    database = str(tmp_path / "dev.db")
    async with dev(tmp_path, "--db", database) as it:
        await it.until("started")
        run = await begun(await it.perdure())
    (tmp_path / "words.py").write_text("WORD = 'new'\n", encoding="utf-8")
    async with dev(tmp_path, "--db", database, "--no-reload") as it:
        await it.until("started")
        perdure = await it.perdure()
        assert await ended(perdure.get_run(run.id)) == "new"
        assert await ended(await begun(perdure)) == "new"


PRINTS_ITSELF = """
import os, sys
print("imported by", os.getpid(), file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("db", [False, True])
async def test_a_worker_that_dies_is_started_again_until_it_has_died_too_often(tmp_path: Path, db: bool) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS + PRINTS_ITSELF, encoding="utf-8")
    words = ["--db", "dev.db"] if db else []
    async with dev(tmp_path, *words, code=1, ends=False) as it:
        await it.until("imported by")  # dev itself
        for count in range(RESTARTS + 1):
            worker = int((await it.until("imported by")).split()[-1])
            await it.until("another one has started" if count else "started")
            if count == 0:
                run = await begun(await it.perdure())
            elif count == 1:
                assert await ended(run) == "old"
            os.kill(worker, signal.SIGKILL)
        line = await it.until("dev stops")
    fate = (
        "go on at the next start with --db dev.db"
        if db
        else "are lost: start dev with --db FILE to keep the runs of a later end"
    )
    assert line == f"the worker ended unexpectedly (signal 9); dev stops, and its runs {fate}"


HANGS = """
import os, pathlib, signal, sys, threading
{more}
print("imports", os.getpid(), file=sys.stderr, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(
    "more",
    ["", pytest.param("signal.signal(signal.SIGTERM, signal.SIG_IGN)", marks=pytest.mark.soak)],  # dev waits 11 seconds
    ids=["plain", "deaf"],
)
async def test_an_interrupt_in_the_middle_of_a_reload_ends_all_of_it(tmp_path: Path, more: str) -> None:
    """A module that never ends its import, also one that ignores the signal, holds up nothing and stays nowhere."""
    async with dev(tmp_path, "--grace", "1", ends=False) as it:
        await it.until("started")
        it.write("words.py", HANGS.format(more=more))
        reloading = int((await it.until("imports")).split()[-1])
        it.process.send_signal(signal.SIGINT)
        await it.until("draining: accepts no new work")  # the worker of the code before
    assert "changed" not in "".join(it.lines)
    with pytest.raises(ProcessLookupError):
        os.kill(reloading, 0)


async def test_a_killed_dev_leaves_no_server(tmp_path: Path) -> None:
    async with dev(tmp_path, ends=False, code=-signal.SIGKILL) as it:
        await it.until("started")
        server, _ = await asyncio.open_connection("127.0.0.1", it.port)
        it.process.kill()
        async with asyncio.timeout(HANG):
            with contextlib.suppress(ConnectionResetError):
                await server.read()  # to the end, which is the server's
