"""The testing kit, used as its users do (R14)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from temporalio.api.command.v1 import Command, ScheduleActivityTaskCommandAttributes
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import CommandType, EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.testservice.v1 import LockTimeSkippingRequest
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    PollActivityTaskQueueRequest,
    PollWorkflowTaskQueueRequest,
    RespondWorkflowTaskCompletedRequest,
)
from temporalio.client import Client, FetchWorkflowHistoryEventsInput, Interceptor, OutboundInterceptor
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, Reply, ToolContext, ToolError, hook, refuse, reply_route, tool
from perdure.errors import HookDefinitionError, ProtocolError, ToolDefinitionError
from perdure.hooks import BeforeToolCall, Refused
from perdure.runs.wire import AGENT_ATTRIBUTE
from perdure.testing import (
    AutoModel,
    Turn,
    answer,
    approve,
    cut,
    edit,
    kill,
    rate_limited,
    refusal,
    reject,
    run_locally,
    server_error,
)
from perdure.testing._clock import Clock, WaitingState
from perdure.testing._waits import LocalRun
from perdure.testing.scripted_model import ChatRequest
from tests.support import DONE, ROOT

DOC = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
PAY = {"_tool": "pay", "amount": 40, "_outputPath": "†state.receipt"}
PLAN: dict[str, Any] = {"calls": [PAY], "output": {"receipt": "†state.receipt"}}
SAYS: dict[str, Any] = {"calls": [PAY], "output": "†state.receipt"}


@tool(dangerous=True)
async def pay(amount: float) -> str:
    """Pay."""
    return f"paid {amount:g}"


payer = Agent("payer", tools=[pay])


def block(first_words: str, tmp_path: Path) -> ModuleType:
    """A block of the guide as a module."""
    (text,) = (each for each in re.findall(r"```python\n(.*?)```", DOC, re.DOTALL) if each.startswith(first_words))
    path = tmp_path / "test_refund.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("guide_" + first_words.split()[1].replace(".", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def test_the_guides_first_test_passes(tmp_path: Path) -> None:
    await block("# test_price.py", tmp_path).test_a_pear_costs_75_cents()


async def test_the_guides_refund_moves_the_money_once(tmp_path: Path) -> None:
    guide = block("# test_refund.py", tmp_path)  # its tests have the assertions
    guide.test_a_person_is_asked_before_money_moves()
    await guide.test_the_money_moves_once()


def test_the_guides_plans_are_checked(tmp_path: Path) -> None:
    assert "vegetable" in block("from perdure import Agent\n", tmp_path).wrong.problems[0]
    block("from hypothesis import given\n", tmp_path).test_nothing_is_deleted_without_a_person()


async def test_a_worker_dies_before_a_call_and_after_another() -> None:
    fakes: dict[str, Any] = {"pay": lambda amount, context: f"{amount} at attempt {context.attempt}"}
    two = {"calls": [PAY, PAY | {"amount": 41, "_after": ["1.0"]}], "output": {"ok": True}}
    people = [approve("pay", every=True)]
    faults = [kill("pay", "before"), kill("pay", "after", call=2)]
    async with run_locally(payer, model=[two], fakes=fakes, people=people, faults=faults) as local:
        view = await local.run()
        local.assert_once("pay", amount=40)
        local.assert_once("pay", amount=41)
        assert [each.attempt for each in local.executions("pay")] == [2, 1]
    assert view.output == {"ok": True}


async def test_the_server_soon_finds_that_another_runs_call_was_on_the_killed_worker() -> None:
    """Its heartbeat is five minutes, which would pass in real time."""
    begun = asyncio.Event()

    @tool(safe=True, heartbeat=300, timeout=7200)
    async def wait(context: ToolContext) -> str:
        """Wait."""
        begun.set()
        if context.attempt == 1:
            await asyncio.Event().wait()
        return "waited"

    @tool(safe=True)
    async def save(context: ToolContext) -> str:
        """Save."""
        await begun.wait()
        return f"saved at attempt {context.attempt}"

    def turn(asked: ChatRequest) -> dict[str, Any]:
        below = asked.run_id.partition("/")[2]
        if not below:
            return {"calls": [{"_tool": "writer", "_each": ["wait", "save"], "request": "†item"}], "output": {}}
        return {"calls": [{"_tool": "wait" if below.endswith("[0]") else "save"}], "output": {}}

    writer = Agent("writer", tools=[wait, save], description="Writes.")
    async with run_locally(Agent("boss", tools=[writer]), model=turn, faults=[kill("save", "during")]) as local:
        await local.run()
        assert [each.attempt for each in local.executions("wait")] == [1, 2]
        assert [each.attempt for each in local.executions("save")] == [1, 2]


def test_a_worker_is_killed_at_a_moment_that_there_is() -> None:
    with pytest.raises(ValueError, match="moment must be one of before, during, after, not 'befor'"):
        kill("pay", "befor")  # type: ignore[arg-type]


async def test_people_decide_each_in_their_time() -> None:
    @tool
    async def note(text: str) -> str:
        """Note."""
        return text

    agent = Agent("people", tools=[pay, note, "ask_person"])
    first = {"calls": [PAY, PAY | {"amount": 41}, {"_tool": "ask_person", "question": "Sure?"}], "output": None}
    people = [
        reject("pay", "too much", after="1 day", by="ann"),
        edit("pay", {"amount": 1}, after="2h"),
        answer("yes", after=60),
    ]
    async with run_locally(agent, model=[first, DONE], people=people) as local:
        begun = await local.now()
        view = await local.run()
        assert 86_400 < (await local.now() - begun).total_seconds() < 90_000  # they wait at the same time
        local.assert_once("pay", amount=1)
        assert "too much" in local.model.requests[1].text
    assert [(call.status, call.approval and call.approval.by) for call in view.calls[:2]] == [
        ("rejected", "ann"),
        ("done", ""),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": [PLAN]}, "1.0 pay of .* waits for a person .pay is dangerous., and no person of `people` decides"),
        ({"model": [PLAN, DONE], "people": [approve()]}, "1 of 2 turns were not used"),
        ({"model": [PLAN | {"output": None}], "people": [approve()]}, "the script has 1 turns, this is request 2"),
        (
            {"model": [PLAN], "people": [reject("pay", "too dear")]},
            r"this is request 2; payer-\w+ is \w+: 1\.0 pay rejected \(.*too dear",
        ),
        (
            {"model": [PLAN], "people": [approve("payy")]},
            r"no person of `people` decides; no request for approve\('payy'\) was made",
        ),
        ({"model": [DONE], "people": [reject("pay")]}, r"no request for reject\('pay'\) was made"),
        ({"model": [DONE], "faults": [kill("pay")]}, r"kill\('pay', 'during'\) never happened"),
        (
            {"model": [PLAN], "people": [approve()], "fakes": {"pay": 3}},
            "the fake of 'pay' returned a value that breaks the tool's schema",
        ),
    ],
    ids=[
        "nobody decides",
        "turn left",
        "asked too much",
        "and why",
        "another person",
        "person left",
        "fault left",
        "fake unlike the tool",
    ],
)
async def test_what_is_left_over_or_missing_fails_the_test(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        async with run_locally(payer, **options) as local:
            await local.run()


async def test_fakes_are_functions_values_and_errors(dev_server: WorkflowEnvironment) -> None:
    names = ["get", "wait", "fail", "fixed", "http_request"]
    agent = Agent("faker", tools=names, approval={"ask": "never"})
    calls = [{"_tool": name, "x": 1, "_outputPath": f"†state.{name}"} for name in names[:4]]
    asked = {"_tool": "http_request", "url": "http://x.test", "_outputPath": "†state.http_request"}

    async def wait(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    def fail(x: int) -> None:
        assert x == 1
        raise ToolError("declined", "no")

    fakes: dict[str, Any] = {
        "get": lambda x, context: f"{context.call_id} {x}",
        "wait": wait,
        "fail": fail,
        "fixed": {"a": 1},
        "http_request": lambda url: {"url": url, "status": 200, "headers": {}},
    }
    async with run_locally(agent, model=[{"calls": [*calls, asked]}, DONE], fakes=fakes, server=dev_server) as local:
        view = await local.run()
    assert [view.state.get(name) for name in ("get", "wait", "fixed")] == ["1.0 1", 2, {"a": 1}]
    assert view.calls[2].error == {"code": "declined", "message": "no"}
    assert view.calls[4].status == "done", view.calls[4].error


@pytest.mark.parametrize(
    ("activity", "remedy"),
    [
        ("perdure.client", "answer its calls with people=[answer(…, tool='serial')]"),
        ("perdure.ask_person", "answer its calls with people=[answer(…, tool='serial')]"),
        ("perdure.sleep_until", "remove this fake"),
    ],
)
async def test_a_fake_of_a_tool_that_no_worker_runs_is_refused(activity: str, remedy: str) -> None:
    serial = {"name": "serial", "properties": {"device": {"type": "string"}}, "_activity": activity}
    line = f"fakes: 'serial' cannot be replaced, because no worker runs {activity}: {remedy}"
    with pytest.raises(ToolDefinitionError, match=f"^{re.escape(line)}$"):
        async with run_locally(Agent("a", tools=[serial]), fakes={"serial": "SN-7"}):
            pass


async def test_each_call_of_the_clients_tools_has_its_own_answer() -> None:
    tools: list[Any] = [{"name": name, "properties": {}, "_activity": "perdure.client"} for name in ("serial", "place")]
    calls = [{"_tool": name, "_outputPath": f"†state.{name}"} for name in ("serial", "place")]
    people = [answer("shelf 4", tool="place"), answer({"number": "SN-7"}, tool="serial")]
    async with run_locally(Agent("a", tools=tools), model=[{"calls": calls}, DONE], people=people) as local:
        view = await local.run()
    assert view.state == {"serial": {"number": "SN-7"}, "place": "shelf 4"}


async def test_an_assertion_inside_a_tool_fails_the_test() -> None:
    def fake(amount: float) -> str:
        assert amount < 10, "that is too much"
        return ""

    with pytest.raises(AssertionError, match="that is too much"):
        async with run_locally(payer, model=[PLAN, DONE], fakes={"pay": fake}, people=[approve()]) as local:
            await local.run()


async def test_the_model_fails_in_every_way_and_minutes_take_no_time() -> None:
    agent = Agent("patient", tools=[pay], approval={"ask": "never"})
    turns = [rate_limited(300), server_error(), refusal("I will not."), cut(PLAN, after=25), Turn("no JSON"), DONE]
    async with run_locally(agent, model=turns) as local:
        begun = await local.now()
        view = await local.run()
        assert (await local.now() - begun).total_seconds() > 300
        local.assert_once("pay")
    assert [error["error"]["code"] for error in view.errors] == ["refusal", "interrupted", "not_json"]


async def test_the_environment_does_not_reach_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("OPENAI_API_KEY", "sk-real"),
        ("OPENAI_BASE_URL", "http://real.test"),
        ("TEMPORAL_ADDRESS", "real.test:7233"),
        ("PERDURE_STORAGE", "s3://real"),
    ):
        monkeypatch.setenv(name, value)
    async with run_locally(Agent("alone", instructions="Go."), model=[DONE]) as local:
        await local.run()
        (request,) = local.model.requests
        assert request.headers["authorization"] == "Bearer scripted"


async def test_a_fake_that_replaces_no_tool_beside_one_of_a_similar_name_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="the fake of 'payy' was not used, and 'pay' ran as it is"):
        async with run_locally(payer, model=[PLAN], fakes={"payy": "paid"}, people=[approve()]) as local:
            await local.run()
    async with run_locally(payer, model=[PLAN], fakes={"look": "seen"}, people=[approve()]) as local:
        await local.run()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"people": approve("pay")}, "people must be a list, not approve('pay')"),
        ({"tools": "my.module"}, "tools must be a list, not my.module"),
        ({"models": [PLAN]}, '"models" is not a known argument; did you mean "model"?'),
        ({"grac": 5}, '"grac" is not a known argument; did you mean "grace"?'),
    ],
)
async def test_an_argument_that_is_none_is_one_clear_line(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProtocolError, match=rf"^run_locally: {re.escape(problem)}$"):
        async with run_locally(payer, **options):
            pytest.fail("the test has started")


async def test_a_hook_of_a_tool_that_the_test_does_not_have_fails_it() -> None:
    """Such a hook is never called, and the call that it would refuse happens."""

    @hook("before_tool_call", tools=["pay", "payy"])
    def guard(_: BeforeToolCall) -> Refused:
        return refuse("no")

    with pytest.raises(HookDefinitionError, match=r'^hook .*guard: "payy" is not a known tool; did you mean "pay"[?]$'):
        async with run_locally(payer, model=[], hooks=[guard]):
            pytest.fail("the test has started")
    with pytest.raises(AssertionError, match='guard: "payy" is not a known tool'):
        async with run_locally(tools=[pay], hooks=[guard]):
            pass  # a later agent might have the tool
    async with run_locally(payer, fakes={"payy": None}, hooks=[guard]):
        pass
    async with run_locally(Agent("boss", tools=[pay, Agent("payy", instructions="Pay.")]), hooks=[guard]):
        pass


async def test_a_run_is_followed_step_by_step(run_locally: Callable[..., Any]) -> None:
    async with run_locally(payer, model=[PLAN], fakes={"pay": "paid"}) as local:
        run = await local.start()
        view = await run.until_waiting("1.0")
        assert view.waiting[0].params == {"amount": 40}
        await local.skip("3h")
        local.assert_never("pay")
        await run.approve("1.0", by="me")
        assert await run.result() == {"receipt": "paid"}


async def test_r14_5_people_decide_while_a_test_skips_time_and_make_up_a_quorum_together() -> None:
    policy: Any = {"timeout": 2.5 * 3600, "tools": {"pay": {"by": 2}}}
    people = [approve("pay", by=by, after=after, every=True) for by, after in (("ann", "1h"), ("bob", "2h"))]
    async with run_locally(payer, model=lambda _: PLAN, people=people) as local:
        for _ in range(2):
            run = await local.start(approval=policy)
            begun = await local.now()
            await local.skip("3h")
            assert (await local.now() - begun).total_seconds() >= 3 * 3600
            (call,) = (await run.view()).calls
            assert (call.status, call.approval and call.approval.by) == ("done", "ann and bob")


async def test_r14_3_time_that_a_test_skips_passes_on_a_server_that_keeps_time(
    dev_server: WorkflowEnvironment,
) -> None:
    async with run_locally(payer, model=[PLAN], people=[approve("pay", after=0.2)], server=dev_server) as local:
        run = await local.start()
        begun = await local.now()
        await run.until_waiting("1.0")
        await local.skip(0.5)
        assert (await local.now() - begun).total_seconds() >= 0.5
        assert (await run.view()).calls[0].status == "done"


async def test_r10_18_what_was_cut_is_recalled_as_on_a_worker() -> None:
    @tool(safe=True)
    def report() -> str:
        """Report."""
        return "word " * 10_000 + "END."

    calls = [{"_tool": "report"}], [{"_tool": "recall", "what": "1.0", "page": 5}]
    turns = [*({"calls": each, "output": None} for each in calls), {"output": "read"}]
    async with run_locally(Agent("reader", tools=[report]), model=turns) as local:
        view = await local.run()
        assert "the rest: recall 1.0" in local.model.requests[1].text
        assert "END." in local.model.requests[2].text
        local.assert_once("recall", page=5)
    assert [(call.tool, call.status) for call in view.calls] == [("report", "done"), ("recall", "done")]


async def test_r14_4_a_model_that_needs_no_script_calls_each_tool_once() -> None:
    @tool
    async def note(text: str, urgent: bool = False) -> str:
        """Note."""
        return text.upper() if urgent else text

    inner = Agent("inner", tools=[note], output={"type": "array", "items": {"type": "integer"}, "minItems": 1})
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    agent = Agent("outer", tools=[pay, note, inner, "now"], output=schema)
    values: dict[str, Any] = {"pay": {"amount": 7}, "note": {"urgent": True}}
    async with run_locally(agent, model=AutoModel(values=values), people=[approve("pay")]) as local:
        view = await local.run()
        local.assert_once("pay", amount=7)
        assert [each.run_id.partition("/")[2] for each in local.executions("note")] in (["", "1.2"], ["1.2", ""])
        assert [each.params["urgent"] for each in local.executions("note")] == [True, True]
    assert [call.status for call in view.calls] == ["done"] * 4
    assert isinstance(view.output["ok"], bool)
    assert isinstance(view.state["inner"][0], int)


async def test_agents_that_an_agent_was_given_run_as_delegates() -> None:
    clerk = Agent("clerk", tools=[pay], description="Pays.")
    chief = Agent("chief", tools=[clerk])
    script = [
        {"calls": [{"_tool": "clerk", "request": "pay", "_outputPath": "†state.done"}], "output": None},
        PLAN,
        DONE,
    ]
    async with run_locally(chief, model=script, people=[approve("pay", after="1h")]) as local:
        await local.run()
        local.assert_once("pay")
        assert [asked.run_id.partition("/")[2] for asked in local.model.requests] == ["", "1.0", ""]


async def test_a_session_of_another_test_with_the_same_key_on_the_same_server_is_in_no_ones_way(
    dev_server: WorkflowEnvironment,
) -> None:
    for _ in range(2):
        async with run_locally(
            Agent("talker", output=str), model=[{"calls": [], "output": "hello"}], server=dev_server
        ) as local:
            assert await local.session("the-same-key").ask("hello", sender="ann") == "hello"


def test_the_plugin_loads_nothing_until_it_is_used() -> None:
    code = "import perdure.testing.plugin, sys; print([n for n in ('temporalio', 'pydantic', 'openai') if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_dev_server_for_a_whole_session(perdure_dev_server: str) -> None:
    async def use() -> None:
        async with run_locally(payer, model=[PLAN], people=[approve()], server=perdure_dev_server) as local:
            run = await local.start()
            assert await run.result() == {"receipt": "paid 40"}
            known = (await run.handle.describe()).search_attributes
            assert known[AGENT_ATTRIBUTE] == ["payer"], "lists find the first run of a new server too"

    asyncio.run(use())


async def test_several_runs_are_waited_for_at_once_and_each_is_decided_once() -> None:
    people = [approve("pay", after="1h", every=True)]
    async with run_locally(payer, model=lambda _: PLAN, people=people) as local:
        runs = [await local.start() for _ in range(6)]
        views = await asyncio.gather(*(run.wait() for run in runs))
        assert len(local.executions("pay")) == 6
    assert [view.status for view in views] == ["completed"] * 6


async def test_r14_5_a_wait_for_many_runs_reads_each_open_run_once_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waiter read the histories of all runs, ended ones too: 900 runs took two hundred times as long as 18."""
    read: Counter[str] = Counter()
    looks = 0
    look = Clock.look

    class Counted(OutboundInterceptor):
        def fetch_workflow_history_events(self, input: FetchWorkflowHistoryEventsInput) -> Any:
            read[input.id] += 1
            return super().fetch_workflow_history_events(input)

    class Counting(Interceptor):
        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
            return Counted(next)

    async def counted_look(clock: Clock, workflow_ids: Iterable[str]) -> WaitingState:
        nonlocal looks
        looks += 1
        return await look(clock, workflow_ids)

    people = [approve("pay", after="1h", every=True)]
    async with run_locally(payer, model=lambda _: PLAN, people=people) as local:
        client = Client(local.client.service_client, interceptors=[Counting()])
        monkeypatch.setattr(local.following.clock, "_client", client)
        monkeypatch.setattr(Clock, "look", counted_look)
        runs = [await local.start() for _ in range(12)]
        await asyncio.gather(*(run.wait() for run in runs))
        many, looks_of_many = read.copy(), looks
        read.clear()
        last = await local.run()
    assert set(many) == {run.id for run in runs}
    assert max(many.values()) <= looks_of_many  # however many waiters there are
    assert set(read) == {last.run_id}  # the ended runs cost nothing


