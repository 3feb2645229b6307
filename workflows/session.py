"""A session: one workflow that accepts messages, runs one run at a time, and keeps the transcript."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.workflows.arguments import read_input, read_one
from perdure.workflows.dispatch import full
from perdure.workflows.hooks import ExecutionHooks
from perdure.workflows.observability import page_of
from perdure.workflows.preparation import begins_anew, go_on_anew
from perdure.workflows.session_replies import SessionReplies
from perdure.workflows.session_runs import ChildRun, RunTurns, run_input, say
from perdure.workflows.session_state import SessionState, judge_agent, now, read
from perdure.workflows.session_transcript import TranscriptTasks

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import WAITS, RunWaits
    from perdure.approvals.requests import WITHDRAW as WITHDRAW_FROM_RUN
    from perdure.errors import MessageRefusedError, PerdureError, ProtocolError
    from perdure.runs.delegates import GIVEN_QUERY
    from perdure.runs.event_journal import EventJournal
    from perdure.runs.events import EVENTS_QUERY, EventsPage
    from perdure.runs.wire import DECIDE, REFUSED, RunInput
    from perdure.sessions.agent_file import document, input_name, with_settings
    from perdure.sessions.entries import CommandEntry, Entry
    from perdure.sessions.journal import SessionJournal
    from perdure.sessions.message_queue import (
        AcceptedMessage,
        ActiveRun,
        BeginRun,
        Queued,
        QueueIdle,
        RunCommand,
        WaitUntil,
        check_right,
        says,
    )
    from perdure.sessions.replies import Delivered, ReplyDelivery
    from perdure.sessions.transcript import Transcript
    from perdure.sessions.wire import (
        COMPACT,
        DECIDE_IN_SESSION,
        DESCRIBE,
        END,
        ENDED,
        FATE,
        GIVEN_SESSION,
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
        RunUpdate,
        SessionDecision,
        SessionDeletion,
        SessionInfo,
        SessionInput,
        SessionView,
    )
    from perdure.values.limits import MAX_PAYLOAD, NEAR


class SessionQueries(TranscriptTasks):
    """The session's queries, over its state and its active run."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: SessionState | None = None
        self._child: ChildRun | None = None
        self._ended = False

    @property
    def _transcript(self) -> Transcript | None:
        return None if self._kept is None else self._kept.transcript

    @property
    def _notes(self) -> SessionJournal:
        return self._open().notes

    def _put_away(self, entries: list[Entry]) -> None:
        if self._kept is not None:
            self._kept.put_away(entries)

    def _gone(self, entries: list[Entry]) -> None:
        if self._kept is not None:
            self._kept.gone(entries)

    @workflow.query(name=GIVEN_SESSION)
    def given_session(self) -> SessionInput:
        """Return the input of a fork of this session, without its transcript (R10.20)."""
        return self._open().given

    @workflow.query(name=DESCRIBE)
    def about(self) -> SessionInfo:
        """Return the session's metadata, without its messages."""
        return self._open().about

    @workflow.query(name=SHOW)
    def view(self) -> SessionView:
        """Return the session as it stands."""
        return self._open().view()

    @workflow.query(name=EVENTS_QUERY)
    def events(self, *said: Any) -> EventsPage:
        """Return an `EventsPage` from a number on, with at most so many events, also after deletion (R10.14)."""
        return page_of(EventJournal() if self._kept is None else self._kept.notes.journal, said)

    @workflow.query(name=FATE)
    def fate(self, what: str, sender: str = "") -> Fate:
        """Return the fate of a message, by its id and its sender, or of a run of this session."""
        return self._open().fate(what, sender)

    @workflow.query(name=GIVEN_QUERY)
    def given_below(self, names: list[str]) -> dict[str, RunInput | None]:
        """Return the active run's input, for a run whose input was too large to be sent (R18.2)."""
        child = self._child
        mine = None if child is None else child.id.removeprefix(f"{workflow.info().workflow_id}/")
        return {name: child.given if child is not None and name == mine else None for name in names}

    def _open(self) -> SessionState:
        if self._kept is None or self._ended:
            raise MessageRefusedError(ENDED)
        return self._kept

    def _show(self) -> None:
        if self._kept is not None:
            workflow.set_current_details(self._kept.details())


