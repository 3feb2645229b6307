"""Forks of runs on a real server: what is answered from the record, and what runs (R22.1)."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, ToolError, hook, tool
from perdure.client.approvals import change_policy, decide
from perdure.client.histories import execution_histories
from perdure.client.recorded_runs import fork_run
from perdure.errors import RunError
from perdure.hooks import BeforeToolCall
from perdure.rules import precedes
from perdure.runs.wire import RunView
from perdure.testing.scripted_model import ChatRequest
from tests.support import DONE, Harness, agent, check_replays, harness, impatient, perdure

pytestmark = pytest.mark.asyncio(loop_scope="session")

impatient_server = impatient(40)

BEGUN: list[tuple[str, Any]] = []
"""Each call of a tool, as its code saw it."""


@pytest.fixture(autouse=True)
def _begun() -> None:
    BEGUN.clear()


@tool(safe=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    BEGUN.append(("add", (a, b)))
    return a + b


@tool(dangerous=True)
def pay(amount: int) -> str:
    """Pay."""
    BEGUN.append(("pay", amount))
    return f"paid {amount}"


@tool(retries=0)
def check(amount: int) -> str:
    """Refuse everything above 5."""
    BEGUN.append(("check", amount))
    if amount > 5:
        raise ToolError("too_much", f"{amount} is above 5")
    return "fine"


@tool
def refund(a: int, euros: int) -> str:
    """Refund."""
    BEGUN.append(("refund", (a, euros)))
    return f"refunded {euros}"


SUM = [
    {"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.x"},
    {"_tool": "add", "a": "†state.x", "b": 10, "_outputPath": "†state.y"},
    {"_tool": "add", "a": 7, "b": 7, "_outputPath": "†state.z"},
]


def read(request: ChatRequest) -> str:
    """Return what a Request shows, with the keys of the state in one order: calls that run at once end in any."""
    return re.sub(r"(?<=# state\n)\{.*\}", lambda state: json.dumps(json.loads(state[0]), sort_keys=True), request.text)


async def forked(it: Harness, run_id: str, at: str, **how: Any) -> RunView:
    """Fork the run and wait for the fork's end; its history replays."""
    handle = await fork_run(it.client, run_id, at, id=f"fork-{uuid.uuid4().hex[:8]}", **how)
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    async for history in execution_histories(it.client, handle.id):
        await check_replays(history)
    return await it.view(handle.id)


async def test_a_fork_before_a_request_asks_only_from_there_and_runs_nothing_again(
    dev_server: WorkflowEnvironment,
) -> None:
    script = [{"calls": SUM, "output": None}, DONE, {"calls": [], "output": {"other": True}}]
    async with harness(dev_server.client, [add], script) as it:
        first = await it.run(agent("add"))
        before, done = await it.view(first.run_id), list(BEGUN)
        view = await forked(it, first.run_id, "2")
        assert read(it.model.requests[1]) == read(it.model.requests[2])  # the model reads what it read then
        assert await it.view(first.run_id) == before
    assert (view.status, view.output, view.state) == ("completed", {"other": True}, first.state)
    assert done == BEGUN
    assert all(call.recorded for call in view.calls)
    assert view.forked == f"{first.run_id} at 2"
    assert view.usage.tokens < first.usage.tokens


async def test_an_edited_call_and_those_that_read_it_run_and_no_others(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [add], [{"calls": SUM, "output": None}, DONE, DONE]) as it:
        first = await it.run(agent("add"))
        BEGUN.clear()
        view = await forked(it, first.run_id, "2", edits={"1.0": {"a": 5}})
    assert view.state == {"x": 7, "y": 17, "z": 14}
    assert BEGUN == [("add", (5, 2)), ("add", (7, 10))]
    assert [call.recorded for call in view.calls] == [False, False, True]


