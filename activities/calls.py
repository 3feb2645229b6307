"""The execution of one call: a single dynamic activity that serves all tools."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from temporalio import activity
from temporalio.client import WorkflowQueryFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.active_executions import (
    TRACE,
    ActiveExecution,
    ActiveExecutions,
    exits_as_errors,
    finish_though_paused,
    in_thread,
    is_only_attempt,
    report_begun,
    uncounted_failure,
)
from perdure.activities.failures import serializable_cause, tool_failure
from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.hooks import ResultHooks
from perdure.activities.queries import LASTING, fetch, fetch_own, own_run
from perdure.activities.registry import Registry
from perdure.activities.results import ResultStorage
from perdure.activities.secrets import keep_secret_here, mask_text, mask_value
from perdure.agents.media import media_met
from perdure.approvals.policy import Ask, floor_problem
from perdure.errors import JsonError, MediaError, ToolError
from perdure.hooks.events import RunOwner
from perdure.plan import INTERRUPTED, NO_SUCH_TOOL, NOT_BEGUN
from perdure.queries.media_store import MediaStore
from perdure.runs.claim_check import CALL, GRANT
from perdure.runs.wire import CLAIM
from perdure.tools.decorator import Branch, ToolContext, ToolFunction
from perdure.tools.definitions import with_own_names
from perdure.tools.invocation import ReportedUsage, SpaceClaim, ToolInput, ToolReads, ToolResult, idempotency_key
from perdure.tools.server_input import ANSWERS, ServerAnswers, ServerInput, ServerInputError
from perdure.values.json import Json, check, dumps
from perdure.values.limits import HISTORY_FULL, MAX_PAYLOAD, RESULT_TOO_LARGE, bytes_text

_PAUSE: Final = 2.0
"""Seconds until a run that did not answer is asked again."""


class ToolActivity:
    def __init__(
        self,
        registry: Registry,
        max_payload: int = MAX_PAYLOAD,
        floor: Ask = "never",
        underway: ActiveExecutions | None = None,
    ) -> None:
        self._registry = registry
        self._floor: Ask = floor
        self._underway = underway or ActiveExecutions()
        self._max_payload = max_payload

    @activity.defn(dynamic=True)
    async def run(self, arguments: Sequence[RawValue]) -> ToolResult:
        """Run the tool. Its failure is an `ApplicationError` whose type is the error's code (R12.3)."""
        try:
            call: ToolInput = activity.payload_converter().from_payload(arguments[0].payload, ToolInput)
        except (IndexError, ValueError):
            words = f"no worker of this queue has the activity {activity.info().activity_type!r}"
            raise ApplicationError(words, type="NotFoundError", non_retryable=True) from None
        function = self._registry.get(call.activity)
        if function is None:  # the run asks again: see `perdure.workflows.executions`
            words = f"this worker has no tool {call.activity!r}"
            raise uncounted_failure(NO_SUCH_TOOL, words)
        async with self._underway.working(f"{call.tool} {call.call_id} of {activity.info().workflow_id}") as work:
            body = self._run(function, call, work)
            return await (finish_though_paused(work, body) if is_only_attempt() else body)

    async def _run(self, function: ToolFunction, call: ToolInput, work: ActiveExecution) -> ToolResult:
        work.begun = carried_out = False
        storage, hooks = ResultStorage(call.tool), ResultHooks(self._registry.hooks, call)
        hooks.check()
        try:
            async with supervised_heartbeat() as heart:
                reads = await fetch_own(CALL, call.call_id) if call.reads is None else call.reads
                work.begun = not is_only_attempt()
                if reads.owner is not None:
                    keep_secret_here(reads.owner.context)
                if (trace := TRACE.get()) is not None:
                    trace.tool, trace.given = call.tool, reads.params if trace.content else None
                self._check_floor(function, call, reads)
                await report_begun()
                work.begun = True
                ANSWERS.set(call.answers or ServerAnswers())
                store = MediaStore(activity.client().data_converter, reads.owner.tenant if reads.owner else "")
                usage: list[ReportedUsage] = []
                marks: list[bool] = []
                context = replace(
                    _context(function, call, reads, heart.record, usage.append),
                    on_untrusted=functools.partial(marks.append, True),
                )
                value = await self._call(function, call, reads, context, store)
                carried_out = True
                async with storage.in_time():
                    branch = value.path if isinstance(value, Branch) else None
                    with media_met() as files:
                        result = function.dump(value.value if isinstance(value, Branch) else value)
                    await storage.store(lambda: store.save(files))
                    size = _measured(call.tool, result, self._max_payload)
                    result, kept = await hooks.look(reads, before := mask_value(result))
                    if result is not before or kept is not None:
                        size = _measured(call.tool, result, self._max_payload)
                        result, kept = mask_value(result), mask_value(kept)
                    if size > call.free and not _travels_outside(size):
                        await _claim(call, size)
                    return await storage.encode(
                        ToolResult(
                            value=result,
                            branch=branch,
                            attempt=activity.info().attempt,
                            size=size,
                            kept=kept,
                            unheard=hooks.unheard,
                            usage=usage,
                            untrusted=bool(marks),
                        ),
                    )
        except ServerInputError as error:
            return ToolResult(attempt=activity.info().attempt, asks=_masked(error.asked))
        except MediaError as error:
            raise tool_failure(ToolError("file", str(error)), carried_out=carried_out) from None
        except Exception as error:
            # A safe tool that reads its run has done nothing yet if the run does not answer.
            has_begun = work.begun and not function.definition.get("_safe")
            if isinstance(error, ApplicationError) and error.type in (INTERRUPTED, NOT_BEGUN) and not has_begun:
                raise
            raise tool_failure(error, carried_out=carried_out) from serializable_cause(error)

    def _check_floor(self, function: ToolFunction, call: ToolInput, reads: ToolReads) -> None:
        """Check this worker's own floor: the run may be another worker's, with another floor (R7.1)."""
        code, approved = function.definition, call.approved
        problem = floor_problem(self._floor, code, call.activity, reads.params, approved, clean=call.clean)
        if problem is not None:
            raise ToolError("approval_required", problem)

    async def _call(
        self, function: ToolFunction, call: ToolInput, reads: ToolReads, context: ToolContext, store: MediaStore
    ) -> Any:
        given_up = threading.Event()
        context = replace(context, is_cancelled=given_up.is_set)
        with media_met() as files:
            arguments = function.bind(with_own_names(reads.params, function.definition, context.tool), context)
        await store.load(files)
        if function.is_async:
            with exits_as_errors():
                return await function.function(**arguments)
        work = functools.partial(function.function, **arguments)
        name = f"{call.tool} {call.call_id}"
        return await in_thread(work, name, notify=given_up.set, counts=lambda: self._underway.interrupted)


