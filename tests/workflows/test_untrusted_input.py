"""Whatever anybody sends may end a call or a run, with a reason, but never a workflow task (R18.6)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, ToolError, tool
from perdure.approvals.decisions import parse_decision
from perdure.approvals.policy import parse_policy
from perdure.approvals.requests import STEER, WITHDRAW, IncomingMessage
from perdure.errors import AgentError
from perdure.runs.agent import parse_agent
from perdure.runs.evaluation import EVALUATED_RUN_WORKFLOW
from perdure.runs.loops import LOOP_WORKFLOW
from perdure.runs.notifications import NOTIFICATION_WORKFLOW
from perdure.runs.wire import AGENT_WORKFLOW, CALLS_SIGNAL, DECIDE, POLICY, REFUSED
from perdure.sessions.status_webhooks import SET_STATUS_WEBHOOK, StatusWebhookChange
from perdure.sessions.transcript import SEGMENT_WORKFLOW
from perdure.sessions.wire import (
    COMPACT,
    DECIDE_IN_SESSION,
    DESCRIBE,
    END,
    REDELIVER,
    SEND,
    SESSION_WORKFLOW,
    Description,
    Message,
    MessageWithdrawal,
    Redelivery,
    SessionDecision,
    SessionDeletion,
)
from perdure.sessions.wire import WITHDRAW as WITHDRAW_FROM_SESSION
from perdure.testing.scripted_model import ChatRequest
from tests.support import DONE, agent, failed_tasks, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

removed: list[str] = []


@tool(dangerous=True)
def remove(path: str) -> str:
    removed.append(path)
    return path


ODD: list[list[Any]] = [
    [],
    [{"call": "1.0"}, {"call": "1.0"}],
    [b"\x00\xff"],
    [None],
    ["approve"],
    [5],
    [["1.0"]],
    [{}],
    [{"call": 5}],
    [{"call": "1.0", "params": {"path": float("nan")}}],
    [Timestamp(seconds=5)],
]
SIGNALS = ["approve", "reject", "edit", "replace", "answer", DECIDE, POLICY, CALLS_SIGNAL]


async def test_r18_6_signals_of_any_shape(dev_server: WorkflowEnvironment) -> None:
    script = [{"calls": [{"_tool": "remove", "path": "/odd"}]}, DONE]
    async with harness(dev_server.client, [remove], script) as it:
        handle = await it.start(agent("remove"))
        await it.until_waiting(handle.id, "1.0")
        for name in SIGNALS:
            # An empty policy changes nothing, and is none the worse for it.
            odd = [arguments for arguments in ODD if (name, arguments) != (POLICY, [{}])]
            await asyncio.gather(*(handle.signal(name, args=arguments) for arguments in odd))
        last: list[list[dict[str, Any]]] = [[], [{}, {}]]
        for arguments in last:  # the run keeps the newest refusals, and those above came in any order
            await handle.signal("approve", args=arguments)
        newest = "expected one JSON object, not 2 arguments"
        async with asyncio.timeout(HANG):  # a query may be answered before the last signal is handled
            while True:
                problems = [refused["problem"] for refused in (await it.view(handle.id)).refusals]
                if newest in problems:
                    break
                await asyncio.sleep(0.02)
        for name in (DECIDE, POLICY):
            for arguments in ODD[:8]:
                if (name, arguments) != (POLICY, [{}]):
                    with pytest.raises(WorkflowUpdateFailedError):
                        await handle.execute_update(name, args=arguments)
        await handle.signal("approve", {"call": "1.0"})
        result = await handle.result()
        failed = await failed_tasks(it.client.get_workflow_handle(handle.id))
    assert (result.status, removed.count("/odd"), failed) == ("completed", 1, [])
    assert "expected one JSON object, not no arguments" in problems
    assert newest in problems


@pytest.mark.parametrize("arguments", [[], [1, 2], [None], [{}], [b"x"], [{"agent": {"name": "x"}, "huh": 1}]])
@pytest.mark.parametrize("workflow", [AGENT_WORKFLOW, LOOP_WORKFLOW])
async def test_r18_6_a_workflow_started_with_anything(
    workflow: str, arguments: list[Any], dev_server: WorkflowEnvironment
) -> None:
    async with harness(dev_server.client, [remove], []) as it:
        handle = await it.client.start_workflow(
            workflow,
            args=arguments,
            id=f"odd-{workflow}-{id(arguments)}",
            task_queue=it.task_queue,
            task_timeout=timedelta(seconds=2),
        )
        with pytest.raises(WorkflowFailureError) as caught:
            await asyncio.wait_for(handle.result(), HANG)
        failed = await failed_tasks(it.client.get_workflow_handle(handle.id))
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, failed) == (REFUSED, [])
    assert cause.message.startswith("the input of the workflow is not valid: ")


WORKER: dict[str, Any] = {"name": "worker", "config": {"model": "none"}, "context": []}
NOTE: dict[str, Any] = {"key": "k", "kind": "run_ended", "at": "x", "text": "t", "runId": "r", "agent": "a"}


def loop(**fields: Any) -> dict[str, Any]:
    return {"kind": "each", "agent": WORKER, "items": [1], **fields}


@pytest.mark.parametrize(
    ("workflow", "argument", "why"),
    [
        (LOOP_WORKFLOW, loop(parallel=0), "$.parallel"),
        (LOOP_WORKFLOW, loop(parallel=-3), "$.parallel"),
        (LOOP_WORKFLOW, loop(parallel=100_000), "$.parallel"),
        (LOOP_WORKFLOW, loop(parallel=0, unreserved={"tokens": 5}), "$.parallel"),
        (LOOP_WORKFLOW, loop(kind="until", until="†output.done", max=10**9), "$.max"),
        (LOOP_WORKFLOW, loop(state={"next": -5}), "$.state.next"),
        (LOOP_WORKFLOW, loop(agent={"name": "x"}, call={"_tool": "remove"}), "KeyError"),
        (LOOP_WORKFLOW, loop(kind="until", agent={"name": "x", "context": 5}, until="†output.done"), "TypeError"),
        (LOOP_WORKFLOW, loop(lists=["a", "b"], state={"lists": [[]], "results": [1, 2], "next": 0}), ""),
        (NOTIFICATION_WORKFLOW, {"notification": NOTE, "routes": ["r"] * 3_000}, "$.routes"),
        (EVALUATED_RUN_WORKFLOW, {"score": {"runId": "y" * 2_000}, "start": {"agent": WORKER}}, "2,000 bytes"),
        (EVALUATED_RUN_WORKFLOW, {"score": {"runId": ""}, "start": {"agent": WORKER}}, "0 bytes"),
        (SESSION_WORKFLOW, {"key": "k", "snapshot": {"form": 1, "data": "garbage"}}, "the snapshot"),
        (SESSION_WORKFLOW, {"key": "k", "snapshot": {"form": 10**6, "data": ""}}, "the snapshot"),
    ],
)
async def test_r18_6_an_internal_workflow_that_a_person_starts_ends_with_a_reason(
    workflow: str, argument: Any, why: str, dev_server: WorkflowEnvironment
) -> None:
    async with harness(dev_server.client, [remove], []) as it:
        handle = await it.client.start_workflow(
            workflow, argument, id=f"by-hand-{uuid.uuid4().hex[:8]}", task_queue=it.task_queue
        )
        failed = await wait_for_end(handle)
    assert failed == []
    if why:
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        cause = caught.value.cause
        assert isinstance(cause, ApplicationError)
        assert (cause.type, why in cause.message) == (REFUSED, True), cause.message


async def wait_for_end(handle: WorkflowHandle[Any, Any]) -> list[str]:
    """Wait for a workflow's end; return its failed tasks. The failures of an endless one end the test."""
    async with asyncio.timeout(HANG):
        while (await handle.describe()).status == WorkflowExecutionStatus.RUNNING:
            if failed := await failed_tasks(handle):
                return failed
            await asyncio.sleep(0.05)
    return await failed_tasks(handle)


