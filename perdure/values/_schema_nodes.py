"""Compiled schemas: nodes that count their steps, and patterns on a linear-time engine."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import re2

from perdure.values.json import Json, JsonObject, ReadOnlyJson, SchemaPart
from perdure.values.limits import COSTLY, MOST_STEPS, SIZES_COUNTED, CheckSteps, TooMuchError

Check: TypeAlias = Callable[[Any, CheckSteps], bool]
"""One keyword's verdict on a value of a JSON type to which it applies."""
ALL: Final = (dict, list, str, int, float, bool, type(None))
"""The types of JSON."""


class UncoveredError(Exception):
    """A schema with a keyword that these nodes do not cover."""


class Draft(NamedTuple):
    """The differences between the drafts of JSON Schema."""

    number: int
    """4, 6, 7, 2019 or 2020."""

    @property
    def lone_reference(self) -> bool:
        """Whether a `$ref` disables the keywords beside it."""
        return self.number <= 7


class SchemaNode:
    """A schema as functions."""

    __slots__ = ("light", "parts", "plain")

    def __init__(self, parts: dict[type, tuple[Check, ...]], light: frozenset[type] = frozenset()) -> None:
        self.parts = parts
        self.light = light
        """The types whose checks take so few steps that their verdicts are not worth caching."""
        self.plain = frozenset(kind for kind, of_kind in parts.items() if not of_kind)
        """The types whose every value fits."""

    def fits(self, value: ReadOnlyJson, steps: CheckSteps) -> bool:
        kind = type(value)
        parts = self.parts.get(kind)
        if not parts:
            return parts is not None
        steps.left -= 1
        if steps.left < 0:
            steps.take(0)
        if kind in self.light:
            for part in parts:
                if not part(value, steps):
                    return False
            return True
        known = steps.checks.verdicts.get(id(value))
        if known is not None and id(self) in known:
            return self._known(known[id(self)][2])
        before = steps.left
        verdict = True
        try:
            for part in parts:
                if not part(value, steps):
                    verdict = False
                    break
        except TooMuchError:
            if before > MOST_STEPS // 2:
                self._remember(value, steps, None)
            raise
        if before - steps.left > COSTLY:
            self._remember(value, steps, verdict)
        return verdict

    def _known(self, verdict: bool | None) -> bool:
        if verdict is None:
            raise TooMuchError
        return verdict

    def _remember(self, value: ReadOnlyJson, steps: CheckSteps, verdict: bool | None) -> None:
        steps.checks.verdicts.setdefault(id(value), {})[id(self)] = self, value, verdict


ANYTHING: Final = SchemaNode(dict.fromkeys(ALL, ()))
NOTHING: Final = SchemaNode({})


class Maker(Protocol):
    """A maker of the nodes of one document."""

    draft: Draft

    def node(self, schema: SchemaPart) -> SchemaNode:
        """Return the node of a schema that is part of the document."""

    def target(self, reference: SchemaPart) -> SchemaPart:
        """Return the target of a reference. Raises `UncoveredError` if the reference is not a pointer."""


def uncovered(maker: Maker, schema: JsonObject) -> Check:
    def part(value: Json, steps: CheckSteps) -> bool:
        raise UncoveredError

    return part


def scalar_key(value: object) -> object:
    """Return a key that is equal for equal scalars of JSON: `1` and `1.0` are equal, `1` and `true` are not.

    Numbers become texts: an attacker can choose numbers with equal hashes, whose set takes quadratic time.
    """
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, float):
        return (int, str(int(value)) if value.is_integer() else repr(value))
    return (int, str(value)) if isinstance(value, int) else value


def all_distinct(value: list[Json], steps: CheckSteps) -> bool:
    """Whether no two items are equal, in time linear in their contents."""
    return len({_frozen(child, steps) for child in value}) == len(value)


