"""A tool: the JSON Schema that names a capability, and the engine's knowledge of it.

A definition is one object. Keys without `_` describe the parameters as JSON Schema does (`properties`, `required`, …);
keys with `_` are meta-properties. A fixed meta-property has two spellings: `"_outputPath": "†state.x"` or
`"_outputPath": {"const": "†state.x"}`, on the definition or among its `properties`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from functools import cached_property
from typing import Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from perdure.errors import ReferenceSyntaxError, ToolDefinitionError
from perdure.tools.definitions import SCHEMA_KEYS, is_alias, plain_definition, question_problem
from perdure.tools.quorum import QUORUM_KEYS, quorum_of
from perdure.tools.undo import Undo, undo_problem
from perdure.values.json import Json, JsonObject, shorten
from perdure.values.limits import LONGEST, MAX_RETRIES, Seconds
from perdure.values.problems import first_problem, none_of, suggest_name
from perdure.values.references import parse_output_path, parse_scope
from perdure.values.schemas import Schema, or_null
from perdure.values.state import OutputMethod


def check_rule(rule: Json) -> str | None:
    """Return the problem of an exception to an approval policy, if it has one (R7.1)."""
    if rule in ("never", "always"):
        return None
    if not isinstance(rule, dict) or not rule or not isinstance(rule.get("when", True), dict | bool):
        return (
            f'{shorten(rule, 60)} is not a rule: expected "never", "always", {{"when": <JSON Schema of the parameters>}}, '
            'or a quorum such as {"by": 2, "roles": ["finance"], "not": "requester"}'
        )
    try:
        quorum_of(rule)
    except ValidationError as error:
        return first_problem(error, rule)
    if unknown := rule.keys() - {"when"} - QUORUM_KEYS:
        return none_of(min(unknown), "key of a rule", ["when", *sorted(QUORUM_KEYS)])
    problem = None if isinstance(when := rule.get("when", True), bool) else Schema(cast(JsonObject, when)).problem
    return f"the condition is not a JSON Schema: {problem}" if problem else None


_PLACE: Final = re.compile(r"\{(\w+)\}")


class Existing(BaseModel):
    """The activity, workflow or operation that a call runs, in place of the engine's own activity. Only the worker's
    code sets it, no agent file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["activity", "workflow", "operation"]
    name: str = Field(min_length=1)
    """The activity's or workflow's type, the operation's name."""
    arguments: list[str] | None = None
    """Parameters in the order of the arguments; `None`: together they are the one argument."""
    defaults: JsonObject = Field(default_factory=dict)
    """Defaults of parameters that a call may leave out while a later one is set."""
    id: str | None = None
    """The id of a workflow: `order-{number}` with the call's parameters; `None`: the run's and the call's."""
    endpoint: str = ""
    """The endpoint of an operation."""
    service: str = ""

    @property
    def title(self) -> str:
        """The name for messages, and for approvers."""
        return f"the {'Nexus operation' if self.kind == 'operation' else self.kind} {self.name}"

    @property
    def waits(self) -> bool:
        """Whether its time counts as waiting, like a delegate's, and not as the run's own work (R9.5): it may take
        days."""
        return self.kind != "activity"

    def argument_list(self, params: JsonObject) -> list[Json]:
        """Return the arguments for a call's parameters; missing ones at the end are left to its own defaults."""
        if self.arguments is None:
            return [params]
        last = max((index for index, name in enumerate(self.arguments) if name in params), default=-1)
        return [params.get(name, self.defaults.get(name)) for name in self.arguments[: last + 1]]

    def workflow_id(self, params: JsonObject, default: str) -> str:
        """Return the child's id."""
        if self.id is None:
            return default
        return _PLACE.sub(lambda found: _word(params.get(found[1], found[0])), self.id)


def _word(value: Json) -> str:
    return value if isinstance(value, str) else str(value)


RESERVED_PREFIX: Final = "perdure."
"""The prefix of the engine's own activities; no tool may have such a name."""

TEMPORAL_PREFIX: Final = "__temporal"
"""Names that Temporal keeps for itself."""

