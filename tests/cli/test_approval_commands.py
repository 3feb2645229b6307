"""Deciding from the command line, and with Temporal's own (section 7)."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.hosting.server import find_program
from perdure.runs.wire import WAITING_ATTRIBUTE
from tests.cli.test_commands import one_line
from tests.forked_cli import ForkedCli
from tests.support import ROOT, harness, perdure
from tests.timeouts import HANG
from tests.workflows.test_approvals import TOOLS, asking, plan

pytestmark = pytest.mark.asyncio(loop_scope="session")


def settings(server: WorkflowEnvironment) -> dict[str, str]:
    return {"TEMPORAL_ADDRESS": server.client.service_client.config.target_host}


async def listed(env: dict[str, str], run_id: str, count: int) -> list[dict[str, Any]]:
    """What `approvals` lists of a run, once the server's index has it: that is the server's to say when."""
    async with asyncio.timeout(HANG):
        while True:
            command = await perdure("approvals", "--json", env=env)
            assert command.code == 0, command.err
            found = [one for one in json.loads(command.out) if one["runId"] == run_id]
            if len(found) == count:
                return found


async def test_r7_8_all_that_waits_is_listed_and_decided(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    env = settings(dev_server)
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text().replace('/c', '/c2'))"
    )
    with_editor = env | {"EDITOR": f"{sys.executable} {editor}", "VISUAL": ""}
    async with harness(dev_server.client, TOOLS, plan("/a", "/b", "/c", "/d", "/e")) as it:
        handle = await it.start(asking())
        await it.until_waiting(handle.id, *(f"1.{n}" for n in range(5)))
        rows = await listed(env, handle.id, 5)
        table = await perdure("approvals", handle.id, env=env)
        shown = await perdure("show", handle.id, env=env)
        approved = await perdure("approve", handle.id, "1.0", "--by", "Ann", "--json", env=env)
        rejected = await perdure("reject", handle.id, "1.1", "--reason", "still needed", env=env)
        edited = await perdure("edit", handle.id, "1.2", env=with_editor)
        other = json.dumps({"_tool": "archive", "path": "/d"})
        replaced = await perdure("replace", handle.id, "1.3", other, env=env)
        again = await perdure("approve", handle.id, "1.0", env=env)
        wrong = await perdure("edit", handle.id, "1.4", '{"path": [4]}', env=env)
        released = await perdure("policy", handle.id, "--ask", "never", env=env)
        result = await handle.result()
        ended = await perdure("approve", handle.id, "1.4", env=env)
        await listed(env, handle.id, 0)
        after = await perdure("show", handle.id, env=env)
    assert [row["call"] for row in rows] == [f"1.{n}" for n in range(5)]
    assert {key: rows[0][key] for key in ("agent", "tool", "params", "reason")} == {
        "agent": "test",
        "tool": "remove",
        "params": {"path": "/a"},
        "reason": "remove is dangerous",
    }
    assert table.out.count("remove is dangerous") == 5
    assert "waits for a person" in shown.out
    assert json.loads(approved.out) == {"call": "1.0", "decision": "approve"}
    assert [command.code for command in (approved, rejected, edited, replaced, released)] == [0] * 5, edited.err
    assert one_line(again.err) == "perdure: nothing changed: 1.0 already has a decision: approve by Ann"
    assert one_line(wrong.err).startswith("perdure: nothing changed: 1.4 would not be valid: $.path")
    assert one_line(ended.err) == f"perdure: nothing changed: the run '{handle.id}' has ended"
    assert json.loads(released.out)["ask"] == "never"
    assert [call.status for call in result.calls] == ["done", "rejected", "done", "done", "done"]
    assert result.state["r2"] == "removed /c2"
    assert "approve by Ann" in after.out


async def test_temporals_own_command_line_approves(dev_server: WorkflowEnvironment) -> None:
    temporal = find_program("temporal")
    assert temporal is not None
    async with harness(dev_server.client, TOOLS, plan("/by-temporal")) as it:
        handle = await it.start(asking())
        await it.until_waiting(handle.id, "1.0")
        address = settings(dev_server)["TEMPORAL_ADDRESS"]
        process = await asyncio.create_subprocess_exec(
            *(temporal, "workflow", "signal", "--address", address, "--workflow-id", handle.id),
            *("--name", "approve", "--input", '{"call": "1.0"}'),
            stdout=asyncio.subprocess.DEVNULL,
        )
        assert await asyncio.wait_for(process.wait(), HANG) == 0
        result = await handle.result()
    assert [call.status for call in result.calls] == ["done"]


async def test_walking_through_them_with_keys(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, plan("/one", "/two")) as it:
        handle = await it.start(asking())
        await it.until_waiting(handle.id, "1.0", "1.1")
        ours, theirs = pty.openpty()
        env = {**os.environ, **settings(dev_server), "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "120"}
        process = await asyncio.create_subprocess_exec(
            *(*await ForkedCli.command(), "approvals", handle.id, "--watch", "--by", "Ann"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            cwd=ROOT,
        )
        screen = await _screen(ours)
        text = await _read_until(screen, "[q]uit")
        assert '"path": "/one"' in text
        os.write(ours, b"a")
        text = await _read_until(screen, "[q]uit")
        assert '"path": "/two"' in text
        os.write(ours, b"j")
        await _read_until(screen, "reason")
        os.write(ours, b"not this one\n")
        result = await asyncio.wait_for(handle.result(), HANG)
        process.terminate()
        await process.wait()
        os.close(ours)
        os.close(theirs)
    assert [call.status for call in result.calls] == ["done", "rejected"]
    assert result.calls[1].reason == "rejected by Ann: not this one"


async def _screen(terminal: int) -> asyncio.StreamReader:
    screen = asyncio.StreamReader()
    file = os.fdopen(os.dup(terminal), "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(screen), file)
    return screen


async def _read_until(screen: asyncio.StreamReader, words: str) -> str:
    text = ""
    try:
        async with asyncio.timeout(HANG):
            while words not in text:
                text += (await screen.read(4096)).decode(errors="replace")
    except TimeoutError:
        raise AssertionError(f"{words!r} is not in {text!r}") from None
    return text


async def test_the_demo_asks_whoever_sits_at_the_terminal() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "120"}
    process = await asyncio.create_subprocess_exec(
        *(*await ForkedCli.command(), "demo"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        cwd=ROOT,
    )
    os.close(theirs)
    screen = await _screen(ours)
    await _read_until(screen, "[a]pprove or [r]eject?")
    os.write(ours, b"r")
    text = await _read_until(screen, "shrank by")
    assert await asyncio.wait_for(process.wait(), HANG) == 0
    os.close(ours)
    assert "rejected by the demo's user: no reason was given" in " ".join(text.split())
    assert "deleted" not in text


async def test_a_mistake_is_one_line(dev_server: WorkflowEnvironment) -> None:
    env = settings(dev_server)
    lines = [
        one_line((await perdure(*arguments, env=env)).err)
        for arguments in (
            ("approve", "nobody", "1.0"),
            ("approvals", "nobody"),
            ("edit", "nobody", "1.0", "{oops"),
            ("policy", "nobody"),
            (
                "run",
                "perdure/demo/agents/devops.json",
                "--ask",
                "sometimes",
                "--input",
                '{"request": "x", "folder": "/"}',
            ),
        )
    ]
    assert lines[0] == "perdure: nothing changed: the run 'nobody' does not exist in namespace 'default'"
    assert lines[1] == "perdure: there is no run 'nobody' in namespace 'default'"
    assert lines[2].startswith("perdure: the argument JSON is not valid JSON")
    assert lines[3] == "perdure: nothing to change: give --ask, --tool or --set"
    assert "is not one of never, untrusted, dangerous, unsafe, always" in lines[4]


async def test_a_namespace_that_does_not_know_the_attribute_is_one_clear_line() -> None:
    from perdure.hosting.server import embedded_server

    async with embedded_server(ui=False) as server:
        refused = await perdure("approvals", env=settings(server))
    assert refused.code == 1
    assert f"lacks the search attribute {WAITING_ATTRIBUTE}" in one_line(refused.err)
