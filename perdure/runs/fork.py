"""Forks: a run that begins with the record of another one.

The client makes the record (`record_fork`) from the calls of the other run, which a replay of its history returns. The
fork's input holds the record. The record answers Requests before the point, and calls with the same tool, parameters
and read values. All other calls run.

A call that a hook has changed is the same if it is written as the recorded one was, before the hook, or as it was made.
It is answered before its hooks would see it, and has the parameters with which it was made.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

from pydantic import Field

from perdure.errors import CallError, RunError
from perdure.models.requests import RequestResult
from perdure.models.usage import Usage
from perdure.plan import Call, Failed, Outcome, Rejected, Returned, take_changed
from perdure.tools.tool import UNDO
from perdure.values.json import Json, JsonObject, WireModel, dumps
from perdure.values.limits import CheckBudget

FORK_FORM: Final = 1
"""Form of a packed `ForkRecord`."""
POINT: Final = re.compile(r"(?P<request>[1-9]\d{0,8})|(?P<plan>\d{1,9})\.(?P<index>\d{1,9})")
ENGINE_KEYS: Final = frozenset({"_id", "_source"})


class ForkPoint(WireModel):
    """The point of a run at which a fork begins: before a Request, or before a call."""

    request: int
    """The first Request that the fork makes itself."""
    call: str | None = None
    """The call before which the fork begins: its Request is answered from the record."""

    @classmethod
    def parse(cls, text: str) -> ForkPoint:
        """Return the point that is written as `R` or `R.N`. Raises `RunError`."""
        if (found := POINT.fullmatch(text)) is None:
            raise RunError(f"{text[:40]!r} is not a point of a run. Use R for a Request (2), or R.N for a call (2.1)")
        if found["request"] is not None:
            return cls(request=int(found["request"]))
        return cls(request=int(found["plan"]) + 1, call=f"{int(found['plan'])}.{int(found['index'])}")


class RecordedAnswer(WireModel):
    """The answer of one Request of the other run, with a person's edits of its calls."""

    number: int
    model: str = ""
    result: RequestResult


class HookedCall(WireModel):
    """A call whose parameters hooks have changed: as it was written, and as it was made."""

    key: str
    """`call_key` of the call without the changes of hooks."""
    params: JsonObject
    """The parameters with which it was made."""
    by: list[str]
    """The names of the hooks."""


class RecordedCall(WireModel):
    """A call of the other run that has ended."""

    id: str
    key: str = ""
    """`call_key` of the call as it was made; empty: a result that the fork's user has set, for the call of this id with
    any parameters."""
    hooked: HookedCall | None = Field(default=None, exclude_if=lambda hooked: hooked is None)
    """The change of its parameters by hooks, if there was one."""
    ended: Literal["returned", "failed", "rejected"] = "returned"
    value: Json = None
    branch: str | None = None
    parts: list[tuple[list[str | int], Json]] | None = None
    sources: list[str] = Field(default_factory=list)
    recalled: bool = False
    error: JsonObject | None = None
    carried_out: bool | None = Field(default=False, exclude_if=lambda carried_out: carried_out is False)
    some_done: bool | None = Field(default=False, exclude_if=lambda some_done: some_done is False)
    child_calls: JsonObject | None = Field(default=None, exclude_if=lambda child_calls: child_calls is None)
    """`ChildCalls` of its child run."""
    reason: str = ""
    notes: list[JsonObject] = Field(default_factory=list)
    before: bool = False
    """Whether it ended before the point: then a failure or a rejection counts too."""
    decided: bool = False
    """Whether it had an approval request."""

    def has_key(self, key: str, *, decided: bool) -> bool:
        """Whether a call with this key is the same call. A call that is `decided` has its final parameters."""
        return key == self.key or (not decided and self.hooked is not None and key == self.hooked.key)

    def outcome(self) -> Outcome:
        """Return the outcome of the call."""
        sources = frozenset(self.sources)
        if self.ended == "rejected":
            return Rejected(self.reason)
        if self.ended == "failed":
            return Failed(_error(self.error or {}), sources, self.carried_out)
        parts = None if self.parts is None else {tuple(path): value for path, value in self.parts}
        return Returned(self.value, self.branch, parts, sources, self.recalled)


class ForkRecord(WireModel):
    """The record with which a fork begins."""

    run_id: str
    point: ForkPoint
    answers: list[RecordedAnswer] = Field(default_factory=list)
    calls: list[RecordedCall] = Field(default_factory=list)
    end: str | None = Field(default=None, exclude_if=lambda end: end is None)
    """How an imported run ended where it ran (R24.5). The imported run makes no Request and no call of its own."""


