"""Text in which references are read, as far as it stands for itself (R3.1, R6.4)."""

from __future__ import annotations

import re
from typing import Final

from perdure.values.references import DAGGER

_LOOKED_AT: Final = re.compile(r"†|\{[\s(]*(?:†|\Z)")


class Plain:
    """Pushed a text, gives it up to its first reference, with `††` as the dagger that it stands for."""

    def __init__(self) -> None:
        self.stopped = False
        """Whether a reference has come: nothing behind it is known."""
        self._rest = ""
        """What cannot be told yet: it may open a reference."""
        self._begun = False

    def push(self, text: str, *, closed: bool = False) -> str:
        """What is known now; all that is left, once the text is `closed`."""
        if self.stopped:
            return ""
        text, self._rest = self._rest + text, ""
        if not self._begun and not self._begin(text, closed):
            return ""
        told: list[str] = []
        at = 0
        while (found := _LOOKED_AT.search(text, at)) is not None:
            start, end = found.span()
            if end == len(text) and not closed:
                self._rest = text[start:]
                break
            follows = text[end : end + 1] == DAGGER
            if start + 1 == end and text[start] == DAGGER:  # one alone is a dagger, and so are two
                told.append(text[at:end])
                at = end + follows
            elif text[end - 1] == DAGGER and not follows:
                self.stopped = True
                break
            else:
                told.append(text[at : end - follows])
                at = end - follows
        told.append(text[at : found.start() if found else len(text)])
        return "".join(told)

    def _begin(self, text: str, closed: bool) -> bool:
        """Whether the text has begun as one that is no reference as a whole."""
        lead = text.lstrip(" \t\r\n(")
        if not closed and lead in ("", DAGGER):
            self._rest = text
            return False
        self._begun = True
        self.stopped = lead.startswith(DAGGER) and not lead.startswith(DAGGER * 2)
        return not self.stopped
