"""A loop that continues as new at each step goes on as if it had not (R8.7)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.hosting.connection import data_converter
from perdure.models.usage import ModelUsage, RunUsage
from perdure.runs.delegates import BUDGET, SPENT_ACTIVITY, SpentBudget
from perdure.runs.limits import Budget
from perdure.runs.loops import ITEMS, LOOP_WORKFLOW, LoopInput, LoopState
from perdure.runs.wire import AGENT_WORKFLOW, POLICY, PREPARE_ACTIVITY, RunInput, RunResult
from perdure.values.json import Json, JsonObject, Packed
from perdure.workflows.loops import LoopWorkflow
from tests.soak import share
from tests.support import impatient
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

hasty_server = impatient(1)

ITERATION = st.fixed_dictionaries(
    {
        "ends": st.sampled_from(["well", "well", "well", "fails", "fails without a word", "is too large"]),
        "tokens": st.sampled_from([0, 100, 900, 5_000]),
        "cost": st.sampled_from([0.0, 0.25, None]),
        "sources": st.lists(st.sampled_from(["!tool:read", "tool:write", "user"]), max_size=2),
        "sent": st.lists(st.sampled_from(["a", "b", "c"]), max_size=2),
        "done": st.booleans(),
        "policy": st.sampled_from([None, None, {"ask": "always"}, {"tools": {"read": "never"}}, {"ask": "unknown"}]),
        "raises": st.sampled_from([None, None, 40_000]),
    }
)
CALM = ITERATION.filter(lambda iteration: iteration["ends"] != "is too large").map(
    lambda iteration: iteration | {"policy": None, "raises": None}
)
"""An iteration that changes nothing for the others: these run at once, in any order. A large result takes their room."""
BUDGET_OF_LOOP = st.sampled_from([{}, {}, {"tokens": 20_000}, {"tokens": 20_000, "cost": 1.0}])


def loop(kind: str, iterations: Any, **fields: Any) -> Any:
    return st.fixed_dictionaries(
        {
            "kind": st.just(kind),
            "iterations": st.lists(iterations, min_size=1, max_size=4),
            "prepares": st.booleans(),
            **{
                name: value if isinstance(value, st.SearchStrategy) else st.just(value)
                for name, value in fields.items()
            },
        }
    )


LOOPS = st.one_of(
    loop("each", ITERATION, parallel=1, budget=BUDGET_OF_LOOP),
    loop("until", ITERATION, parallel=1, budget=BUDGET_OF_LOOP),
    loop("each", CALM, parallel=3, budget={}),
    loop("parts", ITERATION, parallel=1, budget=BUDGET_OF_LOOP),
)


@dataclass
class Script:
    """What the iterations of one loop do, and what they received."""

    iterations: list[JsonObject]
    prepares: bool
    received: dict[int, JsonObject] = field(default_factory=dict)
    preparations: int = 0


scripts: dict[str, Script] = {}
"""By the ids of the loops."""


def script_of(run_id: str) -> tuple[Script, int]:
    loop_id, _, index = run_id.rpartition("/")
    return scripts[loop_id], int(index)


def used(step: JsonObject) -> RunUsage:
    usage = RunUsage()
    each = ModelUsage(prompt_tokens=step["tokens"], requests=1, cost=step["cost"])
    usage.include(RunUsage(by_model={"scripted": each}))
    return usage


@workflow.defn(name=AGENT_WORKFLOW)
class Iteration:
    """The run of an iteration: it ends as its script has it."""

    @workflow.run
    async def run(self, *sent: Json) -> RunResult:
        info, argument = workflow.info(), RunInput.model_validate(sent[0])
        assert info.parent is not None
        script, index = script_of(info.workflow_id)
        step = script.iterations[index]
        script.received[index] = argument.model_dump(exclude={"free"})  # this one goes by the history so far
        above = workflow.get_external_workflow_handle(info.parent.workflow_id)
        if step["policy"] is not None:
            await above.signal(POLICY, step["policy"])
        if step["raises"] is not None:
            await above.signal(BUDGET, Budget(tokens=step["raises"]))
        if step["ends"] == "fails without a word":
            raise ApplicationError("it is broken", type="broken", non_retryable=True)
        if step["ends"] == "fails":
            details = {"usage": used(step).as_json(), "sources": step["sources"], "sent": step["sent"]}
            raise ApplicationError("it has failed", details, type="failed", non_retryable=True)
        output = {"n": index, "done": step["done"], "text": "x" * (90_000 if step["ends"] == "is too large" else 5)}
        return RunResult(
            run_id=info.workflow_id,
            status="completed",
            output=output if not argument_items(argument) else of_part(argument_items(argument), output),
            usage=used(step),
            sources=step["sources"],
            sent=step["sent"],
        )


def argument_items(argument: RunInput) -> list[Json]:
    """Return the items of a part; none for another iteration."""
    data = [each for each in argument.agent["context"] if each.get("kind") == ITEMS]
    items: list[Json] = data[0]["data"] if data else []
    return items


def of_part(items: list[Json], output: JsonObject) -> JsonObject:
    return {"results": [output["n"], *items[1:]], "lists": [[output["text"], *items[1:]]], "failed": [], "done": 1}


@activity.defn(name=PREPARE_ACTIVITY)
async def prepare(_: Json) -> Packed:
    run_id = activity.info().workflow_id
    assert run_id is not None
    scripts[run_id].preparations += 1
    if not scripts[run_id].prepares:
        raise ApplicationError("there is no such model", type="Refused", non_retryable=True)
    return Packed(form=1, data="prepared")


@activity.defn(name=SPENT_ACTIVITY)
async def spent(run_id: str) -> SpentBudget:
    script, index = script_of(run_id)
    return SpentBudget(usage=used(script.iterations[index]))


@asynccontextmanager
async def working(server: WorkflowEnvironment) -> AsyncIterator[tuple[Client, str]]:
    """A worker of this server for loops whose iterations are scripted: its client, and its task queue."""
    address = server.client.service_client.config.target_host
    client, queue = await Client.connect(address, data_converter=data_converter()), f"loops-{uuid.uuid4().hex[:8]}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[LoopWorkflow, Iteration],
        activities=[prepare, spent],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        yield client, queue


def argument_of(of: JsonObject) -> LoopInput:
    count, agent = len(of["iterations"]), {"name": "checker", "context": [{"type": "input"}]}
    loop = LoopInput(
        kind="until" if of["kind"] == "until" else "each",
        agent=agent,
        params={"given": 1},
        items=[] if of["kind"] == "until" else list(range(count)),
        parallel=of["parallel"],
        until="†output.done" if of["kind"] == "until" else "",
        max=count,
        max_payload=200_000,  # has room for one large result
        approval={"ask": "unsafe"},
        budget=Budget.model_validate(of["budget"]),
        sources={"†input._each": ["user"], "†plan": ["model"]},
    )
    if of["kind"] == "parts":
        loop.items = list(range(100 * (count - 1) + 1))
        loop.call, loop.lists = {"_tool": "read"}, ["†state.all"]
    return loop


async def play(of: JsonObject, client: Client, queue: str) -> tuple[JsonObject, Script, bool]:
    """Run the loop; return its state, its script, and whether it has continued as new."""
    id = f"loop-{uuid.uuid4().hex[:8]}"
    script = scripts[id] = Script(of["iterations"], of["prepares"])
    handle = await client.start_workflow(LOOP_WORKFLOW, argument_of(of), id=id, task_queue=queue, result_type=LoopState)
    state: LoopState = await asyncio.wait_for(handle.result(), HANG)
    described = await handle.describe()
    found = state.model_dump()
    # Iterations that run at once end in any order.
    found["failed"] = sorted(found["failed"], key=lambda each: int(each["index"]))
    found["sent"] = sorted(found["sent"])
    del found["expected"]["one_tokens"], found["expected"]["one_cost"]
    return found, script, described.raw_info.first_run_id != described.run_id


# Each loop takes a second. All examples of a test share its two servers.
@settings(
    max_examples=share(3),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(loops=st.lists(LOOPS, min_size=8, max_size=8))
async def test_r8_7_a_loop_that_continues_as_new_at_each_step_goes_on_as_if_it_had_not(
    dev_server: WorkflowEnvironment, hasty_server: WorkflowEnvironment, loops: list[JsonObject]
) -> None:
    async with working(hasty_server) as goes, working(dev_server) as stays:
        pairs = await asyncio.gather(*(asyncio.gather(play(each, *goes), play(each, *stays)) for each in loops))
    for of, ((mine, script, went), (other, twin, stayed)) in zip(loops, pairs, strict=True):
        assert mine == other
        assert script.received == twin.received
        assert not of["prepares"] or script.preparations == twin.preparations == 1
        assert (went, stayed) == (mine["done"] > of["parallel"], False)
