"""The `@hook` decorator: a function of the worker that is called at a point of a run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_type_hints, overload

from perdure.errors import HookDefinitionError, clip
from perdure.hooks import events
from perdure.hooks.events import HOOKS, HookEvent, HookEventRow, HookRef
from perdure.values.limits import MAX_HOOK_SECONDS
from perdure.values.registration import check_outermost, check_target, qualified_name

REGISTERED: Final = "__perdure_hooks__"
"""The attribute in which a decorated function carries its `HookFunction`s."""
TIMEOUT: Final = 10.0
"""The default limit in seconds for a hook: the run, or a person, waits for it."""

HookCode: TypeAlias = Callable[[Any], Any]
"""A hook's function: its event's rule defines its argument and result."""


@dataclass(frozen=True, slots=True)
class HookFunction:
    """A hook with the code behind it."""

    ref: HookRef
    function: HookCode
    is_async: bool


def make_hook(function: HookCode, event: str, tools: Iterable[str] | None, timeout: float) -> HookFunction:
    """Return the hook of a function. Raises `HookDefinitionError` if the function cannot be a hook of this event."""
    check_target(function, "hook", HookDefinitionError)
    name = qualified_name(function)
    where = f"hook {name}"
    rule = HOOKS.get(event) if isinstance(event, str) else None
    if rule is None:
        raise HookDefinitionError(f"{where}: {clip(repr(event), 60)} is not an event. Use one of: {', '.join(HOOKS)}")
    if not (isinstance(timeout, int | float) and 0 < timeout <= MAX_HOOK_SECONDS and math.isfinite(timeout)):
        raise HookDefinitionError(
            f"{where}: its timeout is {timeout!r}, but must be seconds, up to {MAX_HOOK_SECONDS:g}"
        )
    names = list(tools) if isinstance(tools, Iterable) and not isinstance(tools, str) else []
    if tools is not None and not (names and all(isinstance(each, str) and each for each in names)):
        raise HookDefinitionError(f"{where}: tools is {clip(repr(tools), 60)}, but must be a list of names")
    if tools is not None and "tool" not in rule.event.model_fields:
        raise HookDefinitionError(f"{where}: {event} is not an event of a call: leave tools out")
    looks = _check_signature(function, rule, where)
    closed = rule.fails == "closed" or (rule.fails == "declared" and not looks)
    ref = HookRef(event=event, name=name, tools=None if tools is None else names, timeout=float(timeout), closed=closed)
    return HookFunction(ref, function, inspect.iscoroutinefunction(function))


def _check_signature(function: Callable[..., Any], rule: HookEventRow, where: str) -> bool:
    """Whether the function's annotation is `-> None`. Raises `HookDefinitionError` if its signature does not fit the
    event."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError, SyntaxError) as error:
        raise HookDefinitionError(f"{where}: its annotations cannot be read: {error}") from None
    parameters = list(inspect.signature(function).parameters.values())
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters[1:] if each.default is inspect.Parameter.empty]
    if not parameters or parameters[0].kind not in by_position or needed:
        raise HookDefinitionError(f"{where}: it must take one argument, the event")
    taken = hints.get(parameters[0].name, Any)
    if taken not in (Any, HookEvent, rule.event):
        raise HookDefinitionError(
            f"{where}: its argument is annotated {_named(taken)}, but {rule.name} passes a {rule.event.__name__}"
        )
    returns = hints.get("return", Any)
    if not rule.answers and returns not in (Any, None, NoneType):
        raise HookDefinitionError(f"{where}: hooks of {rule.name} return nothing: annotate the function with -> None")
    return returns in (None, NoneType)


