"""Views of a session: its summary in the Web UI, and the fate of a message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from perdure.runs.views import escape_markdown
from perdure.sessions.entries import DeliveryEntry, Entry, MessageEntry, ReplyEntry, RunEntry
from perdure.sessions.message_queue import MessageQueue, QueueState
from perdure.sessions.transcript import Transcript
from perdure.sessions.wire import Fate

_NEWEST: Final = 10


def session_markdown(
    key: str, agent: str, message_queue: QueueState, running: str | None, entries: Sequence[Entry]
) -> str:
    """Return the session as Markdown. `running`: the id of the active run."""
    lines = [f"**{escape_markdown(key)}**, answered by {escape_markdown(agent)}", ""]
    run = message_queue.running
    if run is None:
        lines.append("Nothing runs." if not message_queue.queue else "The session collects messages.")
    else:
        how = (
            f", ending: {run.ending}" if run.ending else "" if run.begun else ", which waits for a worker with capacity"
        )
        lines.append(f"Runs: {escape_markdown(running or '')}{escape_markdown(how)}")
    if message_queue.queue:
        lines += ["", "| waits | sender | mode | message |", "|---|---|---|---|"]
        lines += [_row((each.message_id, each.sender, each.mode, each.text)) for each in message_queue.queue]
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
    return "| " + " | ".join(escape_markdown(cell[:200]) for cell in cells) + " |"


def find_fate(message_queue: MessageQueue, transcript: Transcript, what: str, sender: str = "") -> Fate:
    """Return the fate of a message, or of a run of this session. Raise `MessageRefusedError` as `MessageQueue.resolve`
    does.
    """
    state, number = message_queue.state, message_queue.number_of(what)
    if number is None:
        key = message_queue.resolve(what, sender)
        if key is None:
            return Fate()
        known = state.known[key]
        if known.withdrawn:
            return Fate(known=True, state="withdrawn", status="error", error="it was withdrawn")
        number = known.number
        if number is None:
            queued = any(each.key == key for each in state.queue)
            return Fate(known=True, state="queued" if queued else "ended", status=None if queued else "ok")
        message = transcript.message(key)
        if message is not None and message.why is not None:
            return Fate(known=True, state="ended", status="error", error=message.why)
    running = state.running
    found = Fate(known=number <= state.number, run_id=message_queue.run_id(number))
    if running is not None:
        found.under_way = message_queue.run_id(running.number) if running.begun else None
        if running.number == number:
            return found.model_copy(update={"state": "running" if running.begun else "queued"})
    if any(each.number == number for each in state.queue):
        return found
    found = _ended(transcript, found)
    if found.status is None and found.error is None:
        found.error = _never_began(state, transcript, number)
        found.status = None if found.error is None else "error"
    return found


def _never_began(state: QueueState, transcript: Transcript, number: int) -> str | None:
    """Return the reason why a run without an entry never began; `None` if its messages, and its entry, are archived."""
    for key, known in state.known.items():
        if known.number == number:
            message = transcript.message(key)
            return "its messages were withdrawn" if known.withdrawn or message is None else message.why
    return None


def _ended(transcript: Transcript, fate: Fate) -> Fate:
    fate.state = "ended"
    for entry in reversed(transcript.entries):
        if isinstance(entry, ReplyEntry) and entry.run_id == fate.run_id:
            fate.reply = entry.text
            fate.error = entry.why
        elif isinstance(entry, RunEntry) and entry.run_id == fate.run_id:
            fate.status = "ok" if entry.status == "completed" else "error"
            fate.started_at, fate.ended_at = entry.started_at, entry.at
            break
    return fate