@pytest.mark.asyncio(loop_scope="session")
async def test_nobody_looks_at_a_run_that_has_ended(dev_server: WorkflowEnvironment) -> None:
    """Else each run of a test makes each wait longer. One that the server has forgotten would be waited for."""
    async with run_locally(payer, model=lambda _: DONE, server=dev_server) as local:
        view = await local.run()
        gone = WorkflowExecution(workflow_id=view.run_id)
        service = local.client.workflow_service
        await service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(namespace=local.client.namespace, workflow_execution=gone)
        )
        with contextlib.suppress(RPCError):  # there is none any more
            while True:
                await local.client.get_workflow_handle(view.run_id).describe()
        look = await local.following.clock.look([view.run_id])
        assert not look.busy
        assert (await local.run()).status == "completed"


async def test_r14_3_a_sessions_people_routes_and_waits_are_those_of_a_run() -> None:
    tried: list[tuple[str, str]] = []

    @reply_route("desk")
    async def deliver(reply: Reply) -> None:
        tried.append((reply.key.rpartition("/")[2], reply.text))
        if reply.attempt < 4:
            raise OSError("the desk is closed")

    talker = Agent("talker", tools=[pay], output=str)
    plans = [{"calls": [PAY], "output": "†state.receipt"}, {"calls": [], "output": "again"}]
    people = [approve("pay", after="2 days")]
    async with run_locally(talker, model=plans, people=people, routes=[deliver]) as local:
        begun = await local.now()
        session = local.session("ann")
        receipt = await session.send("pay", sender="ann", route="desk:1")
        run = await session.run()
        assert await session.reply(receipt) == "paid 40"
        assert run is not None
        assert (await run.wait()).status == "completed"
        assert (await local.now() - begun).total_seconds() > 2 * 86_400
        local.assert_once("pay")
        await local.settle()
        assert tried == [("1", "paid 40")] * 4
        assert await session.reply(await session.send("once more", sender="ann")) == "again"


