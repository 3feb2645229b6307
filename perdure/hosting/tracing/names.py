"""The names of spans and attributes, and nothing else: the conventions are in development, and a new version of them changes this file.

They are those of https://github.com/open-telemetry/semantic-conventions-genai at 002c8a6, which stand on v1.41.1 of the general ones. What
has no name there begins with `perdure.`, or is as Temporal's own interceptors name it.
"""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "https://opentelemetry.io/schemas/1.41.0"

INVOKE_AGENT: Final = "invoke_agent"
PLAN: Final = "plan"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOOL: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
CALL: Final = "gen_ai.tool.call.id"
ERROR: Final = "error.type"

# Only with the setting `trace_content`.
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"

WORKFLOW_ID: Final = "temporalWorkflowID"
RUN_ID: Final = "temporalRunID"
ACTIVITY_ID: Final = "temporalActivityID"
ATTEMPT: Final = "perdure.attempt"
"""1 for the first; above that the span is that of a retry."""
REQUEST: Final = "perdure.request"
"""The Request's number."""
STOP: Final = "perdure.stop_reason"
"""Why the run ended."""
PROBLEM: Final = "perdure.problem"
"""The code of what is wrong with an answer."""

OPENAI: Final = "openai"
"""The protocol that is spoken: whose models answer there, nobody can tell."""
FUNCTION: Final = "function"
"""The kind of every tool: Perdure carries it out itself."""
