"""The order of an undo, over random plans (R23.4): reverse data flow, each effect once, and nothing whose dependents stay."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.errors import CallError, RunError
from perdure.plan import Call, Failed, Outcome, Plan, Rejected, Returned
from perdure.runs.undo import (
    Effect,
    EffectLog,
    RunEffects,
    UndoBase,
    UndoRecord,
    effect_of_runs,
    plan_undo,
    undo_outcomes,
    undo_stop_reason,
    without_undo,
)
from perdure.runs.wire import CallView, RunInput
from perdure.tools.engine import ENGINE_TOOLS
from perdure.tools.tool import Tool, parse_tool, resolve_tools
from perdure.values.json import Json, JsonObject
from perdure.values.sizes import Sizes
from perdure.values.state import State, Write
from tests.rules.outcomes import STATE, random_calls

UNDO = parse_tool({"name": "undo", "properties": {"what": {}}, "_activity": "undo"}, activities=["undo"])
TOOLS = {
    name: parse_tool(
        {
            "name": name,
            "additionalProperties": True,
            "_activity": name,
            "_undo": {"tool": "undo", "params": {"what": "†result.n"}},
        },
        activities=[name],
    )
    for name in ("a", "b", "c")
}
_TOKENS = 1_000
"""Results are numbers from a multiple of this on, each of one call. A call with one in its parameters depends on that call."""


@dataclass
class Played:
    """A plan that was played to its end by chance."""

    plan: Plan
    log: list[tuple[str, Call]] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    """The calls that were ready at the start."""
    tokens: dict[int, str] = field(default_factory=dict)
    """By result its call."""

    def place(self, what: str, id: str) -> int | None:
        return next((at for at, (event, call) in enumerate(self.log) if (event, call.id) == (what, id)), None)


def play(
    calls: list[dict[str, Any]], tools: dict[str, Tool], chance: random.Random, request: int, first_token: int
) -> Played:
    """Play a plan: calls begin, end and fail in any order."""
    plan = Plan(request, tools=tools, state=State([Write(path=(), value=STATE)]))
    for raw in calls:
        plan.add(raw)
    plan.close()
    played, running, ready = Played(plan), list[Call](), [*plan.take_ready("t")]
    played.first = [call.id for call in ready]
    while running or ready:
        if ready and (not running or chance.random() < 0.5):
            running.append(call := ready.pop(chance.randrange(len(ready))))
            played.log.append(("begun", call))
            continue
        call = running.pop(chance.randrange(len(running)))
        token = first_token + len(played.tokens)
        outcome: Outcome = Returned({"n": token})
        if chance.random() < 0.2:
            outcome = Failed(CallError("boom", "it broke"))
        else:
            played.tokens[token] = call.id
        played.log.append(("failed" if isinstance(outcome, Failed) else "done", call))
        plan.home(call).end(call, outcome, "t")
        ready += plan.take_ready("t")
    return played


def numbers_in(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for each in value.values():
            yield from numbers_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, int):
        yield value


@example(38)  # a Request without a call between two others
@given(st.integers(0, 2**32))
def test_r23_4_an_undo_follows_the_reverse_data_flow_and_stops_where_one_fails(seed: int) -> None:
    chance = random.Random(seed)
    requests = [random_calls(chance)]
    if chance.random() < 0.5:
        requests += [chance.choice([[], [{"_tool": "unknown"}], random_calls(chance)]), random_calls(chance)]
    log = EffectLog(TOOLS.values(), [UNDO], Sizes())
    plans = [play(calls, TOOLS, chance, number, _TOKENS * number) for number, calls in enumerate(requests, 1)]
    for ran in plans:
        log.add(ran.plan)
    events = [event for ran in plans for event in ran.log]
    tokens = {token: id for ran in plans for token, id in ran.tokens.items()}
    chunk = log.chunk(0, None)
    found = RunEffects("run", UndoBase.of(RunInput(agent={"name": "a"}), [UNDO], None), chunk.effects, chunk.order)
    done = {call.id for event, call in events if event == "done"}
    assert {each.call for each in found.effects} == done
    undo, run_input = plan_undo(found)
    assert sorted(each.call for each in undo.undoes) == sorted(done)
    if run_input is None:
        assert not done
        return
    context: Any = run_input.agent["context"]
    data, written = context[-2]["data"], context[-1]["plan"]
    entries = [
        entry | ({"what": data[entry["what"].split(".")[1]]["what"]} if "what" in entry else {}) for entry in written
    ]
    back = play(entries, {"undo": UNDO}, chance, 0, _TOKENS)
    takes_back = {call.id: tokens[call.inputs.params["what"]] for _, call in back.log if "what" in call.inputs.params}
    begun = [takes_back[call.id] for event, call in back.log if event == "begun" and call.id in takes_back]
    assert len(begun) == len({*begun}), "each effect is undone once"
    by_effect = {effect: id for id, effect in takes_back.items()}

    def check_order(first: str, second: str) -> None:
        """Check that `first` is undone only after `second`, which read its result, or is of a later Request."""
        if first not in by_effect:
            return
        assert second in by_effect, f"{first} is undone although the undo of {second} never began"
        ended, began = back.place("done", by_effect[second]), back.place("begun", by_effect[first])
        assert ended is not None, f"{first} is undone although that of {second} failed"
        assert began is not None
        assert ended < began, f"{first} is undone before {second}"

    for event, call in events:
        if event == "done":
            for token in numbers_in(call.inputs.params):
                if token in tokens:
                    check_order(tokens[token], call.id)
    for earlier, later in combinations(plans, 2):
        for first, second in product(earlier.tokens.values(), later.tokens.values()):
            check_order(first, second)
    [ran, *others] = plans
    if not others and not ran.plan.named_edges() and not any(call.spec.loop for call in ran.plan.calls):
        assert sorted(takes_back[id] for id in back.first) == sorted(done), "what is independent is undone at once"


def test_r23_4_calls_after_a_message_are_undone_before_those_that_had_ended() -> None:
    plan = Plan(1, tools=TOOLS, state=State())
    plan.extend([{"_tool": "a", "_outputPath": "†state.x"}, {"_tool": "b"}])
    first, running = plan.take_ready("t")
    plan.end(first, Returned({"n": 1}), "t")
    plan.held_calls.hold_back()
    plan.begin(2, TOOLS)  # this message is answered without a call
    for request in (3, 4):  # each message is answered by a list that continues the plan
        plan.held_calls.hold_back()
        plan.begin(request, TOOLS)
        plan.add({"_tool": "c", "what": "†state.x"})
        [call] = plan.take_ready("t")
        plan.end(call, Returned({"n": request}), "t")
    plan.close()
    plan.end(running, Returned({"n": 5}), "t")
    assert undone(plan, ["1.0"]) == ["4.0", "3.0", "1.0"]
    assert undone(plan, ["3.0"]) == ["4.0", "3.0"]
    assert undone(plan, ["1.1"]) == ["1.1"]
    assert sorted(undone(plan, None)) == ["1.0", "1.1", "3.0", "4.0"]


def undone(plan: Plan, calls: list[str] | None) -> list[str]:
    """Return the calls that an undo run takes back, in their order. `calls`: the requested ones; `None`: all."""
    log = EffectLog(TOOLS.values(), [UNDO], Sizes())
    log.add(plan)
    chunk, base = log.chunk(0, None), UndoBase.of(RunInput(agent={"name": "a"}), [UNDO], None)
    undo, _ = plan_undo(RunEffects("run", base, [*chunk.effects], chunk.order), calls)
    return [each.call for each in undo.undoes]


def test_r23_4_a_reference_that_a_person_has_written_into_a_call_is_an_edge() -> None:
    plan = Plan(1, tools=TOOLS, state=State())
    plan.extend(
        [
            {"_tool": "a", "_outputPath": "†state.x"},
            {"_tool": "a", "_outputPath": "†state.x", "_after": "1.0"},
            {"_tool": "a", "_outputPath": "†state.y"},
            {"_tool": "b", "what": "?"},
        ]
    )
    first, other, edited = plan.take_ready("t")
    plan.end(first, Returned({"n": 1}), "t")
    [second] = plan.take_ready("t")
    plan.end(second, Returned({"n": 2}), "t")
    plan.end(other, Returned({"n": 3}), "t")
    for path in ("†state.y", "†state.x"):  # the last edit counts
        plan.adopt(edited, plan.revised(edited, {"_tool": "b", "what": path}))
    plan.end(edited, Returned({"n": 4}), "t")
    assert plan.named_edges() == [("1.0", "1.1", "after"), ("1.1", "1.3", "†state.x")]
    assert plan.newest_edges(9) == plan.named_edges()
    assert undone(plan, ["1.1"]) == ["1.3", "1.1"]
    assert undone(plan, ["1.2"]) == ["1.2"]


def test_r23_4_a_reference_that_a_person_has_written_into_a_call_of_a_loop_is_an_edge() -> None:
    plan = Plan(1, tools=TOOLS, state=State())
    body: Any = [{"_tool": "a", "_outputPath": "†state.y"}, {"_tool": "b", "what": "†item", "_after": ".0"}]
    plan.extend([{"_tool": "a", "_outputPath": "†state.x"}, {"_tool": "_for", "_each": [1], "_body": body}])
    outside, inside = plan.take_ready("t")
    plan.end(outside, Returned({"n": 1}), "t")
    home = plan.home(inside)
    home.end(inside, Returned({"n": 2}), "t")
    [edited] = plan.take_ready("t")
    raw: JsonObject = {"_tool": "b", "what": ["†state.x", "†state.y"]}
    home.adopt(edited, home.revised(edited, raw))
    home.end(edited, Returned({"n": 3}), "t")
    plan.close()
    assert plan.take_ready("t") == []
    assert {("1.0", "1.1[0].1", "†state.x"), ("1.1[0].0", "1.1[0].1", "†state.y")} <= {*plan.named_edges()}
    assert undone(plan, ["1.0"]) == ["1.1[0].1", "1.0"]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Returned({"n": 1}), "done"),
        (Failed(CallError("no_answer", "nobody answered")), "unknown"),
        (Failed(CallError("deadline", "cancelled")), "unknown"),
        (Rejected("no"), None),
    ],
    ids=["answered", "timed-out", "stopped", "rejected"],
)
@pytest.mark.parametrize("has_undo", [True, False])
def test_r23_4_a_call_that_its_client_executes_has_an_effect(
    outcome: Outcome, status: str | None, has_undo: bool
) -> None:
    own: Any = {"_undo": {"tool": "undo", "params": {"what": "†result.n"}}} if has_undo else {}
    pay = parse_tool({"name": "pay", "_activity": "perdure.client", **own})
    ask = resolve_tools(["ask_person"], ENGINE_TOOLS)["ask_person"]
    plan = Plan(1, tools={"pay": pay, "ask_person": ask}, state=State())
    plan.extend([{"_tool": "pay"}, {"_tool": "ask_person", "question": "?"}])
    plan.close()
    for call in plan.take_ready("t"):
        plan.hold(call, is_with_client=call.spec.tool is pay)
        plan.end(call, outcome, "t")
    log = EffectLog([pay, TOOLS["a"]], [UNDO], Sizes())
    log.add(plan)
    wanted = "cannot be undone" if status == "done" and not has_undo else status
    assert [(each.call, each.status) for each in log.chunk(0, None).effects] == ([("1.0", wanted)] if wanted else [])
    assert without_undo(plan.calls) == ([] if has_undo else ["1.0 pay"])


@pytest.mark.parametrize(("is_with_client", "effects"), [(True, [("1.0", "unknown")]), (False, [])])
@pytest.mark.parametrize("ends", ["cancelled", "deadline", "terminated"])
def test_r23_4_a_call_that_its_client_has_at_the_runs_end_is_unknown(
    is_with_client: bool, effects: list[tuple[str, str]], ends: str
) -> None:
    pay = parse_tool({"name": "pay", "_activity": "perdure.client"})
    plan = Plan(1, tools={"pay": pay}, state=State())
    plan.extend([{"_tool": "pay"}])
    plan.close()
    [call] = plan.take_ready("t")
    plan.hold(call, is_with_client=is_with_client)
    if ends == "cancelled":
        plan.break_off("the run was cancelled")
    elif ends == "deadline":
        plan.end(call, Failed(CallError("deadline", "cancelled")), "t")
    log = EffectLog([pay, TOOLS["a"]], [UNDO], Sizes())
    assert [(each.call, each.status) for each in log.chunk(0, plan).effects] == effects


@pytest.mark.parametrize(
    ("written", "result", "made"),
    [
        (None, "ok", {"fruit": "pear", "shop": "north"}),
        (None, {"shop": "west"}, {"fruit": "pear", "shop": "west"}),
        ({"fruit": "†params.fruit", "shop": "†params.shop"}, {"shop": "west"}, {"fruit": "pear", "shop": "north"}),
    ],
    ids=["by-name", "result-first", "mapped"],
)
def test_r23_4_an_undo_reads_the_default_of_a_parameter_that_the_call_leaves_out(
    written: JsonObject | None, result: Json, made: JsonObject
) -> None:
    """The undo tool has a default of its own, which may name another shop."""
    shops: Any = {"fruit": {"type": "string"}, "shop": {"type": "string", "default": "south"}}
    cancel = parse_tool({"name": "cancel", "properties": shops, "_activity": "cancel"}, activities=["cancel"])
    undo: Json = "cancel" if written is None else {"tool": "cancel", "params": written}
    form = {"name": "order", "properties": shops | {"shop": {"type": "string", "default": "north"}}, "_undo": undo}
    order = parse_tool({**form, "_activity": "order"}, activities=["order"])
    plan = Plan(1, tools={"order": order}, state=State())
    plan.extend([{"_tool": "order", "fruit": "pear"}])
    plan.close()
    [call] = plan.take_ready("t")
    plan.end(call, Returned(result), "t")

    def effect(log: EffectLog) -> Effect:
        log.add(plan)
        return log.chunk(0, None).effects[0]

    assert effect(EffectLog([order], [cancel], Sizes())).params == made
    # The key of an effect has these parameters: a run that an earlier version has undone is not undone again.
    recorded = effect(EffectLog([order], [cancel], Sizes(), knows_defaults=False)).params
    assert recorded == {key: value for key, value in made.items() if value != "north"}


@pytest.mark.parametrize(
    ("written", "required", "made"),
    [
        (None, ["fruit"], {"fruit": "pear", "till": 9}),
        (None, ["fruit", "shop"], None),
        ({"fruit": "†params.fruit", "shop": "†params.shop", "till": "†params.till"}, [], {"fruit": "pear", "till": 9}),
        ({"fruit": "†params.fruit", "shop": "†params.shop"}, ["shop"], None),
        ({"order": "†params"}, [], {"order": {"fruit": "pear", "shop": None, "till": 9}}),
    ],
    ids=["by-name", "by-name-required", "mapped", "mapped-required", "whole"],
)
def test_r23_4_an_undo_leaves_out_a_default_that_its_tool_does_not_accept(
    written: JsonObject | None, required: list[Json], made: JsonObject | None
) -> None:
    """An optional parameter often has the default `null`, which the undo tool may not take."""
    text: Json = {"type": "string"}
    till: Json = {"type": "integer", "default": 9}
    cancel = parse_tool(
        {
            "name": "cancel",
            "properties": {"fruit": text, "shop": text, "till": {"type": "integer"}},
            "required": required,
            "_activity": "cancel",
        },
        activities=["cancel"],
    )
    order = parse_tool(
        {
            "name": "order",
            "properties": {"fruit": text, "shop": {"type": ["string", "null"], "default": None}, "till": till},
            "_activity": "order",
            "_undo": "cancel" if written is None else {"tool": "cancel", "params": written},
        },
        activities=["order"],
    )
    plan = Plan(1, tools={"order": order}, state=State())
    plan.extend([{"_tool": "order", "fruit": "pear"}])
    plan.close()
    [call] = plan.take_ready("t")
    plan.end(call, Returned("ok"), "t")
    log = EffectLog([order], [cancel], Sizes())
    log.add(plan)
    [effect] = log.chunk(0, None).effects
    assert (effect.status, effect.params) == (("cannot be undone", {}) if made is None else ("done", made))


DONE = Effect(call="1.0", tool="mail", undo="undo", params={"what": 1})
UNKNOWN = Effect(call="1.1", tool="pay", status="unknown", reason="timeout: whether it took effect is not known")
RUNNING = "run/1.1 is running: which effects it will have is not known"


@pytest.mark.parametrize(
    ("runs", "is_sequential", "undoes", "waits", "reason"),
    [
        ({"run/1.1": [DONE]}, False, {"1.1": ["run/1.1"], "1.0": []}, [], ""),
        ({"run/1.1": [UNKNOWN]}, False, {}, ["1.1", "1.0"], f"run/1.1/1.1 pay: {UNKNOWN.reason}"),
        (
            {"run/1.1": [DONE, UNKNOWN]},
            False,
            {"1.1": ["run/1.1"]},
            ["1.1", "1.0"],
            f"run/1.1/1.1 pay: {UNKNOWN.reason}",
        ),
        ({"run/1.1": RUNNING}, False, {}, ["1.1", "1.0"], RUNNING),
        ({"a": [DONE], "b": [UNKNOWN], "c": [DONE]}, False, {"1.1": ["a", "c"]}, ["1.1", "1.0"], None),
        ({"a": [DONE], "b": [UNKNOWN], "c": [DONE]}, True, {"1.1": ["c"]}, ["1.1", "1.0"], None),
        ({"a": [DONE], "b": [DONE, UNKNOWN]}, True, {"1.1": ["b"]}, ["1.1", "1.0"], None),
    ],
    ids=["done", "unknown", "in-part", "running", "loop", "sequential", "sequential-in-part"],
)
def test_r23_4_calls_on_which_an_unknown_delegate_depends_are_not_undone(
    runs: dict[str, list[Effect] | str],
    is_sequential: bool,
    undoes: dict[str, list[str]],
    waits: list[str],
    reason: str | None,
) -> None:
    """A delegate's calls that are done are undone, also beside one whose outcome is not known."""
    clerk = effect_of_runs(Effect(call="1.1", tool="clerk", runs=True, sequential=is_sequential), runs)
    assert clerk is not None
    assert reason in (None, clerk.reason)
    base = UndoBase.of(RunInput(agent={"name": "a"}), [UNDO], None)
    found = RunEffects("run", base, [DONE, clerk], [("1.0", "1.1")])
    plan, made = plan_undo(found)
    assert ({each.call: each.below for each in plan.undoes}, [each.call for each in plan.waits]) == (undoes, waits)
    outputs = [] if made is None else [each["output"] for each in made.agent["context"] if each["type"] == "plan"]
    done: Json = {"undone": ["1.1", "1.0"], "cannot_be_undone": []}
    assert outputs == ([None if waits else done] if undoes else [])  # without an output it fails
    if undoes and waits:
        with pytest.raises(RunError, match=r"Undo them first: perdure undo \S+ \[--no-effect R\.N\]"):
            found.settle(["1.1"])


