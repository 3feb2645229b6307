"""A plan that goes on under the next Request because a new message came (R10.5, R10.6, R10.7)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.approvals.decisions import parse_decision
from perdure.approvals.requests import ApprovalVerdict, IncomingMessage
from perdure.errors import CallError, DecisionError
from perdure.hooks.answers import withheld_words
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import CallDelivery, RequestResult
from perdure.plan import Call, Failed, Outcome, Plan, Rejected, Returned, written_anew
from perdure.rules import AtMost, RuleBook
from perdure.runs import context as context_module
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.limits import Limit
from perdure.runs.progress import RunProgress
from perdure.runs.request_loop import CallEnded, PlanDecided, RequestLoop, RequestStage, StartCall
from perdure.runs.run import RunIdentity, RunState
from perdure.runs.views import run_view
from perdure.runs.wire import PreparedWorker
from perdure.sessions.entries import run_entry
from perdure.tools.tool import Tool, parse_tool
from perdure.values.json import Json, JsonObject
from perdure.values.provenance import MODEL, USER
from perdure.values.state import State
from tests.soak import share

TOOLS = [
    parse_tool({"name": "act", "properties": {"x": {}}, "_activity": "act"}, activities=["act"]),
    parse_tool({"name": "see", "properties": {"x": {}}, "_activity": "see", "_safe": True}, activities=["see"]),
]
BROKEN: JsonObject = {"code": "not_json", "message": "broken"}


class World:
    """A run driven as its workflow does it, one task a step."""

    def __init__(
        self,
        dialect: str = "solution",
        schema: JsonObject | None = None,
        tools: Sequence[Tool] = TOOLS,
        **config: Any,
    ) -> None:
        policy = {"ask": "never", **config.pop("approval", {})}
        document: JsonObject = {
            "name": "a",
            "context": [],
            "config": {"dialect": dialect, "approval": policy, **config},
            **({} if schema is None else {"schema": schema}),
        }
        agent = parse_agent(document)
        self.run = RunState(agent, Context(agent), PreparedWorker(tools=list(tools), models=Models()))
        self.run.approval_queue.guard.policy = agent.config.approval
        self.run.rules = self.run.approval_queue.rules = RuleBook(agent.config.rules)
        self.loop: RequestLoop
        self.written: list[Any] = []
        self.started: list[str] = []
        self.task = 0
        self.over = False
        self.ask()

    def ask(self) -> None:
        """The next Request begins."""
        self.run.situation()
        self.run.begin_request(ModelChoice("m", "test"))
        goes_on = self.run.plan is not None
        self.run.open_plan(self.number)
        if goes_on:
            self.loop.go_on()
        else:
            self.loop = RequestLoop(self.run)

    @property
    def number(self) -> int:
        return self.run.progress.number

    @property
    def statuses(self) -> dict[str, str]:
        return {call.id: call.status for call in run_view(self.run, "r").calls}

    def steer(self, id: str) -> None:
        context_module.accept(self.run.progress, {"id": id, "text": f"message {id}"})
        if self.run.plan is not None:
            self.loop.steer()

    def write(self, *calls: Any) -> list[str]:
        """The model writes these; what starts."""
        first = self.loop.intake.received
        self.loop.deliver(CallDelivery(number=self.number, attempt=1, first=first, calls=list(calls)))
        self.written = [*self.written, *calls] if first else [*calls]
        return self.step()

    def answer(self, *calls: Any, output: Any = None, problem: Any = None, text: str = "") -> list[str]:
        """The answer is whole: what was written, and these."""
        before = self.written if self.loop.intake.received else []
        self.written = []
        self.loop.answer(RequestResult(calls=[*before, *calls], output=output, problem=problem, text=text))
        return self.step()

    def step(self) -> list[str]:
        self.task += 1
        self.loop.work(self.task, f"t{self.task}")
        self.loop.abandoned.clear()
        starts = [start.call.id for start in self.loop.starts("now") if isinstance(start, StartCall)]
        self.started += starts
        if self.loop.stage in (RequestStage.SETTLED, RequestStage.REVISED):
            assert self.run.plan is not None
            self.over = self.run.close_request(self.run.plan, self.loop.result, cut=self.loop.cut)
            if not self.over:
                self.ask()
                return [*starts, *self.step()]
        return starts

    def end(self, id: str, error: bool = False) -> list[str]:
        outcome = Failed(CallError("bad", "it failed")) if error else Returned(f"of {id}")
        self.loop.report(CallEnded(self.loop.running[id], outcome))
        return self.step()

    def begin(self, id: str) -> None:
        """Begin a call, and schedule it."""
        call = self.loop.running[id]
        assert self.loop.begin(call) is None
        call.hold.queued = False

    def approve(self, id: str) -> None:
        """A person does."""
        desk = self.run.approval_queue
        assert desk.apply(desk.judge(parse_decision({"call": id, "decision": "approve"}))).outcome is None

    def decide(self, id: str, decision: str = "approve", **more: Any) -> list[str]:
        """Decide on a plan as a person; return the ids of the calls that start."""
        queue = self.run.approval_queue
        verdict = queue.apply(queue.judge(parse_decision({"call": id, "decision": decision, **more})))
        self.loop.report(PlanDecided(verdict))
        return self.step()

    @property
    def shown(self) -> list[str]:
        context = self.run.request_context(self.number)
        return [str(message.get("content")) for message in context.messages]


def act(path: str = "", x: Any = 1, **more: Any) -> dict[str, Any]:
    return {"_tool": "act", "x": x, **({"_outputPath": f"†state.{path}"} if path else {}), **more}


def see(path: str = "", x: Any = 1) -> dict[str, Any]:
    return act(path, x, _tool="see")


def keep(*ids: str, drop: Sequence[str] = ()) -> dict[str, Any]:
    return {"_tool": "keep", "calls": list(ids), **({"drop": list(drop)} if drop else {})}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_r10_5_what_is_held_is_kept_changed_or_dropped(dialect: str) -> None:
    world = World(dialect)
    assert world.write(act("a"), act("b", "†state.a"), act("c", "†state.b"), act("d", "†state.a"), see("e")) == [
        "1.0",
        "1.4",
    ]
    world.steer("m1")
    assert world.step() == []
    assert world.statuses == {"1.0": "running", "1.1": "held", "1.2": "held", "1.3": "held", "1.4": "running"}
    assert world.shown[-1] == "message m1"
    assert "keep" in json.dumps(world.run.request_context(2).parameters) or "keep(" in world.shown[-2]
    # Another writes what 1.1 would have; 1.2, which reads it, is kept and reads it there; 1.3 is dropped.
    assert world.write(keep("1.2", drop=["1.3"]), act("b", "†state.a")) == []
    assert world.end("1.0") == ["2.1"]
    world.answer()
    assert world.end("2.1") == ["1.2"]
    assert world.end("1.4") == []
    assert world.loop.running["1.2"].inputs.params == {"x": "of 2.1"}
    world.end("1.2")
    done = {
        "1.0": "done",
        "1.1": "skipped",
        "1.2": "done",
        "1.3": "skipped",
        "1.4": "done",
        "2.0": "done",
        "2.1": "done",
    }
    assert world.statuses == done
    assert {call.reason for call in world.run.records.past.calls if call.status == "skipped"} == {
        "dropped by Request 2"
    }
    assert [(each.id, each.request) for each in context_module.message_fates(world.run.progress)] == [("m1", 2)]


def test_r10_5_only_what_is_safe_starts_until_the_model_has_answered() -> None:
    world = World()
    world.answer(act("a"), act("b", "†state.a"), see("c", "†state.a"))
    world.steer("m1")
    world.step()
    assert world.end("1.0") == ["1.2"]
    assert world.statuses["1.1"] == "held"
    assert world.write(keep("1.1")) == ["1.1"]


def test_r10_5_what_nobody_writes_any_more_is_an_error_of_its_reader() -> None:
    world = World()
    world.answer(act("a"), act("b", "†state.a"), act("c", "†state.b"))
    world.steer("m1")
    world.step()
    world.answer(keep("1.2", drop=["1.1"]))
    assert world.statuses == {"1.0": "running", "1.1": "skipped", "1.2": "invalid", "2.0": "done"}


@pytest.mark.parametrize("method", ["set", "push"])
def test_r10_5_a_dropped_addition_leaves_its_reader_the_other_writers(method: str) -> None:
    world = World()
    first = {**see("order"), "_outputMethod": method}
    world.answer(first, see("slow"), act("order", "†state.slow", _outputMethod="push"), act("sent", "†state.order"))
    world.end("1.0")
    world.steer("m1")
    world.step()
    assert world.answer(keep("1.3", drop=["1.2"]), act("order", "†state.sent")) == ["1.3"]
    assert world.loop.running["1.3"].inputs.params == {"x": "of 1.0" if method == "set" else ["of 1.0"]}
    assert world.end("1.3") == ["2.1"]


@pytest.mark.parametrize("item", ["ended 1.0", "ended †state.a"])
@pytest.mark.parametrize("anew", [False, True])
def test_r10_5_a_call_that_waits_for_any_end_runs_after_a_drop(item: str, anew: bool) -> None:
    world = World()
    world.answer(act("a", "†state.z"), see("z"), act("b", _after=[item]))
    world.steer("m1")
    world.step()
    new = [act("a", "†state.c"), see("c")] if anew else []
    started = world.answer(keep("1.2", drop=["1.0"]), *new)
    waits = anew and "†" in item
    assert ("1.2" in started) != waits
    if waits:
        assert world.end("2.2") == ["2.1"]
        assert world.end("2.1") == ["1.2"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("second", ["kept", "dropped", "silent"])
def test_r10_5_what_a_plan_does_not_name_stays_held_and_is_asked_about_once(second: str, dialect: str) -> None:
    """A person is asked about it meanwhile; that nobody needs to decide any more is said to whoever was asked."""
    world = World(dialect, approval={"ask": "always"})
    world.answer(act("a"))
    world.steer("m1")
    world.step()
    assert "a person is asked about it" in world.shown[-3]
    world.answer(see("b"), output={"early": True})
    assert (world.number, world.over, world.statuses["1.0"]) == (3, False, "held")
    assert list(world.run.approval_queue.waiting) == ["1.0", "2.0"]
    assert "did not say what is to become of 1.0." in world.shown[-1]
    world.answer(*{"kept": [keep("1.0")], "dropped": [keep(drop=["1.0"])], "silent": []}[second])
    assert world.number == 3
    call = world.run.plan.calls[0] if world.run.plan else None
    assert call is not None
    assert call.approval is not None
    if second == "kept":
        assert (call.standing, call.approval.decision, "1.0" in world.run.approval_queue.waiting) == (
            "waiting",
            None,
            True,
        )
        return
    if second == "silent":
        assert (call.standing, call.approval.decision, "1.0" in world.run.approval_queue.waiting) == (
            "held",
            None,
            True,
        )
        world.approve("1.0")
        assert world.loop.may_begin(call)
        return
    reason = "dropped by Request 3"
    assert (call.standing, call.state.reason) == ("skipped", reason)
    assert (call.approval.decision, call.approval.by, call.approval.reason) == ("dropped", "model", reason)
    with pytest.raises(DecisionError, match=r"1\.0 no longer waits: dropped"):
        world.run.approval_queue.judge(parse_decision({"call": "1.0", "decision": "approve"}))


@pytest.mark.parametrize("approved", ["before", "while asked", "after", "rejected"])
def test_r10_5_what_the_model_never_names_waits_for_its_person_and_the_run_with_it(approved: str) -> None:
    world = World(approval={"ask": "always"})
    world.answer(act("a"), act("b", "†state.a"))
    call = world.loop.running["1.0"]
    if approved == "before":  # it has waited for its turn since: the message came after the person's word
        world.approve("1.0")
        call.hold.queued = True
    world.steer("m1")
    world.step()
    world.answer()
    if approved == "while asked":
        world.approve("1.0")
    assert not world.loop.may_begin(call), "the model is asked first"
    world.answer(output={"early": True})
    if approved == "before":  # nobody is asked about it any more
        reason = "not run: Request 3 gave the output, and none has kept it"
        assert (world.number, world.over, call.standing, call.state.reason) == (3, True, "skipped", reason)
        return
    assert (world.number, world.over, call.standing) == (3, False, "held")
    if approved == "rejected":
        world.loop.report(CallEnded(call, Rejected("not wanted")))
        world.step()
    else:
        if approved == "after":
            assert world.loop.waits
            world.approve("1.0")
        assert world.loop.may_begin(call)
        assert world.run.plan is not None
        world.run.plan.home(call).resume(call, "now")
        assert call.standing == "running"
        world.end("1.0")
    ended = {call.id: (call.status, call.reason) for call in world.run.records.past.calls}
    assert ended["1.0"][0] == ("rejected" if approved == "rejected" else "done")
    assert ended["1.1"][0] == "skipped"
    if approved != "rejected":  # nobody was asked about the other
        assert ended["1.1"][1] == "not run: Request 3 gave the output, and none has kept it"


def test_r10_5_a_new_message_holds_again_what_was_left_to_its_person() -> None:
    world = World(approval={"ask": "always"})
    world.answer(act("a"))
    call = world.loop.running["1.0"]
    world.steer("m1")
    world.step()
    world.answer()
    world.answer()
    world.steer("m2")
    world.step()
    world.approve("1.0")
    assert not world.loop.may_begin(call)
    world.answer(keep("1.0"))
    assert world.loop.may_begin(call)


def test_r10_5_what_no_person_is_asked_about_stays_held_while_requests_follow() -> None:
    world = World()
    world.answer(act("a"), act("b", "†state.a"))
    world.steer("m1")
    world.step()
    world.answer()
    assert "did not say what is to become of 1.1." in world.shown[-1]
    assert world.answer(see("c")) == ["3.0"]
    world.end("3.0")
    assert (world.number, world.statuses["1.1"]) == (3, "held")
    world.end("1.0")
    assert (world.number, world.statuses["1.1"]) == (4, "held")
    world.answer()
    assert (world.number, world.statuses["1.1"]) == (5, "held")
    assert world.answer(keep("1.1")) == ["1.1"]


@pytest.mark.parametrize("output", [None, {"late": True}])
def test_r10_5_a_taken_call_that_waits_for_its_turn_stays_held_like_one_that_is_not_taken(output: Any) -> None:
    world = World()
    world.write(act("a"), see("s"))
    call = world.loop.running["1.0"]
    call.hold.queued = True
    world.steer("m1")
    world.step()
    world.answer(see("b"))
    world.answer(output=output)
    assert (world.number, call.standing) == (3, "held"), "others still run"
    world.end("1.1")
    world.end("2.0")
    if output is not None:
        assert (world.over, call.standing) == (True, "skipped")
        return
    assert (world.number, call.standing) == (4, "held")
    world.answer(keep("1.0"))
    assert world.loop.may_begin(call)


def test_r23_1_a_held_delegate_that_has_not_begun_leaves_its_rules_to_other_calls() -> None:
    boss = parse_tool({"name": "boss", "properties": {"x": {}}, "_delegate": "boss"})
    world = World(tools=[*TOOLS, boss], rules=[{"rule": "count_at_most", "of": "act", "count": 3}])
    rules = world.run.rules
    world.write(see("s"), act("b", _tool="boss"))
    call = world.loop.running["1.1"]
    call.hold.queued = True
    assert world.loop.begin(call) is None
    lent = rules.lent_to(call)
    world.steer("m1")
    world.step()
    world.answer(act("a"))
    world.answer()
    assert [rules.lent_to(call), world.loop.may_begin(world.loop.running["2.0"])] == [[], True]
    world.steer("m2")
    world.step()
    world.answer(keep("1.1"))
    assert world.loop.may_begin(call)
    assert [world.loop.begin(call), rules.lent_to(call)] == [None, lent]


def test_r10_5_a_plan_that_is_shown_as_a_whole_shows_what_no_request_has_named() -> None:
    for decided in (None, Rejected("no")):
        world = World(approval={"scope": "plan"})
        world.answer(act("a"))
        world.steer("m1")
        world.run.approval_queue.withdraw(list(world.run.approval_queue.waiting.values()))
        world.step()
        world.answer()
        world.answer(see("b"))
        assert [call.id for call in world.run.approval_queue.waiting["3"].calls] == ["1.0", "3.0"]
        world.loop.report(PlanDecided(ApprovalVerdict(decided)))
        world.step()
        assert world.statuses["1.0"] == ("running" if decided is None else "rejected")


@pytest.mark.parametrize(
    ("other", "gone"), [(act(x=1), True), (act(x=True), False), (act(x="1"), False), (act("a", 1), False)]
)
def test_r10_5_a_call_without_an_output_path_is_written_anew_with_its_parameters(
    other: dict[str, Any], gone: bool
) -> None:
    world = World()
    world.answer(act("z"), act(x=1, _after=["1.0"]))
    world.steer("m1")
    world.step()
    world.answer(other)
    assert (world.statuses["1.1"], world.number) == ("skipped" if gone else "held", 2 if gone else 3)


def test_r15_1_a_call_that_a_person_changes_in_a_continued_plan_is_the_persons() -> None:
    world = World(approval={"scope": "plan"})

    def decide(**more: Any) -> None:
        queue = world.run.approval_queue
        (request,) = queue.waiting.values()
        world.loop.report(PlanDecided(queue.apply(queue.judge(parse_decision({"call": request.id, **more})))))
        world.step()

    world.answer(act("a"))
    decide(decision="approve")
    world.steer("m1")
    world.step()
    world.answer(act("b"), act("c"))
    decide(decision="edit", calls=[act("b", 5), act("c")])
    assert world.run.plan is not None
    authors = {call.id: call.inputs.origins.written for call in world.run.plan.calls if not call.state.ended}
    assert authors == {"1.0": MODEL, "2.2": USER, "2.3": MODEL}


NOTE = parse_tool(
    {
        "name": "note",
        "properties": {"x": {}},
        "_activity": "note",
        "_outputPath": {"const": "†state.log"},
        "_outputMethod": {"const": "push"},
    },
    activities=["note"],
)


@pytest.mark.parametrize(
    "made", [lambda x: act("log", x, _outputMethod="push"), lambda x: {"_tool": "note", "x": x}], ids=["push", "fixed"]
)
def test_r10_5_a_call_that_adds_to_a_value_replaces_only_one_with_its_parameters(
    made: Callable[[int], dict[str, Any]],
) -> None:
    world = World(tools=[*TOOLS, NOTE])
    world.answer(act("z"), *[{**made(x), "_after": ["1.0"]} for x in (1, 2, 2)])
    world.steer("m1")
    world.step()
    world.answer(made(3), made(2))
    assert world.statuses | {"2.0": "", "2.1": ""} == {
        "1.0": "running",
        "1.1": "held",
        "1.2": "skipped",
        "1.3": "held",
        "2.0": "",
        "2.1": "",
    }


def test_r10_5_a_reference_written_anew_is_the_value_that_it_had() -> None:
    world = World(parallel=1)
    world.answer(act("a"), act(x="†state.a"), act(x="†state.a"))
    world.end("1.0")
    world.steer("m1")
    world.step()
    assert world.statuses == {"1.0": "done", "1.1": "running", "1.2": "held"}
    world.answer(act(x="of 1.0"))
    assert world.statuses["1.2"] == "skipped"


_CALLS = st.lists(
    st.tuples(
        st.sampled_from(["act", "see"]),
        st.integers(0, 2),
        st.sampled_from([("", "set"), ("a", "set"), ("b", "set"), ("a", "push"), ("b", "concat")]),
    ),
    max_size=8,
)


@given(_CALLS, _CALLS)
def test_r10_5_each_call_takes_the_place_of_one_call_or_of_those_of_its_path(
    held: list[tuple[str, int, tuple[str, str]]], calls: list[tuple[str, int, tuple[str, str]]]
) -> None:
    def made(which: list[tuple[str, int, tuple[str, str]]]) -> list[Call]:
        plan = Plan(1, tools={tool.name: tool for tool in TOOLS}, state=State())
        return [plan.add(act(path, x, _tool=tool, _outputMethod=method)) for tool, x, (path, method) in which]

    found = Counter(held[call.index] for call in written_anew(made(held), made(calls)))
    for each, count in Counter(held).items():
        tool, _, (path, method) = each
        by_path = path and method == "set"
        there = count * any((tool, each[2]) == (to, at) for to, _, at in calls) if by_path else calls.count(each)
        assert found[each] == min(count, there)


def test_r10_5_calls_of_both_requests_read_and_await_each_other() -> None:
    world = World()
    world.answer(act("a"), act("b", "†state.a"))
    world.steer("m1")
    world.step()
    world.answer(keep("1.1"), act("c", "†state.b"), act("d", _after=["1.0", "2.1"]))
    assert world.statuses == {"1.0": "running", "1.1": "pending", "2.0": "done", "2.1": "pending", "2.2": "pending"}
    assert world.end("1.0") == ["1.1"]
    assert world.end("1.1") == ["2.1"]
    assert world.loop.running["2.1"].inputs.params == {"x": "of 1.1"}
    assert world.end("2.1") == ["2.2"]


def test_r10_5_a_loop_that_begins_under_a_later_request_keeps_the_order_of_its_body() -> None:
    world = World()
    body = [act("x"), {"_tool": "_for", "_each": [1], "_body": [act("y"), act("z", _after=[".0"])], "_after": [".0"]}]
    world.answer(act("a"), {"_tool": "_for", "_each": [1], "_body": body, "_after": ["1.0"]})
    world.steer("m1")
    world.step()
    world.answer(keep("1.1"))
    assert world.end("1.0") == ["1.1[0].0"]
    assert world.end("1.1[0].0") == ["1.1[0].1[0].0"]
    assert world.end("1.1[0].1[0].0") == ["1.1[0].1[0].1"]


def test_r10_5_new_calls_see_the_state_as_it_stands_and_not_what_is_held() -> None:
    world = World()
    world.answer(act("a", "old"))
    world.end("1.0")  # Request 2
    world.answer(act("b"), act("a", "†state.b"))
    world.steer("m1")
    world.step()
    assert world.answer(act("c", "†state.a")) == ["3.0"]
    assert world.loop.running["3.0"].inputs.params == {"x": "of 1.0"}


def test_r10_5_an_answer_that_breaks_off_drops_nothing() -> None:
    world = World()
    world.answer(act("a"), act("b", "†state.a"))
    world.steer("m1")
    world.step()
    world.answer(problem={"code": "interrupted", "message": "the connection broke"})
    assert (world.number, world.statuses["1.1"]) == (3, "held")
    assert "Nothing is decided yet about what is held" in world.shown[-1]
    world.answer(keep("1.1"))
    assert world.end("1.0") == ["1.1"]


def test_r10_5_a_failure_meanwhile_reaches_the_model_once_and_its_readers_are_skipped() -> None:
    world = World()
    world.answer(act("a"), act("b", "†state.a"), act("c"))
    world.steer("m1")
    world.step()
    world.end("1.0", error=True)
    world.answer(keep("1.1", "1.2"), output={"x": 1})
    world.end("1.2")
    codes = [error["error"]["code"] for error in world.run.progress.errors]
    assert sorted(codes) == ["bad", "not_held"]
    assert (world.over, world.statuses["1.1"]) == (False, "skipped")


def test_r10_5_an_output_beside_calls_that_go_on_is_not_the_runs() -> None:
    world = World()
    world.answer(act("a"), output={"early": True})
    world.steer("m1")
    world.step()
    assert not world.over
    assert any("Your output was not returned" in text for text in world.shown)
    world.answer(output={"late": True})
    world.end("1.0")
    assert (world.over, world.run.output.value) == (True, {"late": True})


def test_r10_5_a_loop_is_held_kept_and_dropped_as_one() -> None:
    for kept in (True, False):
        world = World()
        world.answer(act("all", "†item", _each=["a", "b", "c"], _parallel=1), act("then", "†state.all"))
        assert world.started == ["1.0[0]"]
        world.steer("m1")
        world.step()
        assert world.end("1.0[0]") == []
        assert (world.statuses["1.0"], world.statuses["1.1"]) == ("held", "held")
        chosen = keep("1.0", "1.1") if kept else keep(drop=["1.0", "1.1"])
        assert world.answer(chosen) == (["1.0[1]"] if kept else [])
        if kept:
            world.end("1.0[1]")
            assert world.end("1.0[2]") == ["1.1"]
            assert world.loop.running["1.1"].inputs.params == {"x": ["of 1.0[0]", "of 1.0[1]", "of 1.0[2]"]}
        else:
            reason = next(call.reason for call in world.run.records.past.calls if call.id == "1.0")
            assert reason == "dropped by Request 2 after 1 of 3 iterations"


@pytest.mark.parametrize("activity", ["act", "perdure.client"])
def test_r7_6_an_output_of_a_rejected_plan_is_held_whatever_becomes_of_its_calls(activity: str) -> None:
    tool = parse_tool({"name": "act", "properties": {"x": {}}, "_activity": activity}, activities=["act"])
    world = World(tools=[tool], approval={"scope": "plan"})
    world.answer(act("a"))
    assert world.decide("1") == ["1.0"]
    world.loop.running["1.0"].hold.queued = False  # it runs, or its client has it
    world.steer("m1")
    world.step()
    world.answer(*([keep("1.0")] if activity == "perdure.client" else []), output="all paid")
    world.decide("2", "reject", reason="do not pay")
    if activity == "act":
        world.end("1.0")
    assert (world.statuses["1.0"], world.over, world.number) == ("done" if activity == "act" else "unknown", False, 3)
    shown = "\n".join(world.shown)
    assert "The output was not returned, because its plan was rejected. Answer again." in shown
    assert "do not pay" in shown


def test_r7_6_a_call_of_a_rejected_plan_frees_its_slot_while_calls_of_an_earlier_plan_run() -> None:
    see_alone = {"name": "see", "properties": {"x": {}}, "_activity": "see", "_safe": True, "_exclusive": True}
    world = World(tools=[TOOLS[0], parse_tool(see_alone, activities=["see"])], approval={"scope": "plan"})
    world.answer(act("a"), see("b"))
    assert world.decide("1") == ["1.0", "1.1"]
    world.loop.running["1.0"].hold.queued = False
    world.loop.running["1.1"].hold.queued = True  # its hooks have not answered
    world.steer("m1")
    world.step()
    world.answer(act("c"))
    world.decide("2", "reject", reason="no")
    assert world.statuses == {"1.0": "running", "1.1": "rejected", "2.0": "rejected"}
    world.steer("m2")
    world.step()
    world.answer(see("d"))
    assert world.decide("3") == ["3.0"]


def test_r10_5_a_plan_that_is_shown_as_a_whole_is_shown_again() -> None:
    world = World(approval={"scope": "plan"})
    world.answer(act("a"), act("b"))
    assert [offer.id for offer in world.run.approval_queue.waiting.values()] == ["1"]
    world.steer("m1")
    world.run.approval_queue.withdraw(list(world.run.approval_queue.waiting.values()))
    world.step()
    world.answer(keep("1.1", drop=["1.0"]), act("c"))
    offer = world.run.approval_queue.waiting["2"]
    assert [call.id for call in offer.calls if not call.state.ended] == ["1.1", "2.1"]
    assert world.statuses == {"1.0": "skipped", "1.1": "ready", "2.0": "done", "2.1": "ready"}


def test_r10_5_the_last_request_is_told_and_what_is_held_is_not_run() -> None:
    world = World()
    world.answer(act("a"), act("b", "†state.a"))
    world.loop.steer()
    world.loop.work(99, "")
    assert world.run.plan is not None
    world.run.close_request(world.run.plan, world.loop.result)
    limit = Limit("token_budget", "the budget is spent")
    world.loop.hold_to(limit, "")
    assert {call.id: (call.state.status, call.state.reason) for call in world.run.plan.calls} == {
        "1.0": ("running", ""),
        "1.1": ("skipped", limit.words),
    }
    world.loop.report(CallEnded(world.loop.running["1.0"], Returned(1)))
    world.loop.work(100, "")
    assert world.loop.stage is RequestStage.SETTLED


def test_r10_6_what_ran_when_the_run_ended_is_unknown_unless_it_is_safe() -> None:
    world = World()
    world.answer(act("a"), act("b", "†state.a"), see("c"), act("d", "†item", _each=[1, 2], _parallel=1))
    world.end("1.3[0]")
    queued = world.loop.running["1.3[1]"]
    queued.hold.queued = True
    world.loop.break_off("the run was cancelled", "")
    assert world.statuses == {
        "1.0": "unknown",
        "1.1": "skipped",
        "1.2": "skipped",
        "1.3": "skipped",
        "1.3[0]": "done",
        "1.3[1]": "skipped",
    }


def test_r10_7_what_is_no_message_or_held_already_is_refused() -> None:
    progress = World().run.progress
    wrong: list[Json] = [
        None,
        "x",
        {},
        {"id": "1"},
        {"id": "", "text": "x"},
        {"id": "1", "text": "x" * 200_000},
        {"id": "1", "text": 5},
    ]
    for raw in wrong:
        with pytest.raises(DecisionError):
            context_module.accept(progress, raw)
    assert context_module.accept(progress, {"id": "1", "text": "x"}) is not None
    assert context_module.accept(progress, {"id": "1", "text": "x"}) is None
    assert context_module.withdraw(progress, "1") == {"id": "1", "withdrawn": True}
    assert context_module.message_fates(progress) == []
    context_module.accept(progress, {"id": "1", "text": "y"})
    context_module.hold(progress)
    with pytest.raises(DecisionError, match="Request 1 has the message 1"):
        context_module.withdraw(progress, "1")


@pytest.mark.parametrize("seed", range(share(60)))
def test_r10_5_whatever_happens_nothing_starts_unasked_is_lost_or_ends_twice(seed: int) -> None:
    random = Random(seed)
    world = World(random.choice(list(DIALECTS)), max_requests=10_000, parallel=random.choice([None, 2]))
    sent, held_since = 0, False
    for _ in range(120):
        number, before = world.number, len(world.started)
        what = random.choice(["write", "write", "end", "end", "end", "answer", "steer"])
        if what in ("write", "answer") and world.loop.stage is not RequestStage.STREAMING:
            continue  # it is whole already
        if what == "steer":
            world.steer(f"m{sent}")
            sent, held_since = sent + 1, True
            world.step()
        elif what == "write":
            held = [call.id for call in world.run.plan.held_calls.held] if world.run.plan else []
            call = random.choice([act, see])(f"p{random.randrange(8)}", f"†state.p{random.randrange(8)}")
            call |= {"x": 1} if random.random() < 0.5 else {}
            kept = random.sample(held, random.randrange(len(held) + 1))
            world.write(keep(*kept) if held and random.random() < 0.4 else call)
            held_since = False
        elif what == "answer":
            world.answer(problem={"code": "interrupted", "message": "x"} if random.random() < 0.2 else None)
            held_since = False
        elif what == "end" and world.loop.running:
            world.end(random.choice(list(world.loop.running)), error=random.random() < 0.2)
        new = world.started[before:]
        assert len(set(world.started)) == len(world.started), "no call starts twice"
        if held_since:
            assert all(_tool(world, id) == "see" for id in new), "nothing with an effect starts unasked"
        assert world.number >= number
    while world.loop.running or (world.run.plan and not world.run.plan.settled and world.number < 10_000):
        if world.loop.running:
            world.end(next(iter(world.loop.running)))
        elif world.loop.stage is RequestStage.STREAMING:
            world.answer(output={"last": True})
            if not (world.run.plan and world.run.plan.calls):
                break
    heard = context_module.message_fates(world.run.progress)
    assert [each.id for each in heard] == [f"m{n}" for n in range(sent)]
    assert all(each.request for each in heard)
    ids = [call.id for call in world.run.records.past.calls]
    assert len(ids) == len(set(ids))
    assert set(world.started) <= set(ids)
    assert all(
        call.status in ("done", "failed") for call in world.run.records.past.calls if call.id in set(world.started)
    )


def _tool(world: World, id: str) -> str:
    return next(call.tool for call in run_view(world.run, "r").calls if call.id == id)


def test_r10_7_a_message_is_taken_back_by_its_sender() -> None:
    """In a plain run too: the gateway says who asks, but for who has the right to take back what others have said."""
    progress = RunProgress(inbox=[IncomingMessage(id="m1", text="pay", sender="ann")])
    with pytest.raises(DecisionError, match="no message 'm1'"):
        context_module.withdraw(progress, {"id": "m1", "sender": "sue"})
    assert context_module.withdraw(progress, {"id": "m1", "sender": "ann"}) == {"id": "m1", "withdrawn": True}
    assert progress.inbox == []


def test_r10_5_a_text_beside_calls_drops_no_held_call() -> None:
    world = World("tools")
    world.answer(see("a"), act("b", x="†state.a"))
    world.steer("m")
    world.step()
    world.answer(see("q"))
    world.end("2.0")
    world.end("1.0")
    world.answer(see("r"), text="I look at r first.")
    world.end(f"{world.number}.0")
    assert world.statuses["1.1"] == "held"
    assert not any("gave the output" in shown for shown in world.shown)


def test_r10_5_a_text_after_a_message_leaves_the_tools_while_calls_run() -> None:
    schema: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    world = World("tools", schema)
    world.answer(see("a"), act("b", x="†state.a"))
    world.steer("m")
    world.step()
    world.answer(text="Yes, I will look at that too.")
    assert (world.run.progress.wants, world.run.final, world.statuses["1.1"]) == ("plan", False, "held")


@pytest.mark.parametrize("loop", [{"_tool": "_for", "_each": ["a", "b"]}, {"_tool": "_while", "_until": "index == 1"}])
@pytest.mark.parametrize("acts", [True, False])
def test_r6_5_a_call_in_a_loop_counts_if_it_is_done(loop: JsonObject, acts: bool) -> None:
    world = World(must_call=["act"])
    world.answer(
        {**loop, "_body": [act(x="{†index}", _if="index >= 0" if acts else "index < 0"), see("b")]}, output="ok"
    )
    while world.loop.running and not world.over and world.number == 1:
        for name in [each for each in world.loop.running if "[" in each]:
            world.end(name)
    assert world.over is acts


@pytest.mark.parametrize("ending", ["the model is away", "the output is invalid"])
def test_r15_1_a_draft_keeps_its_sources(ending: str) -> None:
    world = World(refine=True, models={"fast": "f", "smart": "s"})
    read = parse_tool({"name": "see", "_activity": "see", "_untrusted": True}, activities=["see"])
    world.run = RunState(
        world.run.agent,
        Context(world.run.agent),
        PreparedWorker(tools=[read], models=Models(fast="f", smart="s")),
        identity=RunIdentity(parents=("boss",)),
    )

    def ask() -> None:
        world.run.situation()
        world.run.begin_request(ModelChoice("s" if world.run.progress.wants == "refined" else "f", "test"))
        world.run.open_plan(world.number)
        world.loop = RequestLoop(world.run)

    world.ask = ask  # type: ignore[method-assign]
    ask()
    world.answer({"_tool": "see", "_outputPath": "†state.page"})
    world.end("1.0")
    world.answer(output={"text": "†state.page"})
    assert world.run.progress.draft == {"text": "of 1.0"}
    wanted = world.run.progress.draft_sources
    assert "!tool:see" in wanted
    if ending == "the model is away":
        world.answer(problem={"code": "not_refined", "message": "down"})
    else:
        world.answer(output={"text": "†state.nope"})
    assert world.over
    assert sorted(world.run.output.sources) == wanted


def test_r5_12_a_call_that_its_client_executes_occupies_its_slot_until_a_message_holds_it() -> None:
    tool = {"name": "pay", "properties": {"x": {}}, "_activity": "perdure.client"}
    calls = [{"_tool": "pay", "x": 1}, {"_tool": "pay", "x": 2}]
    for exclusive, parallel in ((True, None), (False, 1)):
        world = World(tools=[parse_tool(tool | {"_exclusive": exclusive})], parallel=parallel)
        assert world.answer(*calls) == ["1.0"]
        assert world.step() == []
        assert world.end("1.0") == ["1.1"]
    assert World(tools=[parse_tool(tool)]).answer(*calls) == ["1.0", "1.1"]
    world = World(tools=[parse_tool(tool), *TOOLS], parallel=1)
    world.answer(calls[0])
    world.steer("m")
    world.step()
    assert world.answer({"_tool": "act", "x": 1}) == ["2.0"], "the client may never return a result"


@pytest.mark.parametrize("activity", ["act", "perdure.ask_person", "perdure.client"])
def test_r10_5_an_unreadable_answer_ends_no_call_of_an_earlier_plan(activity: str) -> None:
    ask = parse_tool(
        {"name": "ask", "properties": {"question": {"type": "string"}}, "_activity": activity}, activities=["act"]
    )
    world = World(tools=[*TOOLS, ask], approval={"scope": "plan"})
    world.answer(act("a"), {"_tool": "ask", "question": "ok?", "_outputPath": "†state.q"})
    assert world.decide("1") == ["1.0", "1.1"]
    world.loop.running["1.0"].hold.queued = False
    world.loop.running["1.1"].hold.queued = activity == "act"  # it waits for its turn
    world.steer("m1")
    world.step()
    world.answer(keep("1.1"), act("b"), problem=BROKEN)
    assert world.number == 3
    assert world.statuses == {"1.0": "running", "1.1": "held", "2.0": "done", "2.1": "skipped"}
    assert "Nothing is decided yet about what is held" in world.shown[-1]
    assert not world.loop.may_begin(world.loop.running["1.1"])
    world.answer(keep("1.1"), act("b", 2))
    world.decide("3")
    assert world.loop.may_begin(world.loop.running["1.1"])
    world.end("1.1")
    assert (world.statuses["1.1"], world.started[-1]) == ("done", "3.1")


@pytest.mark.parametrize("scope", ["plan", "calls"])
def test_r10_5_an_unreadable_answer_drops_no_call_also_later(scope: str) -> None:
    world = World(approval={"scope": scope})
    world.answer(act("a"), act("b", "†state.a"), act("c", "†state.a"))
    if scope == "plan":
        world.decide("1")
    world.loop.running["1.0"].hold.queued = False
    world.steer("m1")
    world.step()
    world.answer(keep(drop=["1.1"]), problem=BROKEN)
    world.answer(keep("1.2"))
    assert (world.number, world.statuses["1.1"]) == (4, "held"), "the model is asked about it"


@pytest.mark.parametrize("scope", ["plan", "calls"])
def test_r10_5_an_unreadable_answer_with_no_call_held_needs_no_further_request_while_calls_run(scope: str) -> None:
    world = World(approval={"scope": scope})
    world.answer(act("a"))
    if scope == "plan":
        world.decide("1")
    world.loop.running["1.0"].hold.queued = False
    world.steer("m1")
    world.step()
    world.answer(problem=BROKEN)
    assert (world.number, world.loop.stage) == (2, RequestStage.DRAINING)
    world.end("1.0")
    assert (world.number, world.statuses) == (3, {"1.0": "done"})


def test_r7_6_a_call_of_an_unreadable_answer_is_in_no_later_plan() -> None:
    world = World(approval={"scope": "plan"})
    world.answer(act("a"), act("b", "†state.a"))
    world.decide("1")
    world.loop.running["1.0"].hold.queued = False
    world.steer("m1")
    world.step()
    world.answer(act(x="pay 100"), act("a", 2), problem=BROKEN)
    assert "the answer was not complete, so nothing of its plan was run" in "".join(world.shown)
    world.answer(keep("1.1"), act(x="pay 100 euros"))
    assert world.decide("3") == ["3.1"]
    assert world.end("1.0") == ["1.1"], "it reads the value of the earlier plan"
    assert (world.statuses["2.0"], world.statuses["2.1"]) == ("skipped", "skipped")


def world_with_rules(rules: list[JsonObject], tools: dict[str, str], **config: Any) -> World:
    """Return a run with these rules, and with tools of these names and activities beside `act` and `see`."""
    properties = {"question": {"type": "string"}, "x": {}}
    more = [
        parse_tool({"name": name, "properties": properties, "_activity": activity}, activities=["act", "q", *tools])
        for name, activity in tools.items()
    ]
    return World(tools=[*TOOLS, *more], rules=rules, **config)


LOG_FOLLOWS: JsonObject = {"rule": "followed_by", "call": "act", "then": "log"}


def test_r23_2_an_unreadable_answer_leaves_a_required_call_in_the_plan() -> None:
    world = world_with_rules([LOG_FOLLOWS], {"log": "log"}, approval={"scope": "plan"})
    world.answer(act("a"), {"_tool": "log", "x": "†state.a"})
    world.decide("1")
    world.begin("1.0")
    world.steer("m1")
    world.step()
    world.answer({"_tool": "log", "x": 2}, problem=BROKEN)
    assert (world.number, world.statuses["1.1"]) == (2, "pending")
    assert world.end("1.0") == ["1.1"]
    assert world.statuses["2.0"] == "skipped"


def test_r23_2_a_required_call_starts_before_the_last_request_after_a_message() -> None:
    world = world_with_rules([LOG_FOLLOWS], {"log": "log"})
    assert world.answer(act("a"), {"_tool": "log", "x": "†state.a"}) == ["1.0"]
    call = world.loop.running["1.0"]
    world.begin("1.0")
    world.loop.steer()
    world.loop.work(1, "")
    assert world.run.plan is not None
    world.run.close_request(world.run.plan, world.loop.result)
    world.loop.hold_to(Limit("max_requests", "the run may ask 2 times"), "")
    world.loop.report(CallEnded(call, Returned(1)))
    world.loop.work(2, "")
    assert [start.call.id for start in world.loop.starts("now") if isinstance(start, StartCall)] == ["1.1"]


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("scope", ["plan", "calls"])
def test_r7_6_no_call_of_an_unseen_plan_starts_before_the_last_request(scope: str, approved: bool) -> None:
    world = World(approval={"scope": scope})
    world.answer(act("a"), act("b", "†state.a"), act("c", "†state.a"))
    if scope == "plan" and approved:
        world.decide("1")
    if begun := "1.0" in world.loop.running:
        world.loop.running["1.0"].hold.queued = not approved  # not approved: it has not begun
    world.steer("m1")
    world.step()
    loop, started = world.loop, [*world.started]
    loop.answer(RequestResult(calls=[keep("1.0", "1.1"), act(x="pay"), see()]))  # 1.2 is not named
    loop.work(10, "")
    assert loop.stage is RequestStage.REVISED
    started += [start.call.id for start in loop.starts("") if isinstance(start, StartCall)]
    assert world.run.plan is not None
    world.run.close_request(world.run.plan, loop.result)
    loop.hold_to(Limit("max_requests", "the run may ask 3 times"), "")
    for call in [*loop.running.values()] if begun and approved else []:
        loop.report(CallEnded(call, Returned(1)))
    loop.work(11, "")
    later = [start.call.id for start in loop.starts("") if isinstance(start, StartCall)]
    if scope == "plan":
        assert (later, loop.stage) == ([], RequestStage.SETTLED)
        assert [call.state.status for call in loop.plan.own] == ["done", "skipped", "skipped"]
    else:
        assert {"2.1", "2.2"} <= {*started, *later}


def paying(activity: str) -> World:
    """Return a run that may pay 100 euros, and ship only after a payment."""
    pay = {"name": "pay", "properties": {"euros": {}}, "_activity": activity, "_undo": "refund"}
    ship = {"name": "ship", "_activity": "ship"}
    known = ["pay", "refund", "ship"]
    rules = [
        {"rule": "at_most", "of": "pay.euros", "sum": 100},
        {"rule": "precedes", "first": "pay", "then": "ship"},
    ]
    return World(tools=[*TOOLS, *(parse_tool(each, activities=known) for each in (pay, ship))], rules=rules)


def test_r23_1_a_call_that_ran_counts_although_its_result_cannot_be_written() -> None:
    pays: JsonObject = {"_tool": "pay", "euros": 60, "_outputPath": "†state.m.x"}
    world = paying("pay")
    world.answer({"_tool": "_let", "value": "text", "_outputPath": "†state.m"})
    for id in ("2.0", "3.0"):
        world.answer(pays)
        if id in world.loop.running:
            world.begin(id)
            world.end(id)
    assert [world.statuses[id] for id in ("2.0", "3.0")] == ["invalid", "invalid"]
    shown = "\n".join(world.shown)
    assert "the call was carried out, but its result cannot be written" in shown
    assert "the sum of pay.euros would be 120; the limit is 100" in shown
    effects = world.run.records.effects.chunk(0, world.run.plan).effects
    assert [(each.call, each.status) for each in effects] == [("2.0", "cannot be undone")]
    assert world.answer({"_tool": "ship"}) == ["4.0"], "a payment was done before"


@pytest.mark.parametrize("how", ["runs", "is recorded"])
def test_r23_1_a_call_whose_result_a_hook_withholds_is_done(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [
        {"rule": "precedes", "first": "q", "then": "ship"},
        {"rule": "never_after", "call": "see", "after": "q", "event": "done"},
        {"rule": "followed_by", "call": "q", "then": "log"},
    ]
    world = world_with_rules(rules, {"q": "q", "ship": "ship", "log": "log"})
    withheld = Failed(CallError("refused_by_hook", withheld_words("q", "it is secret")), carried_out=True)

    def take_record(call: Call) -> Outcome | None:
        call.state.recorded = call.spec.tool_name == "q"
        return withheld if call.state.recorded else None

    if how == "is recorded":
        monkeypatch.setattr(world.run, "recorded", take_record)
    started = world.answer(
        {"_tool": "q", "question": "?"}, *({"_tool": each, "_after": ["1.0"]} for each in ("ship", "log"))
    )
    if how == "runs":
        call = world.loop.running["1.0"]
        assert world.loop.begin(call) is None
        world.loop.report(CallEnded(call, withheld))
        started = world.step()
    assert started == ["1.1", "1.2"]
    for id in started:
        world.end(id)
    assert world.answer(see()) == []
    assert world.statuses == {"1.0": "failed", "1.1": "done", "1.2": "done", "2.0": "invalid"}


def test_r23_1_a_call_that_a_hook_refuses_before_it_runs_is_not_done_whatever_the_reason_quotes() -> None:
    world = world_with_rules([{"rule": "precedes", "first": "q", "then": "ship"}], {"q": "q", "ship": "ship"})
    world.answer({"_tool": "q", "question": "?"}, {"_tool": "ship", "_after": ["1.0"]})
    refused = Failed(CallError("refused_by_hook", withheld_words("q", "as the question says")))
    world.loop.report(CallEnded(world.loop.running["1.0"], refused))
    assert world.step() == []
    assert world.statuses == {"1.0": "failed", "1.1": "skipped"}


def test_r23_1_a_call_whose_result_a_hook_withholds_has_failed_too() -> None:
    rules = [{"rule": "never_after", "call": "see", "after": "q", "event": "failed"}]
    world = world_with_rules(rules, {"q": "q"})
    world.answer({"_tool": "q", "question": "?"})
    call = world.loop.running["1.0"]
    assert world.loop.begin(call) is None
    withheld = Failed(CallError("refused_by_hook", withheld_words("q", "it is secret")), carried_out=True)
    world.loop.report(CallEnded(call, withheld))
    world.step()
    assert world.answer(see()) == []
    assert world.statuses == {"1.0": "failed", "2.0": "invalid"}


@pytest.mark.parametrize("activity", ["q", "perdure.client", "perdure.ask_person"])
def test_r23_1_a_call_that_a_client_or_a_person_has_answered_is_done(activity: str) -> None:
    rules = [
        {"rule": "precedes", "first": "q", "then": "ship"},
        {"rule": "never_after", "call": "see", "after": "q", "event": "done"},
    ]
    world = world_with_rules(rules, {"q": activity, "ship": "ship"})
    assert world.answer({"_tool": "q", "question": "?"}, {"_tool": "ship", "_after": ["1.0"]}) == ["1.0"]
    if activity == "q":
        world.begin("1.0")
    assert world.end("1.0") == ["1.1"]
    world.end("1.1")
    assert world.answer(see()) == []
    assert world.statuses == {"1.0": "done", "1.1": "done", "2.0": "invalid"}


@pytest.mark.parametrize("activity", ["act", "perdure.client", "perdure.ask_person"])
def test_r23_2_a_call_that_follows_one_of_a_client_or_a_person_cannot_be_dropped(activity: str) -> None:
    world = world_with_rules([{**LOG_FOLLOWS, "call": "q"}], {"q": activity, "log": "log"})
    world.answer({"_tool": "q", "question": "?", "_outputPath": "†state.a"}, {"_tool": "log", "x": "†state.a"})
    if activity == "act":
        world.begin("1.0")
    world.steer("m1")
    world.step()
    assert world.statuses["1.1"] == "pending"
    world.answer(keep("1.0", drop=["1.1"]))
    assert world.statuses["1.1"] == "pending"
    assert world.end("1.0") == ["1.1"]


@pytest.mark.parametrize("how", ["dropped", "rejected with its plan"])
def test_r10_6_a_call_that_its_client_has_when_it_is_dropped_is_unknown(how: str) -> None:
    world = paying("perdure.client")
    assert world.answer({"_tool": "pay", "euros": 60}) == ["1.0"]
    assert world.run.plan is not None
    if how == "dropped":
        world.steer("m1")
        world.step()
        world.answer(keep(drop=["1.0"]))
    else:
        world.run.plan.end_all("rejected", "a person has rejected the plan")
        world.step()
    reason = next(call.reason for call in run_view(world.run, "r").calls if call.id == "1.0")
    assert world.statuses["1.0"] == "unknown"
    assert reason is not None
    assert reason.endswith("while it ran: whether it took effect is not known")
    effects = world.run.records.effects.chunk(0, world.run.plan).effects
    assert [(each.call, each.status) for each in effects] == [("1.0", "unknown")]
    world.answer({"_tool": "pay", "euros": 70})
    assert "the sum of pay.euros would be 130; the limit is 100" in "\n".join(world.shown)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(("activity", "status"), [("perdure.client", "unknown"), ("perdure.ask_person", "skipped")])
def test_r10_6_a_call_that_its_client_has_when_the_run_is_terminated_is_unknown(
    activity: str, status: str, held: bool
) -> None:
    world = world_with_rules([], {"q": activity})
    world.answer({"_tool": "q", "question": "?"})
    if held:
        world.steer("m1")
        world.step()
    view = run_view(world.run, "r")
    entry = run_entry(view.result(), "t")
    assert [view.calls[0].status_without_outcome, entry.calls[0].status] == [status, status]
    assert "isWithClient" not in view.calls[0].as_json()


def test_r9_5_a_call_that_had_not_begun_at_the_deadline_is_skipped() -> None:
    world = paying("pay")
    assert world.answer({"_tool": "pay", "euros": 60}, {"_tool": "pay", "euros": 40}) == ["1.0", "1.1"]
    for id in ("1.0", "1.1"):
        world.begin(id)
    world.loop.running["1.1"].hold.queued = True  # it waits for room
    world.loop.stop(Limit("deadline", "the run has worked for 600 s"), "t")
    assert world.run.plan is not None
    world.run.close_request(world.run.plan, world.loop.result)
    assert world.statuses == {"1.0": "failed", "1.1": "skipped"}
    effects = world.run.records.effects.chunk(0, world.run.plan).effects
    assert [(each.call, each.status) for each in effects] == [("1.0", "unknown")]
    assert [float(world.run.rules.used(rule)) for rule in world.run.rules.rules if isinstance(rule, AtMost)] == [60]
    world.ask()
    assert "not run, because the run has worked for 600 s" in "\n".join(world.shown), "the model reads the reason"


def test_r9_5_an_output_beside_a_call_that_had_not_begun_at_the_deadline_is_not_returned() -> None:
    world = World()
    world.loop.answer(RequestResult(calls=[act("a")], output="paid"))
    world.loop.work(1, "")
    assert len(world.loop.starts("")) == 1
    world.loop.running["1.0"].hold.queued = True
    world.loop.stop(Limit("deadline", "the run has worked for 600 s"), "t")
    assert world.run.plan is not None
    assert (world.statuses, world.run.close_request(world.run.plan, world.loop.result)) == ({"1.0": "skipped"}, False)
