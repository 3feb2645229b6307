"""JSON Schema, drafts 4 to 2020-12: validation of values and templates within a bounded number of steps.

The nodes of `perdure.values._schema_nodes` decide fast whether a value fits, and their patterns run in linear time. The
validators of `perdure.values._schema_keywords`, counted in steps, return the texts of errors, and decide if the nodes
cannot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from itertools import islice
from typing import Any, Final, cast

import jsonschema
import referencing.exceptions
from jsonschema.exceptions import ValidationError
from jsonschema_specifications import REGISTRY
from referencing import jsonschema as specifications

from perdure.errors import JsonError
from perdure.values._schema_keywords import (
    CHECKING,
    MOST_ERRORS,
    VALIDATORS,
    KeywordCheck,
    Validator,
    additional,
    known_errors,
    validator_class,
)
from perdure.values._schema_nodes import (
    NOWHERE,
    Draft,
    PatternError,
    UncoveredError,
    Verdicts,
    compile_pattern,
    step_into,
)
from perdure.values.json import Json, JsonObject, SchemaPart, dumps, json_path, loads, shorten
from perdure.values.limits import CheckBudget, CheckSteps, TooMuchError
from perdure.values.references import Path
from perdure.values.templates import EXPR, has_reference, is_expression, without_formulas

_SPECIFICATIONS: Final[dict[int, Any]] = {  # as `resource`
    4: specifications.DRAFT4,
    6: specifications.DRAFT6,
    7: specifications.DRAFT7,
    2019: specifications.DRAFT201909,
    2020: specifications.DRAFT202012,
}
_NAMES: Final = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
}
_NEWER: Final = frozenset(
    {
        *("prefixItems", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"),
        *("minContains", "maxContains", "$dynamicRef", "$dynamicAnchor", "$anchor"),
    }
)
_OLDER: Final = frozenset({"dependencies", "additionalItems", "definitions"})
MOST_PARTS: Final = 50_000
"""Maximum of values in one schema. Far more than every public schema, and parsed in half a second."""
_DEEPEST: Final = 100


def draft_of(schema: SchemaPart) -> Draft:
    """Return the draft that a schema names with `$schema`.

    Without it, the draft is 7 if it uses keywords that only older drafts have (4: an `exclusiveMinimum` that is true or
    false), or 2020-12.
    """
    if isinstance(schema, dict):
        name = str(schema.get("$schema", "")).partition("://")[2].rstrip("#")
        if name in _NAMES:
            return Draft(_NAMES[name])
        older = oldest = False
        for part in subschemas(schema):
            if _NEWER & part.keys():
                return Draft(2020)
            tuples = isinstance(part.get("items"), list)
            anchor = isinstance(part.get("$id"), str) and part["$id"].startswith("#")
            oldest = oldest or any(isinstance(part.get(key), bool) for key in ("exclusiveMinimum", "exclusiveMaximum"))
            older = older or tuples or anchor or bool(_OLDER & part.keys())
        if older or oldest:
            return Draft(4 if oldest else 7)
    return Draft(2020)


BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SINGLE: Final = frozenset(
    {
        *("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"),
        *("contains", "propertyNames", "not", "if", "then", "else"),
    }
)


def subschemas(schema: SchemaPart) -> Iterator[JsonObject]:
    """Yield the schema and all schemas in it, in any draft's places; each once, also if they share parts."""
    stack, seen = [schema], set[int]()
    while stack:
        part = stack.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for key, value in part.items():
            if key in BY_NAME and isinstance(value, dict):
                stack.extend(value.values())
            elif key in LISTS and isinstance(value, list):
                stack.extend(value)
            elif key in SINGLE:
                stack.append(value)


def ignored_key(schema: SchemaPart) -> str | None:
    """Return a key of the schema, or of a schema in it, that is no keyword of its draft and so has no effect."""
    keywords = metaschema(draft_of(schema).number)["properties"]
    return next((key for part in subschemas(schema) for key in part if key not in keywords), None)


