"""A reader of one run's events that applies them, and complains of what is given twice or out of order (R10.14)."""

from __future__ import annotations

import asyncio

from perdure.runs.events import Event, parse_cursor


class Reader:
    """Applies what it is given, and complains of what is given twice, or out of order."""

    def __init__(self) -> None:
        self.next = 0
        self.texts: dict[int, tuple[int, str]] = {}
        self.thoughts: dict[int, tuple[int, str]] = {}
        self.seen: list[tuple[str, str]] = []
        self.spoken: set[tuple[str, int, int, int]] = set()
        self.jumped: set[int] = set()
        self.missed = 0
        self.cursor = ""
        self.ended: list[str] = []
        """The calls whose end was told."""
        self.superseded = 0
        self.applied = asyncio.Event()

    def apply(self, event: Event) -> None:
        texts = self.thoughts if event.topic == "reasoning" else self.texts
        self.cursor = event.cursor
        self.applied.set()
        events = parse_cursor(event.cursor).events
        if event.phase == "update" and events == self.next:
            return  # how things stand: not noted, and said again
        if event.phase == "snapshot":
            assert event.data["first"] == self.next < event.data["next"]
            self.missed += event.data["next"] - self.next
            self.next = event.data["next"]
            return
        assert events == self.next + (event.phase not in ("delta", "superseded"))
        if event.phase == "delta":
            self._delta(event, texts)
        elif event.phase == "superseded":
            self.superseded += event.topic == "assistant"
            if event.data["request"] in texts:
                assert texts.pop(event.data["request"])[0] == event.data["attempt"]
        else:
            self.next += 1
            self.seen.append((event.topic, event.phase))
            if (event.topic, event.phase) == ("tool", "end"):
                self.ended.append(event.data["call"])
            if (event.topic, event.phase) == ("assistant", "end") and event.data["accepted"]:
                request, text = event.data["request"], event.data["text"]
                if request not in self.jumped:
                    found = self.texts.get(request, (event.data["attempt"], ""))
                    assert found == (event.data["attempt"], text)

    def _delta(self, event: Event, texts: dict[int, tuple[int, str]]) -> None:
        request, attempt, start = event.data["request"], event.data["attempt"], event.data["start"]
        known, text = texts.get(request, (attempt, ""))
        assert known == attempt, "another attempt's text was not superseded"
        assert event.data["text"]
        assert start >= len(text), "a word was given twice"
        if start > len(text):
            self.jumped.add(request)
        for place in range(start, start + len(event.data["text"])):
            word = (event.topic, request, attempt, place)
            assert word not in self.spoken, "a word was given twice"
            self.spoken.add(word)
        texts[request] = (attempt, text.ljust(start, "?") + event.data["text"])
