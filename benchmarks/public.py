"""Gold sequences of public datasets (NESTFUL, NesTools, Seal-Tools, BFCL) as plans, checked and run in every dialect."""

from __future__ import annotations

import ast
import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks import tau
from benchmarks.datasets import bfcl, repository
from perdure import Agent, ToolContext
from perdure.testing import check, gold_plan, run_locally
from perdure.testing.scripted_model import ChatRequest, write_script
from perdure.tools.decorator import ToolFunction, open_tool
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.references import Path as Fields
from perdure.values.templates import parse_template

_Sequence: TypeAlias = tuple[list[Any], list[Any]]
"""The calls of a task, and the dataset's definitions of their tools."""
_DIALECTS: Final = ("solution", "tools", "script")
_RUNS: Final = 10
"""Sequences of a file that run: every n-th valid one."""
_AT_ONCE: Final = 4
_SECONDS: Final = 600.0
"""Real seconds for a run, on a loaded machine."""
_CONTEXT: Final = "†context"
_BFCL: Final = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_multiple", "live_parallel")


@dataclass
class _Figures:
    """What became of the sequences of a file."""

    sequences: int = 0
    valid: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    """Reasons, without the names that only this sequence has."""
    plans: list[JsonObject] = field(default_factory=list[JsonObject])


def table() -> str:
    """Return the table of the datasets' sequences, and that of τ²-bench's tasks."""
    return f"{asyncio.run(_sequences_table())}\n\n{tau.table()}"