def _masked(asked: ServerInput) -> ServerInput:
    """Return a server's input without secrets. It compares keys and its state, which therefore stay unchanged."""
    return asked.model_copy(
        update={
            "questions": [
                each.model_copy(
                    update={
                        "message": mask_text(each.message),
                        "form": mask_value(each.form),
                        "url": mask_text(each.url),
                    }
                )
                for each in asked.questions
            ],
            "samples": [each.model_copy(update={"messages": mask_value(each.messages)}) for each in asked.samples],
        }
    )


def _measured(name: str, result: Json, limit: int) -> int:
    """Return the size of a result in bytes; no other code measures it again. A result that the workflow could not
    decode fails the call finally (R18.1).
    """
    try:
        check(result, source=f"the result of {name}")
    except JsonError as error:
        raise ToolError("not_json", str(error)) from None
    size = len(dumps(result).encode())
    if size > limit:
        raise ToolError(
            RESULT_TOO_LARGE,
            f"the result of {name} has {size:,} bytes; a call can return {limit:,}. Return less, or write the result to a file and return its path",
        )
    return size


def _travels_outside(size: int) -> bool:
    """Whether a value of this size goes to external storage, and only its name into the history (R6.9)."""
    storage = activity.client().data_converter.external_storage
    return storage is not None and size >= (storage.payload_size_threshold or 0)


async def _claim(call: ToolInput, size: int) -> None:
    """Ask whether the run's history has room for a large result (R18.4). Raises `ToolError` when it has none.

    The tool has run, so a run that does not answer now is asked until the end of the attempt.
    """
    granted: bool | None = None
    is_sent = False
    while granted is None:
        try:
            if not is_sent:
                await own_run().signal(CLAIM, SpaceClaim(call_id=call.call_id, size=size))
                is_sent = True
            granted = await fetch(GRANT, call.call_id)
        except (RPCError, WorkflowQueryFailedError) as error:
            if isinstance(error, RPCError) and error.status in LASTING:
                raise
            await asyncio.sleep(_PAUSE)
    if not granted:
        raise ToolError(
            HISTORY_FULL,
            f"the result of {call.tool} has {bytes_text(size)}, which is too much for the run's history. Return less, make fewer parallel calls, or give the workers external storage (PERDURE_STORAGE)",
        )


def _context(
    function: ToolFunction,
    call: ToolInput,
    reads: ToolReads,
    send: Callable[..., None],
    used: Callable[[ReportedUsage], None],
) -> ToolContext:
    owner = reads.owner or RunOwner()
    return ToolContext(
        tool_name=call.tool,
        tool=reads.definition or function.definition,
        call=reads.call,
        call_id=call.call_id,
        idempotency_key=idempotency_key(
            activity.info().workflow_id or "", call.call_id, call.tool, reads.params, reads.undoes
        ),
        attempt=call.earlier + activity.info().attempt,
        messages=reads.messages,
        run_id=activity.info().workflow_id or "",
        session=owner.session,
        sender=owner.sender,
        tenant=owner.tenant,
        context=owner.context,
        on_heartbeat=_heartbeat_from_anywhere(send),
        on_usage=used,
    )


def _heartbeat_from_anywhere(send: Callable[..., None]) -> Callable[..., None]:
    """Return a heartbeat function for code that may run in a thread: Temporal's own must be called on the event loop."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()

    def heartbeat(*details: Any) -> None:
        loop.call_soon_threadsafe(functools.partial(send, *details), context=context)

    return heartbeat
