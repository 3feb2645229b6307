"""`perdure plan validate|simulate|draw FILE`: a plan looked at before anything runs, with no server (R5.6)."""

from __future__ import annotations

from pathlib import Path

from perdure.activities.registry import Registry
from perdure.authoring.files import read_json
from perdure.authoring.planned import Planned, plan_of
from perdure.cli.errors import USAGE, CommandError
from perdure.run.agents import Agent, Context, parse_agent
from perdure.run.documents import agent_document, is_context
from perdure.values.jsons import Json


def read_plan(
    path: Path, *, registry: Registry, run_input: Json = None, has_input: bool = False, state: Json = None
) -> Planned:
    """A plan from an agent file, or a list of messages, with a `plan` message; from a Solution, or a bare list of calls.

    Raises `CommandError` for a file that is none of them, `AgentError` or `InputError` for what is wrong in it.
    """
    document = read_json(path)
    if isinstance(document, list) and not is_context(document):
        document = {"calls": document}
    if isinstance(document, dict) and "calls" in document:
        agent = Agent(name=path.stem)
        calls = document["calls"]
    else:
        agent = parse_agent(agent_document(document, path.stem), source=str(path))
        calls = Context(agent, run_input, has_input=has_input).plan
    if not isinstance(calls, list) or not calls:
        raise CommandError(
            f"{path} has no plan: give an agent file with a 'plan' message, {{\"calls\": [...]}}, or a list of calls",
            USAGE,
        )
    if not isinstance(state, dict | None):
        raise CommandError("--state must be a JSON object", USAGE)
    context = Context(agent, run_input, has_input=has_input)
    return plan_of(calls, context, registry.definitions(), parallel=agent.config.parallel, state=state)
