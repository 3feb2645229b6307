"""The three dialects (R9.2): what one writes the other reads back, whole or in any pieces, and nothing is ever executed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.errors import ReferenceSyntaxError
from perdure.models.dialects.common import DialectRequest, ToolDelta
from perdure.models.dialects.registry import DIALECTS
from perdure.models.dialects.script import HOW_TO_SCRIPT, ScriptReader, script_names
from perdure.models.dialects.script_writer import write_call, write_calls
from perdure.models.dialects.tools import ToolsReader, function_names
from perdure.models.requests import ReaderVocabulary
from perdure.models.schemas import compose, make_strict
from perdure.plan import Plan
from perdure.runs._output import Outputs, resolve_output
from perdure.runs.agent import Context, parse_agent
from perdure.testing.scripted_model import write_answer, write_script
from perdure.tools.tool import Tool, parse_tool
from perdure.values.references import parse_output_path
from perdure.values.state import State
from perdure.values.templates import TextBudget, as_data, parse_template
from tests.differential.cases import assigns_again, make_case
from tests.soak import share
from tests.strategies import json_values

TOOLS = ["fetch", "math.factorial", "get-user", "class", "output", "a b"]
NAMES = st.sampled_from(["x", "limit", "from", "odd key", "ß", "_instance", "self", "x_"])
REFERENCES = st.sampled_from(
    [
        "†state.a",
        "†state.a.b[0].c",
        '†state["odd key"].x',
        "†input.items[2]",
        "†state.class.x",
        "†state.input.y",
        "†profile.name",
        "†state",
        "†state[0]",
        "†state.a || †input.b",
        "†state.a && †state.b || †state.c",
        "(†state.a || †state.b) && †state.c",
        "†state.true",
        "text with {†state.a} inside",
        "†† is a dagger",
        "† is malformed",
    ]
)
PATHS = st.sampled_from(
    [
        None,
        "†state.a",
        "†state.a.b",
        '†state["odd key"]',
        "†state.a && †state.b",
        "†state.ok || †state.error",
        "†state.a && †state.b || †state.error",
        "†state.input",
        "†state.None",
        "†state",
    ]
)


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    call: dict[str, Any] = {"_tool": draw(st.sampled_from(TOOLS))}
    call |= draw(st.dictionaries(NAMES, st.one_of(REFERENCES, json_values()), max_size=4))
    path = draw(PATHS)
    return call if path is None else call | {"_outputPath": path}


def read(dialect: str, solution: dict[str, Any], sizes: list[int]) -> tuple[Any, list[Any], str]:
    """The Solution written in the dialect and read back in pieces of these sizes; and what was given while it came."""
    answer = write_answer(solution, dialect, ["input", "profile"])
    tools = {name: parse_tool({"name": name}, activities=TOOLS) for name in TOOLS}
    reader = DIALECTS[dialect].reader(DIALECTS[dialect].vocabulary(tools, ["input", "profile"]))
    given_early: list[Any] = []
    for piece in pieces(answer.text, sizes):
        given_early += reader.push(piece)
    for index, (name, arguments) in enumerate(answer.tool_calls):
        given_early += reader.push_tool(ToolDelta(index, f"id{index}", name, ""))
        for piece in pieces(arguments, sizes):
            given_early += reader.push_tool(ToolDelta(index, None, None, piece))
    return reader.close("stop"), given_early, answer.text


def pieces(text: str, sizes: list[int]) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(found) % len(sizes)]
        found.append(text[at : at + size])
        at += size
    return found


def normal(call: dict[str, Any]) -> dict[str, Any]:
    """Without what only says which native call it was; numbers and paths as what they mean."""
    call = {key: value for key, value in call.items() if key != "_id"}
    return json.loads(json.dumps(call))  # type: ignore[no-any-return]


def without_versions(call: dict[str, Any]) -> dict[str, Any]:
    """The call without the order that a script's lines have: those that assign one name come one after the other (R5.14)."""
    after = call.get("_after")
    kept = [each for each in after if not str(each).startswith("ended ")] if isinstance(after, list) else after
    return {key: value for key, value in call.items() if key != "_after"} | ({"_after": kept} if kept else {})


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=share(100))
@given(written=st.lists(calls(), min_size=1, max_size=4), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_r9_2_what_is_written_is_read_back(dialect: str, written: list[dict[str, Any]], sizes: list[int]) -> None:
    solution, early, _ = read(dialect, {"calls": written, "output": None}, sizes)
    assert solution.problem is None
    assert early == solution.calls[: len(early)]
    calls = [without_versions(call) for call in solution.calls]
    assert list(map(meaning, map(normal, calls))) == list(map(meaning, written))


@pytest.mark.parametrize("seeds", [[20_971, 23_207, 23_845], range(10_000, 12_000)], ids=["found", "random"])
def test_a_script_has_the_order_that_its_calls_were_given(seeds: Sequence[int]) -> None:
    for case in map(make_case, seeds):
        if assigns_again(case):  # a script orders the versions of a name, too
            continue
        answer = write_script({"calls": case.calls}, kinds=["input", "nope"])
        reader = ScriptReader(ReaderVocabulary(kinds=["input", "nope"]))
        reader.push(answer)
        calls: list[Any] = reader.close("stop").calls
        assert list(map(meaning, map(normal, calls))) == list(map(meaning, case.calls)), answer


@pytest.mark.parametrize("read", ["a.y", "a.y + 1", 'a["y"]'])
def test_r5_14_who_reads_another_part_of_a_name_waits_for_what_has_written_this_one(read: str) -> None:
    *_, last = script(f"a = f()\na.x = g()\na.x = h(p={read})\n").calls
    assert last["_after"] == ["ended †state.a"]


def test_r5_14_who_reads_the_whole_name_waits_for_its_parts_anyway() -> None:
    *_, last = script("a = f()\na.x = g()\na.x = h(p=a)\n").calls
    assert "_after" not in last


def test_an_order_after_a_name_that_no_line_before_assigns_is_written() -> None:
    call = {"_tool": "f", "_after": ["ended †state.b"], "_outputPath": "†state.b.x"}
    other = {"_tool": "g", "_outputPath": "†state.b"}
    assert write_calls([call, other]) == ['b.x = f(_after=["ended †state.b"])', "b = g()"]
    assert write_calls([other, call]) == ["b = g()", "b.x = f()"]


def meaning(call: dict[str, Any]) -> Any:
    """What a call is to a plan: two spellings of one expression are the same."""
    path = call.get("_outputPath")
    try:
        paths: Any = None if path is None else parse_output_path(path)
    except ReferenceSyntaxError:
        paths = path
    parameters = {key: value for key, value in call.items() if key not in ("_tool", "_outputPath")}
    template, problems = parse_template(dict(sorted(parameters.items())))
    return call["_tool"], template, [problem.path for problem in problems], paths


@given(output=json_values(), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4))
@example(output="†state.x is data", sizes=[3])
@example(output={"a": "{†state.x}", "class": None}, sizes=[3])
@example(output={"ª": None}, sizes=[3])
def test_r6_4_an_output_in_script_means_what_it_means_elsewhere(output: Any, sizes: list[int]) -> None:
    solution, _, _ = read("script", {"calls": [], "output": as_data(output)}, sizes)
    assert resolve_output(solution.output, {}, TextBudget()) == (output, [])


