"""One query answers with as many values as it may hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.runs.claim_check import GONE, Payload, read_payloads
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
