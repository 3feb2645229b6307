"""Loops that a plan runs itself: calls made per item, or until something holds, and bodies (R16.1, R16.4, R16.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.plan import Call, Failed, Outcome, Plan, Rejected, Returned
from perdure.tools.tool import Tool, parse_tool
from perdure.values.json import JsonObject, dumps
from perdure.values.references import Reference
from perdure.values.state import State, Write

NAMES = ("hosts", "check", "fix", "report", "alone")
TOOLS: dict[str, Tool] = {
    name: parse_tool(
        {"name": name, "properties": {"host": {"type": "string"}}, "_activity": name, "_exclusive": name == "alone"},
        activities=[name],
    )
    for name in NAMES
}
Answers = Callable[[Call], Any]


def given_back(call: Call) -> Any:
    return call.inputs.params.get("host", call.inputs.params)


class Ran:
    """A plan that was played: `answers` gives each call's result, or the exception, or the outcome, that it ends with."""

    def __init__(
        self, calls: list[Any], answers: Answers = given_back, *, seed: int | None = None, **more: Any
    ) -> None:
        state = State([Write(path=(), value=more.pop("state"))] if "state" in more else [])
        self.plan = Plan(1, tools=TOOLS, state=state, data={"input": more.pop("input", {})}, **more)
        self.plan.extend(calls)
        self.plan.close()
        self.together = 0
        self.started: list[str] = []
        order, running = Random(seed), []
        while True:
            for call in self.plan.take_ready("now"):
                running.append(call)
                self.started.append(call.id)
            self.together = max(self.together, len(running))
            if not running:
                break
            call = running.pop(0 if seed is None else order.randrange(len(running)))
            self.plan.home(call).end(call, _outcome(answers(call)), "then")
        assert self.plan.settled
        self.calls = {call.id: call for call in self.plan.every_call()}
        self.state = self.plan.state.snapshot()

    def status(self) -> dict[str, str]:
        return {id: call.state.status for id, call in self.calls.items()}

    def error(self, id: str) -> str:
        error = self.calls[id].state.error
        return "" if error is None else f"{error.code}: {error.message}"


def _outcome(answer: Any) -> Outcome:
    if isinstance(answer, Exception):
        return Failed(CallError("E", str(answer)))
    return answer if isinstance(answer, Returned | Failed | Rejected) else Returned(answer)


def breaks(*hosts: str) -> Answers:
    return lambda call: (
        RuntimeError(f"broke-{call.inputs.params['host']}")
        if call.inputs.params.get("host") in hosts
        else given_back(call)
    )


CHECK = {"_tool": "check", "host": "†item", "_outputPath": "†state.got"}


@pytest.mark.parametrize(
    ("rows", "sent"), [([{"mail": "a@b"}, {"n": 2}], ["a@b", None]), ([{"n": 2}, {"n": 3}], [None, None])]
)
def test_r16_2_items_without_a_key_are_skipped_where_the_condition_asks_for_it(rows: Any, sent: Any) -> None:
    each = {"_each": "†state.rows", "_if": "'mail' in item", "host": "†item.mail", "_outputPath": "†state.sent"}
    ran = Ran([{"_tool": "check", **each}], state={"rows": rows})
    assert (ran.state["sent"], ran.status()["1.0"]) == (sent, "done")


def test_a_call_is_made_for_each_item_and_its_results_stand_in_their_order() -> None:
    ran = Ran([CHECK | {"_each": "†state.hosts"}], state={"hosts": ["a", "b", "c"]}, seed=3)
    assert ran.status() == {"1.0": "done", "1.0[0]": "done", "1.0[1]": "done", "1.0[2]": "done"}
    assert ran.state["got"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("each", "wanted"),
    [
        (["a", "b"], ["a", "b"]),
        ([], []),
        (["†state.hosts[1]", {"_expr": "state.hosts[0]"}], ["b", "a"]),
        ({"_expr": "[h for h in state.hosts if h != 'b']"}, ["a"]),
        ("†state.none || †state.hosts", ["a", "b"]),
    ],
)
def test_what_is_gone_through_is_a_reference_a_list_or_a_formula(each: Any, wanted: Any) -> None:
    assert Ran([CHECK | {"_each": each}], state={"hosts": ["a", "b"]}).state["got"] == wanted


