"""The context of a start or a message: an application's data about the person who asks (R19.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from perdure.errors import InputError, JsonError
from perdure.values.json import Json, JsonObject, ReadOnlyJson, check, dumps, to_json
from perdure.values.limits import MAX_CALLER_CONTEXT, bytes_text
from perdure.values.schemas import Schema

MASK: Final = "[masked]"
_NAMES: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_REPORTED: Final = 5
"""Problems of a context in one line."""
_KINDS: Final[dict[type, str]] = {
    list: "an array",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "a truth value",
    type(None): "null",
}
"""Text that replaces a value that may be a secret."""


def read_context(written: object, schema: JsonObject | bool = True) -> JsonObject:
    """Return a context as JSON: an object, or what pydantic writes as one; `None` is an empty one.

    `schema`: the agent's own for it. Raises `InputError` for a context that is no object, is too large or breaks the
    schema.
    """
    try:
        context: Json = {} if written is None else to_json(written, source="the context")
    except JsonError as error:
        raise InputError(str(error)) from None
    return check_context(context, schema)


def check_context(context: Json, schema: JsonObject | bool = True) -> JsonObject:
    """Return the context. Raises `InputError` as `read_context` does."""
    if not isinstance(context, dict):
        raise InputError(f"the context must be a JSON object, not {_KINDS[type(context)]}")
    try:
        check(context, source="the context")
    except JsonError as error:
        raise InputError(str(error)) from None
    if (size := len(dumps(context).encode())) > MAX_CALLER_CONTEXT:
        raise InputError(
            f"the context has {bytes_text(size)}, and {MAX_CALLER_CONTEXT:,} is the limit: give identifiers only, and let tools look up other data"
        )
    if isinstance(schema, dict) and schema and Schema(schema).errors(context):
        # The problems go to clients and histories, so they describe the masked values.
        problems = Schema(schema).errors(masked_context(context)) or ["a secret in it is not valid"]
        raise InputError(f"the context breaks the agent's schema for it: {'; '.join(problems[:_REPORTED])}")
    return context


def same_context(one: ReadOnlyJson, other: ReadOnlyJson) -> bool:
    """Whether two contexts are the same JSON: `1` and `true` are not."""
    return dumps(one, sort_keys=True) == dumps(other, sort_keys=True)


def masked_context(context: JsonObject) -> JsonObject:
    """Return the context for people and logs: values of keys whose names say secret, token, key or password are masked."""
    return {name: MASK if looks_secret(name) else _masked(each) for name, each in context.items()}


def _masked(value: Json) -> Json:
    if isinstance(value, dict):
        return masked_context(value)
    return [_masked(each) for each in value] if isinstance(value, list) else value


def secrets_of(value: Json, *, secret: bool = False) -> Iterator[str]:
    """Yield the texts of a context that `masked_context` masks."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from secrets_of(each, secret=secret or looks_secret(name))
    elif isinstance(value, list):
        for each in value:
            yield from secrets_of(each, secret=secret)
    elif secret and isinstance(value, str):
        yield value


def looks_secret(name: str) -> bool:
    """Whether a variable, header or key of this name holds a secret."""
    return bool(_NAMES.search(name)) or name.lower() in ("authorization", "cookie", "proxy-authorization")
