"""Errors of the SDK, as Perdure reports them."""

from __future__ import annotations

import pytest

from perdure.queries import replay_problem

CORE = (
    'Workflow activation completion failed: Failure { failure: Some(Failure { message: "[TMPRL1100] Nondeterminism error: '
    'Activity type of scheduled event \'pay\' does not match \\"buy\\"", source: "", stack_trace: "", cause: None }) }'
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (CORE, "[TMPRL1100] Nondeterminism error: Activity type of scheduled event 'pay' does not match \"buy\""),
        ("a bug:\n  of a workflow", "a bug: of a workflow"),
    ],
)
def test_a_failed_replay_has_the_sdks_message_alone(error: str, line: str) -> None:
    assert replay_problem(error) == line
