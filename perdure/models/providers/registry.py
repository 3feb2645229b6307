"""The providers by name: the form of a Request to each, and the reader of its events.

A Request is made as a body of Chat Completions, and an answer is read as its pieces. A provider's module translates
both, so no other module depends on the provider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from perdure.models.model_names import Provider, parse_model
from perdure.models.providers import anthropic, bedrock, google, openai_responses
from perdure.models.providers.capabilities import PARTS, Capabilities, capabilities_of, left_out
from perdure.values.json import Json, JsonObject


class EventReader(Protocol):
    """A reader of a provider's events, for one answer."""

    def take(self, event: Json) -> list[Json]:
        """Return the pieces of Chat Completions in an event; errors stay unchanged."""
        ...


class ChatEvents:
    """The reader of Chat Completions, which needs no translation."""

    def take(self, event: Json) -> list[Json]:
        """Return the event."""
        return [event]


_READERS: Final[Mapping[Provider, Callable[[], EventReader]]] = {
    "openai": ChatEvents,
    "openai-responses": openai_responses.ResponsesEvents,
    "anthropic": anthropic.AnthropicEvents,
    "google": google.GoogleEvents,
    "bedrock": bedrock.BedrockEvents,
}


def event_reader(model: str) -> EventReader:
    """Return a reader for one answer of a model."""
    return _READERS[parse_model(model).provider]()


def _readable(message: JsonObject, capabilities: Capabilities) -> JsonObject:
    """Return a message with one line in place of each file that the model cannot read."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = []
    for part in content:
        needed = PARTS.get(part.get("type", ""))
        if needed is not None and not getattr(capabilities, needed):
            part = left_out(f"this model reads no {needed}")
        elif needed == "images" and not (capabilities.image_addresses or part["image_url"]["url"].startswith("data:")):
            part = left_out("this model's server reads no images from addresses")
        parts.append(part)
    return {**message, "content": parts}


def write_request(
    model: str, name: str, chat: JsonObject, stable: int = 0, capabilities: Capabilities | None = None
) -> JsonObject:
    """Return the body of a Request in the form of the model's provider.

    `name`: the server's name of the model. `chat`: the body in the form of Chat Completions. `stable`: the
    number of its messages that later Requests repeat. `capabilities`: the model's (default: by its name).
    """
    capabilities = capabilities or capabilities_of(model)
    if parse_model(model).provider != "openai":
        chat = {**chat, "messages": [_readable(message, capabilities) for message in chat["messages"]]}
    if not capabilities.strict_schemas and "strict" in chat.get("response_format", {}).get("json_schema", {}):
        chat = {key: value for key, value in chat.items() if key != "response_format"}
    provider = parse_model(model).provider
    if provider == "anthropic":
        return anthropic.write_body(name, chat, stable)
    if provider == "google":
        return google.write_body(name, chat)
    if provider == "bedrock":
        return bedrock.write_body(name, chat, stable, marked=capabilities.caching == "marked")
    if provider == "openai-responses":
        return openai_responses.write_body(name, chat, thinking=capabilities.thinking)
    return {"model": name, **{key: value for key, value in chat.items() if key != "hosted_tools"}}
