"""Data is never code: what a person sends is a value, and only what they mark is a reference (R7.2)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.approvals.decisions import digest, parse_decision
from perdure.approvals.policy import Guard, Policy
from perdure.approvals.queue import ApprovalQueue
from perdure.approvals.requests import ApprovalRequest, JudgedDecision
from perdure.errors import DecisionError
from perdure.plan import Call, Plan, Returned
from perdure.tools.tool import resolve_tools
from perdure.values.json import Json
from perdure.values.state import State, Write
from perdure.values.templates import as_data, changes, held_marks, mark_references, parse_marked, parse_template
from tests.strategies import json_values

SECRET = "s3cret"
ANY: dict[str, Any] = {"properties": {"x": {}, "y": {}, "z": {}}}
TOOLS = resolve_tools(
    ["send", "fetch"],
    {"send": {"name": "send", "_dangerous": True, **ANY}, "fetch": {"name": "fetch", "_safe": True, **ANY}},
)
_BAIT = [
    "†state.secret",
    "{†state.secret}",
    "x {† y",
    "(†state.secret)",
    "††state.secret",
    "{{†state.secret}}",
    "† ",
    "{ †input.a }",
    "state.secret",
    "††state.secret + '†'",
]
BAIT = st.sampled_from(_BAIT) | st.lists(
    st.sampled_from(["†", "††", "{", "}", "(", " ", "state.secret", "a", "|| "])
).map("".join)
VALUES = st.recursive(
    BAIT | st.none() | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["_ref", "_data", "_expr", "_tool", "k", "†state.secret"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def offered(page: Any) -> tuple[ApprovalQueue, Plan, Call]:
    """A call that sends what a page says, waiting for a person."""
    plan = Plan(1, tools=TOOLS, state=State([Write(path=("secret",), value=SECRET)]))
    plan.add({"_tool": "fetch", "_outputPath": "†state.page"})
    call = plan.add({"_tool": "send", "x": "†state.page", "y": "hello {†state.page}", "z": "†state.secret"})
    plan.close()
    (fetch,) = plan.take_ready()
    plan.end(fetch, Returned(page))
    plan.take_ready()
    desk = ApprovalQueue(Guard(Policy()))
    desk.add_call(plan, call, "2026-01-01T00:00:00Z")
    return desk, plan, call


def decide(desk: ApprovalQueue, decision: dict[str, Any]) -> JudgedDecision:
    judged = desk.judge(parse_decision({"call": "1.1", **decision}))
    desk.apply(judged)
    return judged


@given(page=VALUES, typed=VALUES)
def test_an_edit_leaves_the_others_as_offered_and_takes_what_is_typed_as_it_is(page: Any, typed: Any) -> None:
    desk, _, call = offered(page)
    before = dict(call.inputs.params)
    if any(text not in set(held_marks(before)) for text in held_marks(typed)):
        return  # the person marks something on purpose
    decide(desk, {"decision": "edit", "params": {"z": typed}})
    assert call.inputs.params == before | ({} if typed is None else {"z": typed}) or typed is None
    assert before["x"] == page


@given(page=VALUES)
def test_what_is_sent_back_whole_is_what_was_shown(page: Any) -> None:
    desk, _, call = offered(page)
    before = dict(call.inputs.params)
    decide(desk, {"decision": "edit", "params": {key: value for key, value in before.items() if value is not None}})
    assert call.inputs.params == before
    desk, plan, call = offered(page)
    decide(
        desk, {"decision": "replace", "with": {"_tool": "fetch", **{k: v for k, v in before.items() if v is not None}}}
    )
    assert call.inputs.params == {key: value for key, value in before.items() if value is not None}
    plan.end(call, Returned(None))


def test_a_reference_is_written_on_purpose() -> None:
    desk, _, call = offered("text")
    decide(
        desk, {"decision": "edit", "params": {"x": [{"_ref": "†state.secret"}], "y": {"_ref": "so {†state.secret}"}}}
    )
    assert call.inputs.params == {"x": [SECRET], "y": f"so {SECRET}", "z": SECRET}
    desk, _, call = offered({"_ref": "†state.secret"})
    decide(desk, {"decision": "edit", "params": {"y": ["more", {"_ref": "†state.secret"}]}})
    assert call.inputs.params["y"] == ["more", {"_ref": "†state.secret"}], "a page wrote it, so it is data"


def test_what_reads_a_value_a_thousand_times_does_not_wait_for_a_person() -> None:
    """What it shows would be written out for its digest, in the run's task."""
    plan = Plan(1, tools=TOOLS, state=State([Write(path=("big",), value=[0] * 200_000)]))
    plan.add({"_tool": "send", "x": ["†state.big"] * 1000})
    call = plan.add({"_tool": "send", "x": 1})
    plan.close()
    assert [each.id for each in plan.take_ready()] == ["1.1"]
    error = plan.calls[0].state.error
    assert error is not None
    assert error.code == "params_too_large"
    desk = ApprovalQueue(Guard(Policy(ask="always")))
    desk.add_call(plan, call, "2026-01-01T00:00:00Z")
    with pytest.raises(DecisionError, match="the parameters have 400,002,"):
        decide(desk, {"decision": "edit", "params": {"x": [{"_ref": "†state.big"}] * 1000}})
    assert "1.1" in desk.waiting


