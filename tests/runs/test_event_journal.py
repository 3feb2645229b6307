"""The journal of what happens: numbers without a gap, bounded, small whatever is noted, and where a reader is (R10.14)."""

from __future__ import annotations

import base64
import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CursorError
from perdure.runs.event_journal import EventJournal
from perdure.runs.events import TOPICS, CarriedEvents, Cursor, Event, EventsPage, as_topic, clip_value, parse_cursor
from perdure.values.json import Json, JsonObject, dumps, loads
from perdure.values.limits import (
    CARRIED_EVENTS,
    CARRIED_EVENTS_SIZE,
    EVENTS_AT_ONCE,
    KEPT_EVENTS,
    KEPT_EVENTS_SIZE,
    MAX_EVENT_DATA,
)
from perdure.values.sizes import Sizes
from tests.strategies import json_values

AT = "2026-11-22T12:00:00.000+00:00"


def noting(journal: EventJournal, number: int, text: str = "") -> None:
    journal.note("tool", "start", AT, call=f"1.{number}", tool="t", params={"number": number, "text": text})


def numbers(page: EventsPage) -> list[int]:
    return [int(each.data["call"][2:]) for each in page.events]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 3)), max_size=8), st.data())
def test_a_reader_that_comes_often_enough_sees_each_event_once_over_any_number_of_executions(
    executions: list[tuple[int, int]], data: st.DataObject
) -> None:
    journal, count, seen, at = EventJournal(), 0, [], 0
    for length, looks in executions:
        for _ in range(length):
            noting(journal, count)
            count += 1
        for _ in range(looks):
            page = journal.page(at, data.draw(st.integers(0, 100)))
            assert page.first == max(at, page.kept_from)
            seen += numbers(page)
            at = page.next
            assert at == page.first + len(page.events)
        journal = EventJournal(CarriedEvents.model_validate(journal.carried().as_json()))  # it goes on as new
    while (page := journal.page(at, 7)).events:
        assert page.first in (at, page.kept_from)
        at, seen = page.next, seen + numbers(page)
    assert page.count == count
    assert sorted(set(seen)) == seen
    if count <= CARRIED_EVENTS // 2:  # of those that are so small all of them go along
        assert seen == list(range(count))


@settings(max_examples=20)
@given(st.lists(st.integers(0, 6_000), max_size=80), st.integers(-5, 3_000))
def test_whatever_is_noted_it_keeps_the_newest_that_fit_and_says_from_where(lengths: list[int], first: int) -> None:
    journal = EventJournal()
    for number in range(1_500):
        noting(journal, number, "x" * lengths[number % len(lengths)] if lengths else "")
    page = journal.page(first)
    assert page.count == 1_500
    assert page.first == min(max(first, page.kept_from), 1_500)
    kept = list(page.events)
    while page.next < page.count:
        page = journal.page(page.next)
        kept += page.events
    assert [int(each.data["call"][2:]) for each in kept] == list(range(1_500 - len(kept), 1_500))
    assert (first < 1_500) <= len(kept) <= KEPT_EVENTS
    assert sum(len(dumps(each.data)) for each in kept) <= KEPT_EVENTS_SIZE
    assert all(len(dumps(each.data)) <= MAX_EVENT_DATA for each in kept)
    carried = journal.carried()
    assert carried.count == 1_500
    assert 0 < len(carried.events) <= CARRIED_EVENTS
    assert sum(len(dumps(each.data)) for each in carried.events) <= CARRIED_EVENTS_SIZE
    assert carried.events == kept[-len(carried.events) :] or len(kept) < len(carried.events)


def test_who_asks_for_what_an_execution_before_still_has_is_told_so() -> None:
    journal = EventJournal()
    for number in range(CARRIED_EVENTS + 50):
        noting(journal, number)
    assert not journal.page().earlier
    later = EventJournal(journal.carried())
    assert later.kept_from >= 50
    assert (later.page(10).earlier, later.page(later.kept_from).earlier) == (True, False)
    for number in range(2_000):
        noting(later, number)
    assert later.page(100).earlier  # these were dropped by this one too
    assert not later.page(CARRIED_EVENTS + 100).earlier  # these only this one ever had