async def metadata(handle: WorkflowHandle[Any, Any]) -> WorkflowMetadata:
    """What the Web UI and `temporal workflow metadata` show."""
    found: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return found


@tool
def note(text: str) -> str:
    return text


async def test_r12_8_the_details_of_a_run_are_there_when_somebody_looks(dev_server: WorkflowEnvironment) -> None:
    looks = {"calls": [{"_tool": "note", "text": "an apple"}], "output": None}
    async with harness(dev_server.client, [note], [looks, DONE]) as it:
        handle = await it.start(agent("note"))
        await handle.result()
        details = (await metadata(it.client.get_workflow_handle(handle.id))).current_details
    assert "2 Requests, 1 of 1 call done" in details
    assert "| 1.0 | done | note |" in details


async def test_r18_6_a_session_is_sent_anything_by_each_of_its_handlers(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [note], [DONE, DONE]) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        session = perdure.session(f"odd-{uuid.uuid4().hex[:8]}", agent=Agent.of(agent("note")))
        await session.reply(await session.send("hello", sender="ann"), HANG)
        handle = it.client.get_workflow_handle(session.id)
        definition = (await metadata(handle)).definition
        signals = [each.name for each in definition.signal_definitions]
        updates = [each.name for each in definition.update_definitions]
        assert {"turn", "waits"} <= set(signals)
        assert {SEND, END} <= set(updates)
        for arguments in ODD:
            for name in signals:
                await handle.signal(name or "nothing of ours", args=arguments)
            for name in updates:
                if (name, arguments) != (DESCRIBE, [{}]):  # it describes the session by nothing
                    with pytest.raises(WorkflowUpdateFailedError):
                        await handle.execute_update(name, args=arguments)
        reply = await session.reply(await session.send("and again", sender="ann"), HANG)
        failed = await failed_tasks(it.client.get_workflow_handle(session.id))
    assert (reply is not None, failed) == (True, [])