@pytest.mark.parametrize(
    ("edits", "statuses"),
    [
        ({}, ["done", "done", "done"]),
        ({"1.0": {"b": 1}}, ["done", "done", "invalid"]),  # the first call runs anew, so nothing orders the calls
    ],
)
async def test_calls_that_the_record_answers_precede_an_edited_call(
    dev_server: WorkflowEnvironment, edits: dict[str, Any], statuses: list[str]
) -> None:
    calls = [
        {"_tool": "add", "a": 3, "b": 2, "_outputPath": "†state.x"},
        {"_tool": "check", "amount": "†state.x", "_outputPath": "†state.checked"},
        {"_tool": "refund", "a": 3, "euros": 5, "_after": ["1.1"]},
    ]
    rules = [precedes("add", "refund", same="a"), precedes("check", "refund")]
    document = agent(
        "add",
        "check",
        "refund",
        config={"rules": [rule.model_dump(mode="json", exclude_defaults=True) for rule in rules]},
    )
    script = [{"calls": calls, "output": None}, DONE, DONE, DONE]
    async with harness(dev_server.client, [add, check, refund], script) as it:
        first = await it.run(document)
        BEGUN.clear()
        view = await forked(it, first.run_id, "1.2", edits={"1.2": {"euros": 4, "_after": None}, **edits})
    assert [call.status for call in view.calls] == statuses, view.calls[2].error
    assert (("refund", (3, 4)) in BEGUN) == (not edits)
    assert [call.recorded for call in view.calls[:2]] == [not edits, not edits]


@pytest.mark.parametrize("limit", [103, 102])
async def test_a_recorded_loop_of_many_items_counts_for_rules_by_item(
    dev_server: WorkflowEnvironment, limit: int
) -> None:
    loop = {"_tool": "pay", "_each": [1] * 101, "amount": "†item", "_outputPath": "†state.paid"}
    body = [{"_tool": "pay", "amount": "†item", "_if": {"_expr": "item > 100"}}]
    calls = [loop, {"_tool": "_for", "_each": [*range(1, 102)], "_body": body}]
    rule = {"rule": "count_at_most", "count": limit, "of": "pay"}
    document = agent("pay", config={"approval": {"ask": "never"}, "rules": [rule]})
    more = {"calls": [{"_tool": "pay", "amount": 2}], "output": None}
    async with harness(dev_server.client, [pay], [{"calls": calls, "output": None}, DONE, more, DONE]) as it:
        first = await it.run(document)
        BEGUN.clear()
        view = await forked(it, first.run_id, "2")
    assert [call.recorded for call in view.calls] == [True, True, False]
    assert [call.status for call in view.calls[:2]] == ["done", "done"]
    assert ([("pay", 2)] if limit == 103 else []) == BEGUN


CHECKED = {"_tool": "check", "amount": "†item"}
COSTS_TWO = [
    {"_tool": "add", "a": 1, "b": 1, "_outputPath": "†state.n"},
    {"_tool": "refund", "a": "†item", "euros": "†state.n"},
]


@pytest.mark.parametrize(
    ("body", "rule", "refused"),
    [
        ([CHECKED, {"_tool": "pay", "amount": "†item"}], {"rule": "precedes", "first": "check", "then": "refund"}, 6),
        ([{**CHECKED, "_if": {"_expr": "item < 3"}}], {"rule": "precedes", "first": "check", "then": "refund"}, 3),
        (
            [{"_tool": "_for", "_each": ["†item"], "_body": [CHECKED]}, {"_tool": "pay", "amount": "†item"}],
            {"rule": "never_after", "call": "refund", "after": "check", "event": "done"},
            5,
        ),
        (COSTS_TWO, {"rule": "at_most", "of": "refund.euros", "sum": 203}, 2),
    ],
    ids=["failed", "skipped", "inner loop", "read parameter"],
)
async def test_a_fork_counts_the_calls_of_a_recorded_loop_as_the_run_did(
    dev_server: WorkflowEnvironment, body: list[Any], rule: dict[str, Any], refused: int
) -> None:
    """More than 100 items run in child workflows, which the fork's own record does not have."""
    loop = {"_tool": "_for", "_each": [*range(101)], "_body": body}
    same = {} if rule["rule"] == "at_most" else {"same": {"amount": "a"}}
    document = agent("add", "pay", "check", "refund", config={"approval": {"ask": "never"}, "rules": [rule | same]})
    more = {"calls": [{"_tool": "refund", "a": refused, "euros": 2}], "output": None}
    tools: list[Any] = [add, pay, check, refund]
    async with harness(dev_server.client, tools, [{"calls": [loop]}, more, DONE, more, DONE, DONE]) as it:
        first = await it.run(document)
        view = await forked(it, first.run_id, "2")
    ends = [[(call.id, call.status) for call in run.calls if call.id == "2.0"] for run in (first, view)]
    assert ends == [[("2.0", "invalid")]] * 2
    assert view.calls[0].recorded


