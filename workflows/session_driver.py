"""The life of a session: its queue decides the next step, from message to run to reply."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Final

from temporalio import workflow

from perdure.workflows.arguments import read_one
from perdure.workflows.audit import send_entries
from perdure.workflows.continue_as_new import go_on_anew, should_continue_as_new
from perdure.workflows.notifications import NotificationSender
from perdure.workflows.resets import LeftBehind, on_reset
from perdure.workflows.session_hooks import SessionHooks
from perdure.workflows.session_replies import SessionReplies
from perdure.workflows.session_runs import ChildRun, RunTurns, run_input
from perdure.workflows.session_state import SessionState, now
from perdure.workflows.session_transcript import TranscriptTasks

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import RunWaits
    from perdure.errors import MessageRefusedError, RunError
    from perdure.runs.audit import AUDIT_PATCH, AuditBatch, entry
    from perdure.runs.claim_check import CHILD, GONE, HOOK, Payload
    from perdure.runs.routes import Delivered
    from perdure.runs.version_switches import LEFT_CHILDREN_END
    from perdure.sessions.agent_file import document, with_settings
    from perdure.sessions.message_queue import ActiveRun, BeginRun, QueueIdle, RunCommand, WaitUntil
    from perdure.sessions.replies import ReplyDelivery
    from perdure.sessions.wire import ENDED, SessionInput
    from perdure.values.json import Sent
    from perdure.values.limits import MAX_PAYLOAD


IDLE_EVENTS: Final = 12
"""Events of a history: an execution that has more continues as new before it idles (R10.13).

No new execution has so many, whatever became of its first task. A smaller number proves nothing: the history does not
hold a task that only carried a refusal, and its worker counted that task.
"""


LINGER: Final = timedelta(seconds=1)
"""Time after which a session continues as new before it idles.

