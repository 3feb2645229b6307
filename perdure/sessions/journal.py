"""Events of a session: one method for each thing that happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perdure.runs.event_journal import EventJournal
from perdure.runs.routes import Delivered
from perdure.runs.wire import RunResult
from perdure.sessions.entries import CompactionEntry
from perdure.sessions.message_queue import ActiveRun, Queued
from perdure.sessions.replies import ReplyDelivery
from perdure.sessions.wire import Receipt


class SessionJournal:
    """The session's own journal. A run's journal holds its events; the session reports only its start and its end."""

    def __init__(self, events: EventJournal) -> None:
        self.events = events

    def began(self, agent: str, at: str) -> None:
        """Note that the session exists, and that this agent answers in it."""
        self.events.note("lifecycle", "start", at, agent=agent)

    def was_reset(self, run_id: str | None, at: str) -> None:
        """Note that Temporal has reset the session, which continues with this run, if any."""
        self.events.reset(at, run_id)

    def ended(self, at: str, status: str) -> None:
        """Note that the session was `deleted`, or its workflow `cancelled`."""
        self.events.note("lifecycle", "end", at, status=status)
        self.events.ended = True

    def hooks(self, now: Callable[[], str]) -> Callable[[str, str, str, str, str], None]:
        """Return a function that notes a hook's refusal, or an ignored failure (R10.17)."""

        def note(phase: str, event: str, hook: str, call: str, reason: str) -> None:
            self.events.note("hook", phase, now(), event=event, hook=hook, call=call or None, reason=reason)

        return note

    def accepted(self, queued: Queued, receipt: Receipt) -> None:
        """Note that a message or command was accepted; `/stop` takes effect at once."""
        at = receipt.accepted_at
        self.events.note(
            "message",
            "accepted",
            at,
            messageId=queued.message_id,
            sender=queued.sender,
            mode=None if queued.number is None else queued.mode,
            text=queued.text,
            done=receipt.done,
            position=receipt.position,
            runId=receipt.run_id,
        )
        if receipt.done == "stopped":
            self.carried_out(queued, at)

    def carried_out(self, command: Queued, at: str) -> None:
        """Note that a command is executed."""
        self.events.note("message", "taken", at, messageId=command.message_id, command=command.text)

    def withdrawn(self, message_ids: Iterable[str], reason: str, at: str) -> None:
        """Note that these messages were withdrawn: no run takes them."""
        for message_id in message_ids:
            self.events.note("message", "withdrawn", at, messageId=message_id, reason=reason)

    def run_began(self, running: ActiveRun, run_id: str, agent: str, at: str) -> None:
        """Note that a run begins, with its messages."""
        self.events.note("lifecycle", "start", at, run_id, agent=agent, number=running.number)
        for message in running.messages:
            self.events.note("message", "taken", at, run_id, messageId=message.message_id, runId=run_id, request=1)

    def run_ended(self, running: ActiveRun, run_id: str, result: RunResult, why: str | None, at: str) -> None:
        """Note a run's end, even if the run could not note it itself; `why`: the reason for no output."""
        well = result.status == "completed"
        self.events.note(
            "lifecycle",
            "end" if well else "error",
            at,
            run_id,
            status=result.status,
            stopReason=result.stop_reason,
            output=result.output if well else None,
            error=why,
            number=running.number,
        )

    def delivered(self, delivery: ReplyDelivery, became: Delivered, at: str) -> None:
        """Note the outcome of a reply's delivery."""
        self.events.note(
            "reply",
            "delivery",
            at,
            delivery.run_id,
            key=delivery.key,
            kind=delivery.kind,
            route=delivery.route,
            status=became.status,
            reason=became.why,
        )

    def replied(self, run_id: str, text: str | None, why: str | None, at: str) -> None:
        """Note the run's reply; `why`: the reason for none."""
        self.events.note("reply", "end", at, run_id, text=text, reason=why)

    def compacts(self, why: str, before: int, at: str) -> None:
        """Note that a summary of `before` tokens is being written."""
        self.events.note("compaction", "start", at, reason=why, before=before)

    def compacted(self, why: str, before: int, entry: CompactionEntry | None, at: str) -> None:
        """Note the end of a compaction; `None`: it would not have saved enough."""
        self.events.note(
            "compaction",
            "end",
            at,
            reason=why,
            before=before,
            after=None if entry is None else entry.after,
            kind=None if entry is None else entry.kind,
            problem=None if entry is None else entry.problem,
        )