async def test_a_fork_takes_a_loop_with_much_to_compute_from_the_record(dev_server: WorkflowEnvironment) -> None:
    heavy = {"_expr": "sum(1 for x in range(18) for y in range(18) for z in range(18)) + item"}
    loop = {"_tool": "pay", "_each": [*range(130)], "amount": heavy, "_outputPath": "†state.paid"}
    rule = {"rule": "count_at_most", "count": 131, "of": "pay"}
    document = agent("pay", config={"approval": {"ask": "never"}, "rules": [rule]})
    async with harness(dev_server.client, [pay], [{"calls": [loop]}, DONE, DONE]) as it:
        first = await it.run(document)
        view = await forked(it, first.run_id, "2")
        history = await it.client.get_workflow_handle(view.run_id).fetch_history()
    assert (view.status, view.calls[0].recorded) == ("completed", True)
    assert not any(event.HasField("workflow_task_failed_event_attributes") for event in history.events)


@pytest.mark.parametrize("carried_out", [True, None])
async def test_a_fork_keeps_whether_a_failed_call_took_effect(
    dev_server: WorkflowEnvironment, carried_out: bool | None
) -> None:
    @tool(retries=0)
    def send() -> str:
        """Send."""
        raise ToolError("lost", "the connection was lost", carried_out=carried_out)

    rule = {"rule": "never_after", "call": "add", "after": "send", "event": "done"}
    more = {"calls": [{"_tool": "add", "a": 1, "b": 1}], "output": None}
    script = [{"calls": [{"_tool": "send"}]}, more, DONE, more, DONE, DONE]
    async with harness(dev_server.client, [send, add], script) as it:
        first = await it.run(agent("send", "add", config={"rules": [rule]}))
        view = await forked(it, first.run_id, "2")
    assert [[(call.id, call.status) for call in run.calls][:2] for run in (first, view)] == [
        [("1.0", "failed"), ("2.0", "invalid")]
    ] * 2


async def test_a_changed_result_reaches_those_that_read_it(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [add], [{"calls": SUM, "output": None}, DONE, DONE]) as it:
        first = await it.run(agent("add"))
        BEGUN.clear()
        view = await forked(it, first.run_id, "2", results={"1.0": 100})
    assert view.state == {"x": 100, "y": 110, "z": 14}
    assert BEGUN == [("add", (100, 10))]


async def test_another_model_prompt_and_input_hold_from_the_point_on(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "add", "a": "†input.n", "b": 2, "_outputPath": "†state.x"}]
    document = agent("add", context=[{"type": "input", "schema": {"type": "object"}}])
    async with harness(dev_server.client, [add], [{"calls": calls, "output": None}, DONE, DONE]) as it:
        first = await it.run(document, {"n": 1})
        other = document | {"context": [{"type": "system", "text": "Be brief."}, *document["context"][1:]]}
        view = await forked(it, first.run_id, "2", agent=(other, {}), input=[{"n": 4}], model="other-model")
        assert "Be brief." in it.model.requests[2].text
    assert view.state == {"x": 6}
    assert [request.model for request in view.log] == [first.log[0].model, "other-model"]


async def test_calls_after_the_point_are_answered_from_the_record_each_once(dev_server: WorkflowEnvironment) -> None:
    twice = [{"_tool": "add", "a": 7, "b": 7}, {"_tool": "add", "a": 7, "b": 7}]
    async with harness(
        dev_server.client, [add], [{"calls": SUM, "output": None}, DONE, {"calls": twice, "output": None}, DONE]
    ) as it:
        first = await it.run(agent("add"))
        BEGUN.clear()
        view = await forked(it, first.run_id, "1")
    assert BEGUN == [("add", (7, 7))]  # one of the two was made in the other run
    assert sorted(call.recorded for call in view.calls) == [False, True]


