"""What counts as what: names and numbers, and nothing that anybody may have written."""

from __future__ import annotations

import pytest

from perdure.errors import CallError
from perdure.models.requests import RequestResult, RequestView
from perdure.models.usage import Usage
from perdure.plan import Plan
from perdure.runs.metrics import (
    METRICS,
    Emissions,
    Observation,
    call_ended,
    decided,
    fell_back,
    hook_failed,
    hook_refused,
    label_value,
    name_of,
    refused,
    request_ended,
    request_failed,
    request_started,
    run_ended,
    run_started,
    waiting_observation,
    waits_for_model,
)
from perdure.tools.tool import Tool
from perdure.values.state import State

SENTENCE = "nobody is called saffron"


def told() -> list[Observation]:
    """One of everything, with as much of other people's words as can be in it."""
    plan = Plan(1, tools={"pay": Tool(name="pay", parameters={"type": "object"})}, state=State())
    calls = [plan.add({"_tool": name, "name": SENTENCE}) for name in ("pay", SENTENCE)]
    calls[0].state.status, calls[0].state.error = "failed", CallError(SENTENCE, SENTENCE)
    request = RequestView(
        number=1, model="m", reason=SENTENCE, usage=Usage(prompt_tokens=2, completion_tokens=3), cost=0.5
    )
    problem = RequestResult(text=SENTENCE, output=SENTENCE, problem={"code": SENTENCE, "message": SENTENCE})
    return [
        run_started("a"),
        run_ended("a", "failed", SENTENCE),
        request_started("a", request),
        request_ended("a", request, problem, 0.25),
        request_failed("a", request, SENTENCE),
        fell_back(1, "m", "n", SENTENCE),
        waits_for_model("a", request, SENTENCE),
        *map(call_ended, calls),
        waiting_observation("1.0", "pay", question=False, client=False),
        decided("1.0", "approve", "person", 3.0),
        refused(),
        hook_failed("after_tool_call", SENTENCE),
        hook_refused("before_tool_call", SENTENCE),
    ]


def test_all_is_counted_by_the_table_and_with_its_labels() -> None:
    counted = {name for each in told() for name, _, _ in each.counts}
    scored = {"perdure_evaluations_total", "perdure_evaluation_score"}  # an activity counts them
    assert counted == {name for name, metric in METRICS.items() if metric.kind != "gauge"} - scored
    for each in told():
        for name, value, labels in each.counts:
            assert tuple(sorted(labels)) == tuple(sorted(METRICS[name].labels)), name
            assert value >= 0


def test_nobodys_words_are_told() -> None:
    assert "saffron" not in str(told())


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("http_request", "http_request"),
        ("gpt-4o@2024", "gpt-4o@2024"),
        (SENTENCE, "other"),
        ("", "other"),
        (None, "other"),
        ("x" * 61, "other"),
    ],
)
def test_a_label_is_a_word(text: object, label: str) -> None:
    assert label_value(text) == label


@pytest.mark.parametrize(("reason", "code"), [("no connection", "no_connection"), ("503", "503"), (SENTENCE, "other")])
def test_a_wait_for_a_model_has_its_reason_as_a_word(reason: str, code: str) -> None:
    assert waits_for_model("a", RequestView(number=1, model="m", reason="first"), reason).fields["code"] == code


def test_an_agents_name_is_a_line() -> None:
    assert name_of("my agent\n2") == "my agent 2"
    assert len(name_of("x" * 1000)) == 60
    assert name_of("") == "unknown"


class Execution:
    """Stands for a workflow's object."""


def test_what_runs_again_and_what_is_replayed_is_emitted_once() -> None:
    emissions, first, again, elsewhere = Emissions(), Execution(), Execution(), Execution()
    wait, other = (
        waiting_observation("1.0", "pay", question=False, client=False),
        waiting_observation("1.1", "pay", question=False, client=False),
    )

    def due(observation: Observation, made_by: Execution, execution: str = "a", *, replays: bool = False) -> bool:
        return emissions.is_due(observation, made_by, execution, replays=replays)

    assert [due(wait, first), due(wait, again), due(wait, elsewhere, "b")] == [True, False, True]
    assert due(other, again), "a task that runs again emits what it did not reach before"
    assert not due(other, first)
    assert [due(refused(), first), due(refused(), first)] == [True, True], "two signals"
    assert [due(refused(), again), due(refused(), again), due(refused(), again)] == [False, False, True]
    replayed = Execution()
    assert [due(wait, replayed, "c", replays=True), due(wait, replayed, "c")] == [False, True]
    assert due(refused("u-1"), first)
    assert not due(refused("u-1"), again), "no replay reports what a validator has refused"


def test_only_the_latest_emissions_are_remembered() -> None:
    emissions, runs = Emissions(most=2), [Execution() for _ in range(5)]
    names = ["a", "b", "c", "c", "a"]
    due = [emissions.is_due(refused(), each, name, replays=False) for each, name in zip(runs, names, strict=True)]
    assert due == [True, True, True, False, True]
