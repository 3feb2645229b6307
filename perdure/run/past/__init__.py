"""Calls as they are kept and shown once their Request has ended, and what they read and wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from perdure.plan.calls import Call
from perdure.run.events.clipping import clipped
from perdure.run.wire import CallView
from perdure.values.excerpts import result_text
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_RECORDED, SHOWN_PARAMS
from perdure.values.limits.fitting import cut_to
from perdure.values.limits.sizes import Sizes, preview
from perdure.values.media import beginning_without_media, first_without_media, without_media
from perdure.values.sources import MODEL, Table, untrusted
from perdure.values.state.writes import Wrote

SHOWN_RESULT: Final = 160
"""Characters of a result that `show` prints."""


def plan_reads(calls: Iterable[Call]) -> dict[str, list[str]]:
    return {call.id: reads for call in calls if (reads := call.reads)}


def plan_writes(calls: Iterable[Call]) -> dict[str, str]:
    return {call.id: call.target for call in calls if call.paths}


def call_view(call: Call, sizes: Sizes, table: Table) -> CallView:
    """The call as it is shown, its sources by the numbers of `table`: of large parameters the beginning, so that a run of thousands of calls stays light (R18.3)."""
    return CallView(
        id=call.id,
        tool=call.tool_name,
        params=_shown_params(call.params, sizes),
        status=call.standing,
        started_at=call.started,
        ended_at=call.ended_at,
        attempts=call.attempts,
        reason=call.reason or None,
        error=cut_to(call.error.as_json(), SHOWN_PARAMS) if call.error else None,
        approval=call.approval,
        sources=_numbered(call, table),
        shown=_one_line(call.result) if call.status == "done" else None,
    )


def _numbered(call: Call, table: Table) -> dict[str, int]:
    """By parameter its sources, but for what the model wrote out; as `""` the result's, where others wrote of it."""
    named = {name: each for name, each in call.origins.params.items() if each != MODEL}
    return {
        name: table.number(each)
        for name, each in (named | ({"": call.sources} if untrusted(call.sources) else {})).items()
    }


def record(
    views: Sequence[CallView], calls: Sequence[Call], sizes: Sizes, told: Callable[[Call], tuple[Json, JsonObject]]
) -> None:
    """Say with the last of the `views`, those of `calls`, what a session's transcript keeps of them (R10.10): what a model may be `told`.

    Of the results of all views the newest `MAX_RECORDED` characters; the others are only `shown`.
    """
    left = MAX_RECORDED
    for view, call in zip(reversed(views), reversed(calls), strict=False):
        view.wrote = [Wrote(path=list(write.path), method=write.method) for write in call.writes]
        if call.kept is not None and call.status == "done":
            call = replace(call, result=call.kept[0])
            view.shown = _one_line(call.result)
        result, view.told = told(call)
        if call.status == "done" and left > 0:
            view.result = result_text(result, sizes.of(result))
            left -= len(view.result)
    for view in reversed(views[: len(views) - len(calls)]):
        left -= len(view.result or "")
        if left < 0:
            view.result = None


def weight(view: CallView, sizes: Sizes) -> int:
    """Bytes of a call as it is kept, more or less."""
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
        shown: JsonObject = without_media(params)
        return shown
    cut: JsonObject = cut_to(clipped(params, SHOWN_PARAMS, media=True)[0], SHOWN_PARAMS)
    return cut


def _one_line(value: Json) -> str:
    """The beginning of a result; of text as text."""
    if not isinstance(value, str):
        return preview(first_without_media(value, SHOWN_RESULT)[0], SHOWN_RESULT)
    text = " | ".join(beginning_without_media(value, 2 * SHOWN_RESULT)[0].splitlines())
    return text if len(text) <= SHOWN_RESULT else f"{text[: SHOWN_RESULT - 1]}…"
