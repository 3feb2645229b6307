"""Switches for replay: rules that runs follow only since a version (R13.7).

The preparation of a run records once which rules the run follows. Code that differs between versions asks `PreparedWorker.follows`, never
`workflow.patched`. The marker of `patched` is a command, and commands behind a local activity may come in another order in a replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from perdure.plan import (
    CODE_COUNTS,
    CONDITION_FIRST,
    CONVERTED,
    EXECUTED_CALLS_COUNT,
    LAZY_READS,
    LETS_LOOK_BACK,
    LOOPS_KEEP_VALUES,
    OWN_DECIDES,
    PARTS_DECIDED,
    STEERED_RUNS_GO_ON,
    WRITERS_STAY,
)
from perdure.rules.proof import DATA_KNOWN
from perdure.values.limits import CALLS_OF_ROUNDS, DECIDED, LIMITS_OF_CHILDREN, SHORT_TASKS, SIZES_COUNTED

ADDED_ONE_BY_ONE: Final = "added-one-by-one"
"""A new call that adds to a value replaces one held call with the same parameters, not all of its path (R10.5)."""
ALL_USAGE_COUNTS: Final = "all-usage-counts"
"""A run counts the usage of an answer that came too late for its Request, and cache writes of samples for MCP servers (R9.6)."""
ASKS_BY_ACTIVITY: Final = "asks-by-activity"
"""After its start a run uses no local activities: commands after a local activity may have another order in a replay.
"""
CARRIES_LESS: Final = "carries-less"
"""The results of one Request share their room in the context, and a snapshot of more than `MAX_CARRIED_PARTS` lists and objects is not carried."""
CLIENT_CALLS_UNLISTED: Final = "client-calls-unlisted"
"""Lists leave out the calls that the client executes."""
CLIENT_TIMEOUT_ALONE: Final = "client-timeout-alone"
"""Only `client_timeout` ends a call that the client executes, not the timeout of the approval policy (R9.5)."""
CLOCK_FOLLOWS: Final = "clock-follows"
"""The clock is derived from the calls (R9.5)."""
DECIDED_CALLS_STOP: Final = "decided-calls-stop"
"""A call that a person removes from a continued plan does not run, even if it waits for its turn; a running call
continues (R10.5)."""
COUNTS_EACH_DELEGATE: Final = "counts-each-delegate"
"""A loop over a delegate counts each of its runs in `at_most` and `count_at_most`, and each delegate whose record is lost counts with the rest
of the limit. A loop without a done iteration makes no call of its tool. A fork counts the iterations of a loop that its record answers.
A loop that does not succeed is done too after a done iteration (R23.1)."""
DECISIONS_BEFORE_TIMEOUTS: Final = "decisions-before-timeouts"
"""A decision that came in time counts, even if it is known to count only after the timeout (R7.4)."""
DEFAULTS_ASK: Final = "defaults-ask"
"""A condition of the approval policy sees the default of a parameter that a call leaves out (R7.1)."""
EDITS_KEEP_AUTHORS: Final = "edits-keep-authors"
"""A call that a person has changed in a continued plan counts as the person's (R15.1)."""
FIRST_CALLS_TIMED_LATER: Final = "first-calls-timed-later"
"""A call that begins in the task of the run's preparation counts as quick from the time of the next task: a replay may see another time in the
first."""
FORMER_CHILDREN_END: Final = "former-children-end"
"""A delegate or user's workflow that was open at its run's reset is ended before the run starts it anew (R7.2)."""
HELD_BLOCKS_NOTHING: Final = "held-blocks-nothing"
"""A held call that waits for its turn blocks neither the end of a plan nor calls under the same rules (R10.5, R23.1)."""
HELD_CALLS_STAY: Final = "held-calls-stay"
"""A call that a message has held, and that the next answer does not name, stays held (R10.5)."""
HOOKS_SEE_ANSWERS: Final = "hooks-see-answers"
"""`after_tool_call` and `tool_result_persist` see a person's answer, a client's result, and the result of an undo (R10.17)."""
JUDGED_ANEW: Final = "judged-anew"
"""A change of the policy counts for waiting requests and approved plans, and is added to a quorum (R7.7, R24.6). A program that it names is asked, and
what a program remembers releases requests. An approval allows only the broken rules that its request names, and no edit takes away a call that has to
follow (R23.2). A change of a call or of the policy ends standing approvals (R23.3). A refused update is kept. An endorsement has at most
`MAX_ENDORSED` names (R18.6)."""
JUDGED_AFTER_HOOKS: Final = "judged-after-hooks"
"""Rules judge a call that a person or a client answers after the call's hooks, and also if a person has put it in another's place (R23.1)."""
LAST_REQUEST_COUNTS: Final = "last-request-counts"
"""The last Request after a limit counts toward `max_requests`."""
LOST_IS_NOT_DOWN: Final = "lost-is-not-down"
"""A Request whose workers were lost or too busy is sent again; its model does not count as down."""
LEFT_CHILDREN_END: Final = "left-children-end"
"""Open children from before a reset are cancelled at once, even if the run does not start them anew (R7.2)."""
INFORMED_AGAIN: Final = "informed-again"
"""A repeated approval request, such as after a reset, informs people again, and its timeout begins anew (R7.2, R19.5).
"""
LISTED_AGENT: Final = "listed-agent"
"""A run that a user's own workflow has started lists its agent."""
MODEL_PATIENCE: Final = "model-patience"
"""A Request waits for models whose provider is unavailable (R20.5)."""
LEFT_LOOPS_END: Final = "left-loops-end"
"""A reset run without delegates also cancels open children from before the reset: a long loop is a workflow too (R7.2).
"""
MUST_CALL_IN_LOOPS: Final = "must-call-in-loops"
"""A call in a loop's body counts for `must_call` (R6.5)."""
NOTIFIES: Final = "notifies"
"""A run informs people by its agent file's routes, and reports its end to the callback of its start (R19.5, R19.8)."""
OPERATIONS_WAIT: Final = "operations-wait"
"""No more than `MAX_OPERATIONS` Nexus operations run at a time."""
OPEN_PLAN_SETTLES_NOTHING: Final = "open-plan-settles-nothing"
"""A run whose plan goes on under the next Request does not prepare to continue as new: that would drop notifications that wait for their turn
(R19.5)."""
OUTAGE_STOPS_CLOCK: Final = "outage-stops-clock"
"""An outage of all workers at a run's deadline does not count as work (R9.5)."""
OUTPUT_BINDS_AT_END: Final = "output-binds-at-end"
"""The output reads the state at the end of its plan."""
OUTPUT_HAS_ITS_SOURCES: Final = "output-has-its-sources"
"""An output that equals a call's result has that call's sources only if the call has completed the run (R15.1)."""
PARTIAL_UNDO_FAILS: Final = "partial-undo-fails"
"""The undo of a child run fails if it leaves calls of unknown outcome, or calls for the next undo (R23.4)."""
PERSISTS_IN_SESSIONS: Final = "persists-in-sessions"
"""Hooks of `tool_result_persist` see the results of a session's runs alone: no other run has a transcript (R10.17)."""
RECALLED_SOURCES: Final = "sources-of-recall"
"""A value that `recall` reads has its own sources; in 0.1.0 every such value was untrusted."""
REMEMBER_PROVENANCE: Final = "remember-provenance"
"""A remembered decision applies to calls of the same provenance."""
RECORDED_CALLS_FIRST: Final = "recorded-calls-first"
"""In a fork the calls that the record answers end before other calls begin, and count as done for the rule `precedes` (R22.1)."""
REMARKS_END_NOTHING: Final = "remarks-end-nothing"
"""A text that is no output drops no held calls, and asks for no output while calls are left (R10.5)."""
RESETS_COUNT: Final = "resets-count"
"""Decisions from before a reset do not count (R7.3)."""
SESSION_KNOWS_DELEGATES: Final = "session-knows-delegates"
"""A delegate of a session's run signals the session when it starts and stops waiting for a person (R10.4)."""
SESSION_KNOWS_WAITING: Final = "session-knows-waiting"
"""A session's run signals the session when it starts and stops waiting for a person (R10.4)."""
STANDING_APPROVALS: Final = "standing-approvals"
"""A run of a procedure looks for a standing approval before it requests a person's approval (R23.3)."""
UNDO_FOLLOWS_POLICY: Final = "undo-follows-policy"
"""A change of a run's policy reaches the undo runs below it (R7.7)."""
UNDO_KNOWS_DEFAULTS: Final = "undo-knows-defaults"
"""An undo gets the default of a parameter that its call omits (R23.4). An effect's key has these parameters: another key would undo an effect
twice."""
UNUSED_GIVEN_BACK: Final = "unused-given-back"
"""A call that never begins gives its reservation of a sum over runs back (R23.1)."""
UNUSED_SHARES_RETURN: Final = "unused-shares-return"
"""A delegate that does not start returns its share of the budget, and uses nothing of its rules (R9.6, R23.1)."""

