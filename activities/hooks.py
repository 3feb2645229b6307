"""Hooks of a worker: their registration, and their calls within a time limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.active_executions import exits_as_errors, in_thread, others_poll, uncounted_failure
from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.queries import fetch_own
from perdure.activities.secrets import keep_secret_here, mask_error, mask_text, mask_value
from perdure.errors import ToolError
from perdure.hooks.answers import (
    AFTER,
    PERSIST,
    HookAnswerError,
    HookedEvent,
    answer_for_run,
    matches_tool,
    withheld_words,
)
from perdure.hooks.decorator import HookFunction
from perdure.hooks.events import (
    HOOK_ACTIVITY,
    HOOKS,
    NO_SUCH_HOOK,
    REFUSED_BY_HOOK,
    SESSION_HOOKS_ACTIVITY,
    AfterToolCall,
    HookAnswer,
    HookEvent,
    HookInput,
    HookProblem,
    HookRef,
    ToolResultPersist,
    Where,
)
from perdure.runs.claim_check import HOOK
from perdure.tools.invocation import CallHookRefs, ToolInput, ToolReads
from perdure.values.json import Json
from perdure.values.limits import MAX_PAYLOAD


class HookRegistry:
    """A registry of hooks by event and name. One function, imported by several modules, is one hook."""

    def __init__(self, functions: Iterable[HookFunction] = ()) -> None:
        self._functions: dict[tuple[str, str], HookFunction] = {}
        for function in functions:
            self.add(function)

    def add(self, function: HookFunction) -> None:
        """Add a hook. A known hook keeps its place; of two hooks of one name the later counts, as after a reload."""
        self._functions[function.ref.event, function.ref.name] = function

    def __iter__(self) -> Iterator[HookFunction]:
        return iter(self._functions.values())

    def __len__(self) -> int:
        return len(self._functions)

    def recorded(self, where: Where) -> list[HookRef]:
        """Return the hooks that a run, a session or a gateway records."""
        return [each.ref for each in self if HOOKS[each.ref.event].where == where]

    def lacking(self, wanted: Sequence[HookRef]) -> list[HookRef]:
        """Return the recorded hooks that this worker lacks."""
        return [each for each in wanted if (each.event, each.name) not in self._functions]

    def get(self, wanted: HookRef) -> HookFunction | None:
        return self._functions.get((wanted.event, wanted.name))

    def own(self, event: str, tools: Collection[str], wanted: Sequence[HookRef]) -> list[HookRef]:
        """Return this worker's hooks of an event for a tool that are not among the recorded ones."""
        known = {each.name for each in wanted if each.event == event}
        mine = (each.ref for each in self if each.ref.event == event and each.ref.name not in known)
        return [each for each in mine if matches_tool(each, tools)]


GONE: Final = "is missing: no worker had it in time"
_LOG: Final = logging.getLogger("perdure.hooks")


async def call_hooks(registry: HookRegistry, hooks: Sequence[HookRef], event: HookEvent) -> HookedEvent:
    """Call these hooks in their order, and return the event with their changes. Raise only a cancellation.

    The worker's log holds a hook's error with its traceback; the caller receives the class of the exception.
    """
    hearing = HookedEvent(event, MAX_PAYLOAD)
    for hook in hooks:
        function = registry.get(hook)
        problem = GONE if function is None else await _call(function, hook, hearing)
        if problem is not None:
            _LOG.warning("the hook %s of %s %s", hook.name, hook.event, problem, extra=_place(event))
            hearing.fail(hook, mask_text(problem))
        if hearing.over:
            break
    return hearing


def _place(event: HookEvent) -> dict[str, Any]:
    return {"perdure": {"run": event.run_id or event.session}}


async def _call(function: HookFunction, hook: HookRef, hearing: HookedEvent) -> str | None:
    """Call one hook and apply its answer; return the problem, if it failed."""
    given = hearing.event.model_copy(deep=True)  # changes in place affect only this copy
    work = asyncio.create_task(_work(function, given))
    try:
        await asyncio.wait({work}, timeout=hook.timeout)
    finally:
        if not work.done():  # Python cannot end a hook that ignores its cancellation: nothing waits for it
            work.cancel()
            work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    if not work.done():
        return f"did not answer within {hook.timeout:g} s"
    if work.cancelled():
        return "was cancelled"
    if (error := work.exception()) is not None:
        masked = mask_error(error) if isinstance(error, Exception) else error
        _LOG.error("the hook %s of %s failed", hook.name, hook.event, exc_info=masked, extra=_place(given))
        return f"failed: {type(error.__cause__ or error).__name__} (details are in the worker's log)"
    try:
        hearing.hear(hook, work.result())
    except HookAnswerError as fault:
        return f"returned an answer that is not valid: {fault}"
    except Exception as fault:  # an event that a hook has made without its class's constructor
        words = "the answer of the hook %s of %s cannot be read"
        _LOG.error(words, hook.name, hook.event, exc_info=mask_error(fault), extra=_place(given))
        return f"returned an answer that is not valid: reading it failed with {type(fault).__name__} (details are in the worker's log)"
    return None


