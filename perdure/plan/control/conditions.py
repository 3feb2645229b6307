"""Conditions: `_if` says whether a call is made at all (R16.2)."""

from __future__ import annotations

from typing import Final

from perdure.values.jsons import Json, shorten
from perdure.values.templates import EMPTY_TEMPLATE, EXPR, Template, is_formula, parse_template

IF: Final = "_if"


def parse_condition(value: Json, key: str = IF) -> tuple[Template, str | None]:
    """The condition as a template that gives the value it goes by, and what is wrong with it.

    A formula, as a text or as `{"_expr": "…"}`; a text that joins references by `||` or `&&` is read as what it is (R3.3).
    """
    joined = isinstance(value, str) and ("||" in value or "&&" in value)
    formula = {EXPR: value} if isinstance(value, str) and not joined else value
    if not joined and not (isinstance(formula, dict) and is_formula(formula)):
        return (
            EMPTY_TEMPLATE,
            f'$.{key} is {shorten(value, 60)}, but must be an expression such as "len(state.hosts) > 3"',
        )
    template, malformed = parse_template(formula)
    return template, f"$.{key}: {malformed[0].error}" if malformed else None
