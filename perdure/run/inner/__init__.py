"""The inner loop of one Request: `events` is what can happen and what is to be carried out, `loop` decides."""

from perdure.run.inner.events import Answered, Arrived, Decided, Ended, Event, Stage, Start, Stopped
from perdure.run.inner.loop import InnerLoop, asks_person

__all__ = [
    "Answered",
    "Arrived",
    "Decided",
    "Ended",
    "Event",
    "InnerLoop",
    "Stage",
    "Start",
    "Stopped",
    "asks_person",
]
