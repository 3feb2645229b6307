"""Data that is carried on but seldom looked at, as short text: JSON, deflated, in base 64."""

from __future__ import annotations

import base64
import zlib
from typing import TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


def pack(data: BaseModel) -> str:
    """Ten times shorter than the JSON where much repeats, as in a list of calls."""
    return base64.b64encode(zlib.compress(data.model_dump_json(exclude_defaults=True).encode())).decode()


def unpack(text: str, kind: type[M]) -> M:
    """What `pack` was given."""
    return kind.model_validate_json(zlib.decompress(base64.b64decode(text)))
