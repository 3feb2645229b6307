"""People in the loop: what waits, how it is decided, and what becomes of it (section 7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, tool
from perdure.runs.version_switches import NEWEST
from perdure.runs.wire import DECIDE, POLICY
from perdure.testing.scripted_model import ChatRequest
from perdure.values.json import JsonObject
from tests.support import DONE, Harness, agent, check_replays, harness, impatient
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

removed: list[str] = []


@tool(dangerous=True)
def remove(path: str) -> str:
    """Remove a file."""
    removed.append(path)
    return f"removed {path}"


@tool(safe=True)
def look(path: str) -> str:
    """Look at a file."""
    return f"looked at {path}"


@tool
def archive(path: str) -> str:
    """Neither safe nor dangerous."""
    return f"archived {path}"


TOOLS = [remove, look, archive]


def plan(*paths: str, then: dict[str, Any] = DONE) -> list[Any]:
    """A plan that removes each path, and the answer after it."""
    calls = [{"_tool": "remove", "path": path, "_outputPath": f"†state.r{n}"} for n, path in enumerate(paths)]
    return [{"calls": calls, "output": None}, then]


def asking(**approval: Any) -> dict[str, Any]:
    return agent("remove", "look", "archive", config={"approval": approval} if approval else {})


async def decide(it: Harness, run_id: str, **decision: Any) -> Any:
    """By update; a refusal is the text of the error."""
    raw = {key.rstrip("_"): value for key, value in decision.items()}
    try:
        return await it.client.get_workflow_handle(run_id).execute_update(DECIDE, raw)
    except WorkflowUpdateFailedError as error:
        assert isinstance(error.cause, ApplicationError)
        return error.cause.message


@pytest.mark.parametrize(
    ("on_timeout", "status", "runs"), [("reject", "rejected", 0), ("approve", "done", 1), ("fail", "failed", 0)]
)
async def test_r7_4_an_approval_that_times_out_after_three_days(
    time_skipping: WorkflowEnvironment, on_timeout: str, status: str, runs: int
) -> None:
    path = f"/timeout/{on_timeout}"
    policy = {"timeout": 3 * 86400, "on_timeout": on_timeout}
    async with harness(time_skipping.client, TOOLS, plan(path)) as it:
        view = await it.run(asking(**policy))
        shown = it.model.requests[1].text
    assert (view.status, view.calls[0].status, removed.count(path)) == ("completed", status, runs)
    approval = view.calls[0].approval
    assert approval is not None
    assert (approval.decision, approval.reason) == ("timeout", "nobody decided within 259200 s")
    if status != "done":
        assert "nobody decided within" in shown
    if status == "failed":
        assert view.errors[0]["error"]["code"] == "approval_timeout"


async def test_r7_2_each_decision_and_r7_5_what_the_model_is_told(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, plan("/a", "/b", "/c", "/d")) as it:
        handle = await it.start(asking())
        await it.until_waiting(handle.id, "1.0", "1.1", "1.2", "1.3")
        await handle.signal("approve", {"call": "1.0", "by": "Ann"})
        await handle.signal("reject", {"call": "1.1", "reason": "still needed"})
        await handle.signal("edit", {"call": "1.2", "params": {"path": "/c2"}})
        await handle.signal("replace", {"call": "1.3", "with": {"_tool": "archive", "path": "/d"}})
        result = await handle.result()
        shown = it.model.requests[1].text
    assert [call.status for call in result.calls] == ["done", "rejected", "done", "done"]
    assert result.state == {"r0": "removed /a", "r2": "removed /c2", "r3": "archived /d"}
    assert [call.approval.decision for call in result.calls if call.approval] == [
        "approve",
        "reject",
        "edit",
        "replace",
    ]
    assert result.calls[0].approval is not None
    assert result.calls[0].approval.by == "Ann"
    assert result.calls[1].reason == "rejected: still needed"
    feedback = [line for line in shown.splitlines() if line.startswith('{"call"') and '"decision"' in line]
    assert len(feedback) == 3
    assert '"reason":"still needed"' in feedback[0]
    assert ['"_status":"rejected"' in feedback[0], '"_status":"done"' in feedback[1]] == [True, True]
    assert '"_status":"waiting"' not in shown
    assert '"before":{"path":"/c"},"after":{"path":"/c2"}' in feedback[1]
    assert '"_tool":"archive"' in feedback[2]


async def test_r7_3_what_cannot_be_followed_changes_nothing_and_says_so(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, plan("/keep", "/other")) as it:
        handle = await it.start(asking())
        view = await it.until_waiting(handle.id, "1.0", "1.1")
        refused = [
            await decide(it, handle.id, call="9.9", decision="approve"),
            await decide(it, handle.id, call="1.0", decision="approve", digest="0" * 16),
            await decide(it, handle.id, call="1.0", decision="edit", params={"path": [7]}),
            await decide(it, handle.id, call="1.0", decision="edit", params={"path": {"_ref": "†state.nowhere"}}),
            await decide(it, handle.id, call="1.0", decision="edit"),
            await decide(it, handle.id, call="1.0", decision="replace", with_={"_tool": "nope"}),
            await decide(it, handle.id, call="1.0", decision="dance"),
            await decide(it, handle.id, call=1.0, decision="approve"),
            await decide(it, handle.id, call="1.0", decision="reject", remember=True),
        ]
        assert [offer.call for offer in (await it.view(handle.id)).waiting] == ["1.0", "1.1"]
        followed = await decide(it, handle.id, call="1.0", decision="approve", digest=view.waiting[0].digest, by="Ann")
        late = await decide(it, handle.id, call="1.0", decision="reject")
        await handle.signal("reject", {"call": "1.0"})
        await handle.signal("approve", "yes please")
        await handle.signal("approve", {"call": "1.1"})
        await handle.result()
        ended = await it.view(handle.id)
    words = [
        "no call '9.9' waits for a decision; waiting: 1.0, 1.1",
        "has changed since it was shown",
        "1.0 would not be valid: $.path",
        "†state.nowhere does not exist now",
        "an edit needs 'params'",
        "there is no tool",
        "'approve', 'reject', 'edit', 'replace' or 'answer'",
        "must be text, not 1.0 at $.call",
        "'remember' is valid with approve and edit",
    ]
    assert [word for word, text in zip(words, refused, strict=True) if word not in text] == [], refused
    assert followed == {"call": "1.0", "decision": "approve"}
    assert late == "1.0 already has a decision: approve by Ann"
    assert [refusal["problem"] for refusal in ended.refusals] == [
        *refused[:4],
        refused[5],  # the others were no decisions
        late,
        "1.0 already has a decision: approve by Ann",
        '"yes please" is not a decision: expected an object such as {"call": "1.0"}',
    ]
    assert [call.status for call in ended.calls] == ["done", "done"]
    assert removed.count("/keep") == 1


async def test_r7_1_a_blocked_call_is_never_offered_and_the_others_go_on(dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "remove", "path": "/first", "_outputPath": "†state.a"},
        {"_tool": "remove", "path": "†state.a"},
        {"_tool": "look", "path": "/x", "_outputPath": "†state.x"},
    ]
    async with harness(dev_server.client, TOOLS, [{"calls": calls, "output": {"ok": True}}, DONE]) as it:
        handle = await it.start(asking())
        view = await it.until_waiting(handle.id, "1.0")
        while [call.status for call in view.calls][2:] != ["done"]:
            view = await it.view(handle.id)
        assert [call.status for call in view.calls] == ["waiting", "pending", "done"]
        await handle.signal("reject", {"call": "1.0", "reason": "no"})
        result = await handle.result()
    assert [call.status for call in result.calls] == ["rejected", "skipped", "done"]
    assert result.calls[1].approval is None
    assert result.calls[1].reason == "$.path reads †state.a from 1.0 remove, which did not succeed (rejected)"


@pytest.mark.parametrize(
    ("approval", "asked"),
    [
        ({"ask": "never"}, []),
        ({}, ["1.0"]),
        ({"ask": "unsafe"}, ["1.0", "1.2"]),
        ({"ask": "always"}, ["1.0", "1.1", "1.2"]),
        ({"tools": {"remove": "never", "look": "always"}}, ["1.1"]),
        ({"tools": {"remove": {"when": {"properties": {"path": {"pattern": "^/etc"}}}}}}, []),
        ({"tools": {"remove": {"when": {"properties": {"path": {"pattern": "^/tmp"}}}}}}, ["1.0"]),
    ],
)
async def test_r7_1_what_the_policy_asks(
    dev_server: WorkflowEnvironment, approval: dict[str, Any], asked: list[str]
) -> None:
    calls = [{"_tool": name, "path": "/tmp/x"} for name in ("remove", "look", "archive")]
    async with harness(dev_server.client, TOOLS, [{"calls": calls, "output": {"ok": True}}]) as it:
        handle = await it.start(asking(**approval))
        if asked:
            await it.until_waiting(handle.id, *asked)
        for call in asked:
            await handle.signal("approve", {"call": call})
        result = await handle.result()
    assert [call.id for call in result.calls if call.approval] == asked
    assert {call.status for call in result.calls} == {"done"}


async def test_r7_1_the_workers_floor_is_not_loosened_by_anything(dev_server: WorkflowEnvironment) -> None:
    disguised = {"name": "tidy", "properties": {"path": {}}, "_activity": "remove", "_safe": True, "_approval": "never"}
    document = agent(disguised, config={"approval": {"ask": "never", "timeout": 0.2, "on_timeout": "approve"}})
    script = [{"calls": [{"_tool": "tidy", "path": f"/floor/{n}"} for n in range(2)], "output": {"ok": True}}, DONE]
    async with harness(dev_server.client, TOOLS, script, approval_floor="dangerous") as it:
        handle = await it.start(document)
        await it.until_waiting(handle.id, "1.0", "1.1")
        await handle.signal(POLICY, {"ask": "never", "tools": {"tidy": "never"}})
        await handle.signal("approve", {"call": "1.0", "remember": True})
        result = await handle.result()
    assert [call.status for call in result.calls] == ["done", "rejected"]
    assert "/floor/1" not in removed


async def test_r7_7_remember_and_a_change_of_policy_judge_anew_what_waits(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": name, "path": "/m"} for name in ("remove", "remove", "archive")]
    script = [{"calls": calls, "output": None}, {"calls": calls, "output": {"ok": True}}]
    async with harness(dev_server.client, TOOLS, script) as it:
        handle = await it.start(asking(ask="unsafe"))
        await it.until_waiting(handle.id, "1.0", "1.1", "1.2")
        await handle.signal("approve", {"call": "1.0", "remember": True})
        await it.until_waiting(handle.id, "1.2")
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update(POLICY, {"ask": "sometimes"})
        policy = await handle.execute_update(POLICY, {"ask": "dangerous"})
        result = await handle.result()
    assert policy["ask"] == "dangerous"
    assert [(call.approval.decision, call.approval.by) for call in result.calls[:3] if call.approval] == [
        ("approve", ""),
        ("approve", "policy"),
        ("approve", "policy"),
    ]
    assert [call.approval for call in result.calls[3:]] == [None] * 3


async def test_r7_3_a_worker_that_replays_the_run_takes_a_decision_where_nothing_is_listed(
    time_skipping: WorkflowEnvironment,
) -> None:
    """Its server schedules a task without commands for a query that comes early, and the offer's own would be another behind it."""
    calls = [{"_tool": "look", "path": "/p", "_outputPath": "†state.a"}]
    async with harness(
        time_skipping.client, TOOLS, lambda _: {"calls": calls, "output": None}, cached_workflows=0
    ) as it:
        for _ in range(3):
            handle = await it.start(asking(scope="plan"))
            await it.until_waiting(handle.id, "1")
            assert (await decide(it, handle.id, call="1", decision="approve"))["decision"] == "approve"
            await it.client.get_workflow_handle(handle.id).terminate()