class SessionUpdates(SessionQueries):
    """The updates of a session that change its behaviour, without messages."""

    def __init__(self) -> None:
        super().__init__()
        self._happened = 0
        """Number of arrivals, for tasks that wait for any."""

    @workflow.update(name=DECIDE_IN_SESSION, description="A decision on a call of the run under way")
    async def decide(self, *said: Any) -> dict[str, Any]:
        """Decide with a `SessionDecision` of a sender with the right `approve`; return the run's answer, or its refusal
        (R10.9).
        """
        self._happened += 1
        kept, asked = self._open(), read(SessionDecision, said)
        running = kept.lane.state.running
        if running is None:
            raise MessageRefusedError("nothing runs that waits for a decision")
        decision = {**asked.decision, "by": asked.sender}
        answered = await say(RunUpdate(run_id=kept.lane.run_id(running.number), update=DECIDE, argument=decision))
        if answered.refused is not None:
            raise MessageRefusedError(answered.refused)
        answer: dict[str, Any] = answered.answer
        return answer

    @decide.validator
    def _check_decision(self, *said: Any) -> None:
        kept, asked = self._open(), read(SessionDecision, said)
        check_right(asked.sender, asked.rights, "approve", "decide here")
        if kept.lane.state.running is None or not kept.lane.state.running.begun:
            raise MessageRefusedError("nothing runs that waits for a decision")

    @workflow.update(name=COMPACT, description='Compact the conversation: {"sender": "ann", "rights": ["compact"]}')
    async def compact(self, *said: Any) -> dict[str, Any]:
        """Compact: from now on a summary replaces all but the newest part (R10.11). Return the action in words."""
        self._happened += 1  # it is not to go on as new meanwhile
        kept, asked = self._open(), read(SessionDeletion, said)
        words = await self.tend(kept.models, "asked")
        kept.transcript.append(CommandEntry(at=now(), command="compact", sender=asked.sender, text=words or ""))
        self._happened += 1
        return {"compacted": words}

    @compact.validator
    def _check_compact(self, *said: Any) -> None:
        self._open()
        asked = read(SessionDeletion, said)
        check_right(asked.sender, asked.rights, "compact", "compact the session")


IDLE_EVENTS: Final = 12
"""Events of a history: an execution that has more continues as new before it idles (R10.13).

No new execution has so many, whatever became of its first task. A smaller number proves nothing: the history does not
hold a task that only carried a refusal, and its worker counted that task.
"""


LINGER: Final = timedelta(seconds=1)
"""Time after which a session continues as new before it idles.

A server delays continue-as-new within a second of an execution's start. The sender of the next message would wait.
"""