async def test_a_decision_is_made_again_at_its_point_and_nothing_is_paid_twice(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "pay", "amount": 3}]
    async with harness(dev_server.client, [pay], [{"calls": calls, "output": None}, *[DONE] * 5]) as it:
        first = await it.start(agent("pay"))
        await it.until_waiting(first.id, "1.0")
        await decide(it.client, first.id, {"call": "1.0", "decision": "approve"})
        await first.result()
        assert (await forked(it, first.id, "2")).calls[0].recorded  # nobody is asked
        for kind, more, status, paid in (
            ("approve", {}, "done", [("pay", 3)]),
            ("reject", {"reason": "no"}, "rejected", [("pay", 3)]),
            ("edit", {"params": {"amount": 4}}, "done", [("pay", 3), ("pay", 4)]),
        ):
            fork = await fork_run(it.client, first.id, "1.0", id=f"fork-{uuid.uuid4().hex[:8]}")
            await it.until_waiting(fork.id, "1.0")
            await decide(it.client, fork.id, {"call": "1.0", "decision": kind, **more})
            await fork.result()
            assert (await it.view(fork.id)).calls[0].status == status
            assert paid == BEGUN


async def test_a_fork_has_the_policy_that_its_run_had_at_its_end(dev_server: WorkflowEnvironment) -> None:
    """The fork had the policy of the run's start: it asked nobody about calls that an operator had wanted to see."""
    calls = [{"_tool": "pay", "amount": 3}, {"_tool": "add", "a": 1, "b": 2, "_after": ["1.0"]}]
    async with harness(dev_server.client, [add, pay], [{"calls": calls, "output": None}, DONE, DONE]) as it:
        first = await it.start(agent("add", "pay"))
        await it.until_waiting(first.id, "1.0")
        await change_policy(it.client, first.id, {"tools": {"add": "always"}})
        for call in ("1.0", "1.1"):
            await it.until_waiting(first.id, call)
            await decide(it.client, first.id, {"call": call, "decision": "approve"})
        await first.result()
        fork = await fork_run(it.client, first.id, "1.1", id=f"fork-{uuid.uuid4().hex[:8]}")
        await it.until_waiting(fork.id, "1.1")
        await decide(it.client, fork.id, {"call": "1.1", "decision": "approve"})
        assert (await fork.result()).status == "completed"


async def test_a_fork_of_a_run_that_waits_and_of_one_with_an_edited_call(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "pay", "amount": 3}, {"_tool": "add", "a": 1, "b": 2}]
    async with harness(dev_server.client, [pay, add], [{"calls": calls, "output": None}, DONE, DONE]) as it:
        first = await it.start(agent("pay", "add"))
        await it.until_waiting(first.id, "1.0")
        fork = await fork_run(it.client, first.id, "1.0", id=f"fork-{uuid.uuid4().hex[:8]}")
        await it.until_waiting(fork.id, "1.0")
        await decide(it.client, fork.id, {"call": "1.0", "decision": "edit", "params": {"amount": 9}})
        await fork.result()
        assert [each for each in BEGUN if each[0] == "pay"] == [("pay", 9)]
        again = await forked(it, fork.id, "2")
        assert again.calls[0].params == {"amount": 9}
        assert again.calls[0].recorded
        await first.terminate()


async def test_a_failure_before_the_point_stays_and_one_behind_it_runs_again(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "check", "amount": 6}, {"_tool": "check", "amount": 2}]
    async with harness(dev_server.client, [check], [{"calls": calls, "output": None}, DONE, DONE, DONE]) as it:
        first = await it.run(agent("check"))
        BEGUN.clear()
        kept = await forked(it, first.run_id, "2")
        assert BEGUN == []
        assert kept.calls[0].error == first.calls[0].error
        await forked(it, first.run_id, "1.0")
    assert BEGUN == [("check", 6)]


