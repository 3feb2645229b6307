"""Which tools a policy names, and whether the agent has them."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import Problem
from perdure.people.flows import ANY
from perdure.tools.definitions import definition_name
from perdure.tools.tool import READ_SKILL
from perdure.values.jsons import Json, JsonObject
from perdure.values.problems import none_of, problem_at


def policy_problems(document: Json) -> list[Problem]:
    """The tools that an agent file's own policy names and its context does not: nothing would ever be asked about them (R7.1), and no
    rule would ever meet them (R15.5).

    For an agent that is run by itself: a delegate may be given tools by others."""
    config = document.get("config") if isinstance(document, dict) else None
    approval = config.get("approval") if isinstance(config, dict) else None
    context = document.get("context", []) if isinstance(document, dict) else None
    if not isinstance(approval, dict) or not isinstance(context, list):
        return []
    rules, flows = approval.get("tools"), approval.get("flows")
    named = [message["tool"] for message in context if isinstance(message, dict) and "tool" in message]
    names = [definition_name(tool) if isinstance(tool, dict) else tool for tool in named]
    known = [name for name in names if isinstance(name, str)]
    prompt = config.get("prompt") if isinstance(config, dict) else None
    known += [READ_SKILL] if isinstance(prompt, dict) and prompt.get("skills") else []  # which comes with skills
    delegates = any(isinstance(tool, dict) and "_delegate" in tool for tool in named)
    at = ("config", "approval")
    wrong: list[tuple[tuple[str | int, ...], str]] = [
        ((*at, "tools", name), name) for name in (rules if isinstance(rules, dict) else ()) if name not in known
    ]
    for place, flow in enumerate(flows if isinstance(flows, list) else ()):
        unknown = _unknown_ends(flow, known, delegates=delegates) if isinstance(flow, dict) else {}
        wrong += [((*at, "flows", place, end), name) for end, name in unknown.items()]
    return [problem_at(place, none_of(name, "tool of this agent", known)) for place, name in wrong]


def _unknown_ends(flow: JsonObject, known: Sequence[str], *, delegates: bool) -> dict[str, str]:
    """The tools that a rule's two ends name and nobody has, by end; a delegate's output may come from tools of its own."""
    unknown: dict[str, str] = {}
    source, to = flow.get("from"), flow.get("to")
    if isinstance(source, str) and source.startswith("tool:") and not delegates:
        unknown |= {} if (name := source.removeprefix("tool:")) in known else {"from": name}
    if isinstance(to, str) and to != ANY and not any(to == name or to.startswith(f"{name}.") for name in known):
        unknown["to"] = to.rpartition(".")[0] or to
    return unknown