def script(text: str, kinds: list[str] | None = None, tools: list[str] | None = None) -> Any:
    """The `Solution`, whose calls are looked into."""
    reader = ScriptReader(ReaderVocabulary(kinds=kinds or [], names={name: name for name in tools or []}))
    reader.push(text)
    return reader.close("stop")


def test_r9_2_the_syntax_of_the_specification() -> None:
    solution = script(
        'profile = fetchUserProfile(userName="Alice")\n'
        "receipt, error = pay(amount=profile.total, to=input.account)\n"
        "log(text=receipt.text or error.message, after=(a or b) and c)\n"
        "x = y = f()\n"
        "output(text=receipt.text)"
    )
    assert solution.calls == [
        {"_tool": "fetchUserProfile", "userName": "Alice", "_outputPath": "†state.profile"},
        {
            "_tool": "pay",
            "amount": "†state.profile.total",
            "to": "†input.account",
            "_outputPath": "†state.receipt || †state.error",
        },
        {
            "_tool": "log",
            "text": "†state.receipt.text || †state.error.message",
            "after": "(†state.a || †state.b) && †state.c",
        },
        {"_tool": "f", "_outputPath": "†state.x && †state.y"},
    ]
    assert solution.output == {"text": "†state.receipt.text"}


WRONG = [
    "import os",
    "from os import system",
    "x = os.system('ls').read()",
    "x = f(a=().__class__.__bases__)",
    "x = f(a=b.__class__)",
    "x = f(a=lambda: 1)",
    "x = f(a=1e999)",
    "x = f(a=" + "9" * 400 + ")",
    "x = f(a=" + "9" * 5000 + ")",
    "x = f(a=" + "[" * 250 + "]" * 250 + ")",
    "x = f(a=" + "-" * 5000 + "1)",
    "x = f(a=b @ c)",
    "x = f(a=b'')",
    "x = f(a=1j)",
    "x = f(a=...)",
    "x = f(a={1: 2})",
    "x = f(*args)",
    "x = f(**kwargs)",
    "x = f(a=1, a=2)",
    "x = f(a=await b)",
    "x = f(a=(yield))",
    "x = f(a='\\ud800')",
    "x",
    "'text'",
    "x += f(b=1)",
    "x = f(a=(y := 1))",
    "x = x + 1",
    "for x in y: break",
    "for x in y: continue_",
    "for x in y: output(x)",
    "for x.y in z: f(a=x)",
    "for x in y: x = f(a=x)",
    "for x in y: n = n + 1",
    "for x in y: a = f(a=x, b=a)",
    "for x in y: f(a=x, b=lambda: g(a=1))",
    "while True: f(a=1)",
    "while x: pass",
    "try: f(a=1)\nexcept E: pass",
    "match x:\n    case 1: f(a=1)",
    "input.x = f()",
    "input = f()",
    "None = f()",
    "a, b = c = f()",
    "def f(): pass",
    "class A: pass",
    "with f() as x: pass",
    "del x",
    "return f()",
    "global x",
    "f()()",
    "f.__init__()",
    "(lambda: 1)()",
    "'a'.join(b)",
    "x = f(",
    "x = f(a='",
    "x = f(a=$)",
    "    x = f()",
    "Here is my plan: first, I'll fetch it.",
    "output()",
    "output(1, 2)",
    "output(a=1, *b)",
    "y = output(1)",
    "f(__proto__=1)",
    "f(_tool=1)",
    "x = f(\x00)",
]


