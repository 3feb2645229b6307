"""The agent and the input of a schedule's runs (R19.6)."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias, get_args

from perdure.errors import ScheduleError
from perdure.values.json import Json, map_leaves, shorten

Overlap: TypeAlias = Literal["skip", "buffer-one", "buffer-all", "cancel-other", "terminate-other", "allow-all"]
"""The behavior of a schedule while its last run has not ended: Temporal's overlap policies."""
OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)
SCHEDULED: Final = "{{scheduled}}"
"""A value of a schedule's input that is replaced by the time for which the run was started."""
_AGENT: Final = re.compile(r"\w[\w -]*(\.\w[\w -]*)*")


def check_agent_name(name: str) -> None:
    """Raise `ScheduleError` for a name that no file in an agents folder can have."""
    if not _AGENT.fullmatch(name) or name.endswith(".json"):
        raise ScheduleError(
            f"{shorten(name, 60)} is not the name of an agent: a schedule's runs read the file NAME.json in the workers' "
            "agents folder, so give NAME, without a path"
        )


def with_time(value: Json, at: str) -> Json:
    """Return the input with the time, ISO 8601 in UTC, in place of each value that is exactly `{{scheduled}}`."""
    return map_leaves(value, lambda leaf: at if leaf == SCHEDULED else leaf)