async def test_r19_3_an_answer_is_streamed_while_people_decide_and_time_passes() -> None:
    talker = Agent("talker", tools=[pay], output=str)
    plans = [{"calls": [PAY], "output": "†state.receipt"}, {"calls": [], "output": "again"}]
    people = [approve("pay", after="2 days")]
    async with run_locally(talker, model=plans, people=people) as local:
        begun = await local.now()
        session = local.session("ann")
        receipt = await session.send("pay", sender="ann")
        events = [event async for event in session.stream(receipt, topics=["approval", "lifecycle"])]
        assert [f"{event.topic} {event.phase}" for event in events] == [
            "lifecycle start",
            "approval start",
            "approval end",
            "lifecycle end",
        ]
        assert (await local.now() - begun).total_seconds() > 2 * 86_400
        assert await session.ask("and now?", sender="ann") == "again"


async def test_r19_3_whoever_reads_events_may_decide_themselves_and_is_told_where_nobody_does() -> None:
    async with run_locally(payer, model=lambda _: PLAN) as local:
        run = await local.start()
        async for event in run.events(topics=["approval"]):
            if event.phase == "start":
                await run.approve(str(event.data["call"]))
        assert (await run.view()).status == "completed"
        other = await local.start()
        with pytest.raises(AssertionError, match=r"1\.0 pay of .* waits for a person .*no person of `people` decides"):
            async for _ in other.events():
                pass


