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
    """Import a module that a setting names, also from the current directory. Installed packages have precedence: a
    command in a folder of somebody else runs no code of it under an installed name.
    """
    if "" not in sys.path:
        sys.path.append("")
    return importlib.import_module(name)


def import_setting(name: str, setting: str) -> ModuleType:
    """Import a module as `import_named` does. Raise `SettingsError`, which begins with the `setting`, if that fails."""
    try:
        return import_named(name)
    except ModuleNotFoundError as error:
        raise SettingsError(f"{setting}: {missing_module(name, error)}") from None
    except Exception as error:
        raise SettingsError(
            f"{setting}: the module {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def missing_module(name: str, error: ModuleNotFoundError) -> str:
    """Return the reason why the import of a module failed: it does not exist, or a module that it imports does not."""
    missing = error.name or name
    if missing != name and not name.startswith(f"{missing}."):
        return f"the module {name!r} imports {missing!r}, which is not installed"
    file = re.fullmatch(r"(?:\./)?([\w/]+)\.py", name)
    return f"no module is named {name!r}" + (f"; give {file[1].replace('/', '.')}" if file else "")


def place_of(module: ModuleType) -> str:
    """Return the place of a module that is not in the current directory: an installed module may have the name of a
    local one.
    """
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