class Fork:
    """The record of another run, as a fork uses it: each recorded call answers one call."""

    def __init__(self, record: ForkRecord) -> None:
        self.record = record
        self._answers = {each.number: each for each in record.answers}
        self._calls = {each.id: each for each in record.calls}
        self._by_key: dict[str, list[str]] = {}
        for each in record.calls:
            if each.key and each.ended == "returned":
                for key in {each.key} | (set() if each.hooked is None else {each.hooked.key}):
                    self._by_key.setdefault(key, []).append(each.id)

    @property
    def title(self) -> str:
        """The other run, and the point."""
        return f"{self.record.run_id} at {self.record.point.call or self.record.point.request}"

    @property
    def end_reason(self) -> str:
        """The reason why an imported run ends where its record ends."""
        return f"the record of {self.record.run_id} ends here: {self.record.end}"

    def answer(self, number: int) -> RecordedAnswer | None:
        """Return the recorded answer of a Request before the point."""
        return self._answers.get(number)

    def take(self, call: Call, key: str, *, decided: bool, checks: CheckBudget | None = None) -> Outcome | None:
        """Return the outcome of the same recorded call, and use it up; `None`: the call has to run.

        `decided`: the call needs no further approval. A decision at the point is made anew. The call gets the parameters
        with which the recorded one was made; if they do not fit its tool any more, it is another call.
        """
        found = self._find(call, key, decided=decided)
        if found is not None and (hooked := found.hooked) is not None:
            found = found if take_changed(call, hooked.params, checks, by=hooked.by) is None else None
        if found is None:
            return None if self.record.end is None else Failed(CallError("not_recorded", self.end_reason))
        del self._calls[found.id]
        call.state.recorded = True
        call.state.notes, call.state.some_done = [_error(note) for note in found.notes], found.some_done
        call.state.child_calls = found.child_calls
        return found.outcome()

    def _find(self, call: Call, key: str, *, decided: bool) -> RecordedCall | None:
        own = self._calls.get(call.id)
        if own is not None and call.id == self.record.point.call and own.decided and not decided:
            return None
        if own is not None and (not own.key or own.has_key(key, decided=decided)):
            return own if own.before or own.ended == "returned" else None
        same = (self._calls[id] for id in self._by_key.get(key, ()) if id in self._calls)
        return next((each for each in same if each.has_key(key, decided=decided)), None)

    def may_answer(self, call: Call) -> bool:
        """Whether the record has a result for the call from before the point, if the call reads the same values."""
        own = self._calls.get(call.id)
        return own is not None and own.before and own.ended == "returned"

    def remaining(self, number: int) -> ForkRecord:
        """Return the part of the record that calls and Requests after Request `number` may still use."""
        answers = [each for each in self.record.answers if each.number > number]
        return self.record.model_copy(update={"answers": answers, "calls": [*self._calls.values()]})


def call_key(call: Call, base: Mapping[str, Json], params: JsonObject) -> str:
    """Return the digest of a call's tool, resolved parameters and items, and the data of its scopes.

    `base` is the data of the run by kind. `params` are the parameters of the call, with or without the changes of hooks.
    """
    inputs, spec = call.inputs, call.spec
    read: list[Json] = [spec.tool_name, spec.output, params, inputs.items, inputs.item_values]
    if spec.scopes:
        read += [
            [*spec.scopes],
            {kind: value for kind, value in base.items() if any(kind in each for each in spec.scopes)},
        ]
    if spec.loop is not None:
        read += [spec.raw, {str(reference): value for reference, value in inputs.outside.items()}]
    elif spec.repeats:
        read.append({name: value for name, value in spec.raw.items() if name in ("_until", "_max", "_while")})
    return hashlib.sha256(dumps(read, sort_keys=True).encode(errors="replace")).hexdigest()[:24]


