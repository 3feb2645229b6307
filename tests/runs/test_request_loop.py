"""The inner loop of a Request: its stages, its events, and what it starts (R6.2, R6.3, R6.4, R7.6, R9.5)."""

from __future__ import annotations

import gc
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.approvals.policy import Guard, Policy
from perdure.approvals.requests import ApprovalRequest, ApprovalVerdict
from perdure.errors import CallError
from perdure.hooks.answers import Hooks
from perdure.hooks.events import HookAnswer, HookRef
from perdure.models.requests import CallDelivery, RequestResult
from perdure.models.usage import Usage
from perdure.plan import Failed, RefusedByRule, Rejected, Returned
from perdure.rules import AtMost, CountAtMost, RuleBook
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.limits import Limit, WorkClock
from perdure.runs.request_loop import CallEnded, LimitReached, PlanDecided, RequestLoop, RequestStage, ShowPlan
from perdure.runs.run import RunState
from perdure.runs.version_switches import NEWEST
from perdure.runs.views import fit_result, run_view
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import parse_tool
from tests.cpu import Cpu, in_one_try, takes_less

TOOL = parse_tool({"name": "t", "properties": {"x": {}}, "_activity": "t"}, activities=["t"])
LISTS = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
LONG = parse_tool({"name": "lists", "properties": {"x": LISTS}, "_activity": "t"}, activities=["t"])
THEN = parse_tool({"name": "then", "properties": {"x": {}}, "_activity": "then"}, activities=["then"])
PAY = parse_tool({"name": "pay", "properties": {"euros": {}}, "_activity": "perdure.client"})
LATE = Limit("deadline", "the run has worked for 600 s")


def loop_of(**config: Any) -> RequestLoop:
    agent = parse_agent({"name": "a", "context": [], "config": config})
    run = RunState(agent, Context(agent), PreparedWorker(tools=[TOOL, LONG, THEN, PAY], models=Models()))
    run.approval_queue.guard.policy = Policy(scope=config.get("approval", {}).get("scope", "calls"))
    run.rules = run.approval_queue.rules = RuleBook(agent.config.rules)
    run.situation()
    run.begin_request(ModelChoice("m", "test"))
    run.open_plan(1)
    return RequestLoop(run)


def call(index: int, reads: int | None = None) -> dict[str, Any]:
    read = {} if reads is None else {"x": f"†state.s{reads}"}
    return {"_tool": "t", **read, "_outputPath": f"†state.s{index}"}


def delivered(*calls: Any, first: int = 0) -> CallDelivery:
    return CallDelivery(number=1, attempt=1, first=first, calls=list(calls))


class Driver:
    """Carries out what the loop starts, as a workflow does."""

    def __init__(self, loop: RequestLoop) -> None:
        self.loop = loop
        self.task = 0

    def step(self) -> list[str]:
        """One workflow task: the names of what starts."""
        self.task += 1
        self.loop.work(self.task, "")
        return ["plan" if isinstance(start, ShowPlan) else start.call.id for start in self.loop.starts("")]

    def end(self, call_id: str, value: Any = 1) -> list[str]:
        self.loop.report(CallEnded(self.loop.running[call_id], Returned(value)))
        return self.step()


@pytest.mark.parametrize(("euros", "used"), [(60, 60), (5000, 0)])
def test_r23_1_rules_judge_a_call_of_a_client_as_its_hooks_have_changed_it(euros: int, used: int) -> None:
    loop = loop_of(rules=[{"rule": "at_most", "of": "pay.euros", "sum": 100}])
    rules = loop._rules
    loop.hooks = Hooks([HookRef(name="h", event="before_tool_call", timeout=5, closed=True)])
    driver = Driver(loop)
    loop.answer(RequestResult(calls=[{"_tool": "pay", "euros": 50}]))
    assert driver.step() == ["1.0"]
    running = loop.running["1.0"]
    asked = loop.let_pass(running, HookAnswer(changed={"params": {"euros": euros}}, by=["h"]), "")
    assert isinstance(asked, ApprovalRequest if used else RefusedByRule)
    loop.steer()  # the client has the call, so a message gives nothing back
    driver.step()
    (rule,) = rules.rules
    assert isinstance(rule, AtMost)
    assert rules.used(rule) == used


