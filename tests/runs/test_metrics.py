"""What counts as what: names and numbers, and nothing that anybody may have written."""

from __future__ import annotations

import pytest

from perdure.errors import CallError
from perdure.models.requests import RequestResult, RequestView
from perdure.models.usage import Usage
from perdure.plan import Plan
from perdure.runs.metrics import (
    METRICS,
    Observation,
    call_ended,
    decided,
    fell_back,
    hook_failed,
    hook_refused,
    name_of,
    refused,
    request_ended,
    request_failed,
    request_started,
    run_ended,
    run_started,
    waits,
    word,
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
        *map(call_ended, calls),
        waits("1.0", "pay", question=False, client=False),
        decided("1.0", "approve", "person", 3.0),
        refused(),
        hook_failed("after_tool_call", SENTENCE),
        hook_refused("before_tool_call", SENTENCE),
    ]


def test_all_is_counted_by_the_table_and_with_its_labels() -> None:
    counted = {name for each in told() for name, _, _ in each.counts}
    assert counted == {name for name, metric in METRICS.items() if metric.kind != "gauge"}
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
    assert word(text) == label


def test_an_agents_name_is_a_line() -> None:
    assert name_of("my agent\n2") == "my agent 2"
    assert len(name_of("x" * 1000)) == 60
    assert name_of("") == "unknown"
