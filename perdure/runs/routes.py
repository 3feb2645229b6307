"""Routes of a worker: functions by name that deliver texts, and the outcome of a delivery."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

from perdure.errors import ToolDefinitionError, clip
from perdure.values.json import WireModel
from perdure.values.registration import check_outermost, check_target

NO_SUCH_ROUTE: Final = "NoSuchRoute"
"""Type of the failure of a worker that lacks the route, while another may have it."""
DeliveryStatus: TypeAlias = Literal["delivered", "refused", "unknown"]
"""Status of a delivery; `unknown`: it was tried, and its arrival is not known."""
F = TypeVar("F", bound=Callable[..., Any])

LONGEST_ROUTE: Final = 200
"""Characters of a route, its address included."""
_LONGEST_NAME: Final = 100


class Delivered(WireModel):
    """The outcome of a delivery."""

    status: DeliveryStatus = "delivered"
    why: str | None = None
    """Reason why it was refused, or why its outcome is unknown."""


def name_of(route: str) -> str:
    """Return the part of a route that names the function."""
    return route.partition(":")[0]


def address_of(route: str) -> str:
    """Return the part after the name, which the function parses; `""` if there is none."""
    return route.partition(":")[2]


def is_route_name(name: str) -> bool:
    """Whether a route may have this name: 1 to 100 printable characters, without a colon."""
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable() and ":" not in name and name == name.strip()


@dataclass(frozen=True, slots=True)
class RouteFunction:
    """A function that was registered."""

    name: str
    function: Callable[..., Any]
    is_async: bool


def decorated_route(name: str, registered: str, takes: str) -> Callable[[F], F]:
    """Return a decorator that registers a function for the route `name`, under the attribute `registered`.

    `takes`: the function's one argument, in a word. Raises `ToolDefinitionError` for an invalid name, and for a
    function that does not take this argument.
    """
    if not isinstance(name, str) or not is_route_name(name):
        raise ToolDefinitionError(
            f"{clip(repr(name), 80)} is not a valid name of a route: use 1 to {_LONGEST_NAME} printable characters "
            "without a colon"
        )

    def decorate(function: F) -> F:
        check_target(function, f"{takes}_route", ToolDefinitionError)
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            raise ToolDefinitionError(
                f"the route {name!r} has a function without a parameter for the {takes}"
            ) from None
        made = RouteFunction(name, function, inspect.iscoroutinefunction(function))
        setattr(function, registered, [*registered_routes(function, registered, takes), made])
        return function

    return decorate


def registered_routes(value: object, registered: str, takes: str) -> list[RouteFunction]:
    """Return the routes that a decorated function is registered for, under this attribute. Raises `ToolDefinitionError`
    if another decorator is above that of a route.
    """
    found = getattr(value, registered, None)
    routes = [each for each in found if isinstance(each, RouteFunction)] if isinstance(found, list) else []
    for each in routes:
        check_outermost(value, each.function, f"{takes}_route", ToolDefinitionError)
    return routes


class RouteFunctions:
    """The route functions of a worker, by name.

    A second function of one name is rejected: the choice between them would be random.
    """

    def __init__(self) -> None:
        self._functions: dict[str, RouteFunction] = {}

    def add(self, route: RouteFunction) -> None:
        """Add a route. Raise `ToolDefinitionError` when another function already has the name."""
        known = self._functions.setdefault(route.name, route)
        if known.function is not route.function:
            raise ToolDefinitionError(
                f"two functions deliver to {route.name!r}: in {known.function.__module__} and {route.function.__module__}"
            )

    def get(self, route: str) -> RouteFunction | None:
        """Return the function for a route, by the route's name."""
        return self._functions.get(name_of(route))

    def __iter__(self) -> Iterator[RouteFunction]:
        return iter(self._functions.values())

    def __len__(self) -> int:
        return len(self._functions)
