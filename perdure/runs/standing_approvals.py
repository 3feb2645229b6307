"""Standing approvals: a person's approvals of a procedure's future runs (R23.3).

A standing approval names a procedure by its digest. It applies to a number of runs, until a date, for inputs within
bounds and for values of known sources. The tenant's ledger keeps it and counts its uses: a run is one use, also if
several of its calls need approval.
"""

from __future__ import annotations

import calendar
import hashlib
import operator
import re
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from pydantic import Field, ValidationError, field_validator

from perdure.errors import DecisionError
from perdure.rules import check_sources
from perdure.values.json import Json, JsonObject, SchemaPart, WireModel, dumps, shorten
from perdure.values.limits import MAX_NAME, MAX_STANDING_APPROVALS, MAX_STANDING_BOUNDS, MAX_STANDING_USES
from perdure.values.problems import first_problem, none_of, problem_at
from perdure.values.provenance import TRUSTED
from perdure.values.schemas import Schema, ignored_key

GRANT: Final = "grant_standing_approval"
"""Update of the ledger: keep a standing approval."""
REVOKE: Final = "revoke_standing_approval"
"""Update of the ledger: revoke a standing approval."""
USE: Final = "use_standing_approval"
"""Update of the ledger: use a standing approval in a run."""
STANDING_QUERY: Final = "standing_approvals"
FIND_STANDING_ACTIVITY: Final = "perdure.standing_approvals"
USE_STANDING_ACTIVITY: Final = "perdure.use_standing_approval"
STANDING_SHARED: Final = 5.0
"""Seconds for which calls of a run share the ledger's answer. A revocation may take effect with this delay."""

StandingStatus: TypeAlias = Literal["active", "used up", "expired", "revoked"]
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TIME: Final = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:T(?P<clock>(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d)?)(?:Z|\+00:00))?",
    re.ASCII,
)
_CLOSED: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "title", "description", "$defs", "$schema"}
)
"""The keywords of an input schema that names all its keys in `properties`."""
_DIGEST: Final = r"^sha256:[0-9a-f]{64}$"


class StandingApproval(WireModel):
    """A person's approval of future runs of a procedure.

    ```python
    for standing in await perdure.standing_approvals(tenant="acme"):
        print(standing.name, standing.status, standing.left, standing.until)
    ```
    """

    name: str
    procedure: str = Field(min_length=1, max_length=MAX_NAME)
    """The name of the procedure's agent."""
    digest: str = Field(pattern=_DIGEST)
    """The digest of the procedure: `sha256:…`."""
    bounds: JsonObject = Field(default_factory=dict)
    """A JSON Schema of approved inputs; `{}` approves any valid input."""
    sources: list[str] = Field(default=[TRUSTED], min_length=1, max_length=50)
    """The accepted provenance of the calls' values, besides the procedure itself: `trusted`, `user`, `tool:NAME`, …"""
    uses: int = Field(ge=1, le=MAX_STANDING_USES, strict=True)
    """The largest number of runs."""
    until: str
    """The end, ISO 8601 in UTC."""
    by: str = Field(min_length=1, max_length=MAX_NAME)
    """The person who has granted it."""
    reason: str = Field(default="", max_length=500)
    granted_at: str = ""
    """ISO 8601, UTC."""
    used: int = 0
    """Runs that have used it."""
    revoked_at: str = Field(default="", exclude_if=operator.not_)
    revoked_by: str = Field(default="", exclude_if=operator.not_)
    status: StandingStatus = "active"

    @property
    def left(self) -> int:
        """The uses that are left; 0 if it is expired or revoked."""
        return self.uses - self.used if self.status == "active" else 0

    @field_validator("name")
    @classmethod
    def _as_a_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError("is not a valid name. Use letters, digits, '.', '_' and '-'")
        return name

    @field_validator("bounds")
    @classmethod
    def _usable(cls, bounds: JsonObject) -> JsonObject:
        if problem := Schema(bounds).problem:
            raise ValueError(f"is not a JSON Schema: {problem}")
        if len(dumps(bounds)) > MAX_STANDING_BOUNDS:
            raise ValueError(f"has more than {MAX_STANDING_BOUNDS:,} characters")
        return bounds

    @field_validator("sources")
    @classmethod
    def _known(cls, sources: list[str]) -> list[str]:
        return check_sources(sources)

    @field_validator("until")
    @classmethod
    def _as_a_time(cls, until: str) -> str:
        return _end_of(until)

    def problem(self, value: Json) -> str | None:
        """Return the reason why the approval does not apply to a run with this input, or `None`."""
        if not self.bounds:
            return None
        problems = Schema(self.bounds).errors(value)
        return f"the input is out of its bounds: {problems[0]}" if problems else None


def check_bounds(bounds: JsonObject, input_schema: SchemaPart) -> None:
    """Raise `DecisionError` for a part of the bounds that has no effect: the input would not be bounded by it."""
    if key := ignored_key(bounds):
        raise DecisionError(
            f"the standing approval is not valid: {shorten(key, 60)} is not a keyword of JSON Schema at $.bounds;"
            ' use {"properties": {"euros": {"maximum": 100}}}'
        )
    if not isinstance(input_schema, dict) or not {"properties"} <= input_schema.keys() <= _CLOSED:
        return
    known, bounded = input_schema["properties"], bounds.get("properties")
    for name in bounded if isinstance(bounded, dict) else ():
        if name not in known:
            wrong = problem_at(("bounds", "properties", name), none_of(name, "input of the procedure", sorted(known)))
            raise DecisionError(f"the standing approval is not valid: {wrong}")


