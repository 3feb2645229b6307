"""How long ago something was, in words."""

from __future__ import annotations

from datetime import UTC, datetime


def age(since: str) -> str:
    """How long ago a time in ISO 8601 is, in the largest unit that says something."""
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{max(seconds, 0)} s"
