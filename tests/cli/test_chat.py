"""`perdure chat`, in terminals of 80 and 200 columns, and in a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import termios
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, ToolContext, tool
from perdure.cli._chat import Chat
from perdure.errors import RunNotFoundError, ServerError
from perdure.runs.events import Event
from perdure.sessions.wire import Receipt
from perdure.testing.scripted_model import ChatRequest
from tests.cli.test_terminals import LINES, remove
from tests.forked_cli import ForkedCli
from tests.support import ROOT, Command, Harness, agent, harness, storage_fixture
from tests.timeouts import HANG
from tests.workflows.test_media import connect as connect_with_storage

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool(timeout=60, retries=0)
async def hold() -> str:
    """Work until it is cancelled."""
    await asyncio.sleep(50)
    return "held"


def script(request: ChatRequest) -> dict[str, Any]:
    """Does what was said last, and says it again."""
    said = [n for n, m in enumerate(request.messages) if str(m["content"]).startswith("ann: ")]
    last = str(request.messages[said[-1]]["content"]).removeprefix("ann: ")
    after = json.dumps(request.messages[said[-1] + 1 :])
    news = next((text for text in ("change it",) if text in json.dumps(request.messages)), None)
    if news and "A new message" in request.text:
        return {"calls": [], "output": f"re: {news}"}
    for word, call in (
        ("remove", {"_tool": "remove", "path": "/old"}),
        ("colour", {"_tool": "ask_person", "question": "Which one?"}),
        ("hold", {"_tool": "hold"}),
    ):
        if word in last and "# results" not in after and "rejected" not in after:
            return {"calls": [call], "output": None}
    return {"calls": [], "output": f"re: {last}"}


def written(folder: Path, **config: Any) -> str:
    document = {**agent("remove", "hold", "ask_person", config=config), "name": "desk", "schema": {"type": "string"}}
    path = folder / "desk.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


@pytest.fixture
def desk(tmp_path: Path) -> str:
    """An agent file."""
    return written(tmp_path)


def settings(it: Harness) -> dict[str, str]:
    return {
        "TEMPORAL_ADDRESS": it.client.service_client.config.target_host,
        "PERDURE_TASK_QUEUE": it.task_queue,
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }


async def piped(it: Harness, *words: str, lines: str, **variables: str) -> Command:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "PERDURE_"))}
    process = await asyncio.create_subprocess_exec(
        *(*await ForkedCli.command(), "chat", *words, "--sender", "ann"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean | settings(it) | variables,
        cwd=ROOT,
    )
    out, err = await asyncio.wait_for(process.communicate(lines.encode()), HANG)
    assert process.returncode is not None
    return Command(process.returncode, out.decode(), err.decode())


async def test_in_a_pipe_a_line_in_is_a_message_and_its_answer_comes_out(
    desk: str, dev_server: WorkflowEnvironment
) -> None:
    key = f"chat-{uuid.uuid4().hex[:6]}"
    async with harness(dev_server.client, [remove, hold], script) as it:
        first = await piped(it, desk, "--session", key, lines="hello\n\n/help\nand you?\n/quit\nnever said\n")
        again = await piped(it, desk, "--session", key, lines="once more")
        last = it.model.requests[-1].text
    assert (first.code, first.out) == (0, "re: hello\nre: and you?\n")
    assert "/stop" in first.err
    assert (again.code, again.out) == (0, "re: once more\n")
    assert "re: and you?" in last  # the conversation goes on


storage = storage_fixture()


async def test_a_chat_attaches_files(desk: str, dev_server: WorkflowEnvironment, tmp_path: Path, storage: Path) -> None:
    (tmp_path / "notes.md").write_text("the lamp is green", encoding="utf-8")
    given = {"PERDURE_STORAGE": str(storage)}
    client = await connect_with_storage(dev_server)
    async with harness(client, [remove, hold], script) as it:
        lines = f"/file {tmp_path}/notes.md\nread it\nand now?\n/file {tmp_path}/none.md\nnever said\n"
        found = await piped(it, desk, lines=lines, **given)
        first, second = it.model.requests
    assert found.code == 2
    assert "attached to your next message: [text/markdown, 17 bytes, notes.md, sha256:" in found.err
    assert found.err.endswith(f"perdure: /file: {tmp_path}/none.md cannot be read: No such file or directory\n")
    assert "the lamp is green" in str(first.messages[-1])
    assert second.messages[-1]["content"].endswith("and now?")


@tool(safe=True)
def customer(ctx: ToolContext) -> str:
    """Return the customer's number."""
    return str(ctx.context["number"])


