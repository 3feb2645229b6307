"""What is asked for less of a server that does not understand it: `strict`, then any schema, then JSON mode (R9.1).

The prompt says it too, and the answer is checked here anyway, so nothing but the server's help is lost.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from perdure.model.beside import keys_beside, without_beside
from perdure.model.refusals import Refusal
from perdure.values.jsons import JsonObject


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to leave out."""

    feature: str
    """`stream_options`, `strict`, `json_schema` or `json_object`; or a key beside a call, such as `reasoning_content`."""
    always: bool
    """Whether the server does not know it at all; else only this schema was refused, and another may do."""


def without(body: JsonObject, refused: Set[str]) -> JsonObject:
    """The body without what the server does not understand."""
    body = dict(body)
    if "stream_options" in refused:
        body.pop("stream_options", None)
    if refused:
        body["messages"] = without_beside(body.get("messages", []), refused)
    form = body.get("response_format")
    if form is None:
        return body
    if "json_object" in refused:
        del body["response_format"]
    elif "json_schema" in refused:
        body["response_format"] = {"type": "json_object"}
    elif "strict" in refused:
        schema = {key: value for key, value in form["json_schema"].items() if key != "strict"}
        body["response_format"] = {**form, "json_schema": schema}
    return body


_ABOUT_FORM: Final = re.compile(
    r"response.?(format|schema)|json.?(schema|object|mode)|\b(schema|strict|grammar|xgrammar|outlines|guided|structured outputs?)\b"
)
_ABOUT_SCHEMA: Final = re.compile(
    r"invalid (json )?schema|invalid_json_schema|in context=|additionalproperties|grammar|too (complex|many|deep|large)|nesting|\$ref|"
    r"recursi|keyword|\b(any|one|all)of\b|\bpatterns?\b|\benums?\b|compil|schema (contains|conversion|is (not|in)valid)|"
    r"unrecognized schema|unsupported schema|features? not supported|response_schema|json_schema\.schema\."
)
_UNKNOWN: Final = re.compile(
    r"not support|unsupported|unavailable|unknown|unrecogni[sz]ed|unexpected|extra (inputs|fields)|extra_forbidden|not permitted|"
    r"not allowed|not enabled|enabled only|must be|should be|deserialize|not implemented|no longer|unsupportedparams"
)
_NEVER: Final = (401, 402, 403, 404, 408, 413, 429)
"""Statuses that are never about what was asked for."""


_WANTED: Final = re.compile(r"\b(missing|is required|must be (passed|sent|included|provided|present))\b")


def step_down(refusal: Refusal, sent: JsonObject) -> Step | None:
    """What of the body that was `sent` a refusal is about, as far as one can do without it; `None` where it is not.

    In doubt only this schema counts as refused: one more refusal costs a moment, a feature that is off costs every agent.
    """
    if refusal.kind == "too_long" or refusal.status in _NEVER:
        return None
    text = f"{refusal.words} {refusal.codes}".lower()
    if "stream_options" in sent and re.search(r"stream_options|include_usage", text):
        return Step("stream_options", always=True)
    for key in sorted(keys_beside(sent.get("messages", []))):
        if re.search(rf"\b{re.escape(key)}\b", text) and not _WANTED.search(text):
            return Step(key, always=True)
    form = sent.get("response_format")
    if form is None or not _ABOUT_FORM.search(text):
        return None
    always = not _ABOUT_SCHEMA.search(text) and bool(_UNKNOWN.search(text))
    if form["type"] == "json_object":
        return Step("json_object", always)
    if "strict" not in form["json_schema"]:
        return Step("json_schema", always)
    return Step("strict", always)
