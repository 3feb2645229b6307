"""What anybody sends to a session, as what it has to be; and what time it is there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure.workflows.arguments import only

with workflow.unsafe.imports_passed_through():
    from perdure.errors import DecisionError, MessageRefusedError, ProtocolError
    from perdure.sessions.documents import input_name
    from perdure.sessions.lanes.rights import check_right
    from perdure.sessions.wire import UNKNOWN_AGENT, Message, digest
    from perdure.values.limits import MAX_AGENT
    from perdure.values.limits.sizes import Sizes
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


def judge_agent(message: Message, name: str) -> None:
    """Check that the message's agent file may answer from now on: the session's agent, `name`, as it is now; another one takes a right (R10.2).

    Raises `MessageRefusedError`, or `AgentUnknown` where the file does not come with the message.
    """
    if message.document is None:
        raise ApplicationError("the session does not have this agent file", type=UNKNOWN_AGENT)
    if digest([message.document, message.delegates]) != message.agent:
        raise MessageRefusedError("the agent file is another than the message names")
    if (size := Sizes().of([message.document, message.delegates])) > MAX_AGENT:
        raise MessageRefusedError(f"the agent file has {size:,} bytes, and {MAX_AGENT:,} is the most")
    if name and message.document.get("name") != name:
        check_right(message.sender, message.rights, "agent", f"have another agent than {name!r} answer here")
    input_name(message.document)
