"""How long a refusal asks to wait, as the providers' headers name it (R20.8)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.failures import requested_pause

NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)
OPENAI = {
    "x-ratelimit-limit-tokens": "90000",
    "x-ratelimit-remaining-requests": "59",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-requests": "1s",
    "x-ratelimit-reset-tokens": "6m0s",
}
ANTHROPIC = {
    "anthropic-ratelimit-requests-remaining": "0",
    "anthropic-ratelimit-requests-reset": "2026-11-23T12:00:07Z",
    "anthropic-ratelimit-input-tokens-remaining": "0",
    "anthropic-ratelimit-input-tokens-reset": "2026-11-23T12:00:31Z",
    "anthropic-ratelimit-output-tokens-remaining": "8000",
    "anthropic-ratelimit-output-tokens-reset": "2026-11-23T12:05:00Z",
}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "20"}, 20),
        ({"retry-after-ms": "1500", "retry-after": "20"}, 1.5),
        ({"retry-after": "Mon, 23 Nov 2026 12:00:40 GMT"}, 40),
        ({"retry-after": "Mon, 23 Nov 2026 12:00:40 GMT", "date": "Mon, 23 Nov 2026 12:00:38 GMT"}, 2),
        ({"retry-after": "Mon, 23 Nov 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": f"Mon, 23 Nov {'9' * 20} 12:00:40 GMT"}, None),
        ({"retry-after": "20", "date": f"Mon, 23 Nov 2026 {'9' * 20}:00:40 GMT"}, 20),
        (OPENAI, 360),
        (OPENAI | {"x-ratelimit-remaining-tokens": "12"}, None),
        (OPENAI | {"x-ratelimit-reset-tokens": "850ms"}, 0.85),
        (OPENAI | {"x-ratelimit-reset-tokens": "1m2.5s"}, 62.5),
        (OPENAI | {"retry-after": "3"}, 3),
        (ANTHROPIC, 31),
        ({"x-ratelimit-remaining-tokens": "0"}, None),
    ],
)
def test_the_headers_name_the_pause(headers: dict[str, str], seconds: float | None) -> None:
    assert requested_pause(headers, NOW) == (None if seconds is None else pytest.approx(seconds))


NAMES = st.sampled_from(["retry-after", "retry-after-ms", "date", *OPENAI, *ANTHROPIC])
TEXTS = st.text(max_size=12) | st.sampled_from(
    ["0", "nan", "inf", "1e999", "6m", "٣s", "99999999999999h", *ANTHROPIC.values()]
)


@given(st.dictionaries(NAMES, TEXTS))
def test_no_header_breaks_a_failure(headers: dict[str, str]) -> None:
    pause = requested_pause(headers, NOW)
    assert pause is None or 0 <= pause < float("inf")
