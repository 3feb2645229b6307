"""Random cases played for real, in each dialect: what the interpreter says of the order in which the history says calls ended."""

from __future__ import annotations

import asyncio
import re
import uuid
from itertools import count, islice
from typing import Any

import pytest
from openai import AsyncOpenAI
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from perdure import ToolContext, ToolError, branch, tool
from perdure.client.run_operations import fetch_run, start_run
from perdure.hosting.connection import data_converter
from perdure.hosting.worker import build_worker
from perdure.runs.agent import parse_agent
from perdure.testing.scripted_model import ChatRequest, ScriptedModel
from perdure.workflows.agent import AgentWorkflow
from tests.differential.cases import TAKES, Case, assigns_again, make_case
from tests.differential.interpreter import interpret
from tests.soak import share
from tests.support import registry

RUNS = share(100)
AT_ONCE = 8
DIALECTS = ("solution", "tools", "script")
FOUND = (20_971, 23_207, 23_845)
"""Cases with an order that their scripts lacked."""


def document(case: Case, dialect: str) -> dict[str, Any]:
    properties = {name: {} if kind == "any" else {"type": kind} for name, kind in TAKES.items()}
    tools = [
        {"name": name, "properties": properties, "additionalProperties": False, "_activity": "play"}
        | ({"_exclusive": case.groups[name]} if name in case.groups else {})
        for name in case.ends
    ]
    context = [
        {"type": "text", "text": f"Play case {case.seed}."},
        {"type": "input"},
        *([{"type": "state", "state": case.state}] if case.state else []),
        *({"type": "tool", "tool": definition} for definition in tools),
    ]
    limits = {"parallel": case.parallel, "execution": "step" if case.step else "drain"}
    return {"name": "random", "config": {"dialect": dialect, **limits}, "context": context, "schema": True}


class Stage:
    """What the tools of all cases do, and what they were given."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = {case.seed: case for case in cases}
        self.asked: dict[int, list[Any]] = {}
        """Case → the messages of its first Request, which may come again: an attempt is lost where the machine is busy."""
        self.given: dict[tuple[int, int], Any] = {}

    def answer(self, asked: ChatRequest) -> dict[str, Any]:
        found = re.search(r"Play case (\d+)\.", asked.text)
        assert found is not None
        seed = int(found[1])
        if self.asked.setdefault(seed, asked.messages) != asked.messages:
            return {"calls": [], "output": "over"}
        return {"calls": self.cases[seed].calls, "output": None}

    def play(self, context: ToolContext, params: dict[str, Any]) -> Any:
        seed, index = int(context.idempotency_key.split("-")[1]), int(context.call_id.split(".")[1])
        self.given[seed, index] = params
        case = self.cases[seed]
        outcome, value = case.outcome(index, params)
        if outcome == "failed":
            raise ToolError(value["code"], value["message"])
        return branch(case.calls[index]["_outputPath"].split(" || ")[-1], value) if outcome == "branch" else value


def order_of(history: WorkflowHistory) -> list[int]:
    """The calls of the first Request in the order in which they ended."""
    scheduled, order = {}, []
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled[event.event_id] = event.activity_task_scheduled_event_attributes.activity_id
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            order.append(scheduled[event.activity_task_completed_event_attributes.scheduled_event_id])
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
            order.append(scheduled[event.activity_task_failed_event_attributes.scheduled_event_id])
    return [int(name[2:]) for name in order if name.startswith("1.")]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_random_runs_do_what_the_protocol_says(dialect: str, dev_server: WorkflowEnvironment) -> None:
    cases = (make_case(10_000 + seed) for seed in count(DIALECTS.index(dialect), len(DIALECTS)))
    # A script that assigns a name again orders its versions (R5.14): that is another plan than the case's.
    played = (case for case in cases if dialect != "script" or not assigns_again(case))
    found_once = map(make_case, FOUND if dialect == "script" else ())
    stage = Stage([*found_once, *islice(played, RUNS // len(DIALECTS))])

    @tool(name="play", retries=0)
    async def play(context: ToolContext, **params: Any) -> Any:
        return stage.play(context, params)

    queue, at_once = f"random-{uuid.uuid4().hex[:8]}", asyncio.Semaphore(AT_ONCE)
    histories = []

    async def run(case: Case) -> list[str]:
        try:
            return await check(case)
        except Exception as error:
            error.add_note(f"case {case.seed}, dialect {dialect}")
            raise

    async def check(case: Case) -> list[str]:
        async with at_once:
            agent = document(case, dialect)
            run_id = f"random-{case.seed}-{uuid.uuid4().hex[:8]}"
            handle = await start_run(
                dev_server.client,
                parse_agent(agent),
                agent,
                case.input,
                has_input=True,
                run_id=run_id,
                task_queue=queue,
            )
            await handle.result()
            view, history = await fetch_run(dev_server.client, run_id), await handle.fetch_history()
        histories.append(history)
        spec = interpret(case, order_of(history))
        calls = [call for call in view.calls if call.id.startswith("1.")]
        problems = []
        for index, (call, node) in enumerate(zip(calls, spec.nodes, strict=True)):
            if call.status != node.status:
                problems.append(f"{call.id} {call.status} ({call.error or call.reason}), expected {node.status}")
            if index in spec.order and stage.given[case.seed, index] != node.params:
                problems.append(f"{call.id} got {stage.given[case.seed, index]}, expected {node.params}")
        if len(view.errors) != sum(node.told for node in spec.nodes):
            problems.append(f"the model was told {view.errors}")
        if view.state != spec.state:
            problems.append(f"state {view.state}, expected {spec.state}")
        return [f"case {case.seed}: {problem}" for problem in problems]

    async with ScriptedModel(stage.answer, dialect=dialect, kinds=["input"], chunk=200) as model:
        asking = AsyncOpenAI(base_url=model.base_url, api_key="scripted", max_retries=0)
        # The first failure ends the others, and the worker waits for nobody: it is what the test reports.
        async with (
            build_worker(dev_server.client, registry([play]), task_queue=queue, model=asking, grace=5.0),
            asyncio.TaskGroup() as group,
        ):
            found = [group.create_task(run(case)) for case in stage.cases.values()]
    assert [problem for each in found for problem in each.result()] == []
    replayer = Replayer(
        workflows=[AgentWorkflow], data_converter=data_converter(), workflow_runner=UnsandboxedWorkflowRunner()
    )
    for history in histories:
        await replayer.replay_workflow(history)
