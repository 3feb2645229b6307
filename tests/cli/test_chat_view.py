"""What a chat shows of events: each answer once, and never more lines than there is room for."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.cli._chat_view import ChatView
from perdure.runs.events import TOPICS, Event, Topic
from tests.strategies import json_values

RUN = "session-1/a-1"


def event(topic: Topic, phase: str, run_id: str = RUN, **data: Any) -> Event:
    return Event(topic, phase, "2026-01-01T00:00:00.000+00:00", run_id, data)


def shown(picture: ChatView, *events: Event) -> list[str]:
    return [line.plain for each in events for line in picture.fold(each)]


def below(picture: ChatView, width: int = 80, room: int = 20) -> str:
    return "\n".join(line.plain for line in picture.live(width, room))


def test_an_answer_is_written_below_and_stays_once() -> None:
    picture = ChatView()
    deltas = [event("assistant", "delta", text=text) for text in ("Hel", "lo", " you")]
    assert shown(picture, event("lifecycle", "start"), event("request", "start", model="m"), *deltas[:2]) == []
    assert picture.works
    assert below(picture) == "Hello"
    assert shown(picture, deltas[2], event("assistant", "end", text="Hello you", accepted=True, output=True)) == []
    assert below(picture) == "Hello you"
    assert shown(picture, event("lifecycle", "end"), event("reply", "end", text="Hello you")) == ["Hello you"]
    assert (below(picture), picture.works) == ("", False)


def test_what_does_not_count_is_gone_and_what_was_said_beside_calls_stays() -> None:
    picture = ChatView()
    shown(picture, event("lifecycle", "start"), event("assistant", "delta", text="wrong"))
    shown(picture, event("assistant", "superseded", reason="again"))
    assert below(picture) == ""
    assert shown(picture, event("assistant", "end", text="I look.", accepted=True)) == ["I look."]
    shown(picture, event("assistant", "delta", text="bad"))
    assert shown(picture, event("assistant", "end", text="bad", accepted=False)) == []
    assert below(picture) == ""


def test_a_conversation_that_is_reset_goes_on_with_the_run_that_its_event_names() -> None:
    for goes_on, waits in (({"runId": RUN}, [(RUN, "1.0")]), ({}, [])):
        picture = ChatView()
        other = event("approval", "start", "session-1/a-2", call="1.0", tool="pay", reason="")
        shown(
            picture, event("lifecycle", "start"), event("approval", "start", call="1.0", tool="pay", reason=""), other
        )
        assert len(picture.waits) == 2
        told = shown(picture, event("lifecycle", "reset", "", number=1, **goes_on))
        assert told == ["… the conversation was reset and continues from an earlier point"]
        assert (list(picture.waits), picture.works) == (waits, bool(goes_on))


def test_calls_run_below_and_what_came_of_them_stays() -> None:
    picture = ChatView()
    call: dict[str, Any] = {"call": "1.0", "tool": "look"}
    shown(picture, event("lifecycle", "start"), event("tool", "start", **call, params={"at": "a: b"}))
    assert below(picture) == "  1.0 look(at=a: b)"
    shown(picture, event("tool", "update", **call, progress="half"))
    assert below(picture) == "  1.0 look(at=a: b): half"
    assert shown(picture, event("tool", "end", **call, status="done", result={"x": 1})) == [
        '  1.0 look(at=a: b) → {"x": 1}'
    ]
    failed = event("tool", "end", call="1.1", tool="look", status="failed", error={"code": "e", "message": "broken"})
    assert shown(picture, failed) == ["  1.1 look failed: broken"]
    assert below(picture) == ""


def test_what_waits_is_asked_until_it_is_decided() -> None:
    picture = ChatView()
    offer: dict[str, Any] = {"call": "1.0", "tool": "pay", "params": {}, "reason": "pay is dangerous"}
    shown(picture, event("lifecycle", "start"), event("approval", "start", **offer))
    assert "1.0 pay waits for your decision  [a]pprove, [r]eject REASON" in below(picture)
    ended = event("approval", "end", call="1.0", tool="pay", decision="approve", by="bob")
    assert shown(picture, ended) == ["  1.0 pay approved by bob"]
    assert below(picture) == ""
    shown(picture, event("approval", "start", **offer), event("lifecycle", "error", status="cancelled"))
    assert not picture.waits


def test_messages_of_others_are_shown_and_ones_own_stand_there_already() -> None:
    picture = ChatView(own={"m1"})
    said = [
        event("message", "accepted", run_id="", messageId=id, sender="bob", text="hi\x1b[31m") for id in ("m1", "m2")
    ]
    assert shown(picture, *said) == ["bob: hi\N{REPLACEMENT CHARACTER}[31m"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([(topic, phase) for topic, phases in TOPICS.items() for phase in phases]),
            st.dictionaries(
                st.sampled_from(
                    ["call", "tool", "text", "params", "result", "error", "reason", "status", "question", "accepted"]
                ),
                json_values(),
            ),
        ),
        max_size=30,
    ),
    st.integers(1, 200),
    st.integers(0, 40),
)
def test_whatever_happens_it_is_never_higher_than_there_is_room(events: list[Any], width: int, room: int) -> None:
    picture = ChatView(reasoning=True)
    for (topic, phase), data in events:
        shown(picture, event(topic, phase, **data))
        lines = picture.live(width, room)
        assert len(lines) <= room
        assert all("\n" not in line.plain and "\x1b" not in line.plain for line in lines)
