"""Deliveries: notifications by Apprise, a signed webhook or a worker's function, and replies by a function (R19.5,
R19.8, R24.2).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import httpx2
from standardwebhooks import Webhook
from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.active_executions import ActiveExecutions, exits_as_errors, in_thread, others_poll
from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.http_addresses import names_host, post
from perdure.activities.secrets import mask_text
from perdure.errors import SettingsError, ToolError
from perdure.hooks.answers import Refused
from perdure.runs.notifications import (
    NOTIFY_ACTIVITY,
    TITLES,
    Notification,
    NotificationDelivery,
    StatusPush,
    WebhookRoute,
    host_of,
    message_body,
    webhook_id,
    without_markup,
)
from perdure.runs.routes import NO_SUCH_ROUTE, Delivered, RouteFunction, RouteFunctions, name_of
from perdure.runs.wire import PrepareInput
from perdure.sessions.replies import DELIVER_ACTIVITY, Reply, ReplyDelivery, reply_for_route
from perdure.values.json import JsonObject, dumps
from perdure.values.problems import close_names

_ANSWERS_WITHIN: Final = 20.0
"""Seconds for a receiver of a webhook, or for a service of Apprise."""
_LONGEST_PAUSE: Final = timedelta(hours=1)
_GONE: Final = 410
"""Status of a receiver that wants no further webhooks, by Standard Webhooks."""


class NotificationRoutes:
    """The routes of a worker: those of its settings, and its functions; and the hosts that callbacks may go to."""

    def __init__(
        self,
        settings: Mapping[str, str | WebhookRoute],
        functions: RouteFunctions,
        callback_hosts: Sequence[str] = (),
        callback_secret: str | None = None,
    ) -> None:
        self._settings = settings
        self._functions = functions
        self._callback_hosts = callback_hosts
        self._callback_secret = callback_secret
        if any(isinstance(each, str) for each in settings.values()):
            check_apprise(settings)

    def find(self, route: str) -> str | WebhookRoute | RouteFunction | None:
        """Return a route by its name; `None` if the worker has no such route. A route of the settings takes no address."""
        if (name := name_of(route)) in self._settings:
            return self._settings[name] if name == route else None
        return self._functions.get(route)

    def problem(self, wanted: PrepareInput) -> str:
        """Return the reason why this worker cannot deliver a run's notifications or its callback; empty if it can."""
        for place, routes in wanted.notify.items():
            if lacking := [route for route in routes if self.find(route) is None]:
                name = name_of(lacking[0])
                if name in self._settings:
                    return f"config.notify.{place}: {lacking[0]!r}: the route {name!r} is a setting, which needs no address"
                return f"config.notify.{place}: the worker has no notification route {name!r}{self._hint(name)}"
        problem = self.callback_problem(wanted.callback) if wanted.callback else ""
        return f"the callback: {problem}" if problem else ""

    def callback_problem(self, address: str) -> str:
        """Return the reason why the end of a run may not be sent to this address; empty if it may."""
        if not self._callback_hosts or self._callback_secret is None:
            return "the worker sends no callbacks: set callback_hosts and callback_secret"
        try:
            host = httpx2.URL(address).host
        except httpx2.InvalidURL:
            return f"{address[:100]!r} is not a URL"
        if not names_host(self._callback_hosts, host):
            return f"the host {host} is not allowed; the worker allows {', '.join(self._callback_hosts)}"
        return ""

    def callback(self) -> tuple[Sequence[str], str]:
        """Return the hosts that callbacks may go to, and the secret that signs them."""
        return self._callback_hosts, self._callback_secret or ""

    def _hint(self, name: str) -> str:
        known = [*self._settings, *(each.name for each in self._functions)]
        return f"; it has {', '.join(close_names(name, known))}" if known else "; it has none (notification_routes)"


def check_apprise(routes: Mapping[str, str | WebhookRoute]) -> None:
    """Raise `SettingsError` for the address of a route that Apprise cannot read. The address is a secret."""
    try:
        import apprise  # the import takes a second, which a worker without such routes does not need
    except ImportError:
        raise SettingsError("notification_routes need the package apprise: pip install 'perdure[notify]'") from None
    for name, address in routes.items():
        if isinstance(address, str) and apprise.Apprise.instantiate(address, suppress_exceptions=True) is None:
            raise SettingsError(
                f"notification_routes.{name}: Apprise does not support this URL; see https://appriseit.com/services/"
            )


class NotifyActivity:
    """The activity that delivers a notification to one route. `routes`: the worker's."""

    def __init__(self, routes: NotificationRoutes, underway: ActiveExecutions | None = None) -> None:
        self._routes = routes
        self._underway = underway or ActiveExecutions()

    @activity.defn(name=NOTIFY_ACTIVITY)
    async def notify(self, delivery: NotificationDelivery) -> Delivered:
        """Deliver a notification to its route. A failure is retried. If this worker has no such route, another worker
        is asked.
        """
        attempt = delivery.earlier + activity.info().attempt
        notification = delivery.notification.model_copy(update={"attempt": attempt})
        async with self._underway.working(f"notification {notification.key}"), supervised_heartbeat():
            if delivery.callback:
                return await self._call_back(delivery.callback, notification, delivery.push)
            return await self._to_route(notification)

    async def _to_route(self, notification: Notification) -> Delivered:
        match self._routes.find(notification.route):
            case str() as address:
                return await _by_apprise(address, notification)
            case WebhookRoute() as route:
                return await _post(route.url, [httpx2.URL(route.url).host], route.secret, notification)
            case RouteFunction() as route:
                return await _by_function(route, notification, f"notification {notification.key}", self._underway)
        return await _not_here(f"this worker has no notification route {name_of(notification.route)!r}")

    async def _call_back(self, address: str, notification: Notification, push: StatusPush | None) -> Delivered:
        if problem := self._routes.callback_problem(address):
            return await _not_here(problem)
        hosts, secret = self._routes.callback()
        return await _post(address, hosts, secret, notification, push)