CONTEXT_PARAMETER: Final = "_contextParameter"
"""Key of the definition of a function with `**params`: the name of the function's parameter for its `ToolContext`. It
is no part of the tool."""
ANONYMOUS: Final = "anonymous"
"""The value of `_delegate` for a Request that no file describes."""
SLEEP_UNTIL: Final = "perdure.sleep_until"
ASK_PERSON: Final = "perdure.ask_person"
UNDO: Final = "perdure.undo"
CLIENT: Final = "perdure.client"
"""The value of `_activity` for a client program, mostly the one that started the run: it executes the call, and sends
its result as the answer.
"""
KEEP: Final = "perdure.keep"
ENGINE_ACTIVITIES: Final = frozenset({SLEEP_UNTIL, ASK_PERSON, UNDO, CLIENT})
"""Keys of the activities that the engine executes itself: see `perdure.tools.engine`."""
ANSWERED: Final = frozenset({ASK_PERSON, CLIENT})
"""The keys whose result comes from outside, as the answer to a request."""
READ_SKILL: Final = "read_skill"
"""The tool by which a model reads a skill, offered with skills alone; under this key the worker has its code
(R10.19)."""
TASK_COMPLETE: Final = "task_complete"
"""The tool whose call ends the run, its parameters being the output (R9.5)."""
ACTIVITY_TIMEOUT: Final = 60.0
"""Seconds for one attempt. A minute: longer than nearly every call to an API, short enough to notice a hang."""

HEARTBEAT_TIMEOUT: Final = 10.0
"""Seconds without a heartbeat after which a call's worker counts as lost. The engine heartbeats for every tool; only
one that blocks the process is lost."""
LONG_HEARTBEAT_TIMEOUT: Final = 20.0
"""The same for a call without retries: a slow worker must not end it."""

QUEUE_TIMEOUT: Final = 300.0
"""Seconds. After five minutes a sleeping laptop is back, and a missing worker is noticed soon."""


_DECLARED: Final = {"code_safe", "code_dangerous", "code_untrusted", "code_known"}