EMPTY: list[dict[str, Any]] = [
    {"_tool": "t", "_each": [], "x": 1},
    {"_tool": "t", "_each": [1, 2], "_if": "item > 5", "x": 1},
    {"_tool": "_for", "_each": "†state.s9", "_body": [{"_tool": "t", "x": 1}]},
    {"_tool": "_while", "_while": "1 > 2", "_body": [{"_tool": "t", "x": 1}]},
]


@pytest.mark.parametrize("counts_each", [True, False])
@pytest.mark.parametrize("same", [None, "x"])
@pytest.mark.parametrize("loop_call", EMPTY)
def test_r23_1_a_loop_without_a_done_iteration_makes_no_call(
    loop_call: dict[str, Any], same: str | None, counts_each: bool
) -> None:
    precedes = {"rule": "precedes", "first": "t", "then": "then", "same": same}
    after = {"rule": "never_after", "call": "then", "after": "t", "event": "done", "same": same}
    written = {"_tool": "_let", "value": [], "_outputPath": "†state.s9"}
    for rule in (precedes, after):
        loop = loop_of(rules=[{key: value for key, value in rule.items() if value is not None}])
        loop._rules.counts_each = counts_each
        driver = Driver(loop)
        loop.answer(RequestResult(calls=[written, loop_call, {"_tool": "then", "x": 1, "_after": ["1.1"]}]))
        starts = counts_each is (rule is after) if loop_call["_tool"] == "t" else rule is after
        assert driver.step() == (["1.2"] if starts else []), rule
        assert loop.plan.calls[1].state.status == "done"
        assert loop.plan.calls[2].state.status == ("running" if starts else "invalid")


@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("event", ["done", "failed"])
def test_r23_1_an_order_counts_the_calls_of_each_iteration(event: str, failed: bool) -> None:
    loop = loop_of(rules=[{"rule": "never_after", "call": "then", "after": "t", "event": event, "same": "x"}])
    driver = Driver(loop)
    loop.answer(RequestResult(calls=[{"_tool": "t", "_each": [1, 2], "x": "†item"}]))
    assert driver.step() == ["1.0[0]", "1.0[1]"]
    driver.end("1.0[0]")
    if failed:
        loop.report(CallEnded(loop.running["1.0[1]"], Failed(CallError("bad", "it failed"))))
        driver.step()
    else:
        driver.end("1.0[1]")
    assert loop.plan.calls[0].state.status == "done"
    assert sum(map(len, loop._rules.record.entries.values())) == (2 - failed if event == "done" else failed)


def test_r6_3_calls_start_while_the_model_writes_and_the_request_settles_with_the_last() -> None:
    loop = loop_of()
    driver = Driver(loop)
    loop.deliver(delivered(call(0), call(1, reads=0)))
    assert (driver.step(), loop.stage) == (["1.0"], RequestStage.STREAMING)
    assert driver.end("1.0") == ["1.1"]
    assert not loop.waits
    loop.answer(RequestResult(calls=[call(0), call(1, reads=0), call(2)], output={}))
    assert (driver.step(), loop.stage) == (["1.2"], RequestStage.DRAINING)
    driver.end("1.1")
    driver.end("1.2")
    assert loop.stage is RequestStage.SETTLED
    assert loop.result.output == {}
    assert [each.id for each in loop.ended] == ["1.0", "1.1", "1.2"]


