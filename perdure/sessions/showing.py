"""A session as the Web UI shows it: whose it is, what runs, what waits, and the newest messages (R12.8)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from perdure.sessions.entries import DeliveryEntry, Entry, MessageEntry, ReplyEntry, RunEntry
from perdure.sessions.lanes.queued import LaneState

_NEWEST: Final = 10
_MARKUP: Final = re.compile(r"[\\`*~\[<>|&]")


def details(key: str, agent: str, lane: LaneState, running: str | None, entries: Sequence[Entry]) -> str:
    """Markdown. `running`: the id of the run under way."""
    lines = [f"**{_cell(key)}**, answered by {_cell(agent)}", ""]
    run = lane.running
    if run is None:
        lines.append("Nothing runs." if not lane.queue else "Messages are collected.")
    else:
        how = (
            f", being ended: {run.ending}"
            if run.ending
            else ""
            if run.begun
            else ", which waits for a worker to have room"
        )
        lines.append(f"Runs: {_cell(running or '')}{_cell(how)}")
    if lane.queue:
        lines += ["", "| waits | sender | mode | message |", "|---|---|---|---|"]
        lines += [_row((each.message_id, each.sender, each.mode, each.text)) for each in lane.queue]
    if entries:
        lines += ["", "| newest | who | what |", "|---|---|---|", *map(_entry, entries[-_NEWEST:])]
    return "\n".join(lines)


def _entry(entry: Entry) -> str:
    if isinstance(entry, MessageEntry):
        return _row((entry.type, entry.sender, entry.text))
    if isinstance(entry, RunEntry):
        return _row((entry.type, entry.run_id, f"{entry.status}{f': {entry.error}' if entry.error else ''}"))
    if isinstance(entry, ReplyEntry):
        return _row((entry.type, "", entry.text if entry.text is not None else entry.why or "nothing to say"))
    if isinstance(entry, DeliveryEntry):
        return _row((entry.type, entry.route, f"{entry.kind}: {entry.status}{f': {entry.why}' if entry.why else ''}"))
    return _row((entry.type, getattr(entry, "sender", ""), getattr(entry, "command", getattr(entry, "kind", ""))))


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_cell(cell[:200]) for cell in cells) + " |"


def _cell(text: str) -> str:
    """The text as it is, whatever it looks like."""
    return _MARKUP.sub(r"\\\g<0>", text).replace("\n", " ").replace("\r", " ")
