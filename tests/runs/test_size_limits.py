"""Whatever grows in a run: what it tells its model, carries on, fails with and answers is under its limit, and known beforehand (R18.3)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.models.requests import RequestResult
from perdure.plan import Failed, Outcome, Returned
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.run import RunState
from perdure.runs.snapshot import estimate_snapshot_size, take_snapshot
from perdure.runs.views import fit_result, run_view
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import parse_tool
from perdure.values.limits import MAX_PAYLOAD
from perdure.values.sizes import Sizes, first_fitting
from tests.runs.test_snapshot import continued

NOW = "2026-01-01T00:00:00"


@dataclass
class Step:
    """A Request: what each call of it is given, in bytes, and how it ends."""

    calls: list[tuple[int, int, str]]


SIZE = st.integers(0, 200) | st.integers(0, 30_000)
STEPS = st.lists(
    st.builds(Step, st.lists(st.tuples(SIZE, SIZE, st.sampled_from(["set", "push", "none", "fail"])), max_size=8)),
    min_size=1,
    max_size=4,
)


def ended(n: int, size: int, how: str) -> Outcome:
    text = f"{n}" + "é" * size
    return Failed(CallError("broken", text)) if how == "fail" else Returned({"text": text, "n": [n]})


def begun(dialect: str, limit: int, **config: Any) -> RunState:
    """A run over one tool, before its first Request."""
    agent = parse_agent(
        {
            "name": "any",
            "config": {"dialect": dialect, "stuck_after": 100, **config},
            "context": [{"type": "tool", "tool": "t"}, {"type": "state", "state": {"start": "x" * 5000}}],
        }
    )
    tool = parse_tool({"name": "t", "properties": {"x": {}, "y": {}}}, activities=["t"], registered=True)
    prepared = PreparedWorker(tools=[tool], models=Models(fast="m", smart="m"), max_payload=limit)
    return RunState(agent, Context(agent, None, has_input=False), prepared)


def played(dialect: str, steps: list[Step], limit: int) -> tuple[RunState, int]:
    """The run after these Requests, and the largest context."""
    run = begun(dialect, limit)
    largest = 0
    for number, step in enumerate(steps, 1):
        run.situation()
        run.begin_request(ModelChoice("m", "only"))
        largest = max(largest, len(run.request_context(number).model_dump_json(by_alias=True).encode()))
        plan = run.open_plan(number)
        raws: list[dict[str, Any]] = []
        for n, (given_bytes, _, how) in enumerate(step.calls):
            path = {"set": f"†state.k{n}", "push": "†state.all"}.get(how)
            to = {} if path is None else {"_outputPath": path, "_outputMethod": how}
            raws.append({"_tool": "t", "x": "x" * given_bytes, "y": "as {†state.start}", **to})
            plan.add(raws[-1])
        plan.close()
        while ready := plan.take_ready(NOW):
            for call in ready:
                plan.end(call, ended(call.index, *step.calls[call.index][1:]), NOW)
        run.close_request(plan, RequestResult(calls=raws))
    return run, largest


@settings(max_examples=25)
@given(st.sampled_from(["solution", "script", "tools"]), STEPS, st.integers(60_000, 200_000))
def test_r18_3_any_run_tells_carries_on_and_fails_within_its_limits(
    dialect: str, steps: list[Step], limit: int
) -> None:
    run, largest = played(dialect, steps, limit)
    assert largest <= limit, "a Request's context"
    view = fit_result(run_view(run, "r"), limit, run.sizes)
    assert len(view.model_dump_json(by_alias=True).encode()) <= limit, "the query"
    failure = fit_result(view.result().model_copy(update={"status": "failed", "error": "x" * 1000}), limit, run.sizes)
    assert len(failure.model_dump_json(by_alias=True).encode()) <= limit, "the failure"
    weighed, made = estimate_snapshot_size(run), take_snapshot(run)
    size = len(made.model_dump_json(exclude_defaults=True).encode())
    assert size <= 1.3 * weighed + 40_000, "what a snapshot holds is known before it is made"
    again = continued(run)
    assert (again.state.snapshot(), again.progress, again.records.past) == (
        run.state.snapshot(),
        run.progress,
        run.records.past,
    )


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(1, 5000))
def test_r18_3_one_answer_holds_as_many_parameters_as_fit_and_one_at_least(sizes: list[int], room: int) -> None:
    count = first_fitting(sizes, room)
    assert count >= 1
    assert count == 1 or sum(sizes[:count]) <= room
    assert count == len(sizes) or sum(sizes[: count + 1]) > room


def test_r18_5_what_a_query_costs_depends_on_the_calls_and_not_on_their_bytes() -> None:
    class Counting(Sizes):
        asked = 0

        def of(self, value: Any) -> int:
            Counting.asked += 1
            return super().of(value)

    counts = []
    for size in (10, 50_000):
        run, _ = played("solution", [Step([(size, size, "set")] * 20)] * 3, 200_000)
        Counting.asked = 0
        fit_result(run_view(run, "r"), 200_000, Counting(run.sizes))
        counts.append(Counting.asked)
    assert counts[1] < 40 * 60, "a few for each of the sixty calls"


@pytest.mark.parametrize("dialect", ["solution", "tools"])
@pytest.mark.parametrize("how", ["set", "fail"])
def test_r18_5_the_end_of_a_request_of_thousands_of_calls_takes_a_bounded_time_of_one_task(
    dialect: str, how: str
) -> None:
    """Counted in functions called: 300 a call are less than half a second of CPU for 10,000 calls, beside other work."""
    count = 2_000
    run = begun(dialect, MAX_PAYLOAD, max_calls=count)
    run.situation()
    run.begin_request(ModelChoice("m", "only"))
    plan = run.open_plan(1)
    to = {"_outputMethod": how} if how == "set" else {}
    raws: list[Any] = []
    for number in range(count):
        raws.append({"_tool": "t", "x": "x" * 100} | to | ({"_outputPath": f"†state.k{number}"} if to else {}))
        plan.checks.begin(number)
        plan.add(raws[-1])
    plan.close()
    task = count
    while not plan.settled:
        plan.checks.begin(task := task + 1)
        for call in plan.take_ready(NOW):
            plan.end(call, ended(call.index, 0, how), NOW)
            run.records.note_done(call)
    called = 0

    def count_one(_frame: Any, event: str, _: Any) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    sys.setprofile(count_one)
    try:
        run.close_request(plan, RequestResult(calls=raws))
    finally:
        sys.setprofile(None)
    assert len(run.records.past.calls) == count
    assert called < 300 * count, called / count
