"""Instances: independent contexts inside one Request, and calls that belong to one of them (R8.8).

An instance's state stands in the run's state under a key of its own, `@name`, and its other data under a kind of its own,
`input@name`. A call of the instance writes there, and reads there first: `†state.x` becomes `†state.@name.x || †state.x`, so that
what is shared is seen by all. Everything else, wiring, waiting and branching, is as it is without instances.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from perdure.values.jsons import Json, JsonObject
from perdure.values.references import Both, Either, Expression, Path, Reference
from perdure.values.templates import Template, map_expressions

MARK: Final = "@"


def state_key(instance: str) -> str:
    """Where the instance's state stands in the run's."""
    return MARK + instance


def kind_of(kind: str, instance: str) -> str:
    return f"{kind}{MARK}{instance}"


def scope_template(template: Template, instance: str, kinds: Collection[str]) -> Template:
    """The template as the instance reads it: its own first, then what is shared. `kinds` are all that have data."""

    def scope(expression: Expression) -> Expression:
        if isinstance(expression, Either):
            return Either(tuple(map(scope, expression.items)))
        if isinstance(expression, Both):
            return Both(tuple(map(scope, expression.items)))
        own = own_reference(expression, instance, kinds)
        return expression if own is None else Either((own, expression)) if expression.path else own

    return map_expressions(template, scope)


def own_reference(reference: Reference, instance: str, kinds: Collection[str]) -> Reference | None:
    """The same in the instance's own data; `None` where it has none of the kind."""
    if reference.kind == "state":
        return Reference("state", (state_key(instance), *reference.path))
    own = kind_of(reference.kind, instance)
    return Reference(own, reference.path) if own in kinds else None


def scope_path(path: Path, instance: str) -> Path:
    """Where the instance writes."""
    return (state_key(instance), *path)


def foreign_problems(reads: Iterable[Reference], paths: Iterable[Iterable[Path]], *, shared: bool) -> list[str]:
    """What would reach into an instance by its name, or, of a call that is `shared`, into all of them at once."""
    problems = []
    read = [(str(reference), reference.kind, reference.path) for reference in reads]
    written = [(str(Reference("state", path)), "state", path) for alternative in paths for path in alternative]
    for text, kind, path in [*read, *written]:
        if MARK in kind or (kind == "state" and path and str(path[0]).startswith(MARK)):
            problems.append(f"{text} names an instance: write it without, and give the call its '_instance'")
        elif shared and kind == "state" and not path:
            problems.append(f"{text} is the state of all instances together: name what you need of it")
    return list(dict.fromkeys(problems))


def without_instance(path: Path) -> Path:
    """The path as the state's schema knows it."""
    return path[1:] if path and str(path[0]).startswith(MARK) else path


def split_state(state: JsonObject, instances: Iterable[str]) -> tuple[JsonObject, dict[str, JsonObject]]:
    """What is shared, and each instance's own."""
    own = {name: state[state_key(name)] for name in instances if state_key(name) in state}
    keys = {state_key(name) for name in own}
    return {key: value for key, value in state.items() if key not in keys}, own


def values_for(base: Mapping[str, Json], instance: str | None) -> Mapping[str, Json]:
    """The data by kind as a call of the instance sees it, for what is not read by reference (R8.2)."""
    if instance is None:
        return base
    own = {kind.removesuffix(MARK + instance): value for kind, value in base.items() if kind.endswith(MARK + instance)}
    shared = {kind: value for kind, value in base.items() if MARK not in kind}
    state = base.get("state")
    if isinstance(state, dict):
        own_state = state.get(state_key(instance), {})
        shared["state"] = {key: value for key, value in state.items() if not key.startswith(MARK)} | own_state
    return shared | own
