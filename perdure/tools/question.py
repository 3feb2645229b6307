"""The question that a tool asks a person before it runs: a text with its parameters, `refund {euros} EUR to {customer}?`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from perdure.values.json import Json, JsonObject, shorten
from perdure.values.limits import MAX_QUESTION
from perdure.values.problems import meant

_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def question_parts(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the text between the parameters, each with the name of the parameter after it, if there is one. `{{` is a
    brace.

    Raises `ValueError` for a brace that belongs to no parameter.
    """
    words, end = "", 0
    for found in _PART.finditer(text):
        words += text[end : found.start()]
        end = found.end()
        if found[0] in ("{{", "}}"):
            words += found[0][0]
        elif found[1] is None:
            raise ValueError(
                f"the brace at character {found.start() + 1} names no parameter: write {{name}}, or {{{{ for a brace"
            )
        else:
            yield words, found[1]
            words = ""
    yield words + text[end:], None


def question_problem(text: Json, parameters: JsonObject) -> str | None:
    """Return the problem of a tool's question, or an empty text. `parameters`: their JSON Schema."""
    if not isinstance(text, str) or not text.strip() or not text.isprintable() or len(text) > MAX_QUESTION:
        return f"_ask: {shorten(text, 60)} is not a question: one line of 1 to {MAX_QUESTION} printable characters"
    try:
        names = [name for _, name in question_parts(text) if name is not None]
    except ValueError as error:
        return f"_ask: {error}"
    known: Collection[str] = parameters.get("properties", {})
    if parameters.get("additionalProperties", False) is not False:  # any name may be a parameter
        return None
    for name in names:
        if name not in known:
            near = meant(name, known)
            there = f"did you mean {near!r}?" if near else f"it has {', '.join(known) or 'none'}"
            return f"_ask: {{{shorten(name, 60)[1:-1]}}} is not a parameter; {there}"
    return None
