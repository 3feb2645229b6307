"""`perdure plan validate|simulate|draw FILE`: checks of a plan before anything runs, without a server (R5.6)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perdure.agents.agent import Agent as AgentInPython
from perdure.agents.files import Planned, native_calls, output_problems, plan_of, planned_for, read_plan, with_lines
from perdure.agents.folder import AgentFolder
from perdure.agents.json_files import parse_json, read_bytes
from perdure.approvals.policy import Guard, policy_problems
from perdure.cli._execute import USAGE, CommandError
from perdure.errors import AgentError, InputError, ProtocolError, SettingsError
from perdure.models.dialects.common import Solution
from perdure.plan import Call
from perdure.rules import Rule, RuleVerdict
from perdure.runs.agent import AgentSpec, Context, agent_document, is_context, parse_agent
from perdure.runs.hosted_tools import file_problems
from perdure.tools.tool import resolve_tools
from perdure.values.formulas import parse_statements
from perdure.values.json import Json, JsonObject
from perdure.values.references import MISSING, Missing


class CheckedPlan(NamedTuple):
    """A plan, and problems outside of its calls."""

    planned: Planned
    guard: Guard
    problems: list[str]
    rules: Sequence[Rule]

    def verdicts(self) -> list[RuleVerdict]:
        """Return each rule's verdict on the plan before its first call."""
        return self.planned.verdicts(self.rules)

    def asks(self) -> Callable[[Call], bool]:
        """Return whether a person is asked about a call: by the policy, by a rule, or because the whole plan is shown."""
        asked = {id for verdict in self.verdicts() for id in verdict.asks}
        whole = self.guard.shows_plans
        return lambda call: whole or call.id in asked or self.guard.asks(call)


def check_plan_file(
    path: Path,
    known: Mapping[str, JsonObject],
    *,
    agent: str | None = None,
    agents: Path,
    complete: bool = False,
    run_input: Json | Missing = MISSING,
    state: Json = None,
) -> CheckedPlan:
    """Read a plan from an agent file or a list of messages with a `plan` message, or from a Solution or a list of calls
    in any dialect.

    `agent`: the file or the name of the plan's agent. `agents`: the folder in which that name is looked up, and which
    has the delegates' agent files. Without an agent, the tools are the `known` ones, and unless these are `complete`,
    other tools that calls name. Raises `CommandError` or `SettingsError` for a file without a plan, `AgentError` or
    `InputError` for an agent or an input that no run would start with.
    """
    if not isinstance(state, dict | None):
        raise CommandError("--state must be a JSON object", USAGE)
    written: Any = _written(path)
    found = AgentSpec(name=path.stem)
    in_python: dict[str, JsonObject] = {}
    if agent is not None:
        given = AgentInPython.read_to_run(agent, folder=agents, tools=known)
        found, in_python = given.parsed, given.delegates()
        known = {**{each.name: each.definition for each in given.functions}, **known}
    elif native_calls(written) is not None:
        pass
    elif is_context(written) or (isinstance(written, dict) and "calls" not in written):
        found = parse_agent(agent_document(written, path.stem), source=str(path))
        written = _plan_in(found, path, run_input)
    delegates, delegate_problems = AgentFolder(agents).delegates_of(found, in_python)
    try:
        read = read_plan(written, planned_for(found, known, run_input, delegates=delegates))
    except InputError as error:
        raise InputError(f"{error}{_hint(run_input)}") from None
    if not read.calls and read.problem is None:
        raise _no_plan(path)
    planned = _planned(found, read, known, run_input, state, complete=complete, delegates=delegates)
    if agent is not None and (wrong := policy_problems(given.document(), planned.tools.values())):
        raise AgentError.of(with_lines(wrong, agent, agents), f"agent {found.name!r}")
    problems = [*delegate_problems, *output_problems(found, read, planned.checked()), *file_problems(found)]
    if complete:
        problems += _tool_problems(planned.context.tools, known)
    return CheckedPlan(planned, Guard(found.config.approval), problems, found.config.rules)


def _planned(
    agent: AgentSpec,
    read: Solution,
    known: Mapping[str, JsonObject],
    run_input: Json | Missing,
    state: JsonObject | None,
    *,
    complete: bool,
    delegates: Mapping[str, JsonObject],
) -> Planned:
    context = Context(agent, None if run_input is MISSING else run_input, has_input=run_input is not MISSING)
    request = 0 if context.starts_with_plan and [*context.plan] == read.calls else 1
    return plan_of(
        read.calls,
        context,
        agent.config,
        known,
        state=state,
        complete=complete,
        request=request,
        delegates=delegates,
    )


def _written(path: Path) -> Json:
    """Return JSON, or the text of a script."""
    data = read_bytes(path)  # once: it may be a pipe
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return parse_json(data, path)  # it raises the right error
    if path.suffix == ".py" and _is_module(text):
        raise CommandError(
            f"{path} is a Python module, not a plan: expected an agent file, JSON, or a script of calls. "
            f"Give a module with tools by --tools {path.stem}",
            USAGE,
        )
    looks = text.lstrip()[:1] in ("{", "[", "/") or path.suffix == ".json"
    return parse_json(data, path) if looks else text


def _is_module(text: str) -> bool:
    """Whether Python text defines or imports names, which a script of calls never does."""
    try:
        statements = parse_statements(text)
    except (SyntaxError, ValueError):
        return False
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
    return any(isinstance(each, kinds) for each in statements)


def _plan_in(agent: AgentSpec, path: Path, run_input: Json | Missing) -> Json:
    try:
        context = Context(agent, None if run_input is MISSING else run_input, has_input=run_input is not MISSING)
    except InputError as error:
        raise InputError(f"{error}{_hint(run_input)}") from None
    if not context.plan:
        raise _no_plan(path)
    return {"calls": [*context.plan], "output": context.plan_output}


def _tool_problems(tools: Iterable[str | JsonObject], known: Mapping[str, JsonObject]) -> list[str]:
    """Return the reasons why a worker with these tools would reject the agent."""
    problems = []
    for tool in tools:
        try:
            resolve_tools([tool], known)
        except ProtocolError as error:
            problems.append(f"--agent: {error}")
    return problems


def _hint(run_input: Json | Missing) -> str:
    return "; give the run's input by --input" if run_input is MISSING else ""


def _no_plan(path: Path) -> SettingsError:
    return SettingsError(
        f"{path} has no plan: give an agent file with a 'plan' message, {{\"calls\": [...]}}, a list of calls, or a script"
    )
