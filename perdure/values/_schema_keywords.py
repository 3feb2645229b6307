"""The validators of `jsonschema` with counted steps: each keyword yields the errors of a value, for their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Final, TypeAlias, cast

from jsonschema import Draft4Validator, Draft6Validator, Draft7Validator, Draft201909Validator, Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing.jsonschema import lookup_recursive_ref

from perdure.values._schema_nodes import (
    MAKERS,
    UncoveredError,
    Verdicts,
    all_distinct,
    compile_pattern,
)
from perdure.values.json import Json, JsonObject, SchemaPart
from perdure.values.limits import COSTLY, MOST_STEPS, CheckSteps, TooMuchError

Validator: TypeAlias = Any
"""A validator, or its class: `jsonschema` makes them while it is imported, without a type."""
Keyword: TypeAlias = Callable[[Validator, SchemaPart, Json, SchemaPart], Iterable[ValidationError] | None]
"""Yields the errors of a value: given the validator, the keyword's own value, the value, and the schema around the keyword."""
VALIDATORS: Final[dict[int, Validator]] = {
    4: Draft4Validator,
    6: Draft6Validator,
    7: Draft7Validator,
    2019: Draft201909Validator,
    2020: Draft202012Validator,
}

_KEYWORD: Final = 40
"""Steps for one keyword on one value: it takes some 5 to 15 µs."""
_DESCENT: Final = 20
"""Steps for one part of a schema on one value, and for one error on its way up."""
MOST_ERRORS: Final = 20
"""Maximum of errors of one value: a reader needs no more, and each text takes time."""
_MOST_CAUSES: Final = 50
"""Causes of one error: the errors of each alternative."""


@dataclass(frozen=True, slots=True)
class KeywordCheck:
    """The shared data of the keywords of one check."""

    steps: CheckSteps
    verdicts: Verdicts
    references: bool = False
    """Whether errors may be dropped afterwards, so that all of them are needed."""


CHECKING: Final[ContextVar[KeywordCheck]] = ContextVar("perdure_checking")
"""The check that runs now; `jsonschema` has no parameter for it."""


@cache
def validator_class(number: int) -> Validator:
    """Return the draft's validator, with counted steps, without `re`, and without the messages of `jsonschema`.

    Each of those messages holds the whole value as text: the errors of 300 alternatives on a large value took seconds.
    """
    base: Validator = VALIDATORS[number]
    own: dict[str, Keyword] = {
        **{name: _assertion(name, check) for name, check in base.VALIDATORS.items() if name in _ASSERTIONS},
        **dict.fromkeys(("$ref", "$dynamicRef"), _reference),
        **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), _dependent),
        "allOf": _all_of,
        "anyOf": _any_of,
        "oneOf": _one_of,
        "not": _not,
        "if": _if,
        "type": _type,
        "pattern": _pattern,
        "uniqueItems": _unique_items,
        "propertyNames": _property_names,
        "properties": _properties,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated_properties,
        "items": _items,
        "prefixItems": _prefix_items,
        "additionalItems": _additional_items,
        "contains": _contains if number >= 2019 else _contains_one,
        "unevaluatedItems": _unevaluated_items,
        "$recursiveRef": _recursive_reference,
    }
    make: Validator = extend
    return make(base, {name: _counted(own.get(name, check)) for name, check in base.VALIDATORS.items()})


