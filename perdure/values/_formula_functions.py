"""Functions, methods, and operators of formulas. Each counts its work in steps."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from typing_extensions import TypeIs

from perdure.errors import clip
from perdure.values.json import MAX_DIGITS, Json

MAX_FORMULA_STEPS: Final = 200_000
"""The steps for the formulas of one call, or of one output, below 0.1 s. A step is one operation, one item, or
`CHARACTERS` of text. Measuring and writing the value costs steps too (R18.9)."""
CHARACTERS: Final = 16
LOOKS: Final = 2
"""Parts of a value that one step measures."""
BITS: Final = 128
"""Bits of an integer that one step computes with: two of 4,000 digits take 30 µs."""


class OutOfStepsError(Exception):
    """A formula that would take more steps than its budget."""


class EvaluationSteps:
    """The budget of one evaluation."""

    __slots__ = ("left",)

    def __init__(self, most: int = MAX_FORMULA_STEPS) -> None:
        self.left = most

    def take(self, count: int = 1) -> None:
        """Take steps from the budget. Raises `OutOfStepsError` when none are left."""
        self.left -= count
        if self.left < 0:
            raise OutOfStepsError

    def text(self, length: int) -> None:
        """Count a text of this many characters that is written or read."""
        if length >= CHARACTERS:
            self.take(length // CHARACTERS)

    def digits(self, *numbers: float) -> None:
        """Count a computation with these numbers."""
        bits = 0
        for number in numbers:
            if isinstance(number, int):
                bits += number.bit_length()
        if bits >= BITS:
            self.take(bits // BITS)

    def weigh(self, value: Json) -> int:
        """Take a step for each item in the value, at any depth; return their number."""
        before = self.left
        if isinstance(value, int):
            self.digits(value)
            return before - self.left
        stack: list[Json] = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                self.text(len(item))
            elif isinstance(item, list):
                self.take(len(item))
                stack.extend(item)
            elif isinstance(item, dict):
                self.take(2 * len(item))
                stack.extend(item)
                stack.extend(item.values())
            elif isinstance(item, int):
                self.digits(item)
        return before - self.left


MAX_BITS: Final = int(MAX_DIGITS * 3.32)
"""Bits of an integer: a longer one could be written, but not parsed again."""
MAX_WIDTH: Final = 999
"""Maximum of characters that a format pads to, and of digits after its point."""

OperatorFunction: TypeAlias = Callable[[EvaluationSteps, Json, Json], Json]


class FormulaUseError(Exception):
    """An operation that a formula cannot do; the message names the accepted form."""


def kind_of_value(value: Json) -> str:
    """Return the kind of a value in plain words."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "a function")


def to_json_number(value: Json | complex) -> Json:
    """Return the number, if JSON can carry it. Raises `FormulaUseError`."""
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise FormulaUseError(f"the result has more than {MAX_DIGITS:,} digits")
        return value
    if isinstance(value, complex):
        raise FormulaUseError("the root of a negative number is not a number here")
    if isinstance(value, float) and not math.isfinite(value):
        raise FormulaUseError("the result is outside the range of a 64-bit float")
    return value


def is_number(value: Json) -> TypeIs[int | float]:
    return isinstance(value, (int, float))  # a union takes twice as long


def _numbers(sign: str, do: Callable[[float, float], complex]) -> OperatorFunction:
    def calculate(steps: EvaluationSteps, a: Json, b: Json) -> Json:
        if not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
            raise FormulaUseError(f"{kind_of_value(a)} {sign} {kind_of_value(b)} is not defined")
        if type(a) is not float or type(b) is not float:
            steps.digits(a, b)
        return to_json_number(do(a, b))

    return calculate


def _add(steps: EvaluationSteps, a: Json, b: Json) -> Json:
    if type(a) is int and type(b) is int and a.bit_length() + b.bit_length() < BITS:
        return a + b
    if isinstance(a, str) and isinstance(b, str):
        steps.text(len(a) + len(b))
        return a + b
    if isinstance(a, list) and isinstance(b, list):
        steps.take(len(a) + len(b))
        return a + b
    if is_number(a) and is_number(b):
        steps.digits(a, b)
        return to_json_number(a + b)
    hint = "; write str(…) or an f-string" if str in (type(a), type(b)) else ""
    raise FormulaUseError(f"{kind_of_value(a)} + {kind_of_value(b)} is not defined{hint}")


