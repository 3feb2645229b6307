"""Event adapters: which topics one shows, and what it makes of an event."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.runs.event_adapter import EventAdapter
from perdure.runs.events import Event


class Calls(EventAdapter[str, int]):
    def __init__(self) -> None:
        self._calls = 0

    def on_tool(self, event: Event) -> Iterator[str]:
        self._calls += 1
        yield f"{event.data['call']} {event.phase}"


class Everything(Calls):
    def on_request(self, event: Event) -> Iterator[str]:
        yield f"Request {event.phase}"

    def end(self, ended: int) -> Iterator[str]:
        yield f"{self._calls} calls, {ended} expected"


def test_an_adapter_shows_the_topics_of_its_methods_and_of_its_bases() -> None:
    assert EventAdapter.topics == frozenset()
    assert Calls.topics == {"tool"}
    assert Everything.topics == {"request", "tool"}


def test_an_adapter_folds_what_it_shows_and_skips_the_rest() -> None:
    adapter = Everything()
    events = [
        Event("request", "start", "", "r"),
        Event("tool", "end", "", "r", {"call": "1.1"}),
        Event("reasoning", "end", "", "r"),
    ]
    folded = [line for event in events for line in adapter.fold(event)]
    assert [*adapter.begin(), *folded, *adapter.end(2)] == ["Request start", "1.1 end", "1 calls, 2 expected"]
    assert list(Calls().end(0)) == []
