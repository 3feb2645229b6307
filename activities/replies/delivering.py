"""Delivering one reply (R10.16)."""

from __future__ import annotations

import functools
import threading
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.secrets import masked
from perdure.activities.underway.elsewhere import others_poll
from perdure.activities.underway.ending import Underway
from perdure.activities.underway.threads import in_thread
from perdure.hooks.answers import Refused
from perdure.sessions.replies.routes import RouteFunction, Routes, reply_of
from perdure.sessions.replies.wire import DELIVER_ACTIVITY, NO_SUCH_ROUTE, Delivered, Delivery, name_of


class DeliverActivity:
    """`routes`: the worker's."""

    def __init__(self, routes: Routes, underway: Underway | None = None) -> None:
        self._routes = routes
        self._underway = underway or Underway()

    @activity.defn(name=DELIVER_ACTIVITY)
    async def deliver(self, delivery: Delivery) -> Delivered:
        """Give it to the route's function. What that raises is tried again; where this worker has no such route, another is asked."""
        route = self._routes.get(delivery.route)
        if route is None:
            words = f"this worker has no route {name_of(delivery.route)!r}"
            if await others_poll():
                raise ApplicationError(words, type=NO_SUCH_ROUTE)
            return Delivered(status="refused", why=words)
        async with self._underway.working(f"reply {delivery.key}"), supervised_heartbeat():
            said = await self._call(route, delivery)
        if isinstance(said, Refused):
            return Delivered(status="refused", why=masked(said.reason))
        return Delivered()

    async def _call(self, route: RouteFunction, delivery: Delivery) -> Any:
        reply = reply_of(delivery, delivery.earlier + activity.info().attempt)
        if route.is_async:
            return await route.function(reply)
        given_up = threading.Event()
        work = functools.partial(route.function, reply)
        name = f"reply {delivery.key}"
        return await in_thread(work, name, tell=given_up.set, counts=lambda: self._underway.interrupted)
