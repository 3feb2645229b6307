"""What a Request's model is writing, as its activity tells it while it comes: a bounded end of each text (R10.14)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from perdure.run.events.masks import MaskedText
from perdure.run.events.silence import may_be_silence
from perdure.run.events.wire import Piece, Written

WINDOW: Final = 32_000
"""Characters of a text that are told: who looks in between has seen what is before them."""


class Writing:
    """One attempt's text and reasoning. What may turn out to be `NO_REPLY` is not told, nor what may be one of the `secrets`."""

    def __init__(self, request: int, attempt: int, secrets: Iterable[str] = (), mask: str = "") -> None:
        self._request, self._attempt = request, attempt
        secrets = list(secrets)
        self._assistant = _Text(MaskedText(secrets, mask))
        self._reasoning = _Text(MaskedText(secrets, mask))
        self._held: str | None = ""
        """What waits for what follows; `None`: it is no `NO_REPLY`."""
        self._told = 0

    def add(self, text: str, reasoning: str = "") -> bool:
        """What has come of both; whether there is more to tell than was told."""
        if self._held is not None:
            self._held, text = self._held + text, ""
            if not may_be_silence(self._held):
                text, self._held = self._held, None
        self._assistant.add(text)
        self._reasoning.add(reasoning)
        return self._count > self._told

    @property
    def _count(self) -> int:
        return self._assistant.count + self._reasoning.count

    def written(self) -> Written:
        """All that is told now."""
        self._told = self._count
        return Written(
            request=self._request,
            attempt=self._attempt,
            assistant=self._assistant.piece(),
            reasoning=self._reasoning.piece(),
        )


class _Text:
    def __init__(self, masked: MaskedText) -> None:
        self._masked = masked
        self._end = ""
        self.count = 0

    def add(self, text: str) -> None:
        if text and (known := self._masked.push(text)):
            self.count += len(known)
            self._end = (self._end + known)[-WINDOW:]

    def piece(self) -> Piece:
        return Piece(start=self.count - len(self._end), text=self._end)
