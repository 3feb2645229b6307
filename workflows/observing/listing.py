"""What a run sends for lists alone keeps no run from its end: where the server refuses a task again and again, it goes without (R7.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from temporalio import workflow
from temporalio.common import SearchAttributeKey, TypedSearchAttributes

with workflow.unsafe.imports_passed_through():
    from perdure.run.wire import AGENT_ATTRIBUTE, LONGEST_KEYWORD, SENDER_ATTRIBUTE, TENANT_ATTRIBUTE

_AGENT: Final = SearchAttributeKey.for_keyword(AGENT_ATTRIBUTE)

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


def list_agent(name: str, known: Sequence[str], *, below: bool) -> None:
    """Set the agent's name for lists where nobody has at the start, as in a run that a user's own workflow has started."""
    info = workflow.info()
    if (
        below
        or info.parent is None
        or AGENT_ATTRIBUTE not in known
        or info.typed_search_attributes.get(_AGENT) is not None
    ):
        return
    if workflow.patched("listed-agent") and may_list("agent"):
        workflow.upsert_search_attributes([_AGENT.value_set(name[:LONGEST_KEYWORD])])


def whose() -> TypedSearchAttributes | None:
    """For whom a run below this one runs: as this one, so that a tenant finds what waits there (R10.2)."""
    said = [
        each
        for each in workflow.info().typed_search_attributes
        if each.key.name in (SENDER_ATTRIBUTE, TENANT_ATTRIBUTE)
    ]
    return TypedSearchAttributes(said) if said and may_list("below") else None
