"""Undo on a real server: what is taken back, in which order, and what stays (R23.4)."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, ToolContext, ToolError, hook, refuse, tool
from perdure.client.histories import execution_histories
from perdure.client.run import Run
from perdure.errors import DecisionRefusedError, RunError, RunExistsError, RunNotFoundError
from perdure.hooks import AfterToolCall, BeforeAgentStart, BeforeToolCall
from perdure.rules import precedes
from perdure.runs.wire import AGENT_WORKFLOW, RunView
from perdure.testing import run_locally
from perdure.testing.scripted_model import ChatRequest
from tests.activities.test_mcp import offered_by, scripted
from tests.gateway.support import write_agents
from tests.gateway.test_api import served, until
from tests.support import DONE, Harness, agent, check_replays, harness, impatient, perdure
from tests.timeouts import HANG
from tests.workflows.test_durability import CALLS, site
from tests.workflows.test_resets import reset, task_before_decision, until_asked

pytestmark = pytest.mark.asyncio(loop_scope="session")

DID: list[tuple[Any, ...]] = []
"""Each effect and each undo, as the tool's code saw it."""
KEYS: list[str] = []
BROKEN: set[str] = set()
"""Orders that cannot be cancelled for now."""


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    for each in (DID, KEYS, BROKEN):
        each.clear()


@tool(retries=0)
def cancel_order(order_id: str, context: ToolContext) -> str:
    """Cancel an order."""
    KEYS.append(context.idempotency_key)
    if order_id in BROKEN:
        raise ToolError("shipped", f"{order_id} is on its way")
    DID.append(("cancel", order_id))
    return "cancelled"


@tool(undo=cancel_order, undo_params={"order_id": "†result.id"}, retries=0)
def order(what: str) -> dict[str, Any]:
    """Order something."""
    DID.append(("order", what))
    if what == "nothing":
        raise ToolError("empty", "there is nothing to order")
    return {"id": f"o-{what}"}


@tool(retries=0)
def unbook(city: str) -> str:
    """Take a booking back."""
    DID.append(("unbook", city))
    return "free"


@tool(undo="unbook")
def book(city: str, after: str = "") -> str:
    """Book a room."""
    DID.append(("book", city))
    return f"room in {city} {after}"


@tool
def mail(text: str) -> str:
    """Send a mail, which nobody can take back."""
    DID.append(("mail", text))
    return "sent"


TOOLS: list[Any] = [order, cancel_order, book, unbook, mail]
PLAN: Any = {
    "calls": [
        {"_tool": "order", "what": "pear", "_outputPath": "†state.pear"},
        {"_tool": "book", "city": "Bonn", "after": "†state.pear.id", "_outputPath": "†state.room"},
        {"_tool": "mail", "text": "†state.room", "_outputPath": "†state.mail"},
        {"_tool": "order", "what": "fig", "_outputPath": "†state.fig"},
    ],
    "output": None,
}


async def undone(it: Harness, run: Run[Any], **how: Any) -> RunView:
    """Undo the run, and wait for the undo's end; both histories replay."""
    undo = await run.undo(**how)
    view = await undo.wait()
    for each in (run.id, undo.id):
        async for history in execution_histories(it.client, each):
            await check_replays(history)
    return view


async def finished(it: Harness, document: Any) -> Run[Any]:
    handle = await it.start(document)
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    return Perdure(it.client).get_run(handle.id)


async def test_a_run_is_undone_in_the_reverse_order_of_its_data_flow(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, [PLAN, DONE]) as it:
        run = await finished(it, agent("order", "book", "mail"))
        assert [(each.call, each.status) for each in await run.effects()] == [
            ("1.0", "done"),
            ("1.1", "done"),
            ("1.2", "cannot be undone"),
            ("1.3", "done"),
        ]
        plan = await run.undo_plan()
        assert {each.call for each in plan.undoes} == {"1.0", "1.1", "1.3"}
        assert [(each.call, each.reason) for each in plan.cannot] == [("1.2", "mail has no undo")]
        DID.clear()
        view = await undone(it, run)
        assert view.status == "completed", view.error
        assert view.requests == 0
        assert sorted(DID) == [("cancel", "o-fig"), ("cancel", "o-pear"), ("unbook", "Bonn")]
        assert DID.index(("unbook", "Bonn")) < DID.index(("cancel", "o-pear"))
        assert {each.call: each.status for each in await run.effects()} == {
            "1.0": "undone",
            "1.1": "undone",
            "1.2": "cannot be undone",
            "1.3": "undone",
        }
        with pytest.raises(RunError, match="no call that can be undone now"):
            await run.undo()


async def test_an_undo_that_fails_stops_there_and_goes_on_later_with_the_same_key(
    dev_server: WorkflowEnvironment,
) -> None:
    chain = {
        "calls": [
            {"_tool": "order", "what": "pear", "_outputPath": "†state.pear"},
            {"_tool": "order", "what": "†state.pear.id", "_outputPath": "†state.next"},
            {"_tool": "book", "city": "Ulm"},
        ],
        "output": None,
    }
    async with harness(dev_server.client, TOOLS, [chain, DONE]) as it:
        run = await finished(it, agent("order", "book"))
        BROKEN.add("o-o-pear")
        DID.clear()
        view = await undone(it, run)
        assert (view.status, DID) == ("failed", [("unbook", "Ulm")])
        assert view.error is not None
        assert "o-o-pear is on its way; calls that wait for that: 1. Continue with: perdure undo" in view.error
        standing = {each.call: (each.status, each.reason) for each in await run.effects()}
        assert standing["1.1"] == ("done", "its undo failed: shipped: o-o-pear is on its way")
        BROKEN.clear()
        DID.clear()
        view = await undone(it, run)
        assert (view.status, DID) == ("completed", [("cancel", "o-o-pear"), ("cancel", "o-pear")])
        assert view.run_id == f"{run.id}.undo-2"
    assert KEYS[0] == KEYS[1]
    assert KEYS[0].startswith(f"{run.id}/1.1:undo:")


