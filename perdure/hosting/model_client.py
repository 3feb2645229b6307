"""A client of models for processes other than workers."""

from __future__ import annotations

from collections.abc import Mapping

from openai import AsyncOpenAI

from perdure.activities.endpoints import Endpoints
from perdure.activities.prices import list_price
from perdure.activities.requests import ask_model
from perdure.hosting.settings import in_force
from perdure.models.requests import RequestContext, RequestResult
from perdure.models.usage import Price, price_of


class ModelClient:
    """The models that the settings name, with their prices. `client`: replaces OpenAI's client of the environment."""

    def __init__(self, client: AsyncOpenAI | None = None) -> None:
        settings = in_force()
        self._endpoints = Endpoints(client, settings.endpoints)
        self._prices: Mapping[str, Price] = settings.prices

    async def ask(self, model: str, context: RequestContext) -> RequestResult:
        """Return the model's answer to a context. Raises `RunError` without one."""
        return await ask_model(self._endpoints, model, context)

    def prices(self, models: list[str]) -> dict[str, Price]:
        """Return the known prices of these models."""
        found = {name: price_of(name, self._prices) or list_price(name) for name in models}
        return {name: price for name, price in found.items() if price is not None}
