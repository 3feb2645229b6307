"""Recorded runs under a change: without one nothing differs; with one the differences are those of the rules (R22.2)."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from perdure.approvals.requests import ApprovalRequest
from perdure.client.histories import audit_histories, kind_of, read_history
from perdure.hosting.connection import data_converter
from perdure.models.requests import RequestResult
from perdure.plan import Call, Rejected
from perdure.runs.limits import Limit
from perdure.runs.request_loop import CallEnded
from perdure.runs.run_player import PlayedRun, RecordedRun, RefusedCall, first_setup
from perdure.runs.what_if import Change, RunReport, WhatIfReport, _compare, ask_what_if, what_if
from perdure.runs.wire import AGENT_WORKFLOW
from tests.runs import random_runs
from tests.runs.random_runs import POLICIES, random_run
from tests.soak import share, times

FOLDER = Path(__file__).parents[1] / "histories"
REFUSED_AT_START = {"cancelled-delegate.agent", "unnotified", "by-hand-version.agent"}
"""Runs that ended before they began, beside `refused` and `hooked` ones: there is nothing to play."""


def same(recorded: RecordedRun) -> Change:
    """Return the change to the policy that the run has."""
    policy = (first_setup(recorded).document.get("config") or {}).get("approval") or {}
    return Change(policy={"scope": policy} if isinstance(policy, str) else policy)


async def read(path: Path) -> RecordedRun | None:
    """Return the run of a recorded history; `None`: it is another workflow."""
    history = read_history(path)

    async def histories() -> AsyncIterator[WorkflowHistory]:
        yield history

    if kind_of(history) != AGENT_WORKFLOW:
        return None
    audit = await audit_histories(path.stem, histories(), data_converter())
    return RecordedRun(path.stem, audit.logs, audit.view)


@pytest.mark.parametrize("version", sorted(folder.name for folder in FOLDER.iterdir()))
async def test_r22_2_without_a_change_nothing_differs_in_any_recorded_history(version: str) -> None:
    """Each play is also compared with the record itself: a run that is not played as it was has a `problem`."""
    paths = sorted((FOLDER / version).glob("*.json"))
    reports = [
        what_if(recorded, same(recorded)) if recorded.logs else RunReport(run_id=recorded.run_id, problem="no run")
        for path in random.Random(0).sample(paths, share(len(paths)))
        if (recorded := await read(path)) is not None
    ]
    assert [run.run_id for run in reports if run.problem is None and run.differs] == []
    unplayed = {run.run_id for run in reports if run.problem is not None}
    assert {name for name in unplayed if name.split(".")[0] not in ("refused", "hooked")} <= REFUSED_AT_START
    assert len(reports) - len(unplayed) > share(40)


async def test_r22_2_a_run_whose_request_someone_has_completed_with_a_text_is_read() -> None:
    recorded = await read(next(FOLDER.glob("*/by-hand-request.agent.json")))
    assert recorded is not None
    report = what_if(recorded, same(recorded))
    assert (report.problem, report.differs) == (None, False)


async def test_r22_2_any_policy_gives_a_report_of_each_recorded_history() -> None:
    paths = sorted((FOLDER / "0.2.0").glob("*.json"))[::8]
    recorded = [found for path in paths if (found := await read(path)) is not None and found.logs]
    for policy in POLICIES:
        report = WhatIfReport(runs=[what_if(each, Change(policy=policy)) for each in recorded])
        assert len(report.played) == len(recorded)
        json.dumps(report.as_json())


def test_r22_2_without_a_change_nothing_differs_in_random_runs() -> None:
    for seed in range(share(200)):
        check_random_run(seed)


def test_r22_2_a_rule_about_no_call_of_the_run_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a rule forbids a call that was about to begin: 117 has one."""
    rule = {"rule": "never_after", "call": "t3", "after": "t2", "event": "done"}
    monkeypatch.setattr(random_runs, "RULES", [rule])
    other = {"rule": "count_at_most", "of": "no_such_tool", "count": 99}
    for seed in range(117, 117 + share(100)):
        recorded = random_run(seed)
        if "rules" in first_setup(recorded).document["config"]:
            report = what_if(recorded, Change(rules=[rule, other]))
            assert (report.differs, report.unknown_calls, report.differences) == (False, 0, []), seed


def answered(recorded: RecordedRun, change: Change, answers: dict[int, RequestResult]) -> tuple[RunReport, int]:
    """Return the report on a run with these answers of a model, by Request, and how often the model was asked."""
    playing, answer, asked = ask_what_if(recorded, change), None, 0
    while True:
        try:
            question = playing.send(answer)
        except StopIteration as ended:
            return ended.value, asked
        answer, asked = answers.get(question.number), asked + 1


def answers_of(recorded: RecordedRun) -> dict[int, RequestResult]:
    found, number = {}, 0
    for step in (step for log in recorded.logs for step in log.steps):
        number += step.kind == "request"
        if step.kind == "answer":
            found[number] = step.data[0]
    return found