@pytest.mark.parametrize(("edit", "made"), [({}, (1, 5)), ({"a": 2}, (2, 5)), ({"euros": 3}, (1, 3))])
async def test_a_call_that_a_hook_has_changed_is_answered_before_its_hooks(
    dev_server: WorkflowEnvironment, edit: dict[str, Any], made: tuple[int, int]
) -> None:
    asked: list[str] = []

    @hook("before_tool_call", tools=["refund"])
    def at_most(event: BeforeToolCall) -> Any:
        asked.append(event.run_id)
        return event.changed(params={**event.params, "euros": min(5, event.params["euros"])})

    calls = [{"_tool": "refund", "a": 1, "euros": 9, "_outputPath": "†state.x"}]
    document = agent("refund", config={"approval": {"ask": "always" if edit else "never"}})
    later = {"calls": [{"_tool": "refund", "a": 9, "euros": 9, "_outputPath": "†state.y"}], "output": None}
    async with harness(
        dev_server.client, [refund, at_most], [{"calls": calls, "output": None}, DONE, DONE, later, DONE]
    ) as it:
        handle = await it.start(document)
        if edit:
            await it.until_waiting(handle.id, "1.0")
            await decide(it.client, handle.id, {"call": "1.0", "decision": "edit", "params": edit})
        await handle.result()
        before = await it.view(handle.id)
        assert [("refund", made)] == BEGUN
        asked.clear()
        first = await forked(it, handle.id, "2")
        second = await forked(it, first.run_id, "2", agent=(agent("refund"), {}))  # a fork of the fork
        if not edit:  # an edited plan is the model's own
            assert read(it.model.requests[1]) == read(it.model.requests[2])
    for view in (first, second):
        assert view.calls[0].recorded
        assert (view.calls[0].params, view.state["x"]) == (before.calls[0].params, before.state["x"])
    assert asked == [second.run_id]
    assert [("refund", made), ("refund", (9, 5))] == BEGUN


async def test_the_calls_hooks_see_an_edited_call_and_decide_again_at_its_point(
    dev_server: WorkflowEnvironment,
) -> None:
    caps = [5, 4, 5]

    @hook("before_tool_call", tools=["pay"])
    def at_most(event: BeforeToolCall) -> Any:
        return event.changed(params={"amount": min(caps.pop(0), event.params["amount"])})

    calls = [{"_tool": "pay", "amount": 9, "_outputPath": "†state.paid"}]
    async with harness(dev_server.client, [pay, at_most], [{"calls": calls, "output": None}, *[DONE] * 3]) as it:
        handle = await it.start(agent("pay"))
        await it.until_waiting(handle.id, "1.0")
        await decide(it.client, handle.id, {"call": "1.0", "decision": "approve"})
        await handle.result()
        await (await edited_fork(it, handle.id, "2", {"1.0": {"amount": 8}})).result()
        assert BEGUN == [("pay", 5), ("pay", 4)]
        await (await edited_fork(it, handle.id, "1.0", {})).result()
        assert BEGUN == [("pay", 5), ("pay", 4)]  # decided again: the call that was made


async def edited_fork(it: Harness, run_id: str, at: str, edits: dict[str, Any]) -> Any:
    """Fork the run, and approve the fork's call."""
    fork = await fork_run(it.client, run_id, at, edits=edits, id=f"fork-{uuid.uuid4().hex[:8]}")
    await it.until_waiting(fork.id, "1.0")
    await decide(it.client, fork.id, {"call": "1.0", "decision": "approve"})
    return fork


