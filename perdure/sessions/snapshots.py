"""What a session carries on into a new execution (R10.13)."""

from __future__ import annotations

from typing import Any, Final

from perdure.sessions.lanes.queued import LaneState
from perdure.sessions.transcript import Carried
from perdure.values.jsons import JsonObject
from perdure.values.wire import Wire

SESSION_FORM: Final = 1
"""Of a `SessionSnapshot`. A worker that does not know a snapshot's form fails its tasks until one that does takes over."""


class SessionSnapshot(Wire):
    """A session between two runs."""

    lane: LaneState
    transcript: JsonObject
    """A `Carried` as plain JSON: what packs a model leaves out what is a default, and an entry's type is one."""
    state: JsonObject | None = None
    """What its runs have written; `None`: nothing yet, so that the agent file's counts."""


def plain(carried: Carried) -> JsonObject:
    """What a transcript carries on, without what says nothing, but for the types of its entries."""
    found: dict[str, Any] = carried.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    found["entries"] = [
        {**written, "type": entry.type}
        for written, entry in zip(found.get("entries", ()), carried.entries, strict=True)
    ]
    return found
