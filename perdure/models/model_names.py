"""Names of models: `anthropic:claude-sonnet-5` is the model `claude-sonnet-5` of the provider `anthropic`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Provider = Literal["openai", "openai-responses", "anthropic", "google", "bedrock"]
"""The providers. `openai`, the default for a name without a provider, is Chat Completions, which most servers support.
"""
PROVIDERS: Final[tuple[Provider, ...]] = get_args(Provider)

FAST_MODEL: Final = "gpt-4o-mini"
SMART_MODEL: Final = "gpt-4o"
"""The default models of a worker."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model's name, and the provider that answers for it."""

    provider: Provider
    name: str
    """The server's name of the model, with the mark of an endpoint (`@backup`) if it has one."""


def parse_model(model: str) -> ModelName:
    """Return the provider and the name of a model.

    Other prefixes than the providers are part of the name: `llama3:8b` is a model of the default provider, and so is
    `anthropic:x` in `openai:anthropic:x`.
    """
    written, mark, name = model.partition(":")
    for provider in PROVIDERS if mark and name else ():
        if written == provider:
            return ModelName(provider, name)
    return ModelName("openai", model)


def split_endpoint(model: str) -> tuple[str, str]:
    """Return a model's name at its server, and its endpoint: the text after the last `@`. `""` is the default server.

    `llama@backup` is `llama` at `backup`. A number is part of the name (`claude@20260401`), and so is an `@` at the
    beginning (`@cf/llama`). A last `@` ends a name that has one: `claude@latest@`.
    """
    whole = parse_model(model).name
    name, _, endpoint = whole.rpartition("@")
    return (name, endpoint) if name and not endpoint.isdecimal() else (whole, "")


def bare_model(model: str) -> str:
    """Return the name without its provider."""
    return parse_model(model).name
