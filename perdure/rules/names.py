"""The tools and parameters that rules and policies name, compared with those of an agent. A misspelled name would
protect nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from perdure.errors import Problem
from perdure.rules.rules import AtMost, FollowedBy, NeverAfter, OnlyFrom, OrderRule, Precedes, Rule, names_of
from perdure.tools.tool import Tool
from perdure.values.problems import ProblemPath, none_of, problem_at, suggest_name

Keys: TypeAlias = tuple[str, ...]
NamedParameter: TypeAlias = tuple[str, Keys]
"""A tool's name and the keys of a parameter, or of a part of it."""


def unknown_tools(rule: Rule, known: Sequence[str]) -> Iterator[str]:
    """Yield the tools that the rule names and that are not known. The tool of `bank.pay.euros` is `bank` or `bank.pay`."""
    named = [rule.subjects] if isinstance(rule, AtMost | OnlyFrom) else [(name,) for name in rule.tools]
    for names in named:
        if not set(names) & set(known):
            yield next((name for name in reversed(names) if _is_close(name, known)), names[-1])


def _is_close(name: str, known: Sequence[str]) -> bool:
    near = suggest_name(name, known)
    return near is not None and near.count(".") == name.count(".")


def parameter_problems(rules: Iterable[tuple[int, Rule]], tools: Iterable[Tool]) -> list[Problem]:
    """Return a problem for each parameter that a rule names and its tool's schema forbids. Each rule has its index.

    A name may mean several tools, such as two with the same code: the parameter of one of them is enough.
    """
    by_name: dict[str, list[Tool]] = {}
    for tool in tools:
        for name in names_of(tool):
            by_name.setdefault(name, []).append(tool)
    named = ((("config", "rules", index), choices) for index, rule in rules for choices in _parameters_of(rule))
    return impossible_parameters(named, by_name)


def impossible_parameters(
    named: Iterable[tuple[ProblemPath, Iterable[NamedParameter]]], tools: Mapping[str, Sequence[Tool]]
) -> list[Problem]:
    """Return a problem for each named parameter that its tools' schemas forbid.

    `named`: the place of each name, with all tools and keys that it can mean. `tools`: by name.
    """
    found: dict[Problem, None] = {}
    for place, choices in named:
        words = [_unknown(name, tool, keys) for name, keys in choices for tool in tools.get(name, ())]
        if words and words[0] is not None and None not in words:
            found[problem_at(place, words[0])] = None
    return list(found)


def _parameters_of(rule: Rule) -> Iterator[list[NamedParameter]]:
    """Yield each parameter that the rule names, as all tools and keys that the name can mean."""
    if isinstance(rule, AtMost | OnlyFrom):
        path = rule.of if isinstance(rule, AtMost) else rule.parameter
        yield [(name, tuple(path[len(name) + 1 :].split("."))) for name in rule.subjects]
    if isinstance(rule, OrderRule):
        for first, then in rule.pairs:
            earlier, later = _ends(rule)
            yield from ([(name, tuple(first.split(".")))] for name in earlier)
            yield from ([(name, tuple(then.split(".")))] for name in later)
    for keys in condition_keys(rule.when):
        yield [(name, keys) for name in rule.subjects]


def _ends(rule: OrderRule) -> tuple[Sequence[str], Sequence[str]]:
    """Return the tools of the earlier call, and those of the later one."""
    if isinstance(rule, Precedes):
        return rule.firsts, [rule.then]
    if isinstance(rule, FollowedBy):
        return [rule.call], rule.thens
    assert isinstance(rule, NeverAfter)
    return [rule.after], [rule.call]


def condition_keys(condition: Any, at: Keys = ()) -> Iterator[Keys]:  # a valid JSON Schema
    """Yield the keys that a schema of parameters names."""
    if not isinstance(condition, dict):
        return
    properties = condition.get("properties", {})
    for name in dict.fromkeys([*properties, *condition.get("required", ())]):
        yield (*at, name)
        yield from condition_keys(properties.get(name), (*at, name))
    parts = [part for key in ("allOf", "anyOf", "oneOf") for part in condition.get(key, ())]
    for part in [*parts, *(condition.get(key) for key in ("not", "if", "then", "else"))]:
        yield from condition_keys(part, at)


def _unknown(name: str, tool: Tool, keys: Keys) -> str | None:
    """Return the reason why the tool cannot have a value at these keys, or `None`."""
    schema = tool.parameters_schema
    for depth in range(len(keys)):
        if schema.at(keys[: depth + 1]) is None:
            around = schema.at(keys[:depth]) or ()
            names = sorted({key for part in around for key in part.schema.get("properties", ())})
            parent = ".".join((name, *keys[:depth]))
            return none_of(keys[depth], f"{'key' if depth else 'parameter'} of {parent}", names)
    return None
