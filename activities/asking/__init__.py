"""What is asked of workflows by query, which no history records: by an activity of its own run or another, and by whoever stands outside."""

from perdure.activities.asking.answers import TIMEOUT, answer_of, cancellable, execution_before
from perdure.activities.asking.runs import (
    OWN_CLIENT,
    Look,
    ask_given,
    ask_granted,
    ask_other,
    ask_reads,
    ask_run,
    client,
    look,
    other_run,
    own_run,
)

__all__ = [
    "OWN_CLIENT",
    "Look",
    "TIMEOUT",
    "answer_of",
    "ask_given",
    "ask_granted",
    "ask_other",
    "ask_reads",
    "ask_run",
    "cancellable",
    "client",
    "execution_before",
    "look",
    "other_run",
    "own_run",
]
