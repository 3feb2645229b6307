"""Decisions of people: their forms, the digests that they are bound to, and endorsements."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.errors import DecisionError, JsonError
from perdure.plan.calls import Call, Kind
from perdure.values.json import Json, JsonObject, check, dumps, shorten
from perdure.values.limits import MAX_EDITED, MAX_NAME
from perdure.values.problems import first_problem
from perdure.values.references import Reference

KINDS: Final[tuple[Kind, ...]] = ("approve", "reject", "edit", "replace", "answer")


class Decision(BaseModel):
    """A decision as a person types it: `{"call": "1.0", "decision": "reject", "reason": "still needed"}`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=True)

    call: str
    """The call's id; a Request's number alone is its whole plan (R7.6)."""
    decision: Kind
    reason: str = ""
    params: JsonObject | None = None
    """`edit`: the parameters that change; the others stay as they were shown. These are values: a text is a text, whatever it looks
    like, and a reference is written `{"_ref": "†state.x"}` (R7.2). `null` leaves out a parameter that cannot be `null`."""
    calls: list[Any] | None = None
    """`edit` of a plan: all its calls, as they were shown, with references marked in the same way."""
    replacement: JsonObject | None = Field(default=None, alias="with")
    """`replace`: the other call, its parameters values too. Without an `_outputPath` it writes where the call would have."""
    answer: Json = None
    """`answer`: to the question that a call of `ask_person` asks."""
    must_call: list[str] | None = None
    """The tools of which the output needs a call from then on, none where it is empty (R6.5). Without it that stays as it is."""
    by: str = ""
    remember: bool = False
    """Do not ask about this tool again in this run (R7.7)."""
    endorse: bool | list[str] = False
    """Stand for all its parameters, or for these: they are `user`'s from then on, wherever they came from (R15.6)."""
    via: str = Field(default="", max_length=MAX_NAME)
    """By which way it came, where whoever sent it has to know it again."""
    digest: str | None = None
    """Of what was shown; if something else waits by now, the decision is refused."""


def parse_decision(raw: Json, kind: Kind | None = None) -> Decision:
    """Read a decision; `kind` is what the signal's name says. Raises `DecisionError` with what would be right."""
    if not isinstance(raw, dict):
        example = '{"call": "1.0"}' if kind else '{"call": "1.0", "decision": "approve"}'
        raise DecisionError(f"{shorten(raw, 60)} is no decision: expected an object such as {example}")
    calls = raw.get("calls")
    if isinstance(calls, list) and len(calls) > MAX_EDITED:  # told before each of them is looked at
        raise DecisionError(f"an edit may have {MAX_EDITED:,} calls at most, and this one has {len(calls):,}")
    try:
        check(raw, source="the decision")
    except JsonError as error:
        raise DecisionError(str(error)) from None
    if kind is not None and raw.get("decision", kind) != kind:
        raise DecisionError(f"the decision says {raw['decision']!r}, but was sent as {kind!r}")
    try:
        decision = Decision.model_validate(raw if kind is None else {**raw, "decision": kind})
    except ValidationError as error:
        raise DecisionError(f"no decision: {first_problem(error)}") from None
    wanted = {"edit": decision.params is not None or decision.calls is not None, "replace": bool(decision.replacement)}
    if not wanted.get(decision.decision, True):
        raise DecisionError(
            "an edit needs 'params' (or 'calls', of a plan)"
            if decision.decision == "edit"
            else "a replacement needs 'with', the other call: {\"_tool\": …}"
        )
    if decision.remember and decision.decision not in ("approve", "edit"):
        raise DecisionError(f"'remember' goes with approve and edit, not with {decision.decision}")
    if decision.endorse and (decision.decision not in ("approve", "edit") or "." not in decision.call):
        raise DecisionError(
            f"'endorse' goes with approve and edit of a call, not with {decision.decision} of {decision.call}"
        )
    return decision


# A digest is of the JSON with sorted keys, in which each part that is long stands for itself as its own digest: so what many calls read is looked through once, and not for each of them. Both sides of a wire make the same digest of the same value.

_LONG: Final = 4_000
"""Characters of JSON from which on a part stands as its digest."""
_DEEP: Final = 3
_WIDE: Final = 32
"""A value is gone into so deep, through objects and arrays of so many items at most; what is beyond is one part."""


class Digests:
    """Those of large parts, by their identity: a value must not be changed while it is known here."""

    def __init__(self) -> None:
        # By identity and depth, for it is another text at each. The value is kept beside, so that its id cannot be used again.
        self._known: dict[tuple[int, int], tuple[Json, str]] = {}

    def of(self, value: Json) -> str:
        """16 hexadecimal digits."""
        return sha256(self._written(value, _DEEP).encode(errors="surrogatepass")).hexdigest()[:16]

    def clear(self) -> None:
        """Let go of all values: nobody will ask about them again soon."""
        self._known.clear()

    def _written(self, value: Json, depth: int) -> str:
        if not isinstance(value, str | dict | list):
            return dumps(value)
        known = self._known.get((id(value), depth))
        if known is not None:
            return known[1]
        text = self._spelt(value, depth)
        if len(text) <= _LONG:
            return text
        digest = f"#{sha256(text.encode(errors='surrogatepass')).hexdigest()}"  # which no JSON is
        self._known[id(value), depth] = value, digest
        return digest

    def _spelt(self, value: Json, depth: int) -> str:
        if depth == 0 or isinstance(value, str) or len(value) > _WIDE:
            return dumps(value, sort_keys=True)
        if isinstance(value, dict):
            items = (f"{dumps(key)}:{self._written(value[key], depth - 1)}" for key in sorted(value))
            return f"{{{','.join(items)}}}"
        return f"[{','.join(self._written(item, depth - 1) for item in value)}]"


def digest(shown: Json) -> str:
    """The digest of what a person is shown: the parameters of a call, or the calls of a plan."""
    return Digests().of(shown)


def approval_digest(activity: str, params: Json, known: Digests | None = None) -> str:
    """What an approval is bound to: the code that runs, and the exact parameters that it is given."""
    return (Digests() if known is None else known).of([activity, params])


@dataclass
class Endorsements:
    """What people stand for in one run."""

    known: dict[str, str] = field(default_factory=dict)
    """By reference the digest of its value."""

    def stands(self, reference: str, value: Json) -> bool:
        """Whether somebody stands for this value there."""
        said = self.known.get(reference) if self.known else None
        return said is not None and said == digest(value)


def endorse(call: Call, which: Literal[True] | Collection[str], vouched: Endorsements, digests: Digests) -> None:
    """The call's parameters, or those named, are the person's; what they are references to as well, while it has this value."""
    names = set(call.origins.params) if which is True else set(which)
    call.origins = call.origins.vouched(None if which is True else names)
    whole = names & call.params.keys() - set(call.template.written_out())
    for site in call.template.sites:
        if site.path[0] in whole and len(site.path) == 1 and isinstance(site.expression, Reference):
            vouched.known[str(site.expression)] = digests.of(call.params[str(site.path[0])])
