"""Event adapters: the events of a run or a session in another form, such as a protocol's events or lines of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Generic, TypeVar

from perdure.runs.events import TOPICS, Event, Topic

Form = TypeVar("Form")
Ended = TypeVar("Ended")


class EventAdapter(Generic[Form, Ended]):
    """A fold of events into another form, without I/O: a driver reads the events, and sends what the adapter yields.

    A subclass has a generator `on_TOPIC` for each topic that it shows, and state of its own where it needs one::

        class Progress(EventAdapter[str, None]):
            def on_tool(self, event: Event) -> Iterator[str]:
                yield f"{event.data['call']} {event.phase}"
    """

    topics: ClassVar[frozenset[Topic]] = frozenset()
    """Topics that the adapter shows: a driver needs no others."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.topics = frozenset(topic for topic in TOPICS if hasattr(cls, f"on_{topic}"))

    def begin(self) -> Iterator[Form]:
        """Yield what comes before the first event."""
        yield from ()

    def fold(self, event: Event) -> Iterator[Form]:
        """Yield what follows from an event."""
        handle: Callable[[Event], Iterator[Form]] | None = getattr(self, f"on_{event.topic}", None)
        return iter(()) if handle is None else handle(event)

    def end(self, ended: Ended) -> Iterator[Form]:
        """Yield what comes behind the last event. `ended`: the run as it has ended."""
        del ended
        yield from ()