@pytest.mark.parametrize("each", ["hosts", 3, {"a": 1}, "†state.text"])
def test_what_is_no_list_is_an_error_of_the_call(each: Any) -> None:
    ran = Ran([CHECK | {"_each": each}], state={"text": "abc"})
    assert ran.calls["1.0"].state.status == "invalid"
    assert "$._each is" in ran.error("1.0")


def test_the_item_and_its_place_are_read_in_templates_and_formulas() -> None:
    call = CHECK | {
        "host": "{†index}: {†h.name} of {†input.of}",
        "_if": "h.cpu > 5",
        "_each": "†state.hosts",
        "_as": "h",
    }
    hosts = [{"name": "a", "cpu": 9}, {"name": "b", "cpu": 1}, {"name": "c", "cpu": 7}]
    ran = Ran([call], state={"hosts": hosts}, input={"of": 3})
    assert ran.state["got"] == ["0: a of 3", None, "2: c of 3"]
    assert ran.calls["1.0[1]"].state.status == "skipped"


def test_a_condition_that_does_not_go_by_the_item_is_that_of_the_whole_loop() -> None:
    ran = Ran(
        [CHECK | {"_each": ["a"], "_if": "state.on"}, {"_tool": "report", "x": "†state.got"}], state={"on": False}
    )
    assert ran.status() == {"1.0": "skipped", "1.1": "skipped"}


def test_a_failed_item_is_data_and_told() -> None:
    ran = Ran([CHECK | {"_each": ["a", "b", "c"]}, {"_tool": "report", "x": "†state.got"}], breaks("b"))
    error = {"error": {"index": 1, "code": "E", "message": "broke-b"}}
    assert ran.state["got"] == ["a", error, "c"]
    assert ran.calls["1.1"].inputs.params == {"x": ["a", error, "c"]}
    assert [note.message for note in ran.calls["1.0"].state.notes] == ["iteration 1 failed: E: broke-b"]


def test_where_all_fail_the_call_fails_and_takes_its_branch() -> None:
    calls = [CHECK | {"_each": ["a", "b"], "_outputPath": "†state.got || †state.wrong"}]
    ran = Ran(calls, breaks("a", "b"))
    assert ran.calls["1.0"].state.status == "failed"
    assert ran.state["wrong"]["code"] == "iterations_failed"
    assert Ran(calls, breaks("a")).state["got"][1] == "b"


def test_what_nobody_wanted_is_rejected() -> None:
    ran = Ran([CHECK | {"_each": ["a", "b"]}], lambda _: Rejected("no"))
    assert ran.calls["1.0"].state.status == "rejected"
    ran = Ran(
        [CHECK | {"_each": ["a", "b"]}], lambda call: Rejected("no") if call.inputs.params["host"] == "a" else "b"
    )
    assert ran.state["got"] == [{"error": {"index": 0, "code": "rejected", "message": "no"}}, "b"]


def test_so_many_run_at_once() -> None:
    items = [str(number) for number in range(20)]
    assert Ran([CHECK | {"_each": items}]).together == 8
    assert Ran([CHECK | {"_each": items, "_parallel": 3}]).together == 3
    assert Ran([CHECK | {"_each": items}], parallel=1).together == 1
    assert Ran([CHECK | {"_tool": "alone", "_each": items}]).together == 1
    assert Ran([CHECK | {"_tool": "alone", "_each": items}], execution="step", parallel=1).status()["1.0"] == "done"