_times: Final = _numbers("*", operator.mul)
_raised: Final = _numbers("**", operator.pow)


def _multiply(steps: EvaluationSteps, a: Json, b: Json) -> Json:
    if type(a) is int and type(b) is int and a.bit_length() + b.bit_length() < BITS:
        return a * b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return _times(steps, a, b)
    if isinstance(a, int) and isinstance(b, str | list):
        a, b = b, a
    if isinstance(a, str | list) and isinstance(b, int):
        if b > 0:
            (steps.text if isinstance(a, str) else steps.take)(len(a) * b)
        return a * max(b, 0)
    return _times(steps, a, b)


def _power(steps: EvaluationSteps, a: Json, b: Json) -> Json:
    if isinstance(a, int) and isinstance(b, int) and b > 0 and a.bit_length() * b > MAX_BITS + 64 and abs(a) > 1:
        raise FormulaUseError(f"the result has more than {MAX_DIGITS:,} digits")
    if isinstance(a, int) and isinstance(b, int) and b > 0:
        steps.take(min(a.bit_length() * b, MAX_BITS) // BITS)
    return _raised(steps, a, b)


OPERATORS: Final[Mapping[str, OperatorFunction]] = {
    "Add": _add,
    "Sub": _numbers("-", operator.sub),
    "Mult": _multiply,
    "Div": _numbers("/", operator.truediv),
    "FloorDiv": _numbers("//", operator.floordiv),
    "Mod": _numbers("%", operator.mod),
    "Pow": _power,
}


def _equal(steps: EvaluationSteps, a: Json, b: Json) -> bool:
    if isinstance(a, (str, list, dict)) and isinstance(b, type(a)) and len(a) == len(b):
        steps.weigh(a)
    return bool(a == b)


# Any: two values that Python cannot compare are an error of the formula.
def _ordered(sign: str, do: Callable[[Any, Any], bool]) -> OperatorFunction:
    def compare(steps: EvaluationSteps, a: Json, b: Json) -> bool:
        if isinstance(a, (str, list)) and isinstance(b, type(a)):
            steps.weigh(a if len(a) <= len(b) else b)
        try:
            return do(a, b)
        except TypeError:
            raise FormulaUseError(f"{kind_of_value(a)} {sign} {kind_of_value(b)} cannot be compared") from None

    return compare


def _contains(steps: EvaluationSteps, a: Json, b: Json) -> bool:
    if isinstance(b, str):
        if not isinstance(a, str):
            raise FormulaUseError(f"a text contains only texts, not {kind_of_value(a)}")
        steps.text(len(b))
        return a in b
    if isinstance(b, dict):
        steps.text(len(a) if isinstance(a, str) else 0)
        return isinstance(a, str) and a in b
    if isinstance(b, list):
        steps.take(len(b))
        if isinstance(a, str):
            steps.text(sum(len(a) for item in b if isinstance(item, str) and len(item) == len(a)))
        elif isinstance(a, list | dict):
            steps.weigh(b)
        return a in b
    raise FormulaUseError(f"{kind_of_value(b)} contains nothing")


COMPARISONS: Final[Mapping[str, OperatorFunction]] = {
    "Eq": _equal,
    "NotEq": lambda steps, a, b: not _equal(steps, a, b),
    "Lt": _ordered("<", operator.lt),
    "LtE": _ordered("<=", operator.le),
    "Gt": _ordered(">", operator.gt),
    "GtE": _ordered(">=", operator.ge),
    "In": _contains,
    "NotIn": lambda steps, a, b: not _contains(steps, a, b),
    "Is": lambda steps, a, b: a is b,
    "IsNot": lambda steps, a, b: a is not b,
}


def to_items(steps: EvaluationSteps, value: Json) -> list[Json]:
    """Return the items for a comprehension or a function, as a list."""
    if isinstance(value, str | list | dict):
        steps.take(len(value))
        return list(value)
    raise FormulaUseError(f"{kind_of_value(value)} has no items")


def text_key(steps: EvaluationSteps, value: Json) -> str:
    """Return a value as a key of an object."""
    if isinstance(value, str):
        steps.text(len(value))
        return value
    raise FormulaUseError(f"the keys of an object are texts, not {kind_of_value(value)}; write str(…)")


def at_place(steps: EvaluationSteps, value: Json, at: Json) -> Json:
    """Return `value[at]` and `value.at`."""
    if isinstance(value, dict) and isinstance(at, str):
        if len(at) >= CHARACTERS:
            steps.text(len(at))
        if at in value:
            return value[at]
        near = ", ".join(clip(key, 40) for key in list(value)[:10])
        raise FormulaUseError(f"there is no {clip(at, 60)!r}; the object has: {near or 'nothing'}")
    if isinstance(value, (list, str)) and isinstance(at, int):
        if -len(value) <= at < len(value):
            return value[at]
        raise FormulaUseError(f"there is no [{at}]: it has {len(value)} items")
    what = kind_of_value(at) if at is None or isinstance(at, list | dict) else repr(clip(str(at), 60))
    raise FormulaUseError(f"{kind_of_value(value)} has no {what}")


def as_text(steps: EvaluationSteps, value: Json) -> str:
    """Return a value as `str` writes it."""
    if type(value) is not int or value.bit_length() >= BITS:
        steps.weigh(value)
    text = value if isinstance(value, str) else str(value)
    steps.text(len(text))
    return text


_FORMAT: Final = re.compile(r"(?:.?[<>=^])?[-+ ]?#?0?(\d*)[,_]?(?:\.(\d+))?[bdeEfFgGosxX%]?")
"""The accepted formats: without `c`, which may produce no character, and `n`, which depends on the machine."""


def format_value(steps: EvaluationSteps, value: Json, spec: str) -> str:
    """Return `f"{value:spec}"`."""
    if not spec:
        return as_text(steps, value)
    found = _FORMAT.fullmatch(spec)
    if found is None or any(int(digits or 0) > MAX_WIDTH for digits in found.groups()):
        raise FormulaUseError(f"the format {spec[:30]!r} is not known; write one such as '.2f', ',' or '>10'")
    if not isinstance(value, str | int | float):
        raise FormulaUseError(f"{kind_of_value(value)} cannot be formatted with {spec!r}")
    steps.weigh(value)
    steps.take(MAX_WIDTH // 16)
    return format(value, spec)


def _sum(steps: EvaluationSteps, values: Json, start: Json = 0) -> Json:
    total = start
    for value in to_items(steps, values):
        if type(value) is int and type(total) is int and value.bit_length() + total.bit_length() < BITS:
            total += value
            continue
        if not is_number(value) or not is_number(total):
            raise FormulaUseError(f"sum adds numbers; there is {kind_of_value(value)} among them")
        steps.digits(total, value)
        total = to_json_number(total + value)
    return total


SortKey: TypeAlias = Callable[[Json], Json] | None


def _ranked(
    steps: EvaluationSteps, values: list[Json], key: SortKey
) -> list[Any]:  # not all values can be compared: Python decides
    """Return the values of the sort key; the comparisons are counted."""
    by = values if key is None else [key(value) for value in values]
    steps.take(steps.weigh(by) * max(1, len(by).bit_length()))
    return by


def _sorted(steps: EvaluationSteps, values: Json, *, key: SortKey = None, reverse: Json = False) -> Json:
    listed = to_items(steps, values)
    by = _ranked(steps, listed, key)
    try:
        order = sorted(range(len(listed)), key=by.__getitem__, reverse=bool(reverse))
    except TypeError:
        raise FormulaUseError("its items cannot be compared with each other; give key=lambda item: …") from None
    return [listed[at] for at in order]


_NONE: Final[Any] = object()  # in place of a default, which may be any value


def _extreme(name: str, pick: Callable[..., int]) -> Callable[..., Json]:
    def extreme(steps: EvaluationSteps, *values: Json, key: SortKey = None, default: Json = _NONE) -> Json:
        listed = to_items(steps, values[0]) if len(values) == 1 else list(values)
        if not listed:
            if default is _NONE or len(values) > 1:
                raise FormulaUseError(f"{name} of nothing; give default=…")
            return default
        by = _ranked(steps, listed, key)
        try:
            return listed[pick(range(len(listed)), key=by.__getitem__)]
        except TypeError:
            raise FormulaUseError("its items cannot be compared with each other; give key=lambda item: …") from None

    return extreme


def _round(steps: EvaluationSteps, value: Json, digits: Json = None) -> Json:
    if not is_number(value):
        raise FormulaUseError(f"round takes a number, not {kind_of_value(value)}")
    if digits is not None and (not isinstance(digits, int) or abs(digits) > 400):
        raise FormulaUseError("round takes a whole number of digits, at most 400")
    steps.digits(value)
    return to_json_number(round(value, digits) if digits is not None else round(value))


def _int(steps: EvaluationSteps, value: Json = 0) -> Json:
    if not isinstance(value, int | float | str):
        raise FormulaUseError(f"int takes a number or a text, not {kind_of_value(value)}")
    steps.weigh(value)
    try:
        return to_json_number(int(value))
    except ValueError:
        raise FormulaUseError(f"{str(value)[:40]!r} is not a whole number") from None


def _float(steps: EvaluationSteps, value: Json = 0.0) -> Json:
    if not isinstance(value, int | float | str):
        raise FormulaUseError(f"float takes a number or a text, not {kind_of_value(value)}")
    steps.weigh(value)
    try:
        return to_json_number(float(value))
    except ValueError:
        raise FormulaUseError(f"{str(value)[:40]!r} is not a number") from None


def _len(steps: EvaluationSteps, value: Json) -> Json:
    if isinstance(value, str | list | dict):
        return len(value)
    raise FormulaUseError(f"{kind_of_value(value)} has no length")


def _abs(steps: EvaluationSteps, value: Json) -> Json:
    if is_number(value):
        return abs(value)
    raise FormulaUseError(f"abs takes a number, not {kind_of_value(value)}")


def _range(steps: EvaluationSteps, *bounds: Json) -> Json:
    numbers = [bound for bound in bounds if isinstance(bound, int)]
    if len(numbers) < len(bounds) or not 1 <= len(numbers) <= 3 or numbers[2:] == [0]:
        raise FormulaUseError("range takes one to three whole numbers")
    counted = range(*numbers)
    steps.take(max(0, -((counted.start - counted.stop) // counted.step)))
    return list(counted)


def _enumerate(steps: EvaluationSteps, values: Json, start: Json = 0) -> Json:
    listed = to_items(steps, values)
    if not isinstance(start, int):
        raise FormulaUseError("enumerate begins at a whole number")
    steps.take(2 * len(listed))
    return [[start + at, value] for at, value in enumerate(listed)]


def _zip(steps: EvaluationSteps, *lists: Json) -> Json:
    rows: list[Json] = [list(row) for row in zip(*(to_items(steps, values) for values in lists), strict=False)]
    steps.take(len(rows) * len(lists))
    return rows


def _set(steps: EvaluationSteps, values: Json = None) -> Json:
    """Return the values without duplicates, in a fixed order, so that equal sets are equal: numbers, texts, null."""
    listed = to_items(steps, values) if values else []
    if any(isinstance(value, list | dict) for value in listed):
        raise FormulaUseError("a set contains texts and numbers, no lists or objects")
    steps.take(steps.weigh(listed) * max(1, len(listed).bit_length()))
    ranked: Any = dict.fromkeys(listed)  # scalars, which the type `Json` cannot express
    return sorted(ranked, key=lambda value: (value is None, isinstance(value, str), 0 if value is None else value))


def _dict(steps: EvaluationSteps, values: Json = None) -> Json:
    if isinstance(values, dict) or values is None:
        steps.take(len(values or {}))
        return dict(values or {})
    listed = to_items(steps, values)
    pairs = [
        (pair[0], pair[1]) for pair in listed if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
    ]
    if len(pairs) < len(listed):
        raise FormulaUseError("dict takes pairs of a text and a value, such as zip(names, values)")
    steps.take(len(pairs))
    steps.text(sum(len(key) for key, _ in pairs))
    return dict(pairs)


def _next(steps: EvaluationSteps, values: Json, default: Json = _NONE) -> Json:
    """Return the first of a list; `default` for an empty one."""
    if not isinstance(values, list):
        raise FormulaUseError(f"next takes a list or a comprehension, not {kind_of_value(values)}")
    if not values and default is _NONE:
        raise FormulaUseError("next of nothing; give a default: next(…, None)")
    return values[0] if values else default


FUNCTIONS: Final[Mapping[str, Callable[..., Json]]] = {
    "len": _len,
    "sum": _sum,
    "min": _extreme("min", min),
    "max": _extreme("max", max),
    "sorted": _sorted,
    "any": lambda steps, values: any(to_items(steps, values)),
    "all": lambda steps, values: all(to_items(steps, values)),
    "round": _round,
    "str": lambda steps, value="": as_text(steps, value),
    "int": _int,
    "float": _float,
    "bool": lambda steps, value=False: bool(value),
    "abs": _abs,
    "list": lambda steps, value=(): to_items(steps, value) if value else [],
    "tuple": lambda steps, value=(): to_items(steps, value) if value else [],
    "set": _set,
    "dict": _dict,
    "reversed": lambda steps, values: to_items(steps, values)[::-1],
    "next": _next,
    "range": _range,
    "enumerate": _enumerate,
    "zip": _zip,
}


# Any: the methods of `str` check their arguments themselves, and `call_method` reports their errors.


def _pay(steps: EvaluationSteps, text: str, arguments: Sequence[Json]) -> None:
    """Count the text that is read, and the texts that it is searched for."""
    steps.text(len(text) + sum(len(each) for each in arguments if isinstance(each, str)))


def _split(steps: EvaluationSteps, text: str, *parts: Any) -> Json:  # `str.split` checks them
    if parts and parts[0] == "":
        raise FormulaUseError("split needs something to split by")
    _pay(steps, text, parts)
    found: list[Json] = [*text.split(*parts)]
    steps.take(len(found))
    return found


def _join(steps: EvaluationSteps, text: str, values: Json) -> Json:
    listed = to_items(steps, values)
    parts = [part for part in listed if isinstance(part, str)]
    if len(parts) < len(listed):
        raise FormulaUseError("join takes texts; write str(x) for x in …")
    steps.text(sum(map(len, parts)) + len(text) * len(parts))
    return text.join(parts)


def _replace(steps: EvaluationSteps, text: str, old: Json, new: Json, *count: Any) -> Json:  # `str.replace` checks it
    if not isinstance(old, str) or not isinstance(new, str):
        raise FormulaUseError("replace takes two texts")
    _pay(steps, text, (old,))
    steps.text(text.count(old) * len(new))
    return text.replace(old, new, *count)


def _get(steps: EvaluationSteps, value: dict[str, Json], key: Json, default: Json = None) -> Json:
    _pay(steps, "", (key,))
    return value.get(key, default) if isinstance(key, str) else default


def _of_text(name: str) -> Callable[..., Json]:
    method: Callable[..., Json] = getattr(str, name)

    def call(steps: EvaluationSteps, text: str, *arguments: Json) -> Json:
        _pay(steps, text, arguments)
        # The method searches its arguments for each stripped character.
        steps.text(len(text) * sum(len(each) // 64 for each in arguments if isinstance(each, str)))
        return method(text, *arguments)

    return call


def _count(steps: EvaluationSteps, value: list[Json], item: Json) -> Json:
    steps.weigh(value)
    return value.count(item)


def _index(steps: EvaluationSteps, value: list[Json], item: Json) -> Json:
    steps.weigh(value)
    if item not in value:
        raise FormulaUseError("the list does not hold that item")
    return value.index(item)


METHODS: Final[Mapping[type, Mapping[str, Callable[..., Json]]]] = {
    str: {
        **{
            name: _of_text(name)
            for name in ("lower", "upper", "strip", "lstrip", "rstrip", "title", "capitalize", "startswith", "endswith")
        },
        **{
            name: _of_text(name)
            for name in ("count", "find", "isdigit", "isalpha", "splitlines", "removeprefix", "removesuffix")
        },
        "split": _split,
        "join": _join,
        "replace": _replace,
    },
    dict: {
        "get": _get,
        "keys": lambda steps, value: to_items(steps, value),
        "values": lambda steps, value: to_items(steps, list(value.values())),
        "items": lambda steps, value: [[key, value[key]] for key in to_items(steps, value)],
    },
    list: {
        "count": _count,
        "index": _index,
    },
}


def call_method(steps: EvaluationSteps, value: Json, name: str, arguments: list[Json]) -> Json:
    """Return the result of a method of a text, a list or an object. Raises `FormulaUseError`."""
    methods = METHODS.get(type(value), {})
    if name not in methods:
        known = f"it has: {', '.join(methods)}" if methods else "it has none"
        raise FormulaUseError(f"{kind_of_value(value)} has no method {name!r}; {known}")
    try:
        return methods[name](steps, value, *arguments)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormulaUseError(f"{name}: {error}") from None
