"""What a view has cut, whole and page by page: `perdure show ID --value …` (R18.3)."""

from __future__ import annotations

from typing import Final

from perdure.run.past import call_view
from perdure.run.running import Run
from perdure.run.views.run import run_view
from perdure.values.jsons import Json, dumps
from perdure.values.limits import MAX_KEPT, said
from perdure.values.paths import get
from perdure.values.references import MISSING, evaluate, parse_expression
from perdure.values.wire import ValuePage

_PAGE: Final = 300_000
"""Characters of a page: at most six bytes each as JSON."""


class Pages:
    """The pages of one value after the other: its JSON is made once, with the first, and kept until the last was read."""

    def __init__(self) -> None:
        self._read: tuple[str, str] | None = None

    def page(self, run: Run, what: str, offset: int) -> ValuePage:
        """The JSON of what `whole` gives, from a character on."""
        if offset > 0 and self._read is not None and self._read[0] == what:
            text = self._read[1]
        elif _is_earlier(run, what):
            return ValuePage(text="", earlier=True)
        else:
            text = dumps(whole(run, what))
        end = max(0, offset) + _PAGE
        self._read = (what, text) if end < len(text) else None
        return ValuePage(text=text[max(0, offset) : end], next=end if end < len(text) else None)


def _is_earlier(run: Run, what: str) -> bool:
    """Whether it is a call of before the run went on in this execution: one before it knows the call whole."""
    number = what.partition(".")[0]
    known = run.restored_at and number.isdecimal() and int(number) <= run.restored_at
    return bool(known) and any(call.id == what for call in run.past.calls)


def whole(run: Run, what: str) -> Json:
    """What a view may have cut: a part of the result by its name, a reference's value, or the call of an id.

    Raises `ReferenceSyntaxError` or `KeyError` for what is none of these.
    """
    if what.removeprefix("†").partition(".")[0] == "state" or what.startswith("†"):
        expression = parse_expression(what if what.startswith("†") else f"†{what}")
        values = {**run.context.values(), "state": run.state.snapshot()}
        found = evaluate(expression, lambda reference: get(values.get(reference.kind, MISSING), reference.path))
        if found is MISSING:
            raise KeyError(f"{what} does not exist")
        return found
    for call in run.plan.made() if run.plan is not None else ():
        if call.id == what:
            return call_view(call, run.sizes, run.table).as_json() | {"params": call.params, "result": call.result}
    for view in run.past.calls:
        if view.id == what:
            if (kept := run.kept.whole(what)) is None:
                why = f"of the calls that have ended the newest are kept whole, {said(MAX_KEPT)} of them"
                raise KeyError(f"{what} is only in the run's history now: {why}")
            return view.as_json() | kept
    run_now = run_view(run, "")
    parts: dict[str, Json] = {
        name: getattr(run_now, name) for name in ("output", "errors", "refusals", "edges", "reads", "writes")
    }
    parts["metadata"] = run.agent.metadata
    parts |= {name: [each.as_json() for each in getattr(run_now, name)] for name in ("calls", "log", "waiting")}
    if what not in parts:
        raise KeyError(
            f"{what!r} is no part of a run: name output, state, errors, calls, waiting, log, metadata, a call's id or a reference"
        )
    return parts[what]
