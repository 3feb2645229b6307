"""The audit log: decisions, refusals and used rights, in lines that are chained by digests.

Each line holds the digest of the line before it. So a line that was changed, removed or moved shows when the chain is
verified. Parameters and policies are in it as digests alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final, Literal, NamedTuple, TypeAlias

from pydantic import Field, ValidationError

from perdure.approvals.decisions import digest
from perdure.approvals.queue import REJECTED_BY_POLICY
from perdure.approvals.requests import ApprovalRequest, JudgedDecision
from perdure.errors import AuditError, JsonError, clip
from perdure.plan import Call
from perdure.rules import RULE_BROKEN
from perdure.runs.standing_approvals import StandingApproval
from perdure.values.json import Json, JsonObject, WireModel, dumps, loads
from perdure.values.limits import (
    MAX_AUDIT_BATCH,
    MAX_AUDIT_DATA,
    MAX_AUDIT_TEXT,
    MAX_AUDITED_AT_ONCE,
    MAX_KEPT_AUDIT_KEYS,
    MAX_PAYLOAD,
)
from perdure.values.sizes import clip_text, text_size

AUDIT_WORKFLOW: Final = "Audit"
RECORD: Final = "record"
"""Signal of the audit workflow: an `AuditBatch`."""
AUDIT_ACTIVITY: Final = "perdure.audit"
"""Activity: send entries to the audit workflow, which it starts."""
WRITE_AUDIT_ACTIVITY: Final = "perdure.write_audit"
"""Activity: write lines to the sink."""
DATABASES: Final = ("postgresql://", "postgres://")
"""Beginnings of the addresses of databases."""
AUDIT_PATCH: Final = "audit"
"""Patch of a session or a ledger: recorded where the worker has an audit sink."""
ALL_CHANGES_AUDITED_PATCH: Final = "all-changes-audited"
"""Patch of a ledger: it sends the last changes of standing approvals before it continues as new."""
BOUNDED_AUDIT_PATCH: Final = "bounded-audit"
"""Patch of an audit log, and of workflows that send it entries: recorded where one activity cannot carry all of them. Before,
the task failed."""

AuditAction: TypeAlias = Literal[
    "decision", "refusal", "policy_change", "right_used", "session_deletion", "standing_approval", "undo", "erasure"
]
AuditData: TypeAlias = dict[str, Json]


def audit_id(task_queue: str) -> str:
    """Return the id of the audit workflow of a task queue."""
    return f"perdure-audit-{sha256(task_queue.encode(errors='surrogatepass')).hexdigest()[:32]}"


class AuditEntry(WireModel):
    """Something that is audited, before it has a number."""

    key: str
    """Two deliveries of an entry with the same key make one line."""
    at: str
    """ISO 8601, UTC, to the millisecond."""
    action: AuditAction
    by: str = ""
    """The name of the person or program; empty where it is not known."""
    tenant: str = ""
    session: str = ""
    run: str = ""
    data: JsonObject = Field(default_factory=dict)


class AuditBatch(WireModel):
    """Entries for the audit workflow, the oldest first."""

    entries: list[AuditEntry]


class AuditTrail:
    """The entries of one execution that the audit workflow does not have yet."""

    def __init__(self, run_id: str = "") -> None:
        self._run_id = run_id
        self._added: list[tuple[AuditAction, str, AuditData]] = []
        self._sent = 0
        self._is_wanted = True
        self._prefix = self._tenant = self._session = ""

    def begin(self, *, is_wanted: bool, execution: str, tenant: str, session: str) -> None:
        """Set whether there is a sink, and the owner of the entries. `execution`: its id, for the keys."""
        self._is_wanted = is_wanted
        self._prefix = execution
        self._tenant, self._session = clip(tenant, MAX_AUDIT_TEXT), clip(session, MAX_AUDIT_TEXT)
        if not is_wanted:
            self._added.clear()

    @property
    def is_pending(self) -> bool:
        """Whether there are entries to send."""
        return bool(self._added)

    def add(self, action: AuditAction, at: str, data: AuditData) -> None:
        """Add an entry. A `None` in `data` is left out, and a long text is cut."""
        if self._is_wanted:
            self._added.append((action, at, data))

    def take(self) -> AuditBatch:
        """Return the oldest entries that fit one activity, which are sent next."""
        owner = {"tenant": self._tenant, "session": self._session, "run": self._run_id}
        entries = [
            entry(action, at, f"{self._run_id}/{self._prefix}/{number}", data).model_copy(update=owner)
            for number, (action, at, data) in enumerate(self._added[:MAX_AUDITED_AT_ONCE], self._sent + 1)
        ]
        count = count_fitting(entries, MAX_AUDIT_BATCH)
        self._sent += count
        del self._added[:count]
        return AuditBatch(entries=entries[:count])


def count_fitting(items: Sequence[WireModel], limit: int) -> int:
    """Return how many of the first items have at most `limit` bytes of JSON together; 1 at least."""
    size = 0
    for place, each in enumerate(items):
        size += _size(each) + 1
        if place and size > limit:
            return place
    return len(items)


def _size(item: WireModel) -> int:
    return len(dumps(item.as_json()).encode(errors="surrogatepass"))


def entry(action: AuditAction, at: str, key: str, data: AuditData) -> AuditEntry:
    """Return an entry; `by` in its data names the person or program that acted.

    Long texts are cut. Data of more than `MAX_AUDIT_DATA` bytes is cut too, and then has digests of the whole values.
    """
    rest = {name: value for name, value in data.items() if name != "by" and value not in (None, "", [], False)}
    by = clip(str(data.get("by") or ""), MAX_AUDIT_TEXT)
    return AuditEntry(key=key, at=at, action=action, by=by, data=_cut_data(rest))


def _cut_data(data: JsonObject) -> JsonObject:
    cut = {name: clip(each, MAX_AUDIT_TEXT) if isinstance(each, str) else each for name, each in data.items()}
    if len(dumps(cut).encode(errors="surrogatepass")) <= MAX_AUDIT_DATA:
        return cut
    room = MAX_AUDIT_DATA // len(data)
    return {name: _cut_value(value, room) for name, value in data.items()}


def _cut_value(value: Json, room: int) -> Json:
    """Return a value of at most `room` bytes of JSON: of a larger one the beginning, its length and its digest."""
    text = value if isinstance(value, str) else dumps(value)
    if text_size(text) <= room:
        return value
    note = f" … ({len(text):,} characters, digest {digest(value)})"
    return clip_text(text, room - len(note.encode())) + note


# Entries of a run.


def decision_data(judged: JudgedDecision, missing: str) -> AuditData:
    """Return the data of a decision. `digest`: of the shown request; `changed`: of the decision's changes.

    `missing`: the approvals of others that a quorum still needs.
    """
    decision, request = judged.decision, judged.request
    added = (decision.params, decision.calls, decision.replacement, decision.answer)
    changed = next((each for each in added if each is not None), None)
    return {
        "call": request.id,
        "tool": _tool_of(request),
        "decision": decision.decision,
        "by": decision.by,
        "roles": list(decision.roles),
        "reason": decision.reason,
        "via": decision.via,
        "program": not judged.by_person,
        "remember": decision.remember,
        "endorse": decision.endorse if isinstance(decision.endorse, bool) else list(decision.endorse),
        "digest": request.digest,
        "changed": None if changed is None else digest(changed),
        "missing": missing,
    }


def timeout_data(request: ApprovalRequest) -> AuditData | None:
    """Return the data of a decision by the policy's timeout; `None` for another end of the request."""
    approval = request.approval
    if approval.by != "timeout" and approval.decision != "timeout":
        return None
    tool, decision = _tool_of(request), approval.decision
    about: AuditData = {"call": request.id, "tool": tool, "decision": decision, "by": "timeout"}
    return about | {"reason": approval.reason, "digest": request.digest}