async def test_a_session_is_deleted_and_its_key_begins_another_one() -> None:
    async with run_locally(Agent("chat"), model=[{"output": "one"}, {"output": "two"}]) as local:
        session = local.session("mail")
        first = await session.send("Hi", sender="ann", id="m-1")
        assert await session.reply(first) == "one"
        await session.delete(sender="ann")
        second = await session.send("Hi", sender="ann", id="m-1")
        assert await session.reply(second) == "two"
        assert first.run_id != second.run_id


async def test_a_person_decides_once_also_where_a_hook_undoes_an_edit_and_asks_again() -> None:
    @hook("before_tool_call")
    def cap(event: BeforeToolCall) -> BeforeToolCall:
        return event.changed(params={"amount": min(event.params["amount"], 10)})

    undecided = r"1\.0 pay of session-\w+/\S+ waits for a person .*no person of `people` decides"
    people = [edit("pay", {"amount": 99})]
    async with run_locally(Agent("talker", tools=[pay]), model=[PLAN], people=people, hooks=[cap]) as local:
        session = local.session("ann")
        receipt = await session.send("pay", sender="ann")
        with pytest.raises(AssertionError, match=undecided):
            await session.reply(receipt)


async def test_a_wait_that_takes_too_long_tells_of_a_sessions_run() -> None:
    async def never(_: WaitingState) -> None:
        return None

    people = [approve("pay", after="2 days", every=True)]
    async with run_locally(Agent("talker", tools=[pay]), model=[PLAN], people=people) as local:
        session = local.session("ann")
        await session.send("pay", sender="ann")
        run = await session.run()
        assert isinstance(run, LocalRun)
        await run.until_waiting("1.0")
        with pytest.raises(
            AssertionError, match=r"the run did not end within 0 s: session-\w+/\S+ is running: 1\.0 pay waiting"
        ):
            await local.following.until(never, 0)


