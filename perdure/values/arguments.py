"""Arguments of the Python API: an argument of a wrong type is an error of one line, by the parameter's annotation."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic import BaseModel

from perdure.errors import ProtocolError, clip

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
TypeForm: TypeAlias = Any
"""A type as annotations have it: a class, a union, or a list of a type."""


def check_arguments(kind: type[T]) -> type[T]:
    """Have a class and its public methods raise `ProtocolError` for an argument that its annotation does not accept.

    ```python
    @check_arguments
    class Run: ...
    ```
    """
    for name, method in [*vars(kind).items()]:
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(method, classmethod):
            setattr(kind, name, classmethod(check_arguments_of(method.__func__)))
        elif inspect.isfunction(method):
            setattr(kind, name, check_arguments_of(method))
    return kind


def check_arguments_of(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, which then raises `ProtocolError` for an argument that its annotation does not accept."""
    where = function.__qualname__.removesuffix(".__init__")
    parameters = functools.cache(lambda: (inspect.signature(function), dict(_types(function))))

    def check(args: tuple[object, ...], named: Mapping[str, object]) -> None:
        signature, kinds = parameters()
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError:  # a missing or an unknown argument: the call itself reports it
            return
        for name, value in given.items():
            if name in kinds and not _accepts(kinds[name], value):
                got = clip(repr(value), 80)
                raise ProtocolError(f"{where}: {name} must be {_words(kinds[name])}, not {got}")

    @functools.wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        check(args, named)
        return function(*args, **named)

    @functools.wraps(function)
    async def call_async(*args: P.args, **named: P.kwargs) -> object:
        check(args, named)
        return await cast("Awaitable[object]", function(*args, **named))

    return cast("Callable[P, R]", call_async) if inspect.iscoroutinefunction(function) else call


def _types(function: Callable[..., Any]) -> Iterator[tuple[str, TypeForm]]:
    """Yield each parameter with its type, without those whose module is not imported."""
    for name, each in inspect.signature(function).parameters.items():
        if each.annotation is each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        try:
            written = types.SimpleNamespace(__annotations__={name: each.annotation})
            yield name, get_type_hints(written, function.__globals__, include_extras=True)[name]
        except NameError:
            continue


def _accepts(kind: TypeForm, value: object) -> bool:
    """Whether the value is of the type. The rules of its module judge which texts of a `Literal`, and which values of
    an `Annotated` type, are valid.
    """
    origin: TypeForm = get_origin(kind)
    parts = get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_accepts(part, value) for part in parts)
    if origin is Literal:
        return isinstance(value, tuple(map(type, parts)))
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if is_typeddict(kind):
        return isinstance(value, Mapping)
    plain = origin or kind
    if plain in (Any, Annotated) or not isinstance(plain, type) or getattr(plain, "_is_protocol", False):
        return True
    if not isinstance(value, plain):
        return False
    if not parts or not _is_list(plain):
        return True
    if isinstance(value, str | bytes | BaseModel):  # which Python can iterate too
        return False
    return not isinstance(value, Collection) or all(_accepts(parts[0], each) for each in value)


def _is_list(kind: type) -> bool:
    return issubclass(kind, Iterable) and not issubclass(kind, str | bytes | Mapping | BaseModel)


def _words(kind: TypeForm) -> str:
    origin: TypeForm = get_origin(kind)
    parts = get_args(kind)
    if origin in (Union, types.UnionType):
        *others, last = map(_words, parts)
        return f"{', '.join(others)} or {last}"
    if origin is Literal:
        return " or ".join(dict.fromkeys(type(part).__name__ for part in parts))
    plain = origin or kind
    if plain is types.NoneType:
        return "None"
    if is_typeddict(plain) or issubclass(plain, Mapping):
        return "a dict"
    if parts and _is_list(plain):
        return f"a list of {_words(parts[0])}" if isinstance(parts[0], type) and parts[0] is not Any else "a list"
    return str(plain.__name__)