@pytest.mark.parametrize("line", WRONG)
def test_r9_2_what_is_no_call_is_a_structural_error_that_quotes_its_line(line: str) -> None:
    solution = script(f"a = f(x=1)\n{line}\nb = f(x=2)\n")
    wrong = [call for call in solution.calls if "_syntax" in call]
    assert len(wrong) == 1
    assert "line 2" in wrong[0]["_syntax"]
    assert "column" in wrong[0]["_syntax"]
    assert wrong[0]["_syntax"].split("The line: ")[1][:40].encode(errors="replace").decode() in line or len(line) > 300
    assert [call["x"] for call in solution.calls if "x" in call] == [1, 2]
    plan = Plan(1, tools={"f": parse_tool({"name": "f", "properties": {"x": {}}}, activities=["f"])}, state=State())
    for call in solution.calls:
        plan.add(call)
    plan.close()
    assert [
        (call.state.status, call.state.error and call.state.error.code) for call in plan.calls if call.state.error
    ] == [("invalid", "syntax")]


FRAGMENTS = [
    *"abfx_ =()[]{},.:;\"'\\\n\t#@*+-/<>!&|^~%$?1290e†",
    "import ",
    "lambda ",
    "f(",
    "\r\n",
    "'''",
    "for ",
    "output(",
]
PYTHON = st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join)


@given(text=st.one_of(PYTHON, st.text(max_size=80)), size=st.integers(1, 17))
def test_r9_2_no_text_makes_the_script_reader_raise(text: str, size: int) -> None:
    reader = ScriptReader(ReaderVocabulary())
    early: list[Any] = []
    for piece in pieces(text, [size]):
        early += reader.push(piece)
    solution = reader.close("stop")
    assert early == solution.calls[: len(early)]
    json.dumps(solution.calls).encode()
    whole = ScriptReader(ReaderVocabulary())
    whole.push(text)
    assert whole.close("stop").calls == solution.calls


