"""A loop's result fits into a payload, whatever its iterations give or how they fail (R18.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.approvals.decisions import Decision
from perdure.approvals.policy import Guard, Policy, parse_policy
from perdure.approvals.queue import ApprovalQueue
from perdure.models.requests import RequestResult
from perdure.models.usage import Price, Usage
from perdure.plan import Plan
from perdure.runs.agent import Context, Models, parse_agent
from perdure.runs.delegates import child_input
from perdure.runs.limits import Budget
from perdure.runs.loops import LoopInput, most_items, part_document
from perdure.runs.request_loop import RequestLoop
from perdure.runs.run import RunState
from perdure.runs.version_switches import NEWEST
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import parse_tool, resolve_tools
from perdure.values.limits import LIMITS_OF_CHILDREN, MAX_PAYLOAD
from perdure.values.provenance import USER, Sources
from perdure.values.sizes import Sizes
from perdure.values.state import State
from tests.plan.test_steering import World, act
from tests.soak import share

TEXTS = st.sampled_from(["x", "é", "語", "\x01", '"', "👩"])
SIZES = st.integers(0, 50) | st.integers(0, 1000) | st.integers(0, 200_000)


def loop(count: int, kind: Any = "each", limit: int = MAX_PAYLOAD) -> LoopInput:
    made = LoopInput(kind=kind, agent={}, params={}, items=[0] * count, max_payload=limit)
    if kind == "each":
        made.state.results = [None] * count
    return made


def encoded(of: LoopInput) -> int:
    return len(of.state.model_dump_json(by_alias=True).encode())


def end(of: LoopInput, index: int, failed: bool, text: str, code: str) -> None:
    if failed:
        of.keep_error(index, code, text)
    else:
        of.keep(index, text, Sizes().of(text))


@settings(max_examples=share(60), deadline=None)
@given(
    count=st.integers(1, 3000),
    kinds=st.lists(st.tuples(st.booleans(), TEXTS, SIZES, st.integers(0, 300)), min_size=1, max_size=20),
    kind=st.sampled_from(["each", "until"]),
)
def test_r18_3_the_state_of_any_loop_fits(count: int, kinds: list[tuple[bool, str, int, int]], kind: str) -> None:
    of = loop(count, kind)
    for index in range(count):
        failed, text, size, code = kinds[index % len(kinds)]
        end(of, index, failed, text * size, text * code)
        of.state.next += 1
        if kind == "until" and of.state.failures:
            break
    assert encoded(of) <= MAX_PAYLOAD
    if kind == "each":
        assert len(of.state.results) == count
        assert all("error" in each for each in of.state.results if isinstance(each, dict))


def test_r18_3_as_many_failures_as_items_fit() -> None:
    count = most_items(MAX_PAYLOAD)
    assert count >= 10_000
    of = loop(count)
    for index in range(count):
        end(of, index, True, "\x01" * 500, "\x01" * 500)
    assert of.state.failures == count
    assert encoded(of) <= MAX_PAYLOAD


def test_r18_3_what_has_ended_leaves_its_room_to_the_others() -> None:
    of = loop(10_000)
    for index in range(10_000):
        end(of, index, False, "x" * 160, "")
    assert of.state.failures == 0
    assert encoded(of) <= MAX_PAYLOAD


def test_r18_3_an_until_loops_result_that_is_too_large_is_its_error() -> None:
    of = loop(0, "until")
    end(of, 0, False, "x" * 1_890_000, "")
    assert (of.state.failures, of.state.satisfied) == (1, True)
    assert of.state.failed[0].code == "result_too_large"
    assert encoded(of) <= MAX_PAYLOAD


REFUND = {"name": "refund", "_dangerous": True, "properties": {"euros": {"type": "number"}}}
CLERK: Any = {"name": "clerk", "properties": {"request": {"type": "string"}}, "_delegate": "clerk"}
TOOLS = resolve_tools(["refund", "clerk"], {"refund": REFUND, "clerk": CLERK})
TIME = "2026-11-28T09:00:00+00:00"


def part_of(run: ApprovalQueue, tool: str = "refund", approved: str = "") -> tuple[ApprovalQueue, Any]:
    """The queue of a part of a loop in a plan that nobody, a `person` or a `standing` approval has approved, and the
    change of the policy that the part has for delegates.
    """
    plan = Plan(1, tools=TOOLS, state=State())
    parameter = {"euros": "†item"} if tool == "refund" else {"request": "†item"}
    call = plan.add({"_tool": tool, "_each": [0] * 101, **parameter})
    plan.close()
    assert call.spec.loop is not None
    if approved:
        assert run.add_plan(plan, TIME, lambda: Plan(1, tools=TOOLS, state=State())) is not None
        decision = Decision(call="1", decision="approve", by="ann")
        if approved == "person":
            for name in ("ann", "bob"):
                if run.waiting:
                    run.apply(run.judge(decision.model_copy(update={"by": name})))
        else:
            run.apply_standing(decision, ["trusted"])
    document: Any = part_document(call, call.spec.loop, TOOLS, {}, run.guard, {})
    change, owners = run.guard.change.as_change(), run.guard.tool_owners([tool])
    base, floor = parse_policy(document["config"]["approval"]), run.guard.floor
    part = ApprovalQueue(Guard(base, floor=floor, change=parse_policy(change), givers=owners))
    if (approval := run.plan_approval(plan)) is not None:
        part.begin_part(approval)
    return part, change


def parts_of(config: Any, rules: int = NEWEST) -> LoopInput:
    """The input of a loop in parts, in a run with this config that has used 100 tokens."""
    tools = list(resolve_tools(["refund"], {"refund": REFUND}).values())
    agent = parse_agent({"name": "a", "context": [], "config": config})
    run = RunState(agent, Context(agent), PreparedWorker(tools=tools, models=Models(), rules=rules))
    run.progress.usage.count("m", Usage(prompt_tokens=90, completion_tokens=10), {"m": Price(prompt=1, completion=1)})
    plan = run.open_plan(1)
    plan.extend([{"_tool": "refund", "_each": [0] * 900, "euros": "†item", "_parallel": 200}])
    plan.close(drain=True)
    (call,) = plan.take_ready()
    made = child_input(call, plan.values(call), run, Budget())
    assert isinstance(made, LoopInput)
    return made


def test_r16_1_a_part_keeps_the_models_prices_and_budgets_of_its_run() -> None:
    kept: Any = {
        "models": {"fast": "small"},
        "prices": {"small": {"prompt": 1.0, "completion": 2.0}},
        "model_patience": 60.0,
        "client_timeout": 30.0,
        "parallel": 200,
    }
    config: Any = {**kept, "token_budget": 1_000, "cost_budget": 3.0001, "stuck_after": 5}
    made, before = parts_of(config), parts_of(config, rules=8)
    own: Any = made.agent["config"]
    assert own == {**kept, "parallel": 100, "start": "plan", "approval": {}, "deadline": own["deadline"]}
    assert own.keys() - before.agent["config"].keys() == kept.keys() - {"parallel"}
    parse_agent(made.agent)
    assert (made.unreserved, made.concurrency) == (Budget(tokens=900, cost=3), 2)
    assert made.part_budget == Budget(tokens=450, cost=1.5)
    made.state.usage.count("small", Usage(prompt_tokens=500, completion_tokens=0), {})
    assert made.part_budget.tokens == 200
    assert before.part_budget == parts_of({}).part_budget == Budget()


def asks(queue: ApprovalQueue, sources: Sources = USER) -> bool:
    plan = Plan(0, tools=TOOLS, state=State())
    call = plan.add({"_tool": "refund", "euros": 1}, sources)
    plan.close()
    plan.take_ready()
    return queue.add_call(plan, call, TIME) is not None


@pytest.mark.parametrize("tools", [{}, {"refund": "always"}, {"refund": {"by": 2}}], ids=str)
def test_r7_6_parts_ask_nobody_only_if_their_plan_was_approved(tools: Any) -> None:
    policy = Policy(scope="plan", tools=tools)
    assert not asks(part_of(ApprovalQueue(Guard(policy)), approved="person")[0])
    assert asks(part_of(ApprovalQueue(Guard(policy)))[0])


@pytest.mark.parametrize("layer", ["agent", "run"])
def test_r7_6_a_part_has_the_policy_of_its_run_and_shows_no_plan(layer: str) -> None:
    scope = Policy(scope="plan", ask="never")
    guard = Guard(scope) if layer == "agent" else Guard(change=scope)
    part, _ = part_of(ApprovalQueue(guard))
    assert (part.guard.base, part.guard.change) == (guard.base, guard.change)
    plan = Plan(0, tools=TOOLS, state=State())
    plan.add({"_tool": "refund", "euros": 1})
    plan.close()
    assert part.add_plan(plan, TIME, lambda: Plan(0, tools=TOOLS, state=State())) is None


@pytest.mark.parametrize("approved", ["person", "standing"])
def test_r7_6_only_a_person_who_has_seen_the_parameters_satisfies_the_floor(approved: str) -> None:
    part, _ = part_of(ApprovalQueue(Guard(Policy(scope="plan"), floor="dangerous")), approved=approved)
    plan = Plan(0, tools=TOOLS, state=State())
    call = plan.add({"_tool": "refund", "euros": 1})
    plan.close()
    plan.take_ready()
    request = part.add_call(plan, call, TIME)
    assert (request is None, call.inputs.approved is not None) == (
        (True, True) if approved == "person" else (False, False)
    )


@pytest.mark.parametrize(
    "change", [{"ask": "always"}, {"tools": {"refund": "always"}}, {"tools": {"refund": {"by": 2}}}]
)
@pytest.mark.parametrize("when", ["before", "while it runs"])
def test_r7_7_a_stricter_policy_reaches_the_parts_of_an_approved_loop(change: Any, when: str) -> None:
    run = ApprovalQueue(Guard(Policy(scope="plan")))
    part, _ = part_of(run, approved="person")
    if when == "before":
        run.change_policy(parse_policy(change))
        part, _ = part_of(run)
    else:
        part.change_policy(parse_policy(change))
    assert asks(part)


@pytest.mark.parametrize("approved", ["", "person", "standing"])
def test_r8_2_a_delegate_in_a_part_has_the_policy_of_its_own_file(approved: str) -> None:
    _, change = part_of(ApprovalQueue(Guard(Policy(scope="plan"))), "clerk", approved)
    below = Guard(Policy(ask="always", scope="plan"), change=parse_policy(change))
    assert (below.policy.ask, below.policy.scope) == ("always", "plan")


@pytest.mark.parametrize("tools", [{}, {"refund": "never"}], ids=str)
def test_r23_3_parts_judge_the_sources_that_a_standing_approval_allows(tools: Any) -> None:
    part, _ = part_of(ApprovalQueue(Guard(Policy(scope="plan", tools=tools))), approved="standing")
    assert not asks(part)
    assert asks(part, frozenset({"!tool:read_mail"}))
    part.change_policy(parse_policy({"tools": {"clerk": "always"}}))
    assert asks(part)


BOSS: Any = {"name": "boss", "properties": {"x": {}}, "_delegate": "boss"}
ALONE: Any = {"name": "alone", "properties": {"x": {}}, "_activity": "alone", "_exclusive": "door"}
ACROSS: Any = {"_tool": "_for", "_each": [*range(101)], "_body": [{"_tool": "alone", "x": "†item"}], "_parallel": 200}


@pytest.mark.parametrize(
    ("tool", "parallel", "at_once"), [({"_exclusive": True}, None, 1), ({}, 3, 3), ({}, 20, 8), ({}, None, 8)], ids=str
)
def test_r5_12_the_runs_of_a_delegate_in_a_loop_keep_to_its_tool_and_to_the_runs_parallel(
    tool: Any, parallel: int | None, at_once: int
) -> None:
    world = World(tools=[parse_tool(BOSS | tool)], parallel=parallel)
    world.run.prepared.delegates["boss"] = {"name": "boss", "context": []}
    assert world.answer({"_tool": "boss", "x": 1, "_each": [*range(9)]}) == ["1.0"]
    assert world.run.plan is not None
    (call,) = world.run.plan.calls
    made = child_input(call, world.run.plan.values(call), world.run, Budget())
    assert isinstance(made, LoopInput)
    assert made.concurrency == at_once


def test_r5_12_an_exclusive_tool_in_the_parts_of_a_loop_runs_beside_no_other_call_of_it() -> None:
    window = parse_tool(ALONE | {"name": "window", "_activity": "window"}, activities=["window"])
    alone = parse_tool(ALONE, activities=["alone"])
    for beside in ({"_tool": "window", "x": 1}, ACROSS):
        world = World(tools=[alone, window])
        assert world.answer(ACROSS, beside) == ["1.0"]
        assert world.end("1.0") == ["1.1"]
        assert world.run.plan is not None
        child = child_input(world.run.plan.calls[0], {}, world.run, Budget())
        assert isinstance(child, LoopInput)
        assert child.concurrency == 1
    before = Plan(1, tools={"alone": alone}, state=State())
    before.checks.is_patched = lambda rule: rule != LIMITS_OF_CHILDREN
    before.extend([ACROSS, {"_tool": "alone", "x": 1}])
    before.close()
    assert [call.id for call in before.take_ready()] == ["1.0", "1.1"]


@pytest.mark.parametrize(("parallel", "at_once"), [(1, 1), (5, 5), (150, 100), (250, 200), (None, 200)])
def test_r5_12_the_parts_of_a_loop_keep_to_the_parallel_of_their_run(parallel: int | None, at_once: int) -> None:
    world = World(parallel=parallel)
    world.answer(act(x="†item", _each=list(range(1000)), _parallel=200))
    assert world.run.plan is not None
    (call,) = world.run.plan.calls
    child: Any = child_input(call, world.run.plan.values(call), world.run, Budget())
    agent = parse_agent(child.iteration(0)[0])
    part = RunState(agent, Context(agent), PreparedWorker(tools=list(world.run.tools.values()), models=Models()))
    part.open_plan(0)
    loop = RequestLoop(part)
    loop.answer(RequestResult(calls=list(part.context.plan)))
    started = 0
    for task in range(1, 5):  # a task opens a part of the iterations
        loop.work(task, TIME)
        started += len(loop.starts(TIME))
    assert child.concurrency * started == at_once
