"""When a run's Requests and calls were under way, as SVG: a bar each, from its start to its end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from html import escape
from typing import Final, NamedTuple

from perdure.run.views.drawing import COLOURS
from perdure.run.wire import RunView

WIDTH: Final = 900
_LABEL: Final = 260
"""Pixels for what stands before the bars."""
_ROW: Final = 22
_LONGEST: Final = 30
"""Characters of a label; all of it is the bar's tooltip."""


class Bar(NamedTuple):
    """`begins`, `ends`: seconds since the first of them began."""

    label: str
    status: str
    begins: float
    ends: float


def bars(view: RunView) -> list[Bar]:
    """Of each call that was begun; one that goes on ends with the last thing that is known of the run."""
    begun = [(call, _seconds(call.started_at), call.ended_at) for call in view.calls if call.started_at is not None]
    if not begun:
        return []
    first = min(start for _, start, _ in begun)
    last = max([start for _, start, _ in begun] + [_seconds(end) for _, _, end in begun if end is not None])
    return [
        Bar(f"{call.id} {call.tool}", call.status, start - first, (last if end is None else _seconds(end)) - first)
        for call, start, end in begun
    ]


def timeline(view: RunView) -> str:
    """An SVG document, coloured as the graph is; empty where nothing was begun."""
    found = bars(view)
    if not found:
        return ""
    whole = max(max(bar.ends for bar in found), 0.001)
    height = _ROW * (len(found) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="ui-monospace, monospace" font-size="13" role="img" aria-label="When the calls ran">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *_rows(found, whole),
        f'<text x="{_LABEL}" y="{height - 6}" fill="#444">0 s</text>',
        f'<text x="{WIDTH - 4}" y="{height - 6}" fill="#444" text-anchor="end">{whole:.2f} s</text>',
        "</svg>",
    ]
    return "\n".join(parts)


def _rows(found: list[Bar], whole: float) -> Iterator[str]:
    scale = (WIDTH - _LABEL - 4) / whole
    for number, bar in enumerate(found):
        y = number * _ROW
        fill, colour = COLOURS.get(bar.status, COLOURS["pending"])
        x, width = _LABEL + bar.begins * scale, max(2.0, (bar.ends - bar.begins) * scale)
        label = bar.label if len(bar.label) <= _LONGEST else bar.label[: _LONGEST - 1] + "…"
        told = f"{bar.label}: {bar.begins:.2f}–{bar.ends:.2f} s, {bar.status}"
        yield (
            f'<g><title>{escape(told)}</title><text x="4" y="{y + 15}" fill="#222">{escape(label)}</text>'
            f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 8}" rx="3" fill="{fill}" stroke="{colour}"/></g>'
        )


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
