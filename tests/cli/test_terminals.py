"""What stands on a terminal, in a pipe, and where the encoding has no daggers (issue 20): views stand still, no word is broken."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import json
import os
import pty
import re
import struct
import termios
from typing import Any

import pytest
from rich.console import Console
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.cli._console import make_table
from perdure.cli._run_view import FittedView, run_table
from perdure.models.requests import RequestView
from perdure.runs.wire import CallView, RunView
from tests.forked_cli import ForkedCli
from tests.support import ROOT, agent, harness, perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")
LINES = 24


def view(calls: int) -> RunView:
    log = [RequestView(number=1, model="m", reason="first Request")]
    made = [
        CallView(id=f"1.{n}", tool="convert_the_recording", params={"n": n}, status="done", attempts=1)
        for n in range(calls)
    ]
    return RunView(
        run_id="r", log=log, calls=made, writes={f"1.{n}": f"†state.result_number_{n}" for n in range(calls)}
    )


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("calls", [1, 10, 60])
async def test_a_live_view_is_never_higher_than_the_terminal_and_ends_with_the_newest(width: int, calls: int) -> None:
    text = io.StringIO()
    console = Console(file=text, width=width, height=LINES, force_terminal=True, color_system=None)
    console.print(FittedView(view(calls)))
    lines = text.getvalue().rstrip("\n").splitlines()
    assert len(lines) < LINES
    assert all(len(line) <= width for line in lines)
    assert f"1.{calls - 1} " in lines[-1]
    assert ("lines above; 1 Request," in lines[0]) == (calls > 10)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
async def test_no_word_is_broken_however_narrow_it_is(width: int) -> None:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(run_table(view(3), width))
    lines = text.getvalue().splitlines()
    rows = [line.split() for line in lines if line.lstrip().startswith("1.")]
    assert [row[0] for row in rows[:3]] == ["1.0", "1.1", "1.2"]
    assert all(row[-1] == "done" for row in rows[:3])
    assert all(len(line) <= width for line in lines)


async def test_columns_give_way_in_their_order() -> None:
    def titles(width: int) -> list[str]:
        made = make_table(
            ("run", "why", "cost"), [("r" * 20, "w" * 30, "$1")], width, shrinkable=("why",), droppable=("cost", "why")
        )
        return [str(column.header) for column in made.columns]

    assert titles(60) == titles(40) == ["run", "why", "cost"]
    assert titles(32) == ["run", "why"]
    assert titles(25) == ["run"]


@tool(dangerous=True)
def remove(path: str) -> str:
    """Remove it."""
    return f"removed {path}"


async def on_terminal(*words: str, width: int, env: dict[str, str], keys: dict[str, bytes] | None = None) -> str:
    """What the command writes to a terminal of this width; `keys` are pressed when the words are there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, width, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = await asyncio.create_subprocess_exec(
        *(*await ForkedCli.command(), *words),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, "TERM": "xterm", **env},
        cwd=ROOT,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    text, pressed = "", dict(keys or {})
    async with asyncio.timeout(HANG):  # a terminal is read as it comes: nothing tells of its end but the process
        while process.returncode is None or text == "":
            try:
                text += os.read(ours, 65536).decode(errors="replace")
            except (BlockingIOError, OSError):
                await asyncio.sleep(0.02)
            for awaited in [awaited for awaited in pressed if awaited in text]:
                os.write(ours, pressed.pop(awaited))
    with contextlib.suppress(BlockingIOError, OSError):  # what it wrote last
        while piece := os.read(ours, 65536):
            text += piece.decode(errors="replace")
    os.close(ours)
    return text


def frames_on(text: str) -> list[str]:
    """What a terminal shows at the end, its scroll-back included: cursor movements are followed, as far as rich makes any."""
    rows, row = [""], 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
        if part == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif part == "\r" or not part:
            continue
        elif (up := re.fullmatch(r"\x1b\[(\d+)A", part)) is not None:
            row = max(row - int(up[1]), len(rows) - LINES, 0)
        elif part == "\x1b[2K":
            rows[row] = ""
        elif not part.startswith("\x1b"):
            rows[row] = part if not rows[row] else rows[row] + part
    return rows


@pytest.mark.parametrize(
    "width", [60, pytest.param(80, marks=pytest.mark.soak), pytest.param(200, marks=pytest.mark.soak)]
)
async def test_a_watched_run_leaves_one_picture(dev_server: WorkflowEnvironment, width: int) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    calls: list[dict[str, Any]] = [{"_tool": "remove", "path": f"/file/{n}"} for n in range(30)]
    document = agent("remove", config={"approval": {"ask": "never"}})
    async with harness(dev_server.client, [remove], [{"calls": calls, "output": "all gone"}], chunk=80) as it:
        handle = await it.start(document)
        text = await on_terminal("watch", handle.id, width=width, env=env)
    rows = frames_on(text)
    assert sum("[iter=1" in row for row in rows) == 1, "\n".join(rows)
    assert sum("1.29 tool_call" in row for row in rows) == 1
    assert "all gone" in rows[-2] + rows[-3] + rows[-4]


@pytest.mark.soak
async def test_the_demo_on_a_low_terminal_leaves_no_ghosts_and_says_which_keys_there_are() -> None:
    keys = {"[a]pprove or [r]eject?": b"x", "is not a valid key": b"a"}
    text = await on_terminal("demo", width=80, env={}, keys=keys)
    rows = frames_on(text)
    assert "'x' is not a valid key. Use one of: a (approve), r (reject), q (leave the demo)" in text
    assert sum("[iter=1" in row for row in rows) == 1, "\n".join(rows)
    assert "shrank by" in text


async def test_a_pipe_and_an_encoding_without_daggers(dev_server: WorkflowEnvironment) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host, "COLUMNS": ""}
    calls = [{"_tool": "remove", "path": "/früh", "_outputPath": "†state.gone"}]
    async with harness(dev_server.client, [remove], [{"calls": calls, "output": "†state.gone"}]) as it:
        view = await it.run(agent("remove", config={"approval": {"ask": "never"}}))
        piped = await perdure("show", view.run_id, env=env)
        plain = await perdure("show", view.run_id, env=env | {"PYTHONIOENCODING": "ascii"})
        as_json = await perdure("show", view.run_id, "--json", env=env | {"PYTHONIOENCODING": "ascii"})
    assert [line for line in piped.out.splitlines() if line != line.rstrip()] == []
    assert "removed /früh" in piped.out
    assert (plain.code, plain.err) == (0, "")
    assert "+gone" in plain.out
    assert "removed /fr?h" in plain.out
    assert json.loads(as_json.out)["output"] == "removed /früh"


@pytest.mark.parametrize(("number", "words"), [(0, "the given plan"), (1, "the history does not name")])
async def test_of_a_run_read_from_its_history_the_model_is_not_guessed(number: int, words: str) -> None:
    text = io.StringIO()
    shown = RunView(
        run_id="r",
        calls=[CallView(id=f"{number}.0", tool="look", params={}, status="done", attempts=1)],
        trouble="alone",
    )
    Console(file=text, width=200, color_system=None).print(run_table(shown, 200))
    assert words in text.getvalue()
    assert "alone" in text.getvalue()
