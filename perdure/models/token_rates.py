"""Token rates: the Requests a second of a model's queue that keep their tokens within a limit (R20.8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from perdure.models.usage import Usage
from perdure.values.json import Json, JsonObject

MINUTE: Final = 60.0
EXPECTED: Final = 4_000
"""Tokens of a Request before any size is known."""
_KNOWN: Final = 16
"""The newest Requests in the mean: consecutive Requests of an agent have similar sizes."""
_ANSWER: Final = 500
"""Tokens of an answer before any size is known."""
_CHANGE: Final = 0.1
"""The share by which the rate must differ to be set again."""
_CHARACTERS: Final = 4
"""Characters of a prompt for one token."""
_FILE: Final = 1_500 * _CHARACTERS
"""Characters for which a picture, document or recording counts: about the tokens that providers count for a large
picture.
"""


def initial_rate(requests: float | None, tokens: float | None) -> float:
    """Return the Requests a second of a queue before any size is known. `requests`, `tokens`: a minute; `None`: no limit."""
    return TokenRate(requests, tokens).rate


def prompt_size(body: JsonObject) -> int:
    """Return the estimated tokens of a Request's prompt."""
    return _characters(body) // _CHARACTERS


def _characters(value: Json) -> int:
    """Return the estimated characters of a value as JSON. A file counts as `_FILE`, regardless of its size."""
    if isinstance(value, str):
        return _FILE if value.startswith("data:") else len(value) + 2
    if isinstance(value, list):
        return 2 + sum(map(_characters, value))
    if isinstance(value, dict):
        if value.get("type") == "input_audio":
            return _FILE
        return 2 + sum(len(key) + 4 + _characters(item) for key, item in value.items())
    return 4


class TokenRate:
    """The rate of one queue: its limit of tokens divided by the mean size of its Requests.

    A Request counts from its beginning with its estimated size, and from its end with the tokens that its server has
    counted. `requests`, `tokens`: limits a minute; `None`: no limit.
    """

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        self._requests, self._tokens = requests, tokens
        self._sizes: dict[int, int] = {}
        self._answers: deque[int] = deque(maxlen=_KNOWN)
        self._number = 0
        self._published = self.rate
        """The rate that was set last; first by the worker's start."""

    @property
    def rate(self) -> float:
        """Requests a second that keep both limits."""
        mean = sum(self._sizes.values()) / len(self._sizes) if self._sizes else EXPECTED
        rates = [self._requests] if self._requests is not None else []
        # A Request above the limit of a minute is sent, too: otherwise it would wait forever.
        rates += [max(1.0, self._tokens / max(1.0, mean))] if self._tokens is not None else []
        return min(rates) / MINUTE

    def begin(self, prompt: int) -> int:
        """Count a Request of this estimated prompt, and return its number."""
        answer = sum(self._answers) / len(self._answers) if self._answers else _ANSWER
        self._number += 1
        self._sizes[self._number] = prompt + int(answer)
        while len(self._sizes) > _KNOWN:
            del self._sizes[next(iter(self._sizes))]
        return self._number

    def settle(self, number: int, usage: Usage) -> None:
        """Count the tokens that a Request has used; without a usage its estimate stays."""
        used = usage.prompt_tokens + usage.completion_tokens
        if used:
            self._answers.append(usage.completion_tokens)
            if number in self._sizes:
                self._sizes[number] = used

    def take_change(self) -> float | None:
        """Return the rate if it must be set again, because it differs from the last one."""
        rate = self.rate
        if self._tokens is None or abs(rate - self._published) <= _CHANGE * self._published:
            return None
        self._published = rate
        return rate


def limited_names(requests: Mapping[str, float], tokens: Mapping[str, float]) -> list[str]:
    """Return the names of models, and beginnings of names, that have any limit."""
    return sorted({*requests, *tokens})
