"""JSON of a person: files, and options of commands. It imports no agents, so that settings and help load fast."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perdure.errors import JsonError, SettingsError
from perdure.values.json import Json, loads, loads_commented

AGENTS: Final = Path("agents")
"""Default folder of named agents."""


def read_json(path: Path) -> Json:
    """Read JSON, with comments if there are any (R2.9). Raise `SettingsError` with line and column for invalid JSON."""
    return parse_json(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file. Raise `SettingsError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None


def parse_json(data: bytes, path: Path) -> Json:
    """Return the JSON of a file's bytes, with comments if there are any (R2.9). Raise `SettingsError`."""
    try:
        return loads_commented(data, source=str(path))
    except JsonError as error:
        raise SettingsError(str(error)) from None


def json_option(text: str, name: str, example: str = '{"key": "value"}') -> Json:
    """Parse an option's JSON, or with `@file` that file's. Raise `SettingsError`, with an `example` of what is accepted."""
    if text.startswith("@"):
        return read_json(Path(text[1:]))
    try:
        return loads(text, source=name)
    except JsonError as error:
        raise SettingsError(f"{error}; give JSON such as {example}, or @FILE") from None