async def test_r19_3_time_passes_also_after_a_run_or_a_session_was_stopped() -> None:
    """The skipping server locks its time for an activity or a signal, and forgets to unlock it where the run has ended before."""
    people = [approve("pay", after="1h", every=True)]
    async with run_locally(Agent("talker", tools=[pay], output=str), model=lambda _: SAYS, people=people) as local:
        ends: list[tuple[str, bool]] = [
            ("stop", True),
            ("delete", True),
            ("stop", False),
            ("delete", False),
            ("cancel", False),
        ]
        for how, is_asked in ends:
            session = local.session(f"{how} {is_asked}")
            receipt = await session.send("pay", sender="ann")
            run = await session.run()
            assert isinstance(run, LocalRun)
            if is_asked:
                await run.until_waiting()
            await (run.cancel() if how == "cancel" else getattr(session, how)(sender="ann"))
            if how != "delete":
                assert (await session.wait(receipt)).status == "error"
            begun = await local.now()
            await local.skip("2 days")
            assert (await local.now() - begun).total_seconds() >= 2 * 86_400
        assert await local.session("bob").ask("pay", sender="bob") == "paid 40"


async def test_r19_3_events_entries_and_views_come_while_people_decide_and_time_passes() -> None:
    people = [approve("pay", after="1h", every=True)]
    talker = Agent("talker", tools=[pay], output=str)
    async with run_locally(talker, model=lambda _: SAYS, people=people) as local:
        session = local.session("ann")
        begun = await local.now()
        receipt = await session.send("pay", sender="ann")
        async for event in session.events(topics=["approval"]):
            if event.phase == "end":
                break
        assert (await local.now() - begun).total_seconds() > 3600
        async for entry in session.watch():
            if entry["type"] == "reply":
                break
        assert await session.reply(receipt) == "paid 40"

        run = await local.start(sender="ann", tenant="acme")
        assert (await run.origin()).tenant == "acme"
        assert [view.status async for view in run.views()][-1] == "completed"
        assert (await (await local.start()).waited()).status == "ok"
        again = await local.start()
        topics = [event.topic async for event in local.perdure.events(again.id)]
        assert topics[-1] == "lifecycle"
        other = await Perdure(local.client, task_queue=local.task_queue).start(talker)
        assert await local.perdure.get_run(other.id).result() == "paid 40", "one that the kit did not start"