def test_a_wrong_item_is_an_error_of_its_own() -> None:
    ran = Ran([CHECK | {"_each": ["a", 7]}])
    assert ran.calls["1.0[1]"].state.status == "invalid"
    assert ran.state["got"][1]["error"]["code"] == "invalid_params"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"_each": ["a"], "_parallel": 0}, "$._parallel is 0"),
        ({"_each": ["a"], "_as": "len"}, "$._as is"),
        ({"_each": ["a"], "_as": "state"}, "$._as is"),
        ({"_each": ["a"], "host": "†itme"}, "†itme"),
        ({"_each": ["a"], "_until": "†output"}, "not both"),
        ({"_until": "†output.done", "_max": 501}, "from 1 to 500"),
        ({"_each": ["a"], "host": "†item."}, "malformed"),
        ({"_each": ["a"], "odd": {"_expr": "1 +"}}, "the expression is not valid"),
        ({"_tool": "_for", "_each": [1]}, "$._body"),
        ({"_tool": "_for", "_body": [CHECK]}, "lacks '_each'"),
        ({"_tool": "_while", "_body": [CHECK]}, "'_while' or '_until'"),
        ({"_tool": "_for", "_each": [1], "_body": [{"_tool": "chek"}]}, "$._body[0] (chek): there is no tool"),
        ({"_tool": "_for", "_each": [1], "_body": [CHECK, {"_tool": "fix", "_after": [".7"]}]}, ""),
    ],
)
def test_what_is_wrong_with_a_loop_is_said_before_anything_runs(call: dict[str, Any], words: str) -> None:
    ran = Ran([{"_tool": "check", **call}])
    assert ran.calls["1.0"].state.status != "done" or "1.0[0].1" in ran.calls
    assert words in ran.error("1.0")


def test_a_body_reads_what_is_outside_and_what_it_wrote_and_gives_lists() -> None:
    body = [
        {"_tool": "check", "host": "†h", "_outputPath": "†state.load"},
        {"_tool": "fix", "host": "{†state.load}{†state.end}{†i}", "_if": "i > 0", "_outputPath": "†state.fixed"},
    ]
    calls = [
        {"_tool": "hosts", "host": "!", "_outputPath": "†state.end"},
        {"_tool": "_for", "_each": ["a", "b"], "_as": "h", "_at": "i", "_body": body, "_outputPath": "†state.last"},
        {"_tool": "report", "x": ["†state.load", "†state.fixed"]},
    ]
    ran = Ran(calls, seed=1)
    assert (ran.state["load"], ran.state["fixed"], ran.state["last"]) == (["a", "b"], [None, "b!1"], [None, "b!1"])
    assert ran.calls["1.2"].inputs.params == {"x": [["a", "b"], [None, "b!1"]]}
    assert ("1.0", "1.1", "†state.end") in ran.plan.named_edges()
    assert ("1.1[1].0", "1.1[1].1", "†state.load") in ran.plan.named_edges()


def test_a_body_does_not_read_before_it_writes() -> None:
    body = [{"_tool": "check", "host": "†state.x", "_outputPath": "†state.x"}]
    ran = Ran([{"_tool": "_for", "_each": [1], "_body": body}], state={"x": "a"})
    assert "reads †state.x before itself writes it" in ran.error("1.0")
    ran = Ran(
        [{"_tool": "_while", "_until": "index == 2", "_body": body}],
        lambda call: call.inputs.params["host"] + "b",
        state={"x": "a"},
    )
    assert ran.state["x"] == "abbb"


def test_two_branches_of_a_body_join_in_its_order() -> None:
    body = [
        {"_tool": "check", "host": "slow", "_outputPath": "†state.r"},
        {"_tool": "fix", "host": "†item", "_if": "item == 'b'", "_outputPath": "†state.r"},
    ]
    for seed in range(5):
        assert Ran([{"_tool": "_for", "_each": ["a", "b"], "_body": body}], seed=seed).state["r"] == ["slow", "b"]


