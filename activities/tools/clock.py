"""The tool that returns the current time."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from typing_extensions import TypedDict

from perdure.errors import ToolError
from perdure.tools.decorator import tool


class Now(TypedDict):
    time: str
    weekday: str
    unix: int


@tool(safe=True, timeout=10)
def now(timezone: str = "UTC") -> Now:
    """The date and the time.

    Args:
        timezone: an IANA name such as Europe/Berlin.
    """
    try:
        time = datetime.now(ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError("no_such_timezone", f"there is no timezone {timezone!r}; expected e.g. Europe/Berlin") from None
    return {"time": time.isoformat(timespec="seconds"), "weekday": time.strftime("%A"), "unix": int(time.timestamp())}
