"""Two versions of an agent side by side, and the choice for a new run (R24.10).

`rollouts.toml` in a folder of agents names the candidates. `Rollout.takes` is the choice. All code that starts a run
uses it: an `Agent` before `Perdure.start`, a `Session` and `run_agent`, a worker for schedules and delegates.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.errors import AgentError, SettingsError, clip
from perdure.sessions.wire import SESSION_PREFIX, digest
from perdure.values.json import JsonObject, shorten
from perdure.values.problems import first_problem

ROLLOUTS: Final = "rollouts.toml"
"""The file, in a folder of agents."""
_DIGITS: Final = 8
"""Digits of the digest that is the version of an agent file without a `version`."""


class Rollout(BaseModel):
    """The candidate of an agent, and the new runs that take it.

    `candidate`: the name of another agent file in the folder. `share`: percent of new runs, 0 to 100 (0). `tenants`: all new runs of these
    tenants.

    ```python
    rollout = Rollout(candidate="shopper-2", share=10, tenants=("acme",))
    print(rollout.takes("shopper", "run-17"))
    ```
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidate: str = Field(min_length=1, max_length=200)
    share: float = Field(default=0, ge=0, le=100, allow_inf_nan=False)
    tenants: tuple[str, ...] = ()

    def takes(self, agent: str, key: str, tenant: str = "") -> bool:
        """Whether a run takes the candidate. The answer for one `key`, the id of a run or of a session, is always the same.

        A larger share keeps all runs that took the candidate before. All runs of a session have its answer.

        ```python
        assert Rollout(candidate="shopper-2", share=100).takes("shopper", "run-17")
        ```
        """
        if tenant and tenant in self.tenants:
            return True
        text = f"{agent}\n{self.candidate}\n{_session_or_run(key)}"
        place = int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8]) / 2**64
        return place * 100 < self.share


def _session_or_run(id: str) -> str:
    """Return the id of a run's session, or that of the run."""
    return id.partition("/")[0] if id.startswith(SESSION_PREFIX) else id


def add_version(document: JsonObject, name: str) -> JsonObject:
    """Return the document with this agent's `name`, and a version: its own, or the beginning of its digest."""
    return {**document, "name": name, "version": document.get("version") or digest(document, _DIGITS)}


def versions_of(stable: JsonObject, candidate: JsonObject) -> tuple[JsonObject, JsonObject]:
    """Return both documents with the agent's name and their versions. Raise `AgentError` if both have the same version."""
    name = str(stable.get("name"))
    first, second = add_version(stable, name), add_version(candidate, name)
    if first["version"] == second["version"]:
        raise AgentError(
            f"the agent {name!r} and its candidate have the same version, {shorten(first['version'], 60)}: give each file "
            "its own 'version'"
        )
    return first, second


def read_rollouts(folder: Path) -> dict[str, Rollout]:
    """Read the rollouts of a folder, by the names of the agents; none without a `rollouts.toml`. Raise `SettingsError`."""
    path = folder / ROLLOUTS
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    found: dict[str, Rollout] = {}
    for name, each in written.items():
        try:
            found[name] = Rollout.model_validate(each)
        except ValidationError as error:
            raise SettingsError(f"{path}: [{clip(name, 60)}] {first_problem(error, each)}") from None
        if found[name].candidate == name:
            raise SettingsError(f"{path}: [{name}] candidate must be another agent file than {name}.json")
    return found


def write_rollouts(folder: Path, rollouts: Mapping[str, Rollout]) -> Path:
    """Write the rollouts of a folder, and return the file. Without any the file is removed. Raise `SettingsError`."""
    path = folder / ROLLOUTS
    lines = ["# Written by `perdure rollout`: see docs/rollouts.md."]
    for name, each in sorted(rollouts.items()):
        lines += [
            "",
            f"[{_quoted(name)}]",
            f"candidate = {_quoted(each.candidate)}",
            f"share = {each.share:.10g}",
            f"tenants = [{', '.join(map(_quoted, each.tenants))}]",
        ]
    new = path.with_suffix(".tmp")
    try:
        if not rollouts:
            path.unlink(missing_ok=True)
            return path
        new.write_text("\n".join(lines) + "\n", encoding="utf-8")
        new.replace(path)  # readers find the old file or the new one, never a part
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from None
    return path


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def choose_document(
    folder: Path, name: str, read: Callable[[str], JsonObject], *, key: str, tenant: str = ""
) -> JsonObject:
    """Return the document of the version that a run takes. `read` returns the document of an agent file by its name.

    Raise `SettingsError` for an invalid `rollouts.toml`, `AgentError` for two files of the same version, and as `read` does.
    """
    rollout = read_rollouts(folder).get(name)
    if rollout is None:
        return read(name)
    stable, candidate = versions_of(read(name), read(rollout.candidate))
    return candidate if rollout.takes(str(stable.get("name")), key, tenant) else stable
