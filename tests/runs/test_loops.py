"""A loop's result fits into a payload, whatever its iterations give or how they fail (R18.3)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.runs.loops import LoopInput, most_items
from perdure.values.limits import MAX_PAYLOAD
from perdure.values.sizes import Sizes
from tests.soak import share

TEXTS = st.sampled_from(["x", "é", "語", "\x01", '"', "👩"])
SIZES = st.integers(0, 50) | st.integers(0, 1000) | st.integers(0, 200_000)


def loop(count: int, kind: Any = "each", limit: int = MAX_PAYLOAD) -> LoopInput:
    made = LoopInput(kind=kind, agent={}, params={}, items=[0] * count, max_payload=limit)
    if kind == "each":
        made.state.results = [None] * count
    return made


def encoded(of: LoopInput) -> int:
    return len(of.state.model_dump_json(by_alias=True).encode())


def end(of: LoopInput, index: int, failed: bool, text: str, code: str) -> None:
    if failed:
        of.keep_error(index, code, text)
    else:
        of.keep(index, text, Sizes().of(text))


@settings(max_examples=share(60), deadline=None)
@given(
    count=st.integers(1, 3000),
    kinds=st.lists(st.tuples(st.booleans(), TEXTS, SIZES, st.integers(0, 300)), min_size=1, max_size=20),
    kind=st.sampled_from(["each", "until"]),
)
def test_r18_3_the_state_of_any_loop_fits(count: int, kinds: list[tuple[bool, str, int, int]], kind: str) -> None:
    of = loop(count, kind)
    for index in range(count):
        failed, text, size, code = kinds[index % len(kinds)]
        end(of, index, failed, text * size, text * code)
        of.state.next += 1
        if kind == "until" and of.state.failures:
            break
    assert encoded(of) <= MAX_PAYLOAD
    if kind == "each":
        assert len(of.state.results) == count
        assert all("error" in each for each in of.state.results if isinstance(each, dict))


def test_r18_3_as_many_failures_as_items_fit() -> None:
    count = most_items(MAX_PAYLOAD)
    assert count >= 10_000
    of = loop(count)
    for index in range(count):
        end(of, index, True, "\x01" * 500, "\x01" * 500)
    assert of.state.failures == count
    assert encoded(of) <= MAX_PAYLOAD


def test_r18_3_what_has_ended_leaves_its_room_to_the_others() -> None:
    of = loop(10_000)
    for index in range(10_000):
        end(of, index, False, "x" * 160, "")
    assert of.state.failures == 0
    assert encoded(of) <= MAX_PAYLOAD


def test_r18_3_an_until_loops_result_that_is_too_large_is_its_error() -> None:
    of = loop(0, "until")
    end(of, 0, False, "x" * 1_890_000, "")
    assert (of.state.failures, of.state.satisfied) == (1, True)
    assert of.state.failed[0].code == "result_too_large"
    assert encoded(of) <= MAX_PAYLOAD