async def test_r7_6_the_whole_plan_is_edited(dev_server: WorkflowEnvironment) -> None:
    calls: list[dict[str, Any]] = [
        {"_tool": "look", "path": "/p", "_outputPath": "†state.a"},
        {"_tool": "remove", "path": "†state.a", "_outputPath": "†state.b"},
        {"_tool": "remove", "path": "/plan/extra"},
    ]
    shown = [calls[0], calls[1] | {"path": {"_ref": "†state.a"}}, calls[2]]
    changed = [shown[0], shown[1] | {"_tool": "archive"}, {"_tool": "look", "path": "†state.a"}]
    async with harness(dev_server.client, TOOLS, [{"calls": calls, "output": None}, DONE]) as it:
        handle = await it.start(asking(scope="plan"))
        view = await it.until_waiting(handle.id, "1")
        assert {call.status for call in view.calls} <= {"ready", "pending"}
        wrong = await decide(
            it, handle.id, call="1", decision="edit", calls=[{"_tool": "look", "path": {"_ref": "†state.no"}}]
        )
        await decide(it, handle.id, call="1", decision="edit", calls=changed, by="Ann")
        result = await handle.result()
        told = it.model.requests[1].text
    offer = view.waiting[0]
    assert offer.calls == shown
    assert offer.simulation == {"makespan": 2.0, "levels": [["1.0", "1.2"], ["1.1"]], "asks": ["1.1", "1.2"]}
    assert wrong.startswith("the plan of Request 1 would not be valid: 1.0 look: $.path: †state.no does not exist")
    assert [(call.tool, call.status) for call in result.calls] == [
        ("look", "done"),
        ("archive", "done"),
        ("look", "done"),
    ]
    assert result.calls[2].params == {"path": "†state.a"}, "what a person sends is a value"
    assert "/plan/extra" not in removed
    assert '"before":[{"_tool":"look"' in told