async def test_time_passes_although_the_server_has_lost_locks_on_it() -> None:
    people = [approve("pay", after="1h", every=True)]
    async with run_locally(payer, model=lambda _: PLAN, people=people) as local:
        for _ in range(2):
            await local.client.service_client.test_service.lock_time_skipping(LockTimeSkippingRequest())
        begun = await local.now()
        await local.run()
        await local.skip("1 day")
        assert (await local.now() - begun).total_seconds() >= 90_000


async def test_r19_3_what_waits_below_a_run_is_found_without_lists() -> None:
    clerk = Agent("clerk", tools=[pay], description="Pays.")
    plan = {"calls": [{"_tool": "clerk", "request": "pay"}], "output": None}
    async with run_locally(
        Agent("chief", tools=[clerk]), model=lambda asked: PLAN if "/" in asked.run_id else plan
    ) as local:
        run = await local.start()
        below = local.perdure.get_run(f"{run.id}/1.0")
        assert isinstance(below, LocalRun)
        await local.settle()
        await below.until_waiting("1.0")
        found, problems = await run.waiting_below()
        assert [(each.run_id, each.request.tool) for each in found] == [(below.id, "pay")]
        assert problems == []


async def test_a_person_whose_request_somebody_else_decided_decides_another() -> None:
    both = [PAY, PAY | {"amount": 41, "_outputPath": "†state.second"}]
    async with run_locally(payer, model=[{"calls": both}, DONE], people=[approve("pay", after="1h")]) as local:
        run = await local.start()
        await run.until_waiting("1.0", "1.1")
        looks = iter([None, True])

        async def seen(_: Any) -> bool | None:
            return next(looks)

        await local.following.until(seen)  # the person has seen both requests, and means to decide the first
        await run.approve("1.0")
        view = await run.wait()
    assert [call.status for call in view.calls] == ["done", "done"]


