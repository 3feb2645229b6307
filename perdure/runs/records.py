"""Records of a run: calls that have ended, their usage and values, and tallies for its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from pydantic import Field

from perdure.models.requests import RequestView
from perdure.plan import Call, Plan
from perdure.runs.events import clip_value
from perdure.runs.undo import EffectLog
from perdure.runs.wire import CallView
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.limits import MAX_KEPT, MAX_RECORDED, SHOWN_PARAMS
from perdure.values.media import beginning_without_media, first_without_media, parts_without_media, result_text
from perdure.values.provenance import MODEL, SourceTable, untrusted_sources
from perdure.values.sizes import Sizes, cut_to, preview
from perdure.values.state import WriteRecord

SHOWN_RESULT: Final = 160
"""Characters of a result that `show` prints."""


def plan_reads(calls: Iterable[Call]) -> dict[str, list[str]]:
    return {call.id: reads for call in calls if (reads := call.spec.reads)}


def plan_writes(calls: Iterable[Call]) -> dict[str, str]:
    return {call.id: call.spec.target for call in calls if call.spec.paths}


def call_view(call: Call, sizes: Sizes, table: SourceTable) -> CallView:
    """Return the view of a call, with its sources as numbers of `table`.

    It holds the beginning of large parameters, so that a run of thousands of calls stays small (R18.3).
    """
    return CallView(
        id=call.id,
        tool=call.spec.tool_name,
        params=_shown_params(call.inputs.params, sizes),
        status=call.standing,
        is_with_client=call.is_with_client,
        started_at=call.state.started,
        ended_at=call.state.ended_at,
        attempts=call.state.attempts,
        carried_out=bool(call.state.carried_out),
        recorded=call.state.recorded,
        hooked=(hooked := call.inputs.hooked),
        hooked_by=", ".join(call.inputs.changed_by) if hooked else "",
        reason=call.state.reason or (call.state.retried if call.state.status == "running" else "") or None,
        error=cut_to(call.state.error.as_json(), SHOWN_PARAMS) if call.state.error else None,
        approval=call.approval,
        sources=_numbered(call, table),
        shown=_one_line(call.state.result) if call.state.status == "done" else None,
    )


def _numbered(call: Call, table: SourceTable) -> dict[str, int]:
    """Return sources by parameter, without parameters that the model wrote out; under `""` the sources of an untrusted
    result.
    """
    named = {name: each for name, each in call.inputs.origins.params.items() if each != MODEL}
    return {
        name: table.number(each)
        for name, each in (named | ({"": call.state.sources} if untrusted_sources(call.state.sources) else {})).items()
    }


def record(
    views: Sequence[CallView], calls: Sequence[Call], sizes: Sizes, visible: Callable[[Call], tuple[Json, JsonObject]]
) -> None:
    """Add to the last `views`, those of `calls`, the values for a session's transcript (R10.10).

    `visible` returns the values that a model may see. The newest `MAX_RECORDED` characters of all results stay; older
    results are only `shown`.
    """
    left = MAX_RECORDED
    for view, call in zip(reversed(views), reversed(calls), strict=False):
        view.wrote = [WriteRecord(path=list(write.path), method=write.method) for write in call.state.writes]
        if call.state.kept is not None and call.state.status == "done":
            call = replace(call, state=replace(call.state, result=call.state.kept[0]))
            view.shown = _one_line(call.state.result)
        result, view.told = visible(call)
        if call.state.status == "done" and left > 0:
            view.result = result_text(result, sizes.of(result))
            left -= len(view.result)
    for view in reversed(views[: len(views) - len(calls)]):
        left -= len(view.result or "")
        if left < 0:
            view.result = None


def estimate_size(view: CallView, sizes: Sizes) -> int:
    """Return the approximate bytes of a kept call."""
    return (
        500
        + sizes.of(view.params)
        + 2 * len(view.shown or "")
        + sizes.of(view.error)
        + len(view.reason or "")
        + 2 * len(view.result or "")
    )


def _shown_params(params: JsonObject, sizes: Sizes) -> JsonObject:
    if sizes.of(params) <= SHOWN_PARAMS:
        return parts_without_media(params)
    cut: JsonObject = cut_to(clip_value(params, SHOWN_PARAMS, media=True)[0], SHOWN_PARAMS)
    return cut


def _one_line(value: Json) -> str:
    """Return the beginning of a result on one line; a text stays a text."""
    if not isinstance(value, str):
        return preview(first_without_media(value, SHOWN_RESULT)[0], SHOWN_RESULT)
    text = " | ".join(beginning_without_media(value, 2 * SHOWN_RESULT)[0].splitlines())
    return text if len(text) <= SHOWN_RESULT else f"{text[: SHOWN_RESULT - 1]}…"


def whole_values(params: JsonObject, result: Json, kept: list[Json] | None) -> JsonObject:
    """Return `{"params", "result"}` of a call, and as `persisted` the result that a hook keeps for the transcript
    instead (R10.17).
    """
    return {"params": params, "result": result, **({} if kept is None else {"persisted": kept[0]})}


class KeptValues:
    """The parameters and results of the newest ended calls, up to `MAX_KEPT` bytes.

    A value that many calls read counts once: it is known by its identity.
    """

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._calls: dict[str, tuple[JsonObject, Json, list[Json] | None]] = {}
        self._held: dict[int, tuple[int, int]] = {}
        """Number of calls that hold a value, and its bytes, by the value's identity."""
        self._bytes = 0

    def add(self, call: Call, sizes: Sizes) -> None:
        """Keep the values of an ended call; the oldest values give way if there is no room."""
        self._calls[call.id] = call.inputs.params, call.state.result, call.state.kept
        for value in (*call.inputs.params.values(), call.state.result):
            count, size = self._held.get(id(value), (0, 0))
            if not count:
                size = sizes.of(value)
                self._bytes += size
            self._held[id(value)] = count + 1, size
        while self._bytes > self._most and len(self._calls) > 1:
            self._let_go(next(iter(self._calls)))

    def get(self, call_id: str) -> JsonObject | None:
        """Return the `whole_values` of a call; `None` if they are not kept, or no longer kept."""
        return whole_values(*self._calls[call_id]) if call_id in self._calls else None

    def _let_go(self, call_id: str) -> None:
        params, result, _ = self._calls.pop(call_id)
        for value in (*params.values(), result):
            count, size = self._held.pop(id(value))
            if count > 1:
                self._held[id(value)] = count - 1, size
            else:
                self._bytes -= size


