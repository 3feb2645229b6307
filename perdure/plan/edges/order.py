"""`_after`: order without data (R5.11).

An item is a call's id, `R.N`, or output paths: `†state.x`, or several joined as in a parameter. A path names the calls that a
reader of it would bind to (R5.1), were nothing there before the plan: the nearest writer before the call and the adders after
it, else the nearest later one. Where the plan has none, what stands there already will do; where nothing does, the call is
invalid. The call starts when all of them have ended. It is skipped where one did not end well: a call named by its id was not
`done`, a path was not written. A path that another branch left out counts as a branch not taken. With `ended ` before it an item
only asks that they have ended, however: `ended 1.0`, `ended †state.x`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Final

from perdure.plan.calls import After
from perdure.values.jsons import Json, shorten
from perdure.values.references import Reference
from perdure.values.templates import is_expression, parse_template

AFTER: Final = "_after"
AFTER_ID: Final = "after"
"""What an edge of order to a call named by its id is called; see `label`."""
_ID: Final = re.compile(r"(0|[1-9]\d*)[.\d\[\]]*\.(0|[1-9]\d*)")
_BESIDE: Final = re.compile(r"\.(0|[1-9]\d*)")
"""A call of the same body, in the same iteration: `.0` (R16.5)."""


_ENDED: Final = re.compile(r"\s*ended\s+(?=[†(.\d])(.*)", re.DOTALL)
"""An item that only asks for an end, however it was."""


def parse_after(value: Json, call_id: str, joined: Container[str] = ()) -> tuple[After, After, list[str]]:
    """Return what has to have ended well, what has to have ended, and what is wrong with `_after`. One item needs no list.

    `joined`: the calls of earlier Requests that are in the plan.
    """
    given = value if isinstance(value, list) else [value]
    ended = [match[1] for item in given if isinstance(item, str) and (match := _ENDED.fullmatch(item))]
    well = [item for item in given if not (isinstance(item, str) and _ENDED.fullmatch(item))]
    first, problems = _parse_items(well, value, call_id, joined)
    second, more = _parse_items(ended, value, call_id, joined)
    return (After(), After(), problems + more) if problems or more else (first, second, [])


def _parse_items(given: Sequence[Json], value: Json, call_id: str, joined: Container[str]) -> tuple[After, list[str]]:
    items = [call_id.rpartition(".")[0] + item if _in_body(item, call_id) else item for item in given]
    ids = [item for item in items if isinstance(item, str) and _ID.fullmatch(item)]
    paths = [item for item in items if not (isinstance(item, str) and _ID.fullmatch(item))]
    template, malformed = parse_template(paths)
    problems = [f"$._after: {problem.error}" for problem in malformed]
    whole = all(isinstance(item, str) and is_expression(item) for item in paths)
    if not whole or any(reference.kind != "state" for reference in template.references()):
        problems.append(
            f'$._after is {shorten(value, 80)}, but must be a list of output paths such as "†state.name", or ids of calls, each perhaps with "ended " before it'
        )
    for item in ids:
        if item == call_id:
            problems.append(f"$._after: {item} is the call itself")
        elif item.rpartition(".")[0] != call_id.rpartition(".")[0] and item not in joined:
            calls = ".0, .1, …" if "[" in call_id else f"{call_id.rpartition('.')[0]}.0, …"
            problems.append(
                f"$._after: {item} is no call of this {'body' if '[' in call_id else 'plan'}; its calls are {calls}"
            )
    return After(template, ids), problems


def index_of(id: str) -> int:
    """The place of a call in its Request's list, or in its body."""
    return int(id.rpartition(".")[2])


def _in_body(item: Json, call_id: str) -> bool:
    return "[" in call_id and isinstance(item, str) and _BESIDE.fullmatch(item) is not None


def request_of(id: str) -> int:
    """The number of its Request."""
    return int(id.split(".")[0])


def is_order(edge: str) -> bool:
    """Whether all that goes over an edge is order."""
    return all(each.startswith(AFTER_ID) for each in edge.split(", ")) if edge else False


def label(reference: Reference) -> str:
    """What an edge of order is called where one of data has its reference."""
    return f"after {reference}"