async def _sequences_table() -> str:
    lines = [
        "| file | sequences | valid: solution | tools | script | refused | runs that returned all: solution | tools | script |",
        "|---|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    for name, sequences in _files():
        found = _check(sequences)
        every = max(1, len(found.plans) // _RUNS)
        plans = found.plans[::every][:_RUNS]
        returned = [await _returned(name, dialect, plans) for dialect in _DIALECTS]
        valid = " | ".join(f"{found.valid[each]:,}" for each in _DIALECTS)
        why = "; ".join(f"{count}: {words}" for words, count in found.refused.most_common()) or "–"
        runs = " | ".join(f"{each} of {len(plans)}" for each in returned)
        lines.append(f"| {name} | {found.sequences:,} | {valid} | {why} | {runs} |")
    return "\n".join(lines)


def _check(sequences: Iterator[_Sequence]) -> _Figures:
    """Read each sequence as a plan, and check it in each dialect."""
    found = _Figures()
    for calls, tools in sequences:
        found.sequences += 1
        try:
            plan = gold_plan(calls, tools=tools)
        except ValueError as error:
            found.refused[str(error).rpartition(": ")[2].rpartition(" ")[0]] += 1
            continue
        agent, problems = _agent("gold", plan), set[str]()
        for dialect in _DIALECTS:
            checked = check(agent, _written(plan, dialect))
            found.valid[dialect] += checked.ok
            problems |= {each.partition(": ")[2] for each in checked.problems[:1]}
        found.refused.update(problems)
        if not problems:
            found.plans.append(plan)
    return found


def _files() -> Iterator[tuple[str, Iterator[_Sequence]]]:
    nestful = repository("NESTFUL") / "data"
    for path in sorted(nestful.rglob("*-data.json")):
        yield f"NESTFUL {path.stem.removesuffix('-data')}", ((row["output"], []) for row in _rows(path))
    nestools = repository("NesTools") / "data" / "test_data.jsonl"
    yield "NesTools test", ((row["call"], row["api"]) for row in _rows(nestools))
    seal = repository("Seal-Tools") / "Seal-Tools_Dataset"
    tools = {row["api_name"]: row for row in _rows(seal / "tool.jsonl")}
    for part in ("in", "out"):
        rows = _rows(seal / f"test_{part}_domain.jsonl")
        yield (
            f"Seal-Tools test {part} domain",
            ((row["calling"], [tools[each["api"]] for each in row["calling"] if each["api"] in tools]) for row in rows),
        )
    data = bfcl()
    for part in _BFCL:
        rows = _rows(data / "possible_answer" / f"BFCL_v4_{part}.json")
        yield f"BFCL {part}", (([_first_answer(each) for each in row["ground_truth"]], []) for row in rows)
    names = {
        tool["name"]: list(tool["parameters"]["properties"])
        for path in sorted((data / "multi_turn_func_doc").glob("*.json"))
        for tool in _rows(path)
    }
    turns = (
        turn
        for row in _rows(data / "possible_answer" / "BFCL_v4_multi_turn_base.json")
        for turn in row["ground_truth"]
        if turn
    )
    yield "BFCL multi_turn_base, each turn", (([_expression(each, names) for each in turn], []) for turn in turns)


def _rows(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        found: list[Any] = json.loads(text)
        return found
    return [json.loads(each) for each in text.splitlines() if each]


def _first_answer(call: dict[str, Any]) -> JsonObject:
    """Return a call of BFCL's with the first of the values that each parameter may have."""
    ((name, params),) = call.items()
    return {"name": name, "arguments": _first_values(params)}


def _first_values(params: dict[str, Any]) -> JsonObject:
    return {key: _first(allowed[0]) for key, allowed in params.items() if allowed[0] != ""}


def _first(value: Any) -> Json:
    if isinstance(value, dict):
        return _first_values(value) if all(isinstance(each, list) and each for each in value.values()) else value
    found: Json = [_first(each) for each in value] if isinstance(value, list) else value
    return found


def _expression(text: str, names: dict[str, list[str]]) -> JsonObject:
    """Return a call that is written in Python. `names`: the parameters of each function, in order."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise SystemExit(f"no call: {text}")
    name = call.func.id
    params = dict(zip(names[name], map(ast.literal_eval, call.args), strict=False))
    return {"name": name, "arguments": params | {each.arg: ast.literal_eval(each.value) for each in call.keywords}}


def _agent(name: str, plan: JsonObject) -> Agent[Any]:
    names = dict.fromkeys(str(call["_tool"]) for call in plan["calls"])
    tools = [{"name": name, "additionalProperties": True, "_activity": name} for name in names]
    return Agent(name, instructions="Do it.", tools=tools)


def _written(plan: JsonObject, dialect: str) -> Any:
    """Return the plan as a model writes it in a dialect."""
    if dialect == "solution":
        return plan
    if dialect == "script":
        return write_script(plan)
    return [
        {
            "id": f"call-{number}",
            "type": "function",
            "function": {
                "name": call["_tool"],
                "arguments": dumps({key: each for key, each in call.items() if key != "_tool"}),
            },
        }
        for number, call in enumerate(plan["calls"])
    ]


async def _returned(name: str, dialect: Any, plans: list[JsonObject]) -> int:
    """Run the plans, with tools that return what the plans read. Return how many completed with all calls returned."""
    by_run: dict[str, JsonObject] = {}

    def tool(name: str) -> ToolFunction:
        async def call(**params: Any) -> Any:
            context: ToolContext = params.pop(_CONTEXT)
            return _example(by_run[context.run_id], name)

        return open_tool({"name": name, "inputSchema": {"type": "object"}}, call, context_parameter=_CONTEXT)

    def answer(request: ChatRequest) -> Any:
        plan = by_run[request.text.rpartition("TASK <")[2].partition(">")[0]]
        return write_script(plan) if dialect == "script" else plan

    names = dict.fromkeys(str(call["_tool"]) for plan in plans for call in plan["calls"])
    functions = {name: tool(name) for name in names}
    turns = asyncio.Semaphore(_AT_ONCE)
    agent = Agent("gold", instructions="Do it.", tools=list(functions.values()), dialect=dialect)
    async with run_locally(agent, model=answer, timeout=_SECONDS) as local:

        async def play(number: int, plan: JsonObject) -> bool:
            run_id = f"gold-{number}"
            by_run[run_id] = plan
            used = [functions[each] for each in dict.fromkeys(str(call["_tool"]) for call in plan["calls"])]
            one = Agent("gold", instructions="Do it.", tools=used, dialect=dialect)
            async with turns:
                run = await local.start({"request": f"TASK <{run_id}>"}, agent=one, id=run_id)
                view = await run.wait()
            right = view.status == "completed" and [call.status for call in view.calls] == ["done"] * len(plan["calls"])
            if not right:
                print(
                    f"{name}, {dialect}, {run_id}: {view.status}, {view.error}, {[call.error for call in view.calls]}"
                )
            return right

        return sum(await asyncio.gather(*(play(number, plan) for number, plan in enumerate(plans))))


def _example(plan: JsonObject, tool: str) -> Json:
    """Return a result with every field that the plan reads of this tool's results; a text where it reads no field."""
    labels = {str(call["_outputPath"]).removeprefix("†state.") for call in plan["calls"] if call["_tool"] == tool}
    read = [
        each.path[1:]
        for each in parse_template([plan["calls"], plan["output"]])[0].references()
        if each.kind == "state" and str(each.path[0]) in labels
    ]
    return _nested([path for path in read if path])


def _nested(paths: list[Fields]) -> Json:
    if not paths:
        return "x"
    inner = {first: _nested([path[1:] for path in paths if path[0] == first and path[1:]]) for first, *_ in paths}
    numbers = [each for each in inner if isinstance(each, int)]
    if len(numbers) == len(inner):
        return [inner.get(number, "x") for number in range(max(numbers) + 1)]
    return {str(key): value for key, value in inner.items()}