def allows_list(schema: SchemaPart) -> bool:
    """Return whether a value that fits the schema can hold a list, as far as its keywords show."""
    for part in subschemas(schema):
        kinds = part.get("type", [])
        if "array" in kinds or ("object" in kinds and not part.get("properties")):
            return True
        if part.get("additionalProperties") is True or not part.keys() & _NAME_A_TYPE:
            return True
    return schema is True


def is_plain(schema: SchemaPart) -> bool:
    """Return whether only texts, numbers, booleans and null fit the schema, as far as its `type` and `anyOf` show."""
    if not isinstance(schema, dict):
        return False
    if isinstance(options := schema.get("anyOf"), list) and options:
        return all(map(is_plain, options))
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return bool(kinds) and not {"array", "object"} & set(kinds)


_NAME_A_TYPE: Final = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "properties"})


def resource(schema: SchemaPart, draft: Draft) -> Any:  # `referencing` types it by its contents
    return _SPECIFICATIONS[draft.number].create_resource(schema)


def size_problem(schema: SchemaPart) -> str | None:
    """Return the reason why the schema is too large to be examined further, or `None`."""
    stack, parts = [(schema, 1)], 0
    while stack:
        item, depth = stack.pop()
        parts += 1
        if depth > _DEEPEST:
            return f"it is nested more than {_DEEPEST} deep"
        if parts > MOST_PARTS:
            return f"it has more than {MOST_PARTS:,} parts"
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        stack.extend((child, depth + 1) for child in children)
    return None


def reference_problem(schema: SchemaPart, draft: Draft) -> str | None:
    """Return the problem of a reference in the schema without a target, or `None`. Nothing is fetched (R18.6)."""
    try:
        root = resource(schema, draft)
        resolver = REGISTRY.with_resource(root.id() or "", root).resolver(root.id() or "")
        stack, seen = [(schema, resolver)], set[int]()
        while stack:
            part, within = stack.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
                if not isinstance(reference := part.get(keyword), str):
                    continue
                try:
                    found = within.lookup(reference)
                except (referencing.exceptions.Unresolvable, LookupError):
                    return f"{keyword} {shorten(reference, 120)} points at nothing in the schema itself"
                if not isinstance(found.contents, dict | bool):
                    return f"{keyword} {shorten(reference, 120)} points at no schema"
                if "json-schema.org" not in reference:
                    stack.append((found.contents, found.resolver))
            for child in resource(part, draft).subresources():
                stack.append((child.contents, within.in_subresource(child)))
    except Exception as error:  # report errors of any name or address of a schema, and do not raise them
        return f"its names cannot be read: {type(error).__name__}: {' '.join(str(error)[:200].split())}"
    return None


def pattern_problem(text: str) -> str | None:
    """Return the reason why the pattern cannot be used, or `None`."""
    try:
        compile_pattern(text)
    except PatternError as error:
        return str(error)
    return None


def patterns_problem(schema: SchemaPart) -> str | None:
    """Return the problem of a pattern that cannot be checked in linear time, or `None`."""
    for part in subschemas(schema):
        named = part.get("patternProperties")
        for text in [part.get("pattern"), *(named if isinstance(named, dict) else ())]:
            if isinstance(text, str) and (problem := pattern_problem(text)):
                return f"the pattern {shorten(text, 120)} cannot be used: {problem}"
    return None


@cache
def metaschema(number: int) -> JsonObject:
    """Return the schema of schemas, in one document.

    From 2019-09 on it consists of vocabularies with dynamic references; joined, they accept the same schemas.
    """
    whole: JsonObject = VALIDATORS[number].META_SCHEMA
    if number <= 7:
        return whole
    properties: JsonObject = {}
    definitions: JsonObject = {}
    for vocabulary in whole["allOf"]:
        part = REGISTRY.contents(f"{whole['$id'].rpartition('/')[0]}/{vocabulary['$ref']}")
        properties |= part["properties"]
        definitions |= part.get("$defs", {})
    inner = _statically({"properties": whole["properties"] | properties, "$defs": definitions})
    return {"$schema": whole["$schema"], "type": ["object", "boolean"], **inner}


