"""Workflows that run for long: when an execution continues as new, whether a run's state is small enough for it, and
waits that no cancellation ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.workflow import ContinueAsNewVersioningBehavior

with workflow.unsafe.imports_passed_through():
    from perdure.runs.fork import FORK_FORM
    from perdure.runs.loops import LoopInput
    from perdure.runs.run import RunState
    from perdure.runs.snapshot import SNAPSHOT_FORM, Attempts, encode_snapshot, estimate_snapshot_size
    from perdure.runs.version_switches import CARRIES_LESS
    from perdure.runs.wire import RunInput
    from perdure.sessions.wire import LAST_USE_MEMO, SessionInput
    from perdure.values.json import UnreadArgument, pack, pack_json
    from perdure.values.limits import MAX_CARRIED_PARTS


def should_continue_as_new(*, keeps: bool = False) -> bool:
    """Whether to continue as new: the history is long, or pinned to a version that is not the current one (R13.7). One that `keeps` its
    version stays with it.
    """
    return workflow.info().is_continue_as_new_suggested() or _is_upgraded(keeps)


async def wait_uncancelled(condition: Callable[[], bool]) -> None:
    """Wait for a condition, also after a cancellation: the end of a workflow that holds data would lose them."""
    while True:
        try:
            return await workflow.wait_condition(condition)
        except asyncio.CancelledError:
            continue


def go_on_anew(argument: RunInput | LoopInput | SessionInput, *, keeps: bool = False, unused: bool = False) -> NoReturn:
    """Continue as new with the current version, or with its own. A server without versions rejects the versioning
    option. `unused`: nobody used the session in this execution, so its memo keeps the time of the last use.
    """
    changed = _is_upgraded(keeps)
    behavior = ContinueAsNewVersioningBehavior.AUTO_UPGRADE if changed else None
    memo = _read_memo(unused) if isinstance(argument, SessionInput) else None
    workflow.continue_as_new(argument, memo=memo, initial_versioning_behavior=behavior)


def _read_memo(unused: bool) -> dict[str, Any] | None:
    """Return the memo for the next execution, so that the codec encodes it under the newest key (R24.9).

    If the session is `unused`, the memo has the time of the last use. Else it has none: the next execution's start is
    that time. Return `None` if a value cannot be read; then the memo stays as it is.
    """
    try:
        memo = dict(workflow.memo())
    except Exception:  # a converter may raise anything
        return None
    last_use = memo.pop(LAST_USE_MEMO, workflow.info().start_time.isoformat())
    if unused:
        memo[LAST_USE_MEMO] = last_use
    return None if any(isinstance(value, UnreadArgument) for value in memo.values()) else memo


def _is_upgraded(keeps: bool) -> bool:
    return not keeps and workflow.info().is_target_worker_deployment_version_changed()


class ContinueAsNew:
    """The continue-as-new of one execution, whose state may be too large for it."""

    def __init__(self) -> None:
        self._attempts = Attempts()

    def go_on(self, run_input: RunInput, run: RunState, worked: float) -> None:
        """Continue as new where Temporal suggests it, or workers of another version are current now.

        Return if the state is too large for a new execution (R18.4).
        """
        keeps = run.prepared.keeps_version
        if not should_continue_as_new(keeps=keeps):
            return
        most, size = run.prepared.max_payload, estimate_snapshot_size(run)
        if not self._attempts.worth(size, most):
            return
        run.progress.worked = worked
        written, parts = encode_snapshot(run)
        if parts > MAX_CARRIED_PARTS and run.prepared.follows(CARRIES_LESS):
            self._attempts.note(size, most * parts // MAX_CARRIED_PARTS)
            return
        following = run_input.model_copy(
            update={"snapshot": pack_json(written, SNAPSHOT_FORM), "budget": run.limits.pool.share}
            | ({} if run.fork is None else {"fork": pack(run.fork.remaining(run.progress.number), FORK_FORM)})
        )
        packed = len(following.model_dump_json().encode())
        if packed <= most:
            go_on_anew(following, keeps=keeps)
        self._attempts.note(size, packed)
