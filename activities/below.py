"""What runs say of each other by query: what one below was given, and what it has used (R9.6, R18.2)."""

from __future__ import annotations

from typing import Any, Final

from temporalio import activity
from temporalio.client import WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.asking import ask_given, ask_other
from perdure.run.delegates import GIVEN_ACTIVITY, SPENT_ACTIVITY, SPENT_QUERY, GivenInput, Spent

_GONE: Final = "gone"
"""Type of the failure where there is no such run any more: nobody asks again."""


@activity.defn(name=GIVEN_ACTIVITY)
async def given(wanted: GivenInput) -> Any:
    """The input of a run below, as the run above has it; recorded in the history of the one below."""
    try:
        found = await ask_given(wanted)
    except RPCError as error:
        raise ApplicationError(str(error), type=_GONE, non_retryable=error.status is RPCStatusCode.NOT_FOUND) from None
    if found is None:
        message = f"{wanted.above} does not run {wanted.name} any more"
        raise ApplicationError(message, type=_GONE, non_retryable=True)
    return found


@activity.defn(name=SPENT_ACTIVITY)
async def spent(run_id: str) -> Spent:
    """What a run has used that could not tell it by its end: it was cancelled or terminated, or has timed out."""
    try:
        found: Spent = await ask_other(run_id, SPENT_QUERY, Spent)
    except (RPCError, WorkflowQueryFailedError) as error:
        lasting = isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
        raise ApplicationError(str(error), type=_GONE, non_retryable=lasting) from None
    return found
