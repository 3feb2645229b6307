"""Keys that this worker was configured with, and the one place that takes them out of whatever leaves it.

A server may say back what it was sent ("incorrect API key: sk-…"): what it says goes into failures, histories, logs and traces.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

from pydantic_core import to_jsonable_python

from perdure.values.jsons import Json, dumps

MASK: Final = "[masked]"
_SHORTEST: Final = 10
"""Characters. What is shorter is no key, and stands in ordinary words."""
_NAMES: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_known: set[str] = set()


def keep_secret(*values: str) -> None:
    """Mask these from now on, beside the values of the environment's variables that are called a key, token, secret or password."""
    _known.update(part for value in values for part in (value, value.rpartition(" ")[2]) if len(part) >= _SHORTEST)


def looks_secret(name: str) -> bool:
    """Whether a variable or header of this name holds a secret."""
    return bool(_NAMES.search(name)) or name.lower() in ("authorization", "cookie", "proxy-authorization")


def masked(text: str) -> str:
    """The text with every secret that is known replaced."""
    for secret in known_secrets():
        text = text.replace(secret, MASK)
    return text


def masked_value(value: Json) -> Json:
    """The value with every secret in its texts replaced; the same one where it holds none."""
    text = dumps(value)
    if not any(dumps(secret)[1:-1] in text for secret in known_secrets()):
        return value
    return _walk(value)


def masked_details(details: Any) -> Any:
    """The same of what a tool says while it works or with its failure, which may be anything that can be written as JSON."""
    try:
        plain = to_jsonable_python(details, fallback=str)
        found = masked_value(plain)
    except (ValueError, RecursionError):  # no JSON: it cannot leave
        return details
    return details if found is plain else found


def _walk(value: Json) -> Json:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, list):
        return [_walk(item) for item in value]
    if isinstance(value, dict):
        return {masked(key): _walk(item) for key, item in value.items()}
    return value


def known_secrets() -> list[str]:
    """As they are, and as JSON writes them inside a text; the longest first: one may hold another."""
    ours = {value for name, value in os.environ.items() if looks_secret(name) and len(value) >= _SHORTEST}
    secrets = _known | ours
    return sorted(secrets | {dumps(secret)[1:-1] for secret in secrets}, key=len, reverse=True)