async def test_r7_2_what_a_page_says_is_never_read_whatever_a_person_changes_beside_it(
    dev_server: WorkflowEnvironment,
) -> None:
    """The attack: a page names a secret of the run, and a person changes another parameter of the call that sends it."""
    page = ["{†state.secret} x {† y", "†state.secret"]
    calls = [
        {"_tool": "note", "text": "s3cret", "_outputPath": "†state.secret"},
        {"_tool": "read", "_outputPath": "†state.page"},
        {"_tool": "post", "to": "all", "body": "†state.page", "_outputPath": "†state.sent"},
    ]

    @tool(safe=True)
    def note(text: str) -> str:
        return text

    @tool(safe=True)
    def read() -> list[str]:
        return page

    @tool(dangerous=True)
    def post(to: str, body: list[str]) -> JsonObject:
        return {"to": to, "body": body}

    async with harness(dev_server.client, [note, read, post], [{"calls": calls, "output": None}, DONE]) as it:
        handle = await it.start(agent("note", "read", "post"))
        await it.until_waiting(handle.id, "1.2")
        await handle.signal("edit", {"call": "1.2", "params": {"to": "†state.secret"}})
        result = await handle.result()
    assert result.state["sent"] == {"to": "†state.secret", "body": page}


@pytest.mark.parametrize(("decision", "status"), [("approve", "done"), ("reject", "rejected")])
async def test_r7_6_the_whole_plan_is_approved_or_rejected(
    dev_server: WorkflowEnvironment, decision: str, status: str
) -> None:
    async with harness(dev_server.client, TOOLS, plan("/p1", "/p2")) as it:
        handle = await it.start(asking(scope="plan"))
        await it.until_waiting(handle.id, "1")
        await handle.signal(decision, {"call": "1", "reason": "because of me"})
        result = await handle.result()
        shown = it.model.requests[1].text
    assert [call.status for call in result.calls] == [status] * 2
    assert {call.approval.decision for call in result.calls if call.approval} == {decision}
    assert ("because of me" in shown) == (decision == "reject")