@pytest.mark.parametrize("is_nested", [False, True], ids=["loop", "delegate-with-a-loop"])
def test_r23_4_an_unknown_loop_is_settled_only_after_its_earlier_iterations_are_undone(is_nested: bool) -> None:
    """The last iteration has nothing left to undo, and its unknown call took no effect."""
    undone = DONE.model_copy(update={"status": "undone"})

    def found(first: Effect) -> RunEffects:
        loop = Effect(call="1.1", tool="clerk", runs=True, sequential=True)
        clerk = effect_of_runs(loop, {"run/1.1/0": [first], "run/1.1/1": [undone, UNKNOWN]})
        if is_nested and clerk is not None:
            clerk = effect_of_runs(Effect(call="1.1", tool="boss", runs=True), {"run/1.1": [clerk]})
        assert clerk is not None
        assert (clerk.status, clerk.below) == ("unknown", [])
        return RunEffects("run", effects=[DONE, clerk], order=[("1.0", "1.1")])

    with pytest.raises(RunError, match="perdure undo run/1.1 " if is_nested else "perdure undo run/1.1/0 "):
        found(DONE).settle(["1.1"])
    settled = found(undone)
    settled.settle(["1.1"])
    assert [each.call for each in plan_undo(settled)[0].undoes] == ["1.0"]