def _statically(part: SchemaPart) -> SchemaPart:
    """Return a part with each dynamic reference to the whole replaced by a plain one."""
    if isinstance(part, list):
        return [_statically(item) for item in part]
    if not isinstance(part, dict):
        return part
    plain: JsonObject = {}
    for key, value in part.items():
        if key in ("$dynamicRef", "$recursiveRef") and isinstance(value, str):
            plain["$ref"] = "#"
        elif key == "$ref" and isinstance(value, str):
            plain["$ref"] = value[value.index("#") :]
        elif key not in ("$dynamicAnchor", "$recursiveAnchor", "$id") or isinstance(value, dict):
            plain[key] = _statically(value)
    return plain


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


_SHORT: Final = 20_000
"""Characters of a schema whose problem is remembered: each run parses the schemas of its tools anew."""


@lru_cache(maxsize=500)
def _known_problem(text: str, draft: Draft) -> str | None:
    return _form_problem(json.loads(text), draft)


def _form_problem(schema: SchemaPart, draft: Draft) -> str | None:
    of_schemas = _OF_SCHEMAS.setdefault(draft.number, Schema(metaschema(draft.number)))
    if wrong := of_schemas.errors(schema):
        return wrong[0]
    return reference_problem(schema, draft) or patterns_problem(schema)


