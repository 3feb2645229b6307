"""One key from the terminal, without Enter."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


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
