"""A corpus of short programs as models write them for multi-step tool use: read as plans, or refused in a line that teaches (R16.4)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.models.dialects.common import Solution
from perdure.models.dialects.script import ScriptReader
from perdure.models.dialects.script_writer import write_calls
from perdure.models.requests import ReaderVocabulary
from perdure.plan import Plan
from perdure.tools.tool import resolve_tools
from perdure.values.json import Json
from perdure.values.state import State

TEXT = (Path(__file__).parent / "programs.txt").read_text()
PROGRAM = re.compile(r"^== (.*?) \| (\w+) \| (.*)\n((?:(?!== |@).*\n?)*)", re.MULTILINE)
DOCS = Path(__file__).parents[2] / "docs" / "script.md"


@dataclass(frozen=True)
class Program:
    """`expected`: how many calls there are in all, bodies included, and what kinds of things; or words of the refusal."""

    name: str
    domain: str
    expected: str
    text: str


PROGRAMS = [Program(*found.groups()) for found in PROGRAM.finditer(TEXT)]
TOOLS = {
    line[1:].split(" ", 1)[0]: {
        tool: [name.strip() for name in names.split(",") if name.strip()]
        for tool, names in re.findall(r"(\w+)\(([^)]*)\)", line)
    }
    for line in TEXT.splitlines()
    if line.startswith("@")
}
INPUT: dict[str, Json] = {name: ["a"] for name in re.findall(r"\binput\.(\w+)", TEXT)}
NAMED = [pytest.param(program, id=program.name) for program in PROGRAMS]


def read(text: str, domain: str, sizes: list[int] | None = None) -> Any:
    """The `Solution`, whose calls are looked into."""
    tools = TOOLS[domain]
    reader = ScriptReader(ReaderVocabulary(names={name: name for name in tools}, parameters=tools, kinds=["input"]))
    early: list[Any] = []
    at, turn = 0, 0
    while sizes and at < len(text):
        size = sizes[turn % len(sizes)]
        early += reader.push(text[at : at + size])
        at, turn = at + size, turn + 1
    if not sizes:
        reader.push(text)
    solution = reader.close("stop")
    assert early == solution.calls[: len(early)]
    return solution


def every(calls: list[Any]) -> Iterator[Any]:
    """The calls, and those of their bodies."""
    for call in calls:
        yield call
        yield from every(call.get("_body", []))


def refusals(solution: Any) -> list[str]:
    return [call["_syntax"] for call in solution.calls if "_syntax" in call]


def kinds(solution: Solution) -> Iterator[str]:
    for call in every(solution.calls):
        engine = call["_tool"] in ("_for", "_while", "_let")
        yield from [call["_tool"][1:]] if engine else ["each"] if "_each" in call else []
        yield from ["if"] if "_if" in call else []
        yield from ["expr"] if "_expr" in json.dumps(call) else []
    yield from ["output"] if solution.output is not None else []


@pytest.mark.parametrize("program", NAMED)
def test_r16_4_a_program_is_a_plan_or_is_refused_in_a_line_that_teaches(program: Program) -> None:
    solution = read(program.text, program.domain)
    assert solution.problem is None
    if program.expected.startswith("refused: "):
        first = refusals(solution)[0]
        assert program.expected.removeprefix("refused: ") in first
        _place, message = re.fullmatch(r"(line \d+, column \d+): (.*)\. The line: .*", first).groups()  # type: ignore[union-attr]
        assert len(message) < 500
        assert "\n" not in message
        return
    assert refusals(solution) == []
    count, *expected = program.expected.split()
    assert len(list(every(solution.calls))) >= int(count)
    assert set(expected) <= set(kinds(solution))


@pytest.mark.parametrize(
    "under",
    ["    if h.cpu > 50:\n        page(team=team, text=h.name)", "    page(team=team, text=h.name, _if=h.cpu > 50)"],
)
def test_r16_4_a_name_may_be_read_under_the_condition_that_assigns_it(under: str) -> None:
    text = "team = 'dev'\nfor h in list_hosts():\n    if h.cpu > 50:\n        team = 'oncall'\n"
    assert refusals(read(text + under, "ops")) == []
    assert refusals(read(text + under.replace("> 50", "> 60"), "ops")) != []


@pytest.mark.parametrize("program", NAMED)
def test_r16_4_what_was_read_is_a_plan_without_a_mistake(program: Program) -> None:
    tools = TOOLS[program.domain]
    definitions = {name: {"name": name, "properties": {key: {} for key in names}} for name, names in tools.items()}
    plan = Plan(1, tools=resolve_tools(list(tools), definitions), state=State(), data={"input": INPUT})
    solution = read(program.text, program.domain)
    for call in solution.calls:
        plan.add(call)
    plan.close()
    wrong = {
        call.id: call.state.error.message for call in plan.calls if call.state.error and "_syntax" not in call.spec.raw
    }
    if not refusals(solution):
        assert wrong == {}


def test_the_script_in_the_docs_is_read() -> None:
    (script,) = re.findall(r"```text\n(.*?)```", DOCS.read_text(), re.DOTALL)
    reader = ScriptReader(ReaderVocabulary())
    reader.push(script)
    assert refusals(reader.close("stop")) == []


def test_the_share_of_programs_that_is_read_is_as_the_docs_say() -> None:
    good = sum(not refusals(read(program.text, program.domain)) for program in PROGRAMS)
    assert len(PROGRAMS) >= 300
    assert f"{good} of {len(PROGRAMS)}" in DOCS.read_text()
    assert good / len(PROGRAMS) > 0.8


@pytest.mark.parametrize("program", NAMED)
def test_what_was_read_is_written_and_read_again_as_the_same(program: Program) -> None:
    calls = [call for call in read(program.text, program.domain).calls if "_syntax" not in call]
    again = read("\n".join(write_calls(calls, kinds=["input"])), program.domain)
    assert refusals(again) == []
    assert [bare(call) for call in again.calls] == [bare(call) for call in calls]


def bare(value: Any, formula: bool = False) -> Any:
    """A call with its formulas written in one way."""
    if isinstance(value, dict):
        return {key: bare(each, key in ("_if", "_expr", "_while")) for key, each in value.items()}
    if isinstance(value, list):
        return [bare(each) for each in value]
    return ast.unparse(ast.parse(value, mode="eval")) if formula else value


@given(program=st.sampled_from(PROGRAMS), data=st.data())
def test_no_program_and_no_part_of_one_is_more_than_wrong(program: Program, data: st.DataObject) -> None:
    text = program.text
    kind = data.draw(st.sampled_from(["cut", "dropped", "doubled", "dedented", "sign"]))
    at = data.draw(st.integers(0, len(text) - 1))
    lines = text.splitlines(keepends=True)
    line = data.draw(st.integers(0, len(lines) - 1))
    if kind == "cut":
        text = text[:at]
    elif kind == "dropped":
        text = "".join(lines[:line] + lines[line + 1 :])
    elif kind == "doubled":
        text = "".join(lines[: line + 1] + lines[line:])
    elif kind == "dedented":
        text = "".join([*lines[:line], lines[line].lstrip(), *lines[line + 1 :]])
    else:
        text = text[:at] + data.draw(st.sampled_from(list("()[]{}:\"'\\=#.\n\t†"))) + text[at + 1 :]
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    whole = read(text, program.domain)
    assert all(re.match(r"line \d+, column \d+: .", wrong) for wrong in refusals(whole))
    pieces = read(text, program.domain, sizes)
    assert (pieces.calls, pieces.output, pieces.problem) == (whole.calls, whole.output, whole.problem)
