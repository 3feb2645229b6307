"""Errors of the SDK, as Perdure reports them."""

from __future__ import annotations

import pytest
from temporalio.api.deployment.v1 import WorkerDeploymentVersion

from perdure.queries import DEV_DEPLOYMENT, replay_problem
from perdure.queries._answers import _name_worker

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


def test_the_missing_worker_of_dev_is_dev_itself() -> None:
    words = [
        _name_worker("q", WorkerDeploymentVersion(deployment_name=name, build_id="1")) for name in ("x", DEV_DEPLOYMENT)
    ]
    assert words[0] == "Start a worker on task queue 'q' with version '1' of deployment 'x'"
    assert words[1] == "Start 'perdure dev' again, with the same --db"