@given(
    sign=st.characters(exclude_characters="'\"{}\\", exclude_categories=["Cc", "Cs"]),
    line=st.sampled_from(["f(x=f\"{%s} kr\")", "f(x=1, _if=f\"{%s}\")", "if f\"{%s}\":\n    f(x=1)", "[f(x=f\"{%s}\") for b in c]"]),
)  # fmt: skip
@example(sign="\u202f", line='f(x=f"{%s} kr")')
def test_r9_2_a_sign_in_the_braces_of_an_f_string_is_read_or_refused_in_a_line(sign: str, line: str) -> None:
    calls = script(line % f"state.a.replace(',', '{sign}')" + "\n").calls
    wrong = [call["_syntax"] for call in calls if "_syntax" in call]
    assert len(calls) == 1
    assert not (wrong and sign.isprintable())
    assert all("give that text a name on the line before. The line: " in each for each in wrong)


@given(
    deltas=st.lists(
        st.builds(
            ToolDelta,
            st.none() | st.integers(-1, 3),
            st.none() | st.sampled_from(["a", "b"]),
            st.none() | st.sampled_from(["f", "g"]),
            st.none() | st.text(alphabet='{}":a1,[]\\', max_size=8),
        ),
        max_size=12,
    )
)
def test_no_deltas_make_the_tools_reader_raise(deltas: list[ToolDelta]) -> None:
    reader = ToolsReader({})
    early = [call for delta in deltas for call in reader.push_tool(delta)]
    assert early == reader.close("tool_calls").calls[: len(early)]


@pytest.mark.parametrize("size", [1, 3, 5000])
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"x": 1},', {"x": 1}),
        ('{"x": 1}[]', {"x": 1}),
        ('{"x": "}"}/', {"x": "}"}),
        ('{} {"x": 1}', {"x": 1}),
        ("{}" * 1500, {}),
        ("{} " * 1500 + '{"x": 1}}', {"x": 1}),
        ('{"x": "Hi \ud83d\ude00!"}', {"x": "Hi 😀!"}),
    ],
)
def test_native_arguments_end_with_their_object_whatever_their_pieces_are(
    written: str, arguments: Any, size: int
) -> None:
    reader = ToolsReader({})
    for at in range(0, len(written), size):
        reader.push_tool(ToolDelta(0, "c", "" if at else "f", written[at : at + size]))
    assert reader.close("tool_calls").calls == [{"_tool": "f", **arguments, "_id": "c"}]


def test_a_call_starts_when_its_line_closes_not_before() -> None:
    reader = ScriptReader(ReaderVocabulary())
    assert reader.push('x = f(a="(",\n') == []
    assert reader.push("  b=[1,\n 2])") == []
    assert reader.push("\n") == [{"_tool": "f", "a": "(", "b": [1, 2], "_outputPath": "†state.x"}]
    assert reader.push("y = g(a=1) # done\nz = h(") == [{"_tool": "g", "a": 1, "_outputPath": "†state.y"}]
    assert reader.close("length").problem is not None


@pytest.mark.parametrize(
    ("written", "condition"),
    [
        ('"len(b) > 1"', "len(state.b) > 1"),
        ('"†state.b.n > 1"', "state.b.n > 1"),
        ('{"_expr": b.n > 1}', "state.b.n > 1"),
        ('{"_expr": "b.n > 1"}', "state.b.n > 1"),
        ('"†state.b || †state.c"', "†state.b || †state.c"),
    ],
)
def test_a_condition_in_a_text_is_no_text_that_always_holds(written: str, condition: str) -> None:
    (call,) = script(f"f(a=1, _if={written})\n").calls
    assert call == {"_tool": "f", "a": 1, "_if": condition}
    assert script(write_call(call) + "\n").calls == [call]


@pytest.mark.parametrize(
    "call",
    [
        {"_tool": "_let", "value": 1, "_if": "†state.b && †state.c", "_outputPath": "†state.x"},
        {"_tool": "_for", "_each": [1], "_if": "†state.b || †state.c", "_body": [{"_tool": "f", "a": "†item"}]},
        {"_tool": "_while", "_while": "†state.b || †state.c", "_body": [{"_tool": "f", "_outputPath": "†state.b"}]},
    ],
)
def test_joined_references_are_no_head_of_a_statement(call: dict[str, Any]) -> None:
    line = write_call(call)
    assert not line.startswith(("if", "for", "while"))
    assert "{'_expr'" not in str(script(line + "\n").calls)


