"""The sentence in which a person is asked: what a call would do, and why somebody has to agree (R7.1).

`ask_words("refund", {"euros": 120, "to": "ann@example.com"}, "euros is above 100")` is
`refund 120 EUR to ann@example.com: euros is above 100`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perdure.values.jsons import Json, JsonObject, shorten

NO_WORDS: Final = "its parameters meet the condition of the policy"
"""The reason, where nothing of a condition has words."""
_CURRENCIES: Final = {
    "eur": "EUR",
    "euro": "EUR",
    "euros": "EUR",
    "usd": "USD",
    "dollars": "USD",
    "gbp": "GBP",
    "chf": "CHF",
}
_PREPOSITIONS: Final = frozenset(
    (
        "about",
        "after",
        "as",
        "at",
        "before",
        "by",
        "for",
        "from",
        "in",
        "into",
        "of",
        "on",
        "since",
        "to",
        "until",
        "via",
        "with",
    )
)
_SHOWN: Final = 50
"""Characters of a value; the form beside the sentence shows all of it."""
_NAMED: Final = 6
"""Parameters in a sentence."""
_PLAIN: Final = re.compile(r"[\w@.+/#%-]+(?::[\w@.+/#%-]+)*")
"""Values that stand without quotes: nothing in them can be taken for words of the sentence."""
_COUNTED: Final = re.compile(r"[^\W_]*[^sui_]s")
"""Names that count something: `replicas`, and neither `status`, `address` nor `older_than_days`."""


def ask_words(tool: str, params: JsonObject | None, reason: str, *, question: bool = False) -> str:
    """Return the sentence: what the call would do and the reason. A question is its own sentence."""
    return reason if question else f"{call_words(tool, params or {})}: {reason}"


def plan_words(calls: int | None, reason: str) -> str:
    """Return the sentence for a whole plan; `None`: how many calls it has is not known here."""
    return f"run a plan{'' if calls is None else f' of {calls} ' + ('call' if calls == 1 else 'calls')}: {reason}"


def call_words(tool: str, params: Mapping[str, Json]) -> str:
    """Return what a call does in words: the tool's name as a verb, then each parameter."""
    text = _words(tool)
    for place, (name, value) in enumerate(params.items()):
        if place == _NAMED:
            return f"{text}, and {len(params) - _NAMED} more parameters"
        if name == "currency" and _is_number(params.get("amount")):
            continue
        piece, joins = _piece(name, value, params)
        if place == 0 and text.endswith(f" {_words(name)}"):  # `deploy_service(service="shop")`
            piece = value_words(value)
        text += f" {piece}" if joins or place == 0 else f", {piece}"
    return text


def _piece(name: str, value: Json, params: Mapping[str, Json]) -> tuple[str, bool]:
    """One parameter, and whether it goes on without a comma."""
    shown, key = value_words(value), name.lower()
    if _is_number(value):
        if key in _CURRENCIES:
            return f"{shown} {_CURRENCIES[key]}", False
        if key == "amount" and isinstance(params.get("currency"), str):
            return f"{shown} {value_words(params['currency'])}", False
        if _COUNTED.fullmatch(key):
            return f"{shown} {_words(name)}", False
    return f"{_words(name)} {shown}", key in _PREPOSITIONS


def value_words(value: Json) -> str:
    """Return a value as it stands in a sentence: in quotes where it could be taken for words, and never with invisible characters."""
    if isinstance(value, str) and len(value) <= _SHOWN and _PLAIN.fullmatch(value):
        return value
    if isinstance(value, str) and len(value) > _SHOWN:
        value = f"{value[: _SHOWN - 1]}…"
    return _visible(shorten(value, _SHOWN + 2))


def condition_words(when: Json, params: JsonObject | None, *, decided: bool = True) -> str:
    """Return a policy's condition as a sentence: `{"properties": {"euros": {"exclusiveMinimum": 100}}}` is `euros is above 100`.

    `params`: the parameters, of which only those that are there have words; `None`: they are not known yet. `decided`: whether they meet it
    for certain.
    """
    words = _visible(" and ".join(dict.fromkeys(_conditions(when, params, ""))))
    if params is not None and decided:
        return words or NO_WORDS
    return f"it is not known whether {words or NO_WORDS}"


def _conditions(schema: Json, value: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    for name, inner in properties.items():
        if not isinstance(value, dict) or name in value:
            below = value.get(name) if isinstance(value, dict) else None
            yield from _conditions(inner, below, f"{path}.{name}" if path else name)
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if name not in properties:
            yield f"{path}.{name} is given" if path else f"{name} is given"
    for all_of in _schemas(schema, "allOf"):
        yield from _conditions(all_of, value, path)
    for key in ("anyOf", "oneOf"):
        found = [" and ".join(_conditions(each, value, path)) for each in _schemas(schema, key)]
        if any(found):
            yield " or ".join(dict.fromkeys(filter(None, found)))
    inner = list(_conditions(schema.get("not"), value, path))
    if len(inner) == 1:
        yield inner[0].replace(" is ", " is not ", 1) if " is " in inner[0] else f"not: {inner[0]}"
    if path:
        yield from _bounds(schema, path)


def _schemas(schema: JsonObject, key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _bounds(schema: JsonObject, path: str) -> Iterator[str]:
    """What one value is compared with."""
    for key, words in _COMPARED.items():
        if key in schema:
            yield f"{path} {words.format(value_words(schema[key]))}"
    options = schema.get("enum")
    if isinstance(options, list):
        yield f"{path} is {' or '.join(map(value_words, options[:_NAMED]))}{' or another of the policy' if len(options) > _NAMED else ''}"


_COMPARED: Final = {
    "const": "is {}",
    "exclusiveMinimum": "is above {}",
    "minimum": "is {} or more",
    "exclusiveMaximum": "is below {}",
    "maximum": "is {} or less",
    "minLength": "has {} characters or more",
    "maxLength": "has {} characters or fewer",
    "minItems": "has {} items or more",
    "maxItems": "has {} items or fewer",
    "pattern": "matches {}",
}
"""Words by keyword of JSON Schema."""


def _words(name: str) -> str:
    return _visible(" ".join(re.split(r"[_\-\s]+", name.strip("_-"))) or name)


def _visible(text: str) -> str:
    """The text on one line, with escapes for characters that nobody sees or that turn a line around."""
    return "".join(
        char if char.isprintable() else " " if unicodedata.category(char) == "Zs" else f"\\u{ord(char):04x}"
        for char in text
    )


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
