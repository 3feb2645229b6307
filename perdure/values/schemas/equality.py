"""When two values of JSON are equal."""

from __future__ import annotations

from typing import Any

from perdure.values.limits.steps import Steps


def scalar_key(value: Any) -> Any:
    """What is equal for equal scalars of JSON: `1` and `1.0` are, `1` and `true` are not."""
    return (bool, value) if isinstance(value, bool) else value


def all_distinct(value: list[Any], steps: Steps) -> bool:
    """Whether no two items are equal, in time linear in what they hold."""
    return len({_frozen(child, steps) for child in value}) == len(value)


def _frozen(value: Any, steps: Steps) -> Any:
    steps.take(3)
    if isinstance(value, dict):
        return (dict, frozenset((key, _frozen(child, steps)) for key, child in value.items()))
    if isinstance(value, list):
        return (list, tuple(_frozen(child, steps) for child in value))
    return scalar_key(value)
