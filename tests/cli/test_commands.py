"""The command line as a person meets it: a process, its output and its exit code (section 11)."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.hosting.server import free_port
from perdure.testing.scripted_model import Turn
from tests.forked_cli import ForkedCli
from tests.support import DONE, ROOT, agent, harness, perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


def write(folder: Path, document: Any, name: str = "agent.json") -> str:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return str(path)


def one_line(text: str) -> str:
    """The only line of an error output; a traceback has more."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


async def test_run_wait_show_list_cancel(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    calls = [{"_tool": "greet", "name": "†input.who", "_outputPath": "†state.text"}]
    script = [{"calls": calls, "output": {"ok": True}}]
    path = write(tmp_path, agent("greet", context=[{"type": "input"}]))
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with harness(dev_server.client, [greet], script) as it:
        queue = ("--task-queue", it.task_queue)
        ran = await perdure("run", path, "--input", '{"who": "Ann"}', "--id", "cli-run", "--json", *queue, env=env)
        again = await perdure("run", path, "--id", "cli-run", *queue, env=env)
        waited = await perdure("wait", "cli-run", env=env)
        shown = await perdure("show", "cli-run", env=env)
        async with asyncio.timeout(HANG):  # the server's lists are a moment late
            listed: list[str] = []
            while "cli-run" not in listed:
                listed = [row["runId"] for row in json.loads((await perdure("list", "--json", env=env)).out)]
        cancelled = await perdure("cancel", "cli-run", env=env)
    result = json.loads(ran.out)
    assert (ran.code, list(result)) == (
        0,
        ["runId", "status", "output", "stopReason", "requests", "usage", "errors", "calls", "state"],
    )
    assert (result["status"], result["output"], result["stopReason"], result["requests"]) == (
        "completed",
        {"ok": True},
        "output",
        1,
    )
    assert result["state"] == {"text": "Hello Ann"}
    assert set(result["usage"]) == {"promptTokens", "completionTokens", "cost", "byModel"}
    call = result["calls"][0]
    assert {key: call[key] for key in ("id", "tool", "params", "status", "attempts")} == {
        "id": "1.0",
        "tool": "greet",
        "params": {"name": "Ann"},
        "status": "done",
        "attempts": 1,
    }
    assert again.code == 1
    assert "already a run 'cli-run'" in again.err
    assert (waited.code, "completed" in waited.out) == (0, True)
    assert "Hello Ann" in shown.out
    assert "greet" in shown.out
    assert (cancelled.code, one_line(cancelled.err)) == (1, "perdure: cli-run has already ended: completed")


async def test_a_run_can_be_watched_timed_out_and_cancelled(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    import asyncio

    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    gate = asyncio.Event()
    async with harness(dev_server.client, [], [Turn(DONE, gate=gate)], model_timeout=100) as it:
        path = write(tmp_path, agent())
        started = await perdure(
            "run", path, "--id", "cli-slow", "--no-wait", "--json", "--task-queue", it.task_queue, env=env
        )
        await it.model.wait_for_request(1)
        waited = await perdure("wait", "cli-slow", "--timeout", "0.2", env=env)
        cancelled = await perdure("cancel", "cli-slow", env=env)
        ended = await perdure("wait", "cli-slow", "--json", env=env)
    assert (started.code, json.loads(started.out)) == (0, {"runId": "cli-slow"})
    assert (waited.code, one_line(waited.err)) == (3, "perdure: cli-slow has not ended after 0.2 s; it continues")
    assert cancelled.code == 0
    assert (ended.code, json.loads(ended.out)["status"]) == (1, "cancelled")


@pytest.mark.parametrize(
    ("document", "arguments", "code", "words"),
    [
        (None, [], 2, "no agent"),
        ('{"name": "x",\n "context": [,]}', [], 2, "line 2, column 14"),
        (
            {"name": "x", "context": [{"type": "inptu"}]},
            [],
            2,
            '$.context[0].type: "inptu" is not a known type of message; did you mean "input"?',
        ),
        (
            {"name": "x", "config": {"max_request": 3}},
            [],
            2,
            '$.config.max_request: "max_request" is not a known key; did you mean "max_requests"?',
        ),
        ({"name": "x", "schema": {"type": "nonsense"}}, [], 2, "$.schema: is not a JSON Schema"),
        (agent(), ["--input", "{oops"], 2, "--input is not valid JSON"),
        (agent(), ["--input", "@/does/not/exist.json"], 2, "cannot be read"),
        (
            agent(
                context=[
                    {
                        "type": "input",
                        "schema": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
                    }
                ]
            ),
            ["--input", '{"n": "three"}'],
            2,
            'the input breaks its schema: $.n is "three", but must fit {"type": "integer"}',
        ),
        (agent(), ["--callback", "ftp://x"], 2, "--callback: a callback must be an http or https URL"),
        (agent(), ["--context", "[1]"], 2, "--context: the context must be a JSON object, not an array"),
    ],
)
async def test_bad_input_is_one_clear_line(
    tmp_path: Path, document: Any, arguments: list[str], code: int, words: str
) -> None:
    path = str(tmp_path / "none.json") if document is None else write(tmp_path, document)
    # Nothing listens there: none of this may get as far as a server.
    ran = await perdure("run", path, *arguments, env={"TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}"})
    assert (ran.code, ran.out) == (code, "")
    assert words in one_line(ran.err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --cron '0 2 * * *', or --every 1h"),
        (["--every", "5x"], '--every: "5x" is not a duration'),
        (["--cron", "0 99 * * *"], '--cron: "0 99 * * *": Hour is not in range'),
        (["--every", "1h", "--catchup", "1s"], "--catchup: 1 s is too short"),
        (["--every", "1h", "--context", "[1]"], "--context: the context must be a JSON object, not an array"),
    ],
)
async def test_an_error_of_a_schedule_names_the_flag(
    dev_server: WorkflowEnvironment, arguments: list[str], words: str
) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    ran = await perdure("schedule", "create", "flags", "reporter", *arguments, env=env)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err.splitlines()[-1]


async def test_no_server_at_the_address(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    for arguments in (["run", write(tmp_path, agent())], ["show", "x"], ["list"], ["wait", "x"]):
        ran = await perdure(*arguments, env={"TEMPORAL_ADDRESS": address})
        assert ran.code == 1
        assert f"no Temporal server answers at {address}" in one_line(ran.err)


async def test_what_the_server_does_not_know(dev_server: WorkflowEnvironment) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    for command in ("show", "wait", "cancel", "watch"):
        ran = await perdure(command, "no-such-run", env=env)
        assert ran.code == 1
        assert "there is no run 'no-such-run'" in one_line(ran.err)
    evaluation = await perdure("eval", "--id", "no-such-run", env=env)
    assert (evaluation.code, "there is no evaluation 'no-such-run'" in one_line(evaluation.err)) == (1, True)
    assert (await perdure("fly")).code == 2


async def test_an_agent_with_a_tool_that_the_worker_does_not_have(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    bound = {"name": "mine", "properties": {}, "_activity": "thiers"}
    async with harness(dev_server.client, [greet], []) as it:
        named = await perdure("run", write(tmp_path, agent("gret")), "--task-queue", it.task_queue, env=env)
        activity = await perdure("run", write(tmp_path, agent(bound)), "--task-queue", it.task_queue, env=env)
    assert (named.code, activity.code) == (1, 1)
    assert "the worker has no tool 'gret'; did you mean 'greet'? it has" in named.out
    assert "needs the activity 'thiers', which the worker does not have" in activity.out


async def test_a_worker_without_a_key_fails_the_run_clearly(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    from perdure.hosting.worker import build_worker
    from tests.support import registry

    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with build_worker(dev_server.client, registry([]), task_queue="keyless"):
        ran = await perdure("run", write(tmp_path, agent()), "--task-queue", "keyless", env=env)
    assert ran.code == 1
    assert "set OPENAI_API_KEY" in ran.out


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ("no.such.module", "no module is named 'no.such.module'"),
        ("json", "the module 'json' has no tools"),
        ("broken", "the module 'broken' cannot be imported: ZeroDivisionError"),
    ],
)
async def test_a_worker_with_tools_that_cannot_be_loaded(tmp_path: Path, tools: str, words: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    ran = await perdure("--tools", tools, program="worker.py", cwd=tmp_path)
    assert ran.code == 2
    assert words in one_line(ran.err)
    dev = await perdure("dev", "--tools", tools, cwd=tmp_path)
    assert (dev.code, words in one_line(dev.err)) == (2, True)


async def test_the_demo_runs_the_bundled_agent_on_real_files() -> None:
    demo = await perdure("demo", env={"PERDURE_TOOLS_ONLY": "true", "PERDURE_TASK_QUEUE": "mine"})
    assert demo.code == 0, demo.err
    for words in (
        "scripted",
        "no_such_file",
        "skipped",
        "[iter=3 model=gpt-4o reason=third Request on msgs=5",
        "completed",
        "freedBytes",
        "http://localhost:",
    ):
        assert words in demo.out
    freed = json.loads(demo.out[demo.out.index("{\n") : demo.out.rindex("}") + 1])["freedBytes"]
    assert f"shrank by {freed:,} bytes" in demo.out
    assert re.search(r"Its page  http://127\.0\.0\.1:\d+/runs/devops-\w+\n", demo.out)


@pytest.mark.soak
async def test_r17_5_the_demo_stays_with_its_page_until_it_is_interrupted() -> None:
    demo = await asyncio.create_subprocess_exec(
        *(*await ForkedCli.command(), "demo", "--yes", "--stay"), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert demo.stdout is not None
    address = ""
    while b"until Ctrl-C" not in (line := await asyncio.wait_for(demo.stdout.readline(), HANG)):
        address = line.decode().removeprefix("Its page  ").strip() if line.startswith(b"Its page") else address
    async with httpx2.AsyncClient(timeout=HANG) as http:
        page = await http.get(address)
    assert (page.status_code, "1.3" in page.text, "completed" in page.text) == (200, True, True)
    demo.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(demo.wait(), HANG) == 0


async def test_a_live_demo_needs_a_key() -> None:
    demo = await perdure("demo", "--model", "live")
    assert (demo.code, "set OPENAI_API_KEY" in one_line(demo.err)) == (2, True)
    assert (await perdure("demo", "--model", "other")).code == 2


async def test_with_json_nothing_but_the_document_reaches_stdout(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    path = write(tmp_path, agent("greet"))
    given = write(tmp_path, {"text": "x" * 700_000}, "input.json")  # Temporal's client warns of it
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with harness(dev_server.client, [greet], [DONE]) as it:
        run = ("run", path, "--json", "--id", "cli-quiet", "--task-queue", it.task_queue, "--input", f"@{given}")
        ran = await perdure(*run, env=env)
        shown = await perdure("show", "cli-quiet", "--json", "--verbose", env=env)
        drawn = await perdure("show", "cli-quiet", "--json", "--svg", str(tmp_path / "run.svg"), env=env)
    for command in (ran, shown, drawn):
        assert (command.code, json.loads(command.out)["runId"]) == (0, "cli-quiet")
    assert "model=gpt-4o-mini" in shown.err
    assert (tmp_path / "run.svg").exists()


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("", "is empty: give an id, or leave it out for a random one"),
        (" ", "is empty"),
        ("a b", "'a b' has a space or begins with '-'"),
        ("a\nb", "has invisible characters"),
        ("-a", "'-a' has a space or begins with '-'"),
        ("b/../c", "'b/../c' has an empty part, '.' or '..' between slashes, so a page cannot have its address"),
        ("/a", "'/a' has an empty part"),
    ],
)
async def test_an_id_that_no_command_or_address_could_contain_is_refused(id: str, words: str, tmp_path: Path) -> None:
    refused = await perdure("run", write(tmp_path, agent("greet")), f"--id={id}")
    assert refused.code == 2
    assert one_line(refused.err).startswith("perdure: --id: the run's id")
    assert words in refused.err
