"""Plays a run written down as data against a real worker, a real server and a scripted model over HTTP.

A case is a dict as described in `tests/conformance/README.md`:

    played = await play(client, case)
    problems = compare(case, played)        # one line each; empty when the run was as written

`Canned` is the activity behind every tool of a case: it returns, echoes, raises, waits and branches as the case says.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI
from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import Client

from perdure import ToolContext, ToolError, branch, tool
from perdure.client.run_operations import AgentHandle, wait_run
from perdure.errors import RunTimeoutError
from perdure.runs.wire import DECIDE, RUN_QUERY, RunView
from perdure.testing import ScriptedModel, run_locally
from perdure.values.references import MISSING

Case = dict[str, Any]
PLAYS = 3
"""The most plays of a case whose worker was held."""


@dataclass
class Canned:
    """What the tools of a case did: the parameters that each call got, and how often each tool ran."""

    tools: dict[str, dict[str, Any]]
    received: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def tool(self) -> Callable[..., Any]:
        @tool(name="canned", retries=0)
        async def canned(context: ToolContext, **params: Any) -> Any:
            return await self.act(context, params)

        return canned

    async def act(self, context: ToolContext, params: dict[str, Any]) -> Any:
        script = self.tools.get(context.tool_name, {})
        self.received[context.call_id] = params
        self.runs[context.tool_name] = self.runs.get(context.tool_name, 0) + 1
        await asyncio.sleep(script.get("takes_ms", 0) / 1000)
        if "raises" in script and script.get("raises_when", params) == params:
            raise ToolError(**script["raises"])
        value = params[script["echo"]] if "echo" in script else script.get("returns")
        return branch(script["branch"], value) if "branch" in script else value


@dataclass
class Played:
    """A case's run as it ended, what its tools got, and what the model was shown at each Request."""

    view: RunView
    canned: Canned
    prompts: list[str]
    complaints: list[str]


async def play(
    client: Client,
    case: Case,
    *,
    timeout: float = 30.0,
    cached_workflows: int = 1000,
    dialect: str = "solution",
    model_name: str | None = None,
    server: AsyncOpenAI | None = None,
    **worker: Any,
) -> Played:
    """Run the case to its end, or until `timeout` seconds have passed, its Solutions written in the dialect.

    A case is played again when the machine has held the worker for so long that the server counted its Request as lost: the repeated
    Request takes another turn. `server`: a server of others that has the turns; then the caller reads the prompts there.
    """
    more: dict[str, Any] = {
        "dialect": dialect,
        "model_name": model_name,
        "server": server,
        "cached_workflows": cached_workflows,
    }
    for _ in range(PLAYS):
        played = await _play(client, case, timeout, **more, **worker)
        if not compare(case, played) or not await _lost_its_worker(client, played.view.run_id):
            break
    return played


async def _lost_its_worker(client: Client, run_id: str) -> bool:
    """Whether the server gave up an attempt of the run because its worker sent no heartbeat."""
    history = await client.get_workflow_handle(run_id).fetch_history()
    failures = [
        each
        for event in history.events
        for each in (
            event.activity_task_started_event_attributes.last_failure,
            event.activity_task_timed_out_event_attributes.failure,
        )
    ]
    return any(each.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT for each in failures)


async def _play(
    client: Client,
    case: Case,
    timeout: float,
    *,
    dialect: str,
    model_name: str | None,
    server: AsyncOpenAI | None,
    **worker: Any,
) -> Played:
    canned = Canned(case.get("tools", {}))
    config = {**case["agent"].get("config", {}), "dialect": dialect}
    if model_name is not None:
        config["models"] = {"fast": model_name, "smart": model_name}
    agent = case["agent"] | {"config": config}
    model = ScriptedModel(case["turns"], strict=False)  # `compare` tells what it complains of
    async with run_locally(
        agent,
        model=server or model,
        tools=[canned.tool()],
        server=client,
        **{"sandboxed": True, **worker},
    ) as local:
        run = await local.start(case.get("input", MISSING), id=f"{case['name']}-{uuid.uuid4().hex[:8]}")
        deciding = asyncio.create_task(_decide(run.handle, case.get("decisions", [])))
        with contextlib.suppress(RunTimeoutError):
            await wait_run(client, run.id, timeout)
        deciding.cancel()
        await asyncio.gather(deciding, return_exceptions=True)
        view = await run.view()
    complaints = model.complaints if server is None else []
    return Played(view, canned, [request.shown for request in model.requests], complaints)


async def _decide(handle: AgentHandle, decisions: list[Any]) -> None:
    """Send each decision once its call waits; one for a call that does not exist is sent at once. A loop's are made as it goes."""
    for decision in decisions:
        while True:
            view: RunView = await handle.query(RUN_QUERY, result_type=RunView)
            known = {call.id for call in view.calls}
            loop = decision["call"].partition("[")[0]
            if decision["call"] in {offer.call for offer in view.waiting} or (known and loop not in known):
                break
            await asyncio.sleep(0.05)  # what it waits for happens in another process's workflow: a look is all there is
        await handle.signal(DECIDE, decision)


def compare(case: Case, played: Played) -> list[str]:
    """What is not as the case expects, one line each."""
    expect, view, canned = case["expect"], played.view, played.canned
    calls = {call.id: call for call in view.calls}
    problems = list(played.complaints)

    def check(what: str, found: Any, wanted: Any) -> None:
        if found != wanted:
            problems.append(f"{what}: {found!r}, expected {wanted!r}")

    check("status", view.status, expect["status"])
    for key, found in (("output", view.output), ("requests", view.requests), ("errors", len(view.errors))):
        if key in expect:
            check(key, found, expect[key])
    for call_id, status in expect.get("calls", {}).items():
        check(f"call {call_id}", calls[call_id].status if call_id in calls else "absent", status)
    for key, value in expect.get("state", {}).items():
        check(f"state.{key}", view.state.get(key, "absent"), value)
    for call_id, params in expect.get("received", {}).items():
        found = canned.received.get(call_id, {})
        check(f"parameters of {call_id}", {key: found.get(key, "absent") for key in params}, params)
    for name, count in expect.get("runs", {}).items():
        check(f"runs of {name}", canned.runs.get(name, 0), count)
    if "presented" in expect:
        check("presented", sorted(call.id for call in view.calls if call.approval), sorted(expect["presented"]))
    for first, second in expect.get("order", []):
        ended, started = calls[first].ended_at, calls[second].started_at
        check(f"{first} ended before {second} started", bool(ended and started and ended <= started), True)
    for first, second in expect.get("parallel", []):
        check(f"{first} and {second} overlapped", _overlap(calls[first], calls[second]), True)
    for number, texts in expect.get("prompt_contains", {}).items():
        prompt = played.prompts[int(number) - 1] if len(played.prompts) >= int(number) else ""
        problems += [f"Request {number} was not shown {text!r}" for text in texts if text not in prompt]
    return problems


def _overlap(first: Any, second: Any) -> bool:
    times = (first.started_at, first.ended_at, second.started_at, second.ended_at)
    return None not in times and first.started_at < second.ended_at and second.started_at < first.ended_at
