"""A run's result, failure and view in one payload, whatever has grown in it (R18.3).

What is cut is said in `cut`, with how to read it whole: the run keeps it, and answers for it page by page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from perdure.run.wire import CallView, RunResult, WaitingView
from perdure.values.jsons import dumps
from perdure.values.limits import MAX_PAYLOAD, said
from perdure.values.limits.fitting import allot, clipped, cut_to
from perdure.values.limits.sizes import Sizes, text_size

R = TypeVar("R", bound=RunResult)
M = TypeVar("M", bound=BaseModel)

_PARTS: Final = ("output", "errors", "waiting", "calls", "state", "log", "refusals", "edges", "reads", "writes")
"""What can grow, the most important first."""
_SLIM: Final = 500
"""Bytes of a call's parameters where the calls do not fit with more of them."""
_BESIDE: Final = 20_000
"""Bytes beside its output that a delegate's result has in the history above."""


def fit(result: R, limit: int = MAX_PAYLOAD, sizes: Sizes | None = None, *, calls: int = 0) -> R:
    """The result as it is, if its JSON has at most `limit` bytes; else a copy with its parts cut until it has.

    `calls`: how many the run has, where the result has only the newest.
    Total, and costs what there are of calls, not of bytes: what `sizes` knows is not looked into again.
    """
    sizes = Sizes(sizes)
    names = [name for name in _PARTS if name in type(result).model_fields]
    needed = [_size(getattr(result, name), sizes) for name in names]
    frame = result.model_copy(update=dict.fromkeys(names))
    room = limit - len(frame.model_dump_json(by_alias=True, warnings=False).encode())
    left_out = max(0, calls - len(result.calls))
    if sum(needed) <= room - 200 * (left_out > 0):
        said_of_calls = f"calls: the last {len(result.calls):,} of {calls:,} are shown; whole: perdure show {result.run_id} --value calls"
        return result.model_copy(update={"cut": [*result.cut, said_of_calls]}) if left_out else result
    # First what repeats what is elsewhere.
    result = result.model_copy(update={"calls": [_slim(call, sizes) for call in result.calls]})
    needed[names.index("calls")] = _size(result.calls, sizes)
    shares = _allot(needed, room - 200 * len(names))
    update: dict[str, Any] = {}
    cut: list[str] = []
    for name, size, share in zip(names, needed, shares, strict=True):
        if size > share:
            whole = getattr(result, name)
            update[name] = _cut(name, whole, share, sizes)
            if name == "output":
                update["output_size"] = size
            cut.append(_said(result.run_id, name, whole, update[name], size, left_out if name == "calls" else 0))
    return result.model_copy(update=update | {"cut": cut})


def told_above(result: RunResult, sizes: Sizes) -> RunResult:
    """A delegate's result without what the run above does not read, where that is large: it stands in its own history."""
    sizes = Sizes(sizes)
    beside = sum(_size(getattr(result, name), sizes) for name in ("errors", "calls", "state"))
    if beside <= _BESIDE:
        return result
    said = [f"errors, calls and state are not told to the run above; whole: perdure show {result.run_id}"]
    return result.model_copy(update={"errors": [], "calls": [], "state": {}, "cut": said})