class Tool(BaseModel):
    """One tool as a run knows it. Built by `parse_tool`, from an agent file's definition or from the worker's
    registry."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, ignored_types=(cached_property,))

    name: str = Field(min_length=1, max_length=200)
    description: str = ""
    parameters: JsonObject
    """JSON Schema of the parameters, always of an object."""
    output: JsonObject | None = Field(default=None, alias="_output")
    """JSON Schema of the result, if it is known."""
    activity: str | None = Field(default=None, alias="_activity")
    """Key of the code in the worker's registry; `None` is a latent tool, whose result the model writes itself."""
    output_path: str | None = Field(default=None, alias="_outputPath")
    """The path of every result; `None` leaves it to the model (R4.4)."""
    output_method: OutputMethod | None = Field(default=None, alias="_outputMethod")
    approval: Json = Field(default=None, alias="_approval")
    """`never`, `always` or `{"when": <JSON Schema of the resolved parameters>}` (R7.1); `None` leaves it to the
    policy."""
    ask: str | None = Field(default=None, alias="_ask")
    """The question to a person who decides about a call, with its parameters: `refund {euros} EUR to {customer}?`."""
    safe: bool = Field(default=False, alias="_safe")
    dangerous: bool = Field(default=False, alias="_dangerous")
    untrusted: bool = Field(default=False, alias="_untrusted")
    """Whether others write its results (R15.2)."""
    message: bool | str = Field(default=False, alias="_message")
    """Whether a call sends a message to people. A name: the parameter with the text. A text sent so is no reply again
    (R10.16)."""
    timeout: Seconds | None = Field(default=None, alias="_timeout")
    """Seconds for one attempt, `ACTIVITY_TIMEOUT` by default. For a delegate, seconds for its whole run, which may wait
    for days: none by default."""
    heartbeat: Seconds | None = Field(default=None, alias="_heartbeat")
    """Seconds between heartbeats, by default `HEARTBEAT_TIMEOUT`, or `LONG_HEARTBEAT_TIMEOUT` without retries; without
    them the attempt counts as lost."""
    retries: int = Field(default=2, ge=0, le=MAX_RETRIES, alias="_retries")
    """Attempts after the first. Two: a short failure passes unseen, a real failure reaches the model within seconds."""
    task_queue: str | None = Field(default=None, alias="_taskQueue")
    """The queue of the workers that have the code; `None` is the run's own queue (R12.5)."""
    queue_timeout: Seconds = Field(default=QUEUE_TIMEOUT, alias="_queueTimeout")
    """Seconds until a worker of that queue has to take a call up."""
    duration: float | None = Field(default=None, ge=0, le=LONGEST, alias="_duration")
    """Seconds that it usually takes, for simulations (R5.6)."""
    exclusive: bool | str = Field(default=False, alias="_exclusive")
    """Whether two of its calls never run at once in a run. A group's name: no two calls of all tools of that group do
    (R5.12)."""
    delegate: str | None = Field(default=None, alias="_delegate")
    """Name of an agent file in the worker's folder, or `anonymous` (R8.1)."""
    resolution: Literal["execution", "upfront"] = Field(default="execution", alias="_resolution")
    """`upfront`: the delegate's schemas are the tool's, so the model knows them (R8.4)."""
    undo: Undo | None = Field(default=None, alias="_undo")
    """The tool that undoes the effect of a call (R23.4)."""
    scopes: list[str] | None = Field(default=None, alias="_scopes")
    """The part of the context that the code gets as `ToolContext.messages`, or the delegate as context (R8.2,
    R12.2)."""
    scope_choice: list[str] | None = None
    """`_scopes: {"enum": [...]}`: the scopes among which the model may choose, call by call."""
    names: dict[str, str] = Field(default_factory=dict, alias="_names")
    """The code's names for parameters whose own names look like meta-properties, by the names that the model knows."""
    calls: Existing | None = Field(default=None, alias="_calls")
    """The activity, workflow or operation of Temporal that a call runs, if it is not the engine's activity; set by the
    worker's code alone (R13.6)."""
    code_safe: bool = False
    """The declaration of the code itself in the registry, independent of agent files: the worker's floor depends on it
    (R7.1).
    """
    code_dangerous: bool = False
    code_untrusted: bool = False
    code_known: bool = True
    """Whether this worker has the code that a call runs; unknown code counts as dangerous (R7.1)."""
    registered: bool = False
    """Whether the definition is the registry's own, so that calls need not carry it."""

    @field_validator("name")
    @classmethod
    def _a_usable_name(cls, name: str) -> str:
        if name.startswith((RESERVED_PREFIX, TEMPORAL_PREFIX)) or any(not (c.isprintable()) for c in name):
            raise ValueError(
                f"{name!r} cannot be a tool's name: no {RESERVED_PREFIX!r} or {TEMPORAL_PREFIX!r} first, printable characters only"
            )
        return name

    @field_validator("approval")
    @classmethod
    def _a_usable_rule(cls, rule: Json) -> Json:
        if rule is not None and (problem := check_rule(rule)):
            raise ValueError(f"_approval: {problem}")
        return rule

    @field_validator("task_queue")
    @classmethod
    def _a_usable_queue(cls, queue: str | None) -> str | None:
        if queue is not None and not (0 < len(queue) <= 200 and queue.isprintable() and not queue.startswith("/_sys/")):
            raise ValueError(f"{shorten(queue, 60)} is not a task queue: 1 to 200 printable characters")
        return queue

    @field_validator("names")
    @classmethod
    def _aliases_alone(cls, names: dict[str, str]) -> dict[str, str]:
        for alias, name in names.items():
            if not is_alias(alias, name):
                raise ValueError(f"_names: {shorten(alias, 40)} is not another name for {shorten(name, 40)}")
        return names

    @field_validator("delegate")
    @classmethod
    def _a_name_and_no_path(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"\w[\w -]*(\.\w[\w -]*)*", name):
            raise ValueError(f"{name!r} is not a delegate's name: a file name without a path, or {ANONYMOUS!r}")
        return name

    @field_validator("undo", mode="before")
    @classmethod
    def _an_undo(cls, undo: Json) -> Json:
        return {"tool": undo} if isinstance(undo, str) else undo

    @field_validator("output_path")
    @classmethod
    def _a_parsable_path(cls, path: str | None) -> str | None:
        if path is not None:
            try:
                parse_output_path(path)
            except ReferenceSyntaxError as error:
                raise ValueError(str(error)) from None
        return path

    @property
    def attempt_timeout(self) -> float:
        """Seconds for one attempt of its activity."""
        return self.timeout or ACTIVITY_TIMEOUT

    @property
    def exclusive_group(self) -> str | None:
        """The group in which no two calls run at once; `None` for a tool that may run beside itself."""
        return self.exclusive if isinstance(self.exclusive, str) else self.name if self.exclusive else None

    @property
    def heartbeat_timeout(self) -> float:
        """Seconds between heartbeats of its activity: less than an attempt's timeout, to distinguish a lost worker from
        a slow tool.
        """
        usual = HEARTBEAT_TIMEOUT if self.retries else LONG_HEARTBEAT_TIMEOUT
        return min(self.heartbeat or usual, 0.9 * self.attempt_timeout)

    @property
    def runs(self) -> str:
        """The activity, or the agent, behind the tool if its name differs; else empty. A harmless name reveals nothing
        about the code."""
        if self.calls is not None and (self.calls.kind != "activity" or self.calls.name != self.name):
            return self.calls.title
        code = self.activity if self.delegate is None else self.delegate
        if code is None or self.name == code.removeprefix(RESERVED_PREFIX):
            return ""
        return code if self.delegate is None else f"the agent {code}"

    @property
    def others_write(self) -> bool:
        """Whether others write its results, by the declaration of an agent file, its code or the worker (R15.2)."""
        return self.untrusted or self.code_untrusted

    @property
    def latent(self) -> bool:
        return self.activity is None and self.delegate is None

    @cached_property
    def parameters_schema(self) -> Schema:
        """The parameters' schema, compiled once per run."""
        return Schema(self.parameters)

    @cached_property
    def defaults(self) -> JsonObject:
        """The parameters' defaults in their schema."""
        properties = self.parameters.get("properties")
        found = properties.items() if isinstance(properties, dict) else ()
        return {name: about["default"] for name, about in found if isinstance(about, dict) and "default" in about}

    def with_defaults(self, params: JsonObject) -> JsonObject:
        """Return a call's parameters with the defaults of omitted ones, for rules and policies."""
        return {**self.defaults, **params} if self.defaults else params

    @cached_property
    def output_schema(self) -> Schema | None:
        return None if self.output is None else Schema(self.output)

    def definition(self) -> JsonObject:
        """Return the tool in the form of an agent file."""
        meta = self.model_dump(
            by_alias=True,
            exclude_defaults=True,
            exclude={"name", "description", "parameters", "registered"} | _DECLARED,
        )
        if self.undo is not None and self.undo.params is None:
            meta["_undo"] = self.undo.tool
        if (choice := meta.pop("scope_choice", None)) is not None:
            meta["_scopes"] = {"enum": choice}
        return {"name": self.name, "description": self.description, **self.parameters, **meta}


