"""Hooks of runs on real servers: they change, refuse, hang, raise, are gone after a deploy; and cost nothing where there are none (R10.17)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure import ToolError, hook, refuse, tool
from perdure.hooks import (
    AfterToolCall,
    AgentEnd,
    BeforeAgentStart,
    BeforeToolCall,
    Refused,
    ToolResultPersist,
)
from perdure.runs.wire import DECIDE, PREPARE_ACTIVITY
from tests.support import DONE, Harness, agent, check_replays, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

sent: list[str] = []
"""What the tool of these tests was given, so far as its effects go."""


@tool(retries=0)
def send(text: str) -> str:
    """Send a text."""
    sent.append(text)
    return f"sent {text}"


@tool(dangerous=True, retries=0)
def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    sent.append(f"{amount} to {to}")
    return f"paid {amount} to {to}"


@tool(retries=0)
def broken(text: str) -> str:
    """Fail."""
    raise ToolError("broken", f"cannot send {text}")


def plan(tool_name: str = "send", path: str = "†state.sent", **params: Any) -> list[Any]:
    return [
        {"calls": [{"_tool": tool_name, **(params or {"text": "hello"}), "_outputPath": path}], "output": None},
        DONE,
    ]


async def events(it: Harness, run_id: str) -> Counter[str]:
    history = await it.client.get_workflow_handle(run_id).fetch_history()
    names = (EventType.Name(event.event_type) for event in history.events)
    return Counter(name for name in names if "WORKFLOW_TASK" not in name)


async def activities(it: Harness, run_id: str) -> list[str]:
    history = await it.client.get_workflow_handle(run_id).fetch_history()
    found = (event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events)
    return [name for name in found if name and name != PREPARE_ACTIVITY]  # where the worker keeps no workflow in memory


async def failure(it: Harness, document: dict[str, Any], run_input: Any = None) -> ApplicationError:
    handle = await it.start(document, run_input)
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, ApplicationError)
    return failed.value.cause


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


async def test_without_hooks_a_run_has_the_history_that_it_had(time_skipping: WorkflowEnvironment) -> None:
    @hook("before_tool_call", tools=["another"])
    def elsewhere(_: BeforeToolCall) -> None:
        raise AssertionError("it is for another tool")

    counts = []
    both: list[list[Any]] = [[send], [send, elsewhere]]
    for functions in both:
        async with harness(time_skipping.client, functions, plan(), cached_workflows=1000) as it:
            view = await it.run(agent("send", config={"stream": False}))
            assert view.status == "completed"
            assert await activities(it, view.run_id) == ["perdure.request", "send", "perdure.request"]
            counts.append(await events(it, view.run_id))
    assert counts[0] == counts[1]
    assert counts[0] == {  # but for workflow tasks, of which there are as many as the worker is slow
        "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED": 1,
        "EVENT_TYPE_MARKER_RECORDED": 1,
        "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED": 3,
        "EVENT_TYPE_ACTIVITY_TASK_STARTED": 3,
        "EVENT_TYPE_ACTIVITY_TASK_COMPLETED": 3,
        "EVENT_TYPE_TIMER_STARTED": 1,
        "EVENT_TYPE_TIMER_CANCELED": 1,
        "EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED": 1,
        "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED": 1,
    }


async def test_a_hook_changes_what_a_call_is_made_with_and_the_model_is_told_which(
    time_skipping: WorkflowEnvironment,
) -> None:
    seen: list[Any] = []

    @hook("before_tool_call", tools=["send"])
    async def politely(event: BeforeToolCall) -> BeforeToolCall:
        seen.append(event)
        return event.changed(params={"text": f"dear all: {event.params['text']} †state.secret"})

    @hook("before_tool_call")
    def shorter(event: BeforeToolCall) -> BeforeToolCall | None:
        return event.changed(params={"text": event.params["text"].replace("dear all", "all")})

    async with harness(time_skipping.client, [send, politely, shorter], plan()) as it:
        view = await it.run(agent("send"))
        told = it.model.requests[1].text
        names = await activities(it, view.run_id)
    assert sent == ["all: hello †state.secret"]  # in their order; and what looks like a reference is text
    assert view.state == {"sent": "sent all: hello †state.secret"}
    assert (seen[0].tool, seen[0].call, seen[0].agent, seen[0].run_id) == ("send", "1.0", "test", view.run_id)
    assert seen[0].key == f"{view.run_id}/1.0/before_tool_call"
    assert seen[0].sources == {"text": ["model"]}
    assert "a hook has changed text" in told
    by = view.calls[0].hooked_by
    assert view.calls[0].hooked == ["text"]
    assert [each.rpartition(".")[2] for each in by.split(", ")] == ["politely", "shorter"]
    assert view.log[1].because[0].startswith("decided: {")
    assert names == ["perdure.request", "perdure.hook", "send", "perdure.request"]  # both in one


async def test_a_refused_call_is_a_failure_that_a_branch_takes(time_skipping: WorkflowEnvironment) -> None:
    @hook("before_tool_call", tools=["send"])
    def never(_: BeforeToolCall) -> Refused:
        return refuse("nobody writes today")

    @hook("before_tool_call")
    def later(_: BeforeToolCall) -> None:
        raise AssertionError("a hook before it has refused")

    async with harness(time_skipping.client, [send, never, later], plan(path="†state.sent || †state.error")) as it:
        view = await it.run(agent("send"))
    assert view.state == {"error": {"code": "refused_by_hook", "message": "nobody writes today"}}
    assert (view.calls[0].status, view.calls[0].attempts, sent) == ("failed", 0, [])
    async with harness(time_skipping.client, [send, never], plan()) as it:
        view = await it.run(agent("send"))
        assert "nobody writes today" in it.model.requests[1].text
    assert view.errors[0]["error"]["code"] == "refused_by_hook"


@pytest.mark.parametrize("fault", ["raises", "hangs", "hangs in a thread", "ends the process", "wrong", "no fit"])
async def test_a_hook_that_does_not_do_its_work_refuses_what_it_guards(
    time_skipping: WorkflowEnvironment, fault: str
) -> None:
    goes_on = asyncio.Event()

    async def hangs(_: BeforeToolCall) -> None:
        try:
            await goes_on.wait()
        except asyncio.CancelledError:
            await goes_on.wait()  # it does not even let itself be cancelled

    def guard(event: BeforeToolCall) -> Any:
        if fault == "raises":
            raise ValueError("the password is hunter2")
        if fault == "hangs in a thread":
            asyncio.run(asyncio.wait_for(asyncio.Event().wait(), 5))
        if fault == "ends the process":
            raise SystemExit(3)
        return event.changed(params={"text": 5}) if fault == "no fit" else "nonsense"

    function: Any = hangs if fault == "hangs" else guard
    hooked = hook("before_tool_call", timeout=0.3 if fault.startswith("hangs") else HANG)(function)
    async with harness(time_skipping.client, [send, hooked], plan()) as it:
        view = await it.run(agent("send"))
        asked = await activities(it, view.run_id)
    goes_on.set()
    error = view.errors[0]["error"]
    assert (error["code"], sent, view.status) == ("refused_by_hook", [], "completed")
    words = {
        "raises": "failed: ValueError",
        "hangs": "did not answer within 0.3 s",
        "hangs in a thread": "did not answer within 0.3 s",
        "ends the process": "failed: SystemExit",
        "wrong": "it returned str, but must return the changed event",
        "no fit": "parameters that do not fit: $.text is 5",
    }[fault]
    assert words in error["message"]
    assert "hunter2" not in str(view.errors)
    assert asked.count("perdure.hook") == 1  # what a hook does is not tried again


async def test_a_hook_is_called_before_a_person_is_asked_and_what_is_approved_is_what_runs(
    time_skipping: WorkflowEnvironment,
) -> None:
    rounds: list[Any] = []

    @hook("before_tool_call", tools=["pay"])
    def at_most(event: BeforeToolCall) -> BeforeToolCall | None:
        rounds.append((event.key.rpartition("/")[2], event.params["amount"]))
        return event.changed(params={**event.params, "amount": 100}) if event.params["amount"] > 100 else None

    async with harness(
        time_skipping.client, [pay, at_most], plan("pay", amount=250, to="ann"), approval_floor="dangerous"
    ) as it:
        handle = await it.start(agent("pay"))
        offer = (await it.until_waiting(handle.id, "1.0")).waiting[0]
        assert offer.params == {"amount": 100, "to": "ann"}
        assert "a hook has changed amount" in offer.reason
        run = it.client.get_workflow_handle(handle.id)
        await run.execute_update(DECIDE, {"call": "1.0", "decision": "edit", "params": {"amount": 500}, "by": "bob"})
        offer = (await it.until_waiting(handle.id, "1.0")).waiting[0]  # the hook has changed it once more
        assert offer.params == {"amount": 100, "to": "ann"}
        await run.execute_update(DECIDE, {"call": "1.0", "decision": "edit", "params": {"amount": 50}, "by": "ann"})
        await handle.result()
        approval = (await it.view(handle.id)).calls[0].approval
    assert approval is not None
    assert [(each.decision, each.by) for each in (*approval.earlier, approval)] == [("edit", "bob"), ("edit", "ann")]
    assert sent == ["50 to ann"]  # the worker's floor took the approval for these parameters
    assert rounds == [("before_tool_call", 250), ("2", 500), ("3", 50)]


async def test_what_a_hook_changed_of_an_approved_plan_is_asked_about_once_more(
    time_skipping: WorkflowEnvironment,
) -> None:
    @hook("before_tool_call")
    def other(event: BeforeToolCall) -> BeforeToolCall:
        return event.changed(params={"text": "another"})

    async with harness(time_skipping.client, [send, other], plan()) as it:
        handle = await it.start(agent("send", config={"approval": "plan"}))
        await it.until_waiting(handle.id, "1")
        run = it.client.get_workflow_handle(handle.id)
        await run.execute_update(DECIDE, {"call": "1", "decision": "approve"})
        offer = (await it.until_waiting(handle.id, "1.0")).waiting[0]
        assert offer.reason == "its plan was approved unchanged; a hook has changed text"
        await run.execute_update(DECIDE, {"call": "1.0", "decision": "reject", "reason": "not that"})
        await handle.result()
    assert sent == []


async def test_a_result_is_redacted_before_it_leaves_its_worker(time_skipping: WorkflowEnvironment) -> None:
    seen: list[AfterToolCall] = []

    @hook("after_tool_call", tools=["send"])
    def redact(event: AfterToolCall) -> AfterToolCall:
        return event.changed(result=str(event.result).replace("4711", "****"))

    @hook("after_tool_call")
    def look(event: AfterToolCall) -> None:
        seen.append(event)
        raise RuntimeError("the log is full")  # it only looks: the run goes on

    script = [{"calls": [{"_tool": "send", "text": "the pin is 47" + "11", "_outputPath": "†state.sent"}]}, DONE]
    async with harness(time_skipping.client, [send, redact, look], script) as it:
        view = await it.run(agent("send"))
        history = await it.client.get_workflow_handle(view.run_id).fetch_history()
        names = await activities(it, view.run_id)
    assert view.state == {"sent": "sent the pin is ****"}
    assert (view.status, seen[0].result, seen[0].status) == ("completed", "sent the pin is ****", "done")
    completed = [event for event in history.events if event.HasField("activity_task_completed_event_attributes")]
    assert all("sent the pin is 4711" not in str(event) for event in completed)
    assert names == ["perdure.request", "send", "perdure.request"]  # no Action more


async def test_a_result_that_a_hook_does_not_let_through_is_withheld_and_the_call_not_made_again(
    time_skipping: WorkflowEnvironment,
) -> None:
    @hook("after_tool_call")
    def redact(_: AfterToolCall) -> AfterToolCall | None:
        raise ValueError("no rules")

    retried = tool(retries=3, name="send")(lambda text: send(text))
    retried.__annotations__["text"] = str
    async with harness(time_skipping.client, [retried, redact], plan()) as it:
        view = await it.run(agent("send"))
    assert sent == ["hello"]
    error = view.errors[0]["error"]
    assert error["code"] == "refused_by_hook"
    assert error["message"].startswith("send was carried out, and its result is withheld: the hook ")


async def test_failures_and_calls_without_code_are_looked_at_too(time_skipping: WorkflowEnvironment) -> None:
    seen: list[Any] = []

    @hook("after_tool_call")
    def audit(event: AfterToolCall) -> AfterToolCall | None:
        seen.append((event.tool, event.status, event.error, event.result))
        return event.changed(message="it did not work") if event.error else event.changed(result="[taken out]")

    latent = {"name": "think", "properties": {"about": {"type": "string"}}, "_output": {"type": "string"}}
    calls = [
        {"_tool": "broken", "text": "secret", "_outputPath": "†state.a || †state.b"},
        {"_tool": "think", "about": "it", "_output": "a secret", "_outputPath": "†state.thought"},
    ]
    async with harness(time_skipping.client, [broken, audit], [{"calls": calls}, DONE]) as it:
        view = await it.run(agent("broken", latent))
    assert view.state == {"b": {"code": "broken", "message": "it did not work"}, "thought": "[taken out]"}
    assert sorted(seen, key=str) == [("broken", "failed", "broken", None), ("think", "done", None, "a secret")]


async def test_a_run_is_refused_or_given_another_input_and_its_end_is_told(time_skipping: WorkflowEnvironment) -> None:
    ended: list[AgentEnd] = []

    @hook("before_agent_start")
    def check(event: BeforeAgentStart) -> BeforeAgentStart | Refused | None:
        if event.input == {"city": "Atlantis"}:
            return refuse("there is no such city")
        if event.input == {"city": "Bonn"}:
            return event.changed(system=f"{event.system} Say please.")
        return event.changed(input={"city": "Köln"}) if event.input == {"city": "Cologne"} else None

    @hook("agent_end")
    async def told(event: AgentEnd) -> None:
        ended.append(event)
        raise RuntimeError("nobody listens")

    where = {"type": "input", "schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    output = {"calls": [], "output": {"to": "†input.city"}}
    async with harness(time_skipping.client, [check, told], [output, output]) as it:
        refused = await failure(it, agent(context=[where]), {"city": "Atlantis"})
        view = await it.run(agent(context=[where]), {"city": "Cologne"})
        other = await it.run(agent(context=[where]), {"city": "Bonn"})
        said = [str(request.messages[0]["content"]) for request in it.model.requests]
    assert said[0].startswith("Plan.\n")
    assert said[1].startswith("Plan. Say please.\n")
    assert [each.messages[0]["content"] for each in ended] == said
    assert [each.messages[-1] for each in ended] == [
        {"role": "assistant", "content": "Köln"},
        {"role": "assistant", "content": "Bonn"},
    ]
    assert (refused.type, refused.message) == ("refused_by_hook", "there is no such city")
    assert (view.output, other.output) == ({"to": "Köln"}, {"to": "Bonn"})
    assert [(each.status, each.output, each.requests) for each in ended] == [
        ("completed", {"to": "Köln"}, 1),
        ("completed", {"to": "Bonn"}, 1),
    ]


async def test_a_hook_gone_after_a_deploy_refuses_and_one_that_only_looks_is_gone_past(
    time_skipping: WorkflowEnvironment,
) -> None:
    @hook("before_tool_call", tools=["pay"])
    def guard(_: BeforeToolCall) -> None:
        raise AssertionError("it is gone")

    @hook("before_agent_start")
    def begins(_: BeforeAgentStart) -> None:
        started.set()

    @hook("agent_end")
    def audit(_: AgentEnd) -> None:
        raise AssertionError("it is gone")

    started = asyncio.Event()
    script = [{"calls": [{"_tool": "send", "text": "a"}, {"_tool": "pay", "amount": 1, "to": "b"}]}, DONE]
    async with harness(time_skipping.client, [send, pay, guard, begins, audit], [], cached_workflows=0) as it:
        handle = await it.start(agent("send", "pay"))
        await asyncio.wait_for(started.wait(), HANG)
    async with harness(time_skipping.client, [send, pay], script, task_queue=it.task_queue, cached_workflows=0) as it:
        await handle.result()
        view = await it.view(handle.id)
    assert view.calls[1].error is not None
    assert view.calls[1].error["code"] == "refused_by_hook"
    assert "is missing: no worker had it in time" in view.calls[1].error["message"]
    assert (view.calls[0].status, view.status, sent) == ("done", "completed", ["a"])


async def test_a_replay_calls_no_hook_again(time_skipping: WorkflowEnvironment) -> None:
    called: list[str] = []

    @hook("before_tool_call")
    def count(event: BeforeToolCall) -> BeforeToolCall:
        called.append(event.key)
        return event.changed(params={"text": f"{len(called)}"})

    async with harness(time_skipping.client, [send, count], plan(), cached_workflows=0) as it:
        view = await it.run(agent("send"))
        history = await it.client.get_workflow_handle(view.run_id).fetch_history()
    await check_replays(history)
    assert (called, sent) == ([f"{view.run_id}/1.0/before_tool_call"], ["1"])


async def test_large_parameters_are_asked_for_by_the_hook_and_a_tools_other_name_does_not_get_past_it(
    time_skipping: WorkflowEnvironment,
) -> None:
    sizes: list[int] = []

    @hook("before_tool_call", tools=["send"])
    def measure(event: BeforeToolCall) -> Refused:
        sizes.append(len(event.params["text"]))
        return refuse(f"{event.tool} is {event.code}")

    renamed = {"name": "whisper", "_activity": "send", "properties": {"text": {"type": "string"}}}
    async with harness(time_skipping.client, [send, measure], plan("whisper", text="x" * 200_000)) as it:
        view = await it.run(agent(renamed))
        history = await it.client.get_workflow_handle(view.run_id).fetch_history()
    assert sizes == [200_000]
    assert view.errors[0]["error"]["message"] == "whisper is send"
    scheduled = [event for event in history.events if "perdure.hook" in str(event)]
    assert all(len(str(event)) < 20_000 for event in scheduled)


async def test_what_a_hook_made_of_others_words_counts_as_theirs(time_skipping: WorkflowEnvironment) -> None:
    @tool(untrusted=True, safe=True)
    def read_mail() -> dict[str, str]:
        """Read a mail."""
        return {"iban": "DE00 9999"}

    @hook("before_tool_call", tools=["pay"])
    def mixes(event: BeforeToolCall) -> BeforeToolCall:
        iban = event.params["to"]
        return event.changed(params={"to": "the treasurer", "amount": int(iban[-4:])})

    calls = [
        {"_tool": "read_mail", "_outputPath": "†state.mail"},
        {"_tool": "pay", "amount": 5, "to": "†state.mail.iban", "_outputPath": "†state.paid"},
    ]
    config = {"approval": {"flows": [{"from": "tool:read_mail", "to": "pay.amount", "do": "refuse"}]}}
    async with harness(time_skipping.client, [read_mail, pay, mixes], [{"calls": calls}, DONE]) as it:
        view = await it.run(agent("read_mail", "pay", config=config))
    assert (view.calls[1].status, sent) == ("rejected", [])
    assert "pay.amount comes from read_mail" in str(view.calls[1].reason or view.calls[1].error)


async def test_a_run_that_is_cancelled_while_a_hook_works_has_not_made_the_call(
    time_skipping: WorkflowEnvironment,
) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    @hook("before_tool_call")
    async def slow(_: BeforeToolCall) -> None:
        began.set()
        await goes_on.wait()

    @hook("agent_end")
    def told(event: AgentEnd) -> None:
        ended.append(event.status)

    async with harness(time_skipping.client, [send, slow, told], plan()) as it:
        handle = await it.start(agent("send"))
        await asyncio.wait_for(began.wait(), HANG)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        view = await it.view(handle.id)
        goes_on.set()
    assert (view.status, view.calls[0].status, sent, ended) == ("cancelled", "skipped", [], ["cancelled"])


async def test_the_answers_of_people_and_clients_are_redacted_too(dev_server: WorkflowEnvironment) -> None:
    @hook("after_tool_call")
    def redact(event: AfterToolCall) -> AfterToolCall | None:
        return event.changed(result=f"[{event.tool}]")

    key = {"name": "key", "properties": {}, "_activity": "perdure.client"}
    question = {"_tool": "ask_person", "question": "Which key?", "_outputPath": "†state.asked"}
    calls = [question, {"_tool": "key", "_outputPath": "†state.key"}]
    async with harness(dev_server.client, [redact], [{"calls": calls}, DONE]) as it:
        handle = await it.start(agent("ask_person", key))
        await it.until_waiting(handle.id, "1.0", "1.1")
        for call in ("1.0", "1.1"):
            await handle.execute_update(DECIDE, {"call": call, "decision": "answer", "answer": "sk-1", "by": "ann"})
        result = await handle.result()
    assert result.state == {"asked": "[ask_person]", "key": "[key]"}


async def test_outside_of_sessions_no_result_is_persisted(time_skipping: WorkflowEnvironment) -> None:
    """Also none that no worker has returned: those of delegates, and those that the model wrote."""
    seen: list[str] = []

    @hook("tool_result_persist")
    def persist(event: ToolResultPersist) -> None:
        seen.append(event.tool)

    latent = {"name": "think", "properties": {"about": {"type": "string"}}, "_output": {"type": "string"}}
    calls = [{"_tool": "think", "about": "it", "_output": "a thought"}, {"_tool": "send", "text": "hi"}]
    async with harness(time_skipping.client, [send, persist], [{"calls": calls}, DONE]) as it:
        view = await it.run(agent("send", latent))
        assert await activities(it, view.run_id) == ["perdure.request", "send", "perdure.request"]
    assert seen == []


async def test_in_loops_and_delegates_each_call_has_its_hooks(time_skipping: WorkflowEnvironment) -> None:
    seen: list[str] = []

    @hook("before_tool_call", tools=["send"])
    def look(event: BeforeToolCall) -> BeforeToolCall | None:
        seen.append(event.call)
        return refuse("not b") if event.params["text"] == "b" else None  # type: ignore[return-value]

    call = {"_tool": "send", "text": "†item", "_each": ["a", "b", "c"], "_outputPath": "†state.sent"}
    async with harness(time_skipping.client, [send, look], [{"calls": [call]}, DONE]) as it:
        view = await it.run(agent("send"))
    assert sorted(seen) == ["1.0[0]", "1.0[1]", "1.0[2]"]
    assert sorted(sent) == ["a", "c"]
    assert view.state["sent"][1]["error"]["code"] == "refused_by_hook"


async def test_a_hook_that_makes_an_event_of_the_wrong_types_is_one_that_failed(
    time_skipping: WorkflowEnvironment,
) -> None:
    @hook("before_tool_call", tools=["pay"])
    def no_object(event: BeforeToolCall) -> BeforeToolCall:
        return event.model_copy(update={"params": ["all of it"]})

    @hook("after_tool_call", tools=["post"])
    def no_text(event: AfterToolCall) -> AfterToolCall:
        return event.model_copy(update={"message": 5})

    @tool(retries=3)
    def post(text: str) -> str:
        """Post a text."""
        sent.append(text)
        return f"posted {text}"

    calls = [{"_tool": "pay", "amount": 5, "to": "ann"}, {"_tool": "post", "text": "hello"}]
    async with harness(time_skipping.client, [pay, post, no_object, no_text], [{"calls": calls}, DONE]) as it:
        view = await it.run(agent("pay", "post"))
        asked = await activities(it, view.run_id)
    assert [call.error and call.error["code"] for call in view.calls] == ["refused_by_hook"] * 2
    assert "params: not valid for BeforeToolCall" in str(view.calls[0].error)
    assert (sent, asked.count("perdure.hook")) == (["hello"], 1)
