"""What a tool of an MCP server answered, as a value of the run's: nothing is dropped but bytes that no plan can use."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

from perdure.errors import JsonError, ToolError
from perdure.values.jsons import Json, JsonObject, loads, shorten
from perdure.values.media import describe, without_media
from perdure.values.schemas import Schema

CONTENT: Final = "_content"
"""Where blocks stand that came beside structured content or text: its schema is the tool's own."""


def value_of(tool: str, result: CallToolResult, schema: Schema | None) -> Json:
    """Structured content, or the text; with all that came beside it under `_content`. Raises `ToolError`.

    Texts that only repeat the structured content, as the standard wants it for older clients, are not repeated. Images, sounds
    and other files are described (R10.18).
    """
    texts = [without_media(block.text) for block in result.content if isinstance(block, TextContent)]
    others = [_block(block) for block in result.content if not isinstance(block, TextContent)]
    if result.is_error:
        said = [*texts, *([] if result.structured_content is None else [result.structured_content]), *others]
        raise ToolError("tool_failed", "\n".join(map(_words, said)) or f"{tool} failed and says nothing")
    structured: Json = result.structured_content
    if schema is not None and (errors := schema.errors(structured)):
        said = structured if structured is not None else texts
        raise ToolError(
            "invalid_answer",
            f"{tool} ran, but its answer is not what its server declares: {errors[0]}; it was {shorten(without_media(said), 500)}",
        )
    if structured is None:
        text = "\n".join(map(str, texts))
        return {"text": text, CONTENT: others} if others else text
    value = without_media(structured)
    beside = [{"type": "text", "text": text} for text in _news(texts, value)] + others
    if not beside:
        return value
    return {**value, CONTENT: beside} if isinstance(value, dict) else {"result": value, CONTENT: beside}


def _block(block: ContentBlock) -> JsonObject:
    """A block as data: links and texts whole, of files what they are."""
    if isinstance(block, ImageContent | AudioContent):
        return {"type": block.type, "mimeType": block.mime_type, "data": describe(block.mime_type, block.data)}
    plain: JsonObject = block.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"meta", "annotations", "icons"}
    )
    if isinstance(block, EmbeddedResource):
        inner = plain.pop("resource")
        inner.pop("_meta", None)
        if isinstance(block.resource, BlobResourceContents):
            inner["blob"] = describe(block.resource.mime_type or "application/octet-stream", block.resource.blob)
        plain |= inner
    described: JsonObject = without_media(plain)
    return described


def _news(texts: Iterable[Json], structured: Json) -> list[Json]:
    """The texts that say something else than the structured content, its only member, or that one's items."""
    inner = next(iter(structured.values())) if isinstance(structured, dict) and len(structured) == 1 else structured
    known = [structured, inner, *(inner if isinstance(inner, list) else [])]
    said = [str(value) for value in known]

    def is_known(text: Json) -> bool:
        with suppress(JsonError):
            return loads(str(text)) in known or text in said
        return text in said

    return [text for text in texts if not is_known(text)]


def _words(value: Json) -> str:
    return value if isinstance(value, str) else shorten(value, 500)
