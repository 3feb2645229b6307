"""A completed plan as a procedure: for any plan it is valid, and it makes the same calls with the same inputs (R23.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.agents.files import call_problems, plan_of
from perdure.client.recorded_runs import check_procedure
from perdure.errors import RunError
from perdure.plan import Call, Plan, Returned
from perdure.runs.agent import Context, parse_agent
from perdure.runs.procedures import Procedure, RunPlan, differing_literals, literals, plan_of_run, procedure_of
from perdure.runs.wire import RunView
from perdure.tools.tool import Tool, parse_tool
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.state import State

DEFINITION: JsonObject = {
    "name": "t",
    "properties": {"p": {}, "q": {}, "n": {"type": "integer", "minimum": 0}},
    "_activity": "t",
}
TOOLS: dict[str, Tool] = {"t": parse_tool(DEFINITION, activities=["t"])}
DOCUMENT: JsonObject = {"name": "a", "context": [{"type": "tool", "tool": DEFINITION}]}


def play(plan: Plan, calls: Sequence[Any]) -> list[Call]:
    """Run a plan to its end; each call returns its own parameters."""
    for raw in calls:
        plan.add(raw)
    plan.close()
    while ready := plan.take_ready():
        for call in ready:
            plan.home(call).end(call, Returned({"got": call.inputs.params}))
    return [*plan.every_call()]


def run_requests(requests: Sequence[Sequence[Any]]) -> list[Call]:
    """Run the plans of a run's Requests, one after the other, on one state."""
    state, calls = State([]), []
    for number, raws in enumerate(requests, 1):
        calls += play(Plan(number, tools=TOOLS, state=state), raws)
    return calls


def promoted(calls: Sequence[Call]) -> RunPlan:
    return plan_of_run(RunView(run_id="r", status="completed"), calls, None, {}, TOOLS.values())


def made(calls: Sequence[Call]) -> list[str]:
    return sorted(dumps(call.inputs.params) for call in calls if call.state.status == "done" and call.spec.loop is None)


def run_procedure(procedure: Procedure, inputs: Json) -> list[Call]:
    agent = parse_agent(procedure.agent)
    context = Context(agent, inputs, has_input=bool(procedure.inputs))
    planned = plan_of([*context.plan], context, agent.config, {"t": DEFINITION}, request=0)
    assert call_problems(planned.checked()) == []
    plan = Plan(0, tools=TOOLS, state=State([]), data=context.values())
    return play(plan, [*context.plan])


@st.composite
def requests_of_runs(draw: st.DrawFn) -> list[list[JsonObject]]:
    """One to three Requests with calls that read what was written before, in chains, joins, branches, texts, loops and orders."""
    paths: list[str] = []
    requests: list[list[JsonObject]] = []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        calls: list[JsonObject] = []
        free = ["†state.a", "†state.b", "†state.c || †state.d"]
        for index in range(draw(st.integers(1, 3))):
            call: JsonObject = {
                "_tool": "t",
                "n": draw(st.integers(0, 3)),
                "p": draw(st.sampled_from(["x", "††", [1, "y"]])),
            }
            reads, ordered, writes = (draw(st.integers(0, 1)) for _ in range(3))
            if paths and reads:
                first, second = draw(st.sampled_from(paths)), draw(st.sampled_from([*paths, "†state.never"]))
                forms = [first, f"{second} || {first}", f"text {{{first}}}", [first, 1], {"a": first, "b": 2}]
                call["q"] = draw(st.sampled_from(forms))
            if calls and ordered:
                call["_after"] = draw(st.sampled_from([f"{number}.{index - 1}", [f"ended {number}.0"]]))
            if free and writes:  # two calls that write a path at once race
                call["_outputPath"] = free.pop(draw(st.integers(0, len(free) - 1)))
            if draw(st.integers(0, 4)) == 0:
                call |= {"_each": [1, 2], "p": "†item"}
            if draw(st.integers(0, 4)) == 0:
                call["_if"] = draw(st.sampled_from(["1 > 2", "2 > 1"]))
            calls.append(call)
        requests.append(calls)
        done = run_requests(requests)
        written = (write.path for call in done for write in call.state.writes)
        paths = [f"†state.{path[0]}" for path in written if path]
    return requests


@settings(max_examples=50)
@given(requests_of_runs(), st.data())
def test_r23_3_a_procedure_is_valid_and_makes_the_same_calls_with_the_same_inputs(
    requests: list[list[JsonObject]], data: st.DataObject
) -> None:
    calls = run_requests(requests)
    assert {call.state.status for call in calls} <= {"done", "skipped"}
    if not made(calls):
        return
    try:
        plan = promoted(calls)
    except RunError as error:
        assert "would read an older value" in str(error)
        return
    places = [place for place, _ in literals(plan.calls)]
    chosen = data.draw(st.lists(st.sampled_from(places), unique=True, max_size=4)) if places else []
    named = {f"i{number}": [plan.place(plan.name_of(place))] for number, place in enumerate(chosen)}
    procedure = procedure_of(plan, DOCUMENT, "p", named)
    assert made(run_procedure(procedure, procedure.inputs)) == made(calls)