A server delays continue-as-new within a second of an execution's start. The sender of the next message would wait.
"""


class SessionDriver:
    """One execution of a session: its state, its parts, and its active run."""

    def __init__(self, argument: SessionInput) -> None:
        info = workflow.info()
        self.kept = SessionState(argument, info.workflow_id, info.original_execution_run_id[-6:], now())
        self.hooks = SessionHooks(self.kept, is_new=argument.snapshot is None)
        self.transcripts = TranscriptTasks(self.kept, self.hooks)
        self.replies = SessionReplies(self.kept.to_deliver, self.hooks, self._delivered)
        self._pushes = NotificationSender([], None)
        self.turns = RunTurns()
        self.child: ChildRun | None = None
        """The active run."""
        self.ended = False
        self._deleted_by = ""
        self._arrivals = 0
        """Number of arrivals, for tasks that wait for any."""
        self._stepped = False
        """Whether this execution has done anything, so that it must not idle with its history."""
        on_reset(self._note_reset)
        self._left = LeftBehind(lambda: workflow.patched(LEFT_CHILDREN_END))

    def _note_reset(self) -> None:
        running = self.kept.message_queue.state.running
        run_id = None if running is None else self.kept.message_queue.run_id(running.number)
        self.kept.notes.was_reset(run_id, now())
        self.kept.lose_rule_record()

    def arrived(self) -> None:
        """Record that something has come that may change the next step."""
        self._arrivals += 1

    def take_turn(self, run_id: Sent[str]) -> None:
        """Give the run that a signal names its turn."""
        self.arrived()
        if len(run_id) == 1 and isinstance(run_id[0], str):
            self.turns.give(run_id[0])

    def note_waits(self, waits: Sent[RunWaits]) -> None:
        """Record a `RunWaits`: whether the active run, or a run below it, waits for a person."""
        self.arrived()
        if (found := read_one(RunWaits, waits)) is not None:
            self.kept.message_queue.waits(found)
            if (running := self.kept.message_queue.state.running) is not None:
                self.report_status(self.kept.message_queue.run_id(running.number))

    def report_status(self, run_id: str) -> None:
        """Inform the addresses that were named for a run, where they do not know its status."""
        kept = self.kept
        if not kept.webhooks.kept:
            return
        status, error = kept.status_of(run_id)
        about = {"session": kept.key, "tenant": kept.tenant, "agent": kept.agent}
        for wanted in kept.webhooks.report(run_id, status, now(), error=error, **about):
            self._pushes.send(wanted, "")

    def end(self, by: str) -> None:
        """Cancel the active run, and end the session. `by`: the name of who deletes it."""
        self._deleted_by = by
        if (running := self.kept.message_queue.state.running) is not None:
            running.ending = "the session is deleted"
        if self.child is not None:
            self.child.end()
        self.ended = True
        self.arrived()

    def check_open(self) -> None:
        """Raise `MessageRefusedError` where the session has ended."""
        if self.ended:
            raise MessageRefusedError(ENDED)

    def show(self) -> None:
        """Show the session as it stands in the Web UI."""
        workflow.set_current_details(self.kept.details())

    def payload(self, kind: str, name: str) -> Payload:
        """Return a value of the session that was too large to be sent."""
        if kind == HOOK.name:
            return self.hooks.payload(name)
        if kind == CHILD.name:
            child = self.child
            mine = None if child is None else child.id.removeprefix(f"{workflow.info().workflow_id}/")
            return Payload(child.run_input) if child is not None and name == mine else GONE
        return self.transcripts.payload(kind, name)

    async def run(self) -> None:
        """Keep the queue until the session is ended."""
        kept = self.kept
        self.replies.start()
        self.show()
        await self.hooks.begin()
        while not self.ended:
            await self.transcripts.tend()
            if self.ended:
                break
            seen = self._arrivals
            step = kept.message_queue.next(workflow.time())
            self._stepped |= not isinstance(step, QueueIdle)
            if isinstance(step, BeginRun):
                await self._run(step.run)
            elif isinstance(step, RunCommand):
                kept.carry_out(step.command, now())
            elif isinstance(step, WaitUntil):
                await self._until(seen, step.at)
            elif isinstance(step, QueueIdle):
                await self._idle(seen)
            if not isinstance(step, RunCommand) and workflow.all_handlers_finished() and should_continue_as_new():
                if self.replies.busy:
                    await self.replies.pause()
                if workflow.all_handlers_finished():
                    self._go_on()
                self.replies.start()
        self.replies.cancel()
        await workflow.wait_condition(lambda: not self._pushes.starting)
        await workflow.wait_condition(workflow.all_handlers_finished)
        await self.hooks.end()
        await self._audit()
        kept.notes.ended(now())

    async def _audit(self) -> None:
        """Record the deletion in the audit log, where the worker has a sink."""
        if workflow.patched(AUDIT_PATCH):
            info, kept = workflow.info(), self.kept
            found = entry("session_deletion", now(), f"{info.workflow_id}/{info.run_id}/end", {"by": self._deleted_by})
            owned = found.model_copy(update={"tenant": kept.tenant, "session": kept.key, "run": info.workflow_id})
            await send_entries(AuditBatch(entries=[owned]))

    async def _until(self, seen: int, at: float) -> None:
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._arrivals > seen,
                timeout=max(0.001, at - workflow.time()),
                timeout_summary="until nothing more comes to be collected",
            )

    async def _idle(self, seen: int) -> None:
        """Wait for the next arrival, with a history as short as possible."""
        await workflow.wait_condition(
            lambda: (workflow.all_handlers_finished() and not self._busy) or self._arrivals > seen
        )
        used = self._arrivals > 0 or self._stepped or workflow.info().get_current_history_length() > IDLE_EVENTS
        if self._arrivals == seen and used:
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: self._arrivals > seen, timeout=LINGER, timeout_summary="until nobody goes on talking"
                )
                return
            self._go_on()
        await workflow.wait_condition(lambda: self._arrivals > seen)

    def carried(self) -> SessionInput:
        """Return the input with which the session goes on elsewhere. Raise `RunError` while anything is under way."""
        messages = self.kept.message_queue
        if self.ended:
            raise RunError(ENDED)
        if (running := messages.state.running) is not None:
            raise RunError(f"the run {messages.run_id(running.number)} is under way")
        if messages.state.queue:
            raise RunError("messages wait for a run")
        if self.kept.to_deliver:
            raise RunError("a reply is being delivered")
        return self.kept.carried()

    @property
    def _busy(self) -> bool:
        return self.replies.busy or self._left.busy or self._pushes.starting

    def _go_on(self) -> None:
        """Continue as new, unless a run or a reply is under way: it would be lost."""
        if self._busy:
            return
        if self.kept.message_queue.state.running is not None and self.kept.message_queue.state.running.begun:
            return
        carried = self.kept.carried()
        if len(carried.model_dump_json().encode()) <= MAX_PAYLOAD:
            go_on_anew(carried)

    async def _run(self, running: ActiveRun) -> None:
        """Run one run, from its start to its records in the transcript."""
        kept = self.kept
        run_id = kept.message_queue.run_id(running.number)
        local = self.hooks.records_locally  # a marker behind a local activity may be missing in a replay
        await self.turns.take(
            run_id, lambda: running.ending is None and kept.message_queue.state.running is running, local=local
        )
        if kept.message_queue.state.running is not running:  # all that it was to begin with was taken back
            self.turns.leave()
            return
        if running.ending is not None:
            self.turns.leave()
            kept.never_ran(running, now())
            self.report_status(run_id)
            return
        first = running.messages[0]
        own = with_settings(kept.document, first.settings)
        agent = document(own, kept.conversation(running), kept.state, kept.message_texts(running))
        kept.begun(running, now())
        self.child = ChildRun(
            run_id,
            run_input(
                agent,
                kept.delegates,
                kept.sources,
                kept.owner_of(first),
                last_message=running.messages[-1].text,
                requesters=[*dict.fromkeys(each.sender for each in running.messages if each.sender != first.sender)],
                reasons=kept.shows_reasoning,
                rule_record=kept.rule_record,
            ),
            sender=first.sender,
            tenant=kept.tenant,
            searchable=kept.searchable,
            priority=kept.priority,
        )
        self.show()
        started = now()
        try:
            result = await self.child.result(f"{kept.agent}: {first.text}")
        finally:
            self.child = None
            self.turns.leave()
        self.replies.add(kept.ended(running, result, started, now()))
        self.report_status(run_id)
        self.show()

    def _delivered(self, delivery: ReplyDelivery, became: Delivered, text: str) -> None:
        self.arrived()
        self.kept.delivered(delivery, became, text, now())
        self.show()
