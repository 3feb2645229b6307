"""What a person decides about a call, or about a plan, that waits (R7.2)."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.errors import DecisionError, JsonError
from perdure.plan.approval import Kind
from perdure.values.jsons import Json, JsonObject, check, shorten
from perdure.values.limits import MAX_EDITED, MAX_NAME
from perdure.values.problems import first_problem

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
