"""Runs that grow, Request by Request: what they carry on and what they tell their model stays under its limit (R18.3, R18.4)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from perdure.models.requests import RequestResult
from perdure.plan import Returned
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.run import RunState
from perdure.runs.snapshot import SNAPSHOT_FORM, Attempts, RunSnapshot, estimate_snapshot_size, restore, take_snapshot
from perdure.runs.version_switches import NEWEST
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import parse_tool
from perdure.values.json import pack
from perdure.values.limits import MAX_PAYLOAD, MAX_STORED
from perdure.values.state import Write
from tests.cpu import Cpu, in_one_try, takes_less

NOW = "2026-01-01T00:00:00"


def grown(dialect: str, requests: int, size: int, **call: Any) -> tuple[RunState, list[str], int]:
    """A run of so many Requests of one call each, what these returned, and the largest context in bytes."""
    agent = parse_agent(
        {
            "name": "grows",
            "config": {"dialect": dialect, "max_requests": requests + 1, "stuck_after": requests + 1},
            "context": [{"type": "system", "text": "Go on."}, {"type": "tool", "tool": "read"}],
            "schema": True,
        }
    )
    tool = parse_tool({"name": "read", "properties": {"n": {"type": "integer"}}}, activities=["read"], registered=True)
    run = RunState(
        agent, Context(agent, None, has_input=False), PreparedWorker(tools=[tool], models=Models(fast="m", smart="m"))
    )
    dice, results, largest = Random(1), [], 0
    for number in range(1, requests + 1):
        run.situation()
        run.begin_request(ModelChoice("m", "only"))
        if number % 30 == 0 or number == requests:
            largest = max(largest, len(run.request_context(number).model_dump_json(by_alias=True).encode()))
        plan = run.open_plan(number)
        raw = {"_tool": "read", "n": number, **call}
        plan.add(raw)
        plan.close()
        results.append(f"{number}:{dice.randbytes(size // 2).hex()}")
        for ready in plan.take_ready(NOW):
            plan.end(ready, Returned(results[-1]), NOW)
        assert not run.close_request(plan, RequestResult(calls=[raw]))
    return run, results, largest


def test_r18_4_results_that_the_model_is_shown_as_turns_are_carried_on_once_each() -> None:
    """Held twice, 258 of four kilobytes were all that a snapshot took."""
    run, results, largest = grown("tools", 280, 4000)
    carried = take_snapshot(run)
    text = carried.model_dump_json()
    assert [text.count(result) for result in results] == [1] * 280
    assert len(pack(carried, SNAPSHOT_FORM).model_dump_json()) < MAX_PAYLOAD
    assert largest < MAX_PAYLOAD


IN_STATE = {"_outputPath": "†state.all", "_outputMethod": "push"}


@pytest.mark.parametrize(
    ("dialect", "path"),
    [
        *[("solution", {}), ("script", IN_STATE), ("tools", {})],
        *(
            pytest.param(*each, marks=pytest.mark.soak)
            for each in (("solution", IN_STATE), ("script", {}), ("tools", IN_STATE))
        ),
    ],
)
def test_r18_3_what_a_model_is_told_fits_whatever_has_grown(dialect: str, path: dict[str, Any]) -> None:
    run, results, largest = grown(dialect, 180, 15_900, **path)
    assert sum(map(len, results)) > MAX_PAYLOAD
    assert MAX_PAYLOAD // 2 < largest <= MAX_PAYLOAD
    assert run.progress.tight, "it is shown cut from when it was too large"


def test_r18_5_what_is_too_much_to_carry_on_is_not_packed_again_and_again() -> None:
    run, _, _ = grown("solution", 60, 40_000, _outputPath="†state.all", _outputMethod="push")
    size = estimate_snapshot_size(run)
    made = len(take_snapshot(run).model_dump_json())
    assert made * 0.9 < size < made * 1.2
    assert takes_less(lambda: [estimate_snapshot_size(run) for _ in range(100)], 40), "nothing is encoded for it"
    attempts = Attempts()
    assert attempts.worth(size, MAX_PAYLOAD)
    attempts.note(size, packed=2 * MAX_PAYLOAD)
    assert not attempts.worth(size + 1, MAX_PAYLOAD), "it has only grown"
    assert attempts.worth(size // 2, MAX_PAYLOAD)
    assert not Attempts().worth(30_000_000, MAX_STORED), "to find out would take longer than a task may"


def test_r18_3_an_output_that_reads_one_value_a_thousand_times_is_refused_before_it_is_walked_through() -> None:
    assert in_one_try(lambda: _refusal_of_an_output() < 80)


def _refusal_of_an_output() -> float:
    run, _, _ = grown("solution", 1, 10)
    run.state.append(Write(path=("big",), value=[0] * 250_000))
    run.begin_request(ModelChoice("m", "only"))
    plan = run.open_plan(2)
    plan.close()
    cpu = Cpu()
    assert not run.close_request(plan, RequestResult(output=["†state.big"] * 1000))
    laps = cpu.laps()
    assert "the output cannot be made: it has 500,002,001 bytes; the limit is 20,000,000" in str(run.progress.messages)
    return laps


def _rows(number: int, count: int) -> list[Any]:
    return [{"id": row, "name": f"{number} {row}", "on": True} for row in range(count)]


def _words(number: int, count: int) -> list[Any]:
    return [f"w{number}{word % 50}" for word in range(4 * count)]


def _numbers(number: int, count: int) -> list[Any]:
    return [[number] * 8 for _ in range(count)]


def _ended(
    kind: Callable[[int, int], list[Any]], calls: int, rows: int, dialect: str, path: str
) -> Callable[[], RunState]:
    """A run whose calls have returned large values: make it and close its Request."""
    agent = parse_agent(
        {
            "name": "grows",
            "config": {"dialect": dialect, "max_calls": 1000},
            "context": [{"type": "system", "text": "Go on."}, {"type": "tool", "tool": "read"}],
            "schema": True,
        }
    )
    tool = parse_tool({"name": "read", "properties": {"n": {"type": "integer"}}}, activities=["read"], registered=True)
    prepared = PreparedWorker(tools=[tool], models=Models(fast="m", smart="m"), rules=NEWEST)
    run = RunState(agent, Context(agent, None, has_input=False), prepared)
    run.situation()
    run.begin_request(ModelChoice("m", "only"))
    plan = run.open_plan(1)
    raws: list[dict[str, Any]] = [{"_tool": "read", "n": n} for n in range(calls)]
    for n, raw in enumerate(raws):
        if path:
            raw["_outputPath"] = f"{path}{n}"
        plan.add(raw)
    plan.close()
    for n, ready in enumerate(plan.take_ready(NOW)):
        value = kind(n, rows)
        run.sizes.of(value)  # a task measures a result when it comes
        plan.end(ready, Returned(value), NOW)

    def close() -> RunState:
        assert not run.close_request(plan, RequestResult(calls=raws))
        run.situation()
        run.begin_request(ModelChoice("m", "only"))
        return run

    return close


@pytest.mark.parametrize("kind", [_rows, _words, _numbers])
def test_r18_5_the_first_task_after_many_large_values_is_short(kind: Callable[[int, int], list[Any]]) -> None:
    """150 lists of 55 KB took up to three seconds: each was read, measured and cut as a whole. The server takes two."""
    run = _ended(kind, 150, 1200, "solution", "†state.v")()
    packed = pack(take_snapshot(run), SNAPSHOT_FORM)

    def first_task() -> None:
        again = RunState(run.agent, run.context, run.prepared)
        restore(again, packed.read(RunSnapshot, SNAPSHOT_FORM, "it"))
        again.situation()
        again.begin_request(ModelChoice("m", "only"))

    assert takes_less(first_task, 100)


@pytest.mark.parametrize("dialect", ["solution", "tools"])
def test_r18_5_results_of_many_calls_share_their_room(dialect: str) -> None:
    """500 results of 55 KB without a path took a second, and made 8 MB of messages."""
    run = _ended(_words, 500, 1200, dialect, "")()
    context = run.request_context(2)
    results = [entry["result"] for entry in run.progress.results.values()]
    if dialect == "tools":
        results += [each["result"] for message in run.progress.messages for each in message["calls"]]
    assert len(results) == 500
    assert len(results[0]) > 16_000
    assert 2_000 < len(results[-1]) < 2_100
    assert all("the rest: recall 1." in result for result in results)
    assert run.progress.has_cut
    assert len(context.model_dump_json(by_alias=True).encode()) < MAX_PAYLOAD
