"""What random plans found (section 5): who reads what of whom when calls are refused, branch, add to a value, or fail to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from perdure.errors import CallError
from perdure.models.dialects.common import ToolDelta
from perdure.models.dialects.script import ScriptReader
from perdure.models.dialects.tools import ToolsReader
from perdure.models.requests import ReaderVocabulary
from perdure.plan import Failed, Outcome, Plan, Returned, errors_of
from perdure.values.json import JsonObject
from perdure.values.limits import MAX_EDGES
from tests.plan.test_plan import TOOLS, any_tool, fails, new_plan, run, statuses

A: JsonObject = {"_tool": "a"}
B: JsonObject = {"_tool": "b"}
READ: JsonObject = {"_tool": "read"}


def played(calls: list[Any], results: Mapping[str, Outcome] | None = None, **options: Any) -> Plan:
    """The plan after its calls ended, each as `results` say by call id, else by returning its own id."""
    plan = new_plan(options.pop("state", None), **options)
    run(plan, calls, lambda id, _: (results or {}).get(id, Returned(id)))
    return plan


def error(plan: Plan, index: int) -> str:
    found = plan.calls[index].state.error
    return found.message if found else ""


@pytest.mark.parametrize(
    "refused",
    [
        {"_tool": "unknown", "_outputPath": "†state.balance"},
        {"_outputPath": "†state.balance"},
        {"_tool": "unknown", "_outputPath": "†state.balance", "_outputMethod": "push"},
        {"_tool": "a", "_nope": 1, "_outputPath": "†state.balance"},
        {"_tool": "a", "p": "†state.", "_outputPath": "†state.balance"},
        {"_tool": "a", "_outputPath": "†state.balance", "_outputMethod": "nope"},
        {"_tool": "a", "_outputPath": "†state.balance, †state.b"},
        {"_tool": "a", "_outputPath": "†state.b &&& †state.balance"},
        {"_tool": "fixed", "_outputPath": "†state.other"},
        {"_tool": "fixed", "_outputPath": 7},
        {"_tool": "a", "_syntax": "line 1: no", "_outputPath": "†state.balance"},
    ],
)
def test_r5_1_a_refused_call_has_not_written_and_its_reader_does_not_run(refused: dict[str, Any]) -> None:
    tools = {**TOOLS, "fixed": any_tool("fixed", _outputPath={"const": "†state.balance"})}
    plan = played([refused, READ | {"p": "†state.balance"}], state={"balance": 1, "b": 2}, tools=tools)
    assert statuses(plan) == ["invalid", "skipped"]
    assert "1.0" in plan.calls[1].state.reason


def test_r5_1_a_call_beyond_the_limit_has_not_written() -> None:
    plan = played([READ | {"p": "†state.late"}, A, B | {"_outputPath": "†state.late"}], max_calls=2)
    assert statuses(plan) == ["skipped", "done", "invalid"]


def test_r5_1_a_refused_call_of_an_instance_has_not_written_there() -> None:
    calls = [
        {"_tool": "unknown", "_instance": "x", "_outputPath": "†state.balance"},
        READ | {"_instance": "x", "p": "†state.balance"},
        READ | {"_instance": "y", "p": "†state.balance"},
    ]
    state = {"@x": {"balance": 1}, "@y": {"balance": 2}}
    plan = played(calls, state=state, instances=["x", "y"])
    assert statuses(plan) == ["invalid", "skipped", "done"]


def test_r5_5_what_nothing_can_satisfy_is_refused_at_once_also_beside_what_binds_forward() -> None:
    calls = [
        A | {"p": "†input.nope", "q": "†state.later", "_outputPath": "†state.first"},
        B | {"p": "†state.first || †input.n", "_outputPath": "†state.later"},
    ]
    plan = new_plan(data={"input": {"n": 1}})
    assert plan.add(calls[0]).state.status == "invalid"
    plan = played(calls, data={"input": {"n": 1}})
    assert statuses(plan) == ["invalid", "done"]
    assert error(plan, 0) == "$.p: †input.nope does not exist and no call writes it; near it are †input.n"


def test_r5_5_all_that_is_missing_is_told_once() -> None:
    plan = played([A | {"p": "†input.nope", "q": "†state.nope"}], data={"input": {"n": 1}})
    assert error(plan, 0).count("†input.nope") == 1
    assert error(plan, 0).count("†state.nope") == 1


def test_r4_3_an_output_path_of_several_is_written_whole_or_not_at_all() -> None:
    twice = A | {"_outputPath": "†state.a && †state.a.x"}
    plan = played([twice, READ | {"p": "†state.a"}])
    assert (statuses(plan), plan.state.snapshot()) == (["invalid", "skipped"], {})
    assert [call.id for call in errors_of(plan.calls)] == ["1.0"]
    assert error(plan, 0) == (
        'the call was carried out, but its result cannot be written: †state.a is "1.0", so †state.a.x cannot be written into it'
    )
    plan = played([twice], {"1.0": Returned({"x": 1})})
    assert plan.state.snapshot() == {"a": {"x": {"x": 1}}}


def test_r4_3_a_path_named_twice_is_written_once() -> None:
    plan = played([A | {"_outputPath": "†state.l[0] && †state.l.0 || †state.e", "_outputMethod": "push"}])
    assert plan.state.snapshot() == {"l": [["1.0"]]}


def test_r5_5_a_slip_in_what_was_written_is_answered_with_the_keys_that_are_there() -> None:
    writes = A | {"_outputPath": "†state.p"}
    results = {"1.0": Returned({"name": "Ann", "age": 7})}
    plan = played([writes, READ | {"p": "†state.p.nmae"}], results)
    assert error(plan, 1) == "$.p: †state.p.nmae is not in what 1.0 a wrote; near it are †state.p.name, †state.p.age"
    # What other calls did meanwhile is not what this one reads.
    plan = played([writes, READ | {"p": "†state.p.nmae"}, B | {"_outputPath": "†state.p"}], results)
    assert "near it are †state.p.name, †state.p.age" in error(plan, 1)
    plan = played([writes, READ | {"p": "†state.p.name.first"}], results)
    assert error(plan, 1) == '$.p: †state.p.name.first is not in what 1.0 a wrote; †state.p.name is "Ann"'


def test_r5_5_a_path_that_does_not_exist_is_never_near_itself() -> None:
    plan = played([A | {"p": "†state.n", "_outputPath": "†state.n"}], state={"m": 1})
    assert error(plan, 0) == "$.p: †state.n does not exist and no call writes it; near it are †state.m"
    plan = played([A | {"p": "†state.p.nmae", "_outputPath": "†state.p"}], state={"p": {"name": 1}})
    assert "near it are †state.p.name" in error(plan, 0)


def test_r4_3_a_failure_whose_branch_cannot_be_written_is_still_told() -> None:
    calls = [A | {"_outputPath": "†state.r || †state.n.e"}, READ | {"p": "†state.r"}, READ | {"p": "†state.n"}]
    plan = new_plan({"n": 5})
    run(plan, calls, fails("1.0"))
    assert (statuses(plan), plan.state.snapshot()) == (["failed", "skipped", "skipped"], {"n": 5})
    assert [call.id for call in errors_of(plan.calls)] == ["1.0"]
    first = plan.calls[0].state.error
    assert first is not None
    assert first.code == "boom"
    assert (
        first.message == "it broke; nor could that be written: †state.n is 5, so †state.n.e cannot be written into it"
    )


def test_r5_1_an_adder_that_was_not_taken_leaves_what_was_there() -> None:
    push = A | {"_outputPath": "†state.l || †state.e", "_outputMethod": "push"}
    other = Returned("oops", "†state.e")
    read = READ | {"p": "†state.l"}
    plan = played([push, read], {"1.0": other}, state={"l": [1]})
    assert (statuses(plan), plan.calls[1].inputs.params) == (["done", "done"], {"p": [1]})
    plan = played([B | {"_outputPath": "†state.l"}, push, read], {"1.0": Returned([2]), "1.1": other}, state={"l": [1]})
    assert plan.calls[2].inputs.params == {"p": [2]}
    # There was nothing, so there is nothing: a branch not taken.
    plan = played([push, read], {"1.0": other})
    assert (plan.calls[1].state.status, plan.calls[1].state.branch) == ("skipped", True)
    # One that failed promised more than it gave.
    plan = new_plan({"l": [1]})
    run(plan, [A | {"_outputPath": "†state.l", "_outputMethod": "push"}, read], fails("1.0"))
    assert statuses(plan) == ["failed", "skipped"]


def test_r5_1_a_set_that_went_another_branch_is_passed_over_with_what_was_added_since() -> None:
    set_, push = A | {"_outputPath": "†state.l || †state.e"}, B | {"_outputPath": "†state.l", "_outputMethod": "push"}
    read, other = READ | {"p": "†state.l"}, Returned("oops", "†state.e")
    plan = played([A | {"_outputPath": "†state.l"}, set_, push, read], {"1.0": Returned([1]), "1.1": other})
    assert plan.calls[3].inputs.params == {"p": [1, "1.2"]}
    # Never back to a value from before the plan, also not by way of what was added to it since.
    plan = played([set_, push, read], {"1.0": other}, state={"l": [1]})
    assert (plan.calls[2].state.status, plan.calls[2].state.branch) == ("skipped", True)
    assert "1.0 a, which took another branch" in plan.calls[2].state.reason
    plan = played([push, set_, read], {"1.1": other}, state={"l": [1]})
    assert plan.calls[2].inputs.params == {"p": [1, "1.0"]}
    # Setting one item needs the array from before, and is a `set` all the same.
    item = A | {"_outputPath": "†state.l[0] || †state.e"}
    plan = played([item, READ | {"p": "†state.l[0]"}], {"1.0": other}, state={"l": [1]})
    assert (plan.calls[1].state.status, plan.calls[1].state.branch) == ("skipped", True)
    plan = played([item, READ | {"p": "†state.l[0]"}], state={"l": [1, 2]})
    assert plan.calls[1].inputs.params == {"p": "1.0"}


def test_r5_1_a_set_that_went_another_branch_is_passed_over_forward_too() -> None:
    calls = [
        READ | {"p": "†state.x"},
        A | {"_outputPath": "†state.x || †state.e"},
        B | {"_outputPath": "†state.x"},
    ]
    plan = played(calls, {"1.1": Failed(CallError("boom", "it broke"))})
    assert plan.calls[0].inputs.params == {"p": "1.2"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{(†state.q || †input.n)}", "1"),
        ("a { †input.n } b", "a 1 b"),
        ("{ ( †input.n ) && †input.n}!", "1!"),
        ("{\n†input.n}", "1"),
        ('{"a": 1} {††input.n} {(††x)} { }', '{"a": 1} {†input.n} {(†x)} { }'),
    ],
)
def test_r3_1_an_expression_in_braces_is_one_with_spaces_and_parentheses_too(text: str, expected: str) -> None:
    plan = played([READ | {"p": f"x{text}"}], data={"input": {"n": 1}})
    assert plan.calls[0].inputs.params == {"p": f"x{expected}"}


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("script", "balance = a(p={1: 2})\nread(p=balance)\n"),
        ("script", "balance = other = a(p=)\nread(p=balance)\n"),
        ("tools", '{"_outputPath": "\\u2020state.balance", "p": }'),
    ],
)
def test_r5_1_a_line_that_is_no_call_has_not_written(dialect: str, text: str) -> None:
    if dialect == "script":
        script = ScriptReader(ReaderVocabulary())
        script.push(text)
        calls = script.close().calls
    else:
        reader = ToolsReader({})
        reader.push_tool(ToolDelta(index=0, id="1", name="a", arguments=text))
        calls = [*reader.close().calls, READ | {"p": "†state.balance"}]
    plan = played(calls, state={"balance": 1})
    assert statuses(plan) == ["invalid", "skipped"]


def test_r4_3_a_tool_addresses_the_alternative_that_it_names_before_one_that_only_begins_so() -> None:
    paths = A | {"_outputPath": "†state.a && †state.b || †state.a"}
    plan = played([paths], {"1.0": Returned(1, "†state.a")})
    assert plan.state.snapshot() == {"a": 1}
    plan = played([paths], {"1.0": Returned(1, "†state.b")})
    assert plan.state.snapshot() == {"a": 1, "b": 1}


def wired(calls: list[dict[str, Any]]) -> Plan:
    """The plan with these calls and their edges, of which none has run."""
    plan = new_plan()
    plan.extend(calls)
    plan.close()
    task = 0
    while plan.held_back:
        task += 1
        plan.checks.begin(task)
        plan.go_on()
    return plan


def refused(plan: Plan) -> dict[str, int]:
    return dict(Counter(call.state.error.code for call in plan.calls if call.state.error is not None))


MANY_PATHS = [f"†state.a{index}" for index in range(500)]


@pytest.mark.parametrize(
    "calls",
    [
        [A | {"p": MANY_PATHS, "_outputPath": path} for path in MANY_PATHS],
        [A | {"p": f"{{{'} {'.join(MANY_PATHS)}}}", "_outputPath": path} for path in MANY_PATHS],
        [A | {"_outputPath": " && ".join(MANY_PATHS)} for _ in MANY_PATHS],
        [A | {"_after": [f"1.{other}" for other in range(500) if other != index]} for index in range(500)],
        [A | {"p": "†a" * 500} for _ in range(500)],
    ],
)
def test_r18_5_what_calls_name_is_bounded_as_a_sum(calls: list[dict[str, Any]]) -> None:
    plan = wired([*calls[:400], B])
    assert refused(plan)["too_many_names"] >= 380
    assert plan.calls[400].state.status == "ready"
    assert len(plan.edges()) <= 10_000


def test_r18_5_one_call_names_a_thousand_at_most() -> None:
    paths = [f"†state.a{index}" for index in range(1001)]
    plan = wired([A | {"p": [*paths, "a note ††", "††"]}, B])
    assert error(plan, 0) == "the call names 1,001 references, output paths and calls; a call may name 1,000 at most"
    assert statuses(plan) == ["invalid", "ready"]
    assert "too_many_names" not in refused(wired([A | {"p": [*paths[1:], "††" * 900]}]))


def pushers(count: int, reads: int) -> list[dict[str, Any]]:
    items = [f"†state.a[{index}]" for index in range(reads)]
    return [READ | {"p": items, "_outputPath": "†state.a", "_outputMethod": "push"} for _ in range(count)]


@pytest.mark.parametrize("late", [False, True])
def test_r18_5_edges_are_bounded_as_a_sum(late: bool) -> None:
    calls = pushers(500, 15)
    if late:  # those that wait are bound once a call sets the whole
        calls[-1] = A | {"_outputPath": "†state.a"}
    plan = wired(calls)
    assert refused(plan)["too_many_edges"] > 100
    assert 100_000 < len(plan.edges()) <= MAX_EDGES
    for call in plan.take_ready():
        plan.end(call, Returned([]))
    assert plan.settled


def test_r18_5_five_hundred_calls_that_add_to_what_all_of_them_read_have_room() -> None:
    reader = READ | {"p": "†state.a", "_outputPath": "†state.a", "_outputMethod": "push"}
    plan = new_plan({"a": []})
    plan.extend([reader] * 500)
    plan.close()
    assert len(plan.edges()) == 500 * 499 / 2
    assert not refused(plan)


W = "†state.x"


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([{"_outputPath": W}, {"_outputPath": W}], [("1.0", "1.1")]),
        ([{"_outputPath": W}, {"_outputPath": "†state.x.y"}], [("1.0", "1.1")]),
        ([{"_outputPath": W}, {"_outputPath": W, "_outputMethod": "push"}], []),
        ([{"_outputPath": W}, {"_outputPath": W, "p": W}], []),
        ([{"_outputPath": W}, {"_outputPath": "†state.y", "p": W}, {"_outputPath": W, "p": "†state.y"}], []),
        ([{"_outputPath": W}, {"_outputPath": "†state.y", "p": W}, {"_outputPath": W}], [("1.0", "1.2")]),
        ([{"_outputPath": W}, {"_outputPath": W, "_after": "ended 1.0"}], []),
        ([{"_outputPath": W, "_if": "input.n > 0"}, {"_outputPath": W, "_if": "not (input.n > 0)"}], []),
        ([{"_outputPath": W, "_if": "input.n > 0"}, {"_outputPath": W}], [("1.0", "1.1")]),
        (
            [
                {"_outputPath": "†state.sun || †state.rain"},
                {"_outputPath": W, "p": "†state.sun"},
                {"_outputPath": W, "p": "†state.rain"},
            ],
            [],
        ),
        ([{"_outputPath": "†state.a || †state.bad"}, {"_outputPath": "†state.b || †state.bad"}], []),
        ([{"_outputPath": W}] * 3, [("1.0", "1.1"), ("1.0", "1.2"), ("1.1", "1.2")]),
    ],
)
def test_r5_14_two_calls_that_set_one_path_without_an_order_are_told(
    calls: list[dict[str, Any]], found: list[tuple[str, str]]
) -> None:
    plan = new_plan(data={"input": {"n": 1}}, dry_run=True)
    for call in calls:
        plan.add({"_tool": "t", **call})
    plan.close()
    assert [call.state.error for call in plan.calls] == [None] * len(calls)
    assert [tuple(word for word in text.split() if word.startswith("1."))[:2] for text in plan.races()] == found


def test_r5_14_what_has_raced_is_told_of_those_that_have_set_the_path() -> None:
    one = A | {"_outputPath": "†state.x || †state.bad"}
    both = played(
        [one, B | {"_outputPath": "†state.y || †state.bad"}], dict.fromkeys(("1.0", "1.1"), Failed(CallError("x", "y")))
    )
    assert len(both.races(ended=True)) == 1
    assert both.races() == []
    apart = [A | {"_outputPath": "†state.x", "_if": "1 > 0"}, B | {"_outputPath": "†state.x", "_if": "1 > 2"}]
    assert played(apart).races(ended=True) == []
    assert len(played([each | {"_if": "1 > 0"} for each in apart]).races(ended=True)) == 1


TYPED = any_tool(
    "typed",
    properties={
        "n": {"type": "integer"},
        "f": {"type": "number"},
        "s": {"type": "string"},
        "b": {"type": ["boolean", "null"]},
        "e": {"enum": ["7", True]},
        "l": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        "either": {"anyOf": [{"type": "integer"}, {"type": "array"}]},
        "free": {},
    },
)


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ({"n": "71"}, {"n": 71}),
        ({"n": " -3 "}, {"n": -3}),
        ({"f": "0.1"}, {"f": 0.1}),
        ({"f": "5"}, {"f": 5}),
        ({"s": 1}, {"s": "1"}),
        ({"s": 1.5}, {"s": "1.5"}),
        ({"s": True}, {"s": "true"}),
        ({"b": "True"}, {"b": True}),
        ({"e": 7}, {"e": "7"}),
        ({"l": [{"n": "1"}, {"n": 2}]}, {"l": [{"n": 1}, {"n": 2}]}),
        ({"l": '[{"n": 1}]'}, {"l": [{"n": 1}]}),
        ({"either": "4"}, {"either": 4}),
        ({"n": "1", "s": "†state.s", "free": "2"}, {"n": 1, "s": "†state.s", "free": "2"}),
    ],
)
def test_r5_13_a_literal_is_converted_where_nothing_is_lost(written: dict[str, Any], taken: dict[str, Any]) -> None:
    plan = new_plan({"s": "x"}, tools={"typed": TYPED})
    call = plan.add({"_tool": "typed", **written})
    assert call.state.error is None
    assert {key: call.spec.raw[key] for key in written} == taken
    assert call.spec.converted[0].startswith(f"$.{next(iter(written))}")
    assert call.state.status == "ready"
    assert call.spec.template.literal == ("†state.s" not in written.values())


@pytest.mark.parametrize(
    "written",
    [
        {"n": "71.5"},
        {"n": "071"},
        {"n": "1e3"},
        {"n": "9007199254740993123"},
        {"n": 1.5},
        {"n": "seven"},
        {"f": "0.30000000000000000004"},
        {"b": 1},
        {"b": "yes"},
        {"l": '[{"n": 1}'},
        {"l": [[]]},
        {"n": True},
    ],
)
def test_r5_13_a_literal_of_which_something_would_be_lost_is_refused(written: dict[str, Any]) -> None:
    call = new_plan(tools={"typed": TYPED}).add({"_tool": "typed", **written})
    assert call.state.error is not None
    assert not call.spec.converted


def test_r5_13_a_loops_body_is_converted_too() -> None:
    body: JsonObject = {"_tool": "_for", "_each": [1, 2], "_body": [{"_tool": "typed", "n": "5", "free": "†item"}]}
    plan = new_plan(tools={"typed": TYPED})
    assert plan.add(body).state.error is None
    plan.close()
    assert [call.inputs.params for call in plan.take_ready()] == [{"n": 5, "free": 1}, {"n": 5, "free": 2}]
    assert [text for form in plan.calls[0].written() for text in form.spec.converted] == [
        '$.n was "5" and is taken as 5'
    ]


def test_a_call_finds_the_one_tool_whose_name_ends_with_its_own() -> None:
    tools = {name: any_tool(name) for name in ("Tool.detect", "functions.intersect", "a.same", "b.same", "x")}
    plan = new_plan(tools=tools)
    calls = [plan.add({"_tool": name}) for name in ("detect", "intersect", "same", "x", "tect", "")]
    assert [call.spec.tool and call.spec.tool.name for call in calls] == [
        "Tool.detect",
        "functions.intersect",
        None,
        "x",
        None,
        None,
    ]
    assert calls[0].spec.tool_name == "Tool.detect"
