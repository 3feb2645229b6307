"""Agents of other frameworks, read: the OpenAI Agents SDK and Pydantic AI (R21.2).

A framework is imported only for one of its agents: its objects are recognised by the names of their classes. Parts of
an agent that Perdure lacks are listed, each with its replacement.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, TypeAlias, Union, get_args

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from perdure.agents.options import AgentOptions
from perdure.errors import AgentError, ToolDefinitionError, clip
from perdure.hooks.answers import Refused, refuse
from perdure.hooks.decorator import HookFunction
from perdure.hooks.events import BeforeAgentStart, BeforeToolCall, HookEvent, HookRef, MessageReceived
from perdure.models.providers.capabilities import capabilities_of
from perdure.tools.decorator import ToolFunction, plain_schema
from perdure.tools.framework_agents import PYDANTIC_AI, framework_of, plain_name
from perdure.tools.frameworks import (
    CONTEXT,
    RETRIES,
    TOOLSET_METHODS,
    awaited,
    framework_tools,
    lost_options,
    overridden_methods,
    pydantic_ai_context,
)
from perdure.values.json import JsonObject, dumps
from perdure.values.messages import HostedTool
from perdure.values.problems import first_problem

_HOOK_SECONDS: Final = 60.0
"""Seconds for a function of a foreign agent: instructions may read a database, a guardrail may call a model."""
_REQUEST: Final[JsonObject] = {
    "request": {"type": "string", "description": "What to do, with all that it has to know."}
}


@dataclass(frozen=True)
class NotCarried:
    """A part of another framework's agent, or an option of its tool, that Perdure does not carry over, and its
    replacement.

    ```python
    for each in shopper.not_carried:
        print(each.agent, each.part, each.instead)
    ```
    """

    agent: str
    """The agent's name."""
    part: str
    """The part, as the framework names it."""
    instead: str
    """The replacement, as an instruction."""

    def __str__(self) -> str:
        return f"agent {self.agent!r}: {self.part} is not supported: {self.instead}"


def lost_parts(agent: str, function: ToolFunction) -> list[NotCarried]:
    """Return the options of a framework's tool that do not carry over to an agent of this name.

    ```python
    for function in framework_tools(lookup_order):
        print(*lost_parts("desk", function), sep="\n")
    ```
    """
    lost = lost_options(function)
    return [NotCarried(agent, f"{option} of the tool {function.name!r}", instead) for option, instead in lost]


@dataclass
class FrameworkAgent:
    """One agent of another framework, as arguments of `perdure.Agent`."""

    name: str
    source: object
    """The framework's own object."""
    reader: TypeAdapter[Any] | None = None
    """Reader of the run's context for the agent's functions; `None`: they get the JSON."""
    context: Any = None
    """The type of the context, for its schema."""
    instructions: str = ""
    description: str = ""
    output: Any = str
    functions: list[ToolFunction] = field(default_factory=list)
    delegations: list[JsonObject] = field(default_factory=list)
    """Definitions of tools that delegate to other agents."""
    hosted: list[HostedTool] = field(default_factory=list)
    """Tools that the model's provider runs."""
    options: AgentOptions = field(default_factory=lambda: AgentOptions())
    hooks: list[HookFunction] = field(default_factory=list)
    not_carried: list[NotCarried] = field(default_factory=list)

    def leave(self, part: str, instead: str) -> None:
        """Record a part that does not carry over."""
        self.not_carried.append(NotCarried(self.name, part, instead))

    def leave_methods(self, framework: str, read: frozenset[str] = frozenset()) -> None:
        """Record the framework's methods that the application overrides. `read`: those that carry over."""
        for name in overridden_methods(self.source, framework):
            if name not in read:
                self.leave(
                    f"the method {name} of {type(self.source).__name__}",
                    "only the framework's own loop calls it: use a tool, an instruction or a hook instead, or run the agent by agent_tool",
                )

    def typed(self, context: JsonObject) -> Any:
        """Return a run's context in the type of the agent's functions. Raise `AgentError`."""
        if self.reader is None:
            return context
        try:
            return self.reader.validate_json(dumps(context))
        except ValidationError as error:
            raise AgentError(
                f"the context is not valid for the agent {self.name!r}: {first_problem(error, context)}"
            ) from None

    def hook(self, event: str, what: str, function: Callable[[Any], Any], tools: list[str] | None = None) -> None:
        """Add a hook for this agent alone."""

        async def call(happened: HookEvent) -> Any:
            return await function(happened) if happened.agent == self.name else None

        ref = HookRef(event=event, name=f"{self.name}:{what}", tools=tools, timeout=_HOOK_SECONDS, closed=True)
        self.hooks.append(HookFunction(ref, call, True))

    def add_tool(self, tool: Any, named: str) -> None:
        """Add the tools of a framework's object, or record why they do not carry over."""
        try:
            found = framework_tools(tool)
        except ToolDefinitionError as error:
            self.leave(named, str(error))
            return
        if not found:
            self.leave(named, _instead_of_tool(tool))
        for function in found:
            self.not_carried += lost_parts(self.name, function)
            reads = self.reader is not None and function.context_parameter == CONTEXT
            self.functions.append(dataclasses.replace(function, context_type=self.reader) if reads else function)

    def host(self, name: HostedTool, tool: object, named: str, usual: Mapping[str, Any]) -> None:
        """Add a tool that the model's provider runs. It is a loss if one of the agent's models lacks it, or it has
        settings.

        `usual`: the settings that the provider's default has.
        """
        known = self.options.get("models", {})
        chosen: list[str | list[str]] = [known.get("fast", []), known.get("smart", [])]
        models = [model for each in chosen for model in ([each] if isinstance(each, str) else each)]
        if any(name not in capabilities_of(model).hosted_tools for model in models):
            self.leave(named, _instead_of_tool(tool))
            return
        self.hosted.append(name)
        for option, default in usual.items():
            if getattr(tool, option) != default:
                self.leave(f"{option} of {named}", "leave it out: hosted tools always use the provider's default")

    def tool_names(self) -> list[str]:
        return [*(each.name for each in self.functions), *(str(each["name"]) for each in self.delegations)]


