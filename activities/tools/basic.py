"""Tools that need no access: the current time, and the end of a run on purpose (R9.5)."""

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


class Completed(TypedDict):
    summary: str
    success: bool


@tool(safe=True, timeout=10)
def task_complete(summary: str, success: bool) -> Completed:
    """Call this when the task is fully resolved, or cannot be. It ends the run.

    Args:
        summary: what was done, or why it could not be.
        success: whether the task was solved.
    """
    return {"summary": summary, "success": success}
