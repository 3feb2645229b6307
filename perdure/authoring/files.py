"""Reading what a command line points at: agent files and JSON values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from perdure.authoring.planned import offline_tool
from perdure.errors import AgentError, JsonError, Problem, ProtocolError, SettingsError
from perdure.people.naming import policy_problems
from perdure.run.agents import Agent, parse_agent
from perdure.run.documents import agent_document
from perdure.values.jsons import Json, loads, loads_commented
from perdure.values.problems import problem_at
from perdure.values.problems.places import line_of

AGENTS: Final = Path("agents")
"""Where agents are found by name, unless a setting says otherwise."""


def read_agent(name: str, folder: Path = AGENTS, *, alone: bool = False) -> tuple[Agent, Json]:
    """An agent by file, or by name in the folder: read, and as the document that it is.

    `alone`: it is run by itself, so that all its tools are its own. Raises `SettingsError` when there is no such file or it is no JSON,
    `AgentError` with everything that is wrong, each with its line, when it is no agent.
    """
    by_name = folder / f"{name}.json"
    path = Path(name)
    if not path.is_file():
        if not by_name.is_file():
            named = "" if path.suffix == ".json" else f", and no {by_name}"
            raise SettingsError(f"no agent {name!r}: there is no file {path}{named}")
        path = by_name
    written = read_json(path)
    document = agent_document(written, path.stem)
    problems = _own_problems(document) if alone else []
    try:
        agent = parse_agent(document, source=str(path))
    except AgentError as error:
        if not error.problems:
            raise
        problems = [*error.problems, *problems]
    if problems:
        raise AgentError.of(_with_lines(problems, path, bare=isinstance(written, list)))
    return agent, document


def _own_problems(document: Json) -> list[Problem]:
    """What is wrong with the tools that the file defines, and with what its policy says of them."""
    found = policy_problems(document)
    context = document.get("context") if isinstance(document, dict) else None
    for index, message in enumerate(context if isinstance(context, list) else []):
        if isinstance(message, dict) and message.get("type") == "tool" and isinstance(message.get("tool"), dict):
            try:
                offline_tool(message["tool"], [])
            except ProtocolError as error:
                found.append(problem_at(("context", index, "tool"), str(error)))
    return found


def _with_lines(problems: Iterable[Problem], path: Path, *, bare: bool) -> list[Problem]:
    """With file and line, in the order of the lines; of a `bare` list of messages the context is the whole file."""
    text = path.read_text(encoding="utf-8-sig")
    placed = [(line_of(text, each.place[1:] if bare else each.place), each) for each in problems]
    return [replace(each, source=f"{path}:{line}") for line, each in sorted(placed, key=lambda one: one[0])]


def read_json(path: Path) -> Json:
    """JSON, with comments where somebody wrote them (R2.9). Raises `SettingsError` with
    line and column for what is none."""
    try:
        return loads_commented(path.read_bytes(), source=str(path))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except JsonError as error:
        raise SettingsError(str(error)) from None


def json_option(text: str, name: str) -> Json:
    """An option's JSON, or with `@file` that file's. Raises `SettingsError`."""
    if text.startswith("@"):
        return read_json(Path(text[1:]))
    try:
        return loads(text, source=name)
    except JsonError as error:
        raise SettingsError(str(error)) from None
