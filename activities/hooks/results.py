"""Hooks of a call that has just run, called where it ran: what they take out of its result never leaves the worker (R10.17)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.hooks.calling import call_hooks
from perdure.activities.hooks.registered import HookRegistry
from perdure.errors import ToolError
from perdure.hooks.answers import WITHHELD
from perdure.hooks.events import AfterToolCall, ToolResultPersist
from perdure.hooks.matching import AFTER, PERSIST
from perdure.hooks.wire import NO_SUCH_HOOK, REFUSED_BY_HOOK, HookProblem, HookRef
from perdure.tools.wire import HooksOfCall, ToolInput, ToolReads
from perdure.values.jsons import Json

_NONE: Final = HooksOfCall()


class ResultHooks:
    """Those for one call: what its run has recorded, and behind them what this worker has of its own."""

    def __init__(self, registry: HookRegistry, call: ToolInput) -> None:
        self._registry, self._call = registry, call
        self._given = call.hooks or _NONE
        names = (call.tool, call.activity)
        self._after = self._all(AFTER, names)
        self._persist = self._all(PERSIST, names) if self._given.records else []
        self.unheard: list[HookProblem] = []
        """Those that failed and were gone past."""

    def _all(self, event: str, names: Sequence[str]) -> list[HookRef]:
        recorded = [each for each in self._given.hooks if each.event == event]
        return [*recorded, *self._registry.own(event, names, recorded)]

    def check(self) -> None:
        """Raises `ApplicationError`, before the call is made, where this worker lacks one without which its result would be withheld."""
        lacking = [each for each in self._registry.lacking([*self._after, *self._persist]) if each.closed]
        if lacking:  # the run asks again: see `perdure.workflows.sending`
            words = f"this worker has no hook {lacking[0].name!r}"
            raise ApplicationError(words, activity.info().attempt, type=NO_SUCH_HOOK, non_retryable=True)

    async def look(self, reads: ToolReads, value: Json) -> tuple[Json, list[Json] | None]:
        """The result as it is to be, and where that is another what a transcript keeps. Raises `ToolError` where it is withheld."""
        kept: list[Json] | None = None
        if self._after:
            event = AfterToolCall(
                **self._of(AFTER),
                params=reads.params,
                result=value,
                attempt=self._call.earlier + activity.info().attempt,
            )
            hearing = await call_hooks(self._registry, self._after, event)
            self.unheard += hearing.answer.failed
            if hearing.answer.refused is not None:
                raise ToolError(REFUSED_BY_HOOK, f"{self._call.tool} {WITHHELD}: {hearing.answer.refused}")
            if hearing.answer.changed is not None:
                value = hearing.answer.changed["result"]
        if self._persist:
            persist = ToolResultPersist(**self._of(PERSIST), params=reads.params, result=value)
            hearing = await call_hooks(self._registry, self._persist, persist)
            self.unheard += hearing.answer.failed
            if hearing.answer.refused is not None:
                kept = [f"[withheld: {hearing.answer.refused}]"]
            elif hearing.answer.changed is not None:
                kept = [hearing.answer.changed["result"]]
        return value, kept

    def _of(self, event: str) -> dict[str, str]:
        info, call = activity.info(), self._call
        return {
            **self._given.of,
            "key": f"{info.workflow_id}/{call.call_id}/{event}",
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "run_id": info.workflow_id or "",
            "call": call.call_id,
            "tool": call.tool,
            "code": call.activity,
        }
