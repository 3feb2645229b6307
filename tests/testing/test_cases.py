"""Production runs written down and played again, and histories replayed before a deploy (R14.6, R13.7)."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure import (
    Agent,
    Perdure,
    ToolContext,
    ToolError,
    activity_tool,
    branch,
    hook,
    notification_route,
    refuse,
    tool,
    workflow_tool,
)
from perdure.client.histories import replay_each, replay_running
from perdure.errors import RunError, SettingsError
from perdure.hooks import BeforeToolCall
from perdure.rules import needs
from perdure.runs.notifications import notification_routes_of
from perdure.testing import (
    CaseDifferenceError,
    ScriptedModel,
    Turn,
    approve,
    cut,
    edit,
    read_case,
    record,
    replay,
    run_locally,
    write_case,
)
from perdure.testing.cases import with_evaluators
from tests.support import DONE, agent, harness, perdure, registry
from tests.timeouts import HANG
from tests.user_workflows import Delivery, ship
from tests.workflows.test_operator_commands import by_hand

pytestmark = pytest.mark.asyncio(loop_scope="session")
real: list[str] = []


@tool
async def stock(item: str) -> dict[str, int]:
    """What is in stock."""
    real.append("stock")
    return {"count": len(item)}


@tool(dangerous=True)
async def order(item: str, count: int) -> str:
    """Order."""
    real.append("order")
    return f"{count} of {item}"


@tool(retries=0)
async def deliver(receipt: str) -> Any:
    """Deliver."""
    if not receipt:
        raise ToolError("nothing", "nothing to deliver")
    return branch("†state.late", receipt)


LAST: dict[str, Any] = {"calls": [], "output": {"ok": True}}
FIRST: dict[str, Any] = {
    "calls": [
        {"_tool": "stock", "item": "†input.item", "_outputPath": "†state.stock"},
        {"_tool": "order", "item": "†input.item", "count": "†state.stock.count", "_outputPath": "†state.receipt"},
        {"_tool": "deliver", "receipt": "†state.receipt", "_outputPath": "†state.done || †state.late"},
        {"_tool": "deliver", "receipt": "", "_outputPath": "†state.none"},
        {"_tool": "clerk", "request": "again", "_outputPath": "†state.clerk"},
    ],
    "output": None,
}
BELOW: dict[str, Any] = {
    "calls": [{"_tool": "stock", "item": "pear", "_outputPath": "†state.pear"}],
    "output": {"pears": "†state.pear.count"},
}


def shop(**more: Any) -> Agent[Any]:
    clerk = Agent("clerk", tools=[stock])
    return Agent("counter", tools=[stock, order, deliver, clerk], **more)


def answered(first: dict[str, Any]) -> Any:
    """Whoever asks: the delegate, or the shop for the first time, or after."""
    seen: list[str] = []

    def turn(asked: Any) -> Any:
        if "/" in asked.run_id:
            return Turn(BELOW, dialect="solution")
        seen.append(asked.run_id)
        return first if len(seen) == 1 else LAST

    return turn


@pytest.mark.parametrize("dialect", ["solution", "tools", "script"])
async def test_r14_6_a_run_is_recorded_and_plays_again_the_same(
    dialect: str, dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    people = [edit("order", {"count": 2}, by="ann")]
    agent = shop(dialect=dialect)
    async with run_locally(agent, model=answered(FIRST), people=people, server=dev_server) as local:
        run = await local.start({"item": "fig"})
        view = await run.wait()
    assert view.status == "completed", view.errors
    case = await record(run)  # nobody works there any more
    path = tmp_path / "case.json"
    write_case(case, path)
    case = read_case(path)
    assert case["input"] == {"item": "fig"}
    assert case["runs"][""]["results"]["1.1"] == {
        "tool": "order",
        "params": {"item": "fig", "count": 2},
        "returns": "2 of fig",
    }
    assert case["runs"][""]["results"]["1.2"]["branch"] == "†state.late"
    assert case["runs"][""]["results"]["1.3"]["raises"] == {"code": "nothing", "message": "nothing to deliver"}
    assert case["runs"][""]["decisions"] == [{"call": "1.1", "decision": "edit", "params": {"count": 2}, "by": "ann"}]
    assert case["runs"]["1.4"]["output"] == {"pears": 4}
    real.clear()
    assert (await replay(path)).output == {"ok": True}
    assert (await replay(case, agent)).state == view.state
    assert real == []


async def test_r14_6_a_replay_changes_and_refuses_the_calls_that_hooks_did(dev_server: WorkflowEnvironment) -> None:
    @hook("before_tool_call")
    def at_most(event: BeforeToolCall) -> Any:
        count = event.params["count"]
        if count > 20:
            return refuse("too many")
        return event.changed(params={"item": "fig", "count": 5}) if count > 5 else None

    calls = [
        {"_tool": "reserve", "count": 9, "note": "now", "_outputPath": "†state.n"},
        {"_tool": "reserve", "count": 30, "_outputPath": "†state.m"},
        {"_tool": "order", "item": "fig", "count": 1, "_outputPath": "†state.order"},
    ]

    @tool
    def reserve(count: int, item: str = "", note: str = "") -> str:
        """Reserve."""
        real.append("reserve")
        return f"{count} {item}{note}"

    people = [edit("order", {"count": 8}), approve("order", every=True)]
    buyer = Agent("buyer", tools=[reserve, order])
    real.clear()
    async with run_locally(
        buyer, model=[{"calls": calls}, LAST], hooks=[at_most], people=people, server=dev_server
    ) as local:
        run = await local.start()
        view = await run.wait()
    assert [call.params for call in view.calls] == [
        {"count": 5, "item": "fig"},
        {"count": 30},
        {"count": 5, "item": "fig"},
    ]
    assert real == ["reserve", "order"]
    case = await record(run)
    assert case["runs"][""]["hooks"]["1.2"] == {
        "tool": "order",
        "answers": [None, {"params": {"count": 5}, "gone": []}],
    }
    real.clear()
    assert (await replay(json.loads(json.dumps(case)))).state == view.state
    assert real == []


async def test_r14_6_what_differs_is_told_as_a_diff_of_the_plans(dev_server: WorkflowEnvironment) -> None:
    one: dict[str, Any] = {"calls": FIRST["calls"][:3], "output": None}
    async with run_locally(shop(), model=answered(one), people=[approve()], server=dev_server) as local:
        run = await local.start({"item": "fig"})
        await run.wait()
        case = await record(run)
    with pytest.raises(CaseDifferenceError) as careless:
        await replay(case, shop(approval={"ask": "never"}))
    assert careless.value.lines == [
        '- 1.1 order {"item":"fig","count":3} done, asked',
        '+ 1.1 order {"item":"fig","count":3} done',
    ]
    with pytest.raises(CaseDifferenceError, match="there is no tool") as poorer:
        await replay(case, Agent("counter", tools=[stock, order]))
    assert "- 1.1 → 1.2 †state.receipt" in poorer.value.lines
    assert any(line.startswith('- status "completed"') or "deliver" in line for line in poorer.value.lines)

    @tool(name="stock")
    async def renamed(item: str, shelf: str) -> dict[str, int]:
        """What is in stock on a shelf."""
        return {item: len(shelf)}

    with pytest.raises(CaseDifferenceError, match=r"\+ 1.0 stock .* invalid: .*lacks 'shelf'"):
        await replay(case, tools=[renamed])


async def test_r14_6_a_delegate_that_is_reached_no_more_is_a_difference(dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "deliver", "receipt": "3 of fig", "_outputPath": "†state.done || †state.late"},
        {"_tool": "clerk", "request": "†state.late", "_outputPath": "†state.pears"},
    ]
    turns = answered({"calls": calls, "output": "†state.pears"})
    async with run_locally(shop(), model=turns, server=dev_server) as local:
        run = await local.start({"item": "fig"})
        await run.wait()
    case = await record(run)

    @tool(name="deliver")
    async def renamed(receipt: str, address: str) -> str:
        """Deliver to an address."""
        return f"{receipt} to {address}"

    with pytest.raises(CaseDifferenceError) as differs:
        await replay(case, tools=[renamed])
    assert "- run 1.1: it was a run of its own, and no longer exists" in differs.value.lines


async def test_r14_6_an_answer_that_broke_off_breaks_off_again(dev_server: WorkflowEnvironment) -> None:
    agent = Agent("short", tools=[stock])
    plan = {
        "calls": [{"_tool": "stock", "item": "a", "_outputPath": "†state.a"}, {"_tool": "stock", "item": "bbbbbbbb"}]
    }
    async with run_locally(agent, model=[cut(plan, after=22), DONE], server=dev_server) as local:
        run = await local.start()
        view = await run.wait()
        case = await record(run)
    assert [error["error"]["code"] for error in view.errors] == ["interrupted"]
    assert len((await replay(case)).calls) == 1


class Customer(BaseModel):
    number: str
    roles: list[str] = []


@tool(safe=True, retries=0)
async def count(ctx: ToolContext[Customer], n: int) -> int:
    """Count on."""
    real.append("count")
    return n + len(ctx.context.roles)


@tool(retries=2)
async def fails(n: int) -> int:
    """Fail."""
    raise RuntimeError(f"no {n}")


@tool(safe=True)
async def wait(n: int) -> int:
    """Never return."""
    await asyncio.Event().wait()
    return n


def decide(request: dict[str, Any]) -> dict[str, Any]:
    """Edit an order, as a worker's program for approvals."""
    return {"decision": "edit", "params": {"count": 7}} if request["tool"] == "order" else {"decision": "approve"}


