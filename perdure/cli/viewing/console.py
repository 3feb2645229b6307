"""Where commands print to: a terminal of any width, a pipe, an encoding that has no daggers."""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from typing import Any, Final, TextIO, cast

from rich.console import Console

WIDTH_OF_A_PIPE: Final = 200
"""Characters of a line where no terminal says how many: whoever reads a pipe breaks no lines."""
_PLAIN: Final = {"…": "...", "–": "-", "·": "-", "→": "->", "†": "+", "“": '"', "”": '"', "€": "EUR"}


def screen(*, stderr: bool = False) -> Console:
    """As rich has it; into a pipe without the blanks that fill a terminal's lines."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty() or "FORCE_COLOR" in os.environ:
        return Console(stderr=stderr, highlight=False)
    width = int(wide) if (wide := os.environ.get("COLUMNS", "")).isdecimal() else WIDTH_OF_A_PIPE
    return Console(file=cast(TextIO, _Unfilled(stream)), width=width, highlight=False)


class _Unfilled:
    """A stream whose lines end where their text does."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(re.sub(r"[ \t]+(?=\n|\Z)", "", text) if text.endswith("\n") else text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def harmless(text: str) -> str:
    """Text of a model or a person without what a terminal would take for orders: control characters, and marks that turn its direction."""
    return _ORDERS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


_ORDERS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def print_in_any_encoding(*, as_json: bool) -> None:
    """Let no character end the program that the output's encoding does not have: in JSON it is escaped, in words put plainly."""
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
