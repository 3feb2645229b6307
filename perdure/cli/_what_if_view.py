"""The report of `perdure what-if`, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from perdure.errors import clip
from perdure.runs.what_if import CallNote, RunReport, WhatIfReport

_LINES = 20
"""Lines of differences of one run that are printed; `--json` has all."""
_REASON = 160


def print_what_if(console: Console, report: WhatIfReport, *, show_all: bool = False) -> None:
    """Print the runs that differ, a line for each difference, and the sums."""
    for run in report.runs:
        if run.problem is not None:
            console.print(Text.assemble((run.run_id, "bold"), f" was not played: {run.problem}"), soft_wrap=True)
        elif run.differs:
            console.print(Text(run.run_id, "bold"), soft_wrap=True)
            lines = [*run_lines(run)]
            for line, style in lines[:_LINES]:
                console.print(Text(f"  {line}", style), soft_wrap=True)
            if len(lines) > _LINES:
                console.print(Text(f"  and {len(lines) - _LINES:,} lines more: --json", "dim"))
        elif show_all:
            console.print(Text.assemble((run.run_id, "bold"), " is the same"), soft_wrap=True)
    for line in report.total_lines():
        console.print(Text(line), soft_wrap=True)


def run_lines(run: RunReport) -> Iterator[tuple[str, str]]:
    """Yield what differs in a run, each with its style."""
    noted = set()
    for words, style, notes in (
        ("asks about", "yellow", run.approvals_added),
        ("asks no more about", "green", run.approvals_removed),
        ("refuses", "red", run.refused),
        ("refuses no more", "green", run.allowed),
    ):
        for note in notes:
            noted.add(note.call)
            yield f"{words} {_title(note)}: {clip(note.reason, _REASON)}", style
    for line in run.differences:
        # what is asked about is named above: its line would only repeat it
        if not (line[2:].partition(" ")[0] in noted and line.endswith(("done", "done, asked"))):
            yield line, "red" if line.startswith("-") else "green"
    if run.unknown_from is not None and run.unknown_from <= run.requests:
        yield f"from Request {run.unknown_from} on unknown: {run.unknown_calls:,} calls", "dim"
    elif run.unknown_from is not None or run.unknown_calls:
        yield f"the rest is unknown: {run.unknown_calls:,} calls", "dim"


def _title(note: CallNote) -> str:
    return f"{note.call} {note.tool}" if note.tool else f"the plan of Request {note.call}"
