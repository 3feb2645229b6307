"""Hooks of a session: its beginning and end, what comes in, what goes out, what is compacted (R10.17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Final, TypeVar

from temporalio import workflow

from perdure.workflows.hooks.hooking import Hooked

with workflow.unsafe.imports_passed_through():
    from perdure.errors import MessageRefusedError
    from perdure.hooks.events import (
        AfterCompaction,
        BeforeCompaction,
        Command,
        HookEvent,
        MessageReceived,
        MessageSending,
        MessageSent,
        SessionEnd,
        SessionStart,
    )
    from perdure.hooks.matching import Hooks
    from perdure.hooks.wire import SESSION_HOOKS_ACTIVITY, HookAnswer, HookRef
    from perdure.sessions.entries import CompactionEntry
    from perdure.sessions.replies.wire import Delivery
    from perdure.values.jsons import dumps
    from perdure.values.limits import MAX_ADDITION

E = TypeVar("E", bound=HookEvent)

_PATCH: Final = "session-hooks"
_SECONDS: Final = timedelta(seconds=10)


class SessionHooks(Hooked):
    """What a session's workflow asks its hooks. Where its worker has none of a session's, nothing is recorded, asked or waited for."""

    OFFERS_HOOKS: ClassVar[bool] = False
    """Whether this worker has any: said by the class that it registers, so that only who has some asks which."""

    def __init__(self) -> None:
        super().__init__()
        self._has_hooks: bool | None = None
        self._began = False
        self._one_by_one = asyncio.Lock()
        """So that messages are accepted in the order in which they came in."""
        self._who: Callable[[], tuple[str, str, str, bool]] = lambda: ("", "", "", False)
        """The session's key, its agent's name, its tenant, and whether it begins with this execution."""

    def has_hooks(self) -> bool:
        """Whether this execution has hooks. A marker says so in the history, and none that there are not."""
        if self._has_hooks is None:
            asks = self.OFFERS_HOOKS or workflow.unsafe.is_replaying()
            self._has_hooks = asks and workflow.patched(_PATCH)
        return self._has_hooks

    async def begin_hooks(self) -> None:
        """Record which there are, once for an execution, and tell them that a session begins."""
        if not self.has_hooks():
            return
        async with self._one_by_one:
            await self._begin()

    async def _begin(self) -> None:
        if self._began:
            return
        recorded: list[HookRef] = await workflow.execute_local_activity(
            SESSION_HOOKS_ACTIVITY, result_type=list[HookRef], start_to_close_timeout=_SECONDS
        )
        self._hooking.hooks, self._began = Hooks(recorded), True
        if self._who()[3]:
            await self._ask("session_start", SessionStart, workflow.info().first_execution_run_id)

    async def end_hooks(self) -> None:
        """The session is deleted."""
        if self.has_hooks():
            await self._ask("session_end", SessionEnd, workflow.info().first_execution_run_id)

    async def received(self, message_id: str, sender: str, text: str, **more: Any) -> str:
        """The text of a message as it is to be accepted. Raises `MessageRefusedError` where a hook refuses it.

        Called within `in_turn`.
        """
        of = {"sender": sender, "message_id": message_id, "text": text, **more}
        answer = await self._ask("message_received", MessageReceived, _place(sender, message_id), lambda: of)
        if answer is not None and answer.refused is not None:
            raise MessageRefusedError(answer.refused)
        return text if answer is None or answer.changed is None else str(answer.changed["text"])

    async def commanded(self, message_id: str, sender: str, command: str) -> None:
        """A command was accepted."""
        if self.has_hooks():
            of = {"sender": sender, "message_id": message_id, "command": command}
            await self._ask("command", Command, _place(sender, message_id), lambda: of)

    async def may_compact(self, reason: str, tokens: int, text: Callable[[], str]) -> tuple[str | None, str]:
        """Why the conversation is not to be compacted now, and what is to stand behind its summary. `text` gives what is compacted."""
        if not self.has_hooks():
            return None, ""
        of = {"reason": reason, "tokens": tokens}
        answer = await self._ask("before_compaction", BeforeCompaction, self._time(), lambda: of | {"text": text()})
        if answer is None:
            return None, ""
        return answer.refused, str((answer.changed or {}).get("addition", ""))[:MAX_ADDITION]

    async def tell_compacted(self, entry: CompactionEntry) -> None:
        if self.has_hooks():
            of = {"kind": entry.kind, "text": entry.text, "before": entry.before, "after": entry.after}
            await self._ask("after_compaction", AfterCompaction, self._time(), lambda: of)

    async def sending(self, delivery: Delivery) -> tuple[str, str | None]:
        """The text of a reply as it is to be delivered, and why it is not."""
        text = delivery.text
        if not self.has_hooks():
            return text, None
        answer = await self._ask("message_sending", MessageSending, delivery.key, lambda: _of_reply(delivery, text))
        if answer is None or answer.refused is not None:
            return text, None if answer is None else answer.refused
        return (text if answer.changed is None else str(answer.changed["text"])), None

    async def sent(self, delivery: Delivery, text: str, status: str) -> None:
        """What became of a reply: `delivered`, `refused` or `unknown`."""
        if self.has_hooks():
            of = _of_reply(delivery, text) | {"status": status}
            await self._ask("message_sent", MessageSent, delivery.key, lambda: of)

    async def _ask(
        self, name: str, event: type[E], what: str, fields: Callable[[], dict[str, Any]] = dict
    ) -> HookAnswer | None:
        """Ask at the point that `what` names, once in the session."""
        if not self._began:
            await self.begin_hooks()
        key, agent, tenant, _ = self._who()
        point = f"{workflow.info().workflow_id}/{what}/{name}"
        at = workflow.now().isoformat(timespec="milliseconds")
        return await self._hooking.ask(
            name,
            lambda: event(key=point, at=at, session=key, agent=agent, tenant=tenant, **fields()),
        )

    def _time(self) -> str:
        return f"{workflow.now():%Y%m%dT%H%M%S%f}"


def _place(sender: str, message_id: str) -> str:
    """Name a message: its id is its sender's, and may be another's as well."""
    return f"{dumps(sender)}/{message_id}" if sender else message_id


def _of_reply(delivery: Delivery, text: str) -> dict[str, Any]:
    return {
        "run_id": delivery.run_id,
        "sender": delivery.sender,
        "reply": delivery.key,
        "route": delivery.route,
        "text": text,
    }
