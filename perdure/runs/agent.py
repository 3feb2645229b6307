"""The agent of a run: its agent file, its configuration, and its choice of a model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from perdure.approvals.policy import Policy
from perdure.errors import AgentError, InputError, JsonError, Problem, RunError, clip
from perdure.models.model_names import FAST_MODEL, SMART_MODEL
from perdure.models.usage import Price, RunUsage
from perdure.rules import Rule
from perdure.runs.notifications import Notify
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, SchemaPart, WireModel, check, to_json
from perdure.values.limits import LONGEST, MAX_BOOTSTRAP, MAX_BUDGET, MAX_ID, MAX_INSTRUCTIONS, MAX_RULES, Seconds
from perdure.values.messages import (
    ChatMessage,
    ContextMessage,
    DataMessage,
    ErrorMessage,
    FeedbackMessage,
    HostedMessage,
    InputMessage,
    MergedMessages,
    PlanMessage,
    Priority,
    SessionRules,
    StateMessage,
    SystemMessage,
    TextMessage,
    ToolMessage,
    is_message,
    merge_data,
    parse_messages,
)
from perdure.values.problems import accepts, first_problem, problem_at, problems_of
from perdure.values.schemas import Schema, or_null
from perdure.values.state import kind_of, state_key

INSTRUCTS: Final = ("system", "developer")
"""Roles of messages that instruct the model, and that come before all other messages."""


def agent_document(document: Json, name: str) -> Json:
    """Return the document of a file called `name` in the form of an agent.

    A bare list of messages becomes a context, and a missing name the file's. Anything else is returned unchanged, for
    `parse_agent` to reject.
    """
    if is_context(document):
        document = {"context": document}
    if not isinstance(document, dict) or "name" in document:
        return document
    return {"name": name, **document}


def is_context(document: Json) -> bool:
    """Whether the document is a bare list of messages."""
    return isinstance(document, list) and bool(document) and all(map(is_message, document))


def with_system_text(document: JsonObject, text: str) -> JsonObject:
    """Return the document with this system text in place of its leading system messages."""
    context = document.get("context")
    kept: list[Json] = []
    for message in context if isinstance(context, list) else []:
        known = message if isinstance(message, dict) else {}
        instructs = known.get("type") == "system" or known.get("role") in INSTRUCTS
        if not instructs or any(not _is_tool(each) for each in kept):
            kept.append(message)
    system: list[Json] = [{"type": "system", "text": text}] if text else []
    return {**document, "context": [*system, *kept]}


def _is_tool(message: Json) -> bool:
    return isinstance(message, dict) and message.get("type") in ("tool", "hosted")


def output_schema(schema: SchemaPart) -> SchemaPart:
    """Return the output's schema from the schema of a whole Solution, an object of `calls` and `output`."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or set(properties) != {"calls", "output"}:
        return schema
    output = properties["output"]
    if not isinstance(output, dict):
        return output
    # In a Solution, "or null" means that the run continues; it is no part of the output.
    kept: JsonObject = {key: value for key, value in output.items() if key != "nullable"}
    return {key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema} | kept


FILES: Final = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "MEMORY.md")
"""Bootstrap files of a workspace, in the order of the prompt."""


class PromptConfig(BaseModel):
    """The instructions, skills and workspace files of a run's prompt. By default there are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field(default="", max_length=MAX_INSTRUCTIONS)
    """Instructions at the end of the prompt. A run's text replaces its agent's."""
    skills: bool | list[str] = False
    """`true`: all skills of the worker. A list: the skills with these names."""
    workspace: bool | str = False
    """`true`: the files of the worker's workspace. A text: the files of this folder in it."""
    files: list[str] = Field(default=list(FILES), max_length=MAX_BOOTSTRAP)
    """The files in this order. Missing files are left out."""

    @field_validator("files")
    @classmethod
    def _names(cls, files: list[str]) -> list[str]:
        for name in files:
            if "/" in name or name in ("", ".", "..") or not name.isprintable() or len(name) > 200:
                raise ValueError(f"{name[:50]!r} is not a file name: use a name without a folder")
        return list(dict.fromkeys(files))

    def changed(self, other: PromptConfig) -> PromptConfig:
        """Return this config with the other's changes."""
        set_fields = {key: getattr(other, key) for key in other.model_fields_set}
        config: PromptConfig = self.model_copy(update=set_fields)
        return config


