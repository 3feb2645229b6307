"""No run breaks a rule (R23.1): random plans that stream in, with failures, people who edit and replace, new messages, and continue-as-new."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.approvals.decisions import parse_decision
from perdure.errors import CallError, DecisionError
from perdure.models.requests import CallDelivery, RequestResult
from perdure.plan import Call, Failed, Plan, Rejected, Returned
from perdure.rules import FollowedBy, Rule, RuleBook, at_most, count_at_most, followed_by
from perdure.runs.agent import AgentSpec, Context, ModelChoice, Models, parse_agent
from perdure.runs.request_loop import (
    CallEnded,
    CallsArrived,
    RequestLoop,
    RequestStage,
    ShowPlan,
    SolutionEnded,
    StartCall,
)
from perdure.runs.run import RunState
from perdure.runs.snapshot import restore, take_snapshot
from perdure.runs.wire import PreparedWorker
from tests.rules.outcomes import STATE, TOOLS, breaks, followed_rules, random_calls, random_rules, unfollowed
from tests.soak import times


def asking(tools: dict[str, Any]) -> AgentSpec:
    """Return an agent that asks people about these tools."""
    return parse_agent(
        {
            "name": "a",
            "context": [{"type": "state", "state": STATE}],
            "config": {"approval": {"ask": "never", "tools": tools}},
        }
    )


class RandomRun:
    """A run whose model, tools and people do what chance says. It notes what begins and how it ends."""

    def __init__(self, seed: int, *, followed: bool = False) -> None:
        self.chance = random.Random(seed)
        self.rules = self.chance.sample(random_rules(self.chance), 5)
        self.followed = followed_rules(self.chance) if followed else []
        self.rules += self.followed
        self.history: list[tuple[str, Call]] = []
        asked: Any = self.chance.choice([{}, {"b": "always"}, {"a": "always", "b": "always"}])
        if followed:  # people, and other rules, may refuse the call that has to follow
            self.rules, asked = self.followed, {}
        self.kept = 0
        """Calls after which another had to begin, and did."""
        self.agent = asking(asked)
        self.run = self._new_run()
        self.began = self.steered = 0
        self.waiting: list[StartCall] = []
        self.ready: list[Call] = []
        self.queued: list[Call] = []
        """Calls that have begun for the rules, and are not scheduled."""
        self.running: list[Call] = []

    def _new_run(self) -> RunState:
        run = RunState(self.agent, Context(self.agent), PreparedWorker(tools=[*TOOLS.values()], models=Models()))
        run.approval_queue.guard.policy = self.agent.config.approval
        run.approval_queue.guard.base = self.agent.config.approval
        run.approval_queue.rules = run.rules = RuleBook(self.rules, prefix="run/")
        return run

    def play(self, requests: int = 4) -> None:
        loop: RequestLoop | None = None
        for number in range(1, requests + 1):
            self.run.situation()
            self.run.begin_request(ModelChoice("m", "test"))
            goes_on = self.run.plan is not None
            self.run.open_plan(number)
            if goes_on and loop is not None:
                loop.go_on()
            else:
                loop = RequestLoop(self.run)
            self._request(loop, number)
            plan = loop.plan
            self.run.close_request(plan, loop.result, cut=loop.cut)
            if self.run.plan is None:
                self._check_followed(plan)
            if self.run.plan is None and self.chance.random() < 0.3:  # it continues as new
                taken, self.run = take_snapshot(self.run), self._new_run()
                restore(self.run, taken.model_validate_json(taken.model_dump_json()))

    def _request(self, loop: RequestLoop, number: int) -> None:
        calls = [*self._decisions(loop), *(self._renumbered(call, number) for call in random_calls(self.chance))]
        arriving, answered = list(calls), False
        for task in range(1, 300):
            loop.work(1000 * number + task, "t")
            for start in loop.starts("t"):
                assert not isinstance(start, ShowPlan)
                if start.approval_request is None:
                    self.ready.append(start.call)
                else:
                    self.waiting.append(start)
            self._forget(loop)
            if loop.stage in (RequestStage.SETTLED, RequestStage.REVISED):
                return
            deeds = [*(["arrive"] if arriving else []), *(["answer"] if not arriving and not answered else [])]
            deeds += ["decide"] * len(self.waiting) + ["begin"] * len(self.ready)
            deeds += ["schedule"] * len(self.queued) + ["end"] * len(self.running)
            deed = self.chance.choice(deeds) if deeds else "nothing"
            if self.chance.random() < 0.03:
                self.steered += 1
                loop.steer()
            elif deed == "arrive":
                loop.report(CallsArrived([arriving.pop(0)]))
            elif deed == "answer":
                answered = True
                loop.report(SolutionEnded(RequestResult(calls=calls)))
            elif deed != "nothing":
                self._act(loop, deed)
        raise AssertionError(
            f"Request {number} does not end: {[(c.id, c.state.status) for c in loop.plan.every_call()]}"
        )

    def _act(self, loop: RequestLoop, deed: str) -> None:
        """Decide about a call, begin, schedule or end one."""
        if deed == "decide":
            self._decide(loop, self.waiting.pop(self.chance.randrange(len(self.waiting))), self.ready)
        elif deed == "end":
            call = self._taken(self.running)
            fails = self.chance.random() < 0.3
            self.history.append(("failed" if fails else "done", call))
            value = Returned({"n": self.chance.randrange(2)})
            loop.report(CallEnded(call, Failed(CallError("boom", "it broke")) if fails else value))
        else:
            calls = self.ready if deed == "begin" else self.queued
            call = self._taken(calls)
            if not loop.may_begin(call):
                calls.append(call)
                return
            refused = loop.begin(call) if deed == "begin" else loop.still_refused(call)
            if refused is not None:
                loop.report(CallEnded(call, refused))
                return
            loop.plan.home(call).resume(call, "t")
            call.hold.queued = deed == "begin"
            if deed == "begin":
                self.queued.append(call)
            else:
                self._begin(call)
                self.running.append(call)

    def _check_followed(self, plan: Plan) -> None:
        """Fail if a plan that has ended lacks a call that had to begin after another."""
        ids = {id(call) for call in plan.every_call()}
        history = [(event, call) for event, call in self.history if id(call) in ids]
        for rule in self.followed:
            assert isinstance(rule, FollowedBy)
            broken = unfollowed(rule, history, plan, set())
            assert not broken, (rule.words, [call.id for call in broken], self.story)
            self.kept += sum(event == "done" and call.spec.tool_name == rule.call for event, call in history)

    def _decisions(self, loop: RequestLoop) -> list[dict[str, Any]]:
        """Return calls that keep or drop some of the held calls."""
        held = [call.id for call in loop.plan.held_calls.held]
        kept = [call for call in held if self.chance.random() < 0.5]
        dropped = [call for call in held if call not in kept and self.chance.random() < 0.7]
        return [{"_tool": "keep", "calls": kept, "drop": dropped}] if kept or dropped else []

    def _taken(self, calls: list[Call]) -> Call:
        return calls.pop(self.chance.randrange(len(calls)))

    def _forget(self, loop: RequestLoop) -> None:
        """Forget the calls for which nobody has to wait any more."""
        gone = {*loop.abandoned}
        loop.abandoned.clear()
        self.waiting = [start for start in self.waiting if start.call.id not in gone]
        self.ready = [call for call in self.ready if call.id not in gone]
        self.queued = [call for call in self.queued if call.id not in gone]

    def _renumbered(self, call: dict[str, Any], number: int) -> dict[str, Any]:
        if "_after" not in call:
            return call
        return call | {"_after": [item.replace("1.", f"{number}.") for item in call["_after"]]}

    def _begin(self, call: Call) -> None:
        self.began += 1
        for rule in self.rules:
            if rule.subject == call.spec.tool_name:
                assert not breaks(rule, call, self.history), (rule.words, call.id, self.story)
        self.history.append(("begun", call))

    @property
    def story(self) -> list[str]:
        return [
            f"{call.id} {call.spec.tool_name} {event} {call.inputs.params.get('p')}" for event, call in self.history
        ]

    def _decide(self, loop: RequestLoop, start: StartCall, ready: list[Call]) -> None:
        """Let a person approve, reject, edit or replace a call that waits."""
        queue, request = self.run.approval_queue, start.approval_request
        assert request is not None
        decisions: list[dict[str, Any]] = [
            {"decision": "approve"},
            {"decision": "approve", "remember": True},
            {"decision": "edit", "params": {"p": self.chance.randint(0, 4)}},
            {"decision": "replace", "with": {"_tool": self.chance.choice("ab"), "p": self.chance.randint(0, 4)}},
            {"decision": "reject"},
        ]
        while True:
            decision = decisions.pop(self.chance.randrange(len(decisions)))
            try:
                verdict = queue.apply(queue.judge(parse_decision(decision | {"call": request.id})))
            except DecisionError:
                continue
            break
        if isinstance(verdict.outcome, Rejected):
            loop.report(CallEnded(start.call, verdict.outcome))
        else:
            ready.append(start.call)


def runs(first: int, count: int, *, followed: bool = False) -> Iterator[RandomRun]:
    for seed in range(first, first + count):
        one = RandomRun(seed, followed=followed)
        try:
            one.play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        yield one


def test_r23_1_no_random_run_breaks_a_rule() -> None:
    played = list(runs(0, 60))
    assert sum(one.began for one in played) > 48
    assert sum(one.steered for one in played) > 10


def test_r23_1_in_no_random_run_a_call_that_has_to_follow_is_missing() -> None:
    played = list(runs(0, 200, followed=True))
    assert sum(one.kept for one in played) > 10
    assert sum(one.steered for one in played) > 40


def test_r23_1_a_call_that_a_person_has_put_in_the_place_of_another_is_judged_as_what_it_is() -> None:
    assert [one.began for one in runs(22703, 1)] == [6]


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_r23_1_no_random_run_breaks_a_rule_in_many(part: int) -> None:
    assert sum(one.began for one in runs(1000 + 1000 * part, times(1000))) > times(1000)
    assert sum(one.kept for one in runs(1000 + 1000 * part, times(1000), followed=True)) > times(30)


def _steered(
    first: dict[str, Any], anew: list[dict[str, Any]], rule: Rule, *, begun: bool = False
) -> list[tuple[str, str]]:
    """Return the calls, after a message has held the first call behind one that runs, and the model has answered.

    `begun`: the first call has begun for the rules, and is not scheduled yet.
    """
    one = RandomRun(0)
    one.rules, one.agent = [rule], asking({})
    one.run = run = one._new_run()
    run.situation()
    run.begin_request(ModelChoice("m", "test"))
    run.open_plan(1)
    loop = RequestLoop(run)
    waits = {} if begun else {"_after": ["1.0"]}
    loop.answer(RequestResult(calls=[{"_tool": "c", "_outputPath": "†state.r0"}, first | waits]))
    loop.work(1, "t")
    running, *others = (start.call for start in loop.starts("t") if isinstance(start, StartCall))
    for call in others:
        call.hold.queued = True
        assert loop.begin(call) is None
    loop.steer()
    loop.work(2, "t")
    assert not run.close_request(loop.plan, loop.result, cut=loop.cut)
    run.situation()
    run.begin_request(ModelChoice("m", "test"))
    run.open_plan(2)
    loop.go_on()
    for each in range(len(anew)):
        loop.deliver(CallDelivery(number=2, attempt=1, first=each, calls=[anew[each]]))
        loop.work(3 + each, "t")
    loop.answer(RequestResult(calls=anew, output={}))
    loop.work(99, "t")
    loop.report(CallEnded(running, Returned(1)))
    loop.work(100, "t")
    for start in loop.starts("t"):
        assert isinstance(start, StartCall)
        assert loop.begin(start.call) is None
    for call in others:
        if not call.state.ended:
            assert loop.may_begin(call)
            assert loop.still_refused(call) is None
            loop.plan.home(call).resume(call, "t")
    return [(call.id, call.state.status) for call in loop.plan.calls if call.spec.tool_name != "c"]


PAY: dict[str, Any] = {"_tool": "a", "p": 60, "_outputPath": "†state.paid"}


def test_r23_1_a_held_call_that_is_written_anew_counts_once() -> None:
    for rule in (at_most("a.p", 100), count_at_most("a", 1)):
        for begun in (False, True):
            found = _steered(PAY, [PAY | {"p": 50}], rule, begun=begun)
            assert found == [("1.1", "skipped"), ("2.0", "running")]


def test_r23_1_a_held_call_that_is_kept_counts_beside_the_new_ones() -> None:
    kept: list[dict[str, Any]] = [
        {"_tool": "keep", "calls": ["1.1"]},
        {"_tool": "a", "p": 50, "_outputPath": "†state.more"},
    ]
    for rule in (at_most("a.p", 100), count_at_most("a", 1)):
        for begun in (False, True):
            found = dict(_steered(PAY, kept, rule, begun=begun))
            assert found == {"1.1": "running", "2.0": "done", "2.1": "invalid"}
        found = dict(_steered(PAY, kept[::-1], rule))
        assert sorted([found["1.1"], found["2.0"]]) == ["invalid", "running"]


def _arrives(calls: list[dict[str, Any]]) -> tuple[list[list[str]], list[str]]:
    """Return which calls start after each call that arrives, and after the end of the list; and how all of them stand."""
    one = RandomRun(0, followed=True)
    one.rules, one.agent = [followed_by("a", "b")], asking({})
    one.run = run = one._new_run()
    run.situation()
    run.begin_request(ModelChoice("m", "test"))
    run.open_plan(1)
    loop, started = RequestLoop(run), []
    for place in range(len(calls) + 1):
        if place < len(calls):
            loop.deliver(CallDelivery(number=1, attempt=1, first=place, calls=[calls[place]]))
        else:
            loop.answer(RequestResult(calls=calls))
        loop.work(place + 1, "t")
        starts = [start.call for start in loop.starts("t") if isinstance(start, StartCall)]
        started.append([call.id for call in starts if loop.begin(call) is None])
    return started, [call.state.status for call in loop.plan.calls]


def test_r23_1_a_call_is_held_until_the_one_that_has_to_follow_has_arrived() -> None:
    first: dict[str, Any] = {"_tool": "a", "p": 1, "_outputPath": "†state.x"}
    other: dict[str, Any] = {"_tool": "c"}
    last: dict[str, Any] = {"_tool": "b", "_after": ["ended 1.0"]}
    assert _arrives([first, other, last]) == ([[], ["1.1"], ["1.0"], []], ["running", "running", "pending"])
    assert _arrives([first, other]) == ([[], ["1.1"], []], ["invalid", "running"])
    assert _arrives([first, last | {"_if": "state.yes"}]) == ([[], [], ["1.1"]], ["invalid", "running"])
    loop: dict[str, Any] = {"_tool": "_for", "_each": [1, 2], "_body": [first]}
    assert _arrives([loop, other]) == ([[], ["1.1"], []], ["invalid", "running"])
    assert _arrives([loop, last])[0] == [[], ["1.0[0].0", "1.0[1].0"], []]