@pytest.mark.parametrize("rejected", [False, True])
def test_r7_6_a_plan_that_is_shown_as_a_whole_starts_when_it_was_decided(rejected: bool) -> None:
    loop = loop_of(approval={"scope": "plan"})
    driver = Driver(loop)
    loop.deliver(delivered(call(0)))
    assert driver.step() == []
    loop.answer(RequestResult(calls=[call(0), call(1)]))
    assert (driver.step(), loop.stage, loop.waits) == (["plan"], RequestStage.ANSWERED, True)
    loop.report(PlanDecided(ApprovalVerdict(Rejected("no") if rejected else None)))
    assert driver.step() == ([] if rejected else ["1.0", "1.1"])
    assert loop.stage is (RequestStage.SETTLED if rejected else RequestStage.DRAINING)


def test_r7_6_nothing_runs_of_a_plan_whose_answer_broke_off() -> None:
    loop = loop_of(approval={"scope": "plan"})
    driver = Driver(loop)
    loop.answer(RequestResult(calls=[call(0)], problem={"code": "x", "message": "x"}))
    assert (driver.step(), loop.stage) == ([], RequestStage.SETTLED)
    assert loop.plan.calls[0].state.status == "rejected"


def test_r7_6_an_edited_plan_takes_the_place_of_the_runs() -> None:
    loop = loop_of(approval={"scope": "plan"})
    driver = Driver(loop)
    loop.answer(RequestResult(calls=[call(0)]))
    driver.step()
    (offer,) = loop._run.approval_queue.waiting.values()
    assert offer.new_plan is not None
    edited = offer.new_plan()
    edited.extend([call(0), call(1)])
    edited.close()
    loop.report(PlanDecided(ApprovalVerdict(plan=edited)))
    assert driver.step() == ["1.0", "1.1"]
    assert loop.plan is edited
    assert loop._run.plan is edited


@pytest.mark.parametrize("rejected", [False, True])
def test_r10_5_a_call_in_the_queue_that_a_person_removes_from_the_plan_does_not_run(rejected: bool) -> None:
    loop = loop_of(approval={"scope": "plan"})
    driver, run = Driver(loop), loop._run
    loop.answer(RequestResult(calls=[call(0), call(1)]))
    driver.step()
    run.approval_queue.waiting.clear()
    loop.report(PlanDecided(ApprovalVerdict()))
    assert driver.step() == ["1.0", "1.1"]
    loop.running["1.1"].hold.queued = True  # it waits for a slot, or for the tenant's ledger
    loop.steer()
    driver.step()
    run.close_request(loop.plan, loop.result, cut=loop.cut)
    run.situation()
    run.begin_request(ModelChoice("m", "test"))
    run.open_plan(2)
    loop.go_on()
    loop.answer(RequestResult(calls=[call(2)]))
    driver.step()  # the model says nothing of 1.1: it is asked about once
    assert loop.plan.calls[1].hold.held
    run.close_request(loop.plan, loop.result, cut=loop.cut)
    run.situation()
    run.begin_request(ModelChoice("m", "test"))
    run.open_plan(3)
    loop.go_on()
    loop.answer(RequestResult(calls=[]))
    assert driver.step() == ["plan"]
    edited = run.new_plan(3)
    edited.close()
    verdict = ApprovalVerdict(Rejected("no")) if rejected else ApprovalVerdict(plan=edited)
    loop.report(PlanDecided(verdict))
    driver.step()
    assert loop.plan.calls[1].state.status == ("rejected" if rejected else "skipped")
    assert "1.1" not in loop.running
    assert "1.1" in loop.abandoned
    assert (loop.plan.calls[0].state.status, loop.stage) == ("running", RequestStage.DRAINING)
    driver.end("1.0")
    assert (loop.plan.calls[0].state.status, loop.stage) == ("done", RequestStage.SETTLED)


