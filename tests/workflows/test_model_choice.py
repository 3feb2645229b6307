"""Which model answers, and why (R9.4); and the run of the seeds: high CPU on web-03."""

from __future__ import annotations

import asyncio
import re
import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from openai import AsyncOpenAI
from rich.console import Console
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, ToolError, tool
from perdure.cli._run_view import print_exchanges, print_run
from perdure.client.histories import exchanges
from perdure.hosting.worker import build_worker
from perdure.models.requests import Endpoint
from perdure.runs.agent import POLICIES, Models, Situation, auto
from perdure.testing.scripted_model import ChatRequest, Fault, ScriptedModel, Turn
from perdure.workflows.requests import ATTEMPTS_BEFORE_FALLBACK
from tests.support import DONE, agent, harness, registry
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROCESSES = """PID    COMMAND         CPU%
18234  nginx-worker    82.1%
18235  nginx-worker    4.3%
  892  postgres        3.2%
  451  node            2.1%
    1  systemd         0.1%"""
ANSWER = "CPU on web-03 was at 94 %, caused by nginx-worker (82.1 %). nginx was restarted, its PID is 19012."
TASK = "web-03 has high CPU. Find out why."


@tool
def check_cpu(host: str) -> str:
    """Check CPU usage of a server"""
    return f"CPU usage: 94%, load average: 12.3, uptime: 14 days ({host})"


@tool(safe=True)
def check_cpu_safely(host: str) -> str:
    """The same, declared harmless."""
    return host


@tool
def list_top_processes(host: str, limit: int = 5) -> str:
    """List top CPU-consuming processes on a server"""
    return "\n".join(PROCESSES.splitlines()[: limit + 1]) if host else ""


@tool
def restart_service(host: str, service: str) -> str:
    """Restart a systemd service on a server. CAUTION: causes brief downtime."""
    return f"Service {service} restarted successfully. New PID: 19012" if host else ""


def calls(name: str, usage: tuple[int, int], **arguments: Any) -> Turn:
    return Turn({"calls": [{"_tool": name, **arguments}]}, usage=usage)


# What the seeds' prices come to, in dollars per million tokens: their table is exact with them for the strong model, and
# rounds to their figures for the cheap one.
PRICES = {"gpt-4o": {"prompt": 12.0, "completion": 20.0}, "gpt-4o-mini": {"prompt": 0.65, "completion": 3.5}}
SCRIPT = [
    calls("check_cpu", (300, 30), host="web-03"),
    calls("list_top_processes", (450, 40), host="web-03", limit=5),
    calls("restart_service", (650, 35), host="web-03", service="nginx"),
    Turn(ANSWER, usage=(800, 120)),
]
WEB03: dict[str, Any] = {
    "name": "devops",
    "config": {"dialect": "tools", "prices": PRICES},
    "context": [
        {"type": "system", "text": "You are a DevOps agent. Diagnose and fix issues."},
        {"type": "text", "text": TASK},
        *({"type": "tool", "tool": name} for name in ("check_cpu", "list_top_processes", "restart_service")),
    ],
}


