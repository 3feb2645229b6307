"""Names of models: `anthropic:claude-sonnet-5` is the model `claude-sonnet-5` of the provider `anthropic`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Provider = Literal["openai", "openai-responses", "anthropic", "google", "bedrock"]
"""The providers. `openai` is Chat Completions, which most servers understand; a name without a provider means it."""
PROVIDERS: Final[tuple[Provider, ...]] = get_args(Provider)

FAST_MODEL: Final = "gpt-4o-mini"
SMART_MODEL: Final = "gpt-4o"
"""The models of a worker whose settings name none."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model's name, and the provider that answers for it."""

    provider: Provider
    name: str
    """The name as the server knows it, with the mark of an endpoint (`@backup`) if it has one."""


def parse_model(model: str) -> ModelName:
    """Return the provider and the name of a model.

    Only the known providers count: `llama3:8b` is a name of the default provider, and so is `openai:anthropic:x`, without
    its first part.
    """
    written, mark, name = model.partition(":")
    for provider in PROVIDERS if mark and name else ():
        if written == provider:
            return ModelName(provider, name)
    return ModelName("openai", model)


def bare_model(model: str) -> str:
    """Return the name without its provider."""
    return parse_model(model).name
