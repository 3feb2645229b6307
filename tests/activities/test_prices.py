"""List prices of models (R9.6)."""

from __future__ import annotations

import pytest

from perdure.activities.prices import list_price
from perdure.models.model_names import PROVIDERS


@pytest.mark.parametrize(
    "model",
    [
        "gpt-4o-mini",
        "gpt-4o@backup",
        "openai-responses:gpt-5",
        "anthropic:claude-sonnet-4-5",
        "google:gemini-2.5-pro",
        "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    ],
)
def test_each_providers_models_have_a_list_price(model: str) -> None:
    price = list_price(model)
    assert price is not None
    assert 0 < price.prompt < price.completion
    assert price.cached is not None
    assert price.cached < price.prompt


@pytest.mark.parametrize(
    "name", ["claude-sonnet-4-5", "llama3:8b", "", ":", "no such model", "x" * 10_000, "gpt-4o:\n"]
)
def test_a_name_that_its_provider_does_not_have_has_none(name: str) -> None:
    assert list_price(name) is None
    assert all(list_price(f"{each}:nothing") is None for each in PROVIDERS)