def parse_tool(definition: JsonObject, *, activities: Iterable[str] = (), registered: bool = False) -> Tool:
    """Parse a definition; `activities` are the keys of the worker's registry, to which a tool binds by name (R12.5).

    Function definitions of OpenAI, Anthropic and MCP are accepted too: see `perdure.tools.definitions`. Raises
    `ToolDefinitionError` with the tool's name and its problem.
    """
    definition = plain_definition(definition)
    name = definition.get("name")
    if not isinstance(name, str):
        raise ToolDefinitionError("a tool's definition needs a 'name' that is a string")
    parameters, meta = _split_definition(name, definition)
    _settle_meta(meta)
    known = {*activities, *ENGINE_ACTIVITIES}
    elsewhere = meta.get("_taskQueue") is not None
    if "_activity" not in meta and (name in known or elsewhere) and "_delegate" not in meta:
        meta["_activity"] = name
    description = definition.get("description", "")
    fields = {"name": name, "description": description, "parameters": parameters, "registered": registered, **meta}
    try:
        tool = Tool.model_validate(fields)
    except ValidationError as error:
        raise ToolDefinitionError(f"tool {name!r}: {first_problem(error, fields, model=Tool)}") from None
    _check_tool(tool, known)
    return tool


def _split_definition(name: str, definition: JsonObject) -> tuple[JsonObject, JsonObject]:
    """Return the schema of a tool's parameters, and its meta-properties. Raises `ToolDefinitionError`."""
    parameters: JsonObject = {"type": "object", "properties": {}}
    meta: JsonObject = {}
    for key, value in definition.items():
        if key.startswith("_"):
            meta[key] = value
        elif key in SCHEMA_KEYS:
            parameters[key] = value
        elif key not in ("name", "description"):
            raise ToolDefinitionError(f"tool {name!r}: unknown key {key!r}; parameters belong in 'properties'")
    properties = parameters["properties"]
    if not isinstance(properties, dict):
        raise ToolDefinitionError(f"tool {name!r}: 'properties' must be an object")
    meta = {key: value for key, value in properties.items() if key.startswith("_")} | meta
    parameters["properties"] = {key: value for key, value in properties.items() if not key.startswith("_")}
    if "required" in parameters and isinstance(parameters["required"], list):
        parameters["required"] = [key for key in parameters["required"] if not str(key).startswith("_")]
    return or_null(parameters), meta