class Schema:
    """A JSON Schema of the draft that it names (`perdure.values.schemas.draft_of`).

    `whole` is the document that contains it, if there is one.
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
    def _validator(self) -> Validator:
        if self._whole is not self:
            return self._whole._validator.evolve(schema=self.schema)
        return validator_class(self.draft.number)(self.schema, registry=REGISTRY)  # it fetches nothing (R18.6)

    @cached_property
    def _dynamic(self) -> bool:
        """Whether the meaning of one of its parts depends on the path of references to it."""
        return self._whole._dynamic if self._whole is not self else '"$dynamicRef"' in dumps(self.schema)

    @cached_property
    def problem(self) -> str | None:
        """Return the reason why this JSON Schema cannot be used, or `None`: its form, its references, its patterns.

        Use it where a schema is parsed; a check of values against a schema with a problem returns a line about it.
        """
        if problem := size_problem(self.schema):
            return problem
        try:
            text = dumps(self.schema)
        except (TypeError, ValueError):
            return _form_problem(self.schema, self.draft)  # it is no JSON, as its problem says
        return _known_problem(text, self.draft) if len(text) <= _SHORT else _form_problem(self.schema, self.draft)

    def errors(
        self, value: Json, *, references: bool = False, root: Path = (), checks: CheckBudget | None = None
    ) -> list[str]:
        """Return the value's problems, each as one line with its JSON path; empty when it fits.

        With `references`, a string with a reference is valid for any value that the reference may have. So is a formula
        (R3.1, R16.3). The values around them are checked. Verdicts on large values are cached in `checks`. Never
        raises, and ends within the steps of `perdure.values.limits`.
        """
        value = without_formulas(value) if references else value
        wrong, undecided = self._checked(value, references, root, checks)
        return wrong if undecided is None else [undecided]

    def fits(self, value: Json, *, checks: CheckBudget | None = None) -> bool | None:
        """Whether the value fits; `None` if the check cannot decide, e.g. within the budget of steps."""
        wrong, undecided = self._checked(value, False, (), checks)
        return None if undecided is not None else not wrong

    def _checked(
        self, value: Json, references: bool, root: Path, checks: CheckBudget | None
    ) -> tuple[list[str], str | None]:
        """Return the value's problems, or the reason why they cannot be determined."""
        checks = CheckBudget() if checks is None else checks
        try:
            return ([] if self._fast(value, checks) is True else self._words(value, references, root, checks)), None
        except TooMuchError:
            why = "it takes too many steps, as the value is too large or the schema has too many alternatives inside each other"
        except RecursionError:
            return [], f"the schema refers to itself without end at {json_path(root)}"
        except PatternError as error:
            why = f"a pattern in it cannot be used: {error}"
        except Exception as error:
            # Any failure of `jsonschema` with a schema is reported to the schema's author; an exception would stop the
            # run forever (R18.6). One example is arithmetic on numbers too large for a float: `multipleOf` of an
            # integer of 400 digits.
            why = f"{type(error).__name__}: {' '.join(str(error)[:200].split())}"
        return [], f"{json_path(root)} cannot be checked against its schema: {why}"

    def _fast(self, value: Json, checks: CheckBudget) -> bool | None:
        """Whether the value fits; `None` if the fast nodes cannot decide. Raises `TooMuchError`."""
        steps = CheckSteps(checks=checks)
        try:
            return self.verdicts.node(self.schema).fits(value, steps)
        except UncoveredError:
            return None
        finally:
            steps.settle()

    def _words(self, value: Json, references: bool, root: Path, checks: CheckBudget) -> list[str]:
        steps = CheckSteps(checks=checks)
        token = CHECKING.set(KeywordCheck(steps, self.verdicts, references or self._dynamic))
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
            # Each missing key is an error of its own, and is described with all others.
            return list(dict.fromkeys(describe(error, root)[:_LONGEST] for error in found))
        finally:
            steps.settle()
            CHECKING.reset(token)

    def at(self, path: Path) -> list[Schema] | None:
        """Return the schemas that a value at this path must fit; `None` when the schema forbids the path (R4.5).

        Follows `properties`, `items`, `allOf` and local `$ref`; a keyword that it cannot follow forbids nothing.
        """
        schemas: list[SchemaPart] = list(self._flat(self.schema))
        for part in path:
            following: list[SchemaPart] = []
            for schema in schemas:
                child = _child(schema, part)
                if child is False:
                    return None
                following.extend(self._flat(child))
            schemas = following
        return [Schema(schema, self._whole) for schema in schemas if schema]

    def _flat(self, schema: SchemaPart, depth: int = 0) -> Iterator[SchemaPart]:
        if not isinstance(schema, dict) or depth > 20:
            return
        yield schema
        if (
            isinstance(reference := schema.get("$ref"), str)
            and (target := resolve_local(self._whole.schema, reference)) is not None
        ):
            yield from self._flat(target, depth + 1)
        for part in schema.get("allOf", ()):
            yield from self._flat(part, depth + 1)


_OF_SCHEMAS: Final[dict[int, Schema]] = {}
_LONGEST: Final = 500
"""Characters of one line."""


def describe(error: ValidationError, root: Path = ()) -> str:
    """Return one line: the path, the value and the rule that it breaks."""
    path = json_path((*root, *error.absolute_path))
    keyword, value = error.validator, cast(Any, error.instance)
    rule, schema = cast(Any, error.validator_value), cast(Any, error.schema)
    if keyword in ("anyOf", "oneOf") and error.context:
        best = jsonschema.exceptions.best_match([error])
        if best is not error and best.absolute_path != error.absolute_path:
            return describe(best, root)
        if names := _names_of(error.context):
            return f"{path} is {shorten(value, 80)}, but must be one of {', '.join(map(shorten, names))}"
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
    return f"{path} is {shorten(value, 80)}, but must fit {shorten({str(keyword): rule}, 160)}"


def _names_of(alternatives: Iterable[ValidationError]) -> list[Json]:
    """Return the values of the one alternative that lists its values, if the others have another type."""
    lists = [cast(Any, each.validator_value) for each in alternatives if each.validator == "enum"]
    return lists[0] if len(lists) == 1 and all(each.validator in ("enum", "type") for each in alternatives) else []


def _undecided(error: ValidationError) -> bool:
    instance: Any = error.instance  # the part of the validated value
    if isinstance(instance, str):
        return has_reference(instance) and (is_expression(instance) or error.validator != "type")
    return error.validator not in _OF_THE_CONTAINER and has_reference(instance)


