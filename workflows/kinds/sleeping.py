"""The tool `sleep_until`: a durable timer, no worker is held. What its parameters mean is said in `perdure.tools.engine`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from temporalio import workflow

from perdure.workflows.timers import Alarm

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError
    from perdure.plan.outcomes import Failed, Outcome, Returned
    from perdure.tools.engine import sleep_seconds
    from perdure.values.jsons import JsonObject


async def sleep_until(params: JsonObject, alarm: Alarm) -> Outcome:
    """A durable timer, one for all that sleep: no worker is held, however long it takes."""
    now = workflow.now()
    slept = sleep_seconds(params, now.timestamp(), _read_time)
    if isinstance(slept, CallError):
        return Failed(slept)
    until = (now + timedelta(seconds=slept)).isoformat(timespec="seconds")
    ring = alarm.at(workflow.time() + slept, f"sleep until {until}")
    try:
        await ring
    finally:
        ring.cancel()
    return Returned({"until": until, "slept": round(slept, 3)})


def _read_time(text: str) -> float:
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
