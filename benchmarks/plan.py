"""What planning costs: building, checking and scheduling a plan of n calls, in CPU seconds (no server, no model)."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from perdure.models.dialects.common import DialectRequest
from perdure.models.dialects.registry import DIALECTS
from perdure.plan import Plan, Returned
from perdure.tools.tool import parse_tool
from perdure.values.state import State

SIZES = (10, 100, 1000, 5000)
TOOL = parse_tool(
    {"name": "t", "properties": {"x": {}, "y": {"type": ["integer", "string"]}}, "_activity": "t"}, activities=["t"]
)


def chain(n: int) -> list[dict[str, Any]]:
    """Each call reads the one before it."""
    return [{"_tool": "t", "x": f"†state.s{i - 1}" if i else 0, "_outputPath": f"†state.s{i}"} for i in range(n)]


def wide(n: int) -> list[dict[str, Any]]:
    """Calls that read nothing."""
    return [{"_tool": "t", "x": i, "_outputPath": f"†state.s{i}"} for i in range(n)]


def tangled(n: int) -> list[dict[str, Any]]:
    """Each call reads two earlier ones, one of them inside a longer text; the list is shuffled."""
    chance = random.Random(n)
    calls: list[dict[str, Any]] = []
    for i in range(n):
        call: dict[str, Any] = {"_tool": "t", "x": i, "_outputPath": f"†state.s{i}"}
        if i > 1:
            call |= {"x": f"†state.s{chance.randrange(i)}", "y": f"text {{†state.s{chance.randrange(i)}}}"}
        calls.append(call)
    chance.shuffle(calls)
    return calls


def play(calls: list[dict[str, Any]]) -> float:
    """CPU seconds from the first call's arrival to the last one's end."""
    start = time.process_time()
    plan, tasks = Plan(1, tools={"t": TOOL}, state=State(), max_calls=len(calls)), itertools.count(1)
    plan.checks.begin(next(tasks))
    for raw in calls:
        plan.add(raw)
    plan.close()
    while (ready := plan.take_ready()) or plan.held_back:
        for call in ready:
            plan.end(call, Returned(1))
        plan.checks.begin(next(tasks))
        plan.go_on()
    seconds = time.process_time() - start
    assert plan.settled
    assert plan.done == len(calls)
    return seconds


def compose_table() -> str:
    """What a tool set costs before a Request can be sent, per dialect: schema, strict schema, and the text of the prompt."""
    lines = ["| dialect | tools | parameters, CPU ms | prompt, CPU ms | prompt, characters |", "|---|--:|--:|--:|--:|"]
    names = [f"tool_{number}" for number in range(200)]
    properties = {f"p{n}": {"type": "string", "description": "what it is"} for n in range(5)}
    tools = {
        name: parse_tool({"name": name, "description": "Does it.", "properties": properties}, activities=names)
        for name in names
    }
    ask = DialectRequest(
        tools=tools, output={"type": "object", "properties": {"ok": {"type": "boolean"}}}, max_calls=500
    )
    for name, dialect in DIALECTS.items():
        parameters = statistics.median(_timed(dialect.parameters, ask) for _ in range(5))
        prompt = statistics.median(_timed(dialect.tools_text, ask) for _ in range(5))
        size = len(dialect.how) + len(dialect.tools_text(ask))
        lines.append(f"| {name} | {len(tools)} | {parameters * 1e3:.1f} | {prompt * 1e3:.1f} | {size} |")
    return "\n".join(lines)


def _timed(work: Callable[[DialectRequest], object], ask: DialectRequest) -> float:
    start = time.process_time()
    work(ask)
    return time.process_time() - start


def table() -> str:
    """Median of five, as Markdown; the last column is the cost per call against n log n at n = 100."""
    lines = ["| plan | calls | CPU ms | µs per call | of n log n |", "|---|--:|--:|--:|--:|"]
    shapes: dict[str, Callable[[int], list[dict[str, Any]]]] = {"chain": chain, "wide": wide, "tangled": tangled}
    for name, shape in shapes.items():
        cost = {n: statistics.median(play(shape(n)) for _ in range(5)) for n in SIZES}
        unit = cost[100] / (100 * math.log2(100))
        for n, seconds in cost.items():
            ratio = seconds / (n * math.log2(n)) / unit
            lines.append(f"| {name} | {n} | {seconds * 1e3:.1f} | {seconds / n * 1e6:.0f} | {ratio:.2f} |")
    return "\n".join(lines)
