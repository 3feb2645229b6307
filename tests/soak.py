"""How long a soak takes: `make soak` fits 25 minutes, and `SOAK=10 make soak` plays ten times as much."""

from __future__ import annotations

import os
from typing import Final

_TIMES: Final = float(os.environ.get("SOAK", "1"))


def times(count: int) -> int:
    """So many, or as many times more as `SOAK` says."""
    return max(1, round(count * _TIMES))