async def test_a_chat_gives_the_context_that_tools_read(tmp_path: Path, dev_server: WorkflowEnvironment) -> None:
    def says(_: ChatRequest) -> dict[str, Any]:
        return {"calls": [{"_tool": "customer", "_outputPath": "†state.c"}], "output": "{†state.c}"}

    document = {**agent("customer"), "name": "desk", "schema": {"type": "string"}}
    document["caller_context"] = {"properties": {"number": {"type": "string"}}, "required": ["number"]}
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    async with harness(dev_server.client, [customer], says) as it:
        found = await piped(it, str(path), "--context", '{"number": "C-17"}', lines="hello\n")
        without = await piped(it, str(path), lines="hello\n")
    assert (found.code, found.out) == (0, "C-17\n")
    assert (without.code, without.out) == (2, "")
    assert without.err == "perdure: --context: the context breaks the agent's schema for it: $ lacks 'number'\n"


async def test_in_a_pipe_what_has_no_answer_is_one_line_and_the_exit_code(
    tmp_path: Path, dev_server: WorkflowEnvironment
) -> None:
    desk = written(tmp_path, max_requests=1)
    async with harness(dev_server.client, [remove, hold], lambda _: {"calls": [], "output": 5}) as it:
        found = await piped(it, desk, lines="bad\n")
    assert (found.code, found.out) == (1, "")
    assert "perdure: " in found.err
    assert "Traceback" not in found.err