def record_fork(
    run_id: str,
    point: ForkPoint,
    answers: Iterable[RecordedAnswer],
    calls: Iterable[Call],
    edits: Mapping[str, JsonObject],
    results: Mapping[str, Json],
    undone: Collection[str] = (),
) -> ForkRecord:
    """Return the record for a fork of a run at a point.

    `edits`: by call id the keys of the call that differ; `null` removes a key. `results`: by call id the value that it
    returns in place of its own result. `undone`: ids of the calls whose effects were undone: they run again, unless the
    run itself undid them before the point. Raises `RunError` for a point or a call that the run does not have, or that
    is after the point.
    """
    known = {call.id: call for call in calls}
    kept = {each.number: each for each in answers if each.number < point.request}
    missing = [number for number in range(1, point.request) if number not in kept]
    if missing or (point.call is not None and point.call not in known):
        raise RunError(
            f"{run_id} has no point {point.call or point.request}. Print its points with: perdure show {run_id}"
        )
    for call_id in (*edits, *results):
        if call_id not in known or _request_of(call_id) not in kept:
            raise RunError(f"{call_id} is not a call of {run_id} before the point {point.call or point.request}")
    if nested := [call_id for call_id in edits if len(known[call_id].place) != 1]:
        raise RunError(f"{nested[0]} is inside a loop. Edit the loop's call: {nested[0].split('[')[0]}")
    began = None if point.call is None else _began(known[point.call])
    recorded, own_undone = [], set[str]()
    for call in known.values():
        if (each := _recorded(call)) is not None and call.id not in results:
            ended_before = _request_of(call.id) < point.request - (point.call is not None)
            # A workflow task has one time: the end of a call, and the begin of the call that waited for it.
            each.before = ended_before or (
                call.id != point.call
                and _request_of(call.id) < point.request
                and bool(began)
                and (call.state.ended_at or "") <= str(began)
            )
            recorded.append(each)
            if each.before and _is_undo(call):
                own_undone |= _undone_by(each)
    lost = {*undone} - own_undone
    recorded = [each for each in recorded if each.id not in lost and (each.before or not _is_undo(known[each.id]))]
    recorded += [
        RecordedCall(id=call_id, value=value, child_calls=known[call_id].state.child_calls, before=True)
        for call_id, value in results.items()
    ]
    whole = [_as_decided(each, known, edits) for each in kept.values()]
    return ForkRecord(run_id=run_id, point=point, answers=whole, calls=recorded)


def _is_undo(call: Call) -> bool:
    tool = call.spec.tool
    return tool is not None and tool.activity == UNDO


def _undone_by(undo: RecordedCall) -> set[str]:
    """Return the ids of the calls that a call of the tool `undo` has undone."""
    found = undo.value.get("undone") if isinstance(undo.value, dict) else None
    return {str(each).partition(" ")[0] for each in found} if isinstance(found, list) else set()


def _request_of(call_id: str) -> int:
    number = call_id.split(".")[0]
    return int(number) if number.isdigit() else -1


def _began(call: Call) -> str | None:
    """Return the time at which the call began, or at which its approval was requested."""
    return call.approval.requested_at if call.approval is not None else call.state.started


def _recorded(call: Call) -> RecordedCall | None:
    outcome, decided, inputs = call.state.outcome, call.approval is not None, call.inputs
    hooked = None
    if inputs.unhooked is not None and call.state.key:
        hooked = HookedCall(key=call.state.written_key, params=inputs.params, by=[*inputs.changed_by])
    notes = [note.as_json() for note in call.state.notes]
    match outcome:
        case Returned():
            if not call.state.key:
                return None
            parts = None if outcome.parts is None else [([*path], value) for path, value in outcome.parts.items()]
            return RecordedCall(
                id=call.id,
                key=call.state.key,
                hooked=hooked,
                value=outcome.value,
                branch=outcome.branch,
                parts=parts,
                sources=sorted(outcome.sources),
                recalled=outcome.recalled,
                child_calls=call.state.child_calls,
                notes=notes,
                decided=decided,
            )
        case Failed(error, sources, carried_out):
            return RecordedCall(
                id=call.id,
                key=call.state.key,
                hooked=hooked,
                ended="failed",
                error=error.as_json() | ({"problems": [*error.problems]} if error.problems else {}),
                carried_out=carried_out,
                some_done=call.state.some_done,
                child_calls=call.state.child_calls,
                sources=sorted(sources),
                decided=decided,
            )
        case Rejected(reason):
            return RecordedCall(
                id=call.id, key=call.state.key, hooked=hooked, ended="rejected", reason=reason, decided=decided
            )
    return None


def _error(written: JsonObject) -> CallError:
    return CallError(
        str(written.get("code")), str(written.get("message")), tuple(map(str, written.get("problems") or ()))
    )


def _as_decided(answer: RecordedAnswer, known: Mapping[str, Call], edits: Mapping[str, JsonObject]) -> RecordedAnswer:
    """Return the answer with the edits of people and the fork's user, without its usage: the other run has paid for it.
    Changes of hooks are those of recorded calls.
    """
    calls, changed = [*answer.result.calls], False
    for index, written in enumerate(calls):
        call_id = f"{answer.number}.{index}"
        if not isinstance(written, dict) or call_id not in known:
            continue
        call = {**known[call_id].spec.raw, **edits.get(call_id, {})}
        plain = {key: value for key, value in call.items() if value is not None or key not in edits.get(call_id, {})}
        if plain != {key: value for key, value in written.items() if key not in ENGINE_KEYS}:
            calls[index] = {key: value for key, value in written.items() if key in ENGINE_KEYS} | plain
            changed = True
    update = {"usage": Usage()} | ({"calls": calls, "beside": None} if changed else {})
    return answer.model_copy(update={"result": answer.result.model_copy(update=update)})
