"""Agent files and plan files, read and validated before anything runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeGuard

from perdure.agents.json_files import AGENTS, read_json
from perdure.agents.modules import names_module
from perdure.approvals.policy import policy_problems
from perdure.errors import AgentError, JsonError, Problem, ProtocolError, SettingsError
from perdure.models.dialects.common import Solution, ToolDelta
from perdure.models.dialects.registry import DIALECTS
from perdure.plan import Plan, missing_path, simulate, state_shape
from perdure.rules import Needs, Rule, RuleBook, RuleVerdict, judge_plan
from perdure.runs.agent import AgentSpec, Config, Context, agent_document, parse_agent
from perdure.runs.delegates import delegate_reach, merge_upfront
from perdure.runs.procedures import Procedure
from perdure.runs.progress import RunProgress
from perdure.runs.provenance import RunProvenance
from perdure.runs.views import plan_ways
from perdure.tools.tool import READ_SKILL, Tool, parse_tool
from perdure.values.json import Json, JsonObject, ReadOnlyJson, json_path, loads_commented, shorten, without_comments
from perdure.values.messages import PlanMessage, ToolMessage, deep_merge
from perdure.values.problems import line_of, none_of, problem_at, suggest_name
from perdure.values.provenance import AGENT
from perdure.values.references import MISSING, UNKNOWN, Missing, Reference, get, overlaps
from perdure.values.schemas import Schema
from perdure.values.state import State, Write
from perdure.values.templates import parse_output


@dataclass(frozen=True)
class Planned:
    """A plan with all data for its validation."""

    calls: list[Json]
    tools: dict[str, Tool]
    unknown: list[str]
    """Tools with only a known name: their parameters cannot be checked."""
    context: Context
    state: JsonObject
    config: Config
    """The agent's, for the limits of its plans."""
    request: int = 1
    """The Request whose plan it is; 0: a run starts with it (R5.9)."""
    delegates: Mapping[str, JsonObject] = field(default_factory=dict)
    """The agent files of delegates that are known, by name."""

    def new_plan(self) -> Plan:
        """Return an empty plan on which the calls are simulated."""
        schema = self.context.state.data_schema
        return Plan(
            self.request,
            tools=self.tools,
            state=State([Write(path=(), value=self.state, sources=AGENT)] if self.state else []),
            data=self.context.values(),
            state_schema=None if schema is None else Schema(schema),
            max_calls=self.config.max_calls,
            parallel=self.config.parallel,
            dry_run=True,
            known=RunProvenance(self.context, {}, "values").known(self.request, RunProgress(), lambda *_: False),
        )

    def checked(self) -> Plan:
        """Return the plan with all its calls, validated as far as possible before a run."""
        plan = self.new_plan()
        for raw in self.calls:
            plan.add(raw)
        plan.close()
        return plan

    def verdicts(self, rules: Iterable[Rule]) -> list[RuleVerdict]:
        """Return the verdict on each rule before the first call, without rules that depend on the run's sender."""
        book = RuleBook([rule for rule in rules if not isinstance(rule, Needs)])
        return judge_plan(self.checked(), book, lambda tool: delegate_reach(tool, self.tools, self.delegates))

    def played(self) -> Plan:
        """Return the plan with unknown values as the results of its tools."""
        plan = self.new_plan()
        simulate(plan, self.calls)
        return plan

    def warnings(self, plan: Plan) -> list[str]:
        """Return warnings about effects of a valid plan that its author may not intend: converted literals (R5.13),
        races (R5.14).
        """
        converted = [
            f"{call.id} {form.spec.tool_name}: {text}"
            for call in plan.calls
            for form in call.written()
            for text in form.spec.converted
        ]
        return [*converted, *(plan.races() if self.config.parallel != 1 else [])]

    def hints(self, plan: Plan) -> list[str]:
        """Return the dangerous tools that may have two calls at once (R5.12)."""
        if self.config.parallel == 1:
            return []
        named = [form.spec.tool for call in plan.calls for form in call.written()]
        unguarded = {tool.name for tool in named if tool is not None and tool.dangerous and not tool.exclusive_group}
        return [
            f"the tool {name!r} is dangerous, and two of its calls may run in parallel: set exclusive=True, or _exclusive in its definition, to prevent that"
            for name in plan.concurrent_tools(unguarded)
        ]

    def ways(self) -> list[tuple[str, str]]:
        """Return the call id and provenance of each parameter that is not written out in the plan (R15.7)."""
        return list(plan_ways(self.played()))