async def test_r9_4_high_cpu_on_web_03(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [check_cpu, list_top_processes, restart_service], SCRIPT) as it:
        it.model.dialect = "tools"
        view = await it.run(WEB03)
        sent = [request.messages for request in it.model.requests]
        found = await exchanges(it.client, view.run_id)
    assert (view.status, view.stop_reason, view.output) == ("completed", "answer", ANSWER)
    assert [(request.model, request.reason, request.messages) for request in view.log] == [
        ("gpt-4o-mini", "first Request", 2),
        ("gpt-4o-mini", "choosing tools", 4),
        ("gpt-4o", "third Request on", 6),
        ("gpt-4o", "third Request on", 8),
    ]
    assert [[message["role"] for message in messages] for messages in sent][-1] == [
        "system",
        "user",
        *["assistant", "tool"] * 3,
    ]
    assert sent[1][:2] == sent[3][:2]
    assert [f"{request.cost:.4f}" for request in view.log] == ["0.0003", "0.0004", "0.0085", "0.0120"]
    assert f"{view.usage.cost:.4f}" == "0.0212"
    assert [call.tool for call in view.calls] == ["check_cpu", "list_top_processes", "restart_service"]

    shown = printed(lambda console: print_run(console, view))
    assert re.findall(r"^\[iter=.*", shown, re.MULTILINE) == [
        "[iter=1 model=gpt-4o-mini reason=first Request msgs=2 cost=$0.0003]",
        "[iter=2 model=gpt-4o-mini reason=choosing tools msgs=4 cost=$0.0004]",
        "[iter=3 model=gpt-4o reason=third Request on msgs=6 cost=$0.0085]",
        "[iter=4 model=gpt-4o reason=third Request on msgs=8 cost=$0.0120]",
    ]
    assert "  tokens: prompt=300 completion=30\n" in shown
    assert '  2.0 tool_call: list_top_processes({"host": "web-03", "limit": 5})' in shown
    assert "result: PID    COMMAND         CPU% | 18234  nginx-worker    82.1% |" in shown
    assert shown.index(ANSWER[:30]) > shown.index("[iter=4")
    assert "gpt-4o-mini: 2 Requests, 750 in, 70 out, $0.0007\n" in shown
    assert "gpt-4o: 2 Requests, 1450 in, 155 out, $0.0205\n" in shown

    # What `--verbose` prints is what was sent, to the letter, though none of it is stored.
    assert [exchange.context.messages for exchange in found] == sent
    verbose = printed(lambda console: print_exchanges(console, found))
    assert verbose.count("You are a DevOps agent.") == 4
    assert PROCESSES.splitlines()[3] in verbose
    assert verbose.rstrip().endswith(ANSWER[-20:])


def printed(show: Any) -> str:
    console = Console(record=True, width=160, file=open("/dev/null", "w"))  # noqa: SIM115
    show(console)
    return console.export_text()


MODELS = Models(fast="f", smart="s")


@pytest.mark.parametrize(
    ("situation", "choice"),
    [
        ({"number": 1}, ("f", "first Request")),
        ({"number": 2}, ("f", "choosing tools")),
        ({"number": 2, "after_error": True}, ("s", "after an error")),
        ({"number": 3}, ("s", "third Request on")),
        ({"number": 1, "final": True}, ("s", "final answer")),
    ],
)
async def test_r9_4_auto(situation: dict[str, Any], choice: tuple[str, str]) -> None:
    assert auto(Situation(models=MODELS, **situation)) == choice


@pytest.mark.parametrize(("policy", "models"), [("fast", {"gpt-4o-mini"}), ("smart", {"gpt-4o"})])
async def test_policies_by_name(policy: str, models: set[str], dev_server: WorkflowEnvironment) -> None:
    assert policy in POLICIES
    script = [{"calls": [{"_tool": "check_cpu", "host": str(n)}]} for n in range(3)]
    async with harness(dev_server.client, [check_cpu], [*script, DONE]) as it:
        await it.run(agent("check_cpu", config={"models": {"policy": policy}}))
        assert {request.model for request in it.model.requests} == models


def by_day(situation: Situation) -> tuple[str, str]:
    """A policy of a worker's own."""
    return ("smart", "an even Request") if situation.number % 2 == 0 else ("tiny-1", "an odd Request")


async def test_a_policy_of_the_workers_own(dev_server: WorkflowEnvironment) -> None:
    script = [{"calls": [{"_tool": "check_cpu", "host": "a"}]}, DONE]
    named = ["tests.workflows.test_model_choice"]
    async with harness(dev_server.client, [check_cpu], script, cached_workflows=0, named=named) as it:
        view = await it.run(
            agent("check_cpu", config={"models": {"policy": "tests.workflows.test_model_choice:by_day"}})
        )
        summaries = [
            event.user_metadata.summary.data.decode()
            async for event in it.client.get_workflow_handle(view.run_id).fetch_history_events()
            if event.activity_task_scheduled_event_attributes.activity_type.name == "perdure.request"
        ]
    assert [(request.model, request.reason) for request in view.log] == [
        ("tiny-1", "an odd Request"),
        ("gpt-4o", "an even Request"),
    ]
    assert summaries == ['"Request 1 · tiny-1 · an odd Request"', '"Request 2 · gpt-4o · an even Request"']


