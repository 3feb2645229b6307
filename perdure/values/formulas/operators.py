"""What formulas do with values: operators, each as Python does it where the result is JSON, and paid for in steps."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from perdure.errors import clip
from perdure.values.formulas.steps import BITS, Steps
from perdure.values.jsons import MAX_DIGITS, Json

MAX_BITS: Final = int(MAX_DIGITS * 3.32)
"""Of an integer: what is longer could be written and not read again."""
MAX_WIDTH: Final = 999
"""Characters that a format pads to, and the digits it gives."""

Operation: TypeAlias = Callable[[Steps, Any, Any], Json]


class WrongError(Exception):
    """What a formula asks for cannot be done; the message says what would be right."""


def kind(value: Json) -> str:
    """What a value is, as a person calls it."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "a function")


def number(value: Any) -> Json:
    """The number, if JSON can carry it. Raises `WrongError`."""
    if isinstance(value, complex):
        raise WrongError("the root of a negative number is no number here")
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongError("the result is outside the range of a 64-bit float")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise WrongError(f"the result has more than {MAX_DIGITS:,} digits")
    return value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _numbers(sign: str, do: Callable[[Any, Any], Any]) -> Operation:
    def calculate(steps: Steps, a: Any, b: Any) -> Json:
        if not (is_number(a) and is_number(b)):
            raise WrongError(f"{kind(a)} {sign} {kind(b)} is not defined")
        steps.digits(a, b)
        return number(do(a, b))

    return calculate


def _add(steps: Steps, a: Any, b: Any) -> Json:
    if isinstance(a, str) and isinstance(b, str):
        steps.text(len(a) + len(b))
        return a + b
    if isinstance(a, list) and isinstance(b, list):
        steps.take(len(a) + len(b))
        return a + b
    if is_number(a) and is_number(b):
        steps.digits(a, b)
        return number(a + b)
    hint = "; write str(…) or an f-string" if str in (type(a), type(b)) else ""
    raise WrongError(f"{kind(a)} + {kind(b)} is not defined{hint}")


def _multiply(steps: Steps, a: Any, b: Any) -> Json:
    if isinstance(a, int) and isinstance(b, str | list):
        a, b = b, a
    if isinstance(a, str | list) and isinstance(b, int):
        if b > 0:
            (steps.text if isinstance(a, str) else steps.take)(len(a) * b)
        return a * max(b, 0)
    return _numbers("*", operator.mul)(steps, a, b)


def _power(steps: Steps, a: Any, b: Any) -> Json:
    if isinstance(a, int) and isinstance(b, int) and b > 0 and a.bit_length() * b > MAX_BITS + 64 and abs(a) > 1:
        raise WrongError(f"the result has more than {MAX_DIGITS:,} digits")
    if isinstance(a, int) and isinstance(b, int) and b > 0:
        steps.take(min(a.bit_length() * b, MAX_BITS) // BITS)
    return _numbers("**", operator.pow)(steps, a, b)


OPERATORS: Final[Mapping[str, Operation]] = {
    "Add": _add,
    "Sub": _numbers("-", operator.sub),
    "Mult": _multiply,
    "Div": _numbers("/", operator.truediv),
    "FloorDiv": _numbers("//", operator.floordiv),
    "Mod": _numbers("%", operator.mod),
    "Pow": _power,
}


def _equal(steps: Steps, a: Any, b: Any) -> bool:
    if isinstance(a, str | list | dict) and isinstance(b, type(a)) and len(a) == len(b):
        steps.weigh(a)
    return bool(a == b)


def _ordered(sign: str, do: Callable[[Any, Any], bool]) -> Operation:
    def compare(steps: Steps, a: Any, b: Any) -> bool:
        if isinstance(a, str | list) and isinstance(b, type(a)):
            steps.weigh(a if len(a) <= len(b) else b)
        try:
            return do(a, b)
        except TypeError:
            raise WrongError(f"{kind(a)} {sign} {kind(b)} cannot be compared") from None

    return compare


def _contains(steps: Steps, a: Any, b: Any) -> bool:
    if isinstance(b, str):
        if not isinstance(a, str):
            raise WrongError(f"in a text only a text can stand, not {kind(a)}")
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
    raise WrongError(f"in {kind(b)} nothing can stand")


COMPARISONS: Final[Mapping[str, Operation]] = {
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


def items(steps: Steps, value: Json) -> list[Json]:
    """What a comprehension or a function walks over, as a list."""
    if isinstance(value, str | list | dict):
        steps.take(len(value))
        return list(value)
    raise WrongError(f"{kind(value)} has no items")


def text_key(steps: Steps, value: Json) -> str:
    """A key of an object."""
    if isinstance(value, str):
        steps.text(len(value))
        return value
    raise WrongError(f"the keys of an object are texts, not {kind(value)}; write str(…)")


def at_place(steps: Steps, value: Json, at: Json) -> Json:
    """`value[at]` and `value.at`."""
    if isinstance(value, dict) and isinstance(at, str):
        steps.text(len(at))
        if at in value:
            return value[at]
        near = ", ".join(clip(key, 40) for key in list(value)[:10])
        raise WrongError(f"there is no {clip(at, 60)!r}; the object has: {near or 'nothing'}")
    if isinstance(value, list | str) and isinstance(at, int):
        if -len(value) <= at < len(value):
            return value[at]
        raise WrongError(f"there is no [{at}]: it has {len(value)} items")
    what = kind(at) if at is None or isinstance(at, list | dict) else repr(clip(str(at), 60))
    raise WrongError(f"{kind(value)} has no {what}")


def as_text(steps: Steps, value: Json) -> str:
    """As `str` writes it."""
    steps.weigh(value)
    text = value if isinstance(value, str) else str(value)
    steps.text(len(text))
    return text


_FORMAT: Final = re.compile(r"(?:.?[<>=^])?[-+ ]?#?0?(\d*)[,_]?(?:\.(\d+))?[bdeEfFgGosxX%]?")
"""Without `c`, which may give what is no character, and `n`, which goes by the machine."""


def formatted(steps: Steps, value: Json, spec: str) -> str:
    """`f"{value:spec}"`."""
    if not spec:
        return as_text(steps, value)
    found = _FORMAT.fullmatch(spec)
    if found is None or any(int(digits or 0) > MAX_WIDTH for digits in found.groups()):
        raise WrongError(f"the format {spec[:30]!r} is not known; write one such as '.2f', ',' or '>10'")
    if not isinstance(value, str | int | float):
        raise WrongError(f"{kind(value)} cannot be formatted with {spec!r}")
    steps.weigh(value)
    steps.take(MAX_WIDTH // 16)
    return format(value, spec)