def test_a_call_for_its_effect_under_a_condition_of_one_line() -> None:
    calls = script("f(x=1) if a.ok else g(x=2)\nf(x=3) if a.n else None\n").calls
    assert calls == [
        {"_tool": "f", "x": 1, "_if": "state.a.ok"},
        {"_tool": "g", "x": 2, "_if": "not state.a.ok"},
        {"_tool": "f", "x": 3, "_if": "state.a.n"},
    ]
    assert "a call is needed" in script("1 if a else 2 + a\n").calls[0]["_syntax"]


def test_joined_references_under_an_if_are_refused() -> None:
    (call,) = script('if a:\n    f(x=1, _if="†state.b || †state.c")\n').calls
    assert "is an expression" in call["_syntax"]


def test_r16_5_a_compound_statement_starts_when_it_closes() -> None:
    reader = ScriptReader(ReaderVocabulary())
    assert reader.push("for h in hosts:\n    a = f(x=h)\n\n    # and\n    g(x=a)\n\n") == []
    begun: list[Any] = reader.push("c = f(x=(\n1))\n")
    loop, call = begun
    assert (loop["_tool"], [inner["_tool"] for inner in loop["_body"]]) == ("_for", ["f", "g"])
    assert call == {"_tool": "f", "x": 1, "_outputPath": "†state.c"}
    assert reader.push("if c:\n    f(x=2)\n") == []
    assert reader.push("else:\n    f(x=3)\n") == []
    assert reader.push("```\n") == [
        {"_tool": "f", "x": 2, "_if": "state.c"},
        {"_tool": "f", "x": 3, "_if": "not state.c"},
    ]
    assert reader.push("while c: c = f(x=c)") == []
    rest: list[Any] = reader.close("stop").calls[4:]
    assert [loop["_while"] for loop in rest] == ["state.c"]


def test_what_follows_a_call_without_a_name_waits_for_it_in_a_while() -> None:
    (_, loop) = script("s = look()\nwhile not s.ok:\n    wait(minutes=1)\n    s = look()\n    log(x=s)\n").calls
    assert [inner.get("_after") for inner in loop["_body"]] == [None, [".0"], [".0"]]


def test_an_output_in_a_branch_is_none_where_the_branch_is_not_taken() -> None:
    solution = script("a = f()\nif a.ok:\n    output(x=a)\nelif a.n:\n    output(x=1)\n")
    assert solution.output == "†state._output"
    assert [call.get("_if") for call in solution.calls] == [None, None, "state.a.ok", "not state.a.ok and state.a.n"]
    assert solution.calls[1] == {"_tool": "_let", "value": None, "_outputPath": "†state._output"}


def test_a_loop_that_cannot_be_read_has_not_written_what_it_would_have() -> None:
    text = "for x in xs:\n    a = f(x=x)\n    if a:\n        b = f(x=a)\n    a[0].n += 1\n"
    (wrong,) = script(text).calls
    assert wrong["_outputPath"] == "†state.x && †state.a && †state.a[0].n && †state.b"
    (wrong,) = script(text.replace("f(x=a)", "f(x=)")).calls
    assert wrong["_outputPath"] == "†state.a && †state.b && †state.a[0].n"


def test_r16_1_with_control_every_tool_may_be_called_for_each_item_and_strict_mode_stays() -> None:
    tools = {"get": parse_tool({"name": "get", "properties": {"x": {"type": "string"}}}, activities=["get"])}
    composed = compose(tools, {"type": "string"}, control=True)
    assert {"_each", "_parallel", "_until", "_max", "_if"} <= composed["$defs"]["call:get"]["properties"].keys()
    assert make_strict(composed)[1] == []
    assert "_each" not in compose(tools, {"type": "string"})["$defs"]["call:get"]["properties"]


def test_words_that_begin_as_a_loop_are_words() -> None:
    calls = script("a = f(x=1)\nfor example, this:\nif you like:\nwhile we wait: nothing\nb = f(x=2)\n").calls
    assert [call.get("x") for call in calls] == [1, None, 2]