async def test_r19_3_what_a_dead_worker_has_costs_no_real_time() -> None:
    """Its workflow task times out after two minutes, the server's longest, its activity after another hour."""
    async with run_locally(payer) as local:
        service, dead, queue = local.client.workflow_service, "dead", "of-nobody"
        clock = Clock(local.following.clock._server, local.client, {dead})
        handle = await local.client.start_workflow("any", id="any", task_queue=queue, task_timeout=timedelta(minutes=2))
        begun = await local.now()

        async def lost_until(kind: Any) -> None:
            while all(event.event_type != kind for event in (await handle.fetch_history()).events):
                look = await clock.look(["any"])
                await (clock.pass_lost(look) if look.lost else clock.tick())

        def asked(identity: str) -> PollWorkflowTaskQueueRequest:
            return PollWorkflowTaskQueueRequest(
                namespace=local.client.namespace, task_queue=TaskQueue(name=queue), identity=identity
            )

        assert (await service.poll_workflow_task_queue(asked(dead))).task_token
        await lost_until(EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)
        assert (await local.now() - begun).total_seconds() >= 120

        task = await service.poll_workflow_task_queue(asked("alive"))
        call = ScheduleActivityTaskCommandAttributes(activity_id="1", task_queue=TaskQueue(name=queue))
        call.activity_type.name = "any"
        for timeout, seconds in ((call.start_to_close_timeout, 7200), (call.heartbeat_timeout, 3600)):
            timeout.FromSeconds(seconds)
        call.retry_policy.maximum_attempts = 1
        command = Command(
            command_type=CommandType.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK, schedule_activity_task_command_attributes=call
        )
        await service.respond_workflow_task_completed(
            RespondWorkflowTaskCompletedRequest(task_token=task.task_token, identity="alive", commands=[command])
        )
        await service.poll_activity_task_queue(
            PollActivityTaskQueueRequest(
                namespace=local.client.namespace, task_queue=TaskQueue(name=queue), identity=dead
            )
        )
        await lost_until(EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT)
        assert (await local.now() - begun).total_seconds() >= 3720
        await handle.terminate()


@pytest.mark.parametrize("server", ["time-skipping", "dev"])
async def test_a_session_goes_on_after_the_termination_of_its_run(server: Literal["time-skipping", "dev"]) -> None:
    """The report of its end may come later than the next message. The skipping server never sends it, and the kit says so."""
    talker = Agent("talker", tools=[pay], output=str)

    def model(request: ChatRequest) -> Any:
        return {"calls": [], "output": "ok"} if "next" in str(request.messages[-1]) else SAYS

    async with run_locally(talker, model=model, server=server) as local:
        session = local.session("ann")
        await session.send("pay", sender="ann")
        run = await session.run()
        assert isinstance(run, LocalRun)
        await run.until_waiting("1.0")
        await run.terminate()
        if server == "dev":
            assert await session.ask("next", sender="ann") == "ok"
        else:
            with pytest.raises(
                AssertionError, match=f"{run.id} was terminated, and the time-skipping server does not report"
            ):
                await session.ask("next", sender="ann")


async def test_a_run_has_ended_and_its_session_has_no_event_of_that_yet() -> None:
    """A slow machine has many looks in between, and they counted as nothing that happens any more."""

    class Behind(OutboundInterceptor):
        """Histories as they were before any child's end was reported."""

        def fetch_workflow_history_events(self, input: FetchWorkflowHistoryEventsInput) -> Any:
            return self._until_then(super().fetch_workflow_history_events(input))

        async def _until_then(self, events: AsyncIterator[HistoryEvent]) -> AsyncIterator[HistoryEvent]:
            async for event in events:
                if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
                    return
                yield event

    class Slow(Interceptor):
        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
            return Behind(next)

    async with run_locally(Agent("talker", output=str), model=[{"calls": [], "output": "hello"}]) as local:
        session = local.session("ann")
        receipt = await session.send("hello", sender="ann")
        await session.reply(receipt)
        behind = Client(local.client.service_client, interceptors=[Slow()])
        clock = Clock(local.following.clock._server, behind)
        await clock.look([session.id])
        look = await clock.look([session.id])
    assert (look.unreported, look.deciding, look.busy) == ([receipt.run_id], set(), True)


