"""The wire of the people's room: what a program that decides is asked (R7.9)."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from perdure.values.jsons import JsonObject
from perdure.values.limits import MAX_NAME
from perdure.values.wire import Wire

APPROVE_ACTIVITY: Final = "perdure.approve"
EXECUTION_ACTIVITY: Final = "perdure.execution"
STEER: Final = "steer"
"""Signal: a new message for the run while it works, a `Said` (R10.5)."""
WAITS: Final = "waits"
"""Signal, a `RunWaits`: a session's run tells its session that it has come to wait for a person, or does not any more (R10.4)."""
WITHDRAW: Final = "withdraw"
"""Update: a message, by its id, is taken back while no Request holds it (R10.7)."""


class RunWaits(Wire):
    """Whether a session's run waits for a person."""

    run_id: str
    count: int
    """How often that has changed: signals may overtake each other."""
    waits: bool


class ApproveInput(Wire):
    """What a program that decides is asked (R7.9)."""

    approver: str
    """`module:function`."""
    call: str
    """The offer's name, as a decision has it."""
    offer: JsonObject | None = None
    """A `WaitingView` as JSON: what a person would be shown. `None`: too large to be sent; the activity asks its run (R18.2)."""


class Said(Wire):
    """A message that came while the run worked."""

    id: str = Field(min_length=1, max_length=MAX_NAME)
    """Its sender's: a second one of the same sender and id is the same message."""
    text: str = Field(min_length=1)
    sender: str = Field(default="", max_length=MAX_NAME)
    at: str = Field(default="", max_length=40)
    """ISO 8601, UTC: when it was accepted."""


class Heard(Wire):
    """What became of such a message."""

    id: str
    sender: str = ""
    request: int | None = None
    """Number of the Request that held it; `None`: none has, or none did before the run ended."""

    def names(self, id: str, sender: str) -> bool:
        """Whether it is that of a message; Perdure 0.1.0 kept no sender."""
        return self.id == id and self.sender in ("", sender)