async def test_only_what_depends_on_a_call_is_undone_back_to_it(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, TOOLS, [PLAN, DONE]) as it:
        run = await finished(it, agent("order", "book", "mail"))
        DID.clear()
        view = await undone(it, run, to="1.1")
        assert (view.status, DID) == ("completed", [("unbook", "Bonn")])
        assert {each.call: each.status for each in await run.effects()}["1.0"] == "done"
        with pytest.raises(RunError, match=r"9\.9 is not a call of .* with an effect"):
            await run.undo(to="9.9")


async def test_a_call_whose_outcome_is_unknown_holds_what_it_depends_on(dev_server: WorkflowEnvironment) -> None:
    chain = {"calls": [PLAN["calls"][0], {"_tool": "hang", "order": "†state.pear.id"}], "output": None}

    @tool(undo="cancel_order", undo_params={"order_id": "†params.order"}, timeout=1, retries=0)
    async def hang(order: str) -> str:
        """Never return."""
        await asyncio.sleep(3600)
        return order

    async with harness(dev_server.client, [*TOOLS, hang], [chain, DONE, DONE]) as it:
        run = await finished(it, agent("order", "hang"))
        plan = await run.undo_plan()
        assert plan.undoes == []
        assert {(each.call, each.status) for each in plan.waits} == {("1.1", "unknown"), ("1.0", "done")}
        with pytest.raises(RunError, match="no call that can be undone now; 2 calls stay"):
            await run.undo()
        with pytest.raises(RunError, match=r"1\.0 of .* has no unknown outcome\. Calls with one: 1\.1"):
            await run.undo(no_effect=["1.0"])
        DID.clear()
        view = await undone(it, run, no_effect=["1.1"])
        assert (view.status, DID) == ("completed", [("cancel", "o-pear")])


@pytest.mark.parametrize(
    ("answer", "code", "status", "stays"),
    [
        ({"content": [], "structuredContent": {"id": 1}}, "invalid_answer", "cannot be undone", False),
        ({"contents": "none"}, "invalid_answer", "unknown", True),
        ({"_exit": 1}, "connection_lost", "unknown", True),
        ({"content": [], "isError": True}, "tool_failed", None, False),
    ],
)
async def test_a_call_of_an_mcp_server_without_a_usable_result_has_an_effect(
    dev_server: WorkflowEnvironment, tmp_path: Path, answer: Any, code: str, status: str | None, stays: bool
) -> None:
    """Only a result that reports an error shows that the call had none."""
    pay = {
        "name": "pay",
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object", "required": ["receipt"]},
    }
    config = scripted(tmp_path / "script", tools=[pay], answers={"pay": [answer]})
    chain = {"calls": [PLAN["calls"][0], {"_tool": "x.pay", "order": "†state.pear.id"}], "output": None}
    async with (
        offered_by(config) as registry,
        harness(dev_server.client, [], [chain, DONE], registry=registry) as it,
    ):
        registry.add_missing(each.__perdure_tool__ for each in TOOLS)
        run = await finished(it, agent("order", "x.pay", config={"approval": {"ask": "never"}}))
        assert ((await run.view()).calls[1].error or {})["code"] == code
        assert {each.call: each.status for each in await run.effects()}.get("1.1") == status
        assert [each.call for each in (await run.undo_plan()).undoes] == ([] if stays else ["1.0"])
        async for history in execution_histories(it.client, run.id):
            await check_replays(history)


@pytest.mark.parametrize(("carried_out", "status"), [(True, "done"), (None, "unknown"), (False, None)])
async def test_a_tool_s_error_names_whether_the_call_took_effect(
    dev_server: WorkflowEnvironment, carried_out: bool | None, status: str | None
) -> None:
    @tool(undo="unbook", undo_params={"city": "†params.city"})
    def reserve(city: str) -> str:
        """Reserve a room, and lose the confirmation."""
        DID.append(("reserve", city))
        raise ToolError("no_confirmation", "the hotel sent no confirmation", retry=True, carried_out=carried_out)

    async with harness(
        dev_server.client, [*TOOLS, reserve], [{"calls": [{"_tool": "reserve", "city": "Bonn"}], "output": None}, DONE]
    ) as it:
        run = await finished(it, agent("reserve", "unbook"))
        assert {each.call: each.status for each in await run.effects()}.get("1.0") == status
    assert len(DID) == (1 if carried_out else 3)


async def test_an_undo_is_asked_about_as_any_call(dev_server: WorkflowEnvironment) -> None:
    policy = {"approval": {"tools": {"cancel_order": "always"}}}
    one = {"calls": [PLAN["calls"][0]], "output": None}
    async with harness(dev_server.client, TOOLS, [one, DONE]) as it:
        run = await finished(it, agent("order", config=policy))
        DID.clear()
        undo = await run.undo()
        await it.until_waiting(undo.id, "0.0")
        assert (await run.effects())[0].status == "undoing"
        with pytest.raises(RunExistsError, match="is already being undone"):
            await run.undo()
        await undo.reject("0.0", reason="keep it")
        view = await undo.wait()
        assert (view.status, DID) == ("failed", [])
        assert [each.status for each in await run.effects()] == ["done"]
        undo = await run.undo()
        await it.until_waiting(undo.id, "0.0")
        await undo.approve("0.0", by="ann")
        assert (await undo.wait()).status == "completed"
        assert DID == [("cancel", "o-pear")]


