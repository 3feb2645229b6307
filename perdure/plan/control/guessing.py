"""What a dry run knows: conditions and lengths as far as values are known, or assumed (R5.6, R16.5)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from perdure.values.formulas import readable
from perdure.values.jsons import Json
from perdure.values.paths import UNKNOWN
from perdure.values.references import MISSING, Missing, Reference, evaluate
from perdure.values.templates import EXPR, Template, parse_template

_LENGTH: Final = re.compile(r"len\(\s*†?(?P<path>[^()]+?)\s*\)")


@dataclass
class Assumed:
    """What is taken to be so in a dry run."""

    holds: dict[str, bool] = field(default_factory=dict)
    """By call whether its condition holds."""
    counts: dict[str, int] = field(default_factory=dict)
    """By loop how often it goes round."""
    lengths: dict[str, int] = field(default_factory=dict)
    """By reference how many items the list has."""

    def take(self, what: str, value: str) -> bool:
        """`1.2` and `true`, `false` or a number; `len(†state.x)` and a number. Whether it is one of these."""
        if value.isascii() and value.isdigit() and len(value) <= 6:
            found = _LENGTH.fullmatch(what)
            if found is None:
                self.counts[what] = int(value)
            else:
                self.lengths["†" + found["path"]] = int(value)
            return True
        if value in ("true", "false"):
            self.holds[what] = value == "true"
            return True
        return False

    def value(self, template: Template, written: Json, lookup: Callable[[Reference], Json | Missing]) -> Json:
        """What the template gives, or `UNKNOWN`; `written` is it as text. Raises `FormulaError`."""
        values = [evaluate(site.expression, lookup) for site in template.sites]
        if not any(value is UNKNOWN for value in values):
            return template.resolve(lookup)
        text = written[EXPR] if isinstance(written, dict) else written
        plain = readable(text) if isinstance(text, str) else None
        if plain is None or not self.lengths:
            return UNKNOWN
        known = _LENGTH.sub(lambda found: str(self.lengths.get("†" + found["path"], found[0])), plain)
        if known == plain:
            return UNKNOWN
        return self.value(parse_template({EXPR: known})[0], {EXPR: known}, lambda each: _or_unknown(lookup, each))

    def length(self, template: Template) -> int | None:
        """How many items are gone through at most, where the list that is gone through, or picked from, has an assumed length."""
        known = (self.lengths.get(str(reference)) for reference in template.references())
        return next((length for length in known if length is not None), None)


def _or_unknown(lookup: Callable[[Reference], Json | Missing], reference: Reference) -> Json | Missing:
    try:
        return lookup(reference)
    except KeyError:
        return MISSING