@settings(max_examples=25)
@given(requests_of_runs(), st.data())
def test_r23_3_runs_that_differ_in_literals_alone_have_these_as_inputs(
    requests: list[list[JsonObject]], data: st.DataObject
) -> None:
    others = [[{**call, "n": data.draw(st.integers(0, 3))} for call in calls] for calls in requests]
    both = [run_requests(each) for each in (requests, others)]
    if not made(both[0]):
        return
    try:
        plans = [promoted(calls) for calls in both]
    except RunError as error:
        assert "would read an older value" in str(error)
        return
    named, outputs = differing_literals(plans)
    procedure = procedure_of(plans[0], DOCUMENT, "p", named, outputs)
    for plan, calls in zip(plans, both, strict=True):
        inputs = {name: plan.calls[places[0][0]]["n"] for name, places in named.items()}
        assert made(run_procedure(procedure, inputs)) == made(calls)


def test_r23_3_a_later_request_of_the_procedure_waits_for_the_one_before() -> None:
    calls = run_requests([[{"_tool": "t", "n": 1}, {"_tool": "t", "n": 2, "_if": "1 > 2"}], [{"_tool": "t", "n": 3}]])
    assert promoted(calls).calls[2]["_after"] == ["0.0", "ended 0.1"]


def test_r23_3_a_procedure_may_have_as_many_calls_as_its_run() -> None:
    calls = run_requests([[{"_tool": "t", "n": n} for n in range(3)]] * 2)
    found = []
    for most in (3, 6, 7):
        plan = promoted(calls)
        procedure = procedure_of(plan, DOCUMENT | {"config": {"max_calls": most}}, "monthly", {})
        check_procedure(procedure, plan)
        found.append(procedure.agent["config"]["max_calls"])
    assert found == [6, 6, 7]
    assert "max_calls" not in procedure_of(promoted(calls), DOCUMENT, "monthly", {}).agent["config"]
    small = procedure.model_copy(update={"agent": procedure.agent | {"config": {"max_calls": 5, "start": "plan"}}})
    with pytest.raises(RunError, match="may have 5 calls at most"):
        check_procedure(small, plan)


def test_r23_3_a_call_that_only_its_own_plan_kept_from_an_older_value_is_refused() -> None:
    writes: JsonObject = {"_tool": "t", "n": 1, "_outputPath": "†state.a"}
    reads: JsonObject = {"_tool": "t", "n": 2, "q": "†state.a"}
    calls = run_requests([[writes], [{**writes, "_if": "1 > 2"}, reads]])
    assert [call.state.status for call in calls] == ["done", "skipped", "skipped"]
    with pytest.raises(
        RunError, match=r"2\.1.* reads a path that a skipped call writes, and would read an older value"
    ):
        promoted(calls)
    other: JsonObject = {**writes, "_outputPath": "†state.b"}
    calls = run_requests([[writes, other], [{**writes, "_if": "1 > 2"}, {**reads, "q": "†state.a || †state.b"}]])
    assert [call.state.status for call in calls] == ["done", "done", "skipped", "done"]
    with pytest.raises(RunError, match="would read an older value"):
        promoted(calls)
    assert len(promoted(run_requests([[writes], [{**reads, "_if": "1 > 2"}]])).calls) == 2


def test_r23_3_plans_of_other_shapes_and_runs_that_did_not_complete_are_refused() -> None:
    one, two = (promoted(run_requests([[{"_tool": "t", "n": 1}] * times])) for times in (1, 2))
    with pytest.raises(RunError, match="no common shape"):
        differing_literals([one, two])
    with pytest.raises(RunError, match="not completed"):
        plan_of_run(RunView(run_id="r", status="failed"), [], None, {}, [])
    document = {**DOCUMENT, "context": [{"type": "input", "schema": {"properties": {"n": {}}}}]}
    with pytest.raises(RunError, match="already has an input 'n'"):
        procedure_of(one, document, "p", {"n": [(0, ("n",))]})
    with pytest.raises(RunError, match="not the name of a procedure"):
        procedure_of(one, DOCUMENT, "../p", {})


def test_r23_3_the_digest_is_of_the_plan_and_not_of_the_run() -> None:
    first, second, third = (promoted(run_requests([[{"_tool": "t", "n": n}]])) for n in (1, 1, 2))
    digests = [procedure_of(each, DOCUMENT, "p", {}).digest for each in (first, second, third)]
    assert digests[0] == digests[1] != digests[2]
    by_input = [procedure_of(each, DOCUMENT, "p", {"n": [(0, ("n",))]}).digest for each in (first, third)]
    assert by_input[0] == by_input[1]


def test_r23_3_ids_in_the_body_of_a_loop_become_places_in_it() -> None:
    body = [{"_tool": "t", "n": 1}, {"_tool": "t", "n": 2, "_after": ["1.0[0].0"]}]
    calls = run_requests([[{"_tool": "_for", "_each": [1, 2], "_body": body}]])
    plan = promoted(calls)
    assert plan.calls[0]["_body"][1]["_after"] == [".0"]
    assert plan.place("1.0._body.0.n") == plan.place("1.0._body[0].n")
    procedure = procedure_of(plan, DOCUMENT, "p", {"k": [plan.place("1.0._body.0.n")]})
    assert made(run_procedure(procedure, procedure.inputs)) == made(calls)
