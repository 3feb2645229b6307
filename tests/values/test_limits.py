"""Numbers in words."""

from __future__ import annotations

import pytest

from perdure.values.limits import duration_words


@pytest.mark.parametrize(
    ("seconds", "words"), [(1.5, "1.5 s"), (90, "90 s"), (3600, "1 h"), (5400, "90 min"), (172_800, "2 d")]
)
def test_a_duration_in_words(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words