MakeContext: TypeAlias = Callable[[JsonObject], Any]
"""A function that builds the framework's context object, or deps, from the JSON of the run's context."""


def is_framework_agent(target: object) -> bool:
    """Whether an object is an agent of the OpenAI Agents SDK or of Pydantic AI.

    ```python
    assert is_framework_agent(agents.Agent(name="triage"))
    ```
    """
    return framework_of(target) is not None


def read_framework_agents(target: object, name: str, make_context: MakeContext | None = None) -> list[FrameworkAgent]:
    """Return an agent of another framework, and after it the agents to which it delegates, at any depth.

    `name`: for an agent without one. `make_context`: see `MakeContext`. Raise `AgentError`.

    ```python
    triage, *others = read_framework_agents(triage_agent, "triage")
    ```
    """
    if make_context is not None and not callable(make_context):
        raise AgentError(
            f"context={clip(repr(make_context), 40)} is not a function: give one that makes the context from the JSON of a run"
        )
    if framework_of(target) == PYDANTIC_AI:
        return [_read_pydantic_ai(target, name, make_context)]
    return _OpenAIAgents(make_context).read(target)


def _set_context(agent: FrameworkAgent, wanted: Any, part: str, make_context: MakeContext | None) -> None:
    """Set the type of the agent's context: the framework's `wanted`, or the result type of `make_context`."""
    if make_context is not None:
        agent.reader = TypeAdapter(Annotated[Any, BeforeValidator(make_context)])
        return
    if wanted in (None, Any, object, type(None), dict):
        return
    try:
        reader: TypeAdapter[Any] = TypeAdapter(wanted)
        reader.json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError, NameError):
        shown = getattr(wanted, "__name__", str(wanted))
        agent.leave(
            f"{part} {shown}",
            "it cannot be made from JSON: give Agent.of(agent, context=make), a function that makes it from a run's context",
        )
        return
    agent.reader, agent.context = reader, wanted


def _text_of(event: BeforeAgentStart) -> str:
    """Return a run's input as the text that the framework would get."""
    value = event.input
    if isinstance(value, dict) and set(value) == {"request"}:
        value = value["request"]
    return value if isinstance(value, str) else "" if value is None else dumps(value)


_INSTEAD: Final = {
    "WebSearchTool": "give a tool that searches, for example of an MCP server (--mcp)",
    "FileSearchTool": "give a tool that searches your documents, for example of an MCP server (--mcp)",
    "HostedMCPTool": "name the server in the file of --mcp, and its tools in the agent",
    "CodeInterpreterTool": "give run_command (--commands), or your own tool",
    "LocalShellTool": "give run_command (--commands)",
    "ShellTool": "give run_command (--commands)",
    "ApplyPatchTool": "give write_file (--files)",
}


