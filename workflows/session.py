"""The workflow of a session: one that accepts messages, runs one run at a time, and keeps the transcript."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.workflows.arguments import any_arguments, query_arguments, read_input, single_argument
from perdure.workflows.dispatch import full_reason
from perdure.workflows.observability import now
from perdure.workflows.parent_run import payloads_query
from perdure.workflows.session_driver import SessionDriver, update_run
from perdure.workflows.session_hooks import SessionHooks

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import WAITS, RunWaits
    from perdure.approvals.requests import WITHDRAW as WITHDRAW_FROM_RUN
    from perdure.errors import DecisionError, MessageRefusedError, PerdureError, ProtocolError, RunError
    from perdure.runs.claim_check import read_payloads
    from perdure.runs.event_journal import EventJournal
    from perdure.runs.events import EVENTS_QUERY, EventsPage
    from perdure.runs.wire import DECIDE, REFUSED
    from perdure.sessions.agent_file import input_name
    from perdure.sessions.compaction import ENTRIES_QUERY, HeldEntries
    from perdure.sessions.entries import CommandEntry
    from perdure.sessions.export import CARRIED_QUERY
    from perdure.sessions.message_queue import AcceptedMessage, Queued, check_content, check_right
    from perdure.sessions.state import SessionState
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
        UNKNOWN_AGENT,
        WITHDRAW,
        Description,
        Fate,
        Message,
        MessageWithdrawal,
        Redelivery,
        RunUpdate,
        SessionDecision,
        SessionDeletion,
        SessionInfo,
        SessionInput,
        SessionView,
        message_key,
    )
    from perdure.values.json import Json, JsonObject, Sent, WireModel
    from perdure.values.limits import KEPT_EVENTS, NEAR
    from perdure.values.problems import first_problem


W = TypeVar("W", bound=WireModel)


@workflow.defn(name=SESSION_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class SessionWorkflow:
    """The workflow of a session: its handlers. `SessionDriver` runs it.

    Handlers accept any arguments and validate them: all raise `MessageRefusedError`. A validator changes nothing, and
    its refusal writes no history (R18.6).
    """

    @workflow.init
    def __init__(self, *arguments: Json) -> None:
        self._refusal: Exception | None = None
        """Problem of the input, which `run` raises: a handler may see a message before `run` begins."""
        self._session: SessionDriver | None = None
        self._hook_answers: dict[str, asyncio.Event] = {}
        """By key of a message that hooks look at, the event that is set when they have answered."""
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
            if workflow.info().continued_run_id:  # its task fails until a worker of its version can continue it
                self._refusal = RuntimeError(str(error))
            else:  # anybody may have written it
                self._refusal = ApplicationError(str(error), type=REFUSED, non_retryable=True)

    @workflow.run
    async def run(self, *_: Json) -> None:
        """Keep the queue until the session is ended. The argument is one `SessionInput`."""
        if self._session is None:
            assert self._refusal is not None
            raise self._refusal
        await self._session.run()

    @property
    def _driver(self) -> SessionDriver:
        if self._session is None:
            raise MessageRefusedError(ENDED)
        return self._session

    @property
    def _kept(self) -> SessionState:
        return self._driver.kept

    @property
    def _hooks(self) -> SessionHooks:
        return self._driver.hooks

    @property
    def _open(self) -> SessionState:
        self._driver.check_readable()
        return self._kept

    @property
    def _readable(self) -> SessionDriver:
        if self._session is None:
            raise RunError("this session has no transcript: its input could not be read")
        return self._session

    # Updates of people and programs.

    @workflow.update(name=SEND, description='A message: {"messageId": "1", "sender": "ann", "text": "hello"}')
    @any_arguments
    async def send(self, sent: Sent[Message]) -> JsonObject:
        """Accept a `Message`; return its receipt, the same for the same message (R10.1)."""
        # Also for a known or refused message: the session does not idle with the history that it wrote.
        self._driver.arrived()
        kept, message = self._kept, self._read(Message, sent)
        self._hooks.first_sender = self._hooks.first_sender or message.sender
        if kept.forgot(message):
            if known := await self._driver.transcripts.find(message.message_id, message.sender):
                return kept.answer(message, known).as_json()
            self._driver.check_open()
            self._judge(message)
        if self._hooks.has_hooks() and not message.command and kept.message_queue.judge(message) is None:
            key = message_key(message.sender, message.message_id)
            hooked = self._hook_answers.setdefault(key, asyncio.Event())
            try:
                async with self._hooks.in_turn:
                    return await self._received(message)
            finally:
                self._hook_answers.pop(key, None)
                hooked.set()
        self._driver.check_open()
        return await self._accepted(message)

    @send.validator
    @any_arguments
    def _check_message(self, sent: Sent[Message]) -> None:
        message = self._read(Message, sent)
        check_content(message)
        if not self._kept.forgot(message):  # else the message is judged later
            self._judge(message)

    @workflow.update(name=WITHDRAW, description='Withdraw a message: {"messageId": "1", "sender": "ann"}')
    @any_arguments
    async def withdraw(self, sent: Sent[MessageWithdrawal]) -> JsonObject:
        """Withdraw a message, until a Request holds it (R10.7). The argument is a `MessageWithdrawal`."""
        self._driver.arrived()
        kept, withdrawal = self._kept, self._read(MessageWithdrawal, sent)
        if (hooked := self._find_hook_answer(withdrawal)) is not None and self._driver.is_patched():
            await hooked.wait()
            # The validator could not judge the withdrawal: the message was not accepted yet.
            self._driver.check_open()
            kept.message_queue.check_no_command(kept.message_queue.judge_withdrawal(withdrawal))
        key = kept.message_queue.judge_withdrawal(withdrawal)
        number = kept.message_queue.steered_into(key)
        if number is not None:
            which = {"id": withdrawal.message_id, "sender": key.partition("\n")[0]}
            answered = await update_run(
                RunUpdate(run_id=kept.message_queue.run_id(number), update=WITHDRAW_FROM_RUN, argument=which)
            )
            if answered.refused is not None and kept.message_queue.steered_into(key) == number:
                raise MessageRefusedError(answered.refused)
        kept.message_queue.judge_withdrawal(withdrawal)  # a Request may hold the message by now
        kept.withdraw(withdrawal, now())
        if (promised := kept.message_queue.state.known[key].number) is not None:
            self._driver.report_status(kept.message_queue.run_id(promised))
        self._driver.arrived()
        self._driver.show()
        return {"messageId": withdrawal.message_id, "withdrawn": True}

    def _find_hook_answer(self, withdrawal: MessageWithdrawal) -> asyncio.Event | None:
        """Return the event of the hooks' answer to the withdrawn message; `None` if no hook looks at it.

        Until the answer the message is not accepted. After a reset a message and its withdrawal come in one task.
        """
        id, sender = withdrawal.message_id, withdrawal.of or withdrawal.sender
        if (own := self._hook_answers.get(message_key(sender, id))) is not None or withdrawal.of:
            return own
        others = [event for key, event in self._hook_answers.items() if key.endswith(f"\n{id}")]
        return others[0] if others and self._kept.message_queue.resolve(id, sender) is None else None

    @withdraw.validator
    @any_arguments
    def _check_withdrawal(self, sent: Sent[MessageWithdrawal]) -> None:
        message_queue, withdrawal = self._kept.message_queue, self._read(MessageWithdrawal, sent)
        if self._find_hook_answer(withdrawal) is None:
            # Only new withdrawals are checked here: a recorded history may have a withdrawn command.
            message_queue.check_no_command(message_queue.judge_withdrawal(withdrawal))

    @workflow.update(
        name=DECIDE_IN_SESSION,
        description='A decision: {"sender": "ann", "decision": {"call": "1.0", "decision": "approve"}}',
    )
    @any_arguments
    async def decide(self, sent: Sent[SessionDecision]) -> JsonObject:
        """Decide with a `SessionDecision` of a sender with the right `approve`; return the run's answer, or its refusal
        (R10.9).
        """
        self._driver.arrived()
        decision = self._read(SessionDecision, sent)
        run_id = self._kept.message_queue.decided_run(decision.run)
        answered = await update_run(RunUpdate(run_id=run_id, update=DECIDE, argument=decision.signed))
        if answered.refused is not None:
            raise MessageRefusedError(answered.refused)
        answer: JsonObject = answered.answer
        return answer

    @decide.validator
    @any_arguments
    def _check_decision(self, sent: Sent[SessionDecision]) -> None:
        decision = self._read(SessionDecision, sent)
        check_right(decision.sender, decision.rights, "approve", "decide here")
        self._kept.message_queue.decided_run(decision.run)

    @workflow.update(name=COMPACT, description='Compact the conversation: {"sender": "ann", "rights": ["compact"]}')
    @any_arguments
    async def compact(self, sent: Sent[SessionDeletion]) -> JsonObject:
        """Compact: from now on a summary replaces all but the newest part (R10.11). Return the action in words."""
        self._driver.arrived()  # the session must not continue as new meanwhile
        compaction = self._read(SessionDeletion, sent)
        words = await self._driver.transcripts.tend("asked", compaction.sender)
        entry = CommandEntry(at=now(), command="compact", sender=compaction.sender, text=words or "")
        self._kept.transcript.append(entry)
        self._driver.arrived()
        return {"compacted": words}

    @compact.validator
    @any_arguments
    def _check_compact(self, sent: Sent[SessionDeletion]) -> None:
        compaction = self._read(SessionDeletion, sent)
        check_right(compaction.sender, compaction.rights, "compact", "compact the session")

    @workflow.update(name=REDELIVER, description='Deliver a reply again: {"delivery": "RUN/1", "sender": "ann"}')
    @any_arguments
    def redeliver(self, sent: Sent[Redelivery]) -> JsonObject:
        """Deliver a reply again whose delivery is unknown, under its key (R24.2). The argument is a `Redelivery`."""
        redelivery = self._read(Redelivery, sent)
        self._driver.replies.add([self._kept.redelivery(redelivery.delivery)])
        self._driver.arrived()
        return {"delivery": redelivery.delivery}

    @redeliver.validator
    @any_arguments
    def _check_redelivery(self, sent: Sent[Redelivery]) -> None:
        redelivery = self._read(Redelivery, sent)
        check_right(redelivery.sender, redelivery.rights, "redeliver", "deliver a reply again")
        self._kept.redelivery(redelivery.delivery)

    @workflow.update(name=DESCRIBE, description='Replace the metadata: {"metadata": {"topic": "shoes"}}')
    @any_arguments
    def describe(self, sent: Sent[Description]) -> JsonObject:
        """Replace the session's metadata by a `Description`; return its `SessionInfo`."""
        self._kept.describe(self._read(Description, sent))
        self._driver.arrived()
        return self._kept.about.as_json()

    @describe.validator
    @any_arguments
    def _check_description(self, sent: Sent[Description]) -> None:
        self._read(Description, sent)

    @workflow.update(
        name=SET_STATUS_WEBHOOK,
        description='Register a status webhook: {"sender": "ann", "webhook": {"runId": "…", "url": "https://…"}}',
    )
    @any_arguments
    def set_status_webhook(self, sent: Sent[StatusWebhookChange]) -> JsonObject:
        """Start or stop to notify an address of a run's status. The argument is a `StatusWebhookChange` (R21.4)."""
        change = self._read(StatusWebhookChange, sent)
        self._kept.webhooks.change(change)
        self._driver.report_status(change.webhook.run_id)
        self._driver.arrived()
        return change.webhook.as_json()

    @set_status_webhook.validator
    @any_arguments
    def _check_status_webhook(self, sent: Sent[StatusWebhookChange]) -> None:
        self._kept.judge_webhook(self._read(StatusWebhookChange, sent))

    @workflow.update(name=END, description='End the session: {"sender": "ann", "rights": ["delete"]}')
    @any_arguments
    def end(self, sent: Sent[SessionDeletion]) -> JsonObject:
        """Cancel the active run, and end the session. The argument is a `SessionDeletion`."""
        self._driver.end(self._read(SessionDeletion, sent).sender)
        return {"ended": self._kept.key}

    @end.validator
    @any_arguments
    def _check_end(self, sent: Sent[SessionDeletion]) -> None:
        deletion = self._read(SessionDeletion, sent)
        check_right(deletion.sender, deletion.rights, "delete", "delete the session")
        self._kept.check_last(deletion.last)

    def _read(self, kind: type[W], sent: Sequence[Json]) -> W:
        """Parse the one argument as this type. Raise `MessageRefusedError` for anything else, and where the session has ended."""
        self._driver.check_open()
        try:
            return kind.model_validate(single_argument(sent))
        except ValidationError as error:
            raise MessageRefusedError(f"this is not a valid {kind.__name__}: {first_problem(error)}") from None
        except (DecisionError, ProtocolError) as error:
            raise MessageRefusedError(str(error)) from None

    async def _received(self, message: Message) -> JsonObject:
        """Accept a message once hooks have seen it. Messages that arrive meanwhile wait, so that all are accepted in
        their order.
        """
        await self._hooks.begin_in_turn()
        text = message.text
        self._driver.check_open()
        if self._kept.message_queue.judge(message) is None:
            of = {"mode": message.mode, "rights": message.rights, "context": message.context}
            text = await self._hooks.received(message.message_id, message.sender, text, **of)
            check_content(message.model_copy(update={"text": text}))
            self._driver.check_open()
            self._judge(message)
        return await self._accepted(message, text)

    async def _accepted(self, message: Message, text: str | None = None) -> JsonObject:
        """Accept a message and return its receipt; `text`: its text after the hooks."""
        kept = self._kept
        if message.document is not None and kept.names_another_agent(message):
            known = kept.message_queue.judge(message) is not None
            if not (known and self._driver.is_patched()):  # a message that comes again changes nothing
                kept.change_agent(message)
        accepted = kept.message_queue.accept(message, workflow.time(), now(), text)
        if accepted.queued is not None:
            self._note(accepted, accepted.queued)
            if message.command:
                await self._hooks.commanded(message.message_id, message.sender, message.command)
        return accepted.receipt.as_json()

    def _judge(self, message: Message) -> None:
        """Check that a message can be accepted now; a known one can."""
        kept = self._kept
        if kept.message_queue.judge(message) is not None:
            return
        if (words := full_reason(NEAR)) is not None:
            raise MessageRefusedError(
                f"{words}; it continues as new when its run has ended: send the message again then"
            )
        if message.document is None and kept.names_another_agent(message):
            raise ApplicationError("the session does not have this agent file", type=UNKNOWN_AGENT)
        kept.judge(message)

    def _note(self, accepted: AcceptedMessage, queued: Queued) -> None:
        """Write an accepted message, and pass it on to the active run: it steers the run, or ends it."""
        self._kept.write(accepted, queued)
        child = self._driver.child
        if child is not None and accepted.steer:
            child.steer(queued)
        if child is not None and accepted.cancel:
            child.end()
        self._driver.arrived()
        self._driver.show()

    # Signals and queries of the engine's own activities and runs.

    @workflow.signal(name=TURN, description="Internal: a worker has capacity for this run")
    @any_arguments
    def turn(self, run_id: Sent[str]) -> None:
        """Give a run its turn, where workers limit the number of active runs of sessions (R10.3)."""
        if self._session is not None:
            self._session.take_turn(run_id)

    @workflow.signal(name=WAITS, description="Internal: whether the run waits for a person")
    @any_arguments
    def run_waits(self, waits: Sent[RunWaits]) -> None:
        """Record the report of the session's run on whether it waits (R10.4)."""
        if self._session is not None:
            self._session.note_waits(waits)

    @workflow.signal(dynamic=True, description="Any other signal is ignored")
    def anything(self, _: str, __: Sequence[RawValue]) -> None:
        """Ignore a signal that is not the engine's. Continue-as-new drops its history when the session idles (R10.13)."""
        if self._session is not None:
            self._session.note_unused()

    @payloads_query
    def payloads(self, kind: str, names: list[str]) -> JsonObject:
        """Return values that were too large to be sent, for their readers (R18.2)."""
        return read_payloads(lambda name: self._readable.payload(kind, name), names)

    @workflow.query(name=ENTRIES_QUERY, description="The entries after a number, and the place of older ones")
    @query_arguments
    def at_hand(self, after: int) -> HeldEntries:
        """Return the entries in memory after a position, as many as one answer holds, and the places of older ones."""
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
        """Return the input with which the session continues elsewhere, while nothing is under way (R24.5)."""
        return self._readable.carried()

    @workflow.query(name=DESCRIBE, description="The session's metadata, without its messages")
    @query_arguments
    def about(self) -> SessionInfo:
        """Return the session's metadata, without its messages."""
        return self._open.about

    @workflow.query(name=SHOW, description="The session's queue, entries and active run")
    @query_arguments
    def view(self) -> SessionView:
        """Return the session's present state."""
        return self._open.view()

    @workflow.query(name=FATE, description="The outcome of a message, by its id and sender, or of a run")
    @query_arguments
    def fate(self, what: str, sender: str = "") -> Fate:
        """Return the outcome of a message, by its id and its sender, or of a run of this session."""
        return self._open.fate(what, sender)

    @workflow.query(name=STATUS_WEBHOOKS, description="A sender's status webhooks of a run")
    @query_arguments
    def status_webhooks(self, run_id: str, sender: str) -> list[StatusWebhook]:
        """Return the addresses that a sender has named for a run (R21.4)."""
        return self._open.webhooks.named(run_id, sender)

    @workflow.query(name=EVENTS_QUERY, description="Events: the number of the first, and the most events")
    @query_arguments
    def events(self, first: int = 0, limit: int = KEPT_EVENTS) -> EventsPage:
        """Return an `EventsPage` from a number on, with at most so many events, also after deletion (R10.14)."""
        journal = EventJournal() if self._session is None else self._session.kept.notes.events
        return journal.page(first, limit)
