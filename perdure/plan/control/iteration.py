"""What a call says of being made more than once: per item, or until something holds (R8.5, R8.6, R16.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from perdure.errors import ReferenceSyntaxError
from perdure.plan.control.conditions import IF, parse_condition
from perdure.values.formulas import is_name
from perdure.values.jsons import Json, JsonObject, shorten
from perdure.values.limits import MAX_PARALLEL, MAX_ROUNDS
from perdure.values.paths import get
from perdure.values.references import MISSING, Missing, Reference, evaluate, parse_expression
from perdure.values.templates import EMPTY_TEMPLATE, Template, is_expression, is_formula, parse_template

DEFAULT_PARALLEL: Final = 8
DEFAULT_MAX: Final = 20
TOLD_FAILURES: Final = 10
"""Failed iterations that the model is told of one by one."""
EACH: Final = "_each"
UNTIL: Final = "_until"
WHILE: Final = "_while"
BODY: Final = "_body"
AS: Final = "_as"
AT: Final = "_at"
LOOP_KEYS: Final = frozenset({EACH, "_parallel", UNTIL, "_max", AS, AT, "_from"})
LOOP_RESULTS: Final = "_loop_results"
LOOP_FAILED: Final = "_loop_failed"
LOOP_DONE: Final = "_loop_done"
"""Where the run of a part of a longer list keeps its results, its failures, and how many calls ended well."""
ITEM: Final = "item"
INDEX: Final = "index"
_OWN: Final = frozenset({"state", "input", "output"})
_NAME: Final = re.compile(r"[^\W\d]\w*")


def loop_problems(raw: Mapping[str, Json], *, most: int = MAX_ROUNDS) -> list[str]:
    """What is wrong with a call's loop, before anything runs; `most`: iterations until something holds."""
    problems: list[str] = []
    if EACH in raw and (UNTIL in raw or WHILE in raw):
        problems.append("a call has '_each' or '_until', not both: loop inside a delegate, or a body, instead")
    if EACH in raw and not (isinstance(raw[EACH], list | str) or is_formula(raw[EACH])):
        problems.append(
            f'$._each is {shorten(raw[EACH], 60)}, but must be a reference such as "†state.hosts", an array, or {{"_expr": "…"}}'
        )
    ends = UNTIL if WHILE not in raw else WHILE
    for key, needs, least, largest in (
        ("_parallel", EACH, 1, MAX_PARALLEL),
        ("_max", ends, 1, most),
        ("_from", EACH, 0, 10**9),
    ):
        if key in raw:
            value = raw[key]
            if needs not in raw:
                problems.append(f"$.{key} says nothing without '{needs}'")
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
                problems.append(
                    f"$.{key} is {shorten(value, 40)}, but must be a whole number from {least} to {largest}"
                )
    for key in (AS, AT):
        name = raw.get(key, ITEM)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _OWN or not is_name(name):
            problems.append(f"$.{key} is {shorten(name, 40)}, but must be a name that has no meaning of its own")
        elif key in raw and EACH not in raw and key == AS:
            problems.append(f"$.{key} says nothing without '{EACH}'")
    return problems


def delegate_problems(raw: Mapping[str, Json]) -> list[str]:
    """The same of a loop over a delegate, whose condition is of its output alone."""
    problems = loop_problems(raw)
    if UNTIL in raw:
        until, problem = parse_until(raw[UNTIL])
        wrong = [str(ref) for ref in until.template.references() if ref.kind not in ("output", INDEX)]
        if problem is not None:
            problems.append(problem)
        elif wrong or until.template.literal:
            what = f"{wrong[0]} is not of the output" if wrong else f"{shorten(raw[UNTIL], 60)} is no reference"
            problems.append(f'$._until: {what}; expected such as "†output.done", or a formula: "output.n > 3"')
    return problems


@dataclass(frozen=True, slots=True)
class Until:
    """When a loop is over."""

    template: Template = EMPTY_TEMPLATE
    formula: bool = False

    def holds(self, lookup: Callable[[Reference], Json | Missing]) -> bool:
        """Whether it is true. What does not exist is not; of references, what is neither null nor false is. Raises `FormulaError`."""
        if any(evaluate(site.expression, lookup) is MISSING for site in self.template.sites):
            return False
        value = self.template.resolve(lookup)
        return bool(value) if self.formula else value is not None and value is not False


def parse_until(value: Json, key: str = UNTIL) -> tuple[Until, str | None]:
    """A condition as references, `†output.done`, or as a formula, and what is wrong with it."""
    if isinstance(value, str) and is_expression(value):
        try:
            parse_expression(value.strip())
        except ReferenceSyntaxError as error:
            until, problem = parse_until({"_expr": value}, key)
            return until, problem and f"$.{key}: {error}"
        return Until(parse_template(value)[0]), None
    template, problem = parse_condition(value, key)
    return Until(template, formula=True), problem


def is_satisfied(until: Json, output: Json, index: int = 0) -> bool:
    """Whether the condition of a delegate's loop holds for its last output. Raises `FormulaError`."""
    known = {"output": output, INDEX: index}
    return parse_until(until)[0].holds(lambda reference: get(known[reference.kind], reference.path))


def item_call(raw: JsonObject, *, with_condition: bool) -> JsonObject:
    """What a call that loops over itself is made as, for one item."""
    left_out = {*LOOP_KEYS, "_outputPath", "_outputMethod", "_after", "_instance", *(() if with_condition else (IF,))}
    return {key: value for key, value in raw.items() if key not in left_out}
