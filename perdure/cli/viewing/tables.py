"""Tables that no terminal is too narrow for: what has no room is cut, and no word is broken."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from perdure.model.availability import ModelWait

_GAP: Final = 2
_LEAST: Final = 8
"""Characters that a column keeps when it gives way."""


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    width: int,
    *,
    gives: Sequence[str] = (),
    drops: Sequence[str] = (),
    right: Sequence[str] = (),
    style: str | None = None,
) -> Table:
    """A line a row, within the `width`: columns of `gives` are cut where there is too little room, the widest first, and of `drops` left
    out in their order where that is not enough; the rest is cut by the terminal alone."""
    cells = [[each if isinstance(each, Text) else Text(each) for each in row] for row in rows]
    wanted = {title: max([len(title), *(row[n].cell_len for row in cells)]) for n, title in enumerate(titles)}
    for title in drops:
        if _needs(wanted, gives) > width:
            del wanted[title]
    while _room(wanted) > width and (wide := [t for t in gives if wanted.get(t, 0) > _LEAST]):
        widest = max(wide, key=lambda title: wanted[title])
        wanted[widest] = max(_LEAST, wanted[widest] - (_room(wanted) - width))
    made = Table(box=None, padding=(0, _GAP, 0, 0), show_edge=False, header_style="dim", row_styles=[style or ""])
    for title, wide_ in wanted.items():
        justify: Any = "right" if title in right else "left"
        made.add_column(title, no_wrap=True, overflow="ellipsis", justify=justify, width=wide_)
    for row in cells:
        made.add_row(*(row[titles.index(title)] for title in wanted))
    return made


def wait_line(wait: ModelWait) -> str:
    """What a run waits for, with the time of day of this machine's zone."""
    return wait.text(datetime.fromisoformat(wait.since).astimezone().strftime("%H:%M"))


def _room(widths: dict[str, int]) -> int:
    return sum(widths.values()) + _GAP * len(widths)


def _needs(widths: dict[str, int], gives: Sequence[str]) -> int:
    """The least that these columns take."""
    return _room({title: min(each, _LEAST) if title in gives else each for title, each in widths.items()})
