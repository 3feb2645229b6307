"""What anybody sends to a session, as what it has to be; and what time it is there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio import workflow

from perdure.workflows.arguments import only

with workflow.unsafe.imports_passed_through():
    from perdure.errors import DecisionError, MessageRefusedError, ProtocolError
    from perdure.values.problems import first_problem
    from perdure.values.wire import Wire

W = TypeVar("W", bound=Wire)


def now() -> str:
    """The workflow's time in words: ISO 8601, UTC."""
    return datetime.fromtimestamp(workflow.time(), UTC).isoformat(timespec="milliseconds")


def read(kind: type[W], said: tuple[Any, ...]) -> W:
    """The one argument, as what it has to be. Raises `MessageRefusedError` for what it is not."""
    try:
        return kind.model_validate(only(said))
    except ValidationError as error:
        raise MessageRefusedError(f"this is none: {first_problem(error)}") from None
    except (DecisionError, ProtocolError) as error:
        raise MessageRefusedError(str(error)) from None