_ASSERTIONS: Final = frozenset(
    {
        *("enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
        *("minItems", "maxItems", "minProperties", "maxProperties"),
    }
)
"""Keywords whose verdict comes from the nodes of `perdure.values._schema_nodes`."""


def _counted(check: Keyword) -> Keyword:
    def counted(
        validator: Validator, value: SchemaPart, instance: Json, schema: SchemaPart
    ) -> Iterator[ValidationError]:
        steps = CHECKING.get().steps
        steps.take(_KEYWORD + (len(value) if isinstance(value, list) else 0))
        if isinstance(value, dict):
            steps.take_size(len(value))
        for error in check(validator, value, instance, schema) or ():
            steps.take_size(_DESCENT)
            yield error

    return counted


def _assertion(keyword: str, of_draft: Keyword) -> Keyword:
    """Return the keyword with the nodes' verdict, or with that of `jsonschema` if the nodes have none."""
    kinds = tuple(kind for kind in MAKERS[keyword][0] if kind is not bool)

    def check(validator: Validator, value: SchemaPart, instance: Json, schema: SchemaPart) -> Iterator[ValidationError]:
        if not isinstance(instance, kinds) or (isinstance(instance, bool) and dict not in kinds):
            return
        checking = CHECKING.get()
        try:
            part = checking.verdicts.assertion(schema, keyword)
            if part is not None and not part(instance, checking.steps):
                yield ValidationError("")
        except UncoveredError:
            yield from of_draft(validator, value, instance, schema) or ()

    return check


def _descend(
    validator: Validator,
    value: Json,
    schema: SchemaPart,
    key: str | int | None = None,
    resolver: Any = None,  # hidden by `referencing`
) -> Iterator[ValidationError]:
    """Yield the errors of the value, or of its part at `key`, against a part of the schema."""
    CHECKING.get().steps.take_size(_DESCENT)
    if schema is False:  # the message of `jsonschema` holds the value, and its error has no place
        forbidden: JsonObject = {"validator": "false", "validator_value": False, "instance": value, "schema": False}
        yield ValidationError("", path=() if key is None else [key], **forbidden)
    else:
        yield from validator.descend(value, schema, path=key, resolver=resolver)


def _is_valid(validator: Validator, value: Json, schema: SchemaPart) -> bool:
    CHECKING.get().steps.take_size(_DESCENT)
    return schema is not False and bool(validator.evolve(schema=schema).is_valid(value))


def _reference(validator: Validator, reference: str, instance: Json, schema: SchemaPart) -> Iterator[ValidationError]:
    found = validator._resolver.lookup(reference)
    return _descend(validator, instance, found.contents, resolver=found.resolver)


def _recursive_reference(
    validator: Validator, reference: str, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    found = lookup_recursive_ref(validator._resolver)
    return _descend(validator, instance, found.contents, resolver=found.resolver)


def _all_of(
    validator: Validator, every: list[SchemaPart], instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    for each in every:
        yield from _descend(validator, instance, each)


def _any_of(
    validator: Validator, alternatives: Iterable[SchemaPart], instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    causes: list[ValidationError] = []
    for each in alternatives:
        found = list(_descend(validator, instance, each))
        if not found:
            return
        causes += found
    yield ValidationError("", context=causes)


def _one_of(
    validator: Validator, alternatives: list[SchemaPart], instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    rest = iter(alternatives)
    yield from _any_of(validator, rest, instance, schema)  # it tries all until the first that fits
    if [each for each in rest if _is_valid(validator, instance, each)]:
        yield ValidationError("")


def _not(validator: Validator, refused: SchemaPart, instance: Json, schema: SchemaPart) -> Iterator[ValidationError]:
    if _is_valid(validator, instance, refused):
        yield ValidationError("")


def _if(validator: Validator, condition: SchemaPart, instance: Json, schema: SchemaPart) -> Iterator[ValidationError]:
    following = "then" if _is_valid(validator, instance, condition) else "else"
    if following in schema:
        yield from _descend(validator, instance, schema[following])


def _type(validator: Validator, types: SchemaPart, instance: Json, schema: SchemaPart) -> Iterator[ValidationError]:
    if not any(validator.is_type(instance, each) for each in (types if isinstance(types, list) else [types])):
        yield ValidationError("")


def _dependent(
    validator: Validator, rules: JsonObject, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for name, rule in rules.items():
        if name in instance and not isinstance(rule, list):
            yield from _descend(validator, instance, rule)
        elif name in instance:
            yield from (ValidationError("") for each in rule if each not in instance)


def _property_names(
    validator: Validator, names: SchemaPart, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    for name in instance if isinstance(instance, dict) else ():
        yield from _descend(validator, name, names)


def _matches(pattern: str, text: str) -> bool:
    compiled = compile_pattern(pattern)
    CHECKING.get().steps.take(compiled.cost(text))
    return compiled.matches(text)


def _fitting(schema: SchemaPart) -> Callable[[Json], bool]:
    """Return a function that returns whether a value is known to fit, so that it needs no search for errors."""
    checking = CHECKING.get()
    steps = checking.steps
    try:
        node = checking.verdicts.node(schema)
    except UncoveredError:
        return lambda value: False

    def fits(value: Json) -> bool:
        try:
            return node.fits(value, steps)
        except UncoveredError:
            return False

    return fits


def _pattern(validator: Validator, pattern: str, instance: Json, schema: SchemaPart) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError("")


def _into(validator: Validator, value: Json, schema: SchemaPart, key: str | int) -> Iterator[ValidationError]:
    """Yield the errors of a part of the value."""
    if schema is False:
        yield from _descend(validator, value, schema, key)
    else:
        yield from known_errors(value, schema, lambda: _descend(validator, value, schema, key), key)


def known_errors(
    value: Json, schema: SchemaPart, find: Callable[[], Iterator[ValidationError]], key: str | int | None = None
) -> Iterator[ValidationError]:
    """Yield the errors that `find` finds for a value at `key`, found once for all calls that read it."""
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
        if key is not None:  # the value may have another place in the next call
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
    """Return a copy of the error: its place is written into it on the way up."""
    CHECKING.get().steps.take(_KEYWORD)
    copied: Any = ValidationError.create_from(error)  # `jsonschema` does not type its attributes
    copied._type_checker = cast(Any, error)._type_checker  # `create_from` forgets it, and `best_match` needs it
    copied.context = [_copied(cause) for cause in (error.context or ())[:_MOST_CAUSES]]
    for cause in copied.context:
        cause.parent = copied
    return cast(ValidationError, copied)


def _properties(
    validator: Validator, named: SchemaPart, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for key, child in named.items():
            if key in instance:
                yield from _into(validator, instance[key], child, key)


def _pattern_properties(
    validator: Validator, named: SchemaPart, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, child in named.items():
        for key, value in instance.items():
            if _matches(pattern, key):
                yield from _into(validator, value, child, key)


def _additional_properties(
    validator: Validator, rest: SchemaPart, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    CHECKING.get().steps.take_size(len(instance))
    extra = list(additional(instance, schema))
    if rest is False and extra:
        yield ValidationError("")
    elif rest is not False:
        for key in extra:
            yield from _into(validator, instance[key], rest, key)


def additional(instance: JsonObject, schema: SchemaPart) -> Iterator[str]:
    """Yield the keys without `properties` or `patternProperties`."""
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key in instance:
        if key not in named and not any(_matches(pattern, key) for pattern in patterns):
            yield key


def _unique_items(
    validator: Validator, unique: SchemaPart, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    if unique is True and isinstance(instance, list) and not all_distinct(instance, CHECKING.get().steps):
        yield ValidationError("")


def _items(validator: Validator, items: SchemaPart, instance: Json, schema: SchemaPart) -> Iterator[ValidationError]:
    if isinstance(items, list):  # drafts before 2020-12
        yield from _prefix_items(validator, items, instance, schema)
    elif isinstance(instance, list):
        first = len(schema.get("prefixItems", ())) if _has_prefix(validator) else 0
        CHECKING.get().steps.take(len(instance) // 4)
        fits = _fitting(items)
        for index in range(first, len(instance)):
            if not fits(instance[index]):
                yield from _into(validator, instance[index], items, index)


def _has_prefix(validator: Validator) -> bool:
    """Whether the draft has `prefixItems`."""
    return "prefixItems" in validator.VALIDATORS


def _prefix_items(
    validator: Validator, prefix: list[SchemaPart], instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    if isinstance(instance, list):
        for index, (item, each) in enumerate(zip(instance, prefix, strict=False)):
            yield from _descend(validator, item, each, index)


def _additional_items(
    validator: Validator, rest: SchemaPart, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    prefix = schema.get("items")
    if not isinstance(instance, list) or not isinstance(prefix, list):
        return
    if rest is False and len(instance) > len(prefix):
        yield ValidationError("")
    elif rest is not False:
        for index, item in enumerate(instance[len(prefix) :], len(prefix)):
            yield from _descend(validator, item, rest, index)


def _contains(
    validator: Validator, contained: SchemaPart, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    if not isinstance(instance, list):
        return
    count, least, most = 0, schema.get("minContains", 1), schema.get("maxContains", len(instance))
    for each in instance:
        count += _is_valid(validator, each, contained)
        if count > most:
            yield ValidationError("", validator="maxContains", validator_value=most)
            return
    if count < least and not count:
        yield ValidationError("")
    elif count < least:
        yield ValidationError("", validator="minContains", validator_value=least)


def _contains_one(
    validator: Validator, contained: SchemaPart, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    if isinstance(instance, list) and not any(_is_valid(validator, each, contained) for each in instance):
        yield ValidationError("")


def _unevaluated_items(
    validator: Validator, rest: SchemaPart, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    if isinstance(instance, list) and len(_evaluated_items(validator, instance, schema)) < len(instance):
        yield ValidationError("")


def _evaluated_items(validator: Validator, instance: list[Json], schema: SchemaPart) -> set[int]:
    """Return the places covered by the schema, or by one that applies beside it."""
    if not isinstance(schema, dict):
        return set()
    CHECKING.get().steps.take_size(len(instance))
    places = range(len(instance))
    if "items" in schema and (not isinstance(schema["items"], list) or "additionalItems" in schema):
        return set(places)
    prefix = schema.get("prefixItems" if _has_prefix(validator) else "items", ())
    known = set(places[: len(prefix)])
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if isinstance(reference := schema.get(keyword), str):
            within, found = _target(validator, reference, keyword)
            known |= _evaluated_items(within, instance, found)
    for keyword in ("contains", "unevaluatedItems"):
        if keyword in schema:
            known.update(place for place in places if _is_valid(validator, instance[place], schema[keyword]))
    for branch in _branches(validator, instance, schema):
        known |= _evaluated_items(validator, instance, branch)
    return known


def _unevaluated_properties(
    validator: Validator, rest: SchemaPart, instance: Json, schema: SchemaPart
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    known = set(_evaluated(validator, instance, schema, own=False))
    extra = [key for key in instance if key not in known]
    if any(not _is_valid(validator, instance[key], rest) for key in extra):
        yield ValidationError("")


def _evaluated(validator: Validator, instance: JsonObject, schema: SchemaPart, *, own: bool = True) -> Iterator[str]:
    """Yield the keys covered by the schema, or by one that applies beside it."""
    if not isinstance(schema, dict):
        return
    CHECKING.get().steps.take(_KEYWORD + len(instance))
    yield from (key for key in schema.get("properties", {}) if key in instance)
    yield from (
        key for key in instance if any(_matches(pattern, key) for pattern in schema.get("patternProperties", ()))
    )
    if "additionalProperties" in schema:
        yield from additional(instance, schema)
    if own and "unevaluatedProperties" in schema:
        yield from instance
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if isinstance(reference := schema.get(keyword), str):
            within, found = _target(validator, reference, keyword)
            yield from _evaluated(within, instance, found)
    for branch in _branches(validator, instance, schema):
        yield from _evaluated(validator, instance, branch)


def _branches(validator: Validator, instance: Json, schema: JsonObject) -> Iterator[JsonObject]:
    """Yield the schemas that apply beside this one to the value."""
    branches = [child for keyword in ("allOf", "oneOf", "anyOf") for child in schema.get(keyword, ())]
    if isinstance(instance, dict):
        branches += [child for key, child in schema.get("dependentSchemas", {}).items() if key in instance]
    if "if" in schema:
        holds = _is_valid(validator, instance, schema["if"])
        branches += [schema["if"], schema.get("then")] if holds else [schema.get("else")]
    for branch in branches:
        if isinstance(branch, dict) and _is_valid(validator, instance, branch):
            yield branch


def _target(validator: Validator, reference: str, keyword: str) -> tuple[Validator, SchemaPart]:
    """Return the target of a reference, and its validator."""
    resolver = validator._resolver
    found = lookup_recursive_ref(resolver) if keyword == "$recursiveRef" else resolver.lookup(reference)
    return validator.evolve(schema=found.contents, _resolver=found.resolver), found.contents