async def test_a_waiting_run_needs_no_worker(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, plan("/held")) as first:
        handle = await first.start(asking())
        await first.until_waiting(handle.id, "1.0")
    await handle.signal("approve", {"call": "1.0"})
    async with harness(dev_server.client, TOOLS, lambda _: DONE, task_queue=first.task_queue):
        result = await handle.result()
    assert [call.status for call in result.calls] == ["done"]


impatient_server = impatient(20)


async def test_r6_8_approvals_and_policy_go_on_after_continue_as_new(impatient_server: WorkflowEnvironment) -> None:
    def answer(asked: ChatRequest) -> dict[str, Any]:
        n = asked.number
        calls = [{"_tool": "remove", "path": f"/can/{n}"}, {"_tool": "archive", "path": "/x"}]
        return {"calls": calls, "output": None} if n <= 3 else DONE

    async with harness(impatient_server.client, TOOLS, answer) as it:
        handle = await it.start(asking(ask="unsafe"))
        await it.until_waiting(handle.id, "1.0", "1.1")
        now = it.client.get_workflow_handle(handle.id)
        await now.signal("approve", {"call": "7.7"})
        await now.signal("approve", {"call": "1.1", "remember": True})
        await now.signal("approve", {"call": "1.0"})
        for number in (2, 3):
            await it.until_waiting(handle.id, f"{number}.0")
            await now.signal("approve", {"call": f"{number}.0"})
        result = await handle.result()
        view = await it.view(handle.id)
        description = await now.describe()
    assert description.run_id != handle.first_execution_run_id
    assert [call.status for call in result.calls] == ["done"] * 6
    assert [call.id for call in result.calls if call.approval] == ["1.0", "1.1", "2.0", "3.0"]
    assert [refusal["problem"] for refusal in view.refusals] == [
        "no call '7.7' waits for a decision; waiting: 1.0, 1.1"
    ]


