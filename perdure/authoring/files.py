"""Reading what a command line points at: agent files and JSON values."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perdure.errors import JsonError, SettingsError
from perdure.run.agents import Agent, parse_agent
from perdure.run.documents import agent_document
from perdure.values.jsons import Json, loads, loads_commented

AGENTS: Final = Path("agents")
"""Where agents are found by name, unless a setting says otherwise."""


def read_agent(name: str, folder: Path = AGENTS) -> tuple[Agent, Json]:
    """An agent by file, or by name in the folder: read, and as the document that it is.

    Raises `SettingsError` when there is no such file or it is no JSON, `AgentError` when it is no agent.
    """
    by_name = folder / f"{name}.json"
    path = Path(name)
    if not path.is_file():
        if not by_name.is_file():
            named = "" if path.suffix == ".json" else f", and no {by_name}"
            raise SettingsError(f"no agent {name!r}: there is no file {path}{named}")
        path = by_name
    document = agent_document(read_json(path), path.stem)
    return parse_agent(document, source=str(path)), document


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