@given(json_values(), st.integers(80, 4_000))
def test_a_clipped_value_fits_is_json_and_is_the_value_where_it_is_whole(value: Json, most: int) -> None:
    before = copy.deepcopy(value)
    short, size, whole = clip_value(value, most)
    assert loads(dumps(short)) == short
    assert size <= most + 2 * 60
    assert value == before
    if whole:
        assert short == value
    if len(dumps(value)) + 20 <= most:
        assert whole


@pytest.mark.parametrize(
    "value",
    [
        "x" * 1_000_000,
        {"to": "bob", "body": "x" * 1_000_000, "subject": "hello"},
        list(range(1_000_000)),
        {str(number): "x" * 500 for number in range(2_000)},
        [["x" * 10] * 100] * 100,
        {"k" * 100_000: 1},
        10**3_999,
        [[[[[["x" * 9_000]]]]]],
    ],
    ids=["text", "object", "list", "keys", "nested", "key", "number", "deep"],
)
def test_whatever_is_large_is_cut_keeps_its_form_and_says_so(value: Json) -> None:
    journal = EventJournal()
    journal.note("tool", "end", AT, call="1.0", tool="t", status="done", result=value, error=None)
    data = journal.page().events[0].data
    assert len(dumps(data)) <= MAX_EVENT_DATA
    assert len(dumps(data)) > MAX_EVENT_DATA / 4 or not isinstance(value, str | list)
    assert (data["call"], data["status"], data["cut"]) == ("1.0", "done", ["result"])
    assert type(data["result"]) is type(value) or isinstance(value, int)
    assert "error" not in data


def test_a_short_part_of_what_is_large_stands_whole() -> None:
    short, _, whole = clip_value({"to": "bob", "body": "x" * 9_000, "subject": "hello"}, 2_000)
    assert not whole
    assert (short["to"], short["subject"]) == ("bob", "hello")
    assert short["body"].endswith("… (9,000 characters)")


def test_values_of_a_run_are_only_named_until_somebody_reads_them_and_keep_images_out() -> None:
    sizes, image = Sizes(), "iVBORw0KGgo" + "A" * 900
    rows: list[Json] = [{"number": number, "text": "x" * 30} for number in range(100)]
    large: JsonObject = {"image": image, "rows": [image] * 30}
    journals = [EventJournal(), EventJournal()]
    for journal in journals:
        results: list[Json] = [rows, {"image": image}, large, "short"]
        for result in results:
            journal.note("tool", "end", AT, call="1.0", tool="t", status="done", result=result, of=sizes)
    weighed = journals[1].carried()
    first, again = journals[0].page(), journals[0].page()
    assert first == again
    assert journals[1].page(2).events == first.events[2:]
    assert weighed == journals[0].carried(), "what is kept does not go by who has read it"
    data = [event.data for event in first.events]
    assert data[0]["cut"] == ["result"]
    assert data[0]["result"][0] == rows[0]
    assert data[1]["result"]["image"].startswith("[image/png")
    assert "A" * 200 not in dumps(data)
    assert all(len(dumps(each)) <= MAX_EVENT_DATA for each in data)