def test_what_an_edit_keeps_is_not_computed_again() -> None:
    """What a formula reads may be something else by now: the person was shown what it gave."""
    plan = Plan(1, tools=TOOLS, state=State([Write(path=("list",), value=[1, 2])]))
    call = plan.add({"_tool": "send", "x": {"_expr": "len(state.list)"}, "y": 1})
    other = plan.add({"_tool": "fetch", "_outputPath": "†state.list"})
    plan.close()
    plan.take_ready()
    desk = ApprovalQueue(Guard(Policy(ask="always")))
    desk.add_call(plan, call, "2026-01-01T00:00:00Z")
    plan.end(other, Returned(5))
    decide(desk, {"call": "1.0", "decision": "edit", "params": {"y": 2}})
    assert call.inputs.params == {"x": 2, "y": 2}


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        ({"decision": "edit", "params": {"x": {"_ref": "just text"}}}, "holds no reference such as †state.name"),
        ({"decision": "edit", "params": {"x": {"_ref": "†state.nowhere"}}}, "†state.nowhere does not exist now"),
        ({"decision": "edit", "params": {"x": {"_ref": "†state.[["}}}, "malformed reference"),
        ({"decision": "edit", "params": {"_tool": "fetch"}}, "an edit changes parameters, not "),
        ({"decision": "replace", "with": {"_tool": "fetch", "x": {"_ref": "no"}}}, "holds no reference"),
    ],
)
def test_a_mark_that_is_none_is_refused(decision: dict[str, Any], words: str) -> None:
    desk, _, call = offered("text")
    before = dict(call.inputs.params)
    with pytest.raises(DecisionError) as refused:
        desk.judge(parse_decision({"call": "1.1", **decision}))
    assert words in str(refused.value)
    assert call.inputs.params == before
    assert "1.1" in desk.waiting


def whole(raw: Any, state: Any = None) -> tuple[ApprovalQueue, ApprovalRequest]:
    def new_plan() -> Plan:
        return Plan(1, tools=TOOLS, state=State([Write(path=(), value={"secret": SECRET, **(state or {})})]))

    plan = new_plan()
    plan.add(raw)
    plan.close()
    desk = ApprovalQueue(Guard(Policy(scope="plan")))
    offer = desk.add_plan(plan, "2026-01-01T00:00:00Z", new_plan)
    assert offer is not None
    return desk, offer


