"""A run as Markdown, for the Web UI's current details (R12.8)."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from perdure.people.offers import Offer
from perdure.plan.calls import Call
from perdure.run.prompts import call_line
from perdure.run.running import Run
from perdure.run.tallies import RECENT
from perdure.values.limits.sizes import preview
from perdure.values.media import first_without_media

_MARKUP: Final = re.compile(r"[\\`*~\[<>|&]")
_STARTS: Final = re.compile(r"[\\`*~\[<]|(?<!\w)_|_(?!\w)")
"""What begins emphasis, code, a link or HTML within a line."""


def details(run: Run, run_id: str = "") -> str:
    """Where the run stands: its Requests, and its last calls with what each reads and writes. `run_id`: for the link to its page."""
    lines = [f"**{plain(run.agent.name)}**: {len(run.past.log)} Requests, {run.done} of {run.count} calls done"]
    if run.prepared.pages:
        lines[0] += f" · [its page]({run.prepared.pages.rstrip('/')}/runs/{_in_address(run_id)})"
    if run.past.log:
        last = run.past.log[-1]
        lines += ["", f"Request {last.number}: {plain(last.model)} ({plain(last.reason)}), {last.status}"]
    if run.wait is not None:
        lines += ["", f"**{plain(run.wait.text())} UTC**"]
    if waiting := run.desk.waiting:
        lines += [
            "",
            '**Waiting for a person.** Decide by a signal: `approve` with input `{"call": "…"}`, `reject`, …',
            "",
        ]
        lines += ["| call | what | parameters | why | since |", "|---|---|---|---|---|"]
        lines += [_waiting(offer) for offer in islice(waiting.values(), RECENT)]
        if len(waiting) > RECENT:
            lines += ["", f"{len(waiting) - RECENT} more wait."]
    if calls := run.last_calls():
        lines += ["", "| call | status | tool | parameters | writes |", "|---|---|---|---|---|", *map(_row, calls)]
        if run.count > len(calls):
            lines += ["", f"{run.count - len(calls)} earlier calls are not shown."]
        if notes := [note for call in calls if (note := _note(call))]:
            lines += ["", *notes]
    if run.output is not None:
        lines += ["", f"Output: {_code(preview(first_without_media(run.output, 300)[0], 300))}"]
    return "\n".join(lines)


def _in_address(id: str) -> str:
    """Percent-encoded, but for what every address may have."""
    return re.sub(r"[^A-Za-z0-9/._~-]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), id)


def _row(call: Call) -> str:
    # A narrow panel: the status first, and no column for what it reads, which its parameters say.
    return (
        "| "
        + " | ".join(map(plain, (call.id, call.standing, call.tool_name, call_line(call.raw, 60), call.target)))
        + " |"
    )


def _waiting(offer: Offer) -> str:
    what, shown = ("the whole plan", "") if offer.call is None else (offer.call.tool_name, call_line(offer.call.params))
    cells = (offer.id, what, shown, offer.reason, offer.approval.requested_at[:19])
    return "| " + " | ".join(map(plain, cells)) + " |"


def _note(call: Call) -> str:
    """Why a call did not end well, as an item of a list."""
    note = call.reason or (call.error.message if call.error else "")
    return f"- {call.id} {plain(note[:200])}" if note else ""


def plain(text: str) -> str:
    """The text as it is, whatever it looks like: no column, link, picture or markup of its own."""
    return _MARKUP.sub(r"\\\g<0>", text).replace("\n", " ").replace("\r", " ")


def summary(text: str) -> str:
    """A line that a list of Temporal's shows as it is, up to 200 characters: a summary is Markdown there."""
    shown = _STARTS.sub(r"\\\g<0>", " ".join(text[:200].split()))[:200]
    return shown[:-1] if (len(shown) - len(shown.rstrip("\\"))) % 2 else shown


def _code(text: str) -> str:
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks}{text}{ticks}" if len(ticks) == 1 else f"{ticks} {text} {ticks}"