def test_r10_5_a_running_round_of_a_loop_goes_on_where_a_person_rejects_the_plan_of_a_later_request() -> None:
    loop = loop_of(approval={"scope": "plan"}, rules=[{"rule": "count_at_most", "of": "t", "count": 3}])
    driver, run = Driver(loop), loop._run
    (rule,) = run.agent.config.rules
    assert isinstance(rule, CountAtMost)
    each = {"_tool": "_for", "_each": [[1], [2]], "_body": [{"_tool": "t", "x": "†item"}], "_parallel": 1}
    loop.answer(RequestResult(calls=[each]))
    driver.step()
    run.approval_queue.waiting.clear()
    loop.report(PlanDecided(ApprovalVerdict()))
    assert driver.step() == ["1.0[0].0"]
    inner = loop.running["1.0[0].0"]
    assert loop.begin(inner) is None
    loop.steer()
    driver.step()
    for number in (2, 3):  # the model says nothing of the loop: it is asked about once
        run.close_request(loop.plan, loop.result, cut=loop.cut)
        run.situation()
        run.begin_request(ModelChoice("m", "test"))
        run.open_plan(number)
        loop.go_on()
        loop.answer(RequestResult(calls=[]))
        started = driver.step()
    assert started == ["plan"]
    loop.report(PlanDecided(ApprovalVerdict(Rejected("no"))))
    assert driver.step() == []
    assert (inner.state.status, loop.abandoned, loop.stage) == ("running", [], RequestStage.DRAINING)
    assert run.rules.used(rule) == 1
    driver.end("1.0[0].0")
    outer = loop.plan.calls[0].state
    assert (inner.state.status, outer.status, outer.reason) == ("done", "skipped", "no after 0 of 2 iterations")
    assert loop.stage is RequestStage.SETTLED
    assert run.rules.used(rule) == 1


@pytest.mark.parametrize("answered", [False, True])
def test_r9_5_a_limit_settles_what_is_left(answered: bool) -> None:
    loop = loop_of()
    driver = Driver(loop)
    loop.deliver(delivered(call(0), call(1), call(2, reads=0)))
    driver.step()
    if answered:
        loop.answer(RequestResult(calls=[call(0), call(1), call(2, reads=0)]))
        driver.step()
    loop.report(LimitReached(LATE))
    driver.step()
    assert loop.limit is LATE
    loop.report(CallEnded(loop.running["1.1"], Returned(1)))  # just in time, while the others were cancelled
    loop.stop(LATE, "")
    assert loop.stage is RequestStage.SETTLED
    assert [each.state.status for each in loop.plan.calls] == ["failed", "done", "skipped"]
    assert (loop.result.problem is None) is answered


def test_r6_7_what_arrives_after_the_result_adds_nothing() -> None:
    loop = loop_of()
    driver = Driver(loop)
    loop.answer(RequestResult(calls=[call(0)]))
    loop.deliver(delivered(call(0), call(1)))
    assert driver.step() == ["1.0"]
    assert len(loop.plan.calls) == 1


@given(st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=10), st.integers(0, 2**32))
def test_r6_7_each_call_starts_once_whatever_comes_when(reads: list[int | None], seed: int) -> None:
    """Deliveries, ends and the result in any order: every call starts at most once, and the Request settles."""
    dice = Random(seed)
    calls = [call(n, read if read is None or read < n else None) for n, read in enumerate(reads)]
    loop = loop_of()
    driver, started, sent, answered = Driver(loop), list[str](), 0, False
    while loop.stage is not RequestStage.SETTLED:
        if not answered and dice.random() < 0.5:
            first, sent = sent, dice.randint(sent, len(calls))
            loop.deliver(delivered(*calls[first:sent], first=first))
        elif not answered and dice.random() < 0.3:
            answered = True
            loop.answer(RequestResult(calls=calls))
        elif loop.running:
            loop.report(CallEnded(dice.choice(list(loop.running.values())), Returned(1)))
        started += driver.step()
    assert sorted(started) == sorted(f"1.{n}" for n in range(len(calls)))


def test_r18_5_large_literals_come_in_with_several_tasks() -> None:
    """Looking through what a model has written out takes its time as well, whatever its tools' schemas say."""
    loop = loop_of()
    driver = Driver(loop)
    loop.deliver(delivered(*({"_tool": "t", "x": [[n]] * 30_000} for n in range(10))))
    started = [driver.step()]
    assert 1 <= len(started[0]) < 9
    while loop.behind:
        started.append(driver.step())
    assert [name for names in started for name in names] == [f"1.{n}" for n in range(10)]


