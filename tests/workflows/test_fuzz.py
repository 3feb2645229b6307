"""Runs of anything: whatever a model, a tool and a person send, the run ends, and no workflow task fails (R18.6)."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from perdure import ToolError, branch, tool
from perdure.plan import ENDED
from perdure.testing._servers import serve
from perdure.testing.scripted_model import ChatRequest
from tests.soak import times
from tests.support import Harness, agent, failed_tasks, harness
from tests.timeouts import HANG

TEXTS = ["", ".", "†", "††", "†state", "†state.", "†nope.x", "{†state.a}", "†output.ok", "\x00", "\n|`*", "😀" * 100]
PATHS = ["†state.a", "†state.b", "†state.a.x", "†state.a[0]", "†state.a || †state.b", "†state.a && †state.b", "†state"]
NUMBERS = [0, -1, 0.5, 1e308, 10**30, 1e-300, True, None]
FORMULAS = [
    "state.a",
    "f'{state.a:.2f}'",
    "[state.a] * 90000",
    "len(†state.b) > 1",
    "state.a[1:2, 3]",
    "{",
    "'\\ud800'",
]
formulas = st.sampled_from(FORMULAS).map(lambda text: {"_expr": text})
leaves = st.sampled_from([*TEXTS, *PATHS]) | st.sampled_from(NUMBERS) | formulas
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["", "a", "x", "odd.key", "†"]), inner, max_size=3)
    ),
    max_leaves=6,
)
TOOLS: list[Any] = ["act", "risk", "nap", "ask", "helper", "latent", "nope", None, 5]
calls = st.fixed_dictionaries(
    {"_tool": st.sampled_from(TOOLS)},
    optional={
        "_outputPath": st.sampled_from(PATHS) | values,
        "_outputMethod": st.sampled_from(["set", "merge", "assign", "push", "concat", "odd"]),
        "_each": st.sampled_from([[1, 2], "†state.a", "†input.x", []]) | values,
        "_until": st.sampled_from(["†output.ok", "†state.a"]),
        "_if": st.sampled_from(FORMULAS) | values,
        "_max": st.sampled_from([1, 2, 10**9]),
        "_output": values,
        "p": st.sampled_from(PATHS) | values,
        "seconds": st.sampled_from([0, 1, 1e300, "soon"]),
        "time": values,
        "choices": values,
    },
)
solutions = st.fixed_dictionaries({"calls": st.lists(calls | values, max_size=6)}, optional={"output": values}) | values
results = st.tuples(
    st.sampled_from(["value", "branch", "error", "raise", "deep"]), values, st.sampled_from(TEXTS + PATHS)
)
decisions = st.fixed_dictionaries(
    {"decision": st.sampled_from(["approve", "reject", "edit", "replace", "answer"]) | values},
    optional={"params": values, "with": calls, "answer": values, "remember": st.just(True), "calls": st.lists(calls)},
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "scope": st.sampled_from(["calls", "plan"]),
        "ask": st.sampled_from(["never", "always"]),
        "timeout": st.sampled_from([0.001, 60, None, 1e300]),
        "tools": values,
    },
)
deliveries = st.fixed_dictionaries(
    {"number": st.integers(0, 3), "attempt": st.integers(1, 2), "first": st.integers(-1, 3), "calls": st.lists(calls)}
)
messages = (
    st.tuples(st.just("decide"), decisions)
    | st.tuples(st.just("policy"), policies | values)
    | st.tuples(st.just("calls"), deliveries)
    | st.tuples(st.sampled_from(["approve", "reject", "edit", "replace", "answer", "nope"]), decisions | values)
)
sent = st.lists(messages, max_size=6)
configs = st.fixed_dictionaries(
    {
        "approval": st.sampled_from(
            [
                {"scope": scope, "timeout": 60, "on_timeout": means}
                for scope in ("calls", "plan")
                for means in ("approve", "fail")
            ]
        ),
        "execution": st.sampled_from(["drain", "step"]),
        "max_requests": st.just(3),
    },
    optional={"token_budget": st.sampled_from([1000, 30_000])},
)


@dataclass
class Scene:
    config: dict[str, Any]
    answers: list[Any]
    results: list[tuple[str, Any, str]]
    sent: list[tuple[str, Any]]
    given: Any
    turn: int = field(default=0)

    def act(self) -> Any:
        kind, value, text = self.results[self.turn % len(self.results)]
        self.turn += 1
        if kind == "branch":
            return branch(text, value)
        if kind == "error":
            raise ToolError(text, text)
        if kind == "raise":
            raise ValueError(text)
        for _ in range(150 if kind == "deep" else 0):
            value = [value]
        return value

    def answer(self, request: ChatRequest) -> Any:
        if "No more calls" in request.text or request.number > 20:
            return {"output": {"ok": True}}
        return self.answers[request.number % len(self.answers)]


scenes = st.builds(
    Scene,
    config=configs,
    answers=st.lists(solutions, min_size=1, max_size=3),
    results=st.lists(results, min_size=1, max_size=4),
    sent=sent,
    given=values,
)


def documents(config: dict[str, Any]) -> dict[str, Any]:
    loose = {"additionalProperties": True}
    tools = [
        {"name": "act", "_activity": "act", **loose},
        {"name": "risk", "_activity": "act", "_dangerous": True, **loose},
        {"name": "nap", "_activity": "perdure.sleep_until", **loose},
        {"name": "ask", "_activity": "perdure.ask_person", **loose},
        {"name": "helper", "_delegate": "anonymous", "description": "Help.", **loose},
        {"name": "latent", **loose},
    ]
    return agent(*tools, config=config, context=[{"type": "input"}])


async def play(scene: Scene) -> None:
    @tool(retries=0)
    async def act(**_: Any) -> Any:
        return scene.act()

    async with (
        contextlib.AsyncExitStack() as stack,
        harness((await serve(stack, "time-skipping")).client, [act], scene.answer, sandboxed=False) as it,
    ):
        run = await it.start(documents(scene.config), {"x": scene.given})
        await send(it, run.id, scene.sent)
        # Where somebody has said that people may take for ever, the clock of this server skips to the end of the run's ten years.
        await send(it, run.id, [("policy", {"timeout": 60, "on_timeout": "approve"})])
        with contextlib.suppress(WorkflowFailureError):
            await asyncio.wait_for(run.result(), HANG)
        assert await failed_tasks(run) == []
        view = await it.view(run.id)
        assert view.status in ("completed", "failed")
        assert {call.status for call in view.calls} <= ENDED or view.status == "failed"


async def send(it: Harness, run_id: str, messages: list[tuple[str, Any]]) -> None:
    """Each to what waits by then, if anything does; the run may end meanwhile."""
    run = it.client.get_workflow_handle(run_id)
    for name, message in messages:
        with contextlib.suppress(RPCError):
            if name == "decide":
                waiting = [offer.call for offer in (await it.view(run_id)).waiting]
                message = {"call": waiting[0] if waiting else "1.0", **message}
            await run.signal(name, message)


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(scenes)
def test_r18_6_a_few_runs_of_anything(scene: Scene) -> None:
    asyncio.run(play(scene))


@pytest.mark.soak
@settings(max_examples=times(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(scenes)
def test_r18_6_many_runs_of_anything(scene: Scene) -> None:
    asyncio.run(play(scene))


@pytest.mark.soak
@settings(max_examples=times(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(scenes, st.lists(messages, min_size=25, max_size=25))
def test_r18_6_a_thousand_signals_to_runs_of_anything(scene: Scene, flood: list[tuple[str, Any]]) -> None:
    asyncio.run(play(replace(scene, sent=flood)))