def test_r22_2_a_model_or_agent_that_is_the_recorded_one_is_not_asked_and_nothing_differs() -> None:
    """So it is with hooks, decisions, changes of the policy, messages and child runs."""
    kinds: set[str] = set()
    for seed in range(share(150)):
        recorded = random_run(seed, more=True)
        kinds |= {step.kind for log in recorded.logs for step in log.steps}
        for change in (Change(model="gpt-4o-mini"), Change(agent=first_setup(recorded).document)):
            report, asked = answered(recorded, change, {})
            assert (report.problem, asked) == (None, 0), seed
            assert not report.differs, f"{seed}: {report.as_json()}"
            assert (report.tokens_after, report.waited_after) == (report.tokens, report.waited), seed
    assert kinds >= {"hooks", "decision", "timeout", "policy", "released", "used", "steer", "break"}


def test_r22_2_another_model_with_the_recorded_answers_makes_no_difference() -> None:
    for seed in range(share(150)):
        recorded = random_run(seed, more=True)
        answers = answers_of(recorded)
        report, asked = answered(recorded, Change(model="other"), answers)
        assert (report.problem, asked) == (None, len(answers)), seed
        assert not report.differs, f"{seed}: {report.as_json()}"
        assert report.tokens_after == report.tokens, seed


def test_r22_2_any_answers_of_another_model_give_a_report() -> None:
    """A call with the id of a recorded one gets no decision, hook or result of that one, unless it is the same call."""
    for seed in range(share(150)):
        recorded, others = random_run(seed, more=True), answers_of(random_run(seed + 1, more=True))
        own = answers_of(recorded)
        moved = {number: each.model_copy(update={"calls": each.calls[::-1]}) for number, each in own.items()}
        for answers in (others, own | others, moved):
            report, asked = answered(recorded, Change(model="other"), answers)
            assert report.problem is None, seed
            assert asked > 0
            assert report.approvals_added or report.approvals_removed or report.differences or not report.plan_differs
            json.dumps(report.as_json())


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_r22_2_without_a_change_nothing_differs_in_a_thousand_random_runs() -> None:
    for seed in range(1000, 1000 + times(1000)):
        check_random_run(seed)


def check_random_run(seed: int) -> None:
    recorded = random_run(seed)
    report = what_if(recorded, same(recorded))
    assert report.problem is None, f"{seed}: {report.problem}"
    assert not report.differs, f"{seed}: {report.as_json()}"
    policy = POLICIES[seed % len(POLICIES)]
    report = what_if(recorded, Change(policy=policy))
    assert report.problem is None, f"{seed} {policy}: {report.problem}"
    check_consistent(report)


def check_consistent(report: RunReport) -> None:
    """What is reported of a run under any policy fits together."""
    assert report.tokens_after <= report.tokens
    assert report.waited_after <= report.waited
    # A plan that a person had cut is whole where nobody is asked about plans.
    uncut = any(note.tool == "" for note in report.approvals_removed)
    assert uncut or not (report.plan_differs and report.unknown_from is None and not report.unknown_calls)
    assert report.requests_after <= report.requests


def test_r22_2_a_stricter_policy_only_adds_approvals_and_a_looser_one_removes_them() -> None:
    """A message holds a call that waits, and none that runs: so runs with messages are left out."""
    added = removed = 0
    for seed in range(60):
        recorded = random_run(seed)
        if any(step.kind == "message" for log in recorded.logs for step in log.steps):
            continue
        policy = first_setup(recorded).document["config"]["approval"]
        if policy == {"ask": "never"}:
            report = what_if(recorded, Change(policy={"ask": "always"}))
            added += len(report.approvals_added)
            assert not (report.approvals_removed)
            assert not (report.refused)
            assert not (report.unknown_calls)
            assert not (report.unknown_from)
        elif policy == {"ask": "always"}:
            report = what_if(recorded, Change(policy={"ask": "never"}))
            removed += len(report.approvals_removed)
            assert not (report.approvals_added)
            assert not (report.refused)
    assert added > 5
    assert removed > 3


def test_r22_2_what_a_person_rejected_is_unknown_where_nobody_is_asked() -> None:
    found = 0
    for seed in range(120):
        recorded = random_run(seed)
        if first_setup(recorded).document["config"]["approval"] != {"ask": "always"}:
            continue
        ends = {step.call: step.data[0] for log in recorded.logs for step in log.steps if step.kind == "ended"}
        rejected = {id for id, outcome in ends.items() if isinstance(outcome, Rejected) and id.startswith("1.")}
        if not rejected:
            continue
        found += 1
        report = what_if(recorded, Change(policy={"ask": "never"}))
        assert report.unknown_calls > 0
        assert report.unknown_from == 2
        assert report.requests_after == 1
    assert found > 2


