"""Settings for display: in force on this machine, and as a table in the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from perdure.hosting.settings import Settings, setting_info, variable_name
from perdure.values.json import Json, map_leaves

MASK = "•••"
"""The text that replaces a secret."""
_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""The user and password in an address."""


@dataclass(frozen=True)
class ShownSetting:
    """One setting as it is in force."""

    name: str
    group: str
    value: Json
    source: str
    """A flag, a variable, a key of the file, or `default`."""


def list_settings(settings: Settings) -> list[ShownSetting]:
    """Return every setting, in the order of the model; secrets are masked, and passwords in addresses."""
    plain = settings.model_dump(mode="json")
    rows = []
    for name, field in Settings.model_fields.items():
        value = MASK if setting_info(field).secret and plain[name] else _masked(plain[name])
        rows.append(ShownSetting(name, setting_info(field).group, value, settings.sources.get(name, "default")))
    return rows


def secrets_of(settings: Settings) -> list[str]:
    """Return the values of secret settings."""
    found: list[str] = []
    for name, field in Settings.model_fields.items():
        if setting_info(field).secret:
            found += _texts(getattr(settings, name))
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif value:
        yield str(value)


def _masked(value: Json) -> Json:
    return map_leaves(value, lambda leaf: _USER.sub(MASK, leaf) if isinstance(leaf, str) else leaf)


def shown_default(name: str) -> str:
    """Return a setting's default in a help text and in the docs."""
    default = Settings.model_fields[name].default
    if default in (None, "", (), {}):
        return "none"
    if isinstance(default, bool):
        return "yes" if default else "no"
    return f"{default:g}" if isinstance(default, float) else str(default)


def render_settings(flags: Mapping[str, Sequence[str]]) -> str:
    """Return the settings as Markdown, with a table for each group. `flags` are the commands' flags of each setting."""
    lines: list[str] = []
    for group, fields in groupby(Settings.model_fields.items(), lambda item: setting_info(item[1]).group):
        lines += ["", f"## {group}", "", "| key, flag, variable | default | |", "|---|---|---|"]
        for name, field in fields:
            form = setting_info(field).form.replace("|", "\\|")
            words = [f"`{each}{' ' + form if form else ''}`" for each in flags.get(name, ())]
            names = ", ".join([f"`{name}`", *words, f"`{variable_name(name)}`"])
            secret = "; never shown" if setting_info(field).secret else ""
            lines.append(f"| {names} | {shown_default(name)} | {field.description}{secret} |")
    return "\n".join(lines).lstrip() + "\n"
