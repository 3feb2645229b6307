"""The agents that a gateway knows: those of its folder, by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from perdure.authoring.agent import Agent
from perdure.errors import PerdureError
from perdure.gateway.problems import HttpError
from perdure.values.problems import none_of

_log: Final = logging.getLogger("perdure.gateway")


class Agents:
    """A file is read again when it has changed; one that cannot be read is told of in the log, once for each change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[tuple[int, int], Agent[Any] | None]] = {}

    def names(self) -> list[str]:
        """Those whose files can be used."""
        return [name for name in self._files() if self._find(name) is not None]

    def by_name(self) -> dict[str, Agent[Any]]:
        """The same, whole, by the name that they are asked for by."""
        return {name: agent for name in self._files() if (agent := self._find(name)) is not None}

    def get(self, name: str) -> Agent[Any]:
        """The agent of this name, which is its file's without `.json`. Raises `HttpError` (404, or 503 where its file cannot be used)."""
        files = self._files()
        if name not in files:
            raise HttpError(404, none_of(name, "agent of this gateway", files), kind="agent-not-found")
        if (agent := self._find(name)) is None:
            raise HttpError(503, f"the file of the agent {name!r} cannot be used now; the gateway's log says why")
        return agent

    def _files(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.json")) if self._folder.is_dir() else []

    def _find(self, name: str) -> Agent[Any] | None:
        """`name` is one of the folder's, never what somebody wrote."""
        path = self._folder / f"{name}.json"
        try:
            found = path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if name in self._read and self._read[name][0] == stamp:
                return self._read[name][1]
            agent = Agent.read_to_run(path)
        except (PerdureError, OSError) as error:
            _log.error("the agent %r cannot be used: %s", name, error)
            agent = None
            stamp = self._read.get(name, ((0, 0), None))[0] if isinstance(error, OSError) else stamp
        self._read[name] = (stamp, agent)
        return agent
