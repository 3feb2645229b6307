"""Calls as they are kept and shown once their Request has ended, and what they read and wrote."""

from __future__ import annotations

from typing import Final

from perdure.plan.calls import Call
from perdure.plan.plan import Plan
from perdure.run.wire import CallView
from perdure.values.jsons import Json
from perdure.values.limits import SHOWN_PARAMS
from perdure.values.limits.fitting import cut_to
from perdure.values.limits.sizes import Sizes, preview

SHOWN_RESULT: Final = 160
"""Characters of a result that `show` prints."""


def plan_reads(plan: Plan) -> dict[str, list[str]]:
    return {call.id: reads for call in plan.calls if (reads := call.reads)}


def plan_writes(plan: Plan) -> dict[str, str]:
    return {call.id: call.target for call in plan.calls if call.paths}


def call_view(call: Call, sizes: Sizes) -> CallView:
    """The call as it is shown: of large parameters the beginning, so that a run of thousands of calls stays light (R18.3)."""
    return CallView(
        id=call.id,
        tool=call.tool_name,
        params=cut_to(call.params, SHOWN_PARAMS, sizes),
        status=call.status,
        started_at=call.started,
        ended_at=call.ended_at,
        attempts=call.attempts,
        reason=call.reason or None,
        error=cut_to(call.error.as_json(), SHOWN_PARAMS) if call.error else None,
        approval=call.approval,
        shown=_one_line(call.result) if call.status == "done" else None,
    )


def weight(view: CallView, sizes: Sizes) -> int:
    """Bytes of a call as it is kept, more or less."""
    return 500 + sizes.of(view.params) + 2 * len(view.shown or "") + sizes.of(view.error) + len(view.reason or "")


def _one_line(value: Json) -> str:
    """The beginning of a result; of text as text."""
    if not isinstance(value, str):
        return preview(value, SHOWN_RESULT)
    text = " | ".join(value[: 2 * SHOWN_RESULT].splitlines())
    return text if len(text) <= SHOWN_RESULT else f"{text[: SHOWN_RESULT - 1]}…"
