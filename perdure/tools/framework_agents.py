"""Agents of other frameworks as tools, unchanged: one call runs the whole agent (R21.2)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final, get_args

from pydantic import BeforeValidator, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from typing_extensions import Unpack

from perdure.errors import ToolDefinitionError, ToolError
from perdure.tools.decorator import Annotation, ToolContext, ToolFunction, meta_properties, open_tool, plain_schema
from perdure.tools.frameworks import CONTEXT, ForeignObject
from perdure.tools.temporal import ActivityOptions
from perdure.values.json import JsonObject

OPENAI: Final = "agents.agent.Agent"
PYDANTIC_AI: Final = "pydantic_ai.agent.Agent"
_WRAPPER: Final = "pydantic_ai.agent.wrapper.WrapperAgent"
"""Base of Pydantic AI's agents that wrap another agent."""
_TIMEOUT: Final = 600.0
"""Seconds for one run of a foreign agent: several consecutive answers of a model."""
_TYPE_PROBLEMS: Final = (PydanticSchemaGenerationError, PydanticUserError, NameError)


def framework_of(target: object) -> str | None:
    """Return the class of a framework's agent by name, `OPENAI` or `PYDANTIC_AI`; `None` for any other object."""
    names = {f"{each.__module__}.{each.__qualname__}" for each in type(target).__mro__}
    if OPENAI in names:
        return OPENAI
    return PYDANTIC_AI if {PYDANTIC_AI, _WRAPPER} & names else None


def plain_name(name: str) -> str:
    """Return an agent's name as the name of a tool."""
    return re.sub(r"\W+", "_", name).strip("_").lower() or "agent"


def agent_tool(
    agent: object,
    *,
    context: Callable[[JsonObject], Any] | None = None,
    max_requests: int | None = None,
    **options: Unpack[ActivityOptions],
) -> ToolFunction:
    """Return a tool that runs an agent of the OpenAI Agents SDK or Pydantic AI, unchanged: one call is one whole run.

    The call is one activity. Only its result is durable: after the death of a worker the agent begins anew if `retries`
    (0) allow that, and its own tools run again. It heartbeats, and a cancelled run cancels it. Its usage counts for the
    run if the call succeeds. Its result counts as written by others, unless `untrusted=False`.

    `context`: a function that makes the agent's context object, or `deps`, from the JSON of the run's context; by default
    the type that the agent names reads it. `max_requests`: its requests to models at most (the framework's own).
    `options`: as `@tool` has them; `timeout` is 600 seconds. Raises `ToolDefinitionError` for an object that is no such
    agent.

    ```python
    from agents import Agent as SdkAgent

    research = agent_tool(SdkAgent(name="research", instructions="Look a question up."), timeout=1800)
    shopper = Agent("shopper", tools=[research])
    ```
    """
    # R21.2
    source: ForeignObject = agent
    framework = framework_of(agent)
    if framework is None:
        raise ToolDefinitionError(f"{agent!r} is not an agent of the OpenAI Agents SDK or Pydantic AI")
    openai = framework == OPENAI
    name = options.pop("name", None) or plain_name(source.name or "")
    if not source.name and name == "agent":
        raise ToolDefinitionError("the agent has no name: give agent_tool(agent, name=…)")
    made = get_args(getattr(agent, "__orig_class__", None)) if openai else (source.deps_type,)
    described = source.handoff_description if openai else source.description
    definition: JsonObject = {
        "name": name,
        "description": options.pop("description", None) or (described if isinstance(described, str) else ""),
        "properties": {"request": {"type": "string", "description": "What to do, with all that it has to know."}},
        "required": ["request"],
        **meta_properties({"timeout": _TIMEOUT, "retries": 0, "untrusted": True, **options}),
    }
    output = _schema(source.output_type or str)
    definition |= {"_output": output} if output else {}
    run = _run_openai if openai else _run_pydantic_ai

    async def call(request: str, **given: Any) -> Any:  # the context of the call; JSON
        return await run(source, name, request, given[CONTEXT], max_requests)

    found = open_tool(definition, call, context_parameter=CONTEXT)
    return replace(found, context_type=_reader(made[0] if made else None, name, context))


def _schema(wanted: Annotation) -> JsonObject:
    try:
        found: JsonObject = plain_schema(TypeAdapter(wanted).json_schema(mode="serialization"))
    except _TYPE_PROBLEMS:
        return {}  # the agent checks its values itself
    return found


def _reader(wanted: Annotation, name: str, make: Callable[[JsonObject], Any] | None) -> TypeAdapter[Any] | None:
    if make is not None:
        return TypeAdapter(Annotated[Any, BeforeValidator(make)])  # what `make` returns
    if wanted in (None, Any, object, type(None), dict):
        return None
    try:
        reader: TypeAdapter[Any] = TypeAdapter(wanted)
        reader.json_schema()
    except _TYPE_PROBLEMS:
        raise ToolDefinitionError(
            f"tool {name!r}: its context type {getattr(wanted, '__name__', wanted)} cannot be made from JSON: give "
            "agent_tool(agent, context=make), a function that makes it from a run's context"
        ) from None
    return reader


def _needs_approval(name: str, tools: list[str]) -> ToolError:
    return ToolError(
        "needs_approval",
        f"{name} stopped at {', '.join(tools)}, which needs an approval: a call cannot wait for a person inside. "
        "Convert the agent with Agent.of, or request an approval of the whole call with agent_tool(agent, dangerous=True)",
        carried_out=None,
    )


async def _run_openai(
    agent: ForeignObject, name: str, request: str, context: ToolContext[Any], most: int | None
) -> ForeignObject:
    sdk = importlib.import_module("agents")
    turns = {} if most is None else {"max_turns": most}
    try:
        result = await sdk.Runner.run(agent, request, context=context.context, **turns)
    except (sdk.InputGuardrailTripwireTriggered, sdk.OutputGuardrailTripwireTriggered) as error:
        guardrail = error.guardrail_result.guardrail.get_name()
        raise ToolError("refused_by_guardrail", f"the guardrail {guardrail} stopped {name}", carried_out=None) from None
    except sdk.MaxTurnsExceeded as error:
        raise ToolError("limit_reached", f"{name}: {error}", carried_out=None) from None
    if result.interruptions:
        raise _needs_approval(name, [each.name or "a tool" for each in result.interruptions])
    usage, model = result.context_wrapper.usage, result.last_agent.model
    named = model if isinstance(model, str) else getattr(model, "model", None)
    context.report_usage(
        named or importlib.import_module("agents.models").get_default_model(),
        requests=usage.requests,
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        cached_tokens=usage.input_tokens_details.cached_tokens or 0,
        reasoning_tokens=usage.output_tokens_details.reasoning_tokens or 0,
    )
    return result.final_output


async def _run_pydantic_ai(
    agent: ForeignObject, name: str, request: str, context: ToolContext[Any], most: int | None
) -> ForeignObject:
    framework, exceptions = (importlib.import_module(f"pydantic_ai{each}") for each in ("", ".exceptions"))
    limits = {} if most is None else {"usage_limits": framework.UsageLimits(request_limit=most)}
    try:
        result = await agent.run(request, deps=context.context, infer_name=False, **limits)
    except exceptions.UsageLimitExceeded as error:
        raise ToolError("limit_reached", f"{name}: {error}", carried_out=None) from None
    if isinstance(result.output, framework.DeferredToolRequests):
        waiting = [*result.output.approvals, *result.output.calls]
        raise _needs_approval(name, [each.tool_name for each in waiting])
    usage = result.usage
    context.report_usage(
        result.response.model_name or name,
        requests=usage.requests,
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    return result.output