@workflow.defn(name=SESSION_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class SessionWorkflow(SessionUpdates):
    """A conversation that outlives its runs.

    Handlers accept whatever anybody sends, and judge it themselves: a validator's refusal writes no history (R18.6).
    """

    @workflow.init
    def __init__(self, *given: Any) -> None:
        super().__init__()
        self._refusal: Exception | None = None
        """Problem of the input, which `run` raises: a handler may see a message before `run` begins."""
        self._stepped = False
        """Whether this execution has done anything, so that it must not idle with its history."""
        self._turns = RunTurns()
        self._replying: SessionReplies
        try:
            argument = read_input(SessionInput, given)
            if argument.document:
                input_name(argument.document)
            kept = self._kept = SessionState(argument, workflow.info().workflow_id, workflow.info().run_id[-6:], now())
            self._who = lambda: (kept.key, kept.agent, kept.tenant, argument.snapshot is None)
            self._hooking = ExecutionHooks(kept.notes.hooks(now))
        except ApplicationError as error:
            self._refusal = error
        except MessageRefusedError as error:
            self._refusal = ApplicationError(str(error), type=REFUSED, non_retryable=True)
        except ProtocolError as error:
            self._refusal = RuntimeError(
                str(error)
            )  # of another version: its task fails until a worker is there that can go on

    @workflow.run
    async def run(self, *_: Any) -> None:
        """Keep the queue, for ever. The argument is one `SessionInput`."""
        if self._kept is None:
            assert self._refusal is not None
            raise self._refusal
        kept = self._kept
        self._replying = SessionReplies(kept.to_deliver, self, self._delivered)
        self._replying.start()
        self._show()
        await self.begin_hooks()
        while not self._ended:
            await self.tend(kept.models)
            if self._ended:
                break
            seen = self._happened
            step = kept.lane.next(workflow.time())
            self._stepped |= not isinstance(step, QueueIdle)
            if isinstance(step, BeginRun):
                await self._run(kept, step.run)
            elif isinstance(step, RunCommand):
                kept.carry_out(step.command, now())
            elif isinstance(step, WaitUntil):
                await self._until(seen, step.at)
            elif isinstance(step, QueueIdle):
                await self._idle(kept, seen)
            if not isinstance(step, RunCommand) and workflow.all_handlers_finished() and begins_anew():
                if self._replying.busy:
                    await self._replying.pause()
                if workflow.all_handlers_finished():
                    self._go_on(kept)
                self._replying.start()
        self._replying.cancel()
        await workflow.wait_condition(workflow.all_handlers_finished)
        await self.end_hooks()
        kept.notes.ended(now())

    async def _until(self, seen: int, at: float) -> None:
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._happened > seen,
                timeout=max(0.001, at - workflow.time()),
                timeout_summary="until nothing more comes to be collected",
            )

    async def _idle(self, kept: SessionState, seen: int) -> None:
        """Wait for the next arrival, with a history as short as possible."""
        await workflow.wait_condition(
            lambda: (workflow.all_handlers_finished() and not self._replying.busy) or self._happened > seen
        )
        used = self._happened > 0 or self._stepped or workflow.info().get_current_history_length() > IDLE_EVENTS
        if self._happened == seen and used:
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: self._happened > seen, timeout=LINGER, timeout_summary="until nobody goes on talking"
                )
                return
            self._go_on(kept)
        await workflow.wait_condition(lambda: self._happened > seen)

    def _go_on(self, kept: SessionState) -> None:
        """Continue as new, unless a run or a reply is under way: it would be lost."""
        if self._replying.busy:
            return
        if kept.lane.state.running is not None and kept.lane.state.running.begun:
            return
        carried = kept.carried()
        if len(carried.model_dump_json().encode()) <= MAX_PAYLOAD:
            go_on_anew(carried)

    async def _run(self, kept: SessionState, running: ActiveRun) -> None:
        """Run one run, from its start to its records in the transcript."""
        run_id = kept.lane.run_id(running.number)
        await self._turns.take(run_id, lambda: running.ending is None and kept.lane.state.running is running)
        if kept.lane.state.running is not running:  # all that it was to begin with was taken back
            self._turns.leave()
            return
        if running.ending is not None:
            self._turns.leave()
            kept.never_ran(running, now())
            return
        first = running.messages[0]
        own = with_settings(kept.document, first.settings)
        agent = document(own, kept.conversation(running), kept.state, kept.said(running))
        kept.begun(running, now())
        self._child = ChildRun(
            run_id,
            run_input(agent, kept.delegates, kept.sources, kept.whose(first.sender), reasons=kept.tells_reasoning),
            sender=first.sender,
            tenant=kept.tenant,
            searchable=kept.searchable,
        )
        self._show()
        started = now()
        try:
            result = await self._child.result(f"{kept.agent}: {first.text}")
        finally:
            self._child = None
            self._turns.leave()
        self._replying.add(kept.ended(running, result, started, now()))
        self._show()

    def _delivered(self, delivery: ReplyDelivery, became: Delivered, text: str) -> None:
        self._happened += 1
        assert self._kept is not None
        self._kept.delivered(delivery, became, text, now())
        self._show()

    # Handlers.

    @workflow.signal(name=TURN, description="The engine's own: a worker has room for this run")
    def turn(self, *said: Any) -> None:
        """Give a run its turn, where workers limit the number of active runs of sessions (R10.3)."""
        self._happened += 1
        if len(said) == 1 and isinstance(said[0], str):
            self._turns.give(said[0])

    @workflow.signal(name=WAITS, description="The engine's own: whether the run waits for a person")
    def run_waits(self, *said: Any) -> None:
        """Record the report of the session's run on whether it waits (R10.4)."""
        self._happened += 1
        if self._kept is not None and (told := read_one(RunWaits, said)) is not None:
            self._kept.lane.waits(told)

    @workflow.signal(dynamic=True)
    def anything(self, _: str, __: Sequence[RawValue]) -> None:
        """Ignore a signal that is not the engine's. Its history is left behind when the session idles (R10.13)."""
        self._happened += 1

    @workflow.update(name=SEND, description='A message: {"messageId": "1", "sender": "ann", "text": "hello"}')
    async def send(self, *said: Any) -> dict[str, Any]:
        """Accept a `Message`; return its receipt, the same for the same message (R10.1)."""
        # Also where it is known or refused below: the history that it wrote is not to be idled with.
        self._happened += 1
        kept, message = self._open(), read(Message, said)
        if kept.forgot(message):
            if known := await self.find(message.message_id, message.sender):
                return kept.answer(message, known).as_json()
            self._judge(self._open(), message)
        if self.has_hooks() and not message.command and kept.lane.judge(message) is None:
            async with self._one_by_one:
                return await self._received(message)
        return await self._accepted(self._open(), message)

    async def _received(self, message: Message) -> dict[str, Any]:
        """Hooks have seen it before it is accepted; those that come meanwhile wait, so that they are accepted in their order."""
        await self._begin()
        text = message.text
        if (kept := self._open()).lane.judge(message) is None:
            of = {"mode": message.mode, "rights": message.rights}
            text = await self.received(message.message_id, message.sender, text, **of)
            says(message.model_copy(update={"text": text}))
            self._judge(kept := self._open(), message)
        return await self._accepted(kept, message, text)

    async def _accepted(self, kept: SessionState, message: Message, text: str | None = None) -> dict[str, Any]:
        """Accept a message and return its receipt; `text`: the text that hooks have given it."""
        if message.document is not None and kept.names_another_agent(message):
            kept.change_agent(message)
        accepted = kept.lane.accept(message, workflow.time(), now(), text)
        if accepted.queued is not None:
            self._note(kept, accepted, accepted.queued)
            if message.command:
                await self.commanded(message.message_id, message.sender, message.command)
        return accepted.receipt.as_json()

    @send.validator
    def _check_message(self, *said: Any) -> None:
        kept, message = self._open(), read(Message, said)
        says(message)
        if not kept.forgot(message):  # else it is judged when that is known
            self._judge(kept, message)

    def _judge(self, kept: SessionState, message: Message) -> None:
        if kept.lane.judge(message) is not None:
            return
        if (words := full(NEAR)) is not None:
            raise MessageRefusedError(f"{words}; it goes on as new when its run has ended: send it again then")
        if not message.agent and not kept.document:
            raise MessageRefusedError("the session has no agent yet: say with its first message which agent answers")
        if kept.names_another_agent(message):
            judge_agent(message, kept.agent)
        with_settings(message.document or kept.document, message.settings)

    def _note(self, kept: SessionState, accepted: AcceptedMessage, queued: Queued) -> None:
        kept.write(accepted, queued)
        if self._child is not None and accepted.steer:
            self._child.steer(queued)
        if self._child is not None and accepted.cancel:
            self._child.end()
        self._happened += 1
        self._show()

    @workflow.update(name=WITHDRAW, description='Take a message back: {"messageId": "1", "sender": "ann"}')
    async def withdraw(self, *said: Any) -> dict[str, Any]:
        """Withdraw a message, until a Request holds it (R10.7). The argument is a `MessageWithdrawal`."""
        self._happened += 1
        kept, asked = self._open(), read(MessageWithdrawal, said)
        key = kept.lane.judge_withdrawal(asked)
        number = kept.lane.steered_into(key)
        if number is not None:
            which = {"id": asked.message_id, "sender": key.partition("\n")[0]}
            answered = await say(RunUpdate(run_id=kept.lane.run_id(number), update=WITHDRAW_FROM_RUN, argument=which))
            if answered.refused is not None and kept.lane.steered_into(key) == number:
                raise MessageRefusedError(answered.refused)
        kept.lane.judge_withdrawal(asked)  # it may have been taken meanwhile
        kept.withdraw(asked, now())
        self._happened += 1
        self._show()
        return {"messageId": asked.message_id, "withdrawn": True}

    @withdraw.validator
    def _check_withdrawal(self, *said: Any) -> None:
        self._open().lane.judge_withdrawal(read(MessageWithdrawal, said))

    @workflow.update(name=REDELIVER, description='Deliver a reply again: {"delivery": "RUN/1", "sender": "ann"}')
    def redeliver(self, *said: Any) -> dict[str, Any]:
        """Deliver a reply whose arrival is unknown once more, under its key (R24.2). The argument is a `Redelivery`."""
        kept, asked = self._open(), read(Redelivery, said)
        self._replying.add([kept.redelivery(asked.delivery)])
        self._happened += 1
        return {"delivery": asked.delivery}

    @redeliver.validator
    def _check_redelivery(self, *said: Any) -> None:
        kept, asked = self._open(), read(Redelivery, said)
        check_right(asked.sender, asked.rights, "redeliver", "have a reply delivered again")
        kept.redelivery(asked.delivery)

    @workflow.update(name=DESCRIBE, description='Metadata that is kept with it: {"metadata": {"topic": "shoes"}}')
    def describe(self, *said: Any) -> dict[str, Any]:
        """Replace the session's metadata by a `Description`; return its `SessionInfo`."""
        kept = self._open()
        kept.describe(read(Description, said))
        self._happened += 1
        return kept.about.as_json()

    @describe.validator
    def _check_description(self, *said: Any) -> None:
        self._open()
        read(Description, said)

    @workflow.update(name=END, description='End the session: {"sender": "ann", "rights": ["delete"]}')
    def end(self, *_: Any) -> dict[str, Any]:
        """Cancel the active run, and end the session. The argument is a `SessionDeletion`."""
        kept = self._open()
        running = kept.lane.state.running
        if running is not None:
            running.ending = "the session is deleted"
        if self._child is not None:
            self._child.end()
        self._ended = True
        self._happened += 1
        return {"ended": kept.key}

    @end.validator
    def _check_end(self, *said: Any) -> None:
        asked = read(SessionDeletion, said)
        check_right(asked.sender, asked.rights, "delete", "delete the session")