def test_positions_count_characters_over_lines() -> None:
    wrong = script('a = f()\nb = f(\n  ü="ü", x={1: 2})\n').calls[1]
    assert wrong["_syntax"].startswith("line 3, column 13: the keys of a dict are text")


@pytest.mark.parametrize(
    ("written", "formula"),
    [
        ("b + 1", "state.b + 1"),
        ('f"{user.name}: {max(input.loads)} %"', "f'{state.user.name}: {max(input.loads)} %'"),
        ("[h.n for h in hosts if h.cpu > limit]", "[h.n for h in state.hosts if h.cpu > state.limit]"),
        ("{k: v for k, v in rows}", "{k: v for k, v in state.rows}"),
        ("sorted(hosts, key=lambda h: h.cpu - base)", "sorted(state.hosts, key=lambda h: h.cpu - state.base)"),
        ("[x for x in x]", "[x for x in state.x]"),
        ("b[-1]", "state.b[-1]"),
        ("b[1:n]", "state.b[1:state.n]"),
        ("not (a and b)", "not (state.a and state.b)"),
        ("a or len(b)", "state.a or len(state.b)"),
        ("name.lower()", "state.name.lower()"),
        ("1 if a is None else 2", "1 if state.a is None else 2"),
    ],
)
def test_r16_4_arguments_of_a_script_compute(written: str, formula: str) -> None:
    (call,) = script(f"x = f(a={written})\n").calls
    assert call == {"_tool": "f", "a": {"_expr": formula}, "_outputPath": "†state.x"}
    line = write_call(call, kinds=["input"])
    assert script(line + "\n").calls == [call]


def test_r16_4_a_condition_is_a_formula_and_what_is_looked_up_stays_a_reference() -> None:
    first, second = script("f(a=b or c, _if=b or c)\nf(a=[b.c, b + 1], _if=len(b) > 1)\noutput(n=b * 2)\n").calls
    assert first == {"_tool": "f", "a": "†state.b || †state.c", "_if": "state.b or state.c"}
    assert second == {"_tool": "f", "a": ["†state.b.c", {"_expr": "state.b + 1"}], "_if": "len(state.b) > 1"}
    assert script(write_call(second) + "\n").calls == [second]


def test_arguments_by_position_and_names_that_python_reserves() -> None:
    tool = parse_tool({"name": "move", "properties": {"from": {}, "to": {}}}, activities=["move"])
    dialect = DIALECTS["script"]
    reader = dialect.reader(dialect.vocabulary({"move": tool}, []))
    reader.push('move("a", to=b)\nmove(from_="a")\nmove(**{"from": 1})\nmove(1, 2, 3)\nmove(1, **{"from": 2})\n')
    read_back: list[Any] = reader.close("stop").calls
    first, second, third, *wrong = read_back
    assert first == {"_tool": "move", "from": "a", "to": "†state.b"}
    assert second == {"_tool": "move", "from": "a"}
    assert third == {"_tool": "move", "from": 1}
    assert [call["_syntax"].split(": ")[1].split(".")[0] for call in wrong] == [
        "move takes no more arguments by position; name them",
        "move is given 'from' twice",
    ]


def test_thoughts_fences_and_comments_are_skipped() -> None:
    text = "<think>\nx = f(\n</think>\n```python\n# fetch\nx = f(a=1)\n\n```\n"
    assert script(text).calls == [{"_tool": "f", "a": 1, "_outputPath": "†state.x"}]


def test_a_call_that_is_never_closed_does_not_swallow_the_next() -> None:
    wrong, good = script("x = f(a=[1\ny = g(b=2)\n").calls
    assert "line 1" in wrong["_syntax"]
    assert good == {"_tool": "g", "b": 2, "_outputPath": "†state.y"}


def test_r16_4_the_prompt_teaches_loops_and_conditions_in_under_200_tokens() -> None:
    assert len(DIALECTS["script"].control) / 4 < 200
    assert len(DIALECTS["solution"].control) / 4 < 200


