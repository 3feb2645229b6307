"""Unchanged tools of other frameworks: the OpenAI Agents SDK, Pydantic AI and LangChain.

A framework is imported only when one of its tools is called: its objects are recognised by the names of their classes.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, TypeAlias, get_args, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from perdure.errors import ToolDefinitionError, ToolError
from perdure.tools.decorator import ToolContext, ToolFunction, describe, open_tool, plain_schema, tool_function
from perdure.values.json import Json, JsonObject, dumps

ForeignObject: TypeAlias = Any
"""An object of a framework, whose class cannot be imported here because the framework need not be installed."""
CONTEXT: Final = "perdure_context"
"""The parameter through which a framework's tool gets the context of its call."""
_OPENAI: Final = "agents.tool.FunctionTool"
_PYDANTIC_AI: Final = "pydantic_ai.tools.Tool"
_PYDANTIC_AI_TOOLSET: Final = "pydantic_ai.toolsets.abstract.AbstractToolset"
_LANGCHAIN: Final = "langchain_core.tools.base.BaseTool"
_LANGCHAIN_SINGLE: Final = "langchain_core.tools.simple.Tool"
"""LangChain's tool of one text, which has no schema of its own."""


def framework_tools(target: object) -> list[ToolFunction]:
    """Return the tools of another framework's object, without a change to it; none for any other object.

    `target`: a `FunctionTool` of the OpenAI Agents SDK, a `Tool` or a toolset of Pydantic AI (a `FunctionToolset`, also
    prefixed, renamed, combined or with approvals), or a `BaseTool` of LangChain. Names, descriptions, schemas, time
    limits and approval marks carry over. A call is attempted once, as there (`_retries` 0). Raises `ToolDefinitionError` for what cannot carry over.

    ```python
    for function in framework_tools(lookup_order):
        print(function.name, function.definition["_retries"])
    ```
    """
    names = _class_names(target)
    if _OPENAI in names:
        return [_of_openai(target)]
    if _PYDANTIC_AI in names:
        return [_of_pydantic_ai(target)]
    if _PYDANTIC_AI_TOOLSET in names:
        return [_of_pydantic_ai(each) for each in _read_toolset(target)]
    return [_of_langchain(target)] if _LANGCHAIN in names else []


RETRIES: Final = "leave it out: the model plans again after an error, and stuck_after limits it"
"""The replacement for a framework's number of retries."""
_SHOWN: Final = "every tool is shown to the model: give the agent the tools that it needs"
_OPTIONS: Final = {
    _PYDANTIC_AI: {
        "max_retries": RETRIES,
        "defer_loading": _SHOWN,
        "metadata": "leave it out: describe in the description what the model needs",
    },
    _OPENAI: {
        "defer_loading": _SHOWN,
        "timeout_behavior": "leave it out: a call beyond its time limit fails with `timeout`, and the run continues",
        "timeout_error_function": "a call beyond its time limit fails with `timeout`, which a plan can branch on",
        "custom_data_extractor": "read the call's result in an after_tool_call hook",
        "allowed_callers": "leave the tool out of agents that may not call it",
    },
    _LANGCHAIN: {
        "return_direct": "a plan can return a tool's result as its output: describe in the instructions when",
        "extras": "leave it out: Perdure sends no provider's own tool options",
    },
}


def lost_options(function: ToolFunction) -> list[tuple[str, str]]:
    """Return the options of a framework's tool that do not carry over, each with its replacement.

    ```python
    for function in framework_tools(lookup_order):
        print(lost_options(function))
    ```
    """
    code = function.function
    tool = code.tool if isinstance(code, _Invocation) else None
    names = _class_names(tool)
    known = [
        (name, instead) for kind, options in _OPTIONS.items() if kind in names for name, instead in options.items()
    ]
    unset: tuple[object, ...] = (None, False, {}, "error_as_result")
    return [(name, instead) for name, instead in known if getattr(tool, name, None) not in unset]


def _class_names(target: object) -> set[str]:
    """Return the full names of an object's class and its bases."""
    return {f"{each.__module__}.{each.__qualname__}" for each in type(target).__mro__}