def _instead_of_tool(tool: object) -> str:
    words = _INSTEAD.get(type(tool).__name__, "write a function as its tool")
    return f"{words}; or run the agent unchanged, by agent_tool"


def _captured(function: object, name: str, depth: int = 5) -> Any:
    """Return a variable from the closure of a framework's function, or `None`."""
    if depth == 0 or function is None:
        return None
    if isinstance(function, partial):
        return next((found for each in function.args if (found := _captured(each, name, depth - 1)) is not None), None)
    inner = getattr(function, "_invoke_tool_impl", None)
    if inner is not None:
        return _captured(inner, name, depth - 1)
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for key, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        if key == name:
            return cell.cell_contents
    return None


def _defaults(value: Any) -> dict[str, Any]:
    """Return the defaults of a data class's fields."""
    return {each.name: each.default for each in dataclasses.fields(value)}


_NOT_SENT: Final = "Perdure does not send it: leave it out, or set it in a proxy of the model's server"


def _set_sampling(agent: FrameworkAgent, given: Mapping[str, Any], parts: str) -> None:
    """Set the options for a framework's model settings; `parts` begins the names of those that do not carry over."""
    sampling: Any = {}
    for key, value in given.items():
        if key in ("temperature", "top_p", "max_tokens", "seed", "reasoning_effort"):
            sampling[key] = value
        elif key == "parallel_tool_calls":
            agent.options |= {} if value else {"parallel": 1}
        elif key == "tool_choice" and (value in ("auto", "required") or value in agent.tool_names()):
            names = agent.tool_names() if value == "required" else [value]
            agent.options |= {} if value == "auto" else {"must_call": names}
        else:
            agent.leave(f"{parts}.{key}", _NOT_SENT)
    agent.options |= {"sampling": sampling} if sampling else {}


def _set_named_model(agent: FrameworkAgent, model: str, prefix: str | None, name: str) -> None:
    """Set the model by its framework's name. `prefix`: its provider's prefix in Perdure, or `None`."""
    if prefix is None:
        agent.leave(f"the model {model!r}", _OTHER_MODEL)
    else:
        _set_model(agent, f"{prefix}{name}")


def _set_model(agent: FrameworkAgent, name: str, address: str = "") -> None:
    agent.options |= {"models": {"fast": name, "smart": name}}
    if address and not address.startswith("https://api."):
        agent.leave(f"the model's address {address}", f"name it in PERDURE_ENDPOINTS, and the model as {name}@NAME")


# The OpenAI Agents SDK

_Judge: TypeAlias = Callable[[HookEvent, str], Awaitable[Refused | None]]


