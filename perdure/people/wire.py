"""The wire of the people's room: what a program that decides is asked (R7.9)."""

from __future__ import annotations

from typing import Final

from perdure.values.jsons import JsonObject
from perdure.values.wire import Wire

APPROVE_ACTIVITY: Final = "perdure.approve"


class ApproveInput(Wire):
    """What a program that decides is asked (R7.9)."""

    approver: str
    """`module:function`."""
    call: str
    """The offer's name, as a decision has it."""
    offer: JsonObject | None = None
    """A `WaitingView` as JSON: what a person would be shown. `None`: too large to be sent; the activity asks its run (R18.2)."""
