"""Updates of a session: what people and programs send to it, judged before it is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from temporalio import workflow

from perdure.workflows.dispatch import full
from perdure.workflows.session_driver import SessionDriver
from perdure.workflows.session_runs import update_run
from perdure.workflows.session_state import judge_agent, now, read

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import WITHDRAW as WITHDRAW_FROM_RUN
    from perdure.errors import MessageRefusedError
    from perdure.runs.wire import DECIDE
    from perdure.sessions.agent_file import with_settings
    from perdure.sessions.entries import CommandEntry
    from perdure.sessions.message_queue import AcceptedMessage, Queued, check_content, check_right
    from perdure.sessions.status_webhooks import StatusWebhookChange
    from perdure.sessions.wire import (
        Description,
        Message,
        MessageWithdrawal,
        Redelivery,
        RunUpdate,
        SessionDecision,
        SessionDeletion,
    )
    from perdure.values.json import Json, JsonObject, WireModel
    from perdure.values.limits import NEAR


W = TypeVar("W", bound=WireModel)


class SessionUpdates:
    """The updates of a session. Each `check_…` judges an update before it is accepted, and changes nothing.

    A check's refusal writes no history (R18.6). All raise `MessageRefusedError`.
    """

    def __init__(self, session: SessionDriver) -> None:
        self._session = session
        self._kept = session.kept
        self._hooks = session.hooks

    def _read(self, kind: type[W], sent: Sequence[Json]) -> W:
        self._session.check_open()
        return read(kind, sent)

    def check_message(self, sent: Sequence[Json]) -> None:
        """Judge a `Message`."""
        message = self._read(Message, sent)
        check_content(message)
        if not self._kept.forgot(message):  # else it is judged when that is known
            self._judge(message)

    async def send(self, sent: Sequence[Json]) -> JsonObject:
        """Accept a `Message`; return its receipt, the same for the same message (R10.1)."""
        # Also where it is known or refused below: the history that it wrote is not to be idled with.
        self._session.arrived()
        kept, message = self._kept, self._read(Message, sent)
        if kept.forgot(message):
            if known := await self._session.transcripts.find(message.message_id, message.sender):
                return kept.answer(message, known).as_json()
            self._session.check_open()
            self._judge(message)
        if self._hooks.has_hooks() and not message.command and kept.message_queue.judge(message) is None:
            async with self._hooks.in_turn:
                return await self._received(message)
        self._session.check_open()
        return await self._accepted(message)

    async def _received(self, message: Message) -> JsonObject:
        """Hooks have seen it before it is accepted; those that come meanwhile wait, so that they are accepted in their
        order.
        """
        await self._hooks.begin_in_turn()
        text = message.text
        self._session.check_open()
        if self._kept.message_queue.judge(message) is None:
            of = {"mode": message.mode, "rights": message.rights, "context": message.context}
            text = await self._hooks.received(message.message_id, message.sender, text, **of)
            check_content(message.model_copy(update={"text": text}))
            self._session.check_open()
            self._judge(message)
        return await self._accepted(message, text)

    async def _accepted(self, message: Message, text: str | None = None) -> JsonObject:
        """Accept a message and return its receipt; `text`: the text that hooks have given it."""
        kept = self._kept
        if message.document is not None and kept.names_another_agent(message):
            kept.change_agent(message)
        accepted = kept.message_queue.accept(message, workflow.time(), now(), text)
        if accepted.queued is not None:
            self._note(accepted, accepted.queued)
            if message.command:
                await self._hooks.commanded(message.message_id, message.sender, message.command)
        return accepted.receipt.as_json()

    def _judge(self, message: Message) -> None:
        kept = self._kept
        if kept.message_queue.judge(message) is not None:
            return
        if (words := full(NEAR)) is not None:
            raise MessageRefusedError(f"{words}; it goes on as new when its run has ended: send it again then")
        if not message.agent and not kept.document:
            raise MessageRefusedError("the session has no agent yet: name one with its first message")
        if kept.names_another_agent(message):
            judge_agent(message, kept.agent)
        with_settings(message.document or kept.document, message.settings)
        kept.judge_context(message)

    def _note(self, accepted: AcceptedMessage, queued: Queued) -> None:
        self._kept.write(accepted, queued)
        child = self._session.child
        if child is not None and accepted.steer:
            child.steer(queued)
        if child is not None and accepted.cancel:
            child.end()
        self._session.arrived()
        self._session.show()

    def check_withdrawal(self, sent: Sequence[Json]) -> None:
        """Judge a `MessageWithdrawal`."""
        self._kept.message_queue.judge_withdrawal(self._read(MessageWithdrawal, sent))

    async def withdraw(self, sent: Sequence[Json]) -> JsonObject:
        """Withdraw a message, until a Request holds it (R10.7). The argument is a `MessageWithdrawal`."""
        self._session.arrived()
        kept, withdrawal = self._kept, self._read(MessageWithdrawal, sent)
        key = kept.message_queue.judge_withdrawal(withdrawal)
        number = kept.message_queue.steered_into(key)
        if number is not None:
            which = {"id": withdrawal.message_id, "sender": key.partition("\n")[0]}
            answered = await update_run(
                RunUpdate(run_id=kept.message_queue.run_id(number), update=WITHDRAW_FROM_RUN, argument=which)
            )
            if answered.refused is not None and kept.message_queue.steered_into(key) == number:
                raise MessageRefusedError(answered.refused)
        kept.message_queue.judge_withdrawal(withdrawal)  # it may have been taken meanwhile
        kept.withdraw(withdrawal, now())
        self._session.arrived()
        self._session.show()
        return {"messageId": withdrawal.message_id, "withdrawn": True}

    def check_decision(self, sent: Sequence[Json]) -> None:
        """Judge a `SessionDecision`."""
        decision = self._read(SessionDecision, sent)
        check_right(decision.sender, decision.rights, "approve", "decide here")
        self._kept.message_queue.decided_run(decision.run)

    async def decide(self, sent: Sequence[Json]) -> JsonObject:
        """Decide with a `SessionDecision` of a sender with the right `approve`; return the run's answer, or its refusal
        (R10.9).
        """
        self._session.arrived()
        kept, session_decision = self._kept, self._read(SessionDecision, sent)
        run_id = kept.message_queue.decided_run(session_decision.run)
        decision = session_decision.signed
        answered = await update_run(RunUpdate(run_id=run_id, update=DECIDE, argument=decision))
        if answered.refused is not None:
            raise MessageRefusedError(answered.refused)
        answer: JsonObject = answered.answer
        return answer

    def check_compact(self, sent: Sequence[Json]) -> None:
        """Judge a request to compact the conversation: the sender and rights of a `SessionDeletion`."""
        compaction = self._read(SessionDeletion, sent)
        check_right(compaction.sender, compaction.rights, "compact", "compact the session")

    async def compact(self, sent: Sequence[Json]) -> JsonObject:
        """Compact: from now on a summary replaces all but the newest part (R10.11). Return the action in words."""
        self._session.arrived()  # it is not to go on as new meanwhile
        compaction = self._read(SessionDeletion, sent)
        words = await self._session.transcripts.tend("asked")
        entry = CommandEntry(at=now(), command="compact", sender=compaction.sender, text=words or "")
        self._kept.transcript.append(entry)
        self._session.arrived()
        return {"compacted": words}

    def check_redelivery(self, sent: Sequence[Json]) -> None:
        """Judge a `Redelivery`."""
        redelivery = self._read(Redelivery, sent)
        check_right(redelivery.sender, redelivery.rights, "redeliver", "have a reply delivered again")
        self._kept.redelivery(redelivery.delivery)

    def redeliver(self, sent: Sequence[Json]) -> JsonObject:
        """Deliver a reply whose arrival is unknown once more, under its key (R24.2). The argument is a `Redelivery`."""
        redelivery = self._read(Redelivery, sent)
        self._session.replies.add([self._kept.redelivery(redelivery.delivery)])
        self._session.arrived()
        return {"delivery": redelivery.delivery}

    def check_description(self, sent: Sequence[Json]) -> None:
        """Judge a `Description`."""
        self._read(Description, sent)

    def describe(self, sent: Sequence[Json]) -> JsonObject:
        """Replace the session's metadata by a `Description`; return its `SessionInfo`."""
        self._kept.describe(self._read(Description, sent))
        self._session.arrived()
        return self._kept.about.as_json()

    def check_status_webhook(self, sent: Sequence[Json]) -> None:
        """Judge a `StatusWebhookChange`."""
        self._kept.judge_webhook(self._read(StatusWebhookChange, sent))

    def set_status_webhook(self, sent: Sequence[Json]) -> JsonObject:
        """Inform an address of a run from now on, or no more; return it. It learns at once that the run waits or has ended."""
        change = self._read(StatusWebhookChange, sent)
        self._kept.webhooks.change(change)
        self._session.report_status(change.webhook.run_id)
        self._session.arrived()
        return change.webhook.as_json()

    def check_end(self, sent: Sequence[Json]) -> None:
        """Judge a `SessionDeletion`."""
        deletion = read(SessionDeletion, sent)
        check_right(deletion.sender, deletion.rights, "delete", "delete the session")

    def end(self, sent: Sequence[Json]) -> JsonObject:
        """Cancel the active run, and end the session."""
        self._session.check_open()
        self._session.end(read(SessionDeletion, sent).sender)
        return {"ended": self._kept.key}
