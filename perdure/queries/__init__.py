"""Queries: answers of runs and sessions, transcripts, and lists, for clients and activities alike.

Example:
    `await answer_of(client.get_workflow_handle(run_id), RUN_QUERY, result_type=RunView)`
"""

from perdure.queries._answers import (
    DEV_DEPLOYMENT,
    TIMEOUT,
    UNANSWERED,
    answer_of,
    cancel_all,
    cancellable,
    cannot_replay,
    execution_before,
    failed_result,
    find_missing_worker,
    may_pass,
    name_missing_worker,
    query_problem,
    replay_problem,
    update_with_start,
)
from perdure.queries._effects import children_of, describe, read_effects, undone_calls, was_undone
from perdure.queries._shared_workflows import list_accounts, list_standing_approvals, record_entries, update_ledger
from perdure.queries._transcripts import SessionReader, read_segment, start_segment
from perdure.queries._visibility import SearchAttributes, add_attributes, read_memo

__all__ = [
    "DEV_DEPLOYMENT",
    "TIMEOUT",
    "UNANSWERED",
    "SearchAttributes",
    "SessionReader",
    "add_attributes",
    "answer_of",
    "cancel_all",
    "cancellable",
    "cannot_replay",
    "children_of",
    "describe",
    "execution_before",
    "failed_result",
    "list_accounts",
    "list_standing_approvals",
    "find_missing_worker",
    "may_pass",
    "query_problem",
    "read_effects",
    "read_memo",
    "read_segment",
    "replay_problem",
    "record_entries",
    "start_segment",
    "name_missing_worker",
    "update_ledger",
    "update_with_start",
    "undone_calls",
    "was_undone",
]
