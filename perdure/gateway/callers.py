"""Callers and their tokens: tenant, sender and rights come from a token, never from a body (R10.2, R10.9)."""

from __future__ import annotations

import hmac
import operator
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from starlette.requests import Request

from perdure.agents.json_files import read_json
from perdure.errors import InputError, SettingsError
from perdure.gateway.errors import HttpError
from perdure.runs.caller_context import check_context
from perdure.sessions.wire import EVERYTHING
from perdure.tools.quorum import Role
from perdure.values.json import JsonObject, dumps
from perdure.values.limits import MAX_ROLES
from perdure.values.problems import first_problem

READ: Final = "read"
"""Read sessions and runs of the tenant, and follow them."""
SEND: Final = "send"
"""Start runs, and send messages in sessions."""
APPROVE: Final = "approve"
"""Decide approval requests."""
GRANT: Final = "grant"
"""Approve coming runs of procedures."""
UNDO: Final = "undo"
"""Undo runs that have ended."""
STOP: Final = "stop"
"""Cancel runs, and pause, change or delete schedules."""
RIGHTS: Final = {
    READ: "read and watch the tenant's runs and sessions",
    SEND: "start runs, send messages to sessions and runs, create and resume schedules",
    APPROVE: "decide approval requests",
    GRANT: "grant and revoke standing approvals of procedures",
    UNDO: "undo runs that have ended",
    STOP: "cancel a run, send /stop, and pause, change or delete a schedule",
    "new": "send /new to a session",
    "reset": "send /reset to a session",
    "withdraw": "withdraw other senders' messages",
    "redeliver": "deliver a reply with the status unknown again",
    "compact": "compact a session",
    "agent": "change a session's agent",
    "delete": "delete a session",
    EVERYTHING: "everything",
}
"""The valid rights of a token, with the words for errors. `read` and `send` are the gateway's own; a session checks the others."""
UNSIGNED: Final = "from "
"""The prefix of an address that replaces the token's id: the caller's signature is not verified yet."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller whose token is known."""

    tenant: str
    """The tenant of its runs and sessions; other tenants' are not found (R10.2). Empty: no tenant."""
    sender: str
    """The name that messages, runs and decisions record."""
    rights: frozenset[str]
    """Keys of `RIGHTS`."""
    token: str
    """The token's id, which is not secret: the key of rates, and a field of log lines."""
    roles: frozenset[str] = frozenset()
    """Roles for quorums of approvals (R24.6) and the rule `needs` (R23.1): from the token, never from a body."""
    context: JsonObject = field(default_factory=dict, hash=False, repr=False)
    """Data about the sender for rules, tools, hooks and approvers (R19.1): from the token, never from a body. The token's roles are
    added as `roles`, unless it has this key."""

    def __post_init__(self) -> None:
        if self.roles and "roles" not in self.context:
            object.__setattr__(self, "context", {**self.context, "roles": sorted(self.roles)})

    checked: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)
    """The rights that this request was checked for, and whether the caller has them: for the audit log (R24.4)."""

    def may(self, right: str) -> bool:
        """Whether the caller has the right."""
        return EVERYTHING in self.rights or right in self.rights

    @property
    def name(self) -> str:
        """The sender with its tenant, as in lists of clients: `TENANT/SENDER`."""
        return f"{self.tenant}/{self.sender}" if self.tenant else self.sender

    def signed(self, decision: JsonObject) -> JsonObject:
        """Return the decision with the caller's name and roles, instead of any names in a body."""
        own = {key: value for key, value in decision.items() if key not in ("by", "roles")}
        return own | {"by": self.sender} | ({"roles": sorted(self.roles)} if self.roles else {})

    def check(self, right: str, what: str) -> None:
        """Raise `HttpError` (403) if the caller lacks the right. `what`: the action, for the error's text."""
        self.checked[right] = self.may(right)
        if not self.checked[right]:
            raise HttpError(403, f"{self.sender!r} may not {what}: the right {right!r} is missing", kind="forbidden")


def caller_of(request: Request) -> Caller:
    """Return the caller, whom the frame has identified before it called the route."""
    caller: Caller = request.state.caller
    return caller


def permitted_caller(request: Request, right: str, what: str) -> Caller:
    """Return the caller, who must have a right. Raises as `Caller.check`."""
    caller = caller_of(request)
    caller.check(right, what)
    return caller


PREFIX: Final = "perdure"
"""The prefix of each token, so that secret scanners find it."""
ONE: Final = "token"
"""The id of a token that is a setting, and so the only one."""
FORM: Final = re.compile(rf"{PREFIX}_([0-9a-z]+)_([A-Za-z0-9_-]{{43}})")


def check_token(token: str | None) -> None:
    """Raise `SettingsError` for an empty token: an unset variable would give everybody access."""
    if token is not None and not token.strip():
        raise SettingsError("the token is empty: give one with --token or its variable, or leave both out")


class Tokens(Protocol):
    """The tokens that are valid."""

    def find(self, text: str) -> Caller | None:
        """Return the owner of this token; `None` for an unknown token. Takes the same time for any token."""

    def named(self, id: str) -> Caller | None:
        """Return the owner of the token with this id, while it is valid."""


class OneToken:
    """A single token, with all rights and no tenant. Raises `SettingsError` if it is empty."""

    def __init__(self, text: str) -> None:
        check_token(text)
        self._digest = digest(text)
        self._caller = Caller("", ONE, frozenset({EVERYTHING}), ONE)

    def find(self, text: str) -> Caller | None:
        return self._caller if hmac.compare_digest(digest(text), self._digest) else None

    def named(self, id: str) -> Caller | None:
        return self._caller if id == ONE else None