def _settle_meta(meta: JsonObject) -> None:
    """Rewrite meta-properties to the values of `Tool`. A fixed value may be written as a schema with `const`."""
    if "_output" in meta:
        meta["_output"] = or_null(meta["_output"])
    meta.pop("_tool", None)
    meta.pop(CONTEXT_PARAMETER, None)
    for key in ("_outputPath", "_outputMethod", "_activity", "_taskQueue", "_delegate"):
        if isinstance(meta.get(key), dict):
            meta[key] = meta[key].get("const")
    if isinstance(meta.get("_scopes"), dict):
        meta["scope_choice"] = meta.pop("_scopes").get("enum", [])


def _check_tool(tool: Tool, known: Set[str]) -> None:
    """Raise `ToolDefinitionError` for an invalid schema, a contradiction, or an activity that is not `known`."""
    for schema in (tool.parameters_schema, tool.output_schema):
        if schema is not None and schema.problem:
            raise ToolDefinitionError(f"tool {tool.name!r}: its schema is not a JSON Schema: {schema.problem}")
    if tool.ask is not None and (problem := question_problem(tool.ask, tool.parameters)):
        raise ToolDefinitionError(f"tool {tool.name!r}: {problem}")
    for scope in (*(tool.scopes or ()), *(tool.scope_choice or ())):
        try:
            if not gives_tools(scope):
                parse_scope(scope)
        except ReferenceSyntaxError as error:
            raise ToolDefinitionError(
                f"tool {tool.name!r}: the scope {scope!r} cannot be read: {error}. "
                'A scope is "tools", "tool:NAME", a kind of data, or a path such as state.user or state["a key"]'
            ) from None
    if tool.safe and tool.dangerous:
        raise ToolDefinitionError(f"tool {tool.name!r} is declared safe and dangerous: declare one of them")
    if tool.activity is not None and tool.activity not in known and tool.task_queue is None:
        raise ToolDefinitionError(
            f"tool {tool.name!r} needs the activity {tool.activity!r}, which the worker does not have{_have(known - ENGINE_ACTIVITIES)}"
        )


def gives_tools(scope: str) -> bool:
    """Whether a scope gives tools, and no data."""
    return scope == "tools" or scope.startswith("tool:")


def resolve_tools(wanted: Iterable[str | JsonObject], registry: Mapping[str, JsonObject]) -> dict[str, Tool]:
    """Return the tools of a context by name; the last definition of a name wins (R2.4).

    `registry` holds the worker's own definitions by name. Raises `ToolDefinitionError`.
    """
    tools: dict[str, Tool] = {}
    for item in wanted:
        if isinstance(item, str):
            if item not in registry:
                raise ToolDefinitionError(f"the worker has no tool {item!r}{_have(registry, item)}")
            tool = parse_tool(registry[item], activities=registry, registered=True)
        else:
            tool = parse_tool(item, activities=registry)
        _check_context(tool, registry)
        declared = {"calls": None} | _declared(tool, registry) | _undo_of_code(tool, registry)
        if tool.calls not in (None, declared["calls"]):
            raise ToolDefinitionError(f"tool {tool.name!r}: '_calls' can be set by the worker's code only")
        tools[tool.name] = tool.model_copy(update=declared)
    return tools


def _check_context(tool: Tool, registry: Mapping[str, JsonObject]) -> None:
    """Raise `ToolDefinitionError` for a parameter with the name of the function's `ToolContext`: the code would not get
    it.
    """
    own = registry.get(tool.activity or "", {}).get(CONTEXT_PARAMETER)
    if own is not None and own in {*tool.parameters.get("properties", ()), *tool.names.values()}:
        raise ToolDefinitionError(
            f"tool {tool.name!r}: its function takes the ToolContext as {own!r}, so no parameter can have this name; "
            f"rename the function's parameter, or the definition's"
        )


