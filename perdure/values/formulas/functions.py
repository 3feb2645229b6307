"""Functions and methods of formulas, each as Python does it where the result is JSON, and paid for in steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from perdure.values.formulas.operators import WrongError, as_text, is_number, items, kind, number
from perdure.values.formulas.steps import Steps
from perdure.values.jsons import Json


def _sum(steps: Steps, values: Json, start: Json = 0) -> Json:
    total = start
    for value in items(steps, values):
        if not is_number(value) or not is_number(total):
            raise WrongError(f"sum adds numbers; there is {kind(value)} among them")
        steps.digits(total, value)
        total = number(total + value)
    return total


Key: TypeAlias = Callable[[Json], Json] | None


def _ranked(steps: Steps, values: list[Json], key: Key) -> list[Json]:
    """What they are ordered by; comparing all of them is paid for."""
    by = values if key is None else [key(value) for value in values]
    steps.take(steps.weigh(by) * max(1, len(by).bit_length()))
    return by


def _sorted(steps: Steps, values: Json, *, key: Key = None, reverse: Json = False) -> Json:
    listed = items(steps, values)
    by = _ranked(steps, listed, key)
    try:
        order = sorted(range(len(listed)), key=by.__getitem__, reverse=bool(reverse))
    except TypeError:
        raise WrongError("its items cannot be compared with each other; give key=lambda item: …") from None
    return [listed[at] for at in order]


_NONE: Final = object()


def _extreme(name: str, pick: Callable[..., Any]) -> Callable[..., Json]:
    def extreme(steps: Steps, *values: Json, key: Key = None, default: Any = _NONE) -> Json:
        listed = items(steps, values[0]) if len(values) == 1 else list(values)
        if not listed:
            if default is _NONE or len(values) > 1:
                raise WrongError(f"{name} of nothing; give default=…")
            return default
        by = _ranked(steps, listed, key)
        try:
            return listed[pick(range(len(listed)), key=by.__getitem__)]
        except TypeError:
            raise WrongError("its items cannot be compared with each other; give key=lambda item: …") from None

    return extreme


def _round(steps: Steps, value: Json, digits: Json = None) -> Json:
    if not is_number(value):
        raise WrongError(f"round takes a number, not {kind(value)}")
    if digits is not None and (not isinstance(digits, int) or abs(digits) > 400):
        raise WrongError("round takes a whole number of digits, at most 400")
    steps.digits(value)
    return number(round(value, digits))


def _int(steps: Steps, value: Json = 0) -> Json:
    if not isinstance(value, int | float | str):
        raise WrongError(f"int takes a number or a text, not {kind(value)}")
    steps.weigh(value)
    try:
        return number(int(value))
    except ValueError:
        raise WrongError(f"{str(value)[:40]!r} is no whole number") from None


def _float(steps: Steps, value: Json = 0.0) -> Json:
    if not isinstance(value, int | float | str):
        raise WrongError(f"float takes a number or a text, not {kind(value)}")
    steps.weigh(value)
    try:
        return number(float(value))
    except ValueError:
        raise WrongError(f"{str(value)[:40]!r} is no number") from None


def _len(steps: Steps, value: Json) -> Json:
    if isinstance(value, str | list | dict):
        return len(value)
    raise WrongError(f"{kind(value)} has no length")


def _abs(steps: Steps, value: Json) -> Json:
    if is_number(value):
        return abs(value)
    raise WrongError(f"abs takes a number, not {kind(value)}")


def _range(steps: Steps, *bounds: Json) -> Json:
    if not all(isinstance(bound, int) for bound in bounds) or not 1 <= len(bounds) <= 3 or bounds[2:] == (0,):
        raise WrongError("range takes one to three whole numbers")
    counted = range(*bounds)
    steps.take(max(0, -((counted.start - counted.stop) // counted.step)))
    return list(counted)


def _enumerate(steps: Steps, values: Json, start: Json = 0) -> Json:
    listed = items(steps, values)
    if not isinstance(start, int):
        raise WrongError("enumerate begins at a whole number")
    steps.take(2 * len(listed))
    return [[start + at, value] for at, value in enumerate(listed)]


def _zip(steps: Steps, *lists: Json) -> Json:
    rows = [list(row) for row in zip(*(items(steps, values) for values in lists), strict=False)]
    steps.take(len(rows) * len(lists))
    return rows


def _set(steps: Steps, values: Json = ()) -> Json:
    """Without duplicates, in the one order that equal sets have: numbers, texts, null."""
    listed = items(steps, values) if values else []
    if any(isinstance(value, list | dict) for value in listed):
        raise WrongError("in a set stand texts and numbers, no lists or objects")
    steps.take(steps.weigh(listed) * max(1, len(listed).bit_length()))
    ranked: Any = dict.fromkeys(listed)
    return sorted(ranked, key=lambda value: (value is None, isinstance(value, str), 0 if value is None else value))


def _dict(steps: Steps, values: Json = None) -> Json:
    if isinstance(values, dict) or values is None:
        steps.take(len(values or {}))
        return dict(values or {})
    pairs = items(steps, values)
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise WrongError("dict takes pairs of a text and a value, such as zip(names, values)")
    steps.take(len(pairs))
    steps.text(sum(len(key) for key, _ in pairs))
    return dict(pairs)


def _next(steps: Steps, values: Json, default: Any = _NONE) -> Json:
    """The first of a list; `default` for none."""
    if not isinstance(values, list):
        raise WrongError(f"next takes a list or a comprehension, not {kind(values)}")
    if not values and default is _NONE:
        raise WrongError("next of nothing; give a default: next(…, None)")
    return values[0] if values else default


FUNCTIONS: Final[Mapping[str, Callable[..., Json]]] = {
    "len": _len,
    "sum": _sum,
    "min": _extreme("min", min),
    "max": _extreme("max", max),
    "sorted": _sorted,
    "any": lambda steps, values: any(items(steps, values)),
    "all": lambda steps, values: all(items(steps, values)),
    "round": _round,
    "str": lambda steps, value="": as_text(steps, value),
    "int": _int,
    "float": _float,
    "bool": lambda steps, value=False: bool(value),
    "abs": _abs,
    "list": lambda steps, value=(): items(steps, value) if value else [],
    "tuple": lambda steps, value=(): items(steps, value) if value else [],
    "set": _set,
    "dict": _dict,
    "reversed": lambda steps, values: items(steps, values)[::-1],
    "next": _next,
    "range": _range,
    "enumerate": _enumerate,
    "zip": _zip,
}


def _pay(steps: Steps, text: str, given: Sequence[Json]) -> None:
    """A text is read, and the texts that are looked for in it."""
    steps.text(len(text) + sum(len(each) for each in given if isinstance(each, str)))


def _split(steps: Steps, text: str, *parts: Json) -> Json:
    if parts and parts[0] == "":
        raise WrongError("split needs something to split by")
    _pay(steps, text, parts)
    found = text.split(*parts)
    steps.take(len(found))
    return found


def _join(steps: Steps, text: str, values: Json) -> Json:
    parts = items(steps, values)
    if not all(isinstance(part, str) for part in parts):
        raise WrongError("join takes texts; write str(x) for x in …")
    steps.text(sum(map(len, parts)) + len(text) * len(parts))
    return text.join(parts)


def _replace(steps: Steps, text: str, old: Json, new: Json, *count: Json) -> Json:
    if not isinstance(old, str) or not isinstance(new, str):
        raise WrongError("replace takes two texts")
    _pay(steps, text, (old,))
    steps.text(text.count(old) * len(new))
    return text.replace(old, new, *count)


def _get(steps: Steps, value: dict[str, Json], key: Json, default: Json = None) -> Json:
    _pay(steps, "", (key,))
    return value.get(key, default) if isinstance(key, str) else default


def _of_text(name: str) -> Callable[..., Json]:
    method = getattr(str, name)

    def call(steps: Steps, text: str, *given: Json) -> Json:
        _pay(steps, text, given)
        # What is stripped is looked for in what is given, character by character.
        steps.text(len(text) * sum(len(each) // 64 for each in given if isinstance(each, str)))
        return method(text, *given)

    return call


def _count(steps: Steps, value: list[Json], item: Json) -> Json:
    steps.weigh(value)
    return value.count(item)


def _index(steps: Steps, value: list[Json], item: Json) -> Json:
    steps.weigh(value)
    if item not in value:
        raise WrongError("the list does not hold that item")
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
        "keys": lambda steps, value: items(steps, value),
        "values": lambda steps, value: items(steps, list(value.values())),
        "items": lambda steps, value: [[key, value[key]] for key in items(steps, value)],
    },
    list: {
        "count": _count,
        "index": _index,
    },
}


def call_method(steps: Steps, value: Json, name: str, given: list[Json]) -> Json:
    """A method of a text, a list or an object. Raises `WrongError`."""
    methods = METHODS.get(type(value), {})
    if name not in methods:
        known = f"it has: {', '.join(methods)}" if methods else "it has none"
        raise WrongError(f"{kind(value)} has no method {name!r}; {known}")
    try:
        return methods[name](steps, value, *given)
    except (TypeError, ValueError, OverflowError) as error:
        raise WrongError(f"{name}: {error}") from None
