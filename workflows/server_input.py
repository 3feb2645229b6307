"""Answers of people and of the run's own model to a tool's server, which asks for input while a call runs (R21.3)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.approvals import ApprovalWaits
from perdure.workflows.failures import message_of, spent_of
from perdure.workflows.internal_activities import execute_internal
from perdure.workflows.observability import now

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError
    from perdure.models.requests import SAMPLE_ACTIVITY, SampleInput, SampleResult
    from perdure.models.usage import Usage
    from perdure.plan import Call, Failed, Plan, Rejected, Returned
    from perdure.runs.run import RunState
    from perdure.runs.version_switches import ALL_USAGE_COUNTS
    from perdure.runs.views import summary as line
    from perdure.tools.server_input import SampleRequest, ServerAnswers, ServerInput, ServerQuestion
    from perdure.values.json import JsonObject
    from perdure.values.limits import MAX_SERVER_ROUNDS

_SAMPLE: Final = timedelta(minutes=3)
"""Time of one attempt of a model's answer."""


class ServerDialog:
    """The questions of one call's server, and the answers so far."""

    def __init__(
        self,
        run: RunState,
        waits: ApprovalWaits,
        on_change: Callable[[], None],
    ) -> None:
        self._agent_run = run
        self._waits = waits
        self._on_change = on_change
        self._rounds = 0
        self.answers: ServerAnswers | None = None
        """The answers for the next run of the call; `None`: nothing was asked."""

    async def answer(self, call: Call, plan: Plan, asked: ServerInput) -> Failed | None:
        """Ask people and the model, one after the other; return the call's end if the server gets no answer."""
        self._rounds += 1
        if self._rounds > MAX_SERVER_ROUNDS:
            words = (
                f"the MCP server {asked.server!r} asks more than {MAX_SERVER_ROUNDS} times before it returns a result"
            )
            return Failed(CallError("asks_too_often", words), carried_out=None)
        found: dict[str, JsonObject] = {}
        for question in asked.questions:
            found[question.key] = await self._ask_person(call, plan, question)
        for request in asked.samples:
            sampled = await self._ask_model(call, asked.server, request)
            if isinstance(sampled, Failed):
                return sampled
            found[request.key] = sampled
        self.answers = (self.answers or ServerAnswers()).after(asked, found)
        return None

    async def _ask_person(self, call: Call, plan: Plan, question: ServerQuestion) -> JsonObject:
        """Return a person's answer in the server's form: accepted, declined, or cancelled if nobody answers in time."""
        at = now()
        self._agent_run.note("question", at, question, call=call.id)
        approval_request = self._agent_run.approval_queue.add_question(plan, call, at, question)
        self._on_change()
        outcome = (await self._waits.verdict(approval_request)).outcome
        self._on_change()
        if isinstance(outcome, Returned):
            return {"action": "accept"} | ({} if question.form is None else {"content": outcome.value})
        return {"action": "decline" if isinstance(outcome, Rejected) else "cancel"}

    async def _ask_model(self, call: Call, server: str, request: SampleRequest) -> JsonObject | Failed:
        """Return the answer of the run's model, within the run's budget."""
        run = self._agent_run
        limit = run.limits.reached or run.limits.pool.limit(run.progress.usage)
        if limit is not None:
            return Failed(CallError(limit.reason, f"the MCP server {server!r} may not ask a model: {limit.words}"))
        model = run.prepared.models.fast
        try:
            result: SampleResult = await execute_internal(
                SAMPLE_ACTIVITY,
                [SampleInput(model=model, request=request)],
                SampleResult,
                timeout=_SAMPLE,
                heartbeat=timedelta(seconds=10),
                retry_policy=RetryPolicy(maximum_attempts=3),
                summary=line(f"{call.id}: {server} asks {model}"),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            if (spent := spent_of(error)).tokens:
                self._count(model, spent)
            words = f"the MCP server {server!r} asks a model, and {model} gives no answer: {message_of(error)}"
            return Failed(CallError("model_failed", words[:1_000]), carried_out=None)
        self._count(model, result.usage)
        return {"text": result.text, "model": model, "stopReason": result.stop_reason}

    def _count(self, model: str, usage: Usage) -> None:
        if not self._agent_run.prepared.follows(ALL_USAGE_COUNTS):
            usage = usage.model_copy(update={"cache_write_tokens": 0})
        self._agent_run.count_reported(model, usage, requests=1)