def parse_prompt(raw: Json, *, source: str = "prompt") -> PromptConfig:
    """Parse a run's own changes to its agent's `config.prompt`. Raise `AgentError`, which begins with the `source`."""
    try:
        config: PromptConfig = PromptConfig.model_validate(raw)
    except ValidationError as error:
        raise AgentError(f"{source}: {first_problem(error, raw, model=PromptConfig)}") from None
    return config


def written_keys(config: PromptConfig) -> JsonObject:
    """Return the keys that were written, without defaults."""
    plain: JsonObject = config.model_dump(mode="json", exclude_unset=True)
    return plain


class Models(BaseModel):
    """The models that answer (R9.4). Keys that the file leaves out have the worker's values."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fast: str = FAST_MODEL
    """The model for choosing tools; by default the worker's. `model@endpoint` uses another server of the worker's settings."""
    smart: str = SMART_MODEL
    """The model after errors and for final answers; by default the worker's."""
    policy: Annotated[
        str, Field(pattern=r"^(auto|fast|smart|[\w.]+:\w+)$"), accepts("auto, fast, smart or MODULE:FUNCTION")
    ] = "auto"
    """The choice of the model for each Request: `auto`, `fast`, `smart`, or the worker's `module:function`."""
    fallback: list[str] = Field(default_factory=list)
    """The models to use in this order when the chosen one is down. `model@endpoint` uses another server of the worker's settings."""


class Sampling(BaseModel):
    """The sampling of a model, as its server accepts it. The server chooses what is left out (R9.8)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float | None = None
    """As the server takes it, like all of these."""
    top_p: float | None = None
    """Share of the likeliest tokens that are drawn from."""
    max_tokens: int | None = None
    """Tokens of one answer at most."""
    seed: int | None = None
    """For answers that are the same again, as far as the server can."""
    reasoning_effort: str | None = None
    """How long it thinks: `low`, `medium`, …"""

    def written_keys(self) -> JsonObject:
        """Return the keys that were written, unchanged."""
        return {key: getattr(self, key) for key in Sampling.model_fields if key in self.model_fields_set}


class ModelSampling(Sampling):
    """The sampling of all models; `fast` and `smart` hold what differs for these."""

    fast: Sampling = Field(default_factory=Sampling)
    """Settings that differ for the fast model."""
    smart: Sampling = Field(default_factory=Sampling)
    """Settings that differ for the smart model."""

    def of(self, model: str, models: Models) -> JsonObject:
        """Return the sampling for this model. Where one model is both, `smart` has the last word."""
        own = [named for name, named in ((models.fast, self.fast), (models.smart, self.smart)) if name == model]
        return self.written_keys() | {key: value for each in own for key, value in each.written_keys().items()}


ImageHost: TypeAlias = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9.*-]+$", max_length=253), accepts("a host, such as example.com or *.example.com")
]
"""The name of a host, where `*` is any part of it."""


class Evaluate(BaseModel):
    """The evaluators of an agent's finished runs in production, and how many runs they score."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    evaluators: list[Json] = Field(default_factory=list, max_length=20)
    """Evaluators of `pydantic-evals`, as a dataset file writes them: `"IsInstance"`, `{"MaxCost": 0.05}`. None: no run is scored."""
    share: float = Field(default=1.0, ge=0, le=1)
    """The share of runs that is scored: 0.1 is one of ten. The run's id decides."""
    per_day: int = Field(default=100, ge=1)
    """Runs of the agent that are scored in one day (UTC), over all workers."""

    def takes(self, run_id: str) -> bool:
        """Whether the run belongs to the sample."""
        number = int(hashlib.sha256(run_id.encode(errors="replace")).hexdigest()[:8], 16)
        return bool(self.evaluators) and number < self.share * 16**8


