"""What a run sends for lists alone keeps no run from its end: where the server refuses a task again and again, it goes without (R7.8)."""

from __future__ import annotations

from typing import Final

from temporalio import workflow
from temporalio.common import TypedSearchAttributes

with workflow.unsafe.imports_passed_through():
    from perdure.run.wire import SENDER_ATTRIBUTE, TENANT_ATTRIBUTE

OFTEN: Final = 2
"""Refusals in a row. One may be the network's; a namespace that has lost a search attribute refuses for ever."""
_refused: dict[str, int] = {}
"""By execution, how often the server has refused what its task did since it was last taken; of those that this worker holds."""


def note_refused(execution: str) -> None:
    """The server did not take what the execution's task did; it is done again."""
    _refused[execution] = _refused.get(execution, 0) + 1


def note_gone(execution: str) -> None:
    """The execution is put out of memory for another reason."""
    _refused.pop(execution, None)


def may_list(what: str) -> bool:
    """Whether search attributes are set here; that they are not is recorded. Asked once a task, of `what`."""
    info = workflow.info()
    if workflow.unsafe.is_replaying() or _refused.get(info.run_id, 0) >= OFTEN:
        # The SDK remembers what it has answered once: each task asks by a name of its own.
        return not workflow.patched(f"unlisted-{what}-{info.get_current_history_length()}")
    return True


def whose() -> TypedSearchAttributes | None:
    """For whom a run below this one runs: as this one, so that a tenant finds what waits there (R10.2)."""
    said = [
        each
        for each in workflow.info().typed_search_attributes
        if each.key.name in (SENDER_ATTRIBUTE, TENANT_ATTRIBUTE)
    ]
    return TypedSearchAttributes(said) if said and may_list("below") else None
