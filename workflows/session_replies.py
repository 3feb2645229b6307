"""Replies of a session: delivered one after the other, beside its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy

from perdure.workflows.deliveries import deliver
from perdure.workflows.session_hooks import SessionHooks

with workflow.unsafe.imports_passed_through():
    from perdure.runs.routes import Delivered
    from perdure.sessions.replies import ATTEMPTS, DELIVER_ACTIVITY, ReplyDelivery


_RETRY: Final = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=2), maximum_attempts=ATTEMPTS
)


class SessionReplies:
    """The replies of a session, delivered in their order as `hooks` change them. `on_end` receives each outcome and
    text.
    """

    def __init__(
        self, waiting: list[ReplyDelivery], hooks: SessionHooks, on_end: Callable[[ReplyDelivery, Delivered, str], None]
    ) -> None:
        self.waiting = waiting
        """Replies that are not delivered, the one under way first; the caller's own list."""
        self._hooks = hooks
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._paused = False

    @property
    def busy(self) -> bool:
        """Whether a delivery is under way, which a new execution would lose."""
        return self._task is not None and not self._task.done()

    def add(self, deliveries: Iterable[ReplyDelivery]) -> None:
        """Add deliveries behind the present ones."""
        self.waiting += deliveries
        self.start()

    def start(self) -> None:
        """Start to deliver the waiting replies."""
        self._paused = False
        if self.waiting and not self.busy:
            self._task = asyncio.create_task(self._deliver_all())

    async def pause(self) -> None:
        """Begin no further delivery, and wait for the one under way."""
        self._paused = True
        await workflow.wait_condition(lambda: not self.busy)

    def cancel(self) -> None:
        """Cancel all deliveries."""
        self.waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _deliver_all(self) -> None:
        while self.waiting and not self._paused:
            delivery = self.waiting[0]
            became, text = await self._one(delivery)
            del self.waiting[:1]
            self._on_end(delivery, became, text)
            await self._hooks.sent(delivery, text, became.status)

    async def _one(self, delivery: ReplyDelivery) -> tuple[Delivered, str]:
        """Deliver one reply; return its outcome and its text."""
        text, refused = await self._hooks.sending(delivery)
        if refused is not None:
            return Delivered(status="refused", why=refused), text
        sent = delivery if text == delivery.text else delivery.model_copy(update={"text": text})
        return await deliver(DELIVER_ACTIVITY, sent, _RETRY, f"{delivery.kind} → {delivery.route}"), text