@pytest.mark.parametrize("takes", ["to check", "to compute"])
def test_r18_5_what_takes_long_goes_with_several_tasks(takes: str) -> None:
    """Each of these takes 40,000 steps or more, and a task takes in calls until there are 750,000."""
    loop = loop_of()
    driver = Driver(loop)
    computed = {"_tool": "t", "x": {"_expr": "len([0 for i in range(20000)])"}}
    calls = [computed if takes == "to compute" else {"_tool": "lists", "x": [[n]] * 20_000} for n in range(32)]
    loop.deliver(delivered(*calls))
    started = [driver.step()]
    assert loop.behind
    assert len(loop.plan.calls) < 32 or takes == "to compute"
    assert 1 < len(started[0]) < 32
    while loop.behind:
        started.append(driver.step())
    assert [name for names in started for name in names] == [f"1.{n}" for n in range(32)]


@given(st.lists(st.sampled_from(["asked", "rests", "both", "works"]), min_size=1, max_size=6), st.integers(0, 2**32))
def test_r9_5_time_counts_while_anything_of_the_runs_own_is_under_way(kinds: list[str], seed: int) -> None:
    """Whatever order offers, rests and ends come in; hooks and tools are work, whether they come before a rest or behind it."""
    dice, loop = Random(seed), loop_of(approval={"ask": "never"})
    driver, desk, clock = Driver(loop), loop._run.approval_queue, WorkClock()
    loop.answer(RequestResult(calls=[call(n) for n in range(len(kinds))]))
    driver.step()
    left = {
        f"1.{n}": {"asked": ["asked"], "rests": ["rests"], "both": ["asked", "rests"], "works": []}[kind]
        for n, kind in enumerate(kinds)
    }
    idle: set[str] = set()
    worked = now = 0.0
    clock.work(now)
    while loop.running:
        name = dice.choice(sorted(loop.running))
        if name in idle:
            idle.discard(name)
            loop.resting.discard(name)
            desk.withdraw([desk.waiting[name]] if name in desk.waiting else [])
        elif left[name]:
            idle.add(name)
            if left[name].pop(0) == "asked":
                one = loop.running[name]
                desk.add_question(loop.plan.home(one), one, "")
            else:
                loop.resting.add(name)
        else:
            driver.end(name)
        assert loop.waits is (bool(loop.running) and idle == set(loop.running))
        (clock.pause if loop.waits else clock.work)(now)
        passes = dice.random()
        now += passes
        worked += 0 if idle and idle == set(loop.running) else passes
        assert clock.worked(now) == pytest.approx(worked)
    assert (loop.stage, loop.waits) == (RequestStage.SETTLED, False)


def test_r18_5_no_task_of_a_request_with_ten_thousand_calls_is_long() -> None:
    """The calls came in one task, and all their records were made in the one that closed the Request: each took a second."""
    assert in_one_try(lambda: _longest_task_of_ten_thousand_calls() < 100), (
        "half of the time after which the SDK fails a task"
    )


def _longest_task_of_ten_thousand_calls() -> float:
    loop = loop_of(max_calls=10_000)
    loop.answer(RequestResult(calls=[call(index) for index in range(10_000)], output={"all": "†state.s9999"}))
    driver, tasks = Driver(loop), []
    gc.collect()
    gc.freeze()
    try:
        for _ in range(100):
            cpu = Cpu()
            driver.step()
            tasks.append(cpu.laps())
            for name in list(loop.running)[:1_000]:
                loop.report(CallEnded(loop.running[name], Returned({"of": name})))
            if loop.stage is RequestStage.SETTLED:
                break
        cpu = Cpu()
        assert loop._run.close_request(loop.plan, loop.result)
        tasks.append(cpu.laps())
    finally:
        gc.unfreeze()
    assert len(loop._run.records.past.calls) == 10_000
    return max(tasks)


