"""JSON Schema, drafts 4 to 2020-12: checking values, with or without references in them, in one line each and at a bounded cost.

`patterns` run in linear time; `steps` counts; `drafts` reads a schema and says what it cannot be used for; `verdicts` says fast
whether a value fits; `keywords` are the validators of `jsonschema`, which have the words for what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any, Final, cast

import jsonschema
from jsonschema.exceptions import ValidationError
from jsonschema_specifications import REGISTRY

from perdure.values.jsons import Json, JsonObject, dumps, json_path, shorten
from perdure.values.limits.steps import Checks, Steps, TooMuchError
from perdure.values.references import Path
from perdure.values.schemas.drafts import (
    draft_of,
    metaschema,
    patterns_problem,
    reference_problem,
    size_problem,
)
from perdure.values.schemas.keywords import CHECKING, MOST_ERRORS, Checking, additional, known_errors, validator_class
from perdure.values.schemas.nodes import Draft, UncoveredError
from perdure.values.schemas.patterns import PatternError
from perdure.values.schemas.pointers import NOWHERE, step_into
from perdure.values.schemas.verdicts import Verdicts
from perdure.values.templates import has_reference, is_expression, without_formulas

_OF_THE_CONTAINER: Final = frozenset(
    {
        "required",
        "additionalProperties",
        "type",
        "minProperties",
        "maxProperties",
        "minItems",
        "maxItems",
        "dependentRequired",
        "propertyNames",
    }
)
"""Keywords whose verdict on an object or array does not depend on the values inside it."""


class Schema:
    """A JSON Schema of the draft that it names (`perdure.values.schemas.drafts.draft_of`).

    `whole` is the document that it is a part of, where it is one.
    """

    def __init__(self, schema: JsonObject, whole: Schema | None = None) -> None:
        self.schema = schema
        self._whole = whole or self

    @cached_property
    def draft(self) -> Draft:
        return draft_of(self.schema) if self._whole is self else self._whole.draft

    @cached_property
    def verdicts(self) -> Verdicts:
        return Verdicts(self.schema, self.draft) if self._whole is self else self._whole.verdicts

    @cached_property
    def _validator(self) -> Any:
        if self._whole is not self:
            return self._whole._validator.evolve(schema=self.schema)
        return validator_class(self.draft.number)(self.schema, registry=REGISTRY)  # which fetches nothing (R18.6)

    @cached_property
    def _dynamic(self) -> bool:
        """Whether what a part of it means depends on the way there."""
        return self._whole._dynamic if self._whole is not self else '"$dynamicRef"' in dumps(self.schema)

    @cached_property
    def problem(self) -> str | None:
        """Why this is no JSON Schema that can be used, or `None`: what it is, where its references lead, its patterns.

        To be asked where a schema is read; checking values against one with a problem gives a line that says so.
        """
        if problem := size_problem(self.schema):
            return problem
        of_schemas = _OF_SCHEMAS.setdefault(self.draft.number, Schema(metaschema(self.draft.number)))
        if wrong := of_schemas.errors(self.schema):
            return wrong[0]
        return reference_problem(self.schema, self.draft) or patterns_problem(self.schema)

    def errors(
        self, value: Json, *, references: bool = False, root: Path = (), checks: Checks | None = None
    ) -> list[str]:
        """What is wrong with the value, each as one line with its JSON path; empty when it fits.

        With `references` a string that is or holds a reference passes as whatever the reference will turn out to be, and a
        formula as whatever it will give (R3.1, R16.3); everything around it is checked. What large values are found to be is remembered in `checks`. Never raises, and
        ends within the steps of `perdure.values.limits.steps`.
        """
        value = without_formulas(value) if references else value
        wrong, undecided = self._checked(value, references, root, checks)
        return wrong if undecided is None else [undecided]

    def fits(self, value: Json, *, checks: Checks | None = None) -> bool | None:
        """Whether the value fits; `None` where that cannot be decided, e.g. within the steps that it may take."""
        wrong, undecided = self._checked(value, False, (), checks)
        return None if undecided is not None else not wrong

    def _checked(
        self, value: Json, references: bool, root: Path, checks: Checks | None
    ) -> tuple[list[str], str | None]:
        """What is wrong with the value, or why that cannot be said."""
        checks = Checks() if checks is None else checks
        try:
            return ([] if self._fast(value, checks) is True else self._words(value, references, root, checks)), None
        except TooMuchError:
            why = "it takes too many steps, as the value is too large or the schema has too many alternatives inside each other"
        except RecursionError:
            return [], f"the schema refers to itself without end at {json_path(root)}"
        except PatternError as error:
            why = f"a pattern in it cannot be used: {error}"
        except Exception as error:
            # Whatever a schema makes `jsonschema` do is told to whoever wrote it; raised it would stop the run for ever (R18.6).
            # E.g. arithmetic on numbers that no float holds: `multipleOf` of an integer of 400 digits.
            why = f"{type(error).__name__}: {' '.join(str(error)[:200].split())}"
        return [], f"{json_path(root)} cannot be checked against its schema: {why}"

    def _fast(self, value: Json, checks: Checks) -> bool | None:
        """`None` where the fast way does not know. Raises `TooMuchError`."""
        steps = Steps(checks=checks)
        try:
            return self.verdicts.node(self.schema).fits(value, steps)
        except UncoveredError:
            return None
        finally:
            steps.settle()

    def _words(self, value: Json, references: bool, root: Path, checks: Checks) -> list[str]:
        steps = Steps(checks=checks)
        token = CHECKING.set(Checking(steps, self.verdicts, references or self._dynamic))
        found: list[ValidationError] = []
        try:
            every = known_errors(value, self.schema, lambda: self._validator.iter_errors(value))
            wrong = (each for each in every if not (references and _undecided(each)))
            try:
                found.extend(islice(wrong, MOST_ERRORS))
            except TooMuchError:
                if not found:
                    raise
            found.sort(key=lambda error: list(map(str, error.absolute_path)))
            return [describe(error, root)[:_LONGEST] for error in found]
        finally:
            steps.settle()
            CHECKING.reset(token)

    def at(self, path: Path) -> list[Schema] | None:
        """The schemas that a value at this path must fit; `None` when the schema forbids the path (R4.5).

        Follows `properties`, `items`, `allOf` and local `$ref`; what it cannot follow forbids nothing.
        """
        schemas: list[Any] = list(self._flat(self.schema))
        for part in path:
            following: list[Any] = []
            for schema in schemas:
                child = _child(schema, part)
                if child is False:
                    return None
                following.extend(self._flat(child))
            schemas = following
        return [Schema(schema, self._whole) for schema in schemas if schema]

    def _flat(self, schema: Any, depth: int = 0) -> Iterator[Any]:
        if not isinstance(schema, dict) or depth > 20:
            return
        yield schema
        if (
            isinstance(reference := schema.get("$ref"), str)
            and (target := local(self._whole.schema, reference)) is not None
        ):
            yield from self._flat(target, depth + 1)
        for part in schema.get("allOf", ()):
            yield from self._flat(part, depth + 1)


_OF_SCHEMAS: Final[dict[int, Schema]] = {}
_LONGEST: Final = 500
"""Characters of one line."""


def describe(error: ValidationError, root: Path = ()) -> str:
    """One line: the path, the value and the rule that it breaks."""
    path = json_path((*root, *error.absolute_path))
    keyword, value = error.validator, cast(Any, error.instance)
    rule, schema = cast(Any, error.validator_value), cast(Any, error.schema)
    if keyword in ("anyOf", "oneOf") and error.context:
        best = jsonschema.exceptions.best_match([error])
        if best is not error and best.absolute_path != error.absolute_path:
            return describe(best, root)
    if schema is False:
        return f"{path} is not allowed"
    if keyword == "required":
        missing = [name for name in rule if name not in value]
        return f"{path} lacks {', '.join(map(repr, missing))}"
    if keyword == "additionalProperties" and rule is False:
        known = schema.get("properties", {})
        extra = list(additional(value, schema))
        allowed = f"allowed are {', '.join(map(repr, islice(known, 20)))}" if known else "none are allowed"
        return f"{path} has unknown keys {', '.join(map(repr, extra[:5]))}; {allowed}"
    return f"{path} is {shorten(value, 80)}, but must fit {shorten({keyword: rule}, 160)}"


def _undecided(error: ValidationError) -> bool:
    instance = error.instance
    if isinstance(instance, str):
        return has_reference(instance) and (is_expression(instance) or error.validator != "type")
    return error.validator not in _OF_THE_CONTAINER and has_reference(instance)


def _child(schema: JsonObject, part: str | int) -> Any:
    """The subschema for one step: `False` where the step is forbidden, `{}` where anything goes."""
    key = str(part)
    properties = schema.get("properties", {})
    if key in properties:
        return properties[key]
    kind = schema.get("type")
    is_array = kind == "array" or (kind is None and ("items" in schema or "prefixItems" in schema))
    if is_array and key.isdecimal():
        prefix, rest = schema.get("prefixItems", []), schema.get("items", {})
        if isinstance(rest, list):  # drafts before 2020-12
            prefix, rest = rest, schema.get("additionalItems", {})
        return prefix[int(key)] if int(key) < len(prefix) else rest
    if "patternProperties" in schema:
        return {}
    return schema.get("additionalProperties", {})


def local(document: JsonObject, reference: str) -> Any:
    """What a `#/…` reference points at, or `None`."""
    if not reference.startswith("#"):
        return None
    target: Any = document
    for step in reference.lstrip("#").strip("/").split("/"):
        if step == "":
            continue
        target = step_into(target, step)
        if target is NOWHERE:
            return None
    return target