@pytest.mark.parametrize("paths", [("y", "y.a"), ("l[0]", "l[1]"), ("l[1]", "l[0]"), ("l[0]", "l[0].a")])
@pytest.mark.parametrize("loop", [{"_tool": "_for", "_each": ["a", "b"]}, {"_tool": "_while", "_while": "index < 2"}])
def test_r6_6_writes_that_fit_only_in_the_order_of_their_ends_fail_no_run(paths: Any, loop: dict[str, Any]) -> None:
    body = [{"_tool": "check", "host": path, "_outputPath": f"†state.{path}"} for path in paths]
    fitting = 0
    for seed in range(8):
        ran = Ran([{**loop, "_body": body}], seed=seed)
        rounds = [call for id, call in ran.calls.items() if id != "1.0"]
        assert {call.state.status for call in rounds} <= {"done", "invalid"}
        is_fitting = all(call.state.status == "done" for call in rounds)
        fitting += is_fitting
        if is_fitting and "_each" in loop and paths == ("y", "y.a"):
            assert ran.state == {"y": ["y", "y"]}
    if "_each" in loop:  # an iteration of a `_while` reads the text of the one before, so none may fit
        assert fitting


def test_what_a_body_lacks_outside_skips_the_loop() -> None:
    calls = [
        {"_tool": "hosts", "host": "x", "_outputPath": "†state.end"},
        {"_tool": "_for", "_each": ["a"], "_body": [{"_tool": "fix", "host": "†state.end", "_outputPath": "†state.f"}]},
        {"_tool": "report", "x": "†state.f"},
    ]
    assert list(Ran(calls, breaks("x")).status().values()) == ["failed", "skipped", "skipped"]
    assert "no call writes it" in Ran(calls[1:]).error("1.0")


def test_nested_loops_give_lists_of_lists_and_a_failed_call_inside_is_told() -> None:
    inner = {"_tool": "_for", "_each": "†row", "_as": "cell", "_body": [
        {"_tool": "check", "host": "{†cell}{†state.mark}", "_outputPath": "†state.grid"}]}  # fmt: skip
    body = [{"_tool": "_let", "value": {"_expr": "str(index)"}, "_outputPath": "†state.mark"}, inner]
    ran = Ran([{"_tool": "_for", "_each": [["a", "b"], [], ["c"]], "_as": "row", "_body": body}], breaks("b0"), seed=9)
    error = {"error": {"index": 1, "code": "E", "message": "broke-b0"}}
    assert ran.state["grid"] == [["a0", error], [], ["c2"]]
    assert ran.state["mark"] == ["0", "1", "2"]
    assert ran.calls["1.0[0].1[1].0"].state.status == "failed"
    assert [note.message for note in ran.calls["1.0"].state.notes] == [
        "iteration 1 failed: 1.0[0].1[1].0 check: E: broke-b0"
    ]


def counts(until: int) -> Answers:
    made = iter(range(1, 1000))

    def answer(_: Call) -> Any:
        count = next(made)
        return {"n": count, "done": count >= until}

    return answer


@pytest.mark.parametrize(
    "until", ["†output.done", "output.n >= 3", {"_expr": "output.n >= input.most"}, "†output.n >= 3"]
)
def test_a_call_is_made_until_something_holds(until: Any) -> None:
    call = {"_tool": "check", "before": "†state.previous", "_until": until, "_outputPath": "†state.job"}
    ran = Ran([call, {"_tool": "report", "x": "†state.job.n"}], counts(3), input={"most": 3})
    assert ran.state["job"] == {"n": 3, "done": True}
    assert ran.calls["1.0[2]"].inputs.params == {"before": {"n": 2, "done": False}}
    assert ran.calls["1.0[0]"].inputs.params == {"before": None}