class _OpenAIAgents:
    """The agents that an agent reaches by handoffs and tools, each read once: handoffs may form a cycle."""

    def __init__(self, make_context: MakeContext | None) -> None:
        self._make = make_context
        self._sdk = importlib.import_module("agents")
        self._found: list[FrameworkAgent] = []

    def read(self, root: Any) -> list[FrameworkAgent]:
        self._find(root)
        done = 0
        while done < len(self._found):
            self._read(self._found[done])
            done += 1
        return self._found

    def _find(self, source: Any) -> FrameworkAgent:
        for each in self._found:
            if each.source is source:
                return each
        name, taken = plain_name(source.name), {each.name for each in self._found}
        others = (f"{name}_{number}" for number in range(2, len(taken) + 3))
        found = FrameworkAgent(
            name if name not in taken else next(each for each in others if each not in taken), source
        )
        self._found.append(found)
        return found

    def _read(self, agent: FrameworkAgent) -> None:
        source: Any = agent.source
        made = get_args(getattr(source, "__orig_class__", None))
        _set_context(agent, made[0] if made else None, "the context type", self._make)
        agent.description = source.handoff_description or ""
        self._read_instructions(agent, source)
        for tool in source.tools:
            self._read_tool(agent, tool)
        for handoff in source.handoffs:
            self._read_handoff(agent, handoff)
        for server in source.mcp_servers:
            agent.leave(f"the MCP server {server.name!r}", "name it in the file of --mcp, and its tools in the agent")
        self._read_output(agent, source)
        self._read_model(agent, source)
        self._read_hosted(agent, source)
        self._read_guardrails(agent, source)
        self._read_rest(agent, source)

    def _wrapper(self, agent: FrameworkAgent, event: HookEvent) -> Any:
        return self._sdk.RunContextWrapper(agent.typed(event.context))

    def _read_instructions(self, agent: FrameworkAgent, source: Any) -> None:
        if source.prompt is not None:
            agent.leave("prompt", "write its text as the instructions")
        own = _SYSTEM_PROMPT & set(overridden_methods(source, "agents"))
        if not own and not callable(source.instructions):
            agent.instructions = source.instructions or ""
            return

        async def instruct(event: BeforeAgentStart) -> BeforeAgentStart:
            text = await source.get_system_prompt(self._wrapper(agent, event))
            return event.changed(system="\n\n".join(filter(None, (event.system, text))))

        agent.hook("before_agent_start", "instructions", instruct)

    def _read_tool(self, agent: FrameworkAgent, tool: Any) -> None:
        named = f"the tool {getattr(tool, 'name', type(tool).__name__)!r}"
        if isinstance(tool, (self._sdk.WebSearchTool, self._sdk.CodeInterpreterTool)):
            return  # `_read_hosted` reads it, once the model is known
        if getattr(tool, "_agent_instance", None) is None:
            agent.add_tool(tool, named)
            return
        if tool.is_enabled is False:
            agent.leave(named, "it is not enabled: leave it out")
            return
        schema = plain_schema(tool.params_json_schema)
        self._delegate(agent, tool, tool.name, tool.description, tool._agent_instance, schema)
        if tool.needs_approval is not False:
            agent.delegations[-1]["_approval"] = "always"
        for option, instead in _AS_TOOL.items():
            if _captured(tool.on_invoke_tool, option) is not None:
                agent.leave(f"{option} of {named}", instead)
        if tool._failure_error_function not in (None, self._sdk.default_tool_error_function):
            agent.leave(
                f"failure_error_function of {named}",
                "leave it out: a failed delegate is a failed call, and a plan can branch on it",
            )

    def _read_handoff(self, agent: FrameworkAgent, handoff: Any) -> None:
        if isinstance(handoff, self._sdk.Handoff):
            named, target = f"the handoff {handoff.tool_name!r}", (handoff._agent_ref or (lambda: None))()
            if target is None:
                agent.leave(named, "it names no agent: give the agent itself in handoffs, or handoff(agent)")
                return
            if handoff.is_enabled is False:
                agent.leave(named, "it is not enabled: leave it out")
                return
            schema, name, description = handoff.input_json_schema, handoff.tool_name, handoff.tool_description
            if handoff.input_filter is not None:
                agent.leave(
                    f"input_filter of {named}", "leave it out: the other agent receives only the parameters of its call"
                )
        else:
            target, schema = handoff, {}
            name = self._sdk.Handoff.default_tool_name(target)
            description = self._sdk.Handoff.default_tool_description(target)
            named = f"the handoff {name!r}"
        schema = plain_schema(schema)
        given: JsonObject = {
            **schema,
            "properties": {**_REQUEST, **schema.get("properties", {})},
            "required": ["request", *schema.get("required", [])],
        }
        self._delegate(agent, handoff, name, description.strip(), target, given)
        agent.leave(
            f"the conversation of {named}",
            "the other agent returns to its caller, which continues; name in the instructions the information for `request`",
        )

    def _delegate(
        self, agent: FrameworkAgent, source: Any, name: str, description: str, target: Any, schema: JsonObject
    ) -> None:
        """Add a delegation, with hooks for the conditions and callbacks of `source`."""
        other = self._find(target)
        shown: JsonObject = {key: schema[key] for key in ("properties", "required", "$defs") if key in schema}
        definition: JsonObject = {"name": name, "description": description, **shown, "_delegate": other.name}
        if name in agent.tool_names():
            raise AgentError(f"agent {agent.name!r} has two tools called {name!r}: rename one of them")
        agent.delegations.append(definition | {"_resolution": "upfront"})
        enabled, then = getattr(source, "is_enabled", True), getattr(source, "on_invoke_handoff", None)
        if not callable(enabled) and _captured(then, "on_handoff") is None:
            return

        async def begin(event: BeforeToolCall) -> Refused | None:
            wrapper = self._wrapper(agent, event)
            if callable(enabled) and not await awaited(enabled(wrapper, agent.source)):
                return refuse(f"{name} is not enabled for this caller")
            if then is not None and (_captured(then, "on_handoff") is not None):
                known = {key: value for key, value in event.params.items() if key != "request"}
                await then(wrapper, dumps(known))
            return None

        agent.hook("before_tool_call", name, begin, [name])

    def _read_output(self, agent: FrameworkAgent, source: Any) -> None:
        wanted = source.output_type
        if isinstance(wanted, self._sdk.AgentOutputSchema):
            agent.output = wanted.output_type
            if "validate_json" in overridden_methods(wanted, "agents"):
                self._leave_validation(agent, wanted)
        elif isinstance(wanted, self._sdk.AgentOutputSchemaBase):
            agent.output = str if wanted.is_plain_text() else wanted.json_schema()
            self._leave_validation(agent, wanted)
        else:
            agent.output = wanted or str

    def _leave_validation(self, agent: FrameworkAgent, schema: Any) -> None:
        agent.leave(f"validate_json of {type(schema).__name__}", "give a type as the output, which validates it")

    def _read_model(self, agent: FrameworkAgent, source: Any) -> None:
        model = source.model
        if isinstance(model, str):
            provider, _, name = model.rpartition("/")
            provider = provider.removeprefix("litellm/").removeprefix("any-llm/")
            _set_named_model(agent, model, _OPENAI_PREFIXES.get(provider), name)
        elif model is not None:
            kind = type(model).__name__
            if kind in ("OpenAIResponsesModel", "OpenAIChatCompletionsModel"):
                prefix = "openai-responses:" if kind == "OpenAIResponsesModel" else ""
                address = getattr(getattr(model, "_client", None), "base_url", "")
                _set_model(agent, f"{prefix}{model.model}", str(address))
            else:
                agent.leave(f"the model {kind}", _OTHER_MODEL)
        settings, named = source.model_settings, model if isinstance(model, str) else None
        if settings == self._sdk.models.get_default_model_settings(named):
            return
        given = {each.name: getattr(settings, each.name) for each in dataclasses.fields(settings)}
        given = {name: value for name, value in given.items() if value is not None}
        thinking = given.pop("reasoning", None)
        if thinking is not None and thinking.effort is not None:
            given["reasoning_effort"] = thinking.effort
        _set_sampling(agent, given, "model_settings")

    def _read_hosted(self, agent: FrameworkAgent, source: Any) -> None:
        for tool in source.tools:
            named = f"the tool {tool.name!r}"
            if isinstance(tool, self._sdk.WebSearchTool):
                agent.host("web_search", tool, named, _defaults(tool))
            elif isinstance(tool, self._sdk.CodeInterpreterTool):
                usual = tool.tool_config.get("container") == {"type": "auto"}
                agent.host("code_execution", tool, named, {} if usual else {"tool_config": None})

    def _read_guardrails(self, agent: FrameworkAgent, source: Any) -> None:
        for guardrail in source.input_guardrails:
            name = guardrail.get_name()

            async def judge(
                event: HookEvent, text: str, guardrail: Any = guardrail, name: str = name
            ) -> Refused | None:
                outcome = await guardrail.run(source, text, self._wrapper(agent, event))
                return refuse(f"the guardrail {name} stopped the run") if outcome.output.tripwire_triggered else None

            async def at_start(event: BeforeAgentStart, judge: _Judge = judge) -> Refused | None:
                # As in the SDK, only for the first agent; a session's messages pass `at_message`.
                return None if event.above or event.session else await judge(event, _text_of(event))

            async def at_message(event: MessageReceived, judge: _Judge = judge) -> Refused | None:
                return await judge(event, event.text)

            agent.hook("before_agent_start", f"guardrail:{name}", at_start)
            agent.hook("message_received", f"guardrail:{name}", at_message)
        for guardrail in source.output_guardrails:
            agent.leave(
                f"the output guardrail {guardrail.get_name()!r}",
                # No hook sees a run's output: it is streamed before the run's end, and may be a reference.
                "check the output where you receive it, or the delivered reply in a message_sending hook",
            )

    def _read_rest(self, agent: FrameworkAgent, source: Any) -> None:
        agent.leave_methods("agents", _SYSTEM_PROMPT)
        usual = {each.name: each for each in dataclasses.fields(self._sdk.Agent)}
        for each in dataclasses.fields(source):
            value = getattr(source, each.name)
            if each.name in _OPENAI_READ:
                continue
            if each.name not in usual and each.name.startswith("_"):
                continue
            if each.name not in usual:
                agent.leave(
                    each.name, f"{type(source).__name__} has it, but agents.Agent does not: run the agent by agent_tool"
                )
            elif value not in (each.default, None, {}, []):
                agent.leave(each.name, _OPENAI_INSTEAD.get(each.name, "write a hook, or run the agent by agent_tool"))