def overridden_methods(target: ForeignObject, framework: str) -> list[str]:
    """Return the framework's methods that an application's subclass, or the object itself, overrides.

    `framework`: the name of its package.

    ```python
    assert overridden_methods(agents.Agent(name="triage"), "agents") == []
    ```
    """
    bases = [each for each in type(target).__mro__ if each.__module__.partition(".")[0] == framework]
    own = [each for each in type(target).__mro__ if each not in bases and each.__module__ not in ("builtins", "typing")]
    names = dict.fromkeys(name for each in (*own, target) for name in vars(each) if not name.startswith("__"))
    return [name for name in names if any(inspect.isfunction(vars(each).get(name)) for each in bases)]


def tool_functions(target: object) -> list[ToolFunction]:
    """Return the tools of an object: a function, decorated with `@tool` or plain, or another framework's tool; none for
    any other object. Raises `ToolDefinitionError`.

    ```python
    for function in tool_functions(lookup_order):
        print(function.name)
    ```
    """
    found = tool_function(target)
    if found is not None:
        return [found]
    # A function with another decorator of Perdure's is a hook or a route.
    marked = any(name.startswith("__perdure_") for name in getattr(target, "__dict__", ()))
    if inspect.isroutine(target) and not marked:
        return [describe(target)]
    return framework_tools(target)


def with_context_type(function: ToolFunction, reader: TypeAdapter[Any] | None) -> ToolFunction:
    """Return a framework's tool whose code gets the run's context in the agent's type, unless it names its own type."""
    foreign = function.context_parameter == CONTEXT and function.context_type is None
    return replace(function, context_type=reader) if foreign and reader is not None else function


@dataclass(frozen=True)
class _Invocation:
    """The code of a framework's tool. Two objects of one tool are equal."""

    tool: ForeignObject
    call: Callable[[ForeignObject, ToolContext[Any], JsonObject], Any]

    async def __call__(self, **params: Any) -> Any:  # JSON, and the context of the call
        context = params.pop(CONTEXT)
        return await self.call(self.tool, context, params)


def _tool(
    tool: ForeignObject,
    call: Callable[[ForeignObject, ToolContext[Any], JsonObject], Any],
    schema: JsonObject,
    *,
    asks: object = False,
    context_of: object = None,
    **properties: Json,
) -> ToolFunction:
    """Return the tool. `asks`: its approval mark. `context_of`: the function whose annotations name the context's type."""
    definition: JsonObject = {"name": tool.name, "description": tool.description or "", **plain_schema(schema)}
    definition.pop("title", None)
    definition |= {"_retries": 0, **({"_approval": "always"} if asks else {})}
    definition |= {f"_{key}": value for key, value in properties.items() if value}
    return replace(
        open_tool(definition, _Invocation(tool, call), context_parameter=CONTEXT),
        context_type=_context_type(context_of),
    )