async def _work(function: HookFunction, event: HookEvent) -> Any:
    if not function.is_async:
        return await in_thread(lambda: function.function(event), function.ref.name)
    with exits_as_errors():
        return await function.function(event)


class HookActivity:
    """The activity that calls hooks. `registry`: the worker's."""

    def __init__(self, registry: HookRegistry) -> None:
        self._registry = registry

    @activity.defn(name=HOOK_ACTIVITY)
    async def run(self, wanted: HookInput) -> HookAnswer:
        """Return the answer of the hooks. A hook's error never fails the activity. A worker that lacks a hook leaves
        the activity to another worker.
        """
        lacking = self._registry.lacking(wanted.hooks)
        if lacking and await others_poll():
            words = f"this worker has no hook {lacking[0].name!r}"
            raise ApplicationError(words, type=NO_SUCH_HOOK)
        async with supervised_heartbeat():
            given = wanted.given
            if given is None:
                given = await fetch_own(HOOK, wanted.key)
            try:
                event = HOOKS[wanted.event].event.model_validate(given)
            except (KeyError, ValueError) as error:
                raise ApplicationError(
                    f"not an event of this version: {error}", type="unknown_event", non_retryable=True
                ) from None
            keep_secret_here(event.context)
            hearing = await call_hooks(self._registry, wanted.hooks, event)
        answer: HookAnswer = HookAnswer.model_validate(mask_value(answer_for_run(event, hearing).as_json()))
        return answer

    @activity.defn(name=SESSION_HOOKS_ACTIVITY)
    async def of_sessions(self) -> list[HookRef]:
        """Return the hooks that a session's execution records. A worker without hooks leaves the first attempts to
        others.
        """
        found = self._registry.recorded("session")
        info = activity.info()
        if not found and not info.is_local and info.attempt < _ASKED_AROUND:
            raise ApplicationError("this worker has no hooks of sessions", type=NO_SUCH_HOOK)
        return found


_NONE: Final = CallHookRefs()
_ASKED_AROUND: Final = 5
"""Attempts in which other workers may answer: about four seconds."""


class ResultHooks:
    """The hooks of one call's result: those that its run has recorded, then this worker's own."""

    def __init__(self, registry: HookRegistry, call: ToolInput) -> None:
        self._registry, self._call = registry, call
        self._given = call.hooks or _NONE
        names = (call.tool, call.activity)
        self._after = self._all(AFTER, names)
        self._persist = self._all(PERSIST, names) if self._given.records else []
        self.unheard: list[HookProblem] = []
        """Hooks that failed and were ignored."""

    def _all(self, event: str, names: Sequence[str]) -> list[HookRef]:
        recorded = [each for each in self._given.hooks if each.event == event]
        return [*recorded, *self._registry.own(event, names, recorded)]

    def check(self) -> None:
        """Raise `ApplicationError`, before the call runs, if this worker lacks a hook that the result requires."""
        lacking = [each for each in self._registry.lacking([*self._after, *self._persist]) if each.closed]
        if lacking:  # the run schedules the call again: see `perdure.workflows.executions`
            words = f"this worker has no hook {lacking[0].name!r}"
            raise uncounted_failure(NO_SUCH_HOOK, words)

    async def look(self, reads: ToolReads, value: Json) -> tuple[Json, list[Json] | None]:
        """Return the result after its hooks, and the transcript's value if it differs. Raise `ToolError` to withhold
        it.
        """
        kept: list[Json] | None = None
        if self._after:
            event = AfterToolCall(
                **self._of(AFTER, reads),
                params=reads.params,
                result=value,
                attempt=self._call.earlier + activity.info().attempt,
            )
            hearing = await call_hooks(self._registry, self._after, event)
            self.unheard += hearing.answer.failed
            if hearing.answer.refused is not None:
                raise ToolError(REFUSED_BY_HOOK, withheld_words(self._call.tool, hearing.answer.refused))
            if hearing.answer.changed is not None:
                value = hearing.answer.changed["result"]
        if self._persist:
            persist = ToolResultPersist(**self._of(PERSIST, reads), params=reads.params, result=value)
            hearing = await call_hooks(self._registry, self._persist, persist)
            self.unheard += hearing.answer.failed
            if hearing.answer.refused is not None:
                kept = [f"[withheld: {hearing.answer.refused}]"]
            elif hearing.answer.changed is not None:
                kept = [hearing.answer.changed["result"]]
        return value, kept

    def _of(self, event: str, reads: ToolReads) -> dict[str, Any]:
        info, call = activity.info(), self._call
        return {
            **self._given.of,
            "context": {} if reads.owner is None else reads.owner.context,
            "key": f"{info.workflow_id}/{call.call_id}/{event}",
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "run_id": info.workflow_id or "",
            "call": call.call_id,
            "tool": call.tool,
            "code": call.activity,
        }
