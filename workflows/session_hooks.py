"""Hooks of a session: of its messages, its compactions and its replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from temporalio import workflow

from perdure.workflows.dispatch import ask_worker
from perdure.workflows.hooks import ExecutionHooks
from perdure.workflows.observability import now

with workflow.unsafe.imports_passed_through():
    from perdure.errors import MessageRefusedError
    from perdure.hooks.answers import Hooks
    from perdure.hooks.events import (
        LOCAL_SESSION_HOOKS_PATCH,
        SESSION_HOOKS_ACTIVITY,
        SESSION_HOOKS_PATCH,
        AfterCompaction,
        BeforeCompaction,
        Command,
        HookAnswer,
        HookEvent,
        HookRef,
        MessageReceived,
        MessageSending,
        MessageSent,
        SessionEnd,
        SessionStart,
    )
    from perdure.runs.claim_check import Payload
    from perdure.sessions.entries import CompactionEntry
    from perdure.sessions.replies import ReplyDelivery
    from perdure.sessions.state import SessionState
    from perdure.values.json import JsonObject, dumps
    from perdure.values.limits import MAX_ADDITION


E = TypeVar("E", bound=HookEvent)


class SessionHooks:
    """The hooks of a session's execution. Where its worker has none, nothing is recorded or scheduled.

    `is_new` returns whether the session begins with this execution. It is called only where there are hooks.
    """

    def __init__(self, kept: SessionState, is_new: Callable[[], bool]) -> None:
        self.in_turn = asyncio.Lock()
        """Lock that keeps messages in the order of their arrival while hooks see them."""
        self._kept = kept
        self._is_new = is_new
        self.first_sender = ""
        """The sender of the first message of this execution."""
        self._began = False
        self._recording = asyncio.Lock()
        self._hooking = ExecutionHooks(kept.notes.hooks(now))

    def payload(self, key: str) -> Payload:
        """Return the event by its key, while hooks are called with it."""
        return self._hooking.payload(key)

    def has_hooks(self) -> bool:
        """Whether this execution has hooks. A marker in the history records that; without hooks there is no marker.

        The worker decides: see `perdure.hosting._worker_parts.WorkerParts.activates`.
        """
        return workflow.patched(SESSION_HOOKS_PATCH) or workflow.patched(LOCAL_SESSION_HOOKS_PATCH)

    @property
    def records_locally(self) -> bool:
        """Whether this execution has recorded its hooks by a local activity, as 0.1.0 did at the start of each."""
        return not workflow.patched(SESSION_HOOKS_PATCH) and workflow.patched(LOCAL_SESSION_HOOKS_PATCH)

    async def begin(self) -> None:
        """Report that a session begins. An execution records its hooks when it needs them first."""
        if self.has_hooks() and (self._is_new() or self.records_locally):
            async with self.in_turn:
                await self.begin_in_turn()

    async def begin_in_turn(self) -> None:
        """Do as `begin` does, in an execution that has hooks, for a task that holds the lock."""
        if self._began:
            return
        await self._record()
        if self._is_new():
            of = {"sender": self.first_sender}
            await self._ask("session_start", SessionStart, workflow.info().first_execution_run_id, lambda: of)

    async def _record(self) -> None:
        """Record the hooks, once for an execution."""
        async with self._recording:
            if self._began:
                return
            local = self.records_locally
            recorded: list[HookRef] = await ask_worker(SESSION_HOOKS_ACTIVITY, None, list[HookRef], local=local)
            self._hooking.hooks, self._began = Hooks(recorded), True

    async def end(self, by: str) -> None:
        """Report the end of the session. `by`: who has deleted it."""
        if self.has_hooks():
            await self._ask("session_end", SessionEnd, workflow.info().first_execution_run_id, lambda: {"sender": by})

    async def received(self, message_id: str, sender: str, text: str, **more: Any) -> str:
        """Return the text of a message as hooks accept it. Raise `MessageRefusedError` where a hook refuses it.

        Call it within `in_turn`.
        """
        of = {"sender": sender, "message_id": message_id, "text": text, **more}
        answer = await self._ask("message_received", MessageReceived, _place(sender, message_id), lambda: of)
        if answer is not None and answer.refused is not None:
            raise MessageRefusedError(answer.refused)
        return text if answer is None or answer.changed is None else str(answer.changed["text"])

    async def commanded(self, message_id: str, sender: str, command: str) -> None:
        """Report that a command was accepted."""
        if self.has_hooks():
            of = {"sender": sender, "message_id": message_id, "command": command}
            await self._ask("command", Command, _place(sender, message_id), lambda: of)

    async def may_compact(self, reason: str, tokens: int, text: Callable[[], str], by: str) -> tuple[str | None, str]:
        """Return the reason why hooks refuse a compaction, and their addition to its summary. `text` returns the
        compacted text. `by`: who has requested the compaction; empty: the session.
        """
        if not self.has_hooks():
            return None, ""
        of = {**self._of_compaction(by), "reason": reason, "tokens": tokens}
        answer = await self._ask("before_compaction", BeforeCompaction, self._time(), lambda: of | {"text": text()})
        if answer is None:
            return None, ""
        return answer.refused, str((answer.changed or {}).get("addition", ""))[:MAX_ADDITION]

    async def call_compaction_hooks(self, entry: CompactionEntry, by: str) -> None:
        if self.has_hooks():
            of = {"kind": entry.kind, "text": entry.text, "before": entry.before, "after": entry.after}
            of |= self._of_compaction(by)
            await self._ask("after_compaction", AfterCompaction, self._time(), lambda: of)

    def _of_compaction(self, by: str) -> dict[str, Any]:
        """Return the run and the sender of a compaction. Between two runs it belongs to the run before it."""
        return self._kept.latest_run | ({"sender": by} if by else {})

    async def sending(self, delivery: ReplyDelivery) -> HookAnswer | None:
        """Return the answer of the hooks that see a reply before its delivery; `None`: there are none."""
        if not self.has_hooks():
            return None
        of = _of_reply(delivery, delivery.text)
        return await self._ask("message_sending", MessageSending, delivery.key, lambda: of)

    async def sent(self, delivery: ReplyDelivery, text: str, status: str, *, is_redelivery: bool) -> None:
        """Report the outcome of a reply: `delivered`, `refused` or `unknown`.

        `is_redelivery`: an earlier outcome was reported under the reply's key.
        """
        if self.has_hooks():
            of = _of_reply(delivery, text) | {"status": status}
            what = f"{delivery.key}/{self._time()}" if is_redelivery else delivery.key
            await self._ask("message_sent", MessageSent, what, lambda: of)

    async def _ask(
        self, name: str, event: type[E], what: str, fields: Callable[[], dict[str, Any]] = dict
    ) -> HookAnswer | None:
        """Call hooks at the point that `what` names, once in the session."""
        if not self._began:
            await (self.begin() if self._is_new() or self.records_locally else self._record())
        kept = self._kept
        point = f"{workflow.info().workflow_id}/{what}/{name}"
        about = {"key": point, "at": now(), "session": kept.key, "agent": kept.agent, "tenant": kept.tenant}
        about |= kept.active_run
        return await self._hooking.ask(name, lambda: event.model_validate({**about, **fields()}))

    def _time(self) -> str:
        return f"{workflow.now():%Y%m%dT%H%M%S%f}"


def _place(sender: str, message_id: str) -> str:
    """Return the name of a message: its id belongs to its sender, and another sender may use the same one."""
    return f"{dumps(sender)}/{message_id}" if sender else message_id


def _of_reply(delivery: ReplyDelivery, text: str) -> JsonObject:
    return {
        "run_id": delivery.run_id,
        "sender": delivery.sender,
        "reply": delivery.key,
        "route": delivery.route,
        "text": text,
    }
