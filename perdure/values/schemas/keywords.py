"""`jsonschema`'s validators as Perdure uses them: each keyword counted, patterns in linear time.

They find the words for what is wrong, and decide where `perdure.values.schemas.verdicts` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Final, cast

from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing.jsonschema import lookup_recursive_ref

from perdure.values.jsons import JsonObject
from perdure.values.limits.steps import COSTLY, MOST_STEPS, Steps, TooMuchError
from perdure.values.schemas.drafts import VALIDATORS
from perdure.values.schemas.equality import all_distinct
from perdure.values.schemas.nodes import UncoveredError
from perdure.values.schemas.patterns import compile_pattern
from perdure.values.schemas.verdicts import Verdicts

_KEYWORD: Final = 40
"""Steps that one keyword on one value counts for: it takes some 5 to 15 µs."""
MOST_ERRORS: Final = 20
"""Of one value. Nobody reads more, and each has to be put in words."""
_MOST_CAUSES: Final = 50
"""Of one error: what is wrong in each alternative."""


@dataclass(frozen=True, slots=True)
class Checking:
    """What the keywords of one check share."""

    steps: Steps
    verdicts: Verdicts
    references: bool = False
    """Whether errors may be passed over afterwards, so that none may be left out."""


CHECKING: Final[ContextVar[Checking]] = ContextVar("perdure_checking")
"""Of the check that is under way; `jsonschema` has no place to hand it through."""


@cache
def validator_class(number: int) -> Any:
    """The draft's validator, counted and without `re`."""
    base: Any = VALIDATORS[number]
    own = {"pattern": _pattern, "properties": _properties, "patternProperties": _pattern_properties}
    own |= {"additionalProperties": _additional_properties, "uniqueItems": _unique_items}
    if number >= 2020:
        own["items"] = _items
    elif "items" in base.VALIDATORS:
        own["items"] = _items_or_tuple(base.VALIDATORS["items"])
    if number >= 2019:
        own["unevaluatedProperties"] = _unevaluated_properties
    keywords = {**base.VALIDATORS, **own}
    make: Any = extend
    return make(base, {name: _counted(check) for name, check in keywords.items()})


def _counted(check: Callable[..., Any]) -> Callable[..., Any]:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        CHECKING.get().steps.take(_KEYWORD + (len(value) if isinstance(value, list) else 0))
        return check(validator, value, instance, schema)

    return counted


def _found(pattern: str, text: str) -> bool:
    compiled = compile_pattern(pattern)
    CHECKING.get().steps.take(compiled.cost(text))
    return compiled.found(text)


def _fitting(schema: Any) -> Callable[[Any], bool]:
    """Says of a value whether it is known that it fits, so that there is nothing to look for in it."""
    checking = CHECKING.get()
    steps = checking.steps
    try:
        node = checking.verdicts.node(schema)
    except UncoveredError:
        return lambda value: False

    def fits(value: Any) -> bool:
        try:
            return node.fits(value, steps)
        except UncoveredError:
            return False

    return fits


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError("does not match")


def _into(validator: Any, value: Any, schema: Any, key: str | int) -> Iterator[ValidationError]:
    """What is wrong with a part of the value."""
    if schema is False:  # of which `jsonschema` does not tell the place
        forbidden: JsonObject = {"validator": "false", "validator_value": False, "instance": value, "schema": False}
        yield ValidationError("forbidden", path=[key], **forbidden)
    else:
        yield from known_errors(value, schema, lambda: validator.descend(value, schema, path=key), key)


def known_errors(
    value: Any, schema: Any, find: Callable[[], Iterator[ValidationError]], key: str | int | None = None
) -> Iterator[ValidationError]:
    """What `find` finds wrong with a value that stands at `key`, found once for all calls that read it."""
    checking = CHECKING.get()
    if checking.references or not isinstance(value, dict | list | str):
        yield from find()
        return
    words = checking.steps.checks.words
    place = id(schema), id(value)
    if place not in words:
        before = checking.steps.left
        found: list[ValidationError] = []
        try:
            found.extend(islice(find(), MOST_ERRORS))
        except TooMuchError:
            if not found:
                if before > MOST_STEPS // 2:
                    words[place] = schema, value, None
                raise
        if before - checking.steps.left <= COSTLY:
            yield from found
            return
        if key is not None:  # the value may stand elsewhere in the next call
            for error in found:
                error.relative_path.popleft()
        words[place] = schema, value, found
    known = words[place][2]
    if known is None:
        raise TooMuchError
    for error in known:
        copied = _copied(error)
        if key is not None:
            copied.relative_path.appendleft(key)
        yield copied


