"""Where a call and its parameters come from (R15.1, R15.3): what its references read, and who has written the rest of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from perdure.values.jsons import Json
from perdure.values.references import MISSING, Either, Expression, Missing, Reference, references
from perdure.values.sources import MODEL, NOWHERE, USER, Labels, Sources, join, join_all, untrusted
from perdure.values.templates import Template

EACH: Final = "_each"
_ITEM: Final = ("item", "index")
"""Kinds of what an iteration is given: of `_each`."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Of one call. Nobody has looked yet where `written` is empty."""

    written: Sources = NOWHERE
    """Who has named the call and written what stands in it, with what they had read."""
    params: Mapping[str, Sources] = field(default_factory=dict)
    """By parameter; what `_each` goes through by that name."""
    read: bool = False
    """Whether it is known what its references read."""

    @property
    def all(self) -> Sources:
        """Those of the parameters together, which the result has too."""
        return join_all(self.params.values())

    @property
    def tainted(self) -> bool:
        """Whether others may have written anything of it (R15.3)."""
        return bool(untrusted(self.written)) or any(map(untrusted, self.params.values()))

    @property
    def by_others(self) -> Sources:
        """What others wrote of it, as far as that is known."""
        return join(untrusted(self.written), untrusted(self.all))

    def vouched(self, names: set[str] | None = None) -> Origins:
        """The same where a person stands for these parameters, or for the whole call (R15.6)."""
        named = set(self.params) if names is None else names
        params = {name: USER if name in named else sources for name, sources in self.params.items()}
        return Origins(USER if names is None else self.written, params, self.read)


UNKNOWN_ORIGINS: Final = Origins()


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of sources when a plan is made."""

    base: Mapping[str, Labels] = field(default_factory=dict)
    """By kind those of the values that references can name; `state` too."""
    written: Callable[[Json], Sources] = field(default=lambda _: MODEL)
    """Who has written a call, as it was written, with what they had read."""
    vouched: Callable[[str, Json], bool] = field(default=lambda *_: False)
    """Whether a person stands for a value that this reference has (R15.6)."""
    decided: Sources = NOWHERE
    """Where what decided that these calls are made comes from: of the loop round them."""

    def now(self, reference: Reference, state: Labels) -> Sources:
        """Of what a reference finds as things stand, and not when the plan was made."""
        return (state if reference.kind == "state" else self.of_kind(reference.kind)).at(reference.path)

    def of_kind(self, kind: str) -> Labels:
        return self.base.get(kind, _NOTHING)


_NOTHING: Final = Labels()


def origins_of(
    template: Template,
    written: Sources,
    found: Callable[[Reference], Json | Missing],
    sources: Callable[[Reference], Sources],
) -> Origins:
    """The origins of a call whose parameters are `template`. Of `a || b` only what was taken counts, of `a && b` the last."""
    out = template.written_out()
    items: Sources | None = written if EACH in out else None

    def of(reference: Reference) -> Sources:
        return items if items is not None and reference.kind in _ITEM else sources(reference)

    params: dict[str, Sources] = dict.fromkeys(out, written)
    for site in sorted(template.sites, key=lambda site: site.path[0] != EACH):
        name = str(site.path[0])
        taken = taken_by(site.expression, found, of)
        params[name] = join(params.get(name, NOWHERE), taken)
        items = params[name] if name == EACH else items
    return Origins(written, params, read=True)


def taken_by(
    expression: Expression, found: Callable[[Reference], Json | Missing], sources: Callable[[Reference], Sources]
) -> Sources:
    """The sources of an expression's value; of one that has none, those of all that it names."""
    taken = _taken(expression, found, sources)
    return join_all(map(sources, references(expression))) if taken is None else taken


def _taken(
    expression: Expression, found: Callable[[Reference], Json | Missing], sources: Callable[[Reference], Sources]
) -> Sources | None:
    if isinstance(expression, Reference):
        return None if found(expression) is MISSING else sources(expression)
    each = (_taken(item, found, sources) for item in expression.items)
    if isinstance(expression, Either):
        return next((taken for taken in each if taken is not None), None)
    taken = NOWHERE
    for one in each:
        if one is None:
            return None
        taken = one
    return taken
