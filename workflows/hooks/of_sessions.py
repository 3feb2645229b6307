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
            await self._ask("session_start", SessionStart, "")

    async def end_hooks(self) -> None:
        """The session is deleted."""
        if self.has_hooks():
            await self._ask("session_end", SessionEnd, "")

    async def received(self, message_id: str, sender: str, text: str, **more: Any) -> str:
        """The text of a message as it is to be accepted. Raises `MessageRefusedError` where a hook refuses it.

        Called within `in_turn`.
        """
        answer = await self._ask(
            "message_received", MessageReceived, message_id, sender=sender, message_id=message_id, text=text, **more
        )
        if answer is not None and answer.refused is not None:
            raise MessageRefusedError(answer.refused)
        return text if answer is None or answer.changed is None else str(answer.changed["text"])

    async def commanded(self, message_id: str, sender: str, command: str) -> None:
        """A command was accepted."""
        if self.has_hooks():
            of = {"sender": sender, "message_id": message_id, "command": command}
            await self._ask("command", Command, message_id, **of)

    async def may_compact(self, reason: str, tokens: int) -> str | None:
        """Why the conversation is not to be compacted now."""
        if not self.has_hooks():
            return None
        answer = await self._ask("before_compaction", BeforeCompaction, self._time(), reason=reason, tokens=tokens)
        return None if answer is None else answer.refused

    async def tell_compacted(self, kind: str, before: int, after: int) -> None:
        if self.has_hooks():
            await self._ask("after_compaction", AfterCompaction, self._time(), kind=kind, before=before, after=after)

    async def sending(self, reply: str, route: str, text: str, sender: str = "") -> tuple[str, str | None]:
        """The text of a reply as it is to be delivered, and why it is not. `reply` is the key of its delivery, `<run>/<reply>`."""
        if not self.has_hooks():
            return text, None
        of = {"sender": sender, "reply": reply, "route": route, "text": text}
        answer = await self._ask("message_sending", MessageSending, reply, **of)
        if answer is None or answer.refused is not None:
            return text, None if answer is None else answer.refused
        return (text if answer.changed is None else str(answer.changed["text"])), None

    async def sent(self, reply: str, route: str, text: str, status: str) -> None:
        """What became of a reply: `delivered`, `refused` or `unknown`."""
        if self.has_hooks():
            await self._ask("message_sent", MessageSent, reply, reply=reply, route=route, text=text, status=status)

    async def _ask(self, name: str, event: type[E], what: str, **fields: Any) -> HookAnswer | None:
        if not self._began:
            await self.begin_hooks()
        key, agent, tenant, _ = self._who()
        session_id = workflow.info().workflow_id
        place = f"{session_id}/{what}" if what else session_id
        at = workflow.now().isoformat(timespec="milliseconds")
        return await self._hooking.ask(
            name,
            lambda: event(key=f"{place}/{name}", at=at, session=key, agent=agent, tenant=tenant, **fields),
        )

    def _time(self) -> str:
        return f"{workflow.now():%Y%m%dT%H%M%S%f}"
