"""Tokens: what one looks like, who each is for, and what is kept of it."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from perdure.errors import SettingsError
from perdure.gateway.callers import RIGHTS, Caller
from perdure.sessions.wire import EVERYTHING
from perdure.values.problems import first_problem

PREFIX: Final = "perdure"
"""With which each begins, so that a search for secrets finds it."""
ONE: Final = "token"
"""The id of the only one, where it is a setting."""
FORM: Final = re.compile(rf"{PREFIX}_([0-9a-z]+)_([A-Za-z0-9_-]{{43}})")


def check_token(token: str | None) -> None:
    """Raises `SettingsError` for one that is empty: a variable that is not set would let everybody in."""
    if token is not None and not token.strip():
        raise SettingsError("the token is empty: give one with --token or its variable, or none at all")


class Tokens(Protocol):
    """Those that are let in."""

    def find(self, text: str) -> Caller | None:
        """Whose token this is; `None`: nobody's. Takes as long for any."""

    def named(self, id: str) -> Caller | None:
        """Whose the token of this id is, while it is let in."""


class OneToken:
    """The only token there is, which may do everything of no tenant. Raises `SettingsError` where it is empty."""

    def __init__(self, text: str) -> None:
        check_token(text)
        self._digest = digest(text)
        self._caller = Caller("", ONE, frozenset({EVERYTHING}), ONE)

    def find(self, text: str) -> Caller | None:
        return self._caller if hmac.compare_digest(digest(text), self._digest) else None

    def named(self, id: str) -> Caller | None:
        return self._caller if id == ONE else None


class Entry(BaseModel):
    """A token, as the file has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[0-9a-z]{1,32}$")
    """Part of the token; it is no secret, and names it in the log."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of the whole token. It is random, so nobody finds it from its digest."""
    tenant: str = Field(default="", max_length=100)
    sender: str = Field(min_length=1, max_length=200)
    rights: tuple[str, ...] = ("read", "send")
    expires: datetime | None = None
    """From then on it is let in no more."""

    @field_validator("rights")
    @classmethod
    def _known(cls, rights: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [right for right in rights if right not in RIGHTS]:
            raise ValueError(f"{unknown[0]!r} is no right; there are {', '.join(RIGHTS)}")
        return rights

    @property
    def caller(self) -> Caller:
        return Caller(self.tenant, self.sender, frozenset(self.rights), self.id)

    def is_let_in(self, now: float) -> bool:
        until = self.expires
        return until is None or (until if until.tzinfo else until.replace(tzinfo=UTC)).timestamp() > now


def new_token(tenant: str, sender: str, rights: Iterable[str], expires: datetime | None = None) -> tuple[str, Entry]:
    """A token, which is told this once, and what the file has of it. Raises `SettingsError` for what is no tenant, sender or right."""
    id = secrets.token_hex(4)
    text = f"{PREFIX}_{id}_{secrets.token_urlsafe(32)}"
    try:
        entry = Entry(id=id, sha256=digest(text), tenant=tenant, sender=sender, rights=tuple(rights), expires=expires)
    except ValidationError as error:
        raise SettingsError(f"this is no token: {first_problem(error)}") from None
    return text, entry


def digest(text: str) -> str:
    """What stands for a token, in hexadecimal digits."""
    return sha256(text.encode(errors="replace")).hexdigest()
