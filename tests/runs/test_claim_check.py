"""One query answers with as many values as it may hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.models.requests import RequestContext
from perdure.runs.claim_check import GONE, Neighbours, Payload, read_payloads
from perdure.values.json import JsonObject

MOST = 10_000
VALUES = st.one_of(st.none(), st.just(GONE), st.builds(Payload, st.text(min_size=1), st.integers(0, 2 * MOST)))


@given(st.dictionaries(st.text(), VALUES))
def test_r18_2_a_reader_that_repeats_its_query_gets_each_value_that_is_decided(
    held: dict[str, Payload | None],
) -> None:
    wanted = list(held)
    got: JsonObject = {}
    while answer := read_payloads(held.__getitem__, wanted, MOST):
        sizes = [payload.size for name in answer if (payload := held[name]) is not None]
        assert len(sizes) == 1 or sum(sizes) <= MOST
        got |= answer
        wanted = [name for name in wanted if name not in answer]
    assert got == {name: payload.value for name, payload in held.items() if payload is not None}


def test_r6_8_a_context_is_found_beside_its_run_for_as_long_as_the_run_holds_it() -> None:
    neighbours = Neighbours()
    held = RequestContext(messages=[{"role": "user", "content": "hello"}])
    part = Neighbours()
    neighbours.keep("run", "first", 1, held, part)
    assert neighbours.find("run", "first", 1) is held
    assert neighbours.holds("run", "first")
    assert neighbours.find("run", "reset", 1) is None
    assert neighbours.find("run", "first", 2) is None
    del held, part
    assert not neighbours.holds("run", "first")
    assert neighbours.find("run", "first", 1) is None
