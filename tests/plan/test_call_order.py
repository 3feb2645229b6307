"""Order without data, and who runs beside whom (R5.11, R5.12)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import CallError, DecisionError
from perdure.models.dialects.common import DialectRequest
from perdure.models.dialects.registry import DIALECTS
from perdure.plan import Call, Failed, Plan, Rejected, Returned, simulate
from perdure.tools.tool import parse_tool, resolve_tools
from perdure.values.json import JsonObject
from perdure.values.state import State, Write

TOOLS = {
    tool.name: tool
    for tool in (
        parse_tool({"name": "t", "properties": {"x": {}}, "_activity": "t"}, activities=["t"]),
        parse_tool({"name": "only", "_activity": "t", "_exclusive": True}, activities=["t"]),
        parse_tool({"name": "door", "_activity": "t", "_exclusive": "house"}, activities=["t"]),
        parse_tool({"name": "window", "_activity": "t", "_exclusive": "house"}, activities=["t"]),
    )
}


def plan_of(*calls: dict[str, Any], before: Any = None, close: bool = True, **options: Any) -> Plan:
    state = State([] if before is None else [Write(path=(), value=before)])
    plan = Plan(1, tools=TOOLS, state=state, **options)
    for call in calls:
        plan.add({"_tool": "t", **call})
    if close:
        plan.close()
    return plan


def ids(calls: list[Call]) -> list[str]:
    return [call.id for call in calls]


def play(plan: Plan, **outcomes: Any) -> list[list[str]]:
    """Run it to its end, all that is ready together; `c3=…` is how call 1.3 ends."""
    rounds = []
    while ready := plan.take_ready():
        rounds.append(ids(ready))
        for call in ready:
            plan.end(call, outcomes.get(f"c{call.index}", Returned(1)))
    assert plan.settled
    return rounds


def statuses(plan: Plan) -> list[str]:
    return [call.state.status for call in plan.calls]


FAILED = Failed(CallError("boom", "it broke"))


def test_a_call_starts_when_all_that_it_names_have_ended() -> None:
    plan = plan_of(
        {"_after": ["1.1", "†state.two"]}, {}, {"_outputPath": "†state.two"}, {"_after": "†state.two"}, {"_after": []}
    )
    assert play(plan) == [["1.1", "1.2", "1.4"], ["1.0", "1.3"]]
    assert statuses(plan) == ["done"] * 5
    assert set(plan.named_edges()) == {
        ("1.1", "1.0", "after"),
        ("1.2", "1.0", "after †state.two"),
        ("1.2", "1.3", "after †state.two"),
    }


@pytest.mark.parametrize("named", ["1.0", "†state.a"])
@pytest.mark.parametrize(
    ("outcome", "status"), [(FAILED, "failed"), (Rejected("no"), "rejected"), (Returned(1), "done")]
)
def test_it_is_skipped_with_the_reason_where_one_did_not_end_well(named: str, outcome: Any, status: str) -> None:
    plan = plan_of({"_outputPath": "†state.a"}, {"_after": [named]}, {"_after": ["1.1"]})
    play(plan, c0=outcome)
    well = status == "done"
    assert statuses(plan) == [status, *(["done", "done"] if well else ["skipped", "skipped"])]
    if not well:
        assert f"1.0 t, which did not succeed ({status})" in plan.calls[1].state.reason
        assert plan.calls[2].state.reason == "$._after names 1.1 t, which did not succeed (skipped)"
        assert not plan.calls[1].state.branch


def test_a_call_after_one_that_was_carried_out_starts_although_the_result_cannot_be_written() -> None:
    path = "†state.m.x"
    plan = plan_of({"_outputPath": path}, {"_after": ["1.0"]}, {"_after": [path]}, {"x": path}, before={"m": "text"})
    play(plan)
    assert statuses(plan) == ["invalid", "done", "skipped", "skipped"]


def test_a_path_that_another_branch_left_out_is_a_branch_not_taken() -> None:
    either = {"_outputPath": "†state.ok || †state.bad"}
    calls = ({"_after": ["†state.ok"]}, {"_after": ["†state.bad"]}, {"_after": ["1.0"]})
    well = plan_of(either, *calls)
    play(well)
    assert statuses(well) == ["done", "done", "skipped", "done"]
    assert (well.calls[2].state.branch, well.calls[2].state.error) == (True, None)
    ill = plan_of(either, *calls)
    play(ill, c0=FAILED)
    assert statuses(ill) == ["failed", "skipped", "done", "skipped"]


def test_two_branches_that_write_one_path_join_in_order_too() -> None:
    plan = plan_of(
        {"_outputPath": "†state.sun || †state.rain"},
        {"x": "†state.sun", "_outputPath": "†state.idea"},
        {"x": "†state.rain", "_outputPath": "†state.idea"},
        {"_after": ["†state.idea"]},
    )
    play(plan)
    assert statuses(plan) == ["done", "done", "skipped", "done"]


def test_what_stands_there_already_will_do_only_where_no_call_of_the_plan_writes_it() -> None:
    assert play(plan_of({"_after": ["†state.old"]}, before={"old": 1})) == [["1.0"]]
    later = plan_of({"_after": ["†state.old"]}, {"_outputPath": "†state.old"}, before={"old": 1})
    assert play(later) == [["1.1"], ["1.0"]]


@pytest.mark.parametrize(
    ("after", "problem"),
    [
        (["†state.nowhere"], "$._after: †state.nowhere does not exist and no call writes it"),
        (["1.9"], "$._after: there is no call 1.9 in this plan"),
        (["1.0"], "$._after: 1.0 is the call itself"),
        (["0.1"], "$._after: 0.1 is not a call of this plan"),
        (["†input.x"], "must be a list of output paths"),
        (["after {†state.x}"], "must be a list of output paths"),
        ([3], "must be a list of output paths"),
        ({"a": 1}, "must be a list of output paths"),
        (["†state."], "$._after: "),
    ],
)
def test_what_names_nothing_is_a_structural_error(after: Any, problem: str) -> None:
    plan = plan_of({"_after": after}, {})
    play(plan)
    assert statuses(plan) == ["invalid", "done"]
    assert plan.calls[0].state.error is not None
    assert problem in plan.calls[0].state.error.message


def test_order_in_a_ring_is_a_cycle() -> None:
    plan = plan_of({"_after": ["1.1"]}, {"_after": ["†state.c"]}, {"_after": ["1.0"], "_outputPath": "†state.c"}, {})
    play(plan)
    assert statuses(plan) == ["invalid", "invalid", "invalid", "done"]
    assert "1.0 t -after→ 1.2 t -after †state.c→ 1.1 t -after→ 1.0 t" in str(plan.calls[0].state.error)


def test_a_writer_that_has_arrived_is_enough_while_the_list_is_still_open() -> None:
    plan = plan_of({"_outputPath": "†state.a"}, {"_after": ["†state.a", "1.0"]}, {"_after": ["1.3"]}, close=False)
    (first,) = plan.take_ready()
    plan.end(first, Returned(1))
    assert ids(plan.take_ready()) == ["1.1"]
    plan.add({"_tool": "nope"})
    assert [call.state.status for call in plan.calls] == ["done", "running", "skipped", "invalid"]


@pytest.mark.parametrize(
    ("before", "outcome", "ended"),
    [
        ({}, Returned(1), "done"),
        ({}, FAILED, "failed"),
        ({}, Rejected("no"), "rejected"),
        ({"_tool": "none"}, None, "invalid"),
        ({"_if": "1 > 2"}, None, "skipped"),
        ({"_after": ["1.2"]}, None, "skipped"),
    ],
)
@pytest.mark.parametrize("named", ["1.0", "†state.a"])
def test_r5_11_ended_is_ended_however_and_a_plain_name_wants_success(
    named: str, before: dict[str, Any], outcome: Any, ended: str
) -> None:
    first = {"_outputPath": "†state.a", **before}
    plan = plan_of(
        first, {"_after": [f"ended {named}"]}, {}, {"_after": [named]}, {"_after": [f"ended {named}", "1.2"]}
    )
    order = [call for each in play(plan, c0=outcome, c2=FAILED) for call in each]
    assert statuses(plan)[0:3] == [ended, "done", "failed"]
    assert plan.calls[3].state.status == ("done" if ended == "done" else "skipped")
    assert plan.calls[4].state.status == "skipped", "the other name wants success still"
    assert "1.0" not in order or order.index("1.0") < order.index("1.1")


def test_step_defers_what_comes_after_another_call() -> None:
    plan = plan_of({"_outputPath": "†state.a"}, {"_after": ["†state.a"]}, {"_after": ["1.0"]}, execution="step")
    play(plan)
    assert statuses(plan) == ["done", "deferred", "deferred"]


def test_parallel_runs_so_many_at_once_in_the_order_of_the_list() -> None:
    plan = plan_of({"x": "†state.d"}, {}, {}, {"_outputPath": "†state.d"}, parallel=1)
    assert play(plan) == [["1.1"], ["1.2"], ["1.3"], ["1.0"]]
    two = plan_of({}, {}, {}, parallel=2)
    first, second = two.take_ready()
    assert two.take_ready() == []
    two.end(second, Returned(1))
    assert ids(two.take_ready()) == ["1.2"]
    assert first.state.status == "running"


def test_a_call_that_waits_for_a_person_holds_nobody_up() -> None:
    plan = plan_of({}, {}, parallel=1)
    (first,) = plan.take_ready()
    plan.hold(first)
    (second,) = plan.take_ready()
    assert (plan.room_for(first), plan.room_for(second)) == (False, True)
    plan.end(second, Returned(1))
    assert plan.room_for(first)
    plan.resume(first)
    plan.end(first, Returned(1))
    assert plan.settled


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("drain", [False, True])
def test_one_step_ahead(streamed: bool, drain: bool) -> None:
    plan = plan_of({}, {}, {"_tool": "unknown"}, {}, close=False, execution="step", parallel=1)
    taken = plan.take_ready() if streamed else []
    plan.close(drain=drain)
    taken += plan.take_ready()
    assert ids(taken) == ["1.0"]
    plan.end(taken[0], Returned(1))
    rest = play(plan)
    assert rest == ([["1.1"], ["1.3"]] if drain else [])
    assert statuses(plan) == ["done", *(["done", "invalid", "done"] if drain else ["deferred", "invalid", "deferred"])]


def test_no_two_calls_of_an_exclusive_tool_or_group_run_at_once() -> None:
    plan = plan_of(*({"_tool": name} for name in ("only", "only", "door", "window", "t", "t")))
    assert play(plan) == [["1.0", "1.2", "1.4", "1.5"], ["1.1", "1.3"]]


def test_the_code_says_that_it_is_exclusive_whatever_name_it_goes_by() -> None:
    registry: dict[str, dict[str, Any]] = {"act": {"name": "act", "_exclusive": True}, "free": {"name": "free"}}
    wanted: list[Any] = ["act", {"name": "other", "_activity": "act"}, {"name": "mine", "_activity": "free"}]
    tools = resolve_tools(wanted, registry)
    assert [tools[name].exclusive_group for name in ("act", "other", "mine")] == ["act", "act", None]
    bank: dict[str, dict[str, Any]] = {"pay": {"name": "pay", "_exclusive": "bank"}}
    looser = resolve_tools(
        [{"name": "pay", "_exclusive": True}, {"name": "eu", "_activity": "pay", "_exclusive": "x"}], bank
    )
    assert {tool.exclusive_group for tool in looser.values()} == {"bank"}


def test_a_simulation_knows_of_it() -> None:
    calls: list[JsonObject] = [
        {"_tool": "t", "_outputPath": "†state.a"},
        {"_tool": "t", "_after": ["†state.a"]},
        {"_tool": "t"},
    ]
    plan = Plan(1, tools=TOOLS, state=State([]), dry_run=True)
    dry = simulate(plan, calls)
    assert ([step.level for step in dry.steps], dry.makespan) == ([1, 2, 1], 2.0)
    assert simulate(Plan(1, tools=TOOLS, state=State([]), dry_run=True, parallel=1), calls).makespan == 3.0


def replaced(calls: list[dict[str, Any]], by: dict[str, Any], outcome: Any, *later: dict[str, Any]) -> Plan:
    """The first call waits for a person, who replaces it; then come the later ones."""
    plan = plan_of(*calls, close=False)
    waits = next(call for call in plan.take_ready() if call.index == 0)
    plan.hold(waits)
    plan.adopt(waits, plan.revised(waits, by))
    for call in later:
        plan.add({"_tool": "t", **call})
    plan.close()
    plan.resume(waits)
    plan.end(waits, outcome)
    play(plan)
    return plan


@pytest.mark.parametrize(
    ("written", "by", "outcome", "said"),
    [
        ("†state.a", {"_tool": "door"}, Returned(1), ""),
        ("†state.a", {"_tool": "door"}, FAILED, "$.x reads †state.a from 1.0 door, which did not succeed (failed)"),
        ("†state.a", {"_tool": "door"}, Rejected("no"), "from 1.0 door, which did not succeed (rejected)"),
        ("†state.a || †state.b", {"_tool": "door"}, FAILED, "from 1.0 door, which took another branch"),
        (
            "†state.a || †state.b",
            {"_tool": "door"},
            Returned(1, "†state.b"),
            "from 1.0 door, which took another branch",
        ),
    ],
)
def test_what_reads_a_replaced_call_is_told_of_the_call_that_ran(
    written: str, by: dict[str, Any], outcome: Any, said: str
) -> None:
    plan = replaced([{"_outputPath": written}, {"x": "†state.a"}], by, outcome)
    assert (plan.calls[1].state.status, said in plan.calls[1].state.reason) == ("skipped" if said else "done", True)


def test_a_path_that_a_replacement_no_longer_writes_is_no_branch() -> None:
    plan = replaced(
        [{"_outputPath": "†state.a"}], {"_tool": "t", "_outputPath": "†state.b"}, Returned(1), {"x": "†state.a"}
    )
    assert plan.calls[1].state.status == "invalid"
    assert "†state.a does not exist and no call writes it; near it are †state.b" in str(plan.calls[1].state.error)


def test_a_replacement_does_not_add_to_what_its_readers_do_not_see() -> None:
    # They are wired to this call alone: what it would add to, written by a call before it, they would not find.
    calls = [{"_outputPath": "†state.a"}, {"_outputPath": "†state.a"}, {"x": "†state.a"}]
    plan = plan_of(*calls)
    _, second = plan.take_ready()
    plan.hold(second)
    with pytest.raises(DecisionError, match=r"1\.1 must set †state.a, because other calls read only its value"):
        plan.revised(second, {"_tool": "t", "_outputPath": "†state.a", "_outputMethod": "push"})


@pytest.mark.parametrize("after", [["1.1", "1.2"], ["1.2", "1.1"], ["†state.ok", "1.2"], ["1.2", "†state.ok"]])
def test_a_failure_is_told_before_a_branch_in_whatever_order_they_are_named(after: list[str]) -> None:
    either = {"_outputPath": "†state.ok || †state.bad"}
    plan = plan_of(either, {"_after": ["†state.ok"]}, {}, {"_after": after}, {"_after": ["1.3"]})
    play(plan, c0=Returned(1, "†state.bad"), c2=FAILED)
    assert statuses(plan) == ["done", "skipped", "failed", "skipped", "skipped"]
    assert plan.calls[3].state.reason == "$._after names 1.2 t, which did not succeed (failed)"
    assert [call.state.branch for call in plan.calls] == [False, True, False, False, False]


def test_what_a_call_reads_looks_on_also_where_what_it_comes_after_did_not_end_well() -> None:
    plan = plan_of(
        {"_outputPath": "†state.a", "_after": ["1.3"]},
        {"_outputPath": "†state.a || †state.bad"},
        {"_tool": "unknown"},
        {"x": "†state.a", "_after": ["1.2"]},
    )
    play(plan, c1=Returned(1, "†state.bad"))
    assert statuses(plan) == ["invalid", "done", "invalid", "invalid"]
    assert "1.3 t -after→ 1.0 t -†state.a→ 1.3 t" in str(plan.calls[3].state.error)


def test_of_an_exclusive_group_the_first_of_the_list_goes_first_whichever_was_ready_first() -> None:
    plan = plan_of({"_tool": "door", "_after": ["1.1"]}, {}, {"_tool": "window"}, {"_tool": "window"}, close=False)
    (plain, busy) = plan.take_ready()
    plan.close()
    plan.end(plain, Returned(1))
    assert plan.take_ready() == []
    plan.end(busy, Returned(1))
    assert play(plan) == [["1.0"], ["1.3"]]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_limited_step_takes_the_first_of_the_list_however_it_arrives(streamed: bool) -> None:
    calls: list[dict[str, Any]] = [{}, {"x": "†state.late || †state.there"}, {}]
    plan = plan_of(before={"there": 1}, close=False, execution="step", parallel=2)
    taken = []
    for call in calls:
        plan.add({"_tool": "t", **call})
        taken += plan.take_ready() if streamed else []
    plan.close()
    taken += plan.take_ready()
    assert ids(taken) == ["1.0", "1.1"]
    doors = plan_of({"_tool": "door"}, {"_tool": "window"}, {}, close=False, execution="step", parallel=2)
    taken = doors.take_ready() if streamed else []
    doors.close()
    taken += doors.take_ready()
    doors.end(taken[0], Returned(1))
    assert [*ids(taken), *ids(doors.take_ready())] == ["1.0", "1.1"]


def test_an_item_that_was_set_needs_the_array_from_beyond_a_set_that_went_another_branch() -> None:
    plan = plan_of(
        {"_outputPath": "†state.l"},
        {"_outputPath": "†state.l || †state.bad"},
        {"x": "†state.l", "_outputPath": "†state.l[0]"},
        {"x": "†state.l[0]"},
        before={"l": 7},
    )
    play(plan, c0=Returned([5]), c1=Returned(1, "†state.bad"), c2=Returned(6))
    assert statuses(plan) == ["done"] * 4
    assert plan.calls[3].inputs.params == {"x": 6}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_r5_12_the_model_is_told_which_tools_run_alone_and_what_ended_means(dialect: str) -> None:
    tools = {
        name: parse_tool({"name": name, "_activity": "t", **({"_exclusive": group} if group else {})}, activities=["t"])
        for name, group in (("free", None), ("only", True), ("door", "house"))
    }
    ask = DialectRequest(tools)
    told = DIALECTS[dialect]
    shown = {"free": "", "only": "", "door": ""}
    if dialect == "tools":
        for each in told.parameters(ask)["tools"]:
            shown[each["function"]["name"]] = each["function"]["description"]
    else:
        text = told.tools_text(ask)
        for name in shown:
            begin = re.search(rf"\b{name}\b", text)
            assert begin is not None
            after = [found.start() for other in shown for found in re.finditer(rf"\b{other}\b", text[begin.end() :])]
            shown[name] = text[begin.start() : begin.end() + min(after, default=len(text))]
    alone = "Its calls run one at a time."
    assert {name: alone in words for name, words in shown.items()} == {"free": False, "only": True, "door": True}
    assert '"ended †state.' in told.how
    assert "has ended, however" in told.how


def test_r5_12_the_guide_tells_how_a_tool_is_exclusive() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    for words in (
        "@tool(exclusive=True)",
        'exclusive="account"',
        '"_exclusive": true',
        "`perdure plan validate` hints",
    ):
        assert words in guide
