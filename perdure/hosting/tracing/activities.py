"""The spans of activities: `chat` for each attempt to ask a model, `execute_tool` for each attempt at a call."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from opentelemetry.trace import Span, SpanKind
from temporalio import activity, worker
from temporalio.exceptions import ApplicationError

from perdure.activities.secrets import masked_value
from perdure.activities.tracing import TOLD, Told
from perdure.hosting.tracing import names
from perdure.hosting.tracing.carrier import place_in
from perdure.hosting.tracing.spans import Attributes, Spans, failed
from perdure.model.wire import RequestInput, RequestResult
from perdure.run.wire import REQUEST_ACTIVITY
from perdure.sessions.tending import SUMMARY_ACTIVITY, Summary
from perdure.tools.wire import ToolResult
from perdure.values.jsons import dumps

_OURS: Final = "perdure."
"""How the names of the engine's own activities begin."""
_ASKS: Final = (REQUEST_ACTIVITY, SUMMARY_ACTIVITY)


class TracedActivity(worker.ActivityInboundInterceptor):
    """Round each attempt of an activity."""

    def __init__(self, next: worker.ActivityInboundInterceptor, spans: Spans) -> None:
        super().__init__(next)
        self._spans = spans

    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        info = activity.info()
        asks = info.activity_type in _ASKS
        if info.activity_type.startswith(_OURS) and not asks:
            return await super().execute_activity(input)
        request = next((each for each in input.args if isinstance(each, RequestInput)), None)
        attributes: Attributes = {
            names.OPERATION: names.CHAT if asks else names.EXECUTE_TOOL,
            names.ACTIVITY_ID: info.activity_id,
            names.WORKFLOW_ID: info.workflow_id or "",
            names.RUN_ID: info.workflow_run_id or "",
            names.ATTEMPT: info.attempt,
        }
        if asks:
            attributes[names.PROVIDER] = names.OPENAI
            if request is not None:
                attributes |= {names.REQUEST_MODEL: request.model, names.REQUEST: request.number}
            name, kind = names.CHAT if request is None else f"{names.CHAT} {request.model}", SpanKind.CLIENT
        else:
            name, kind = f"{names.EXECUTE_TOOL} {info.activity_type}", SpanKind.INTERNAL
            attributes |= {
                names.TOOL_TYPE: names.FUNCTION,
                names.TOOL: info.activity_type,
                names.CALL: info.activity_id,
            }
        told = Told(content=self._spans.content)
        token = TOLD.set(told)
        try:
            with self._spans.under_way(name, place_in(input.headers), kind, attributes) as span:
                try:
                    result = await super().execute_activity(input)
                except BaseException as error:
                    failed(span, _kind(error))
                    raise
                else:
                    _tell_result(span, result, told)
                    return result
                finally:
                    _tell_given(span, told, asks=asks)
        finally:
            TOLD.reset(token)


def _kind(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    return (isinstance(error, ApplicationError) and error.type) or type(error).__name__


def _tell_given(span: Span, told: Told, *, asks: bool) -> None:
    if told.tool is not None:
        span.update_name(f"{names.EXECUTE_TOOL} {told.tool}")
        span.set_attribute(names.TOOL, told.tool)
    if told.finish_reason is not None:
        span.set_attribute(names.FINISH_REASONS, [told.finish_reason])
    if told.given is not None and asks:
        said = [_message(str(each.get("role")), each.get("content") or "") for each in told.given]
        span.set_attribute(names.INPUT, dumps(masked_value(said)))
    elif told.given is not None:
        span.set_attribute(names.ARGUMENTS, dumps(masked_value(told.given)))


def _tell_result(span: Span, result: Any, told: Told) -> None:
    if isinstance(result, RequestResult | Summary):
        used = result.usage
        span.set_attribute(names.RESPONSE_MODEL, result.model)
        span.set_attribute(names.INPUT_TOKENS, used.prompt_tokens)
        span.set_attribute(names.OUTPUT_TOKENS, used.completion_tokens)
        if used.cached_tokens:
            span.set_attribute(names.CACHED_TOKENS, used.cached_tokens)
        if used.reasoning_tokens:
            span.set_attribute(names.REASONING_TOKENS, used.reasoning_tokens)
    if isinstance(result, RequestResult):
        if result.problem is not None:
            span.set_attribute(names.PROBLEM, str(result.problem.get("code")))
        if told.content:
            answer = _message("assistant", result.text or {"calls": result.calls, "output": result.output})
            span.set_attribute(
                names.OUTPUT, dumps(masked_value([answer | {"finish_reason": told.finish_reason or ""}]))
            )
    elif isinstance(result, ToolResult) and told.content:
        span.set_attribute(names.RESULT, dumps(masked_value(result.value)))


def _message(role: str, content: Any) -> dict[str, Any]:
    """A chat message in the conventions' form."""
    text = content if isinstance(content, str) else dumps(content)
    return {"role": role, "parts": [{"type": "text", "content": text}]}
