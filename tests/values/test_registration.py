"""A function behind or below other decorators is registered as it is called, or is refused in one line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from perdure import Agent, hook, notification_route, reply_route, tool
from perdure.errors import ProtocolError
from perdure.hooks.decorator import hook_functions
from perdure.runs.notifications import notification_routes_of
from perdure.sessions.replies import routes_of
from perdure.tools.decorator import tool_function

DECORATORS: dict[str, tuple[Any, Callable[[object], Any]]] = {
    "tool": (tool(), tool_function),
    "hook": (hook("agent_end"), hook_functions),
    "reply_route": (reply_route("desk"), routes_of),
    "notification_route": (notification_route("desk"), notification_routes_of),
}


def act(event: Any) -> None:
    del event


def many(event: Any) -> Iterator[int]:
    del event
    yield 1


async def stream(event: Any) -> Any:
    del event
    yield 1


class Desk:
    def method(self, event: Any) -> None: ...

    @classmethod
    def shared(cls, event: Any) -> None: ...


class Many:
    def __call__(self, event: Any) -> Iterator[int]:
        yield event


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def logging(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return logging


@pytest.mark.parametrize("name", DECORATORS)
@pytest.mark.parametrize(
    ("target", "words"),
    [
        (staticmethod(act), "@{name} has no effect above @staticmethod: put @staticmethod above @{name}"),
        (vars(Desk)["shared"], "@{name} has no effect above @classmethod: put @staticmethod above @{name}"),
        (Desk().method, "cannot be decorated with @{name}: decorate a function that calls it"),
        (Desk.shared, "cannot be decorated with @{name}: decorate a function that calls it"),
        (len, "<built-in function len> cannot be decorated with @{name}: decorate a function that calls it"),
        (None, "{name} needs a function, not NoneType: decorate the function itself with @{name}"),
        (5, "{name} needs a function, not int: decorate the function itself with @{name}"),
        (Desk, "{name} needs a function, not type: decorate the function itself with @{name}"),
        (
            many,
            "tests.values.test_registration:many is a generator function, whose code no call runs: return one value",
        ),
        (stream, "tests.values.test_registration:stream is a generator function, whose code no call runs"),
    ],
)
def test_an_object_that_cannot_be_registered_is_refused_in_one_line(name: str, target: Any, words: str) -> None:
    with pytest.raises(ProtocolError) as found:
        DECORATORS[name][0](target)
    assert words.format(name=name) in str(found.value)
    assert "\n" not in str(found.value)


def test_an_object_whose_call_makes_a_generator_is_refused() -> None:
    with pytest.raises(ProtocolError, match="Many is a generator function"):
        reply_route("desk")(Many())


@pytest.mark.parametrize("name", DECORATORS)
def test_a_decorator_above_perdures_is_not_bypassed(name: str) -> None:
    decorate, found = DECORATORS[name]
    function = decorate(lambda event: act(event))  # a function of its own
    with pytest.raises(
        ProtocolError, match=f"has a decorator above @{name}, which no call would run: put @{name} first"
    ):
        found(logged(function))


@pytest.mark.parametrize("name", DECORATORS)
def test_a_decorator_below_perdures_stays_around_the_function(name: str) -> None:
    decorate, found = DECORATORS[name]
    inside = logged(act)
    made: Any = found(decorate(inside))
    assert (made[0] if isinstance(made, list) else made).function is inside


def test_a_static_method_above_a_decorator_is_that_function() -> None:
    class Counter:
        @staticmethod
        @tool(dangerous=True)
        def pay(euros: int) -> None:
            del euros

    found = tool_function(Counter.pay)
    assert found is not None
    assert found.definition["_dangerous"] is True
    assert Agent("desk", tools=[Counter.pay]).functions == [found]


def test_objects_that_answer_every_attribute_are_not_registered() -> None:
    assert tool_function(SimpleNamespace(__perdure_tool__=5)) is None
    assert routes_of(SimpleNamespace(__perdure_routes__=[5])) == []
