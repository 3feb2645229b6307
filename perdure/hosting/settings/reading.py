"""Settings as they are in force, where each comes from, and one line for what is wrong with one."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from perdure.errors import SettingsError
from perdure.hosting.settings.fields import about
from perdure.hosting.settings.model import CONFIG, PREFIX, Settings, config_file
from perdure.values.jsons import shorten
from perdure.values.problems import close_names

_in_force: ContextVar[Settings] = ContextVar("settings")


def in_force() -> Settings:
    """The settings of the command that runs; elsewhere what environment and file say now. Raises `SettingsError`."""
    found = _in_force.get(None)
    return load() if found is None else found


@contextmanager
def using(settings: Settings) -> Iterator[None]:
    """Have them in force while the context lasts."""
    token = _in_force.set(settings)
    try:
        yield
    finally:
        _in_force.reset(token)


def load(given: Mapping[str, Any] | None = None, flags: Mapping[str, str] | None = None) -> Settings:
    """What is in force with these given by flags, by field. `flags` are their names where they are not the fields' own.

    Raises `SettingsError` with one line that names the flag, variable or key and what is wrong with it.
    """
    path = config_file()
    if os.environ.get(CONFIG) and not path.is_file():
        raise SettingsError(f"{CONFIG} names {path}, which does not exist")
    if not os.environ.get(CONFIG) and _put_there(path):
        raise SettingsError(
            f"{path} is another user's, in a folder where everybody may put one, and can name code to run: "
            f"if it is meant, say so with {CONFIG}={path}"
        )
    try:
        settings = Settings(**(given or {}))
        settings.sources.update(where(given or {}, flags or {}))
        return settings
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        known, problems = list(Settings.model_fields), error.errors(include_url=False)
        if unknown := [name for name in (problem["loc"][0] for problem in problems) if name not in known]:
            found = "; ".join(f"{name!r} is no setting{_near(str(name), known)}" for name in unknown)
            raise SettingsError(f"{path}: {found}") from None
        problem = problems[0]
        name, *path_inside = problem["loc"]
        inside = "".join(f".{part}" for part in path_inside)
        place = where(given or {}, flags or {}).get(str(name), str(name))
        place = place.replace(str(name), f"{name}{inside}", 1) if " in " in place else place + inside
        secret = about(Settings.model_fields[str(name)]).secret
        got = "" if secret or inside else f", not {shorten(problem['input'], 60)}"
        raise SettingsError(f"{place}: {_words(problem)}{got}") from None


def changed(settings: Settings, fields: Mapping[str, Any]) -> Settings:
    """The settings with these fields in place of theirs. Raises `TypeError` for a name that is none."""
    if unknown := [name for name in fields if name not in Settings.model_fields]:
        raise TypeError(f"{unknown[0]!r} is no setting{_near(unknown[0], list(Settings.model_fields))}")
    return settings.model_copy(update=dict(fields))


def where(given: Mapping[str, Any], flags: Mapping[str, str]) -> dict[str, str]:
    """Where each setting comes from that is no default: a flag, a variable, or the file's key."""
    path = config_file()
    found = {name: f"{name} in {path}" for name in TomlConfigSettingsSource(Settings, path)()}
    found |= {name: variable(name) for name in EnvSettingsSource(Settings)()}
    return found | {name: flags.get(name, flag(name)) for name in given}


def flag(name: str) -> str:
    """A setting's flag."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """A setting's environment variable."""
    return PREFIX + name.upper()


def unknown_variables() -> list[str]:
    """One line for each variable that looks like a setting's and is none: others may have put it there."""
    known = [variable(name) for name in Settings.model_fields] + [CONFIG]
    ours = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    return [f"{name} is no setting{_near(name, known)}" for name in ours]


def _put_there(path: Path) -> bool:
    """Whether the file may be put there by somebody who wants others to find it, as in `/tmp`."""
    if not hasattr(os, "getuid") or not path.is_file():
        return False
    owners = {path.lstat().st_uid, path.stat().st_uid} - {os.getuid(), 0}
    return bool(owners) and bool(path.absolute().parent.stat().st_mode & stat.S_IWOTH)


def _near(name: str, known: list[str]) -> str:
    near = close_names(name.replace("-", "_"), known, limit=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _words(problem: Any) -> str:
    words = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return words.replace("should be", "must be", 1).split(", unable to")[0]