def _frozen(value: Json, steps: CheckSteps) -> object:
    steps.take(3)
    if isinstance(value, dict):
        return (dict, frozenset((key, _frozen(child, steps)) for key, child in value.items()))
    if isinstance(value, list):
        return (list, tuple(_frozen(child, steps) for child in value))
    return scalar_key(value)


NOWHERE: Final = object()


def step_into(target: SchemaPart, step: str) -> SchemaPart:
    """Return the target of one step of a pointer; `NOWHERE` if it does not exist."""
    name = step.replace("~1", "/").replace("~0", "~")
    if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
        return target[int(name)]
    return target.get(name, NOWHERE) if isinstance(target, dict) else NOWHERE


# JSON Schema's patterns are those of ECMA-262. A construct with another notation in RE2 is translated. One that no
# linear engine supports (look-around, back-references) is refused, in one line, when a schema is parsed.

_SPACES: Final = r"\s\x{0b}\x{a0}\x{feff}\p{Z}"
_CATEGORIES: Final = {
    "Letter": "L",
    "Lowercase_Letter": "Ll",
    "Uppercase_Letter": "Lu",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Punctuation": "P",
    "punct": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Other": "C",
}
_REPEATED: Final = re.compile(r"\{(\d+)(,?)(\d*)\}\??")
_PROPERTY: Final = re.compile(r"([pP])\{(?:(?:Script|sc|General_Category|gc)=)?(\w+)\}")
_CODE: Final = re.compile(
    r"u\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|x([0-9a-fA-F]{2})"
)
_MOST_COPIES: Final = 1000
"""The limit of RE2 for one repetition; a larger one is written as several."""
_MOST_REPEATED: Final = 10_000
_UNIT: Final = 100
"""RE2's instructions times characters for one step of checking: the worst case of its slow path, measured as 7 ns each.
"""

_OPTIONS: Final[Any] = re2.Options()  # `re2` has no types
_OPTIONS.log_errors = False


class PatternError(ValueError):
    """An invalid pattern; `str()` is the reason, in one line."""