class Config(BaseModel):
    """The `config` of an agent file; every key may be left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: Models = Field(default_factory=Models)
    """The models (R9.4)."""
    sampling: ModelSampling = Field(default_factory=ModelSampling)
    """Sampling, such as the temperature (R9.8)."""
    dialect: Literal["solution", "tools", "script"] = "solution"
    """The form of the model's plans (R9.2)."""
    control: bool | Literal["auto"] | None = None
    """Whether the prompt describes expressions and conditions (R16). `auto`: if a list can occur; the default in `script`."""
    start: Literal["model", "plan"] = "model"
    """Whether a `plan` in the context is shown to the model, or runs first (R5.9)."""
    execution: Literal["drain", "step"] = "drain"
    """Whether all calls of a Solution run before the next Request, or only calls without a dependency (R5.10)."""
    stream: bool = True
    """Whether calls start while the model is still writing (R6.3)."""
    parallel: int | None = Field(default=None, ge=1)
    """The most parallel calls; with `step`, calls per Request. `None`: as many as the dependencies allow (R5.12)."""
    max_requests: int = Field(default=20, ge=1)
    """The most Requests of a run (R9.5)."""
    max_calls: int = Field(default=500, ge=1)
    """The most calls of a Solution (R6.8)."""
    token_budget: int | None = Field(default=None, ge=1, le=MAX_BUDGET)
    """The most prompt and completion tokens of the run and its delegates (R9.5)."""
    cost_budget: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The most dollars of the run and its delegates, by `prices`."""
    deadline: Seconds = 600.0
    """The most seconds of work. Time spent waiting for a person does not count, nor an outage of all workers at the deadline."""
    model_patience: float | None = Field(default=None, ge=0, le=LONGEST)
    """Seconds that a Request waits for a model whose provider is unavailable (R20.5); by default the worker's, an hour."""
    priority: Priority | None = None
    """The priority, 1 (first) to 5 (last), for workers with more work than capacity; by default 3. Delegates have their run's priority (R24.3)."""
    client_timeout: Seconds | None = None
    """Seconds that a call waits for the client that executes it; then the run fails. `None`: no limit (R9.5)."""
    on_failure: Literal["keep", "undo"] = "keep"
    """Whether a failed run undoes its calls, if their tools have an undo (R23.4)."""
    stuck_after: int = Field(default=3, ge=2)
    """The run ends after this many consecutive answers with the same calls."""
    must_call: list[str] = Field(default_factory=list)
    """The model must call one of these tools before its output counts (R6.5)."""
    refine: bool = False
    """Whether the smart model revises an output of the fast one (R9.4)."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Model → dollars per million tokens. Other models have the worker's prices."""
    show: Literal["values", "shape"] | dict[str, Literal["values", "shape"]] = "values"
    """Whether prompts have untrusted tools' full results, or only keys, types, lengths and numbers; or a choice for each tool (R15.4)."""
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    """Instructions, skills and a workspace's files, in addition to the context (R10.19)."""
    approval: Policy = Field(default_factory=Policy)
    """The approval policy: the calls that need a person (section 7)."""
    rules: list[Rule] = Field(default_factory=list, max_length=MAX_RULES)
    """Rules of every run, which no plan and no approval overrides (section 23)."""
    notify: Notify = Field(default_factory=Notify)
    """Routes to notify when an approval is requested or waits, a budget is nearly used, or a run ends (R19.5)."""
    evaluate: Evaluate = Field(default_factory=Evaluate)
    """Evaluators that score a sample of the agent's finished runs (R22.4)."""
    trusted_clients: list[str] = Field(default_factory=list)
    """Clients of the gateway whose histories and function results have the provenance of their user: `TENANT/SENDER`, `SENDER` without a tenant, `*` for all (R15.2)."""
    image_hosts: list[ImageHost] = Field(default_factory=list)
    """Hosts from which the model's provider may fetch pictures of the gateway's clients: `img.example.com`, `*.example.org` (R20.3)."""
    session: SessionRules = Field(default_factory=SessionRules)
    """The settings of the agent's sessions (section 10)."""

    @property
    def control_taught(self) -> bool | Literal["auto"]:
        """Whether the prompt teaches control flow, with the dialect's default."""
        return self.control if self.control is not None else "auto" if self.dialect == "script" else False


