"""Quorums: the number of people who must approve a call, their roles, and the people who may not (R24.6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from perdure.values.json import Json, WireModel
from perdure.values.limits import MAX_APPROVERS, MAX_NAME, MAX_ROLES, Seconds

Role: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Roles: TypeAlias = Annotated[list[Role], Field(max_length=MAX_ROLES)]
QUORUM_KEYS: Final = frozenset(("by", "roles", "not", "escalate"))
"""Keys by which a rule of an approval policy sets a quorum."""


class Approver(WireModel):
    """A person who has approved a call.

    ```python
    for request in await run.waiting():
        print(request.call, [each.by for each in request.approvers], request.missing)
    ```
    """

    by: str
    roles: list[str] = Field(default_factory=list)
    """Their roles, as the gateway's token or the sender of the decision names them."""
    at: str
    """ISO 8601, UTC."""
    waited: float = 0.0
    """Seconds from the request until then."""


class Escalation(BaseModel):
    """Roles that may approve too, once a request has waited so long."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: Seconds
    """Seconds from the request."""
    roles: Roles = Field(min_length=1)


class Quorum(BaseModel):
    """The people whose approvals one call needs: `{"by": 2, "roles": ["finance"], "not": "requester"}`.

    A rejection needs no quorum: anybody who may decide can reject.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    by: int = Field(default=1, ge=1, le=MAX_APPROVERS, strict=True)
    """The number of different people."""
    roles: Roles = Field(default_factory=list)
    """Each of them has one of these roles; an empty list permits everybody who may decide."""
    excluded: Literal["requester"] | None = Field(default=None, alias="not")
    """`requester`: the people who have sent the run its messages may not approve."""
    escalate: Escalation | None = None

    @model_validator(mode="after")
    def _roles_to_escalate_from(self) -> Quorum:
        if self.escalate is not None and not self.roles:
            raise ValueError("'escalate' needs 'roles': without 'roles', everybody may approve")
        return self

    def objection(self, who: Approver, requesters: Sequence[str]) -> str | None:
        """Return the reason why this person's approval does not count, or `None`."""
        if self.excluded is not None and any(_same(who.by, each) for each in requesters):
            return f"{who.by} requested the call, so another person must approve it"
        roles = self._roles_after(who.waited)
        if roles and not roles & {*who.roles}:
            return f"an approval needs {_role_words(sorted(roles))}, which {who.by} does not have"
        return None

    def missing(self, approvers: Sequence[Approver], requesters: Sequence[str]) -> int:
        """Return the number of missing approvals."""
        counted = [each for each in approvers if self.objection(each, requesters) is None]
        return max(self.by - len(counted), 0)

    def words(self, missing: int, requesters: Sequence[str]) -> str:
        """Return the missing approvals in words: `2 approvals with the role finance, not by ann`."""
        count = f"{missing} {'more ' if missing < self.by else ''}approval{'' if missing == 1 else 's'}"
        roles = f" with {_role_words(self.roles)}" if self.roles else ""
        later = self.escalate
        escalated = "" if later is None else f" (after {later.after:g} s also with {_role_words(later.roles)})"
        others = f", not by {' or '.join(requesters)}" if self.excluded is not None and requesters else ""
        return f"{count}{roles}{escalated}{others}"

    def _roles_after(self, waited: float) -> set[str]:
        """Return the roles of which an approver needs one after this many seconds."""
        later = self.escalate
        return {*self.roles, *(later.roles if later is not None and waited >= later.after else ())}


def quorum_of(rule: Json) -> Quorum | None:
    """Return the quorum of a policy's rule about a tool; `None` if it sets none. Raises `ValidationError`."""
    if not isinstance(rule, dict) or not QUORUM_KEYS & rule.keys():
        return None
    found: Quorum = Quorum.model_validate({key: value for key, value in rule.items() if key != "when"})
    return found


def merge_quorums(*lists: Iterable[Quorum]) -> list[Quorum]:
    """Return the quorums of all lists, each once, in their order."""
    found: list[Quorum] = []
    for quorum in chain.from_iterable(lists):
        if quorum not in found:
            found.append(quorum)
    return found


def approval_problem(
    quorums: Sequence[Quorum], who: Approver, approvers: Sequence[Approver], requesters: Sequence[str]
) -> str | None:
    """Return the reason why an approval counts for no quorum, or `None`."""
    if not who.by:
        return f"it needs {missing_words(quorums, approvers, requesters)}: give the deciding person as 'by'"
    if any(_same(who.by, each.by) for each in approvers):
        return f"{who.by} has already approved it"
    objections = [quorum.objection(who, requesters) for quorum in quorums]
    return objections[0] if all(objections) else None


def missing_words(quorums: Sequence[Quorum], approvers: Sequence[Approver], requesters: Sequence[str]) -> str:
    """Return the missing approvals as text; an empty text if there are none."""
    counts = [(quorum, quorum.missing(approvers, requesters)) for quorum in quorums]
    return " and ".join(quorum.words(count, requesters) for quorum, count in counts if count)


def _role_words(roles: Sequence[str]) -> str:
    return f"the role {roles[0]}" if len(roles) == 1 else f"one of the roles {', '.join(roles)}"


def _same(one: str, other: str) -> bool:
    """Whether two names belong to one person: names that differ only in case or spaces would let a person approve
    twice.
    """
    return " ".join(one.casefold().split()) == " ".join(other.casefold().split())
