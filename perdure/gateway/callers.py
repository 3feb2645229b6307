"""Callers: tenant, sender and rights come from their token, never from a body (R10.2, R10.9)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from perdure.gateway.errors import HttpError
from perdure.sessions.wire import EVERYTHING
from perdure.values.json import JsonObject

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
    READ: "look at the tenant's runs and sessions, and follow them",
    SEND: "start runs, send messages to sessions and runs, create and resume schedules",
    APPROVE: "decide what waits for a person",
    GRANT: "grant and revoke standing approvals of procedures",
    UNDO: "undo runs that have ended",
    STOP: "cancel a run, send /stop, and pause, change or delete a schedule",
    "new": "send /new to a session",
    "reset": "send /reset to a session",
    "withdraw": "withdraw messages of others",
    "redeliver": "deliver a reply again whose delivery is unknown",
    "compact": "compact a session",
    "agent": "have another agent answer in a session",
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
            raise HttpError(403, f"{self.sender!r} may not {what}: it takes the right {right!r}", kind="forbidden")


def caller_of(request: Request) -> Caller:
    """Return the caller, whom the frame has identified before it called the route."""
    caller: Caller = request.state.caller
    return caller
