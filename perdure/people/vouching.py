"""A person stands for a value: it is theirs from then on, wherever it came from (R15.6)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from perdure.people.digests import Digests, digest
from perdure.plan.calls import Call
from perdure.values.jsons import Json
from perdure.values.references import Reference


@dataclass
class Vouched:
    """What people stand for in one run."""

    known: dict[str, str] = field(default_factory=dict)
    """By reference the digest of its value."""

    def stands(self, reference: str, value: Json) -> bool:
        """Whether somebody stands for this value there."""
        said = self.known.get(reference) if self.known else None
        return said is not None and said == digest(value)


def endorse(call: Call, which: Literal[True] | Collection[str], vouched: Vouched, digests: Digests) -> None:
    """The call's parameters, or those named, are the person's; what they are references to as well, while it has this value."""
    names = set(call.origins.params) if which is True else set(which)
    call.origins = call.origins.vouched(None if which is True else names)
    whole = names & call.params.keys() - set(call.template.written_out())
    for site in call.template.sites:
        if site.path[0] in whole and len(site.path) == 1 and isinstance(site.expression, Reference):
            vouched.known[str(site.expression)] = digests.of(call.params[str(site.path[0])])
