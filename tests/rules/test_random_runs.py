"""No run breaks a rule (R23.1): random plans that stream in, with failures, people who edit and replace, and continue-as-new."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.approvals.decisions import parse_decision
from perdure.errors import CallError, DecisionError
from perdure.models.requests import RequestResult
from perdure.plan import Call, Failed, Rejected, Returned
from perdure.rules import RuleBook
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
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
from perdure.runs.snapshot import restore, snapshot
from perdure.runs.wire import PreparedWorker
from tests.rules.outcomes import STATE, TOOLS, breaks, random_calls, random_rules


class RandomRun:
    """A run whose model, tools and people do what chance says. It notes what begins and how it ends."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rules = random_rules(self.chance)
        self.history: list[tuple[str, Call]] = []
        asked: Any = self.chance.choice([{}, {"b": "always"}, {"a": "always", "b": "always"}])
        self.agent = parse_agent(
            {
                "name": "a",
                "context": [{"type": "state", "state": STATE}],
                "config": {"approval": {"ask": "never", "tools": asked}},
            }
        )
        self.run = self._new_run()
        self.began = 0

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
            self.run.close_request(loop.plan, loop.result)
            if self.run.plan is None and self.chance.random() < 0.3:  # it continues as new
                taken, self.run = snapshot(self.run), self._new_run()
                restore(self.run, taken.model_validate_json(taken.model_dump_json()))

    def _request(self, loop: RequestLoop, number: int) -> None:
        calls = [self._renumbered(call, number) for call in random_calls(self.chance)]
        arriving, answered = list(calls), False
        waiting: list[StartCall] = []
        ready: list[Call] = []
        running: list[Call] = []
        for task in range(1, 200):
            loop.work(1000 * number + task, "t")
            for start in loop.starts("t"):
                assert not isinstance(start, ShowPlan)
                if start.approval_request is None:
                    ready.append(start.call)
                else:
                    waiting.append(start)
            if loop.stage in (RequestStage.SETTLED, RequestStage.REVISED):
                return
            deeds = [*(["arrive"] if arriving else []), *(["answer"] if not arriving and not answered else [])]
            deeds += ["decide"] * len(waiting) + ["begin"] * len(ready) + ["end"] * len(running)
            deed = self.chance.choice(deeds) if deeds else "nothing"
            if deed == "arrive":
                loop.report(CallsArrived([arriving.pop(0)]))
            elif deed == "answer":
                answered = True
                loop.report(SolutionEnded(RequestResult(calls=calls)))
            elif deed == "decide":
                self._decide(loop, waiting.pop(self.chance.randrange(len(waiting))), ready)
            elif deed == "begin":
                call = ready.pop(self.chance.randrange(len(ready)))
                if not loop.may_begin(call):
                    ready.append(call)
                elif (refused := loop.begin(call)) is not None:
                    loop.report(CallEnded(call, refused))
                else:
                    loop.plan.home(call).resume(call, "t")
                    self._begin(call)
                    running.append(call)
            elif deed == "end":
                call = running.pop(self.chance.randrange(len(running)))
                fails = self.chance.random() < 0.3
                self.history.append(("failed" if fails else "done", call))
                value = Returned({"n": self.chance.randrange(2)})
                loop.report(CallEnded(call, Failed(CallError("boom", "it broke")) if fails else value))
        raise AssertionError(
            f"Request {number} does not end: {[(c.id, c.state.status) for c in loop.plan.every_call()]}"
        )

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


def runs(first: int, count: int) -> Iterator[RandomRun]:
    for seed in range(first, first + count):
        one = RandomRun(seed)
        try:
            one.play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        yield one


def test_r23_1_no_random_run_breaks_a_rule() -> None:
    began = sum(one.began for one in runs(0, 60))
    assert began > 48


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_r23_1_no_random_run_breaks_a_rule_in_many(part: int) -> None:
    assert sum(one.began for one in runs(1000 + 1000 * part, 1000)) > 1000
