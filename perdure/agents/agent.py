"""An agent in Python: the same as an agent file, in both directions."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeAlias, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError
from typing_extensions import TypeVar, Unpack

from perdure.agents.files import agent_path, malformed_outputs, offline_tool, read_agent
from perdure.agents.frameworks import MakeContext, NotCarried, is_framework_agent, lost_parts, read_framework_agents
from perdure.agents.json_files import AGENTS
from perdure.agents.modules import names_module, object_named
from perdure.agents.options import AgentOptions
from perdure.agents.rollouts import Rollout, read_rollouts, versions_of
from perdure.approvals.policy import policy_problems
from perdure.errors import AgentError, JsonError, OutputError, ProtocolError, SettingsError, ToolDefinitionError, clip
from perdure.hooks.decorator import HookFunction
from perdure.runs.agent import Config, Context, agent_document, check_task, parse_agent, read_input
from perdure.runs.caller_context import read_context
from perdure.runs.partial_output import PartialText
from perdure.tools.decorator import ToolFunction, plain_schema, with_undos
from perdure.tools.frameworks import tool_functions, with_context_type
from perdure.tools.tool import parse_tool
from perdure.values.json import Json, JsonObject, check, dumps, shorten, to_json
from perdure.values.messages import InputMessage, ToolMessage, merge_data
from perdure.values.problems import first_problem, none_of
from perdure.values.references import MISSING, Missing
from perdure.values.schemas import Schema

ValueT = TypeVar("ValueT", default=Any)


class JsonType(Generic[ValueT]):
    """The type of a value: a JSON Schema, or a Python type with its schema, which then reads the values too.

    `wanted`: whatever pydantic's `TypeAdapter` accepts, a JSON Schema (an object or a boolean), or `None` for any JSON.
    Raises `AgentError` for anything else; `where` names it.
    """

    def __init__(self, wanted: Any, where: str) -> None:
        self.adapter: TypeAdapter[ValueT] | None = None
        """Reader of its values; `None` accepts any JSON."""
        self.schema: JsonObject | bool = {}
        """JSON Schema; `{}` accepts any value."""
        if isinstance(wanted, dict | bool):
            self.schema = wanted
        elif wanted is not None:
            try:
                self.adapter = TypeAdapter(wanted)
                self.schema = plain_schema(self.adapter.json_schema())
            except (
                PydanticSchemaGenerationError,
                PydanticUserError,
                PydanticSerializationError,
                NameError,
                SyntaxError,
            ) as error:
                problem = str(error).splitlines()[0].partition(". Set `")[0]
                raise AgentError(
                    f"{where} is not a JSON Schema or a type that JSON can be validated as: {problem}"
                ) from None

    def read(self, value: Json) -> ValueT:
        """Return the value converted to the type; without a type, unchanged. Raise `OutputError`."""
        if self.adapter is None:
            unread: Any = value  # without a type, a `ValueT` is any value
            found: ValueT = unread
            return found
        try:
            return self.adapter.validate_json(dumps(value))
        except ValidationError as error:
            raise OutputError(
                f"the output does not match the agent's output type: {first_problem(error, value)}"
            ) from None

    def read_partial(self, partial: PartialText) -> ValueT | Missing:
        """Return as much of a beginning of a value as the type accepts; `MISSING` if that is nothing.

        An incomplete text counts only where any text is valid, so that a beginning is not mistaken for another value.
        """
        value, longer = partial.value, partial.longer
        if self.adapter is None or value is MISSING:
            found: Any = value
            return found  # type: ignore[no-any-return]  # without a type, a `ValueT` is any value
        counts = longer is MISSING or longer == value or self._partially(longer) is not MISSING
        if counts and (read := self._partially(value)) is not MISSING:
            return read
        beginning = partial.closed
        while beginning is not MISSING:
            if (read := self._partially(beginning)) is not MISSING:
                return read
            beginning = _without_last(beginning)
        return MISSING

    def _partially(self, value: Json) -> ValueT | Missing:
        """Read a value; `MISSING` if the type does not accept it."""
        assert self.adapter is not None
        try:
            return self.adapter.validate_json(dumps(value))
        except ValidationError:
            return MISSING


def _without_last(value: Json) -> Json | Missing:
    """Return a value without the last and deepest of its parts; `MISSING` if nothing is left."""
    if not isinstance(value, dict | list) or not value:
        return MISSING
    key = next(reversed(value)) if isinstance(value, dict) else len(value) - 1
    left = _without_last(value[key])  # type: ignore[index]  # a key of an object, or an index of a list
    rest = value.copy()
    if left is MISSING:
        del rest[key]  # type: ignore[arg-type]
    else:
        rest[key] = left  # type: ignore[index]
    return rest


OutputT = TypeVar("OutputT", default=Any, covariant=True)
T = TypeVar("T")

AgentTool: TypeAlias = "str | Mapping[str, Any] | Callable[..., Any] | ToolFunction | Agent[Any] | Any"
"""A tool of the worker's by name, a definition, a function (decorated with `@tool`, or plain), what `activity_tool` and the like make, an
agent that is delegated to, or a tool of the OpenAI Agents SDK, Pydantic AI or LangChain."""

_REQUEST: JsonObject = {
    "properties": {"request": {"type": "string", "description": "What to do."}},
    "required": ["request"],
}
"""Parameters of a delegate without an input schema."""


class Agent(Generic[OutputT]):
    """An agent: instructions, tools, and the types of its input and output. An agent file holds the same as JSON.

    `name`: the agent's name, with which its runs' ids begin. `instructions`: the system message. `tools`: see
    `AgentTool`. A function is named, and its code is the worker's; an agent becomes a delegate, recorded when a run
    starts. `input`, `output`: a type that pydantic's `TypeAdapter` takes, or a JSON Schema (default: any JSON).
    `context`: the type of the data about
    the caller, an object that tools, hooks and approvers read and no model does (default: any object). `messages`:
    further messages, after these. `description`: read by models that may delegate to the agent. `options`:
    the keys of `config`, see `AgentOptions`.

    Raises `AgentError` (or `ToolDefinitionError`) with one line for an agent that cannot be run.

    ```python
    shopper = Agent("shopper", instructions="You order fruit.", tools=["order"], output=str, max_requests=5)
    ```
    """

    # R8.1

    @overload
    def __init__(
        self: Agent[OutputT],
        name: str,
        *,
        output: type[OutputT],
        instructions: str = ...,
        tools: Iterable[AgentTool] = ...,
        input: Any = ...,
        context: Any = ...,
        messages: Sequence[Mapping[str, Any]] = ...,
        description: str = ...,
        **options: Unpack[AgentOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Agent[Any],
        name: str,
        *,
        output: Any = ...,
        instructions: str = ...,
        tools: Iterable[AgentTool] = ...,
        input: Any = ...,
        context: Any = ...,
        messages: Sequence[Mapping[str, Any]] = ...,
        description: str = ...,
        **options: Unpack[AgentOptions],
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        output: Any = None,
        instructions: str = "",
        tools: Iterable[AgentTool] = (),
        input: Any = None,
        context: Any = None,
        messages: Sequence[Mapping[str, Any]] = (),
        description: str = "",
        **options: Unpack[AgentOptions],
    ) -> None:
        where = f"agent {name!r}"
        _check_options(options, where)
        given = JsonType[Any](input, f"{where}: input")
        wanted = JsonType[OutputT](output, f"{where}: output")
        if isinstance(context, list | tuple):
            raise AgentError(
                f"{where}: context must be a type or a JSON Schema of the data about the caller; pass messages as messages=[…]"
            )
        asks = JsonType[Any](context, f"{where}: context")
        if isinstance(asks.schema, dict) and isinstance(kind := asks.schema.get("type"), str) and kind != "object":
            raise AgentError(
                f"{where}: context must be the type of an object, such as a TypedDict, not {shorten(asks.schema, 80)}"
            )
        for key, listed in (("tools", tools), ("messages", messages)):
            if isinstance(listed, str | Mapping) or not isinstance(listed, Iterable):
                raise AgentError(f"{where}: {key} must be a list, not {clip(repr(listed), 80)}")
        named = list(tools)
        own: list[Any] = [{"type": "system", "text": instructions}] if instructions else []
        offered = [each for tool in named for each in _named(tool, where)]
        agents = [tool.name for tool in named if isinstance(tool, Agent)]
        if both := [each for each in agents if each in offered]:
            raise AgentError(f"{where} has a tool and an agent called {both[0]!r}: rename one of them")
        own += [{"type": "tool", "tool": each} for each in offered]
        own += [] if input is None else [{"type": "input", "schema": given.schema}]
        document: JsonObject = {"name": name, "context": [*own, *messages]}
        document |= {"description": description} if description else {}
        document |= {"config": options} if options else {}
        document |= {} if output is None else {"schema": wanted.schema}
        document |= {} if context is None else {"caller_context": asks.schema}
        self._set(document, wanted, where)
        for tool in named:
            self._add(tool, where, asks)

    def _set(self, document: Json, output: JsonType[OutputT], where: str) -> None:
        try:
            self._document: JsonObject = to_json(document, source=where)
            check(self._document, source=where)
        except JsonError as error:
            raise AgentError(str(error)) from None
        self.parsed = parse_agent(self._document, source=where)
        """Agent as a run parses it."""
        if malformed := malformed_outputs(self.parsed):
            raise AgentError.of(malformed, where)
        for each in self.parsed.messages():
            if isinstance(each, InputMessage) and each.data_schema and (wrong := Schema(each.data_schema).problem):
                raise AgentError(f"{where}: the schema of the input is not a JSON Schema: {wrong}")
        self._output = output
        self._functions: dict[str, ToolFunction] = {}
        self._delegates: dict[str, JsonObject] = {}
        self.not_carried: list[NotCarried] = []
        """The parts of another framework's agent or tools that did not carry over, with what to write instead; see `of`."""
        self._rollout: tuple[Rollout, Agent[OutputT]] | None = None
        self.hooks: list[HookFunction] = []
        """The hooks that hold instructions and guardrails of another framework's agent: its worker needs them."""
        self.sources: list[object] = []
        """The other framework's objects from which it was made."""

    def _add(self, tool: AgentTool, where: str, context: JsonType[Any]) -> None:
        """Add the functions and delegates that a document only names."""
        agent = tool if isinstance(tool, Agent) else None
        own = (with_context_type(each, context.adapter) for each in ([] if agent else with_undos(tool_functions(tool))))
        functions = agent._functions if agent else {each.name: each for each in own}
        if agent:
            self.hooks += [each for each in agent.hooks if each not in self.hooks]
            self.sources += agent.sources
            self.not_carried += [each for each in agent.not_carried if each not in self.not_carried]
        elif not isinstance(tool, ToolFunction):  # the losses of an agent that `Agent.of` read are known
            lost = [part for each in functions.values() for part in lost_parts(self.name, each)]
            self.not_carried += lost
            for part in lost:
                warnings.warn(str(part), stacklevel=3)
        for name, found in functions.items():
            if self._functions.setdefault(name, found).function != found.function:
                raise AgentError(f"{where} has two tools called {name!r}: rename one of them")
        for name, document in ({agent.name: agent._document} | agent._delegates if agent else {}).items():
            if self._delegates.setdefault(name, document) != document:
                raise AgentError(f"{where} delegates to two agents called {name!r}: rename one of them")

    @overload
    @classmethod
    def read(cls, path: str | Path, *, folder: Path = ...) -> Agent[Any]: ...

    @overload
    @classmethod
    def read(cls, path: str | Path, *, output: type[T], folder: Path = ...) -> Agent[T]: ...

    @classmethod
    def read(cls, path: str | Path, *, output: Any = None, folder: Path = AGENTS) -> Agent[Any]:
        """Read an agent file, an agent of the folder (`agents` here) by name, or one of a Python module: `module:name`.

        `output`: the type of its outputs; the file's own schema, if any, takes precedence. An agent of the OpenAI Agents
        SDK or Pydantic AI in a module is read as by `of`. Raises `SettingsError` if there is no such file or it is not
        JSON, and `AgentError` if it is not an agent.

        ```python
        shopper = Agent.read("agents/shopper.json", output=str)
        ```
        """
        return cls._read(path, output=output, folder=folder)

    @classmethod
    def _read(
        cls,
        path: str | Path,
        *,
        output: Any = None,
        folder: Path = AGENTS,
        alone: bool = False,
        rollouts: bool = True,
        tools: Mapping[str, JsonObject] | None = None,
    ) -> Agent[Any]:
        if not isinstance(path, str | os.PathLike):
            raise AgentError(
                f"Agent.read takes a file's path or an agent's name, not {type(path).__name__}; Agent.of takes an agent's JSON"
            )
        if names_module(str(path)) and not Path(path).is_file():
            return cls._of_module(str(path), output=output, alone=alone)
        _, document = read_agent(str(path), folder, alone=alone, known=tools or {})
        agent = cls.of(document, output=output, source=str(path))
        file = agent_path(str(path), folder)
        rollout = read_rollouts(file.parent).get(file.stem) if rollouts else None
        if rollout is None:
            return agent
        _, candidate = read_agent(str(file.parent / f"{rollout.candidate}.json"), alone=alone)
        return agent._with(rollout, cls.of(candidate, output=output, source=f"{rollout.candidate}.json"))

    def with_candidate(
        self, candidate: Agent[OutputT], *, share: float = 0, tenants: Iterable[str] = ()
    ) -> Agent[OutputT]:
        """Return this agent with a candidate beside it, another version that a share of new runs takes.

        `share`: percent of new runs and sessions, 0 to 100. `tenants`: all new runs of these tenants. The candidate gets this agent's name.
        A run records the version that it takes at its start. Raises `AgentError` for an invalid share, and where both have one `version`.

        ```python
        shopper = shopper.with_candidate(Agent.of({**shopper.document(), "version": "2"}), share=10)
        ```
        """
        # R24.10
        if isinstance(tenants, str) or not isinstance(tenants, Iterable):
            raise AgentError(f"agent {self.name!r}: tenants must be a list of names, not {clip(repr(tenants), 80)}")
        if not isinstance(candidate, Agent):
            raise AgentError(f"agent {self.name!r}: the candidate must be an Agent, not {clip(repr(candidate), 80)}")
        try:
            rollout = Rollout(candidate=candidate.name, share=share, tenants=tuple(tenants))
        except ValidationError as error:
            raise AgentError(f"agent {self.name!r}: {first_problem(error)}") from None
        return self._with(rollout, candidate)

    def _with(self, rollout: Rollout, candidate: Agent[OutputT]) -> Agent[OutputT]:
        stable, other = versions_of(self._document, candidate._document)
        both = copy.copy(self)
        versions = [copy.copy(self), copy.copy(candidate)]
        for each, document in zip((both, *versions), (stable, stable, other), strict=True):
            each._document, each.parsed, each._rollout = document, parse_agent(document), None
        both._functions = dict(self._functions)
        for name, function in candidate._functions.items():
            if both._functions.setdefault(name, function).function != function.function:
                raise AgentError(
                    f"the versions of the agent {self.name!r} have two tools called {name!r}: rename one of them"
                )
        both.hooks = [*self.hooks, *(hook for hook in candidate.hooks if hook not in self.hooks)]
        both._rollout = (rollout, versions[1])
        return both

    def version_for(self, key: str, *, tenant: str = "") -> Agent[OutputT]:
        """Return the version that a run takes: this agent, or its candidate (`with_candidate`, or `rollouts.toml` beside its file).

        `key`: the id of the run or of its session; for one key the answer is always the same. `Perdure.start` and sessions call this.

        ```python
        print(shopper.version_for("run-17", tenant="acme").version)
        ```
        """
        # R24.10
        if self._rollout is None:
            return self
        rollout, candidate = self._rollout
        if rollout.takes(self.name, key, tenant):
            return candidate
        stable = copy.copy(self)
        stable._rollout = None
        return stable

    @property
    def version(self) -> str:
        """The name of this version of the agent; empty if it has none."""
        return self.parsed.version

    @classmethod
    def _of_module(cls, place: str, *, output: Any, alone: bool) -> Agent[Any]:
        name, found = object_named(place)
        agent = found if isinstance(found, Agent) else None
        if agent is None and is_framework_agent(found):
            agent = cls.of(found, output=output, name=name)
        if agent is None:
            raise SettingsError(
                f"{place} is not an agent: give an Agent, or an agent of the OpenAI Agents SDK or Pydantic AI"
            )
        if alone:
            agent.check_policy()
        return agent

    @classmethod
    def read_to_run(
        cls,
        path: str | Path,
        *,
        folder: Path = AGENTS,
        rollouts: bool = True,
        tools: Mapping[str, JsonObject] | None = None,
    ) -> Agent[Any]:
        """Read an agent that runs by itself, as on a command line: its policy may name only its own tools.

        `rollouts`: whether a `rollouts.toml` beside the file counts. `tools`: definitions of a worker's tools, by name.
        An error of an agent file then also has the parameters of these tools that rules name and that do not exist.

        ```python
        shopper = Agent.read_to_run("agents/shopper.json")
        ```
        """
        return cls._read(path, folder=folder, alone=True, rollouts=rollouts, tools=tools)

    @overload
    @classmethod
    def of(cls, document: Json, *, name: str = ..., source: str = ...) -> Agent[Any]: ...

    @overload
    @classmethod
    def of(cls, document: Json, *, output: type[T], name: str = ..., source: str = ...) -> Agent[T]: ...

    @overload
    @classmethod
    def of(cls, document: Json, *, output: Any, name: str = ..., source: str = ...) -> Agent[Any]: ...

    @overload
    @classmethod
    def of(
        cls, document: object, *, output: Any = ..., name: str = ..., context: MakeContext | None = ...
    ) -> Agent[Any]: ...

    @classmethod
    def of(
        cls,
        document: Any,
        *,
        output: Any = None,
        name: str = "agent",
        source: str = "the agent",
        context: MakeContext | None = None,
    ) -> Agent[Any]:
        """Create an agent from the JSON of an agent file, or from an agent of the OpenAI Agents SDK or Pydantic AI.

        `name`: for an agent without one. `output`: as in `read`. `source`: named in errors. `context`: for a framework's
        agent, a function that makes its context object, or `deps`, from the JSON of a run's context, on the worker.
        `not_carried` lists what did not carry over, and a warning names each. Raises `AgentError`.

        ```python
        shopper = Agent.of({"name": "shopper", "context": [{"type": "text", "text": "Order three apples."}]})
        ```
        """
        # R21.2
        if is_framework_agent(document):
            return cls._of_framework(document, output, name, context)
        if not isinstance(document, dict | list | str | int | float | None):
            kind = type(document)
            raise AgentError(
                f"{source}: {kind.__module__}.{kind.__qualname__} is not a supported kind of agent: give Agent.of the JSON of an "
                "agent file, an agents.Agent or a pydantic_ai.Agent"
            )
        wanted = JsonType[Any](output, f"{source}: output")
        document = agent_document(document, name)
        if isinstance(document, dict) and output is not None:
            document = {"schema": wanted.schema, **document}
        agent: Agent[Any] = cls.__new__(cls)
        agent._set(document, wanted, source)
        return agent

    @classmethod
    def _of_framework(cls, foreign: object, output: Any, name: str, context: MakeContext | None) -> Agent[Any]:
        found = read_framework_agents(foreign, name, context)
        made = [
            cls(
                each.name,
                instructions=each.instructions,
                tools=[*each.functions, *each.delegations],
                messages=[{"type": "hosted", "tool": name} for name in each.hosted],
                output=each.output if output is None or number else output,
                context=each.context,
                description=each.description,
                **each.options,
            )
            for number, each in enumerate(found)
        ]
        agent = made[0]
        named = {tool["_delegate"] for each in found for tool in each.delegations}
        for other in made[1:] if agent.name not in named else made:  # a cycle of handoffs returns to the first
            agent._add(other, f"agent {agent.name!r}", JsonType(None, ""))
        agent.hooks = [hook for each in found for hook in each.hooks]
        agent.sources = [each.source for each in found]
        agent.not_carried = [part for each in found for part in each.not_carried]
        for part in agent.not_carried:
            warnings.warn(str(part), stacklevel=3)
        return agent

    @property
    def name(self) -> str:
        """The name, as lists and drawings show it; the ids of its runs begin with it."""
        return self.parsed.name

    @property
    def description(self) -> str:
        """The description, as a model reads it that may delegate to the agent."""
        return self.parsed.description

    @property
    def input_schema(self) -> JsonObject:
        """The JSON Schema of its input, an object. Without one it is that of a `request`, as a delegate has it."""
        # R8.4
        inputs = merge_data(each for each in self.parsed.messages() if isinstance(each, InputMessage))
        schema = next((each.data_schema for each in inputs if each.data_schema and each.instance is None), None)
        return {"type": "object", **(_REQUEST if schema is None else schema)}

    @property
    def functions(self) -> list[ToolFunction]:
        """The functions that it and its delegates have as tools: its worker needs them."""
        return list(self._functions.values())

    def document(self) -> JsonObject:
        """Return a copy of the agent file's JSON.

        ```python
        print(json.dumps(shopper.document(), indent=2))
        ```
        """
        return copy.deepcopy(self._document)

    def delegates(self) -> dict[str, JsonObject]:
        """Return copies of the agent files of agents that it has as tools, at any depth, by name.

        ```python
        print(list(shopper.delegates()))
        ```
        """
        return copy.deepcopy(self._delegates)

    def check_policy(self) -> None:
        """Check that the policy of an agent that runs by itself names only its own tools, and its rules only parameters
        that these have. Raises `AgentError`.

        ```python
        shopper.check_policy()
        ```
        """
        # R7.1
        defined = [message.tool for message in self.parsed.messages() if isinstance(message, ToolMessage)]
        known = [*(each.definition for each in self.functions), *(tool for tool in defined if isinstance(tool, dict))]
        if problems := policy_problems(self._document, [offline_tool(each, ()) for each in known]):
            raise AgentError.of(problems, f"agent {self.name!r}")

    def check_input(self, input: object = MISSING, *, explicit: bool = False) -> Json | Missing:
        """Return a run's input as JSON, validated as the run does. A missing one stays missing.

        `explicit`: whether a text, data or a plan must say what to do; tools or a schema alone do not. Raises `InputError`.

        ```python
        given = shopper.check_input({"request": "Order three apples."})
        ```
        """
        # R2.1, R2.3
        value: Json | Missing = MISSING
        if input is not MISSING:
            value = read_input(input)
        context = Context(self.parsed, None if value is MISSING else value, has_input=value is not MISSING)
        check_task(self.parsed, context, explicit=explicit)
        return value

    def check_context(self, context: object = None) -> JsonObject:
        """Return the context of a start or a message as JSON, validated as the run does. Raises `InputError`.

        ```python
        known = shopper.check_context({"customer": 17})
        ```
        """
        # R19.1
        return read_context(context, self.parsed.caller_context)

    def read_output(self, value: Json) -> OutputT:
        """Return a run's output as the type of this agent's output. Raises `OutputError`.

        ```python
        print(shopper.read_output("ordered"))
        ```
        """
        return self._output.read(value)

    def read_partial_output(self, partial: PartialText) -> OutputT | Missing:
        """Return as much of an output's beginning as the type accepts; `MISSING` if that is nothing.

        ```python
        from perdure.runs.partial_output import PartialText

        value = shopper.read_partial_output(PartialText("orde"))
        ```
        """
        # R20.7
        return self._output.read_partial(partial)

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"