@pytest.mark.parametrize(
    "policy",
    [
        "no.module:f",
        "tests.workflows.test_model_choice:nothing",
        "tests.workflows.test_model_choice:MODELS",
        "code:interact",
    ],
)
async def test_a_policy_that_cannot_be_loaded_refuses_the_run(policy: str, dev_server: WorkflowEnvironment) -> None:
    async with harness(
        dev_server.client, [check_cpu], [], named=["tests.workflows.test_model_choice", "no.module"]
    ) as it:
        view = await it.run(agent("check_cpu", config={"models": {"policy": policy}}))
    assert view.status == "failed"
    assert repr(policy) in (view.error or "")


async def test_r9_8_sampling_goes_to_the_server_as_it_is(dev_server: WorkflowEnvironment) -> None:
    sampling = {"temperature": 0, "seed": 7, "smart": {"reasoning_effort": "low", "temperature": 1.5}}
    fail = {"calls": [{"_tool": "nope"}]}
    async with harness(dev_server.client, [check_cpu], [fail, DONE]) as it:
        await it.run(agent("check_cpu", config={"sampling": sampling}))
        sent = [request.body for request in it.model.requests]
    keys = ("temperature", "seed", "reasoning_effort", "top_p")
    assert [{key: body[key] for key in keys if key in body} for body in sent] == [
        {"temperature": 0, "seed": 7},
        {"temperature": 1.5, "seed": 7, "reasoning_effort": "low"},
    ]


def by_danger(situation: Situation) -> str:
    """Smart once anything that is not safe was called."""
    return "smart" if any(called.danger != "safe" for called in situation.called) else "fast"


async def test_r9_8_a_policy_knows_what_the_last_answer_called(dev_server: WorkflowEnvironment) -> None:
    check = {"_tool": "check_cpu_safely", "host": "a"}
    restart = {"_tool": "restart_service", "host": "a", "service": "b"}
    script = [{"calls": [check]}, {"calls": [check, restart]}, DONE]
    policy = {"models": {"policy": "tests.workflows.test_model_choice:by_danger"}, "approval": {"ask": "never"}}
    async with harness(
        dev_server.client, [check_cpu_safely, restart_service], script, named=["tests.workflows.test_model_choice"]
    ) as it:
        view = await it.run(agent("check_cpu_safely", "restart_service", config=policy))
    assert [request.model for request in view.log] == ["gpt-4o-mini", "gpt-4o-mini", "gpt-4o"]


DOWN = [
    Turn("overloaded", status=503),
    Turn(fault=Fault("cut")),
    Turn("no such model", status=404),
    Turn("slow down", status=429),
]


@pytest.mark.parametrize("down", DOWN, ids=["503", "cut", "404", "429"])
async def test_r9_4_fallback_to_another_model(down: Turn, dev_server: WorkflowEnvironment) -> None:
    def answer(request: ChatRequest) -> Any:
        return down if request.model != "backup-1" else DONE

    async with harness(dev_server.client, [check_cpu], answer) as it:
        view = await it.run(agent("check_cpu", config={"models": {"fallback": ["backup-1"]}}))
        events = [each async for each in Perdure(it.client).get_run(view.run_id).events()]
        asked = len(it.model.requests)
    assert (view.status, view.requests, view.log[0].model) == ("completed", 1, "backup-1")
    [end] = [each for each in events if (each.topic, each.phase) == ("request", "end")]
    assert end.data["attempt"] == asked  # counted over both models
    assert view.log[0].reason.startswith("fallback: gpt-4o-mini is down (")


