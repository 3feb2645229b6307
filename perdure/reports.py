"""A run as Markdown, for the Web UI's current details (R12.8)."""

from __future__ import annotations

from typing import Final

from perdure.calls import Call
from perdure.jsons import shorten
from perdure.prompts import call_line
from perdure.running import Run

_ROWS: Final = 40
"""Calls shown at most. The table is made again at every event, so its cost must not grow with the plan."""


def details(run: Run) -> str:
    """Where the run stands: its Requests, and its last calls with what each reads and writes."""
    lines = [f"**{run.agent.name}**: {len(run.log)} Requests, {run.done} of {run.count} calls done"]
    if run.log:
        last = run.log[-1]
        lines += ["", f"Request {last.number}: {last.model} ({last.reason}), {last.status}"]
    if run.count:
        lines += ["", "| call | tool | parameters | reads | writes | status |", "|---|---|---|---|---|---|"]
        lines += [_row(call) for call in run.last_calls(_ROWS)]
        if run.count > _ROWS:
            lines += ["", f"{run.count - _ROWS} earlier calls are not shown."]
    if run.output is not None:
        lines += ["", f"Output: `{shorten(run.output, 300)}`"]
    return "\n".join(lines)


def _row(call: Call) -> str:
    note = call.reason or (call.error.message if call.error else "")
    status = f"{call.status}: {note[:80]}" if note else call.status
    cells = [call.id, call.tool_name, call_line(call.raw, 60), ", ".join(call.reads[:5]), call.target, status]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