def fit_waiting(
    waiting: Sequence[WaitingView], limit: int = MAX_PAYLOAD, sizes: Sizes | None = None
) -> list[WaitingView]:
    """What waits for people, with as much of its parameters as there is room for (R18.3).

    All of it, as far as each is named at least; of more the oldest, and the last of them says how many `more` there are.
    """
    sizes = Sizes(sizes)
    needed = [offer_size(view, sizes) for view in waiting]
    if sum(needed) <= limit or not waiting:
        return list(waiting)
    share = max(limit // len(waiting), _NAMED)
    shown = [
        view if size <= share else _cut_offer(view, share, sizes)
        for view, size in zip(waiting[: limit // share], needed, strict=False)
    ]
    if shown and (more := len(waiting) - len(shown)):
        shown[-1] = shown[-1].model_copy(update={"more": more})
    return shown


def _allot(needed: Sequence[int], room: int) -> list[int]:
    """An output that can be whole beside a twentieth for all the rest is whole: a delegate's is its call's value (R8.2)."""
    output, *rest = needed
    if output <= room - room // 20:
        return [output, *allot(rest, room - output)]
    return allot(needed, room)


def _size(part: Any, sizes: Sizes) -> int:
    if isinstance(part, list) and part and isinstance(part[0], WaitingView):
        return sum(offer_size(view, sizes) for view in part)
    if isinstance(part, list) and part and isinstance(part[0], BaseModel):
        return 2 + sum(map(_size_of_model, part))
    if isinstance(part, list) and part and isinstance(part[0], tuple):
        return len(dumps(part).encode())
    return sizes.of(part)


def _size_of_model(model: BaseModel) -> int:
    return len(model.model_dump_json(by_alias=True).encode()) + 1


_LARGE_OF_OFFER: Final = ("params", "items", "parameters", "calls", "simulation", "runs", "reason", "description")
_NAMED: Final = 1000
"""Bytes in which an offer can be named, without what it shows."""
_SHOWN: Final = 4000
"""Bytes from which on something of that is shown."""
_NAME: Final = 150
"""Bytes of a name, or of a reason, where there is no room for more."""


def offer_size(view: WaitingView, sizes: Sizes) -> int:
    """Bytes that an offer has at most."""
    # Measured part by part: the parameters are the run's own values, however large.
    names = text_size(view.tool) + text_size(view.agent) + text_size(view.call)
    return 500 + names + sum(sizes.of(getattr(view, name)) for name in _LARGE_OF_OFFER)


def _cut_offer(view: WaitingView, share: int, sizes: Sizes) -> WaitingView:
    """Its schema goes first, which the tool's definition repeats; then its parameters are cut."""
    update: dict[str, Any] = {"cut": True, "parameters": {}, "simulation": None}
    update |= {name: clipped(getattr(view, name), _NAME) for name in ("tool", "agent")}
    if share < _SHOWN:
        reason = clipped(view.reason, _NAME)
        update |= {"reason": reason, "description": "", "params": {}, "items": None, "calls": None, "runs": {}}
        return view.model_copy(update=update)
    names = [name for name in _LARGE_OF_OFFER if name not in update]
    needed = [sizes.of(getattr(view, name)) for name in names]
    for name, size, room in zip(names, needed, allot(needed, share - _NAMED), strict=True):
        if size > room:
            update[name] = cut_to(getattr(view, name), room, sizes)
    return view.model_copy(update=update)


def _cut(name: str, whole: Any, share: int, sizes: Sizes) -> Any:
    if name == "waiting":
        return fit_waiting(whole, share, sizes)
    if name == "calls":
        return _newest(whole, share, _size_of_model)
    if name == "log":
        return _newest(
            [view.model_copy(update={"text": "", "reason": view.reason[:100]}) for view in whole], share, _size_of_model
        )
    if name == "edges":
        return _newest(whole, share, lambda edge: len(dumps(edge).encode()) + 1)
    if name in ("reads", "writes"):
        return dict(_newest(list(whole.items()), share, lambda item: len(dumps(item).encode()) + 1))
    if name in ("errors", "refusals"):
        each = max(share // 50, 1000)
        return _newest([cut_to(item, each, sizes) for item in whole], share, lambda item: sizes.of(item) + 1)
    return cut_to(whole, share, sizes)


def _slim(call: CallView, sizes: Sizes) -> CallView:
    return call.model_copy(
        update={
            "params": cut_to(call.params, _SLIM, sizes),
            "error": call.error and cut_to(call.error, _SLIM, sizes),
            "reason": call.reason and call.reason[:_SLIM],
            "shown": None,
            "result": call.result and call.result[:_SLIM],
        }
    )


def _newest(items: Sequence[Any], room: int, size: Any) -> list[Any]:
    """The last of the items that fit."""
    room -= 2
    kept: list[Any] = []
    for item in reversed(items):
        room -= size(item)
        if room < 0:
            break
        kept.append(item)
    return kept[::-1]


def _said(run_id: str, name: str, whole: Any, shown: Any, size: int, left_out: int) -> str:
    """What was cut of a part, and how to read it whole; so many items were `left_out` before."""
    counts = isinstance(whole, list) and isinstance(shown, list) and len(shown) < len(whole)
    end = "first" if name == "waiting" else "last"
    # Of an output the first items are kept, and the last says how many more there are.
    what = f"the {end} {len(shown):,} of {len(whole) + left_out:,}" if counts and name != "output" else "in part"
    have = "have" if name[-1] == "s" else "has"
    return f"{name} {have} {said(size)}, shown {what}; whole: perdure show {run_id} --value {name}"