async def test_an_undo_has_the_policy_to_which_its_run_was_changed(time_skipping: WorkflowEnvironment) -> None:
    careful = {"approval": {"tools": {"book": "always"}}}
    script = [{"calls": [{"_tool": "book", "city": "Bonn"}], "output": None}, DONE]
    async with harness(time_skipping.client, TOOLS, script) as it:
        handle = await it.start(agent("book", config=careful))
        await it.until_waiting(handle.id, "1.0")
        run = Perdure(it.client).get_run(handle.id)
        await run.policy(ask="always")
        await run.approve("1.0")
        await handle.result()
        undo = await run.undo()
        await it.until_waiting(undo.id, "0.0")
        await undo.approve("0.0")
        assert (await undo.wait()).status == "completed"


async def test_the_rules_of_the_run_hold_for_its_undo_and_know_what_it_has_done(
    dev_server: WorkflowEnvironment,
) -> None:
    one = {"calls": [PLAN["calls"][0]], "output": None}
    first = {"rules": [precedes("order", "cancel_order").model_dump(mode="json")]}
    never = {"rules": [precedes("mail", "cancel_order").model_dump(mode="json")]}
    async with harness(dev_server.client, TOOLS, [one, DONE, one, DONE]) as it:
        view = await undone(it, await finished(it, agent("order", config=first)))
        assert view.status == "completed", view.error
        view = await undone(it, await finished(it, agent("order", config=never)))
        assert view.status == "failed"


async def test_each_item_of_a_loop_is_undone_and_a_sequential_one_backwards(dev_server: WorkflowEnvironment) -> None:
    loops = {
        "calls": [
            {"_tool": "order", "what": "†item", "_each": ["a", "b", "c"], "_outputPath": "†state.all"},
            {"_tool": "book", "city": "{†state.all[0].id}{†index}", "_until": "†index == 2", "_max": 3},
        ],
        "output": None,
    }
    async with harness(dev_server.client, TOOLS, [loops, DONE, DONE]) as it:
        run = await finished(it, agent("order", "book"))
        assert [each[0] for each in DID].count("order") == 3, (await run.view()).calls
        booked = [each[1] for each in DID if each[0] == "book"]
        DID.clear()
        view = await undone(it, run)
        assert view.status == "completed", view.error
        assert [each[1] for each in DID if each[0] == "unbook"] == booked[::-1]
        assert sorted(each[1] for each in DID if each[0] == "cancel") == ["o-a", "o-b", "o-c"]
        assert {each[0] for each in DID[: len(booked)]} == {"unbook"}


async def test_the_last_iteration_of_a_sequential_loop_over_a_delegate_is_undone_first(
    dev_server: WorkflowEnvironment,
) -> None:
    loop = {"_tool": "clerk", "request": "Book.", "_until": "†index == 4", "_max": 5}
    bookings = iter(range(5))
    seen: set[str] = set()

    def model(request: ChatRequest) -> Any:
        first = request.run_id not in seen
        seen.add(request.run_id)
        if not first:
            return DONE
        return {
            "calls": [{"_tool": "book", "city": f"{next(bookings)}"} if "/" in request.run_id else loop],
            "output": None,
        }

    boss = Agent("boss", tools=[Agent("clerk", tools=[book])])
    async with run_locally(boss, model=model, server=dev_server, tools=[unbook]) as local:
        run = local.perdure.get_run((await local.run("Book.")).run_id)
        assert [each[1] for each in DID] == ["0", "1", "2", "3", "4"]
        DID.clear()
        assert (await (await run.undo()).wait()).status == "completed"
        assert [each[1] for each in DID] == ["4", "3", "2", "1", "0"]


@pytest.mark.soak  # `test_each_item_of_a_loop_is_undone_and_a_sequential_one_backwards` is the short one
async def test_a_loop_of_more_than_100_rounds_is_undone_whole(dev_server: WorkflowEnvironment) -> None:
    cities = [f"c{number}" for number in range(104)]
    loop = {
        "calls": [
            {"_tool": "order", "what": "pear", "_outputPath": "†state.pear"},
            {"_tool": "book", "city": "†item", "after": "†state.pear.id", "_each": "†state.cities"},
        ],
        "output": None,
    }
    state = {"type": "state", "state": {"cities": cities}}
    async with harness(dev_server.client, TOOLS, [loop, DONE, DONE]) as it:
        run = await finished(it, agent("order", "book", context=[state]))
        assert sorted(each[1] for each in DID if each[0] == "book") == sorted(cities), (await run.view()).errors
        DID.clear()
        undo = await run.undo()
        view = await undo.wait()
        assert view.status == "completed", view.error
        assert sorted(each[1] for each in DID if each[0] == "unbook") == sorted(cities)
        assert DID[-1] == ("cancel", "o-pear")
        assert {each.status for each in await run.effects()} == {"undone"}


impatient_server = impatient(20)


async def test_what_was_done_before_a_run_continued_as_new_is_undone_in_order(
    impatient_server: WorkflowEnvironment,
) -> None:
    turns = [
        {"calls": [{"_tool": "order", "what": f"n{number}", "_outputPath": f"†state.n{number}"}], "output": None}
        for number in range(8)
    ]
    async with harness(impatient_server.client, TOOLS, [*turns, DONE]) as it:
        run = await finished(it, agent("order", config={"stuck_after": 20}))
        assert len([each async for each in it.client.list_workflows(f"WorkflowId = '{run.id}'")]) > 1
        DID.clear()
        view = await (await run.undo()).wait()
        assert view.status == "completed", view.error
        assert [order for _, order in DID] == [f"o-n{number}" for number in reversed(range(8))]
        *_, oldest = [each async for each in it.client.list_workflows(f"WorkflowId = '{run.id}'")]
        await it.client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=it.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=oldest.run_id),
            )
        )

        async def look() -> None:
            while await run.effects():  # noqa: ASYNC110
                await asyncio.sleep(0.1)

        words = f"the earlier execution {oldest.run_id} of {run.id} is no longer on the server"
        with pytest.raises(RunNotFoundError, match=words):
            await asyncio.wait_for(look(), HANG)


