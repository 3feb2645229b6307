"""Plans: calls as a dependency graph, their scheduler, loops, validation, and simulation."""

from perdure.plan._calls import (
    DEFAULT_ITERATIONS,
    DEFAULT_PARALLEL,
    EACH,
    ENDED,
    HELD,
    IF,
    LOOP_DONE,
    LOOP_FAILED,
    LOOP_RESULTS,
    SHOWN_FAILURES,
    UNTIL,
    WHILE,
    Approval,
    Call,
    Failed,
    Kind,
    LoopForm,
    Outcome,
    Rejected,
    Returned,
    again,
    errors_of,
    is_satisfied,
)
from perdure.plan._dependency_graph import is_order
from perdure.plan._held_calls import written_anew
from perdure.plan._loop_spec import OWN_TOOLS
from perdure.plan._loops import outside_state
from perdure.plan._plan import Plan
from perdure.plan._retry import BEGUN, INTERRUPTED, LOST, NO_SUCH_TOOL, NOT_BEGUN, RESERVED_CODES, RetryState
from perdure.plan._simulation import SimulatedCall, Simulation, simulate
from perdure.plan._structural_errors import QUOTED, missing_path, surplus_words
from perdure.plan._validation import CONVERTED, take_changed

__all__ = [
    "Approval",
    "BEGUN",
    "CONVERTED",
    "Call",
    "DEFAULT_ITERATIONS",
    "DEFAULT_PARALLEL",
    "EACH",
    "ENDED",
    "Failed",
    "HELD",
    "IF",
    "INTERRUPTED",
    "Kind",
    "LOOP_DONE",
    "LOOP_FAILED",
    "LOOP_RESULTS",
    "LOST",
    "LoopForm",
    "NOT_BEGUN",
    "NO_SUCH_TOOL",
    "OWN_TOOLS",
    "Outcome",
    "Plan",
    "QUOTED",
    "RESERVED_CODES",
    "Rejected",
    "RetryState",
    "Returned",
    "SimulatedCall",
    "Simulation",
    "SHOWN_FAILURES",
    "UNTIL",
    "WHILE",
    "again",
    "errors_of",
    "is_order",
    "is_satisfied",
    "missing_path",
    "outside_state",
    "simulate",
    "surplus_words",
    "take_changed",
    "written_anew",
]
