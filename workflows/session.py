"""The workflow of a session: one that accepts messages, runs one run at a time, and keeps the transcript."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.workflows.arguments import any_arguments, query_arguments, read_input
from perdure.workflows.claim_check import payloads_query
from perdure.workflows.session_driver import SessionDriver
from perdure.workflows.session_state import SessionState
from perdure.workflows.session_updates import SessionUpdates

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import WAITS, RunWaits
    from perdure.errors import MessageRefusedError, PerdureError, ProtocolError, RunError
    from perdure.runs.claim_check import read_payloads
    from perdure.runs.event_journal import EventJournal
    from perdure.runs.events import EVENTS_QUERY, EventsPage
    from perdure.runs.wire import REFUSED
    from perdure.sessions.agent_file import input_name
    from perdure.sessions.compaction import (
        ENTRIES_QUERY,
        HeldEntries,
    )
    from perdure.sessions.export import CARRIED_QUERY
    from perdure.sessions.status_webhooks import (
        SET_STATUS_WEBHOOK,
        STATUS_WEBHOOKS,
        StatusWebhook,
        StatusWebhookChange,
    )
    from perdure.sessions.wire import (
        COMPACT,
        DECIDE_IN_SESSION,
        DESCRIBE,
        END,
        ENDED,
        FATE,
        FORK_INPUT,
        REDELIVER,
        SEND,
        SESSION_WORKFLOW,
        SHOW,
        TURN,
        WITHDRAW,
        Description,
        Fate,
        Message,
        MessageWithdrawal,
        Redelivery,
        SessionDecision,
        SessionDeletion,
        SessionInfo,
        SessionInput,
        SessionView,
    )
    from perdure.values.json import Json, JsonObject, Sent
    from perdure.values.limits import KEPT_EVENTS


@workflow.defn(name=SESSION_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class SessionWorkflow:
    """A conversation that outlives its runs. `SessionDriver` has its life, `SessionUpdates` what it accepts.

    Handlers accept whatever anybody sends, and the parts judge it: a validator's refusal writes no history (R18.6).
    """

    @workflow.init
    def __init__(self, *arguments: Json) -> None:
        self._refusal: Exception | None = None
        """Problem of the input, which `run` raises: a handler may see a message before `run` begins."""
        self._session: SessionDriver | None = None
        try:
            argument = read_input(SessionInput, arguments)
            if argument.document:
                input_name(argument.document)
            self._session = SessionDriver(argument)
        except ApplicationError as error:
            self._refusal = error
        except MessageRefusedError as error:
            self._refusal = ApplicationError(str(error), type=REFUSED, non_retryable=True)
        except ProtocolError as error:
            self._refusal = RuntimeError(
                str(error)
            )  # of another version: its task fails until a worker is there that can go on

    @workflow.run
    async def run(self, *_: Json) -> None:
        """Keep the queue, for ever. The argument is one `SessionInput`."""
        if self._session is None:
            assert self._refusal is not None
            raise self._refusal
        await self._session.run()

    @property
    def _updates(self) -> SessionUpdates:
        if self._session is None:
            raise MessageRefusedError(ENDED)
        return SessionUpdates(self._session)

    @property
    def _open(self) -> SessionState:
        if self._session is None or self._session.ended:
            raise MessageRefusedError(ENDED)
        return self._session.kept

    @property
    def _readable(self) -> SessionDriver:
        if self._session is None:
            raise RunError("this session has no transcript: its input could not be read")
        return self._session

    # What people and programs send.

    @workflow.update(name=SEND, description='A message: {"messageId": "1", "sender": "ann", "text": "hello"}')
    @any_arguments
    async def send(self, message: Sent[Message]) -> JsonObject:
        """Accept a `Message`; return its receipt, the same for the same message (R10.1)."""
        return await self._updates.send(message)

    @send.validator
    @any_arguments
    def _check_message(self, message: Sent[Message]) -> None:
        self._updates.check_message(message)

    @workflow.update(name=WITHDRAW, description='Take a message back: {"messageId": "1", "sender": "ann"}')
    @any_arguments
    async def withdraw(self, withdrawal: Sent[MessageWithdrawal]) -> JsonObject:
        """Withdraw a message, until a Request holds it (R10.7). The argument is a `MessageWithdrawal`."""
        return await self._updates.withdraw(withdrawal)

    @withdraw.validator
    @any_arguments
    def _check_withdrawal(self, withdrawal: Sent[MessageWithdrawal]) -> None:
        self._updates.check_withdrawal(withdrawal)

    @workflow.update(
        name=DECIDE_IN_SESSION,
        description='A decision: {"sender": "ann", "decision": {"call": "1.0", "decision": "approve"}}',
    )
    @any_arguments
    async def decide(self, decision: Sent[SessionDecision]) -> JsonObject:
        """Decide with a `SessionDecision` of a sender with the right `approve`; return the run's answer, or its refusal
        (R10.9).
        """
        return await self._updates.decide(decision)

    @decide.validator
    @any_arguments
    def _check_decision(self, decision: Sent[SessionDecision]) -> None:
        self._updates.check_decision(decision)

    @workflow.update(name=COMPACT, description='Compact the conversation: {"sender": "ann", "rights": ["compact"]}')
    @any_arguments
    async def compact(self, wish: Sent[SessionDeletion]) -> JsonObject:
        """Compact: from now on a summary replaces all but the newest part (R10.11). Return the action in words."""
        return await self._updates.compact(wish)

    @compact.validator
    @any_arguments
    def _check_compact(self, wish: Sent[SessionDeletion]) -> None:
        self._updates.check_compact(wish)

    @workflow.update(name=REDELIVER, description='Deliver a reply again: {"delivery": "RUN/1", "sender": "ann"}')
    @any_arguments
    def redeliver(self, redelivery: Sent[Redelivery]) -> JsonObject:
        """Deliver a reply whose arrival is unknown once more, under its key (R24.2). The argument is a `Redelivery`."""
        return self._updates.redeliver(redelivery)

    @redeliver.validator
    @any_arguments
    def _check_redelivery(self, redelivery: Sent[Redelivery]) -> None:
        self._updates.check_redelivery(redelivery)

    @workflow.update(name=DESCRIBE, description='Metadata that is kept with it: {"metadata": {"topic": "shoes"}}')
    @any_arguments
    def describe(self, description: Sent[Description]) -> JsonObject:
        """Replace the session's metadata by a `Description`; return its `SessionInfo`."""
        return self._updates.describe(description)

    @describe.validator
    @any_arguments
    def _check_description(self, description: Sent[Description]) -> None:
        self._updates.check_description(description)

    @workflow.update(
        name=SET_STATUS_WEBHOOK,
        description='An address to inform: {"sender": "ann", "webhook": {"runId": "…", "url": "https://…"}}',
    )
    @any_arguments
    def set_status_webhook(self, change: Sent[StatusWebhookChange]) -> JsonObject:
        """Inform an address of a run from now on, or no more. The argument is a `StatusWebhookChange` (R21.4)."""
        return self._updates.set_status_webhook(change)

    @set_status_webhook.validator
    @any_arguments
    def _check_status_webhook(self, change: Sent[StatusWebhookChange]) -> None:
        self._updates.check_status_webhook(change)

    @workflow.update(name=END, description='End the session: {"sender": "ann", "rights": ["delete"]}')
    @any_arguments
    def end(self, deletion: Sent[SessionDeletion]) -> JsonObject:
        """Cancel the active run, and end the session. The argument is a `SessionDeletion`."""
        return self._updates.end(deletion)

    @end.validator
    @any_arguments
    def _check_end(self, deletion: Sent[SessionDeletion]) -> None:
        self._updates.check_end(deletion)

    # What the engine's own activities and runs send and ask.

    @workflow.signal(name=TURN, description="The engine's own: a worker has room for this run")
    @any_arguments
    def turn(self, run_id: Sent[str]) -> None:
        """Give a run its turn, where workers limit the number of active runs of sessions (R10.3)."""
        if self._session is not None:
            self._session.take_turn(run_id)

    @workflow.signal(name=WAITS, description="The engine's own: whether the run waits for a person")
    @any_arguments
    def run_waits(self, waits: Sent[RunWaits]) -> None:
        """Record the report of the session's run on whether it waits (R10.4)."""
        if self._session is not None:
            self._session.note_waits(waits)

    @workflow.signal(dynamic=True, description="Any other signal is ignored")
    def anything(self, _: str, __: Sequence[RawValue]) -> None:
        """Ignore a signal that is not the engine's. Its history is left behind when the session idles (R10.13)."""
        if self._session is not None:
            self._session.arrived()

    @payloads_query
    def payloads(self, kind: str, names: list[str]) -> JsonObject:
        """Return values that were too large to be sent, for their readers (R18.2)."""
        return read_payloads(lambda name: self._readable.payload(kind, name), names)

    @workflow.query(name=ENTRIES_QUERY, description="The entries behind a number, and where the older ones are")
    @query_arguments
    def at_hand(self, after: int) -> HeldEntries:
        """Return the entries at hand behind a place, as many as one answer holds, and where the older ones are."""
        return self._readable.transcripts.at_hand(after)

    # Views.

    @workflow.query(name=FORK_INPUT, description="The input of a fork of this session, without its transcript")
    @query_arguments
    def fork_input(self) -> SessionInput:
        """Return the input of a fork of this session, without its transcript (R10.20)."""
        return self._open.fork_input

    @workflow.query(name=CARRIED_QUERY, description="The session's whole state between two runs, for an export")
    @query_arguments
    def carried(self) -> SessionInput:
        """Return the input with which the session goes on elsewhere, while nothing is under way (R24.5)."""
        return self._readable.carried()

    @workflow.query(name=DESCRIBE, description="The session's metadata, without its messages")
    @query_arguments
    def about(self) -> SessionInfo:
        """Return the session's metadata, without its messages."""
        return self._open.about

    @workflow.query(name=SHOW, description="The session as it stands: its queue, its entries and the active run")
    @query_arguments
    def view(self) -> SessionView:
        """Return the session as it stands."""
        return self._open.view()

    @workflow.query(name=FATE, description="What became of a message, by its id and its sender, or of a run")
    @query_arguments
    def fate(self, what: str, sender: str = "") -> Fate:
        """Return the fate of a message, by its id and its sender, or of a run of this session."""
        return self._open.fate(what, sender)

    @workflow.query(name=STATUS_WEBHOOKS, description="The addresses that a sender has named for a run")
    @query_arguments
    def status_webhooks(self, run_id: str, sender: str) -> list[StatusWebhook]:
        """Return the addresses that a sender has named for a run (R21.4)."""
        return self._open.webhooks.named(run_id, sender)

    @workflow.query(name=EVENTS_QUERY, description="Events: the number of the first, and how many at most")
    @query_arguments
    def events(self, first: int = 0, limit: int = KEPT_EVENTS) -> EventsPage:
        """Return an `EventsPage` from a number on, with at most so many events, also after deletion (R10.14)."""
        journal = EventJournal() if self._session is None else self._session.kept.notes.events
        return journal.page(first, limit)
