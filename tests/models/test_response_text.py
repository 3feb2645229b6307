"""Answers as models and servers write them: what stands around the calls, and what they cost to read (R9.2, R6.6, R18.6)."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.models.dialects.common import (
    CallScanner,
    CommentFilter,
    Solution,
    SolutionStreamReader,
    ToolDelta,
    call_as_text,
    last_marks_removed,
)
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import ReaderVocabulary
from perdure.values.json import loads, without_comments
from tests.cpu import takes_less
from tests.soak import share
from tests.strategies import json_values

CALL = {"_tool": "add", "a": 1}
SOLUTION = '{"calls":[{"_tool":"add","a":1}],"output":{"ok":true}}'
LINES = "x = add(a=1)\noutput(ok=True)\n"
ADDED = {**CALL, "_outputPath": "†state.x"}


def reader(dialect: str) -> SolutionStreamReader:
    return DIALECTS[dialect].reader(ReaderVocabulary())


def read(dialect: str, text: str, size: int = 5) -> tuple[Any, list[Any]]:
    """What a text is, pushed in pieces, and what of it was given before its end."""
    reading = reader(dialect)
    early = [call for at in range(0, len(text), size) for call in reading.push(text[at : at + size])]
    solution = reading.close("stop")
    assert early == solution.calls[: len(early)]
    return solution, early


COMMENTED = SOLUTION[:-1] + "// don't \"call {more\n/* ] } */ }"
AROUND_JSON = {
    "nothing": SOLUTION,
    "a thought": f"<think>{{not this}}</think>{SOLUTION}",
    "two thoughts and a fence": f"<think>a</think>\n<thinking>b</thinking>```json\n{SOLUTION}\n```",
    "a thought without a beginning": f'I could answer {{"calls":[{{"_tool":"pay"}}]}}.\n</think>\n\n{SOLUTION}',
    "braces in the words before": f'The set {{a, b}} and {{}} and {{"a": {{}}}}: {SOLUTION}',
    "braces in the words behind": f'Here it is: {SOLUTION}\nwith {{care}} and {{"x": 1}}',
    "a draft before": f'First {{"calls": [], "output": null}}, better: {SOLUTION}',
    "the marks of channels": f"<|channel|>analysis<|message|>hm {{}}<|end|><|start|>assistant<|channel|>final<|message|>{SOLUTION}<|return|>",
    "a mark of its end": f"{SOLUTION}<|im_end|>",
    "comments": COMMENTED,
    "comments and words": f"So, see https://a.b/c: {COMMENTED} as I said (https://a.b/{{c}})",
    "a last comma": SOLUTION[:-1] + ",}",
    "an address in braces before": f"I read {{https://a.b/c}}.\n{SOLUTION}",
    "a tag inside a text": SOLUTION.replace('"a":1', '"a":"\\n</think>\\n"'),
}


@pytest.mark.parametrize("text", AROUND_JSON.values(), ids=AROUND_JSON)
def test_the_document_is_found_whatever_is_around_it(text: str) -> None:
    for size in (1, 7, 1000):
        solution, early = read("solution", text, size)
        assert (solution.problem, solution.output, len(solution.calls)) == (None, {"ok": True}, 1)
        assert solution.calls[0]["_tool"] == "add"
        # What begins with words may be a thought whose beginning was lost: nothing starts before its end.
        assert len(early) == (text.lstrip().startswith(("{", "<think", "```")))


@pytest.mark.parametrize(
    "text",
    [
        'Then {"calls": [{"_tool": "write", "doc": {"output": 1}}], "out',
        '{"calls": [{"_tool": "write", "doc": {"output": 1}}], "out',
        'use { here: {"output": 1}',
    ],
)
def test_what_is_inside_a_document_that_never_closes_is_not_the_answer(text: str) -> None:
    for finish in ("stop", "length"):
        reading = reader("solution")
        early = reading.push(text)
        solution = reading.close(finish)
        assert (solution.calls, solution.output) == (early, None)
        assert solution.problem is not None


AROUND_SCRIPT = {
    "nothing": LINES,
    "words": f"Here is the plan:\n\n{LINES}",
    "words and a fence": f"I'll do this (now):\n```python\n{LINES}```\nThis adds {{a}}, then it's done.",
    "bullets": "- x = add(a=1)\n- output(ok=True)",
    "a numbered list": "1. x = add(a=1)\n2. output(ok=True)\n",
    "back-ticks": "`x = add(a=1)`\n`output(ok=True)`",
    "a list with back-ticks": "Steps:\n\n1. `x = add(a=1)`\n2. `output(ok=True)`",
    "indentation": "    x = add(a=1)\n    output(ok=True)\n",
    "indentation in a list": "1. x = add(a=1)\n   output(ok=True)\n",
    "an indented fence": "  ```\n  x = add(\n    a=1)\n  output(ok=True)\n  ```",
    "a thought": f"<think>\nx = pay(\n</think>{LINES}",
    "a thought without a beginning": f"I could write\nx = pay(a=1)\noutput(1)\nbut (no.\n</think>\n{LINES}",
    "the marks of channels": f"<|channel|>analysis<|message|>I'd\nx = pay()<|end|><|start|>assistant<|channel|>final<|message|>{LINES}<|return|>",
    "a mark of its end": f"{LINES.rstrip()}<|im_end|>",
    "a namespace": "x = functions.add(a=1)\noutput(ok=True)",
}


@pytest.mark.parametrize("text", AROUND_SCRIPT.values(), ids=AROUND_SCRIPT)
def test_the_script_is_found_whatever_is_around_it(text: str) -> None:
    for size in (1, 7, 1000):
        solution, _ = read("script", text, size)
        assert (solution.problem, solution.calls, solution.output) == (None, [ADDED], {"ok": True})


def test_words_before_a_script_hold_it_back() -> None:
    assert read("script", LINES)[1] == [ADDED]
    assert read("script", f"Here is the plan:\n{LINES}")[1] == []


def test_words_between_calls_are_told_once_in_one_line() -> None:
    text = f"{LINES}This adds one.\nThen it's done (I think.\nReally.\n"
    calls = read("script", text)[0].calls
    assert [("_syntax" in call) for call in calls] == [False, True]
    assert "line 3" in calls[1]["_syntax"]
    assert "\n" not in calls[1]["_syntax"]
    (told,) = read("script", "I am sorry.\nI cannot do that.\n")[0].calls
    assert "The line: I am sorry." in told["_syntax"]


def test_what_stands_deeper_than_its_line_does_not_run() -> None:
    for text in ("- If it is cold:\n  - pay()\n  - pay()", "x = add(a=1)\n    pay()\n"):
        assert not any(call.get("_tool") == "pay" for call in read("script", f"y = add(a=2)\n{text}")[0].calls)
    assert [call.get("_tool") for call in read("script", "- If it is cold:\n  - pay()")[0].calls] != ["add"]


def native(*deltas: ToolDelta, text: str = "") -> Solution:
    reading = reader("tools")
    reading.push(text)
    early = [call for delta in deltas for call in reading.push_tool(delta)]
    solution = reading.close("tool_calls")
    assert early == solution.calls[: len(early)]
    return solution


@pytest.mark.parametrize(
    "pieces",
    [
        ['{"a":1}'],
        ["{}", '{"a":1}'],
        ['{}{"a":1}'],
        ["{}", '{"a"', ":1}"],
        ['"{\\"a\\":', '1}"'],
        [" ", "{", '"a":1}'],
    ],
)
@pytest.mark.parametrize("name", ["add", "functions.add", "functions.add:0", "add<|channel|>commentary", " add"])
def test_arguments_and_names_as_servers_write_them(pieces: list[str], name: str) -> None:
    first, *rest = pieces
    more = [ToolDelta(index=0, arguments=piece) for piece in rest]
    solution = native(ToolDelta(0, "one", name, first), *more, ToolDelta(1, "two", "add", "{}"))
    assert solution.calls == [{**CALL, "_id": "one"}, {"_tool": "add", "_id": "two"}]


def test_a_call_without_arguments_starts_when_the_next_begins() -> None:
    reading = reader("tools")
    assert reading.push_tool(ToolDelta(0, "one", "add", "{}")) == []
    assert reading.push_tool(ToolDelta(1, "two", "add", "")) == [{"_tool": "add", "_id": "one"}]
    assert len(reading.close("stop").calls) == 2


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
        'I will add.\n<tool_call>{"name": "add"}</tool_call>',
        '[TOOL_CALLS][{"name": "add"}]',
        "<function=add>{}</function>",
        "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{}<|call|>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add",
        '<think>hm</think><|python_tag|>{"name": "add"}',
    ],
)
def test_a_call_as_text_is_told_and_not_taken_for_the_answer(text: str) -> None:
    problem = native(text=text).problem
    assert problem is not None
    assert (problem.code, "\n" in problem.message) == ("call_as_text", False)
    assert native(text=f"The tag `<tool_call>` begins a call. {text[:0]}").problem is None
    assert native(ToolDelta(0, "one", "add", '{"a":1}'), text=text).problem is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>hm</think>\n\nDone.", "Done."),
        ("hm, 1 < 2\n</think>\n\nDone.", "Done."),
        ("Done.<|im_end|>", "Done."),
        ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Done.", "Done."),
        ("Write </think> behind a thought.", "Write </think> behind a thought."),
    ],
)
def test_a_text_answer_is_without_thoughts(text: str, answer: str) -> None:
    assert native(text=text).text == answer


@pytest.mark.parametrize("dialect", ["solution", "script"])
def test_native_calls_where_none_were_offered_are_told(dialect: str) -> None:
    reading = reader(dialect)
    assert reading.push_tool(ToolDelta(0, "one", "add", "{}")) == []
    problem = reading.close("tool_calls").problem
    assert problem is not None
    assert problem.code == "native_call"


@given(elements=st.lists(json_values(), max_size=5), size=st.integers(1, 9), indent=st.sampled_from([None, 1]))
def test_the_scanner_gives_what_the_parser_reads(elements: list[Any], size: int, indent: int | None) -> None:
    document = {"x": {"calls": [1, "a"]}, "y": ['"', "calls"], "calls": elements, "output": [[], "calls"]}
    text = json.dumps(document, indent=indent)
    scanner = CallScanner()
    found = [loads(each) for at in range(0, len(text), size) for each in scanner.push(text[at : at + size])]
    assert found == json.loads(json.dumps(elements))
    assert scanner.stopped


COMMENTS = [" ", "\n", "//\n", "// don't: \"x {[\n", '/* " ] } */', "/**/", "/*/ // */", "// /*\n", "/***/"]
TEXTS = st.sampled_from(["https://a.b/c", "/* not one */", '"//', "\\//", "a\n// b", "*/", "/", "'"]) | st.text(
    max_size=5
)


@st.composite
def commented(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """A document, and its JSON with comments wherever JSON may have blanks, and commas after the last items."""
    values = st.recursive(
        TEXTS | json_values(), lambda each: st.lists(each) | st.dictionaries(TEXTS, each), max_leaves=5
    )
    call = st.builds(lambda name, more: {**more, "_tool": name}, TEXTS, st.dictionaries(TEXTS, values, max_size=2))
    document = {"calls": draw(st.lists(call, max_size=3)), "output": draw(values)}
    blank = st.sampled_from(COMMENTS)

    def write(value: Any) -> str:
        comma = draw(st.sampled_from(["", ","]))
        if isinstance(value, dict) and value:
            members = [f"{written(key)}:{written(each)}" for key, each in value.items()]
            return "{" + ",".join(members) + comma + draw(blank) + "}"
        if isinstance(value, list) and value:
            return "[" + ",".join(map(written, value)) + comma + draw(blank) + "]"
        return json.dumps(value, ensure_ascii=draw(st.booleans()))

    def written(value: Any) -> str:
        return draw(blank) + write(value) + draw(blank)

    return document, write(document)


@settings(max_examples=share(100))
@given(both=commented(), size=st.integers(1, 9))
def test_r9_2_a_solution_with_comments_is_the_one_without(both: tuple[dict[str, Any], str], size: int) -> None:
    document, text = both
    solution, early = read("solution", text, size)
    assert (solution.problem, solution.calls, solution.output) == (None, document["calls"], document["output"])
    assert early == document["calls"]
    assert read("solution", f"So be it: {text}\nDone.", size)[0].calls == document["calls"]


@settings(max_examples=share(100))
@given(both=commented(), size=st.integers(1, 9))
def test_r9_2_arguments_with_comments_are_those_without(both: tuple[dict[str, Any], str], size: int) -> None:
    document, text = both
    pieces = [ToolDelta(0, arguments=text[at : at + size]) for at in range(0, len(text), size)]
    solution = native(ToolDelta(0, "one", "add", ""), *pieces, ToolDelta(1, "two", "add", "{}"))
    assert solution.calls == [{"_tool": "add", **document, "_id": "one"}, {"_tool": "add", "_id": "two"}]


@given(document=st.dictionaries(TEXTS, st.lists(TEXTS) | json_values(), max_size=4), size=st.integers(1, 9))
def test_r9_2_of_json_nothing_is_a_comment(document: Any, size: int) -> None:
    text = json.dumps(document, ensure_ascii=False)
    comments = CommentFilter()
    assert "".join(comments.push(text[at : at + size]) for at in range(0, len(text), size)) == text
    assert without_comments(text) == text


@given(text=st.lists(st.sampled_from(['{"calls":[', *'{}[],:"\\ x1/*\n'])).map("".join), size=st.integers(1, 9))
def test_no_text_makes_the_solution_reader_raise_or_take_back(text: str, size: int) -> None:
    solution, early = read("solution", text, size)
    assert early == solution.calls[: len(early)]


HEAVY = {
    "brackets without end": ("solution", '{"calls":[' + "[" * 40_000),
    "brackets without end behind words": ("solution", 'So: {"calls":[' + "[" * 40_000),
    "a long thought": ("solution", "<think>" + "so { it goes. " * 7_000 + "</think>" + SOLUTION),
    "a thought without end": ("solution", "<think>" + "{" * 90_000),
    "braces": ("solution", "so " + "{x}" * 100_000 + "{" * 100_000),
    "comments": ("solution", '{"calls":[' + "/*x*/" * 100_000 + "//\n" * 100_000 + "1]}"),
    "comments without end": ("solution", "{" + "/*" * 250_000),
    "comments in words": ("solution", "so " + "{/* // " * 40_000),
    "quotes without end": ("solution", '{"calls":[//\n"' + '\\"' * 250_000),
    "a long string": ("solution", '{"calls":[{"_tool":"add","a":"' + "x" * 500_000 + '"}]}'),
    "a long string of quotes": ("solution", '{"calls":[{"_tool":"add","a":"' + '\\"' * 250_000 + '"}]}'),
    "a long line": ("script", "x = add(a='" + "x" * 500_000 + "')\n"),
    "many lines": ("script", "x = add(a='''" + "x\n" * 100_000 + "''')\n"),
    "brackets in a script": ("script", "x = add(a=" + "[" * 40_000),
    "words": ("script", "so it goes\n" * 10_000),
}


@pytest.mark.parametrize(("dialect", "text"), HEAVY.values(), ids=HEAVY)
def test_r18_6_what_an_answer_costs_grows_with_its_length_alone(dialect: str, text: str) -> None:
    assert takes_less(lambda: read(dialect, text, 4), 700)  # quadratic is minutes; half a second without neighbours


@pytest.mark.parametrize(("dialect", "text"), HEAVY.values(), ids=HEAVY)
def test_r18_6_what_an_answer_takes_of_memory_grows_with_its_length_alone(dialect: str, text: str) -> None:
    tracemalloc.start()
    try:
        read(dialect, text[: len(text) // 10], 4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10e6  # quadratic is hundreds of megabytes


def test_long_arguments_cost_what_they_weigh() -> None:
    arguments = '{"a":"' + "x" * 500_000 + '"}'
    pieces = [ToolDelta(index=0, arguments=arguments[at : at + 4]) for at in range(0, len(arguments), 4)]
    assert len(native(ToolDelta(0, "one", "add", ""), *pieces).calls) == 1
    assert takes_less(lambda: native(ToolDelta(0, "one", "add", ""), *pieces), 2000)


@pytest.mark.parametrize("blanks", [" ", "\n"])
def test_r18_6_blanks_without_end_cost_what_they_are_long(blanks: str) -> None:
    text = "{" + blanks * 1_000_000

    def look() -> None:
        assert last_marks_removed(text + "x") == text + "x"
        assert last_marks_removed(text + "<|im_end|> </s>\n") == "{"
        assert call_as_text(text + "x") is None

    assert takes_less(look, 400)


def test_r18_6_a_long_f_string_is_refused_before_it_is_parsed() -> None:
    def refuse() -> None:
        reader = DIALECTS["script"].reader(ReaderVocabulary())
        reader.push("act(f'" + "{a}" * 100_000 + "')\n")
        (call,) = reader.close("stop").calls
        assert "an f-string in it may have 2,000 characters" in str(call)

    assert takes_less(refuse, 400)
