"""The delivery of one reply."""

from __future__ import annotations

import functools
import threading
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.active_executions import ActiveExecutions, in_thread, others_poll
from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.secrets import masked
from perdure.hooks.answers import Refused
from perdure.runs.routes import NO_SUCH_ROUTE, Delivered, RouteFunction, RouteFunctions, name_of
from perdure.sessions.replies import DELIVER_ACTIVITY, ReplyDelivery, reply_for_route


class DeliverActivity:
    """The activity that delivers a reply by one of the worker's `routes`."""

    def __init__(self, routes: RouteFunctions, underway: ActiveExecutions | None = None) -> None:
        self._routes = routes
        self._underway = underway or ActiveExecutions()

    @activity.defn(name=DELIVER_ACTIVITY)
    async def deliver(self, delivery: ReplyDelivery) -> Delivered:
        """Call the route's function. Temporal retries its exceptions. Where this worker has no such route, another worker is asked."""
        route = self._routes.get(delivery.route)
        if route is None:
            words = f"this worker has no route {name_of(delivery.route)!r}"
            if await others_poll():
                raise ApplicationError(words, type=NO_SUCH_ROUTE)
            return Delivered(status="refused", why=words)
        async with self._underway.working(f"reply {delivery.key}"), supervised_heartbeat():
            result = await self._call(route, delivery)
        if isinstance(result, Refused):
            return Delivered(status="refused", why=masked(result.reason))
        return Delivered()

    async def _call(self, route: RouteFunction, delivery: ReplyDelivery) -> Any:
        reply = reply_for_route(delivery, delivery.earlier + activity.info().attempt)
        if route.is_async:
            return await route.function(reply)
        given_up = threading.Event()
        work = functools.partial(route.function, reply)
        name = f"reply {delivery.key}"
        return await in_thread(work, name, notify=given_up.set, counts=lambda: self._underway.interrupted)
