"""What a view has cut, whole and page by page: `perdure show ID --value …` (R18.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from perdure.plan.calls import Call
from perdure.run.past import plan_reads, plan_writes
from perdure.run.running import Run
from perdure.run.views.run import waiting_views
from perdure.run.wire import RunInput, RunView
from perdure.values.jsons import Json, dumps, loads
from perdure.values.limits import MAX_KEPT, said
from perdure.values.paths import get
from perdure.values.references import MISSING, evaluate, parse_expression
from perdure.values.wire import ValuePage

_PAGE: Final = 300_000
"""Characters of a page: at most six bytes each as JSON."""
_PARTS: Final = frozenset(["output", "errors", "refusals", "edges", "reads", "writes", "calls", "log", "waiting"])


class Pages:
    """The pages of one value after the other: its JSON is made once, as far as it is read, and kept until the last page was."""

    def __init__(self) -> None:
        self._read: tuple[str, str, Iterator[str]] | None = None

    def page(self, run: Run | None, what: str, offset: int, given: RunInput | None = None) -> ValuePage:
        """Return the JSON of what `whole` gives, from a character on.

        `run`: `None` until it has begun. `given`: its input, once the run knows it.
        """
        text = ""
        rest: Iterator[str] = iter(())
        if offset > 0 and self._read is not None and self._read[0] == what:
            _, text, rest = self._read
        elif run is None:
            text = dumps(before_start(given, what))
        elif is_earlier(run, what):
            return ValuePage(text="", earlier=True)
        else:
            rest = _pieces(run, what)
        end = max(0, offset) + _PAGE
        pieces, size = [text], len(text)
        while size <= end and (piece := next(rest, None)) is not None:
            pieces.append(piece)
            size += len(piece)
        text = "".join(pieces)
        self._read = (what, text, rest) if end < len(text) else None
        return ValuePage(text=text[max(0, offset) : end], next=end if end < len(text) else None)


def _pieces(run: Run, what: str) -> Iterator[str]:
    """Return the JSON of what `whole` gives. Calls come one by one: a run has thousands, and each page makes its own (R16.6)."""
    if what != "calls":
        yield dumps(whole(run, what))
        return
    calls = [*run.past.calls, *(run.plan.made() if run.plan is not None else ())]
    for number, call in enumerate(calls):
        view = run.call_view(call) if isinstance(call, Call) else call
        yield f"{',' if number else '['}{dumps(view.as_json())}"
    yield "]" if calls else "[]"


def is_earlier(run: Run, what: str) -> bool:
    """Whether it is a call of before the run went on in this execution: one before it knows the call whole."""
    number = what.partition(".")[0]
    known = run.restored_at and number.isdecimal() and int(number) <= run.restored_at
    return bool(known) and any(call.id == what for call in run.past.calls)


def before_start(given: RunInput | None, what: str) -> Json:
    """Return the same of a run that has been accepted and not begun: it has done nothing yet. Raises `KeyError` as `whole` does."""
    if what == "metadata":
        return None if given is None else given.agent.get("metadata")
    if what in ("state", "†state"):
        return {}
    if what not in _PARTS:
        raise KeyError(f"{what!r} is not known: the run has not begun")
    return RunView(run_id="").as_json()[what]


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
            return run.call_view(call).as_json() | {"params": call.params, "result": call.result}
    for view in run.past.calls:
        if view.id == what:
            if (kept := run.kept.whole(what)) is None:
                why = f"of the calls that have ended the newest are kept whole, {said(MAX_KEPT)} of them"
                raise KeyError(f"{what} is only in the run's history now: {why}")
            return view.as_json() | kept
    plan, past = run.plan, run.past
    made = list(plan.made()) if plan is not None else []
    parts: dict[str, Callable[[], Json]] = {
        "output": lambda: run.output,
        "errors": lambda: run.errors,
        "refusals": lambda: run.desk.refusals,
        "edges": lambda: [*past.edges, *(plan.named_edges() if plan is not None else ())],
        "reads": lambda: past.reads | plan_reads(made),
        "writes": lambda: past.writes | plan_writes(made),
        "metadata": lambda: run.agent.metadata,
        "log": lambda: [each.as_json() for each in past.log],
        "waiting": lambda: [each.as_json() for each in waiting_views(run)],
        "calls": lambda: loads("".join(_pieces(run, "calls"))),
    }
    if what not in parts:
        raise KeyError(
            f"{what!r} is no part of a run: name output, state, errors, calls, waiting, log, metadata, a call's id or a reference"
        )
    return parts[what]()