FORMS: dict[str, dict[str, Callable[[Any], Any]]] = {
    AGENT_WORKFLOW: {
        "approve": lambda sent: parse_decision(sent, "approve"),
        "reject": lambda sent: parse_decision(sent, "reject"),
        "edit": lambda sent: parse_decision(sent, "edit"),
        "replace": lambda sent: parse_decision(sent, "replace"),
        "answer": lambda sent: parse_decision(sent, "answer"),
        DECIDE: parse_decision,
        POLICY: parse_policy,
        STEER: IncomingMessage.model_validate,
        WITHDRAW: lambda sent: sent["id"],
    },
    LOOP_WORKFLOW: {POLICY: parse_policy},
    SESSION_WORKFLOW: {
        SEND: Message.model_validate,
        WITHDRAW_FROM_SESSION: MessageWithdrawal.model_validate,
        DECIDE_IN_SESSION: lambda sent: parse_decision(SessionDecision.model_validate(sent).decision),
        COMPACT: SessionDeletion.model_validate,
        REDELIVER: Redelivery.model_validate,
        DESCRIBE: Description.model_validate,
        END: SessionDeletion.model_validate,
        SET_STATUS_WEBHOOK: StatusWebhookChange.model_validate,
    },
    SEGMENT_WORKFLOW: {},
}
"""How each workflow reads what people send it."""


