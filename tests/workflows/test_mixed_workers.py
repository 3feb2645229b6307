"""Two workers of one queue, one of which lacks what the runs need: another worker is asked (R12.5)."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import pytest
from pydantic import ValidationError
from temporalio.client import Client, WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.activities.endpoints import Endpoints
from perdure.client.erasure import payloads_of
from perdure.client.histories import replay_history
from perdure.hosting.connection import data_converter
from perdure.models.model_names import split_endpoint
from perdure.models.requests import Endpoint
from perdure.runs.agent import Models, Situation
from perdure.runs.version_switches import NEWEST
from perdure.runs.wire import AGENT_WORKFLOW, PREPARED_FORM, PreparedWorker, RunInput
from perdure.testing.scripted_model import ScriptedModel
from perdure.values.json import Packed, pack
from tests.support import DONE, agent, harness
from tests.timeouts import HANG
from tests.workflows.test_model_servers import asked

pytestmark = pytest.mark.asyncio(loop_scope="session")
RUNS = 3


def choose(_: Situation) -> str:
    return "llama@inhouse"


def decide(_: Any) -> dict[str, Any]:
    return {"decision": "approve"}


@tool(dangerous=True)
def erase(path: str) -> str:
    return path


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("llama@inhouse", ("llama", "inhouse")),
        ("anthropic:claude@proxy", ("claude", "proxy")),
        ("llama", ("llama", "")),
        ("claude@2026", ("claude@2026", "")),
        ("claude@latest@", ("claude@latest", "")),
        ("claude@2026@proxy", ("claude@2026", "proxy")),
        ("@cf/llama", ("@cf/llama", "")),
        ("@cf/llama@proxy", ("@cf/llama", "proxy")),
    ],
)
async def test_the_last_at_of_a_model_names_its_endpoint(model: str, found: tuple[str, str]) -> None:
    assert split_endpoint(model) == found


async def test_an_unknown_endpoint_sends_nothing_to_another_server() -> None:
    async with ScriptedModel([DONE]) as default:
        endpoints = Endpoints(default.client(), {"proxy": Endpoint(base_url="http://127.0.0.1:9")})
        with pytest.raises(Exception, match=r"no endpoint 'inhouse'.*it has proxy.*Write 'llama@inhouse@'"):
            await asked(endpoints, "llama@inhouse")
        assert default.requests == []
        await asked(endpoints, "llama@inhouse@")
    assert [request.model for request in default.requests] == ["llama@inhouse"]


async def test_r12_5_a_worker_without_the_models_endpoint_or_function_leaves_runs_to_another_worker(
    dev_server: WorkflowEnvironment,
) -> None:
    queue = f"test-{uuid.uuid4().hex[:8]}"
    host = dev_server.client.service_client.config.target_host
    other = await Client.connect(host, data_converter=data_converter(), identity="the new worker")
    models = {"smart": "llama@inhouse", "fast": "llama@inhouse", "policy": f"{__name__}:choose"}
    config = {"models": models, "approval": {"ask": "dangerous", "approver": f"{__name__}:decide"}}
    script = [{"calls": [{"_tool": "erase", "path": "/x"}]}, DONE] * RUNS
    async with (
        ScriptedModel(script, strict=False) as inhouse,
        harness(dev_server.client, [erase], [DONE] * RUNS, task_queue=queue) as old,
        harness(
            other,
            [erase],
            [],
            task_queue=queue,
            named=[__name__],
            endpoints={"inhouse": Endpoint(base_url=inhouse.base_url)},
        ),
    ):
        views = []
        for _ in range(RUNS):
            views.append(await asyncio.wait_for(old.run(agent("erase", config=config)), HANG))
    assert [(view.status, view.refusals, [call.status for call in view.calls]) for view in views] == [
        ("completed", [], ["done"])
    ] * RUNS
    assert (len(old.model.requests), len(inhouse.requests)) == (0, 2 * RUNS)


async def test_a_run_that_no_worker_can_prepare_yet_shows_why(dev_server: WorkflowEnvironment) -> None:
    queue = f"test-{uuid.uuid4().hex[:8]}"
    host = dev_server.client.service_client.config.target_host
    other = await Client.connect(host, data_converter=data_converter(), identity="the other worker")
    async with (
        harness(dev_server.client, [], [DONE], task_queue=queue) as old,
        harness(other, [], [DONE], task_queue=queue),
    ):
        handle = await old.start(agent("erase"))
        async with asyncio.timeout(HANG):
            while not (trouble := (await old.view(handle.id)).trouble):
                pass
        await handle.terminate()
    assert trouble.startswith("it waits for a worker that can prepare it; attempt ")
    assert "the worker has no tool 'erase'. No other worker" in trouble


async def test_r13_7_a_run_that_a_newer_version_has_begun_waits_for_that_version(
    dev_server: WorkflowEnvironment,
) -> None:
    async with harness(dev_server.client, [], [DONE]) as it:
        view = await it.run(agent())
        history = await it.client.get_workflow_handle(view.run_id).fetch_history()
    for payload in (one for event in history.events for one in payloads_of(event)):
        with contextlib.suppress(ValidationError):
            packed = Packed.model_validate_json(payload.data)
            recorded = packed.read(PreparedWorker, PREPARED_FORM, "the record")
            newer = pack(recorded.model_copy(update={"rules": NEWEST + 1}), PREPARED_FORM)
            payload.data = newer.model_dump_json().encode()
    problem = (await replay_history(history, data_converter())).problem
    assert f"(rules {NEWEST + 1}; this worker has rules {NEWEST})" in str(problem)


async def test_r18_6_a_run_that_only_claims_to_be_of_a_newer_version_is_refused(
    dev_server: WorkflowEnvironment,
) -> None:
    newer = PreparedWorker(tools=[], models=Models(), rules=NEWEST + 1)
    run_input = RunInput(agent=agent(), prepared=pack(newer, PREPARED_FORM))
    async with harness(dev_server.client, [], [DONE]) as it:
        handle = await it.client.start_workflow(
            AGENT_WORKFLOW, run_input, id=f"newer-{uuid.uuid4().hex[:8]}", task_queue=it.task_queue
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert it.model.requests == []
    assert f"(rules {NEWEST + 1}; this worker has rules {NEWEST})" in str(failed.value.cause)
