"""What has become of a message, or of a run of a session (R10.1)."""

from __future__ import annotations

from perdure.sessions.entries import ReplyEntry, RunEntry
from perdure.sessions.lanes.lane import Lane
from perdure.sessions.transcript import Transcript
from perdure.sessions.wire import Fate


def fate(lane: Lane, transcript: Transcript, what: str, sender: str = "") -> Fate:
    """Return what has become of a message, or of a run of this session. Raises `MessageRefusedError` as `Lane.resolve` does."""
    state, number = lane.state, lane.number_of(what)
    if number is None:
        key = lane.resolve(what, sender)
        if key is None:
            return Fate()
        known = state.known[key]
        if known.withdrawn:
            return Fate(known=True, state="withdrawn", status="error", error="it was taken back")
        number = known.number
        if number is None:
            queued = any(each.key == key for each in state.queue)
            return Fate(known=True, state="queued" if queued else "ended", status=None if queued else "ok")
        message = transcript.message(key)
        if message is not None and message.why is not None:
            return Fate(known=True, state="ended", status="error", error=message.why)
    running = state.running
    found = Fate(known=number <= state.number, run_id=lane.run_id(number))
    if running is not None:
        found.under_way = lane.run_id(running.number) if running.begun else None
        if running.number == number:
            return found.model_copy(update={"state": "running" if running.begun else "queued"})
    if any(each.number == number for each in state.queue):
        return found
    return _ended(transcript, found)


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