def call_problems(plan: Plan) -> list[str]:
    """Return the problems of a plan's calls, one line each."""
    return [
        f"{call.id} {call.spec.tool_name}: {message}"
        for call in plan.calls
        if call.state.error is not None and call.state.error.code != "assumed"
        for message in call.state.error.problems or (call.state.error.message,)
    ]


def plan_of(
    calls: list[Json],
    context: Context,
    config: Config,
    known: Mapping[str, JsonObject],
    *,
    state: JsonObject | None = None,
    complete: bool = False,
    request: int = 1,
    delegates: Mapping[str, JsonObject] = MappingProxyType({}),
) -> Planned:
    """Return the calls with the tools of the context, and of `known` definitions; `state` is merged into the context's.

    `config`: the agent's. `delegates`: the known agent files of delegates, by name; a call of such a delegate is checked
    against its input. With `complete` there are no other tools: a call of one is invalid, as it is in a run.
    """
    given = context.state.value if context.state.exists else {}
    tools, unknown = _tools(context, [] if complete else calls, known, delegates)
    return Planned(calls, tools, unknown, context, deep_merge(given, state or {}), config, request, delegates)


def _tools(
    context: Context, calls: Iterable[Json], known: Mapping[str, JsonObject], delegates: Mapping[str, JsonObject]
) -> tuple[dict[str, Tool], list[str]]:
    """Return the known tools: those of the file, and of the modules of `--tools`."""
    wanted: list[str | JsonObject] = list(context.tools)
    if not wanted:
        # Without a list of tools: those of the modules, and any other that a call names.
        names = [call.get("_tool") for call in calls if isinstance(call, dict)]
        wanted = list(dict.fromkeys([*known, *(name for name in names if isinstance(name, str))]))
    if context.skills and READ_SKILL not in wanted:  # it comes with them
        wanted.append(READ_SKILL)
    unknown = [item for item in wanted if isinstance(item, str) and item not in known]
    return {tool.name: tool for item in wanted for tool in [_tool(item, known, delegates)]}, unknown


def _tool(item: str | JsonObject, known: Mapping[str, JsonObject], delegates: Mapping[str, JsonObject]) -> Tool:
    if isinstance(item, str):
        item = known.get(item) or {"name": item, "additionalProperties": True, "_activity": item}
    tool = offline_tool(item, known)
    document = delegates.get(tool.delegate or "") if tool.resolution == "upfront" else None
    return tool if document is None else merge_upfront(tool, document)


def tools_of(agent: AgentSpec, known: Mapping[str, JsonObject], delegates: Mapping[str, JsonObject]) -> list[Tool]:
    """Return the agent's tools, which need no input, without those that cannot be used. A tool that is not `known` may
    have any parameter. `delegates`: as for `plan_of`.
    """
    tools = []
    for message in agent.messages():
        if isinstance(message, ToolMessage):
            with suppress(ProtocolError):  # a delegate's agent file is not valid
                tools.append(_tool(message.tool, known, delegates))
    return tools


def offline_tool(definition: JsonObject, known: Iterable[str]) -> Tool:
    """Return a tool for validation. No worker's activities are known here, so a named activity counts as existing."""
    activity = definition.get("_activity") or ("" if "_output" in definition else definition.get("name", ""))
    named = {"_activity": activity} if activity and "_delegate" not in definition else {}
    return parse_tool({**definition, **named}, activities=[*known, activity])


def agent_path(name: str, folder: Path = AGENTS) -> Path:
    """Return the agent file of this path, or of this name in the folder. Raise `SettingsError` if there is none."""
    by_name = folder / f"{name}.json"
    path = Path(name)
    if path.suffix == ".py":
        raise SettingsError(f"{path} is not an agent file; name an agent in Python as MODULE:NAME: {path.stem}:NAME")
    if path.is_file():
        return path
    if not by_name.is_file():
        near = suggest_name(path.stem, [each.stem for each in folder.glob("*.json")])
        other = f"did you mean {near!r}?" if near else "name an agent in Python as MODULE:NAME"
        named = "" if path.suffix == ".json" else f", and no {by_name}; {other}"
        raise SettingsError(f"no agent {name!r}: there is no file {path}{named}")
    return by_name