def test_r22_2_a_call_that_had_not_begun_at_the_deadline_is_skipped_in_the_play(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(driver: Any, call: Call) -> None:
        driver.resume(call)
        driver.loop.stop(Limit("deadline", "the run has worked for 600 s"), "")

    monkeypatch.setattr(random_runs._Driver, "_end", stop)
    skipped = 0
    for seed in range(40):
        recorded = random_run(seed)
        assert recorded.view is not None
        skipped += any(call.status == "skipped" and call.started_at is not None for call in recorded.view.calls)
        report = what_if(recorded, same(recorded))
        assert (report.problem, report.differs) == (None, False), seed
    assert skipped > 20


def run_with_program(seed: int, monkeypatch: pytest.MonkeyPatch, decision: str = "approve") -> RecordedRun:
    """Return a run with a policy under which a program has made this decision about each call."""

    def decide(driver: Any, request: ApprovalRequest) -> None:
        queue = driver.run.approval_queue
        judged = queue.judge_program(request, decision, PROGRAM["approver"])
        assert judged is not None
        verdict = queue.apply(judged)
        if request.call is not None and verdict.outcome is not None:
            driver.loop.report(CallEnded(request.call, verdict.outcome))

    monkeypatch.setattr(random_runs, "POLICIES", [PROGRAM])
    monkeypatch.setattr(random_runs, "RULES", [{"rule": "count_at_most", "of": "t0", "count": 100}])
    monkeypatch.setattr(random_runs._Driver, "_decide", decide)
    return random_run(seed)


PROGRAM = {"ask": "always", "approver": "rules:decide"}


def test_r22_2_an_approval_of_a_program_that_the_policy_no_longer_has_is_one_of_a_person(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = 0
    for seed in range(300, 330):
        recorded = run_with_program(seed, monkeypatch)
        assert recorded.view is not None
        asked = {call.id for call in recorded.view.calls if call.approval is not None}
        found += len(asked)
        assert not what_if(recorded, Change(policy=PROGRAM)).differs
        report = what_if(recorded, Change(policy={"ask": "always"}))
        assert {note.call for note in report.approvals_added} == asked
        assert not report.unknown_calls
        report = what_if(recorded, Change(policy={"ask": "never"}))
        assert (report.approvals_removed, report.waited, report.waited_after) == ([], 0, 0)
        first = {call.id for call in recorded.view.calls if call.tool == "t0" and call.approval is not None}
        ask = {"rule": "count_at_most", "of": "t0", "count": 0, "otherwise": "ask"}
        report = what_if(recorded, Change(rules=[ask]))
        assert {note.call for note in report.approvals_added} == first
        assert not report.refused
    assert found > 20


def test_r22_2_a_call_that_a_former_program_rejected_is_unknown_where_a_person_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = 0
    for seed in range(300, 310):
        recorded = run_with_program(seed, monkeypatch, "reject")
        assert recorded.view is not None
        asked = [call for call in recorded.view.calls if call.approval is not None]
        found += len(asked)
        report = what_if(recorded, Change(policy={"ask": "always"}))
        assert (report.unknown_calls > 0, bool(report.approvals_added)) == (bool(asked), bool(asked))
    assert found > 5


def test_r22_2_a_refused_call_that_does_not_run_under_the_change_is_not_allowed() -> None:
    def played(status: str, refused: dict[str, RefusedCall]) -> PlayedRun:
        call = {"id": "1.1", "tool": "t0", "params": {}, "status": status}
        return PlayedRun(graph={"calls": [call], "edges": []}, refused=refused)

    before = played("failed", {"1.1": RefusedCall("1.1", "t0", "the rule")})
    for status, allowed in (("skipped", []), ("done", ["1.1"])):
        report = RunReport(run_id="run")
        _compare(report, before, played(status, {}))
        assert [note.call for note in report.allowed] == allowed


def test_r22_2_an_agent_file_without_the_models_of_the_recorded_one_is_not_played() -> None:
    recorded = random_run(1)
    document = first_setup(recorded).document
    file = document | {"config": {key: value for key, value in document["config"].items() if key != "models"}}
    document["config"]["models"] = {"smart": "gpt-5"}
    report = what_if(recorded, Change(agent=file))
    assert report.problem is not None
    assert report.problem.startswith("config.models: the agent file leaves out smart, which the recorded one has. ")
    named = file | {"config": file["config"] | {"models": {"smart": "gpt-5-mini"}}}
    assert what_if(recorded, Change(agent=named)).problem is None


def test_r22_2_a_report_names_new_rules_that_hold_over_several_runs() -> None:
    recorded = random_run(1)
    rules = [{"rule": "count_at_most", "of": "t0", "count": 1, "per": per} for per in ("run", "session", "tenant/day")]
    report = WhatIfReport(runs=[what_if(recorded, Change(rules=rules)) for _ in range(2)])
    lines = [line for line in report.total_lines() if line.startswith("judged in each run alone: ")]
    assert lines == [
        f'judged in each run alone: count_at_most(t0, 1, per="{per}")' for per in ("session", "tenant/day")
    ]
