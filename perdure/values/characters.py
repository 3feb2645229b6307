"""Characters that people see, and those that nobody sees: a text for a decision has none of these."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_IGNORED: Final = re.compile(
    "[\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2065\\u2800\\u3164\\ufe00-\\ufe0f\\uffa0\\ufff0-\\ufff8\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff]"
)
"""Unicode's `Default_Ignorable_Code_Point` where Python calls the character printable, and the blank of Braille."""


def is_visible(char: str) -> bool:
    """Whether a person sees a character, or the blank."""
    return char.isprintable() and not _IGNORED.match(char)


def visible_lines(text: str) -> str:
    """Return the text without characters that nobody sees. Lines stay lines."""
    blanks = (" " if unicodedata.category(char) == "Zs" else char for char in text)
    return "".join(char for char in blanks if char in "\n\t" or is_visible(char))
