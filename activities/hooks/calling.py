"""Calling hooks: one after the other, each within its time; one that hangs or raises holds nobody up and fails nothing but what it guards."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from typing import Any, Final

from perdure.activities.hooks.registered import HookRegistry
from perdure.activities.secrets import masked
from perdure.activities.underway.threads import in_thread
from perdure.hooks.answers import Hearing, HookAnswerError
from perdure.hooks.events import HookEvent
from perdure.hooks.functions import HookFunction
from perdure.hooks.wire import HookRef
from perdure.values.limits import MAX_PAYLOAD

GONE: Final = "is not there any more: this worker does not have it, nor had another in time"
_LOG: Final = logging.getLogger("perdure.hooks")


async def call_hooks(registry: HookRegistry, hooks: Sequence[HookRef], event: HookEvent) -> Hearing:
    """What these hooks, in their order, make of the event. Raises only what cancels it.

    What a hook raised stands in the worker's log, with its traceback; what is told of it is the class of the exception.
    """
    hearing = Hearing(event, MAX_PAYLOAD)
    for hook in hooks:
        function = registry.get(hook)
        problem = GONE if function is None else await _call(function, hook, hearing)
        if problem is not None:
            _LOG.warning("the hook %s of %s %s", hook.name, hook.event, problem, extra=_place(event))
            hearing.fail(hook, masked(problem))
        if hearing.over:
            break
    return hearing


def _place(event: HookEvent) -> dict[str, Any]:
    return {"perdure": {"run": event.run_id or event.session}}


async def _call(function: HookFunction, hook: HookRef, hearing: Hearing) -> str | None:
    """Call one, and take in what it says; what is wrong with it."""
    given = hearing.event.model_copy(deep=True)  # what it changes in place is its own
    work = asyncio.create_task(_work(function, given))
    try:
        await asyncio.wait({work}, timeout=hook.timeout)
    finally:
        if not work.done():  # nothing can end one that does not want to: nobody waits for it
            work.cancel()
            work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    if not work.done():
        return f"did not answer within {hook.timeout:g} s"
    if work.cancelled():
        return "was cancelled"
    if (error := work.exception()) is not None:
        _LOG.error("the hook %s of %s failed", hook.name, hook.event, exc_info=error, extra=_place(given))
        return f"failed: {type(error.__cause__ or error).__name__} (the worker's log says more)"
    try:
        hearing.hear(hook, work.result())
    except HookAnswerError as fault:
        return f"gave no answer that can be taken: {fault}"
    except Exception as fault:  # an event that a hook has made by other means than its class offers
        _LOG.error("what the hook %s of %s returned cannot be read", hook.name, hook.event, exc_info=fault)
        return f"gave no answer that can be taken: reading it failed with {type(fault).__name__} (the worker's log says more)"
    return None


async def _work(function: HookFunction, event: HookEvent) -> Any:
    try:
        if function.is_async:
            return await function.function(event)
        work = in_thread(lambda: function.function(event), function.ref.name, tell=lambda: None, counts=lambda: False)
        said = await work
        return await said if inspect.isawaitable(said) else said
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # which would end the worker
        raise RuntimeError(type(error).__name__) from error