def refusal_data(call: Call) -> AuditData | None:
    """Return the data of a call that a rule or the policy has rejected; `None` for another end of the call."""
    error = call.state.error
    if error is not None and error.code == RULE_BROKEN:
        by, reason = "rule", error.message
    elif (
        call.state.status == "rejected"
        and call.state.reason.startswith(REJECTED_BY_POLICY)
        and (call.approval is None or call.approval.decision != "reject")  # a person may have any name
    ):
        by, reason = "policy", call.state.reason
    else:
        return None
    shown = digest(call.inputs.params)
    return {"call": call.id, "tool": call.spec.tool_name, "by": by, "reason": reason, "digest": shown}


def refused_decision_data(sent: Json, problem: str) -> AuditData:
    """Return the data of a decision, or a change of policy, that changed nothing."""
    raw = sent if isinstance(sent, dict) else {}
    named = {name: value for name in ("call", "decision", "by") if isinstance(value := raw.get(name), str)}
    return {**named, "reason": problem, "changed": _digest_of_any(sent)}


def _digest_of_any(sent: object) -> str:
    """Return a digest of a received value, which may not be JSON."""
    try:
        return digest(sent)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):
        return digest(f"{type(sent).__name__}: {sent!r}"[:MAX_AUDIT_TEXT])


def policy_data(change: Json) -> AuditData:
    """Return the data of a change of policy: the calls that need approval, and the digest of the whole change."""
    asked = change.get("ask") if isinstance(change, dict) else None
    return {"ask": asked, "changed": digest(change)}


def standing_data(change: str, by: str, approval: StandingApproval) -> AuditData:
    """Return the data of a standing approval that was granted or revoked; its bounds as a digest."""
    return {
        "change": change,
        "by": by,
        "name": approval.name,
        "procedure": approval.procedure,
        "digest": approval.digest,
        "bounds": digest(approval.bounds) if approval.bounds else None,
        "sources": [*approval.sources],
        "uses": approval.uses,
        "used": approval.used,
        "until": approval.until,
        "reason": approval.reason,
    }