_SYSTEM_PROMPT: Final = frozenset(["get_system_prompt"])
"""The method of an agent that builds its instructions."""
_AS_TOOL: Final = {
    "custom_output_extractor": "the output of the other agent is the result",
    "input_builder": "the parameters are the other agent's input",
    "on_stream": "follow run.events()",
    "hooks": "write Perdure hooks",
    "max_turns": "set max_requests of the other agent",
    "session": "the other agent starts without a conversation",
    "conversation_id": "the other agent starts without a conversation",
    "previous_response_id": "the other agent starts without a conversation",
    "run_config": "give its parts to the other agent, or to the worker",
}
_OPENAI_PREFIXES: Final = {
    "": "openai-responses:",
    "openai": "openai-responses:",
    "anthropic": "anthropic:",
    "gemini": "google:",
    "bedrock": "bedrock:",
}
_OTHER_MODEL: Final = "give the models to the worker, or Agent(models=…); another server goes in PERDURE_ENDPOINTS"
_OPENAI_READ: Final = frozenset(
    [
        "name",
        "handoff_description",
        "tools",
        "mcp_servers",
        "instructions",
        "prompt",
        "handoffs",
        "model",
        "model_settings",
        "input_guardrails",
        "output_guardrails",
        "output_type",
    ]
)
_OPENAI_INSTEAD: Final = {
    "hooks": "write Perdure hooks (docs/hooks.md)",
    "mcp_config": "set a server's options in the file of --mcp",
    "tool_use_behavior": "a plan can return a tool's result as its output: describe in the instructions when",
    "reset_tool_choice": "must_call applies until the model has called one of its tools",
}


