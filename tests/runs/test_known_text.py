"""The text of an output goes on as soon as its next reference is final (R19.4): by property over plans, and in a Request."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.models.dialects.output_text import text_of
from perdure.models.requests import RequestResult
from perdure.plan import Call, Failed, Outcome, Plan, Returned
from perdure.runs._output import KnownText, resolve_output
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.event_stream import EventBuffer, RunEventReader
from perdure.runs.request_loop import CallEnded, RequestLoop
from perdure.runs.run import RunState
from perdure.runs.version_switches import NEWEST
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import parse_tool
from perdure.values.limits import MAX_REPLY
from perdure.values.sizes import Sizes
from perdure.values.state import State, Write
from perdure.values.templates import TextBudget
from tests.runs.test_request_loop import Driver, call

TOOL = parse_tool({"name": "t", "additionalProperties": True, "_activity": "t"}, activities=["t"])
DATA: dict[str, Any] = {"input": {"name": "Ann", "rows": [1, {"a": None}]}}

PATHS = ["a", "b", "c.d", "c", "old", "list"]
EXPRESSIONS = [*(f"†state.{path}" for path in PATHS), "†input.name", "†input.rows[1]", "†state.a || †state.b"]
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        "",
        "x",
        'say "hi"\n',
        "†state.a",
        "{†state.b}",
        7,
        1.5,
        True,
        None,
        [],
        {"d": "y"},
        ["é", {}],
        {"_media": "sha256:0", "type": "image/png", "bytes": 1},
    ]
)
TEXTS = st.lists(
    st.sampled_from(["Dear ", '"', "\\", "††", "é\n", *(f"{{{each}}}" for each in EXPRESSIONS)]), max_size=4
).map("".join)
LEAVES: st.SearchStrategy[Any] = (
    TEXTS
    | st.sampled_from(EXPRESSIONS)
    | st.sampled_from([{"_expr": "state.a"}, {"_expr": "state.b"}, {"_expr": "1 + 1"}])
    | st.sampled_from([None, 3, False, "", {}, [], {"_tool": "t", "x": "†state.a"}])
)
OUTPUTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pqr"), inner, max_size=3)
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "_outputPath": st.sampled_from(
                [*(f"†state.{path}" for path in PATHS), "†state.a || †state.b", "†state.b || †state.old"]
            )
        },
        optional={
            "_outputMethod": st.sampled_from(["set", "push", "merge"]),
            "x": st.sampled_from(["†state.a", "{†state.b}"]),
            "_each": st.just("†state.list"),
            "_if": st.sampled_from(["†state.a", {"_expr": "state.old == 'before'"}, {"_expr": "state.b == 7"}]),
        },
    ).map(lambda call: {"_tool": "t", **call}),
    max_size=5,
)


def plan_of(calls: list[Any]) -> Plan:
    plan = Plan(1, tools={"t": TOOL}, state=State([Write(path=(), value={"old": "before", "list": [0]})]), data=DATA)
    plan.extend(copy.deepcopy(calls))
    plan.close()
    return plan


def end(plan: Plan, call: Call, outcome: Outcome) -> None:
    plan.home(call).end(call, outcome)


def final_text(plan: Plan, output: Any) -> str | None:
    """The text of the output of a plan that has settled; `None` where it has none."""
    value, wrong = resolve_output(output, {**DATA, "state": plan.state.snapshot()}, TextBudget(), plan.read_at_end)
    return None if wrong else text_of(value)


Steps = list[tuple[int, Outcome]]


def common(texts: list[str]) -> str:
    """The beginning that all of them have."""
    least, most = min(texts), max(texts)
    return least[: next((at for at, pair in enumerate(zip(least, most, strict=False)) if len({*pair}) > 1), len(least))]


def play(calls: list[Any], steps: Steps, rest: Outcome | None = None) -> Plan:
    """Play a plan: each step ends one of the running calls. `rest` ends all that are left then."""
    plan = plan_of(calls)
    running = plan.take_ready()
    left = list(steps)
    while running and (left or rest is not None):
        which, outcome = left.pop(0) if left else (0, rest)
        assert outcome is not None
        end(plan, running.pop(which % len(running)), outcome)
        running += plan.take_ready()
    return plan


@given(
    calls=CALLS,
    output=OUTPUTS,
    steps=st.lists(
        st.tuples(
            st.integers(0, 3),
            VALUES.map(Returned) | st.just(Failed(CallError("boom", "it broke"))),
        ),
        max_size=6,
    ),
)
@example(  # the nearer writer takes another branch
    calls=[{"_tool": "t", "_outputPath": "†state.a"}, {"_tool": "t", "_outputPath": "†state.a || †state.b"}],
    output="{†state.a}!",
    steps=[(1, Failed(CallError("boom", "it broke"))), (0, Returned("x"))],
)
def test_r19_4_the_text_goes_on_as_soon_as_its_next_reference_is_final(
    calls: list[Any], output: Any, steps: Steps
) -> None:
    plan = plan_of(calls)
    known = KnownText(output, DATA, TextBudget(), Sizes(), plan.read_final)
    running = plan.take_ready()
    seen: list[tuple[int, str]] = []
    for number in range(len(steps) + 1):
        known.read_on()
        assert known.text.startswith(seen[-1][1] if seen else "")
        seen.append((number, known.text))
        if number == len(steps) or not running:
            break
        which, outcome = steps[number]
        end(plan, running.pop(which % len(running)), outcome)
        running += plan.take_ready()
    for number, text in seen:
        values: list[Any] = ["\x00", "\x01", "", 7, {"d": 2}]
        ends: list[Outcome] = [*(Returned(value) for value in values), Failed(CallError("c", "m"))]
        plans = [play(calls, steps[:number], each) for each in ends]
        finals = [final for each in plans if (final := final_text(each, output)) is not None]
        assert all(final.startswith(text) for final in finals), "it was shown, and is no part of the end"
        decided = any("_if" in call for call in calls)  # a condition may leave no choice before its call has ended
        if len(finals) == len(ends) and not decided:
            more = common(finals)[len(text) :].replace("\\", "")
            assert '{"code":"'.startswith(more), "it was known, and was not shown"  # all failures begin alike


@pytest.mark.parametrize(
    ("output", "first", "then"),
    [
        ("I ordered {†state.s0}, and {†state.s1}.", "I ordered ", "I ordered 1, and "),
        ("{†input.name}: {†state.s0} ({†state.s1})", "Ann: ", "Ann: 1 ("),
        ("†state.s1", "", ""),
        ({"text": "{†state.s0}, {†state.s1}"}, "", "1, "),
        ({"n": "†state.s0", "m": "†state.s1"}, '{"n":', '{"n":1,"m":'),
        ([{"_expr": "state.s0 + 1"}, "{†state.s1}"], "[", '[2,"'),
        ("{†state.s0 || †state.s1}, {†state.s1 && †state.s0}", "", "1, "),
        ("{†state.s1 || †state.s0}", "", ""),
        ("NO_REPL{†state.s0}{†state.s1}", "", "NO_REPL1"),
    ],
)
def test_a_request_shows_the_text_while_its_calls_run(output: Any, first: str, then: str) -> None:
    loop = loop_of()
    driver, shown = Driver(loop), Shown(loop)
    loop.answer(RequestResult(calls=[call(0), call(1)], output=output))
    assert driver.step() == ["1.0", "1.1"]
    assert shown.text() == first
    driver.end("1.0")
    assert shown.text() == then
    driver.end("1.1")
    assert loop._run.close_request(loop.plan, loop.result)
    assert (shown.text(), shown.superseded) == (text_of(loop._run.output.value), 0)


def loop_of(**document: Any) -> RequestLoop:
    agent = parse_agent({"name": "a", "context": [{"type": "input", "input": {"name": "Ann"}}], **document})
    run = RunState(agent, Context(agent), PreparedWorker(tools=[TOOL], models=Models(), rules=NEWEST))
    run.situation()
    run.begin_request(ModelChoice("m", "test"))
    run.open_plan(1)
    return RequestLoop(run)


class Shown:
    """What one reader of the run has seen, in pages and pieces."""

    def __init__(self, loop: RequestLoop) -> None:
        self._journal = loop._run.journal.events
        self._buffer, self._feed = EventBuffer(), RunEventReader("r")
        self._text = ""
        self.superseded = 0

    def text(self) -> str:
        self._buffer.add(self._journal.page(self._buffer.next))
        for event in self._feed.take(self._buffer.since(self._feed.cursor.events), self._buffer.live):
            if (event.topic, event.phase) == ("assistant", "delta"):
                assert event.data["start"] == len(self._text)
                self._text += event.data["text"]
            elif event.phase == "superseded":
                self._text, self.superseded = "", self.superseded + 1
        return self._text


def test_text_that_has_not_grown_is_not_sent_again() -> None:
    loop = loop_of()
    driver = Driver(loop)
    loop.answer(RequestResult(calls=[call(0), call(1), call(2)], output="It is {†state.s2}"))
    driver.step()
    journal = loop._run.journal.events
    before = journal.page(0)
    assert before.written is not None
    assert before.written.assistant.text == "It is "
    driver.end("1.0")
    assert journal.page(before.next).written is None
    assert journal.page(0).written is before.written
    driver.end("1.2")
    later = journal.page(before.next)
    assert later.written is not None
    assert later.written.assistant.text == "It is 1"
    driver.end("1.1")
    loop._run.close_request(loop.plan, loop.result)
    assert journal.page(0).written is None


def test_text_of_an_output_that_will_not_count_goes_on_no_more() -> None:
    loop = loop_of()
    driver, shown = Driver(loop), Shown(loop)
    loop.answer(RequestResult(calls=[call(0), call(1), call(2)], output="{†state.s0}, {†state.s1}, {†state.s2}"))
    driver.step()
    driver.end("1.0")
    assert shown.text() == "1, "
    loop.report(CallEnded(loop.running["1.1"], Failed(CallError("boom", "it broke"))))
    driver.step()
    driver.end("1.2")
    assert shown.text() == "1, "
    assert not loop._run.close_request(loop.plan, loop.result)


@pytest.mark.parametrize(
    "document",
    [{"config": {"stream": False}}, {"schema": {"type": "object", "required": ["n"]}}],
    ids=["not streamed", "breaks the schema"],
)
def test_text_that_nobody_is_to_read_is_not_shown(document: dict[str, Any]) -> None:
    loop = loop_of(**document)
    driver, shown = Driver(loop), Shown(loop)
    loop.answer(RequestResult(calls=[call(0)], output="It is {†state.s0}"))
    driver.step()
    assert shown.text() == ""


def test_text_whose_value_a_person_changes_afterwards_is_withdrawn() -> None:
    loop = loop_of()
    driver, shown = Driver(loop), Shown(loop)
    loop.answer(RequestResult(calls=[call(0), call(1)], output="{†state.s0} it is"))
    driver.step()
    driver.end("1.0")
    assert shown.text() == "1 it is"
    plan, changed = loop.plan, loop.running["1.1"]
    raw = {"_tool": "t", "_outputPath": "†state.s1 && †state.s0"}
    plan.hold(changed)
    plan.adopt(changed, plan.revised(changed, raw))
    plan.resume(changed)
    driver.end("1.1", 2)
    assert loop._run.close_request(plan, loop.result)
    assert (shown.text(), shown.superseded) == ("2 it is", 1)


def test_large_values_are_shown_at_the_end_alone() -> None:
    loop = loop_of()
    driver, shown = Driver(loop), Shown(loop)
    output = {"s": "†state.s0", "l": "†state.s1", "x": "†state.s2"}
    loop.answer(RequestResult(calls=[call(0), call(1), call(2)], output=output))
    driver.step()
    driver.end("1.0", "x" * 1_000)
    assert len(shown.text()) == len('{"s":"","l":') + 1_000
    driver.end("1.1", ["y"] * MAX_REPLY)
    before = shown.text()
    assert len(before) == len('{"s":"","l":') + 1_000
    driver.end("1.2")
    loop._run.close_request(loop.plan, loop.result)
    assert shown.text().startswith(before + '["y","y",')
    assert shown.superseded == 0