def test_r16_6_rounds_and_looks_at_them_take_a_small_part_of_a_task() -> None:
    """A round took up to 1 ms of a processor, and its remains were walked by each full collection of Python's memory."""

    def is_quick() -> bool:
        tasks, looks = _tasks_and_looks_of_rounds()
        return max(tasks) < 25 and max(looks) < 25 and sum(tasks) < 400

    assert in_one_try(is_quick), "half of what a task may take"


def _tasks_and_looks_of_rounds() -> tuple[list[float], list[float]]:
    let = {"_tool": "_let", "value": "†b", "_outputPath": "†state.v"}
    inner = {"_tool": "_for", "_each": list(range(100)), "_as": "b", "_body": [let]}
    outer = {"_tool": "_for", "_each": list(range(50)), "_as": "a", "_body": [inner], "_outputPath": "†state.all"}
    loop = loop_of()
    loop.deliver(delivered(outer))
    loop.answer(RequestResult(calls=[outer], output={}))
    tasks, looks = [], []
    gc.collect()
    gc.freeze()  # as a worker does: else each full collection walks all modules, too
    try:
        for task in range(1_000):
            cpu = Cpu()
            loop.work(task, "")
            assert loop.starts("") == []
            tasks.append(cpu.laps())
            if task % 20 == 0:
                cpu = Cpu()
                fit_result(
                    run_view(loop._run, "run"), sizes=loop._run.sizes, calls=loop._run.records.count(loop._run.plan)
                )
                looks.append(cpu.laps())
            if not loop.behind:
                break
    finally:
        gc.unfreeze()
    assert loop.stage is RequestStage.SETTLED
    assert loop._run.records.count(loop._run.plan) == 5_051
    return tasks, looks


def test_r16_6_the_calls_of_all_rounds_have_one_bound_and_looks_at_them_stay_short() -> None:
    """The rounds alone were counted: with a body of 100 calls a Request made a million."""
    lets = [{"_tool": "_let", "value": "†b", "_outputPath": f"†state.v{n}"} for n in range(100)]
    inner = {"_tool": "_for", "_each": list(range(100)), "_as": "b", "_body": lets}
    outer = {"_tool": "_for", "_each": list(range(12)), "_as": "a", "_body": [inner], "_outputPath": "†state.all"}
    loop, result = loop_of(), RequestResult(calls=[outer], output={})
    loop.deliver(delivered(outer))
    loop.answer(result)
    for task in range(1_000):
        loop.work(task, "")
        assert loop.starts("") == []
        if not loop.behind:
            break
    assert loop.stage is RequestStage.SETTLED
    ended = [call for call in loop.plan.every_call() if call.state.error is not None]
    assert "too_many_iterations" in {call.state.error.code for call in ended if call.state.error is not None}
    assert 9_900 < loop._run.records.count(loop._run.plan) <= 10_001
    gc.collect()  # else a collection of what the calls left may begin while the view is made

    def look() -> None:
        fit_result(run_view(loop._run, "run"), sizes=loop._run.sizes, calls=loop._run.records.count(loop._run.plan))

    assert takes_less(look, 25), "half of what a task may take"


def test_r10_5_an_output_of_what_a_running_call_writes_is_held_when_a_message_comes() -> None:
    """The output cannot be read at the plan's end, which has not come."""
    loop = loop_of()
    driver = Driver(loop)
    loop.answer(RequestResult(calls=[call(0), call(1)], output={"x": "†state"}))
    assert driver.step() == ["1.0", "1.1"]
    driver.end("1.1")
    loop.steer()
    driver.step()
    assert loop.stage is RequestStage.REVISED
    assert not loop._run.close_request(loop.plan, loop.result)
    assert loop._run.output.value is None


def test_r18_5_no_task_of_many_calls_that_have_to_be_followed_is_long() -> None:
    """Each call that begins, and each request, compared the values of all other calls anew: a task took seconds."""
    assert in_one_try(lambda: max(_tasks_of_followed_calls(249)) < 50)


