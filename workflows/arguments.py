"""Arguments of handlers and workflows, read without an error that would fail a workflow task repeatedly (R18.6)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError, TemporalError

with workflow.unsafe.imports_passed_through():
    from perdure.errors import DecisionError, JsonError, PerdureError, ProtocolError
    from perdure.runs.wire import REFUSED
    from perdure.values.json import Json, Sent, UnreadArgument, WireModel, check, shorten
    from perdure.values.problems import first_problem

W = TypeVar("W", bound=WireModel)
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
_NAMES: Final = ("__module__", "__name__", "__qualname__", "__doc__")


def any_arguments(handler: Callable[[S, Sent[T]], R]) -> Callable[..., R]:
    """Let Temporal call a handler that has one `Sent` with any number of any arguments (R18.6).

    ```python
    @workflow.signal(name="approve", description="…")
    @any_arguments
    def approve(self, decision: Sent[Decision]) -> None: ...
    ```
    """

    def call(self: S, *sent: Json) -> R:
        return handler(self, Sent(map(_readable, sent)))

    async def call_async(self: S, *sent: Json) -> Any:
        found: Any = handler(self, Sent(map(_readable, sent)))
        return await found

    wrapper: Any = call_async if inspect.iscoroutinefunction(handler) else call
    # Without `__wrapped__`: the SDK would accept only one argument of its type.
    functools.update_wrapper(wrapper, handler, assigned=_NAMES)
    del wrapper.__wrapped__
    return wrapper  # type: ignore[no-any-return]


def _readable(argument: Json) -> Json:
    """Return the argument, or the reason why it is not JSON: bytes, a protobuf message, an object of a user's
    converter, or a number such as NaN.
    """
    try:
        check(argument, source="the argument")
    except JsonError as error:
        return UnreadArgument(f"[cannot be read: {error}]")
    return argument


def query_arguments(handler: Callable[..., R]) -> Callable[..., R]:
    """Let Temporal call a query's handler with any arguments, and raise `ValueError` in plain words for those that do not
    fit its parameters.
    """
    signature = inspect.signature(handler, eval_str=True)
    parameters = [*signature.parameters.values()][1:]
    adapters = {each.name: TypeAdapter(each.annotation) for each in parameters}
    form = ", ".join(map(str, parameters)) or "no arguments"

    def call(self: Any, *sent: Json) -> R:
        try:
            bound = signature.bind(self, *sent)
        except TypeError:
            raise ValueError(f"the query expects {form}; it came with {len(sent)} arguments") from None
        for name in [each for each in adapters if each in bound.arguments]:
            try:
                bound.arguments[name] = adapters[name].validate_python(bound.arguments[name])
            except ValidationError:
                found = shorten(bound.arguments[name])
                raise ValueError(f"the query expects {form}; {name!r} cannot be {found}") from None
        return handler(*bound.args, **bound.kwargs)

    functools.update_wrapper(call, handler, assigned=_NAMES)
    del call.__wrapped__  # type: ignore[attr-defined]
    return call


def single_argument(sent: Sequence[Json]) -> Json:
    """Return the one argument of a signal or an update. Raise `DecisionError` for none, or more than one."""
    if len(sent) != 1:
        raise DecisionError(f"expected one JSON object, not {len(sent) or 'no'} arguments")
    return sent[0]


def read_one(kind: type[W], sent: Sent[W]) -> W | None:
    """Return the one argument of a handler that only the engine calls; `None` for one that the engine cannot have sent."""
    try:
        return kind.model_validate(sent[0]) if len(sent) == 1 else None
    except ValidationError:
        return None


def read_input(kind: type[W], arguments: Sequence[Json]) -> W:
    """Return the input of a workflow. Raise `ApplicationError` of type `Refused` for an invalid one.

    For an unreadable input of the engine itself, or an encrypted one, the task fails until a worker can read it.
    """
    try:
        if len(arguments) != 1:
            raise DecisionError(f"expected one argument, not {len(arguments) or 'none'}")
        if isinstance(arguments[0], UnreadArgument):
            info = workflow.info()
            if arguments[0].waits or info.continued_run_id or info.parent:
                raise RuntimeError(f"the input {arguments[0]}")
            raise DecisionError(str(arguments[0]))
        found: W = kind.model_validate(arguments[0])
        if isinstance(arguments[0], dict) and arguments[0].get("snapshot") is None:  # then it comes from outside
            check(arguments[0], source="the input")
        return found
    except ValidationError as error:
        problem = first_problem(error, arguments[0])
    except ProtocolError as error:
        problem = str(error)
    message = f"the input of the workflow is not valid: {problem}; start runs with 'perdure run'"
    raise ApplicationError(message, type=REFUSED, non_retryable=True)


@contextmanager
def end_if_started_by_hand() -> Iterator[None]:
    """Fail the workflow at an unexpected error if it has no parent: then a person has started it, with an unusable input (R18.6).

    In a child workflow the task fails until a worker without the error is deployed.
    """
    try:
        yield
    except (TemporalError, PerdureError, ValidationError):
        raise
    except Exception as error:
        if workflow.info().parent is not None:
            raise
        message = f"the workflow cannot use its input: {type(error).__name__}: {error}; start runs with 'perdure run'"
        raise ApplicationError(message, type=REFUSED, non_retryable=True) from error
