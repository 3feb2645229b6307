"""What must survive word for word where a text is made shorter: order numbers, addresses, amounts, dates, paths (R10.11)."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Final

_WORD: Final = re.compile(r"[^\s\"'<>(){}\[\],;|`=]+")
_ROUND: Final = ".:!?*#$€£~%+-_/\\&^†…"
_LONGEST: Final = 120
"""Characters. What is longer names nothing that a person or a model would write again."""
_NUMBERED: Final = re.compile(r"\d+(st|nd|rd|th|x|s|ms|kb|mb|%)|\d{1,2}", re.IGNORECASE)


def identifiers(text: str) -> dict[str, None]:
    """Those in a text, each once, in their order. Costs what the text has."""
    found: dict[str, None] = {}
    for word in _WORD.findall(text):
        word = word.strip(_ROUND)
        if 3 <= len(word) <= _LONGEST and _names(word):
            found[word] = None
    return found


def _names(word: str) -> bool:
    if any(character.isdigit() for character in word):
        return not _NUMBERED.fullmatch(word)
    return ("@" in word and "." in word) or "://" in word or word.count("/") > 1


def changed(summary: str, source: str) -> list[str]:
    """Identifiers of a summary that its source does not have: a model has made them up, or changed them."""
    return [word for word in identifiers(summary) if word not in source]


def listed(wanted: Iterable[str], text: Container[str], room: int) -> str:
    """Those that a text does not have, the first ones, in so many characters; empty where it has all."""
    names: list[str] = []
    for word in wanted:
        if word in text:
            continue
        room -= len(word) + 2
        if room < 0:
            break
        names.append(word)
    return ", ".join(names)