def _tasks_of_followed_calls(pairs: int) -> list[float]:
    rule = {"rule": "followed_by", "call": "t", "then": "then", "same": "x"}
    loop = loop_of(rules=[rule])
    loop._run.approval_queue.guard = Guard(Policy(tools={"then": "always"}))
    firsts: list[Any] = [{"_tool": "t", "x": [[index]]} for index in range(pairs)]
    thens = [{"_tool": "then", "x": [[index]], "_after": [f"1.{index}"]} for index in range(pairs)]
    loop.answer(RequestResult(calls=[*firsts, *thens]))
    driver, tasks = Driver(loop), []
    for _ in range(10):
        cpu = Cpu()
        started = driver.step()
        assert all(loop.begin(loop.running[name]) is None for name in started if loop.running[name].index < pairs)
        tasks.append(cpu.laps())
        if waiting := loop._run.approval_queue.waiting:
            assert len(waiting) == pairs
            assert all(each.required_by for each in waiting.values())
            return tasks
        for name in started:
            loop.report(CallEnded(loop.running[name], Returned(1)))
    raise AssertionError("no call waits for a person")


@pytest.mark.parametrize("event", ["begun", "failed"])
def test_r18_5_no_task_of_many_calls_whose_values_are_compared_is_long(event: str) -> None:
    """A rule compared each call with each other one, by references: a task took seconds."""
    assert in_one_try(lambda: _judging_of_compared_calls(event, 249) < 60)


def _judging_of_compared_calls(event: str, pairs: int) -> float:
    loop = loop_of(rules=[{"rule": "never_after", "call": "t", "after": "then", "same": "x", "event": event}])
    firsts: list[Any] = [{"_tool": "t", "x": f"†state.s.k{index}"} for index in range(pairs)]
    thens = [{"_tool": "then", "x": f"†state.s.k{index}", "_after": [f"1.{index + 1}"]} for index in range(pairs)]
    loop.answer(RequestResult(calls=[{"_tool": "lists", "x": [], "_outputPath": "†state.s"}, *firsts, *thens]))
    cpu = Cpu()
    assert Driver(loop).step() == ["1.0"]
    assert not any(call.state.error for call in loop.plan.calls)
    return cpu.laps()


@pytest.mark.parametrize(
    "rule", [{"rule": "count_at_most", "count": 1_000, "of": "t"}, {"rule": "at_most", "sum": 1e9, "of": "t.x"}]
)
def test_r18_5_no_task_of_many_calls_under_a_limit_is_long(rule: dict[str, Any]) -> None:
    """Each call added up the amounts of all calls before it: a task of 500 calls took seconds."""
    assert in_one_try(lambda: _begin_of_limited_calls(rule, 499) < 50)


def _begin_of_limited_calls(rule: dict[str, Any], count: int) -> float:
    loop = loop_of(rules=[rule])
    loop._run.approval_queue.guard = Guard(Policy(ask="never"))
    loop.answer(RequestResult(calls=[{"_tool": "t", "x": index} for index in range(count)]))
    cpu = Cpu()
    started = Driver(loop).step()
    assert [loop.begin(loop.running[name]) for name in started] == [None] * count
    return cpu.laps()


@pytest.mark.parametrize(("rules", "tokens"), [(NEWEST, 120), (0, 0)])
def test_r9_6_an_answer_that_comes_too_late_to_count_is_paid_for(rules: int, tokens: int) -> None:
    loop = loop_of()
    loop._run.prepared.rules = rules
    loop.deliver(delivered(call(0)))
    driver = Driver(loop)
    driver.step()
    usage = Usage(prompt_tokens=100, completion_tokens=20)
    loop.answer(RequestResult(calls=[call(5)], attempt=2, usage=usage))
    driver.step()
    assert len(loop.plan.calls) == 1
    assert loop._run.progress.usage.tokens == tokens