def test_r23_4_an_unknown_call_below_a_delegates_delegate_makes_both_delegates_unknown() -> None:
    clerk = effect_of_runs(Effect(call="1.1", tool="clerk", runs=True), {"run/1.1/1.1": [DONE, UNKNOWN]})
    assert clerk is not None
    boss = effect_of_runs(Effect(call="1.1", tool="boss", runs=True), {"run/1.1": [clerk]})
    assert boss == Effect(
        call="1.1",
        tool="boss",
        runs=True,
        status="unknown",
        below=["run/1.1"],
        reason=f"run/1.1/1.1/1.1 pay: {UNKNOWN.reason}",
    )


def test_r23_4_an_undo_whose_result_cannot_be_used_is_done() -> None:
    record = UndoRecord(run_id="order", calls={"1.0": "7.0", "1.1": "7.1"}, keys={"1.0": "pay", "1.1": "book"})
    error: JsonObject = {"code": "refused_by_hook", "message": "it is secret"}
    views = [CallView(id=id, tool="act", params={}, status="failed", error=error) for id in ("1.0", "1.1")]
    views[0].carried_out = True
    assert undo_outcomes(record, views)["pay"] == ("done", "")
    assert undo_outcomes(record, views)["book"][0] == "failed"
    assert "1.1 act failed" in (words := undo_stop_reason(record, views))
    assert "1.0" not in words


def test_r23_4_a_delegate_with_undone_calls_is_undone_though_others_have_no_undo() -> None:
    sub, pay, mail = (
        Effect(call="0.0", tool="sub", runs=True),
        Effect(call="1.0", tool="pay"),
        Effect(call="1.1", tool="mail"),
    )
    mail = mail.model_copy(update={"status": "cannot be undone"})
    for status, shown in (("done", "done"), ("undone", "undone")):
        found = effect_of_runs(sub, {"r/0.0": [pay.model_copy(update={"status": status}), mail]})
        assert found is not None
        assert (found.status, found.reason) == (shown, "1 of its calls cannot be undone")
    [alone] = [effect_of_runs(sub, {"r/0.0": [mail]})]
    assert alone is not None
    assert alone.status == "cannot be undone"