def _child(schema: JsonObject, part: str | int) -> SchemaPart:
    """Return the subschema for one step: `False` if the step is forbidden, `{}` if every value is allowed."""
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


def resolve_local(document: JsonObject, reference: str) -> SchemaPart:
    """Return the target of a `#/…` reference, or `None`."""
    if not reference.startswith("#"):
        return None
    target: SchemaPart = document
    for step in reference.lstrip("#").strip("/").split("/"):
        if step == "":
            continue
        target = step_into(target, step)
        if target is NOWHERE:
            return None
    return target


_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?")
"""Numbers whose digits a float preserves, so that the text can be restored."""
_MOST: Final = 1000
"""Maximum of literals of one call that are converted: each is checked by itself, within a task."""


def convert_literals(value: Json, schema: Schema, checks: CheckBudget | None = None) -> tuple[Json, list[str]]:
    """Return the value with each literal converted that then fits its schema, and a note of each conversion."""
    return _Conversion(schema, checks).convert(value, ())


class _Conversion:
    def __init__(self, schema: Schema, checks: CheckBudget | None) -> None:
        self._schema, self._checks, self._left = schema, checks, _MOST

    def convert(self, value: Json, path: Path) -> tuple[Json, list[str]]:
        if isinstance(value, dict):
            if EXPR in value:
                return value, []
            found = {key: self.convert(child, (*path, key)) for key, child in value.items()}
            return {key: child for key, (child, _) in found.items()}, [n for _, notes in found.values() for n in notes]
        if isinstance(value, list):
            items = [self.convert(child, (*path, index)) for index, child in enumerate(value)]
            return [child for child, _ in items], [note for _, notes in items for note in notes]
        return self._literal(value, path)

    def _literal(self, value: Json, path: Path) -> tuple[Json, list[str]]:
        self._left -= 1
        if self._left < 0 or (other := _other(value)) is None:
            return value, []
        schemas = self._schema.at(path) or []
        if not schemas or self._fits(value, schemas) or not self._fits(other, schemas):
            return value, []
        return other, [f"{json_path(path)} was {shorten(value, 60)} and is taken as {shorten(other, 60)}"]

    def _fits(self, value: Json, schemas: list[Schema]) -> bool:
        return all(schema.fits(value, checks=self._checks) for schema in schemas)


def _other(value: Json) -> Json:
    """Return the unique value of another type with the same meaning, or `None`."""
    if isinstance(value, bool | int | float):
        return dumps(value)
    if not isinstance(value, str) or has_reference(value):
        return None
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if match := _NUMBER.fullmatch(text):
        number = float(text) if match[2] else int(text)
        return number if Decimal(text) == Decimal(dumps(number)) else None
    if text[:1] in ("[", "{"):
        with suppress(JsonError):
            return loads(text)
    return None


_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by name: a property may be called `nullable`."""
_PLAIN: Final = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are not schemas."""


def or_null(schema: SchemaPart) -> SchemaPart:
    """Return a schema with `nullable` in JSON Schema's own keywords."""
    if isinstance(schema, list):
        return [or_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: ([value] if key == "examples" and not isinstance(value, list) else value)
        if key in _PLAIN
        else {name: or_null(child) for name, child in value.items()}
        if key in _NAMED and isinstance(value, dict)
        else or_null(value)
        for key, value in schema.items()
        if key != "nullable" or not isinstance(value, bool)
    }
    return _with_null(plain) if schema.get("nullable") is True else plain


def _with_null(schema: JsonObject) -> JsonObject:
    kind = schema.get("type")
    if not isinstance(kind, str | list):
        return {"anyOf": [schema, {"type": "null"}]} if schema else schema
    kinds = [kind] if isinstance(kind, str) else kind
    widened = {**schema, "type": list(dict.fromkeys([*kinds, "null"]))}
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        widened["enum"] = [*schema["enum"], None]
    return widened
