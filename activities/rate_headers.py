"""Rate headers: how long a provider's refusal asks to wait, as its headers name it (R20.8)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_REMAINING: Final = re.compile(r"(?:x|anthropic)-ratelimit-(?:remaining-([\w-]+)|([\w-]+)-remaining)")
_SPAN: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS: Final = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)


def requested_pause(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds after which the headers ask to try again; `None` if they do not.

    `retry-after-ms` and `retry-after` (seconds, or a date) go first. Else it is the time until the last limit of which
    nothing remains is filled again: `x-ratelimit-reset-…`, `anthropic-ratelimit-…-reset`. `now` counts where the server
    does not name its own time.
    """
    sent = {name.lower(): value for name, value in headers.items()}
    now = _moment(sent.get("date", "")) or now
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        pause = _seconds(sent.get(name, ""), now, unit)
        if pause is not None:
            return pause
    return max(_until_filled(sent, now), default=None)


def _until_filled(sent: Mapping[str, str], now: datetime) -> Iterator[float]:
    for name, value in sent.items():
        found = _REMAINING.fullmatch(name)
        if found is None or value.strip() != "0":
            continue
        reset = name.replace("remaining", "reset")
        if (pause := _seconds(sent.get(reset, ""), now, 1.0)) is not None:
            yield pause


def _seconds(text: str, now: datetime, unit: float) -> float | None:
    """Return the seconds that a text names: a number of the unit, a span such as `6m0s`, or a moment."""
    text = text.strip()
    try:
        number = float(text) * unit
    except ValueError:
        pass
    else:
        return number if 0 <= number < float("inf") else None
    found = _SPAN.fullmatch(text)
    if text and found is not None:
        return sum(float(part) * size for part, size in zip(found.groups(), _UNITS, strict=True) if part)
    moment = _moment(text)
    return None if moment is None else max(0.0, (moment - now).total_seconds())


def _moment(text: str) -> datetime | None:
    """Return a moment: RFC 3339, or HTTP's date."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(text)
        except (ValueError, OverflowError):  # a year or an hour of many digits
            continue
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return None