def test_a_loop_without_an_end_fails() -> None:
    ran = Ran([{"_tool": "check", "_until": "†output.done", "_max": 4}], counts(9))
    assert ran.error("1.0").startswith("max_iterations: ")
    assert len(ran.calls) == 5
    ran = Ran([{"_tool": "check", "_until": "output.n / 0 > 1"}], counts(9))
    assert ran.error("1.0").startswith("invalid_expression: ")


def test_a_while_asks_before_each_iteration() -> None:
    body = [{"_tool": "check", "next": "†state.page.n", "_outputPath": "†state.page"}]
    loop = {"_tool": "_while", "_while": "not state.page.done", "_body": body}
    calls = [{"_tool": "hosts", "_outputPath": "†state.page"}, loop, {"_tool": "report", "x": "†state.page"}]
    ran = Ran(calls, counts(3))
    assert ran.calls["1.2"].inputs.params == {"x": {"n": 3, "done": True}}
    assert ran.calls["1.1[1].0"].inputs.params == {"next": 2}
    ran = Ran(calls, counts(1))
    assert [id for id in ran.calls if id.startswith("1.1[")] == []
    assert ran.calls["1.2"].inputs.params == {"x": {"n": 1, "done": True}}
    assert "the condition reads" in Ran([loop], counts(1)).error("1.0")


def test_a_value_that_no_iteration_writes_stays_whole() -> None:
    body = [{"_tool": "check", "_if": "state.page.n > 5", "next": "†state.page.n", "_outputPath": "†state.page"}]
    for written, rounds in (("state.page.n > 5", 0), ("index < 2", 2)):
        loop = {"_tool": "_while", "_while": written, "_body": body}
        calls = [{"_tool": "hosts", "_outputPath": "†state.page"}, loop, {"_tool": "report", "x": "†state.page"}]
        ran = Ran(calls, counts(1))
        assert len([id for id in ran.calls if id.startswith("1.1[")]) == rounds
        assert ran.calls["1.2"].inputs.params == {"x": {"n": 1, "done": True}}


def test_a_failed_call_ends_a_while() -> None:
    loop = {
        "_tool": "_while",
        "_until": "index > 3",
        "_body": [{"_tool": "check", "host": "{†index}", "_outputPath": "†state.x"}],
    }
    ran = Ran([loop], breaks("2"))
    assert "iteration 2 failed" in ran.error("1.0")
    assert ran.started == ["1.0[0].0", "1.0[1].0", "1.0[2].0"]


def test_a_limit_ends_what_a_loop_still_has() -> None:
    plan = Plan(1, tools=TOOLS, state=State())
    plan.extend([CHECK | {"_each": ["a", "b", "c"], "_parallel": 1}])
    plan.close()
    (first,) = plan.take_ready("now")
    plan.home(first).end(first, Returned("a"), "then")
    plan.take_ready("now")
    plan.end_all("skipped", "the deadline", "then")
    assert plan.settled
    assert [call.state.status for call in plan.every_call()] == ["skipped", "done", "unknown"], "the last one runs"


# A slow reference: the same programs, one statement after another.


@st.composite
def programs(
    draw: st.DrawFn, names: tuple[str, ...] = ("x0",), deep: int = 0, prefix: str = "v"
) -> list[dict[str, Any]]:
    """Calls and loops of them, in which each name is written once; `names` can be read everywhere."""
    made: list[dict[str, Any]] = []
    known = list(names)
    for number in range(draw(st.integers(1, 3))):
        name = f"{prefix}_{number}"
        reads = draw(st.lists(st.sampled_from(known), max_size=2, unique=True))
        call: dict[str, Any] = {"_tool": "check", "host": " ".join([name, *(f"{{†{each}}}" if "item" in each else f"{{†state.{each}}}" for each in reads)]),
                "_outputPath": f"†state.{name}"}  # fmt: skip
        kind = draw(
            st.sampled_from(["call", "fails", "if"] if deep == 2 else ["call", "fails", "if", "for", "for", "each"])
        )
        if kind == "call" or (deep and not number):  # the first of a body goes well: what all fails is another rule
            known.append(name)
        elif kind == "fails":
            call["host"] += " fails"
        elif kind == "if" and deep:
            call["_if"] = f"index{deep} % 2 == 0"
        elif kind in ("for", "each"):
            item: dict[str, Any] = {
                "_each": draw(st.lists(st.sampled_from("abc"), max_size=3)),
                "_as": f"item{deep + 1}",
                "_at": f"index{deep + 1}",
            }
            if kind == "each":
                call = call | item | {"host": call["host"] + f"{{†item{deep + 1}}}"}
            else:
                body = draw(programs((*known, f"item{deep + 1}"), deep + 1, name))
                call = {"_tool": "_for", **item, "_body": body, "_parallel": draw(st.integers(1, 3))}
                known += [path for path in _written(body) if path not in known]
        if kind == "each":
            known.append(name)
        made.append(call)
    return made