@pytest.mark.parametrize("workflow", FORMS)
async def test_each_handler_is_described_with_an_example_that_it_accepts(
    workflow: str, dev_server: WorkflowEnvironment
) -> None:
    async with harness(dev_server.client, [note], []) as it:
        handle = await it.client.start_workflow(
            workflow, id=f"described-{uuid.uuid4().hex[:8]}", task_queue=it.task_queue
        )
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), HANG)
        definition = (await metadata(handle)).definition
    handlers = [*definition.signal_definitions, *definition.update_definitions, *definition.query_definitions]
    ours = [each for each in handlers if not each.name.startswith("__")]
    assert [each.name for each in ours if not each.description] == []
    examples = {each.name: each.description[each.description.index("{") :] for each in ours if "{" in each.description}
    assert examples.keys() == FORMS[workflow].keys()
    for name, example in examples.items():
        FORMS[workflow][name](json.loads(example))


async def test_r6_7_a_delivery_after_the_request_was_closed_adds_nothing(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "remove", "path": "/first"}]
    late = [{"_tool": "remove", "path": "†state.never"}, {"_tool": "remove", "path": "/late"}]
    async with harness(dev_server.client, [remove], [{"calls": calls}, DONE]) as it:
        handle = await it.start(agent("remove"))
        await it.until_waiting(handle.id, "1.0")
        async for event in it.client.get_workflow_handle(handle.id).fetch_history_events(wait_new_event=True):
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                break  # the Request's answer is whole
        await handle.signal(CALLS_SIGNAL, {"number": 1, "attempt": 1, "first": 1, "calls": late})
        await handle.signal("approve", {"call": "1.0"})
        result = await asyncio.wait_for(handle.result(), HANG)
    assert [(call.id, call.status) for call in result.calls] == [("1.0", "done")]
    assert "/late" not in removed


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("approval", {"timeout": 1e300}),
        ("approval", {"timeout": 1e-9}),
        ("deadline", 1e300),
        ("deadline", float("inf")),
        ("deadline", 1e-9),
        ("cost_budget", float("inf")),
        ("token_budget", 10**399),
    ],
)
async def test_r18_6_a_number_that_no_timer_holds_is_one_line(where: str, value: Any) -> None:
    with pytest.raises(AgentError, match=rf"\$\.config\.{where}.*: must be "):
        parse_agent(agent(config={where: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("_timeout", 1e300),
        ("_timeout", 1e-9),
        ("_heartbeat", 1e300),
        ("_queueTimeout", 1e300),
        ("_retries", 2**40),
        ("_duration", 1e300),
        ("_taskQueue", "x" * 2000),
        ("_taskQueue", ""),
        ("_taskQueue", "/_sys/perdure"),
    ],
)
async def test_r18_6_so_is_one_in_a_tools_definition(key: str, value: Any, dev_server: WorkflowEnvironment) -> None:
    definition = {"name": "odd", "_activity": "remove", key: value}
    async with harness(dev_server.client, [remove], []) as it:
        view = await asyncio.wait_for(it.run(agent(definition)), HANG)
        failed = await failed_tasks(it.client.get_workflow_handle(view.run_id))
    assert (view.status, failed) == ("failed", [])
    assert (view.error or "").startswith("tool 'odd': ")


async def test_r18_6_sleeps_and_questions_of_any_shape(dev_server: WorkflowEnvironment) -> None:
    sleep = {"name": "nap", "_activity": "perdure.sleep_until", "additionalProperties": True}
    ask = {"name": "ask", "_activity": "perdure.ask_person", "additionalProperties": True}
    odd = [1e300, -1, "soon", [], {}, True, 10**400]
    calls = [{"_tool": "nap", "seconds": value} for value in odd if value != 10**400]
    calls += [{"_tool": "nap", "time": value} for value in [5, "", "9999-12-31T23:59:59+00:00", "0001-01-01", []]]
    calls += [{"_tool": "ask", "choices": 5, "question": ["?"]}]
    async with harness(dev_server.client, [remove], [{"calls": calls}, DONE]) as it:
        handle = await it.start(agent(sleep, ask))
        await it.until_waiting(handle.id, f"1.{len(calls) - 1}")
        await handle.signal("answer", {"call": f"1.{len(calls) - 1}", "answer": "yes"})
        result = await asyncio.wait_for(handle.result(), HANG)
        failed = await failed_tasks(it.client.get_workflow_handle(handle.id))
    assert (result.status, failed) == ("completed", [])
    statuses = [call.status for call in result.calls]
    assert statuses == [
        "failed",
        "done",
        "failed",
        "failed",
        "failed",
        "done",
        *["failed"] * 3,
        "done",
        "failed",
        "done",
    ]
    assert "a hundred years" in (result.calls[0].error or {})["message"]


@tool(retries=2)
def odd(what: str) -> Any:
    tries.append(what)
    if what == "raises":
        raise ToolError("odd", "no \ud800 text")
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    return {"surrogate": "\ud800", "deep": deep, "bytes": b"\xff"}[what]


tries: list[str] = []


async def test_r18_1_a_result_that_a_run_cannot_read_back_is_the_calls_own_final_error(
    dev_server: WorkflowEnvironment,
) -> None:
    kinds = ["surrogate", "deep", "bytes", "raises"]
    calls = [{"_tool": "odd", "what": what, "_outputPath": f"†state.{what} || †state.no_{what}"} for what in kinds]
    async with harness(dev_server.client, [odd], [{"calls": calls}, DONE]) as it:
        view = await asyncio.wait_for(it.run(agent("odd")), HANG)
        failed = await failed_tasks(it.client.get_workflow_handle(view.run_id))
    assert (view.status, failed, sorted(tries)) == ("completed", [], sorted(kinds))
    errors = [call.error or {} for call in view.calls]
    assert [error.get("code") for error in errors] == [*["not_json"] * 3, "odd"]
    assert errors[0]["message"] == "the result of odd has an unpaired surrogate, which is not a character"
    assert errors[3]["message"] == "no ? text"


HELPER: dict[str, Any] = {"name": "helper", "_delegate": "anonymous", "properties": {"task": {"type": "string"}}}


async def test_a_childs_id_that_is_taken_fails_the_call_not_the_run(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "helper", "task": "a"}, {"_tool": "helper", "task": "b", "_each": [1, 2]}]

    def answer(request: ChatRequest) -> Any:
        # Of the loop's two iterations one can run; the helper's own answers are outputs.
        return DONE if "# plan" in request.text or "helper" not in request.text else {"calls": calls}

    async with harness(dev_server.client, [remove], answer) as it:
        run_id = f"taken-{uuid.uuid4().hex[:8]}"
        for taken in ("1.0", "1.1/0"):
            await it.client.start_workflow("nobody", id=f"{run_id}/{taken}", task_queue="nowhere")
        handle = await it.start(agent(HELPER), run_id=run_id)
        result = await asyncio.wait_for(handle.result(), HANG)
        failed = await failed_tasks(it.client.get_workflow_handle(run_id))
        for taken in ("1.0", "1.1/0"):
            await it.client.get_workflow_handle(f"{run_id}/{taken}").terminate()
    assert (result.status, failed) == ("completed", [])
    assert [call.status for call in result.calls] == ["failed", "done"]
    error = result.calls[0].error or {}
    assert error["code"] == "id_taken"
    assert f"there is already a workflow '{run_id}/1.0'" in error["message"]
    assert "id_taken" in str(result.errors[-1])


async def test_nor_does_an_id_that_is_too_long(dev_server: WorkflowEnvironment) -> None:
    def answer(request: ChatRequest) -> Any:
        return DONE if "# plan" in request.text else {"calls": [{"_tool": "helper", "task": "a"}]}

    async with harness(dev_server.client, [remove], answer) as it:
        handle = await it.start(agent(HELPER), run_id=f"long-{uuid.uuid4().hex[:8]}-".ljust(998, "x"))
        result = await asyncio.wait_for(handle.result(), HANG)
        failed = await failed_tasks(it.client.get_workflow_handle(handle.id))
    assert (result.status, result.calls[0].status, failed) == ("completed", "failed", [])
    assert (result.calls[0].error or {})["code"] == "id_too_long"
