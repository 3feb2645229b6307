"""What a reader of a run learns from its pending activities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.converter import DataConverter

from perdure.client._event_relay import ActivityReader
from perdure.client._pending_activities import note_paused_and_silent
from perdure.runs.wire import REQUEST_ACTIVITY, CallView, RunView
from perdure.values.json import JsonObject


def described(silent: float, timeout: float) -> Any:
    pending = PendingActivityInfo(activity_id="1.0", state=2)  # type: ignore[arg-type]
    pending.activity_options.heartbeat_timeout.FromTimedelta(timedelta(seconds=timeout))
    pending.last_started_time.FromDatetime(datetime.now(UTC) - timedelta(seconds=100))
    pending.last_heartbeat_time.FromDatetime(datetime.now(UTC) - timedelta(seconds=silent))
    return SimpleNamespace(raw_description=SimpleNamespace(pending_activities=[pending]))


@pytest.mark.parametrize(("silent", "timeout", "told"), [(18, 20, True), (15, 20, False), (50, 0, False)])
def test_a_worker_that_is_not_heard_of_is_told_before_it_is_given_up(silent: float, timeout: float, told: bool) -> None:
    call = CallView(id="1.0", tool="t", params={}, status="running", attempts=1)
    view = RunView(run_id="r", calls=[call])
    note_paused_and_silent(view, described(silent, timeout))
    words = "its worker sent no heartbeat for 18 s; after 20 s another worker gets the call"
    assert view.calls[0].reason == (words if told else None)


@pytest.mark.parametrize(
    ("asked", "model"),
    [({}, {}), ({"number": 1, "model": "old"}, {}), ({"number": 2, "model": "m"}, {"model": "m"})],
    ids=["before its start was read", "after the start of another", "after its start"],
)
async def test_a_retry_of_a_request_names_its_number(asked: JsonObject, model: JsonObject) -> None:
    """An AG-UI stream ended with `KeyError` where the model's connection broke before the start was read."""
    pending = PendingActivityInfo(activity_id="request-2-1", state=2, attempt=2)  # type: ignore[arg-type]
    pending.activity_type.name = REQUEST_ACTIVITY
    pending.last_failure.message = "the connection was lost"
    description: Any = SimpleNamespace(raw_description=SimpleNamespace(pending_activities=[pending]))
    client: Any = SimpleNamespace(data_converter=DataConverter.default)
    (update,) = (await ActivityReader(client).live(description, asked)).updates
    assert update.data.pop("reason").startswith("attempt 2 after: ")
    assert update.data == {"number": 2} | model