class DeliverActivity:
    """The activity that delivers a reply by one of the worker's `routes`."""

    def __init__(self, routes: RouteFunctions, underway: ActiveExecutions | None = None) -> None:
        self._routes = routes
        self._underway = underway or ActiveExecutions()

    @activity.defn(name=DELIVER_ACTIVITY)
    async def deliver(self, delivery: ReplyDelivery) -> Delivered:
        """Call the route's function. Temporal retries its exceptions. If this worker has no such route, another worker
        is asked.
        """
        route = self._routes.get(delivery.route)
        if route is None:
            return await _not_here(f"this worker has no route {name_of(delivery.route)!r}")
        async with self._underway.working(f"reply {delivery.key}"), supervised_heartbeat():
            reply = reply_for_route(delivery, delivery.earlier + activity.info().attempt)
            return await _by_function(route, reply, f"reply {delivery.key}", self._underway)


async def _not_here(why: str) -> Delivered:
    """Return a refusal. If other workers poll, raise a failure, so that Temporal tries one of them."""
    if await others_poll():
        raise ApplicationError(why, type=NO_SUCH_ROUTE)
    return _refused(why)


def _refused(why: str) -> Delivered:
    return Delivered(status="refused", why=why)


async def _by_function(
    route: RouteFunction, message: Notification | Reply, title: str, underway: ActiveExecutions
) -> Delivered:
    """Call a route's function. Its exceptions are failures."""
    if route.is_async:
        with exits_as_errors():
            result = await route.function(message)
    else:
        work = functools.partial(route.function, message)
        result = await in_thread(work, title, counts=lambda: underway.interrupted)
    return _refused(mask_text(result.reason)) if isinstance(result, Refused) else Delivered()


async def _by_apprise(address: str, notification: Notification) -> Delivered:
    """Send the text by Apprise, as text: it converts it to the form that the service takes."""
    import apprise

    title = f"{TITLES[notification.kind]}: {without_markup(notification.agent)}"
    sent = apprise.Apprise()
    if not sent.add(address):
        return _refused(f"Apprise does not support the URL of the route {notification.route!r}")
    kind = apprise.NotifyType.FAILURE if notification.kind == "run_failed" else apprise.NotifyType.INFO
    taken = await sent.async_notify(
        body=message_body(notification),
        title=title,
        notify_type=kind,
        body_format=apprise.NotifyFormat.TEXT,
        timeout=_ANSWERS_WITHIN,
    )
    if not taken:  # its message may hold the address, which is a secret
        service = address.partition("://")[0]
        raise ApplicationError(f"the service {service} of the route {notification.route!r} rejected the notification")
    return Delivered()


def webhook_body(notification: Notification) -> JsonObject:
    """Return the body of a webhook, in the form that Standard Webhooks recommends."""
    data = notification.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"kind", "at", "route", "attempt"}
    )
    data = {key: value for key, value in data.items() if key == "output" or value not in ("", [], {})}
    if not notification.question:
        data.pop("question", None)
    if not notification.output_size:
        data.pop("outputSize", None)
    return {"type": notification.kind, "timestamp": notification.at, "data": data}


def sign_webhook(key: str, secret: str, body: str, at: datetime) -> dict[str, str]:
    """Return the headers of a signed webhook: Standard Webhooks, `v1`."""
    id = webhook_id(key)
    return {
        "webhook-id": id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(msg_id=id, timestamp=at, data=body),
        "content-type": "application/json",
        "user-agent": "perdure",
    }


async def _post(
    address: str, hosts: Sequence[str], secret: str, notification: Notification, push: StatusPush | None = None
) -> Delivered:
    body = dumps(webhook_body(notification) if push is None else push.body)
    headers = sign_webhook(notification.key, secret, body, datetime.now(UTC))
    if push is not None and push.token:
        headers["x-a2a-notification-token"] = push.token
    if push is not None and push.authorization:
        headers["authorization"] = push.authorization
    host = host_of(address)
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            status, pause = await post(address, headers, body, hosts)
    except TimeoutError:
        raise ApplicationError(f"{host} did not answer within {_ANSWERS_WITHIN:g} s") from None
    except ToolError as error:
        if error.code == "not_allowed":
            return _refused(error.message)
        raise ApplicationError(error.message) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        raise ApplicationError(f"{host} cannot be reached: {error or type(error).__name__}") from None
    if 200 <= status < 300:
        return Delivered()
    if status == _GONE:
        return _refused(f"{host} accepts no more deliveries (410 Gone)")
    if 300 <= status < 400:
        return _refused(f"{host} redirects ({status}); webhooks do not follow redirects")
    least = 2.0 ** (min(activity.info().attempt, 12) - 1)  # a receiver cannot make the attempts end earlier
    later = None if pause is None else min(timedelta(seconds=max(pause, least)), _LONGEST_PAUSE)
    raise ApplicationError(f"{host} answered with status {status}", next_retry_delay=later)
