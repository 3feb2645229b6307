"""Where a span stands, and how that travels: by W3C's `traceparent` in a header of Temporal's. Ids are reckoned, so that a replay has the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter

HEADER: Final = "_tracer-data"
"""Temporal's own interceptors have it under this name, in every SDK."""
_PARENT: Final = "traceparent"
_BEGAN: Final = "perdure-began"
_FORM: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
Headers = Mapping[str, Payload]


@dataclass(frozen=True, slots=True)
class Place:
    """A span, as those below it know it."""

    trace: int
    span: int
    """0: none, the trace's own beginning."""
    sampled: bool = True
    began: int | None = None
    """Of a run that has gone on as new: when it began, in nanoseconds."""

    def headers(self, headers: Headers) -> dict[str, Payload]:
        """The headers with this place."""
        carrier = {_PARENT: f"00-{self.trace:032x}-{self.span:016x}-{int(self.sampled):02x}"}
        if self.began is not None:
            carrier[_BEGAN] = str(self.began)
        return {**headers, HEADER: PayloadConverter.default.to_payload(carrier)}


def place_in(headers: Headers) -> Place | None:
    """What headers say; `None` where they say nothing that can be read, for anybody may have written them."""
    try:
        carrier: Any = PayloadConverter.default.from_payload(headers[HEADER])
        found = _FORM.fullmatch(carrier[_PARENT])
        if found is None or int(found[1], 16) == 0:
            return None
        began = carrier.get(_BEGAN)
        return Place(
            int(found[1], 16), int(found[2], 16), bool(int(found[3], 16) & 1), None if began is None else int(began)
        )
    except Exception:
        return None


def trace_id(of: str) -> int:
    """The id of a trace that begins with what has this name."""
    return int.from_bytes(sha256(f"trace {of}".encode()).digest()[:16]) or 1


def span_id(of: str) -> int:
    """The id of a span of what has this name."""
    return int.from_bytes(sha256(f"span {of}".encode()).digest()[:8]) or 1
