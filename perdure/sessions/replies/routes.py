"""`@reply_route("slack")`: a function of the worker's that takes replies where people read them (R10.16)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from perdure.errors import ToolDefinitionError
from perdure.sessions.replies.wire import Delivery, Kind, address_of, name_of

F = TypeVar("F", bound=Callable[..., Any])

REGISTERED: Final = "__perdure_routes__"
_LONGEST: Final = 100


@dataclass(frozen=True)
class Reply:
    """What a route's function is given: one thing to say, for one route."""

    key: str
    """`<run>/<reply>`: names this delivery, the same at every attempt. Who has delivered it under this key does not do so again."""
    text: str
    kind: Kind
    """`answer`, `failure`, or, where the agent's `session.verbose` allows, `reasoning` and `tools`."""
    route: str
    """As the messages name it, `slack:C012`."""
    address: str
    """What of it is behind the name, `C012`."""
    session: str
    tenant: str
    agent: str
    run_id: str
    message_ids: list[str]
    """The messages that it answers, in the order of their acceptance."""
    sender: str
    """Of the first of them."""
    attempt: int
    """1 for the first."""


@dataclass(frozen=True, slots=True)
class RouteFunction:
    """A function that was registered."""

    name: str
    function: Callable[..., Any]
    is_async: bool


def reply_route(name: str, /) -> Callable[[F], F]:
    """Have replies to messages of this route, `name` or `name:address`, given to a function, sync or async (R10.16).

    The function takes a `Reply` and delivers it under its `key`. It returns nothing, or `refuse("why")` where that can never be delivered.
    The engine retries what it raises, six attempts in all; after that nobody knows whether it has arrived (`perdure session redeliver`). Attempts
    wait for a worker for as long as there is none. Sync functions run in threads.

    Raises `ToolDefinitionError` for a name with a colon in it, and for a function that takes no `Reply`.
    """
    if not (0 < len(name) <= _LONGEST and name.isprintable()) or ":" in name or name != name.strip():
        raise ToolDefinitionError(
            f"{name!r} cannot name a route: 1 to {_LONGEST} printable characters, without a colon"
        )

    def decorate(function: F) -> F:
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            raise ToolDefinitionError(
                f"the route {name!r} has a function that takes no reply: one parameter is given"
            ) from None
        made = RouteFunction(name, function, inspect.iscoroutinefunction(function))
        setattr(function, REGISTERED, [*routes_of(function), made])
        return function

    return decorate


def routes_of(value: Any) -> list[RouteFunction]:
    """The routes that a decorated function is registered for."""
    found = getattr(value, REGISTERED, None)
    return found if isinstance(found, list) and all(isinstance(each, RouteFunction) for each in found) else []


def reply_of(delivery: Delivery, attempt: int) -> Reply:
    """What the function is given."""
    return Reply(
        key=delivery.key,
        text=delivery.text,
        kind=delivery.kind,
        route=delivery.route,
        address=address_of(delivery.route),
        session=delivery.session,
        tenant=delivery.tenant,
        agent=delivery.agent,
        run_id=delivery.run_id,
        message_ids=delivery.message_ids,
        sender=delivery.sender,
        attempt=attempt,
    )


class Routes:
    """Those that a worker has, by name. Two functions of one name are refused: which one delivers would be a matter of luck."""

    def __init__(self) -> None:
        self._functions: dict[str, RouteFunction] = {}

    def add(self, route: RouteFunction) -> None:
        """Raises `ToolDefinitionError` when another function already has the name."""
        known = self._functions.setdefault(route.name, route)
        if known.function is not route.function:
            raise ToolDefinitionError(
                f"two functions deliver to {route.name!r}: in {known.function.__module__} and {route.function.__module__}"
            )

    def get(self, route: str) -> RouteFunction | None:
        """Of a message's route, whatever stands behind its name."""
        return self._functions.get(name_of(route))

    def __iter__(self) -> Iterator[RouteFunction]:
        return iter(self._functions.values())

    def __len__(self) -> int:
        return len(self._functions)