def _context_type(function: object) -> TypeAdapter[Any] | None:
    """Return a reader of the type that `RunContext[…]` or `RunContextWrapper[…]` names in a function's parameters."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError, SyntaxError):
        return None
    for hint in hints.values():
        origin = getattr(hint, "__origin__", None)
        if getattr(origin, "__name__", "") in ("RunContext", "RunContextWrapper", "ToolContext") and get_args(hint):
            try:
                return None if get_args(hint)[0] in (dict, Any) else TypeAdapter(get_args(hint)[0])
            except (PydanticSchemaGenerationError, PydanticUserError):
                return None
    return None


def _refuse(tool: ForeignObject, what: str, instead: str) -> NoReturn:
    raise ToolDefinitionError(f"tool {tool.name!r}: {what} is not supported: {instead}")


# The OpenAI Agents SDK


def _of_openai(tool: ForeignObject) -> ToolFunction:
    if tool.is_enabled is False:
        _refuse(tool, "is_enabled=False", "leave the tool out")
    # The SDK's own loop would evaluate a condition in Python, so each call needs approval here.
    asks = tool.needs_approval is not False
    function = getattr(tool.on_invoke_tool, "_get_wrapped_callable", lambda: None)()
    return _tool(
        tool,
        _call_openai,
        tool.params_json_schema,
        asks=asks,
        context_of=function,
        timeout=tool.timeout_seconds,
        output=plain_schema(getattr(tool, "output_json_schema", None) or {}),  # older versions have no guardrails
    )


async def _call_openai(tool: ForeignObject, context: ToolContext[Any], params: JsonObject) -> Json:
    contexts = importlib.import_module("agents.tool_context")
    text = dumps(params)
    wrapper = contexts.ToolContext(
        context.context, tool_name=tool.name, tool_call_id=context.call_id, tool_arguments=text
    )
    if callable(tool.is_enabled) and not await awaited(tool.is_enabled(wrapper, None)):
        raise ToolError("not_enabled", f"{tool.name} is not enabled for this caller")
    guardrails = importlib.import_module("agents.tool_guardrails")
    for guard in tool.tool_input_guardrails or ():
        _check_guardrail(tool, guard, await guard.run(guardrails.ToolInputGuardrailData(wrapper, None)))
    invoke = tool.on_invoke_tool
    if getattr(tool, "_use_default_failure_error_function", False):
        # The SDK's default writes an error into the result. Here an error is an error, which a plan can branch on.
        invoke = getattr(invoke, "_invoke_tool_impl", invoke)
    result: Json = await invoke(wrapper, text)
    for guard in tool.tool_output_guardrails or ():
        data = guardrails.ToolOutputGuardrailData(context=wrapper, agent=None, output=result)
        _check_guardrail(tool, guard, await guard.run(data), carried_out=True)
    return result


def _check_guardrail(
    tool: ForeignObject, guardrail: ForeignObject, outcome: ForeignObject, *, carried_out: bool = False
) -> None:
    """Raise `ToolError` where a guardrail of the tool rejects its call or its result."""
    behavior = outcome.behavior
    if behavior["type"] != "allow":
        words = behavior.get("message") or f"the guardrail {guardrail.get_name()} stopped {tool.name}"
        raise ToolError("refused_by_guardrail", words, carried_out=carried_out)


async def awaited(value: ForeignObject) -> ForeignObject:
    """Return the value, or the result of an awaitable."""
    return await value if inspect.isawaitable(value) else value


# Pydantic AI


def _of_pydantic_ai(tool: ForeignObject) -> ToolFunction:
    if tool.prepare is not None or "prepare_tool_def" in overridden_methods(tool, "pydantic_ai"):
        _refuse(tool, "prepare", "give the tool to the agents that need it, or decide in a before_tool_call hook")
    if tool.args_validator is not None:
        _refuse(tool, "args_validator", "check the arguments in the function, or in a before_tool_call hook")
    declared = tool.tool_def
    return _tool(
        tool,
        _call_pydantic_ai,
        declared.parameters_json_schema,
        asks=tool.requires_approval,
        context_of=tool.function if tool.takes_ctx else None,
        timeout=tool.timeout,
        exclusive=tool.sequential,
        output=plain_schema(declared.return_schema or {}),
    )


def _read_toolset(toolset: ForeignObject) -> list[ForeignObject]:
    """Return the tools of a toolset in the form that its wrappers give them. Raise `ToolDefinitionError` for tools
    known only at run time.
    """
    kind, tools = type(toolset).__name__, getattr(toolset, "tools", None)
    own = [each for each in overridden_methods(toolset, "pydantic_ai") if each in TOOLSET_METHODS]
    if own:
        raise ToolDefinitionError(f"the toolset {kind} has its own {own[0]}, which is not supported: give its tools")
    if isinstance(tools, dict):
        limit = getattr(toolset, "timeout", None)
        return [_copy_with(each, timeout=limit) if each.timeout is None else each for each in tools.values()]
    if kind == "CombinedToolset":
        return [tool for each in toolset.toolsets for tool in _read_toolset(each)]
    if kind == "PrefixedToolset":
        return [_copy_with(each, name=f"{toolset.prefix}_{each.name}") for each in _read_toolset(toolset.wrapped)]
    if kind == "RenamedToolset":
        shown = {old: new for new, old in toolset.name_map.items()}
        return [_copy_with(each, name=shown.get(each.name, each.name)) for each in _read_toolset(toolset.wrapped)]
    if kind == "ApprovalRequiredToolset":
        # As with `needs_approval`: the framework's own loop would evaluate a condition in Python, so each call needs
        # approval.
        return [_copy_with(each, requires_approval=True) for each in _read_toolset(toolset.wrapped)]
    if kind == "ExternalToolset":
        raise ToolDefinitionError(
            "the toolset ExternalToolset has tools that the caller runs: let the client send the tools by AG-UI, the AI SDK or OpenAI's API"
        )
    raise ToolDefinitionError(
        f"the toolset {kind} finds its tools at run time: use an MCP server of the settings, or give the tools"
    )


TOOLSET_METHODS: Final = frozenset(["get_tools", "call_tool", "get_instructions"])
"""Methods of a toolset that decide about its tools while it runs."""


def _copy_with(tool: ForeignObject, **attributes: object) -> ForeignObject:
    """Return a copy of a tool with other attributes."""
    changed = copy(tool)
    for name, value in attributes.items():
        setattr(changed, name, value)
    return changed


def pydantic_ai_context(**fields: object) -> ForeignObject:
    """Return a `RunContext` with these fields. A function that asks its model has to make a model of its own."""
    framework, models, usage = (
        importlib.import_module(f"pydantic_ai{each}") for each in ("", ".models.test", ".usage")
    )
    return framework.RunContext(model=models.TestModel(), usage=usage.RunUsage(), **fields)


async def _call_pydantic_ai(tool: ForeignObject, context: ToolContext[Any], params: JsonObject) -> Json:
    framework, exceptions = (importlib.import_module(f"pydantic_ai{each}") for each in ("", ".exceptions"))
    run = pydantic_ai_context(
        deps=context.context,
        tool_name=tool.name,
        tool_call_id=context.call_id,
        run_id=context.run_id,
        tool_call_approved=bool(tool.requires_approval),
    )
    schema = tool.function_schema
    try:
        result: ForeignObject = await schema.call(schema.validator.validate_python(params), run)
    except exceptions.ModelRetry as error:
        raise ToolError("retry", error.message) from None
    except (exceptions.ApprovalRequired, exceptions.CallDeferred) as error:
        raise ToolError(
            "not_supported", f"{tool.name} raised {type(error).__name__}: mark it with requires_approval=True"
        ) from None
    returned: Json = result.return_value if isinstance(result, framework.ToolReturn) else result
    return returned


# LangChain


def _of_langchain(tool: ForeignObject) -> ToolFunction:
    if tool.args_schema is None and _LANGCHAIN_SINGLE in _class_names(tool):
        return _tool(tool, _call_langchain, {"properties": tool.args, "required": list(tool.args)})
    wanted = tool.tool_call_schema
    return _tool(tool, _call_langchain, wanted if isinstance(wanted, dict) else wanted.model_json_schema())


async def _call_langchain(tool: ForeignObject, context: ToolContext[Any], params: JsonObject) -> Json:
    tools, messages = (importlib.import_module(f"langchain_core.{each}") for each in ("tools", "messages"))
    known = {"context": context.context, "sender": context.sender, "tenant": context.tenant, "run_id": context.run_id}
    given: ForeignObject = params | _read_injected(tool, context)
    if _call_id_arguments(tool):  # LangChain passes the id only from a call in this form
        given = messages.ToolCall(name=tool.name, args=given, id=context.call_id, type="tool_call")
    try:
        result: ForeignObject = await tool.ainvoke(given, config={"configurable": known})
    except tools.ToolException as error:
        raise ToolError("tool_error", str(error)) from None
    if not isinstance(result, messages.ToolMessage):
        found: Json = result
        return found
    if result.status == "error":
        raise ToolError("tool_error", str(result.content))
    content: Json = result.content
    return content


def _call_id_arguments(tool: ForeignObject) -> list[str]:
    """Return the arguments into which LangChain writes the id of the call."""
    fields = getattr(tool.args_schema, "model_fields", {})
    return [name for name, each in fields.items() if any("InjectedToolCallId" in str(mark) for mark in each.metadata)]


def _read_injected(tool: ForeignObject, context: ToolContext[Any]) -> JsonObject:
    """Return the arguments that LangChain injects, from the run's context by name. Raise `ToolError` for one that is missing."""
    fields, shown = getattr(tool.args_schema, "model_fields", {}), tool.tool_call_schema
    written = [*([] if isinstance(shown, dict) else shown.model_fields), *_call_id_arguments(tool)]
    given = context.context if isinstance(context.context, dict) else {}
    found: JsonObject = {}
    for name, each in fields.items():
        if name in written:
            continue
        if name in given:
            found[name] = given[name]
        elif each.is_required():
            raise ToolError("no_context", f"{tool.name} needs {name!r} in the run's context")
    return found
