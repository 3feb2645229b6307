"""Calls as they are kept and shown once their Request has ended, and what they read and wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from perdure.plan.calls import Call
from perdure.plan.plan import Plan
from perdure.run.wire import CallView
from perdure.values.jsons import Json, JsonObject, dumps
from perdure.values.limits import MAX_RECORDED, MAX_RESULT, SHOWN_PARAMS, said
from perdure.values.limits.fitting import cut_to
from perdure.values.limits.sizes import Sizes, preview
from perdure.values.media import without_media
from perdure.values.sources import MODEL, Table, untrusted
from perdure.values.state.writes import Wrote

SHOWN_RESULT: Final = 160
"""Characters of a result that `show` prints."""


def plan_reads(plan: Plan) -> dict[str, list[str]]:
    return {call.id: reads for call in plan.made() if (reads := call.reads)}


def plan_writes(plan: Plan) -> dict[str, str]:
    return {call.id: call.target for call in plan.made() if call.paths}


def call_view(call: Call, sizes: Sizes, table: Table) -> CallView:
    """The call as it is shown, its sources by the numbers of `table`: of large parameters the beginning, so that a run of thousands of calls stays light (R18.3)."""
    return CallView(
        id=call.id,
        tool=call.tool_name,
        params=cut_to(call.params, SHOWN_PARAMS, sizes),
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


def result_text(value: Json, size: int, most: int = MAX_RESULT) -> str:
    """A result as a transcript keeps it: a text as it is, any other value as JSON, without images and other base64 (R10.18).

    `size` is what it has in bytes. Of more than `most` characters the beginning is kept, with how many there are.
    """
    if size > 4 * most:  # what is not shown is not looked at (R18.5)
        text = value[: 4 * most] if isinstance(value, str) else preview(value, 4 * most)
        return cut_text(without_media(text), most, said(size))
    value = without_media(value)
    text = value if isinstance(value, str) else dumps(value)
    return cut_text(text, most, f"{len(text):,} characters")


REST: Final = "; the rest: recall]"
"""How a text ends that was cut."""


def cut_text(text: str, most: int, whole: str) -> str:
    """The text, if it has at most `most` characters; else its beginning, how much the `whole` has, and how to read that."""
    return text if len(text) <= most else f"{text[:most]}… [{whole}{REST}"


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


def _one_line(value: Json) -> str:
    """The beginning of a result; of text as text."""
    if not isinstance(value, str):
        return preview(value, SHOWN_RESULT)
    text = " | ".join(value[: 2 * SHOWN_RESULT].splitlines())
    return text if len(text) <= SHOWN_RESULT else f"{text[: SHOWN_RESULT - 1]}…"
