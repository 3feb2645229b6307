"""The worker's folder of agent files, where delegates are found by name (R8.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from perdure.errors import ProtocolError
from perdure.run.agents import parse_agent
from perdure.run.delegates import tools_of, wanted_delegates
from perdure.run.documents import agent_document
from perdure.values.jsons import JsonObject, loads_commented
from perdure.values.problems import close_names


class AgentFolder:
    """`<name>.json` in one folder; names hold no path, which `Tool` checks. `None`: there are none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def collect(
        self, tools: Iterable[str | JsonObject], known: Mapping[str, JsonObject]
    ) -> tuple[dict[str, JsonObject], dict[str, str]]:
        """All that the tools delegate to, however far down, and why some of it cannot be used.

        What is `known`, from the run above, is taken as it is: an edited file does not change a running run.
        """
        found: dict[str, JsonObject] = {}
        problems: dict[str, str] = {}
        names = wanted_delegates(tools)
        while names:
            name = names.pop()
            if name in found or name in problems:
                continue
            try:
                document = known[name] if name in known else self._read(name)
                names += wanted_delegates(tools_of(document))
                found[name] = document
            except ProtocolError as error:
                problems[name] = str(error)
        return found, problems

    def _read(self, name: str) -> JsonObject:
        """Raises `ProtocolError`."""
        path = None if self._path is None else self._path / f"{name}.json"
        if path is None or not path.is_file():
            raise ProtocolError(f"the worker's agents folder has no {name!r}{self._hint(name)}")
        document: JsonObject = agent_document(loads_commented(path.read_bytes(), source=path.name), name)
        parse_agent(document, source=path.name)
        return document

    def _hint(self, name: str) -> str:
        files = [] if self._path is None else [path.stem for path in self._path.glob("*.json")]
        if not files:
            return "; it is empty" if self._path is not None else "; it was started without one (--agents)"
        return f"; there are {', '.join(close_names(name, files))}"
