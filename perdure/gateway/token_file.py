"""The file in which tokens stand as digests: read anew when it changes, and written whole or not at all."""

from __future__ import annotations

import hmac
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from perdure.authoring.files import read_json
from perdure.errors import SettingsError
from perdure.gateway.callers import Caller
from perdure.gateway.tokens import FORM, Entry, digest
from perdure.values.jsons import dumps
from perdure.values.problems import first_problem

_AGAIN: Final = 1.0
"""Seconds between two looks whether the file has changed."""
_NOBODY: Final = sha256(secrets.token_bytes()).hexdigest()


class TokenFile:
    """The tokens of a file: `{"tokens": [{"id", "sha256", "tenant", "sender", "rights", "expires"}]}`.

    A change of it is seen within a second, and one that cannot be read changes nothing. Raises `SettingsError` for what it is at first.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, told: Callable[[str], None] = print) -> None:
        self._path = path
        self._clock = clock
        self._told = told
        self._entries = {each.id: each for each in read_tokens(path)}
        self._seen, self._looked = self._stamp(), clock()

    def find(self, text: str) -> Caller | None:
        self._look()
        form = FORM.fullmatch(text)
        entry = self._entries.get(form[1]) if form else None
        same = hmac.compare_digest(digest(text), _NOBODY if entry is None else entry.sha256)
        return entry.caller if entry is not None and same and entry.is_let_in(self._clock()) else None

    def named(self, id: str) -> Caller | None:
        self._look()
        entry = self._entries.get(id)
        return entry.caller if entry is not None and entry.is_let_in(self._clock()) else None

    def _look(self) -> None:
        now = self._clock()
        if abs(now - self._looked) < _AGAIN:
            return
        self._looked = now
        if (stamp := self._stamp()) == self._seen:
            return
        self._seen = stamp
        try:
            self._entries = {each.id: each for each in read_tokens(self._path)}
        except SettingsError as error:
            self._told(f"the tokens stay as they were: {error}")
        else:
            self._told(f"{len(self._entries)} tokens of {self._path}")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def read_tokens(path: Path) -> list[Entry]:
    """Raises `SettingsError` for what is no file of tokens."""
    written = read_json(path)
    listed = written.get("tokens") if isinstance(written, dict) else None
    try:
        entries = TypeAdapter(list[Entry]).validate_python(listed)
    except ValidationError as error:
        raise SettingsError(f"{path}: $.tokens: {first_problem(error)}") from None
    ids = [each.id for each in entries]
    if twice := next((id for id in ids if ids.count(id) > 1), None):
        raise SettingsError(f"{path}: two tokens have the id {twice!r}")
    return entries


def write_tokens(path: Path, entries: Iterable[Entry]) -> None:
    """Put these in place of what is there, at once: a gateway that looks meanwhile sees the one or the other. Raises `SettingsError`."""
    plain = [entry.model_dump(mode="json", exclude_none=True) for entry in entries]
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:  # only its owner may read it
            file.write(dumps({"tokens": plain}, indent=2) + "\n")
        Path(name).replace(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from None
