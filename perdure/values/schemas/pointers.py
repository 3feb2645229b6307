"""JSON pointers, as references of schemas use them (RFC 6901)."""

from __future__ import annotations

from typing import Any, Final

NOWHERE: Final = object()


def step_into(target: Any, step: str) -> Any:
    """What one step of a pointer leads to; `NOWHERE` where there is nothing."""
    name = step.replace("~1", "/").replace("~0", "~")
    if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
        return target[int(name)]
    return target.get(name, NOWHERE) if isinstance(target, dict) else NOWHERE
