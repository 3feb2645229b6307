"""Usage: tokens and money, for each Request and each run, by model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

from perdure.models.model_names import bare_model
from perdure.values.json import JsonObject, WireModel


class Price(WireModel):
    """Dollars per million tokens."""

    prompt: float = Field(ge=0, le=1e9)
    completion: float = Field(ge=0, le=1e9)
    cached: float | None = Field(default=None, ge=0, le=1e9)
    """The price of prompt tokens from the server's cache; `None`, which is not printed: that of the others."""

    cache_write: float | None = Field(default=None, ge=0, le=1e9)
    """The price of prompt tokens that the server writes to its cache; `None` as for `cached`."""

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        plain: JsonObject = handler(self)
        return {key: value for key, value in plain.items() if value is not None}


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return the price of a model: under its whole name, or without its provider; `None` if neither has one."""
    return prices.get(model) or prices.get(bare_model(model))


class Usage(WireModel):
    """Tokens, as a model's server counts them.

    ```python
    usage = (await run.view()).usage
    print(usage.prompt_tokens, usage.completion_tokens, usage.tokens)
    ```
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # R10.19
    """Prompt tokens from the server's cache; not printed if the server does not report them."""
    reasoning_tokens: int = 0
    """Completion tokens of the model's reasoning; printed as `cached_tokens` are."""
    cache_write_tokens: int = 0
    """Prompt tokens that the server wrote to its cache; printed as `cached_tokens` are."""

    @model_serializer(mode="wrap")
    def _as_counted(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        plain: JsonObject = handler(self)
        return {key: value for key, value in plain.items() if value or key not in _NOT_ZERO}

    @property
    def tokens(self) -> int:
        """The sum of prompt and completion tokens, which a budget counts."""
        return self.prompt_tokens + self.completion_tokens

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both usages."""
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})

    def cost_at(self, price: Price | None) -> float | None:
        """Return the cost in dollars; `None` if the price is unknown."""
        if price is None:
            return None
        cached = price.prompt if price.cached is None else price.cached
        written = price.prompt if price.cache_write is None else price.cache_write
        others = self.prompt_tokens - self.cached_tokens - self.cache_write_tokens
        prompt = others * price.prompt + self.cached_tokens * cached + self.cache_write_tokens * written
        return (prompt + self.completion_tokens * price.completion) / 1_000_000


_REPORTED: Final = ("cached_tokens", "reasoning_tokens", "cache_write_tokens")
"""Fields that are printed if the server reports them."""
_NOT_ZERO: Final = frozenset((*_REPORTED, *map(to_camel, _REPORTED)))
"""The fields' names in Python, and on the wire."""


def tokens_of(usage: Usage) -> dict[str, int]:
    """Return the counts of tokens by their names, without costs."""
    return {name: getattr(usage, name) for name in Usage.model_fields}


class ModelUsage(Usage):
    """The usage of one model in a run.

    ```python
    for name, usage in (await run.view()).usage.by_model.items():
        print(name, usage.requests, usage.cost)
    ```
    """

    requests: int = 0
    """The number of Requests to it."""
    cost: float | None = None
    """Dollars; `None` if a price is unknown."""


class RunUsage(Usage):
    """The usage of a run and of all its delegates.

    ```python
    usage = (await run.view()).usage
    print(usage.tokens, usage.cost)
    ```
    """

    # R9.6

    cost: float | None = None
    """Dollars; `None` if the price of a used model is unknown."""
    by_model: dict[str, ModelUsage] = Field(default_factory=dict)
    """By the model's name."""

    def count(self, model: str, usage: Usage, prices: Mapping[str, Price], *, requests: int = 1) -> None:
        """Add the usage of one Request, or of several of one model."""
        self._add(model, ModelUsage(**tokens_of(usage), requests=requests, cost=usage.cost_at(price_of(model, prices))))

    def include(self, child: RunUsage) -> None:
        """Add the usage of a delegate."""
        # R9.6
        for model, usage in child.by_model.items():
            self._add(model, usage)

    def _add(self, model: str, usage: ModelUsage) -> None:
        before = self.by_model.get(model, ModelUsage(cost=0.0))
        known = before.cost is not None and usage.cost is not None
        self.by_model[model] = ModelUsage(
            **tokens_of(before.plus(usage)),
            requests=before.requests + usage.requests,
            cost=(before.cost or 0.0) + (usage.cost or 0.0) if known else None,
        )
        for name, tokens in tokens_of(usage).items():
            setattr(self, name, getattr(self, name) + tokens)
        costs = [each.cost for each in self.by_model.values()]
        self.cost = None if None in costs else sum(cost for cost in costs if cost is not None)
