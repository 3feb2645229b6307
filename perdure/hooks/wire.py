"""What crosses between a workflow and the activity that calls its hooks, and the names it goes by (R10.17)."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from perdure.values.jsons import JsonObject
from perdure.values.wire import Wire

HOOK_ACTIVITY: Final = "perdure.hook"
"""Calls all hooks of one event at one point."""
SESSION_HOOKS_ACTIVITY: Final = "perdure.hooks"
"""Which hooks of a session the worker has."""
HOOK_QUERY: Final = "hook"
"""What hooks are given that is too large to be sent, asked by their activity by the event's key (R18.2)."""
REFUSED_BY_HOOK: Final = "refused_by_hook"
"""Code of a call that a hook has refused, or that hooks which fail closed could not look at."""
NO_SUCH_HOOK: Final = "NoSuchHook"
"""Code of what waits for a hook that the worker does not have: another of the queue may."""


class Whose(Wire):
    """For whom a run runs, where that was said."""

    tenant: str = ""
    sender: str = ""
    session: str = ""
    """The key of the session that it belongs to."""


class HookRef(Wire):
    """A hook that a worker has, as a run records it."""

    event: str
    name: str
    """`module:function`."""
    tools: list[str] | None = None
    """Those whose calls it is for; `None`: all."""
    timeout: float
    """Seconds."""
    closed: bool
    """Whether what it guards does not happen where it fails."""


class HookInput(Wire):
    """What the activity is given."""

    event: str
    hooks: list[HookRef]
    """In their order."""
    key: str
    """The event's."""
    given: JsonObject | None = None
    """The event as JSON; `None`: too large to be sent, it is to be asked for."""


class HookProblem(Wire):
    """A hook that failed, and was gone past."""

    hook: str
    problem: str


class HookAnswer(Wire):
    """What the hooks of one event have said together."""

    refused: str | None = None
    """Why; the hooks behind the one that says so were not called."""
    changed: JsonObject | None = None
    """The fields that they may change, as they are now; of parameters only those that were changed. `None`: as they were."""
    gone: list[str] = Field(default_factory=list)
    """Parameters that were taken out."""
    by: list[str] = Field(default_factory=list)
    """The hooks that have changed it, or the one that refused."""
    failed: list[HookProblem] = Field(default_factory=list)
