"""Switches for replay: rules that runs follow only since a version (R13.7).

The preparation of a run records once which rules the run follows. Code that differs between versions asks `PreparedWorker.follows`, never
`workflow.patched`. The marker of `patched` is a command, and commands behind a local activity may come in another order in a replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from perdure.plan import CONVERTED
from perdure.values.limits import CALLS_OF_ROUNDS, DECIDED, SHORT_TASKS, SIZES_COUNTED

ASKS_BY_ACTIVITY: Final = "asks-by-activity"
"""After its start a run asks its workers by activities that are not local: commands behind a local one come in another order in a replay."""
CLIENT_CALLS_UNLISTED: Final = "client-calls-unlisted"
"""Lists do not have what the client carries out."""
CLOCK_FOLLOWS: Final = "clock-follows"
"""The clock is derived from the calls (R9.5)."""
DECIDED_CALLS_STOP: Final = "decided-calls-stop"
"""A call that a person removes from a plan that goes on does not run, also if it waits for its turn; one that
runs already goes on (R10.5)."""
DEFAULTS_ASK: Final = "defaults-ask"
"""A condition of the approval policy sees the default of a parameter that a call leaves out (R7.1)."""
FORMER_CHILDREN_END: Final = "former-children-end"
"""A delegate, or a user's workflow, that was open when its run was reset is ended before the run starts it anew (R7.2)."""
HELD_CALLS_STAY: Final = "held-calls-stay"
"""A call that a message has held, and that the next answer does not name, stays held (R10.5)."""
LAST_REQUEST_COUNTS: Final = "last-request-counts"
"""The Request that a limit leaves counts as one of those that the run may make."""
LOST_IS_NOT_DOWN: Final = "lost-is-not-down"
"""A Request whose workers were lost, or too busy, is asked again; its model does not count as down."""
LEFT_CHILDREN_END: Final = "left-children-end"
"""What a reset of the run has left behind is cancelled at once, also where the run does not start it anew (R7.2)."""
INFORMED_AGAIN: Final = "informed-again"
"""A request that is asked again, such as after a reset, informs people again, and its timeout counts from then (R7.2, R19.5)."""
LISTED_AGENT: Final = "listed-agent"
"""A run that a user's own workflow has started lists its agent."""
MODEL_PATIENCE: Final = "model-patience"
"""A Request waits for models whose provider is away (R20.5)."""
LEFT_LOOPS_END: Final = "left-loops-end"
"""A reset run without delegates, too, cancels what the reset has left behind: a loop of more than 100 items is a workflow of its own (R7.2)."""
NOTIFIES: Final = "notifies"
"""A run informs people by the routes of its agent file, and reports its end to the address that its start named (R19.5, R19.8)."""
OUTPUT_BINDS_AT_END: Final = "output-binds-at-end"
"""The output reads what its plan's calls have written at the end."""
RECALLED_SOURCES: Final = "sources-of-recall"
"""A value that `recall` reads again has its own sources; 0.1.0 took all for written by others."""
REMEMBER_PROVENANCE: Final = "remember-provenance"
"""A decision that is remembered holds for calls of the same provenance."""
RESETS_COUNT: Final = "resets-count"
"""Decisions of before a reset do not count (R7.3)."""
SESSION_KNOWS_DELEGATES: Final = "session-knows-delegates"
"""A delegate of a session's run tells the session when it begins, and when it ceases, to wait for a person (R10.4)."""
SESSION_KNOWS_WAITING: Final = "session-knows-waiting"
"""A session's run tells it when it begins, and when it ceases, to wait for a person (R10.4)."""
STANDING_APPROVALS: Final = "standing-approvals"
"""A run of a procedure asks for standing approvals before it asks a person (R23.3)."""
UNUSED_GIVEN_BACK: Final = "unused-given-back"
"""What a call has reserved of a sum over runs is given back where the call never begins (R23.1)."""

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
    }
)
"""By rule the number that is recorded since it came. 0 is 0.1.0, 1 to 6 are 0.2.0: a rule that comes after a release has the next number, and so
has one whose commands would break the recorded histories of the version."""
NEWEST: Final = max(SINCE.values())
"""What this version records for runs that begin."""


def follows(rules: int, rule: str) -> bool:
    """Whether a run with these recorded `rules` follows this one."""
    return rules >= SINCE[rule]
