"""The cost of prompts: their parts, and ten turns with one tool against the hand-written loop. No server and no model."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from perdure import tool
from perdure.models.dialects.registry import DIALECTS
from perdure.models.requests import RequestContext, RequestResult
from perdure.plan import Returned
from perdure.runs.agent import Context, Models, auto, parse_agent
from perdure.runs.prompt_parts import TOKEN
from perdure.runs.run import RunState
from perdure.runs.wire import PreparedWorker
from perdure.tools.decorator import tool_function
from perdure.tools.tool import parse_tool
from perdure.values.json import JsonObject, dumps

TURNS: Final = 10
SYSTEM: Final = "You are a careful agent. Use the lookup tool for every key you need, then answer."
TASK: Final = "Look up all the keys and report."
NOTE: Final = "a parameter of ordinary length a para"
DOCUMENT: JsonObject = {
    "name": "bench",
    "context": [{"type": "system", "text": SYSTEM}, {"type": "tool", "tool": "lookup"}, {"type": "input"}],
    "schema": {"type": "string"},
}


@tool(safe=True)
async def lookup(key: str, sleep_ms: int, note: str) -> str:
    """Look up one key and report on it."""
    del key, sleep_ms, note
    raise NotImplementedError


WITH_USE: Final[JsonObject] = {
    "_safe": False,
    "_output": {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": False},
}
"""A tool that changes something and returns an object: the prompt teaches `_after` and `_outputMethod`."""


def contexts(dialect: str, more: JsonObject | None = None) -> list[RequestContext]:
    """Return the Requests of a run that makes one call a turn, and then answers. `more`: of the tool's definition."""
    agent = parse_agent({**DOCUMENT, "config": {"dialect": dialect}})
    function = tool_function(lookup)
    assert function is not None
    offered = parse_tool(function.definition | (more or {}), activities=["lookup"])
    prepared = PreparedWorker(tools=[offered], models=Models())
    run = RunState(agent, Context(agent, {"request": TASK}, has_input=True), prepared)
    found = []
    for turn in range(TURNS + 1):
        run.begin_request(auto(run.situation()))
        found.append(run.request_context(run.progress.number))
        plan = run.open_plan(run.progress.number)
        # As in the comparison with peers: only `solution` writes the path of each result.
        kept = {"_outputPath": f"†state.k{turn:02}"} if dialect == "solution" else {}
        named = {"_id": f"call_{turn}"} if dialect == "tools" else {}  # the server's, as in the loop
        call: JsonObject = {"_tool": "lookup", **_arguments(turn), **kept, **named}
        plan.add(call)
        plan.close()
        for ready in plan.take_ready():
            plan.end(ready, Returned(_result(turn)))
        run.close_request(plan, RequestResult(calls=[call]))
    return found


def _arguments(turn: int) -> JsonObject:
    return {"key": f"k{turn:02}", "sleep_ms": 50, "note": NOTE}


def _result(turn: int) -> str:
    return f"RESULT-k{turn:02}: ok"


def loop_texts() -> list[list[Any]]:
    """Return the texts of the hand-written loop's requests for the same turns: messages and tools."""
    function = tool_function(lookup)
    assert function is not None
    parameters = {key: function.definition[key] for key in ("properties", "required")}
    about = {"name": "lookup", "description": "Look up one key and report on it."}
    tools = [{"type": "function", "function": {**about, "parameters": {"type": "object", **parameters}}}]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    found: list[list[Any]] = []
    for turn in range(TURNS + 1):
        found.append([list(messages), tools])
        called = {"name": "lookup", "arguments": dumps(_arguments(turn))}
        call = {"id": f"call_{turn}", "type": "function", "function": called}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": _result(turn)},
        ]
    return found


def perdure_texts(dialect: str, more: JsonObject | None = None) -> list[list[Any]]:
    """Return the texts of Perdure's requests: messages, and the parameters beside them."""
    return [[each.messages, *each.parameters.values()] for each in contexts(dialect, more)]


def characters(requests: list[list[Any]]) -> int:
    """Return the number of characters of all requests."""
    return sum(len(dumps(part)) for request in requests for part in request)


def _tokenizer() -> Callable[[str], int] | None:
    """Return a counter of tokens by `o200k_base`; `None` where its package is not installed."""
    try:
        encoding: Any = importlib.import_module("bpe_openai").get_encoding("o200k_base")
    except ImportError:
        return None
    return lambda text: len(encoding.encode(text))


def table() -> str:
    """Return a table of the tokens of ten turns, and of the parts of the first prompt."""
    count = _tokenizer()
    unit = "tokens (o200k_base)" if count else "tokens (not counted: the package bpe-openai is missing)"
    lines = [
        f"| {TURNS} turns of one call, and an answer | characters / {TOKEN} | of the loop | {unit} | of the loop |",
        "|---|--:|--:|--:|--:|",
    ]
    theirs = loop_texts()
    ours = {name: perdure_texts(name) for name in DIALECTS}
    ours |= {f"{name}, with `_after` and `_outputMethod`": perdure_texts(name, WITH_USE) for name in DIALECTS}
    for name, requests in {"loop": theirs, **ours}.items():
        share = characters(requests) / characters(theirs)
        counted = "– | –" if count is None else _counted(count, requests, theirs)
        lines.append(f"| {name} | {characters(requests) // TOKEN:,} | {share:.2f} | {counted} |")
    first = {name: {part.part: part.characters for part in contexts(name)[0].parts} for name in DIALECTS}
    names = list(dict.fromkeys(part for parts in first.values() for part in parts))
    lines += ["", f"| characters of the first prompt | {' | '.join(first)} |", f"|---{'|--:' * len(first)}|"]
    lines += [f"| {part} | {' | '.join(str(parts.get(part, 0)) for parts in first.values())} |" for part in names]
    long = {name: len(dialect.control) for name, dialect in DIALECTS.items()}
    lines.append(
        f"| control, where a list can occur or `config.control` is true | {' | '.join(map(str, long.values()))} |"
    )
    return "\n".join(lines)


def _counted(count: Callable[[str], int], requests: list[list[Any]], theirs: list[list[Any]]) -> str:
    ours, loop = (sum(count(dumps(part)) for request in each for part in request) for each in (requests, theirs))
    return f"{ours:,} | {ours / loop:.2f}"