class Pattern:
    """A compiled pattern. Immutable."""

    __slots__ = ("_compiled", "_size")

    def __init__(self, text: str) -> None:
        if len(text) > 10_000:
            raise PatternError("it is longer than 10,000 characters")
        try:
            self._compiled: Any = re2.compile(_translated(text), _OPTIONS)  # `re2` has no types
        except (re2.error, UnicodeEncodeError) as error:
            raise PatternError(_reason(text, error)) from None
        self._size: int = self._compiled.programsize

    def cost(self, text: str) -> int:
        """Return the steps of checking for a search in the text."""
        return 1 + len(text) * self._size // _UNIT

    def matches(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text."""
        # For a text `re2` would also compute the place of the match, which takes twice the time.
        return self._compiled.search(text.encode()) is not None


@lru_cache(maxsize=1000)
def compile_pattern(text: str) -> Pattern:
    """Return the pattern, compiled once per process. Raises `PatternError`."""
    return Pattern(text)


def _reason(text: str, error: Exception) -> str:
    if re.search(r"\(\?<?[=!]", text):
        return "looking ahead or behind cannot be checked in linear time"
    if re.search(r"\\[1-9]|\\k<", text):
        return "a reference to an earlier group cannot be checked in linear time"
    if isinstance(error, UnicodeEncodeError):
        return "it has an unpaired surrogate, which is not a character"
    words = error.args[0] if error.args else ""
    return words.decode(errors="replace") if isinstance(words, bytes) else str(words)


def _translated(text: str) -> str:
    """Return the pattern in RE2's notation."""
    done: list[str] = []
    groups: list[int] = []  # starts of the open groups in `done`
    place, last = 0, -1  # `last`: the start of the repeated part
    while place < len(text):
        character = text[place]
        if character == "\\":
            token, place = _escape(text, place + 1, inside=False)
            last = len(done)
        elif character == "[":
            token, place = _class(text, place)
            last = len(done)
        elif character == "(":
            groups.append(len(done))
            token, place = character, place + 1
        elif character == ")":
            last = groups.pop() if groups else len(done)
            token, place = character, place + 1
        elif character == "{" and last >= 0 and (found := _REPEATED.match(text, place)):
            token, place = _repetition("".join(done[last:]), found), found.end()
            if token != found.group():
                del done[last:]
            last = -1
        else:
            last = len(done)
            token, place = character, place + 1
        done.append(token)
    return "".join(done)


def _repetition(what: str, found: re.Match[str]) -> str:
    """Return a repetition beyond RE2's limit as several smaller ones."""
    least, comma = int(found[1]), bool(found[2])
    most = int(found[3]) if found[3] else None if comma else least
    if max(least, most or 0) <= _MOST_COPIES:
        return found.group()
    if max(least, most or 0) > _MOST_REPEATED:
        raise PatternError(f"it repeats something more than {_MOST_REPEATED:,} times")
    parts = [f"{what}{{{count}}}" for count in _pieces(least)]
    if most is None:
        parts.append(f"(?:{what})*")
    else:
        parts += [f"(?:{what}){{0,{count}}}" for count in _pieces(most - least)]
    return f"(?:{''.join(parts)})"


def _pieces(count: int) -> list[int]:
    whole, rest = divmod(count, _MOST_COPIES)
    return [_MOST_COPIES] * whole + ([rest] if rest else [])


def _class(text: str, place: int) -> tuple[str, int]:
    """Return a bracketed class from its `[` on, and its end."""
    place += 1
    negated = text.startswith("^", place)
    place += negated
    if text.startswith("]", place):  # `[]` matches nothing, `[^]` anything
        return (r"[\x{0}-\x{10ffff}]" if negated else r"[^\x{0}-\x{10ffff}]"), place + 1
    inner: list[str] = []
    while place < len(text) and text[place] != "]":
        if text[place] == "\\":
            token, place = _escape(text, place + 1, inside=True)
        else:
            token, place = ("\\[" if text[place] == "[" else text[place]), place + 1
        inner.append(token)
    if place >= len(text):
        raise PatternError("a '[' is not closed")
    return f"[{'^' if negated else ''}{''.join(inner)}]", place + 1


def _escape(text: str, place: int, *, inside: bool) -> tuple[str, int]:
    """Return the escape after a backslash, and its end."""
    if place >= len(text):
        raise PatternError("it ends with a backslash")
    character = text[place]
    if found := _CODE.match(text, place):
        code = int(found[1] or found[2] or found[4], 16)
        if found[3] and 0xD800 <= code < 0xDC00:
            code = 0x10000 + ((code - 0xD800) << 10) + int(found[3], 16) - 0xDC00
            return f"\\x{{{code:x}}}", found.end()
        return f"\\x{{{code:x}}}", found.end() - (6 if found[3] else 0)
    if found := _PROPERTY.match(text, place):
        return f"\\{found[1]}{{{_CATEGORIES.get(found[2], found[2])}}}", found.end()
    if character == "c" and text[place + 1 : place + 2].isalpha():
        return f"\\x{{{ord(text[place + 1]) % 32:x}}}", place + 2
    if character == "s":
        return (_SPACES if inside else f"[{_SPACES}]"), place + 1
    if character == "S" and not inside:
        return f"[^{_SPACES}]", place + 1
    if character == "0" and not text[place + 1 : place + 2].isdigit():
        return r"\x{0}", place + 1
    if character == "b" and inside:
        return r"\x{8}", place + 1
    if character in "AaCQEzGhHKNRUXyYZ":  # RE2's own; in ECMA-262 they are letters, or invalid
        return character, place + 1
    return f"\\{character}", place + 1


OF_OBJECTS: Final = frozenset({"properties", "patternProperties", "additionalProperties"})
"""Keywords that `of_object` decides together."""
OF_ARRAYS: Final = frozenset({"items", "prefixItems", "additionalItems"})
"""Keywords that `of_array` decides together."""


# Keywords of objects.


def of_object(maker: Maker, schema: JsonObject) -> Check:
    """Return the verdict of `properties`, `patternProperties` and `additionalProperties`, which decide together."""
    named: dict[str, SchemaNode] = {name: maker.node(child) for name, child in schema.get("properties", {}).items()}
    try:
        patterned = [
            (compile_pattern(text), maker.node(child)) for text, child in schema.get("patternProperties", {}).items()
        ]
    except PatternError:
        return uncovered(maker, schema)
    others = maker.node(schema.get("additionalProperties", True))
    if not patterned and others is ANYTHING:
        return _only_named(named)

    def part(value: Mapping[str, Json], steps: CheckSteps) -> bool:
        steps.take(len(value))
        for key, child in value.items():
            node = named.get(key)
            if patterned:
                known = node is not None
                for pattern, of_pattern in patterned:
                    steps.take(pattern.cost(key) + 2)
                    if pattern.matches(key):
                        known = True
                        if not of_pattern.fits(child, steps):
                            return False
                if known and node is None:
                    continue
            if not (node or others).fits(child, steps):
                return False
        return True

    return part


def _only_named(named: dict[str, SchemaNode]) -> Check:
    def part(value: Mapping[str, Json], steps: CheckSteps) -> bool:
        steps.take(min(len(named), len(value)))
        if len(named) <= len(value):
            for name, node in named.items():
                if name in value and type(value[name]) not in node.plain and not node.fits(value[name], steps):
                    return False
            return True
        for name, child in value.items():
            if name in named and not named[name].fits(child, steps):
                return False
        return True

    return part


def required(maker: Maker, schema: JsonObject) -> Check:
    names = frozenset(schema["required"])

    def part(value: Mapping[str, Json], steps: CheckSteps) -> bool:
        steps.take(len(names) // 8)
        return names <= value.keys()

    return part


def property_names(maker: Maker, schema: JsonObject) -> Check | None:
    if maker.draft.number < 6:
        return None
    node = maker.node(schema["propertyNames"])

    def part(value: Mapping[str, Json], steps: CheckSteps) -> bool:
        steps.take(len(value))
        return all(node.fits(key, steps) for key in value)

    return part


def dependent(keyword: str, first: int, last: int) -> Callable[[Maker, JsonObject], Check | None]:
    """Return the keyword for conditions on a present key: other keys, or a schema; in the drafts `first` to `last`."""

    def make(maker: Maker, schema: JsonObject) -> Check | None:
        if not first <= maker.draft.number <= last:
            return None
        keys = {name: frozenset(rule) for name, rule in schema[keyword].items() if isinstance(rule, list)}
        nodes = {name: maker.node(rule) for name, rule in schema[keyword].items() if not isinstance(rule, list)}
        size = sum(map(len, keys.values())) // 8

        def part(value: Mapping[str, Json], steps: CheckSteps) -> bool:
            steps.take(len(keys) + len(nodes))
            if size:
                steps.take_size(size)
            for name, names in keys.items():
                if name in value and not names <= value.keys():
                    return False
            for name, node in nodes.items():
                if name in value and not node.fits(value, steps):
                    return False
            return True

        return part

    return make


# Keywords of arrays.


def of_array(maker: Maker, schema: JsonObject) -> Check:
    rest: SchemaPart = schema.get("items", True)
    first: SchemaPart = []
    if maker.draft.number >= 2020:
        first = schema.get("prefixItems", [])
    elif isinstance(rest, list):
        first, rest = rest, schema.get("additionalItems", True)
    prefix, others = [maker.node(each) for each in first], maker.node(rest)

    fits, plain = others.fits, others.plain

    def part(value: list[Json], steps: CheckSteps) -> bool:
        following = value
        if prefix:
            steps.take(min(len(prefix), len(value)))
            for node, child in zip(prefix, value, strict=False):
                if not node.fits(child, steps):
                    return False
            following = value[len(prefix) :]
        if plain and plain.issuperset(map(type, following)):
            steps.take(len(following) // 16)
            return True
        steps.take(len(following) // 4)  # items without an inner check cost nothing
        for child in following:
            if not fits(child, steps):
                return False
        return True

    return part


def contains(maker: Maker, schema: JsonObject) -> Check | None:
    if maker.draft.number < 6:
        return None
    node, counts = maker.node(schema["contains"]), maker.draft.number >= 2019
    least = schema.get("minContains", 1) if counts else 1
    most = schema.get("maxContains") if counts else None

    def part(value: list[Json], steps: CheckSteps) -> bool:
        steps.take(len(value))
        found = sum(node.fits(child, steps) for child in value)
        return bool(least <= found and (most is None or found <= most))

    return part


def distinct(maker: Maker, schema: JsonObject) -> Check | None:
    if schema["uniqueItems"] is not True:
        return None
    return all_distinct


_NUMBERS: Final = (int, float)


# Keywords that combine schemas.


def _reference(maker: Maker, schema: JsonObject) -> Check:
    reference = schema["$ref"]
    found: list[SchemaNode] = []

    def part(value: Json, steps: CheckSteps) -> bool:
        if not found:  # at the first use: a schema may refer to itself
            found.append(maker.node(maker.target(reference)))
        return found[0].fits(value, steps)

    return part


def _all_of(maker: Maker, schema: JsonObject) -> Check:
    nodes = [maker.node(each) for each in schema["allOf"]]
    size = len(nodes) // 4  # nodes without keywords take no steps

    def part(value: Json, steps: CheckSteps) -> bool:
        if size:
            steps.take_size(size)
        for node in nodes:
            if not node.fits(value, steps):
                return False
        return True

    return part


def _any_of(maker: Maker, schema: JsonObject) -> Check:
    nodes = [maker.node(each) for each in schema["anyOf"]]

    def part(value: Json, steps: CheckSteps) -> bool:
        for node in nodes:
            if node.fits(value, steps):
                return True
            steps.take(1)
        return False

    return part


def _one_of(maker: Maker, schema: JsonObject) -> Check:
    nodes = [maker.node(each) for each in schema["oneOf"]]

    def part(value: Json, steps: CheckSteps) -> bool:
        steps.take(len(nodes))
        return sum(node.fits(value, steps) for node in nodes) == 1

    return part


def _not(maker: Maker, schema: JsonObject) -> Check:
    node = maker.node(schema["not"])
    return lambda value, steps: not node.fits(value, steps)


def _if(maker: Maker, schema: JsonObject) -> Check | None:
    if maker.draft.number < 7:
        return None
    condition = maker.node(schema["if"])
    then, otherwise = (maker.node(schema.get(key, True)) for key in ("then", "else"))
    return lambda value, steps: (then if condition.fits(value, steps) else otherwise).fits(value, steps)


# Keywords of any value.


def _enum(maker: Maker, schema: JsonObject) -> Check | None:
    listed = schema["enum"]
    scalars = not any(isinstance(each, dict | list) for each in listed)
    of_schema = CheckSteps(sys.maxsize)  # once, and linear in the schema: it takes no steps of a check
    allowed = {_frozen(each, of_schema) for each in listed}

    def part(value: SchemaPart, steps: CheckSteps) -> bool:
        if not scalars and not steps.checks.is_patched(SIZES_COUNTED):
            raise UncoveredError
        if isinstance(value, str):
            return value in allowed
        if not isinstance(value, dict | list):
            return scalar_key(value) in allowed
        return not scalars and _frozen(value, steps) in allowed

    return part


def _const(maker: Maker, schema: JsonObject) -> Check | None:
    return None if maker.draft.number < 6 else _enum(maker, {"enum": [schema["const"]]})


# Keywords of a size or a bound.


def _bound(keyword: str, test: Callable[[SchemaPart], Check]) -> Callable[[Maker, JsonObject], Check | None]:
    def make(maker: Maker, schema: JsonObject) -> Check | None:
        limit = schema[keyword]
        if isinstance(limit, bool):
            return uncovered(maker, schema)  # draft 4
        if keyword in ("minimum", "maximum") and isinstance(schema.get(f"exclusive{keyword.title()}"), bool):
            return uncovered(maker, schema)
        return test(limit)

    return make


_EXACT: Final = Context(prec=10_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""More digits than the quotient of any two valid numbers."""
_DECIMAL: Final = 3
"""Steps for one division of decimals."""


def _multiple(maker: Maker, schema: JsonObject) -> Check:
    step = schema["multipleOf"]

    def part(value: float, steps: CheckSteps) -> bool:
        if isinstance(value, int) and isinstance(step, int):
            return value % step == 0
        # 19.99 is a multiple of 0.01 for their author, although not as floats.
        steps.take_size(_DECIMAL)
        if math.isfinite(value) and _EXACT.remainder(Decimal(repr(value)), Decimal(repr(step))) == 0:
            return True
        raise UncoveredError

    return part


def _pattern(maker: Maker, schema: JsonObject) -> Check:
    try:
        pattern = compile_pattern(schema["pattern"])
    except PatternError:
        return uncovered(maker, schema)

    def part(value: str, steps: CheckSteps) -> bool:
        steps.take(pattern.cost(value) + 2)
        return pattern.matches(value)

    return part


_Entry: TypeAlias = tuple[tuple[type, ...], Callable[[Maker, JsonObject], Check | None]]
MAKERS: Final[dict[str, _Entry]] = {
    "$ref": (ALL, _reference),
    "allOf": (ALL, _all_of),
    "anyOf": (ALL, _any_of),
    "oneOf": (ALL, _one_of),
    "not": (ALL, _not),
    "if": (ALL, _if),
    "enum": (ALL, _enum),
    "const": (ALL, _const),
    "required": ((dict,), required),
    "minProperties": ((dict,), _bound("minProperties", lambda limit: lambda value, _: len(value) >= limit)),
    "maxProperties": ((dict,), _bound("maxProperties", lambda limit: lambda value, _: len(value) <= limit)),
    "minItems": ((list,), _bound("minItems", lambda limit: lambda value, _: len(value) >= limit)),
    "maxItems": ((list,), _bound("maxItems", lambda limit: lambda value, _: len(value) <= limit)),
    "uniqueItems": ((list,), distinct),
    "minLength": ((str,), _bound("minLength", lambda limit: lambda value, _: len(value) >= limit)),
    "maxLength": ((str,), _bound("maxLength", lambda limit: lambda value, _: len(value) <= limit)),
    "pattern": ((str,), _pattern),
    "minimum": (_NUMBERS, _bound("minimum", lambda limit: lambda value, _: value >= limit)),
    "maximum": (_NUMBERS, _bound("maximum", lambda limit: lambda value, _: value <= limit)),
    "exclusiveMinimum": (_NUMBERS, _bound("exclusiveMinimum", lambda limit: lambda value, _: value > limit)),
    "exclusiveMaximum": (_NUMBERS, _bound("exclusiveMaximum", lambda limit: lambda value, _: value < limit)),
    "multipleOf": (_NUMBERS, _multiple),
    "propertyNames": ((dict,), property_names),
    "dependencies": ((dict,), dependent("dependencies", 4, 7)),
    "dependentRequired": ((dict,), dependent("dependentRequired", 2019, 2020)),
    "dependentSchemas": ((dict,), dependent("dependentSchemas", 2019, 2020)),
    "contains": ((list,), contains),
    "unevaluatedItems": ((list,), uncovered),
    "unevaluatedProperties": ((dict,), uncovered),
    "$dynamicRef": (ALL, uncovered),
    "$recursiveRef": (ALL, uncovered),
}


_LIGHT: Final = frozenset(
    {
        "const",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "maxLength",
        "maximum",
        "minLength",
        "minimum",
        "multipleOf",
    }
)
"""Keywords that take few steps for a value that is neither an object nor an array."""


# A schema becomes nodes of plain functions. They cover the keywords of nearly all schemas. A keyword that they do not
# cover raises `UncoveredError` when a value meets it, and `jsonschema` decides, far more slowly. The texts of errors
# always come from `jsonschema`.

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


class Verdicts:
    """The nodes of one document."""

    def __init__(self, document: SchemaPart, draft: Draft) -> None:
        self._document = document
        self.draft = draft
        self._nodes: dict[int, SchemaNode] = {}
        self._assertions: dict[tuple[int, str], Check | None] = {}

    def node(self, schema: SchemaPart) -> SchemaNode:
        """Return the node of a schema that is part of the document."""
        if schema is True:
            return ANYTHING
        if schema is False:
            return NOTHING
        if not isinstance(schema, dict):
            raise UncoveredError
        known = self._nodes.get(id(schema))
        if known is None:
            known = self._nodes[id(schema)] = self._compile(schema)
        return known

    def assertion(self, schema: JsonObject, keyword: str) -> Check | None:
        """Return one keyword's verdict on the types in `MAKERS`; `None` if it has none in this draft."""
        place = id(schema), keyword
        if place not in self._assertions:
            self._assertions[place] = MAKERS[keyword][1](self, schema)
        return self._assertions[place]

    def _compile(self, schema: JsonObject) -> SchemaNode:
        self._refuse_names(schema)
        if self.draft.lone_reference and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        parts: dict[type, list[Check]] = {kind: [] for kind in _types(schema)}
        if float in parts and "integer" in _listed(schema) and "number" not in _listed(schema):
            parts[float].append(_is_whole if self.draft.number > 4 else _never)
        heavy: set[type] = {dict, list}
        for keyword in schema:
            kinds, make = MAKERS.get(keyword, ((), None))
            part = make(self, schema) if make is not None else None
            if part is not None:
                if keyword not in _LIGHT:
                    heavy.update(kinds)
                for kind in kinds:
                    if kind in parts:
                        parts[kind].append(part)
        if dict in parts and schema.keys() & OF_OBJECTS:
            parts[dict].append(of_object(self, schema))
        if list in parts and schema.keys() & OF_ARRAYS:
            parts[list].append(of_array(self, schema))
        return SchemaNode(
            {kind: tuple(of_kind) for kind, of_kind in parts.items()}, light=frozenset(parts.keys() - heavy)
        )

    def target(self, reference: SchemaPart) -> SchemaPart:
        """Return the target of a pointer into the document. Raises `UncoveredError` for any other reference."""
        if reference == "#":
            return self._document
        if not isinstance(reference, str) or not reference.startswith("#/") or "%" in reference:
            raise UncoveredError
        target = self._document
        for step in reference[2:].split("/"):
            target = step_into(target, step)
            if target is NOWHERE:
                raise UncoveredError
            self._refuse_names(target)
        return target

    def _refuse_names(self, schema: SchemaPart) -> None:
        """Refuse a part with its own name: it is a document with other targets of references."""
        named = isinstance(schema, dict) and isinstance(schema.get("id" if self.draft.number == 4 else "$id"), str)
        if named and schema is not self._document:
            raise UncoveredError


def _listed(schema: JsonObject) -> list[SchemaPart]:
    types = schema.get("type", [])
    return types if isinstance(types, list) else [types]


def _types(schema: JsonObject) -> Sequence[type]:
    if "type" not in schema:
        return ALL
    return [kind for name in _listed(schema) for kind in _TYPES.get(name, ()) if isinstance(name, str)]


def _is_whole(value: float, steps: CheckSteps) -> bool:
    return value.is_integer()


def _never(value: Json, steps: CheckSteps) -> bool:
    return False
