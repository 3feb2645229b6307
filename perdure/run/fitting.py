"""Making a run's result fit into one payload: what is too large to carry is shown by its beginning and its size (R6.9)."""

from __future__ import annotations

from typing import Final, TypeVar

from perdure.run.wire import MAX_PAYLOAD, CallView, RunResult
from perdure.values.jsons import Json, dumps, shorten

R = TypeVar("R", bound=RunResult)

_SMALL: Final = 1000
"""Characters that a value is left to in any case."""


def fit(result: R, limit: int = MAX_PAYLOAD) -> R:
    """The result as it is, if its JSON has at most `limit` bytes; else a copy with the largest values cut.

    First the calls' parameters and results, which repeat what is elsewhere, then the state, largest value first.
    """
    # All that crosses the wire counts, not only what `run --json` prints.
    excess = _size(result.model_dump(mode="json", by_alias=True)) - limit
    if excess <= 0:
        return result
    calls = [
        call.model_copy(update={"params": {key: _cut(value) for key, value in call.params.items()}, "shown": None})
        for call in result.calls
    ]
    excess -= sum(map(_size_of_call, result.calls)) - sum(map(_size_of_call, calls))
    state = dict(result.state)
    for key in sorted(state, key=lambda key: _size(state[key]), reverse=True):
        if excess <= 0:
            break
        before = _size(state[key])
        state[key] = _cut(state[key])
        excess -= before - _size(state[key])
    return result.model_copy(update={"calls": calls, "state": state})


def _size_of_call(call: CallView) -> int:
    return _size(call.params) + _size(call.shown)


def _cut(value: Json) -> Json:
    return value if _size(value) <= _SMALL else shorten(value, _SMALL // 2)


def _size(value: Json) -> int:
    return len(dumps(value).encode())
