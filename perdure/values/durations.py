"""Seconds that a timer can hold: what an agent file, a policy or a tool says of time is checked where it is read (R18.6)."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import Field

LONGEST: Final = 100 * 365 * 86_400.0
"""A hundred years: more than anybody waits, less than what overflows in any of Temporal's clocks (292 years)."""
SHORTEST: Final = 0.001
"""A millisecond, Temporal's own unit: a time-out that is rounded to zero counts as none, and the server refuses it."""

Seconds: TypeAlias = Annotated[float, Field(ge=SHORTEST, le=LONGEST)]