async def test_cancelling_a_run_that_waits(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, plan("/cancelled")) as it:
        handle = await it.start(asking())
        await it.until_waiting(handle.id, "1.0")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
    assert (view.status, view.calls[0].status) == ("cancelled", "skipped")
    assert "/cancelled" not in removed


async def test_r7_7_a_changed_timeout_reaches_what_waits(time_skipping: WorkflowEnvironment) -> None:
    async with harness(time_skipping.client, TOOLS, plan("/patient", "/gone")) as it:
        handle = await it.start(asking(timeout=30 * 86400))
        await it.until_waiting(handle.id, "1.0", "1.1")
        await handle.signal(POLICY, {"timeout": 3600, "on_timeout": "approve"})
        await handle.signal("reject", {"call": "1.1"})
        result = await handle.result()
    assert [call.status for call in result.calls] == ["done", "rejected"]
    assert result.calls[0].approval is not None
    assert result.calls[0].approval.reason == "nobody decided within 3600 s"


async def test_r7_7_a_timeout_that_is_taken_away_is_not_waited_for(time_skipping: WorkflowEnvironment) -> None:
    async with harness(time_skipping.client, TOOLS, plan("/kept")) as it:
        handle = await it.start(asking(timeout=3600))
        await it.until_waiting(handle.id, "1.0")
        await handle.execute_update(POLICY, {"timeout": None})
        await time_skipping.sleep(7200)
        await it.until_waiting(handle.id, "1.0")
        await handle.signal("approve", {"call": "1.0"})
        result = await handle.result()
    assert (result.calls[0].status, result.calls[0].approval and result.calls[0].approval.decision) == (
        "done",
        "approve",
    )


async def hesitate(_: JsonObject) -> str:
    """A program that does not decide."""
    await asyncio.sleep(3600)
    return "approve"