def parse_standing_approval(given: Json) -> StandingApproval:
    """Parse a standing approval. Raise `DecisionError` with the problem."""
    try:
        return StandingApproval.model_validate(given)
    except ValidationError as error:
        raise DecisionError(
            f"the standing approval is not valid: {first_problem(error, given, model=StandingApproval)}"
        ) from None


def _end_of(until: str) -> str:
    """Return a date's last second, or a time, in UTC: `2026-12-31` is `2026-12-31T23:59:59+00:00`."""
    found = _TIME.fullmatch(until)
    if found is None or not 1 <= int(found["day"]) <= _days(int(found["year"]), int(found["month"])):
        raise ValueError(
            f"must be a date or a time in UTC, such as 2026-12-31 or 2026-12-31T12:00:00Z, not {shorten(until, 60)}"
        )
    clock = found["clock"] or "23:59:59"
    return f"{found['year']}-{found['month']}-{found['day']}T{clock}{':00' if len(clock) == 5 else ''}+00:00"


def _days(year: int, month: int) -> int:
    return calendar.monthrange(year, month)[1] if year and 1 <= month <= 12 else 0


# The ledger's part.


class StandingRecord(WireModel):
    """A standing approval in the ledger, with the runs that have used it."""

    approval: StandingApproval
    runs: list[str] = Field(default_factory=list)
    """Digests of the ids of the runs."""

    def view(self, now: str) -> StandingApproval:
        """Return the approval with its present status. `now`: ISO 8601, UTC, to the second."""
        approval = self.approval
        status: StandingStatus = (
            "revoked"
            if approval.revoked_at
            else "expired"
            if now > approval.until
            else "used up"
            if approval.used >= approval.uses
            else "active"
        )
        return approval.model_copy(update={"status": status})


class StandingRevocation(WireModel):
    """The end of a standing approval before its time."""

    name: str
    by: str = ""


class StandingUse(WireModel):
    """The use of a standing approval in a run. All repetitions in a run are one use."""

    name: str
    digest: str
    run: str
    """The run's id."""


class StandingClaim(WireModel):
    """The standing approvals that apply to a run's input, for the parts of its loops: they count as the same run."""

    digest: str
    run: str
    names: list[str]


class StandingAnswer(WireModel):
    """The answer of a ledger: the approval with its present status, or the reason why it does not apply."""

    refused: str = ""
    approval: StandingApproval | None = None


class FindStandingInput(WireModel):
    """The input of the activity that finds the approvals of a procedure."""

    tenant: str
    digest: str


class UseStandingInput(WireModel):
    """The input of the activity that uses an approval."""

    tenant: str
    use: StandingUse


class StandingBook:
    """The standing approvals of one tenant."""

    def __init__(self, records: Iterable[StandingRecord] = ()) -> None:
        self._records = {record.approval.name: record for record in records}

    @property
    def records(self) -> list[StandingRecord]:
        """The state, for a new execution."""
        return list(self._records.values())

    def views(self, now: str) -> list[StandingApproval]:
        """Return all approvals with their present status, the newest first."""
        return [record.view(now) for record in reversed(self._records.values())]

    def grant(self, wanted: StandingApproval, now: str) -> StandingAnswer:
        """Keep an approval. It replaces an expired, revoked or used-up approval of its name. If there are too many, the
        oldest of these is removed.
        """
        known = self._records.get(wanted.name)
        if known is not None and known.view(now).status == "active":
            return StandingAnswer(
                refused=f"there is a standing approval {wanted.name} already: revoke it, or use another name"
            )
        if now > wanted.until:
            return StandingAnswer(refused=f"the standing approval would have ended at {wanted.until} (UTC)")
        self._records.pop(wanted.name, None)
        if len(self._records) >= MAX_STANDING_APPROVALS:
            over = next((name for name, each in self._records.items() if each.view(now).status != "active"), None)
            if over is None:
                return StandingAnswer(
                    refused=f"the tenant has {MAX_STANDING_APPROVALS} standing approvals, which is the limit: revoke one"
                )
            del self._records[over]
        fresh = {"used": 0, "revoked_at": "", "revoked_by": "", "status": "active", "granted_at": now}
        record = self._records[wanted.name] = StandingRecord(approval=wanted.model_copy(update=fresh))
        return StandingAnswer(approval=record.view(now))

    def revoke(self, wanted: StandingRevocation, now: str) -> StandingAnswer:
        """Revoke an approval. A revoked approval stays unchanged."""
        record = self._records.get(wanted.name)
        if record is None:
            return StandingAnswer(refused=f"there is no standing approval {wanted.name[:MAX_NAME]}")
        if not record.approval.revoked_at:
            record.approval = record.approval.model_copy(update={"revoked_at": now, "revoked_by": wanted.by[:MAX_NAME]})
            record.runs = []
        return StandingAnswer(approval=record.view(now))

    def use(self, wanted: StandingUse, now: str) -> StandingAnswer:
        """Count a run, unless it was counted before; the answer has the reason if the approval does not apply to it."""
        record = self._records.get(wanted.name)
        if record is None or record.approval.digest != wanted.digest:
            return StandingAnswer(refused=f"there is no standing approval {wanted.name[:MAX_NAME]} of this procedure")
        key = hashlib.sha256(wanted.run.encode(errors="surrogatepass")).hexdigest()[:16]
        view = record.view(now)
        if view.status in ("revoked", "expired") or (view.status == "used up" and key not in record.runs):
            return StandingAnswer(refused=f"it is {view.status}")
        if key not in record.runs:
            record.runs.append(key)
            record.approval = record.approval.model_copy(update={"used": record.approval.used + 1})
        return StandingAnswer(approval=record.view(now))
