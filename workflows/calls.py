"""The inner loop: one Request's calls, from the first that is ready to the last that ends (R6.2).

Two events drive it: a call arrived, or a running call ended. On each, everything that became ready starts at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeAlias

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from workflows.outcomes import failed

with workflow.unsafe.imports_passed_through():
    from perdure.calls import Call
    from perdure.errors import CallError
    from perdure.intake import Intake
    from perdure.jsons import Json, dumps
    from perdure.outcomes import Failed, Outcome, Returned
    from perdure.plan import Plan
    from perdure.prompts import call_line
    from perdure.runs import MAX_PAYLOAD, Delivery, RequestResult, ToolInput, ToolResult

_Arrived: TypeAlias = list[Json]
_Ended: TypeAlias = tuple[Call, Outcome]


class CallLoop:
    """Runs the calls of one Request. `on_change` is told whenever a call has arrived, started or ended."""

    def __init__(self, plan: Plan, on_change: Callable[[], None]) -> None:
        self.intake = Intake(plan.request)
        self._plan = plan
        self._on_change = on_change
        self._events: asyncio.Queue[_Arrived | _Ended | RequestResult | BaseException] = asyncio.Queue()
        self._running: dict[str, asyncio.Task[None]] = {}

    def deliver(self, delivery: Delivery) -> None:
        """Calls have closed in the model's stream (R6.3)."""
        if calls := self.intake.deliver(delivery):
            self._events.put_nowait(calls)

    async def run(self, answer: Coroutine[Any, Any, RequestResult]) -> RequestResult:
        """Run what is delivered and what the answer holds until the plan has settled; the answer as it stands in the end.

        Raises what the answer raises, unless calls have been released: then the Request is interrupted, and they stand.
        """
        asking = asyncio.create_task(self._ask(answer))
        result = RequestResult()
        try:
            while not self._plan.settled:
                event = await self._events.get()
                if isinstance(event, BaseException):
                    raise event
                if isinstance(event, RequestResult):
                    result = event
                    self._plan.close(drain=result.output is not None)
                elif isinstance(event, list):
                    for raw in event:
                        self._plan.add(raw)
                else:
                    call, outcome = event
                    del self._running[call.id]
                    self._plan.end(call, outcome, _now())
                self._start_ready()
            return result
        finally:
            left = [asking, *self._running.values()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _ask(self, answer: Coroutine[Any, Any, RequestResult]) -> None:
        try:
            result = await answer
        except ApplicationError as error:
            if not self.intake.received:
                self._events.put_nowait(error)
                return
            result = self.intake.interrupted(error.message)
        except BaseException as error:
            self._events.put_nowait(error)
            raise
        missing, result = self.intake.close(result)
        self._events.put_nowait(missing)
        self._events.put_nowait(result)

    def _start_ready(self) -> None:
        while ready := self._plan.take_ready(_now()):
            for call in ready:
                assert call.tool is not None
                if call.tool.latent:
                    # The model has written the result itself: nothing runs, so nothing needs to be waited for.
                    self._plan.end(call, Returned(call.result), _now())
                else:
                    self._running[call.id] = asyncio.create_task(self._run(call))
        self._on_change()

    async def _run(self, call: Call) -> None:
        try:
            outcome = await run_tool(call, self._plan)
        except BaseException as error:
            # No outcome of the tool's: a cancellation, or a fault of the engine's. Nobody may wait for it for ever.
            self._events.put_nowait(error)
            raise
        self._events.put_nowait((call, outcome))


async def run_tool(call: Call, plan: Plan) -> Outcome:
    """One tool call as a Temporal activity under the tool's own name, with its own timeouts and retries (R12.1)."""
    tool = call.tool
    assert tool is not None
    assert tool.activity is not None
    if (size := len(dumps(call.params).encode())) > MAX_PAYLOAD:
        message = f"the parameters of {tool.name} have {size:,} bytes with their references resolved; {MAX_PAYLOAD:,} is the most"
        return Failed(CallError("params_too_large", message))
    argument = ToolInput(
        tool=tool.name,
        activity=tool.activity,
        call=call.raw,
        call_id=call.id,
        params=call.params,
        idempotency_key=f"{workflow.info().workflow_id}/{call.id}",
        definition=None if tool.registered else tool.definition(),
        messages=plan.scoped(tool.scopes or ()),
    )
    target = f" → {call.target}" if call.paths else ""
    try:
        result = await workflow.execute_activity(
            tool.name,
            argument,
            result_type=ToolResult,
            activity_id=call.id,
            task_queue=tool.task_queue,
            start_to_close_timeout=timedelta(seconds=tool.timeout),
            heartbeat_timeout=timedelta(seconds=tool.heartbeat) if tool.heartbeat else None,
            retry_policy=RetryPolicy(maximum_attempts=tool.retries + 1),
            summary=f"{call_line(call.params)}{target}"[:200],
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return failed(call, error)
    call.attempts = result.attempt
    return Returned(result.value, result.branch)


def _now() -> str:
    return workflow.now().isoformat(timespec="milliseconds")
