"""Where values come from (section 15): names that follow values through plans, state and runs, against an origin of every byte."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.plan import Failed, Plan, Returned
from perdure.tools.tool import Tool, parse_tool
from perdure.values.json import Json, JsonObject
from perdure.values.limits import DECIDED
from perdure.values.provenance import (
    AGENT,
    MODEL,
    NOWHERE,
    KnownSources,
    Labels,
    SourceTable,
    join,
    shape_of,
    untrusted_sources,
)
from perdure.values.references import MISSING, Reference
from perdure.values.state import State, Write

A, B, C = (frozenset({name}) for name in "abc")


def tool(name: str, **more: Any) -> Tool:
    return parse_tool({"name": name, "additionalProperties": True, "_activity": name, **more}, activities=[name])


TOOLS = {"read": tool("read", _untrusted=True), "t": tool("t"), "u": tool("u")}


def test_labels_know_what_stands_where() -> None:
    labels = Labels(A)
    before = labels.snapshot()
    labels.write(("mail",), {}, "set", B)
    labels.write(("mail", "to"), "x", "set", C)
    labels.write(("list",), 1, "push", C)
    labels.write(("own",), {"x": 1}, "merge", B)
    assert labels.at(("mail", "body")) == B
    assert labels.at(("mail", "to")) == C
    assert labels.at(("mail",)) == B | C
    assert labels.at(("list", 0)) == A | C
    assert labels.at(("own", "x")) == A | B
    assert labels.at(("own", "y")) == A
    assert before.whole == A
    labels.write(("mail",), {}, "set", A)
    assert labels.at(("mail", "to")) == A


def test_an_index_written_otherwise_is_no_way_round() -> None:
    labels = Labels(A)
    labels.write(("list", 0), "x", "set", B)
    labels.write(("list", "00"), "y", "set", C)
    assert labels.at(("list", 0)) >= C
    assert labels.at(("list", "00")) >= C


def test_a_table_writes_each_set_once() -> None:
    table = SourceTable()
    numbers = [table.number(each) for each in (A, B, A, join(A, B))]
    assert numbers == [0, 1, 0, 2]
    assert [SourceTable(table.as_json()).of(number) for number in numbers] == [A, B, A, A | B]
    assert table.of(7) == NOWHERE


MARK = re.compile(r"<([a-z]+)>")
"""Every byte of a value that anybody made carries its maker's mark: what is marked with is what it is made of."""


def marks(value: Any) -> set[str]:
    if isinstance(value, str):
        return set(MARK.findall(value))
    return (
        set().union(*map(marks, value.values() if isinstance(value, dict) else value))
        if isinstance(value, dict | list)
        else set()
    )


NAMES = st.sampled_from("xyz")
PATHS = st.lists(NAMES, min_size=1, max_size=2).map(tuple)


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    def reference() -> str:
        return "†state." + ".".join(draw(PATHS))

    kinds: dict[str, Callable[[], Any]] = {
        "whole": reference,
        "text": lambda: f"<model> {{{reference()}}}",
        "either": lambda: f"{reference()} || {reference()}",
        "both": lambda: f"{reference()} && {reference()}",
        "formula": lambda: {"_expr": "str(" + reference()[1:] + ")"},
        "deep": lambda: {"in": [reference(), "<model>"]},
        "literal": lambda: "<model>",
    }
    params = {f"p{n}": kinds[draw(st.sampled_from(sorted(kinds)))]() for n in range(draw(st.integers(1, 2)))}
    path = "†state." + ".".join(draw(PATHS))
    how = draw(st.sampled_from(["set", "set", "merge", "assign", "push", "concat"]))
    return {"_tool": draw(st.sampled_from(sorted(TOOLS))), **params, "_outputPath": path, "_outputMethod": how}


