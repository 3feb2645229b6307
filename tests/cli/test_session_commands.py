"""`perdure agent` and `perdure session`: what scripts rely on (section 11 of the issue's last paragraph)."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import socket
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment
from typer.testing import CliRunner

from perdure import Agent, Perdure
from perdure.cli._session_commands import _sender
from perdure.cli.app import app
from perdure.sessions.wire import END
from tests.forked_cli import ForkedCli
from tests.support import Command, harness, perdure
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO, HOLD, Gate, echo

pytestmark = pytest.mark.asyncio(loop_scope="session")

Cli = Callable[..., Awaitable[Command]]


def commands(server: WorkflowEnvironment) -> Cli:
    """The command line in this process: what it prints, and its exit code."""
    env = {"TEMPORAL_ADDRESS": server.client.service_client.config.target_host, "COLUMNS": "160"}

    async def run(*arguments: str) -> Command:
        found = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=env)
        return Command(found.exit_code, found.stdout, found.stderr)

    return run


def write(folder: Path, document: Any) -> str:
    path = folder / "agent.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


async def test_a_conversation(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    perdure, key, me = commands(dev_server), f"cli-{uuid.uuid4().hex[:6]}", getpass.getuser()
    async with harness(dev_server.client, [], echo) as it:
        how = ("--agent", write(tmp_path, ECHO), "--task-queue", it.task_queue)
        said = await perdure("agent", key, "hello", *how)
        assert (said.code, said.out, said.err) == (0, f"re: {me}: hello\n", "")
        receipt = await perdure("agent", key, "more", "--id", "m2", "--mode", "followup", "--json", *how)
        assert receipt.code == 0
        found = json.loads(receipt.out)
        assert list(found) == ["runId", "messageId", "position", "acceptedAt", "done"]
        assert (found["messageId"], found["position"], found["done"]) == ("m2", 0, "started")
        waited = await perdure("agent", "wait", found["runId"], "--json")
        assert (waited.code, list(json.loads(waited.out))) == (0, ["status", "startedAt", "endedAt"])
        assert json.loads(waited.out)["status"] == "ok"
        assert (await perdure("agent", "wait", "m2", "--session", key)).out == "ok\n"
        again = await perdure("agent", key, "more", "--id", "m2", "--mode", "followup", "--json", *how)
        assert again.out == receipt.out
        refused = await perdure("agent", key, "another", "--id", "m2", "--json", *how)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err == "perdure: the id 'm2' belongs to another message of this session\n"
        shown = json.loads((await perdure("session", "show", key, "--json")).out)
        assert list(shown) == ["session", "agent", "status", "queue", "entries", "archivedThrough"]
        assert json.loads((await perdure("session", "show", key, "--all", "--json")).out) == shown
        assert (shown["session"], shown["agent"], shown["status"], shown["queue"]) == (key, "echo", "idle", [])
        message, _, reply = shown["entries"][:3]
        assert message["type"] == "message"
        assert {"at", "messageId", "sender", "text", "mode", "runId"} <= set(message)
        assert reply["type"] == "reply"
        assert (reply["text"], reply["runId"]) == (f"re: {me}: hello", message["runId"])
        plain = await perdure("session", "show", key)
        assert f"{me}: hello" in plain.out
        assert f"→ re: {me}: hello" in plain.out
        foreign = await perdure("session", "show", key, "--tenant", "evil")
        assert (foreign.code, foreign.err) == (
            1,
            f"perdure: there is no session '{key}' in namespace 'default' for tenant 'evil'; found with no tenant (without --tenant)\n",
        )
        for command in ("new", "reset", "stop"):
            done = await perdure("session", command, key, "--json")
            assert (done.code, json.loads(done.out)["runId"]) == (0, None)
        assert (await perdure("session", "delete", key, "--yes")).out == f"{key}: deleted\n"
        assert (await perdure("session", "show", key)).code == 1
        nobody = await perdure("agent", f"{key}-new", "hello")
        assert (
            nobody.err == f"perdure: there is no session '{key}-new' in namespace 'default'; --agent AGENT begins it\n"
        )


async def test_r10_1_a_command_that_no_worker_answers_ends_in_time(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    perdure, key = commands(dev_server), f"cli-{uuid.uuid4().hex[:6]}"
    monkeypatch.setattr("perdure.client.session_operations.ANSWERS_WITHIN", 1.0)
    how = ("--agent", write(tmp_path, ECHO), "--task-queue", key)
    for command in (
        ("agent", key, "hi", *how),
        ("session", "withdraw", key, "m1"),
        ("session", "delete", key, "--yes"),
    ):
        ended = await perdure(*command)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith(f"perdure: no worker answers for the session '{key}'")


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "silent"])
async def test_r10_1_a_command_without_a_server_ends_in_time_with_one_line(tmp_path: Path, *, silent: bool) -> None:
    """Without a server: nobody listens there, or somebody who never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    if not silent:
        listener.close()
    env = {"TEMPORAL_ADDRESS": address}
    commands = (
        ("agent", "desk", "hi", "--agent", write(tmp_path, ECHO)),
        ("session", "withdraw", "desk", "m1"),
        ("session", "delete", "desk", "--yes"),
        ("session", "redeliver", "desk", "run-1/1"),
        ("approve", "run-1", "1.0"),
    )
    with contextlib.closing(listener):  # the SDK gives up after 30 s
        ended = await asyncio.gather(*(perdure(*command, env=env) for command in commands))
    for command, each in zip(commands, ended, strict=True):
        assert (each.code, each.out) == (1, ""), command
        (line,) = each.err.splitlines()
        assert line.startswith("perdure: "), line
        assert address in line
        assert "TEMPORAL_ADDRESS" in line


