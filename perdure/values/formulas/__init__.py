"""Formulas: what an `_expr` holds, expressions over values in Python's words, without Python's reach (R16.3).

An *expression* joins references (R3.3); a *formula* computes with what they name: `[h.name for h in state.hosts if h.cpu > 90]`.
It is read by `ast` and never executed: what is allowed is turned into small functions that count their steps. So a formula is
deterministic, and bounded in steps, memory and the size of what it gives. `state.l.cpu[0]` and `†state.l.cpu[0]` are the same reference.
"""

import keyword

from perdure.values.formulas.formula import MAX_FORMULA, Formula, parse_formula, readable
from perdure.values.formulas.functions import FUNCTIONS, METHODS
from perdure.values.formulas.nodes import CONSTANTS
from perdure.values.formulas.steps import MAX_FORMULA_STEPS

__all__ = [
    "MAX_FORMULA",
    "MAX_FORMULA_STEPS",
    "Formula",
    "is_function",
    "is_method",
    "is_name",
    "parse_formula",
    "readable",
]


def is_function(name: str) -> bool:
    """Whether formulas have a function of that name: `len`, `sum`, …"""
    return name in FUNCTIONS


def is_name(name: str) -> bool:
    """Whether a loop may give its items that name: it means nothing of its own in a formula."""
    return name not in FUNCTIONS and name not in CONSTANTS and not keyword.iskeyword(name)


def is_method(name: str) -> bool:
    """Whether a text, a list or an object has a method of that name: `lower`, `get`, …"""
    return any(name in methods for methods in METHODS.values())