class PastRequests(WireModel):
    """The records of Requests that are over, for readers of the run."""

    calls: list[CallView] = Field(default_factory=list)
    log: list[RequestView] = Field(default_factory=list)
    sets: list[list[str]] = Field(default_factory=list)
    """Sets of sources: calls name them by their index."""
    edges: list[tuple[str, str, str]] = Field(default_factory=list)
    reads: dict[str, list[str]] = Field(default_factory=dict)
    writes: dict[str, str] = Field(default_factory=dict)


RECENT: Final = 40
"""Calls that stay whole for the live table. Each event makes the table anew, so its cost must not grow with the run.
"""


class RunRecords:
    """The records of a run: its Requests that are over, and the views and values of their calls."""

    def __init__(
        self, sizes: Sizes, effects: EffectLog, recorded: Callable[[Call], tuple[Json, JsonObject]] | None = None
    ) -> None:
        self.past = PastRequests()
        self.effects = effects
        """The effects of calls of this execution, for an undo (R23.4)."""
        self.size = 0
        """Approximate bytes of the views of past calls."""
        self.values = KeptValues()
        """Parameters and results of this execution's calls."""
        self.table = SourceTable()
        """Sets of sources that the views name by number."""
        self.restored_at = 0
        """Number of the last Request of the execution that this one continues."""
        self._sizes = sizes
        self._recorded = recorded
        """Returns the part of a call's result that a model may see, for a session's transcript; `None` outside of
        sessions.
        """
        self.collected: list[Call] | None = None
        """All ended calls, if a replay collects them; workers keep none."""
        self._recent: list[Call] = []
        self._views: dict[str, tuple[Call, CallView]] = {}
        """Ended calls and their views, by id. A person's edit of the plan may have reused the ids for other calls."""
        self._done = 0

    def add(self, plan: Plan) -> None:
        """Add the calls of a plan that has settled."""
        past, calls = self.past, list(plan.every_call())
        self.effects.add(plan)
        begin = len(past.calls)
        for call in calls:
            if self._views.get(call.id, (None,))[0] is not call:
                self.note_done(call)
            past.calls.append(self._views[call.id][1])
        if self._recorded is not None:
            record(past.calls, calls, self._sizes, self._recorded)
        self.size += sum(estimate_size(view, self._sizes) for view in past.calls[begin:])
        past.edges.extend(plan.named_edges())
        past.reads |= plan_reads(calls)
        past.writes |= plan_writes(calls)
        self._recent = [*self._recent, *calls][-RECENT:]
        self._done += plan.done
        self._views = {}

    def restore(self, past: PastRequests, number: int) -> None:
        """Continue from the records of an earlier execution, whose last Request had this number (R6.8)."""
        self.past, self.restored_at, self.table = past, number, SourceTable(past.sets)
        self.size = sum(estimate_size(view, self._sizes) for view in past.calls)
        self._done = sum(call.status == "done" for call in past.calls)

    def count(self, plan: Plan | None) -> int:
        """Return the number of calls so far, of any status; `plan` is the running one."""
        return len(self.past.calls) + (plan.count if plan is not None else 0)

    def done(self, plan: Plan | None) -> int:
        """Return the number of calls that have succeeded so far; `plan` is the running one."""
        return self._done + (plan.done if plan is not None else 0)

    def view(self, call: Call) -> CallView:
        """Return the view of a call. The view of a done call, or of one in an ended iteration, is made once (R16.6)."""
        known, view = self._views.get(call.id, (None, None))
        return call_view(call, self._sizes, self.table) if view is None or known is not call else view

    def note_done(self, call: Call) -> None:
        """Make the view of a call that no longer changes, and keep its values.

        At the end of a plan, thousands of calls would take too long (R18.5).
        """
        self._views[call.id] = call, call_view(call, self._sizes, self.table)
        self.values.add(call, self._sizes)
        if self.collected is not None:
            self.collected.append(call)

    def done_in_loops(self, loops: Iterable[Call]) -> Iterator[str]:
        """Yield the tools of done calls in these loops. For a loop in child workflows, yield all tools of its body."""
        done = {call.index: call for call in loops if call.spec.loop is not None and call.state.status == "done"}
        for call, _ in self._views.values():
            if len(call.place) > 1 and call.place[0] in done and call.state.status == "done" and call.spec.tool:
                yield call.spec.tool_name
        for loop in done.values():
            yield from (call.spec.tool_name for call in loop.written() if loop.far and call.spec.tool)

    def fold(self, plan: Plan) -> None:
        """Make the views of calls in the plan's ended iterations."""
        for call in plan.take_folded():
            if call.id not in self._views:
                self.note_done(call)

    def newest(self, plan: Plan | None) -> list[Call]:
        """Return the newest calls, `RECENT` at most, in their order; `plan` is the running one."""
        newest = [] if plan is None else [*islice(plan.every_call_reversed(), RECENT)][::-1]
        return [*self._recent, *newest][-RECENT:]