class NoTokens:
    """No valid tokens: people sign in by a provider only."""

    def find(self, text: str) -> Caller | None:
        del text
        return None

    def named(self, id: str) -> Caller | None:
        del id
        return None


class TokenEntry(BaseModel):
    """A token's entry in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[0-9a-z]{1,32}$")
    """The public part of the token, which names it in the log."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """The digest of the whole token, which is random: its digest does not reveal it."""
    tenant: str = Field(default="", max_length=100)
    sender: str = Field(min_length=1, max_length=200)
    rights: tuple[str, ...] = ("read", "send")
    roles: tuple[Role, ...] = Field(default=(), max_length=MAX_ROLES, exclude_if=operator.not_)
    """Roles for quorums of approvals (R24.6)."""
    expires: datetime | None = None
    """The time from which the token is invalid."""
    context: JsonObject = Field(default_factory=dict, exclude_if=operator.not_)
    """Data about the sender for tools, never for a model (R19.1)."""

    @field_validator("context")
    @classmethod
    def _of_a_context(cls, context: JsonObject) -> JsonObject:
        try:
            return check_context(context)
        except InputError as error:
            raise ValueError(str(error)) from None

    @field_validator("rights")
    @classmethod
    def _known(cls, rights: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := _unknown(rights):
            raise ValueError(f"`{unknown[0]}` is not a valid right (use one of: {', '.join(RIGHTS)})")
        return rights

    @property
    def caller(self) -> Caller:
        return Caller(self.tenant, self.sender, frozenset(self.rights), self.id, frozenset(self.roles), self.context)

    def is_valid(self, now: float) -> bool:
        until = self.expires
        return until is None or (until if until.tzinfo else until.replace(tzinfo=UTC)).timestamp() > now


def new_token(
    tenant: str,
    sender: str,
    rights: Iterable[str],
    expires: datetime | None = None,
    context: JsonObject | None = None,
    roles: Iterable[str] = (),
) -> tuple[str, TokenEntry]:
    """Return a token, which is shown only now, and its entry in the file. Raises `SettingsError` for an invalid tenant, sender, right, role or context."""
    rights = tuple(rights)
    if unknown := _unknown(rights):
        raise SettingsError(f"`{unknown[0]}` is not a valid right. Use one of: {', '.join(RIGHTS)}.")
    id = secrets.token_hex(4)
    text = f"{PREFIX}_{id}_{secrets.token_urlsafe(32)}"
    try:
        of = {"tenant": tenant, "sender": sender, "rights": rights, "expires": expires, "context": context or {}}
        of["roles"] = tuple(roles)
        entry = TokenEntry.model_validate({"id": id, "sha256": digest(text), **of})
    except ValidationError as error:
        raise SettingsError(f"the new token is not valid: {first_problem(error)}") from None
    return text, entry


def _unknown(rights: Iterable[str]) -> list[str]:
    return [right for right in rights if right not in RIGHTS]


def digest(text: str) -> str:
    """Return the digest of a token, in hexadecimal digits."""
    return sha256(text.encode(errors="replace")).hexdigest()


_AGAIN: Final = 1.0
"""Seconds between two checks for changes of the file."""
_NOBODY: Final = sha256(secrets.token_bytes()).hexdigest()


class TokenFile:
    """The tokens of a file: `{"tokens": [{"id", "sha256", "tenant", "sender", "rights", "roles", "expires",
    "context"}]}`.

    A change is read within a second; an invalid change is ignored. Raises `SettingsError` if the file is invalid at
    first.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, report: Callable[[str], None] = print
    ) -> None:
        self._path = path
        self._clock = clock
        self._report = report
        self._entries = {each.id: each for each in read_tokens(path)}
        self._seen, self._looked = self._stamp(), clock()

    def find(self, text: str) -> Caller | None:
        self._look()
        form = FORM.fullmatch(text)
        entry = self._entries.get(form[1]) if form else None
        same = hmac.compare_digest(digest(text), _NOBODY if entry is None else entry.sha256)
        return entry.caller if entry is not None and same and entry.is_valid(self._clock()) else None

    def named(self, id: str) -> Caller | None:
        self._look()
        entry = self._entries.get(id)
        return entry.caller if entry is not None and entry.is_valid(self._clock()) else None

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
            self._report(f"the tokens do not change: {error}")
        else:
            self._report(f"{len(self._entries)} tokens of {self._path}")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def read_tokens(path: Path) -> list[TokenEntry]:
    """Read a file of tokens. Raise `SettingsError` for any other file."""
    written = read_json(path)
    listed = written.get("tokens") if isinstance(written, dict) else None
    try:
        entries = TypeAdapter(list[TokenEntry]).validate_python(listed)
    except ValidationError as error:
        raise SettingsError(f"{path}: $.tokens: {first_problem(error, listed)}") from None
    ids = [each.id for each in entries]
    if twice := next((id for id in ids if ids.count(id) > 1), None):
        raise SettingsError(f"{path}: two tokens have the id {twice!r}")
    return entries


def write_tokens(path: Path, entries: Iterable[TokenEntry]) -> None:
    """Replace the file's tokens atomically: a gateway reads the old file or the new one. Raises `SettingsError`."""
    plain = [entry.model_dump(mode="json", exclude_none=True) for entry in entries]
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:  # only its owner may read it
            file.write(dumps({"tokens": plain}, indent=2) + "\n")
        Path(name).replace(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from None
