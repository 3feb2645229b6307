"""Keys taken out of a text that is being written, wherever it is cut."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.values.jsons import dumps


class MaskedText:
    """Pushed a text in pieces, gives it with every secret replaced. What may be the beginning of one waits for what follows."""

    def __init__(self, secrets: Iterable[str] = (), mask: str = "") -> None:
        both = {form for secret in secrets if secret for form in (secret, dumps(secret)[1:-1])}
        self._secrets = sorted(both, key=len, reverse=True)
        """The longest first: one may hold another."""
        self._mask = mask
        self._rest = ""

    def push(self, text: str) -> str:
        """What of it can be told now."""
        text = self._rest + text
        end = self._told(text)
        self._rest, text = text[end:], text[:end]
        for secret in self._secrets:
            text = text.replace(secret, self._mask)
        return text

    def _told(self, text: str) -> int:
        """Up to where no secret can begin that has not ended."""
        end = len(text)
        for secret in self._secrets:
            for size in range(min(len(secret) - 1, len(text)), 0, -1):
                if text.endswith(secret[:size]):
                    end = min(end, len(text) - size)
                    break
        while (start := self._across(text, end)) is not None:
            end = start
        return end

    def _across(self, text: str, end: int) -> int | None:
        """Where a secret begins that would be cut there."""
        for secret in self._secrets:
            start = text.find(secret, max(0, end - len(secret) + 1))
            if 0 <= start < end:
                return start
        return None