def _tool_of(request: ApprovalRequest) -> str:
    return "" if request.call is None else request.call.spec.tool_name


# The chain.


class AuditLine(WireModel):
    """A line of the log: its number, its entry, and the digest of the line before it."""

    number: int
    """1 for the first."""
    entry: AuditEntry
    previous: str
    """Digest of the line before it; empty in the first."""
    digest: str
    """SHA-256 of the line without this digest, as JSON with sorted keys."""

    def text(self) -> str:
        """Return the line as the sink holds it, without its end."""
        return dumps(self.as_json())


def _digest(number: int, entry: Json, previous: str) -> str:
    plain = {"number": number, "entry": entry, "previous": previous}
    return sha256(dumps(plain, sort_keys=True).encode(errors="surrogatepass")).hexdigest()


_LINE_FRAME: Final = 1_000
"""Bytes of a line beside its entry."""


def _cut_entry(sent: AuditEntry) -> AuditEntry:
    """Return an entry that another program has sent, with each of its texts cut."""
    texts = {name: clip(value, MAX_AUDIT_TEXT) for name, value in sent if isinstance(value, str)}
    return sent.model_copy(update={**texts, "data": {"cut": _cut_value(sent.data, MAX_AUDIT_DATA)}})


class AuditState(WireModel):
    """The state of an audit log: lines that the sink does not have, and where the chain ends."""

    count: int = 0
    last: str = ""
    """Digest of the last line."""
    pending: list[AuditLine] = Field(default_factory=list)
    """Lines that the sink does not have yet, the oldest first."""
    keys: list[str] = Field(default_factory=list)
    """Digests of the newest keys."""


class AuditLog:
    """Numbers and chains entries, and keeps the lines until the sink has them.

    `is_bounded`: whether lines that one activity cannot carry are cut or wait. It is asked about such lines only.
    """

    def __init__(self, state: AuditState | None = None, is_bounded: Callable[[], bool] = lambda: True) -> None:
        self.state = state or AuditState()
        self._is_bounded = is_bounded
        self._known = dict.fromkeys(self.state.keys)

    def record(self, batch: AuditBatch) -> None:
        """Append the entries, each key once."""
        state = self.state
        for sent in batch.entries:
            key = sha256(sent.key.encode(errors="surrogatepass")).hexdigest()[:16]
            if key in self._known:
                continue
            self._known[key] = None
            if len(self._known) > MAX_KEPT_AUDIT_KEYS:
                del self._known[next(iter(self._known))]
            is_cut = _size(sent) > MAX_PAYLOAD - _LINE_FRAME and self._is_bounded()
            each = _cut_entry(sent) if is_cut else sent
            state.count += 1
            found = _digest(state.count, each.as_json(), state.last)
            state.pending.append(AuditLine(number=state.count, entry=each, previous=state.last, digest=found))
            state.last = found

    def oldest(self) -> list[AuditLine]:
        """Return the oldest lines that one activity can carry, one at least."""
        lines = self.state.pending[:MAX_AUDITED_AT_ONCE]
        count = count_fitting(lines, MAX_PAYLOAD)
        return lines[:count] if count < len(lines) and self._is_bounded() else lines

    def delivered(self, count: int) -> None:
        """Forget the oldest lines: the sink has them."""
        del self.state.pending[:count]

    def carried(self) -> AuditState:
        """Return the state for a new execution."""
        return self.state.model_copy(update={"keys": list(self._known)})


class VerifiedChain(NamedTuple):
    """A chain without a gap or a change."""

    first: int = 0
    """Number of the first line; 0: there is none."""
    last: int = 0
    digest: str = ""
    """Digest of the last line."""


def verify_chain(
    lines: Iterable[str], before: VerifiedChain | None = None, *, source: str = "line", start: int = 1
) -> VerifiedChain:
    """Return the chain of these lines. `before`: the chain of the lines before them; `start`: the first line's place.

    Raises `AuditError` for the first line that was changed, or before which lines are missing.
    """
    first, last, previous = before or VerifiedChain()
    for place, text in enumerate(lines, start):
        at = f"{source} {place}"
        try:
            line = AuditLine.model_validate(raw := loads(text))
        except (JsonError, ValidationError):
            raise AuditError(f"{at} is not a line of an audit log") from None
        assert isinstance(raw, dict)
        if set(raw) != {"number", "entry", "previous", "digest"} or line.digest != _digest(
            line.number, raw["entry"], line.previous
        ):
            raise AuditError(f"{at} (number {line.number}) was changed: its digest does not match")
        if first and line.number != last + 1:
            raise AuditError(
                f"{at} has the number {line.number}, and {last + 1} is expected: lines were removed or moved"
            )
        if (first or line.number == 1) and line.previous != previous:
            raise AuditError(f"{at} (number {line.number}) does not match the previous line, which was changed")
        first, last, previous = first or line.number, line.number, line.digest
    return VerifiedChain(first, last, previous)