async def test_what_a_run_does_after_a_reset_is_undone_although_a_call_of_its_id_was(
    dev_server: WorkflowEnvironment,
) -> None:
    def orders(what: str) -> Any:
        return {"calls": [{"_tool": "order", "what": what}], "output": None}

    policy = {"approval": {"tools": {"mail": "always"}}}
    asks = {"calls": [{"_tool": "mail", "text": "x"}], "output": None}
    script = [orders("pear"), asks, orders("fig"), DONE, orders("plum"), DONE]
    async with harness(dev_server.client, TOOLS, script) as it:
        handle = await it.start(agent("order", "mail", config=policy))
        run = Perdure(it.client).get_run(handle.id)
        await until_asked(it, handle.id, "2.0")
        await run.approve("2.0", by="ann")
        await handle.result()
        DID.clear()
        assert (await (await run.undo()).wait()).status == "completed"
        assert DID == [("cancel", "o-fig"), ("cancel", "o-pear")]
        await reset(dev_server, handle, await task_before_decision(handle))
        await until_asked(it, handle.id, "2.0")
        await run.reject("2.0", by="ann")
        await dev_server.client.get_workflow_handle(handle.id).result()
        assert [(each.call, each.status) for each in await run.effects()] == [("1.0", "undone"), ("3.0", "done")]
        DID.clear()
        assert (await (await run.undo()).wait()).status == "completed"
        assert DID == [("cancel", "o-plum")]


async def test_an_undo_goes_down_into_the_runs_of_delegates(dev_server: WorkflowEnvironment) -> None:
    clerk = Agent("clerk", tools=[order, book])
    reader = Agent("reader", tools=[])
    boss = Agent("boss", tools=[clerk, book, reader])
    top = {
        "calls": [
            {"_tool": "clerk", "request": "Order.", "_outputPath": "†state.clerk"},
            {"_tool": "book", "city": "Kiel", "after": "{†state.clerk}"},
            {"_tool": "reader", "request": "Read."},
        ],
        "output": None,
    }
    seen: set[str] = set()

    def model(request: ChatRequest) -> Any:
        first = request.run_id not in seen
        seen.add(request.run_id)
        if request.run_id.endswith("/1.2"):
            return DONE
        return ({"calls": PLAN["calls"][:2], "output": None} if "/" in request.run_id else top) if first else DONE

    async with run_locally(boss, model=model, server=dev_server, tools=[cancel_order, unbook]) as local:
        run = await local.start("Order.")
        view = await run.wait()
        assert view.status == "completed", view.errors
        effects = await local.perdure.get_run(run.id).effects()
        assert [(each.call, each.status) for each in effects] == [("1.0", "done"), ("1.1", "done")], "1.2 has none"
        DID.clear()
        plan = await local.perdure.get_run(run.id).undo_plan()
        assert [(each.call, each.below) for each in plan.undoes] == [("1.1", []), ("1.0", [f"{run.id}/1.0"])]
        undo = await local.perdure.get_run(run.id).undo()
        view = await undo.wait()
        assert view.status == "completed", view.error
        assert DID == [("unbook", "Kiel"), ("unbook", "Bonn"), ("cancel", "o-pear")]
        assert {each.status for each in await local.perdure.get_run(run.id).effects()} == {"undone"}
        below = await local.perdure.get_run(f"{run.id}/1.0").effects()
        assert {each.status for each in below} == {"undone"}


@hook("before_agent_start")
def no_clerk(event: BeforeAgentStart) -> Any:
    """Refuse the clerk's run."""
    return refuse("no clerks today") if event.agent == "test-refused" else None


@tool(safe=True)
def large() -> str:
    """Return a text that is too large beside a long context."""
    return "x" * 1_000_000