def _written(calls: list[dict[str, Any]]) -> Iterator[str]:
    for call in calls:
        if "_body" in call:
            yield from _written(call["_body"])
        else:
            yield call["_outputPath"].removeprefix("†state.")


GONE = object()


def interpret(calls: list[dict[str, Any]], env: dict[str, Any]) -> dict[str, Any]:
    """What the calls write, by name, `GONE` for what was not made; errors as they stand in a list's place."""
    wrote: dict[str, Any] = {}
    for call in calls:
        if "_each" not in call:
            name = call["_outputPath"].removeprefix("†state.")
            wrote[name] = _said(call, {**env, **wrote})
            continue
        rounds = []
        for place, item in enumerate(call["_each"]):
            inner = {**env, **wrote, call["_as"]: item, call["_at"]: place}
            body = call.get("_body") or [{key: value for key, value in call.items() if key != "_each"}]
            rounds.append({name: _placed(value, place) for name, value in interpret(body, inner).items()})
        for name in _written([call]):
            wrote[name] = [each[name] for each in rounds]
    return wrote


def _said(call: dict[str, Any], env: dict[str, Any]) -> Any:
    if "_if" in call and env[call["_if"].split(" ")[0]] % 2:
        return GONE
    text = call["host"]
    for name, value in env.items():
        for written in (f"{{†state.{name}}}", f"{{†{name}}}"):
            if written in text:
                text = text.replace(written, value if isinstance(value, str) else dumps(value))
    return RuntimeError(text) if text.endswith(" fails") else text


def _placed(value: Any, place: int) -> Any:
    if isinstance(value, Exception):
        return {"error": {"index": place, "code": "E", "message": str(value)[:80]}}
    return None if value is GONE else value


@settings(max_examples=150, deadline=None)
@given(programs(), st.integers(0, 10**6))
def test_a_program_gives_what_it_gives_one_call_after_another(program: list[dict[str, Any]], seed: int) -> None:
    def answer(call: Call) -> Any:
        text = call.inputs.params["host"]
        return RuntimeError(text[:80]) if text.endswith(" fails") else text

    ran = Ran(program, answer, seed=seed, state={"x0": "x0"})
    wanted = {
        name: value
        for name, value in interpret(program, {"x0": "x0"}).items()
        if value is not GONE and not isinstance(value, Exception)
    }
    invalid = [(call.id, call.state.error) for call in ran.calls.values() if call.state.status == "invalid"]
    assert invalid == []
    assert {name: value for name, value in ran.state.items() if name != "x0"} == wanted


def nested(outer: int, inner: int, *, patched: bool = True) -> Plan:
    """A plan with a loop inside a loop, played as workflow tasks play it."""
    let = {"_tool": "_let", "value": "†b", "_outputPath": "†state.v"}
    loop: JsonObject = {"_tool": "_for", "_each": list(range(inner)), "_as": "b", "_body": [let]}
    plan = Plan(1, tools=TOOLS, state=State())
    plan.extend(
        [{"_tool": "_for", "_each": list(range(outer)), "_as": "a", "_body": [loop], "_outputPath": "†state.all"}]
    )
    plan.close()
    plan.checks.is_patched = lambda _: patched
    before = 1
    for task in range(1000):
        plan.checks.begin(task)
        plan.go_on()
        assert plan.take_ready("now") == []
        assert plan.count - before <= (51 if patched else 250), "one task takes 2 s on a busy machine"
        before = plan.count
        if plan.settled:
            return plan
        assert plan.held_back
    raise AssertionError("it does not come to its end")


