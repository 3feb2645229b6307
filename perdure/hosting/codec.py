"""What Temporal stores made unreadable to it: the payload codec that worker and clients name (docs/encryption.md)."""

from __future__ import annotations

import importlib
import sys
from typing import Final

from temporalio.converter import PayloadCodec

from perdure.errors import SettingsError
from perdure.hosting.settings import in_force

CODEC: Final = "PERDURE_CODEC"
"""`module:function`; the function takes nothing and gives a `PayloadCodec`. Workers, clients and the codec server need the same."""


def payload_codec() -> PayloadCodec | None:
    """What `PERDURE_CODEC` says; `None` when it says nothing. Raises `SettingsError` when it cannot be used."""
    named = in_force().codec
    if not named:
        return None
    module, colon, function = named.partition(":")
    if not (module and colon and function):
        raise SettingsError(f"{CODEC} must be module:function, not {named!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as for modules of tools
    try:
        codec = getattr(importlib.import_module(module), function)()
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"{CODEC} {named!r} cannot be used: {type(error).__name__}: {error}") from error
    if not isinstance(codec, PayloadCodec):
        raise SettingsError(
            f"{CODEC} {named!r} gives {type(codec).__name__}, which is no temporalio.converter.PayloadCodec"
        )
    return codec