# Pydantic AI


def _read_pydantic_ai(source: Any, name: str, make_context: MakeContext | None) -> FrameworkAgent:
    agent = FrameworkAgent(plain_name(source.name or name), source)
    while hasattr(source, "wrapped"):  # a `WrapperAgent`
        agent.leave(
            f"the wrapper {type(source).__name__}",
            "Perdure uses the wrapped agent: write hooks instead of the wrapper, or run it by agent_tool",
        )
        source = source.wrapped
    _set_context(agent, source.deps_type, "deps_type", make_context)
    if isinstance(source.description, str):
        agent.description = source.description
    elif source.description is not None:
        agent.leave("description", "give a text: Perdure renders no template for a run")
    _read_pydantic_instructions(agent, source)
    for toolset in source.toolsets:
        _read_toolset(agent, toolset, source._tool_timeout)
    agent.output = _pydantic_output(agent, source.output_type)
    for validator in source._output_validators:
        agent.leave(
            f"the output validator {_function_name(validator.function)!r}",
            "use a pydantic validator in the output type, or give a tool that validates",
        )
    _read_pydantic_model(agent, source)
    _read_pydantic_rest(agent, source)
    agent.leave_methods("pydantic_ai")
    return agent


def _function_name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _read_pydantic_instructions(agent: FrameworkAgent, source: Any) -> None:
    parts: list[str] = list(source._system_prompts)
    functions: list[Any] = [each.function for each in source._system_prompt_functions]
    leaves = [leaf for each in source.toolsets for leaf in _toolset_leaves(each)]
    for sourced in [*source._instructions, *(each for leaf in leaves for each in leaf._instructions)]:
        given = getattr(sourced, "instruction", sourced)
        text = getattr(given, "content", None)
        if isinstance(given, str):
            parts.append(given)
        elif isinstance(text, str):
            parts.append(text)
        elif callable(given):
            functions.append(given)
        else:
            agent.leave("an instruction as a template", "write it as a function of RunContext")
    agent.instructions = "\n\n".join(filter(None, parts))
    if not functions:
        return

    async def instruct(event: BeforeAgentStart) -> BeforeAgentStart:
        run = _run_context(agent, event, _text_of(event))
        found = [await _instruction(each, run) for each in functions]
        return event.changed(system="\n\n".join(filter(None, (event.system, *found))))

    agent.hook("before_agent_start", "instructions", instruct)