def read_agent(
    name: str, folder: Path = AGENTS, *, alone: bool = False, known: Mapping[str, JsonObject] = MappingProxyType({})
) -> tuple[AgentSpec, JsonObject]:
    """Read an agent by file, or by name in the folder; return it and its document.

    With `alone` it runs by itself: all its tools are its own. `known`: a worker's tools, for the parameters that rules
    name; an error has these problems too. Raise `SettingsError` when there is no such file or it is
    not JSON, `AgentError` with every problem, each with its line, when it is not an agent.
    """
    path = agent_path(name, folder)
    written = read_json(path)
    document: Any = agent_document(written, path.stem)  # `parse_agent` accepts only objects
    problems = _own_problems(document) if alone else []
    try:
        agent = parse_agent(document, source=str(path))
    except AgentError as error:
        if not error.problems:
            raise
        problems = [*error.problems, *problems]
    else:
        problems += malformed_outputs(agent)
    if problems:
        problems = [*dict.fromkeys([*problems, *(_own_problems(document, known) if alone else [])])]
        raise AgentError.of(_with_lines(problems, path, bare=isinstance(written, list)))
    return agent, document


def _own_problems(document: Json, known: Mapping[str, JsonObject] = MappingProxyType({})) -> list[Problem]:
    """Return the problems of tools that the file defines, and of its policy for them and for the `known` ones."""
    found: list[Problem] = []
    tools: list[Tool] = []
    context = document.get("context") if isinstance(document, dict) else None
    for index, message in enumerate(context if isinstance(context, list) else []):
        if not isinstance(message, dict) or message.get("type") != "tool":
            continue
        tool = message.get("tool")
        if isinstance(tool, str):
            tool = known.get(tool)
        if isinstance(tool, dict):
            try:
                tools.append(offline_tool(tool, known))
            except ProtocolError as error:
                found.append(problem_at(("context", index, "tool"), str(error)))
    return policy_problems(document, tools) + found


def with_lines(problems: Iterable[Problem], name: str, folder: Path = AGENTS) -> list[Problem]:
    """Return the problems of an agent with file and line. Those of an agent in Python have none."""
    if names_module(name) and not Path(name).is_file():
        return [*problems]
    path = agent_path(name, folder)
    return _with_lines(problems, path, bare=isinstance(read_json(path), list))


def _with_lines(problems: Iterable[Problem], path: Path, *, bare: bool) -> list[Problem]:
    """Return the problems with file and line, in the order of the lines. For a `bare` list of messages the file is the
    context.
    """
    text = path.read_text(encoding="utf-8-sig")
    placed = [(line_of(text, each.place[1:] if bare else each.place), each) for each in problems]
    return [replace(each, source=f"{path}:{line}") for line, each in sorted(placed, key=lambda one: one[0])]


