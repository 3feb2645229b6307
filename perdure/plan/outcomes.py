"""How a running call can end: data, not exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from perdure.errors import CallError
from perdure.values.jsons import Json
from perdure.values.references import Path
from perdure.values.sources import NOWHERE, Sources


@dataclass(frozen=True, slots=True)
class Returned:
    """The tool returned a value, perhaps to one alternative of its output path (R12.4)."""

    value: Json
    branch: str | None = None
    parts: Mapping[Path, Json] | None = None
    """Of a loop with a body what each path that it writes is given; one that has nothing is not written (R16.4)."""
    sources: Sources = NOWHERE
    """What it comes from beside its tool and its parameters, as a run below tells (R15.1)."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The tool raised, timed out or used up its retries (R6.6)."""

    error: CallError
    sources: Sources = NOWHERE
    """What its words come from beside its tool and its parameters."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A person did not want it run (R7.2)."""

    reason: str


Outcome: TypeAlias = Returned | Failed | Rejected