def _copied(error: ValidationError) -> ValidationError:
    """An error of its own: where it stands is written into it on the way up."""
    CHECKING.get().steps.take(_KEYWORD)
    copied: Any = ValidationError.create_from(error)
    copied._type_checker = cast(Any, error)._type_checker  # which `create_from` forgets, and `best_match` asks
    copied.context = [_copied(cause) for cause in (error.context or ())[:_MOST_CAUSES]]
    for cause in copied.context:
        cause.parent = copied
    return cast(ValidationError, copied)


def _properties(validator: Any, named: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for key, child in named.items():
            if key in instance:
                yield from _into(validator, instance[key], child, key)


def _pattern_properties(validator: Any, named: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, child in named.items():
        for key, value in instance.items():
            if _found(pattern, key):
                yield from _into(validator, value, child, key)


def _additional_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    extra = list(additional(instance, schema))
    if rest is False and extra:
        yield ValidationError("unknown keys")
    elif rest is not False:
        for key in extra:
            yield from _into(validator, instance[key], rest, key)


def additional(instance: dict[str, Any], schema: Any) -> Iterator[str]:
    """The keys that neither `properties` nor `patternProperties` speak of."""
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key in instance:
        if key not in named and not any(_found(pattern, key) for pattern in patterns):
            yield key


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if unique is True and isinstance(instance, list) and not all_distinct(instance, CHECKING.get().steps):
        yield ValidationError("not unique")


def _items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, list):
        first = len(schema.get("prefixItems", ()))
        CHECKING.get().steps.take(len(instance) // 4)
        fits = _fitting(items)
        for index in range(first, len(instance)):
            if not fits(instance[index]):
                yield from _into(validator, instance[index], items, index)


def _items_or_tuple(of_draft: Callable[..., Any]) -> Callable[..., Any]:
    """As drafts before 2020-12 have it: a list of schemas is one for each place."""

    def check(validator: Any, items: Any, instance: Any, schema: Any) -> Any:
        if isinstance(items, list):
            return of_draft(validator, items, instance, schema)
        return _items(validator, items, instance, {})

    return check


def _unevaluated_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    known = set(_evaluated(validator, instance, schema, own=False))
    extra = [key for key in instance if key not in known]
    if any(not validator.evolve(schema=rest).is_valid(instance[key]) for key in extra):
        yield ValidationError("unevaluated keys")


def _evaluated(validator: Any, instance: dict[str, Any], schema: Any, *, own: bool = True) -> Iterator[str]:
    """The keys that the schema, or one that holds beside it, speaks of."""
    if not isinstance(schema, dict):
        return
    CHECKING.get().steps.take(_KEYWORD + len(instance))
    yield from (key for key in schema.get("properties", {}) if key in instance)
    yield from (key for key in instance if any(_found(pattern, key) for pattern in schema.get("patternProperties", ())))
    if "additionalProperties" in schema:
        yield from additional(instance, schema)
    if own and "unevaluatedProperties" in schema:
        yield from instance
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if isinstance(reference := schema.get(keyword), str):
            yield from _evaluated_there(validator, instance, reference, dynamic=keyword == "$recursiveRef")
    branches = [child for keyword in ("allOf", "oneOf", "anyOf") for child in schema.get(keyword, ())]
    branches += [child for key, child in schema.get("dependentSchemas", {}).items() if key in instance]
    if "if" in schema:
        holds = validator.evolve(schema=schema["if"]).is_valid(instance)
        branches += [schema["if"], schema.get("then")] if holds else [schema.get("else")]
    for branch in branches:
        if isinstance(branch, dict) and validator.evolve(schema=branch).is_valid(instance):
            yield from _evaluated(validator, instance, branch)


def _evaluated_there(validator: Any, instance: dict[str, Any], reference: str, *, dynamic: bool) -> Iterator[str]:
    resolver = validator._resolver
    found = lookup_recursive_ref(resolver) if dynamic else resolver.lookup(reference)
    yield from _evaluated(validator.evolve(schema=found.contents, _resolver=found.resolver), instance, found.contents)
