"""Loops over a delegate: once per item, or until its output says so (R8.5, R8.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perdure.errors import ReferenceSyntaxError
from perdure.values.jsons import Json, shorten
from perdure.values.limits import MAX_PARALLEL, MAX_ROUNDS
from perdure.values.paths import get
from perdure.values.references import MISSING, Expression, Missing, Reference, evaluate, parse_expression, references

DEFAULT_PARALLEL: Final = 8
DEFAULT_MAX: Final = 20
LOOP_KEYS: Final = frozenset({"_each", "_parallel", "_until", "_max"})


def loop_problems(raw: Mapping[str, Json]) -> list[str]:
    """What is wrong with a call's loop, before anything runs."""
    problems: list[str] = []
    if "_each" in raw and "_until" in raw:
        problems.append("a call has '_each' or '_until', not both: loop inside a delegate instead")
    if "_each" in raw and not isinstance(raw["_each"], list | str):
        problems.append(
            f'$._each is {shorten(raw["_each"], 60)}, but must be a reference such as "†state.hosts", or an array'
        )
    for key, needs, most in (("_parallel", "_each", MAX_PARALLEL), ("_max", "_until", MAX_ROUNDS)):
        if key in raw:
            value = raw[key]
            if needs not in raw:
                problems.append(f"$.{key} says nothing without '{needs}'")
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                problems.append(f"$.{key} is {shorten(value, 40)}, but must be a whole number from 1 to {most}")
    if "_until" in raw:
        try:
            if not isinstance(raw["_until"], str):
                raise ReferenceSyntaxError("it must be a reference to the output")
            wrong = [str(ref) for ref in references(parse_expression(raw["_until"])) if ref.kind != "output"]
            if wrong:
                problems.append(f'$._until: {wrong[0]} is not of the output; expected such as "†output.done"')
        except ReferenceSyntaxError as error:
            problems.append(f"$._until: {error}")
    return problems


def is_satisfied(until: str, output: Json) -> bool:
    """Whether the condition holds: it exists, and is neither null nor false."""
    expression: Expression = parse_expression(until)

    def lookup(reference: Reference) -> Json | Missing:
        return get(output, reference.path)

    value = evaluate(expression, lookup)
    return value is not MISSING and value is not None and value is not False