def _run_context(agent: FrameworkAgent, event: HookEvent, prompt: str) -> Any:
    return pydantic_ai_context(deps=agent.typed(event.context), agent=agent.source, prompt=prompt, run_id=event.run_id)


async def _instruction(function: Any, run: Any) -> str:
    """Return the text of a function with or without a `RunContext`, sync or async."""
    takes = (run,) if inspect.signature(function).parameters else ()
    found = await (function(*takes) if inspect.iscoroutinefunction(function) else asyncio.to_thread(function, *takes))
    found = await awaited(found)
    return str(getattr(found, "content", found) or "")


def _toolset_leaves(toolset: Any) -> Iterator[Any]:
    """Iterate over the sets of functions in a toolset whose tools carry over."""
    try:
        framework_tools(toolset)
    except ToolDefinitionError:
        return
    if isinstance(getattr(toolset, "tools", None), dict):
        yield toolset
    for each in getattr(toolset, "toolsets", None) or filter(None, [getattr(toolset, "wrapped", None)]):
        yield from _toolset_leaves(each)


def _read_toolset(agent: FrameworkAgent, toolset: Any, timeout: float | None) -> None:
    tools, kind = getattr(toolset, "tools", None), type(toolset).__name__
    before = len(agent.functions)
    if "MCP" in kind:
        agent.leave(f"the toolset {kind}", "name the server in the file of --mcp, and its tools in the agent")
    elif not isinstance(tools, dict) or TOOLSET_METHODS & set(overridden_methods(toolset, "pydantic_ai")):
        agent.add_tool(toolset, f"the toolset {kind}")
    else:
        for name, tool in tools.items():
            agent.add_tool(tool, f"the tool {name!r}")
    limit = timeout or getattr(toolset, "timeout", None)
    for number, function in enumerate(agent.functions[before:], before):
        if limit is not None and "_timeout" not in function.definition:
            definition = {**function.definition, "_timeout": limit}
            agent.functions[number] = dataclasses.replace(function, definition=definition)


def _pydantic_output(agent: FrameworkAgent, wanted: Any) -> Any:
    """Return the type of the output: a union if the agent has several."""
    kinds = [kind for kind in _output_kinds(agent, wanted) if kind is not None]
    return Union[tuple(kinds)] if kinds else str  # noqa: UP007  # of a list that is known at run time alone


_OUTPUT_INSTEAD: Final = {
    "name": "an output has no name: describe its purpose in its description",
    "template": "Perdure's prompt describes the output's schema: add text to the instructions",
    "max_retries": "use max_requests, which limits them",
}


def _output_kinds(agent: FrameworkAgent, wanted: Any) -> Iterator[Any]:
    kind = type(wanted).__name__
    if isinstance(wanted, list | tuple):
        for each in wanted:
            yield from _output_kinds(agent, each)
    elif kind in ("ToolOutput", "NativeOutput", "PromptedOutput"):
        for option, instead in _OUTPUT_INSTEAD.items():
            if getattr(wanted, option, None) is not None:
                agent.leave(f"{option} of the output's {kind}", instead)
        found = list(_output_kinds(agent, wanted.output if kind == "ToolOutput" else wanted.outputs))
        if wanted.description and found:
            yield Annotated[Union[tuple(found)], Field(description=wanted.description)]  # noqa: UP007  # as above
        else:
            yield from found
    elif isinstance(wanted, type) and "BinaryImage" in [each.__name__ for each in wanted.__mro__]:
        agent.leave("an image as the output", "give a tool that stores the image and returns its address")
    elif getattr(wanted, "__name__", "") == "DeferredToolRequests":
        return  # the run itself holds calls that wait for a person
    elif kind == "TextOutput" or inspect.isroutine(wanted):
        function = getattr(wanted, "output_function", wanted)
        agent.leave(
            f"the output function {_function_name(function)!r}",
            "give the function as a tool, whose result is the output",
        )
    else:
        yield wanted


