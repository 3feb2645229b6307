"""Tests whose runs and sessions `record_histories` records. Each test checks what happens in its histories.

They cover code that no version has yet: what versions have is in `record_histories` and `history_scenarios`.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.runs.loops import LOOP_WORKFLOW
from perdure.sessions.wire import SESSION_WORKFLOW
from tests.workflows import (
    test_approvals,
    test_audit,
    test_delegates,
    test_evaluations,
    test_hook_durability,
    test_hooks,
    test_loops,
    test_mixed_workers,
    test_notifications,
    test_operator_commands,
    test_rules,
    test_server_input,
    test_session_hooks,
    test_session_replies,
    test_steering,
    test_temporal_tools,
    test_undo,
    test_untrusted_input,
)

if TYPE_CHECKING:
    from scripts.history_recorder import Recorder

Recorded = tuple[Callable[..., Awaitable[None]], dict[str, Any]]

_BY_HAND: Final = test_untrusted_input.test_r18_6_an_internal_workflow_that_a_person_starts_ends_with_a_reason
_BROKEN_LOOP: Final = test_untrusted_input.loop(agent={"name": "x"}, call={"_tool": "remove"})
_BROKEN_SESSION: Final = {"key": "k", "snapshot": {"form": 1, "data": "garbage"}}

TESTS: Final[dict[str, Recorded]] = {
    # Inputs, ids and results that nobody can use, or that come by hand.
    "by-hand-loop": (_BY_HAND, {"workflow": LOOP_WORKFLOW, "argument": _BROKEN_LOOP, "why": "KeyError"}),
    "by-hand-session": (_BY_HAND, {"workflow": SESSION_WORKFLOW, "argument": _BROKEN_SESSION, "why": "the snapshot"}),
    "by-hand-version": (test_mixed_workers.test_r18_6_a_run_that_only_claims_to_be_of_a_newer_version_is_refused, {}),
    "by-hand-calls": (test_operator_commands.test_a_value_that_completes_a_call_by_hand_is_its_result, {}),
    "by-hand-request": (
        test_operator_commands.test_an_unusable_answer_by_hand_fails_the_request_with_a_reason,
        {"value": "text"},
    ),
    "by-hand-hook": (
        test_operator_commands.test_a_hook_that_is_completed_by_hand_without_an_answer_refuses_the_call,
        {},
    ),
    "id-too-long": (test_untrusted_input.test_nor_does_an_id_that_is_too_long, {}),
    "id-taken": (test_temporal_tools.test_a_workflow_of_somebody_else_keeps_its_id, {}),
    "unstarted-delegates": (test_delegates.test_a_delegate_that_cannot_start_uses_nothing_of_its_rules, {}),
    "until-error": (test_loops.test_r8_6_an_error_of_until_has_the_sources_of_the_output, {}),
    # Decisions, and hooks that see them.
    "other-program": (test_approvals.test_r7_9_a_program_that_a_change_names_decides_what_waits, {}),
    "program-remembers": (test_approvals.test_r7_7_what_a_program_remembers_releases_what_waits, {}),
    "two-decisions": (test_approvals.test_r7_3_of_two_decisions_at_once_the_one_without_effect_is_kept, {}),
    "early-decision": (test_approvals.test_r7_4_a_decision_that_came_in_time_counts_if_no_worker_was_there, {}),
    "hooked-answers": (test_hooks.test_the_answers_of_people_and_clients_are_redacted_too, {}),
    # Messages to a run: calls that they hold.
    "held-calls": (test_steering.test_r18_1_held_calls_that_are_kept_together_begin_in_several_tasks, {}),
    "held-delegate": (
        test_rules.test_a_delegate_that_a_message_holds_uses_what_other_calls_have_left_of_a_rule,
        {},
    ),
    "held-hook": (test_hook_durability.test_a_new_message_while_a_hook_works_holds_the_call, {}),
    # Sums over runs, budgets, the audit log.
    "unused-sums": (test_rules.test_a_call_that_fails_before_it_begins_uses_nothing_of_a_sum_over_runs, {}),
    "spent-sample": (
        test_server_input.test_r21_3_a_server_gets_no_sample_once_the_runs_budget_is_spent,
        {"loop": {}, "budget": "1,000"},
    ),
    "audited-ledger": (test_audit.test_a_ledger_continues_as_new_once_the_log_has_all_changes, {}),
    # What undoes and repeats.
    "undo-policy": (test_undo.test_a_changed_policy_reaches_the_undo_of_a_delegate, {}),
    "undo-unknown": (test_undo.test_calls_on_which_a_delegate_depends_stay_if_one_of_its_calls_is_unknown, {}),
    "callback-again": (test_notifications.test_whoever_started_a_run_hears_each_of_its_ends_once, {"approved": True}),
    "evaluated-again": (
        test_evaluations.test_an_evaluation_or_a_score_that_is_reset_uses_the_runs_that_are_there,
        {},
    ),
    "unscored": (test_evaluations.test_r22_4_a_score_that_cannot_be_made_does_not_hold_up_the_run, {}),
    # Sessions.
    "session-cancelled": (
        test_session_hooks.test_a_cancelled_session_ends_its_run_and_its_hooks_and_stays_readable,
        {"active": True},
    ),
    "session-cancelled-early": (test_session_hooks.test_a_cancelled_session_records_a_run_that_had_not_begun, {}),
    "session-withdrawn-early": (test_session_hooks.test_r10_7_a_message_that_a_hook_looks_at_can_be_withdrawn, {}),
    "session-shut-down": (test_session_replies.test_a_worker_that_is_shut_down_costs_no_reply, {}),
    "session-replies-later": (test_session_replies.test_no_reply_is_lost_where_the_session_goes_on_as_new, {}),
}
"""By kind of its histories, a test and its parameters beside the server and a folder."""


async def record_since(to: Recorder, *kinds: str) -> None:
    """Play these tests, or all, and write down their executions."""
    for kind in kinds or TESTS:
        test, more = TESTS[kind]
        wants = inspect.signature(test).parameters
        with tempfile.TemporaryDirectory() as folder:
            given = more | ({"tmp_path": Path(folder)} if "tmp_path" in wants else {})
            name = next(each for each in wants if each.endswith("_server"))
            given[name] = server = to.impatient_server if name == "impatient_server" else to.server
            await to.play_test(kind, test, server, given)
