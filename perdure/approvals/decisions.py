"""Decisions of people: their forms, the digests that they are bound to, and endorsements."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.errors import DecisionError, JsonError
from perdure.plan import Call, DecisionKind
from perdure.tools.quorum import Roles
from perdure.values.json import Json, JsonObject, check, dumps, shorten
from perdure.values.limits import MAX_EDITED, MAX_ENDORSED, MAX_NAME
from perdure.values.problems import first_problem
from perdure.values.references import Reference

KINDS: Final[tuple[DecisionKind, ...]] = ("approve", "reject", "edit", "replace", "answer")


class Decision(BaseModel):
    """A decision as a person writes it: `{"call": "1.0", "decision": "reject", "reason": "still needed"}`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=True)

    call: str
    """The call's id; the number of a Request alone names its whole plan (R7.6)."""
    decision: DecisionKind
    reason: str = ""
    params: JsonObject | None = None
    """`edit`: the parameters that change; the others stay as they were shown. They are values: a text is never read as
    a reference. A reference is written `{"_ref": "†state.x"}` (R7.2). `null` leaves out a parameter that cannot be
    `null`."""
    calls: list[Json] | None = None
    """`edit` of a plan: all its calls, as they were shown, with references marked in the same way."""
    replacement: JsonObject | None = Field(default=None, alias="with")
    """`replace`: the other call. Its parameters are values too. Without an `_outputPath` it writes where the call would
    have written."""
    answer: Json = None
    """`answer`: the answer to the question of a call of `ask_person`."""
    must_call: list[str] | None = None
    """The tools that the output needs a call from; an empty list requires none (R6.5). `None` leaves the requirement as
    it is."""
    by: str = ""
    roles: Roles = Field(default_factory=list)
    """The roles of who decides, for a quorum: the gateway takes them from the token; another sender vouches for them."""
    remember: bool = False
    """Whether calls of this tool need no approval for the rest of this run (R7.7)."""
    endorse: bool | list[str] = False
    """Endorse all parameters of the call, or those named: their provenance is `user` from then on (R15.6)."""
    via: str = Field(default="", max_length=MAX_NAME)
    """The channel by which the decision came, for a sender that has to recognise it."""
    digest: str | None = None
    """The digest of what was shown. If something else waits by now, the decision is refused."""


def parse_decision(raw: Json, kind: DecisionKind | None = None, *, bounds_names: bool = True) -> Decision:
    """Parse a decision; `kind` is the kind that the signal's name implies. `bounds_names`: whether an endorsement has
    at most `MAX_ENDORSED` names; in runs of 0.2.0 it may have more.

    Raises `DecisionError`, which names the accepted form.
    """
    if not isinstance(raw, dict):
        example = '{"call": "1.0"}' if kind else '{"call": "1.0", "decision": "approve"}'
        raise DecisionError(f"{shorten(raw, 60)} is not a decision: expected an object such as {example}")
    calls = raw.get("calls")
    if isinstance(calls, list) and len(calls) > MAX_EDITED:  # checked before the calls are parsed
        raise DecisionError(f"the edit has {len(calls):,} calls; the limit is {MAX_EDITED:,}")
    names = raw.get("endorse")
    if bounds_names and isinstance(names, list) and len(names) > MAX_ENDORSED:
        raise DecisionError(
            f"'endorse' has {len(names):,} names; the limit is {MAX_ENDORSED:,}. To endorse all parameters, write true"
        )
    try:
        check(raw, source="the decision")
    except JsonError as error:
        raise DecisionError(str(error)) from None
    if kind is not None and raw.get("decision", kind) != kind:
        raise DecisionError(f"the decision {raw['decision']!r} was sent as {kind!r}")
    try:
        decision = Decision.model_validate(raw if kind is None else {**raw, "decision": kind})
    except ValidationError as error:
        raise DecisionError(f"the decision is not valid: {first_problem(error, raw)}") from None
    wanted = {"edit": decision.params is not None or decision.calls is not None, "replace": bool(decision.replacement)}
    if not wanted.get(decision.decision, True):
        raise DecisionError(
            "an edit needs 'params' (or 'calls', of a plan)"
            if decision.decision == "edit"
            else "a replacement needs 'with', the other call: {\"_tool\": …}"
        )
    if decision.remember and decision.decision not in ("approve", "edit"):
        raise DecisionError(f"'remember' is valid with approve and edit, not with {decision.decision}")
    if decision.endorse and (decision.decision not in ("approve", "edit") or "." not in decision.call):
        raise DecisionError(
            f"'endorse' is valid with approve and edit of a call, not with {decision.decision} of {decision.call}"
        )
    return decision


