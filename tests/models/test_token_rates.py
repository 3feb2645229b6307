"""The rate of a queue that keeps a model's tokens a minute (R20.8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.models.token_rates import EXPECTED, TokenRate, initial_rate, prompt_size
from perdure.models.usage import Usage
from perdure.tools.invocation import limiting_name

SIZES = st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 4_000), st.booleans()), max_size=40)


@given(SIZES, st.integers(60, 10**6), st.none() | st.integers(1, 10**4))
def test_the_newest_requests_together_keep_the_limits(
    sizes: list[tuple[int, int, bool]], tokens: int, requests: int | None
) -> None:
    rate = TokenRate(requests, tokens)
    used: list[int] = []
    for prompt, answer, ends in sizes:
        number = rate.begin(prompt)
        if ends and prompt + answer:
            rate.settle(number, Usage(prompt_tokens=prompt, completion_tokens=answer))
            used.append(prompt + answer)
        else:
            used.append(0)
        assert min(1.0, requests or 1.0) * 0.999999 <= rate.rate * 60 <= (requests or float("inf")) * 1.000001
    if all(used[-16:]) and used:
        mean = sum(used[-16:]) / len(used[-16:])
        assert rate.rate * 60 * mean <= tokens * 1.000001 or mean < 1 or rate.rate * 60 <= 1.000001


def test_a_rate_is_set_anew_where_it_differs() -> None:
    rate = TokenRate(None, 60_000)
    assert rate.take_change() is None
    number = rate.begin(900)
    changed = rate.take_change()
    assert changed is not None
    assert changed > initial_rate(None, 60_000)
    rate.settle(number, Usage(prompt_tokens=950, completion_tokens=400))
    assert rate.take_change() is None
    rate.begin(50_000)
    smaller = rate.take_change()
    assert smaller is not None
    assert smaller < changed / 10


@pytest.mark.parametrize(
    ("requests", "tokens", "a_minute"),
    [(30, None, 30), (None, 40_000, 40_000 / EXPECTED), (5, 40_000, 5), (500, 40_000, 40_000 / EXPECTED)],
)
def test_the_smaller_limit_holds(requests: float | None, tokens: float | None, a_minute: float) -> None:
    assert initial_rate(requests, tokens) * 60 == pytest.approx(a_minute)


@pytest.mark.parametrize(
    ("model", "name"),
    [("m", "m"), ("anthropic:claude", "anthropic:*"), ("anthropic:big", "anthropic:b*"), ("x", None)],
)
def test_a_name_may_be_the_beginning_of_models(model: str, name: str | None) -> None:
    assert limiting_name(model, ["m", "anthropic:*", "anthropic:b*", "mm"]) == name


def test_a_file_counts_as_a_picture_and_not_by_its_base64() -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 4_000_000}"}}
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 4_000_000, "format": "wav"}}
    text = {"type": "text", "text": "word " * 4_000}
    body = {"messages": [{"role": "user", "content": [text, picture, sound]}]}
    assert 5_000 < prompt_size({"messages": [text]}) < 5_100
    assert 8_000 < prompt_size(body) < 8_200
