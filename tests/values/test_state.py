"""State and output paths (section 4)."""

from __future__ import annotations

import copy
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import ReferenceSyntaxError, StateError
from perdure.values.references import MISSING, get, overlaps, parse_output_path
from perdure.values.state import State, Write, replay
from tests.cpu import takes_less
from tests.strategies import paths, writes


def state_of(*entries: tuple[str, Any] | tuple[str, Any, Any]) -> State:
    state = State()
    for path, value, *method in entries:
        state.append(Write(path=parse_output_path(path)[0][0], value=value, method=method[0] if method else "set"))
    return state


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([("†state.a.b", 1), ("†state.a", 2)], {"a": 2}),
        ([("†state.a.b", 1), ("†state.a.c", 2)], {"a": {"b": 1, "c": 2}}),
        ([("†state.l", 1, "push"), ("†state.l", 2, "push")], {"l": [1, 2]}),
        ([("†state.l", [1]), ("†state.l", [2, 3], "concat")], {"l": [1, 2, 3]}),
        ([("†state.s", "a"), ("†state.s", "b", "concat")], {"s": "ab"}),
        ([("†state.o", {"a": {"x": 1}}), ("†state.o", {"a": {"y": 2}}, "merge")], {"o": {"a": {"x": 1, "y": 2}}}),
        (
            [("†state.o", {"a": {"x": 1}, "b": 1}), ("†state.o", {"a": {"y": 2}}, "assign")],
            {"o": {"a": {"y": 2}, "b": 1}},
        ),
        ([("†state.l", [1, 2]), ("†state.l[1]", 9), ("†state.l[2]", 3)], {"l": [1, 9, 3]}),
        ([("†state.l[0].x", 1)], {"l": [{"x": 1}]}),
        ([("†state.n", None)], {"n": None}),
        ([("†state", {"a": 1}, "merge"), ("†state", {"b": 2}, "merge")], {"a": 1, "b": 2}),
    ],
)
def test_r4_1_output_methods(entries: list[Any], expected: Any) -> None:
    assert state_of(*entries).snapshot() == expected


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([("†state.a", "text"), ("†state.a.b", 1)], '†state.a is "text", so †state.a.b cannot be written'),
        ([("†state.a", 1), ("†state.a", 2, "push")], "push needs an array at †state.a"),
        ([("†state.a", [1]), ("†state.a", 2, "concat")], "concat needs an array to add"),
        ([("†state.a", [1]), ("†state.a[5]", 2)], "use an index from 0 to 1"),
        ([("†state", 1)], "must stay an object"),
    ],
)
def test_r4_1_a_write_that_does_not_fit_says_why_and_changes_nothing(entries: list[Any], words: str) -> None:
    state = state_of(*entries[:-1])
    before = copy.deepcopy(state.snapshot())
    path, value, *method = entries[-1]
    with pytest.raises(StateError, match=words.replace("[", r"\[")):
        state.append(Write(path=parse_output_path(path)[0][0], value=value, method=method[0] if method else "set"))
    assert state.snapshot() == before


def test_r4_3_output_paths() -> None:
    assert parse_output_path("†state.a && †state.b.c") == ((("a",), ("b", "c")),)
    assert parse_output_path("†state.a || †state.b && †state.c || †state.d") == ((("a",),), (("b",), ("c",)), (("d",),))
    for wrong in ("†input.a", "(†state.a || †state.b) && †state.c", "state.a", ""):
        with pytest.raises(ReferenceSyntaxError):
            parse_output_path(wrong)


def applied(entries: list[Write]) -> State:
    state = State()
    for write in entries:
        try:
            state.append(write)
        except StateError:
            continue
    return state


@given(st.lists(writes(), max_size=15))
def test_a_state_replayed_from_its_writes_is_the_same_state(entries: list[Write]) -> None:
    state = applied(entries)
    assert State(state.writes).snapshot() == state.snapshot()


@given(st.lists(writes(), max_size=15), paths())
def test_r4_1_reading_back_to_the_newest_set_is_reading_the_value(
    entries: list[Write], path: tuple[str | int, ...]
) -> None:
    state = applied(entries)
    expected = get(state.snapshot(), path)
    try:
        found = replay(state.writes, path)
    except StateError:
        assert any(isinstance(part, int) for write in state.writes for part in write.path)
    else:
        # Which item of an array an index means depends on writes beside the path, which a read does not replay.
        beside = [write for write in state.writes if not overlaps(write.path, path)]
        moved = any(isinstance(part, int) for write in beside for part in write.path)
        assert found is expected is MISSING or found == expected or moved


@settings(max_examples=300)
@given(st.lists(st.lists(writes(), max_size=8), max_size=4))
def test_compacting_forgets_only_what_cannot_be_seen(parts: list[list[Write]]) -> None:
    state = State()
    for entries in parts:
        for entry in entries:
            with suppress(StateError):
                state.append(entry)
        before = copy.deepcopy(state.snapshot())
        count = len(state.writes)
        state.compact()
        assert State(state.writes).snapshot() == before
        assert len(state.writes) <= count
        again = State(state.writes)
        assert again.writes == state.writes, "what was said of an index that is a key is not said again"
        again.compact()
        assert again.writes == state.writes


def test_r18_5_compacting_costs_what_is_new() -> None:
    state = State(Write(path=("all", f"k{n}"), value="x" * 1000) for n in range(20_000))
    state.compact()

    def add_and_compact() -> None:
        state.append(Write(path=("all", "k7"), value=1))
        state.compact()

    assert takes_less(add_and_compact, 6)
    assert len(state.writes) == 20_000
    state.append(Write(path=("all",), value={}))
    state.compact()
    assert len(state.writes) == 1


def test_compacting_keeps_the_object_that_a_hidden_write_has_made() -> None:
    paths: list[tuple[str | int, ...]] = [("b", "b"), ("b", 0), ("b", "b")]
    state = applied([Write(path=path, value={}) for path in paths])
    state.compact()
    assert State(state.writes).snapshot() == {"b": {"b": {}, "0": {}}}


@given(st.lists(writes(), max_size=8), st.lists(writes(), max_size=8))
def test_a_snapshot_does_not_see_later_writes(first: list[Write], second: list[Write]) -> None:
    state = applied(first)
    snapshot = state.snapshot()
    before = copy.deepcopy(snapshot)
    for write in second:
        try:
            state.append(write)
        except StateError:
            continue
    assert snapshot == before


def test_a_large_value_is_read_once_for_all_requests() -> None:
    """Before, a hundred results of 55 KB took a third of a second in the task of each Request."""

    def rows(number: int) -> dict[str, Any]:
        return {"rows": [{"id": row, "name": f"{number} {row}", "on": True} for row in range(1_000)]}

    state = State(Write(path=(f"k{number}",), value=rows(number)) for number in range(30))
    first = time.thread_time()
    shown = state.shown()
    second = time.thread_time()
    assert state.shown() == shown
    assert time.thread_time() - second < (second - first) / 2
    state.append(Write(path=("k3",), value=rows(99)))
    state.append(Write(path=("k4", "rows", 0, "name"), value="changed"))
    assert state.shown() == State(state.writes).shown() != shown
    again = state.shown()
    assert again is not None
    assert "99 0" in again["k3"]
    assert "changed" in again["k4"]
    assert state.shown(most=100_000) is None
    assert "99 0" in state.beginnings()["k3"]