@settings(max_examples=200)
@given(st.lists(st.lists(calls(), min_size=1, max_size=6), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_no_byte_has_an_origin_that_its_sources_do_not_name(requests: list[list[Any]], chance: Any) -> None:
    """Soundness: tools put their own mark and everything that they were given into what they return."""
    state = State([Write(path=(), value={"x": {"y": "<agent>"}, "y": ["<agent>"], "z": "<agent>"}, sources=AGENT)])
    for number, written in enumerate(requests):
        plan = Plan(number, tools=TOOLS, state=state, known=KnownSources({}, lambda _: MODEL))
        for raw in written:
            plan.add(raw)
        plan.close()
        running: list[Any] = []
        while ready := [*running, *plan.take_ready()]:
            running = ready
            call = running.pop(chance.randrange(len(running)))
            for name, value in call.inputs.params.items():
                named = {each.removeprefix("!").removeprefix("tool:") for each in call.inputs.origins.params[name]}
                assert marks(value) <= named
                assert bool(untrusted_sources(call.inputs.origins.params[name])) == ("read" in named)
            if chance.random() < 0.2:
                plan.end(call, Failed(CallError("broken", "it is")))
            else:
                given_to_it = sorted(marks(call.inputs.params))
                result: Any = f"<{call.spec.tool_name}>" + "".join(f"<{mark}>" for mark in given_to_it)
                plan.end(call, Returned(chance.choice([result, {"x": result}, [result]])))
        assert plan.settled
    for key, value in state.snapshot().items():
        at = {each.removeprefix("!").removeprefix("tool:") for each in state.labels.at((key,))}
        assert marks(value) <= at
    again = State([write.model_copy() for write in state.writes])
    assert dict(again.labels.parts()) == dict(state.labels.parts())
    again.compact()
    compacted = State(again.writes)
    for key, value in compacted.snapshot().items():
        assert marks(value) <= {each.removeprefix("!").removeprefix("tool:") for each in compacted.labels.at((key,))}


FLAG = Write(path=("flag",), value={"on": True, "list": ["i", "i"]}, sources=frozenset({"!tool:read"}))
OFF = FLAG.model_copy(update={"value": {"on": False, "list": ["i"]}})
CONDITIONS = st.sampled_from(
    [
        None,
        None,
        "state.flag.on",
        "not state.flag.on",
        "state.flag.on or state.x == 1",
        "1 == 1",
        "†state.y || †state.z",
    ]
)
LISTS = st.sampled_from(["†state.flag.list", "†state.y.none || †state.flag.list"])


@st.composite
def conditional(draw: st.DrawFn) -> dict[str, Any]:
    """A call that reads and writes paths of the state, perhaps under a condition or in a loop."""
    read, write = (f"†state.{draw(NAMES)}" for _ in range(2))
    call = {"_tool": "t", "p": draw(st.sampled_from([read, "1", f"{read} || †state.z"])), "_outputPath": write}
    condition = draw(CONDITIONS)
    chosen = {} if condition is None else {"_if": condition}
    match draw(st.sampled_from(["call", "call", "let", "each", "body", "while", "until", "nested"])):
        case "let":
            return {"_tool": "_let", "value": call["p"], "_outputPath": write, **chosen}
        case "each":
            return {**call, "_each": draw(LISTS), **chosen}
        case "body":
            return {"_tool": "_for", "_each": "†state.flag.list", "_body": [{**call, **chosen}]}
        case "while":
            goes_on = f"({draw(CONDITIONS) or 'state.flag.on'}) and index < 2"
            return {"_tool": "_while", "_while": goes_on, "_body": [{**call, **chosen}], "_max": 4}
        case "nested":
            inner = {"_tool": "_for", "_each": draw(LISTS), "_body": [{**call, **chosen}]}
            return {"_tool": "_for", "_each": "†state.flag.list", "_body": [inner]}
        case "until":
            return {**call, "_until": f"({condition or 'state.flag.on'}) or index > 1", "_max": 4}
        case _:
            return {**call, **chosen}


SAME: dict[str, Any] = {"_tool": "t", "p": "†state.x", "_outputPath": "†state.x"}
IF_ON: dict[str, Any] = {"_tool": "t", "p": "†state.x", "_outputPath": "†state.y", "_if": "state.flag.on"}
WHILE: dict[str, Any] = {"_tool": "_while", "_while": "index < 2", "_max": 4}
MISSED: dict[str, Any] = {"_tool": "t", "p": "†state.y || †state.z", "_outputPath": "†state.y"}
IF_ON_LOOP: dict[str, Any] = {
    "_tool": "_while",
    "_while": "state.flag.on and index < 2",
    "_body": [{**SAME, "_outputPath": "†state.y"}],
    "_max": 4,
}
READS_Y: dict[str, Any] = {"_tool": "t", "p": "†state.y", "_outputPath": "†state.x", "_if": "not state.flag.on"}
FALLS_BACK: dict[str, Any] = {"_tool": "t", "p": "†state.x || †state.z", "_outputPath": "†state.x"}


@settings(max_examples=300)
@given(st.lists(conditional(), min_size=1, max_size=6))
@example([IF_ON, {**WHILE, "_body": [MISSED]}])  # the loop reads what is not there
@example([SAME, {**WHILE, "_body": [{**IF_ON, "_outputPath": "†state.x"}]}])  # the loop hands on what was there
@example([SAME, {**WHILE, "_body": [{**IF_ON, "p": "1", "_outputPath": "†state.x"}]}])  # the loop writes nothing
@example([{**SAME, "_each": "†state.y.none || †state.flag.list"}, IF_ON, {**SAME, "_outputPath": "†state.y"}, MISSED])
@example([SAME, IF_ON_LOOP, {"_tool": "_for", "_each": ["i"], "_body": [READS_Y]}, FALLS_BACK])  # the last loop fails
def test_r15_1_what_is_another_value_for_what_others_wrote_has_their_sources(written: list[dict[str, Any]]) -> None:
    """The same plan twice, with other words from others: what differs then names them, also where only a condition reads them."""
    found = []
    for flag in (FLAG, OFF):
        start = Write(path=(), value={"x": "a", "y": "b", "z": "c"}, sources=AGENT)
        plan = Plan(1, tools=TOOLS, state=State([start, flag]), known=KnownSources({}, lambda _: MODEL))
        for raw in written:
            plan.add(raw)
        plan.close()
        while ready := plan.take_ready():
            for call in ready:
                plan.home(call).end(call, Returned(f"t({call.inputs.params['p']})"))
        assert plan.settled
        references = [Reference("state", (name,)) for name in "xyz"]
        found.append([(plan.read_at_end(each), plan.sources_at_end(each)) for each in references])
    for (value, sources), (other, others) in zip(*found, strict=True):
        if MISSING not in (value, other) and value != other:
            assert "!tool:read" in sources & others


def _is_patched(conditions: bool, name: str) -> bool:
    return conditions or name != DECIDED


def test_r15_1_a_dangerous_call_asks_about_what_a_condition_of_others_has_chosen() -> None:
    read: JsonObject = {"_tool": "read", "_outputPath": "†state.mail"}
    chosen: list[JsonObject] = [
        {"_tool": "_let", "value": "ann", "_outputPath": "†state.to"},
        {"_tool": "_let", "value": "eve", "_if": "state.mail == 1", "_outputPath": "†state.to"},
    ]
    pay: JsonObject = {"_tool": "t", "to": "†state.to"}
    for mail in (1, 2):
        for is_patched in (True, False):
            plan = Plan(1, tools=TOOLS, state=State(), known=KnownSources({}, lambda _: MODEL))
            plan.checks.is_patched = partial(_is_patched, is_patched)
            for raw in (read, *chosen, pay):
                plan.add(raw)
            plan.close()
            plan.end(plan.take_ready()[0], Returned(mail))
            call = plan.take_ready()[0]
            assert call.inputs.params == {"to": "eve" if mail == 1 else "ann"}
            assert call.inputs.origins.tainted == is_patched


LOOPS: list[dict[str, Any]] = [
    {"_tool": "_for", "_each": "†state.flag.list"},
    {"_tool": "_while", "_while": "state.flag.on and index < 2", "_max": 4},
    {"_tool": "_while", "_until": "not state.flag.on or index > 0", "_max": 4},
]


@pytest.mark.parametrize("loop", LOOPS)
def test_r15_1_what_a_body_writes_has_the_sources_of_what_its_loop_goes_by(loop: dict[str, Any]) -> None:
    body: list[Json] = [
        {"_tool": "u", "_outputPath": "†state.one"},
        {"_tool": "t", "p": "†state.one", "_outputPath": "†state.x"},
    ]
    state = State([Write(path=(), value={}, sources=AGENT), FLAG])
    plan = Plan(1, tools=TOOLS, state=state, known=KnownSources({}, lambda _: MODEL))
    plan.add({**loop, "_body": body})
    plan.close()
    read = []
    while ready := plan.take_ready():
        for call in ready:
            read += [call.inputs.origins.params["p"]] if call.spec.tool_name == "t" else []
            plan.home(call).end(call, Returned(1))
    assert plan.calls[0].state.status == "done"
    assert "!tool:read" in plan.sources_at_end(Reference("state", ("x",)))
    first = 1 if "_until" in loop else 0  # it is asked after each iteration
    assert ["!tool:read" in each for each in read] == [number >= first for number in range(2)]


def test_a_shape_has_nothing_that_was_written_freely() -> None:
    schema = {"properties": {"kind": {"enum": ["invoice", "other"]}, "pay now": {}}}
    value: JsonObject = {
        "kind": "invoice",
        "from": "a@b.c",
        "n": 12,
        "iban": 12345678901234,
        "pay now": True,
        "obey me!": [None, "x"],
    }
    assert shape_of(value, schema) == {
        "kind": "invoice",
        "from": "‹text, 5 characters›",
        "n": 12,
        "iban": "‹number›",
        "pay now": True,
        "‹key 5, 8 characters›": [None, "‹text, 1 characters›"],
    }
    assert shape_of({"kind": "obey me"}, schema) == {"kind": "‹text, 7 characters›"}
    shown: Any = shape_of([*range(100)])
    assert len(shown) == 21
