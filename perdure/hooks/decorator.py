"""`@hook("before_tool_call")`, with the type of what the function is given for each event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

from perdure.hooks import events
from perdure.hooks.functions import REGISTERED, TIMEOUT, hook_functions, make_hook

E_co = TypeVar("E_co", covariant=True)
R = TypeVar("R")
_Tools: TypeAlias = Sequence[str] | None


class Decorator(Protocol[E_co]):
    """What makes a function that takes such an event a hook. It stays as it is, and may be a hook of another event too."""

    def __call__(self, function: Callable[[E_co], R], /) -> Callable[[Any], R]: ...


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
def hook(event: str, /, *, tools: _Tools = None, timeout: float = TIMEOUT) -> Any:
    """Have a function, sync or async, called at a point: `docs/hooks.md` has the table of all events (R10.17).

    The function takes the event. It returns nothing where it has nothing to say, `event.changed(…)` to change what it was given, or
    `refuse("why")`. One whose annotation says `-> None` only looks. Hooks of one event are called in the order of their registration, each
    with what those before it have made of it. Sync functions run in threads.

    `tools`: of a call's events, the names of the tools whose calls it is for, as the agent or the worker calls them (all). `timeout`: seconds
    that it has (10).

    Raises `HookDefinitionError` for a function that cannot be a hook of the event.
    """

    def decorate(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        made = make_hook(function, event, tools, timeout)
        setattr(function, REGISTERED, [made, *hook_functions(function)])
        return function

    return decorate