class AgentSpec(BaseModel):
    """A parsed agent file: a saved Request. `context` keeps the messages as written: they are the run's input and travel as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str = Field(min_length=1, max_length=200)
    """By default the file's."""
    config: Config = Field(default_factory=Config)
    context: list[Json] = Field(default_factory=list)
    """Messages; what the model reads of them keeps their order (R2.7)."""
    output_schema: JsonObject | bool = Field(default_factory=dict, alias="schema")
    """JSON Schema of the output; `{}` takes any."""
    description: str = ""
    """What it is for, as lists show it, and a model that may delegate to it."""
    version: str = Field(default="", max_length=60)
    """The name of this version of the agent, by which lists and comparisons know its runs (R24.10)."""
    caller_context: JsonObject | bool = Field(default_factory=dict)
    """JSON Schema of the context that a start or a message carries, for tools, hooks and approvers; `{}` takes any. No
    model reads it."""
    metadata: JsonObject = Field(default_factory=dict)
    """What whoever starts it keeps beside it, and reads again as the run's `metadata`; no model sees it."""
    schema_of_file: str | None = Field(default=None, alias="$schema", exclude=True)
    """Where an editor finds the schema of agent files (`perdure schema`)."""

    @field_validator("output_schema", mode="before")
    @classmethod
    def _of_the_output(cls, schema: SchemaPart) -> SchemaPart:
        return or_null(output_schema(schema))

    def messages(self) -> list[ContextMessage]:
        return parse_messages(self.context)


def check_new_id(run_id: str) -> None:
    """Check the id of a new run, as `check_run_id` does, and that addresses and commands can contain it as it is. Raise
    `RunError` with the problem.
    """
    check_run_id(run_id)
    words = f"the run's id {clip(repr(run_id), 80)}"
    if re.search(r"\s", run_id) or run_id.startswith("-"):
        raise RunError(
            f"{words} has a space or begins with '-': commands cannot read it as one id; use a form such as order-17"
        )
    if not {"", ".", ".."}.isdisjoint(run_id.split("/")):
        raise RunError(f"{words} has an empty part, '.' or '..' between slashes, so a page cannot have its address")


def check_run_id(run_id: str) -> None:
    """Check that a run can have this id: printable characters, `MAX_ID` bytes at most. Raise `RunError` with the
    problem.
    """
    if not run_id.strip():
        raise RunError("the run's id is empty: give an id, or leave it out for a random one")
    if not run_id.isprintable():
        raise RunError(
            f"the run's id {clip(repr(run_id), 80)} has invisible characters or several lines: use printable characters in one line"
        )
    if (size := len(run_id.encode())) > MAX_ID:
        raise RunError(f"the run's id has {size:,} bytes; the limit is {MAX_ID:,}")


def parse_agent(document: Json, *, source: str = "the agent") -> AgentSpec:
    """Parse an agent file's JSON. Raise `AgentError` with every problem, each with its JSON path (R2.1, R2.9)."""
    if not isinstance(document, dict):
        raise AgentError(f"{source} must be a JSON object with 'name', 'context' and 'schema'")
    problems: list[Problem] = []
    agent: AgentSpec | None = None
    try:
        agent = AgentSpec.model_validate(document)
    except ValidationError as error:
        problems += problems_of(error, document, model=AgentSpec)
    try:
        context = document.get("context", [])
        parse_messages(context if isinstance(context, list) else [])
    except AgentError as error:
        problems += error.problems
    if isinstance(schema := or_null(output_schema(document.get("schema"))), dict) and (wrong := Schema(schema).problem):
        problems.append(problem_at(("schema",), f"is not a JSON Schema: {wrong}"))
    if isinstance(asks := document.get("caller_context"), dict) and (wrong := Schema(asks).problem):
        problems.append(problem_at(("caller_context",), f"is not a JSON Schema: {wrong}"))
    if agent is None or problems:
        raise AgentError.of(problems, source)
    return agent


def with_model(document: JsonObject, model: str) -> JsonObject:
    """Return the agent file with this model for all Requests; fallbacks stay."""
    config = {**(document.get("config") or {})}
    models = {**(config.get("models") or {}), "fast": model, "smart": model, "policy": "auto"}
    return {**document, "config": {**config, "models": models}}


def read_input(written: object) -> Json:
    """Return a run's input as JSON, as pydantic writes it. Raises `InputError` for one that Perdure cannot carry."""
    try:
        given: Json = to_json(written, source="the input")
        check(given, source="the input")
    except JsonError as error:
        raise InputError(str(error)) from None
    return given


