"""The inner loop of one Request: `events` is what can happen and what is to be carried out, `loop` decides."""

from perdure.run.inner.events import Answered, Arrived, Decided, Ended, Event, Stage, Start, Steered, Stopped
from perdure.run.inner.loop import PLAN, REQUEST, InnerLoop, is_answered

__all__ = [
    "PLAN",
    "REQUEST",
    "Answered",
    "Arrived",
    "Decided",
    "Ended",
    "Event",
    "InnerLoop",
    "Stage",
    "Start",
    "Steered",
    "Stopped",
    "is_answered",
]