def write_procedure(procedure: Procedure, folder: Path = AGENTS, *, replace: bool = False) -> tuple[Procedure, Path]:
    """Write a procedure as an agent file of the folder. Return it with its version, and the file.

    An existing procedure of this name with the same digest stays as it is. With `replace` another one becomes the next version in its
    place. Raise `SettingsError` for any other file of this name.
    """
    path = folder / f"{procedure.name}.json"
    if path.exists():
        written: Any = read_json(path)
        metadata = written.get("metadata") if isinstance(written, dict) else None
        known = metadata.get("procedure") if isinstance(metadata, dict) else None
        if not isinstance(known, dict) or not isinstance(known.get("version"), int):
            raise SettingsError(f"{path} is an agent file, not a procedure: choose another name")
        version: int = known["version"]
        if known.get("digest") == procedure.digest:
            return procedure.with_version(version), path
        if not replace:
            raise SettingsError(
                f"{path} has another plan, version {version}: write version {version + 1} with --replace"
            )
        procedure = procedure.with_version(version + 1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(procedure.agent, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from None
    return procedure, path


def example_input(schema: JsonObject, text: str | None) -> str:
    """Return an input of this schema in which the text is the first required value: `{"request": "hello"}`."""
    required = schema.get("required")
    name = required[0] if isinstance(required, list) and required else "request"
    is_text = text and text.lstrip()[:1] not in ("{", "[")  # an object with an error in its JSON is not a request
    return json.dumps({name: text if is_text else "…"}, ensure_ascii=False)


PlanLike: TypeAlias = "str | Mapping[str, Any] | Sequence[Mapping[str, Any]]"
"""A plan as a model writes it, in any dialect: a Solution (`{"calls": […], "output": …}`) or its JSON, a list of calls, native tool
calls as OpenAI has them (in a list, or as `{"tool_calls": […]}`), or `script`'s text."""


def planned_for(
    agent: AgentSpec,
    definitions: Mapping[str, JsonObject],
    input: Any = MISSING,
    state: Mapping[str, Any] | None = None,
    calls: Sequence[Json] = (),
    *,
    delegates: Mapping[str, JsonObject],
) -> Planned:
    """Return the calls with the agent's context and tools, and those of its delegates that are known. Raise `InputError`."""
    given = input is not MISSING
    context = Context(agent, input if given else None, has_input=given)
    return plan_of(list(calls), context, agent.config, definitions, state=dict(state or {}), delegates=delegates)


_PLAN: Final = '{"calls": [...], "output": ...}'


def read_plan(plan: PlanLike, planned: Planned) -> Solution:
    """Parse the plan by its dialect's reader. Raise `AgentError` for an invalid one."""
    kinds = [merged.kind for merged in planned.context.data]
    if (native := native_calls(plan)) is not None:
        dialect = DIALECTS["tools"]
        tools = dialect.reader(dialect.vocabulary(planned.tools, kinds))
        for index, call in enumerate(native):
            function = call["function"]
            arguments = function.get("arguments", "{}")
            arguments_text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            tools.push_tool(ToolDelta(index, str(call.get("id", index)), function.get("name"), arguments_text))
        return tools.close("tool_calls")
    if isinstance(plan, str):
        begin = without_comments(plan).lstrip()[:1]
        dialect = DIALECTS["solution" if begin in ("{", "[") else "script"]
        reader = dialect.reader(dialect.vocabulary(planned.tools, kinds))
        text = f'{{"calls": {plan}}}' if begin == "[" else plan
        calls = reader.push(text)
        closed = reader.close("stop")
        return closed if closed.calls else Solution([*calls], closed.output, closed.problem)
    if isinstance(plan, Mapping):
        for key in plan:
            if key not in ("calls", "output"):
                raise AgentError(f"the plan: {none_of(str(key), 'key', ['calls', 'output'])}")
        if not isinstance(plan.get("calls"), list):
            raise AgentError(f'{shorten(dict(plan), 80)} is not a valid plan: "calls" must be a list. Expected {_PLAN}')
        return Solution(list(plan["calls"]), plan.get("output"))
    if not isinstance(plan, Iterable):
        raise AgentError(f"{str(plan)[:80]} is not a valid plan. Expected a list of calls, or {_PLAN}")
    listed: list[Any] = [*plan]
    return Solution(listed)


def native_calls(plan: ReadOnlyJson) -> list[JsonObject] | None:
    """Return the tool calls of a message as OpenAI has it, of their list, or of its JSON; `None` for another plan."""
    document = plan
    if isinstance(plan, str):
        try:
            document = loads_commented(plan)
        except JsonError:
            return None
    calls = document.get("tool_calls") if isinstance(document, Mapping) else document
    if not isinstance(calls, Sequence) or isinstance(calls, str) or not calls:
        return None
    native = [call for call in calls if _is_native(call)]
    return native if len(native) == len(calls) else None


def _is_native(call: ReadOnlyJson) -> TypeGuard[JsonObject]:
    return isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) and "_tool" not in call


def malformed_outputs(agent: AgentSpec) -> list[Problem]:
    """Return the malformed references in the outputs of the agent's plans."""
    return [
        problem_at(("context", index, "output", *each.path), str(each.error))
        for index, message in enumerate(agent.messages())
        if isinstance(message, PlanMessage)
        for each in parse_output(message.output)[1]
    ]


def output_problems(agent: AgentSpec, solution: Solution, plan: Plan) -> list[str]:
    """Return the problems of a Solution's output; `plan` has its calls, none of which has run."""
    wanted = agent.output_schema
    problems = [] if solution.problem is None else [f"the plan: {solution.problem.message}"]
    if solution.output is None:
        return problems
    found = [] if isinstance(wanted, bool) else Schema(wanted).errors(solution.output, references=True)
    return problems + [f"the output: {problem}" for problem in [*found, *_reference_problems(solution.output, plan)]]


def _reference_problems(output: Json, plan: Plan) -> list[str]:
    """Return the malformed references of an output, and those without a value that no call writes."""
    template, malformed = parse_output(output)
    known = {**plan.now(), "state": state_shape(plan.state.snapshot(), plan.calls)}
    written = [path for call in plan.calls for paths in call.spec.paths for path in paths]

    def lookup(reference: Reference) -> Json | Missing:
        # The shape has no items that a `push` or an index would write, so the calls' paths decide.
        if reference.kind == "state" and any(overlaps(path, reference.path) for path in written):
            return UNKNOWN
        return get(known[reference.kind], reference.path) if reference.kind in known else MISSING

    problems = [f"{json_path(each.path)}: {each.error}" for each in malformed]
    for site in template.find_missing(lookup):
        problems.append(missing_path(site.missing_reference(lookup), json_path(site.path), known).message)
    return problems
