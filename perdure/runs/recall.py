"""Recall in a run: the rest of a value that the model was shown in part.

A run answers from what it has: its state, and the results of its calls. Each answer is a page, whatever the value's size (R18.3).
"""

from __future__ import annotations

import re
from typing import Final

from perdure.errors import CallError, ReferenceSyntaxError, RunError
from perdure.plan.calls import Call
from perdure.runs.loops import ITEMS
from perdure.runs.provenance import HIDDEN
from perdure.runs.run import Run
from perdure.runs.views import is_earlier
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.limits import MAX_KEPT, said
from perdure.values.media import page_of, without_media
from perdure.values.references import MISSING, evaluate, get, parse_expression, references

ABOVE: Final[JsonObject] = {"above": True}
"""The answer of a part of a long loop: what its calls name is of the run that the loop is in."""
_CALL: Final = re.compile(r"\d+(?:\.\d+|\[\d+\])+")
_STATE: Final = re.compile(r"†?state(?![\w-])")


def is_of_run(what: str) -> bool:
    """Whether this names a call of a run, such as `1.0` or `1.0[3]`, or a value of its state, such as `state.report`."""
    return bool(_CALL.fullmatch(what) or _STATE.match(what))


def recall(run: Run, what: str, page: int = 1) -> JsonObject | None:
    """Return `{"what", "page", "pages", "text"}`, or `ABOVE`; `None`: an execution before this one has the call.

    Raises `RunError` where there is nothing, or the model may not read it.
    """
    if ITEMS in run.context.values():
        return ABOVE
    if _STATE.match(what):
        return page_of(what, _text(_state_value(run, what)), page)
    if is_earlier(run, what):
        return None
    return page_of(what, _result(run, what), page)


def _state_value(run: Run, what: str) -> Json:
    try:
        expression = parse_expression(what if what.startswith("†") else f"†{what}")
    except ReferenceSyntaxError as error:
        raise RunError(f"{what} cannot be read: {error}") from None
    if any(reference.kind != "state" for reference in references(expression)):
        raise RunError(f"{what} is not in the state: name a value of it, such as state.report")
    state = run.reading.readable_state(run.state)
    found = evaluate(expression, lambda reference: get(state, reference.path))
    if found is MISSING:
        raise RunError(f"{what} does not exist")
    value: Json = found
    return value


def _result(run: Run, what: str) -> str:
    for call in run.plan.made() if run.plan is not None else ():
        if call.id == what:
            return _of_call(run, call)
    view = next((view for view in run.past.calls if view.id == what), None)
    if view is None:
        raise RunError(f"the run has no call {what}")
    if run.reading.hides(run.table.of(view.sources.get("", -1))):
        raise RunError(f"the result of {what} is {HIDDEN}")
    if view.status != "done":
        return dumps(view.error or {"status": view.status, "reason": view.reason})
    kept = run.kept.whole(what)
    if kept is None:
        raise RunError(f"{what} is not kept any more: the newest results are, {said(MAX_KEPT)} of them")
    return _text(kept["result"])


def _of_call(run: Run, call: Call) -> str:
    if isinstance(call.error, CallError):
        return dumps(run.reading.shown_error(call, call.error))
    if call.status != "done":
        return dumps({"status": call.standing, "reason": call.reason})
    _, value = run.reading.shown_result(call)
    return _text(value)


def _text(value: Json) -> str:
    value = without_media(value)
    return value if isinstance(value, str) else dumps(value)
