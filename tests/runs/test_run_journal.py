"""What a run notes of its calls and its answers, whatever comes when: causes before effects, and each end once (R10.14)."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.models.requests import RequestResult
from perdure.models.usage import Usage
from perdure.plan import Failed, Returned
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.events import JournalEntry
from perdure.runs.request_loop import CallEnded, RequestLoop, RequestStage, StartCall
from perdure.runs.run import RunState
from perdure.runs.wire import PreparedWorker
from tests.runs.test_request_loop import LATE, TOOL, delivered, loop_of
from tests.runs.test_snapshot import continued


def noted(run: RunState) -> list[JournalEntry]:
    return run.journal.events.page().events


def calls_of(run: RunState, phase: str) -> list[str]:
    return [event.data["call"] for event in noted(run) if (event.topic, event.phase) == ("tool", phase)]


def plan_of(dice: Random, count: int) -> list[dict[str, Any]]:
    """Calls that read each other, loops, and some that are wrong."""
    calls: list[dict[str, Any]] = []
    for n in range(count):
        raw: dict[str, Any] = {"_tool": "t", "_outputPath": f"†state.s{n}"}
        if n and dice.random() < 0.5:
            raw["x"] = f"†state.s{dice.randrange(n)}"
        kind = dice.random()
        if kind < 0.2:
            raw |= {"_each": list(range(dice.randint(0, 3)))}
        elif kind < 0.3:
            raw["_tool"] = "nothing"
        elif kind < 0.35:
            raw = {"_tool": "t", "_if": "1 > 2"}
        calls.append(raw)
    return calls


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(0, 8), st.sampled_from(["", "steer", "stop", "break"]))
def test_each_call_that_starts_has_one_start_and_each_that_ends_one_end_behind_it(
    seed: int, count: int, what: str
) -> None:
    dice = Random(seed)
    calls, loop = plan_of(dice, count), loop_of()
    run, task, sent, happens = loop._run, 0, 0, dice.randint(0, 12)
    while loop.stage not in (RequestStage.SETTLED, RequestStage.REVISED):
        task += 1
        if task == happens and what == "steer":
            loop.steer()
        elif task == happens and what == "stop":
            loop.stop(LATE, "")
        elif task == happens and what == "break":
            loop.break_off("the run was cancelled", "")
            break
        elif sent < count and dice.random() < 0.5:
            first, sent = sent, dice.randint(sent, count)
            loop.deliver(delivered(*calls[first:sent], first=first))
        elif loop.stage is RequestStage.STREAMING and dice.random() < 0.3:
            sent = count
            loop.answer(RequestResult(calls=calls))
        for call in [call for call in loop.running.values() if dice.random() < 0.5]:
            well = dice.random() < 0.8
            loop.report(CallEnded(call, Returned(1) if well else Failed(CallError("broken", "it is"))))
        loop.work(task, "")
        loop.starts("")
    made = list(loop.plan.every_call())
    starts, ends = calls_of(run, "start"), calls_of(run, "end")
    assert Counter(ends) == Counter(call.id for call in made if call.state.ended)
    assert max(Counter(starts).values(), default=1) == 1
    assert set(starts) <= {call.id for call in made}
    assert {call.id for call in made if call.state.status in ("running", "done", "failed", "unknown")} <= set(starts)
    order = [(event.data["call"], event.phase) for event in noted(run) if event.topic == "tool"]
    for call in made:
        phases = [phase for id, phase in order if id == call.id]
        assert phases in (["start", "end"], ["start"], ["end"], [])
        if "[" in call.id:
            outer = call.id.rpartition("[")[0]
            assert order.index((outer, "start")) < min(order.index((call.id, phase)) for phase in phases)
            assert (outer, "end") not in order[: order.index((call.id, phases[-1]))]


def run_of(dialect: str = "solution", schema: Any = None, **config: Any) -> RunState:
    """An agent whose output is text."""
    document: dict[str, Any] = {
        "name": "a",
        "context": [],
        "config": {"dialect": dialect, **config},
        "schema": schema or {"type": "string"},
    }
    agent = parse_agent(document)
    return RunState(agent, Context(agent), PreparedWorker(tools=[TOOL], models=Models(fast="f", smart="s")))


def answered(run: RunState, result: RequestResult, *, model: str = "s", cut: bool = False) -> bool:
    """One Request of a run, whose calls all end well."""
    number = run.situation().number
    run.begin_request(ModelChoice(model, "test"))
    run.open_plan(number)
    loop = RequestLoop(run)
    if cut:
        loop.steer()
    else:
        loop.answer(result)
    task = 0
    while loop.stage is not RequestStage.SETTLED:
        task += 1
        loop.work(task, "")
        for start in loop.starts(""):
            assert isinstance(start, StartCall)
            loop.report(CallEnded(start.call, Returned("told")))
    return run.close_request(loop.plan, loop.result, cut=loop.cut)


def rows(run: RunState) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{event.topic} {event.phase}", event.data) for event in noted(run)]


def texts(run: RunState) -> list[tuple[str, bool, bool]]:
    said = [event.data for event in noted(run) if (event.topic, event.phase) == ("assistant", "end")]
    return [(each["text"], each["accepted"], each.get("output", False)) for each in said]


def test_an_output_that_does_not_fit_says_why_and_the_next_one_counts() -> None:
    run = run_of()
    assert not answered(run, RequestResult(output={"no": 1}))
    assert answered(run, RequestResult(output="Hello!", usage=Usage(prompt_tokens=3, completion_tokens=2)))
    assert [name for name, _ in rows(run)] == ["request start", "request end", "assistant end"] * 2
    assert texts(run) == [('{"no":1}', False, False), ("Hello!", True, True)]
    reason = rows(run)[2][1]["reason"]
    assert reason.startswith("the output breaks its schema")
    assert rows(run)[4][1]["usage"]["promptTokens"] == 3


def test_the_text_of_an_output_has_its_references_replaced_and_follows_its_calls() -> None:
    run = run_of()
    calls = [{"_tool": "t", "_outputPath": "†state.a"}]
    assert answered(run, RequestResult(calls=calls, output="It was {†state.a}."))
    assert [name for name, _ in rows(run)][-4:] == ["request end", "tool start", "tool end", "assistant end"]
    assert texts(run) == [("It was told.", True, True)]


def test_what_stands_beside_calls_counts_and_is_no_output() -> None:
    run = run_of("tools")
    assert not answered(run, RequestResult(calls=[{"_tool": "t"}], text="Let me look."))
    assert answered(run, RequestResult(text="All is well."))
    assert texts(run) == [("Let me look.", True, False), ("All is well.", True, True)]


def test_prose_that_is_put_into_form_and_an_output_that_is_gone_over_do_not_count_yet() -> None:
    run = run_of("tools", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert not answered(run, RequestResult(text="It is one."))
    assert answered(run, RequestResult(text='{"n": 1}'))
    assert [each[1:] for each in texts(run)] == [(False, False), (True, True)]
    run = run_of(refine=True)
    assert not answered(run, RequestResult(calls=[{"_tool": "t"}]), model="f")
    assert not answered(run, RequestResult(output="a draft"), model="f")
    assert answered(run, RequestResult(output="the answer"))
    assert texts(run) == [("a draft", False, False), ("the answer", True, True)]


@pytest.mark.parametrize("cut", [False, True])
def test_an_answer_without_a_text_ends_with_its_request(cut: bool) -> None:
    run = run_of()
    problem = {"code": "interrupted", "message": "the stream broke"}
    assert not answered(run, RequestResult() if cut else RequestResult(problem=problem), cut=cut)
    names = [name for name, _ in rows(run)]
    assert names == ["request start", "request end"]
    end = rows(run)[1][1]
    assert "says" not in end
    assert end["problem"] == ("a new message has ended it" if cut else "interrupted: the stream broke")


def test_a_request_that_is_asked_again_is_the_same_one_and_a_message_is_taken_by_it() -> None:
    run = run_of()
    run.situation()
    run.begin_request(ModelChoice("a", "first"))
    run.ask_again(ModelChoice("b", "a is down"))
    run.ask_again(ModelChoice("b", "the context was too long, and was cut"), tight=True)
    assert [(name, data.get("model")) for name, data in rows(run)] == [
        ("request start", "a"),
        ("request update", "b"),
        ("compaction start", None),
        ("compaction end", None),
        ("request update", "b"),
    ]


def test_a_run_that_goes_on_elsewhere_goes_on_with_its_numbers() -> None:
    run = run_of()
    for _ in range(3):
        answered(run, RequestResult(output=1))
    again = continued(run)
    before = run.journal.events.page()
    assert again.journal.events.page().events == before.events
    answered(again, RequestResult(output="done"))
    after = again.journal.events.page(before.next)
    assert (after.first, after.count) == (before.count, before.count + 3)
    assert [name for name, _ in rows(again)][-3:] == ["request start", "request end", "assistant end"]
