"""Hosted tools: tools that a model's provider runs itself, while the model writes (R20.6)."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.approvals.policy import Guard
from perdure.models.dialects.registry import DIALECTS
from perdure.models.model_names import PROVIDERS
from perdure.models.providers.capabilities import EXAMPLES, capabilities_of
from perdure.runs.agent import AgentSpec, Models
from perdure.tools.definitions import definition_name
from perdure.values.messages import HostedMessage, ToolMessage


def hosted_problems(agent: AgentSpec, hosted: Sequence[str], models: Models, guard: Guard) -> list[str]:
    """Return the reasons why an agent cannot have these hosted tools, one line each.

    `models`: the models of the agent file; for a run, those of its worker too.
    """
    if not hosted:
        return []
    problems = []
    if DIALECTS[agent.config.dialect].keeps_turns:
        problems.append(
            f"the hosted tool {hosted[0]!r} is not supported with the dialect 'tools': use 'solution' or 'script'"
        )
    for key in ("fast", "smart", "fallback"):
        named = getattr(models, key) if key in models.model_fields_set else []
        for model in [named] if isinstance(named, str) else named:
            problems += [_lacks(key, model, name) for name in hosted if name not in capabilities_of(model).hosted_tools]
    show = agent.config.show
    tools = [message.tool for message in agent.messages() if isinstance(message, ToolMessage)]
    own = [definition_name(tool) if isinstance(tool, dict) else tool for tool in tools]
    for name in hosted:
        if name in own:
            problems.append(f"a tool of the agent and a hosted tool have the name {name!r}: rename the tool")
        if (show if isinstance(show, str) else show.get(name)) == "shape":
            problems.append(f"config.show: a model reads all that the hosted tool {name!r} returns; use 'values'")
        if (why := guard.why_hosted(name)) is not None:
            problems.append(
                f"nobody can be asked before the hosted tool {name!r} acts, and {why}: set config.approval.tools.{name} "
                "to 'never' where the policy allows it, or leave the tool out"
            )
    return problems


def _lacks(key: str, model: str, name: str) -> str:
    has = [each for each in PROVIDERS if name in capabilities_of(f"{each}:{EXAMPLES[each]}").hosted_tools]
    return f"config.models.{key}: the model {model!r} has no hosted tool {name!r}; use a model of {', '.join(has)}"


def file_problems(agent: AgentSpec) -> list[str]:
    """Return the reasons why an agent file cannot have its hosted tools, as far as the file shows them."""
    hosted = [message.tool for message in agent.messages() if isinstance(message, HostedMessage)]
    return hosted_problems(agent, hosted, agent.config.models, Guard(agent.config.approval))
