"""Gold sequences of public datasets (NESTFUL, NesTools, Seal-Tools) as plans, checked in every dialect.

The datasets are not here. `PERDURE_PUBLIC` names a folder with their files of JSON, or of a JSON object a line.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import tau
from perdure import Agent
from perdure.testing import check, gold_plan
from perdure.testing.scripted_model import write_script
from perdure.values.json import JsonObject, dumps

FOLDER: Final = "PERDURE_PUBLIC"
_CALLS: Final = ("output", "call", "calls", "gold", "answer")
"""Keys under which a dataset has the calls of a task."""


def table() -> str:
    """Return the table of the datasets, and that of τ²-bench: what of them is there."""
    if not os.environ.get(FOLDER):
        return tau.table()
    return f"{_sequences_table()}\n\n{tau.table()}"


def _sequences_table() -> str:
    """Return the sequences of each file, the valid plans by dialect, and why the others were refused."""
    folder = os.environ.get(FOLDER)
    files = sorted(Path(folder).rglob("*.json*")) if folder else []
    if not files:
        raise SystemExit(f"{FOLDER} must name a folder with the files of NESTFUL, NesTools or Seal-Tools")
    lines = ["| file | sequences | solution | tools | script | refused |", "|---|--:|--:|--:|--:|---|"]
    for path in files:
        valid, why, count = Counter[str](), Counter[str](), 0
        for calls, tools in _sequences(path):
            count += 1
            try:
                plan = gold_plan(calls, tools=tools)
            except ValueError as error:
                why[f"{count - 1}: {error}"] += 1
                continue
            agent = _agent(plan)
            for dialect, written in _dialects(plan).items():
                found = check(agent, written)
                valid[dialect] += found.ok
                if not found.ok:
                    why[f"{count - 1}, {dialect}: {found.problems[0]}"] += 1
        if count:
            shown = "; ".join(why) or "–"
            figures = " | ".join(f"{valid[each]:,}" for each in ("solution", "tools", "script"))
            lines.append(f"| {path.stem} | {count:,} | {figures} | {shown} |")
    return "\n".join(lines)


def _sequences(path: Path) -> Iterator[tuple[list[Any], list[Any]]]:
    text = path.read_text(encoding="utf-8")
    rows = (
        json.loads(text) if text.lstrip().startswith("[") else [json.loads(each) for each in text.splitlines() if each]
    )
    for row in rows:
        key = next((each for each in _CALLS if each in row), None) if isinstance(row, dict) else None
        if key is None:
            continue
        calls = json.loads(row[key]) if isinstance(row[key], str) else row[key]
        yield calls, row.get("api") or []


def _agent(plan: JsonObject) -> Agent[Any]:
    names = dict.fromkeys(str(call["_tool"]) for call in plan["calls"])
    tools = [{"name": name, "additionalProperties": True, "_activity": name} for name in names]
    return Agent("gold", instructions="Do it.", tools=tools)


def _dialects(plan: JsonObject) -> dict[str, Any]:
    native = [
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
    return {"solution": plan, "tools": native, "script": write_script(plan)}
