"""The tool `sleep_until`: a durable timer, no worker is held."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError
    from perdure.plan.outcomes import Failed, Outcome, Returned
    from perdure.values.durations import LONGEST
    from perdure.values.jsons import Json, JsonObject, shorten


async def sleep_until(params: JsonObject) -> Outcome:
    """A durable timer: no worker is held, however long it takes."""
    until = sleep_end(params, workflow.now())
    if isinstance(until, CallError):
        return Failed(until)
    slept = max(0.0, (until - workflow.now()).total_seconds())
    await workflow.sleep(slept, summary=f"sleep until {until.isoformat(timespec='seconds')}")
    return Returned({"until": until.isoformat(timespec="seconds"), "slept": round(slept, 3)})


def sleep_end(params: JsonObject, now: datetime) -> datetime | CallError:
    """When a sleep that begins `now` is over. Whatever the tool's definition takes, only what a timer can hold is meant."""
    time: Json = params.get("time")
    seconds: Json = params.get("seconds")
    if (time is None) == (seconds is None):
        return CallError("invalid_params", "sleep_until takes a time or seconds, one of them")
    try:
        if time is None:
            return now + timedelta(seconds=_at_most_longest(float(seconds)))
        until: datetime = datetime.fromisoformat(time)
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        _at_most_longest((until - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return CallError(
            "invalid_params",
            f"$.seconds is {shorten(seconds, 60)}, but must be a number from 0 to {LONGEST:,.0f}, a hundred years"
            if time is None
            else f"$.time is {shorten(time, 60)}, but must be ISO 8601 and within a hundred years, such as 2030-01-31T08:00:00+01:00",
        )
    return until


def _at_most_longest(seconds: float) -> float:
    if not seconds <= LONGEST:  # also not a number
        raise OverflowError
    return max(0.0, seconds)
