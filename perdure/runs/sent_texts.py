"""Texts that a run's message tools have sent, by their digests (R10.16)."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from perdure.plan import Call
from perdure.values.json import Json

MOST: Final = 1_000
"""Digests that a run keeps: the newest."""
_NAMES: Final = ("text", "message", "content", "body")
"""Parameters that may hold the sent text, if the tool does not name one."""
_WORD: Final = re.compile(r"\w+")
_PARAGRAPHS: Final = re.compile(r"\n\s*\n")


def sent_by(calls: Iterable[Call]) -> list[str]:
    """Return the digests of texts that successful calls of message tools have sent."""
    return [
        each
        for call in calls
        if call.spec.tool is not None and call.spec.tool.message and call.state.status == "done"
        for each in _digests(_text(call.inputs.params, call.spec.tool.message))
    ]


def merge_digests(before: list[str], more: Iterable[str]) -> list[str]:
    """Return both lists, each digest once, the newest `MOST`."""
    return list(dict.fromkeys([*before, *more]))[-MOST:]


def was_sent(text: str, sent: Collection[str]) -> bool:
    """Whether a text has no new content: it was sent as a whole, or each of its paragraphs was.

    Case, blanks and signs do not count.
    """
    return bool(sent) and (_digest(text) in sent or all(each in sent for each in _paragraphs(text)))


def _text(params: dict[str, Json], named: bool | str) -> str:
    """Return the text that a call sends."""
    if isinstance(named, str):
        found = params.get(named)
        return found if isinstance(found, str) else ""
    texts = {name: value for name, value in params.items() if isinstance(value, str)}
    known = next((texts[name] for name in _NAMES if name in texts), None)
    return known if known is not None else max(texts.values(), key=len, default="")


def _digests(text: str) -> list[str]:
    return [] if not text.strip() else [_digest(text), *_paragraphs(text)]


def _paragraphs(text: str) -> Iterator[str]:
    return (_digest(each) for each in _PARAGRAPHS.split(text) if each.strip())


def _digest(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = " ".join(_WORD.findall(plain)) or plain.strip()
    return hashlib.sha256(words.encode(errors="replace")).hexdigest()[:16]