async def test_r7_9_a_program_that_takes_too_long_leaves_the_decision_to_a_person(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time begins when it has the request: a busy run sends a large one late."""
    monkeypatch.setattr("perdure.activities.named_functions.PROGRAM_SECONDS", 0.5)
    name, calls = "tests.workflows.test_approvals:hesitate", [{"_tool": "remove", "path": "/it"}]
    script = [{"calls": calls, "output": None}, DONE]
    async with harness(dev_server.client, TOOLS, script, named=["tests.workflows.test_approvals"]) as it:
        handle = await it.start(asking(approver=name))
        while True:
            view = await it.until_waiting(handle.id, "1.0")
            if view.refusals:
                break
            await asyncio.sleep(0.02)
        await handle.signal("approve", {"call": "1.0"})
        await handle.result()
    assert view.refusals[0]["problem"] == (
        f"{name} did not answer, so a person must decide: it has not decided within 0.5 s"
    )


async def test_r7_6_looking_at_a_plan_that_waits_changes_nothing(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "remove", "path": "/seen", "_outputPath": "†state.a"}]
    async with harness(dev_server.client, TOOLS, [{"calls": calls}, DONE]) as it:
        handle = await it.start(asking(scope="plan"))
        view = await it.until_waiting(handle.id, "1")
        assert view.waiting[0].simulation is not None
        view = await it.view(handle.id)
        await handle.signal("reject", {"call": "1", "reason": "no"})
        result = await asyncio.wait_for(handle.result(), HANG)
    assert (view.state, result.state, result.status) == ({}, {}, "completed")


def decider(offer: dict[str, Any]) -> Any:
    """A program that decides by the path."""
    path = offer["params"]["path"]
    if path == "/slow":
        raise RuntimeError("no answer")
    return {
        "/yes": "approve",
        "/no": {"decision": "reject", "reason": "not this"},
        "/change": {"decision": "edit", "params": {"path": "/changed"}},
        "/person": "ask",
        "/remember": {"decision": "approve", "remember": True},
        "/nonsense": ["?"],
        "/nothing": None,
    }[path]


async def test_r7_9_a_program_decides_or_leaves_it_to_a_person(dev_server: WorkflowEnvironment) -> None:
    paths = ("/yes", "/no", "/change", "/person", "/slow", "/nonsense", "/nothing")
    calls = [{"_tool": "remove", "path": path} for path in paths]
    name = "tests.workflows.test_approvals:decider"
    script = [{"calls": calls, "output": None}, DONE]
    async with harness(dev_server.client, TOOLS, script, named=["tests.workflows.test_approvals"]) as it:
        handle = await it.start(asking(approver=name))
        await it.until_waiting(handle.id, "1.3", "1.4", "1.5", "1.6")
        for call in ("1.3", "1.4", "1.5", "1.6"):
            await handle.signal("reject", {"call": call, "reason": "a person"})
        result = await handle.result()
        view = await it.view(handle.id)
        shown = it.model.requests[1].text
    assert [call.status for call in result.calls] == ["done", "rejected", "done", *["rejected"] * 4]
    approvals = [call.approval for call in result.calls if call.approval]
    assert [approval.by for approval in approvals] == [name, name, name, "", "", "", ""]
    assert (approvals[1].reason, result.calls[2].params) == ("not this", {"path": "/changed"})
    told = " ".join(refusal["problem"] for refusal in view.refusals)
    assert f"{name} did not answer, so a person must decide" in told
    assert f"{name} gave ['?'], but must return a decision" in told.replace('["?"]', "['?']")
    assert f"{name} gave null, but must return a decision" in told
    assert '"by":"tests.workflows.test_approvals:decider"' in shown


async def test_r7_9_a_program_that_a_change_names_decides_what_waits(dev_server: WorkflowEnvironment) -> None:
    name = "tests.workflows.test_approvals:decider"
    async with harness(dev_server.client, TOOLS, plan("/no"), named=["tests.workflows.test_approvals"]) as it:
        handle = await it.start(asking())
        await it.until_waiting(handle.id, "1.0")
        await handle.execute_update(POLICY, {"approver": name})
        (call,) = (await handle.result()).calls
        await check_replays(await handle.fetch_history())
    assert call.approval is not None
    assert (call.approval.decision, call.approval.by) == ("reject", name)


async def test_r7_7_what_a_program_remembers_releases_what_waits(dev_server: WorkflowEnvironment) -> None:
    name = "tests.workflows.test_approvals:decider"
    calls: list[JsonObject] = [
        {"_tool": "remove", "path": "/person"},
        {"_tool": "look", "path": "/", "_outputPath": "†state.seen"},
    ]
    calls.append({"_tool": "remove", "path": "/remember", "_after": ["1.1"]})
    script = [{"calls": calls, "output": None}, DONE]
    async with harness(dev_server.client, TOOLS, script, named=["tests.workflows.test_approvals"]) as it:
        result = await (await it.start(asking(approver=name))).result()
    assert [(call.status, call.approval and call.approval.by) for call in result.calls] == [
        ("done", "policy"),
        ("done", None),
        ("done", name),
    ]


async def test_r7_3_of_two_decisions_at_once_the_one_without_effect_is_kept(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, plan("/both")) as it:
        handle = await it.start(asking())
        await it.until_waiting(handle.id, "1.0")
        both = [decide(it, handle.id, call="1.0", decision="approve", by=name) for name in ("ann", "bob")]
        late = [each for each in await asyncio.gather(*both) if isinstance(each, str)]
        await handle.result()
        view = await it.view(handle.id)
    assert [each["problem"] for each in view.refusals] == late
    assert late[0].startswith("1.0 already has a decision: approve by ")


def allows(offer: dict[str, Any]) -> Any:
    return "reject" if offer["params"]["path"] == "/no" else "approve"


async def test_r7_9_a_program_does_not_loosen_the_floor(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "remove", "path": path} for path in ("/floor", "/no")]
    script = [{"calls": calls, "output": None}, DONE]
    options: dict[str, Any] = {"named": ["tests.workflows.test_approvals"], "approval_floor": "dangerous"}
    async with harness(dev_server.client, TOOLS, script, **options) as it:
        handle = await it.start(asking(approver="tests.workflows.test_approvals:allows"))
        await it.until_waiting(handle.id, "1.0")
        await handle.signal("approve", {"call": "1.0"})
        result = await handle.result()
    assert [call.status for call in result.calls] == ["done", "rejected"]


async def test_r7_9_only_a_program_that_the_worker_lists(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, []) as it:
        view = await it.run(asking(approver="os:system"))
    assert view.status == "failed"
    assert "does not allow functions of 'os' (--functions); it allows none" in (view.error or "")


async def test_what_times_out_together_has_one_timer(time_skipping: WorkflowEnvironment) -> None:
    sleeps = [{"_tool": "sleep_until", "seconds": 86_400 * (3 - n)} for n in range(3)]
    calls = [*({"_tool": "remove", "path": f"/{n}"} for n in range(9)), *sleeps]
    # What is streamed arrives in as many tasks as the machine is slow, each of another second.
    config = {"stream": False, "approval": {"timeout": 86_400, "on_timeout": "reject"}}
    async with harness(time_skipping.client, TOOLS, [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("remove", "sleep_until", config=config))
        history = await it.client.get_workflow_handle(view.run_id).fetch_history()
    assert [call.status for call in view.calls] == ["rejected"] * 9 + ["done"] * 3
    kinds = [event.event_type for event in history.events]
    # One a day, and the deadline's; and one more, where the approvals and the first sleep are not of one second.
    assert 4 <= kinds.count(EventType.EVENT_TYPE_TIMER_STARTED) <= 5


async def test_r7_4_a_decision_that_came_in_time_counts_if_no_worker_was_there(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, plan("/away")) as it:
        handle = await it.start(asking(timeout=3, on_timeout="approve"))
        await it.until_waiting(handle.id, "1.0")
    await handle.signal("reject", {"call": "1.0", "by": "ann"})
    async for event in handle.fetch_history_events(wait_new_event=True):
        if event.HasField("timer_fired_event_attributes"):
            break
    async with harness(dev_server.client, TOOLS, lambda _: DONE, task_queue=it.task_queue):
        (call,) = (await handle.result()).calls
        await check_replays(await handle.fetch_history())
    assert call.approval is not None
    assert (call.approval.decision, call.approval.by) == ("reject", "ann")
    assert "/away" not in removed


def removes_many(*, first: bool) -> list[Any]:
    """A plan whose loop runs in workflows of its own, and the answer after it."""
    calls: list[JsonObject] = [{"_tool": "remove", "_each": [f"/many/{n}" for n in range(101)], "path": "†item"}]
    if first:
        calls = [{"_tool": "remove", "path": "/first"}, calls[0] | {"_after": ["1.0"]}]
    return [{"calls": calls, "output": None}, DONE]


async def test_r7_6_a_large_loop_is_not_approved_by_a_change_to_whole_plans(dev_server: WorkflowEnvironment) -> None:
    """Nobody has seen the plan: it had begun when the policy changed."""
    async with harness(dev_server.client, TOOLS, removes_many(first=True)) as it:
        handle = await it.start(asking())
        await it.until_waiting(handle.id, "1.0")
        await handle.execute_update(POLICY, {"scope": "plan"})
        await decide(it, handle.id, call="1.0", decision="approve")
        run = Perdure(dev_server.client).get_run(handle.id)
        async with asyncio.timeout(HANG):
            while True:
                if (await run.waiting_below())[0]:
                    break
                await asyncio.sleep(0.02)
        assert not [path for path in removed if path.startswith("/many/")]
        await handle.cancel()


async def test_r7_6_a_large_loop_of_an_approved_plan_asks_nobody(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, removes_many(first=False)) as it:
        handle = await it.start(asking(scope="plan", tools={"remove": {"by": 2}}))
        await it.until_waiting(handle.id, "1")
        for name in ("ann", "bob"):
            await decide(it, handle.id, call="1", decision="approve", by=name)
        view = await handle.result()
        part = await it.view(f"{handle.id}/1.0/0")
    assert [call.status for call in view.calls] == ["done"]
    assert [call.approval for call in part.calls if call.approval] == []


@pytest.mark.parametrize("rules", [7, NEWEST])
async def test_r18_6_a_run_of_an_earlier_version_keeps_an_endorsement_of_many_names(
    dev_server: WorkflowEnvironment, rules: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.hosting._worker_parts.NEWEST", rules)
    decision: JsonObject = {"call": "1.0", "decision": "approve", "endorse": ["path"] * 1_001}
    async with harness(dev_server.client, TOOLS, plan("/endorsed")) as it:
        handle = await it.start(asking())
        await it.until_waiting(handle.id, "1.0")
        if rules == NEWEST:
            assert "'endorse' has 1,001 names" in await decide(it, handle.id, **decision)
            decision["endorse"] = True
        await decide(it, handle.id, **decision)
        result = await handle.result()
        await check_replays(await handle.fetch_history())
    assert [call.status for call in result.calls] == ["done"]
