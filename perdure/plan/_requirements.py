"""Requirements of a call: the ends and writes in its plan that have to precede the call, for a judge of whole plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from perdure.plan._calls import Call, LoopForm
from perdure.plan._dependency_graph import Binding, CallNode, WriterIndex, index_of
from perdure.values.references import MISSING, Expression, FirstOf, Reference, get
from perdure.values.state import is_prefix, scope_path

_MOST_SETTERS = 20
"""Maximum of writers in one direction that are examined for one reference."""


@dataclass(frozen=True, slots=True)
class WritersOf:
    """The writers of one reference, by index: all of them have to end with their promised results."""

    writers: tuple[int, ...]
    setters: tuple[int, ...] = ()
    """The calls that set the path, nearest first: if one takes another branch, the next one has to have written."""
    only_setters: bool = True
    """Whether a value can only come from one of `setters`."""
    exists: bool = True
    """Whether there is a value without a write."""
    well: bool = False
    """Whether the calls themselves have to be done: a failure that another branch takes is not enough."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Alternative requirements: one of them is enough."""

    items: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class EachOf:
    """Requirements that all have to be met."""

    items: tuple[Requirement, ...]


Requirement: TypeAlias = WritersOf | AnyOf | EachOf


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements of one call."""

    needed: EachOf
    """The requirements of its parameters, its condition and `_after`."""
    ended: tuple[int, ...]
    """Calls that have to end before it begins, in any way; those of `needed` are among them."""
    open: bool
    """Whether calls that have not arrived may add to them."""
    more: bool = False
    """Whether further calls may have to end, if one of `ended` does not write."""


def requirements_of(node: CallNode, writers: WriterIndex, *, own_decides: bool) -> Requirements:
    """Return the requirements of a call; `writers`: those of its own Request. `own_decides`: whether an instance's own
    writers decide, if it has any.
    """
    call = node.call
    needed: list[Requirement] = []
    for bindings, template in (
        (node.bindings, call.spec.condition),
        (node.bindings, call.spec.template),
        (node.order, call.spec.after.paths),
    ):
        own = call.spec.instance if own_decides else None
        needed += [
            _requirement(site.expression, bindings, writers, own) for site in template.sites if not site.optional
        ]
    named = [index for index in node.after if index not in node.absent]
    needed += [WritersOf((index,), (index,), well=True) for index in named if index not in node.any_end]
    ended = {index for binding in node.all_bindings() for index in binding.writers} | set(named)
    more = any(len(_writers_of(binding, writers).setters) > 1 for binding in node.ends.values())
    return Requirements(EachOf(tuple(needed)), tuple(sorted(ended)), node.open, more)


def _requirement(
    expression: Expression, bindings: Mapping[Reference, Binding], writers: WriterIndex, instance: str | None
) -> Requirement:
    if isinstance(expression, Reference):
        binding = bindings.get(expression)
        if instance is not None and expression.kind == "state":
            own = bindings.get(Reference("state", scope_path(expression.path, instance)))
            binding = own if own is not None and own.decides else binding
        return WritersOf(()) if binding is None else _writers_of(binding, writers)
    items = tuple(_requirement(each, bindings, writers, instance) for each in expression.items)
    return AnyOf(items) if isinstance(expression, FirstOf) else EachOf(items)


def _writers_of(binding: Binding, writers: WriterIndex) -> WritersOf:
    if not binding.writers:
        return WritersOf((), exists=get(binding.base, binding.reference.path) is not MISSING)
    if not binding.covered:
        return WritersOf(tuple(binding.writers), (), only_setters=False)
    path = binding.reference.path
    setters = [binding.writers[-1 if binding.forward else 0]]
    while len(setters) < _MOST_SETTERS:
        found, covered = (writers.after if binding.forward else writers.before)(path, setters[-1])
        if not found:  # the reader never falls back to a value from before the plan
            return WritersOf(tuple(binding.writers), tuple(setters))
        if not covered:
            break
        setters.append(found[-1 if binding.forward else 0])
        if len(found) > 1:
            break
    return WritersOf(tuple(binding.writers), tuple(setters), only_setters=False)


def body_requirements(form: LoopForm) -> list[Requirements]:
    """Return the requirements of the calls of a loop's body, among the calls of the same iteration."""
    found: list[Requirements] = []
    for place, call in enumerate(form.forms):
        needed = [
            _inside(site.expression, form.forms[:place])
            for template in (call.spec.condition, call.spec.template)
            for site in template.sites
            if not site.optional
        ]
        named = [index_of(id) for id in call.spec.after.ids]
        needed += [WritersOf((index,), (index,), well=True) for index in named if index < len(form.forms)]
        ended = tuple(sorted(set(_writers_in(needed))))
        found.append(Requirements(EachOf(tuple(needed)), ended, open=False))
    return found


def _inside(expression: Expression, before: Sequence[Call]) -> Requirement:
    if isinstance(expression, Reference):
        for place in reversed(range(len(before))):
            paths = [path for paths in before[place].spec.paths for path in paths]
            if expression.kind == "state" and any(is_prefix(path, expression.path) for path in paths):
                return WritersOf((place,), (place,), only_setters=False)
        return WritersOf(())
    items = tuple(_inside(each, before) for each in expression.items)
    return AnyOf(items) if isinstance(expression, FirstOf) else EachOf(items)


def _writers_in(needed: Iterable[Requirement]) -> Iterator[int]:
    for each in needed:
        if isinstance(each, WritersOf):
            yield from each.writers
        else:
            yield from _writers_in(each.items)
