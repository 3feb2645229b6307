"""`@hook`: a function of the worker's that is called at a point (R10.17)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, get_type_hints

from perdure.errors import HookDefinitionError, clip
from perdure.hooks.events import HookEvent
from perdure.hooks.table import HOOKS, Rule
from perdure.hooks.wire import HookRef
from perdure.values.limits import MAX_HOOK_SECONDS

REGISTERED: Final = "__perdure_hooks__"
"""The attribute under which a decorated function carries its `HookFunction`s."""
TIMEOUT: Final = 10.0
"""Seconds that a hook has, unless it says otherwise: somebody waits for it."""


@dataclass(frozen=True, slots=True)
class HookFunction:
    """A hook with the code behind it."""

    ref: HookRef
    function: Callable[[Any], Any]
    is_async: bool


def make_hook(function: Callable[[Any], Any], event: str, tools: Sequence[str] | None, timeout: float) -> HookFunction:
    """The hook that a function is. Raises `HookDefinitionError` for one that cannot be one of this event."""
    name = f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"
    where = f"hook {name}"
    rule = HOOKS.get(event) if isinstance(event, str) else None
    if rule is None:
        raise HookDefinitionError(
            f"{where}: there is no event {clip(repr(event), 60)}; the events are {', '.join(HOOKS)}"
        )
    if not (isinstance(timeout, int | float) and 0 < timeout <= MAX_HOOK_SECONDS and math.isfinite(timeout)):
        raise HookDefinitionError(
            f"{where}: its timeout is {timeout!r}, but must be seconds, up to {MAX_HOOK_SECONDS:g}"
        )
    if tools is not None and (isinstance(tools, str) or not all(isinstance(each, str) for each in tools)):
        raise HookDefinitionError(f"{where}: tools is {clip(repr(tools), 60)}, but must be a list of names")
    if tools is not None and "tool" not in rule.event.model_fields:
        raise HookDefinitionError(f"{where}: {event} is about no tool, so it takes no tools")
    looks = _check_signature(function, rule, where)
    closed = rule.fails == "closed" or (rule.fails == "declared" and not looks)
    ref = HookRef(
        event=event, name=name, tools=None if tools is None else list(tools), timeout=float(timeout), closed=closed
    )
    return HookFunction(ref, function, inspect.iscoroutinefunction(function))


def _check_signature(function: Callable[..., Any], rule: Rule, where: str) -> bool:
    """Whether the function says that it returns nothing. Raises `HookDefinitionError` for what it cannot be."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError) as error:
        raise HookDefinitionError(f"{where}: its annotations cannot be read: {error}") from None
    parameters = list(inspect.signature(function).parameters.values())
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters[1:] if each.default is inspect.Parameter.empty]
    if not parameters or parameters[0].kind not in by_position or needed:
        raise HookDefinitionError(f"{where}: it must take one argument, the event")
    taken = hints.get(parameters[0].name, Any)
    if taken not in (Any, HookEvent, rule.event):
        raise HookDefinitionError(
            f"{where}: {rule.name} is given a {rule.event.__name__}, and its argument is annotated {_named(taken)}"
        )
    returns = hints.get("return", Any)
    if not rule.answers and returns not in (Any, None, NoneType):
        raise HookDefinitionError(f"{where}: {rule.name} only looks, so it returns nothing (-> None)")
    return returns in (None, NoneType)


def _named(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def hook_functions(target: Any) -> list[HookFunction]:
    """The hooks that a decorated function is, in the order in which its decorators stand."""
    found = getattr(target, REGISTERED, None) if callable(target) else None
    return [each for each in found if isinstance(each, HookFunction)] if isinstance(found, list) else []


def found_hooks(functions: Iterable[Any]) -> list[HookFunction]:
    """Those that these functions are. Raises `HookDefinitionError` for one that is none."""
    found: list[HookFunction] = []
    for each in functions:
        made = hook_functions(each)
        if not made:
            raise HookDefinitionError(f"{clip(repr(each), 80)} is no hook: decorate the function with @hook")
        found += made
    return found