@pytest.mark.parametrize("around", ["", "a long text " * 30])
@pytest.mark.parametrize("beside", [False, True])
def test_a_file_in_an_event_is_described_before_anything_is_cut(around: str, beside: bool) -> None:
    """Two pictures of 33 KB with one beginning are two, each of its whole size (R10.18)."""
    journal, sizes = EventJournal(), Sizes()
    files = [bytes(range(256)) * 130 + bytes([last]) for last in range(2)]
    if not beside:
        files = [b"\x89PNG\r\n\x1a\n" + each for each in files]
    for file in files:
        text = base64.b64encode(file).decode()
        result = {"mimeType": "image/png", "data": text} if beside else {"text": f"{around}{text}{around}"}
        journal.note("tool", "end", AT, call="1.0", of=sizes, result={**result, "rows": ["x" * 100] * 300})
    said = [dumps(each.data) for each in journal.page().events]
    found = [re.findall(r"\[image/png, ([\d,]+) bytes, (\w+), left out\]", each) for each in said]
    assert [[size for size, _ in each] for each in found] == [[f"{len(file):,}"] for file in files]
    assert len({digest for each in found for _, digest in each}) == 2
    assert all(
        each.data["cut"] == ["result"] and len(dumps(each.data)) < MAX_EVENT_DATA for each in journal.page().events
    )


def test_a_page_holds_what_an_answer_does_and_the_next_one_goes_on() -> None:
    journal, seen, pages = EventJournal(), 0, 0
    for number in range(400):
        noting(journal, number, "x" * 1_700)
    while (page := journal.page(seen)).events:
        assert (page.first, page.next) == (seen, seen + len(page.events))
        assert len(page.model_dump_json()) < EVENTS_AT_ONCE * 1.2
        seen, pages = page.next, pages + 1
    assert (seen, pages > 1) == (400, True)


def test_what_was_noted_does_not_change_with_what_it_is_of() -> None:
    journal = EventJournal()
    params: JsonObject = {"list": [1], "object": {"a": 1}}
    journal.note("tool", "start", AT, call="1.0", tool="t", params=params)
    params["list"].append(2)
    params["object"]["a"] = 2
    assert journal.page().events[0].data["params"] == {"list": [1], "object": {"a": 1}}


def test_the_text_of_an_answer_is_kept_whole_up_to_what_a_reply_may_have() -> None:
    journal = EventJournal()
    for text in ("y" * 64_000, "y" * 70_000):
        journal.note("assistant", "end", AT, request=1, attempt=1, text=text, accepted=True)
    whole, cut = (each.data for each in journal.page().events)
    assert whole["text"] == "y" * 64_000
    assert "cut" not in whole
    assert cut["cut"] == ["text"]
    assert cut["accepted"] is True


written = [st.integers(0, 300), st.integers(0, 5_000), st.integers(0, 10**7), st.integers(0, 10**7)]
cursors = st.builds(Cursor, st.integers(0, 10**9), *written) | st.builds(
    Cursor, st.integers(0, 10**9), *written, session=st.integers(0, 10**9), run=st.integers(0, 10**6)
)


@given(cursors)
def test_a_cursor_reads_what_it_writes(cursor: Cursor) -> None:
    assert parse_cursor(str(cursor)) == cursor


def test_short_cursors_are_as_one_writes_them() -> None:
    assert parse_cursor("12") == Cursor(12)
    assert parse_cursor("5.2.12") == Cursor(12, session=5, run=2)
    assert str(Cursor(12, 3, 1, 400)) == "12.3.1.400.0"
    assert str(Cursor(12, session=5, run=2)) == "5.2.12"


@pytest.mark.parametrize("text", ["", "a", "1.2", "1.2.3.4", "-1", "1..2", "1.2.3.4.5.6", "²", "٣", "1" * 18, "1.2.x"])
def test_what_is_no_cursor_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(CursorError, match="is not a valid cursor of events"):
        parse_cursor(text)


@given(st.text())
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    try:
        assert parse_cursor(str(parse_cursor(text))) == parse_cursor(text)
    except CursorError as error:
        assert "\n" not in str(error)


def test_topics_are_known_by_their_names() -> None:
    assert as_topic("tool") == "tool"
    assert as_topic("tools") is None
    event = Event("tool", "start", AT, "r", {"call": "1.0"}, "4")
    said: dict[str, Any] = event.as_json()
    assert list(said) == ["topic", "phase", "at", "runId", "cursor", "data"]
    assert {phase for phases in TOPICS.values() for phase in phases} >= {"start", "end", "update", "delta"}