def check_task(agent: AgentSpec, context: Context, *, explicit: bool = False) -> None:
    """Check that there is a task: a text, data, a plan, tools, or an output schema.

    With `explicit`, tools and a schema alone are no task. Raise `InputError`, to save useless Requests.
    """
    contents = [item for item in context.items if not isinstance(item, MergedMessages) or item.exists]
    shaped = not explicit and (context.tools or agent.output_schema not in ({}, True))
    if not (context.system or context.plan or contents or shaped):
        raise InputError(
            f"the run has no task: give the agent {agent.name!r} a message of type 'system' or 'text', or the run an input"
        )


Item: TypeAlias = (
    SystemMessage | TextMessage | ChatMessage | PlanMessage | ErrorMessage | FeedbackMessage | MergedMessages
)
"""Part of a context that a model reads, in its order."""


def _with_input(messages: Sequence[ContextMessage], run_input: Json) -> list[ContextMessage]:
    """Return the messages with the run's input: after the last message that is or describes the input, else last."""
    given = InputMessage.model_validate({"type": "input", "input": run_input})
    places = [n for n, m in enumerate(messages, 1) if isinstance(m, InputMessage) and m.instance is None]
    at = places[-1] if places else len(messages)
    return [*messages[:at], given, *messages[at:]]


def _read_in_order(messages: Sequence[ContextMessage], data: Sequence[MergedMessages]) -> tuple[list[str], list[Item]]:
    """Return the leading system texts, and the later items; merged data is at the place of its last message (R2.7)."""
    merged = {each.place: each for each in data}
    system: list[str] = []
    items: list[Item] = []
    for place, message in enumerate(messages):
        if isinstance(message, InputMessage | StateMessage | DataMessage):
            items += [merged[place]] if place in merged else []
        elif not items and isinstance(message, SystemMessage | ChatMessage) and message.role in INSTRUCTS:
            system.append(message.text)
        elif not isinstance(message, ToolMessage | HostedMessage):
            items.append(message)
    return system, items


class Context:
    """The messages of an agent sorted by purpose, with the run's input in its place (R2.2, R2.3).

    Raises `InputError` when the input breaks its schema, with JSON path and reason.
    """

    def __init__(self, agent: AgentSpec, run_input: Json = None, *, has_input: bool = False) -> None:
        self.has_input = has_input
        """Whether a person, or the parent run, has given an input."""
        messages = _with_input(agent.messages(), run_input) if has_input else agent.messages()
        self.tools = [message.tool for message in messages if isinstance(message, ToolMessage)]
        self.hosted = list(dict.fromkeys(message.tool for message in messages if isinstance(message, HostedMessage)))
        """Tools that the model's provider runs itself (R20.6)."""
        self.skills = bool(agent.config.prompt.skills)
        """Whether its agent uses skills, and so has the tool that reads them."""
        plans = [message for message in messages if isinstance(message, PlanMessage)]
        self.plan: Sequence[Json] = plans[-1].plan if plans else []
        self.plan_output: Json = plans[-1].output if plans else None
        written_start = agent.config.start if "start" in agent.config.model_fields_set else None
        self.starts_with_plan = bool(self.plan) and (
            written_start == "plan" or (written_start is None and self.plan_output is not None)
        )
        """Whether the plan runs first: the agent file sets that, or the plan has an output (R5.9)."""
        data = merge_data(messages)
        self.data = [merged for merged in data if merged.kind != "state"]
        states = [merged for merged in data if merged.kind == "state"]
        self.state = next(
            (each for each in states if each.instance is None), MergedMessages(kind="state", instance=None)
        )
        self.instances = list(dict.fromkeys(each.instance for each in data if each.instance is not None))
        """Names of the independent contexts (R8.8)."""
        self.system, self.items = _read_in_order(messages, data)
        """Parts that the model reads: the leading system texts, and the later items in their order (R2.7)."""
        self.call_ids = [call.id for m in messages if isinstance(m, ChatMessage) for call in m.tool_calls or ()]
        """Call ids of the history that came with the context (R2.8)."""
        self.history_sources = frozenset(name for m in messages if isinstance(m, ChatMessage) for name in m.sources)
        """Sources of that history's texts, as far as it names them (R15.1)."""
        self._check(self.data)
        for each in states:
            if each.exists and not isinstance(each.value, dict):
                raise InputError("the state must be a JSON object")
        own = {each.instance: each.value for each in states if each.instance is not None and each.exists}
        state = self.state.value if self.state.exists else None
        self.initial_state: JsonObject = (state if isinstance(state, dict) else {}) | {
            state_key(name): own.get(name, {}) for name in self.instances
        }
        """Initial state of the run; the states of instances have keys of their own."""

    def values(self) -> JsonObject:
        """Return the value of each kind that references can name, without the state; an instance's under its own kind."""
        return {
            merged.kind if merged.instance is None else kind_of(merged.kind, merged.instance): merged.value
            for merged in self.data
            if merged.exists
        }

    @staticmethod
    def _check(data: Sequence[MergedMessages]) -> None:
        for merged in data:
            if merged.data_schema is None:
                continue
            schema = Schema(merged.data_schema)
            if schema.problem:
                raise InputError(f"the schema of {merged.kind!r} is not a JSON Schema: {schema.problem}")
            value = merged.value if merged.exists else {}
            if problems := schema.errors(value):
                raise InputError(f"the {merged.kind} breaks its schema: {'; '.join(problems[:5])}")


