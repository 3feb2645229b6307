"""The agent files of delegates, in the folder of a worker or of a command."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from perdure.agents.rollouts import choose_document
from perdure.errors import PerdureError, ProtocolError
from perdure.runs.agent import AgentSpec, agent_document, parse_agent
from perdure.runs.delegates import tools_of, wanted_delegates
from perdure.values.json import JsonObject, loads_commented
from perdure.values.messages import ToolMessage
from perdure.values.problems import close_names

_log: Final = logging.getLogger(__name__)
_GIVE: Final = "give it by --agents, PERDURE_AGENTS or `agents` in perdure.toml"


class AgentFolder:
    """The agent files `<name>.json` in one folder; `Tool` checks that names hold no path. `None`: there are none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def collect(
        self, tools: Iterable[str | JsonObject], known: Mapping[str, JsonObject], *, run_id: str = "", tenant: str = ""
    ) -> tuple[dict[str, JsonObject], dict[str, str]]:
        """Return all agent files that the tools delegate to, at any depth, and the reasons why some cannot be used.

        A document that the parent run has `known` is taken unchanged: an edited file does not change a running run.
        """
        found: dict[str, JsonObject] = {}
        problems: dict[str, str] = {}
        names = wanted_delegates(tools)
        while names:
            name = names.pop()
            if name in found or name in problems:
                continue
            try:
                document = known[name] if name in known else self.read_version(name, run_id, tenant)
                names += wanted_delegates(tools_of(document))
                found[name] = document
            except ProtocolError as error:
                problems[name] = str(error)
        return found, problems

    def delegates_of(
        self, agent: AgentSpec, known: Mapping[str, JsonObject]
    ) -> tuple[dict[str, JsonObject], list[str]]:
        """Return the agent files of all delegates at any depth, and a line for each delegate without a usable file."""
        tools = [message.tool for message in agent.messages() if isinstance(message, ToolMessage)]
        found, problems = self.collect(tools, known)
        return found, [*problems.values()]

    def read_version(self, name: str, run_id: str, tenant: str) -> JsonObject:
        """Return the agent file of the version that this run takes (R24.10). Raise `ProtocolError`.

        An unusable rollout does not change the agent; the log has a line for it.
        """
        if self._path is None:
            return self.read(name)
        try:
            return choose_document(self._path, name, self.read, key=run_id, tenant=tenant)
        except PerdureError as error:
            document = self.read(name)
            _log.error("the rollout of the agent %r cannot be used: %s", name, error)
            return document

    def read(self, name: str) -> JsonObject:
        """Return an agent file. Raise `ProtocolError`."""
        path = None if self._path is None else self._path / f"{name}.json"
        if path is None or not path.is_file():
            raise ProtocolError(f"the agents folder has no {name!r}{self._hint(name)}")
        found: Any = agent_document(loads_commented(path.read_bytes(), source=path.name), name)
        parse_agent(found, source=path.name)  # it accepts only objects
        document: JsonObject = found
        return document

    def _hint(self, name: str) -> str:
        if self._path is None:
            return f"; none is given: {_GIVE}"
        if not self._path.is_dir():
            return f"; {str(self._path)!r} does not exist: {_GIVE}"
        files = [path.stem for path in self._path.glob("*.json")]
        return f"; its agents are {', '.join(close_names(name, files))}" if files else "; it has no agent files"