_PYDANTIC_PREFIXES: Final = {
    "openai": "openai-responses:",
    "openai-responses": "openai-responses:",
    "openai-chat": "",
    "anthropic": "anthropic:",
    "google": "google:",
    "google-gla": "google:",
    "bedrock": "bedrock:",
}
_PYDANTIC_MODELS: Final = {
    "OpenAIResponsesModel": "openai-responses:",
    "OpenAIChatModel": "",
    "AnthropicModel": "anthropic:",
    "GoogleModel": "google:",
    "BedrockConverseModel": "bedrock:",
}


def _read_pydantic_model(agent: FrameworkAgent, source: Any) -> None:
    model = source.model
    if isinstance(model, str):
        provider, _, name = model.partition(":")
        _set_named_model(agent, model, _PYDANTIC_PREFIXES.get(provider) if name else "", name or model)
    elif model is not None:
        kind = type(model).__name__
        if kind in _PYDANTIC_MODELS:
            address = model.base_url or "" if kind.startswith("OpenAI") else ""
            _set_model(agent, f"{_PYDANTIC_MODELS[kind]}{model.model_name}", address)
        else:
            agent.leave(f"the model {kind}", _OTHER_MODEL)
    settings = source.model_settings
    if callable(settings):
        agent.leave("model_settings as a function", "give values")
        settings = None
    settings = {**(getattr(model, "settings", None) or {}), **(settings or {})}  # a model may have its own
    if settings:
        given = {name: value for name, value in settings.items() if value is not None}
        if isinstance(given.get("thinking"), str):
            given["reasoning_effort"] = given.pop("thinking")
        _set_sampling(agent, given, "model_settings")


def _read_capability(agent: FrameworkAgent, capability: Any) -> None:
    kind = type(capability).__name__
    effort, tool = getattr(capability, "effort", None), getattr(capability, "tool", None)
    hosted = _PYDANTIC_HOSTED.get(type(tool).__name__)
    if kind == "Thinking" and isinstance(effort, str):
        agent.options |= {"sampling": {"reasoning_effort": effort, **agent.options.get("sampling", {})}}
    elif kind == "NativeTool" and hosted is not None and tool is not None:
        agent.host(hosted, tool, f"the tool {tool.kind!r}", _defaults(tool))
    else:
        shown = f"NativeTool({type(tool).__name__})" if kind == "NativeTool" else kind
        other = "write a tool or a hook, or run the agent by agent_tool"
        agent.leave(f"the capability {shown}", _CAPABILITY_INSTEAD.get(kind, other))


_CAPABILITY_INSTEAD: Final = {
    "ProcessHistory": "a session compacts its conversation itself; a before_compaction hook gets the removed part",
    "PrepareTools": "give each agent the tools that it needs, or reject a call in a before_tool_call hook",
    "Hooks": "write Perdure hooks (docs/hooks.md)",
    "MCP": "name the server in the file of --mcp, and its tools in the agent",
    "HandleDeferredToolCalls": "mark the tools with requires_approval=True: people decide in the run's inbox",
    "ProcessEventStream": "follow run.events()",
}


_PYDANTIC_HOSTED: Final[Mapping[str, HostedTool]] = {
    "WebSearchTool": "web_search",
    "CodeExecutionTool": "code_execution",
}


def _read_pydantic_rest(agent: FrameworkAgent, source: Any) -> None:
    automatic = importlib.import_module("pydantic_ai.agent")._AUTO_INJECT_CAPABILITY_TYPES
    for each in source.root_capability.capabilities:
        if not isinstance(each, tuple(automatic)):
            _read_capability(agent, each)
    left = {
        "retries of tools": (source._max_tool_retries != 1, RETRIES),
        "retries of the output": (
            source._max_output_retries != source._max_tool_retries,
            _OUTPUT_INSTEAD["max_retries"],
        ),
        "validation_context": (source.validation_context is not None, "validate in the types"),
        "metadata": (source._metadata is not None, "give metadata in an agent file"),
        "end_strategy": (
            source.end_strategy == "early",
            "leave it out: all calls of a Solution run before its output is returned",
        ),
        "max_concurrency": (source._concurrency_limiter is not None, "the worker limits its number of runs"),
        "instrument": (source.instrument is not None, "start the worker with --otel"),
        "on_event": (bool(source._event_hooks._get("on_event")), "follow run.events()"),
    }
    for part, (has, instead) in left.items():
        if has:
            agent.leave(part, instead)