SINCE: Final[Mapping[str, int]] = MappingProxyType(
    dict.fromkeys(
        (
            ASKS_BY_ACTIVITY,
            CALLS_OF_ROUNDS,
            CLIENT_CALLS_UNLISTED,
            CLOCK_FOLLOWS,
            CONVERTED,
            DECIDED,
            FORMER_CHILDREN_END,
            HELD_CALLS_STAY,
            LAST_REQUEST_COUNTS,
            LISTED_AGENT,
            LOST_IS_NOT_DOWN,
            MODEL_PATIENCE,
            NOTIFIES,
            OUTPUT_BINDS_AT_END,
            RECALLED_SOURCES,
            REMEMBER_PROVENANCE,
            RESETS_COUNT,
            SESSION_KNOWS_DELEGATES,
            SESSION_KNOWS_WAITING,
            SHORT_TASKS,
            SIZES_COUNTED,
        ),
        1,
    )
    | {
        LEFT_CHILDREN_END: 2,
        LEFT_LOOPS_END: 3,
        INFORMED_AGAIN: 4,
        STANDING_APPROVALS: 5,
        UNUSED_GIVEN_BACK: 6,
        DEFAULTS_ASK: 6,
        DECIDED_CALLS_STOP: 6,
        FIRST_CALLS_TIMED_LATER: 7,
        CARRIES_LESS: 8,
        ADDED_ONE_BY_ONE: 9,
        ALL_USAGE_COUNTS: 9,
        CLIENT_TIMEOUT_ALONE: 9,
        CODE_COUNTS: 9,
        CONDITION_FIRST: 9,
        COUNTS_EACH_DELEGATE: 9,
        DATA_KNOWN: 9,
        DECISIONS_BEFORE_TIMEOUTS: 9,
        EDITS_KEEP_AUTHORS: 9,
        EXECUTED_CALLS_COUNT: 9,
        HELD_BLOCKS_NOTHING: 9,
        HOOKS_SEE_ANSWERS: 9,
        OPERATIONS_WAIT: 9,
        OPEN_PLAN_SETTLES_NOTHING: 9,
        JUDGED_AFTER_HOOKS: 9,
        JUDGED_ANEW: 9,
        LAZY_READS: 9,
        LETS_LOOK_BACK: 9,
        LIMITS_OF_CHILDREN: 9,
        LOOPS_KEEP_VALUES: 9,
        MUST_CALL_IN_LOOPS: 9,
        RECORDED_CALLS_FIRST: 9,
        REMARKS_END_NOTHING: 9,
        OUTAGE_STOPS_CLOCK: 9,
        OUTPUT_HAS_ITS_SOURCES: 9,
        OWN_DECIDES: 9,
        PARTIAL_UNDO_FAILS: 9,
        PARTS_DECIDED: 9,
        PERSISTS_IN_SESSIONS: 9,
        STEERED_RUNS_GO_ON: 9,
        UNDO_FOLLOWS_POLICY: 9,
        UNDO_KNOWS_DEFAULTS: 9,
        UNUSED_SHARES_RETURN: 9,
        WRITERS_STAY: 9,
    }
)
"""By rule the number that is recorded since its introduction. 0 is 0.1.0, 1 to 7 are 0.2.0, and 8 and 9 are unreleased. A rule after a release has
the next number, and so has a rule whose commands would break the recorded histories of the version."""
NEWEST: Final = max(SINCE.values())
"""The number that this version records for new runs."""


def follows(rules: int, rule: str) -> bool:
    """Whether a run with these recorded `rules` follows this one."""
    return rules >= SINCE[rule]