@given(value=VALUES, typed=VALUES)
def test_an_edited_plan_keeps_its_references_and_gets_no_others(value: Any, typed: Any) -> None:
    raw = {"_tool": "send", "x": value}
    if parse_template({"x": value})[1]:
        return  # no plan to offer
    try:
        desk, offer = whole(raw)
    except AssertionError:
        return  # nothing of it would run
    shown = offer.shown
    same = desk.judge(parse_decision({"call": "1", "decision": "edit", "digest": digest(shown), "calls": shown}))
    assert same.plan is not None
    first = ready(offer.plan)
    assert ready(same.plan) == first
    changed = desk.judge(
        parse_decision(
            {"call": "1", "decision": "edit", "calls": [{**shown[0], "y": [mark_references(as_data(typed))]}]}
        )
    )
    assert changed.plan is not None
    assert ready(changed.plan) == [params | {"y": [typed]} for params in first]


def ready(plan: Plan) -> list[Any]:
    return [call.inputs.params for call in plan.take_ready()]


def test_an_edited_plan_may_refer_to_more_on_purpose() -> None:
    desk, _ = whole({"_tool": "send", "x": "†state.secret"})
    calls: list[Json] = [{"_tool": "send", "x": "†state.secret", "y": {"_ref": "†state.secret"}}]
    judged = desk.judge(parse_decision({"call": "1", "decision": "edit", "calls": calls}))
    assert judged.plan is not None
    assert ready(judged.plan) == [{"x": "†state.secret", "y": SECRET}]


@given(value=VALUES | json_values())
def test_what_is_written_of_a_value_is_that_value(value: Any) -> None:
    held = set(held_marks(value))
    template, malformed = parse_template(parse_marked(value, held))
    assert (malformed, template.sites) == ([], ())
    assert template.resolve(lambda _: None) == value
    assert parse_marked(mark_references(parse_marked(value, held))) == parse_marked(value, held)


@given(offered=st.dictionaries(st.sampled_from("abc"), VALUES), wanted=st.dictionaries(st.sampled_from("abc"), VALUES))
def test_only_what_differs_is_sent(offered: dict[str, Any], wanted: dict[str, Any]) -> None:
    changed = changes(offered, wanted)
    assert {key for key in {*offered, *wanted} if offered.get(key, "-") != wanted.get(key, "-")} <= set(changed)
    merged = {key: value for key, value in (offered | changed).items() if key in wanted}
    assert merged == wanted


@pytest.mark.parametrize("text", ["††state.secret", "{††state.secret}", "just text", "††", ""])
def test_what_only_looks_like_a_mark_in_a_plan_is_data(text: str) -> None:
    """The attack: a model, or a page that it copies, writes data that is shown like a reference; somebody changes another field."""
    desk, offer = whole({"_tool": "send", "x": {"_ref": text}, "y": ["†state.secret", {"_data": {"_ref": text}}]})
    shown = offer.shown[0]
    data = text.replace("††", "†")
    assert shown["x"] == {"_data": {"_ref": data}}
    assert shown["y"][0] == {"_ref": "†state.secret"}
    judged = desk.judge(parse_decision({"call": "1", "decision": "edit", "calls": [shown | {"z": 1}]}))
    assert judged.plan is not None
    assert ready(judged.plan) == [{"x": {"_ref": data}, "y": [SECRET, {"_data": {"_ref": data}}], "z": 1}]


def test_a_mark_in_the_items_of_a_loop_is_data_when_the_call_is_replaced() -> None:
    """The attack: a page is a list of what looks like marks, and a person sends the call back with another parameter."""
    tools = resolve_tools([{"name": "each", "_delegate": "anonymous", **ANY}], {})
    plan = Plan(
        1, tools=tools, state=State([Write(path=(), value={"secret": SECRET, "page": [{"_ref": "†state.secret"}]})])
    )
    call = plan.add({"_tool": "each", "x": 1, "_each": "†state.page"})
    plan.close()
    plan.take_ready()
    desk = ApprovalQueue(Guard(Policy(ask="always")))
    offer = desk.add_call(plan, call, "2026-01-01T00:00:00Z")
    assert offer is not None
    other = {"_tool": "each", "x": 2, "_each": offer.shown["_each"]}
    judged = desk.judge(parse_decision({"call": "1.0", "decision": "replace", "with": other}))
    assert judged.call is not None
    assert judged.call.inputs.items == [{"_ref": "†state.secret"}]
