"""A run on a terminal while it goes on: one picture that stands still, and never higher than the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from perdure.cli.viewing.render import run_table
from perdure.run.wire import RunView

_KEPT = 2
"""Lines that are left free: the cursor's, and that of what is not shown."""


class Fitted:
    """What is too high for the terminal is shown from its newest line up, and said to be."""

    def __init__(self, view: RunView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(run_table(self._view, options.max_width), options.update(height=None), pad=False)
        while lines and not "".join(segment.text for segment in lines[-1]).strip():
            lines.pop()
        room = max(1, console.size.height - _KEPT)
        if len(lines) > room:
            yield Text(self._above(len(lines) - room), style="dim", no_wrap=True, overflow="ellipsis")
            lines = lines[-room:]
        yield from _joined(lines)

    def _above(self, count: int) -> str:
        done = sum(call.status == "done" for call in self._view.calls)
        return f"… {count} lines above; {len(self._view.log)} Requests, {done} of {len(self._view.calls)} calls done"


def _joined(lines: list[list[Segment]]) -> Iterator[Segment]:
    for number, line in enumerate(lines):
        if number:
            yield Segment.line()
        yield from line


class LiveRun:
    """Shows a run's views one after the other in one place; at the end, and where a person is asked, the place is free again."""

    def __init__(self, console: Console) -> None:
        self._live = Live(
            console=console,
            refresh_per_second=8,
            transient=True,
            auto_refresh=console.is_terminal,
            redirect_stderr=False,
        )
        self._terminal = console.is_terminal

    def __enter__(self) -> LiveRun:
        if self._terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, view: RunView) -> None:
        if self._terminal:
            self._live.update(Fitted(view))

    def pause(self) -> None:
        """Free the place for what is printed meanwhile."""
        self._live.stop()

    def go_on(self) -> None:
        if self._terminal:
            self._live.start(refresh=True)