async def test_in_a_pipe_ctrl_c_leaves_also_while_nothing_comes(desk: str, dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [remove, hold], script) as it:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "PERDURE_"))}
        process = await asyncio.create_subprocess_exec(
            *(*await ForkedCli.command(), "chat", desk, "--sender", "ann"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=clean | settings(it),
            cwd=ROOT,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        assert await process.stdout.readline() == b"re: hello\n"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130  # what hangs, pytest ends


class Told:
    """A session whose events break off: the reader goes on behind the last that it was given."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    async def show(self) -> Any:
        raise RunNotFoundError("there is none")

    async def send(self, _: str, **__: Any) -> Receipt:
        return Receipt(run_id="r", message_id="m", position=0, accepted_at="", done="started")

    async def events(self, from_: str | None) -> AsyncIterator[Event]:
        self.asked.append(from_)
        yield Event("reply", "end", "", "r", {"text": f"part {len(self.asked)}"}, f"{len(self.asked)}.0.0")
        if len(self.asked) < 3:
            raise ServerError("the server is gone")


async def test_r10_14_where_nobody_tells_it_goes_on_behind_the_last_event() -> None:
    told, said = Told(), list[str]()
    session: Any = told
    client: Any = None
    talk = Chat(client, session, "ann", {}, lambda line: said.append(line.plain), lambda: None)
    await talk.begin()
    assert await talk.send("hello")
    await asyncio.wait_for(talk.listen(), HANG)
    assert told.asked == [None, "1.0.0", "2.0.0"]
    assert said == ["part 1", "part 2", "part 3", "the session has ended"]
    assert not await talk.send("/quit")


class Terminal:
    """A chat in a terminal of its own: what it shows is read as it comes, for nothing tells of it but the bytes."""

    def __init__(self, ours: int, process: asyncio.subprocess.Process) -> None:
        self._ours, self.process = ours, process
        self.text = ""
        self._seen = 0

    async def until(self, awaited: str) -> None:
        """Read on until this is shown behind what was awaited before."""
        async with asyncio.timeout(HANG):
            while awaited not in self.text[self._seen :]:
                assert self.process.returncode is None, self.text[-2000:]
                await self._read()
        self._seen = self.text.index(awaited, self._seen) + len(awaited)

    async def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    async def end(self) -> int:
        """Read to the end; the exit code."""
        async with asyncio.timeout(HANG):
            while self.process.returncode is None:
                await self._read()
        for _ in range(10):  # what it wrote last
            await self._read()
        return self.process.returncode

    async def _read(self) -> None:
        try:
            self.text += os.read(self._ours, 65536).decode(errors="replace")
        except (BlockingIOError, OSError):
            await asyncio.sleep(0.02)


@asynccontextmanager
async def terminal(it: Harness, *words: str, width: int = 80) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, width, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = await asyncio.create_subprocess_exec(
        *(*await ForkedCli.command(), "chat", *words, "--sender", "ann"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, "TERM": "xterm", **settings(it)},
        cwd=ROOT,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        yield Terminal(ours, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(ours)


async def idles(it: Harness, key: str) -> None:
    """Until nothing runs in the session: what is said next begins a run."""
    session = Perdure(it.client).session(key)
    async with asyncio.timeout(HANG):
        while True:
            if (await session.show()).status == "idle":
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("width", [80, pytest.param(200, marks=pytest.mark.soak)])
async def test_in_a_terminal_answers_calls_and_approvals_in_place(
    desk: str, width: int, dev_server: WorkflowEnvironment
) -> None:
    key = f"chat-{uuid.uuid4().hex[:6]}"
    async with (
        harness(dev_server.client, [remove, hold], script) as it,
        terminal(it, desk, "--session", key, width=width) as shown,
    ):
        await shown.until("› ")
        for said, then in (
            ("hello", ["re: hello"]),
            (
                "remove it",
                ["remove waits for your decision", "a", "remove approved by ann", "→ removed /old", "re: remove it"],
            ),
            ("remove more", ["remove waits for your decision", "r not that", "rejected", "re: remove more"]),
            ("a colour", ["Which one?", "blue", "→ blue", "re: a colour"]),
        ):
            await shown.press(f"{said}\r")
            for awaited in then:
                if len(awaited) <= 4 or awaited == "r not that":
                    await shown.press(f"{awaited}\r")
                else:
                    await shown.until(awaited)
            await idles(it, key)
        await shown.press("/nonsense\r")
        await shown.until("/nonsense is not a command")
        await shown.press("/new\r")
        await shown.until("  new")
        await shown.press("/quit\r")
        assert await shown.end() == 0
    assert f"continue the session with: perdure chat {desk} --session {key}" in shown.text
    assert "Traceback" not in shown.text
    assert shown.text.count("\x1b[?1049h") == 0  # no other screen: what was said stays in the scroll-back


async def test_a_message_while_it_works_steers_and_ctrl_c_stops_and_leaves(
    desk: str, dev_server: WorkflowEnvironment
) -> None:
    key = f"chat-{uuid.uuid4().hex[:6]}"
    async with (
        harness(dev_server.client, [remove, hold], script) as it,
        terminal(it, desk, "--session", key) as shown,
    ):
        await shown.until("› ")
        await shown.press("hold on\r")
        await shown.until("1.0 hold()")
        await shown.press("change it\r")
        await shown.until("steered")
        await shown.press("\x03")
        await shown.until("press Ctrl-C again to leave")
        await shown.until("no answer: stopped by 'ann'")
        await idles(it, key)
        await shown.press("hello\r")
        await shown.until("re: hello")
        await shown.press("\x03")
        await shown.until("press Ctrl-C again to leave")
        await shown.press("\x03")
        assert await shown.end() == 130
    assert "Traceback" not in shown.text


async def test_a_chat_goes_on_with_what_was_said_and_what_waits(desk: str, dev_server: WorkflowEnvironment) -> None:
    key = f"chat-{uuid.uuid4().hex[:6]}"
    async with harness(dev_server.client, [remove, hold], script) as it:
        async with terminal(it, desk, "--session", key) as shown:
            await shown.until("› ")
            await shown.press("remove it\r")
            await shown.until("remove waits for your decision")
            await shown.press("\x04")
            assert await shown.end() == 0
        async with terminal(it, desk, "--session", key) as shown:
            await shown.until("ann: remove it")
            await shown.until("remove waits for your decision")
            await shown.press("a\r")
            await shown.until("re: remove it")
