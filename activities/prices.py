"""List prices of models, from the data of `genai-prices`: a run keeps the prices from its start."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from perdure.models.model_names import Provider, parse_model
from perdure.models.usage import Price

_PROVIDERS: Final[Mapping[Provider, str]] = {
    "openai": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "google": "google",
    "bedrock": "aws",
}
"""The names of our providers in that data."""


def list_price(model: str) -> Price | None:
    """Return the present list price of a model as a run names it: `gpt-5-mini`, `anthropic:claude-sonnet-4-5`; `None` if it has none.

    It is the price of a short prompt: some models cost more above a number of tokens. The lookup uses no network.

    ```python
    price = list_price("bedrock:anthropic.claude-haiku-4-5-20251001-v1:0")
    ```
    """
    named = parse_model(model)
    found = _find(named.name.partition("@")[0], _PROVIDERS[named.provider])
    if found is None:
        return None
    prices = found.get_prices(datetime.now(UTC))
    prompt, completion = _dollars(prices.input_mtok), _dollars(prices.output_mtok)
    if prompt is None or completion is None:
        return None
    return Price(
        prompt=prompt,
        completion=completion,
        cached=_dollars(prices.cache_read_mtok),
        cache_write=_dollars(prices.cache_write_mtok),
    )


@functools.lru_cache(maxsize=1000)
def _find(name: str, provider: str) -> Any:
    """Return a model of the data; `None` for one that it does not have, as each run of a local model asks."""
    from genai_prices.data_snapshot import get_snapshot  # takes 0.2 s, and only workers need it

    try:
        return get_snapshot().find_provider_model(name, None, provider, None)[1]
    except LookupError:
        return None


def _dollars(price: Any) -> float | None:  # a `Decimal`, tiers, or nothing
    base = getattr(price, "base", price)
    return float(base) if isinstance(base, Decimal) else None
