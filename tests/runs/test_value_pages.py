"""What a view has cut can be read whole, page by page, also of calls that have ended (R18.3)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import RunError
from perdure.models.requests import RequestResult
from perdure.plan import Returned
from perdure.runs import views
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.recall import recall
from perdure.runs.records import KeptValues
from perdure.runs.run import RunState
from perdure.runs.views import Pages, fit_result, run_view
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import parse_tool
from perdure.values.json import dumps, loads
from perdure.values.limits import MAX_PAYLOAD, MAX_VIEWED
from perdure.values.sizes import Sizes
from tests.runs.test_snapshot import continued

NOW = "2026-01-01T00:00:00"


def run_of(value: Any, times: int = 1) -> RunState:
    """A run that has read `value` from its state and got it back, once in each Request."""
    agent = parse_agent(
        {"name": "a", "context": [{"type": "tool", "tool": "t"}, {"type": "state", "state": {"v": value}}]}
    )
    tool = parse_tool({"name": "t", "properties": {"x": {}}}, activities=["t"], registered=True)
    run = RunState(
        agent, Context(agent, None, has_input=False), PreparedWorker(tools=[tool], models=Models(fast="m", smart="m"))
    )
    for number in range(1, times + 1):
        run.situation()
        run.begin_request(ModelChoice("m", "only"))
        plan = run.open_plan(number)
        call = plan.add({"_tool": "t", "x": "†state.v"})
        plan.close()
        for ready in plan.take_ready(NOW):
            plan.end(ready, Returned(call.inputs.params["x"]), NOW)
        run.close_request(plan, RequestResult(calls=[call.spec.raw]))
    return run


def read(run: RunState, what: str, pages: Pages) -> Any:
    text, offset = "", 0
    while True:
        page = pages.page(run, what, offset)
        assert len(dumps(page.as_json()).encode()) <= MAX_PAYLOAD
        text += page.text
        if page.next is None:
            return loads(text)
        offset = page.next


def test_r18_3_a_call_that_has_ended_is_read_whole() -> None:
    value = {"text": "é\n" * 400_000}
    run = run_of(value)
    assert len(dumps(run_view(run, "r").calls[0].as_json())) < 10_000
    call = read(run, "1.0", Pages())
    assert (call["params"], call["result"]) == ({"x": value}, value)
    assert (call["id"], call["status"]) == ("1.0", "done")


def test_r16_6_a_view_holds_the_newest_calls_and_pages_all() -> None:
    run = run_of("x")
    (call,) = run.records.past.calls
    run.records.past.calls = [call.model_copy(update={"id": f"1.{n}"}) for n in range(MAX_VIEWED + 500)]
    view = fit_result(run_view(run, "r"), calls=run.records.count(run.plan))
    assert [call.id for call in view.calls] == [f"1.{n}" for n in range(500, MAX_VIEWED + 500)]
    assert view.cut == ["calls: the last 2,000 of 2,500 are shown; all: perdure show r --value calls"]
    assert [call["id"] for call in read(run, "calls", Pages())] == [f"1.{n}" for n in range(MAX_VIEWED + 500)]
    fitted = fit_result(run_view(run, "r"), 50_000, calls=run.records.count(run.plan))
    assert any(words.startswith("calls have") and "of 2,500;" in words for words in fitted.cut)


def test_r18_5_the_pages_of_one_value_are_made_of_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def counted(value: Any) -> str:
        made.append(value)
        return dumps(value)

    monkeypatch.setattr(views, "dumps", counted)
    run, pages = run_of(["x" * 1_000_000]), Pages()
    assert read(run, "†state.v", pages) == ["x" * 1_000_000]
    assert len(made) == 1
    assert pages.page(run, "†state.v", 900_000).text == dumps(["x" * 1_000_000])[900_000:], (
        "who asks again is told again"
    )


def test_r18_3_of_an_execution_before_the_execution_before_is_asked() -> None:
    run = run_of("v", times=2)
    restored = continued(run)
    assert Pages().page(restored, "2.0", 0).earlier
    with pytest.raises(LookupError, match=r"^'2\.7' is not a part of a run"):
        Pages().page(restored, "2.7", 0)


def test_r18_3_ended_calls_are_kept_within_a_bound_and_a_value_counts_once() -> None:
    run = run_of("v")
    sizes, kept = Sizes(), KeptValues(most=1_000_000)
    call = run.records.newest(run.plan)[0]
    large = "x" * 600_000
    for n in range(20):
        call.id, call.inputs.params, call.state.result = f"1.{n}", {"x": large, "n": n}, large
        kept.add(call, sizes)
    assert kept.get("1.0") == {"params": {"x": large, "n": 0}, "result": large}
    for n in range(20, 22):
        call.id, call.inputs.params, call.state.result = f"1.{n}", {"x": "y" * 600_000}, n
        kept.add(call, sizes)
    assert kept.get("1.19") is None
    assert kept.get("1.20") is None
    assert kept.get("1.21") is not None


def test_r10_18_a_run_answers_recall_from_its_state_and_its_calls() -> None:
    text = "".join(f"{n}\n" for n in range(10_000))
    run = run_of(text)
    assert run.progress.has_cut
    pages = [recall(run, what, page) for what in ("1.0", "state.v") for page in (1, 2, 3, 4, 5)]
    assert "".join(page["text"] for page in pages if page) == text * 2
    assert {page["pages"] for page in pages if page} == {5}
    for what, why in (
        ("1.0", "has 5 pages"),
        ("1.7", "no call 1.7"),
        ("state.w", "does not exist"),
        ("state.", "read"),
    ):
        with pytest.raises(RunError, match=why):
            recall(run, what, 6)
    restored = continued(run)
    assert recall(restored, "1.0") is None, "the execution before has it"
    assert recall(restored, "state.v") == pages[5]


def test_r10_18_recall_is_offered_once_something_was_cut_also_after_continue_as_new() -> None:
    tool = parse_tool({"name": "recall", "properties": {}}, activities=["recall"], registered=True)
    for value, offered in (("x" * 16_000, []), ("x" * 16_001, ["recall"])):
        run = run_of(value)
        run.prepared = run.prepared.model_copy(update={"recall": tool})
        run = continued(run)
        run.situation()
        run.begin_request(ModelChoice("m", "only"))
        assert [name for name in run.tools if name != "t"] == offered


def test_r10_18_a_model_recalls_nothing_that_it_is_shown_by_its_shape() -> None:
    agent = parse_agent({"name": "a", "config": {"show": "shape"}, "context": [{"type": "tool", "tool": "t"}]})
    tool = parse_tool({"name": "t", "_untrusted": True, "properties": {}}, activities=["t"], registered=True)
    run = RunState(agent, Context(agent), PreparedWorker(tools=[tool], models=Models(fast="m", smart="m")))
    run.situation()
    run.begin_request(ModelChoice("m", "only"))
    plan = run.open_plan(1)
    plan.add({"_tool": "t", "_outputPath": "†state.v"})
    plan.add({"_tool": "t"})
    plan.close()
    for call in plan.take_ready(NOW):
        plan.end(call, Returned("secret " * 5000), NOW)
    assert "secret" not in dumps([recall(run, "1.1"), recall(run, "state.v"), recall(run, "state")])
    run.close_request(plan, RequestResult())
    assert not run.progress.has_cut
    with pytest.raises(RunError, match="others wrote"):
        recall(run, "1.1")
