"""Checks of functions that an application registers with a decorator, and their marks.

A decorator of Perdure writes a mark into the function itself, in the attribute that it names. `functools.wraps` copies
such attributes, so a wrapper carries the mark of the function inside it.
"""

from __future__ import annotations

import inspect
from typing import Any

from perdure.errors import ProtocolError, clip


def check_target(target: object, decorator: str, error: type[ProtocolError], *, objects: bool = True) -> None:
    """Raise the error, in one line, for an object that a decorator cannot register.

    `decorator`: its name, such as `tool`. `objects`: whether it registers objects with `__call__` too.
    """
    if isinstance(target, staticmethod | classmethod):
        raise error(f"@{decorator} has no effect above @{type(target).__name__}: put @staticmethod above @{decorator}")
    if not callable(target) or isinstance(target, type) or not (objects or inspect.isroutine(target)):
        kind = type(target).__name__
        raise error(f"{decorator} needs a function, not {kind}: decorate the function itself with @{decorator}")
    if not hasattr(target, "__dict__") or inspect.ismethod(target):
        raise error(
            f"{clip(repr(target), 80)} cannot be decorated with @{decorator}: decorate a function that calls it"
        )
    if is_generator_function(target):
        raise error(f"{qualified_name(target)} is a generator function, whose code no call runs: return one value")


def check_outermost(target: object, registered: object, decorator: str, error: type[ProtocolError]) -> None:
    """Raise the error for an object that only carries the mark of a `registered` function: its own code would not
    run.
    """
    if target is not registered:
        raise error(
            f"{qualified_name(registered)} has a decorator above @{decorator}, which no call would run: put @{decorator} first"
        )


def is_generator_function(function: Any) -> bool:  # any callable
    """Whether a call of the function returns a generator."""
    codes = (function, getattr(function, "__call__", None))  # noqa: B004  # an object's own method
    return any(inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code) for code in codes)


def qualified_name(function: object) -> str:
    """Return the name of a function in messages: `module:function`."""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"