def pick(request: Any) -> str:
    """Choose a model, as a worker's program for models."""
    return "my-model" if request else ""


@notification_route("ops")
async def page(notification: Any) -> None:
    real.append(notification.key)


EVERYTHING = """
paid = wait(n=1)
sent = ship(street="Main")
brought = deliver(number=input.number)
for fruit in input.fruits:
    found = stock(item=fruit)
    more = count(n=found.count)
for fruit in input.fruits:
    for size in [1, 2]:
        count(n=size)
n = 0
while n < 4:
    n = count(n=n)
gone = fails(n=n)
receipt = order(item="fig", count=n)
asked = clerk(request="again")
"""


async def test_r14_6_a_case_has_the_result_of_each_call_whatever_ran_it(
    dev_server: WorkflowEnvironment,
) -> None:
    elsewhere, mine = f"other-{uuid.uuid4().hex[:8]}", "tests.testing.test_cases:decide"
    ship_there = activity_tool(ship, task_queue=elsewhere)
    deliver_there = workflow_tool(Delivery, name="deliver", id=f"{elsewhere}-{{number}}", task_queue=elsewhere)
    tools: list[Any] = [wait, ship_there, deliver_there, stock, count, fails, order]
    notify: Any = {"approval_requested": ["ops"]}
    policy = "tests.testing.test_cases:pick"
    prices: Any = {"my-model": {"prompt": 1, "completion": 1}}
    clerk = Agent("clerk", tools=[order], approval={"approver": mine}, models={"policy": policy}, notify=notify)
    desk = Agent(
        "desk",
        tools=[*tools, clerk],
        context=Customer,
        dialect="script",
        approval={"approver": mine},
        notify=notify,
        models={"fast": "my-model", "smart": "my-model"},
        cost_budget=100,
        rules=[needs("finance", "order")],
    )

    def turn(asked: Any) -> Any:
        if "/" in asked.run_id:
            return Turn({"calls": [{"_tool": "order", "item": "pear", "count": 1}], "output": "†input.request"})
        return Turn(EVERYTHING if "paid" not in str(asked.messages) else "output(state.n)")

    client = dev_server.client
    found = registry(tools)
    found.notification_routes.add(notification_routes_of(page)[0])
    settings: Any = {"named": ["tests.testing.test_cases"], "registry": found, "prices": prices}
    async with (
        harness(client, [], turn, **settings) as it,
        Worker(
            client,
            task_queue=elsewhere,
            workflows=[Delivery],
            activities=[ship],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
    ):
        there = Perdure(client, task_queue=it.task_queue)
        run = await there.start(
            desk,
            {"fruits": ["fig", "plum"], "number": 4},
            sender="ann",
            context=Customer(number="C-17", roles=["finance", "night"]),
        )
        await (await by_hand(dev_server, run.handle, "1.0")).complete({"paid": True})
        view = await run.wait(timeout=HANG)
        assert view.status == "completed", view.error
        case = await record(run)
    results = {name: one.get("returns", one.get("raises")) for name, one in case["runs"][""]["results"].items()}
    assert results == {
        "1.0": {"paid": True},
        "1.1": "to Bern",
        "1.2": "brought 4",
        "1.3[0].0": {"count": 3},
        "1.3[0].1": 5,
        "1.3[1].0": {"count": 4},
        "1.3[1].1": 6,
        **{f"1.4[{fruit}].0[{size}]": size + 3 for fruit in (0, 1) for size in (0, 1)},
        "1.6[0].0": 2,
        "1.6[1].0": 4,
        "1.7": {"code": "RuntimeError", "message": "no 4"},
        "1.8": "7 of fig",
    }
    assert [each["decision"] for each in case["runs"][""]["decisions"]] == ["edit"]
    assert case["context"] == {"number": "C-17", "roles": ["finance", "night"]}
    real.clear()
    assert (await replay(case)).state == view.state
    assert (await replay(case, desk)).state == view.state
    assert real == []


async def test_r14_6_a_case_has_the_answers_of_what_the_engine_and_its_client_run(
    dev_server: WorkflowEnvironment,
) -> None:
    text = {"type": "string"}
    serial = {"name": "serial", "properties": {"device": text}, "_activity": "perdure.client"}
    confirm = {"name": "confirm", "properties": {"question": text}, "_activity": "perdure.ask_person"}
    pause = {"name": "pause", "properties": {"seconds": {"type": "number"}}, "_activity": "perdure.sleep_until"}
    agent = Agent("serials", tools=[stock, serial, confirm, pause, "sleep_until"])
    plan = {
        "calls": [
            {"_tool": "serial", "device": "lamp", "_outputPath": "†state.serial"},
            {"_tool": "serial", "device": "lost", "_outputPath": "†state.lost"},
            {"_tool": "stock", "item": "†state.serial", "_outputPath": "†state.stock"},
            {"_tool": "confirm", "question": "Sure?", "_outputPath": "†state.sure"},
            {"_tool": "pause", "seconds": 0.01},
            {"_tool": "sleep_until", "seconds": 0.01},
        ]
    }
    async with run_locally(agent, model=[plan, DONE], server=dev_server) as local:
        run = await local.start()
        await run.until_waiting("1.0", "1.1", "1.3")
        await run.answer("1.0", "SN-7")
        await run.reject("1.1", reason="no such device")
        await run.answer("1.3", "yes")
        view = await run.wait()
        case = await record(run)
    assert view.state == {"serial": "SN-7", "stock": {"count": 4}, "sure": "yes"}
    assert view.calls[1].status == "rejected"
    assert list(case["tools"]) == ["stock"]
    assert list(case["runs"][""]["results"]) == ["1.2"]
    real.clear()
    assert (await replay(case)).state == view.state
    assert (await replay(case, agent)).state == view.state
    assert real == []


async def test_r14_6_another_agent_is_asked_with_the_messages_of_a_sessions_run(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    agent = Agent("desk", instructions="Old.", tools=[stock])
    plan = {"calls": [{"_tool": "stock", "item": "fig", "_outputPath": "†state.stock"}], "output": "Three."}
    async with run_locally(agent, model=[plan, {"output": "Yes."}], server=dev_server) as local:
        session = local.session("ann")
        await session.ask("How many figs?", sender="ann")
        receipt = await session.send("Really?", sender="bob")
        run = local.perdure.get_run(str(receipt.run_id))
        view = await run.wait()
        case = await record(run)
    assert case["agent"] == agent.document()
    assert [message["content"] for message in case["messages"] if message.get("role") == "user"] == [
        "ann: How many figs?",
        "bob: Really?",
    ]
    other = Agent("desk", instructions="New.", tools=[stock])
    for played in (None, other):
        assert (await replay(case, played)).state == view.state == {"stock": {"count": 3}}
    (tmp_path / "cases").mkdir()
    write_case(with_evaluators(case), tmp_path / "cases" / "really.json")
    async with run_locally(other, model=[{"output": "Yes."}] * 2, server=dev_server) as local:
        evaluation = await local.perdure.evaluate(other, str(tmp_path / "cases"), models=["", "fast"])
        result = await evaluation.wait()
        assert [row.rate.passed for row in result.totals()] == [1, 1], result.rows()
        for request in local.model.requests:
            assert all(words in request.text for words in ("New.", "ann: How many figs?", "Three.", "bob: Really?"))


async def test_r14_6_messages_of_an_agent_file_are_the_agents() -> None:
    """A replay with an edited file asks with its messages alone."""
    old, new = (
        Agent.of({"name": "desk", "context": [{"role": "user", "content": f"{age} task"}]}) for age in ("Old", "New")
    )
    async with run_locally(old, model=[{"output": "Done."}]) as local:
        run = await local.start()
        await run.wait()
        case = await record(run)
    assert (case["agent"], "messages" in case) == (old.document(), False)
    model = ScriptedModel([{"output": "Done."}])
    await replay(case, new, model=model)
    assert "New task" in model.requests[0].text
    assert "Old task" not in model.requests[0].text


async def test_r14_6_a_run_that_received_a_message_is_not_recorded(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    plan = {"calls": [{"_tool": "wait", "n": 1, "_outputPath": "†state.n"}]}
    async with run_locally(Agent("short", tools=[wait]), model=[plan, DONE, DONE], server=dev_server) as local:
        run = await local.start()
        waiting = await by_hand(dev_server, run.handle, "1.0")
        await run.steer("Not that one.", by="ann")
        await waiting.complete(1)
        await run.wait()
        other = await local.run()
    with pytest.raises(RunError, match="Request 2 received a message, and a case has no messages"):
        await record(run)
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    made = await perdure("record", run.id, other.run_id, "--to", str(tmp_path / "cases"), env=env)
    assert (made.code, made.out) == (1, f"1 case in {tmp_path / 'cases'}; left out: 1\n"), made.err
    assert made.err.startswith(f"{run.id}: left out: {run.id}: Request 2 received a message")


async def a_run_and_files(server: WorkflowEnvironment, folder: Path) -> tuple[str, Path, Path]:
    """A run with one below it, its own history in a file, and one that no version wrote."""
    async with run_locally(shop(), model=answered(FIRST), people=[approve()], server=server) as local:
        view = await local.run({"item": "fig"})
    history, broken = folder / "history.json", folder / "broken.json"
    text = (await server.client.get_workflow_handle(view.run_id).fetch_history()).to_json()
    history.write_text(text, encoding="utf-8")
    other = json.loads(text)
    for event in other["events"]:
        if attributes := event.get("activityTaskScheduledEventAttributes"):
            attributes["activityType"]["name"] = "another"
    broken.write_text(json.dumps(other), encoding="utf-8")
    return view.run_id, history, broken


async def test_r13_7_histories_are_replayed_and_what_would_break_is_told(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    run_id, history, broken = await a_run_and_files(dev_server, tmp_path)
    files = [str(history), str(broken)]
    client = dev_server.client
    found = [each async for each in replay_each(client, [run_id, *files], files, client.data_converter)]
    assert [each.name for each in found] == [run_id, f"{run_id}/1.4", *files]
    assert [each.problem is None for each in found] == [True, True, True, False]
    assert "another" in (found[3].problem or "")
    assert found[0].events == found[2].events > 20
    write_case(await record(Perdure(client).get_run(run_id)), tmp_path / "case.json")
    (tmp_path / "odd.json").write_text('{"events": [1]}', encoding="utf-8")
    (tmp_path / "empty.json").write_text("{}", encoding="utf-8")
    left_out = {
        "case.json": "is a case, not a history",
        "none.json": "cannot be read as a history",
        "odd.json": "is not a history",
        "empty.json": "is not a history",
        "no-such-run": "there is no run 'no-such-run'",
    }
    names = [name if name == "no-such-run" else str(tmp_path / name) for name in left_out]
    found = [
        each async for each in replay_each(client, [*names, files[0]], [*names[:-1], *files], client.data_converter)
    ]
    for each, words in zip(found, left_out.values(), strict=False):
        assert each.left_out
        assert words in each.line()
    assert found[-1].line() == f"{files[0]}: ok, {found[-1].events} events"


@workflow.defn(name="Session", sandboxed=False)
class OtherSession:
    """A session as another version might have it."""

    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(86_400)


async def test_r24_1_an_open_execution_that_would_break_fails_the_gate_of_a_deploy(
    dev_server: WorkflowEnvironment,
) -> None:
    client, name = dev_server.client, f"gate-{uuid.uuid4().hex[:8]}"
    env = {"TEMPORAL_ADDRESS": client.service_client.config.target_host}
    call: dict[str, Any] = {"_tool": "order", "item": "fig", "count": 1}
    async with harness(client, [order], [{"calls": [call]}]) as it:
        run = await it.start(agent("order"), run_id=f"{name}-run")
        await it.until_waiting(run.id, "1.0")
        async with Worker(client, task_queue=name, workflows=[OtherSession]):
            await client.start_workflow("Session", id=f"{name}-session", task_queue=name)
            mine = f"WorkflowId STARTS_WITH '{name}'"
            async with asyncio.timeout(HANG):
                while sorted([each.events > 4 async for each in replay_running(client, mine)]) != [True, True]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        good, bad, wrong = [
            await perdure("replay", "--running", "--query", query, env=env)
            for query in (f"WorkflowId = '{run.id}'", mine, "no query")
        ]
    assert (good.code, good.err) == (0, "")
    assert good.out.splitlines()[1:] == ["open executions: 1; broken or left out: 0"]
    assert good.out.startswith(f"{run.id}: ok, ")
    assert (bad.code, bad.err) == (1, "")
    *lines, last = bad.out.splitlines()
    assert {line.split(": ")[0]: line.split(": ")[1].split(",")[0] for line in lines} == {
        run.id: "ok",
        f"{name}-session": "breaks",
    }
    assert last == "open executions: 2; broken or left out: 1"
    assert (wrong.code, wrong.out, len(wrong.err.splitlines())) == (1, "", 1)
    assert wrong.err.startswith('perdure: the query "no query" is refused: ')


async def test_r24_1_sessions_replay_and_what_is_left_out_is_named(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    client = dev_server.client
    async with harness(client, [], [DONE, DONE]) as it:
        session = Perdure(client, task_queue=it.task_queue).session(
            "desk-22", agent=Agent.of(agent()), tenant=it.task_queue
        )
        await session.wait(await session.send("hello", sender="ann"))
        found = [each async for each in replay_each(client, [session.id], [], client.data_converter)]
        assert found[0].name == session.id
        assert [each.name for each in found if each.name.startswith(f"{session.id}/")]
        assert [each.problem for each in found] == [None] * len(found)
        env = {"TEMPORAL_ADDRESS": client.service_client.config.target_host}
        by_key = await perdure("replay", "desk-22", "--tenant", it.task_queue, env=env)
        of_nobody = await perdure("replay", "desk-22", env=env)
        assert (by_key.code, by_key.out.splitlines()[0].split(", ")[0]) == (0, "desk-22: ok"), by_key.err
        assert f"{session.id}/" in by_key.out  # its run
        assert of_nobody.code == 1
        assert of_nobody.out.startswith("desk-22: left out: there is no run 'desk-22', and no session without a tenant")
        mine = f"TaskQueue = '{it.task_queue}'"
        async with asyncio.timeout(HANG):
            while session.id not in [each.name async for each in replay_running(client, mine)]:
                pass
        open_ones = [each async for each in replay_running(client, mine)]
        assert [each.problem for each in open_ones] == [None] * len(open_ones)
        with pytest.raises(RunError, match='the query "no query" is refused'):
            _ = [each async for each in replay_running(client, "no query")]
        text = (await client.get_workflow_handle(session.id).fetch_history()).to_json()
    (mine_file := tmp_path / "session.json").write_text(text, encoding="utf-8")
    (their_file := tmp_path / "others.json").write_text(text.replace('"name": "Session"', '"name": "Theirs"'), "utf-8")
    files = [str(mine_file), str(their_file)]
    ours, theirs = [each async for each in replay_each(None, files, files, client.data_converter)]
    assert ours.problem is None
    assert (theirs.left_out, theirs.line()) == (
        True,
        f"{files[1]}: left out: a workflow of type 'Theirs', which is not part of Perdure: give its module with --workflows MODULE",
    )


@pytest.mark.soak  # the same by two processes
async def test_r13_7_record_and_replay_on_the_command_line(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    run_id, history, broken = await a_run_and_files(dev_server, tmp_path)
    case = tmp_path / "case.json"
    recorded, replayed = await asyncio.gather(
        perdure("record", run_id, "--out", str(case), env=env),
        perdure("replay", run_id, str(history), str(broken), env=env),
    )
    assert recorded.code == 0, recorded.err
    assert read_case(case)["name"] == run_id
    assert replayed.code == 1
    lines = replayed.out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [run_id, f"{run_id}/1.4", str(history), str(broken)]
    assert [": ok, " in line for line in lines] == [True, True, True, False]
    assert "breaks: " in lines[3]


async def test_what_is_no_case_is_told(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SettingsError, match="is not a case: write one with"):
        await replay(tmp_path / "a.json")
    with pytest.raises(RunError, match="there is no run 'nowhere'"):
        await record(Nowhere(dev_server))


class Nowhere:
    id = "nowhere"

    def __init__(self, server: WorkflowEnvironment) -> None:
        self.client = server.client