async def test_loops_and_delegates_are_answered_as_a_whole(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    child = {
        "name": "child",
        "context": [
            {"type": "system", "text": "You are CHILD."},
            {"type": "input", "schema": {"type": "object"}},
            {"type": "tool", "tool": "add"},
        ],
        "schema": True,
    }
    (tmp_path / "child.json").write_text(json.dumps(child), encoding="utf-8")
    work = {"name": "work", "description": "Work.", "properties": {"n": {}}, "_delegate": "child"}
    calls = [
        {"_tool": "add", "_each": [1, 2, 3], "a": "†item", "b": 1, "_outputPath": "†state.list"},
        {"_tool": "work", "n": 1, "_outputPath": "†state.child"},
        {"_tool": "work", "_each": [1, 2], "n": "†item", "_outputPath": "†state.children"},
    ]
    asked: list[str] = []

    def answer(request: ChatRequest) -> Any:
        asked.append("child" if "You are CHILD." in request.messages[0]["content"] else "run")
        return DONE if asked[-1] == "child" or asked.count("run") > 1 else {"calls": calls, "output": None}

    async with harness(dev_server.client, [add], answer, agents=tmp_path) as it:
        first = await it.run(agent("add", work))
        assert [call.status for call in first.calls if "[" not in call.id] == ["done"] * 3
        BEGUN.clear()
        asked.clear()
        asked.append("run")
        view = await forked(it, first.run_id, "2")
    assert BEGUN == []
    assert asked == ["run", "run"]
    assert view.state == first.state
    assert not [
        call.id for call in view.calls if not call.recorded and call.id not in ("1.0", "1.2")
    ]  # loops of the plan


async def test_points_calls_and_runs_that_cannot_be_forked(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [add], [{"calls": SUM, "output": None}, DONE]) as it:
        first = await it.run(agent("add"))
        for at, how, words in (
            ("x", {}, "'x' is not a point"),
            ("9", {}, "has no point 9"),
            ("1.7", {}, "has no point 1.7"),
            ("2", {"edits": {"3.0": {}}}, "3.0 is not a call"),
            ("1", {"results": {"1.0": 3}}, "1.0 is not a call"),
        ):
            with pytest.raises(RunError, match=words):
                await fork_run(it.client, first.run_id, at, **how)


async def test_the_command_forks_and_names_what_is_wrong(dev_server: WorkflowEnvironment) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with harness(dev_server.client, [add], [{"calls": SUM, "output": None}, DONE, DONE]) as it:
        first = await it.run(agent("add"))
        edit = ("--edit", '1.0={"a": 5}', "--result", "1.2=0")
        made = await perdure("fork", first.run_id, "--at", "2", *edit, "--json", env=env)
        assert (made.code, json.loads(made.out)["state"]) == (0, {"x": 7, "y": 17, "z": 0})
        for arguments, words in (
            (("--at", "x"), "'x' is not a point of a run. Use R for a Request (2), or R.N for a call (2.1)"),
            (("--at", "2", "--edit", "1.0"), "--edit 1.0: expected CALL=JSON"),
            (("--at", "2", "--edit", "1.0=3"), "expected an object of the keys to change"),
        ):
            wrong = await perdure("fork", first.run_id, *arguments, env=env)
            assert wrong.code != 0
            assert words in wrong.err
            assert "Traceback" not in wrong.err


async def test_a_fork_of_a_run_that_continued_as_new(
    impatient_server: WorkflowEnvironment,
) -> None:
    """The record of all executions is one, and a fork that continues as new carries on what is left of it."""
    rounds = [
        {"calls": [{"_tool": "add", "a": number, "b": 1, "_outputPath": f"†state.n{number}"}], "output": None}
        for number in range(12)
    ]
    async with harness(impatient_server.client, [add], [*rounds, DONE, DONE]) as it:
        first = await it.run(agent("add"))
        assert len([each async for each in execution_histories(it.client, first.run_id)]) > 1
        BEGUN.clear()
        view = await forked(it, first.run_id, "13")
    assert BEGUN == []
    assert view.state == first.state


async def test_a_fork_of_a_sessions_run_has_its_conversation_and_the_session_goes_on_without_it(
    dev_server: WorkflowEnvironment,
) -> None:
    def model(request: ChatRequest) -> dict[str, Any]:
        if "Add them." not in request.text:
            return {"calls": [], "output": "The numbers are 1 and 2."}
        return DONE if "†state.x" in request.text or '"x"' in request.text else {"calls": SUM[:1], "output": None}

    async with harness(dev_server.client, [add], model) as it:
        api = Perdure(it.client, task_queue=it.task_queue)
        session = api.session(f"talk-{uuid.uuid4().hex[:8]}", agent=Agent.of(agent("add")))
        await session.ask("Which numbers?", sender="ann")
        await session.ask("Add them.", sender="ann")
        before = await session.show()
        run_id = before.entries[-1]["runId"]
        view = await forked(it, run_id, "1")
        shown = read(it.model.requests[-2])
        assert (await session.show()).entries == before.entries
        assert await session.ask("Which numbers?", sender="ann")
    assert view.status == "completed"
    assert "The numbers are 1 and 2." in shown
    assert view.owner.sender == "ann"
