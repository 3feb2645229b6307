"""Redaction: card numbers and mail addresses are taken out of what tools return, before it leaves their worker, and out of replies."""

from __future__ import annotations

import re
from typing import TypeAlias

from perdure import hook
from perdure.hooks import AfterToolCall, MessageSending
from perdure.values.json import Json

Value: TypeAlias = str | list[Json] | dict[str, Json] | float | None

CARD = re.compile(r"\b(?:\d[ -]?){12,15}(\d{4})\b")
MAIL = re.compile(r"\b([\w.+-])[\w.+-]*@([\w-]+(?:\.[\w-]+)+)\b")


def without(value: Value) -> Json:
    """The value with both in short: `card ending in 1881`, `a…@example.com`."""
    if isinstance(value, str):
        return MAIL.sub(r"\1…@\2", CARD.sub(r"card ending in \1", value))
    if isinstance(value, list):
        return [without(item) for item in value]
    return {str(without(name)): without(item) for name, item in value.items()} if isinstance(value, dict) else value


@hook("after_tool_call")
def results(event: AfterToolCall) -> AfterToolCall:
    """It fails closed: a result that could not be looked through is withheld."""
    return event.changed(result=without(event.result), message=without(event.message))


@hook("message_sending")
def replies(event: MessageSending) -> MessageSending:
    return event.changed(text=without(event.text))