async def test_what_waits_and_what_is_taken_back(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    perdure, key, gate = commands(dev_server), f"cli-{uuid.uuid4().hex[:6]}", Gate()
    async with harness(dev_server.client, [gate.tool], gate.answer) as it:
        how = ("--agent", write(tmp_path, HOLD), "--task-queue", it.task_queue)
        first = json.loads((await perdure("agent", key, "hold", "--json", *how)).out)
        await gate.asked.wait()
        queued = json.loads((await perdure("agent", key, "x", "--id", "x", "--mode", "followup", "--json", *how)).out)
        assert (queued["done"], queued["position"]) == ("queued", 1)
        shown = json.loads((await perdure("session", "show", key, "--json")).out)
        assert shown["status"] == "running"
        assert [(one["messageId"], one["text"], one["mode"]) for one in shown["queue"]] == [("x", "x", "followup")]
        late = await perdure("agent", "wait", first["runId"], "--timeout", "0.2", "--json")
        assert (late.code, json.loads(late.out)["status"]) == (3, "timeout")
        busy = await perdure("agent", key, "y", "--mode", "reject", *how)
        assert (busy.code, busy.err) == (
            1,
            "perdure: a run is active, and a message with mode reject does not wait\n",
        )
        assert (await perdure("session", "withdraw", key, "x")).out == "x: withdrawn\n"
        assert (await perdure("session", "withdraw", key, "nothing")).code == 1
        stopped = await perdure("session", "stop", key)
        assert (stopped.code, stopped.out) == (0, "stopped\n")
        ended = await perdure("agent", "wait", first["runId"])
        assert ended.code == 1
        assert ended.out.startswith("error: stopped by ")
        wrong = await perdure("agent", key, "y", "--mode", "loud", *how)
        assert (wrong.code, "--mode: 'loud' is not one of steer, followup" in wrong.err) == (2, True)
        gate.open.set()


async def test_what_is_kept_of_a_conversation(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    perdure, key = commands(dev_server), f"cli-{uuid.uuid4().hex[:6]}"
    async with harness(dev_server.client, [], echo) as it:
        how = ("--agent", write(tmp_path, ECHO), "--task-queue", it.task_queue)
        for text in ("of tea", "of milk"):
            assert (await perdure("agent", key, text, *how)).code == 0
        nothing = await perdure("session", "compact", key)
        assert (nothing.code, nothing.out.startswith("compaction would save")) == (0, True)
        found = json.loads((await perdure("session", "recall", key, "tea", "--json")).out)
        assert (list(found), [each["n"] for each in found["found"]]) == (["what", "page", "found", "more"], [3, 1])
        assert (await perdure("session", "recall", key, "tea")).out.count("\n") == 2
        assert (await perdure("session", "recall", key, "3")).out.endswith("of tea\n")
        assert (await perdure("session", "recall", key, "99")).err == "perdure: the session has no entry 99\n"
        forked = json.loads((await perdure("session", "fork", key, "--at", "1", "--as", f"{key}-b", "--json")).out)
        assert forked == {"session": f"{key}-b", "from": key, "at": "1"}
        shown = json.loads((await perdure("session", "show", f"{key}-b", "--json")).out)
        assert [entry["type"] for entry in shown["entries"]] == ["message", "run", "reply", "command"]
        wrong = await perdure("session", "fork", key, "--at", "x")
        assert (wrong.code, wrong.err.startswith("perdure: --at: 'x' is not a point of a session")) == (2, True)


async def test_a_session_is_watched_and_exported(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    perdure, key = commands(dev_server), f"cli-{uuid.uuid4().hex[:6]}"
    async with harness(dev_server.client, [], echo) as it:
        session = Perdure(it.client, task_queue=it.task_queue).session(key, agent=Agent.of(ECHO))
        await session.reply(await session.send("one", sender="ann", rights=["*"]), HANG)
        # In a process of its own: two commands in this one at once take each other's output.
        at = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
        words = (*await ForkedCli.command(), "session", "watch", key, "--json")
        pipe, env = asyncio.subprocess.PIPE, {**os.environ, **at}
        watching = await asyncio.create_subprocess_exec(*words, env=env, stdout=pipe, stderr=pipe)
        assert watching.stdout is not None
        lines = [await asyncio.wait_for(watching.stdout.readline(), HANG)]
        await session.reply(await session.send("two", sender="ann", rights=["*"]), HANG)
        exported = await perdure("session", "export", key)
        saved = await perdure("session", "export", key, "--out", str(tmp_path / "session.json"))
        lines += [await asyncio.wait_for(watching.stdout.readline(), HANG) for _ in range(5)]
        await session.handle.execute_update(END, {"sender": "ann", "rights": ["*"]})
        _, problem = await asyncio.wait_for(watching.communicate(), HANG)
        nobody = await perdure("session", "export", "no-such-session")
        restored = await perdure("import", str(tmp_path / "session.json"), "--as", f"{key}-2")
        wrong = await perdure("import", str(tmp_path / "none.json"))
    found = json.loads(exported.out)
    assert (found["session"], found["agent"], found["tenant"]) == (key, "echo", "")
    kinds = ["message", "run", "reply"] * 2
    assert [entry["type"] for entry in found["entries"]] == kinds
    assert (saved.code, json.loads((tmp_path / "session.json").read_text(encoding="utf-8"))) == (0, found)
    assert watching.returncode == 0, problem.decode()
    assert [json.loads(line) for line in lines] == found["entries"]
    assert nobody.code == 1
    assert (restored.code, restored.out) == (0, f"{key}-2\n")
    assert wrong.code != 0
    assert (wrong.out, wrong.err.count("\n")) == ("", 1)


async def test_a_session_of_another_tenant_is_named_where_it_can_be_found(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    perdure, key, tenant = commands(dev_server), f"cli-{uuid.uuid4().hex[:6]}", f"shop-{uuid.uuid4().hex[:6]}"
    async with harness(dev_server.client, [], echo) as it:
        how = ("--agent", write(tmp_path, ECHO), "--task-queue", it.task_queue)
        said = await perdure("agent", key, "hello\nand more", "--tenant", tenant, *how)
        assert said.code == 0
        async with asyncio.timeout(HANG):
            while tenant not in await Perdure(dev_server.client).list_tenants():
                pass
        missed = await perdure("session", "show", key)
        assert (missed.code, missed.out) == (1, "")
        assert f"for no tenant; found with --tenant {tenant}" in missed.err
        shown = await perdure("session", "show", key, "--tenant", tenant)
        assert shown.out.splitlines()[0].endswith(f", tenant {tenant}")
        others = await perdure("session", "list")
        assert f"--tenant {tenant}" in others.err
        listed = await perdure("session", "list", "--tenant", tenant)
        assert "hello" in listed.out
        assert "and more" not in listed.out
        assert f"these are of tenant {tenant!r}" in listed.err


async def test_a_user_without_a_name_sends_under_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user often has no account: `getpass.getuser` raises there."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert [_sender(None), _sender("ann")] == ["uid 54321", "ann"]
