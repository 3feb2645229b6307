"""What a worker's own log says: no key that it was configured with, whoever logs it."""

from __future__ import annotations

import logging

from perdure.activities.secrets import masked


class _Masking(logging.Formatter):
    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        return masked(self._inner.format(record))


def mask_logs() -> None:
    """Mask keys in every line, tracebacks included, that the handlers there are now write; calling it again changes nothing."""
    for handler in [*logging.getLogger().handlers, logging.lastResort]:
        if handler is not None and not isinstance(handler.formatter, _Masking):
            handler.setFormatter(_Masking(handler.formatter))