# A policy is a function from a `Situation` to a model's name and the reason. Policies below have names; a worker's own
# policy is named `module:function`.


class CalledTool(WireModel):
    """A tool that an answer called, and its danger as its definition declares it."""

    tool: str
    danger: Literal["safe", "undeclared", "dangerous", "unknown"]
    """`unknown`: there is no such tool."""

    @classmethod
    def of(cls, name: str, tool: Tool | None) -> CalledTool:
        dangerous = tool is not None and (tool.dangerous or tool.code_dangerous)
        danger: Literal["safe", "undeclared", "dangerous", "unknown"] = (
            "unknown" if tool is None else "dangerous" if dangerous else "safe" if tool.safe else "undeclared"
        )
        return cls.model_construct(tool=name, danger=danger)  # validating thousands would take long (R18.5)

    @classmethod
    def of_calls(cls, calls: Iterable[tuple[str, Tool | None]]) -> list[CalledTool]:
        """Return the tools of these calls, in their order. Calls of one tool share one object."""
        known: dict[tuple[str, int], CalledTool] = {}
        return [
            known.get(key) or known.setdefault(key, cls.of(*each)) for each in calls if (key := (each[0], id(each[1])))
        ]


class Situation(WireModel):
    """The facts on which a policy decides."""

    models: Models
    number: int
    """Number of the Request, from 1."""
    after_error: bool = False
    """Whether a call of the last Request failed, or its answer was wrong."""
    final: bool = False
    """Whether the Request is for an answer only, without tools."""
    usage: RunUsage = RunUsage()
    """Usage of the run so far."""
    called: list[CalledTool] = Field(default_factory=list)
    """Tools that the last answer called, in its order; empty before the first (R9.8)."""


class ChooseInput(WireModel):
    policy: str
    """`module:function`."""
    situation: Situation


class ModelChoice(NamedTuple):
    model: str
    reason: str


ChoicePolicy = Callable[[Situation], ModelChoice]


def auto(situation: Situation) -> ModelChoice:
    """Choose the fast model for tool calls, and the smart one after errors and for final answers."""
    models = situation.models
    if situation.final:
        return ModelChoice(models.smart, "final answer")
    if situation.after_error:
        return ModelChoice(models.smart, "after an error")
    if situation.number >= 3:
        return ModelChoice(models.smart, "third Request on")
    return ModelChoice(models.fast, "first Request" if situation.number == 1 else "choosing tools")


def fast(situation: Situation) -> ModelChoice:
    """Choose the fast model always."""
    return ModelChoice(situation.models.fast, "policy fast")


def smart(situation: Situation) -> ModelChoice:
    """Choose the smart model always."""
    return ModelChoice(situation.models.smart, "policy smart")


POLICIES: Final[Mapping[str, ChoicePolicy]] = {"auto": auto, "fast": fast, "smart": smart}
