"""Calls that set one path without an order between them: which value stays is chance (R5.14)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import Final, TypeAlias

from perdure.plan.calls import Call
from perdure.plan.control.conditions import IF
from perdure.plan.edges.cycles import Edge
from perdure.values.output_paths import show
from perdure.values.paths import overlaps
from perdure.values.references import Path, Reference

Race: TypeAlias = tuple[Call, Call, Path]
_ALL_PAIRS: Final = 20
"""Calls that set one path of which all pairs are looked at; of more, neighbours in the list."""


def find_races(calls: Sequence[Call], edges: Iterable[Edge], *, ended: bool = False) -> list[Race]:
    """Return two calls and the path that both set, for each pair of which neither waits for the other.

    `edges` are those of the list. Before anything runs, calls that go by other conditions, or by other branches of one call, count as
    exclusive. With `ended`, the calls are those that have set the path.
    """
    paths_of = _written if ended else _first_choice
    setters: dict[Path, list[Call]] = {}
    for call in calls:
        for path in dict.fromkeys(paths_of(call)):
            setters.setdefault(path, []).append(call)
    pairs = list(_pairs(setters))
    if not pairs:
        return []
    before, guards = _before_and_guards(calls, edges)
    found: dict[tuple[int, int], Race] = {}
    for first, second, path in pairs:
        one, two = sorted((first.index, second.index))
        ordered = one not in before or two not in before or before[one] >> two & 1 or before[two] >> one & 1
        exclusive = not ended and guards[one] & ~guards[two] and guards[two] & ~guards[one]
        if one != two and not (ordered or exclusive):
            found.setdefault((one, two), (calls[one], calls[two], path))
    return [race for _, race in sorted(found.items())]


def race_text(race: Race) -> str:
    """Return what is wrong with the two calls, and what to write instead."""
    first, second, path = race
    order = f'"_after": "ended {first.id}"'
    return f"{first.title} and {second.title} both set {show(path)} without an order between them: give the second {order}, or another path"


def _first_choice(call: Call) -> Iterable[Path]:
    """Where a call writes where all goes well."""
    return call.paths[0] if call.paths and call.method == "set" and call.status != "invalid" else ()


def _written(call: Call) -> Iterable[Path]:
    return (write.path for write in call.writes) if call.method == "set" else ()


def _pairs(setters: dict[Path, list[Call]]) -> Iterator[Race]:
    for path, here in setters.items():
        for one, two in combinations(here, 2) if len(here) <= _ALL_PAIRS else pairwise(here):
            yield one, two, path
        for length in range(1, len(path)):  # who sets what the path stands in sets the path
            for one in setters.get(path[:length], ())[:_ALL_PAIRS]:
                for two in here[:_ALL_PAIRS]:
                    yield one, two, path


def _before_and_guards(calls: Sequence[Call], edges: Iterable[Edge]) -> tuple[dict[int, int], dict[int, int]]:
    """By call which calls end before it starts, and what it goes by, each as the bits of a number; of calls in a ring nothing."""
    readers: dict[int, list[tuple[int, Reference | str]]] = {}
    waits_for = dict.fromkeys((call.index for call in calls), 0)
    for writer, reader, what in edges:
        readers.setdefault(writer, []).append((reader, what))
        waits_for[reader] += 1
    bits: dict[tuple[int, frozenset[int]], int] = {}
    before, guards = dict.fromkeys(waits_for, 0), dict.fromkeys(waits_for, 0)
    for call in calls:
        if IF in call.raw:
            guards[call.index] = _bit(bits, call.index, frozenset())
    free = [index for index, count in waits_for.items() if not count]
    for writer in free:
        for reader, what in readers.get(writer, ()):
            before[reader] |= before[writer] | 1 << writer
            if isinstance(what, Reference):
                guards[reader] |= guards[writer] | _of_branch(calls[writer], what, bits)
            waits_for[reader] -= 1
            if not waits_for[reader]:
                free.append(reader)
    return {index: before[index] for index in free}, guards


def _of_branch(writer: Call, reference: Reference, bits: dict[tuple[int, frozenset[int]], int]) -> int:
    """What a reader of one of a call's branches goes by."""
    if not writer.branches:
        return 0
    alternatives = enumerate(writer.paths)
    read = frozenset(n for n, paths in alternatives if any(overlaps(path, reference.path) for path in paths))
    return _bit(bits, writer.index, read) if 0 < len(read) < len(writer.paths) else 0


def _bit(bits: dict[tuple[int, frozenset[int]], int], index: int, branches: frozenset[int]) -> int:
    return 1 << bits.setdefault((index, branches), len(bits))
