"""What an answer has cost, counted once (R9.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perdure.model.usage import Price
from perdure.model.wire import RequestResult, RequestView
from perdure.run.past.wire import Progress

SHOWN_TEXT: Final = 300
"""Characters of what the model said that `show` prints."""


def count_answer(
    request: RequestView, result: RequestResult, progress: Progress, prices: Mapping[str, Price], *, text_answers: bool
) -> None:
    """The Request's answer is whole. `text_answers`: what the model says in text may be its answer."""
    if request.status == "done":
        return
    request.status, request.usage, request.text = "done", result.usage, result.text[:SHOWN_TEXT]
    if not (text_answers or result.problem):
        request.text = ""  # it is all in the calls and the output
    request.cost = result.usage.cost_at(prices.get(request.model))
    progress.usage.count(request.model, result.usage, prices)
    progress.expected.note_request(result.usage, request.cost)
