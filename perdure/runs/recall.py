"""Recall in a run: the rest of a value that the model saw in part.

A run answers from its state and the results of its calls. Each answer is a page, whatever the value's size (R18.3).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from perdure.errors import CallError, ReferenceSyntaxError, RunError
from perdure.plan import Call, Outcome, Returned
from perdure.runs.loops import ITEMS
from perdure.runs.provenance import HIDDEN
from perdure.runs.run import RunState
from perdure.runs.views import is_earlier
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.limits import MAX_KEPT, bytes_text
from perdure.values.media import page_of, without_media
from perdure.values.provenance import MODEL, Sources, join, join_all, tool_source
from perdure.values.references import MISSING, Expression, evaluate, get, overlaps, parse_expression, references

ABOVE: Final[JsonObject] = {"above": True}
"""The answer of a part of a long loop: its calls name values of the run that has the loop."""
_CALL: Final = re.compile(r"\d+(?:\.\d+|\[\d+\])+")
_STATE: Final = re.compile(r"†?state(?![\w-])")


def is_of_run(what: str) -> bool:
    """Whether this names a call of a run, such as `1.0` or `1.0[3]`, or a value of its state, such as `state.report`."""
    return bool(_CALL.fullmatch(what) or _STATE.match(what))


def recall(run: RunState, what: str, page: int = 1) -> JsonObject | None:
    """Return `{"what", "page", "pages", "text"}`, or `ABOVE`; `None`: an execution before this one has the call.

    Raises `RunError` for a value that does not exist, or that the model may not read.
    """
    if ITEMS in run.context.values():
        return ABOVE
    if _STATE.match(what):
        return page_of(what, _text(_state_value(run, what)), page)
    if is_earlier(run, what):
        return None
    return page_of(what, _result(run, what), page)


def is_recall(run: RunState, call: Call) -> bool:
    """Whether the call uses the worker's own tool `recall`."""
    tool = run.prepared.recall
    return tool is not None and call.spec.tool is not None and call.spec.tool.activity == tool.activity


def with_sources(run: RunState, call: Call, outcome: Outcome) -> Outcome:
    """Return the outcome of a call of `recall` with the sources of the value that it has read, if they are known
    (R15.1).
    """
    if not isinstance(outcome, Returned) or (call.spec.tool is not None and call.spec.tool.untrusted):
        return outcome
    what = call.inputs.params.get("what")
    sources = _sources(run, what.strip(), call) if isinstance(what, str) else None
    return outcome if sources is None else replace(outcome, sources=sources, recalled=True)


def _sources(run: RunState, what: str, reader: Call) -> Sources | None:
    """Return the sources of a value of the run, or `None` if they are unknown: the value then counts as untrusted."""
    if not is_of_run(what) or ITEMS in run.context.values():
        return None
    if not _STATE.match(what):
        return _call_sources(run, what)
    if not reader.id.startswith(
        f"{run.progress.number}."
    ):  # the value of that time may have been overwritten, and its sources lost
        return None
    paths = [reference.path for reference in references(_expression(what))]
    written = join_all(write.sources for write in run.state.writes for path in paths if overlaps(write.path, path))
    return join(written, join_all(map(run.state.labels.at, paths)))


def _call_sources(run: RunState, id: str) -> Sources | None:
    for call in run.plan.every_call() if run.plan is not None else ():
        if call.id == id:
            return call.state.sources if call.state.status == "done" else None
    view = next((view for view in run.records.past.calls if view.id == id), None)
    if view is None or view.status != "done":
        return None
    if "" in view.sources:
        return run.records.table.of(view.sources[""])
    # The result is trusted. The tools of a delegate's run are not recorded, and a rule of flows may name one of them.
    made_by = run.tools.get(view.tool)
    if made_by is None or made_by.delegate is not None or run.approval_queue.guard.has_flows:
        return None
    return join_all([MODEL, tool_source(view.tool, False), *map(run.records.table.of, view.sources.values())])


def _expression(what: str) -> Expression:
    return parse_expression(what if what.startswith("†") else f"†{what}")


def _state_value(run: RunState, what: str) -> Json:
    try:
        expression = _expression(what)
    except ReferenceSyntaxError as error:
        raise RunError(f"{what} cannot be read: {error}") from None
    if any(reference.kind != "state" for reference in references(expression)):
        raise RunError(f"{what} is not in the state: name a value of it, such as state.report")
    state = run.provenance.readable_state(run.state)
    found = evaluate(expression, lambda reference: get(state, reference.path))
    if found is MISSING:
        raise RunError(f"{what} does not exist")
    return found


def _result(run: RunState, what: str) -> str:
    for call in run.plan.every_call() if run.plan is not None else ():
        if call.id == what:
            return _of_call(run, call)
    view = next((view for view in run.records.past.calls if view.id == what), None)
    if view is None:
        raise RunError(f"the run has no call {what}")
    if run.provenance.hides(run.records.table.of(view.sources.get("", -1))):
        raise RunError(f"the result of {what} is {HIDDEN}")
    if view.status != "done":
        return dumps(view.error or {"status": view.status, "reason": view.reason})
    kept = run.records.values.get(what)
    if kept is None:
        raise RunError(f"{what} is no longer stored: only the newest {bytes_text(MAX_KEPT)} of results are")
    return _text(kept["result"])


def _of_call(run: RunState, call: Call) -> str:
    if isinstance(call.state.error, CallError):
        return dumps(run.provenance.shown_error(call, call.state.error))
    if call.state.status != "done":
        return dumps({"status": call.standing, "reason": call.state.reason})
    _, value = run.provenance.shown_result(call)
    return _text(value)


def _text(value: Json) -> str:
    value = without_media(value, bare=False)
    return value if isinstance(value, str) else dumps(value)