def _check_options(options: Iterable[str], where: str) -> None:
    """Raise `AgentError` for an unknown option. Its value may be one that cannot be written as JSON."""
    for key in options:
        if key == "hooks":
            raise AgentError(f"{where}: an agent has no hooks; a worker has: use --tools, PerdurePlugin or run_locally")
        if key not in Config.model_fields:
            known = [*(Agent.__init__.__kwdefaults__ or ()), *Config.model_fields]
            raise AgentError(f"{where}: {none_of(key, 'key', known)}")


def _named(tool: AgentTool, where: str) -> list[str] | list[JsonObject]:
    """Return a tool, or the tools of a toolset, as an agent file names them."""
    if isinstance(tool, str) and tool.strip():
        return [tool]
    if isinstance(tool, Mapping):
        try:
            offline_tool(dict(tool), ())
        except ToolDefinitionError as error:
            raise AgentError(f"{where}: {error}") from None
        return [dict(tool)]
    if isinstance(tool, Agent):
        return [_delegation(tool, where)]
    functions = tool_functions(tool)
    if not functions:
        instead = "a function, or the name of a tool of the worker's"
        if is_framework_agent(tool):
            instead = "Agent.of(agent) for a subagent, or agent_tool(agent)"
        raise AgentError(f"{where}: {clip(repr(tool), 80)} is not a tool: give {instead}")
    return [function.name for function in functions]


def _delegation(agent: Agent[Any], where: str) -> JsonObject:
    """Return the agent as a tool of another, with the schemas of its input and output (R8.4)."""
    definition: JsonObject = {"name": agent.name, "description": agent.description, "_delegate": agent.name}
    definition["_resolution"] = "upfront"
    inputs = merge_data(message for message in agent.parsed.messages() if isinstance(message, InputMessage))
    if not any(each.data_schema for each in inputs):
        definition |= _REQUEST
    try:
        parse_tool(definition)
    except ProtocolError as error:
        raise AgentError(f"{where}: {error}") from None
    return definition