async def test_a_worker_too_busy_to_heartbeat_does_not_make_the_model_count_as_down(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.workflows.requests.HEARTBEAT", timedelta(seconds=1))
    address, run_id = dev_server.client.service_client.config.target_host, f"test-{uuid.uuid4().hex[:8]}"

    async def is_given_up() -> None:
        """Wait until no attempt of the run's Request counts."""
        client = await Client.connect(address)
        while True:
            pending = (await client.get_workflow_handle(run_id).describe()).raw_description.pending_activities
            if all(each.state != PendingActivityState.PENDING_ACTIVITY_STATE_STARTED for each in pending):
                return

    def answer(request: ChatRequest) -> Any:
        if request.number <= ATTEMPTS_BEFORE_FALLBACK:  # the model is in the worker's process, and holds its event loop
            busy = threading.Thread(target=lambda: asyncio.run(is_given_up()))
            busy.start()
            busy.join(HANG)
        return DONE

    async with harness(dev_server.client, [], answer) as it:
        handle = await it.start(agent(config={"models": {"fallback": ["backup-1"]}}), run_id=run_id)
        result = await handle.result()
        asked = [request.model for request in it.model.requests]
    assert (result.status, {*asked}) == ("completed", {"gpt-4o-mini"})
    assert len(asked) > ATTEMPTS_BEFORE_FALLBACK  # on a busy machine another attempt may count as lost


async def test_r9_4_fallback_to_another_endpoint(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKUP_KEY", "secret")
    async with ScriptedModel([DONE], api_key="secret") as backup:
        endpoints = {"backup": Endpoint(base_url=backup.base_url, api_key_env="BACKUP_KEY")}
        dead = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)
        queue = "fallback-endpoint"
        async with harness(dev_server.client, [check_cpu], [], task_queue="unused") as it:
            worker = build_worker(
                it.client, registry([check_cpu]), task_queue=queue, model=dead, endpoints=endpoints, sandboxed=True
            )
            it.task_queue = queue
            async with worker:
                view = await it.run(agent("check_cpu", config={"models": {"fallback": ["llama@backup"]}}))
        assert [request.model for request in backup.requests] == ["llama"]
    assert (view.status, view.log[0].model) == ("completed", "llama@backup")


async def test_a_bad_request_is_not_asked_elsewhere(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [check_cpu], lambda _: Turn("no", status=400)) as it:
        view = await it.run(agent("check_cpu", config={"models": {"fallback": ["backup-1"]}}))
        assert len(it.model.requests) == 1
    assert view.status == "failed"


async def test_once_calls_were_released_no_other_model_is_asked(dev_server: WorkflowEnvironment) -> None:
    text = '{"calls":[{"_tool":"check_cpu","host":"a","_outputPath":"†state.a"},{"_tool":"che'
    script = [Turn(text, fault=Fault("cut", after=len(text))), DONE]
    async with harness(dev_server.client, [check_cpu], script) as it:
        view = await it.run(agent("check_cpu", config={"models": {"fallback": ["backup-1"]}}))
    assert (view.status, view.requests, view.calls[0].status) == ("completed", 2, "done")
    assert "backup-1" not in {request.model for request in view.log}


LOOK = {"calls": [{"_tool": "check_cpu", "host": "a"}]}


async def test_r9_4_refine(dev_server: WorkflowEnvironment) -> None:
    script = [LOOK, {"output": {"text": "meh"}}, {"output": {"text": "well said"}}]
    async with harness(dev_server.client, [check_cpu], script) as it:
        view = await it.run(agent("check_cpu", config={"refine": True}))
        last = it.model.requests[2]
    assert (view.output, view.stop_reason, view.requests) == ({"text": "well said"}, "output", 3)
    assert [(request.model, request.reason) for request in view.log][1:] == [
        ("gpt-4o-mini", "choosing tools"),
        ("gpt-4o", "final answer"),
    ]
    assert '{"text":"meh"}' in last.text


async def test_refining_that_fails_leaves_the_draft(dev_server: WorkflowEnvironment) -> None:
    def answer(request: ChatRequest) -> Any:
        if request.model == "gpt-4o":
            return Turn("no", status=400)
        return LOOK if request.number == 1 else {"output": "draft"}

    async with harness(dev_server.client, [check_cpu], answer) as it:
        view = await it.run(agent("check_cpu", config={"refine": True}))
    assert (view.status, view.output) == ("completed", "draft")


async def test_a_first_answer_is_not_refined(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [check_cpu], [DONE]) as it:
        view = await it.run(agent("check_cpu", config={"refine": True}))
    assert view.requests == 1


@tool(retries=0)
def broken() -> str:
    raise ToolError("broken", "it is")


async def test_r9_4_the_smart_model_after_an_error(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [broken], [{"calls": [{"_tool": "broken"}]}, DONE]) as it:
        view = await it.run(agent("broken"))
    assert (view.log[1].model, view.log[1].reason) == ("gpt-4o", "after an error")


async def test_a_run_whose_second_request_fails_names_each_call_once(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "check_cpu", "host": "a"}]
    script = [{"calls": calls, "output": None}, Turn("no", status=400)]
    async with harness(dev_server.client, [check_cpu], script) as it:
        view = await it.run(agent("check_cpu"))
    assert (view.status, [call.id for call in view.calls]) == ("failed", ["1.0"])
