"""What AG-UI's clients are told of events, as a client keeps it, over all that may happen to what is written (R17.3)."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from ag_ui.core import BaseEvent
from hypothesis import given
from hypothesis import strategies as st

from perdure.gateway.agui._events import AguiEvents, patch
from perdure.gateway.agui._requests import AguiRequest
from perdure.runs.events import Event, Topic
from perdure.runs.wire import RunView

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("a/~", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3),
    max_leaves=8,
)
STATES = st.dictionaries(st.text("ab/~", max_size=2), JSON, max_size=4)


def event(topic: Topic, phase: str, **data: Any) -> Event:
    return Event(topic, phase, "2026-11-22T12:00:00.000Z", "run", data)


class Client:
    """As the project's own client keeps messages and state; raises where it would not take an event."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = deepcopy(messages)
        self.state: Any = {}
        self.open: set[str] = set()
        self.steps: set[str] = set()
        self.ended = False

    def take(self, told: BaseEvent) -> None:
        said = json.loads(told.model_dump_json(by_alias=True))
        assert not self.ended
        getattr(self, said["type"].lower(), lambda _: None)(said)

    def find(self, id: str) -> dict[str, Any]:
        return next(message for message in self.messages if message["id"] == id)

    def text_message_start(self, said: dict[str, Any]) -> None:
        assert said["messageId"] not in {message["id"] for message in self.messages}
        self.open.add(said["messageId"])
        self.messages.append({"id": said["messageId"], "role": "assistant", "content": ""})

    def text_message_content(self, said: dict[str, Any]) -> None:
        assert said["messageId"] in self.open
        assert said["delta"]
        self.find(said["messageId"])["content"] += said["delta"]

    def text_message_end(self, said: dict[str, Any]) -> None:
        self.open.remove(said["messageId"])

    def tool_call_start(self, said: dict[str, Any]) -> None:
        assert said["toolCallId"] not in {message["id"] for message in self.messages}
        call = {"id": said["toolCallId"], "type": "function"}
        call["function"] = {"name": said["toolCallName"], "arguments": ""}
        self.messages.append({"id": said["toolCallId"], "role": "assistant", "toolCalls": [call]})

    def tool_call_args(self, said: dict[str, Any]) -> None:
        self.find(said["toolCallId"])["toolCalls"][0]["function"]["arguments"] += said["delta"]

    def tool_call_result(self, said: dict[str, Any]) -> None:
        kept = {key: said[key] for key in ("toolCallId", "content", "role")}
        self.messages.append({"id": said["messageId"], **kept})

    def messages_snapshot(self, said: dict[str, Any]) -> None:
        assert not self.open
        self.messages = said["messages"]

    def step_started(self, said: dict[str, Any]) -> None:
        assert said["stepName"] not in self.steps
        self.steps.add(said["stepName"])

    def step_finished(self, said: dict[str, Any]) -> None:
        self.steps.remove(said["stepName"])

    def state_snapshot(self, said: dict[str, Any]) -> None:
        self.state = said["snapshot"]

    def state_delta(self, said: dict[str, Any]) -> None:
        self.state = patched(self.state, said["delta"])

    def run_finished(self, _: dict[str, Any]) -> None:
        assert not self.open
        assert not self.steps
        self.ended = True

    @property
    def texts(self) -> list[str]:
        return [each["content"] for each in self.messages if each["role"] == "assistant" and "content" in each]


def patched(value: Any, operations: list[dict[str, Any]]) -> Any:
    whole = {"": deepcopy(value)}
    for each in operations:
        *path, last = ["", *(part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:])]
        found: Any = whole
        for part in path:
            found = found[part]
        assert (last in found) == (each["op"] != "add")
        if each["op"] == "remove":
            del found[last]
        else:
            found[last] = each["value"]
    return whole[""]


@given(JSON, JSON)
def test_a_patch_makes_the_one_of_the_other(before: Any, after: Any) -> None:
    assert json.dumps(patched(before, patch(before, after)), sort_keys=True) == json.dumps(after, sort_keys=True)


@given(st.lists(STATES, min_size=1, max_size=5))
def test_a_client_has_the_state(states: list[dict[str, Any]]) -> None:
    telling, client = AguiEvents(AguiRequest("t", "r", None, []), "abcdef-1"), Client([])
    for state in states:
        for told in telling.state(state):
            client.take(told)
        assert json.dumps(client.state, sort_keys=True) == json.dumps(state, sort_keys=True)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Event], list[str], str]:
    """Events of a run whose Requests are asked anew, say things, and call tools; the texts that count, and the answer."""
    events, counted = [], []
    requests = draw(st.integers(1, 3))
    answer = ""
    for number in range(1, requests + 1):
        events.append(event("request", "start", number=number, model="m", reason="first"))
        attempts = draw(st.integers(1, 3))
        for attempt in range(1, attempts + 1):
            text = draw(st.text("xyz", min_size=1, max_size=6))
            cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=3)))
            about = {"request": number, "attempt": attempt}
            for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
                if draw(st.booleans()) or attempt < attempts:
                    events.append(event("assistant", "delta", **about, start=start, text=text[start:end]))
            if attempt < attempts:
                events.append(event("assistant", "superseded", **about, reason="again"))
        last = number == requests
        accepted = last or draw(st.booleans())
        events.append(event("request", "end", number=number, attempt=attempts, model="m", usage={}, says=True))
        call = {"call": f"{number}.0", "tool": "pay"}
        if not last:
            events.append(event("tool", "start", **call, params={"n": number}))
            events.append(event("tool", "end", **call, status="done", result="paid"))
        whole = draw(st.sampled_from([text, text + "!", "other"]))
        about = {"request": number, "attempt": attempts}
        events.append(event("assistant", "end", **about, text=whole, accepted=accepted, output=last))
        if accepted:
            counted.append(whole)
        answer = whole
    return events, counted, answer