async def test_a_delegate_whose_run_was_never_prepared_has_no_effect(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Its run is refused, or its input is too large. A call that it read can be undone."""
    refused = agent("book", name="test-refused")
    wordy = agent(name="wordy", context=[{"type": "system", "text": "x" * 1_000_000}])
    clerks: list[Any] = [
        {"name": each, "_delegate": each, "properties": {"request": {}}} for each in ("test-refused", "wordy")
    ]
    reads: Any = {"_tool": "test-refused", "request": "{†state.pear.id}"}
    calls = [
        PLAN["calls"][0],
        {"_tool": "large", "_outputPath": "†state.large"},
        reads,
        {**reads, "_each": [1, 2]},
        {**reads, "_until": "†index == 1", "_max": 2},
        {"_tool": "wordy", "request": "{†state.pear.id} {†state.large}"},
    ]
    script = [{"calls": calls, "output": None}, DONE]
    agents = write_agents(tmp_path, refused, wordy)
    async with harness(dev_server.client, [*TOOLS, large, no_clerk], script, agents=agents) as it:
        run = await finished(it, agent("order", "large", *clerks))
        codes = [call.error and call.error["code"] for call in (await run.view()).calls[2:]]
        assert codes == ["refused_by_hook", "iterations_failed", "iteration_failed", "params_too_large"]
        assert await Perdure(it.client).get_run(f"{run.id}/1.2").effects() == []
        assert [(each.call, each.status) for each in await run.effects()] == [("1.0", "done")]
        assert (await undone(it, run)).status == "completed"
        assert DID == [("order", "pear"), ("cancel", "o-pear")]


async def test_a_run_that_no_worker_took_has_no_effect(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    client = dev_server.client
    absent = await client.start_workflow(AGENT_WORKFLOW, id=f"absent-{tmp_path.name}", task_queue="nowhere")
    await absent.terminate()
    assert await Perdure(client).get_run(absent.id).effects() == []


async def test_a_changed_policy_reaches_the_undo_of_a_delegate(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    fig = {"properties": {"order_id": {"const": "o-fig"}}, "required": ["order_id"]}
    clerk = Agent("clerk", tools=[order, cancel_order], approval={"tools": {"cancel_order": {"when": fig}}})
    top = {"calls": [{"_tool": "clerk", "request": "Order."}], "output": None}
    orders = {"calls": [PLAN["calls"][0], {**PLAN["calls"][3], "_after": ["1.0"]}], "output": None}
    agents = write_agents(tmp_path, clerk.document())
    async with harness(dev_server.client, TOOLS, [top, orders, DONE, DONE], agents=agents) as it:
        run = await finished(it, Agent("boss", tools=[clerk]).document())
        DID.clear()
        undo = await run.undo()
        below = Perdure(it.client).get_run(f"{run.id}/1.0.undo-1")
        await it.until_waiting(below.id, "0.0")
        await undo.policy(tools={"cancel_order": "always"})
        await below.approve("0.0")
        await it.until_waiting(below.id, "0.1")
        assert DID == [("cancel", "o-fig")]
        await below.approve("0.1")
        assert (await undo.wait()).status == "completed"
        for each in (undo.id, below.id):
            async for history in execution_histories(it.client, each):
                await check_replays(history)


async def test_a_changed_policy_reaches_the_undo_of_a_delegate_that_begins_later(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    clerk = Agent("clerk", tools=[order, cancel_order], approval={"tools": {"cancel_order": "never"}})
    top = {"calls": [{"_tool": "clerk", "request": "Order."}, {**PLAN["calls"][0], "_after": ["1.0"]}], "output": None}
    orders = {"calls": [PLAN["calls"][3]], "output": None}
    boss = Agent("boss", tools=[clerk, order, cancel_order], approval={"tools": {"cancel_order": "always"}})
    agents = write_agents(tmp_path, clerk.document())
    async with harness(dev_server.client, TOOLS, [top, orders, DONE, DONE], agents=agents) as it:
        run = await finished(it, boss.document())
        undo = await run.undo()
        await it.until_waiting(undo.id, "0.0")
        await undo.policy(tools={"cancel_order": "always"})
        await undo.approve("0.0")
        below = Perdure(it.client).get_run(f"{run.id}/1.0.undo-1")
        await it.until_waiting(below.id, "0.0")
        await below.approve("0.0")
        assert (await undo.wait()).status == "completed"
        async for history in execution_histories(it.client, undo.id):
            await check_replays(history)


async def test_what_a_delegate_did_whose_run_is_gone_is_unknown_and_holds_what_it_depends_on(
    dev_server: WorkflowEnvironment,
) -> None:
    """The server's retention, or an erasure, removes a delegate's run before the run that it is part of."""
    boss = Agent("boss", tools=[Agent("clerk", tools=[book]), book])
    calls = [
        {"_tool": "book", "city": "Bonn", "_outputPath": "†state.room"},
        {"_tool": "clerk", "request": "{†state.room}", "_outputPath": "†state.clerk"},
        {"_tool": "book", "city": "Kiel", "after": "{†state.clerk}"},
        {"_tool": "clerk", "_scopes": ["†state.missing"], "request": "It never starts."},
    ]
    top, below = ({"calls": each, "output": None} for each in (calls, [{"_tool": "book", "city": "Ulm"}]))
    turns = {False: iter([top, DONE]), True: iter([below, DONE])}

    def model(request: ChatRequest) -> Any:
        return next(turns["/" in request.run_id])

    async with run_locally(boss, model=model, server=dev_server, tools=[unbook]) as local:
        run = local.perdure.get_run((await local.run("Book.")).run_id)
        client = run.client
        assert [(each.call, each.status) for each in await run.effects()] == [(f"1.{n}", "done") for n in range(3)]
        await client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=client.namespace, workflow_execution=WorkflowExecution(workflow_id=f"{run.id}/1.1")
            )
        )
        async with asyncio.timeout(HANG):
            while (effects := await run.effects())[1].status == "done":  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert [(each.call, each.status) for each in effects] == [("1.0", "done"), ("1.1", "unknown"), ("1.2", "done")]
        assert effects[1].reason == f"{run.id}/1.1 is no longer on the server: whether it took effect is not known"
        plan = await run.undo_plan()
        assert ([each.call for each in plan.undoes], [each.call for each in plan.waits]) == (["1.2"], ["1.1", "1.0"])
        DID.clear()
        assert (await (await run.undo(no_effect=["1.1"])).wait()).status == "completed"
        assert DID == [("unbook", "Kiel"), ("unbook", "Bonn")]


async def test_calls_on_which_a_delegate_depends_stay_if_one_of_its_calls_is_unknown(
    dev_server: WorkflowEnvironment,
) -> None:
    @tool(undo="unbook", timeout=1, retries=0)
    async def hang(city: str) -> str:
        """Never return."""
        await asyncio.sleep(3600)
        return city

    boss = Agent("boss", tools=[Agent("clerk", tools=[book, hang]), order])
    pear = PLAN["calls"][0]
    top = {"calls": [pear, {"_tool": "clerk", "request": "{†state.pear.id}"}], "output": None}
    below = {"calls": [{"_tool": "book", "city": "Ulm"}, {"_tool": "hang", "city": "Bonn"}], "output": None}
    turns = {False: iter([top, DONE]), True: iter([below, DONE, DONE])}

    def model(request: ChatRequest) -> Any:
        return next(turns["/" in request.run_id])

    async with run_locally(boss, model=model, server=dev_server, tools=[unbook]) as local:
        run = local.perdure.get_run((await local.run("Book.")).run_id)
        plan = await run.undo_plan()
        assert ([each.call for each in plan.undoes], [each.call for each in plan.waits]) == (["1.1"], ["1.1", "1.0"])
        DID.clear()
        undo = await run.undo()
        view = await undo.wait()
        assert (view.status, DID) == ("failed", [("unbook", "Ulm")])
        assert f"calls of {run.id}/1.1 stay" in (view.error or "")
        assert view.error is not None
        assert "1.1 hang" in view.error
        async for history in execution_histories(run.client, undo.id):
            await check_replays(history)
        assert (await (await run.undo(no_effect=["1.1"])).wait()).status == "completed"
        assert DID == [("unbook", "Ulm"), ("cancel", "o-pear")]


@pytest.mark.parametrize(
    ("loop", "cities"),
    [({"_each": ["a", "b", "c"]}, {"0", "2"}), ({"_until": "†index == 2", "_max": 3}, {"2"})],
    ids=["parallel", "sequential"],
)
async def test_r23_4_the_undo_of_a_loop_fails_if_an_iteration_has_only_an_unknown_call(
    dev_server: WorkflowEnvironment, loop: dict[str, Any], cities: set[str]
) -> None:
    @tool(undo="unbook", timeout=1, retries=0)
    async def hang(city: str) -> str:
        """Never return."""
        await asyncio.sleep(3600)
        return city

    below: Any = [{"_tool": tool, "city": f"{index}"} for index, tool in enumerate(("book", "hang", "book"))]
    top = [PLAN["calls"][0], {"_tool": "clerk", "request": "{†state.pear.id}", **loop}]
    bookings, seen = iter(below), set[str]()

    def model(request: ChatRequest) -> Any:
        if request.run_id in seen:
            return DONE
        seen.add(request.run_id)
        return {"calls": [next(bookings)] if "/" in request.run_id else top, "output": None}

    boss = Agent("boss", tools=[Agent("clerk", tools=[book, hang]), order])
    async with run_locally(boss, model=model, server=dev_server, tools=[unbook]) as local:
        run = local.perdure.get_run((await local.run("Book.")).run_id)
        DID.clear()
        undo = await run.undo()
        view = await undo.wait()
        assert (view.status, {*DID}) == ("failed", {("unbook", each) for each in cities})
        assert "not everything was undone: 1.1 clerk:" in (view.error or "")
        assert "hang: timeout" in (view.error or "")
        async for history in execution_histories(run.client, undo.id):
            await check_replays(history)


async def test_a_delegate_that_is_running_is_not_undone(dev_server: WorkflowEnvironment) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @tool(safe=True)
    async def hold() -> str:
        """Wait until the undo has ended."""
        begun.set()
        await may_end.wait()
        return "on"

    @tool(safe=True)
    async def wait_for_clerk() -> str:
        """Wait until the clerk has booked."""
        await begun.wait()
        return "booked"

    @tool(safe=True)
    def release() -> str:
        """Let the clerk go on."""
        may_end.set()
        return "released"

    calls = [
        PLAN["calls"][0],
        {"_tool": "clerk", "request": "{†state.pear.id}"},
        {"_tool": "wait_for_clerk"},
        {"_tool": "undo", "_after": ["1.2"], "_outputPath": "†state.undone"},
        {"_tool": "release", "_after": ["ended 1.3"]},
    ]
    booking = [{"_tool": "book", "city": "Ulm"}, {"_tool": "hold", "_after": ["1.0"]}]
    top, below = ({"calls": each, "output": None} for each in (calls, booking))
    turns = {False: iter([top, DONE]), True: iter([below, DONE])}

    def model(request: ChatRequest) -> Any:
        return next(turns["/" in request.run_id])

    boss = Agent("boss", tools=[Agent("clerk", tools=[book, hold]), order, wait_for_clerk, release, "undo"])
    async with run_locally(boss, model=model, server=dev_server, tools=[cancel_order, unbook]) as local:
        view = await local.run("Book.")
        assert view.status == "completed", view.errors
        assert view.state["undone"] == {"undone": [], "unknown": ["1.1 clerk", "1.0 order"]}
        assert DID == [("order", "pear"), ("book", "Ulm")]
        assert {each.status for each in await local.perdure.get_run(view.run_id).effects()} == {"done"}


async def test_an_undo_has_the_priority_with_which_its_run_was_started(dev_server: WorkflowEnvironment) -> None:
    orders = {"calls": [{"_tool": "order", "what": "pear"}], "output": None}
    async with harness(dev_server.client, TOOLS, [orders, DONE]) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        run = await perdure.start(Agent.of(agent("order", config={"priority": 4})), priority=2)
        await run.wait()
        undo = await run.undo()
        await undo.wait()
        described = await it.client.get_workflow_handle(undo.id).describe()
    assert described.raw_description.workflow_execution_info.priority.priority_key == 2


async def test_a_model_wishes_an_undo_and_no_person_undoes_it_again(dev_server: WorkflowEnvironment) -> None:
    wish = {"calls": [{"_tool": "undo", "calls": ["1.0"], "_outputPath": "†state.undone"}], "output": None}
    async with harness(dev_server.client, TOOLS, [PLAN, wish, DONE]) as it:
        run = await finished(it, agent("order", "book", "mail", "undo"))
        view = await run.view()
        assert view.status == "completed", view.errors
        assert view.state["undone"] == {"undone": ["1.1", "1.0"], "cannot_be_undone": ["1.2 mail"]}
        assert DID[-2:] == [("unbook", "Bonn"), ("cancel", "o-pear")]
        plan = await run.undo_plan()
        assert [each.call for each in plan.undoes] == ["1.3"]
        async for history in execution_histories(it.client, run.id):
            await check_replays(history)


async def test_a_call_whose_result_a_hook_withholds_has_taken_effect(time_skipping: WorkflowEnvironment) -> None:
    """A call that a hook has refused before it ran has not."""

    @hook("after_tool_call", tools=["order", "book"])
    def withhold(event: AfterToolCall) -> Any:
        return refuse(f"{event.tool} is not for models")

    @hook("before_tool_call", tools=["mail"])
    def stop(event: BeforeToolCall) -> Any:
        return refuse(f"no {event.tool}")

    calls = [{"_tool": "order", "what": "pear"}, {"_tool": "book", "city": "Bonn"}, {"_tool": "mail", "text": "hi"}]
    buyer = Agent("buyer", tools=[order, book, mail])
    script = [{"calls": calls, "output": None}, DONE]
    async with run_locally(
        buyer, model=script, tools=[unbook, cancel_order], hooks=[withhold, stop], server=time_skipping
    ) as local:
        view = await local.run({"request": "Order."})
        run = local.perdure.get_run(view.run_id)
        assert [(each.call, each.status, each.reason) for each in await run.effects()] == [
            ("1.0", "cannot be undone", "cancel_order needs its result, which cannot be used"),
            ("1.1", "done", ""),
        ]
        undo = await run.undo()
        assert (await undo.wait()).status == "completed"
    assert sorted(DID[:2]) == [("book", "Bonn"), ("order", "pear")]  # at once, in any order
    assert DID[2:] == [("unbook", "Bonn")]


@tool(undo=unbook, retries=2)
def reserve(city: str) -> Any:
    """Reserve a hotel."""
    DID.append(("reserve", city))
    return {"Bonn": object(), "Ulm": float("nan"), "Rome": "x" * 3_000_000}[city]


async def test_a_call_whose_result_cannot_be_used_is_not_repeated_and_can_be_undone(
    time_skipping: WorkflowEnvironment,
) -> None:
    calls = [{"_tool": "reserve", "city": city} for city in ("Bonn", "Ulm", "Rome")]
    script = [{"calls": calls, "output": None}, DONE]
    async with run_locally(
        Agent("buyer", tools=[reserve]), model=script, tools=[unbook], server=time_skipping
    ) as local:
        view = await local.run({"request": "Reserve."})
        run = local.perdure.get_run(view.run_id)
        assert [(each.call, each.status) for each in await run.effects()] == [(f"1.{n}", "done") for n in range(3)]
        undo = await run.undo()
        assert (await undo.wait()).status == "completed"
    assert sorted(DID) == sorted((done, city) for done in ("reserve", "unbook") for city in ("Bonn", "Ulm", "Rome"))


async def test_a_run_that_fails_undoes_what_it_has_done(dev_server: WorkflowEnvironment) -> None:
    config = {"on_failure": "undo", "max_requests": 1}
    async with harness(dev_server.client, TOOLS, [PLAN, PLAN]) as it:
        run = await finished(it, agent("order", "book", "mail", config=config))
        view = await run.view()
        assert view.status == "failed"
        assert view.error is not None
        assert "undone: 1.3, 1.1, 1.0; without an undo: 1.2 mail" in view.error
        assert {each.status for each in await run.effects()} == {"undone", "cannot be undone"}
        async for history in execution_histories(it.client, run.id):
            await check_replays(history)


async def test_a_changed_policy_reaches_the_undo_of_a_run_that_fails(dev_server: WorkflowEnvironment) -> None:
    fig = {"properties": {"order_id": {"const": "o-fig"}}, "required": ["order_id"]}
    config = {"on_failure": "undo", "max_requests": 1, "approval": {"tools": {"cancel_order": {"when": fig}}}}
    orders = {"calls": [PLAN["calls"][0], {**PLAN["calls"][3], "_after": ["1.0"]}], "output": "†state.missing"}
    async with harness(dev_server.client, TOOLS, [orders] * 3) as it:
        handle = await it.start(agent("order", config=config))
        undo = Perdure(it.client).get_run(f"{handle.id}.undo-1")
        await it.until_waiting(undo.id, "0.0")
        await Perdure(it.client).get_run(handle.id).policy(tools={"cancel_order": "always"})
        await undo.approve("0.0")
        await it.until_waiting(undo.id, "0.1")
        await undo.approve("0.1")
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert DID[2:] == [("cancel", "o-fig"), ("cancel", "o-pear")]
        async for history in execution_histories(it.client, handle.id):
            await check_replays(history)


async def test_a_run_whose_undo_tool_is_missing_or_does_not_fit_is_refused(dev_server: WorkflowEnvironment) -> None:
    @tool(undo="vanished")
    def lose(what: str) -> str:
        """Lose it."""
        return what

    @tool(undo=cancel_order)
    def buy(what: str) -> str:
        """Buy it."""
        return what

    async with harness(dev_server.client, [lose, buy, *TOOLS], [DONE]) as it:
        lost = await (await finished(it, agent("lose"))).view()
        bought = await (await finished(it, agent("buy"))).view()
    assert lost.error is not None
    assert "tool 'lose' has the undo 'vanished', which the worker does not have" in lost.error
    assert bought.error is not None
    assert "cancel_order needs 'order_id', which is neither a parameter nor a field of the result" in bought.error


async def test_workers_that_die_at_any_point_undo_each_effect_once(dev_server: WorkflowEnvironment) -> None:
    """Each undo tool dies with its worker once before its effect, and once after it: the key is the same, so it happens once."""
    done: dict[str, str] = {}

    @tool(retries=5, timeout=30)
    def give_back(order_id: str, context: ToolContext) -> str:
        """Give it back, once for each key, and lose the answer."""
        if (order_id, context.attempt) == ("o-pear", 1):
            raise RuntimeError("the worker was lost before")
        done.setdefault(context.idempotency_key, order_id)
        if context.attempt <= 2:
            raise RuntimeError("the worker was lost after")
        return "back"

    @tool(undo=give_back, undo_params={"order_id": "†result"})
    def take(what: str) -> str:
        """Take it."""
        return f"o-{what}"

    calls = [{"_tool": "take", "what": what} for what in ("pear", "fig")]
    async with harness(dev_server.client, [give_back, take], [{"calls": calls, "output": None}, DONE]) as it:
        run = await finished(it, agent("take"))
        undo = await run.undo()
        view = await undo.wait()
        assert view.status == "completed", view.error
    assert sorted(done.values()) == ["o-fig", "o-pear"]


async def test_a_worker_that_is_killed_in_the_middle_of_an_undo_undoes_each_effect_once_and_in_order(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    calls = [{**each, "_tool": "reserve"} for each in CALLS]
    async with site(dev_server, [{"calls": calls, "output": {"ok": True}}], tmp_path) as it:
        handle = await it.start_run("reserve")
        await handle.result()
        it.bell.rings.clear()
        it.bell.quiet = True
        undo = await Perdure(it.client).get_run(handle.id).undo()
        await it.bell.wait_for(1)  # the effect of 1.2 is taken back, and nobody has heard of it
        await it.kill()
        assert it.bell.rings == ["0.0 1"], "what 1.2 depends on waits"
        it.bell.answer()
        await it.start_worker()
        view = await undo.wait()
        standing = [(each.call, each.status) for each in await Perdure(it.client).get_run(handle.id).effects()]
    assert view.status == "completed", view.error
    assert standing == [("1.0", "undone"), ("1.1", "undone"), ("1.2", "undone")]
    assert [view.calls[0].attempts > 1, it.bell.rings[0], it.bell.rings[-1][:3] != "0.0"] == [True, "0.0 1", True]
    undone = [each for each in (tmp_path / "effects.log").read_text().split() if ":undo:" in each]
    assert sorted(each.partition(":undo:")[0].rpartition("/")[2] for each in undone) == ["1.0", "1.1", "1.2"]
    assert "/1.2:undo:" in undone[0]


async def test_no_call_of_another_run_is_undone_by_a_models_wish(dev_server: WorkflowEnvironment) -> None:
    wish = {"calls": [{"_tool": "undo", "run": "another"}, {"_tool": "undo", "calls": ["9.9"]}], "output": None}
    async with harness(dev_server.client, TOOLS, [wish, DONE, DONE]) as it:
        run = await finished(it, agent("order", "undo"))
        view = await run.view()
    assert [each.status for each in view.calls] == ["invalid", "failed"]
    assert view.calls[1].error is not None
    assert "9.9 is not a call of" in view.calls[1].error["message"]


async def test_an_undo_of_calls_without_an_undo_says_that_effects_stay(dev_server: WorkflowEnvironment) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with harness(dev_server.client, TOOLS, [{"calls": [{"_tool": "mail", "text": "hello"}]}, DONE]) as it:
        run = await finished(it, agent("mail"))
        said = await perdure("undo", run.id, "--dry-run", env=env)
    assert said.out == "no call can be undone now: no call that had an effect has an undo, so effects stay\n"


async def test_the_command_the_list_of_calls_and_the_page_show_and_undo(dev_server: WorkflowEnvironment) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with harness(dev_server.client, TOOLS, [PLAN, DONE]) as it:
        run = await finished(it, agent("order", "book", "mail"))
        said = await perdure("undo", run.id, "--dry-run", env=env)
        assert said.code == 0, said.err
        assert "will be undone" in said.out
        assert "mail has no undo" in said.out
        said = await perdure("show", run.id, env=env)
        assert "undone" not in said.out
        said = await perdure("undo", run.id, "--to", "1.1", "--yes", env=env)
        assert said.code == 0, said.err
        assert f"{run.id}.undo-1" in said.err
        said = await perdure("show", run.id, env=env)
        assert "undone" in said.out
        assert "cannot be undone" in said.out
        said = await perdure("undo", run.id, "--to", "7.7", "--yes", env=env)
        assert (said.code, said.out) == (1, "")
        assert "7.7 is not a call" in said.err


async def test_an_approver_of_a_plan_sees_what_cannot_be_undone(dev_server: WorkflowEnvironment) -> None:
    policy = {"approval": {"scope": "plan", "ask": "always"}}
    async with harness(dev_server.client, TOOLS, [PLAN, DONE]) as it:
        handle = await it.start(agent("order", "book", "mail", config=policy))
        await it.until_waiting(handle.id, "1")
        run = Perdure(it.client).get_run(handle.id)
        (request,) = await run.waiting()
        assert request.no_undo == ["1.2 mail"]
        with pytest.raises(DecisionRefusedError, match="is a plan: 'remember' is valid for a call"):
            await run.approve(request, by="ann", remember=True)
        with pytest.raises(RunError, match="is running: only a run that has ended can be undone"):
            await run.undo()
        await handle.terminate()


async def test_r23_4_an_undo_over_http_takes_a_right_of_its_own(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    who = [("", "ann", ["read", "undo"]), ("", "ron", ["read", "send", "stop"]), ("other", "eve", ["*"])]
    async with served(dev_server, tmp_path, [PLAN, DONE], tools=TOOLS, who=who) as (front, it, (ann, ron, eve)):
        run, http = await finished(it, agent("order", "book", "mail")), front.http
        path = f"/v1/runs/{run.id}/undo"
        plan = until(await http.get(path, headers=ron))
        assert [each["call"] for each in plan["cannot"]] == ["1.2"]
        assert (await http.get(path, params={"noEffect": "9.9"}, headers=ron)).status_code == 422
        only = until(await http.get(path, params={"to": "1.3"}, headers=ron))
        assert [each["call"] for each in only["undoes"]] == ["1.3"]
        assert (await http.post(path, json={}, headers=ron)).status_code == 403
        assert (await http.post(path, json={}, headers=eve)).status_code == 404
        started = await http.post(path, json={"to": "1.3"}, headers=ann)
        undo = until(started, 201)["runId"]
        assert (undo, started.headers["location"]) == (f"{run.id}.undo-1", f"/v1/runs/{undo}")
        assert until(await http.get(f"/v1/runs/{undo}/wait", headers=ron))["status"] == "ok"
        events = (await http.get(f"/v1/runs/{undo}/events", headers=ron, params={"topics": "tool"})).text
        effects = until(await http.get(f"/v1/runs/{run.id}/effects", headers=ron))["effects"]
        assert {each["call"]: each["status"] for each in effects}["1.3"] == "undone"
        assert "cancel_order" in events
