"""What an answer says while it is being written (R10.14): however it is cut, the pieces add up to the output's text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.models.dialects.output_text import output_form, text_of
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import ReaderVocabulary
from perdure.runs._output import resolve_output
from perdure.testing.scripted_model import write_answer
from perdure.values.templates import TextBudget
from tests.strategies import json_values

CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=8)
PIECES = st.sampled_from(
    ["a", " ", "\n", '"', "'", "\\", "é", "😀", "†", "{", "(", "††", "{††x}", "<", "</s", "|", "\t", "\x07", "{ ("]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=20)


ONE: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TWO = {**ONE, "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text", "n"]}
OPEN = {**ONE, "additionalProperties": True}


def told(dialect: str, text: str, cuts: list[int], schema: dict[str, Any] | bool = True) -> list[str]:
    """What is told after each piece of an answer."""
    reading = DIALECTS[dialect].reader(ReaderVocabulary(said=output_form(schema)))
    at = 0
    pieces: list[str] = []
    while at < len(text):
        size = cuts[len(pieces) % len(cuts)]
        reading.push(text[at : at + size])
        pieces.append(reading.output_text())
        at += size
    reading.close("stop")
    return pieces


def resolved(output: Any) -> Any:
    """The output as it is in the end, where nothing that is referred to has a value."""
    value, wrong = resolve_output(output, {}, TextBudget())
    return None if wrong else value


@given(output=json_values() | TEXTS, cuts=CUTS, escaped=st.booleans(), indent=st.sampled_from([None, 1]))
def test_the_pieces_of_a_solution_add_up_to_its_output(
    output: Any, cuts: list[int], escaped: bool, indent: int | None
) -> None:
    answer = json.dumps(
        {"calls": [{"_tool": "f", "output": "no"}], "output": output}, ensure_ascii=escaped, indent=indent
    )
    whole = resolved(output)
    pieces = "".join(told("solution", answer, cuts))
    if whole is not None or output is None:
        assert pieces == text_of(whole)
    else:
        assert pieces == "".join(told("solution", answer, [1]))


@given(output=json_values() | TEXTS, cuts=CUTS)
def test_the_pieces_of_a_script_add_up_to_its_output(output: Any, cuts: list[int]) -> None:
    answer = write_answer({"calls": [{"_tool": "f", "a": 1}], "output": output}, "script").text
    whole = resolved(output)
    pieces = "".join(told("script", answer, cuts))
    if whole is not None:
        assert pieces == text_of(whole)


@given(
    output=TEXTS, cuts=CUTS, thought=st.sampled_from(["", "<think>a </thi b</think>\n", "\n <thinking>x\n</thinking>"])
)
def test_the_pieces_of_a_text_are_its_beginning_and_all_but_what_may_be_its_end(
    output: str, cuts: list[int], thought: str
) -> None:
    answer = thought + output + "<|im_end|>"
    reading = DIALECTS["tools"].reader(ReaderVocabulary())
    reading.push(answer)
    whole = resolved(reading.close("stop").text or None)
    pieces = "".join(told("tools", answer, cuts))
    if output.lstrip().startswith("{"):  # it may be a document
        assert pieces == ""
        return
    if whole is not None:
        assert isinstance(whole, str)
        assert whole.startswith(pieces)
    if output.lstrip().startswith("<|"):  # it may be a mark of channels
        return
    if whole is not None:
        assert len(whole) - len(pieces) <= 8
    if output[-1:].isalnum() and whole is not None:
        assert pieces == whole


@pytest.mark.parametrize(
    ("dialect", "answer", "known"),
    [
        ("solution", '{"calls":[],"output":"Dear {†state.user.name}, we', "Dear "),
        ("solution", '{"calls":[],"output":"†state.letter"}', ""),
        ("solution", '{"calls":[],"output":{"to":"†state.user","text":"x"}}', ""),
        ("solution", '{"calls":[],"output":{"n":1,"to":"†state.user","text":"x"}}', '{"n":1,"to":'),
        ("solution", '{"calls":[],"output":{"text":"abc', ""),
        ("solution", '{"calls":[],"output":{"text":"abc\\n","n', '{"text":"abc\\n",'),
        ("solution", '{"calls":[],"output":{"text":"abc"}', "abc"),
        ("solution", '{"calls":[],"output":{"a":[1,{"_expr":"1 + 1"}]}}', '{"a":[1,'),
        ("solution", '{"calls":[],"output":"half a \\ud83d', "half a "),
        ("solution", '{"calls":[],"output":"bad \\x"}', "bad "),
        ("solution", '{"calls":[{"_tool":"say","output":"no"}],"output":null}', ""),
        ("solution", '{"output":"first","calls":[]}', "first"),
        ("solution", '<think>{"output":"no"}</think>```json\n{"output": "yes', "yes"),
        ("solution", 'Well: {"output": "not before its end"}', ""),
        ("tools", "Dear {†state.user.name}, we", "Dear "),
        ("tools", "†state.letter", ""),
        ("tools", "a thought\n</think>\n", ""),
        ("tools", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes", "yes"),
        ("script", 'x = f()\noutput("Dear \\u00e9 {†state.x}', "Dear é "),
        ("script", 'output("""a "quoted" word\nand ', 'a "quoted" word\nand '),
        ("script", 'output(text="abc \\', ""),
        ("script", 'output(text="abc")\n', "abc"),
        ("tools", ' {"output": "not before its end"}', ""),
        ("script", "output(text=receipt.text, n=1", ""),
        ("script", 'x = f()\noutput(n=1, text="a")\n', '{"n":1,"text":"a"}'),
        ("script", 'I will say: output("no', ""),
    ],
)
def test_what_is_known_of_an_answer_that_is_being_written(dialect: str, answer: str, known: str) -> None:
    for size in (1, 2, 5, 1000):
        pieces = "".join(told(dialect, answer, [size]))
        assert pieces == known or (dialect == "tools" and known == "" and answer.startswith("a thought"))


@pytest.mark.parametrize(
    ("schema", "answer", "known"),
    [
        (ONE, '{"output":{"text":"abc {†state', "abc "),
        (ONE, '{"output":{"text":"abc","n":1}}', "abc"),
        (ONE, '{"output":{"other":"abc', ""),
        (ONE, '{"output":"abc', "abc"),
        (TWO, '{"output":{"text":"abc', '{"text":"abc'),
        (OPEN, '{"output":{"text":"abc', ""),
    ],
)
def test_what_the_schema_says_is_known_before(schema: dict[str, Any], answer: str, known: str) -> None:
    for size in (1, 4, 1000):
        assert "".join(told("solution", answer, [size], schema)) == known
    script = answer.removeprefix('{"output":{').replace('":"', '="').replace('"', "", 1)
    if script.startswith("text") and '"n"' not in script:
        assert "".join(told("script", f"output({script}", [3], schema)) == known