def _declared(tool: Tool, registry: Mapping[str, JsonObject]) -> JsonObject:
    """Return the declarations of the code that the tool's calls run, for any definition."""
    if tool.activity is None or tool.activity in ENGINE_ACTIVITIES:
        return {"code_safe": tool.delegate is None}
    code = registry.get(tool.activity)
    others = {"code_untrusted": bool((code or {}).get("_untrusted"))}
    declared = (code or {}).get("_exclusive", False)
    # The code's `exclusive` applies under every name that an agent file gives it, whatever the file declares.
    exclusive = {"exclusive": (tool.activity if declared is True else declared) or tool.exclusive}
    if code is None or tool.task_queue not in (None, task_queue_of(code)):  # another worker's code, which is unknown
        return exclusive | others | {"code_known": False, "code_dangerous": True}
    calls = {"calls": Existing.model_validate(code["_calls"])} if "_calls" in code else {}
    exclusive |= {"message": tool.message or code.get("_message", False)}
    # The code's question has precedence over an agent file's, if the parameters have the code's names.
    if (ask := code.get("_ask")) is not None and question_problem(ask, tool.parameters) is None:
        exclusive |= {"ask": ask}
    return (
        exclusive
        | others
        | calls
        | {"code_safe": bool(code.get("_safe")), "code_dangerous": bool(code.get("_dangerous"))}
    )


def undo_tools(tools: Mapping[str, Tool], registry: Mapping[str, JsonObject]) -> dict[str, Tool]:
    """Return the tools that undo effects of `tools`: those of the context, or the worker's. Raises
    `ToolDefinitionError`.
    """
    found: dict[str, Tool] = {}
    for tool in tools.values():
        if tool.undo is None:
            continue
        name = tool.undo.tool
        target = tools.get(name) or found.get(name)
        if target is None:
            if name not in registry:
                raise ToolDefinitionError(
                    f"tool {tool.name!r} has the undo {name!r}, which the worker does not have{_have(registry, name)}"
                )
            target = resolve_tools([name], registry)[name]
        if target.latent or target.delegate is not None or target.activity in ENGINE_ACTIVITIES:
            raise ToolDefinitionError(f"tool {tool.name!r}: _undo is {name!r}, which is not a tool with its own code")
        if problem := undo_problem(tool.undo, tool.parameters, tool.output, target.parameters):
            raise ToolDefinitionError(f"tool {tool.name!r}: _undo: {problem}")
        found[name] = target
    return found


def _undo_of_code(tool: Tool, registry: Mapping[str, JsonObject]) -> JsonObject:
    """Return the undo that the code declares, for an agent file's own definition of it whose parameters fit."""
    code = registry.get(tool.activity or "", {})
    if tool.undo is not None or tool.registered or "_undo" not in code:
        return {}
    declared = parse_tool(code, activities=registry).undo
    target = None if declared is None else registry.get(declared.tool)
    if declared is None or target is None:
        return {}
    fits = undo_problem(declared, tool.parameters, tool.output, parse_tool(target, activities=registry).parameters)
    return {} if fits else {"undo": declared}


def task_queue_of(definition: JsonObject) -> Json:
    """Return the task queue that a definition names, or `None`."""
    queue = definition.get("_taskQueue")
    return queue.get("const") if isinstance(queue, dict) else queue


_LISTED: Final = 8
"""Maximum of tools that an error lists."""


def _have(names: Iterable[str], name: str = "") -> str:
    known = sorted(names)
    if not known:
        return "; it has none (load some with --tools)"
    near = suggest_name(name, known)
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    there = f"it has {', '.join(known[:_LISTED])}{more}"
    return f"; did you mean {near!r}? {there}" if near else f"; {there}"


def known_as(tool: Tool) -> tuple[str, ...]:
    """Return the agent's name for it, and last the name of the code behind it; for a delegate its agent's name."""
    return tuple(dict.fromkeys((tool.name, *code_names(tool))))


def code_names(tool: Tool) -> tuple[str, ...]:
    """Return the names of the code behind a tool, which no agent file chooses; for a delegate its agent's name."""
    code = tool.calls.name if tool.calls is not None else tool.delegate or tool.activity or tool.name
    return tuple(dict.fromkeys((tool.activity or code, code)))