def _named(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def hook_functions(target: object) -> list[HookFunction]:
    """Return the hooks of a decorated function, in the order of its decorators. Raises `HookDefinitionError` if another
    decorator is above `@hook`.
    """
    found = getattr(target, REGISTERED, None) if callable(target) else None
    hooks = [each for each in found if isinstance(each, HookFunction)] if isinstance(found, list) else []
    for each in hooks:
        check_outermost(target, each.function, "hook", HookDefinitionError)
    return hooks


def found_hooks(functions: Iterable[object]) -> list[HookFunction]:
    """Return the hooks of these functions. Raises `HookDefinitionError` for a function that is not a hook."""
    found: list[HookFunction] = []
    for each in functions:
        made = hook_functions(each)
        if not made:
            raise HookDefinitionError(f"{clip(repr(each), 80)} is not a hook: decorate the function with @hook")
        found += made
    return found


E_co = TypeVar("E_co", covariant=True)
R = TypeVar("R")
_Tools: TypeAlias = Sequence[str] | None


class Decorator(Protocol[E_co]):
    """A decorator that makes a function a hook of its event. It returns the function itself, which may also be a hook
    of another event.
    """

    def __call__(self, function: Callable[[E_co], R], /) -> Callable[[Any], R]: ...  # of any hook's event


@overload
def hook(event: Literal["before_agent_start"], /, *, timeout: float = ...) -> Decorator[events.BeforeAgentStart]: ...
@overload
def hook(event: Literal["agent_end"], /, *, timeout: float = ...) -> Decorator[events.AgentEnd]: ...
@overload
def hook(
    event: Literal["before_tool_call"], /, *, tools: _Tools = ..., timeout: float = ...
) -> Decorator[events.BeforeToolCall]: ...
@overload
def hook(
    event: Literal["after_tool_call"], /, *, tools: _Tools = ..., timeout: float = ...
) -> Decorator[events.AfterToolCall]: ...
@overload
def hook(
    event: Literal["tool_result_persist"], /, *, tools: _Tools = ..., timeout: float = ...
) -> Decorator[events.ToolResultPersist]: ...
@overload
def hook(event: Literal["agent_bootstrap"], /, *, timeout: float = ...) -> Decorator[events.AgentBootstrap]: ...
@overload
def hook(event: Literal["session_start"], /, *, timeout: float = ...) -> Decorator[events.SessionStart]: ...
@overload
def hook(event: Literal["session_end"], /, *, timeout: float = ...) -> Decorator[events.SessionEnd]: ...
@overload
def hook(event: Literal["message_received"], /, *, timeout: float = ...) -> Decorator[events.MessageReceived]: ...
@overload
def hook(event: Literal["command"], /, *, timeout: float = ...) -> Decorator[events.Command]: ...
@overload
def hook(event: Literal["before_compaction"], /, *, timeout: float = ...) -> Decorator[events.BeforeCompaction]: ...
@overload
def hook(event: Literal["after_compaction"], /, *, timeout: float = ...) -> Decorator[events.AfterCompaction]: ...
@overload
def hook(event: Literal["message_sending"], /, *, timeout: float = ...) -> Decorator[events.MessageSending]: ...
@overload
def hook(event: Literal["message_sent"], /, *, timeout: float = ...) -> Decorator[events.MessageSent]: ...
@overload
def hook(event: Literal["gateway_start"], /, *, timeout: float = ...) -> Decorator[events.GatewayStart]: ...
@overload
def hook(event: Literal["gateway_stop"], /, *, timeout: float = ...) -> Decorator[events.GatewayStop]: ...
def hook(event: str, /, *, tools: _Tools = None, timeout: float = TIMEOUT) -> Any:  # typed by the overloads
    """Register a function, sync or async, as a hook of an event: `docs/hooks.md` has the table of all events.

    The function takes the event. It returns nothing to leave the event as it is, `event.changed(…)` to change it, or
    `refuse("why")`. A function with the annotation `-> None` only observes. Hooks of one event are called in the order
    of their registration, each with the changes of those before it. Sync functions run in threads.

    `event`: the event's name. `tools`: for events of a call, the names of the tools whose calls it is for, as the agent
    or the worker names them (default: all). `timeout`: its limit in seconds (10).

    Raises `HookDefinitionError` for a function that cannot be a hook of the event.

    ```python
    @hook("before_tool_call", tools=["order"])
    def no_plums(event: BeforeToolCall) -> Any:
        return refuse("We sell no plums.") if event.params.get("fruit") == "plum" else None
    ```
    """
    # R10.17

    def decorate(function: HookCode) -> HookCode:
        made = make_hook(function, event, tools, timeout)
        setattr(function, REGISTERED, [made, *hook_functions(function)])
        return function

    return decorate