async def test_r19_3_the_worker_dies_in_a_sessions_run() -> None:
    talker = Agent("talker", tools=[pay], output=str)

    def paid(amount: float, context: ToolContext) -> str:
        return f"paid {amount} at attempt {context.attempt}"

    faults = [kill("pay", "during"), kill("pay", "after")]
    people = [approve("pay", every=True)]
    async with run_locally(talker, model=lambda _: SAYS, fakes={"pay": paid}, people=people, faults=faults) as local:
        session = local.session("ann")
        assert await session.ask("pay", sender="ann") == "paid 40 at attempt 2"
        local.assert_once("pay", amount=40)


async def test_r19_3_a_stream_goes_on_through_an_approval_and_a_workers_death() -> None:
    talker = Agent("talker", tools=[pay], output=str)

    def paid(amount: float, context: ToolContext) -> str:
        return f"paid {amount} at attempt {context.attempt}"

    more: dict[str, Any] = {"people": [approve("pay", after="2 days")], "faults": [kill("pay", "during")]}
    async with run_locally(talker, model=lambda _: SAYS, fakes={"pay": paid}, **more) as local:
        begun = await local.now()
        session = local.session("ann")
        receipt = await session.send("pay", sender="ann")
        events = [event async for event in session.stream(receipt)]
        assert (await local.now() - begun).total_seconds() > 2 * 86_400
        assert await session.reply(receipt) == "paid 40 at attempt 2"
        local.assert_once("pay", amount=40)
    # A long attempt is an update on a slow machine.
    seen = [f"{event.topic} {event.phase}" for event in events if event.phase != "update"]
    seen.remove("request end")  # the approval may be asked for before, as the model still writes, or after
    assert seen == [
        "lifecycle start",
        *("request start", "approval start", "approval end", "tool start", "tool end"),
        *("assistant delta", "assistant end", "lifecycle end"),
    ]
    assert {event.run_id for event in events} == {receipt.run_id}
    told = {f"{event.topic} {event.phase}": event.data for event in events}
    assert told["tool end"]["attempts"] == 2
    assert told["assistant delta"]["text"] == told["lifecycle end"]["output"] == "paid 40 at attempt 2"


async def test_a_function_without_a_route_is_refused_as_one() -> None:
    with pytest.raises(ToolDefinitionError, match="is not a route: decorate the function with @reply_route"):
        async with run_locally(payer, routes=[pay]):
            raise AssertionError


async def test_a_check_of_a_tool_or_parameter_that_does_not_exist_is_refused() -> None:
    """Else the check that a payment never happened passes for a mistyped name."""
    other = Agent("other", tools=[{"name": "transfer", "_activity": "pay", "properties": {"amount": {}}}])
    async with run_locally(payer, model=[PLAN], people=[approve("pay")], tools=[pay]) as local:
        await local.run()
        with pytest.raises(ProtocolError, match=r'^"pya" is not a known tool; did you mean "pay"\?$'):
            local.assert_never("pya")
        with pytest.raises(ProtocolError, match='"pya" is not a known tool'):
            local.executions("pya")
        with pytest.raises(ProtocolError, match=r'^pay: "amuont" is not a known parameter; did you mean "amount"\?$'):
            local.assert_never("pay", amuont=40)
        with pytest.raises(ProtocolError, match="is not a known parameter"):
            local.assert_once("pay", euros=40)
        local.assert_never("pay", amount=41)
        local.session("ann", agent=other)
        local.assert_never("transfer")


async def test_an_async_function_in_a_wrapper_is_a_tool_and_a_route() -> None:
    told: list[str] = []

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def logging(*args: Any, **named: Any) -> Any:
            return function(*args, **named)

        return logging

    @tool
    @logged
    async def note(text: str) -> str:
        return f"noted {text}"

    @reply_route("desk")
    @logged
    async def deliver(reply: Reply) -> None:
        told.append(reply.text)

    class Shop:
        async def __call__(self, reply: Reply) -> None:
            told.append(reply.text)

    @reply_route("list")
    @logged
    def many(reply: Reply) -> Iterator[str]:
        yield reply.text

    turns = [
        {"calls": [{"_tool": "note", "text": text, "_outputPath": "†state.noted"}], "output": "†state.noted"}
        for text in ("one", "two", "three")
    ]
    talker = Agent("talker", tools=[note], output=str)
    routes: list[Callable[..., Any]] = [deliver, reply_route("shop")(Shop()), many]
    async with run_locally(talker, model=turns, routes=routes) as local:
        session = local.session("ann")
        for route in ("desk", "shop", "list"):
            await session.reply(await session.send("note", sender="ann", route=route))
        await local.settle()
        replies = [each["status"] for each in (await session.show()).entries if each["type"] == "delivery"]
        assert all(each.ended for each in local.executions("note"))
    assert told == ["noted one", "noted two"]
    assert replies == ["delivered", "delivered", "unknown"]
