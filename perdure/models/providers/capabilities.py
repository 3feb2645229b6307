"""Capabilities of models: the only facts about a provider outside its own module."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, Literal, get_args

from perdure.models.model_names import Provider, parse_model
from perdure.models.providers import google
from perdure.models.providers.claude import claude_of
from perdure.values.json import JsonObject
from perdure.values.limits import MAX_FILES_SHOWN
from perdure.values.messages import HostedTool

Caching = Literal["automatic", "marked", "none"]
FileKind = Literal["images", "documents", "audio"]
FileKinds = Mapping[str, Collection[FileKind]]
"""The kinds of files that models read, by name; `*` stands for any part of a name."""

PARTS: Final = {"image_url": "images", "file": "documents", "input_audio": "audio"}
"""Type of a part that holds a file → the capability that it needs."""


def left_out(reason: str) -> JsonObject:
    """Return the part in place of a file that the model does not get."""
    return {"type": "text", "text": f"[a file is left out: {reason}]"}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of one model, as its provider offers it."""

    strict_schemas: bool = True
    """Whether the server may enforce a schema; parts that it rejects are left out."""
    images: bool = False
    """Whether it reads pictures."""
    image_addresses: bool = True
    """Whether its server fetches a picture from an address."""
    documents: bool = False
    """Whether it reads PDF files."""
    max_documents: int = MAX_FILES_SHOWN
    """PDF files in one Request at most."""
    audio: bool = False
    """Whether it accepts recordings."""
    caching: Caching = "automatic"
    """Whether the server caches the beginning of a prompt: by itself, at a mark, or not at all."""
    thinking: bool = False
    """Whether it thinks before it answers, with thoughts that go back to the server."""
    hosted_tools: tuple[HostedTool, ...] = ()
    """The tools that its provider runs itself."""


_OPENAI_SEES: Final = re.compile(
    r"gpt-4o|gpt-4\.1|gpt-4-turbo|gpt-[5-9]|o1(?!-(?:mini|preview))|o[34](?!-mini-search)|chatgpt-4o"
)
_OPENAI_THINKS: Final = re.compile(r"o\d|gpt-[5-9](?!-chat)|codex|computer-use")
_OPENAI_HOSTS: Final = re.compile(r"gpt-4o|gpt-4\.1(?!-nano)|gpt-[5-9]|o[34]")
_GEMINI_HOSTS: Final = re.compile(r"gemini-(?!1)")
_HOSTED: Final[tuple[HostedTool, ...]] = get_args(HostedTool)
_BEDROCK_DOCUMENTS: Final = 5
"""PDF files that Bedrock accepts in one Request."""
_NOVA: Final = re.compile(r"nova-(?:lite|pro|premier|2)")


def capabilities_of(model: str) -> Capabilities:
    """Return the capabilities of a model, by its provider and its name.

    A user's own server may have any model under a name, so an unknown name has the fewest capabilities.
    """
    found = parse_model(model)
    return _OF[found.provider](found.name)


def with_files_of(kinds: FileKinds, model: str) -> Capabilities:
    """Return the capabilities of a model, with the file kinds of the first entry of `kinds` for its name.

    A name may leave out the provider.
    """
    found = capabilities_of(model)
    names = (model, parse_model(model).name)
    for pattern, read in kinds.items():
        if any(fnmatchcase(name, pattern) for name in names):
            return replace(found, images="images" in read, documents="documents" in read, audio="audio" in read)
    return found


def _chat(name: str) -> Capabilities:
    sees = _OPENAI_SEES.match(name) is not None
    return Capabilities(images=sees, documents=sees, audio="audio" in name)


def _responses(name: str) -> Capabilities:
    sees = _OPENAI_SEES.match(name) is not None
    hosted = _HOSTED if _OPENAI_HOSTS.match(name) else ()
    return Capabilities(
        images=sees, documents=sees, thinking=_OPENAI_THINKS.match(name) is not None, hosted_tools=hosted
    )


def _anthropic(name: str) -> Capabilities:
    claude = claude_of(name)
    if claude is None:
        return Capabilities(images=True, documents=True, caching="marked", thinking=True)
    return Capabilities(
        strict_schemas=claude.strict_schemas,
        images=True,
        documents=True,
        caching="marked",
        thinking=claude.thinking,
        hosted_tools=_HOSTED if claude.hosts_tools else (),
    )


def _google(name: str) -> Capabilities:
    thinking, hosted = google.is_thinking_model(name), _HOSTED if _GEMINI_HOSTS.match(name) else ()
    return Capabilities(
        images=True, image_addresses=False, documents=True, audio=True, thinking=thinking, hosted_tools=hosted
    )


def _bedrock(name: str) -> Capabilities:
    claude = claude_of(name)
    if claude is None:
        nova = _NOVA.search(name) is not None
        found = Capabilities(images=nova, documents=nova, caching="marked" if nova else "none")
    else:
        caching: Caching = "marked" if claude.has_bedrock_cache else "none"
        found = Capabilities(images=True, documents=True, caching=caching, thinking=claude.thinking)
    return replace(found, strict_schemas=False, image_addresses=False, max_documents=_BEDROCK_DOCUMENTS)


_OF: Final = {
    "openai": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "google": _google,
    "bedrock": _bedrock,
}

EXAMPLES: Final[dict[Provider, str]] = {
    "openai": "gpt-4.1",
    "openai-responses": "gpt-5",
    "anthropic": "claude-sonnet-5",
    "google": "gemini-2.5-pro",
    "bedrock": "anthropic.claude-sonnet-5",
}
"""One model of each provider, for the documentation."""
