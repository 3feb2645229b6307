"""Values inside longer texts: each is made text once, and their sum is bounded before anything is built (R3.1, R18.1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import DecisionError, TooLargeError
from perdure.plan import Call, Plan
from perdure.runs._output import resolve_output
from perdure.tools.tool import parse_tool
from perdure.values.json import Json, dumps
from perdure.values.limits import MAX_PAYLOAD, MAX_TEXTS
from perdure.values.sizes import Sizes
from perdure.values.state import State, Write
from perdure.values.templates import TextBudget, parse_template
from tests.cpu import Cpu, takes_less
from tests.strategies import json_values

TELL = parse_tool({"name": "tell", "properties": {"text": {"type": "string"}}}, activities=["tell"])
LARGE: list[Json] = list(range(100_000))  # 600 KB


def plan(**values: Any) -> Plan:
    return Plan(1, tools={"tell": TELL}, state=State([Write(path=(), value=values)]))


def planned(it: Plan, texts: list[str]) -> list[float]:
    """Add a call for each text, close, and go on to the end; the CPU time of each task, in laps."""
    spent = []
    left = list(texts)
    task = 0
    while left or it.held_back or not it.closed:
        task += 1
        it.checks.begin(task)
        cpu = Cpu()
        while left and not it.checks.spent:
            it.add({"_tool": "tell", "text": left.pop(0)})
        if not left and not it.closed:
            it.close()
        it.go_on()
        spent.append(cpu.laps())
    return spent


def test_r18_5_many_texts_embed_one_value_a_bounded_number_in_each_task() -> None:
    spent, measured = [], []
    for _ in range(3):  # a neighbour slows one of them, and not each
        it = plan(v=["x" * 65] * 3000)  # 200 KB
        spent.append(max(planned(it, [f"{n}: {{†state.v}}" for n in range(450)])))
        cpu = Cpu()
        sizes = [it.state.sizes.of(call.inputs.params) for call in it.calls]
        measured.append(cpu.laps())
    assert min(spent) < 100
    assert min(measured) < 10, "what each has is known from its parts"
    assert [call.state.status for call in it.calls] == ["ready"] * 450
    whole = dumps(it.state.snapshot()["v"])
    assert all(call.inputs.params["text"] == f"{n}: {whole}" for n, call in enumerate(it.calls))
    assert sizes[7] == len(dumps(it.calls[7].inputs.params).encode())


def test_r18_1_one_text_that_embeds_a_value_too_often_is_the_calls_own_error() -> None:
    spent = []
    for _ in range(3):
        it = plan(v=LARGE)
        spent.append(max(planned(it, ["{†state.v}" * 150, "{†state.v}"])))
    error = it.calls[0].state.error
    assert min(spent) < 100
    assert [call.state.status for call in it.calls] == ["invalid", "ready"]
    assert error is not None
    assert error.code == "params_too_large"
    assert "†state.v" in error.message
    assert f"the limit is {MAX_PAYLOAD:,}" in error.message
    assert "\n" not in error.message


def test_r18_1_the_texts_of_a_plan_are_bounded_as_a_sum() -> None:
    it = plan(v="x" * 1_800_000)
    planned(it, [f"{n} {{†state.v}}" for n in range(130)])
    statuses = [call.state.status for call in it.calls]
    most = MAX_TEXTS // 1_800_000
    assert statuses == ["ready"] * most + ["invalid"] * (130 - most)
    error = it.calls[-1].state.error
    assert error is not None
    assert f"the limit is {MAX_TEXTS:,}" in error.message


def test_r18_1_what_is_nested_too_deeply_with_what_it_refers_to_is_the_calls_own_error() -> None:
    """A delegate that was given such a thing could not read what it was started with: its tasks failed for ever."""
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    allowed: list[Any] = ["†state.x", {"_expr": "[" * 40 + "state.x" + "]" * 40}, {"_expr": "[state.x][0]"}]
    for each in allowed:
        template, wrong = parse_template({"a": each})
        assert wrong == []
        template.resolve(lambda _: deep)
    refused: list[Any] = [{"_expr": "[" * 75 + "state.x" + "]" * 75}, json.loads("[" * 75 + '"†state.x"' + "]" * 75)]
    for each in refused:
        template, wrong = parse_template({"a": each})
        assert wrong == []
        with pytest.raises(TooLargeError, match="more than 170 levels deep"):
            template.resolve(lambda _: deep)


def test_r18_1_an_output_that_embeds_a_value_too_often_is_told_to_the_model() -> None:
    outputs: list[Json] = ["{†state.v}" * 150, ["{†state.v}!"] * 150]

    def resolve_all() -> None:
        for output in outputs:
            found, wrong = resolve_output(output, {"state": {"v": LARGE}}, TextBudget(total=20_000_000))
            assert found is None
            assert "the limit is" in wrong[0]

    assert takes_less(resolve_all, 140)


def test_a_person_cannot_edit_a_text_past_its_limit() -> None:
    tool = parse_tool({"name": "ask", "properties": {"text": {"type": "string"}}}, activities=["ask"])
    it = Plan(1, tools={"ask": tool}, state=State([Write(path=(), value={"v": LARGE})]))
    call: Call = it.add({"_tool": "ask", "text": "x"})
    with pytest.raises(DecisionError, match=r"1\.0 would not be valid: a text would have .* the limit is"):
        it.revised(call, {"_tool": "ask", "text": "{†state.v}" * 150})


@given(st.lists(json_values(), max_size=6))
def test_r18_1_a_texts_size_is_the_sum_of_its_parts(values: list[Any]) -> None:
    sizes = Sizes()
    text = TextBudget(sizes=sizes).join([each for value in values for each in (value, " † \n")])
    assert text == "".join(f"{value if isinstance(value, str) else dumps(value)} † \n" for value in values)
    assert sizes.of(text) == len(dumps(text).encode())


def test_r18_1_a_value_is_made_text_once_and_what_is_kept_of_them_is_bounded() -> None:
    texts = TextBudget()
    large: list[Json] = ["x" * 600_000]
    first = texts.join([large])
    assert texts.join([large]) is first
    for n in range(60):
        texts.join([[n, *large]])
    assert texts.join([large]) is not first
    with pytest.raises(TooLargeError):
        texts.join([large] * 4)