def test_r16_6_all_loops_of_a_request_have_one_bound_together() -> None:
    """100 times 100 rounds held the run's tasks for so long that it was stuck when somebody looked at it."""
    plan = nested(100, 100)
    made = [call for call in plan.every_call() if call is not plan.calls[0]]
    assert len(made) == 10_000, "each is the only one of its round"
    (ended,) = [call for call in made if call.state.error is not None]
    assert ended.state.error is not None
    assert ended.state.error.code == "too_many_iterations"
    assert "at most 10,000 calls in their iterations" in ended.state.error.message
    assert "too_many_iterations" in plan.calls[0].state.notes[0].message, "the model is told"


def test_r18_5_runs_of_before_begin_as_many_rounds_in_a_task_as_they_did() -> None:
    plan = nested(3, 100, patched=False)
    assert (plan.count, plan.done) == (304, 304)


def test_r16_6_of_rounds_that_have_ended_nothing_is_walked_again() -> None:
    plan = nested(3, 4)
    assert plan.calls[0].state.status == "done"
    assert list(plan.iterations()) == []
    made = list(plan.every_call())
    assert [call.id for call in made][:4] == ["1.0", "1.0[0].0", "1.0[0].0[0].0", "1.0[0].0[1].0"]
    assert list(plan.every_call_reversed()) == made[::-1]
    assert (plan.count, plan.done) == (16, 16)
    assert sorted(call.id for call in plan.take_folded()) == sorted(call.id for call in made[1:])
    assert plan.take_folded() == []


def test_r16_6_a_look_walks_the_newest_edges_of_rounds_alone() -> None:
    body = [
        {"_tool": "_let", "value": "†b", "_outputPath": "†state.v"},
        {"_tool": "_let", "value": "†state.v", "_outputPath": "†state.w"},
    ]
    inner = {"_tool": "_for", "_each": [1, 2, 3], "_as": "b", "_body": body, "_outputPath": "†state.ws"}
    loop = {"_tool": "_for", "_each": [1, 2], "_as": "a", "_body": [inner], "_outputPath": "†state.all"}
    plan = Ran([{"_tool": "_for", "_each": [1], "_as": "b", "_body": body}, loop]).plan
    every = plan.named_edges()
    assert len(every) == 7
    assert plan.newest_edges(7) == every
    assert plan.newest_edges(4) == every[3:]
    assert plan.newest_edges(1) == every[-1:]


def test_r8_7_an_output_reads_all_that_a_part_of_a_longer_list_keeps() -> None:
    part = {
        "_tool": "check",
        "host": "†item",
        "_each": ["a", "b", "c"],
        "_from": 100,
        "_outputPath": "†state._loop_results",
    }
    ran = Ran([part], lambda call: OSError("down") if call.inputs.params["host"] == "b" else given_back(call))
    for name, value in ran.state.items():
        assert ran.plan.read_at_end(Reference("state", (name,))) == value
    assert ran.state["_loop_done"] == 2
    assert [each["index"] for each in ran.state["_loop_failed"]] == [101]


def test_r16_4_a_wrong_key_of_a_loop_is_named_once() -> None:
    ran = Ran([{"_tool": "_for", "_each": [1], "_body": [{"_tool": "look", "host": "a"}], "_odd": 1}])
    error = ran.plan.calls[0].state.error
    assert error is not None
    assert error.problems == (error.message,)
    assert "_odd" in error.message