@given(histories(), st.data())
def test_only_what_counts_stays(made: tuple[list[Event], list[str], str], data: st.DataObject) -> None:
    """Wherever a client loses the connection, and comes back with what it has: each text and call once, whole, and nothing that does not count."""
    events, counted, answer = made
    has: list[dict[str, Any]] = [{"id": "m1", "role": "user", "content": "Go."}]
    for at in (data.draw(st.integers(0, len(events))), len(events)):
        telling, client = AguiEvents(AguiRequest("t", "r", None, [], has), "abcdef-1"), Client(has)
        for told in telling.begin():
            client.take(told)
        for each in events[:at]:
            for told in telling.fold(each):
                client.take(told)
        if at == len(events) or data.draw(st.booleans()):
            has = client.messages
    for told in telling.end(RunView(run_id="run", status="completed", output=answer)):
        client.take(told)
    assert client.ended
    assert client.texts == counted
    calls = [each["id"] for each in client.messages if "toolCalls" in each]
    assert len(calls) == len(set(calls)) == sum(one.topic == "tool" and one.phase == "start" for one in events)
    assert sum(each["role"] == "tool" for each in client.messages) == len(calls)


def test_a_superseded_attempt_that_is_told_again_moves_no_later_text() -> None:
    """The client lost the connection while the second Request wrote, and holds the first Request's second attempt."""

    def delta(request: int, attempt: int, text: str) -> Event:
        return event("assistant", "delta", request=request, attempt=attempt, start=0, text=text)

    def end(request: int, attempt: int, text: str) -> Event:
        return event(
            "assistant", "end", request=request, attempt=attempt, text=text, accepted=True, output=request == 2
        )

    superseded = event("assistant", "superseded", request=1, attempt=1, reason="again")
    events = [delta(1, 1, "x"), superseded, delta(1, 2, "x"), end(1, 2, "x"), delta(2, 1, ""), delta(2, 1, "xx")]
    has: list[dict[str, Any]] = [{"id": "m1", "role": "user", "content": "Go."}]
    for seen in (events, [*events, end(2, 1, "xx")]):
        telling, client = AguiEvents(AguiRequest("t", "r", None, [], has), "abcdef-1"), Client(has)
        for each in seen:
            for told in telling.fold(each):
                client.take(told)
        has = client.messages
    assert client.texts == ["x", "xx"]


def long_answers() -> list[tuple[list[Event], str]]:
    """Events of a run whose output is longer than its event may be: all its pieces, its beginning, another text, none."""
    text = "".join(f"{line:07d} of the report\n" for line in range(5_000))
    cut = {"text": text[:200], "cut": ["text"], "accepted": True, "output": True}
    end = event("assistant", "end", request=1, attempt=1, **cut)
    written = [text, text[:60_000], "Wait.", ""]
    starts = [
        [event("assistant", "delta", request=1, attempt=1, start=0, text=each)] if each else [] for each in written
    ]
    return [([*start, end], text) for start in starts]


@pytest.mark.parametrize(("events", "text"), long_answers())
def test_an_output_whose_event_is_cut_is_one_message(events: list[Event], text: str) -> None:
    telling, client = AguiEvents(AguiRequest("t", "r", None, [], []), "abcdef-1"), Client([])
    for each in events:
        for told in telling.fold(each):
            client.take(told)
    for told in telling.end(RunView(run_id="run", status="completed", output=text)):
        client.take(told)
    assert client.texts == [text]


def test_a_call_that_a_person_has_replaced_is_shown_as_it_ran() -> None:
    has: list[dict[str, Any]] = [{"id": "m1", "role": "user", "content": "Go."}]
    telling, client = AguiEvents(AguiRequest("t", "r", None, [], has), "abcdef-1"), Client(has)
    for each in (
        event("approval", "start", call="1.0", tool="refund", params={"euros": 100}, reason="dangerous"),
        event("assistant", "delta", request=1, attempt=1, start=0, text="I re"),
        event("approval", "end", call="1.0", tool="voucher", decision="replace", by="bob"),
        event("tool", "start", call="1.0", tool="voucher", params={"euros": 20}),
        event("assistant", "end", request=1, attempt=1, text="I refund.", accepted=True),
        event("tool", "end", call="1.0", tool="voucher", status="done", result="voucher of 20 sent"),
    ):
        for told in telling.fold(each):
            client.take(told)
    [call] = client.find("abcdef-1:1.0")["toolCalls"]
    assert call["function"] == {"name": "voucher", "arguments": '{"euros":20}'}
    assert client.texts == ["I refund."]