FORMS: dict[str, tuple[str, ...]] = {
    "_outputPath": ("_outputPath", "_outputPath", "user = "),
    "_outputMethod": ("_outputMethod",) * 3,
    "_after": ("_after",) * 3,
    "ended †": ("ended †state.",) * 3,
    "||": ('"a || b"', '"a || b"', "a or b"),
    "&&": ('"a && b"', '"a && b"', "a and b"),
    "{†": ("{†state.", "{†state.", "{†state."),
    "†input": ("†input[", "†input.", "input."),
    "merge": ("merge",) * 3,
    "assign": ("assign",) * 3,
    "push": ("push",) * 3,
    "concat": ("concat",) * 3,
    '["': ('[\\"', "", '["'),
    "_expr": ("_expr", "_expr", "total * 2"),
    "_if": ("_if", "_if", "if not c.ok"),
    "_each": ("_each", "_each", "for h in hosts"),
    "_until": ("_until", "_until", "while"),
}
"""A form of the protocol → the words by which the prompts of `solution`, `tools` and `script` teach it."""


def test_r9_2_every_form_that_a_conformance_case_writes_is_taught_by_every_dialect() -> None:
    written: set[str] = set()
    for path in (Path(__file__).parents[1] / "conformance").rglob("*.json"):
        turns = json.dumps(json.loads(path.read_text(encoding="utf-8")).get("turns", []), ensure_ascii=False)
        written |= {form for form in FORMS if form in turns}
    assert {"||", "&&", "_outputMethod", "merge", "_each"} <= written
    for index, name in enumerate(("solution", "tools", "script")):
        taught = DIALECTS[name].how + DIALECTS[name].control
        assert [form for form in FORMS if FORMS[form][index] not in taught] == []


def test_r9_2_the_prompt_teaches_the_script_in_under_300_tokens() -> None:
    # Four characters a token is what English takes; code and punctuation take more, so a margin is kept.
    assert len(HOW_TO_SCRIPT) / 4 < 300


@pytest.mark.parametrize("names", [TOOLS, ["a.b", "a_b", "a-b"], ["1", "_1"], ["if", "if_"]])
def test_every_tool_has_a_name_of_its_own_in_each_dialect(names: list[str]) -> None:
    for offered in (function_names(names), script_names(names)):
        assert sorted(offered.values()) == sorted(names)
    assert all(len(name) <= 64 for name in function_names(["x" * 100, "x" * 101]))


@pytest.mark.parametrize("other", ["intersect", "a.intersect"])
def test_a_call_by_a_tools_own_name_is_for_no_other_tool(other: str) -> None:
    reader = ToolsReader(function_names(["functions.intersect", other]))
    reader.push_tool(ToolDelta(index=0, name="functions.intersect", arguments="{}"))
    assert [call["_tool"] for call in reader.close().calls if isinstance(call, dict)] == ["functions.intersect"]


@pytest.mark.parametrize(
    ("schema", "text", "kind", "value"),
    [
        (True, "All is well.", "text", "All is well."),
        ({}, '{"ok": true}', "json", {"ok": True}),
        ({"type": "string"}, "42", "text", "42"),
        ({"type": "integer"}, "42", "json", 42),
        ({"type": "integer"}, "It is 42.", "prose", None),
        ({"type": "object", "required": ["n"]}, '```json\n{"n": 1}\n```', "json", {"n": 1}),
        ({"type": "object", "required": ["n"]}, '{"output": {"n": 1}}', "json", {"n": 1}),
        ({"type": "object", "required": ["n"]}, '{"m": 1}', "json", {"m": 1}),
        ({"type": "object"}, "Done: {}", "prose", None),
    ],
)
def test_r9_5_a_text_as_an_answer(schema: Any, text: str, kind: str, value: Any) -> None:
    read = Outputs(schema).read_text(text, beside_calls=False)
    assert (read.kind, read.value) == (kind, value)


def test_text_beside_calls_is_a_remark_unless_it_is_a_fitting_document() -> None:
    outputs = Outputs(True)
    assert outputs.read_text("I will look.", beside_calls=True).value is None
    assert outputs.read_text('{"ok": true}', beside_calls=True).value == {"ok": True}


def tool(**definition: Any) -> Tool:
    return parse_tool({"name": "t", **definition}, activities=["t"])


