"""The console: output to a terminal of any width or a pipe, and tables that fit."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import click
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from perdure.models.requests import ModelWait


WIDTH_OF_A_PIPE: Final = 200
"""The width of lines without a terminal: readers of a pipe need unbroken lines."""
_PLAIN: Final = {"…": "...", "–": "-", "·": "-", "→": "->", "†": "+", "“": '"', "”": '"', "€": "EUR"}


def get_console(*, stderr: bool = False) -> Console:
    """Return rich's console; for a pipe, without padding at the end of lines."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty() or "FORCE_COLOR" in os.environ:
        console = Console(stderr=stderr, highlight=False)
        console.push_render_hook(_Harmless())
        return console
    width = int(wide) if (wide := os.environ.get("COLUMNS", "")).isdecimal() else WIDTH_OF_A_PIPE
    return Console(file=cast(TextIO, _Unfilled(stream)), width=width, highlight=False)


class _Harmless(RenderHook):
    """Makes all text for a terminal safe by `strip_control_characters`; rich's own styles and controls stay."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [each if isinstance(each, Control) else _HarmlessText(each) for each in renderables]


class _HarmlessText:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._renderable, options):
            yield segment if segment.control else Segment(strip_control_characters(segment.text), segment.style)


class _Unfilled:
    """A stream that removes spaces at the end of lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(re.sub(r"[ \t]+(?=\n|\Z)", "", text) if text.endswith("\n") else text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def strip_control_characters(text: str) -> str:
    """Return text of a model or a person without control characters and marks that change the text's direction."""
    return _ORDERS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


_ORDERS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def print_in_any_encoding(*, as_json: bool) -> None:
    """Print characters that the output's encoding lacks: in JSON as escapes, in other text as plain substitutes."""
    codecs.register_error("perdure.json", _escaped)
    codecs.register_error("perdure.plain", _plainly)
    for stream, handler in (
        (sys.stdout, "perdure.json" if as_json else "perdure.plain"),
        (sys.stderr, "perdure.plain"),
    ):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=handler)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(each, "?") for each in error.object[error.start : error.end]), error.end


_GAP: Final = 2
_LEAST: Final = 8
"""The least width of a column that is cut."""


def make_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    width: int,
    *,
    shrinkable: Sequence[str] = (),
    droppable: Sequence[str] = (),
    right: Sequence[str] = (),
) -> Table:
    """Return a table with one line per row, within the `width`. If it is too wide, columns of `shrinkable` are cut, the widest first. If that is
    not enough, columns of `droppable` are left out, in their order. Other columns are cut by the terminal only."""
    cells = [[each if isinstance(each, Text) else Text(each) for each in row] for row in rows]
    wanted = {title: max([len(title), *(row[n].cell_len for row in cells)]) for n, title in enumerate(titles)}
    for title in droppable:
        if _needs(wanted, shrinkable) > width:
            del wanted[title]
    while _room(wanted) > width and (wide := [t for t in shrinkable if wanted.get(t, 0) > _LEAST]):
        widest = max(wide, key=lambda title: wanted[title])
        wanted[widest] = max(_LEAST, wanted[widest] - (_room(wanted) - width))
    made = Table(box=None, padding=(0, _GAP, 0, 0), show_edge=False, header_style="dim")
    for title, wide_ in wanted.items():
        justify: Any = "right" if title in right else "left"
        made.add_column(title, no_wrap=True, overflow="ellipsis", justify=justify, width=wide_)
    for row in cells:
        made.add_row(*(row[titles.index(title)] for title in wanted))
    return made


def wait_line(wait: ModelWait) -> str:
    """Return a sentence about the provider that a run waits for, with the time in this machine's zone."""
    return wait.text(datetime.fromisoformat(wait.since).astimezone().strftime("%H:%M"))


def _room(widths: dict[str, int]) -> int:
    return sum(widths.values()) + _GAP * len(widths)


def _needs(widths: dict[str, int], shrinkable: Sequence[str]) -> int:
    """Return the least width of these columns."""
    return _room({title: min(each, _LEAST) if title in shrinkable else each for title, each in widths.items()})


def read_key() -> str:
    """Return the next key, also a key that was pressed earlier."""
    if not sys.stdin.isatty():
        return sys.stdin.read(1) or "q"
    with _at_once() as possible:
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if possible else click.getchar()


async def next_key() -> str:
    """Return the next key without blocking the event loop. After a cancellation, no thread continues to read."""
    loop = asyncio.get_running_loop()
    pressed: asyncio.Future[str] = loop.create_future()
    terminal = sys.stdin.fileno()

    def read() -> None:
        if not pressed.done():
            pressed.set_result(os.read(terminal, 1).decode(errors="replace"))

    with _at_once() as possible:
        if not possible:
            return click.getchar()
        loop.add_reader(terminal, read)
        try:
            return await pressed
        finally:
            loop.remove_reader(terminal)


@contextmanager
def _at_once() -> Iterator[bool]:
    """Make the terminal deliver each key at once. Yield false if it does not support this (Windows)."""
    try:
        import termios
        import tty
    except ImportError:
        yield False
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        # Not `click.getchar`: it discards keys that were typed while the question was printed.
        tty.setcbreak(terminal, termios.TCSADRAIN)
        yield True
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
