"""Python modules that a setting or a command names, and the agents in them."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from perdure.errors import SettingsError

_PLACE: Final = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


def import_named(name: str) -> ModuleType:
    """Import a module that a setting names, from the current directory, too. Installed packages go first: a command may run in a folder
    that somebody else has written, and runs nothing of it under an installed name.
    """
    if "" not in sys.path:
        sys.path.append("")
    return importlib.import_module(name)


def import_setting(name: str, setting: str) -> ModuleType:
    """Import a module as `import_named` does. Raise `SettingsError`, which begins with the `setting`, for one that cannot be."""
    try:
        return import_named(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        detail = "" if missing == name else f" (it imports {missing!r}, which is not installed)"
        raise SettingsError(f"{setting}: there is no module {name!r}{detail}") from None
    except Exception as error:
        raise SettingsError(
            f"{setting}: the module {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def place_of(module: ModuleType) -> str:
    """Return where a module is, if that is elsewhere: an installed one may have the name of one that is here."""
    file = getattr(module, "__file__", None)
    return "" if file is None or Path(file).is_relative_to(Path.cwd()) else f" (it is {file})"


def names_module(text: str) -> bool:
    """Whether a text has the form `module:name`."""
    return _PLACE.fullmatch(text) is not None


def object_named(text: str) -> tuple[str, object]:
    """Return the name and the object of `module:name`. Raise `SettingsError`."""
    place = _PLACE.fullmatch(text)
    assert place is not None
    module = place["module"]
    found = import_setting(module, f"no agent {text!r}")
    try:
        return place["name"], getattr(found, place["name"])
    except AttributeError:
        raise SettingsError(f"no agent {text!r}: the module {module!r} has no {place['name']!r}") from None