# A digest is of the JSON with sorted keys, in which each long part is replaced by its own digest. So a value that many
# calls read is hashed once. Client and worker compute the same digest of the same value.

_LONG: Final = 4_000
"""Characters of JSON from which a part is replaced by its digest."""
_DEEP: Final = 3
_WIDE: Final = 32
"""Maximum of levels that are searched for large parts, and of items of their objects and arrays. Deeper values are one
part.
"""


class Digests:
    """Digests of large parts, by their identity: a value must not be changed while its digest is cached here."""

    def __init__(self) -> None:
        # By identity and depth, because the text depends on the depth. The value is kept too, so that its id is not
        # used again.
        self._known: dict[tuple[int, int], tuple[Json, str]] = {}

    def of(self, value: Json) -> str:
        """Return the digest of a value, 16 hexadecimal digits."""
        return sha256(self._written(value, _DEEP).encode(errors="surrogatepass")).hexdigest()[:16]

    def clear(self) -> None:
        """Drop all values: no digest of them is needed soon."""
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
        digest = f"#{sha256(text.encode(errors='surrogatepass')).hexdigest()}"  # no JSON text has this form
        self._known[id(value), depth] = value, digest
        return digest

    def _spelt(self, value: Json, depth: int) -> str:
        if depth == 0 or not isinstance(value, dict | list) or len(value) > _WIDE:
            return dumps(value, sort_keys=True)
        if isinstance(value, dict):
            items = (f"{dumps(key)}:{self._written(value[key], depth - 1)}" for key in sorted(value))
            return f"{{{','.join(items)}}}"
        return f"[{','.join(self._written(item, depth - 1) for item in value)}]"


def digest(shown: Json) -> str:
    """Return the digest of the value that a person is shown: the parameters of a call, or the calls of a plan."""
    return Digests().of(shown)


def approval_digest(activity: str, params: Json, known: Digests | None = None) -> str:
    """Return the digest for an approval: of the code that runs, and of its exact parameters."""
    return (Digests() if known is None else known).of([activity, params])


@dataclass
class Endorsements:
    """The values that people endorse in one run."""

    known: dict[str, str] = field(default_factory=dict)
    """The digest of each endorsed value, by reference."""

    def stands(self, reference: Reference, value: Json) -> bool:
        """Whether a person endorses this value at this reference."""
        endorsed = self.known.get(str(reference)) if self.known else None
        return endorsed is not None and endorsed == digest(value)


def endorse(call: Call, which: Literal[True] | Collection[str], vouched: Endorsements, digests: Digests) -> None:
    """Endorse the call's parameters, or those named: their provenance is the person.

    The values that they refer to are endorsed too, as long as each has this value.
    """
    names = set(call.inputs.origins.params) if which is True else set(which)
    call.inputs.origins = call.inputs.origins.vouched(None if which is True else names)
    whole = names & call.inputs.params.keys() - set(call.spec.template.written_out())
    for site in call.spec.template.sites:
        if site.path[0] in whole and len(site.path) == 1 and isinstance(site.expression, Reference):
            vouched.known[str(site.expression)] = digests.of(call.inputs.params[str(site.path[0])])