def test_the_script_prompt_shows_signatures() -> None:
    text = DIALECTS["script"].tools_text(
        DialectRequest(
            tools={
                "t": tool(
                    description="Does it.",
                    properties={"a": {"type": "string", "description": "what"}, "b": {"enum": [1, 2]}, "c": {}},
                    required=["a"],
                )
            }
        )
    )
    assert "- t(a: string, b?: 1|2, c?: any)\n  Does it.\n  a: what\n" in text


def test_agents_name_their_dialect() -> None:
    agent = parse_agent({"name": "a", "config": {"dialect": "script"}, "context": [{"type": "input", "x": 1}]})
    assert (agent.config.dialect, Context(agent).values()) == ("script", {"input": {"x": 1}})


def test_a_number_of_5_000_digits_is_one_clear_line() -> None:
    reader = DIALECTS["script"].reader(DIALECTS["script"].vocabulary({}, []))
    reader.push(f"note(number={'1' * 5_000})\n")
    problems = str(reader.close("stop"))
    assert "an integer of more than 4,000 digits; a line is a call" in problems
    assert "sys.set_int_max_str_digits" not in problems


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("for q in input.rows:\n    p(x=q.n)\ng(x=q.n)\n", "line 3, column 5: q is the item of a loop above"),
        (
            "u = f(x=1)\np(x='Dear {†state.u.s || †state.u.n}' + '!')\n",
            "line 2, column 5: a text inside an expression cannot join references by || or &&: write an f-string",
        ),
        (
            "u = f(x=1)\np(x='†state.u.s && †state.u.n' + '!')\n",
            "line 2, column 5: a text inside an expression cannot join references by || or &&: write an f-string",
        ),
    ],
)
def test_a_refused_line_of_a_script_has_one_error(text: str, line: str) -> None:
    tools = {name: ["x"] for name in "fgp"}
    reader = ScriptReader(ReaderVocabulary(names={name: name for name in tools}, parameters=tools, kinds=["input"]))
    reader.push(text)
    calls: list[Any] = reader.close("stop").calls
    [error] = [call["_syntax"] for call in calls if "_syntax" in call]
    assert error.startswith(line)


@pytest.mark.parametrize(
    "line", ["a{n} = f(x=a{before})", "a0.append(f(x=1))", "if a{n} > 1:\n    a{n} = f(x=a{before})"]
)
def test_a_long_script_is_read_in_time_that_grows_with_its_length(line: str) -> None:
    """Counted as function calls, which no other load on the machine changes."""

    def calls(count: int) -> int:
        made = 0

        def note(*_: object) -> None:
            nonlocal made
            made += 1

        reader = ScriptReader(ReaderVocabulary(names={"f": "f"}, parameters={"f": ["x"]}))
        lines = "\n".join(line.format(n=n, before=n - 1) for n in range(1, count))
        sys.setprofile(note)
        try:
            reader.push(f"a0 = []\n{lines}\n")
        finally:
            sys.setprofile(None)
        return made

    few = calls(150)
    assert calls(600) < 6 * few


COSTLY = [
    "if x:\n" + "    a{}\n" * 30 + "    )\n",
    "if x:\n" + "    a{}b = 1\n" * 30 + "    )\n",
    "if x:\n" + "    a : {}: )\n" * 30,
]


@pytest.mark.parametrize("text", COSTLY)
def test_r18_6_an_unreadable_block_is_searched_in_linear_time(text: str) -> None:
    def cost(size: int) -> float:
        def once() -> float:
            reader, start = ScriptReader(ReaderVocabulary()), time.process_time()
            reader.push(text.replace("{}", " " * size))
            reader.close("stop")
            return time.process_time() - start

        return min(once() for _ in range(3))

    assert cost(380) < 50 * cost(20)  # 19 times as long; in quadratic time it would be 361 times


def test_r18_6_the_marks_around_a_functions_name_are_removed_in_linear_time() -> None:
    def cost(size: int) -> float:
        reader, start = ToolsReader({"f": "f"}), time.process_time()
        reader.push_tool(ToolDelta(index=0, name=f"a{' ' * size}b", arguments="{}"))
        reader.close("stop")
        return time.process_time() - start

    assert cost(8000) < 100 * min(cost(400) for _ in range(3))  # in quadratic time it would be 400 times
