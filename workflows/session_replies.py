"""Replies of a session: delivered one after the other, beside its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from perdure.workflows.failures import kind_of, message_of
from perdure.workflows.session_hooks import SessionHooks

with workflow.unsafe.imports_passed_through():
    from perdure.plan import INTERRUPTED
    from perdure.runs.views import summary as line
    from perdure.sessions.replies import ATTEMPTS, DELIVER_ACTIVITY, NO_SUCH_ROUTE, Delivered, ReplyDelivery


_ATTEMPT: Final = timedelta(seconds=60)
"""Time of one attempt. The whole delivery has no timeout: it waits for a worker for as long as there is none (R24.2).
"""
_ALIVE: Final = timedelta(seconds=20)


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
        return await _deliver(delivery if text == delivery.text else delivery.model_copy(update={"text": text})), text


async def _deliver(delivery: ReplyDelivery) -> Delivered:
    """Deliver a reply and return its outcome. An attempt whose worker is shut down does not count."""
    while True:
        try:
            return await _try(delivery)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            kind = kind_of(error)
            if kind == INTERRUPTED:
                delivery = delivery.model_copy(update={"earlier": delivery.earlier + _attempts(error)})
                continue
            return Delivered(status="refused" if kind == NO_SUCH_ROUTE else "unknown", why=message_of(error))


def _attempts(error: ActivityError) -> int:
    """Return the number of attempts, as the worker that was shut down reports it."""
    said = error.cause.details[:1] if isinstance(error.cause, ApplicationError) else ()
    return said[0] if said and isinstance(said[0], int) else 1


async def _try(delivery: ReplyDelivery) -> Delivered:
    became: Delivered = await workflow.execute_activity(
        DELIVER_ACTIVITY,
        delivery,
        result_type=Delivered,
        start_to_close_timeout=_ATTEMPT,
        heartbeat_timeout=_ALIVE,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=2), maximum_attempts=ATTEMPTS
        ),
        summary=line(f"{delivery.kind} → {delivery.route}"),
    )
    return became
